"""Projections that clip, shrink, rotate or reset the weights right after the optimizer's step."""

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from rl_plasticity.regularizers.base import EveryUpdates, Of, Rates, Regularizer, Strength, rate_of
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure import Example
from rl_plasticity.structure.layer import Layer, lookup, per_run, wide


class WeightClipping(Regularizer):
    """Weight clipping: every weight and bias of a linear or convolution layer is clipped to +- coef / sqrt(fan_in).

    Source: Elsayed et al. (2024), "Weight Clipping for Deep Continual and Reinforcement Learning", Algorithm 1. The
    bound is `coef` (their kappa) times that of the usual uniform initialization; a bias has the same bound as its
    weight. Norm layers, embeddings and bare parameters are left alone, because that initialization is not defined for
    them.

    Args:
        coef: kappa. Unlike for other methods, 0 is not allowed: it would set every weight to zero.
    """

    keeps_rounding = False

    @checked
    def __init__(
        self,
        net: nn.Module,
        coef: Annotated[
            float | Tensor, Setting("multiple of the initialization's bound to clip at (kappa)", above=0)
        ] = 3.0,
    ) -> None:
        super().__init__(net, coef)
        self._act_on(net, self._linear_maps(), "linear or convolution layer", least_axes=1)
        self.fan_in = {name: y.matrix(net).shape[-1] for y in self.acts_on for name in y.parameter_names}

    def project(self, layer: Layer, net: nn.Module, due: Tensor) -> None:
        for name in layer.parameter_names:
            tensor = lookup(net, name)
            limit = per_run(self.coef / math.sqrt(self.fan_in[name]), tensor).to(tensor.dtype)
            tensor.clamp_(-limit, limit)


class WeightDecay(Regularizer):
    """Decoupled weight decay: p <- p_after_step - lr * coef * p_before_step, over all parameters or those `of` selects.

    That is theta <- (1 - lr * coef) theta - optimizer's update, so Adam with this equals ``torch.optim.AdamW(lr,
    weight_decay=coef)`` step for step, whatever the schedule of the learning rate.

    `penalty` (zero) copies the weights before the step, so call it for each update, as the contract requires. Without
    that call the same old weights would be subtracted forever, so `project_` raises. Of several calls in one update,
    such as those of LBFGS and its closure, the first counts.

    Source: Loshchilov and Hutter (2019), "Decoupled Weight Decay Regularization"; `coef` is torch's weight_decay.

    Args:
        of: the parameters to decay, as for `l2`.

    Raises:
        ValueError: the network has no such parameter.
        RuntimeError: from `project_`, if `penalty` was not called since the last `project_`.
    """

    uses_lr = True
    missing_call = (
        "does not know the weights before the step: call regularizer.penalty(net) once for each update, before "
        "optimizer.step()"
    )

    @checked
    def __init__(self, net: nn.Module, coef: Strength = 1e-2, of: Of = "all") -> None:
        super().__init__(net, coef)
        self._act_on(net, self._selected(net, of))
        for name in self.names:
            self._remember("before", name, lookup(net, name))

    def penalty(self, net: nn.Module, inputs: Example | None = None) -> Tensor:
        if not self.prepared:
            with torch.no_grad():
                for name in self._now(net):
                    self._recall("before", name).copy_(lookup(net, name))
        self.prepared = True
        return self._zeros()

    def project_at_rate(self, names: Sequence[str], net: nn.Module, due: Tensor, lr: Rates) -> None:
        for name in names:
            parameter = lookup(net, name)
            parameter.sub_(per_run(self.coef * rate_of(lr, name), parameter) * self._recall("before", name))


class Orthogonal(Regularizer):
    """AdamO's step toward orthogonal weights, for any optimizer: W <- W - lr * coef * grad R(W) after each update.

    R = |W W^T - scale I|_F^2, or |W^T W - scale I|_F^2 where a layer has more outputs than inputs (the smaller of the
    two), so grad R = 4 (W W^T - scale I) W. It acts on hidden linear and convolution layers, with a kernel as the
    matrix out x (in * kh * kw), separately for each group. Heads, biases and all else are left alone. The optimizer's
    moments do not see this step.

    Source: Rosseau et al. (2026), "Preserving Plasticity in Continual Learning via Dynamical Isometry", arXiv
    2606.09762, equations 16 and 20, as others quote them; we could not read the text itself. Two choices
    follow the first author's code for another network (github.com/Arosseau/nanochat-isometry, nanochat/ortho_reg.py):
    the gradient is taken at the weights after the optimizer's step, and heads are left out. Deviations from that code:

    - There R has a factor 1/2.
    - There the default target of a layer with more outputs than inputs is scale * outputs / inputs. The equations as
      quoted have no such factor.

    Args:
        coef: lambda.
        scale: the target of the squared singular values; 1 by default, while 2 preserves the size of signals through
            ReLUs.
    """

    uses_lr = True

    @checked
    def __init__(
        self,
        net: nn.Module,
        coef: Strength = 1e-3,
        scale: Annotated[float, Setting("target for the squared singular values", above=0)] = 1.0,
    ) -> None:
        super().__init__(net, coef)
        self.scale = scale
        self._act_on(net, self._linear_maps(heads=False, biases=False), "hidden linear or convolution layer")

    def project_at_rate(self, layers: Sequence[Layer], net: nn.Module, due: Tensor, lr: Rates) -> None:
        for layer in layers:
            if (weight := layer.weight(net)) is None:  # frozen now
                continue
            matrix = layer.matrix_of(weight)
            w = layer.by_group(matrix)
            tall = w.shape[-2] > w.shape[-1]
            across = w @ (w.mT @ w) if tall else (w @ w.mT) @ w
            coef = self.coef * rate_of(lr, layer.key)
            step = 4 * per_run(coef, matrix) * (across.reshape(matrix.shape) - self.scale * matrix)
            weight.sub_(layer.of_matrix(step, weight.shape))


class HareAndTortoise(Regularizer):
    """Hare and tortoise: a slow average follows the network, which is reset to it every `every_updates` updates.

    After each update slow <- momentum * slow + (1 - momentum) * p, and when a reset is due p <- slow, over all
    parameters. slow starts at the initial weights. The optimizer's moments stay. The network that is trained and
    evaluated is the fast one, the hare.

    Source: Lee et al. (2024), "Slow and Steady Wins the Race: Maintaining Plasticity with Hare and Tortoise Networks",
    arXiv 2406.02596, as in their code for supervised learning (github.com/dojeon-ai/Hare-Tortoise,
    src/trainers/base.py): momentum 0.999, a reset after the first epoch of each task and every 10 after it, both
    networks evaluated. We could not read what they use in reinforcement learning. Deviations:

    - There the running statistics of BatchNorm are averaged and reset too; here they stay the hare's.
    - There both networks share their memory from a reset to the next average. The tortoise therefore takes one step of
      each period in full. Here they do not share it.

    Args:
        every_updates: the period of the resets.
        momentum: share of the slow average that each update keeps.
    """

    keeps_rounding = False
    captures = "slow"

    @checked
    def __init__(
        self,
        net: nn.Module,
        every_updates: EveryUpdates = 10_000,
        momentum: Annotated[
            float, Setting("share of the slow average that each update keeps (decay)", least=0, most=1)
        ] = 0.999,
    ) -> None:
        super().__init__(net)
        self.momentum = momentum
        self._acts_every(every_updates)
        self._act_on(net, self._trainable())

    def project(self, name: str, net: nn.Module, due: Tensor) -> None:
        parameter, slow = lookup(net, name), self._recall("slow", name)
        slow.lerp_(wide(parameter), 1 - self.momentum)
        parameter.copy_(torch.where(per_run(due, parameter), slow.to(parameter.dtype), parameter))
