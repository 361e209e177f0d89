"""Scores of methods on the tasks of a suite: 0 is no method, 1 a network that is fresh at each task.

Pure functions of numpy arrays. The raw metrics of all methods are ``[methods, tasks, seeds]``, NaN for a method that
was refused on a task. Seeds are drawn with replacement for each task, the same ones for all methods: with equal seeds
they see equal data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rl_plasticity.metrics import statistics
from rl_plasticity.metrics.statistics import LEVEL, Array, Interval

RESAMPLES = 4000


@dataclass(frozen=True)
class Scores:
    """The scores of all methods, and of each resample.

    score = (x - none) / (fresh - none), with the means of a task over its seeds. Overall it is the interquartile mean
    over tasks (Agarwal et al. 2021, section 4.3), NaN where a task has no score.

    Args:
        methods: their names; "none" and "fresh" are among them.
        raw: the metrics ``[methods, tasks, seeds]``, higher is better.
    """

    methods: Sequence[str]
    raw: Array

    @cached_property
    def of_tasks(self) -> Array:
        """``[methods, tasks]``"""
        return self._normalized(self.raw.mean(-1))

    @cached_property
    def overall(self) -> Array:
        """``[methods]``"""
        return statistics.iqm([self.of_tasks])

    @cached_property
    def resampled(self) -> Array:
        """The scores of resampled seeds, ``[resamples, methods, tasks]``."""
        tasks, seeds = self.raw.shape[1:]
        drawn = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, 1, tasks, seeds))
        return self._normalized(np.take_along_axis(self.raw[None], drawn, -1).mean(-1))

    @cached_property
    def overall_resampled(self) -> Array:
        """``[resamples, methods]``"""
        return statistics.iqm([self.resampled])

    def interval(self, method: str, task: int | None = None) -> Interval:
        """The 95 % interval of a method's score on a task, or overall."""
        at = self.methods.index(method)
        value = self.overall[at] if task is None else self.of_tasks[at, task]
        found = self.overall_resampled[:, at] if task is None else self.resampled[:, at, task]
        low, high = value + self._wider * (np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) - value)
        return float(low), float(high)

    def rank(self, method: str) -> tuple[int, int, int]:
        """A method's rank by its overall score, 1 is best, and the ends of the rank's 95 % interval."""
        at = self.methods.index(method)
        ranks = 1 + (self.overall_resampled > self.overall_resampled[:, [at]]).sum(-1)
        low, high = np.quantile(ranks, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
        return int(1 + (self.overall > self.overall[at]).sum()), int(low), int(high)

    def gaps(self, method: str) -> dict[str, tuple[float, float, float]]:
        """A method's overall score minus that of each other ranked one, and an interval that holds for all at once.

        value -+ q s, where s is the standard deviation of the resampled gap, and q the 95 % quantile over resamples of
        the largest deviation of any gap in units of its s (Romano and Wolf 2005, studentized maximum).
        """
        at = self.methods.index(method)
        others = [int(i) for i in np.flatnonzero(np.isfinite(self.overall)) if i != at]
        values = self.overall[at] - self.overall[others]
        found = self.overall_resampled[:, [at]] - self.overall_resampled[:, others]
        spread = found.std(0)
        off = np.abs(found - values) / np.where(spread > 0, spread, np.inf)
        half = np.quantile(off.max(-1, initial=0), LEVEL) * spread * self._wider
        return {self.methods[i]: (x, x - h, x + h) for i, x, h in zip(others, values, half, strict=True)}

    @property
    def _wider(self) -> float:
        """n seeds that are drawn again vary less than new ones would, by this factor."""
        seeds = self.raw.shape[-1]
        return float(np.sqrt(seeds / (seeds - 1)))

    def _normalized(self, means: Array) -> Array:
        none, fresh = (means[..., [self.methods.index(name)], :] for name in ("none", "fresh"))
        return np.asarray((means - none) / (fresh - none))
