"""The runs that one process trains: the members of a list in `reg` or `reset` train side by side."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl_plasticity.configs import presets
from rl_plasticity.configs.commands import ONCE, Group, Several, Supervised, Train, called
from rl_plasticity.errors import SettingsError, counted, nearest, say
from rl_plasticity.interventions import Intervention, make_intervention
from rl_plasticity.regularizers import REGULARIZERS, Chain, Regularizer, SideBySide, make_regularizer
from rl_plasticity.runs.names import RunName
from rl_plasticity.settings import settings_of

Chosen = tuple[Intervention, list[int] | None]  # an intervention, and the runs it is for (None: all)
Differences = tuple[tuple[str, str], ...]  # the settings of a run that others do not have
LEARNS_AGAIN = 0.1  # of a period: a run that ends sooner after a reset is evaluated before it has learned again


@dataclass(frozen=True)
class Plan:
    """The runs of one process, in their order along the runs axis of every tensor.

    Args:
        names: each run's name in ``metrics.csv``.
        seeds: each run's seed. Every variant has the same seeds, so that variants can be compared in pairs.
        make_regularizer: makes the regularizer of all runs from their network.
        interventions: each with the positions of its runs (None: all).
        groups: the settings of each run's regularizer.
    """

    names: Sequence[RunName]
    seeds: Sequence[int]
    make_regularizer: Callable[..., Regularizer]
    interventions: Sequence[Chosen]
    groups: Sequence[Group] = ()

    @classmethod
    def of(cls, s: Train | Supervised) -> "Plan":
        """The plan of these settings.

        Raises:
            ValueError: an intervention cannot be made.
        """
        every = variants(s)
        seeds = range(s.seed, s.seed + s.seeds)
        return cls(
            names=[RunName(variant.settings, seed) for variant in every for seed in seeds],
            seeds=[*seeds] * len(every),
            make_regularizer=_regularizer_maker([variant.reg for variant in every], s.seeds),
            interventions=_interventions([variant.reset for variant in every], s.seeds, s.reset_once_after_updates),
            groups=[variant.reg for variant in every for _ in seeds],
        )

    @property
    def side_by_side(self) -> list[int]:
        """The number of runs of each regularizer side by side."""
        return [len(alike) for alike in _alike(self.groups)]

    def chosen(self, seed: int | None, run: int | None) -> list[int]:
        """The positions of the runs of this seed (one for each variant side by side), at this position, or all.

        Raises:
            SettingsError: there is none.
        """
        if run is not None and run >= len(self.seeds):
            raise SettingsError(
                f"there is no run={run}: the folder has {counted(len(self.seeds), 'run')}, counted from 0"
            )
        runs = [i for i, other in enumerate(self.seeds) if seed in (None, other) and run in (None, i)]
        if not runs:
            raise SettingsError(f"there is no run with seed={seed}{nearest(seed, map(str, sorted(set(self.seeds))))}")
        return runs

    def without_interventions(self, runs: slice) -> "Plan":
        """The plan of these runs, without interventions."""
        groups = self.groups[runs]
        return Plan(self.names[runs], self.seeds[runs], _regularizer_maker(groups, 1), (), groups)


class Variant(NamedTuple):
    """The method of one run for each seed: the groups `reg` and `reset` without lists."""

    settings: Differences
    reg: Group
    reset: Group


def variants(s: Train | Supervised) -> list[Variant]:
    """Every combination of the members of the lists in `reg` and `reset`, in the order of the runs."""
    return [
        Variant((*of_reg, *of_reset), reg, reset)
        for of_reg, reg in _members("reg", s.reg)
        for of_reset, reset in _members("reset", s.reset)
    ]


def _members(name: str, group: Group) -> Iterator[tuple[Differences, Group]]:
    """Each choice of one member from every list of the group `name`: the chosen settings, and the group with them."""
    for member in group.side_by_side:
        choice = ((f"{name}.name", member.name),) if member is not group else ()
        lists = {setting: values for setting, values in member.settings.items() if isinstance(values, Several)}
        # Strengths vary fastest: neighbours that differ in nothing else make one regularizer.
        settings = sorted(lists, key=(_strengths(member) if name == "reg" else []).__contains__)
        for values in itertools.product(*(lists[setting] for setting in settings)):
            own = dict(zip(settings, values, strict=True))
            written = ((f"{name}.{setting}", str(value)) for setting, value in own.items())
            yield (*choice, *written), Group(member.name, {**member.settings, **own})


def foretold(s: Train | Supervised, plan: Plan, updates: float, length: str) -> list[str]:
    """Lines that announce a run: its seeds, number of updates, and folder.

    Args:
        updates: number of updates of each run.
        length: length of each run in words: ``3000 env steps``.
    """
    seeds = f"seed {s.seed}" if s.seeds == 1 else f"seeds {s.seed} to {s.seed + s.seeds - 1}"
    several = [name.group for name in plan.names[:: s.seeds] if name.group]
    lines = [f"{counted(len(plan.names), 'run')}: {seeds}" + (f" for each of {'; '.join(several)}" if several else "")]
    lines.append(f"{counted(updates, 'update')} per run, in {length}, on {s.device}")
    if left_out := presets.leaves_out(called(type(s)), s.preset):
        chosen = {name for variant in variants(s) for group in variant[1:] for name in group.name.split("+")}
        papers = presets.settings_of("train", s.preset).items()
        own = [f"{group}={name}" for group, name in papers if group in ("reg", "reset") and name not in chosen]
        lines.append(f"{s.preset} here leaves out {', '.join([*own, left_out])}")
    return [*lines, *([f"branched from {s.from_} at {s.at}"] if s.from_ else []), f"results in {s.out}"]


def warn_of_what_never_comes(plan: Plan, updates: float, tasks: int) -> None:
    """Print a line for each period that is longer than a run, and for a last reset that comes at a run's very end."""
    length = f"the run has {counted(updates, 'update')}, {counted(tasks, 'task')}"
    for intervention, _ in plan.interventions:
        every, every_tasks, once = intervention.every_updates, intervention.every_tasks, intervention.at_updates
        of = {"reset.every_updates": every, "reset.every_tasks": every_tasks, ONCE: min(once, default=None)}
        periods = ", ".join(f"{name}={value}" for name, value in of.items() if value is not None)
        left = updates % every if every and every <= updates else None
        if left is None and not (every_tasks and every_tasks < tasks) and not any(n <= updates for n in once):
            say(f"no reset will happen: {periods}; {length}")
        elif every and left is not None and left < LEARNS_AGAIN * every and intervention.forgets:
            say(f"the last reset comes {counted(left, 'update')} before the end: {periods}; {length}")
    longest = {n: v for reg in plan.groups for n, v in reg.settings.items() if n.endswith("every_updates")}
    for name, value in longest.items():
        if value > updates > 0:
            say(f"reg.{name}={value} is never reached: {length}")


def _regularizer_maker(groups: Sequence[Group], seeds: int) -> Callable[..., Regularizer]:
    """A function that makes the regularizer of all runs, with `seeds` runs for each group of settings.

    Neighbours that differ in strengths alone make one regularizer with a strength for each run.
    """
    parts: list[tuple[int, Callable[..., Regularizer]]] = []
    for alike in _alike(groups):
        strengths = {key: [reg.settings[key] for reg in alike] for key in _strengths(alike[0])}
        varied = {
            key: torch.tensor(values).repeat_interleave(seeds)
            for key, values in strengths.items()
            if len({*values}) > 1
        }
        parts.append((len(alike) * seeds, partial(_regularizer, reg=alike[0], strengths=varied)))
    if len(parts) == 1:
        return parts[0][1]
    return lambda net: SideBySide(net, *parts)


def _alike(groups: Sequence[Group]) -> list[list[Group]]:
    """Neighbours that differ in strengths alone."""

    def apart_from_strengths(reg: Group) -> Group:
        return replace(reg, settings={k: v for k, v in reg.settings.items() if k not in _strengths(reg)})

    return [list(neighbours) for _, neighbours in itertools.groupby(groups, apart_from_strengths)]


def _strengths(reg: Group) -> list[str]:
    """The settings for which a regularizer takes a tensor with one value for each run."""
    if reg.chained:
        return []
    return [name for name, declared in settings_of(REGULARIZERS[reg.name]).items() if "Tensor" in declared.kinds]


def _regularizer(net: nn.Module, reg: Group, strengths: Mapping[str, Tensor]) -> Regularizer:
    if reg.chained:
        return Chain(net, *(_regularizer(net, one, {}) for one in reg.chained))
    return make_regularizer(reg.name, net, **{**reg.settings, **strengths})


def _interventions(groups: Sequence[Group], seeds: int, once: int | None) -> list[Chosen]:
    """One intervention for all runs with equal settings.

    Args:
        once: the number of updates after which each acts, in place of its periods.

    Raises:
        SettingsError: `once` is given, but there is no intervention; or one would never act.
    """
    if once is not None and all(reset.name == "none" for reset in groups):
        raise SettingsError(f"{ONCE}={once} needs an intervention: reset=NAME")
    interventions: list[Chosen] = []
    for i, reset in enumerate(groups):
        equal = [j for j, other in enumerate(groups) if other == reset]
        if reset.name == "none" or equal[0] < i:
            continue
        runs = [j * seeds + seed for j in equal for seed in range(seeds)]
        made = make_intervention(reset.name, **reset.settings)
        if once is not None:
            made.every_updates, made.every_tasks, made.at_updates = None, None, {once}
        elif made.every_updates is None and made.every_tasks is None and not made.at_updates:
            raise SettingsError(f"reset={reset.name} needs every_updates or every_tasks, got neither")
        interventions.append((made, None if len(equal) == len(groups) else runs))
    return interventions
