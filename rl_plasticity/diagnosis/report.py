"""The report of a diagnosis: numbers with intervals, as text and as JSON."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

import numpy as np

from rl_plasticity.metrics import statistics

Verdict = Literal["plastic", "losing", "lost", "something else", "not detectable"]
ORDER: Sequence[Verdict] = ("plastic", "not detectable", "something else", "losing", "lost")  # the worst last
LEARNED = "learned, as a share of a fresh network's"  # the header of the scores
FRESH, NOW, AS_IT_IS, EARLIER = "a fresh network", "your network", "as it is trained", "the earlier one"


@dataclass(frozen=True)
class Estimate:
    """The mean over the repeats, and the ends of its 95 % interval (Student's t)."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """The estimate from two values or more."""
        of_one = [np.array(values)]
        return cls(float(statistics.mean(of_one)), *statistics.student_interval(of_one))

    def __iter__(self) -> Iterator[float]:
        return iter((self.mean, self.low, self.high))

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Remedy:
    """What a remedy achieved on a copy.

    Args:
        learned: what the copy then learned, as a share of what a fresh network learns.
        before: what the network learns without it in as many updates, which may be fewer than the verdict's.
        closes: the share of the gap between `before` and a fresh network that the remedy closed.
    """

    name: str
    learned: Estimate
    before: Estimate
    closes: float


@dataclass(frozen=True)
class Report:
    """The result of `diagnose`.

    Args:
        verdict: "plastic", "losing", "lost", "something else" or "not detectable".
        why: a sentence with the reason for the verdict.
        causes: other findings, each a sentence that begins with the name of the check.
        evidence: what each arm learned as a share of what a fresh network learns.
        losses: each arm's mean loss at the end.
        symptoms: metrics of the network and of a fresh one. They explain, and decide nothing.
        remedies: the remedies tried on copies, the best first.
        smallest_gap: the smallest missing share that this number of repeats would have shown.
        protocol: the numbers of inputs, repeats and updates, the targets and the learning rates.
    """

    verdict: Verdict
    why: str
    causes: tuple[str, ...] = ()
    evidence: Mapping[str, Estimate] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    symptoms: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = ()
    smallest_gap: float | None = None
    protocol: Mapping[str, Any] = field(default_factory=dict)

    @property
    def learned(self) -> Estimate | None:
        """The score that decided; None if nothing was tried."""
        return self.evidence.get(NOW)

    def to_json(self) -> str:
        """The report as JSON. Numbers that are not finite are null."""
        finite = json.loads(json.dumps(asdict(self)), parse_constant=lambda name: None)
        return json.dumps(finite, indent=2)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """The report whose JSON has this content, and more. Numbers that are null are NaN.

        Raises:
            Exception: it is no report's.
        """

        def typed(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: typed(one) for name, one in value.items()}
            return tuple(map(typed, value)) if isinstance(value, list) else math.nan if value is None else value

        found = {one.name: typed(content[one.name]) for one in fields(cls)}
        found["evidence"] = {arm: Estimate(**learned) for arm, learned in found["evidence"].items()}
        estimates = ("learned", "before")
        found["remedies"] = tuple(
            Remedy(**one | {name: Estimate(**one[name]) for name in estimates}) for one in found["remedies"]
        )
        return cls(**found)

    def __str__(self) -> str:
        lines = [f"verdict: {self.verdict}", f"  {self.why}"]
        lines += [f"  {cause}" for cause in self.causes]
        if self.protocol.get("targets") == "drawn":
            lines.append(
                "  (on drawn targets, a smooth function of the inputs; for a verdict on your next task, give batches=)"
            )
        if self.evidence:
            lines += ["", LEARNED]
            lines += [f"  {arm:<22}{learned}" for arm, learned in self.evidence.items()]
        if p := self.protocol:
            lines.append(f"  ({p['repeats']} repeats of {p['updates']} updates, learning rates {p['rates']})")
        if self.remedies:
            lines += ["", f"{'tried on copies':<24}{'learned then':<24}{'closes':>8}"]
            lines += [f"  {r.name:<22}{r.learned!s:<24}{round(r.closes, 2) + 0.0:>8.0%}" for r in self.remedies]
            alike = sum(r.learned.high >= self.remedies[0].learned.low for r in self.remedies[1:])
            lines.append(f"  (each with a new optimizer; {alike} of the others cannot be told from the best;")
            lines.append(f"  in as many updates your network learns {self.remedies[0].before})")
        if self.symptoms:
            lines += ["", f"{'symptoms, which decide nothing':<34}{'yours':>10}{'fresh':>10}"]
            lines += [f"  {name:<32}{mine:>10.3g}{fresh:>10.3g}" for name, (mine, fresh) in self.symptoms.items()]
        return "\n".join(map(str.rstrip, lines))


@dataclass(frozen=True)
class AgentReport(Report):
    """The result of `diagnose` for an agent: the report on the network that is worst off, and all of them.

    Args:
        networks: the reports by network.
    """

    networks: Mapping[str, Report] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n\n".join(f"{name}\n{report}" for name, report in self.networks.items())
