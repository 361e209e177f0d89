"""What is measured of a network only when it is asked for: it costs time, memory or many rows of ``metrics.csv``."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.diagnosis.probe import PROBE_SIZE, by_layer, rows_of_units
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import Optimizer
from rl_plasticity.metrics import (
    generalized_gaussian_shape,
    project_to_span,
    representation_change,
    representation_distance,
)
from rl_plasticity.structure import activations_of, read, untouched
from rl_plasticity.structure.layer import Layer, lookup, wide

LARGEST = 16_000_000  # activations of each run that are kept from task to task: 64 MB


class TaskStarts(nn.Module):
    """How far the hidden activations have moved from the start of one task to the start of the next.

    Of every activation behind a layer, on the same images at every task. Source: Lewandowski et al. (2024), section 5.2
    and Figure 3, "average representation change". It does not say on which inputs, nor whether the distance is relative
    to the activations' size: both are measured.

    The activations at the last start are saved, so a resumed run goes on measuring as it would have.

    Args:
        learner: whose network is looked at, in evaluation mode. The first start is now.
        images: ``[*runs, n, ...]``; the first of them, as many as have `LARGEST` activations in all hidden layers.

    Raises:
        ValueError: a network of which it is not known what its hidden layers are.
    """

    images: Tensor

    def __init__(self, learner: Learner, images: Tensor) -> None:
        super().__init__()
        self._learner = (learner,)  # in a tuple: not a submodule
        k = len(learner.runs)
        structure = read(learner.net)
        structure = read(learner.net, images.narrow(k, 0, 1)) if structure.unknown else structure
        self.units = structure.activations()
        if structure.unknown or not self.units:
            raise ValueError(f"hidden layers are measured, and {structure.unknown or 'the network has none'}")
        self.register_buffer("images", images.narrow(k, 0, 1), persistent=False)
        of_one = sum(activations.numel() for activations in self._activations()) // math.prod(learner.runs)
        number = max(1, min(PROBE_SIZE, LARGEST // of_one, images.shape[k]))
        self.images = images.narrow(k, 0, number).clone()
        for i, activations in enumerate(self._activations()):
            self.register_buffer(f"start_{i}", activations)

    @torch.no_grad()
    def next_(self) -> dict[str, Tensor]:
        """The next start is now: how far it is from the last one ``[*runs]``, by name, on average and by layer."""
        starts = [self.get_buffer(f"start_{i}") for i in range(len(self.units))]
        pairs = dict(zip([u.name for u in self.units], zip(starts, self._activations(), strict=True), strict=True))
        values = by_layer("representation_change", {n: representation_change(*pair) for n, pair in pairs.items()})
        values |= by_layer("representation_distance", {n: representation_distance(*pair) for n, pair in pairs.items()})
        for start, now in pairs.values():
            start.copy_(now)
        return values

    def _activations(self) -> list[Tensor]:
        """Of each layer ``[*runs, examples, units]``."""
        learner = self._learner[0]
        with untouched(learner.net):
            found = activations_of(learner.net, self.units, self.images)
        return [rows_of_units(unit, a, learner.runs) for unit, a in zip(self.units, found, strict=True)]


class EffectiveSteps:
    """The effective gradient norm of each layer: that of the step that was applied to its weight, over the weight's.

    ||d|| / ||W|| with W <- W - lr * d: for Adam d = m_hat / (sqrt(v_hat) + eps), for SGD its momentum (so without
    momentum the gradient). What a regularizer's projection does to the weight is no part of the step, a penalty's
    gradient is. Source: Liu et al. (2021), section III-B and Figure 2a: "the gradient norm is computed using the
    normalized gradients by the second-order momentum, i.e. the actual gradients applied to parameters".

    The step is read from the optimizer's moments after the update, so the update itself is the same, bit for bit, and
    may be compiled. Of a weight that is computed (``net.parametrization``) it is the trained tensor that is measured.

    Args:
        learner: with an optimizer that says its last step (`Optimizer.direction`).

    Raises:
        ValueError: another optimizer.
    """

    def __init__(self, learner: Learner) -> None:
        if type(learner.optimizer).direction is Optimizer.direction:
            name = type(learner.optimizer).__name__
            raise ValueError(f"the steps of {name} are not known after an update: measure those of Adam or SGD")
        self.learner = learner
        self.layers = [layer for layer in read(learner.net).layers if layer.matrix(learner.net) is not None]

    def of(self, update: Callable[..., dict[str, Tensor]]) -> Callable[..., dict[str, Tensor]]:
        """`update`, which minimizes the learner's loss, with ``effective_step`` among what it returns."""

        def watched(*arguments: Any) -> dict[str, Tensor]:
            before = self._norms(lambda name: lookup(self.learner.net, name))
            metrics = update(*arguments)
            steps = self._norms(self.learner.optimizer.direction)
            return metrics | by_layer("effective_step", {name: step / before[name] for name, step in steps.items()})

        return watched

    @torch.no_grad()
    def _norms(self, tensor_called: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Of each layer's own part of a tensor like its weight."""
        runs, norms = self.learner.runs, {}
        for layer in self.layers:
            assert layer.weight_name is not None
            tensor = tensor_called(layer.weight_name)
            tensor = tensor if layer.part is None else tensor.select(len(runs), layer.part)
            norms[layer.name] = torch.linalg.vector_norm(wide(tensor).reshape(*runs, -1), dim=-1)
        return norms


def layer_called(net: nn.Module, name: str) -> Layer:
    """The layer of this name that has a weight matrix.

    Raises:
        SettingsError: there is none; the nearest name is given.
    """
    layers = {layer.name: layer for layer in read(net).layers if layer.matrix(net) is not None}
    if name not in layers:
        raise SettingsError(f"no layer with a weight matrix is called {name!r}{nearest(name, layers)}")
    return layers[name]


@torch.no_grad()
def channel_norms(net: nn.Module, layer: Layer) -> dict[str, Tensor]:
    """The norm of each output channel's kernel (a unit's row), ``[*runs]`` by ``channel_norm/LAYER/CHANNEL``.

    Source: Liu et al. (2021), Figure 3b, where each line is one output channel of VGG16.
    """
    matrix = layer.matrix(net)
    assert matrix is not None
    norms: Tensor = torch.linalg.vector_norm(wide(matrix), dim=-1)  # [*runs, out]
    return {f"channel_norm/{layer.name}/{i}": norm for i, norm in enumerate(norms.unbind(-1))}


def convolutions(net: nn.Module) -> list[Layer]:
    """The layers whose weights can be projected to the span of their inputs: convolutions of images, ungrouped.

    Raises:
        ValueError: there is none.
    """
    found = []
    for layer in read(net).layers:
        module = net.get_submodule(layer.name) if layer.role == "conv" and layer.weight_name else None
        if isinstance(module, nn.Conv2d) and module.groups == 1 and not isinstance(module.padding, str):
            found += [layer] if module.padding_mode == "zeros" else []
    if not found:
        raise ValueError("the span of convolutions' inputs is measured, and the network has no convolution of images")
    return found


@torch.no_grad()
def span_shapes(net: nn.Module, layers: Iterable[Layer], batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """The shape of the generalized Gaussian fitted to each kernel in the span of its inputs, ``span_shape[/LAYER]``.

    beta of all entries of W U, U the eigenvectors of the covariance of the patches h that the kernel is applied to,
    Sigma = mean h h^T - mu mu^T. Source: Liu et al. (2021), section V-A, equation 12, Figures 4 and 5; of all training
    images there. In evaluation mode. Directions that the inputs do not span are left out, see `project_to_span`.

    Args:
        layers: see `convolutions`.
        batches: of images ``[*runs, n, c, h, w]``. A batch's patches, n * positions * fan_in numbers of a layer, are in
            memory at a time, and the covariances of all layers, fan_in^2 numbers each.
    """
    layers = list(layers)
    covariances = {layer.name: Covariance() for layer in layers}

    def add(layer: Layer) -> Callable[..., None]:
        return lambda conv, x: covariances[layer.name].add_(patches(conv, wide(x[0]), layer.runs))

    hooks = [net.get_submodule(layer.name).register_forward_pre_hook(add(layer)) for layer in layers]
    try:
        with untouched(net):
            for batch in batches:
                net(batch)
    finally:
        for hook in hooks:
            hook.remove()
    shapes = {}
    for layer in layers:
        matrix = layer.matrix(net)
        assert matrix is not None
        coordinates = project_to_span(wide(matrix), covariances[layer.name].value)
        shapes[layer.name] = generalized_gaussian_shape(coordinates.flatten(-2), skip_zeros=True)
    return by_layer("span_shape", shapes)


def patches(conv: nn.Conv2d, x: Tensor, runs: tuple[int, ...] = ()) -> Tensor:
    """What the kernel is applied to: ``[*runs, n, c, h, w] -> [*runs, n * positions, c * kh * kw]``."""
    shape: Any = (conv.kernel_size, conv.dilation, conv.padding, conv.stride)
    columns = F.unfold(x.flatten(0, len(runs)), *shape)  # [runs * n, fan_in, positions]
    return columns.mT.reshape(*runs, -1, columns.shape[1])


class Covariance:
    """The covariance mean h h^T - mu mu^T of rows ``[*runs, n, size]`` that come in parts.

    Each part is centred before its products are taken, so nothing is lost to a large mean (Chan et al. 1979).
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.products = torch.zeros(())

    @property
    def value(self) -> Tensor:
        """``[*runs, size, size]``."""
        return self.products / self.count

    def add_(self, rows: Tensor) -> None:
        """Take in more rows."""
        n, mean = rows.shape[-2], rows.mean(-2)
        centred = rows - mean.unsqueeze(-2)
        apart = mean - self.mean if self.count else torch.zeros_like(mean)
        share = n / (self.count + n)
        between = apart.unsqueeze(-1) * apart.unsqueeze(-2) * (share * self.count)
        self.products = self.products + centred.mT @ centred + between
        self.mean = self.mean + apart * share if self.count else mean
        self.count += n
