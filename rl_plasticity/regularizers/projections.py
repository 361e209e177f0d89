"""Projections: regularizers that change the weights right after the optimizer's step."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from rl_plasticity.layers import Layer, lookup, per_run
from rl_plasticity.regularizers.base import Regularizer

_MATRICES = ("linear", "conv")


def _choice(name: str, value: str, options: object) -> None:
    valid = get_args(options)
    if value not in valid:
        raise ValueError(f"{name} must be one of {', '.join(valid)}, got {value!r}")


class SoftWeightRescaling(Regularizer):
    """SWR: every layer's norm is pulled towards its initial one, the biases along, so that f' = C f.

    For layer l with norm |W_l| (Frobenius) and initial norm n_l::

        c_l = coef * n_l / |W_l| + (1 - coef)        (1 where |W_l| = 0)
        W_l <- c_l W_l,   b_l <- C_l b_l,            C_l = c_l * C of the layer that feeds l
                                                     C_l = c_l where l is a norm layer

    A norm layer counts as a layer with (W, b) = (gain, shift); embeddings as layers without bias. Bare parameters
    are left alone.

    Source: Oh et al. (2024), "Recovering Plasticity of Neural Networks via Soft Weight Rescaling", Algorithm 1 and
    Theorem 1. Deviation: the printed algorithm multiplies C only from the last norm layer on and multiplies that
    layer's own shift by the factor of the layer before it, which is not proportional when a norm layer is present;
    `accumulate="paper"` does as printed. Exact for chains of linear, convolution and norm layers with positively
    homogeneous activations (ReLU, leaky ReLU); across a residual sum with different C, and for a BatchNorm in
    evaluation mode (its running statistics lag), only approximate.

    Args:
        coef: lambda in [0, 1]; the paper's grid is 1e-4 to 1.
        coef_classifier: lambda_c for the classifier: the head, and every linear layer of a network with
            convolutions. `coef` unless given.
        scope: "all" as the paper; "preserving" leaves the function unchanged: c = 1 for layers that no norm layer
            follows, and in a network without norm layers the head's weight takes the inverse of the product before it
            (and a layer that started at zero keeps c = 1). For networks without branches.
        accumulate: "exact" or "paper", see above.

    Raises:
        ValueError: a strength outside [0, 1], an unknown option, or scope="preserving" for a network that joins
            branches or has frozen parameters: the function would change.
    """

    coef_classifier: Tensor
    is_classifier: Tensor

    def __init__(
        self,
        net: nn.Module,
        coef: float | Tensor = 1e-3,
        coef_classifier: float | Tensor | None = None,
        scope: Literal["all", "preserving"] = "all",
        accumulate: Literal["exact", "paper"] = "exact",
    ) -> None:
        super().__init__(net, coef)
        _choice("scope", scope, Literal["all", "preserving"])
        _choice("accumulate", accumulate, Literal["exact", "paper"])
        if (scope, accumulate) == ("preserving", "paper"):
            raise ValueError("scope=preserving needs accumulate=exact: the printed rule changes the function")
        self._strength("coef", coef, net, most=1.0)
        of_classifier = coef if coef_classifier is None else coef_classifier
        self.register_buffer("coef_classifier", self._strength("coef_classifier", of_classifier, net, most=1.0))
        self.scope, self.accumulate = scope, accumulate
        self.rescaled = [i for i, y in enumerate(self.layers) if y.weight_name and y.role != "parameter"]
        self._require(self.rescaled, "linear, convolution, norm or embedding layer")

        frozen = any(not p.requires_grad for p in net.parameters())
        if scope == "preserving" and (frozen or any(y.joins_branches for y in self.layers)):
            raise ValueError("scope=preserving needs a network without branches and without frozen parameters")
        norms = {i for i, y in enumerate(self.layers) if y.role == "norm"}
        self.last_norm = max(norms, default=0)
        before_norm: set[int] = set()  # a norm layer follows
        for i in reversed(range(len(self.layers))):
            if i in norms or i in before_norm:
                before_norm.update(self.layers[i].inputs)
        self.has_norm = bool(norms)
        self.before_norm = before_norm
        has_conv = any(y.role == "conv" for y in self.layers)
        rescaled = [self.layers[i] for i in self.rescaled]
        classifier = [y.head or (has_conv and y.role == "linear") for y in rescaled]
        self.register_buffer("is_classifier", torch.tensor(classifier, device=self.coef.device), persistent=False)
        for layer in rescaled:
            assert layer.weight_name is not None
            self._remember("norm", layer.weight_name, self._norm(layer, net))

    def _norm(self, layer: Layer, net: nn.Module) -> Tensor:
        weight = layer.weight(net)
        assert weight is not None
        norm: Tensor = torch.linalg.vector_norm(weight, dim=tuple(range(len(self.runs), weight.ndim)))
        return norm

    def rebase_(self, net: nn.Module, runs: Tensor | None = None) -> None:
        """Take the current norms as the new n_l ("SWR + re-init" of Appendix E, at a learning-rate decay)."""
        for i in self.rescaled:
            norm, now = self._initial_norm(i), self._norm(self.layers[i], net)
            chosen = ... if runs is None else runs
            norm[chosen] = now.detach()[chosen]

    def _initial_norm(self, i: int) -> Tensor:
        name = self.layers[i].weight_name
        assert name is not None
        return self._recall("norm", name)

    @torch.no_grad()
    def project_(self, net: nn.Module) -> None:
        # c of every rescaled layer at once, [layers, *runs]
        norm = torch.stack([self._norm(self.layers[i], net) for i in self.rescaled])
        initial = torch.stack([self._initial_norm(i) for i in self.rescaled])
        coef = torch.where(per_run(self.is_classifier, norm), self.coef_classifier, self.coef)
        known = norm > 0 if self.scope == "all" else (norm > 0) & (initial > 0)
        factors = torch.where(known, coef * (initial / norm) + (1 - coef), 1.0).unbind()
        c = dict(zip(self.rescaled, factors, strict=True))

        one = torch.ones_like(factors[0])
        products: list[Tensor] = []  # C of every layer, [*runs]
        for i, layer in enumerate(self.layers):
            before = products[layer.inputs[0]] if layer.inputs else one
            own = c.get(i, one)
            if self.scope == "preserving" and i not in self.before_norm:
                own = 1 / before if layer.head and not self.has_norm else one if self.has_norm else own
            printed = self.has_norm and i < self.last_norm
            restart = layer.role == "norm" if self.accumulate == "exact" else printed
            product = own if restart else own * before
            weight, bias = layer.weight(net), layer.bias(net)
            if weight is not None and own is not one:
                weight.mul_(per_run(own, weight))
            if bias is not None:
                bias.mul_(per_run(product, bias))
            products.append(product)


class WeightRescaling(Regularizer):
    """WRS: every `every_updates` updates each output unit's weights are scaled to unit l2 norm.

    W[i] <- W[i] / |W[i]| for every unit i of a linear layer and every kernel i of a convolution (a zero row stays
    zero). The head only with `rescale_head` (the paper: for classification). Norm layers are not rescaled; at every
    update their gain and shift decay by the factor 1 - norm_decay.

    Source: Liu et al. (2021), "Weight Rescaling: Effective and Robust Regularization for Deep Neural Networks with
    Batch Normalization", Algorithm 1; WRS(IC) in section VI-B. `norm_decay` is their eta * lambda. Per-unit scaling
    leaves the function unchanged where a BatchNorm follows (in training mode: running statistics follow with their
    momentum), not where a LayerNorm does; `per="layer"`, which is ours, leaves it unchanged under both.

    Args:
        every_updates: tau, 10 to 50 in the paper.
        norm_decay: eta * lambda; the paper's lambda is 5e-3, 5e-4 or 5e-5.
        rescale_head: rescale output layers too.
        per: "unit" as the paper; "layer": one factor for each layer so that |W|_F = sqrt(out), the bias
            scaled alike.
        variant: "output" as Algorithm 1; "input_channel" is WRS(IC): a kernel is scaled to unit norm over its input
            channels at each spatial position (for linear layers the same as "output").

    Raises:
        ValueError: a period below 1, a decay outside [0, 1), an unknown option, or per="layer" with WRS(IC).
    """

    norm_decay: Tensor
    updates: Tensor

    def __init__(
        self,
        net: nn.Module,
        every_updates: int = 10,
        norm_decay: float | Tensor = 5e-7,
        rescale_head: bool = False,
        per: Literal["unit", "layer"] = "unit",
        variant: Literal["output", "input_channel"] = "output",
    ) -> None:
        super().__init__(net)
        _choice("per", per, Literal["unit", "layer"])
        _choice("variant", variant, Literal["output", "input_channel"])
        if every_updates < 1:
            raise ValueError(f"every_updates must be at least 1, got {every_updates}")
        if per == "layer" and variant == "input_channel":
            raise ValueError("variant=input_channel scales each position; it does not go with per=layer")
        self.register_buffer("norm_decay", self._strength("norm_decay", norm_decay, net, most=1.0))
        if not bool((self.norm_decay < 1).all()):
            raise ValueError(f"norm_decay must be below 1, got {norm_decay}")
        self.register_buffer("updates", torch.zeros(self.runs, dtype=torch.int64, device=self.coef.device))
        self.every_updates, self.per, self.variant = every_updates, per, variant
        self.norms = [y for y in self.layers if y.role == "norm"]
        self.rescaled = [
            y for y in self.layers if y.role in _MATRICES and y.weight_name and (rescale_head or not y.head)
        ]
        self._require(self.rescaled, "hidden linear or convolution layer")

    @torch.no_grad()
    def project_(self, net: nn.Module) -> None:
        self.updates += 1
        due = self.updates % self.every_updates == 0  # [*runs]
        keep = 1 - self.norm_decay
        for layer in self.norms:
            for parameter in (layer.weight(net), layer.bias(net)):
                if parameter is not None:
                    parameter.mul_(per_run(keep, parameter))
        for layer in self.rescaled:
            matrix, weight = layer.matrix(net), layer.weight(net)
            assert matrix is not None
            assert weight is not None
            if self.per == "layer":
                norm = torch.linalg.vector_norm(matrix, dim=(-2, -1))  # [*runs]
                factor = self._factor(due, norm, math.sqrt(matrix.shape[-2]))
                bias = layer.bias(net)
                weight.mul_(per_run(factor, weight))
                if bias is not None:
                    bias.mul_(per_run(factor, bias))
            elif self.variant == "input_channel" and layer.role == "conv":
                k = len(self.runs)
                shape = (*weight.shape[:k], layer.groups, -1, *weight.shape[k + 1 :])
                kernel = weight.view(shape) if layer.transposed else weight
                norm = torch.linalg.vector_norm(kernel, dim=k + 1, keepdim=True)
                kernel.mul_(self._factor(due, norm))
            else:
                norm = torch.linalg.vector_norm(matrix, dim=-1)  # [*runs, out]
                layer.scale_rows_(net, self._factor(due, norm))

    @staticmethod
    def _factor(due: Tensor, norm: Tensor, target: float = 1.0) -> Tensor:
        """What brings `norm` to `target` where due, 1 elsewhere and where the norm is 0."""
        return torch.where(per_run(due, norm) & (norm > 0), target / norm, 1.0)


class WeightClipping(Regularizer):
    """Every weight and bias of a linear or convolution layer is clipped to +- coef / sqrt(fan_in).

    Source: Elsayed et al. (2024), "Weight Clipping for Deep Continual and Reinforcement Learning", Algorithm 1: the
    bound is `coef` (their kappa) times that of the usual uniform initialization, for the bias the same as for its
    weight. Norm layers, embeddings and bare parameters, for which that initialization does not exist, are left alone.

    Args:
        coef: kappa, above 0 (0 would set every weight to zero, so this method has no strength that does nothing).
    """

    def __init__(self, net: nn.Module, coef: float | Tensor = 3.0) -> None:
        super().__init__(net, coef)
        if not bool((self.coef > 0).all()):
            raise ValueError(f"coef must be positive, got {coef}")
        self.clipped = [y for y in self.layers if y.role in _MATRICES and y.weight_name]
        self._require(self.clipped, "linear or convolution layer")

    @torch.no_grad()
    def project_(self, net: nn.Module) -> None:
        for layer in self.clipped:
            matrix = layer.matrix(net)
            assert matrix is not None
            bound = self.coef / math.sqrt(matrix.shape[-1])
            for parameter in (layer.weight(net), layer.bias(net)):
                if parameter is not None:
                    limit = per_run(bound, parameter)
                    parameter.clamp_(-limit, limit)


class WeightDecay(Regularizer):
    """Decoupled weight decay: p <- p_after_step - coef * p_before_step, over all parameters.

    That is theta <- (1 - coef) theta - optimizer's update, so Adam with this equals ``torch.optim.AdamW(lr,
    weight_decay=coef / lr)`` step for step. `penalty` (zero) keeps a copy of the weights before the step: call it once
    for each update, as the contract has it.

    Source: Loshchilov and Hutter (2019), "Decoupled Weight Decay Regularization", equation 1; `coef` is their lambda,
    which torch multiplies by the learning rate.

    Raises:
        ValueError: a strength above 1.
    """

    def __init__(self, net: nn.Module, coef: float | Tensor = 3e-6) -> None:
        super().__init__(net, coef)
        self._strength("coef", coef, net, most=1.0)
        self.names = [n for n, p in net.named_parameters() if p.requires_grad]
        self._require(self.names, "trainable parameter")
        for name in self.names:
            self._remember("before", name, lookup(net, name))

    def penalty(self, net: nn.Module) -> Tensor:
        with torch.no_grad():
            for name in self.names:
                self._recall("before", name).copy_(lookup(net, name))
        return super().penalty(net)

    @torch.no_grad()
    def project_(self, net: nn.Module) -> None:
        for name in self.names:
            parameter = lookup(net, name)
            parameter.sub_(per_run(self.coef, parameter) * self._recall("before", name))
