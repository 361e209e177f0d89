"""A network with its optimizer and its regularizer: the one place where weights change."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity.regularizers import Regularizer, Unregularized
from rl_plasticity.regularizers.layers import per_run, runs_of
from rl_plasticity.seeding import derive


class Adam(nn.Module):
    """Adam (Kingma and Ba 2015, Algorithm 1) with a step count for each run.

        m <- b1 m + (1-b1) g,   v <- b2 v + (1-b2) g^2,
        p <- p - lr * (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)

    Equal to ``torch.optim.Adam`` step for step; it exists because a run that is reset starts again at t = 0 beside
    others that do not, because moments must be found by parameter name, and because ``Optimizer.step`` breaks a
    compiled graph.
    """

    step: Tensor

    def __init__(
        self,
        net: nn.Module,
        lr: float = 3e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__()
        self.lr, self.betas, self.eps = lr, betas, eps
        self.names = [n for n, p in net.named_parameters() if p.requires_grad]
        device = next(net.parameters()).device
        self.register_buffer("step", torch.zeros(runs_of(net), dtype=torch.float64, device=device))
        for name in self.names:
            zero = torch.zeros_like(net.get_parameter(name))
            self.register_buffer(f"m/{name.replace('.', '/')}", zero)
            self.register_buffer(f"v/{name.replace('.', '/')}", zero.clone())

    def moments(self, name: str) -> tuple[Tensor, Tensor]:
        """First and second moment of the parameter called `name`."""
        m, v = (self._buffers[f"{kind}/{name.replace('.', '/')}"] for kind in "mv")
        assert m is not None
        assert v is not None
        return m, v

    @torch.no_grad()
    def update_(self, parameters: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
        """One step in place; `parameters` and `gradients` in the order of `names`."""
        self.step += 1
        b1, b2 = self.betas
        correction1, correction2 = 1 - b1**self.step, (1 - b2**self.step).sqrt()  # [*runs], float64
        scale = (self.lr * correction2 / correction1).to(gradients[0].dtype)
        eps = (self.eps * correction2).to(gradients[0].dtype)
        moments = [self.moments(name) for name in self.names]
        ms, vs = [m for m, _ in moments], [v for _, v in moments]
        torch._foreach_lerp_(ms, gradients, 1 - b1)
        torch._foreach_mul_(vs, b2)
        torch._foreach_addcmul_(vs, gradients, gradients, 1 - b2)
        for parameter, m, root in zip(parameters, ms, torch._foreach_sqrt(vs), strict=True):
            # lr * (m/c1) / (sqrt(v)/c2 + eps), with both fractions multiplied by c2
            root.add_(per_run(eps, root))
            parameter.sub_(m.mul(per_run(scale, m)).div_(root))


class Learner(nn.Module):
    """Network, optimizer and regularizer.

    Args:
        make: a function from seeds, one for each run, to a new network. Interventions call it again for new weights, so
            a reset run starts exactly as a fresh one does. Global random draws inside it are seeded and undone.
        seeds: one for each run.
        regularize: a function from the network to its regularizer; none by default.
        lr, betas, eps: of Adam.
        device: where everything lives; networks are initialized on the CPU, so equally on every device.
    """

    net: nn.Module
    draws: Tensor
    origin: Tensor

    def __init__(
        self,
        make: Callable[[Sequence[int]], nn.Module],
        seeds: Sequence[int] = (0,),
        regularize: Callable[[nn.Module], Regularizer] = Unregularized,
        *,
        lr: float = 3e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__()
        self.make, self.seeds, self.regularize = make, list(seeds), regularize
        # How many initializations each run has drawn, and which of them its weights started from.
        self.register_buffer("draws", torch.ones(len(seeds), dtype=torch.int64))
        self.register_buffer("origin", torch.zeros(len(seeds), dtype=torch.int64))
        self.net = self._new([0] * len(seeds)).to(device)
        self.runs = runs_of(self.net)
        self.regularizer = regularize(self.net)
        self.optimizer = Adam(self.net, lr, betas, eps)
        self.to(device)

    def minimize(self, loss: Tensor) -> dict[str, Tensor]:
        """One update of the weights: add the penalty, differentiate, step, project.

        Args:
            loss: ``[*runs]``; summed over runs, so gradients never cross them.

        Returns:
            Detached ``penalty`` and ``gradient_norm`` (of loss and penalty, over all parameters), each ``[*runs]``.
        """
        named = dict(self.net.named_parameters())
        parameters: list[Tensor] = [named[name] for name in self.optimizer.names]
        penalty = self.regularizer.penalty(self.net)
        gradients = torch.autograd.grad((loss + penalty).sum(), parameters)
        self.optimizer.update_(parameters, gradients)
        self.regularizer.project_(self.net)
        squares = [g.reshape(*self.runs, -1).square().sum(-1) for g in gradients]
        norm = torch.stack(squares).sum(0).sqrt()
        return {"penalty": penalty.detach(), "gradient_norm": norm}

    # --- new weights, for interventions: rare, eager --------------------------------------------------------------

    def fresh(self, runs: Tensor | None = None) -> nn.Module:
        """A network like this one with new initial weights for `runs` (all by default), other than any drawn before."""
        chosen = slice(None) if runs is None else runs
        draw = self.draws.clone()
        self.draws[chosen] += 1
        return self._new(draw.tolist()).to(next(self.net.parameters()).device)

    def initial(self) -> nn.Module:
        """The network as it was when its runs' weights were last drawn in full."""
        return self._new(self.origin.tolist()).to(next(self.net.parameters()).device)

    @torch.no_grad()
    def restart_(self, runs: Tensor | None = None) -> None:
        """New weights, optimizer and regularizer state for `runs` (all by default), as a new learner would have."""
        chosen = slice(None) if runs is None else runs
        draw = self.draws.clone()
        fresh = self.fresh(runs)
        self.origin[chosen] = draw[chosen]
        copy_runs_(self.net, fresh, runs)
        self.regularizer.recapture_(self.regularize(fresh), runs)
        for buffer in self.optimizer.buffers():
            buffer[... if runs is None else runs] = 0

    def _new(self, draws: Sequence[int]) -> nn.Module:
        seeds = [derive(seed, draw) for seed, draw in zip(self.seeds, draws, strict=True)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds[0])
            return self.make(seeds)


@torch.no_grad()
def copy_runs_(net: nn.Module, source: nn.Module, runs: Tensor | None = None) -> None:
    """Copy parameters and buffers of `source` into `net`, in place, for `runs` (all by default)."""
    if runs is not None and not runs_of(net):
        raise ValueError("runs were chosen, but the network has no runs axis")
    mine: dict[str, Any] = net.state_dict()
    for name, value in source.state_dict().items():
        if runs is None:
            mine[name].copy_(value)
        else:
            mine[name][runs] = value[runs]
