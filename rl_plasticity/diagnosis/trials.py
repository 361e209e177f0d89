"""Every arm of a diagnosis on every task, and how much each has learned."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rl_plasticity.diagnosis.report import AS_IT_IS, FRESH, NOW
from rl_plasticity.diagnosis.trainability import UPDATES, Data, Subject, Task, learn, never
from rl_plasticity.seeding import derive, random_states_kept

USERS = ("own", "batches")  # kinds of targets with the user's loss
RATES = (1.0, 3.0)  # times the learning rate: no arm loses by its rate
MORE_RATES = (1.0, 3.0, 10.0)  # those of a longer trial
LONGEST = 2400  # updates of a longer trial
LEARNED = 0.9  # the share of the loss that a fresh network removes before the second half of a longer trial
STRIDE = 40  # updates over which a loss is averaged to find that time
LEARNS = 0.1  # the share of the loss that a fresh network must remove before anything is compared with it
END = 0.1  # the share of the updates whose mean loss is the loss at the end


class Trials:
    """The loss of every arm on every task.

    Args:
        data: what tasks are made of.
        choose: whether an arm tries all of its learning rates in the first repeat alone, and goes on with the best.
        clip: the largest norm of the gradient, for the arm that learns as the network is trained.

    Attributes:
        fresh: the fresh network of each repeat.
        tasks: those of each repeat.
        kinds: the names of a repeat's tasks.
        curves: for each kind and arm one loss ``[updates, runs]`` for each learning rate and repeat. It is infinite
            for a rate that was not chosen.
        limits: number of updates of a kind of targets, where it is less than `updates`.
    """

    def __init__(
        self,
        subject: Subject,
        data: Data,
        repeats: int,
        updates: int,
        clip: float | None,
        seed: int,
        choose: bool = False,
    ) -> None:
        self.subject, self.data, self.updates, self.clip, self.seed = subject, data, updates, clip, seed
        self.choose = choose
        self.limits: dict[str, int] = {}
        self.fresh: list[nn.Module] = []
        self.tasks: list[list[Task]] = []
        self.curves: dict[tuple[str, str], list[list[Tensor]]] = {}
        self._arms: dict[str, tuple[Callable[[int], Subject], Sequence[float]]] = {}
        self.draw(repeats)
        self.kinds = [task.name for task in self.tasks[0]]

    def draw(self, repeats: int) -> None:
        """Draw the fresh networks and the tasks of further repeats, and let every arm learn them."""
        for r in range(len(self.tasks), len(self.tasks) + repeats):
            with random_states_kept(self.subject.net):
                torch.manual_seed(derive(self.seed, r, 0))
                self.fresh.append(self.subject.fresh().train())
                start = self.subject.copied(self.fresh[-1]).net
                self.tasks.append(self.data.tasks(start, derive(self.seed, r, 1), self.updates))
        for arm in self._arms:
            self._learn(arm)

    def run(self, arm: str, of_repeat: Callable[[int], Subject], rates: Sequence[float]) -> None:
        """Let an arm, one network for each repeat, learn every task at every multiple of the learning rate."""
        self.leave_out(arm)
        self._arms[arm] = (of_repeat, rates)
        self._learn(arm)

    def leave_out(self, arm: str) -> None:
        """Forget an arm."""
        self._arms.pop(arm, None)
        self.curves = {of: curves for of, curves in self.curves.items() if of[1] != arm}

    def run_fresh(self, rates: Sequence[float]) -> None:
        """Let the fresh networks learn, as `run`."""
        self.run(FRESH, lambda r: self.subject.copied(self.fresh[r]), rates)

    def _learn(self, arm: str) -> None:
        of_repeat, rates = self._arms[arm]
        for k, kind in enumerate(self.kinds):
            if arm == AS_IT_IS and not self.subject.knows(self.tasks[0][k]):
                continue
            curves = self.curves.setdefault((kind, arm), [[] for _ in rates])
            for r in range(len(curves[0]), len(self.tasks)):
                chosen: Sequence[int] = self._best(kind, arm).tolist() if self.choose and r else range(len(rates))
                for i, known in enumerate(curves):
                    if i in chosen:
                        known.append(self._curve(arm, of_repeat, r, k, rates[i]))
                    else:
                        known.append(torch.full_like(known[0], math.inf))
                if self.choose and r == 0:
                    for known in curves:
                        known[0] = known[0][: self.limits.get(kind)]

    def _curve(self, arm: str, of_repeat: Callable[[int], Subject], r: int, k: int, times: float) -> Tensor:
        task, as_it_is = self.tasks[r][k], arm == AS_IT_IS
        with random_states_kept(self.subject.net):
            subject = of_repeat(r)
            net, optimizers = subject.as_it_is(task) if as_it_is else subject.with_fresh_optimizer(task, times)
            clip = self.clip if as_it_is else None
            updates = self.limits.get(task.name, task.updates)
            ends = self._limited(task) if self.choose and arm == FRESH and r == 0 else never
            curve = learn(net, optimizers, task.begin(net), updates, derive(self.seed, r, 2), clip, ends=ends)
        return curve.reshape(len(curve), -1)

    def _limited(self, task: Task) -> Callable[[list[Tensor]], bool]:
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

    def _losses(self, kind: str, arm: str, of: Callable[[Tensor], Tensor]) -> Tensor:
        """A loss of each curve, ``[rates, repeats, runs]``."""
        return torch.stack([torch.stack([of(curve) for curve in repeats]) for repeats in self.curves[kind, arm]])

    def _best(self, kind: str, arm: str) -> Tensor:
        """The number of the learning rate that ends best, ``[runs]``."""
        return self._losses(kind, arm, _at_end).mean(1).argmin(0)

    def end(self, kind: str, arm: str, rate: int | None = None) -> Tensor:
        """The mean loss of the last tenth of the updates, ``[repeats, runs]``: at this rate, or at each run's best."""
        values = self._losses(kind, arm, _at_end)
        return _gathered(values, self._best(kind, arm)) if rate is None else values[rate]

    def begin(self, kind: str, arm: str) -> Tensor:
        """The mean loss of the first fifth of the updates at the rate that ends best, ``[repeats, runs]``."""
        first_fifth = self._losses(kind, arm, lambda curve: curve[: max(1, len(curve) // 5)].mean(0))
        return _gathered(first_fifth, self._best(kind, arm))

    def nothing(self, kind: str) -> Tensor:
        """The loss of a network that learned nothing, ``[repeats, runs]``."""
        given = self.tasks[0][self.kinds.index(kind)].nothing
        first = self._losses(kind, FRESH, lambda curve: curve[0]).amin(0)  # the same at all rates
        return first.mean(0, keepdim=True).expand_as(first) if given is None else torch.full_like(first, given)

    def share(self, kind: str, arm: str, rate: int | None = None) -> Tensor:
        """What the arm learned, as a share of what a fresh network learned, ``[repeats, runs]``, from -1 to 2.

        (L_0 - L) / (L_0 - L_fresh), where L is the arm's loss at the end, L_fresh the fresh network's, and L_0 the loss
        of a network that learned nothing.
        """
        nothing = self.nothing(kind)
        value = (nothing - self.end(kind, arm, rate)) / (nothing - self.end(kind, FRESH, rate))
        return value.nan_to_num(nan=-1.0, posinf=2.0, neginf=-1.0).clamp(-1, 2)

    def shares(self, arm: str) -> Tensor:
        """The share over all kinds of targets: the mean of the drawn ones, or the user's own where that is worse.

        The user's own is worse in a run where its mean over the repeats is smaller. A kind of which fresh networks
        learn nothing does not count, unless there is no other.
        """
        known = [kind for kind in self.kinds if (kind, arm) in self.curves]
        learned = self.removed_by_fresh()[[kind in known for kind in self.kinds]]
        counts = (learned >= LEARNS) | (learned < LEARNS).all(0)
        every = torch.stack([self.share(kind, arm) for kind in known])  # [kinds, repeats, runs]
        every = every.masked_fill(~counts.unsqueeze(1), math.nan)
        drawn = torch.tensor([kind not in USERS for kind in known])
        scores = torch.stack([every[kinds].nanmean(0) for kinds in (drawn, ~drawn) if kinds.any()])
        return _gathered(scores, scores.mean(1).nan_to_num(nan=math.inf).argmin(0))

    @property
    def arms(self) -> set[str]:
        """Those that have learned."""
        return {arm for _, arm in self.curves}

    def _removed(self, kind: str, end: Tensor) -> Tensor:
        nothing = self.nothing(kind)
        return (nothing - end) / nothing.abs()

    def best_of_fresh(self) -> int:
        """The number of the learning rate at which fresh networks learn most, over all tasks and runs."""
        learned = torch.stack([self._removed(k, self._losses(k, FRESH, _at_end)) for k in self.kinds])
        return int(learned.clamp(min=-1).flatten(2).mean((0, 2)).argmax())

    def removed_by_fresh(self) -> Tensor:
        """The part of the loss that a fresh network removed, the mean over the repeats, ``[kinds, runs]``."""
        return self.removed_by(FRESH)

    def removed_by(self, arm: str) -> Tensor:
        """The part of the loss that an arm removed, the mean over the repeats, ``[kinds, runs]``."""
        return torch.stack([self._removed(kind, self.end(kind, arm)).mean(0) for kind in self.kinds])


def longer_trials(trials: Trials, data: Data, repeats: int) -> Trials:
    """Let the network and fresh ones learn more inputs, for twice the updates that fresh ones need, `LONGEST` at most.

    A network that has to unlearn much needs longer than a fresh one; it has lost nothing if it gets there.
    """
    longer = Trials(trials.subject, data, repeats, LONGEST, None, trials.seed, choose=True)
    longer.run_fresh(MORE_RATES)
    longer.run(NOW, lambda r: trials.subject, MORE_RATES)
    return longer


def _at_end(curve: Tensor) -> Tensor:
    return curve[-max(1, round(END * len(curve))) :].mean(0)


def _gathered(values: Tensor, rates: Tensor) -> Tensor:
    """Of `values` ``[rates, repeats, runs]`` those at each run's rate, ``[repeats, runs]``."""
    return values.gather(0, rates.expand(1, *values.shape[1:]))[0]


def trainability(subject: Subject, data: Data, repeats: int, updates: int = UPDATES, seed: int = 0) -> Tensor:
    """What a network learns of what a fresh one learns, the mean over the repeats, ``[runs]``.

    This is the score of `diagnose`, see `Trials.shares`. It is NaN where a fresh network removes less than a tenth of
    the loss, so that there is nothing to compare with.
    """
    trials = Trials(subject, data, repeats, updates, None, seed)
    trials.run_fresh(RATES)
    trials.run(NOW, lambda r: subject, RATES)
    learned = trials.shares(NOW).mean(0)
    return learned.masked_fill(~(trials.removed_by_fresh().amax(0) >= LEARNS), math.nan)
