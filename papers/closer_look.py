"""Measurements needed only for figures of the papers, because they cost time, memory or many rows of ``metrics.csv``.

Each class is a callback of ``rl_plasticity.supervised``, added by its own plugin: ``plugins=[papers.looks.tasks]``.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papers.weights import balancedness, generalized_gaussian_shape, project_to_span
from rl_plasticity import Learner
from rl_plasticity.learning.optimizers import SGD, Adam, AdamW, Optimizer
from rl_plasticity.metrics import feature_matrix, representation_change
from rl_plasticity.structure import HiddenLayer, activations_of, read, shadow
from rl_plasticity.structure.layer import per_run
from rl_plasticity.training.epochs import first_images, inputs

LARGEST = 16_000_000  # most activations per run to keep from task to task: 64 MB
IMAGES = 256  # most images of the first task whose activations are compared
SPAN_BATCH = 16  # number of images whose patches are in memory at a time


class TaskStarts(nn.Module):
    """Callback that logs how far hidden activations have moved from the start of one task to the start of the next.

    It compares every activation behind a layer, on the same images at every task, with the network in evaluation mode.

    Source: Lewandowski et al. (2024), section 5.2 and Figure 3, "average representation change". The paper does not say
    on which inputs, nor whether the distance is relative to the size of the activations; both variants are measured.

    A task starts before its first update, after the interventions at the change of task, so N tasks have N - 1 changes.
    The change from task k to k + 1 is logged at the step where task k ended, and ``compare`` shows it as task k's. A
    network whose hidden layers are unknown, such as an MLP with CReLU, is not measured, and one line says so. The cost
    is one forward pass of the images per task.

    The activations at the last start are saved, so a resumed run continues to measure as it would have.

    Args:
        settings: the settings of the run.
        parts: the parts of the run. The images are the first ones of its first task, as many as have `LARGEST`
            activations in all hidden layers (28 images of CIFAR's size in ResNet-18).

    Raises:
        ValueError: there is only one task.
    """

    images: Tensor

    def __init__(self, settings: Any, parts: Any) -> None:
        super().__init__()
        if parts.sequence.num_tasks == 1:
            raise ValueError("papers.looks.tasks measures from one task's start to the next's, and there is one task")
        learner: Learner = parts.learner
        images = first_images(parts.sequence.task(0), parts.data, IMAGES, learner.runs)[0]
        self._learner = (learner,)  # in a tuple: not a submodule
        k = len(learner.runs)
        structure = read(learner.net)
        structure = read(learner.net, images.narrow(k, 0, 1)) if structure.unknown else structure
        self.units = [] if structure.unknown else structure.activations()
        self.register_buffer("images", images.narrow(k, 0, 1), persistent=False)
        if not self.units:
            reason = structure.unknown or "the network has none"
            print(f"how far hidden layers move is not measured: {reason}", file=sys.stderr)
            return
        of_one = sum(activations.numel() for activations in self._activations()) // math.prod(learner.runs)
        number = max(1, min(LARGEST // of_one, images.shape[k]))
        self.images = images.narrow(k, 0, number).clone()
        for i, activations in enumerate(self._activations()):
            self.register_buffer(f"start_{i}", activations)

    @torch.no_grad()
    def on_task(self, session: Any) -> None:
        """Log at the start of a task how far it is from the last start, on average and by layer."""
        if not self.units:
            return
        starts = [self.get_buffer(f"start_{i}") for i in range(len(self.units))]
        pairs = dict(zip([u.name for u in self.units], zip(starts, self._activations(), strict=True), strict=True))
        values = by_layer("representation_change", {n: representation_change(*pair) for n, pair in pairs.items()})
        values |= by_layer("representation_distance", {n: representation_distance(*pair) for n, pair in pairs.items()})
        for start, now in pairs.values():
            start.copy_(now)
        if session.progress.step:
            log(session, "task", values)

    def _activations(self) -> list[Tensor]:
        """The activations of each layer, ``[*runs, examples, units]``."""
        learner = self._learner[0]
        found = activations_of(learner.net, self.units, self.images)
        return [rows_of_units(unit, a, learner.runs) for unit, a in zip(self.units, found, strict=True)]


class EffectiveSteps:
    """Callback that logs the effective gradient norm of each layer: its applied step's norm over its weight's.

    It is ||d|| / ||W|| with W <- W - lr * d. For Adam d = m_hat / (sqrt(v_hat) + eps), and for SGD d is its momentum
    (without momentum, the gradient). A regularizer's projection is not part of the step; a penalty's gradient is.

    Source: Liu et al. (2021), section III-B and Figure 2a: "the gradient norm is computed using the normalized
    gradients by the second-order momentum, i.e. the actual gradients applied to parameters".

    The step is read from the optimizer's moments after each logged update. The update itself is therefore the same, bit
    for bit, and may be compiled. For a weight that is computed (``net.parametrization``), the trained tensor is
    measured. After an intervention that zeroes the moments at a logged update, the step is zero.

    W is the weight that the step was applied to. SGD's momentum is up to 1 / (1 - mu) times the gradient. The paper
    smooths SGD's curves by exponential moving averages (0.6); these values are not smoothed. The paper's 2nd layer of
    VGG-16 is ``3`` in ``vgg16_bn``, and its 3rd layer of ResNet-18 is ``3.residual.3``. The cost is two norms of each
    weight per logged update, and single updates where several would otherwise be made at once.

    Args:
        settings: the settings of the run.
        parts: the parts of the run, with a learner whose optimizer's last step is known (`last_step`).

    Raises:
        ValueError: the optimizer does not know its last step.
    """

    def __init__(self, settings: Any, parts: Any) -> None:
        learner = self.learner = parts.learner
        self.layers = [layer for layer in read(learner.net).layers if layer.matrix(learner.net) is not None]
        try:
            self._norms(partial(last_step, learner.optimizer))
        except TypeError as error:
            name = type(learner.optimizer).__name__
            raise ValueError(
                f"the steps of {name} are not known after an update: measure those of Adam or SGD"
            ) from error

    def on_start(self, session: Any) -> None:
        """Remember the norms of the weights that the next update starts from."""
        self.before = self._norms(self.learner.net.get_parameter)

    on_task = on_start  # called after the task's interventions

    def on_update(self, session: Any) -> None:
        """Log the steps of the update, if it is a logged one."""
        every = session.settings.log_every_updates
        if session.progress.updates % every == 0:
            steps = self._norms(partial(last_step, self.learner.optimizer))
            norms = {name: step / self.before[name] for name, step in steps.items()}
            log(session, "net", by_layer("effective_step", norms))
        if (session.progress.updates + 1) % every == 0:
            self.on_start(session)

    @torch.no_grad()
    def _norms(self, tensor_called: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """The norm of each layer's own part of a tensor that has the shape of its weight."""
        runs, norms = self.learner.runs, {}
        for layer in self.layers:
            assert layer.weight_name is not None
            tensor = tensor_called(layer.weight_name)
            norms[layer.name] = torch.linalg.vector_norm(tensor.reshape(*runs, -1), dim=-1)
        return norms


@torch.no_grad()
def last_step(optimizer: Optimizer, name: str) -> Tensor:
    """The last step d of the parameter called `name`, as in p <- p - lr * d.

    Raises:
        TypeError: the optimizer's moments do not determine it.
    """
    if type(optimizer) is SGD:
        return optimizer.moments(name)[0]
    if not isinstance(optimizer, Adam) or type(optimizer) not in (Adam, AdamW):
        raise TypeError(f"{type(optimizer).__name__} does not know its last step")
    m, v = optimizer.moments(name)
    first, second = ((1 - b**optimizer.step).to(m.dtype) for b in optimizer.betas)
    return m / per_run(first, m) / ((v / per_run(second, v)).sqrt() + optimizer.eps)


class ChannelNorms:
    """Callback that logs the norm of each output channel's kernel in the 5th convolution, or the last if fewer.

    Source: Liu et al. (2021), Figure 3b, where each line is one output channel of VGG16. Logged at each measurement.

    Raises:
        ValueError: the run measures nothing, or the network has no convolution.
    """

    def __init__(self, settings: Any, parts: Any) -> None:
        require_measurements(settings, "channels")
        self.learner: Learner = parts.learner
        layers = [layer for layer in read(self.learner.net).layers if layer.role == "conv" and layer.weight_name]
        if not layers:
            raise ValueError("papers.looks.channels measures a convolution, and the network has none")
        self.layer = layers[:5][-1]

    @torch.no_grad()
    def on_measurement(self, session: Any) -> None:
        """Log each channel's norm as ``channel_norm/LAYER/CHANNEL``."""
        matrix = self.layer.matrix(self.learner.net)
        assert matrix is not None
        norms = torch.linalg.vector_norm(matrix, dim=-1).unbind(-1)  # each [*runs]
        log(session, "net", {f"channel_norm/{self.layer.name}/{i}": norm for i, norm in enumerate(norms)})


class Balancedness:
    """Callback that logs the `weights.balancedness` of an MLP whose layers are joined by ReLUs alone.

    Source: Oh et al. (2024), Appendix C.1. Logged at each measurement.

    Raises:
        ValueError: the run measures nothing, or another network.
    """

    def __init__(self, settings: Any, parts: Any) -> None:
        require_measurements(settings, "balance")
        self.learner: Learner = parts.learner
        if settings.net.name != "mlp" or settings.net.layer_norm or settings.net.activation != "relu":
            raise ValueError("papers.looks.balance measures net=mlp with ReLU and without LayerNorm")
        self.layers = read(self.learner.net).layers

    @torch.no_grad()
    def on_measurement(self, session: Any) -> None:
        matrices = [layer.matrix(self.learner.net) for layer in self.layers]
        log(session, "net", {"balancedness": balancedness([m for m in matrices if m is not None], updates=50)})


class SpanShapes:
    """Callback that logs the shape of the generalized Gaussian fitted to each kernel in the span of its inputs.

    Logged as ``span_shape[/LAYER]``, it is beta of all entries of W U, where U are the eigenvectors of the covariance
    of the patches h that the kernel is applied to, Sigma = mean h h^T - mu mu^T. The patches come from all training
    images of the first task, with the network in evaluation mode, at each measurement. Directions that the inputs do
    not span are left out, see `project_to_span`.

    Source: Liu et al. (2021), section V-A, equation 12, Figures 4 and 5.

    In memory at a time are the patches of `SPAN_BATCH` images, n * positions * fan_in numbers for a layer, and the
    covariances of all layers, fan_in^2 numbers each.

    The paper shows the 6th and 9th kernels of VGG-16, which are ``17`` and ``27`` in ``vgg16_bn``. The cost for a layer
    with n patches of f numbers is 2 n f^2 operations, about f / channels times the layer's forward pass, and an
    eigendecomposition of f x f in float64.

    Raises:
        ValueError: the run measures nothing, or the network has no ungrouped convolution of images.
    """

    def __init__(self, settings: Any, parts: Any) -> None:
        require_measurements(settings, "span")
        self.parts, self.net = parts, parts.learner.net
        self.layers = []
        for layer in read(self.net).layers:
            module = self.net.get_submodule(layer.name) if layer.role == "conv" and layer.weight_name else None
            if isinstance(module, nn.Conv2d) and module.groups == 1 and module.padding_mode == "zeros":
                self.layers += [] if isinstance(module.padding, str) else [layer]
        if not self.layers:
            raise ValueError("papers.looks.span measures convolutions, and the network has no convolution of images")

    def on_measurement(self, session: Any) -> None:
        """Log the shape of each layer's kernel."""
        task, data, runs = self.parts.sequence.task(0), self.parts.data, self.parts.learner.runs
        several = torch.split(torch.arange(task.rows.shape[-1]), SPAN_BATCH)
        batches = (inputs(task, data, rows.expand(len(task.rows), -1), runs)[0] for rows in several)
        log(session, "net", by_layer("span_shape", self.shapes(batches)))

    @torch.no_grad()
    def shapes(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """The shape for each layer, from its inputs for these images ``[*runs, n, c, h, w]``."""
        covariances = {layer.name: Covariance() for layer in self.layers}

        def add(layer: Any) -> Callable[..., None]:
            return lambda conv, x: covariances[layer.name].add_(patches(conv, x[0], layer.runs))

        net = shadow(self.net).eval()
        for layer in self.layers:
            net.get_submodule(layer.name).register_forward_pre_hook(add(layer))
        for batch in batches:
            net(batch)
        shapes = {}
        for layer in self.layers:
            matrix = layer.matrix(self.net)
            assert matrix is not None
            coordinates = project_to_span(matrix, covariances[layer.name].value)
            shapes[layer.name] = generalized_gaussian_shape(coordinates.flatten(-2), skip_zeros=True)
        return shapes


def representation_distance(before: Tensor, after: Tensor) -> Tensor:
    """mean_b ||h'_b - h_b||_2 between hidden activations ``[*runs, batch, units]`` on the same inputs, ``[*runs]``.

    In the activations' own unit: it grows with them. `representation_change` does not.
    """
    distances: Tensor = torch.linalg.vector_norm(after - before, dim=-1)
    return distances.mean(-1)


def log(session: Any, of: str, values: Mapping[str, Tensor]) -> None:
    """Log values ``[*runs]`` by name."""
    session.log({f"{of}/{name}": value.reshape(-1) for name, value in values.items()})


def by_layer(name: str, of_layers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A measure by its names in the log: the mean over layers as NAME and, for several layers, NAME/LAYER."""
    values = {name: torch.stack(list(of_layers.values())).mean(0)}
    if len(of_layers) > 1:
        values |= {f"{name}/{layer}": value for layer, value in of_layers.items()}
    return values


def rows_of_units(unit: HiddenLayer, activation: Tensor, runs: tuple[int, ...]) -> Tensor:
    """A matrix with rows of examples (and positions) and columns of units."""
    return feature_matrix(activation, runs) if unit.incoming.role == "conv" else activation.flatten(len(runs), -2)


def require_measurements(settings: Any, look: str) -> None:
    """Raise ValueError if the run measures nothing."""
    if not (settings.measure_every_epochs or settings.measure_every_updates):
        raise ValueError(
            f"papers.looks.{look} needs a period: give measure_every_epochs, or measure_every_updates above 0"
        )


def patches(conv: nn.Conv2d, x: Tensor, runs: tuple[int, ...] = ()) -> Tensor:
    """The patches that the kernel is applied to: ``[*runs, n, c, h, w] -> [*runs, n * positions, c * kh * kw]``."""
    shape: Any = (conv.kernel_size, conv.dilation, conv.padding, conv.stride)
    columns = F.unfold(x.flatten(0, len(runs)), *shape)  # [runs * n, fan_in, positions]
    return columns.mT.reshape(*runs, -1, columns.shape[1])


class Covariance:
    """The covariance mean h h^T - mu mu^T of rows ``[*runs, n, size]``, computed batch by batch.

    Each batch is centered before its products are taken, so a large mean costs no precision (Chan et al. 1979).
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.products = torch.zeros(())

    @property
    def value(self) -> Tensor:
        """The covariance of all rows so far, ``[*runs, size, size]``."""
        return self.products / self.count

    def add_(self, rows: Tensor) -> None:
        """Add a batch of rows."""
        n, mean = rows.shape[-2], rows.mean(-2)
        centred = rows - mean.unsqueeze(-2)
        apart = mean - self.mean if self.count else torch.zeros_like(mean)
        share = n / (self.count + n)
        between = apart.unsqueeze(-1) * apart.unsqueeze(-2) * (share * self.count)
        self.products = self.products + centred.mT @ centred + between
        self.mean = self.mean + apart * share if self.count else mean
        self.count += n
