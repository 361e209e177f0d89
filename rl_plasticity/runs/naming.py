"""The default folder of a run: a short name made of its choices, with a number if another run has that name."""

import itertools
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import DEFAULT_PRESET, GROUPS, OPTIONAL, Supervised, Train
from rl_plasticity.errors import SettingsError, refused
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.names import short

LENGTH = 40  # characters of a name, so that a line of `status` has room for it
METHOD = ("reg", "reset")
UNSTARTED = (".config.yaml.tmp", ".lock")  # the files of a process that was killed before it wrote any settings


def name(s: Train | Supervised, number: int = 1) -> str:
    """The name of a run: preset or task, method, other differences from the preset, seeds.

    An example is ``cheetah-run_spectral_coef=1e-3_seed0-4``. Long choices are cut. A setting is whole or left out: half
    a number would be another number. Two runs may have the same name; then a `number` tells their folders apart.
    """
    ending = f"_seed{s.seed}" if s.seeds == 1 else f"_seed{s.seed}-{s.seed + s.seeds - 1}"
    ending += f"_{number}" if number > 1 else ""
    room = max(1, LENGTH - len(ending))  # seeds of 19 digits leave none
    choices, settings = ([re.sub(r"[^\w.+=,-]+", "-", word) for word in words] for words in (_choices(s), _settings(s)))
    text = "_".join(choices)[:room]
    for setting in settings:
        text += f"_{setting}" if len(f"{text}_{setting}") <= room else ""
    return text.rstrip("_") + ending


def place(parent: Path, s: Train | Supervised, taken: Collection[Path] = ()) -> Path:
    """The folder in `parent` that holds this run, or else the first free one among its names.

    Args:
        taken: folders that are reserved for other runs.

    Raises:
        SettingsError: a folder cannot be read.
    """
    with refused(f"read {parent}"):
        numbers = {1, *(_number(path.name) for path in parent.iterdir())} if parent.exists() else {1}
        for number in sorted(numbers):
            path = parent / name(s, number)
            if path not in taken and difference(RunFolder(path), s) == "":
                return path
        # A folder whose settings cannot be read may hold this run. It is taken, and what is made there says so.
        places = (parent / name(s, number) for number in itertools.count(1))
        return next(path for path in places if path not in taken and not _is_another(path, s))


def is_free(path: Path) -> bool:
    """Whether a run can begin at `path`: nothing is there, or only files of a process that was killed as it began.

    Raises:
        OSError: the folder cannot be read.
    """
    return not path.exists() or (path.is_dir() and all(p.name in UNSTARTED for p in path.iterdir()))


def identity(s: Train | Supervised) -> dict[str, Any]:
    """The settings that identify a run, flat."""
    return schema.without_machine(type(s), s.saved)


def difference(folder: RunFolder, s: Train | Supervised) -> str | None:
    """A difference between the run in `folder` and `s` in words; empty if they are the same run; None if unreadable."""
    try:
        saved = identity(schema.load_saved(type(s), folder.settings))
    except SettingsError:
        return None
    watched = schema.marked(type(s), "watched")
    for setting, value in {**dict.fromkeys(OPTIONAL), **identity(s)}.items():
        if saved.get(setting) != value and not (value == "auto" and setting in watched):  # the saved run has decided it
            return f"holds a run with {setting}={saved.get(setting)}, not {value}"
    return ""


# ------------------------------------------------------------------------------------------------------------------


def _is_another(path: Path, s: Train | Supervised) -> bool:
    folder = RunFolder(path)
    return bool(difference(folder, s)) if folder.config.exists() else not is_free(path)


def _number(entry: str) -> int:
    """The number with which `name` could have made this entry."""
    numbered = re.search(r"_([1-9][0-9]{0,8})$", entry, re.ASCII)
    return int(numbered[1]) if numbered else 1


def _choices(s: Train | Supervised) -> list[str]:
    """The preset or the task, the method, and other choices that differ from the preset's."""
    kind: Any = type(s)
    task = GROUPS[kind][0]
    choices, preset = s.choices, schema.usual(kind, s.preset, {}).choices
    named = {group: _word(choices[group]) for group in choices if choices[group] != preset[group]}
    first = s.preset
    if s.preset == DEFAULT_PRESET[kind]:
        first = _word(choices[task])
        named.pop(task, None)
    methods = [_word(choices["reg"]), *([named["reset"]] if "reset" in named else [])]
    words = [first, *methods, *(word for group, word in named.items() if group not in METHOD)]
    return [word.rpartition(":")[2] for word in words]


def _settings(s: Train | Supervised) -> list[str]:
    """Settings that are not the usual ones for these choices: the method's before others, short names first."""
    kind: Any = type(s)
    mine = identity(s)
    usual = identity(schema.usual(kind, s.preset, s.choices, mine))
    unnamed = {"seed", "seeds", "preset", "from", *schema.marked(kind, "watched")}
    own = {n: v for n, v in mine.items() if n not in unnamed and usual.get(n) != v}
    lasts = [n.rpartition(".")[2] for n in own]
    settings = []
    for (setting, value), last in zip(own.items(), lasts, strict=True):
        text = ",".join(map(short, value)) if isinstance(value, list | tuple) else short(value)
        called = last if lasts.count(last) == 1 else setting
        settings.append((setting.partition(".")[0] not in METHOD, len(called), f"{called}={text}"))
    return [text for *_, text in sorted(settings)]


def _word(choice: str | list[str]) -> str:
    return choice if isinstance(choice, str) else "-".join(choice)
