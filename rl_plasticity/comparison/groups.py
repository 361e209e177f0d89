"""Sort runs into groups by their settings, name the groups, and refuse to mix what cannot be compared."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rl_plasticity.comparison.loading import Run, Settings
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import BRANCH, ONCE, Supervised, Train
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.configs.presets import agents_of_papers, files
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.runs.names import short

# Settings that do not change a run's numbers, or (threads, device) only their rounding.
IGNORED = {"seed", "seeds", "preset", *BRANCH}
IGNORED |= {n for kind in (Train, Supervised) for n in schema.marked(kind, "machine", "watched")}
# Settings that must be equal unless they are mixed on purpose; those of a task are then strata of the statistics.
TASK = {"train": ("env", "total_env_steps"), "supervised": ("task", "data", "net", "num_tasks", "epochs_per_task")}
STRATA = ("env", "task", "data")
PLUGS = "plugins."  # begins the settings that hold the digest of a plug's source, where it tells groups apart


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds and tasks.

    Args:
        label: the settings that differ from those of other groups, as short as is clear.
        settings: the settings that change results, which all its runs share.
        tasks: the runs of each task, by rising seed.
    """

    label: str
    settings: Settings
    tasks: Mapping[str, Sequence[Run]]

    @property
    def name(self) -> str:
        """The label in the words of a paper: ``no method``."""
        return method_in_words(self.label)

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.tasks.values() for run in runs]

    def only(self, kept: Callable[[str, Run], bool]) -> "Group":
        """The group with some of its runs, by their task; tasks without any are left out."""
        tasks = {task: [run for run in runs if kept(task, run)] for task, runs in self.tasks.items()}
        return replace(self, tasks={task: runs for task, runs in tasks.items() if runs})


def method_in_words(label: str) -> str:
    """A method's label as figures show it: ``no method`` for ``none``, ``periodic`` for ``none + periodic``."""
    return re.sub(r"^none( \+ |$|(?= ))", lambda none: "no method" if none[1] == "" else "", label)


def group(runs: Sequence[Run], mix: Sequence[str] = (), leave_out: Sequence[str] = ()) -> list[Group]:
    """Sort runs into groups, ordered by regularizer, intervention and the other settings that differ.

    A run that is found twice with the same numbers counts once.

    Args:
        mix: task settings in which runs may differ, or whole groups of them: ``env.name``, ``task``.
        leave_out: labels of groups to leave out.

    Raises:
        SettingsError: runs of both commands, of different tasks or lengths, or a run with two sets of numbers.
    """
    kinds = {run.kind: run for run in runs}
    if len(kinds) > 1:
        raise SettingsError(
            f"{kinds['train'].folder} is an RL run and {kinds['supervised'].folder} a supervised one: "
            "compare them separately"
        )
    strata = _strata(runs, mix)
    named = _naming(strata, "train" in kinds)
    left_out = IGNORED | {name for name in strata if not name.startswith("net")}
    alike: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        alike[identity(run.settings, left_out)].append(run)
    apart = [part for of in alike.values() for part in _apart(of)]
    shared = [{n: v for n, v in of[0].settings.items() if n not in left_out} | told for told, of in apart]
    order, called = differing(shared), labels(shared, [str(of[0].settings.get("preset")) for _, of in apart])
    groups = [
        Group(label, settings, _by_task(of, named))
        for label, settings, (_, of) in zip(called, shared, apart, strict=True)
        if label not in leave_out
    ]
    for label in leave_out:
        if label not in called:
            raise SettingsError(f"leave_out: no group is called {label!r}{nearest(label, called)}")
    if not groups:
        raise SettingsError(f"leave_out={','.join(leave_out)} leaves no group to compare")
    return sorted(
        groups,
        key=lambda g: ([(c != "none", c) for c in method(g.settings)], [_sortable(g.settings.get(n)) for n in order]),
    )


def identity(s: Settings, left_out: Collection[str] = ()) -> object:
    """A value that is equal for equal settings, less those left out. The order of a chain of regularizers counts."""
    return method(s)[0], tuple(sorted((n, _canonical(v)) for n, v in s.items() if n not in left_out))


def differing(settings: Sequence[Settings]) -> list[str]:
    """The names of the settings that are not the same in all."""
    names = dict.fromkeys(name for s in settings for name in s)
    return [name for name in names if len({_canonical(s[name]) if name in s else None for s in settings}) > 1]


def labels(settings: Sequence[Settings], presets: Sequence[str] = ()) -> list[str]:
    """A short name for each group: ``spectral``, ``none + periodic``, ``spectral coef=1e-3``.

    The regularizer and the intervention come first, unless they are the same everywhere and something else differs. A
    setting of a choice (``reg.coef``) is named only where groups that made the same choice differ in it. Where the
    preset of a group is a paper's agent, its name stands for what it sets: ``xqc``, ``xqc lr=1e-4``. Each label then
    has only what differs from the group's own preset.
    """
    papers = {*presets} & {*agents_of_papers()}
    usual = {name: schema.load(Train, [f"preset={name}"]).flat for name in presets if papers and name in files("train")}
    differ = [name for name in differing(settings) if name not in ("reg.name", "reset.name")]
    methods = [method(s) for s in settings]
    with_method = len({*methods}) > 1 or {*differ} <= {"at"}
    lasts = [name.removesuffix(".name").rpartition(".")[2] for name in differ]  # coef for reg.coef, net for net.name
    keys = {name: last if lasts.count(last) == 1 else name for name, last in zip(differ, lasts, strict=True)}
    made = []
    for s, (reg, reset), preset in zip(settings, methods, presets or [""] * len(settings), strict=True):
        own, of_method = usual.get(preset, {}), reg if reset == "none" else f"{reg} + {reset}"
        parts = [preset] if preset in papers else []
        if with_method and not (parts and method(own) == (reg, reset)):
            parts.append(of_method)
        parts += [f"{key}={short(s[name])}" for name, key in keys.items() if _tells(name, s, own, settings)]
        made.append(" ".join(parts) or of_method)
    return made


def default_baseline(groups: Sequence[Group], warnings: list[str]) -> Group | None:
    """The one group without a method, or the one with reset=periodic if there is none; a warning if that is open."""
    periodic = [g for g in groups if method(g.settings)[1] == "periodic" and g.settings.get(ONCE) is None]
    plain = [g for g in groups if method(g.settings) == ("none", "none")]
    alike = plain or periodic
    found = [g for g in alike if "at" not in g.settings] or alike  # a branch without a change is its run once more
    if len(found) == 1:
        return found[0]
    if len(groups) > 1:
        why = "every group has a method, and none has reset=periodic"
        if found:
            why = f"several groups have {'no method' if plain else 'reset=periodic'}"
        warnings.append(f"no baseline, so no gaps: {why}; give baseline=LABEL")
    return None


def method(s: Settings) -> tuple[str, str]:
    """The regularizer, ``spectral`` or ``spectral+l2``, and the intervention."""
    return str(s.get("reg.name", "none")), str(s.get("reset.name", "none"))


def strengths(g: Group) -> list[str]:
    """The settings of a group's method that are not the defaults, ``coef=1e-3``, unless its label has them."""
    s, kind = g.settings, {"train": Train, "supervised": Supervised}[g.runs[0].kind]
    try:
        usual: Settings = schema.load(
            kind, [f"{name}={s.get(f'{name}.name', 'none')}" for name in ("reg", "reset")]
        ).flat
    except SettingsError:  # of a plug that is not loaded, or a method without a default
        return []
    own = {n: v for n, v in s.items() if n.startswith(("reg.", "reset.")) and n in usual and usual[n] != v}
    found = [f"{n.rpartition('.')[2]}={short(v)}" for n, v in own.items() if not n.endswith(".name")]
    return [text for text in found if text not in g.label.split()]


def is_number(value: Any) -> bool:
    """Whether a setting's value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


# ------------------------------------------------------------------------------------------------------------------


def _tells(name: str, s: Settings, own: Settings, settings: Sequence[Settings]) -> bool:
    """Whether a label names this setting: not where the preset says it, or all groups of the same choice have it."""
    if name not in s or (name in own and _canonical(own[name]) == _canonical(s[name])):
        return False
    choice = "reset" if name == ONCE else name.partition(".")[0]
    if choice not in KINDS or name.endswith(".name"):
        return True
    peers = [o.get(name) for o in settings if o.get(f"{choice}.name") == s.get(f"{choice}.name")]
    return len({_canonical(value) for value in peers}) > 1


def _naming(strata: Sequence[str], of_rl: bool) -> list[str]:
    """The settings whose values name a run's task: those in which runs differ, or else the usual ones."""
    usual = ("env.name",) if of_rl else ("task.name", "data.name", "net.name")
    named = [name for name in strata if name.partition(".")[0] in STRATA] or [n for n in usual if n not in strata]
    return ["env.name", *named] if any(name.startswith("env.") for name in named) else named


def _strata(runs: Sequence[Run], mix: Sequence[str]) -> list[str]:
    """The task settings in which runs differ, all of which must be mixed on purpose."""
    names = dict.fromkeys(n for run in runs for n in run.settings if n not in IGNORED)
    of_task = [n for n in names if any(_within(n, part) for part in TASK[runs[0].kind])]
    for m in mix:
        if not any(_within(name, m) for name in of_task):
            valid = [*of_task, *sorted({n.partition(".")[0] for n in of_task if "." in n})]
            raise SettingsError(f"unknown task setting in mix: {m!r}{nearest(m, valid)}")
    differ = [n for n in differing([run.settings for run in runs]) if n in of_task]
    for name in differ:
        if not any(_within(name, m) for m in mix):
            values = {_canonical(v := run.settings.get(name)): (short(v), run.folder) for run in runs}
            (x, a), (y, b), *_ = values.values()
            raise SettingsError(
                f"{name} differs: {x} in {a}, {y} in {b}; compare them separately, or together with "
                f"mix={','.join([*mix, name])}"
            )
    return differ


def _apart(runs: Sequence[Run]) -> list[tuple[Settings, list[Run]]]:
    """Runs with equal settings, apart where they branched at other steps or the source of a plug differs.

    Each part comes with what tells it from the others. A run that was made without a plug says nothing of its source.
    """
    marks = [
        {"at": run.settings.get("at")} | {f"{PLUGS}{module}": digest for module, digest in run.plugs.items()}
        for run in runs
    ]
    number = Counter(name for name, _ in {mark for of in marks for mark in of.items()})
    parts: dict[tuple[tuple[str, Any], ...], list[Run]] = defaultdict(list)
    for run, of in zip(runs, marks, strict=True):
        parts[tuple(mark for mark in of.items() if number[mark[0]] > 1)].append(run)
    return [({n: v for n, v in told if v is not None}, of_part) for told, of_part in parts.items()]


def _by_task(runs: Sequence[Run], named: Sequence[str]) -> dict[str, list[Run]]:
    tasks: dict[str, dict[int, Run]] = defaultdict(dict)
    for run in runs:
        of_task = tasks[" ".join(dict.fromkeys(_task(run.settings, name) for name in named))]
        of_task[run.seed] = _one_of(of_task.get(run.seed, run), run)
    return {task: [of_seed[seed] for seed in sorted(of_seed)] for task, of_seed in sorted(tasks.items())}


def _one_of(a: Run, b: Run) -> Run:
    """The longer of two runs with the same settings, seed and numbers; raises SettingsError if the numbers differ."""
    equal = []
    for name in a.curves.keys() & b.curves.keys():
        (of_a, x), (of_b, y) = a.curves[name], b.curves[name]
        both, in_a, in_b = np.intersect1d(of_a, of_b, return_indices=True)
        equal += [np.array_equal(x[in_a], y[in_b], equal_nan=True)] * bool(len(both))
    if not equal or not all(equal):
        raise SettingsError(f"{a} and {b} are the same run with different numbers: leave one folder out")
    return max(a, b, key=lambda run: sum(len(curve.steps) for curve in run.curves.values()))


def _task(s: Settings, name: str) -> str:
    """The name of a run's task; tasks that follow each other are ``walker-stand, walker-walk in turn``."""
    if name not in ("env.name", "env.sequence", "env.changes"):
        return short(s.get(name)) if name.endswith(".name") else f"{name.rpartition('.')[2]}={short(s.get(name))}"
    sequence, changes = s.get("env.sequence") or (), s.get("env.changes") or ()
    text = f"{', '.join(sequence)} in turn" if sequence else short(s.get("env.name"))
    return f"{text} ({', '.join(changes)} changing)" if changes else text


def _within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def _canonical(value: Any) -> str:
    """A text that is the same for equal values: for 1 and 1.0, but not for 1 and true."""
    return repr(float(value)) if is_number(value) else repr(value)


def _sortable(value: Any) -> tuple[float, str]:
    return (value, "") if isinstance(value, int | float) else (float("-inf"), str(value))
