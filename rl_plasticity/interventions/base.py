"""Interventions: rare, discrete changes of the networks. Eager, in place, on all runs or on chosen ones."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError
from rl_plasticity.learner import Learner
from rl_plasticity.settings import Setting, checked


class Restartable(Protocol):
    """What an intervention needs of an agent (`rl_plasticity.agents.base.Agent`)."""

    @property
    def learners(self) -> Mapping[str, Learner]:
        """Those whose networks can lose plasticity, by name."""
        ...

    @property
    def followers(self) -> Mapping[str, nn.Module]:
        """The networks that track a learner's, by its name: targets."""
        ...

    def restart_(self, runs: Tensor | None = None) -> None:
        """`runs` (all by default) start afresh with new weights, as a newly made agent would."""
        ...


Inputs = Mapping[str, Sequence[Tensor]]
EveryUpdates = Annotated[int | None, Setting("period in updates; null: not by updates", least=1)]
EveryTasks = Annotated[int | None, Setting("period in changes of task; null: not by tasks", least=1)]


class Intervention:
    """Changes an agent's networks, or one learner's, every so many updates or at every so many changes of task.

    Args:
        every_updates: the period in updates; None: not by updates.
        every_tasks: the period in tasks; None: not by tasks.
        at_updates: numbers of updates at which to intervene besides.

    Raises:
        SettingsError: a setting is out of range, or there is no period at all.
    """

    @checked
    def __init__(
        self,
        every_updates: EveryUpdates = None,
        every_tasks: EveryTasks = None,
        at_updates: Annotated[Sequence[int], Setting("numbers of updates at which to intervene besides")] = (),
    ) -> None:
        if every_updates is None and every_tasks is None and not at_updates:
            raise SettingsError("an intervention needs every_updates or every_tasks")
        self.every_updates, self.every_tasks, self.at_updates = every_updates, every_tasks, set(at_updates)

    def due(self, updates: int) -> bool:
        """Whether to intervene after this many updates."""
        if updates in self.at_updates:
            return True
        return self.every_updates is not None and updates > 0 and updates % self.every_updates == 0

    def due_at_task(self, task: int) -> bool:
        """Whether to intervene before the task of this index (0 is the first, where nothing is due)."""
        return self.every_tasks is not None and task > 0 and task % self.every_tasks == 0

    def apply_(
        self,
        agent_or_learner: Restartable | Learner,
        runs: Tensor | Sequence[int] | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        """Intervene now.

        Args:
            agent_or_learner: what to change.
            runs: indices of the runs to change, or a mask of them ``[runs]`` (bool); all by default.
            inputs: for methods that look at activations: a batch of each learner's inputs, by the learner's
                name ("net" for a single learner).
        """
        chosen = None if runs is None else torch.as_tensor(runs)
        for learner, _ in learners_of(agent_or_learner).values():
            chosen = _indices(chosen, learner.runs)
        self._apply_(agent_or_learner, chosen, inputs)

    def _apply_(self, target: Restartable | Learner, runs: Tensor | None, inputs: Inputs | None) -> None:
        raise TypeError(f"{type(self).__name__} is not an intervention: it changes nothing")


def learners_of(target: Restartable | Learner) -> dict[str, tuple[Learner, list[nn.Module]]]:
    """Each learner with the networks that follow it (a target network)."""
    if isinstance(target, Learner):
        return {"net": (target, [])}
    follow = target.followers
    return {name: (learner, [follow[name]] if name in follow else []) for name, learner in target.learners.items()}


def _indices(runs: Tensor | None, axes: tuple[int, ...]) -> Tensor | None:
    """`runs` as indices below the number of runs."""
    if runs is None:
        return None
    if len(axes) != 1:
        raise ValueError("runs were chosen, but the network has no runs axis")
    if runs.dtype == torch.bool and runs.shape == axes:
        runs = runs.nonzero().flatten()
    if runs.dtype.is_floating_point or runs.dtype == torch.bool or not ((runs >= 0) & (runs < axes[0])).all():
        raise ValueError(
            f"runs must be indices from 0 to {axes[0] - 1} or a mask of length {axes[0]}, got {runs.tolist()}"
        )
    return runs.to(torch.int64)
