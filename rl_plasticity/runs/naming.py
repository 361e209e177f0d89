"""Where a run goes unless it is told: a short name of what sets it apart, with a number where another run has it."""

import itertools
import re
from collections.abc import Collection
from decimal import Decimal
from pathlib import Path
from typing import Any

from rl_plasticity.configs import schema, written
from rl_plasticity.configs.commands import DEFAULT_PRESET, GROUPS, Supervised, Train
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs.folder import RunFolder

LENGTH = 40  # characters of a name, so that a line of `status` has room for it
UNSTARTED = (".config.yaml.tmp", ".lock")  # what a process leaves that was killed before it wrote any settings


def name(s: Train | Supervised, number: int = 1) -> str:
    """``cheetah-run_spectral_coef=1e-3_seed0-4``: the task or preset, the method, what else the preset has otherwise.

    What does not fit is left out: two runs may have one name, and then a `number` tells their folders apart.
    """
    ending = f"_seed{s.seed}" if s.seeds == 1 else f"_seed{s.seed}-{s.seed + s.seeds - 1}"
    room = max(1, LENGTH - len(ending))  # seeds of 19 digits leave none
    what, methods, others, settings = ([_plain(word) for word in part] for part in _parts(s))
    words = [*what, *methods, *others]
    if len("_".join(words)) > room:  # the method has room before another task than the preset's
        words = [what[0], *methods, *what[1:], *others]
    parts = [words[0][:room]]
    for word in words[1:]:
        left = room - len("_".join(parts)) - 1
        parts += [word[:left]] if len(word) <= left or left > 3 else []
    text = "_".join(parts)
    for setting in settings:  # half a number would be another one
        parts += [setting] if len("_".join([*parts, setting])) <= room else []
    if number > 1:  # the same name, less what has no room beside the number
        ending += f"_{number}"
        room = max(1, LENGTH - len(ending))
        while len("_".join(parts)) > max(room, len(text)):
            parts.pop()
    return "_".join(parts)[:room].rstrip("_") + ending


def place(parent: Path, s: Train | Supervised, taken: Collection[Path] = ()) -> Path:
    """The folder in `parent` that holds this run, or else the first of its names that is free.

    Args:
        taken: folders that other runs are going to have.

    Raises:
        OSError: a folder cannot be read.
    """
    try:
        numbers = {1, *(_number(path.name) for path in parent.iterdir())}
    except FileNotFoundError:
        numbers = {1}
    for number in sorted(numbers):
        path = parent / name(s, number)
        if path not in taken and difference(RunFolder(path), s) == "":
            return path
    # Settings that cannot be read may be this run's: it is not begun anew beside them, but says so itself.
    free = (p for n in itertools.count(1) if (p := parent / name(s, n)) not in taken and not _is_another(p, s))
    return next(free)


def is_free(path: Path) -> bool:
    """Whether a run can begin at `path`: nothing is there, or what a process left that was killed as it began.

    Raises:
        OSError: it cannot be read.
    """
    return not path.exists() or (path.is_dir() and all(p.name in UNSTARTED for p in path.iterdir()))


def identity(s: Train | Supervised) -> dict[str, Any]:
    """What makes a run another one, flat."""
    return schema.without_machine(type(s), s.saved)


def difference(folder: RunFolder, s: Train | Supervised) -> str | None:
    """How the run in `folder` is another than `s`, in words; empty if it is the same; None if that cannot be read."""
    try:
        saved = identity(schema.load_saved(type(s), folder.settings))
    except SettingsError:
        return None
    watched = schema.marked(type(s), "watched")
    for setting, value in identity(s).items():
        if saved.get(setting) != value and not (value == "auto" and setting in watched):  # it has decided that
            return f"holds a run with {setting}={saved.get(setting)}, not {value}"
    return ""


# ------------------------------------------------------------------------------------------------------------------


def _is_another(path: Path, s: Train | Supervised) -> bool:
    folder = RunFolder(path)
    return bool(difference(folder, s)) if folder.config.exists() else not is_free(path)


def _number(entry: str) -> int:
    """What `name` was given for it, if it made it."""
    numbered = re.search(r"_([1-9][0-9]{0,8})$", entry, re.ASCII)
    return int(numbered[1]) if numbered else 1


def _parts(s: Train | Supervised) -> tuple[list[str], list[str], list[str], list[str]]:
    """What a name says: preset and task, the method, other choices, settings; the most telling ones first."""
    kind: Any = type(s)
    first, *others = GROUPS[kind]
    choices = s.choices
    inner = {name: value for name, value in identity(s).items() if name == "agent.network"}
    preset, usual = schema.usual(kind, s.preset, {}), schema.usual(kind, s.preset, choices, inner)
    differ = [group for group in GROUPS[kind] if choices[group] != preset.choices[group]]
    words = [] if s.preset == DEFAULT_PRESET[kind] else [s.preset]
    if first in differ or not words:
        words.append(_word(choices[first]).rpartition(":")[2])
    methods = [_word(choices[g]) for g in ("reg", "reset") if g == "reg" or g in differ]
    rest = [_word(choices[g]) for g in others if g in differ and g not in ("reg", "reset")]

    watched, base = schema.marked(kind, "watched"), identity(usual)
    own = {n: v for n, v in identity(s).items() if n not in ("seed", "seeds", "preset") and base.get(n) != v}
    lasts = [n.rpartition(".")[2] for n in own]
    settings = []
    for setting, last in zip(own, lasts, strict=True):
        called = last if lasts.count(last) == 1 else setting
        of_method = setting.partition(".")[0] in ("reg", "reset")
        value = _short(own[setting]) if setting != "env.sequence" else len(own[setting])  # so many tasks in turn
        settings.append((setting in watched, not of_method, len(called), f"{called}={value}"))
    return words, methods, rest, [text for *_, text in sorted(settings)]  # short ones first: more of them have room


def _word(choice: str | list[str]) -> str:
    return choice if isinstance(choice, str) else "-".join(choice)


def _short(value: Any) -> str:
    """``1e-3`` rather than 0.001."""
    if isinstance(value, list | tuple):
        return ",".join(map(_short, value))
    if not isinstance(value, float):
        return written.as_written(value)
    mantissa, _, exponent = f"{Decimal(repr(value)).normalize():e}".partition("e")
    return min(f"{value:g}", f"{mantissa}e{int(exponent)}", key=len)


def _plain(text: str) -> str:
    """What needs no quotes in a shell and is one part of a path."""
    return re.sub(r"[^\w.+=,-]+", "-", text)
