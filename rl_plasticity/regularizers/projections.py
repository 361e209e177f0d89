"""Projections that clip, shrink, turn or set back the weights right after the optimizer's step."""

import math
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from rl_plasticity.regularizers.base import Of, Regularizer, Share
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure import Structure
from rl_plasticity.structure.layer import lookup, per_run, wide


class WeightClipping(Regularizer):
    """Every weight and bias of a linear or convolution layer is clipped to +- coef / sqrt(fan_in).

    Source: Elsayed et al. (2024), "Weight Clipping for Deep Continual and Reinforcement Learning", Algorithm 1: the
    bound is `coef` (their kappa) times that of the usual uniform initialization, for the bias the same as for its
    weight. Norm layers, embeddings and bare parameters, for which that initialization does not exist, are left alone.

    Args:
        coef: kappa (0 would set every weight to zero, so this method has no strength that does nothing).
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        coef: Annotated[float | Tensor, Setting("kappa, of the bound", above=0)] = 3.0,
        structure: Structure | None = None,
    ) -> None:
        super().__init__(net, coef, structure)
        self.clipped = [layer for layer in self.layers if layer.is_linear_map]
        self._require(self.clipped, "linear or convolution layer")
        self._require_plain(self.clipped)
        self._require_told(net, self.clipped, least_axes=1)

    @torch.no_grad()
    def project_(self, net: nn.Module) -> None:
        for layer, now in zip(self.clipped, self._layers_now(net, self.clipped), strict=True):
            matrix = layer.matrix(net)
            assert matrix is not None
            bound = self.coef / math.sqrt(matrix.shape[-1])
            for tensor in now.tensors(net):
                limit = per_run(bound, tensor).to(tensor.dtype)
                tensor.clamp_(-limit, limit)


class WeightDecay(Regularizer):
    """Decoupled weight decay: p <- p_after_step - coef * p_before_step, over all parameters, or over some.

    That is theta <- (1 - coef) theta - optimizer's update, so Adam with this equals ``torch.optim.AdamW(lr,
    weight_decay=coef / lr)`` step for step. There torch multiplies by the learning rate of each step; `coef` is the
    product at the first one, and where the learning rate changes it changes alike, see `follow_`.

    `penalty` (zero) keeps a copy of the weights before the step: call it for each update, as the contract has it;
    without it the same weights would be subtracted for ever, so `project_` refuses. Of several calls for one update, as
    LBFGS makes with its closure, the first counts.

    Source: Loshchilov and Hutter (2019), "Decoupled Weight Decay Regularization", equation 1; `coef` is their lambda,
    which torch multiplies by the learning rate.

    Args:
        of: as for `l2`.

    Raises:
        ValueError: the network has no such parameter.
        RuntimeError: from `project_`, when `penalty` was not called since the last `project_`.
    """

    @checked
    def __init__(self, net: nn.Module, coef: Share = 3e-6, of: Of = "all", structure: Structure | None = None) -> None:
        super().__init__(net, coef, structure)
        self.kept = False  # the weights before the step under way
        self.names = self._those(net, of)
        self._decays(self.names)
        self._remember_rounding(net, self.names)
        for name in self.names:
            self._remember("before", name, lookup(net, name))

    def penalty(self, net: nn.Module) -> Tensor:
        if not self.kept:
            with torch.no_grad():
                for name in self.names:
                    self._recall("before", name).copy_(lookup(net, name))
        self.kept = True
        return super().penalty(net)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.kept = False

    @torch.no_grad()
    def project_(self, net: nn.Module) -> None:
        if not self.kept:
            raise RuntimeError(
                "weight_decay does not know the weights before the step: call regularizer.penalty(net) once for each "
                "update, before optimizer.step()"
            )
        net = self._widened(net)
        decay = self._decay_of(self.coef)
        for name in self._now(net, self.names):
            parameter = lookup(net, name)
            parameter.sub_(per_run(decay[name], parameter) * self._recall("before", name))
        self._round_(net)
        self.kept = False


class Orthogonal(Regularizer):
    """AdamO's step towards orthogonal weights, beside any optimizer: W <- W - coef * grad R(W) after each update.

    R = |W W^T - scale I|_F^2, or |W^T W - scale I|_F^2 where a layer has more outputs than inputs (the smaller of the
    two), so grad R = 4 (W W^T - scale I) W. Of hidden linear and convolution layers, a kernel as the matrix
    out x (in * kh * kw), each group by itself; heads, biases and all else are left alone. The moments of the optimizer
    do not see it.

    Source: Rosseau et al. (2026), "Preserving Plasticity in Continual Learning via Dynamical Isometry", arXiv
    2606.09762, equations 16 and 20, as others quote them: the text itself could not be read. `coef` is their learning
    rate times lambda (1e-3) at the first rate: where the learning rate changes it changes alike, see `follow_`. As in
    the first author's code for another network (github.com/Arosseau/nanochat-isometry, nanochat/ortho_reg.py) the
    gradient is that of the weights after the optimizer's step, and heads are left out. Deviations from that code: there
    R has a factor 1/2, and by default the target of a layer with more outputs than inputs is scale * outputs / inputs,
    which is `rect_scale` here. It is off because the equations as quoted have no such factor.

    Args:
        coef: eta * lambda at the first learning rate.
        scale: the squared singular values to go to, 1; 2 keeps the size of what goes through ReLUs.
        rect_scale: whether the target of a layer with more outputs than inputs is multiplied by outputs / inputs.
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        coef: Annotated[float | Tensor, Setting("learning rate * strength", least=0)] = 3e-7,
        scale: Annotated[float, Setting("the squared singular values to go to", above=0)] = 1.0,
        rect_scale: Annotated[
            bool, Setting("times outputs / inputs where a layer has more outputs, as in the author's later code")
        ] = False,
        structure: Structure | None = None,
    ) -> None:
        super().__init__(net, coef, structure)
        self.scale, self.rect_scale = scale, rect_scale
        self.hidden = self._linear_maps("orthogonal", heads=False)
        self._require_plain(self.hidden)
        self._require_told(net, self.hidden)
        names = [layer.weight_name for layer in self.hidden if layer.weight_name]
        self._decays(names)
        self._remember_rounding(net, names)

    @torch.no_grad()
    def project_(self, net: nn.Module) -> None:
        net = self._widened(net)
        coef = self._decay_of(self.coef)
        for layer in self._layers_now(net, self.hidden):
            matrix, weight = layer.matrix(net), layer.weight(net)
            if matrix is None or weight is None or layer.weight_name is None:  # frozen now
                continue
            w = layer.by_group(matrix)
            tall = w.shape[-2] > w.shape[-1]
            across = w @ (w.mT @ w) if tall else (w @ w.mT) @ w
            scale = self.scale * w.shape[-2] / w.shape[-1] if tall and self.rect_scale else self.scale
            step = 4 * per_run(coef[layer.weight_name], matrix) * (across.reshape(matrix.shape) - scale * matrix)
            weight.sub_(layer.of_matrix(step, weight.shape))
        self._round_(net)


class HareAndTortoise(Regularizer):
    """A slow average follows the network, and every `every_updates` updates the network is set back to it.

    After each update slow <- momentum * slow + (1 - momentum) * p, and when it is due p <- slow, over all parameters;
    the optimizer's moments stay. slow starts as the weights at first. What is trained and evaluated is the fast
    network, the hare.

    Source: Lee et al. (2024), "Slow and Steady Wins the Race: Maintaining Plasticity with Hare and Tortoise Networks",
    arXiv 2406.02596, as in their code for supervised learning (github.com/dojeon-ai/Hare-Tortoise,
    src/trainers/base.py): momentum 0.999, a reset after the first epoch of each task and every 10 after it, both
    networks evaluated. There the running statistics of BatchNorm are averaged and set back too; here they stay the
    hare's. And there both networks share their memory from a reset to the next average, so that the tortoise takes one
    step of each period whole; not here. What they use in reinforcement learning could not be read.

    Args:
        every_updates: the period of the resets.
        momentum: of the slow average.
    """

    updates: Tensor

    @checked
    def __init__(
        self,
        net: nn.Module,
        every_updates: Annotated[int, Setting("period in updates", least=1)] = 10_000,
        momentum: Annotated[float, Setting("of the slow average", least=0, most=1)] = 0.999,
        structure: Structure | None = None,
    ) -> None:
        super().__init__(net, structure=structure)
        self.every_updates, self.momentum = every_updates, momentum
        self.register_buffer("updates", torch.zeros(self.runs, dtype=torch.int64, device=self.coef.device))
        self.names = self._trainable(net)
        for name in self.names:
            self._remember("slow", name, wide(lookup(net, name)))

    def first_update(self, batch_size: int) -> Tensor:
        return torch.full(self.runs, float(self.every_updates))

    @torch.no_grad()
    def project_(self, net: nn.Module) -> None:
        self.updates += 1
        due = self.updates % self.every_updates == 0
        for name in self._now(net, self.names):
            parameter, slow = lookup(net, name), self._recall("slow", name)
            slow.lerp_(wide(parameter), 1 - self.momentum)
            parameter.copy_(torch.where(per_run(due, parameter), slow.to(parameter.dtype), parameter))
