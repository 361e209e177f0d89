"""Scores of methods on the tasks of a suite: 0 is no method, 1 a network that is fresh at each task.

Pure functions of numpy arrays. The raw metrics of all methods are ``[methods, tasks, seeds]``, NaN for a method that
was refused on a task. Seeds are drawn with replacement for each task, the same ones for all methods: with equal seeds
they see equal data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rl_plasticity.benchmarks.suites import FRESH, NONE
from rl_plasticity.metrics.statistics import LEVEL, Array, Interval, iqm

RESAMPLES = 4000
ENDS = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]


@dataclass(frozen=True)
class Scores:
    """The scores of all methods, and of each resample.

    score = (x - none) / (fresh - none), with the means of a task over its seeds. Overall it is the interquartile mean
    over tasks (Agarwal et al. 2021, section 4.3), NaN where a task has no score. Methods and tasks go by their places;
    overall is the last column behind those of the tasks.

    Args:
        methods: their names; "none" and "fresh" are among them.
        raw: the metrics ``[methods, tasks, seeds]``, higher is better.
    """

    methods: Sequence[str]
    raw: Array

    @cached_property
    def every(self) -> Array:
        """The scores, and then those of resampled seeds: ``[1 + resamples, methods, tasks + 1]``."""
        tasks, seeds = self.raw.shape[1:]
        drawn = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, 1, tasks, seeds))
        means = np.concatenate([self.raw[None], np.take_along_axis(self.raw[None], drawn, -1)]).mean(-1)
        none, fresh = (means[:, [self.methods.index(name)]] for name in (NONE, FRESH))
        of_tasks = (means - none) / (fresh - none)
        return np.concatenate([of_tasks, iqm([of_tasks])[..., None]], -1)

    @property
    def values(self) -> Array:
        """The scores, ``[methods, tasks + 1]``."""
        values: Array = self.every[0]
        return values

    @cached_property
    def intervals(self) -> Array:
        """The ends of the 95 % intervals of all scores, ``[2, methods, tasks + 1]``."""
        return self.values + self._wider * (np.quantile(self.every[1:], ENDS, axis=0) - self.values)

    @property
    def best_first(self) -> list[int]:
        """The places of the methods by their overall scores; last those that have none."""
        order: list[int] = np.argsort(-self.values[:, -1], kind="stable").tolist()
        return order

    def rank(self, method: int) -> tuple[int, int, int]:
        """A method's rank by its overall score among all but none and fresh, and the ends of its 95 % interval."""
        others = [i for i, name in enumerate(self.methods) if name not in (NONE, FRESH)]
        overall = self.every[..., -1]
        ranks = 1 + (overall[:, others] > overall[:, [method]]).sum(-1)
        low, high = np.quantile(ranks[1:], ENDS, method="inverted_cdf")
        return int(ranks[0]), int(low), int(high)

    def gaps(self, method: int) -> dict[str, Interval]:
        """Intervals of a method's overall score minus that of each other ranked one, which hold for all at once.

        value -+ q s, where s is the standard deviation of the resampled gap, and q the 95 % quantile over resamples of
        the largest deviation of any gap in units of its s (Romano and Wolf 2005, studentized maximum).
        """
        others = [i for i in self.best_first if i != method and np.isfinite(self.values[i, -1])]
        value, *found = self.every[:, [method], -1] - self.every[:, others, -1]
        spread = np.std(found, 0)
        off = np.abs(found - value) / np.where(spread > 0, spread, np.inf)
        half = np.quantile(off.max(-1, initial=0), LEVEL) * spread * self._wider
        return {self.methods[i]: (x - h, x + h) for i, x, h in zip(others, value, half, strict=True)}

    @property
    def _wider(self) -> float:
        """n seeds that are drawn again vary less than new ones would, by this factor."""
        seeds = self.raw.shape[-1]
        return float(np.sqrt(seeds / (seeds - 1)))
