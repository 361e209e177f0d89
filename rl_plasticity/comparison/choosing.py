"""Chooses each method's settings: by validation images, or by seeds that are then left out of the comparison."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from rl_plasticity.comparison import steps
from rl_plasticity.comparison.groups import Group, differing, identity
from rl_plasticity.comparison.summary import (
    Comparison,
    better_of,
    candidates_of,
    counted,
    default_metric,
    undecided,
)
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.metrics import Direction, statistics
from rl_plasticity.runs.names import short

SHOWN = 5  # so many of the others are named


def choose(
    groups: Sequence[Group],
    settings: Sequence[str],
    metric: str | None,
    warnings: list[str],
    seeds: Collection[int] = (),
    direction: Direction | None = None,
) -> tuple[list[Group], str, list[Comparison]]:
    """Of groups that differ in nothing but `settings` the best one.

    An accuracy on test images is chosen by the same accuracy on validation images, every other metric by itself. Means
    are over seeds (and tasks that are mixed), at the last step that all groups of the choice have: the step at which
    `compare` compares. Of equal means the first in the groups' order counts. A group with a run that is not finite is
    only chosen where the others have one too.

    Args:
        settings: names of settings, ``reg.coef``.
        metric: what will be compared.
        warnings: added to, also where the runs that decide are the runs that are compared.
        seeds: those that decide; they are left out of the groups that are returned. Empty: all decide.
        direction: which values count as better; default: as the metric says, else higher.

    Returns:
        The groups that are left, in their order; a sentence for each choice: what was chosen from what, and whether
        the seeds decide it; and the candidates of each.

    Raises:
        SettingsError: a run has no validation metric, a group has none of the seeds or no other, or there is nothing to
            choose.
    """
    metric = metric or default_metric(groups)
    by = metric.replace("/test_", "/validation_") if metric.endswith("/test_accuracy") else metric
    sign = -1 if (direction or better_of(metric)) == "lower" else 1
    for run in (r for g in groups for r in g.runs if by not in r.curves):
        missing = "train with data.validation=N, or leave it out" if by != metric else "leave it out"
        raise SettingsError(f"choose needs {by}, which {run} has not: {missing}")
    families = _families(groups, settings)
    unit = groups[0].runs[0].unit(by)
    if by == metric and not seeds:
        warnings.append(
            "the runs that are compared made the choice too, which flatters methods with more settings to choose from; "
            "choose_seeds=N,... lets other seeds decide"
        )
    chosen, told, candidates = [], [], []
    for family in families:
        if len(family) == 1:
            chosen += family
            continue
        deciding = [_of_seeds(g, seeds) for g in family] if seeds else family
        scores, at = _scores(deciding, by, unit, sign, warnings)
        order = np.argsort(-scores, kind="stable")
        best, *others = (f"{family[i].label} ({sign * scores[i]:.4g})" for i in order)
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        numbers = sorted({len(runs) for g in deciding for runs in g.tasks.values()})
        of = counted(numbers[-1], "seed") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"
        warnings += _at_the_edge(family, family[order[0]])
        ordered = candidates_of([deciding[i] for i in order], by, unit, "lower" if sign < 0 else "higher")
        candidates.append(ordered)
        told.append(f"{best} from {', '.join(others[:SHOWN])}{more}, by {by} of {of} at {at}{undecided(ordered)}")
        chosen.append(family[order[0]])
    kept = [g for g in groups if any(g is one for one in chosen)]
    if seeds:
        kept = [_of_seeds(g, {run.seed for run in g.runs}.difference(seeds)) for g in kept]
    return kept, f"Chosen: {'; '.join(told)}. ", candidates


def _families(groups: Sequence[Group], settings: Sequence[str]) -> list[list[Group]]:
    """The groups that differ in nothing but `settings`, together."""
    differ = differing([g.settings for g in groups])
    for setting in settings:
        if setting not in differ:
            raise SettingsError(f"choose: no two groups differ in {setting!r}{nearest(setting, differ)}")
    families: dict[object, list[Group]] = defaultdict(list)
    for g in groups:
        families[identity(g.settings, settings)].append(g)
    if len(families) == len(groups):
        raise SettingsError(f"choose={','.join(settings)}: no two groups differ in nothing else")
    return [*families.values()]


def _at_the_edge(family: Sequence[Group], best: Group) -> list[str]:
    """A warning for each number that is the smallest or the largest of three or more that there were."""
    said = []
    for name in differing([g.settings for g in family]):
        values = [g.settings.get(name) for g in family]
        numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        if len(numbers) == len(values) and len({*numbers}) > 2 and (value := float(best.settings[name])):
            for end, what in ((min(numbers), "smallest"), (max(numbers), "largest")):
                if value == end:
                    said.append(f"{best.label}: {name}={short(value)} is the {what} tried; a better one may lie beyond")
    return said


def _of_seeds(g: Group, seeds: Collection[int]) -> Group:
    """The group with only the runs of these seeds.

    Raises:
        SettingsError: it has none.
    """
    tasks = {task: [run for run in runs if run.seed in seeds] for task, runs in g.tasks.items()}
    if not all(tasks.values()):
        had = ", ".join(map(str, sorted({run.seed for run in g.runs})))
        raise SettingsError(f"choose_seeds: of {g.label}, with seeds {had}, some must decide and others be compared")
    return replace(g, tasks=tasks)


def _scores(family: Sequence[Group], metric: str, unit: str, sign: int, warnings: list[str]) -> tuple[np.ndarray, str]:
    """The mean of each group times `sign`, -inf with a run that is not finite; and the step that they are of."""
    tasks = [task for task in family[0].tasks if all(task in g.tasks for g in family)]
    if not tasks:
        raise SettingsError(f"choose: no task has runs of all of {', '.join(g.label for g in family)}")
    last = {task: steps.compared(family, task, metric, unit, warnings)[-1:] for task in tasks}
    means = [
        [
            statistics.worst(sign * np.array([steps.at(r.curves[metric], last[t])[0] for r in g.tasks[t]])).mean()
            for t in tasks
        ]
        for g in family
    ]
    ends = sorted({int(step[0]) for step in last.values()})
    return np.mean(means, axis=1), f"{unit} {ends[0]}" if len(ends) == 1 else f"the last common {unit} of each task"
