"""The runs that one process trains: the members of a list in `reg` or `reset` train side by side."""

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from rl_plasticity.configs.commands import ONCE, Group, Several, Supervised, Train
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.interventions import Intervention, make_intervention
from rl_plasticity.regularizers import REGULARIZERS, Chain, Regularizer, SideBySide, make_regularizer
from rl_plasticity.runs import memory
from rl_plasticity.runs.names import RunName
from rl_plasticity.settings import settings_of

LEARNS_AGAIN = 0.1  # of a period; a run that ends sooner after a reset is evaluated before it has learned again


@dataclass(frozen=True)
class Plan:
    """The runs of one process, in their order along the runs axis of every tensor.

    Args:
        names: each run's name in ``metrics.csv``.
        seeds: each run's seed. Every variant has the same seeds, so that variants can be compared in pairs.
        regularize: from a network to the regularizer of all runs.
        interventions: each with the positions of its runs (None: all).
        groups: the settings of each run's regularizer.
    """

    names: Sequence[RunName]
    seeds: Sequence[int]
    regularize: Callable[..., Regularizer]
    interventions: Sequence[tuple[Intervention, list[int] | None]]
    groups: Sequence[Group] = ()

    @classmethod
    def of(cls, s: Train | Supervised) -> "Plan":
        """The plan of these settings.

        Raises:
            ValueError: an intervention cannot be made, or there are more runs than memory could ever hold.
        """
        every = variants(s)
        require_countable(s)
        seeds = range(s.seed, s.seed + s.seeds)
        return cls(
            names=[RunName(variant.settings, seed) for variant in every for seed in seeds],
            seeds=[*seeds] * len(every),
            regularize=_regularize([variant.reg for variant in every], s.seeds),
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
            raise SettingsError(f"no run={run}: the folder has {len(self.seeds)}, counted from 0")
        runs = [i for i, other in enumerate(self.seeds) if seed in (None, other) and run in (None, i)]
        if not runs:
            raise SettingsError(f"no run with seed={seed}{nearest(seed, map(str, sorted(set(self.seeds))))}")
        return runs

    def some(self, runs: slice) -> "Plan":
        """The plan of some of the runs, without interventions."""
        groups = self.groups[runs]
        return Plan(self.names[runs], self.seeds[runs], _regularize(groups, 1), (), groups)


class Variant(NamedTuple):
    """The method of one run for each seed: the groups `reg` and `reset` without lists."""

    settings: tuple[tuple[str, str], ...]  # its differences from other variants; empty if there is only one
    reg: Group
    reset: Group


def variants(s: Train | Supervised) -> list[Variant]:
    """Every combination of the members of the lists in `reg` and `reset`, in the order of the runs."""
    return [
        Variant((*of_reg, *of_reset), reg, reset)
        for of_reg, reg in _members("reg", s.reg)
        for of_reset, reset in _members("reset", s.reset)
    ]


def _members(name: str, group: Group) -> Iterator[tuple[tuple[tuple[str, str], ...], Group]]:
    """Each choice of one member from every list of the group `name`: the chosen settings, and the group with them."""
    for member in group.members:
        choice = ((f"{name}.name", member.choice),) if member is not group else ()
        flat = member.flat(name)
        lists = {setting: values for setting, values in flat.items() if isinstance(values, Several)}
        # Strengths vary fastest: neighbours that differ in nothing else make one regularizer.
        settings = sorted(lists, key=lambda setting: lists[setting].is_strength)
        for values in itertools.product(*(lists[setting] for setting in settings)):
            own = dict(zip(settings, values, strict=True))
            written = ((setting, str(value)) for setting, value in own.items())
            yield (*choice, *written), member.having(flat | own, name)


def foretold(s: Train | Supervised, plan: Plan, updates: float, length: str) -> list[str]:
    """Lines that announce the run: which runs, how many updates, how often they are evaluated, and the folder.

    There is no line about updates if none are made. A branch has one more, with the run that it came from.

    Args:
        updates: number of updates of each run.
        length: length of each run in words: ``3000 env steps``.
    """
    crossed = _crossed([*dict.fromkeys(name.settings for name in plan.names)])
    seeds = f"seed {s.seed}" if s.seeds == 1 else f"seeds {s.seed} to {s.seed + s.seeds - 1}"
    number = len(plan.names)
    unit, episodes = ("env_steps", s.eval_episodes) if isinstance(s, Train) else ("epochs", 0)
    periods = {word: getattr(s, f"{word}_every_updates") for word in ("measure", "log")}
    words = {"measure": "plasticity is measured", "log": "losses are logged"}
    often = [f"{words[word]} every {every} updates" if 0 < every <= updates else "" for word, every in periods.items()]
    if isinstance(s, Supervised) and s.measure_every_epochs:
        often[0] = f"{words['measure']} every {s.measure_every_epochs} epochs"
    elif isinstance(s, Supervised) and often[0]:
        often[0] = f"{words['measure']} at the end of a task, at most every {s.measure_every_updates} updates"
    elif periods["measure"] > updates >= 1:
        often[0] = f"{words['measure']} at the start {'only' if isinstance(s, Train) else 'and the end only'}"
    if (every := s.diagnose_every_updates) and every <= updates:
        often.append(f"trainability is tried every {every} updates")
    of_episodes = f" (episodes: {episodes})" if episodes else ""
    often.append(
        f"evaluated every {getattr(s, f'eval_every_{unit}')} {unit.replace('_', ' ')}{of_episodes} and at the end"
    )
    lines = [
        f"{number} {'run' if number == 1 else 'runs at once'}: {' x '.join(filter(None, [crossed, seeds]))}",
        f"updates of each: {updates:.0f}, in {length}" if updates >= 1 else "",
        ", ".join(filter(None, often)),
        f"branched from {s.from_} at {s.at}" if s.from_ else "",
        f"results in {s.out}",
    ]
    return [*filter(None, lines)]


def _crossed(variants: Sequence[tuple[tuple[str, str], ...]]) -> str:
    """``reg=none,swr x reset=none,periodic``; if not all are combined, ``(reg=none | reg=swr x reg.coef=1,2)``."""
    lists: dict[str, dict[str, None]] = {}
    for setting, value in itertools.chain(*variants):
        lists.setdefault(setting, {})[value] = None
    if math.prod(map(len, lists.values())) == len(variants):  # every combination is there
        return " x ".join(f"{setting.removesuffix('.name')}={','.join(values)}" for setting, values in lists.items())
    # Divide by the first setting. Its values that are combined with the same rest share an alternative.
    first = next(iter(lists))
    rests: dict[str, list[str]] = {}  # the values, by the text of the rest
    for value in lists[first]:
        rests.setdefault(_crossed([v[1:] for v in variants if v[0] == (first, value)]), []).append(value)
    lines = [
        [f"{first.removesuffix('.name')}={','.join(values)}", *filter(None, [rest])] for rest, values in rests.items()
    ]
    return f"({' | '.join(map(' x '.join, lines))})"


def say_what_never_comes(
    s: Train | Supervised,
    plan: Plan,
    regularizers: Mapping[str, Regularizer],
    updates: float,
    tasks: int,
) -> None:
    """Print a line for each setting that does nothing, or comes too late, in a run of this length.

    Args:
        regularizers: of each network.
        updates, tasks: of each run.
    """
    names = {choice: prefix for prefix, choice in s.reset.leaves("reset")}
    named = [names[reset.name] for reset in _each_once([variant.reset for variant in variants(s)])]
    lines = [*_late_resets(zip(named, plan.interventions, strict=True), updates, tasks)]
    lines += [*_late_rows(s, updates, tasks), *_late_actions(regularizers, updates, s.batch_size)]
    for line in lines:
        print(line, file=sys.stderr)


def _late_resets(
    interventions: Iterable[tuple[str, tuple[Intervention, Any]]], updates: float, tasks: int
) -> Iterator[str]:
    """Interventions whose period is longer than the run, or whose last reset comes right at the end.

    The networks that are evaluated and compared at the end have then learned nothing since.

    Args:
        interventions: each after the beginning of its settings' names: ``reset``, in a list ``reset.periodic``.
    """
    for name, (intervention, _) in interventions:
        every, every_tasks = intervention.every_updates, intervention.every_tasks
        if every and every <= updates and intervention.forgets and updates % every < LEARNS_AGAIN * every:
            number, left = divmod(updates, every)
            yield (
                f"the last reset comes {left:.0f} updates before the end: {name}.every_updates={every}, and the run "
                f"has {updates:.0f}; what is evaluated at the end has learned next to nothing since "
                f"({name}.every_updates={updates / (number + 0.5):.0f} leaves half a period)"
            )
        comes = (every and every <= updates) or (every_tasks and every_tasks < tasks)
        if (every or every_tasks) and not comes:
            words = [f"{name}.every_updates={every} (the run has {updates:.0f})"] if every else []
            has = f"{tasks} {'task' if tasks == 1 else 'tasks'}"
            words += [f"{name}.every_tasks={every_tasks} (it has {has})"] if every_tasks else []
            yield f"no reset will come: {' and '.join(words)}"
        if not (every or every_tasks) and (late := [n for n in intervention.at_updates if n > updates]):
            yield f"no reset will come: {ONCE}={late[0]} (the run has {updates:.0f})"


def _late_rows(s: Train | Supervised, updates: float, tasks: int) -> Iterator[str]:
    """Periods so long that nothing is seen between the start and the end of the run."""
    most = {"log_every_updates": ("no loss will be logged", updates)}
    seen = "plasticity will be measured at the start and at most once later"
    if isinstance(s, Train):
        most["measure_every_updates"] = (seen, updates / 2)
    elif tasks > 1 and not s.measure_every_epochs:  # at the ends of tasks; the last one always counts
        most["measure_every_updates"] = (seen, updates * (tasks - 1) / tasks)
    if (every := s.diagnose_every_updates) and every > updates >= 1:
        given = f"diagnose_every_updates={every}"
        yield f"trainability will not be tried after the start: {given}, and the run has {updates:.0f} updates"
    for setting, (what, longest) in most.items():
        every = getattr(s, setting)
        if every != "auto" and every > longest and updates >= 1:
            remedy = f"{setting}=auto takes a sixtieth of them"
            yield f"{what}: {setting}={every}, and the run has {updates:.0f} updates; {remedy}"


def _late_actions(regularizers: Mapping[str, Regularizer], updates: float, batch_size: int) -> Iterator[str]:
    """Methods whose first action would come after the run, with the networks that this is true of."""
    said: dict[str, list[str]] = {}
    for network, regularizer in regularizers.items():
        for method in _methods(regularizer) if updates >= 1 else ():
            first = method.first_update(batch_size)
            late = first > updates
            if not late.any():
                continue
            kind = type(method)
            name = next((name for name, known in REGULARIZERS.items() if known is kind), kind.__name__)
            when = "never comes" if first.isinf().any() else f"comes at update {first.max():.0f}"
            some = "" if late.all() else f" in {late.sum()} of {late.numel()} runs"
            said.setdefault(f"the first action of {name} {when}{some}", []).append(network)
    for what, networks in said.items():
        yield f"{what}, and the run has {updates:.0f} ({', '.join(networks)})"


def _methods(regularizer: Regularizer) -> Iterator[Regularizer]:
    """The methods that it is made of."""
    if isinstance(regularizer, Chain | SideBySide):
        for part in regularizer.parts:
            yield from _methods(cast(Regularizer, part))
    else:
        yield regularizer


def require_countable(s: Train | Supervised) -> None:
    """Raises SettingsError if the runs cannot fit into memory, whatever they are; even to list them would take long."""
    memory.require(s.seeds * len(variants(s)), {f"random states, seeds={s.seeds}": memory.A_RUN})


def _regularize(groups: Sequence[Group], seeds: int) -> Callable[..., Regularizer]:
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
    if reg.parts:
        return []
    return [name for name, declared in settings_of(REGULARIZERS[reg.name]).items() if "Tensor" in declared.kinds]


def _regularizer(net: nn.Module, reg: Group, strengths: Mapping[str, Tensor]) -> Regularizer:
    if reg.parts:
        return Chain(net, *(_regularizer(net, part, {}) for part in reg.parts))
    return make_regularizer(reg.name, net, **{**reg.settings, **strengths})


def _interventions(
    groups: Sequence[Group], seeds: int, once: int | None
) -> list[tuple[Intervention, list[int] | None]]:
    """One intervention for all runs with equal settings.

    Args:
        once: the number of updates after which each acts, in place of its periods.

    Raises:
        SettingsError: `once` is given, but there is no intervention.
    """
    if once is not None and all(reset.name == "none" for reset in groups):
        raise SettingsError(f"{ONCE}={once} needs an intervention: reset=NAME")
    interventions: list[tuple[Intervention, list[int] | None]] = []
    for reset in _each_once(groups):
        equal = [j for j, other in enumerate(groups) if other == reset]
        runs = [j * seeds + seed for j in equal for seed in range(seeds)]
        made = make_intervention(reset.name, **reset.settings)
        if once is not None:
            made.every_updates, made.every_tasks, made.at_updates = None, None, {once}
        interventions.append((made, None if len(equal) == len(groups) else runs))
    return interventions


def _each_once(resets: Sequence[Group]) -> list[Group]:
    """The different resets in their order, without ``none``."""
    return [reset for i, reset in enumerate(resets) if reset.name != "none" and reset not in resets[:i]]
