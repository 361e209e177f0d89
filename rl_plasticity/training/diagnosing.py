"""Trials of what the networks in a training loop still learn, beside fresh ones."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from rl_plasticity.agents.base import Inputs
from rl_plasticity.agents.sac import Actor
from rl_plasticity.diagnosis.subject import subject_of
from rl_plasticity.diagnosis.tasks import Bank, Criterion, TaskSource, outputs_of
from rl_plasticity.diagnosis.trials import trainability
from rl_plasticity.errors import SettingsError
from rl_plasticity.learning.learner import Learner
from rl_plasticity.runs.session import Session

REPEATS = 2  # a trial while training; `diagnose` makes 5 of a checkpoint


def unbounded(net: nn.Module) -> nn.Module:
    """The part of a network that learns in trials: an actor's without the bounds of its log standard deviation."""
    return net.trunk if isinstance(net, Actor) else net


class Diagnosing:
    """Logs ``NETWORK/trainability`` every ``diagnose_every_updates``: what a network learns of what a fresh one learns.

    Copies learn, with random numbers of their own. So no other number of the run depends on it, and nothing of it has
    to be saved.

    Args:
        learners: the networks, by name.
        inputs: the frozen inputs of each.
        own: the loss of some of them, and its targets for these inputs.
    """

    def __init__(
        self,
        session: Session[Any],
        learners: Mapping[str, Learner],
        inputs: Inputs,
        own: Mapping[str, tuple[Criterion, Tensor]] | None = None,
    ) -> None:
        self.session, self.every = session, session.settings.diagnose_every_updates or 0
        self.learners = learners if self.every else {}
        self.sources = {
            name: TaskSource(Bank(inputs[name], learner.runs), (own or {}).get(name))
            for name, learner in self.learners.items()
        }

    def diagnose(self) -> None:
        """Try all networks now, and log what they learned, unless this is off."""
        for name, learner in self.learners.items():
            learned = trainability(subject_of(learner, unbounded), self.sources[name], REPEATS)
            self.session.log({f"{name}/trainability": learned})

    def after_update(self) -> None:
        """Try the networks if it is due."""
        if self.every and self.session.progress.updates % self.every == 0:
            self.diagnose()


def require_enough(learners: Mapping[str, Learner], inputs: Inputs) -> None:
    """Raises SettingsError if the inputs are too few to draw targets for the outputs of a network."""
    for name, learner in learners.items():
        try:
            outputs_of(unbounded(learner.net), Bank(inputs[name], learner.runs))
        except SettingsError as error:
            why = str(error).partition(": give")[0]
            raise SettingsError(f"diagnose_every_updates is not for {name}: {why}") from error
