"""Trials: every arm learns every task, and what each has learned is compared with what a fresh network learned.

An *arm* is one way to start: the network as it is, the network with a fresh optimizer, a fresh network, an earlier one.
All arms learn the same tasks from the same inputs, with the same batches in the same order, for the same number of
updates.
"""

import math
import statistics
import timeit
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rl_plasticity.diagnosis.report import AS_IT_IS, FRESH, NOW
from rl_plasticity.diagnosis.subject import Subject
from rl_plasticity.diagnosis.tasks import Loss, TaskSource, TrialTask, called
from rl_plasticity.seeding import derive, random_states_kept

UPDATES = 100  # fewest of a trial, unless the user gives their number
LONGEST = 2400  # most
TIMED = 5  # whose time foretells the cost
BRIEF = 200  # most of a remedy's, and of fresh networks at another rate, unless the user gives their number
TIMES = 3  # factor of the updates where a verdict has to wait
RATES = (1.0, 3.0, 10.0)  # times the learning rate: no arm loses by its rate
LEARNED = 0.9  # the part of the loss that a fresh network removes before the second half of a trial
NEAR = 0.02  # of the loss of a network that learned nothing: rates that end so near the best are tried longer too
STRIDE = 40  # updates over which a loss is averaged to find that time
LEARNS = 0.1  # the part of the loss that a fresh network must remove before anything is compared with it


def learn(
    net: nn.Module,
    optimizers: Sequence[Optimizer],
    loss: Loss,
    updates: int,
    seed: int,
    clip: float | None = None,
    ends: Callable[[list[Tensor]], bool] | None = None,
) -> Tensor:
    """Train `net` and return the loss before each update, ``[updates, *runs]`` in float64 on the CPU.

    From the first loss that is not finite, every loss counts as infinite. What the network draws depends on `seed`
    alone.

    Args:
        seed: seed of torch's global generator. The caller saves and restores its state.
        clip: largest norm of the gradient of all parameters, see ``torch.nn.utils.clip_grad_norm_``.
        ends: called with all losses so far after each update; whether the training ends here.
    """
    torch.manual_seed(seed)
    losses: list[Tensor] = []
    with torch.enable_grad():
        for t in range(updates):
            for optimizer in optimizers:
                optimizer.zero_grad()
            value = loss(net, t)
            losses.append(value.detach())
            if not value.requires_grad:  # everything is frozen
                continue
            value.sum().backward()  # type: ignore[no-untyped-call]
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            for optimizer in optimizers:
                optimizer.step()
            if ends and ends(losses):
                break
    curve = torch.stack(losses).double().cpu()
    return curve.masked_fill((~curve.isfinite()).cummax(0).values, math.inf)


class Arm(NamedTuple):
    """One way to start.

    Args:
        subjects: the network of each repeat, or one for all; empty for each repeat's fresh network.
        rates: multiples of the learning rate.
        length: number of its updates, if trials are as long.
        curves: for each repeat, the losses ``[updates, runs]`` by rate.
    """

    subjects: Sequence[Subject]
    rates: Sequence[float]
    length: int
    curves: list[dict[float, Tensor]]


class Trials:
    """What every arm learns of the task of every repeat.

    A trial takes twice the updates after which fresh networks have removed `LEARNED` of the loss, from `UPDATES` to
    `LONGEST`. `go_on` makes it `TIMES` as long. In the first repeat an arm tries all learning rates, later the one that
    ended best.

    Args:
        source: what tasks are made of.
        updates: number of updates of each trial; None: found as above.
        clip: the largest norm of the gradient, for the arm that learns as the network is trained.

    Attributes:
        fresh: the fresh network of each repeat.
        tasks: that of each repeat.
        arms: those that have learned, by name.
        length: number of updates. Some arms have fewer, and the network as it is trained does not go on with others.
        longest: the greatest length.
        given: whether the user gave the number of updates.
        went_on: whether trials are as long as the user wants, or have become longer.
        gives_statistics: whether a fresh network had other statistics before it got the network's.
        keeps_own_rate: whether every repeat has the learning rate itself, to compare with training as it is.
    """

    def __init__(
        self, subject: Subject, source: TaskSource, repeats: int, updates: int | None, clip: float | None, seed: int
    ) -> None:
        self.subject, self.source, self.clip, self.seed = subject, source, clip, seed
        self.longest = self.length = updates or LONGEST
        self.given = self.went_on = updates is not None
        self.keeps_own_rate = False
        self.fresh: list[nn.Module] = []
        self.tasks: list[TrialTask] = []
        self.arms: dict[str, Arm] = {}
        self.statistics: Mapping[str, Tensor] = _statistics(subject, source)
        self.gives_statistics = False
        self.draw(repeats)

    def draw_anew(self, statistics: Mapping[str, Tensor]) -> None:
        """Draw fresh networks and tasks once more, the networks with these buffers, and let them learn."""
        repeats, self.statistics = len(self.tasks), statistics
        self.fresh, self.tasks, self.arms = [], [], {}
        self.draw(repeats)
        self.run(FRESH)

    def draw(self, repeats: int) -> None:
        """Draw the fresh networks and the tasks of further repeats, and let every arm learn them."""
        for r in range(len(self.tasks), len(self.tasks) + repeats):
            with random_states_kept(self.subject.net.parameters()):
                torch.manual_seed(derive(self.seed, r, 0))
                self.fresh.append(self.subject.fresh().train())
                for name, value in self.statistics.items():
                    buffer = self.fresh[-1].get_buffer(name)
                    self.gives_statistics |= not torch.equal(buffer, value)
                    buffer.copy_(value)
                nets = [self.subject.copied(self.fresh[-1]).net, self.subject.copied().net]
                self.tasks.append(self.source.task(nets, derive(self.seed, r, 1), self.longest))
        for arm in self.arms:
            self._learn(arm)

    def run(
        self,
        arm: str,
        subjects: Sequence[Subject] = (),
        rates: Sequence[float] | None = None,
        most: int | None = None,
    ) -> None:
        """Let an arm learn the task of every repeat.

        Args:
            subjects: see `Arm`.
            rates: multiples of the learning rate; by default those of all arms.
            most: most updates, if there is such a number and the user gave none.
        """
        if arm == FRESH and not self.went_on:
            self.length = self.longest
        length = self.length if most is None or self.given else min(most, self.length)
        self.arms[arm] = Arm(subjects, rates or RATES, length, [])
        self._learn(arm)

    def go_on(self) -> bool:
        """Make the trials longer; False if they are as long as they may be."""
        if self.length >= self.longest:
            return False
        going = {arm: self._still_good(arm) for arm in self.arms if arm != AS_IT_IS}
        self.length, self.went_on = min(self.longest, TIMES * self.length), True
        for arm, rates in going.items():
            self.run(arm, self.arms[arm].subjects, rates)
        return True

    @property
    def is_first(self) -> bool:
        """Whether trials can go on and have not done so yet."""
        return not self.went_on and self.length < self.longest

    def _learn(self, arm: str) -> None:
        _, rates, _, curves = self.arms[arm]
        for r in range(len(curves), len(self.tasks)):
            own = {1.0} & {*rates} if self.keeps_own_rate else set()
            chosen = own.union(self._best(arm) if r else rates)
            curves.append({rate: self._curve(arm, r, rate) for rate in chosen})

    def _curve(self, arm: str, r: int, times: float) -> Tensor:
        task, as_it_is, subjects = self.tasks[r], arm.startswith(AS_IT_IS), self.arms[arm].subjects
        with random_states_kept(self.subject.net.parameters()):
            subject = subjects[r % len(subjects)] if subjects else self.subject.copied(self.fresh[r])
            net, optimizers = subject.as_it_is(task) if as_it_is else subject.with_fresh_optimizer(task, times)
            for change in subject.changes:
                change(net, optimizers)
            ends = self._learned(task) if arm == FRESH and r == 0 and not self.went_on else None
            clip, seed = self.clip if as_it_is else None, derive(self.seed, r, 2)
            curve = learn(net, optimizers, task.begin(net), self.at(arm), seed, clip, ends)
        self.subject.made(len(curve))
        return curve.reshape(len(curve), -1)

    def _learned(self, task: TrialTask) -> Callable[[list[Tensor]], bool]:
        """End at twice the number of updates after which most of the loss is removed in all runs, then for all arms."""
        reached = 0

        def ends(losses: list[Tensor]) -> bool:
            nonlocal reached
            if not reached and len(losses) % STRIDE == 0:
                nothing = losses[0] if task.nothing is None else torch.tensor(task.nothing)
                removed = (nothing - torch.stack(losses[-STRIDE:]).mean(0)) / nothing.abs()
                reached = len(losses) if bool((removed >= LEARNED).all()) else 0
            if not reached or len(losses) < max(UPDATES, 2 * reached):
                return False
            self.length = len(losses)
            return True

        return ends

    def _best(self, arm: str) -> list[float]:
        """The learning rate that ends best in the first repeat, for each run."""
        return [self.arms[arm].rates[i] for i in self._ends(arm).argmin(0).tolist()]

    def _still_good(self, arm: str) -> list[float]:
        """The rates that may end best in longer trials: the lowest one, the best one, and for the network more.

        These are rates that end near the best, and rates at which it has not yet unlearned what it has to.
        """
        rates, ends = self.arms[arm].rates, self._ends(arm)
        good, nothing = ends == ends.amin(0), self.nothing
        if arm != FRESH:
            near = NEAR * nothing.abs()
            good |= (ends - ends.amin(0) <= near) | ((ends > nothing + near) & ends.isfinite())
        return [rate for rate, at_it in zip(rates, good, strict=True) if bool(at_it.any()) or rate == min(rates)]

    def _ends(self, arm: str) -> Tensor:
        """The loss in the first repeat at the end, ``[rates, runs]``."""
        _, rates, _, curves = self.arms[arm]
        return torch.stack([_end(curves[0][rate], self.at(arm)) for rate in rates])

    def at(self, arm: str, of: float = 1.0) -> int:
        """The number of updates of an arm, or this part of it."""
        return max(1, round(of * min(self.arms[arm].length, self.length)))

    def loss(self, arm: str, rate: float | None = None, at: int | None = None) -> Tensor:
        """An arm's mean loss over the last tenth of `at` updates, ``[repeats, runs]``.

        Args:
            rate: a multiple of the learning rate; by default the one that ends best for each run.
            at: by default all updates that the arm has made.
        """
        chosen = self._best(arm) if rate is None else [rate] * math.prod(self.subject.runs)
        ends = [
            [_end(of[one], at or self.at(arm))[run] for run, one in enumerate(chosen)] for of in self.arms[arm].curves
        ]
        return torch.stack([torch.stack(of_repeat) for of_repeat in ends])

    @property
    def nothing(self) -> Tensor:
        """The loss of a network that learned nothing, for each run or for all."""
        given = self.tasks[0].nothing
        first = [next(iter(of.values()))[0] for of in self.arms[FRESH].curves]  # alike at all rates
        return torch.stack(first).mean(0) if given is None else torch.tensor(given)

    def score(self, arm: str, rate: float | None = None, at: int | None = None, least: float = -1.0) -> Tensor:
        """What the arm learned, as a part of what a fresh network learned, ``[repeats, runs]``, from `least` to 2.

        (L_0 - L) / (L_0 - L_fresh), where L is the arm's loss at the end, L_fresh the fresh network's after as many
        updates, and L_0 the loss of a network that learned nothing.

        Args:
            rate, at: see `loss`.
        """
        nothing, at = self.nothing, at or self.at(arm)
        value = (nothing - self.loss(arm, rate, at)) / (nothing - self.loss(FRESH, rate, at))
        return value.nan_to_num(nan=least, posinf=2.0, neginf=least).clamp(least, 2)

    def removed(self, arm: str = FRESH, at: int | None = None) -> Tensor:
        """The part of the loss that an arm removed, after all updates or after `at`, the mean over the repeats."""
        nothing = self.nothing
        return ((nothing - self.loss(arm, at=at)) / nothing.abs()).mean(0)

    def best_rate(self) -> float:
        """The multiple of the learning rate that ends best for fresh networks in most runs."""
        return statistics.mode(sorted(self._best(FRESH)))

    @property
    def rate(self) -> float:
        """The learning rate of which arms try multiples."""
        return self.subject.rate(self.tasks[0])


def _end(curve: Tensor, at: int) -> Tensor:
    """The mean loss ``[runs]`` over the last tenth of the first `at` updates."""
    return curve[at - max(1, round(at / 10)) : at].mean(0)


def _statistics(subject: Subject, source: TaskSource) -> dict[str, Tensor]:
    """The network's buffers that a call while it trains leaves alone, as statistics of its inputs: fresh ones get them.

    Buffers of torch's own modules, and those that a call changes, belong to the weights.
    """
    net = subject.copied().net
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}  # a call may write to them in place
    try:
        with random_states_kept(net.parameters()), torch.no_grad():
            called(net, source.example)
    except Exception:  # which the tasks say better
        return {}
    return {
        name: buffer
        for name, buffer in before.items()
        if torch.equal(net.get_buffer(name), buffer)
        and not type(net.get_submodule(name.rpartition(".")[0])).__module__.startswith("torch.")
    }


def cost(subject: Subject, source: TaskSource, repeats: int, updates: int | None) -> tuple[float, float]:
    """Seconds that trials take where fresh networks learn at once, and where they learn slowly, from a few updates.

    More repeats, an optimizer, an earlier network and remedies come on top.
    """
    trials = Trials(subject, source.whole(subject.copied().net), 1, TIMED, None, 0)
    times = timeit.repeat(lambda: trials.run(FRESH, rates=[1.0]), number=1, repeat=3)  # the first one warms up
    each = min(times) / TIMED * 2 * (len(RATES) + repeats - 1)
    return each * (updates or UPDATES), each * (updates or LONGEST)


def trainability(subject: Subject, source: TaskSource, repeats: int, updates: int = UPDATES) -> Tensor:
    """What a network learns of what a fresh one learns, the mean over the repeats, ``[runs]``.

    This is the score of `diagnose`, see `Trials.score`. It is NaN where a fresh network removes less than a tenth of
    the loss, so that there is nothing to compare with.
    """
    trials = Trials(subject, source, repeats, updates, None, 0)
    trials.run(FRESH)
    trials.run(NOW, [subject])
    return trials.score(NOW).mean(0).masked_fill(~(trials.removed() >= LEARNS), math.nan)
