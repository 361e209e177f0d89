"""Penalties that look at data: terms of the loss on what a network returns for a batch."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from rl_plasticity.regularizers.base import NO_BATCH, Regularizer, Strength
from rl_plasticity.regularizers.inside import Inside, call, innermost
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure import Example, tensors_in
from rl_plasticity.structure.layer import COMPUTED, Layer, lookup, runs_of, wide


class Churn(Regularizer):
    """coef * how far the last update moved what the network returns: the distance of f_t(x) and f_{t-1}(x).

    f_t is the network now, f_{t-1} as it was one update earlier, without gradient; x is the update's own batch, drawn
    after the step that it judges. "squared" is the mean of (f_t(x) - f_{t-1}(x))^2 over batch and outputs, added up
    over the tensors that the network returns; "cross_entropy", for logits with the classes on their last axis, the mean
    over all else of -sum_a p_{t-1}(a) log p_t(a), whose gradient is that of the Kullback-Leibler divergence of p_{t-1}
    from p_t. Numbers that are one for the whole batch, as a loss, do not count.

    Several batches of one update, accumulated or of a closure that LBFGS calls again, have the same f_{t-1}. Batch
    statistics of norm layers move no further for it. Layers that draw, as dropout, draw anew at each call, which
    counts as churn.

    Source: Tang and Berseth (2024), "Improving Deep Reinforcement Learning by Reducing the Chain Effect of Value and
    Policy Churn" (CHAIN), arXiv 2409.04792, and Tang et al. (2025), "Mitigating Plasticity Loss in Continual
    Reinforcement Learning by Reducing Churn" (C-CHAIN), arXiv 2506.00592, as in their code (github.com/bluecontra/CHAIN
    and C-CHAIN); the texts beyond the abstracts could not be read. Deviations:

    - `coef` is constant here, and 0.1 in theirs for values in TD3. For policies and for the values of double DQN theirs
      is beta * mean |loss| / mean churn over the last 100 updates, from update 50 or 100 on, with beta 0.05 for PPO on
      DeepMind Control and 0.01 for double DQN. That makes their method free of the losses' scale; this one is not.
    - There the batch is a second one, as large as the loss's and drawn independently; here it is the loss's own.
    - There a Gaussian policy's means alone count (PPO) or the divergence of the Gaussians (SAC); here its mean and its
      log standard deviation.
    - There several critics are added up, here averaged.

    Args:
        distance: "squared" or "cross_entropy".

    Raises:
        ValueError: from `penalty`, where the network returns no tensor of numbers for each example.
        RuntimeError: from `project_`, when `penalty` was not called since the last `project_`.
    """

    looks_at_data = True
    needs = NO_BATCH

    @checked
    def __init__(
        self,
        net: nn.Module,
        coef: Strength = 0.1,
        distance: Annotated[
            Literal["squared", "cross_entropy"], Setting("distance between outputs; cross_entropy: for logits")
        ] = "squared",
    ) -> None:
        super().__init__(net, coef)
        self.distance = distance
        self._act_on(net, self._trainable())
        for name in self.names:
            self._remember("previous", name, lookup(net, name))
            self._remember("earlier", name, lookup(net, name), saved=False)  # for all calls of one update

    def terms(self, names: Sequence[str], net: nn.Module, inputs: Example) -> Tensor:
        with torch.no_grad():
            if not self.seen:  # else a further call of the same update: of a closure, or of accumulated batches
                for name in self.names:  # what is frozen now too: it has not moved
                    self._recall("earlier", name).copy_(self._recall("previous", name))
                    self._recall("previous", name).copy_(lookup(net, name))
            earlier = {name: self._recall("earlier", name) for name in self.names}
            before = [wide(tensor) for tensor in returned(net, inputs, earlier)]
        now = [wide(tensor) for tensor in returned(net, inputs)]
        total = self._zeros()
        for mine, its in zip(now, before, strict=True):
            if self.distance == "squared":
                each = (mine - its).square()
            else:
                each = -(its.softmax(-1) * mine.log_softmax(-1)).sum(-1)
            total = total + each.reshape(*self.runs, -1).mean(-1)
        return total


class FeatureRank(Regularizer):
    """coef * (sigma_max^2 - sigma_min^2) of the features of the update's batch: what keeps their singular values alike.

    Features are what an output layer reads, the matrix Phi ``[examples (and positions), features]``; several output
    layers add up. Both are |Phi v| with persistent unit vectors v, one step of power iteration each penalty without
    gradient: on Phi^T Phi, and for the smallest one on sigma_max^2 I - Phi^T Phi. So they follow the features with a
    delay; the smallest is found slowly where others lie close, and until then what counts as it is larger. Where a
    batch has fewer examples than there are features, it goes to what is smallest in all batches, and not to the
    smallest of the batch's own singular values.

    Source: Kumar et al. (2021), "Implicit Under-Parameterization Inhibits Data-Efficient Deep Reinforcement Learning",
    arXiv 2010.14498, as others report it, coefficient 0.001, with exact singular values; the text itself could not be
    read. (Of its like, DR3 needs the features of the next actions too, which no batch here brings, and InFeR's
    auxiliary heads an optimizer of their own.)

    Raises:
        ValueError: it cannot be read which layers are heads; a head is no linear or convolution module.
        RuntimeError: from `project_`, when `penalty` was not called since the last `project_`.
    """

    looks_at_data = True
    needs = NO_BATCH

    @checked
    def __init__(self, net: nn.Module, coef: Strength = 1e-3) -> None:
        super().__init__(net, coef)
        self.structure.require_heads("feature_rank")
        self.heads = [y for y in self.layers if y.head and (y.is_linear_map or y.kind == COMPUTED)]
        if not self.heads and (tied := sorted(self.structure.of_heads & self.structure.shared)):
            raise ValueError(
                f"feature_rank looks at what output layers read, and the only one is tied: it shares {tied[0]!r} with "
                "another layer. Give it a weight of its own, or use another method"
            )
        self._require(self.heads, "trainable output layer")
        modules = dict(innermost(net).named_modules())
        for layer in self.heads:
            weights = {y.weight_name for y in self.layers if y.name == layer.name and y.weight_name is not None}
            if layer.name not in modules or len(weights) > 1 or layer.kind == COMPUTED:
                raise ValueError(
                    f"feature_rank looks at what output layers read, and {layer.name!r} is no linear or convolution "
                    "module: use one of torch.nn there, or pass heads=[names of such modules]"
                )
        self.inside = Inside(net, reading=[layer.name for layer in self.heads])
        for layer in self.heads:
            weight = layer.weight(net)
            assert weight is not None
            axis = len(self.runs) + (0 if layer.transposed else 1)
            features = weight.shape[axis] * (layer.groups if not layer.transposed else 1)
            for i, kind in enumerate(("largest", "smallest")):
                start = torch.sin(
                    torch.arange(1, features + 1, device=weight.device, dtype=self.coef.dtype) * (i + 1.3)
                )
                self._remember(kind, layer.key, (start / start.norm()).expand(*self.runs, -1))

    def terms(self, _: Sequence[Layer], net: nn.Module, inputs: Example) -> Tensor:
        total, k = self._zeros(), len(self.runs)
        seen = self.inside(net, inputs)
        with self._outside_autocast():
            for layer in self.heads:
                read = (x.movedim(k + 1, -1) if layer.role == "conv" else x for x in seen[layer.name])
                features = torch.cat([wide(x).reshape(*self.runs, -1, x.shape[-1]) for x in read], k)
                largest, smallest = (self._recall(kind, layer.key) for kind in ("largest", "smallest"))
                with torch.no_grad():
                    u = _normalized(_gram(features, largest), largest)
                    top = _squares(features, u).unsqueeze(-1)
                    v = _normalized(top * smallest - _gram(features, smallest), smallest)
                of_u, of_v = _squares(features, u), _squares(features, v)
                with (
                    torch.no_grad()
                ):  # what u is along may have died, and v turned to what lives: then they change roles
                    changed = (of_v > of_u).unsqueeze(-1)
                    largest.copy_(torch.where(changed, v, u))
                    smallest.copy_(torch.where(changed, u, v))
                total = total + (of_u - of_v).abs()
        return total


def _gram(features: Tensor, vector: Tensor) -> Tensor:
    """Phi^T Phi v, ``[*runs, n]``."""
    return (features.mT @ (features @ vector.unsqueeze(-1))).squeeze(-1)


def _squares(features: Tensor, vector: Tensor) -> Tensor:
    """|Phi v|^2, ``[*runs]``."""
    return (features @ vector.unsqueeze(-1)).square().sum((-2, -1))


def _normalized(vector: Tensor, otherwise: Tensor) -> Tensor:
    """A unit vector; `otherwise` where there is none: all is zero, or not finite."""
    scaled = vector / vector.abs().amax(-1, keepdim=True)  # so that no square overflows
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return torch.where(norm.isfinite(), scaled / norm, otherwise)


def returned(net: nn.Module, inputs: Example, values: Mapping[str, Tensor] | None = None) -> list[Tensor]:
    """The numbers that `net` returns for `inputs`, its parameters replaced by `values`; see `call`.

    Raises:
        ValueError: it returns none.
    """
    inner = innermost(net)
    output = call(inner, net, inputs, values)
    axes = len(runs_of(net))
    found = [tensor for tensor in tensors_in(output) if tensor.is_floating_point() and tensor.ndim > axes]
    if not found:
        raise ValueError(f"{type(inner).__name__} returns no tensor of numbers for each example, but {_kind(output)}")
    return found


def _kind(output: object) -> str:
    return f"{[*output.shape]} {output.dtype}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
