"""Optimizers for many runs at once: equal to torch's, but with a step count for each run.

They exist for three reasons:

- a run that is reset starts again at step 0 while other runs continue;
- moments must be found by parameter name;
- ``torch.optim.Optimizer.step`` breaks a compiled graph.

All state lives in buffers.
"""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from rl_plasticity.plugins import Choices
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure.layer import per_run, runs_of

LearningRate = Annotated[float, Setting("learning rate", least=0)]
Eps = Annotated[float, Setting("constant added to the square root of the second moment", least=0)]
WeightDecayRate = Annotated[float, Setting("weight decay, which is multiplied by the learning rate", least=0)]


class Optimizer(nn.Module):
    """Base class of optimizers, which change the trainable parameters of one network.

    A subclass overrides `update_`.

    Args:
        net: the network.
        lr: the learning rate, kept in a buffer so that it can be changed in place.
        moments: one letter for each tensor to store per parameter; they start at zero.
    """

    lr: Tensor
    step: Tensor

    def __init__(self, net: nn.Module, lr: float, moments: str) -> None:
        super().__init__()
        self.kinds = moments
        self.names = [n for n, p in net.named_parameters() if p.requires_grad]
        like = next(net.parameters())
        self.register_buffer("lr", torch.tensor(lr, dtype=torch.float64, device=like.device))
        self.register_buffer("step", torch.zeros(runs_of(net), dtype=torch.float64, device=like.device))
        for name in self.names:
            for kind in self.kinds:
                zero = torch.zeros_like(net.get_parameter(name), requires_grad=False)
                self.register_buffer(f"{kind}/{name.replace('.', '/')}", zero)

    def moments(self, name: str) -> list[Tensor]:
        """The tensors stored for the parameter called `name`."""
        stored = [self._buffers[f"{kind}/{name.replace('.', '/')}"] for kind in self.kinds]
        return [moment for moment in stored if moment is not None]

    def gradient(self, name: str) -> Tensor | None:
        """A running mean or sum of the gradients of the parameter called `name`; None if none is kept."""
        return self._buffers.get(f"m/{name.replace('.', '/')}")

    def restart_(self, runs: Tensor | None = None) -> None:
        """Set moments and step count of `runs` (all by default) to zero; the learning rate stays."""
        chosen = ... if runs is None else runs
        self.step[chosen] = 0
        for name in self.names:
            for moment in self.moments(name):
                moment[chosen] = 0

    def update_(self, parameters: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
        """Take one step in place; `parameters` and `gradients` are in the order of `names`."""
        raise TypeError(f"{type(self).__name__} is not an optimizer: it changes nothing")

    def _adam(
        self, gradients: tuple[Tensor, ...], betas: tuple[float, float], eps: float, names: list[str] | None = None
    ) -> list[Tensor]:
        """Update the moments and return Adam's steps: lr * (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps).

        They are the steps of the parameters `names`, all by default.
        """
        b1, b2 = betas
        moments = [self.moments(name) for name in names or self.names]
        ms, vs = [m for m, _ in moments], [v for _, v in moments]
        torch._foreach_lerp_(ms, gradients, 1 - b1)
        torch._foreach_mul_(vs, b2)
        torch._foreach_addcmul_(vs, gradients, gradients, 1 - b2)
        correction1, correction2 = 1 - b1**self.step, (1 - b2**self.step).sqrt()  # [*runs], float64
        # Multiplying both fractions by correction2 saves operations on whole tensors.
        scale = (self.lr * correction2 / correction1).to(gradients[0].dtype)
        small = (eps * correction2).to(gradients[0].dtype)
        steps = []
        for m, root in zip(ms, torch._foreach_sqrt(vs), strict=True):
            root.add_(per_run(small, root))
            steps.append(m.mul(per_run(scale, m)).div_(root))
        return steps


class Adam(Optimizer):
    """Adam: m <- b1 m + (1-b1) g, v <- b2 v + (1-b2) g^2, p <- p - lr * (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps).

    Source: Kingma and Ba (2015), Algorithm 1. Equal to ``torch.optim.Adam`` step for step.
    """

    @checked
    def __init__(
        self, net: nn.Module, lr: LearningRate = 3e-4, betas: tuple[float, float] = (0.9, 0.999), eps: Eps = 1e-8
    ) -> None:
        super().__init__(net, lr, "mv")
        self.betas, self.eps = betas, eps

    @torch.no_grad()
    def update_(self, parameters: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
        self.step += 1
        torch._foreach_sub_(parameters, self._adam(gradients, self.betas, self.eps))


class AdamW(Adam):
    """Adam with decoupled weight decay: p <- (1 - lr * weight_decay) p, then Adam's step, on all parameters.

    Source: Loshchilov and Hutter (2019), Algorithm 2. Equal to ``torch.optim.AdamW`` step for step. The regularizer
    `weight_decay` applies the same rule with any optimizer, and with one strength per run.

    Args:
        weight_decay: lambda, which is multiplied by the learning rate.
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        lr: LearningRate = 3e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: Eps = 1e-8,
        weight_decay: WeightDecayRate = 1e-2,
    ) -> None:
        super().__init__(net, lr, betas, eps)
        self.weight_decay = weight_decay

    @torch.no_grad()
    def update_(self, parameters: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
        torch._foreach_mul_(parameters, (1 - self.lr * self.weight_decay).to(gradients[0].dtype))
        super().update_(parameters, gradients)


class RMSprop(Optimizer):
    """RMSprop: v <- alpha v + (1-alpha) g^2, p <- p - lr * g / (sqrt(v) + eps).

    Centered: the root is of v - a^2, with a <- alpha a + (1-alpha) g (Graves 2013, equation 40).

    Source: Tieleman and Hinton (2012), Lecture 6.5. Equal to ``torch.optim.RMSprop`` step for step.

    Args:
        alpha: share of the old mean square in the new one.
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        lr: LearningRate = 3e-4,
        alpha: Annotated[
            float, Setting("share of the mean square that each update keeps (decay)", least=0, most=1)
        ] = 0.99,
        eps: Eps = 1e-8,
        centered: Annotated[
            bool, Setting("whether to divide by the gradients' standard deviation instead of their root mean square")
        ] = False,
    ) -> None:
        super().__init__(net, lr, "v" + "a" * centered)
        self.alpha, self.eps, self.centered = alpha, eps, centered

    def gradient(self, name: str) -> Tensor | None:
        """The running mean of gradients that a centered one keeps; else None."""
        return self.moments(name)[-1] if self.centered else None

    @torch.no_grad()
    def update_(self, parameters: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
        self.step += 1
        moments = [self.moments(name) for name in self.names]
        vs = [of_one[0] for of_one in moments]
        torch._foreach_mul_(vs, self.alpha)
        torch._foreach_addcmul_(vs, gradients, gradients, 1 - self.alpha)
        squares = vs
        if self.centered:
            means = [of_one[-1] for of_one in moments]
            torch._foreach_lerp_(means, gradients, 1 - self.alpha)
            squares = list(torch._foreach_addcmul(vs, means, means, -1))
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, self.eps)
        steps = torch._foreach_div(gradients, roots)
        torch._foreach_sub_(parameters, torch._foreach_mul(steps, self.lr.to(gradients[0].dtype)))


class SGD(Optimizer):
    """Stochastic gradient descent with momentum: m <- momentum * m + g, p <- p - lr * m.

    Equal to ``torch.optim.SGD`` step for step.
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        lr: LearningRate = 1e-2,
        momentum: Annotated[float, Setting("share of the last step that the next one keeps", least=0, most=1)] = 0.9,
    ) -> None:
        super().__init__(net, lr, "m")
        self.momentum = momentum

    @torch.no_grad()
    def update_(self, parameters: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
        self.step += 1
        lr = self.lr.to(gradients[0].dtype)
        ms = [self.moments(name)[0] for name in self.names]
        torch._foreach_mul_(ms, self.momentum)
        torch._foreach_add_(ms, gradients)
        torch._foreach_sub_(parameters, torch._foreach_mul(ms, lr))


def orthogonalized(
    matrix: Tensor, steps: int = 5, coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
) -> Tensor:
    """Approximately U V^T of a matrix ``[*runs, out, fan_in]`` = U S V^T, by Newton-Schulz iterations; 0 stays 0.

    X <- a X + (b A + c A^2) X with the Gram matrix A = X X^T, from X = matrix / |matrix|_F. The default coefficients
    are chosen to make small singular values grow fast. With them, 5 steps bring singular values to about 0.7 to 1.2,
    and no number of steps brings them to 1.

    Source: Jordan et al. (2024), "Muon".
    """
    a, b, c = coefficients
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix
    norm: Tensor = torch.linalg.matrix_norm(x, keepdim=True)
    x = x / norm.clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


OPTIMIZERS: Choices[Callable[..., Optimizer]] = Choices(
    "OPTIMIZERS",
    {
        "adam": Adam,
        "adamw": AdamW,
        "sgd": SGD,
        "rmsprop": RMSprop,
    },
)
"""Optimizer classes by the name that ``optimizer=`` takes; each is called as ``kind(net, lr=lr, **settings)``."""
