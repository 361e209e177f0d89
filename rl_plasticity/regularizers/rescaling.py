"""Projections that rescale the weights of layers or units, to their initial norm or to unit length."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from rl_plasticity.errors import SettingsError, in_short, warn
from rl_plasticity.regularizers.base import EveryUpdates, Fraction, Rates, Regularizer, rate_of
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure import Example, moved_by, not_homogeneous, outputs
from rl_plasticity.structure.layer import COMPUTED, Layer, Widened, lookup, per_run, unwrapped, wide


class SoftWeightRescaling(Regularizer):
    """SWR: pulls every layer's norm toward its initial one and scales biases to match, so that f' = C f.

    For layer l with norm |W_l| (Frobenius) and initial norm n_l::

        c_l = coef * n_l / |W_l| + (1 - coef)        (1 where |W_l| = 0)
        W_l <- c_l W_l,   b_l <- C_l b_l,            C_l = c_l * C of the layer that feeds l
                                                     C_l = c_l where l is a norm layer

    A norm layer counts as a layer with (W, b) = (gain, shift), and an embedding as a layer without bias. Bare
    parameters are left alone.

    Source: Oh et al. (2024), "Recovering Plasticity of Neural Networks via Soft Weight Rescaling", Algorithm 1 and
    Theorem 1. Deviation: the printed algorithm multiplies C only from the last norm layer on, and multiplies that
    layer's own shift by the factor of the layer before it. This is not proportional when a norm layer is present;
    `accumulate="paper"` follows the printed algorithm.

    f' = C f is exact for chains of linear, convolution and norm layers with positively homogeneous activations (ReLU,
    leaky ReLU). It is only approximate across a residual sum of branches with different C, and for a BatchNorm in
    evaluation mode, whose running statistics lag.

    Args:
        coef: lambda; the paper's grid is 1e-4 to 1.
        coef_classifier: lambda_c for the classifier; equal to `coef` unless given. The classifier is the head, and in a
            network with convolutions also the fully connected layers (`Structure.classifier`).
        scope: "all" as in the paper, or "preserving", which leaves the function unchanged. Then c = 1 for layers that
            no norm layer follows. In a network without norm layers the head's weight takes the inverse of the product
            before it, and a layer that started at zero keeps c = 1. For networks without branches.
        accumulate: "exact" or "paper", see above.

    Raises:
        ValueError: scope="preserving" for a network that joins branches, shares weights or has frozen parameters: the
            function would change.
    """

    coef_classifier: Tensor
    is_classifier: Tensor

    @checked
    def __init__(
        self,
        net: nn.Module,
        coef: Fraction = 1e-3,
        coef_classifier: Annotated[
            float | Tensor | None, Setting("strength for the classifier's layers; null: coef", least=0, most=1)
        ] = None,
        scope: Annotated[
            Literal["all", "preserving"],
            Setting("layers to rescale: all (as in the paper), or preserving, those that keep the function unchanged"),
        ] = "all",
        accumulate: Annotated[
            Literal["exact", "paper"], Setting("how bias factors accumulate: exact, or paper (Algorithm 1 as printed)")
        ] = "exact",
    ) -> None:
        super().__init__(net, coef)
        if (scope, accumulate) == ("preserving", "paper"):
            raise SettingsError("scope=preserving needs accumulate=exact: accumulate=paper changes the function")
        of_classifier = coef if coef_classifier is None else coef_classifier
        self.register_buffer("coef_classifier", self._strength("coef_classifier", of_classifier, net))
        self.scope, self.accumulate = scope, accumulate
        self.rescaled = {i: layer for i, layer in enumerate(self.layers) if _has_norm(layer)}  # by position
        self._require(self.rescaled, "linear, convolution, norm or embedding layer")
        self._act_on(net, self.layers)  # the product runs through all, also the biases of those whose weight is frozen
        self.structure.require_order("swr")
        norms = {i for i, layer in enumerate(self.layers) if layer.role == "norm"}
        self.has_norm, self.last_norm = bool(norms), max(norms, default=0)
        self.before_norm: set[int] = set()  # a norm layer follows
        for i in reversed(range(len(self.layers))):
            if i in norms or i in self.before_norm:
                self.before_norm.update(self.layers[i].inputs)
        classifier = [i in self.structure.classifier for i in self.rescaled]
        self.register_buffer("is_classifier", torch.tensor(classifier, device=self.coef.device), persistent=False)
        self._check_exactness(net)
        if scope == "preserving" and self.structure.example is not None:
            self._try(unwrapped(net), self.structure.example)

    def _check_exactness(self, net: nn.Module) -> None:
        """Find where f' = C f does not hold: an error with scope="preserving", else a warning."""
        trained = {*self.structure.trained}
        left = [name for name, _ in unwrapped(net).named_parameters() if name not in trained]
        if self.scope == "preserving" and left:
            raise ValueError(f"scope=preserving needs a network without frozen or ignored parameters, got {left[0]}")
        inexact = [*self._inexact_layers(left), *self._inexact_outputs()]
        inexact += ["biases that stay"] if any(name.endswith("bias") for name in left) else []
        self.exact = not inexact
        if inexact and self.scope == "preserving":
            raise ValueError(
                "scope=preserving needs a network without branches and shared weights whose activations are positively "
                f"homogeneous (ReLU, leaky ReLU, identity); this fails at {in_short(inexact)}"
            )
        if inexact:
            warn(f"swr keeps f' = C f only approximately at {in_short(inexact)}")

    def _inexact_layers(self, left: Sequence[str]) -> Iterator[str]:
        for i, layer in enumerate(self.layers):
            is_computed = layer.weight_name is None and not any(name.startswith(f"{layer.name}.") for name in left)
            if layer.role in ("linear", "conv", "embedding") and (
                is_computed or layer.weight_name in self.structure.shared
            ):
                why = "whose weight is computed" if layer.kind == COMPUTED else "which shares its weight"
                yield f"{layer.name} ({why})"
            if self.scope == "preserving" and self.has_norm and i not in self.before_norm and layer.role != "norm":
                # The only rescaling before it is one that a norm layer undoes.
                if self.before_norm & {*layer.inputs}:
                    yield f"{layer.name} (which reads what a norm layer follows elsewhere)"
            elif why := _why_inexact(layer.through, layer.joins_branches):
                yield f"{layer.name}{why}"

    def _inexact_outputs(self) -> Iterator[str]:
        for ends, through, join in self.structure.ends:
            if self.scope == "all" and (why := _why_inexact(through, join)):
                yield f"what the network returns{why}"
            for i in ends if self.scope == "preserving" else ():
                if i in self.before_norm or not (self.has_norm or self.layers[i].head):
                    yield f"{self.layers[i].name} (which the network returns)"

    @torch.no_grad()
    def _try(self, net: nn.Module, example: Example) -> None:
        """Test that scope="preserving" keeps the function on the example, for grown weights and a strength of 1/2."""
        generator = torch.Generator().manual_seed(0)
        grown = {name: lookup(net, name).detach().double() for name in self.structure.trained}
        grown = {
            name: value * (1 + 2 * torch.rand((), generator=generator, device="cpu").item())
            for name, value in grown.items()
        }
        before = outputs(net, example, grown, batch_statistics=True)
        half = torch.full_like(self.coef, 0.5)
        self._rescale_(self.layers, Widened(net, grown), half, half)
        after = outputs(net, example, grown, batch_statistics=True)
        off = max((moved_by(*pair) for pair in zip(after or (), before or (), strict=True)), default=0.0)
        if off > 1e-3:
            raise ValueError(f"scope=preserving would change the function, on the example by {off:.1%}")

    def capture(self, layer: Layer, net: nn.Module) -> Mapping[str, Tensor]:
        return {"norm": _norm(layer, net)} if _has_norm(layer) else {}

    def weights_of(self, reference: Tensor, now: Tensor) -> Tensor:
        return _with_norm(now, reference)

    def project_all(self, layers: Sequence[Layer], net: nn.Module, due: Tensor) -> None:
        if self.exact and not torch.compiler.is_compiling():
            frozen = [y.bias_name for y, now in zip(self.layers, layers, strict=True) if y.bias_name != now.bias_name]
            if frozen:
                self.exact = False
                warn(f"swr keeps f' = C f only approximately: {in_short(frozen)} was frozen after swr was made")
        self._rescale_(layers, net, self.coef, self.coef_classifier)

    def _rescale_(self, layers: Sequence[Layer], net: nn.Module, coef: Tensor, coef_classifier: Tensor) -> None:
        # c of every rescaled layer at once, [layers, *runs]
        norm = torch.stack([_norm(layer, net) for layer in self.rescaled.values()])
        initial = torch.stack([self._recall("norm", layer.key) for layer in self.rescaled.values()])
        coef = torch.where(per_run(self.is_classifier, norm), coef_classifier, coef)
        # What starts at zero, such as the last layer of a residual branch, has no norm to be held at.
        factors = torch.where((norm > 0) & (initial > 0), coef * (initial / norm) + (1 - coef), 1.0).unbind()
        factor_of = dict(zip(self.rescaled, factors, strict=True))
        unchanged = torch.ones_like(factors[0])
        products: list[Tensor] = []  # C of every layer, [*runs]
        for i, layer in enumerate(layers):
            before = products[layer.inputs[0]] if layer.inputs else unchanged
            factor = factor_of.get(i, unchanged) if layer.weight_name else unchanged
            if self.scope == "preserving" and i not in self.before_norm:
                if self.has_norm:
                    factor = unchanged
                elif layer.head:
                    factor = 1 / before
            restart = layer.role == "norm" if self.accumulate == "exact" else i < self.last_norm
            product = factor if restart else factor * before
            weight, bias = layer.weight(net), layer.bias(net)
            if weight is not None and factor is not unchanged:
                weight.mul_(per_run(factor, weight))
            if bias is not None:
                bias.mul_(per_run(product, bias))
            products.append(product)


class WeightRescaling(Regularizer):
    """WRS: every `every_updates` updates, each output unit's weights are scaled to unit l2 norm.

    W[i] <- W[i] / |W[i]| for every unit i of a linear layer and every kernel i of a convolution (a zero row stays
    zero). The head is included only with `rescale_head` (the paper: for classification). Norm layers are not rescaled;
    at every update their gain and shift decay by the factor 1 - lr * norm_decay.

    Source: Liu et al. (2021), "Weight Rescaling: Effective and Robust Regularization for Deep Neural Networks with
    Batch Normalization", Algorithm 1; WRS(IC) in section VI-B. `norm_decay` is their lambda (line 7).

    Per-unit scaling leaves the function unchanged where a BatchNorm follows (in training mode; running statistics
    follow with their momentum), but not where a LayerNorm does. `per="layer"`, our addition, leaves it unchanged under
    both.

    Args:
        every_updates: tau, 10 to 50 in the paper.
        norm_decay: lambda; 5e-3, 5e-4 or 5e-5 in the paper.
        rescale_head: whether to rescale output layers too.
        per: "unit" as in the paper, or "layer": one factor for each layer so that |W|_F = sqrt(out), with the bias
            scaled by the same factor.
        variant: "output" as in Algorithm 1, or "input_channel", which is WRS(IC): a kernel is scaled to unit norm over
            its input channels at each spatial position (for linear layers the same as "output").

    Raises:
        SettingsError: per="layer" with WRS(IC).
    """

    uses_lr = True
    norm_decay: Tensor

    @checked
    def __init__(
        self,
        net: nn.Module,
        every_updates: EveryUpdates = 10,
        norm_decay: Annotated[
            float | Tensor, Setting("weight decay of gains and shifts, multiplied by the learning rate", least=0)
        ] = 5e-4,
        rescale_head: Annotated[bool, Setting("whether to rescale the output layer (for classification)")] = False,
        per: Annotated[
            Literal["unit", "layer"], Setting("what shares a scale: unit (as in the paper) or layer")
        ] = "unit",
        variant: Annotated[
            Literal["output", "input_channel"],
            Setting("channels whose kernels are rescaled: output, or input_channel for WRS(IC)"),
        ] = "output",
    ) -> None:
        super().__init__(net)
        if per == "layer" and variant == "input_channel":
            raise SettingsError("variant=input_channel scales each position, so it cannot be combined with per=layer")
        self.register_buffer("norm_decay", self._strength("norm_decay", norm_decay, net))
        self.per, self.variant = per, variant
        self._acts_every(every_updates)
        norms = [layer for layer in self.layers if layer.role == "norm"]
        rescaled = self._linear_maps(rescale_head)
        self._require(rescaled, "hidden linear or convolution layer")
        self._act_on(net, [*norms, *rescaled], least_axes=1)
        _warn_of_no_norm("wrs", self, [layer for layer in rescaled if not _has_unit_rows(layer, net)])

    def project_at_rate(self, layers: Sequence[Layer], net: nn.Module, due: Tensor, lr: Rates) -> None:
        for layer in layers:
            if layer.role == "norm":
                for name in layer.parameter_names:
                    tensor = lookup(net, name)
                    tensor.mul_(per_run(1 - self.norm_decay * rate_of(lr, name), tensor))
            else:
                self.project(layer, net, due)

    def project(self, layer: Layer, net: nn.Module, due: Tensor) -> None:
        if (weight := layer.weight(net)) is None:  # frozen now
            return
        matrix = layer.matrix_of(weight)
        if self.per == "layer":
            norm = vector_norm(matrix, dim=(-2, -1))  # [*runs]
            factor = _factor(due, norm, math.sqrt(matrix.shape[-2]))
            for tensor in layer.tensors(net):
                tensor.mul_(per_run(factor, tensor))
        elif self.variant == "input_channel" and layer.role == "conv":
            k = len(self.runs)
            shape = (*weight.shape[:k], layer.groups, -1, *weight.shape[k + 1 :])
            kernel = weight.view(shape) if layer.transposed else weight
            norm = vector_norm(kernel, dim=k + 1, keepdim=True)
            kernel.mul_(_factor(due, norm))
        else:
            norm = vector_norm(matrix, dim=-1)  # [*runs, out]
            layer.scale_rows_(net, _factor(due, norm))


class NormalizeProject(Regularizer):
    """NaP's projection: every `every_updates` updates, each weight is scaled to its initial norm.

    W <- W |W_0|_F / |W|_F for every linear and convolution layer except the heads; biases and all else are left alone.
    A zero weight stays zero, and one that starts at zero is left alone. This equals `swr` with coef=1 on weights alone.

    The method is meant for networks where a norm layer follows each of these layers, which then have no biases. There
    the function stays the same, and only the learning rate decides how far a step turns a weight. Existing biases
    change the function, because they are not scaled along. Where no norm layer follows, a warning says so.

    Gains and shifts train freely, and biases are not removed from the network.

    Source: Lyle et al. (2024), "Normalization and effective learning rates in reinforcement learning", arXiv
    2407.01800, abstract. Their code is not public, and we could not read the rest of the text. Others report that a
    layer's weight is scaled as a whole and that heads are left alone, and that Appendix D, equation 33, also has rules
    by which gains and shifts are scaled or decay (github.com/Felix-Zhenghao/rigorous-plasticity, testbed/methods/nap).

    Args:
        every_updates: the period; others report that the authors find every update and every thousand alike.
        rescale_head: whether to rescale output layers too.
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        every_updates: EveryUpdates = 1,
        rescale_head: Annotated[bool, Setting("whether to rescale the output layers too")] = False,
    ) -> None:
        super().__init__(net)
        self._acts_every(every_updates)
        maps = self._linear_maps(rescale_head, biases=False)
        self._act_on(net, maps, "hidden linear or convolution layer")
        _warn_of_no_norm("normalize_project", self, maps)

    def capture(self, layer: Layer, net: nn.Module) -> Mapping[str, Tensor]:
        return {"norm": _norm(layer, net)}

    def weights_of(self, reference: Tensor, now: Tensor) -> Tensor:
        return _with_norm(now, reference)

    def project(self, layer: Layer, net: nn.Module, due: Tensor) -> None:
        if (weight := layer.weight(net)) is not None:
            weight.mul_(per_run(_factor(due, _norm(layer, net), self._recall("norm", layer.key)), weight))


class Hypersphere(Regularizer):
    """Hyperspherical weights: each update scales every output unit's weights to unit l2 norm, W[i] <- W[i] / |W[i]|.

    It acts on all linear and convolution layers, heads included (a kernel is one row of out x (in * kh * kw)). Biases,
    norm layers and all else are left alone, and a zero row stays zero. It equals `wrs` with every_updates=1,
    rescale_head=true and norm_decay=0.

    With ``norms="scale"``, each norm layer's gain and shift are scaled together to norm sqrt(n), with n its number of
    units, as in FlashSAC's code (github.com/Holiday-Robot/FlashSAC, flash_rl/agents/flashSAC/layer.py).

    Source: Lee et al. (2025), "Hyperspherical Normalization for Scalable Deep Reinforcement Learning" (SimbaV2), arXiv
    2502.15280, as in their code (github.com/DAVIAN-Robotics/SimbaV2, simbaV2_update.py). Their method also has learned
    scalers, l2 norms of the features, and weights that start on the sphere; here these are up to the network. In a
    network with norm layers, their gains are such scalers.
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        norms: Annotated[
            Literal["free", "scale"],
            Setting("gains and shifts of norm layers: free, or rescaled together to norm sqrt(n)"),
        ] = "free",
    ) -> None:
        super().__init__(net)
        maps = self._linear_maps(biases=False)
        self._require(maps, "linear or convolution layer")
        gains = [y for y in self.layers if y.role == "norm" and y.weight_name is not None and norms == "scale"]
        self._act_on(net, [*gains, *maps])
        _warn_of_no_norm("hypersphere", self, [layer for layer in maps if not _has_unit_rows(layer, net)])

    def project(self, layer: Layer, net: nn.Module, due: Tensor) -> None:
        if (weight := layer.weight(net)) is None:  # frozen now
            return
        if layer.role == "norm":
            tensors = layer.tensors(net)
            k = len(self.runs)
            squares = [wide(tensor).square().flatten(k).sum(-1) for tensor in tensors]
            factor = _factor(due, torch.stack(squares).sum(0).sqrt(), math.sqrt(math.prod(weight.shape[k:])))
            for tensor in tensors:
                tensor.mul_(per_run(factor, tensor))
        else:
            layer.scale_rows_(net, _factor(due, vector_norm(layer.full_matrix(net), dim=-1)))  # norms [*runs, out]


def _warn_of_no_norm(name: str, method: Regularizer, rescaled: Iterable[Layer]) -> None:
    """Warn about `rescaled` hidden layers that no norm layer follows: there the scale changes the function."""
    known = {layer.name for layer in method.structure.before_norms}
    changing = dict.fromkeys(layer.name for layer in rescaled if layer.name not in known and not layer.head)
    if changing:
        warn(f"{name} changes the function where no norm layer follows: {in_short(changing)}")


def _has_unit_rows(layer: Layer, net: nn.Module) -> bool:
    """Whether each unit's weights already have unit norm, as in networks built that way."""
    matrix = layer.matrix(net)
    return matrix is not None and bool(((vector_norm(wide(matrix), dim=-1) - 1).abs() < 1e-3).all())


def _factor(due: Tensor, norm: Tensor, target: float | Tensor = 1.0) -> Tensor:
    """The factor that brings `norm` to `target` in the runs that are due; 1 elsewhere and where one of them is 0."""
    return torch.where(per_run(due, norm) & (norm > 0) & (target > 0), target / norm, 1.0)


def _norm(layer: Layer, net: nn.Module) -> Tensor:
    """The Frobenius norm of a layer's weight, ``[*runs]``, float32 or wider."""
    weight = layer.weight(net)
    assert weight is not None
    weight = wide(weight)
    norm: Tensor = vector_norm(weight, dim=tuple(range(len(layer.runs), weight.ndim)))
    return norm


def _with_norm(weight: Tensor, norm: Tensor) -> Tensor:
    """A tensor like `weight` whose Frobenius norm is `norm` ``[*runs]``."""
    flat = nn.functional.normalize(weight.flatten(norm.ndim), dim=-1) * norm.unsqueeze(-1)
    return flat.reshape(weight.shape)


def _has_norm(layer: Layer) -> bool:
    """Whether `swr` rescales the layer."""
    return layer.weight_name is not None and layer.role not in ("parameter", "undecided")


def _why_inexact(through: Sequence[str], joins_branches: bool) -> str:
    """Why f' = C f does not hold behind these operations; empty if it does."""
    reasons = [*not_homogeneous(through), *(["several branches"] if joins_branches else [])]
    return f" (behind {', '.join(reasons[:3])})" if reasons else ""
