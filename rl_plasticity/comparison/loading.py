"""Reads what runs wrote: ``config.yaml``, ``metrics.csv`` and ``provenance.json`` of any number of folders."""

import functools
import glob
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf

from rl_plasticity.errors import SettingsError

Settings = dict[str, Any]


class Curve(NamedTuple):
    """A metric over time. `steps` rise; of ``task/...`` they are the number of the task, from 1."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One training of one seed.

    Args:
        kind: the command: ``train`` or ``supervised``.
        settings: the folder's with those of the run's own name in ``metrics.csv``, flat: ``reg.coef``.
        borders: supervised: the step at the end of each task.
        starts: the folder's provenance, one entry for each start.
    """

    folder: Path
    kind: str
    seed: int
    settings: Settings
    curves: Mapping[str, Curve]
    borders: NDArray[np.int64]
    starts: Sequence[Mapping[str, Any]]

    def __str__(self) -> str:
        return f"{self.folder} (seed {self.seed})"


def split(arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Arguments as places to look for runs, whose names may hold a =, and options ``name=value``."""
    places: list[str] = []
    options: list[tuple[str, str]] = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or "/" in name or Path(argument).exists():
            places.append(argument)
        else:
            options.append((name, value))
    return places, options


def find(places: Iterable[str]) -> tuple[list[Path], list[Path]]:
    """The run folders in `places`: those named themselves, and those found below a sweep's folder or by a glob.

    Each is listed once. Hidden folders are not searched.

    Raises:
        SettingsError: a place that does not exist or in which no run is.
    """
    named: dict[Path, Path] = {}
    below: dict[Path, Path] = {}
    for place in places:
        path = Path(place).expanduser()
        matches = [path] if path.exists() else _glob(path)
        if not matches:
            raise SettingsError(f"{place} does not exist")
        found = False
        for match in matches:
            if _is_run(match):
                (named if match == path else below)[match.resolve()] = match
                found = True
                continue
            inside = sorted(p.parent for p in match.rglob("config.yaml")) if match.is_dir() else []
            inside = [p for p in inside if not any(part.startswith(".") for part in p.relative_to(match).parts)]
            folders = set(inside)
            inside = [p for p in inside if folders.isdisjoint(p.parents)]  # what a run holds is no run
            below |= {p.resolve(): p for p in inside}
            found = found or bool(inside)
        if not found:
            raise SettingsError(f"{place} is no run's folder (config.yaml, metrics.csv) and there is none below it")
    return list(named.values()), [path for key, path in below.items() if key not in named]


def read(folder: Path) -> list[Run]:
    """The runs that were trained in `folder`, one for each seed and setting.

    Raises:
        SettingsError: the folder is damaged or not a run's.
    """
    kind, config = _read_config(folder / "config.yaml")
    starts = _read_provenance(folder / "provenance.json")
    runs = []
    for name, curves in _read_metrics(folder / "metrics.csv").items():
        own = _own_settings(name, folder)
        if own is None:
            continue
        seed = own.pop("seed")
        ends = curves.pop("task/index", None)
        if ends is not None:  # the last of the rows at a task's end, so the others are at least as many
            number = ends.values.astype(np.int64) + 1
            for metric, curve in curves.items():
                if metric.startswith("task/"):
                    curves[metric] = Curve(number[: len(curve.values)], curve.values[: len(number)])
        borders = ends.steps if ends is not None else np.array([], np.int64)
        runs.append(Run(folder, kind, seed, _overridden(config, own), curves, borders, starts))
    return runs


def flat(settings: Mapping[str, Any], prefix: str = "") -> Settings:
    """Nested settings with dotted names."""
    found: Settings = {}
    for name, value in settings.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


# ------------------------------------------------------------------------------------------------------------------


def _glob(pattern: Path) -> list[Path]:
    return [Path(p) for p in sorted(glob.glob(str(pattern), recursive=True))]  # noqa: PTH207, absolute ones as well


def _is_run(path: Path) -> bool:
    return (path / "config.yaml").is_file() or (path / "metrics.csv").is_file()


def _read_config(path: Path) -> tuple[str, Settings]:
    """Which command's they are, and the settings."""
    try:
        text = path.read_text()
        # The seed is in metrics.csv: without the two lines that differ, the folders of a sweep are parsed once.
        return _parse_config(re.sub(r"^(seed|out):.*\n( .*\n)*", "", text, flags=re.MULTILINE))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:  # not YAML, or another program's
        raise SettingsError(f"{path} holds no settings of a run of this package") from error


@functools.cache
def _parse_config(text: str) -> tuple[str, Settings]:
    config = OmegaConf.to_container(OmegaConf.create(text))
    settings = {str(k): v for k, v in config.items()} if isinstance(config, dict) else {}
    for kind, needed in {"train": ("env", "reg", "reset"), "supervised": ("task", "net", "reg", "reset")}.items():
        if all(isinstance(settings.get(name), dict) and "name" in settings[name] for name in needed):
            return kind, flat(settings)
    raise ValueError("neither command's")


def _read_metrics(path: Path) -> dict[str, dict[str, Curve]]:
    """The curves of each run in a ``metrics.csv``, by the run's and the metric's name.

    Written for many long files: the fields of a column are every fourth of all, and no line is looked at by itself.
    A last line without its end is left out: the run was killed while it wrote, or is writing.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    try:
        header, _, body = data[: data.rfind(b"\n") + 1].decode().partition("\n")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is damaged: it is not text") from error
    if header != "run,step,name,value":
        raise SettingsError(f"{path} is not a run's: its first line should be 'run,step,name,value'")
    fields = body.replace("\n", ",").split(",")[:-1]
    if len(fields) != 4 * body.count("\n"):  # a run's name may hold commas: reg.widths=[1,2] seed=0
        lines = [line.rsplit(",", 3) for line in body.split("\n")[:-1]]
        bad = [i for i, line in enumerate(lines) if len(line) != 4]
        if bad:
            raise SettingsError(f"{path} is damaged: line {bad[0] + 2} has no 4 fields run,step,name,value")
        fields = [field for line in lines for field in line]
    try:
        steps = np.array(list(map(int, fields[1::4])), np.int64)
        values = np.array(list(map(float, fields[3::4])), np.float64)
    except ValueError as error:
        raise SettingsError(f"{path} is damaged: {error}") from error
    runs, metrics = (dict.fromkeys(fields[column::4]) for column in (0, 2))
    run_index, metric_index = ({name: i for i, name in enumerate(names)} for names in (runs, metrics))
    key = np.array(list(map(run_index.__getitem__, fields[0::4])), np.int64) * len(metrics)
    key += np.array(list(map(metric_index.__getitem__, fields[2::4])), np.int64)
    order = np.argsort(key, kind="stable")
    names = [(run, metric) for run in runs for metric in metrics]
    found: dict[str, dict[str, Curve]] = {run: {} for run in runs}
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if len(order) else []:
        run, metric = names[key[rows[0]]]
        found[run][metric] = Curve(steps[rows], values[rows])
    return found


def _own_settings(name: str, folder: Path) -> Settings | None:
    """What the name of a run in ``metrics.csv`` says: a seed, or ``reg.coef=1e-05 seed=0``. None for a mean of runs."""
    pairs = [pair.partition("=") for pair in name.split(" ")]
    if pairs[-1][0] == "mean" or pairs[-1][2] == "mean":
        return None
    if len(pairs) == 1 and not pairs[0][1]:
        pairs = [("seed", "=", name)]
    try:
        settings = {key: _value(text) for key, _, text in pairs}
        return settings | {"seed": int(settings["seed"])}
    except (KeyError, TypeError, ValueError):
        wrong = f"{folder / 'metrics.csv'} is damaged: run {name!r} is no seed and no 'name=value ... seed=N'"
        raise SettingsError(wrong) from None


def _value(text: str) -> Any:
    """`text` as a number, truth value, null or list, as JSON writes them; else itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _overridden(config: Settings, own: Settings) -> Settings:
    """`config` with a run's own settings; ``reg.name=spectral`` chooses one of the methods side by side in `config`."""
    settings = dict(config)
    if "reg.name" in own:
        chosen = f"reg.{own['reg.name']}."
        settings = {k: v for k, v in settings.items() if not k.startswith("reg.")}
        settings |= {f"reg.{k.removeprefix(chosen)}": v for k, v in config.items() if k.startswith(chosen)}
    # A chain, "spectral+l2", keeps the name that the settings themselves give it.
    return settings | {k: v for k, v in own.items() if k != "reg.name" or k not in settings}


def _read_provenance(path: Path) -> list[Mapping[str, Any]]:
    """Its starts; none if it is missing or unreadable: no number depends on it."""
    try:
        starts = json.loads(path.read_text())["starts"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [start for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []
