"""The verdict on one run, from what the arms of its trials learned."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from rl_plasticity.diagnosis.report import AS_IT_IS, EARLIER, FRESH, NOW, Estimate, Remedy, Verdict
from rl_plasticity.diagnosis.trials import LEARNS, TIMES, Trials

PLASTIC, LOST = 0.9, 0.5  # of what a fresh network learns, see docs/diagnose.md for how they were found
CLOSER = 0.8  # curves approach each other if the gap falls to this part of what it was after a third of the updates
MOST = 3  # times so many repeats, where they leave a verdict open

Judged = tuple[Verdict, str, float | None]
"""The verdict on a run, the reason for it, and the smallest gap that would have been detected."""


def all_judged(trials: Trials) -> list[Judged]:
    """The verdict on each run. Trials go on, and further repeats are drawn, while one is open that they may settle."""
    first, every = len(trials.tasks), [Judge(trials, run) for run in range(math.prod(trials.subject.runs))]
    while True:
        if (waits := any(one.may_catch_up() for one in every)) and trials.go_on():
            continue
        judged = [one.judged() for one in every]
        is_open = any(verdict == "not detectable" and gap is not None for verdict, _, gap in judged)
        if waits or not is_open or len(trials.tasks) >= MOST * first:
            return judged
        trials.draw(first)


@dataclass(frozen=True)
class Judge:
    """What the trials show of one run."""

    trials: Trials
    run: int

    def of(self, values: Tensor) -> Estimate:
        """The estimate for this run, from values ``[repeats, runs]``."""
        return Estimate.of(values[:, self.run].tolist())

    def as_trained(self, arm: str = AS_IT_IS) -> Estimate:
        """What an arm learned at the first rate, as a share of what a fresh network learned at that rate."""
        return self.of(self.trials.score(arm, 1.0, self.trials.at(AS_IT_IS)))

    def may_catch_up(self) -> bool:
        """Whether the network is behind, but may catch up if the trials go on."""
        if not self.removed >= LEARNS or self.falls_short():
            return False
        if self.trials.is_first:
            return bool(self.far_behind())
        return any(now.mean < CLOSER * before.mean for now, before in self.far_behind().values()) or self.unsettled()

    def unsettled(self) -> bool:
        """Whether the loss is above that of a network that learned nothing, and still moves by a share of that."""
        trials = self.trials
        now, before = (trials.loss(NOW, at=trials.at(NOW, of)).mean(0) for of in (1.0, 2 / TIMES))
        above = now - trials.nothing
        return bool(((above > 0) & ((now - before).abs() > (1 - CLOSER) * above)).expand_as(now)[self.run])

    def judged(self) -> Judged:
        """The verdict, when the trials are over."""
        if not (removed := self.removed) >= LEARNS:
            if not math.isfinite(removed):
                return "not detectable", "a fresh network's loss does not stay finite", None
            why = f"even a fresh network removed only {removed:.0%} of the loss: give more updates, or another rate"
            return "not detectable", why, None
        score, far = self.of(self.trials.score(NOW)), self.far_behind()
        gap, says = (
            1 - PLASTIC + (score.high - score.low) / 2,
            f"with a fresh optimizer it learns {score} of what a fresh network learns",
        )
        if self.falls_short():
            return "something else", f"{says}; as it is trained it learns only {self.as_trained()}", gap
        waits = self.may_catch_up()
        # In three times as many updates the gap would shrink by as much again.
        if waits and all(now.mean**2 <= (1 - PLASTIC) * before.mean for now, before in far.values()):
            return "not detectable", f"{says}, and it is still catching up: give more updates", gap
        if waits or score.high < PLASTIC:
            return "lost" if score.high < LOST else "losing", says, gap
        if EARLIER in far:
            return "losing", f"{says}; that is {far[EARLIER][0]} less than the earlier one, repeat by repeat", gap
        if score.low < PLASTIC:
            return "not detectable", f"{says}; this many repeats can only detect a gap above {gap:.2f}", gap
        if alone := self.too_little_at_its_rate():
            return "something else", f"{says} at a higher learning rate; as it is trained it learns only {alone}", gap
        return "plastic", says, gap

    @property
    def removed(self) -> float:
        """The part of the loss that a fresh network removed."""
        return float(self.trials.removed()[self.run])

    def falls_short(self) -> bool:
        """Whether the network learns less than half as it is trained, although it could at that rate."""
        if AS_IT_IS not in self.trials.arms:
            return False
        can, own = self.as_trained(NOW), self.as_trained()
        return can.mean >= LOST and own.high < min(can.mean / 2, can.low)

    def too_little_at_its_rate(self) -> Estimate | None:
        """What it learned as it is trained, if that is less than half, also in as many updates as all others."""
        trials = self.trials
        if not trials.subject.optimizers or AS_IT_IS not in trials.arms:
            return None
        if self.as_trained().high < LOST and trials.at(AS_IT_IS) < trials.length:
            trials.run(AS_IT_IS, [trials.subject], [1.0])
        return own if (own := self.as_trained()).high < LOST else None

    def far_behind(self) -> dict[str, tuple[Estimate, Estimate]]:
        """How far it is behind a fresh network and an earlier one, where that is far: now, and at a third of that."""
        found, ends = {}, (self.trials.at(NOW), self.trials.at(NOW, 1 / TIMES))
        for other in (FRESH, EARLIER):
            if other in self.trials.arms:
                now, before = (self.of(self._unbounded(other, at) - self._unbounded(NOW, at)) for at in ends)
                if now.low > 1 - PLASTIC:
                    found[other] = now, before
        return found

    def _unbounded(self, arm: str, at: int) -> Tensor:
        return self.trials.score(arm, at=at, least=-1e3)

    def numbers(self) -> tuple[dict[str, Estimate], dict[str, float]]:
        """What each arm learned, and its mean losses at the end."""
        trials = self.trials
        arms = [arm for arm in (NOW, AS_IT_IS, EARLIER, FRESH) if arm in trials.arms]
        losses = {arm: float(trials.loss(arm)[:, self.run].mean()) for arm in arms}
        return {arm: self.of(trials.score(arm)) for arm in arms if arm != FRESH}, losses

    def slow_start(self) -> list[str]:
        """The finding that it learns well, but was far behind after a third of the updates: it unlearned first."""
        updates = self.trials.length
        early = self.of(self.trials.score(NOW, at=self.trials.at(NOW, 1 / TIMES))).mean
        said = f"after {updates // TIMES} of {updates} updates it had learned {early:.2f} of what a fresh network had"
        return [f"slow start: {said}"] if early < PLASTIC else []

    def ranked(self, tried: Sequence[str]) -> tuple[Remedy, ...]:
        """What these remedies achieved, the best first."""
        found = []
        for name in tried:
            learned, now = (self.of(self.trials.score(arm, at=self.trials.at(name))) for arm in (name, NOW))
            found.append(Remedy(name, learned, now, (learned.mean - now.mean) / (1 - now.mean)))
        return tuple(sorted(found, key=lambda remedy: -remedy.learned.mean))
