"""Trials: every arm learns every task, and what each has learned is compared with what a fresh network learned.

An *arm* is one way to start: the network as it is, the network with a fresh optimizer, a fresh network, an earlier one.
All arms learn the same tasks from the same inputs, with the same batches in the same order, for the same number of
updates.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rl_plasticity.diagnosis.report import AS_IT_IS, FRESH, NOW
from rl_plasticity.diagnosis.subject import Subject
from rl_plasticity.diagnosis.tasks import Loss, TaskSource, TrialTask
from rl_plasticity.seeding import derive, random_states_kept

UPDATES = 100  # in a trial on drawn targets
USERS = ("own", "batches")  # kinds of targets with the user's loss
RATES = (1.0, 3.0)  # times the learning rate: no arm loses by its rate
MORE_RATES = (1.0, 3.0, 10.0)  # those of a longer trial
LONGEST = 2400  # updates of a longer trial
LEARNED = 0.9  # the part of the loss that a fresh network removes before the second half of a longer trial
STRIDE = 40  # updates over which a loss is averaged to find that time
LEARNS = 0.1  # the part of the loss that a fresh network must remove before anything is compared with it
FIRST, BEGIN, END = range(3)  # losses of a curve: the first one, the means of its first fifth and of its last tenth


def never(losses: list[Tensor]) -> bool:
    """Let a training go on to its last update."""
    return False


def learn(
    net: nn.Module,
    optimizers: Sequence[Optimizer],
    loss: Loss,
    updates: int,
    seed: int,
    clip: float | None = None,
    after_backward: Callable[[], object] = lambda: None,
    ends: Callable[[list[Tensor]], bool] = never,
) -> Tensor:
    """Train `net` and return the loss before each update, ``[updates, *runs]`` in float64 on the CPU.

    From the first loss that is not finite, every loss counts as infinite. What the network draws depends on `seed`
    alone.

    Args:
        seed: seed of torch's global generator. The caller saves and restores its state.
        clip: largest norm of the gradient of all parameters, see ``torch.nn.utils.clip_grad_norm_``.
        after_backward: called after each backward pass, before the gradients are clipped.
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
            after_backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            for optimizer in optimizers:
                optimizer.step()
            if ends(losses):
                break
    curve = torch.stack(losses).double().cpu()
    return curve.masked_fill((~curve.isfinite()).cummax(0).values, math.inf)


class Arm(NamedTuple):
    """One way to start.

    Args:
        of_repeat: makes the network of a repeat.
        rates: multiples of the learning rate.
        losses: for each kind of targets a tensor ``[rates, 3, runs]`` for each repeat: the `FIRST` loss, those at the
            `BEGIN` and at the `END`. They are infinite for a rate that was not chosen.
    """

    of_repeat: Callable[[int], Subject]
    rates: Sequence[float]
    losses: dict[str, list[Tensor]]


class Trials:
    """What every arm learns of every task.

    A longer trial has the same parts, but more learning rates, of which an arm tries all in the first repeat alone. It
    takes twice the updates after which fresh networks have removed `LEARNED` of the loss, `LONGEST` at most: a network
    that has to unlearn much needs longer than a fresh one, and has lost nothing if it gets there.

    Args:
        source: what tasks are made of.
        updates: number of updates of each trial; None for longer trials.
        clip: the largest norm of the gradient, for the arm that learns as the network is trained.

    Attributes:
        fresh: the fresh network of each repeat.
        tasks: those of each repeat.
        kinds: the names of a repeat's tasks.
        arms: those that have learned, by name.
        limits: number of updates of a kind of targets, where it is less than `updates`.
    """

    def __init__(
        self, subject: Subject, source: TaskSource, repeats: int, updates: int | None, clip: float | None, seed: int
    ) -> None:
        self.subject, self.source, self.clip, self.seed = subject, source, clip, seed
        self.is_longer, self.updates = updates is None, updates or LONGEST
        self.rates = MORE_RATES if self.is_longer else RATES
        self.limits: dict[str, int] = {}
        self.fresh: list[nn.Module] = []
        self.tasks: list[list[TrialTask]] = []
        self.arms: dict[str, Arm] = {}
        self.draw(repeats)
        self.kinds = [task.name for task in self.tasks[0]]

    def draw(self, repeats: int) -> None:
        """Draw the fresh networks and the tasks of further repeats, and let every arm learn them."""
        for r in range(len(self.tasks), len(self.tasks) + repeats):
            with random_states_kept(self.subject.net.parameters()):
                torch.manual_seed(derive(self.seed, r, 0))
                self.fresh.append(self.subject.fresh().train())
                start = self.subject.copied(self.fresh[-1]).net
                self.tasks.append(self.source.tasks(start, derive(self.seed, r, 1), self.updates))
        for arm in self.arms:
            self._learn(arm)

    def run(
        self, arm: str, of_repeat: Callable[[int], Subject] | None = None, rates: Sequence[float] | None = None
    ) -> None:
        """Let an arm learn every task.

        Args:
            of_repeat: the arm's network in a repeat; by default that repeat's fresh network.
            rates: multiples of the learning rate; by default those of all arms.
        """
        copied = of_repeat or (lambda r: self.subject.copied(self.fresh[r]))
        self.arms[arm] = Arm(copied, rates or self.rates, {})
        self._learn(arm)
        if not self.arms[arm].losses:  # the optimizer as it is can be tried on no task
            del self.arms[arm]

    def _learn(self, arm: str) -> None:
        for k, kind in enumerate(self.kinds):
            if arm.startswith(AS_IT_IS) and not self.subject.knows(self.tasks[0][k]):
                continue
            _, rates, losses = self.arms[arm]
            of_kind = losses.setdefault(kind, [])
            for r in range(len(of_kind), len(self.tasks)):
                chosen = self._best(kind, arm).tolist() if self.is_longer and r else range(len(rates))
                curves = {i: self._curve(arm, r, k, rates[i]) for i in chosen}
                # In the first repeat a later rate may have been quicker, and lowered the limit.
                found = {i: _summary(curve[: self.limits.get(kind)]) for i, curve in curves.items()}
                unknown = torch.full_like(found[chosen[0]], math.inf)
                of_kind.append(torch.stack([found.get(i, unknown) for i in range(len(rates))]))

    def _curve(self, arm: str, r: int, k: int, times: float) -> Tensor:
        task, as_it_is = self.tasks[r][k], arm.startswith(AS_IT_IS)
        with random_states_kept(self.subject.net.parameters()):
            subject = self.arms[arm].of_repeat(r)
            net, optimizers = subject.as_it_is(task) if as_it_is else subject.with_fresh_optimizer(task, times)
            updates = self.limits.get(task.name, task.updates)
            ends = self._limit(task) if self.is_longer and arm == FRESH and r == 0 else never
            clip, seed = self.clip if as_it_is else None, derive(self.seed, r, 2)
            curve = learn(net, optimizers, task.begin(net), updates, seed, clip, ends=ends)
        return curve.reshape(len(curve), -1)

    def _limit(self, task: TrialTask) -> Callable[[list[Tensor]], bool]:
        """End at twice the number of updates after which most of the loss is removed in all runs, then for all arms."""
        reached = 0

        def ends(losses: list[Tensor]) -> bool:
            nonlocal reached
            if not reached and len(losses) % STRIDE == 0:
                nothing = losses[0] if task.nothing is None else torch.tensor(task.nothing)
                removed = (nothing - torch.stack(losses[-STRIDE:]).mean(0)) / nothing.abs()
                reached = len(losses) if bool((removed >= LEARNED).all()) else 0
            if not reached or len(losses) < 2 * reached:
                return False
            self.limits[task.name] = len(losses)
            return True

        return ends

    def _losses(self, kind: str, arm: str, which: int) -> Tensor:
        """A loss of each curve, ``[repeats, rates, runs]``."""
        return torch.stack(self.arms[arm].losses[kind])[:, :, which]

    def _best(self, kind: str, arm: str) -> Tensor:
        """The number of the learning rate that ends best, ``[runs]``."""
        return self._losses(kind, arm, END).mean(0).argmin(0)

    def loss(self, kind: str, arm: str, which: int = END, rate: int | None = None) -> Tensor:
        """A loss of an arm, ``[repeats, runs]``: at this rate, or at the one that ends best for each run."""
        values = self._losses(kind, arm, which)
        if rate is not None:
            return values[:, rate]
        return values.gather(1, self._best(kind, arm).expand(len(values), 1, -1))[:, 0]

    def nothing(self, kind: str) -> Tensor:
        """The loss of a network that learned nothing, ``[repeats, runs]``."""
        given = self.tasks[0][self.kinds.index(kind)].nothing
        first = self._losses(kind, FRESH, FIRST).amin(1)  # the same at all rates
        return first.mean(0, keepdim=True).expand_as(first) if given is None else torch.full_like(first, given)

    def score(self, kind: str, arm: str, rate: int | None = None) -> Tensor:
        """What the arm learned, as a part of what a fresh network learned, ``[repeats, runs]``, from -1 to 2.

        (L_0 - L) / (L_0 - L_fresh), where L is the arm's loss at the end, L_fresh the fresh network's, and L_0 the loss
        of a network that learned nothing.
        """
        nothing = self.nothing(kind)
        value = (nothing - self.loss(kind, arm, rate=rate)) / (nothing - self.loss(kind, FRESH, rate=rate))
        return value.nan_to_num(nan=-1.0, posinf=2.0, neginf=-1.0).clamp(-1, 2)

    def scores(self, arm: str) -> Tensor:
        """The score over all kinds of targets: the mean of the drawn ones, or the user's own where that is worse.

        The user's own is worse in a run where its mean over the repeats is smaller. A kind of which fresh networks
        learn nothing does not count, unless there is no other.
        """
        kinds = [*self.arms[arm].losses]
        learned = self.removed(kinds)
        counts = (learned >= LEARNS) | (learned < LEARNS).all(0)
        every = torch.stack([self.score(kind, arm) for kind in kinds])  # [kinds, repeats, runs]
        every = every.masked_fill(~counts.unsqueeze(1), math.nan)
        drawn = torch.tensor([kind not in USERS for kind in kinds])
        means = torch.stack([every[chosen].nanmean(0) for chosen in (drawn, ~drawn) if chosen.any()])
        worse = means.mean(1).nan_to_num(nan=math.inf).argmin(0)
        return means.gather(0, worse.expand(1, *means.shape[1:]))[0]

    def removed(self, kinds: Sequence[str] | None = None, arm: str = FRESH) -> Tensor:
        """The part of the loss that an arm removed, the mean over the repeats, ``[kinds, runs]``."""
        pairs = [(self.nothing(kind), self.loss(kind, arm)) for kind in kinds or self.kinds]
        return torch.stack([((nothing - end) / nothing.abs()).mean(0) for nothing, end in pairs])

    def best_rate(self) -> float:
        """The multiple of the learning rate that ends best for fresh networks in most tasks and runs, of two."""
        return self.rates[int(torch.stack([self._best(kind, FRESH) for kind in self.kinds]).float().mean().round())]


def _summary(curve: Tensor) -> Tensor:
    """The losses of a curve ``[updates, runs]`` that are kept, ``[3, runs]``."""
    begin, end = max(1, len(curve) // 5), max(1, round(len(curve) / 10))
    return torch.stack([curve[0], curve[:begin].mean(0), curve[-end:].mean(0)])


def trainability(subject: Subject, source: TaskSource, repeats: int, updates: int = UPDATES) -> Tensor:
    """What a network learns of what a fresh one learns, the mean over the repeats, ``[runs]``.

    This is the score of `diagnose`, see `Trials.scores`. It is NaN where a fresh network removes less than a tenth of
    the loss, so that there is nothing to compare with.
    """
    trials = Trials(subject, source, repeats, updates, None, 0)
    trials.run(FRESH)
    trials.run(NOW, lambda r: subject)
    return trials.scores(NOW).mean(0).masked_fill(~(trials.removed().amax(0) >= LEARNS), math.nan)
