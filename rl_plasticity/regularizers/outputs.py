"""Penalties that look at data: terms of the loss computed from a network's outputs or features on a batch."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from rl_plasticity.regularizers.base import NO_BATCH, Regularizer, Strength
from rl_plasticity.regularizers.inside import Inside, call
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure import Example, shadow, tensors_in
from rl_plasticity.structure.layer import COMPUTED, Layer, innermost, lookup, runs_of, wide


class Churn(Regularizer):
    """Churn penalty: coef * the distance of f_t(x) and f_{t-1}(x), or how far the last update moved the outputs.

    f_t is the network now, and f_{t-1} the network one update earlier, without gradient. x is the current update's
    batch, drawn after the step that it judges. The distance is one of:

    - "squared": the mean of (f_t(x) - f_{t-1}(x))^2 over batch and outputs, summed over the tensors that the network
      returns;
    - "cross_entropy", for logits with the classes on their last axis: the mean over all other axes of
      -sum_a p_{t-1}(a) log p_t(a). Its gradient is that of the Kullback-Leibler divergence of p_{t-1} from p_t.

    Outputs that are one number for the whole batch, such as a loss, do not count.

    Without `coef` the strength follows the loss, which makes the method independent of its scale. It is `first` in the
    first `after_updates` updates, then::

        share * mean |loss| / (mean distance + 1e-8),   means over the last `window` updates, without the present one

    That needs the loss: from `Learner.minimize`, or from ``observe_loss_(net, loss)`` in a loop of your own.

    All batches of one update, whether accumulated or from the closure of LBFGS, share the same f_{t-1}. The extra call
    does not move the batch statistics of norm layers. Random layers such as dropout draw the same numbers for f_t and
    f_{t-1}, and the loop's random state stays. In a compiled or captured update they draw new ones, which counts as
    churn.

    Source: Tang and Berseth (2024), "Improving Deep Reinforcement Learning by Reducing the Chain Effect of Value and
    Policy Churn" (CHAIN), arXiv 2409.04792, and Tang et al. (2025), "Mitigating Plasticity Loss in Continual
    Reinforcement Learning by Reducing Churn" (C-CHAIN), arXiv 2506.00592, as in their code (github.com/bluecontra/CHAIN
    and C-CHAIN). We could read only the abstracts of the papers. Deviations:

    - The strength is theirs of double DQN. With PPO on DeepMind Control it is 100 at first, and from iteration 50 on
      follows the last 100 iterations at a share of 0.05, of the policy's loss alone and times the falling share of the
      learning rate. With TD3 it is a constant 0.1 for values.
    - Their batch is a second one, as large as the loss's and drawn independently; here it is the loss's own batch.
    - They compare only the means of a Gaussian policy (PPO) or take the divergence of the Gaussians (SAC); here both
      the mean and the log standard deviation count as outputs.
    - They sum over several critics; here they are averaged.

    Args:
        coef: a constant strength; None: one that follows the loss.
        distance: "squared" or "cross_entropy".
        share, window, after_updates, first: of a strength that follows the loss.

    Raises:
        ValueError: from `penalty`, if the network returns no tensor of numbers for each example.
        RuntimeError: from `project_`, if `penalty` was not called since the last `project_`; from `penalty`, if the
            strength follows the loss and `observe_loss_` was not called in the last update.
    """

    looks_at_data = True
    missing_call = NO_BATCH
    losses: Tensor
    distances: Tensor
    distance_now: Tensor
    strength: Tensor
    observed: Tensor

    @checked
    def __init__(
        self,
        net: nn.Module,
        coef: Annotated[float | Tensor | None, Setting("strength; null: it follows the loss", least=0)] = None,
        distance: Annotated[
            Literal["squared", "cross_entropy"], Setting("distance between outputs; use cross_entropy for logits")
        ] = "squared",
        share: Annotated[float, Setting("without coef, the penalty is kept at this share of the loss", least=0)] = 0.01,
        window: Annotated[int, Setting("updates over which the loss and the penalty are averaged", least=1)] = 50_000,
        after_updates: Annotated[int, Setting("updates after which the strength follows the loss", least=0)] = 10_000,
        first: Annotated[float, Setting("strength before it follows the loss", least=0)] = 50.0,
    ) -> None:
        super().__init__(net, 1.0 if coef is None else coef)
        self.distance, self.share, self.after_updates, self.first = distance, share, after_updates, first
        self.uses_loss, self.awaits_loss = coef is None, False
        if self.uses_loss:
            zeros = self.coef.new_zeros(*self.runs, window)
            for name, value in {"losses": zeros, "distances": zeros, "strength": zeros[..., 0] + first}.items():
                self.register_buffer(name, value.clone())
            self.register_buffer("distance_now", zeros[..., 0].clone(), persistent=False)
            self.register_buffer("observed", torch.zeros(self.runs, dtype=torch.int64, device=zeros.device))
        self._act_on(net, self._trainable())
        for name in self.names:
            self._remember("previous", name, lookup(net, name))
            self._remember("earlier", name, lookup(net, name), saved=False)  # shared by all calls of one update

    def terms(self, names: Sequence[str], net: nn.Module, inputs: Example) -> Tensor:
        if self.uses_loss and not self.prepared:
            if self.awaits_loss:
                raise RuntimeError(
                    "churn without coef follows the loss, but was not given the last update's: call "
                    "regularizer.observe_loss_(net, loss) after penalty, or pass coef="
                )
            self.awaits_loss = True
        with torch.no_grad():
            if not self.prepared:  # else another call of the same update: a closure's, or an accumulated batch's
                for name in self.names:  # including those frozen now: they have not moved
                    self._recall("earlier", name).copy_(self._recall("previous", name))
                    self._recall("previous", name).copy_(lookup(net, name))
            earlier = {name: self._recall("earlier", name) for name in self.names}
            before = [wide(tensor) for tensor in returned(net, inputs, earlier)]
        now = [wide(tensor) for tensor in returned(net, inputs, self._not_acted_on(net))]
        total = self._zeros()
        for mine, its in zip(now, before, strict=True):
            if self.distance == "squared":
                each = (mine - its).square()
            else:
                each = -(its.softmax(-1) * mine.log_softmax(-1)).sum(-1)
            total = total + each.reshape(*self.runs, -1).mean(-1)
        if self.uses_loss:
            self.distance_now.copy_(total.detach())
            total = total * self.strength.clone()  # `observe_loss_` may come before the gradients
        return total

    @torch.no_grad()
    def observe_loss_(self, net: nn.Module, loss: Tensor) -> None:
        if not self.uses_loss:
            return
        self.awaits_loss = False
        place = (self.observed % self.losses.shape[-1]).unsqueeze(-1)
        self.losses.scatter_(-1, place, loss.abs().to(self.losses).reshape(place.shape))
        self.distances.scatter_(-1, place, self.distance_now.unsqueeze(-1))
        self.observed += 1
        number, most = self.observed, self.losses.shape[-1]
        distance = self.distances.sum(-1) / (number - 1).clamp(1, most)  # the first update has none
        ratio = self.losses.sum(-1) / number.clamp(max=most) / (distance + 1e-8)
        self.strength.copy_(torch.where(self.observed >= self.after_updates, self.share * ratio, self.first))


class FeatureRank(Regularizer):
    """Feature rank penalty: coef * (sigma_max^2 - sigma_min^2) of the features of a batch.

    It keeps the singular values of the features alike. Features are the inputs of an output layer, as the matrix Phi
    ``[examples (and positions), features]``; the terms of several output layers add up. Both singular values are
    |Phi v| with persistent unit vectors v. Each penalty takes one step of power iteration without gradient: on
    Phi^T Phi for the largest, and on sigma_max^2 I - Phi^T Phi for the smallest.

    The vectors therefore follow the features with a delay. The smallest singular value is found slowly where others
    lie close to it, and its estimate is too large until then. Where a batch has fewer examples than there are features,
    the estimate approaches the smallest value over all batches, not the smallest of the batch's own singular values.

    Source: Kumar et al. (2021), "Implicit Under-Parameterization Inhibits Data-Efficient Deep Reinforcement Learning",
    arXiv 2010.14498, as others report it, coefficient 0.001, with exact singular values; we could not read the text
    itself. (Of related methods, DR3 also needs the features of the next actions, which no batch here contains, and
    InFeR needs auxiliary heads with their own optimizer.)

    Raises:
        ValueError: which layers are heads cannot be read, or a head is not a linear or convolution module.
        RuntimeError: from `project_`, if `penalty` was not called since the last `project_`.
    """

    looks_at_data = True
    missing_call = NO_BATCH

    @checked
    def __init__(self, net: nn.Module, coef: Strength = 1e-3) -> None:
        super().__init__(net, coef)
        self.structure.require_heads("feature_rank")
        self.heads = [y for y in self.layers if y.head and (y.is_linear_map or y.kind == COMPUTED)]
        self._require(self.heads, "trainable output layer of its own")
        modules = dict(innermost(net).named_modules())
        for layer in self.heads:
            weights = {y.weight_name for y in self.layers if y.name == layer.name and y.weight_name is not None}
            if layer.name not in modules or len(weights) > 1 or layer.kind == COMPUTED:
                raise ValueError(
                    f"feature_rank reads the inputs of output layers, and {layer.name!r} is not a linear or "
                    "convolution module: use one of torch.nn there, or pass heads=[names of such modules]"
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
        seen = self.inside(net, inputs, self._not_acted_on(net))
        with self.outside_autocast():
            for layer in self.heads:
                read = (x.movedim(k + 1, -1) if layer.role == "conv" else x for x in seen[layer.name])
                features = torch.cat([wide(x).reshape(*self.runs, -1, x.shape[-1]) for x in read], k)
                largest, smallest = (self._recall(kind, layer.key) for kind in ("largest", "smallest"))
                with torch.no_grad():
                    u = _normalized(_gram(features, largest), largest)
                    top = _squares(features, u).unsqueeze(-1)
                    v = _normalized(top * smallest - _gram(features, smallest), smallest)
                of_u, of_v = _squares(features, u), _squares(features, v)
                with torch.no_grad():
                    # What u points along may have died, and what v points along may have grown: then they swap.
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
    """A unit vector, or `otherwise` where there is none because all entries are zero or one is not finite."""
    scaled = vector / vector.abs().amax(-1, keepdim=True)  # prevents overflow of the squares
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return torch.where(norm.isfinite(), scaled / norm, otherwise)


def returned(net: nn.Module, inputs: Example, values: Mapping[str, Tensor] | None = None) -> list[Tensor]:
    """The floating-point tensors that `net` returns for `inputs`, its parameters replaced by `values`; see `call`.

    Raises:
        ValueError: it returns none.
    """
    inner = innermost(net)
    called = inner if torch.compiler.is_compiling() else shadow(inner)  # whose attributes may change
    output = call(called, net, inputs, values)
    axes = len(runs_of(net))
    found = [tensor for tensor in tensors_in(output) if tensor.is_floating_point() and tensor.ndim > axes]
    if not found:
        raise ValueError(
            f"{type(inner).__name__} returns no tensor of numbers for each example, but a {type(output).__name__}"
        )
    return found
