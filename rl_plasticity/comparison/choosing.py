"""Chooses each method's settings: by validation images, or by seeds that are then left out of the comparison."""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from rl_plasticity.comparison.groups import Group, differing, identity, is_number
from rl_plasticity.comparison.summary import Comparison, better_of, candidates_of, default_metric
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.metrics import Direction
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
    """Keep the best of the groups that differ in nothing but `settings`.

    An accuracy on test images is chosen by the same accuracy on validation images, every other metric by itself. Groups
    are compared by their means, as `candidates_of` describes.

    Args:
        settings: names of settings, ``reg.coef``.
        metric: what will be compared.
        warnings: a list that the warnings are added to. One of them says when the runs that decide are also compared.
        seeds: the seeds that decide; the groups that are returned do not have them. Empty: all seeds decide.
        direction: which values count as better; default: what the metric says, else higher.

    Returns:
        The groups that are left, in their order; what was chosen from what, and whether the seeds decide it; and the
        candidates of each choice.

    Raises:
        SettingsError: a run has no validation metric, a group has none of the seeds or no other, or there is nothing to
            choose.
    """
    metric = metric or default_metric(groups)
    by = metric.replace("/test_", "/validation_") if metric.endswith("/test_accuracy") else metric
    for run in (r for g in groups for r in g.runs if by not in r.curves):
        missing = "train with data.validation=N, or leave it out" if by != metric else "leave it out"
        raise SettingsError(f"choose needs {by}, which {run} has not: {missing}")
    families = _families(groups, settings)
    if by == metric and not seeds:
        warnings.append(
            "the runs that are compared made the choice too, which flatters methods with more settings to choose from; "
            "choose_seeds=N,... lets other seeds decide"
        )
    direction = direction or better_of(metric) or "higher"
    chosen, told, candidates = set(), [], []
    for family in families:
        best = family[0]
        if len(family) > 1:
            deciding = [_of_seeds(g, seeds) for g in family] if seeds else family
            choice, means = candidates_of(deciding, by, direction, warnings)
            best = choice.rows[0].group
            warnings += _at_the_edge(family, best)
            candidates.append(choice)
            told.append(_told(choice, means))
        chosen.add(best.label)
    kept = [g for g in groups if g.label in chosen]
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


def _told(choice: Comparison, means: Sequence[float]) -> str:
    """What was chosen from what and by what, and that the seeds do not decide it where they do not."""
    best, *others = (f"{row.label} ({mean:.4g})" for row, mean in zip(choice.rows, means, strict=True))
    more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
    text = f"{best} from {', '.join(others[:SHOWN])}{more}, by {choice.metric} of {choice.seeds} at {choice.where}"
    following = choice.rows[1]
    if following.undecided and math.isfinite(following["gap"].value):
        text += f"; the next is {choice.difference(following, 'it')}"
    return text


def _at_the_edge(family: Sequence[Group], best: Group) -> list[str]:
    """A warning for each setting of the best group that is the smallest or the largest of three numbers or more."""
    said = []
    for name in differing([g.settings for g in family]):
        values: list[Any] = [g.settings.get(name) for g in family]
        if all(map(is_number, values)) and len({*values}) > 2 and (value := best.settings[name]):
            for end, what in ((min(values), "smallest"), (max(values), "largest")):
                if value == end:
                    said.append(f"{best.label}: {name}={short(value)} is the {what} tried; a better one may lie beyond")
    return said


def _of_seeds(g: Group, seeds: Collection[int]) -> Group:
    """The group with only the runs of these seeds.

    Raises:
        SettingsError: it has none.
    """
    left = g.only(lambda run: run.seed in seeds)
    if len(left.tasks) < len(g.tasks):
        had = ", ".join(map(str, sorted({run.seed for run in g.runs})))
        raise SettingsError(f"choose_seeds: of {g.label}, with seeds {had}, some must decide and others be compared")
    return left
