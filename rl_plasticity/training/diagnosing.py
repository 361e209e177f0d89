"""Plasticity metrics of the networks in a training loop, and trials of what they still learn, beside fresh ones."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

from torch import Tensor, nn

from rl_plasticity.agents.base import Inputs, Losses
from rl_plasticity.agents.sac import Actor
from rl_plasticity.diagnosis.probe import Probe
from rl_plasticity.diagnosis.subject import subject_of
from rl_plasticity.diagnosis.tasks import Bank, Criterion, TaskSource, outputs_of
from rl_plasticity.diagnosis.trials import trainability
from rl_plasticity.errors import SettingsError
from rl_plasticity.learning.learner import Learner
from rl_plasticity.runs.session import Session

NOTHING: Mapping[str, Any] = MappingProxyType({})
REPEATS = 2  # a trial while training; `diagnose` makes 5 of a checkpoint


def unbounded(net: nn.Module) -> nn.Module:
    """The part of a network that learns in trials: an actor's without the bounds of its log standard deviation."""
    return net.trunk if isinstance(net, Actor) else net


class Probing:
    """Measures networks on fixed examples, and tries what they still learn; logs both.

    A trial logs ``NETWORK/trainability`` every ``diagnose_every_updates``: what a network learns of what a fresh one
    learns. Copies learn, with random numbers of their own. So no other number of the run depends on it, and nothing of
    it has to be saved.

    Args:
        learners: the networks, by name.
        examples: the inputs of each.
        losses: for each, a function of its output, and the other arguments of that function.
        own: the loss of some of them, and its targets for these inputs, for trials.
        measures: whether they are measured.
    """

    def __init__(
        self,
        session: Session[Any],
        learners: Mapping[str, Learner],
        examples: Inputs,
        losses: Callable[[], Losses],
        own: Mapping[str, tuple[Criterion, Tensor]] = NOTHING,
        measures: bool = True,
    ) -> None:
        self.session, self.losses = session, losses
        self.diagnose_every = session.settings.diagnose_every_updates or 0
        measured, tried = learners if measures else {}, learners if self.diagnose_every else {}
        self.networks = nn.ModuleDict({name: Probe(learner, examples[name]) for name, learner in measured.items()})
        self.tried = {
            name: (learner, TaskSource(Bank(examples[name], learner.runs), own.get(name)))
            for name, learner in tried.items()
        }

    def measure(self) -> None:
        """Measure all networks now, and log the metrics, unless this is off."""
        if not len(self.networks):
            return
        for network, (loss, targets) in self.losses().items():
            measures = cast(Probe, self.networks[network]).measure(loss, targets)
            self.session.log({f"{network}/{name}": value.reshape(-1) for name, value in measures.items()})
        self.session.call("on_measurement")

    def diagnose(self) -> None:
        """Try all networks now, and log what they learned, unless this is off."""
        for name, (learner, source) in self.tried.items():
            learned = trainability(subject_of(learner, unbounded), source, REPEATS)
            self.session.log({f"{name}/trainability": learned})

    def after_update(self) -> None:
        """Try the networks if it is due."""
        if self.diagnose_every and self.session.progress.updates % self.diagnose_every == 0:
            self.diagnose()


def require_enough(learners: Mapping[str, Learner], inputs: Inputs) -> None:
    """Raises SettingsError if the inputs are too few to draw targets for the outputs of a network."""
    for name, learner in learners.items():
        try:
            outputs_of(unbounded(learner.net), Bank(inputs[name], learner.runs))
        except SettingsError as error:
            why = str(error).partition(": give")[0]
            raise SettingsError(f"diagnose_every_updates is not for {name}: {why}") from error
