"""A network with its optimizer and its regularizer: the one place where weights change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity.learning.optimizers import Adam, Optimizer
from rl_plasticity.metrics.weights import weight_norm
from rl_plasticity.regularizers import Regularizer, SoftWeightRescaling, Unregularized
from rl_plasticity.regularizers.base import COUNTED, added_up, counted_by, forget_, penalty_of
from rl_plasticity.seeding import derive, one_thread
from rl_plasticity.settings import checked
from rl_plasticity.structure import Example
from rl_plasticity.structure.layer import per_run, runs_of


class Learner(nn.Module):
    """A network with its optimizer and its regularizer.

    Args:
        make: a function from seeds, one per run, to a new network. Interventions call it again for new weights, so a
            reset run starts exactly as a fresh one does. Global random draws inside it are seeded and then undone.
        seeds: one seed per run.
        make_regularizer: a function from the network to its regularizer; none by default.
        make_optimizer: a function from the network to its optimizer; Adam by default.
        device: the device of all tensors. Networks are initialized on the CPU, so their weights are the same on every
            device.
    """

    net: nn.Module
    draws: Tensor
    origin: Tensor

    @checked
    def __init__(
        self,
        make: Callable[[Sequence[int]], nn.Module],
        seeds: Iterable[int] = (0,),
        make_regularizer: Callable[[nn.Module], Regularizer] = Unregularized,
        make_optimizer: Callable[[nn.Module], Optimizer] = Adam,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__()
        self.make, self.seeds, self.make_regularizer = make, list(seeds), make_regularizer
        # The number of initializations each run has drawn, and the index of the one its weights started from.
        self.register_buffer("draws", torch.ones(len(self.seeds), dtype=torch.int64))
        self.register_buffer("origin", torch.zeros(len(self.seeds), dtype=torch.int64))
        self.net = self._new([0] * len(self.seeds)).to(device)
        self.runs = runs_of(self.net)
        self.regularizer = make_regularizer(self.net)
        self.optimizer = make_optimizer(self.net)
        for name in ("resets", "reset_weights", "reset_units"):  # counted by interventions
            self.register_buffer(COUNTED + name, torch.zeros(self.runs, dtype=torch.int64))
        self.to(device)

    def minimize(self, loss: Tensor, inputs: Example | None = None) -> dict[str, Tensor]:
        """Update the weights once: add the penalty, differentiate, step, project.

        Args:
            loss: ``[*runs]``; summed over runs, so gradients never cross them.
            inputs: what the network was called with for the loss, for regularizers that look at data.

        Raises:
            SettingsError: a regularizer that looks at data got no inputs, or its penalty is not ``[*runs]``; nothing
                has changed then.

        Returns:
            Detached ``penalty`` and ``gradient_norm`` (of loss plus penalty, over all parameters), each ``[*runs]``.
        """
        named = dict(self.net.named_parameters())
        parameters: list[Tensor] = [named[name] for name in self.optimizer.names]
        penalty = penalty_of(self.regularizer, self.net, inputs)
        gradients = torch.autograd.grad((loss + penalty).sum(), parameters)
        self.regularizer.observe_loss_(self.net, loss.detach())
        self.regularizer.observe_(self.net, dict(zip(self.optimizer.names, gradients, strict=True)))
        self.optimizer.update_(parameters, gradients)
        reset = self.regularizer.project_(self.net, *self.regularizer.given_lr(self.optimizer.lr))
        forget_(self.optimizer.moments, reset or {})
        return {"penalty": penalty.detach(), "gradient_norm": weight_norm(gradients, self.runs)}

    def scale_lr_(self, factor: float, rebase: bool = False) -> None:
        """Multiply the learning rate by `factor`; with `rebase`, `swr` takes the current norms as its reference."""
        self.optimizer.lr.mul_(factor)
        for method, net in self.regularizer.methods(self.net) if rebase else ():
            if isinstance(method, SoftWeightRescaling):
                method.capture_from_(net)

    @property
    def counts(self) -> dict[str, Tensor]:
        """Counts ``[*runs]`` of changes of the weights other than training, by name, since training began.

        They contain the regularizer's counts. After the first intervention they also contain ``resets``, the number of
        interventions, and what these changed: ``reset_weights`` entries of parameters and ``reset_units`` single hidden
        units.
        """
        own = counted_by(self)
        return added_up([own if own["resets"].any() else {}, self.regularizer.counts])

    def count_(self, done: Mapping[str, Tensor]) -> None:
        """Add the counts of what an intervention has done, ``[*runs]`` by name."""
        for name, number in done.items():
            self.get_buffer(COUNTED + name).add_(number)

    # --- new weights, for interventions: rare, eager --------------------------------------------------------------

    def fresh(self, runs: Tensor | None = None) -> nn.Module:
        """A network like this one with new initial weights for `runs` (all by default), unlike any drawn before."""
        chosen = slice(None) if runs is None else runs
        draw = self.draws.clone()
        self.draws[chosen] += 1
        return self._new(draw.tolist())

    def initial(self) -> nn.Module:
        """The network with the weights that each run last started from, at its beginning or at a full reset."""
        return self._new(self.origin.tolist())

    def restart_regularizer_(self, fresh: nn.Module, runs: Tensor | None = None, only: set[str] | None = None) -> None:
        """Restart the regularizer from `fresh`, for `runs` and the parameters `only` (all by default)."""
        self.regularizer.restart_from_(self.make_regularizer(fresh), runs, only)

    @torch.no_grad()
    def restart_(self, runs: Tensor | None = None) -> None:
        """Reset weights, optimizer and regularizer of `runs` (all by default) to those of a new learner."""
        chosen = slice(None) if runs is None else runs
        self.origin[chosen] = self.draws[chosen]
        fresh = self.fresh(runs)
        copy_runs_(self.net, fresh, runs)
        self.restart_regularizer_(fresh, runs)
        self.optimizer.restart_(runs)

    def _new(self, draws: Sequence[int]) -> nn.Module:
        seeds = [derive(seed, draw) for seed, draw in zip(self.seeds, draws, strict=True)]
        with torch.random.fork_rng(devices=[]), one_thread():
            torch.default_generator.manual_seed(seeds[0])  # torch.manual_seed would reseed the GPUs for good
            return self.make(seeds).to(self.draws.device)


@torch.no_grad()
def copy_runs_(net: nn.Module, source: nn.Module, runs: Tensor | None = None) -> None:
    """Copy parameters and buffers of `source` into `net`, in place, for `runs` (all by default)."""
    if runs is not None and not runs_of(net):
        raise ValueError("runs were chosen, but the network has no runs axis")
    mine: dict[str, Any] = net.state_dict()
    chosen = ... if runs is None else runs
    for name, value in source.state_dict().items():
        mine[name][chosen] = value[chosen]


@torch.no_grad()
def follow_(net: nn.Module, leader: nn.Module, share: float | Tensor) -> None:
    """Move the parameters of `net` toward those of `leader` by this share of the way, a number or ``[runs]``."""
    for mine, its in zip(net.parameters(), leader.parameters(), strict=True):
        mine.lerp_(its, per_run(share, mine) if isinstance(share, Tensor) else share)
