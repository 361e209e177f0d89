"""Sort runs into groups by their settings, name the groups, and refuse to mix what cannot be compared."""

import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rl_plasticity.comparison.loading import Run, Settings
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import BRANCH, ONCE, Supervised, Train
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.configs.presets import agents_of_papers
from rl_plasticity.configs.presets import names as names_of_presets
from rl_plasticity.configs.written import flat_values
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.paths import expanded
from rl_plasticity.runs.names import short

# Settings that do not change a run's numbers, or (threads, device) only their rounding.
IGNORED = {"seed", "seeds", "preset", *BRANCH}
IGNORED |= {n for kind in (Train, Supervised) for what in ("machine", "watched") for n in schema.marked(kind, what)}
FREE = tuple(group for group in KINDS if group not in ("env", "data"))  # choices whose settings may differ
STRATA = ("env", "task", "data")  # the settings of tasks, which are strata of the statistics where runs are mixed
# Settings that must be equal unless they are mixed on purpose.
TASK = {
    "train": ("env", "total_env_steps"),
    "supervised": ("task", "data", "net", "num_tasks", "epochs_per_task"),
}
OF_ENV = ("env.name", "env.sequence", "env.changes")  # the task's name tells all three
LENGTHS = ("total_env_steps", "num_tasks")
BRANCHED = "at"  # the setting that tells apart runs with equal settings that branched at other steps, or not at all
PLUGS = "plugins."  # begins the settings that hold a digest of a plug's code, which tell groups apart


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds and tasks.

    Args:
        label: the settings that differ from those of other groups, as short as is clear.
        settings: the settings that change results, which all its runs share.
        tasks: the runs of each task, by rising seed.
        never_reset: whether they have an intervention that had not come once by the step of the comparison.
    """

    label: str
    settings: Settings
    tasks: Mapping[str, Sequence[Run]]
    never_reset: bool = False

    @property
    def name(self) -> str:
        """The label in the words of a paper: ``no method``, ``LayerNorm + spectral``."""
        rest = method_in_words(re.sub(r" ?layer_norm=(true|false)", "", self.label).strip())
        if "layer_norm=true" in self.label:
            return "LayerNorm" if rest in ("", "no method") else f"LayerNorm + {rest}"
        without = "layer_norm=false" in self.label and rest != "no method"
        return ", ".join([rest] * bool(rest) + ["no LayerNorm"] * without)

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.tasks.values() for run in runs]

    def only(self, kept: Callable[[Run], bool]) -> "Group":
        """The group with some of its runs; tasks without any are left out."""
        tasks = {task: [run for run in runs if kept(run)] for task, runs in self.tasks.items()}
        return replace(self, tasks={task: runs for task, runs in tasks.items() if runs})

    @property
    def is_plain(self) -> bool:
        """Whether it has neither a regularizer nor an intervention."""
        return self.settings.get("reg.name") == self.settings.get("reset.name") == "none"


def method_in_words(label: str) -> str:
    """A method's label as figures show it: ``no method`` for ``none``, ``periodic`` for ``none + periodic``."""
    return re.sub(r"^none( \+ |$|(?= ))", lambda none: "no method" if none[1] == "" else "", label)


def group(runs: Sequence[Run], mix: Sequence[str] = (), leave_out: Sequence[str] = ()) -> list[Group]:
    """Sort runs into groups, ordered by regularizer, intervention and the other settings that differ.

    A run that is found twice with the same numbers counts once.

    Args:
        mix: task settings in which runs may differ, or whole groups of them: ``env.name``, ``task``.
        leave_out: groups to leave out, by label (``none``), or their runs in one folder (``results/a:none``).

    Raises:
        SettingsError: runs of both commands, runs of different tasks or lengths, or the same run with two different
            sets of numbers.
    """
    kinds = {run.kind: run for run in runs}
    if len(kinds) > 1:
        raise SettingsError(
            f"{kinds['train'].folder} is an RL run and {kinds['supervised'].folder} a supervised one: "
            "compare them separately"
        )
    names = dict.fromkeys(n for run in runs for n in run.settings if n not in IGNORED)
    task_settings = [n for n in names if any(_within(n, part) for part in TASK[runs[0].kind])]
    for m in mix:
        if not any(_within(name, m) for name in task_settings):
            valid = [*task_settings, *sorted({n.partition(".")[0] for n in task_settings if "." in n})]
            raise SettingsError(f"unknown task setting in mix: {m!r}{nearest(m, valid)}")
    allowed = {name for name in task_settings if any(_within(name, m) for m in mix)}
    differ = {name: other for name in task_settings if (other := _other(runs, name))}
    for name, other in differ.items():
        if name not in allowed:
            x, y = (short(run.settings.get(name)) for run in (runs[0], other))
            raise SettingsError(
                f"{name} differs: {x} in {runs[0].folder}, {y} in {other.folder}; "
                f"compare them separately, or together with mix={','.join([*mix, name])}"
            )
    strata = [name for name in differ if name.partition(".")[0] in STRATA]
    usual = ["env.name"] if "train" in kinds else ["task.name", "data.name", "net.name"]
    named = strata or [name for name in usual if name not in differ]  # a net that is mixed makes groups
    named = [*dict.fromkeys("env.name" if name in OF_ENV else name for name in named)]
    left_out = IGNORED | {*strata} | (allowed & {*LENGTHS})

    alike: dict[tuple[str, tuple[tuple[str, str], ...]], list[Run]] = defaultdict(list)
    for run in runs:
        alike[identity(run.settings, left_out)].append(run)
    apart = [
        (told | plugs, of_part)
        for of_group in alike.values()
        for told, of_branch in _by_branch(of_group)
        for plugs, of_part in _by_plugs(of_branch)
    ]
    shared = [{n: v for n, v in of_group[0].settings.items() if n not in left_out} | told for told, of_group in apart]
    order = differing(shared)
    called = labels(shared, [of_group[0].preset for _, of_group in apart])
    left = _without(leave_out, called, [of_group for _, of_group in apart])
    groups = []
    for label, settings, of_group in zip(called, shared, left, strict=True):
        tasks: dict[str, dict[int, Run]] = defaultdict(dict)
        for run in of_group:
            of_task = tasks[" ".join(_task(run.settings, name) for name in named)]
            of_task[run.seed] = _one_of(of_task[run.seed], run, label) if run.seed in of_task else run
        members = {task: [of_seed[seed] for seed in sorted(of_seed)] for task, of_seed in sorted(tasks.items())}
        groups += [Group(label, settings, members)] if members else []
    if not groups:
        raise SettingsError(f"leave_out={','.join(leave_out)} leaves no run")
    return sorted(
        groups,
        key=lambda g: (*map(_none_first, _base(g.settings)), [_sortable(g.settings.get(name)) for name in order]),
    )


def identity(s: Settings, left_out: Collection[str] = ()) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A value that is equal for equal settings, less those left out. The order of a chain of regularizers counts."""
    return _choice(s, "reg"), tuple(sorted((n, _canonical(v)) for n, v in s.items() if n not in left_out))


def differing(settings: Sequence[Settings]) -> list[str]:
    """The names of the settings that are not the same in all."""
    names = dict.fromkeys(name for s in settings for name in s)
    return [name for name in names if len({_canonical(s[name]) if name in s else None for s in settings}) > 1]


def labels(settings: Sequence[Settings], presets: Sequence[str] = ()) -> list[str]:
    """A short name for each group: ``spectral``, ``none + periodic``, ``spectral coef=1e-3``.

    The regularizer and the intervention come first, unless they are the same everywhere and something else differs. A
    setting of a choice (``reg.coef``) is named only where groups that made the same choice differ in it.

    Where the preset of a group is a paper's agent, its name stands for what it sets, and each label has only what
    differs from the group's own preset: ``xqc``, ``xqc spectral lr=1e-4``.
    """
    of_papers = {*presets} & {*agents_of_papers()}
    usual = {preset: _usual(preset) for preset in presets} if of_papers else {}
    differ = [name for name in differing(settings) if not _is_choice(name, ("reg", "reset"))]
    bases = [_base(s) for s in settings]
    with_base = len(set(bases)) > 1 or {*differ} <= {BRANCHED}
    lasts = [_last(name) for name in differ]
    made = []
    for s, base, preset in zip(settings, bases, presets or [""] * len(settings), strict=True):
        reg, reset = base
        parts = [reg if reset == "none" else f"{reg} + {reset}"] if with_base else []
        own = usual.get(preset, {})
        if preset in of_papers:
            parts = [preset, *(parts if base != _base(own) else [])]
        for name in differ:
            if name in s and name in own and _canonical(s[name]) == _canonical(own[name]):
                continue
            choice = "reset" if name == ONCE else name.partition(".")[0]
            if choice in FREE and not _is_choice(name, FREE):
                peers = [o.get(name) for o in settings if _choice(o, choice) == _choice(s, choice)]
                if name not in s or len({_canonical(v) for v in peers}) == 1:
                    continue
            if (name.startswith(PLUGS) or name == BRANCHED) and name not in s:
                continue
            key = _last(name) if lasts.count(_last(name)) == 1 else name
            parts.append(f"{key}={short(s.get(name))}")
        made.append(" ".join(parts))
    again = [made[:i].count(label) + 1 for i, label in enumerate(made)]  # a number and its text look alike
    return [label if n == 1 else f"{label} ({n})" for label, n in zip(made, again, strict=True)]


def _usual(preset: str) -> Settings:
    """The settings of a preset; none where it is not known here."""
    return dict(flat_values(schema.usual(Train, preset, {}).saved)) if preset in names_of_presets("train") else {}


def _task(s: Settings, name: str) -> str:
    """The name of a run's task; tasks that follow each other are ``walker-stand, walker-walk in turn``."""
    if name != "env.name":
        return short(s.get(name))
    sequence, changes = s.get("env.sequence") or (), s.get("env.changes") or ()
    text = f"{', '.join(sequence)} in turn" if sequence else short(s.get(name))
    return f"{text} ({', '.join(changes)} changing)" if changes else text


# ------------------------------------------------------------------------------------------------------------------


def _by_branch(runs: Sequence[Run]) -> list[tuple[Settings, list[Run]]]:
    """Separate runs with equal settings that branched at different steps, each part with its step."""
    parts: dict[int | None, list[Run]] = defaultdict(list)
    for run in runs:
        parts[run.settings.get("at")].append(run)
    several = len(parts) > 1
    return [({BRANCHED: at} if several and at is not None else {}, of_part) for at, of_part in parts.items()]


def _by_plugs(runs: Sequence[Run]) -> list[tuple[Settings, list[Run]]]:
    """Separate runs with equal settings where the code of a plug differs, each part with the digests of its plugs."""
    digests: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for module, digest in run.plugs_used.items():
            digests[module].add(digest)
    changed = sorted(module for module, found in digests.items() if len(found) > 1)
    parts: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        parts[tuple(run.plugs_used.get(module, "") for module in changed)].append(run)
    return [
        ({f"{PLUGS}{module}": digest for module, digest in zip(changed, found, strict=True)}, of_part)
        for found, of_part in parts.items()
    ]


def _without(leave_out: Sequence[str], called: Sequence[str], groups: Sequence[list[Run]]) -> list[list[Run]]:
    """The runs of each group less those that are left out; `called`: the labels of the groups."""
    left = [list(runs) for runs in groups]
    for named in leave_out:
        before = sum(map(len, left))
        for i, label in enumerate(called):
            place = named.removesuffix(f":{label}")
            if named == label:
                left[i] = []
            elif place != named:
                folder = expanded(place).resolve()
                left[i] = [run for run in left[i] if not run.folder.path.resolve().is_relative_to(folder)]
        if sum(map(len, left)) == before:
            raise SettingsError(f"leave_out: no runs are called {named!r}{nearest(named, called)}")
    return left


def _one_of(a: Run, b: Run, label: str) -> Run:
    """The longer of two runs with the same settings, seed and numbers.

    Raises:
        SettingsError: the numbers differ at a step that both have, or no step is in both.
    """
    equal = []
    for name in a.curves.keys() & b.curves.keys():
        (of_a, x), (of_b, y) = a.curves[name], b.curves[name]
        common, in_a, in_b = np.intersect1d(of_a, of_b, return_indices=True)
        if len(common):
            equal.append(np.array_equal(x[in_a], y[in_b], equal_nan=True))
    if not equal or not all(equal):
        raise SettingsError(
            f"{a.folder} and {b.folder} hold the same run ({label}, seed {a.seed}) with different numbers: leave one "
            f"out with {shlex.quote(f'leave_out={b.folder}:{label}')}"
        )
    return max(a, b, key=lambda run: sum(len(curve.steps) for curve in run.curves.values()))


def _within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def _other(runs: Sequence[Run], name: str) -> Run | None:
    """A run that has another value of a setting than the first one."""
    values = [_canonical(run.settings.get(name)) for run in runs]
    return next((run for run, value in zip(runs, values, strict=True) if value != values[0]), None)


def _canonical(value: Any) -> str:
    """A text that is the same for equal values: for 1 and 1.0, but not for 1 and true."""
    return repr(float(value)) if is_number(value) else repr(value)


def is_number(value: Any) -> bool:
    """Whether a setting's value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _choice(s: Settings, choice: str) -> str:
    """What was chosen for `choice`: ``spectral``, or the parts of a chain in their order, ``spectral+l2``."""
    if s.get(f"{choice}.name") != "chain":
        return str(s.get(f"{choice}.name", "none"))
    return "+".join(
        dict.fromkeys(name.split(".")[1] for name in s if name.startswith(f"{choice}.") and name.count(".") == 2)
    )


def _is_choice(name: str, choices: Iterable[str]) -> bool:
    return name.partition(".")[0] in choices and name.endswith(".name")


def _base(s: Settings) -> tuple[str, str]:
    return _choice(s, "reg"), _choice(s, "reset")


def _none_first(choice: str) -> tuple[bool, str]:
    return choice != "none", choice


def _last(name: str) -> str:
    """The last part of a setting's name: net for ``net.name``, coef for ``reg.coef``."""
    return name.removesuffix(".name").rpartition(".")[2]


def _sortable(value: Any) -> tuple[float, str]:
    return (value, "") if isinstance(value, int | float) else (float("-inf"), str(value))
