"""The work after updates in both loops: counting, interventions, a log line, callbacks."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from rl_plasticity.agents.base import Inputs
from rl_plasticity.compiling.shares import Shares
from rl_plasticity.diagnosis.probe import size_of
from rl_plasticity.interventions import Intervention, Restartable
from rl_plasticity.learning.learner import Learner
from rl_plasticity.runs.plan import Chosen
from rl_plasticity.runs.session import Session

M = TypeVar("M", bound=nn.Module)
B = TypeVar("B")


def require_applicable(trained: Restartable | Learner, interventions: Iterable[Chosen], inputs: Inputs) -> None:
    """Raises ValueError where an intervention cannot act on the networks: a copy of each is applied to a copy."""
    for intervention, runs in interventions:
        copy.deepcopy(intervention).apply_(copy.deepcopy(trained), runs=runs, inputs=inputs)


class Updates(Generic[M]):
    """Counts a loop's updates, and does the work that is due after them.

    Args:
        trained: an agent or a learner, which updates and interventions change.
        learners: its networks, by the prefix of their metrics.
        losses: the metrics that must be finite.
        interventions: the interventions to apply.
        some: makes `trained` for some of the runs, to divide the updates among threads.
        periods: numbers of updates after which something else needs all runs.
    """

    def __init__(
        self,
        session: Session[Any],
        trained: M,
        learners: Mapping[str, Learner],
        losses: Sequence[str],
        interventions: Sequence[Chosen],
        some: Callable[[slice], M],
        *periods: int,
    ) -> None:
        self.session, self.trained, self.learners, self.losses = session, trained, learners, losses
        self.interventions = interventions
        self.shares: Shares[M] = session.divided(trained, some)
        self.log_every = int(session.settings.log_every_updates)
        self._periods = (self.log_every, *periods)
        self._callbacks_look = any(hasattr(callback, "on_update") for callback in session.callbacks.values())

    def stretches(self, batches: Iterable[B], most: int | None = None) -> Iterator[list[B]]:
        """Lists of at most `most` consecutive batches. Only after the last update of a list is anything due."""
        some: list[B] = []
        for batch in batches:
            some.append(batch)
            if len(some) == most or self._is_watched(self.session.progress.updates + len(some)):
                yield some
                some = []
        if some:
            yield some

    def count(self, made: int, inputs: Callable[[], Inputs]) -> None:
        """Count updates, and apply the interventions that are due; `inputs` are the networks' at the last update."""
        self.session.progress.updates += made
        self.intervene(lambda intervention: intervention.due(self.session.progress.updates), inputs)

    def intervene(self, is_due: Callable[[Intervention], bool], inputs: Callable[[], Inputs]) -> None:
        """Apply the interventions that are due."""
        for intervention, runs in self.interventions:
            if is_due(intervention):
                intervention.apply_(self.trained, runs=runs, inputs=inputs())

    def log_if_due(self, metrics: Mapping[str, Tensor]) -> None:
        """Log the latest update if the period of the log ends."""
        if self.session.progress.updates % self.log_every == 0:
            self.log(metrics)

    @torch.no_grad()
    def log(self, metrics: Mapping[str, Tensor]) -> None:
        """Write the latest update's metrics and the state of the weights.

        Raises:
            FaultyRun: a loss or a weight is not finite.
        """
        self.session.require_finite_losses({name: metrics[name] for name in self.losses if name in metrics})
        self.session.require_finite_weights(self.trained)
        sizes = {
            f"{network}/{name}": value
            for network, learner in self.learners.items()
            if f"{network}/gradient_norm" in metrics  # an actor may learn in some updates only
            for name, value in size_of(learner, metrics[f"{network}/gradient_norm"]).items()
        }
        self.session.log({name: value.reshape(-1) for name, value in (metrics | sizes).items()})  # type: ignore[operator]
        self.session.results.flush()

    def _is_watched(self, updates: int) -> bool:
        """Whether something is due after this number of updates that needs those of all runs."""
        comes = any(intervention.due(updates) for intervention, _ in self.interventions)
        return comes or self._callbacks_look or any(every and updates % every == 0 for every in self._periods)
