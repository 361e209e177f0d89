"""Optimizers for many runs at once: AdamP, UPGD, Muon and TRAC."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from rl_plasticity import Setting
from rl_plasticity.learning.optimizers import Adam, Eps, LearningRate, Optimizer, WeightDecayRate, orthogonalized
from rl_plasticity.seeding import key_of, uniform_at
from rl_plasticity.settings import checked
from rl_plasticity.structure import read
from rl_plasticity.structure.layer import per_run, wide


class AdamP(Adam):
    """AdamP: Adam with its step projected onto the tangent of each weight that appears to be scale-invariant.

    The criterion is that the cosine between a weight and its gradient stays below delta / sqrt(n). It is tested for
    every output unit (n its fan-in), and else for the tensor as a whole (n its size). Where it holds, the radial part
    of the step is removed, unit by unit or for the tensor: d <- d - w_hat (w_hat . d), with w_hat = w / |w|. Vectors
    (biases, gains) take Adam's step.

    Source: Heo et al. (2021), "AdamP", Algorithm 2, delta = 0.1, without its weight decay (a regularizer here).

    Args:
        delta: the threshold.
        of_adam: Adam's settings.
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        lr: LearningRate = 1e-3,
        delta: Annotated[float, Setting("threshold of the cosine between weight and gradient", least=0)] = 0.1,
        **of_adam: Any,
    ) -> None:
        super().__init__(net, lr, **of_adam)
        self.delta = delta

    @torch.no_grad()
    def update_(self, parameters: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
        self.step += 1
        k = self.step.ndim
        steps = self._adam(gradients, self.betas, self.eps)
        for parameter, gradient, step in zip(parameters, gradients, steps, strict=True):
            if parameter.ndim - k > 1:
                step = self._project(parameter.flatten(k + 1), gradient.flatten(k + 1), step.flatten(k + 1))
            parameter.sub_(step.view(parameter.shape))

    def _project(self, weight: Tensor, gradient: Tensor, step: Tensor) -> Tensor:
        """`step` ``[*runs, out, fan_in]`` without its radial part, where the criterion holds."""
        projected = step
        whole = [t.flatten(-2).unsqueeze(-2) for t in (weight, gradient, step)]
        # Units take precedence over the tensor as a whole, so they are handled last.
        for w, g, d in (whole, [weight, gradient, step]):
            cosine = nn.functional.cosine_similarity(w, g, dim=-1).abs().amax(-1)  # [*runs]
            unit = w / (w.norm(dim=-1, keepdim=True) + self.eps)
            tangent = d - unit * (unit * d).sum(-1, keepdim=True)
            invariant = cosine < self.delta / math.sqrt(w.shape[-1])
            projected = torch.where(per_run(invariant, step), tangent.view(step.shape), projected)
        return projected


class UPGD(Optimizer):
    """Utility-based perturbed gradient descent: moves and perturbs weights of little utility, protects useful ones.

    Every single weight has a utility u, a running mean. With new noise at each update::

        u <- decay * u - (1 - decay) * g w
        s = sigmoid(u / (1 - decay^t) / max u),     the largest u of all parameters of the run
        w <- (1 - lr * weight_decay) w - lr * (g + sigma * noise) * (1 - s)

    Where the largest u is 0, for example before any gradient, s is 1/2. The noise is derived from the weights that the
    optimizer was made for and from the step, so a run draws the same noise alone, among others and in compiled updates.

    Source: Elsayed and Mahmood (2024), "Addressing Loss of Plasticity and Catastrophic Forgetting in Continual
    Learning", first-order global UPGD, as in their code (github.com/mohmdelsayed/upgd). There too, u in the maximum is
    not corrected; some versions of their code step by 2 lr. We could not read the text.

    The optimizer of their reinforcement learning is `AdaptiveUPGD`.

    Args:
        decay: decay of the running mean of the utility.
        sigma: standard deviation of the noise.
        weight_decay: weight decay, multiplied by the learning rate.
    """

    MOMENTS = "u"
    key: Tensor

    @checked
    def __init__(
        self,
        net: nn.Module,
        lr: LearningRate = 1e-2,
        decay: Annotated[
            float, Setting("decay of the running mean of a weight's utility", least=0, most=0.9999)
        ] = 0.999,
        sigma: Annotated[float, Setting("standard deviation of the noise", least=0)] = 1e-3,
        weight_decay: WeightDecayRate = 0.0,
    ) -> None:
        super().__init__(net, lr, self.MOMENTS)
        self.decay, self.sigma, self.weight_decay = decay, sigma, weight_decay
        self.register_buffer("key", key_of(map(net.get_parameter, self.names), self.step.ndim))

    @torch.no_grad()
    def update_(self, parameters: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
        self.step += 1
        uses, lr = [self.moments(name)[0] for name in self.names], self.lr.to(gradients[0].dtype)
        each = _free_and_noise_(uses, parameters, gradients, self.decay, self.step, self.key)
        for p, g, (free, noise) in zip(parameters, gradients, each, strict=True):
            p.mul_(1 - lr * self.weight_decay).sub_(lr * (g + self.sigma * noise) * free)


class AdaptiveUPGD(UPGD):
    """UPGD with Adam's moments: useful weights are protected from a step of Adam and from noise.

    With the share s of `UPGD`, new noise at each update and moments m, v as in `Adam`, both corrected::

        w <- (1 - lr * weight_decay) w - 2 lr * (m / (sqrt(v) + eps) + sigma * noise) * (1 - s)

    Source: Elsayed and Mahmood (2024), as in their code for reinforcement learning (github.com/mohmdelsayed/upgd,
    core/run/rl/adaupgd.py), with its factor 2 and its defaults but for the learning rate, 1e-5 there.

    Args:
        betas, eps: Adam's.
        of_upgd: other settings of `UPGD`.
    """

    MOMENTS = "mvu"

    @checked
    def __init__(
        self,
        net: nn.Module,
        lr: LearningRate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: Eps = 1e-5,
        weight_decay: WeightDecayRate = 1e-3,
        **of_upgd: Any,
    ) -> None:
        super().__init__(net, lr, weight_decay=weight_decay, **of_upgd)
        self.betas, self.eps = betas, eps

    @torch.no_grad()
    def update_(self, parameters: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
        self.step += 1
        dtype, (b1, b2) = gradients[0].dtype, self.betas
        ms, vs, uses = ([self.moments(name)[i] for name in self.names] for i in range(3))
        torch._foreach_lerp_(ms, gradients, 1 - b1)
        torch._foreach_mul_(vs, b2)
        torch._foreach_addcmul_(vs, gradients, gradients, 1 - b2)
        first, root, lr = (1 - b1**self.step).to(dtype), (1 - b2**self.step).sqrt().to(dtype), self.lr.to(dtype)
        each = _free_and_noise_(uses, parameters, gradients, self.decay, self.step, self.key)
        for p, m, v, (free, noise) in zip(parameters, ms, vs, each, strict=True):
            step = m / per_run(first, m) / (v.sqrt() / per_run(root, v) + self.eps)
            p.mul_(1 - lr * self.weight_decay).sub_(2 * lr * (step + self.sigma * noise) * free)


def _free_and_noise_(
    uses: list[Tensor],
    parameters: list[Tensor],
    gradients: tuple[Tensor, ...],
    decay: float,
    step: Tensor,
    key: Tensor,
) -> list[tuple[Tensor, Tensor]]:
    """Update the utilities of `UPGD`; return 1 - s and standard normal noise for each parameter."""
    k, dtype = step.ndim, gradients[0].dtype
    torch._foreach_mul_(uses, decay)
    torch._foreach_add_(uses, torch._foreach_mul(gradients, parameters), alpha=decay - 1)
    largest = torch.stack([u.reshape(*u.shape[:k], -1).amax(-1) for u in uses]).amax(0)  # [*runs]
    # In float32 or wider. Below the smallest normal number the largest use counts as 0, so s becomes 1/2.
    largest, tiny = wide(largest), torch.finfo(wide(largest).dtype).tiny
    scale = torch.where(largest.abs() >= tiny, largest, math.inf) * (1 - decay**step).to(largest.dtype)
    found = []
    for i, (p, u) in enumerate(zip(parameters, uses, strict=True)):
        noise = _normal_at(key, math.prod(p.shape[k:]), i, step.long()).view(p.shape).to(dtype)
        found.append((1 - (wide(u) / per_run(scale, u)).sigmoid().to(dtype), noise))
    return found


class Muon(Adam):
    """Muon: orthogonalized momentum for the weights of hidden layers, Adam for all other parameters.

    For a hidden layer's weight matrix (a kernel is the matrix out x (in * kh * kw))::

        m <- momentum * m + (1 - momentum) g,   d = momentum * m + (1 - momentum) g      (Nesterov's)
        W <- W - lr * scale * orthogonalized(d)

    The scale is one of:

    - "adam": 0.2 sqrt(max(out, fan_in)). A step is then as long as one of Adam, so one learning rate suits both.
    - "original": sqrt(max(1, out / fan_in)).

    Adam's step applies to biases, gains, shifts, embeddings, bare parameters and heads. It also applies to weights that
    are computed or shared, and to those of transposed and grouped convolutions. Packed weights, an attention's or an
    LSTM's, are one matrix, as they are stored.

    Source: Jordan et al. (2024), "Muon"; the scale "adam" is that of Liu et al. (2025), arXiv 2502.16982, without their
    weight decay (a regularizer here). Equal to ``torch.optim.Muon`` step for step, except that torch rounds the
    products of the orthogonalization to bfloat16. Jordan's own code takes a kernel's "original" scale from the last two
    axes of its gradient, height / width, which is 1 for square kernels; here it is that of the matrix.

    Args:
        momentum: momentum for the weights of hidden layers.
        of_adam: Adam's settings, for all other parameters.

    Raises:
        ValueError: which layers are heads cannot be read, or there is no hidden linear or convolution layer.
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        lr: LearningRate = 3e-4,
        momentum: Annotated[float, Setting("momentum for the hidden layers' weights", least=0, most=1)] = 0.95,
        scale: Annotated[
            Literal["adam", "original"], Setting("scale of the orthogonal step: as Adam's, or original")
        ] = "adam",
        **of_adam: Any,
    ) -> None:
        super().__init__(net, lr, **of_adam)
        structure = read(net)
        structure.require_heads("muon", takes_heads=False)
        whole = [y for y in structure.layers if y.is_linear_map and not y.is_computed and y.groups == 1]
        plain = [y for y in whole if not (y.head or y.transposed)]
        hidden = {y.weight_name for y in plain} - structure.shared
        self.hidden = [i for i, name in enumerate(self.names) if name in hidden]
        if not self.hidden:
            raise ValueError("muon has nothing to act on: the network has no hidden linear or convolution layer")
        for i in self.hidden:  # these need no second moment
            self._buffers[f"v/{self.names[i].replace('.', '/')}"] = None
        self.others = [i for i in range(len(self.names)) if i not in {*self.hidden}]
        self.momentum, self.scale = momentum, scale

    @torch.no_grad()
    def update_(self, parameters: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
        self.step += 1
        if self.others:
            names, own = [self.names[i] for i in self.others], tuple(gradients[i] for i in self.others)
            torch._foreach_sub_([parameters[i] for i in self.others], self._adam(own, self.betas, self.eps, names))
        k = self.step.ndim
        for i in self.hidden:
            (m,) = self.moments(self.names[i])
            m.lerp_(gradients[i], 1 - self.momentum)
            step = orthogonalized(gradients[i].lerp(m, self.momentum).flatten(k + 1))
            out, fan_in = step.shape[-2:]
            scale = 0.2 * math.sqrt(max(out, fan_in)) if self.scale == "adam" else math.sqrt(max(1, out / fan_in))
            parameters[i].sub_(step.view(parameters[i].shape) * (self.lr * scale).to(step.dtype))


SCALE_BETAS = (0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)
# erfi(1 / sqrt(2)), by its series.
ERFI = sum(2 / math.sqrt(math.pi) * 0.5 ** (n + 0.5) / (math.factorial(n) * (2 * n + 1)) for n in range(30))


class TRAC(Adam):
    """TRAC: a learned scale S for the way that Adam has gone from the weights theta_0 at the start.

    With the sum d of Adam's steps, and for each beta in `scale_betas` a variance v and a sum sigma (1e-8 at first)::

        h <- <d, g>,   v <- beta^2 v + h^2,   sigma <- beta sigma - h
        S <- max(0, sum over betas of start / erfi(1 / sqrt(2)) * erfi(sigma / (sqrt(2 v) + trac_eps)))
        d <- d S_before / (S_before + trac_eps) + Adam's step,   theta <- theta_0 + S d

    S grows where going on in the direction of d lowers the loss, and shrinks toward 0, so to theta_0, where it does
    not. What else changes the weights, such as a projection, becomes part of d. Each run has its own scale.

    Source: Muppidi et al. (2024), "Fast TRAC: A Parameter-Free Optimizer for Lifelong Reinforcement Learning", as in
    their code (github.com/ComputationalRobotics/TRAC, trac.py), with its betas and constants. Deviations: d is stored,
    not computed from the weights, in which float32 loses it while S is small; erfi's argument is at most 6.

    Args:
        of_adam: Adam's settings.
        scale_betas: decays of the sums of h.
        start: the scale that a sum of one standard deviation gives.
        trac_eps: constant in the denominators.
    """

    MOST, TERMS = 6.0, 160  # the terms of erfi's series for an argument of 6 fall below 1e-16 of it
    FIRST = (("scales", 0.0), ("variance", 0.0), ("sigma", 1e-8))
    series: Tensor
    scale_betas: Tensor
    scales: Tensor
    variance: Tensor
    sigma: Tensor

    @checked
    def __init__(
        self,
        net: nn.Module,
        lr: LearningRate = 1e-3,
        scale_betas: Annotated[
            Sequence[float], Setting("decay rates of the sums that set the scale", least=0, most=1)
        ] = SCALE_BETAS,
        start: Annotated[float, Setting("scale that a sum of one standard deviation gives", above=0)] = 1e-8,
        trac_eps: Annotated[float, Setting("constant in the scale's denominators", above=0)] = 1e-8,
        **of_adam: Any,
    ) -> None:
        super().__init__(net, lr, **of_adam)
        self.start, self.trac_eps = start, trac_eps
        like = self.step.new_zeros((*self.step.shape, len(scale_betas)))
        n = torch.arange(self.TERMS, dtype=like.dtype)
        logs = -torch.lgamma(n + 1) - (2 * n + 1).log()
        self.register_buffer("scale_betas", torch.tensor(scale_betas, dtype=like.dtype, device=like.device))
        self.register_buffer("series", torch.stack([2 * n + 1, logs]).to(like.device), persistent=False)
        for name, first in self.FIRST:
            self.register_buffer(name, like + first)
        for name in self.names:
            for kind in ("reference", "way"):
                weight = net.get_parameter(name).detach()
                key = f"{kind}/{name.replace('.', '/')}"
                self.register_buffer(key, weight.clone() if kind == "reference" else torch.zeros_like(weight))

    def restart_(self, runs: Tensor | None = None) -> None:
        super().restart_(runs)
        chosen = ... if runs is None else runs
        for name, first in self.FIRST:
            self.get_buffer(name)[chosen] = first

    @torch.no_grad()
    def update_(self, parameters: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
        keys = [name.replace(".", "/") for name in self.names]
        references, ways = ([self.get_buffer(f"{kind}/{key}") for key in keys] for kind in ("reference", "way"))
        begins, k = self.step == 0, self.step.ndim
        self.step += 1
        steps, before = self._adam(gradients, self.betas, self.eps), self.scales.sum(-1).clamp(min=0)
        h = torch.zeros_like(before)
        for p, g, reference, way in zip(parameters, gradients, references, ways, strict=True):
            reference.copy_(torch.where(per_run(begins, p), p, reference))
            scale = per_run(before.to(p.dtype), p)
            others = p - (reference + scale * way)  # what something else has changed since the last step
            way.copy_(torch.where(per_run(begins, p), 0.0, (scale * way + others) / (scale + self.trac_eps)))
            h += (way * g).reshape(*way.shape[:k], -1).sum(-1)
        h, betas = h.unsqueeze(-1), self.scale_betas
        self.variance.mul_(betas**2).add_(h.square())
        self.sigma.mul_(betas).sub_(h)
        grown = self._erfi(self.sigma / (math.sqrt(2) * self.variance.sqrt() + self.trac_eps))
        self.scales.copy_(self.start / ERFI * grown)
        after = self.scales.sum(-1).clamp(min=0)
        for p, step, reference, way in zip(parameters, steps, references, ways, strict=True):
            way.sub_(step)
            p.copy_(reference + per_run(after.to(p.dtype), p) * way)

    def _erfi(self, x: Tensor) -> Tensor:
        """2 / sqrt(pi) * sum over n of x^(2n+1) / (n! (2n+1)), whose terms all have the sign of x."""
        powers, logs = self.series
        terms = (x.abs().clamp(max=self.MOST).unsqueeze(-1).log() * powers + logs).exp()
        value: Tensor = x.sign() * terms.sum(-1) * (2 / math.sqrt(math.pi))
        return value


def _normal_at(key: Tensor, n: int, *where: int | Tensor) -> Tensor:
    """As `uniform_at`, but standard normal: Box and Muller's sqrt(-2 ln u) cos(2 pi v)."""
    draws = uniform_at(key, 2 * n, *where)
    return (-2 * draws[..., :n].log()).sqrt() * (2 * math.pi * draws[..., n:]).cos()
