"""Every arm of a diagnosis on every task, and how much each has learned."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity.diagnosis.trainability import Data, Steps, Subject, Task, at_end, learn, share
from rl_plasticity.seeding import derive, random_states_kept

FRESH, NOW, AS_IT_IS, EARLIER = "a fresh network", "your network", "as it is trained", "the earlier one"
USERS = ("own", "batches")  # kinds of targets with the user's loss
RATES = (1.0, 3.0)  # times the learning rate: no arm loses by its rate
Start = Callable[[int, float, Task], tuple[nn.Module, Steps]]
"""The network and the optimizer that begin a task, of a repeat and at a learning rate."""


class Bar:
    """A progress bar on a terminal, where tqdm is installed; silent for what takes less than two seconds."""

    def __init__(self, total: int) -> None:
        try:
            from tqdm import tqdm

            self.bar: Any = tqdm(total=total, unit=" trials", delay=2, leave=False, desc="diagnose", disable=None)
        except ImportError:
            self.bar = None

    def more(self, trials: int) -> None:
        if self.bar is not None:
            self.bar.total += trials

    def update(self) -> None:
        if self.bar is not None:
            self.bar.update()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class Trials:
    """What every arm reached on every task: ``ends[kind, arm]`` ``[rates, repeats, *runs]``.

    Args:
        fresh: the fresh network of each repeat.
        bar: called after each trial.
    """

    def __init__(self, subject: Subject, data: Data, repeats: int, updates: int, clip: float | None, seed: int) -> None:
        self.subject, self.clip, self.seed = subject, clip, seed
        self.fresh: list[nn.Module] = []
        self.tasks: list[list[Task]] = []
        for r in range(repeats):
            with random_states_kept(subject.net):
                torch.manual_seed(derive(seed, r, 0))
                self.fresh.append(subject.fresh().train())
                example = Subject(self.fresh[-1], (), subject.fresh, subject.without_dropout)
                copied = example.widened()[0]
                self.tasks.append(data.tasks(copied, derive(seed, r, 1), updates))
        self.kinds = [task.name for task in self.tasks[0]]
        self.ends: dict[tuple[str, str], Tensor] = {}
        self.begins: dict[tuple[str, str], Tensor] = {}
        self.nothing: dict[str, Tensor] = {}

    def run(self, arm: str, start: Start, rates: Sequence[float], bar: Bar) -> None:
        """Let an arm learn every task of every repeat, at every rate."""
        clip = self.clip if arm == AS_IT_IS else None
        for k, kind in enumerate(self.kinds):
            if arm == AS_IT_IS and not self.subject.knows(self.tasks[0][k]):
                continue
            ends, begins, firsts = [], [], []
            for times in rates:
                curves = [self._curve(start, r, times, self.tasks[r][k], clip, bar) for r in range(len(self.tasks))]
                ends.append(torch.stack([at_end(curve) for curve in curves]))
                begins.append(torch.stack([curve[: max(1, len(curve) // 5)].mean(0) for curve in curves]))
                firsts.append(torch.stack([curve[0] for curve in curves]))
            self.ends[kind, arm], self.begins[kind, arm] = torch.stack(ends), torch.stack(begins)
            if arm == FRESH:
                given = self.tasks[0][k].nothing
                first = firsts[0].mean(0, keepdim=True).expand_as(firsts[0])
                self.nothing[kind] = first if given is None else torch.full_like(first, float(given))

    def _curve(self, start: Start, r: int, times: float, task: Task, clip: float | None, bar: Bar) -> Tensor:
        with random_states_kept(self.subject.net):
            net, optimizer = start(r, times, task)
            curve = learn(net, optimizer, task.begin(net), task.updates, derive(self.seed, r, 2), clip)
        bar.update()
        return curve

    def end(self, kind: str, arm: str, rate: int | None = None) -> Tensor:
        """The loss at the end, ``[repeats, *runs]``: at this rate, or at the best one of each run."""
        return self._at_best(kind, arm, self.ends, rate)

    def begin(self, kind: str, arm: str) -> Tensor:
        """The mean loss of the first fifth of the updates at the rate that ends best, ``[repeats, *runs]``."""
        return self._at_best(kind, arm, self.begins, None)

    def _at_best(self, kind: str, arm: str, of: Mapping[tuple[str, str], Tensor], rate: int | None) -> Tensor:
        values = of[kind, arm]
        if rate is not None:
            return values[rate]
        best = self.ends[kind, arm].mean(1).argmin(0)  # [*runs]
        return values.gather(0, best.expand(1, *values.shape[1:]))[0]

    def share(self, kind: str, arm: str, rate: int | None = None) -> Tensor:
        """What the arm learned of what a fresh network learned, ``[repeats, *runs]``."""
        return share(self.nothing[kind], self.end(kind, arm, rate), self.end(kind, FRESH, rate))

    def shares(self, arm: str, rate: int | None = None) -> Tensor:
        """The same over the kinds of targets: the mean of the drawn ones, or the user's own where that is worse.

        Worse is what has the smaller mean over the repeats, in each run.
        """
        known = [kind for kind in self.kinds if (kind, arm) in self.ends]
        drawn = [self.share(kind, arm, rate) for kind in known if kind not in USERS]
        own = [self.share(kind, arm, rate) for kind in known if kind in USERS]
        if not drawn or not own:
            return torch.stack(drawn or own).mean(0)
        both = torch.stack(drawn).mean(0)
        return torch.where(own[0].mean(0) < both.mean(0), own[0], both)

    @property
    def arms(self) -> set[str]:
        """Those that have learned."""
        return {arm for _, arm in self.ends}

    def best_of_fresh(self) -> int:
        """The number of the learning rate at which fresh networks learn most, over all tasks and runs."""
        learned = [(self.nothing[k] - self.ends[k, FRESH]) / self.nothing[k].abs() for k in self.kinds]
        return int(torch.stack(learned).clamp(min=-1).flatten(2).mean((0, 2)).argmax())

    def removed_by_fresh(self) -> Tensor:
        """The part of the loss that a fresh network removed, the mean over kinds and repeats, ``[*runs]``."""
        parts = [(self.nothing[k] - self.end(k, FRESH)) / self.nothing[k].abs() for k in self.kinds]
        return torch.stack(parts).mean((0, 1))
