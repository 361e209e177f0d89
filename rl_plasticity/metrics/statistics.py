"""Statistics of a few runs on one or several tasks: pure functions of numpy arrays.

Strata are a list with the scores ``[*more, n]`` of each task, n runs that may differ from task to task; leading axes
are resamples. Agarwal et al. 2021 is "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(arXiv 2108.13264), whose library is rliable.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from rl_plasticity.metrics.measured import Direction

Array = NDArray[np.float64]
Steps = NDArray[np.int64]
Strata = Sequence[Array]
Interval = tuple[float, float]
LEVEL = 0.95  # of intervals


def mean(scores: Strata) -> Array:
    """The mean over tasks of the mean over runs, ``[*more]``: every task counts the same."""
    return np.asarray(np.mean([s.mean(-1) for s in scores], axis=0))


def worst(scores: Array, better: Direction = "higher") -> Array:
    """The scores for ranks: one that is not finite, of a run that diverged, is worse than every other."""
    return np.where(np.isfinite(scores), scores, -np.inf if better == "higher" else np.inf)


def standard_error(scores: Strata) -> float:
    """The standard error of `mean`: sqrt(sum over tasks of s^2 / n) / tasks, s with n - 1; NaN with one run."""
    if min(len(s) for s in scores) < 2:
        return float("nan")
    return float(np.sqrt(sum(s.var(ddof=1) / len(s) for s in scores)) / len(scores))


def student_interval(*samples: Strata, level: float = LEVEL) -> Interval:
    """Student's t interval of ``mean(x)``, or of ``mean(x) - mean(y)`` (Welch 1947).

    value -+ t sqrt(v), where v is the sum of v_i = s^2 / n / tasks^2 over the tasks of each sample and t has
    v^2 / sum(v_i^2 / (n - 1)) degrees of freedom (Satterthwaite). It covers a normal mean as often as it says, however
    few the runs; a bootstrap of 2 runs' mean covers it half the time.

    Raises:
        ValueError: a task with one run, which has no interval.
    """
    if min(len(s) for strata in samples for s in strata) < 2:
        raise ValueError("an interval needs at least 2 runs of each task")
    value = float(mean(samples[0])) - sum(float(mean(strata)) for strata in samples[1:])
    parts = np.array([(s.var(ddof=1) / len(s) / len(strata) ** 2, len(s) - 1) for strata in samples for s in strata])
    variances, freedom = parts.T
    total = variances.sum()
    if total == 0:
        return value, value
    shares = variances / total
    half = float(stdtrit(1 / (shares**2 / freedom).sum(), (1 + level) / 2) * np.sqrt(total))
    return value - half, value + half


def iqm(scores: Strata) -> Array:
    """Interquartile mean ``[*more]``: of all N runs of all tasks, the mean without the lowest and highest quarter.

    floor(N / 4) scores are left out at either end, whole ones, as in ``scipy.stats.trim_mean(x, 0.25)`` and so in
    rliable (Agarwal et al. 2021, section 4.3). Another definition weighs the scores at the two edges by fractions; the
    two agree where 4 divides N. With N < 4 nothing is left out: the IQM is the mean. NaN among the scores makes it NaN.
    """
    pooled = np.sort(np.concatenate(list(scores), axis=-1), axis=-1)
    out = pooled.shape[-1] // 4
    middle = pooled[..., out : pooled.shape[-1] - out].mean(-1)
    return np.where(np.isnan(pooled[..., -1]), np.nan, middle)  # sorted, NaN is last and would be left out as the best


def bootstrap_interval(statistic: Callable[..., Array], *samples: Strata, resamples: int = 10_000) -> Interval:
    """The stratified bootstrap's percentile interval of ``statistic(*samples)``.

    Runs are drawn with replacement within each task, and each sample for itself (Agarwal et al. 2021, section 4.1;
    Efron 1979). The interval holds 95 % of the resampled statistics, as much below it as above. It is a little
    too narrow for few runs: with 5, a nominal 95 % interval of a mean covers it about 84 % of the time. An end may be
    -inf where scores are.

    Args:
        statistic: of one strata for each sample, with a leading axis of resamples.

    Raises:
        ValueError: a task with one run, which has no interval.
    """
    if min(len(s) for strata in samples for s in strata) < 2:
        raise ValueError("an interval needs at least 2 runs of each task")
    rng = np.random.default_rng(0)
    drawn = [[s[rng.integers(len(s), size=(resamples, len(s)))] for s in strata] for strata in samples]
    values = statistic(*drawn)
    # Between -inf and a number there is nothing to interpolate.
    method: Literal["linear", "inverted_cdf"] = "linear" if np.isfinite(values).all() else "inverted_cdf"
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method=method)
    return float(low), float(high)


def mean_curve(curves: Array) -> tuple[Array, Array, Array]:
    """Mean over runs at each step, and the ends of Student's t interval of it: ``[n, steps] -> 3 x [steps]``.

    Values that are not finite are left out; NaN where no value is left, and for the ends where it is only one.
    """
    finite = np.isfinite(curves)
    n = finite.sum(0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        means = np.where(finite, curves, 0).sum(0) / n
        variance = (np.where(finite, curves - means, 0) ** 2).sum(0) / (n - 1)
        half = stdtrit(np.maximum(n - 1, 1), (1 + LEVEL) / 2) * np.sqrt(variance / n)
    return means, means - half, means + half


def probability_of_improvement(x: Strata, y: Strata) -> Array:
    """The probability that a run of `x` scores above one of `y` on a task drawn at random, ``[*more]``.

    Mean over tasks of the mean over all pairs of 1 if x > y, 1/2 if they tie, else 0: the Mann-Whitney U statistic
    over its maximum (Agarwal et al. 2021, section 4.3). Runs are not paired.
    """
    pairs = []
    for a, b in zip(x, y, strict=True):
        a, b = a[..., :, None], b[..., None, :]
        pairs.append(((a > b).mean((-2, -1)) + (a >= b).mean((-2, -1))) / 2)
    return np.asarray(np.mean(pairs, axis=0))


def paired_differences(x: Mapping[int, float], y: Mapping[int, float]) -> Array:
    """x - y for each seed that both have, ``[seeds]``, by rising seed."""
    return np.array([x[seed] - y[seed] for seed in sorted(x.keys() & y.keys())])


def differences_of_pairs(x: Sequence[Mapping[int, float]], y: Sequence[Mapping[int, float]]) -> list[Array]:
    """x - y of each task by seed; empty unless most runs of each task have a partner of the same seed.

    A few pairs say nothing of many runs without a partner.
    """
    found = [paired_differences(a, b) for a, b in zip(x, y, strict=True)]
    most = all(2 * len(d) > max(len(a), len(b)) for d, a, b in zip(found, x, y, strict=True))
    return found if most else []


def permutation_p(*samples: Strata, resamples: int = 20_000, seed: int = 0) -> float:
    """The two-sided p-value of a permutation test of ``mean(x)``, or of ``mean(x) - mean(y)`` (Fisher 1935).

    By chance alone each difference has either sign, and each run may belong to either sample of its task. It is right
    for any distribution of the scores, while Student's interval of a few runs that happen to be alike is too narrow.
    At best it is 2 / 2^n with n differences, and 2 / binomial(n + m, n) with n and m runs of a task.
    """
    rng = np.random.default_rng(seed)
    if len(samples) == 1:
        drawn = mean([s * rng.choice([-1, 1], (resamples, len(s))) for s in samples[0]])
        found = mean(samples[0])
    else:
        both = [np.concatenate(of_task) for of_task in zip(*samples, strict=True)]
        mixed = [rng.permuted(np.tile(scores, (resamples, 1)), axis=1) for scores in both]
        first = [len(s) for s in samples[0]]
        drawn = mean([s[:, :n] for s, n in zip(mixed, first, strict=True)])
        drawn = drawn - mean([s[:, n:] for s, n in zip(mixed, first, strict=True)])
        found = mean(samples[0]) - mean(samples[1])
    return float((1 + (np.abs(drawn) >= abs(found) * (1 - 1e-9)).sum()) / (resamples + 1))


def value_at(steps: Steps, values: Array, at: Steps | Array | float) -> Array:
    """The latest value at or before each of the steps `at`; NaN before the first."""
    last = np.searchsorted(steps, at, side="right") - 1
    return np.where(last >= 0, values[last], np.nan)


def area_under_curve(steps: Steps, values: Array) -> float:
    """The mean of the values, each weighted by the stretch since the step before it; the first as the second.

    It is the area under the curve over its length. Where evaluations are equally spaced it is their mean. Others
    integrate by trapezoids, which gives the first and the last value half the weight.
    """
    stretches = np.diff(steps)
    weights = np.concatenate([stretches[:1], stretches]) if len(stretches) else np.ones(1)
    return float((weights / weights.sum() * values).sum())


def steps_to_reach(steps: Steps, values: Array, target: float) -> float:
    """The first step at which the value is `target` or more; infinity if there is none."""
    reached = np.flatnonzero(values >= target)
    return float(steps[reached[0]]) if len(reached) else float("inf")
