"""Plasticity metrics of the networks in a training loop."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import nn

from rl_plasticity.agents.base import Inputs, Losses
from rl_plasticity.diagnosis.probe import Probe
from rl_plasticity.learning.learner import Learner
from rl_plasticity.runs.session import Session


class Probing:
    """Measures networks on fixed examples, and logs the metrics.

    Args:
        learners: the networks, by name.
        examples: the inputs of each.
        losses: for each, a function of its output, and the other arguments of that function.
    """

    def __init__(
        self,
        session: Session[Any],
        learners: Mapping[str, Learner],
        examples: Inputs,
        losses: Callable[[], Losses],
    ) -> None:
        self.session, self.losses = session, losses
        self.networks = nn.ModuleDict({name: Probe(learner, examples[name]) for name, learner in learners.items()})

    def measure(self) -> None:
        """Measure all networks now, and log the metrics."""
        for network, (loss, targets) in self.losses().items():
            measures = cast(Probe, self.networks[network]).measure(loss, targets)
            self.session.log({f"{network}/{name}": value.reshape(-1) for name, value in measures.items()})
        self.session.call("on_measurement")
