"""A run's folder: what lies in it, its settings, its numbers and what it was made with.

Imports nothing slow at its head, so that ``status`` starts fast.
"""

import functools
import glob
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from omegaconf import OmegaConf
from yaml import AliasToken, scan

from rl_plasticity.errors import SettingsError, refused
from rl_plasticity.paths import exists, expanded
from rl_plasticity.runs.files import open_file, read_curves, saved_steps, write_text
from rl_plasticity.runs.names import HEADER, Curve, Row, RunName

if TYPE_CHECKING:
    from pandas import DataFrame

Kind = Literal["train", "supervised"]
MOST = 1 << 17  # bytes of a config.yaml; a run's has some thousands
TIME = "%Y-%m-%dT%H:%M:%S%z"  # as time.strftime writes one
# The groups, each with a name, that tell whose settings they are.
GROUPS: dict[Kind, tuple[str, ...]] = {
    "train": ("env", "reg", "reset"),
    "supervised": ("task", "net", "reg", "reset"),
}


class RunFolder(os.PathLike[str]):
    """The folder that a run writes into. Nothing is read before it is asked for, and it need not exist yet."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.metrics_csv = self.path / "metrics.csv"
        self.timing_csv = self.path / "timing.csv"
        self.checkpoints = self.path / "checkpoints"
        self.provenance = self.path / "provenance.json"
        self.log = self.path / "log.txt"
        self.lock = self.path / ".lock"
        self.tensorboard = self.path / "tensorboard"

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunFolder) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def own(self) -> list[Path]:
        """All that a run writes by a name of its own, whether it is there or not."""
        files = [self.config, self.metrics_csv, self.timing_csv, self.provenance, self.log, self.lock]
        return [*files, self.checkpoints, self.tensorboard, self.path / "wandb"]

    # --- the settings -----------------------------------------------------------------------------------------------

    def is_run(self) -> bool:
        """Whether a run has written here."""
        return self.config.is_file() or self.metrics_csv.is_file()

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, nested.

        Raises:
            SettingsError: ``config.yaml`` cannot be read or holds none.
        """
        with refused(f"read {self.config}"), open_file(self.config) as file:
            content = file.read(MOST + 1)
        try:
            text = content.decode()
            # Without these two the settings of a sweep's folders are the same text, which is then parsed once.
            different = re.compile(r"^(?:seed|out):.*\n(?: .*\n)*", re.MULTILINE)
            parts = (different.sub("", text), "".join(different.findall(text)))
            return {name: value for part in parts for name, value in deepcopy(_parsed(part)).items()}
        except Exception as error:  # no text, no YAML, no settings
            raise self._foreign() from error

    def write_settings(self, text: str) -> None:
        """Write ``config.yaml``, whole or not at all."""
        write_text(self.config, text)

    @property
    def kind(self) -> Kind:
        """The command whose run it is.

        Raises:
            SettingsError: as `settings`, or they are neither command's.
        """
        settings = self.settings
        for kind, groups in GROUPS.items():
            if all(isinstance(settings.get(group), dict) and "name" in settings[group] for group in groups):
                return kind
        raise self._foreign()

    def _foreign(self) -> SettingsError:
        return SettingsError(f"{self.config} holds no settings of a run of this package")

    # --- the numbers ------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[RunName, dict[str, Curve]]:
        """The curves of each run, by the metric's name.

        Raises:
            SettingsError: ``metrics.csv`` is missing, damaged or another program's.
        """
        try:
            return {RunName.parse(run): of_run for run, of_run in read_curves(self.metrics_csv).items()}
        except SettingsError as error:
            raise SettingsError(f"{self.metrics_csv} is damaged: {error}") from error

    def frame(self) -> "DataFrame":
        """All metrics as a tidy pandas ``DataFrame``, in the order of the runs, the metrics and the steps.

        The columns are step, metric, value, seed and one for each setting in which runs of this folder differ,
        ``reg.coef``, None or NaN where a run has no such setting.

        Raises:
            SettingsError: as `metrics`, or pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise SettingsError("RunFolder.frame() needs pandas: pip install pandas") from None
        curves = [(run, metric, curve) for run, of_run in self.metrics().items() for metric, curve in of_run.items()]
        lengths = [len(curve.steps) for _, _, curve in curves]

        def repeated(values: Iterable[Any]) -> list[Any]:
            return [value for value, n in zip(values, lengths, strict=True) for _ in range(n)]

        columns: dict[str, Any] = {
            "step": np.concatenate([curve.steps for *_, curve in curves] or [np.zeros(0, np.int64)]),
            "metric": repeated(metric for _, metric, _ in curves),
            "value": np.concatenate([curve.values for *_, curve in curves] or [np.zeros(0)]),
            "seed": repeated(run.seed for run, *_ in curves),
        }
        for setting in dict.fromkeys(name for run, *_ in curves for name, _ in run.settings):
            columns[setting] = repeated(run.values.get(setting) for run, *_ in curves)
        return pandas.DataFrame(columns)

    def timing(self) -> dict[str, Curve]:
        """The rates and durations of the whole process, by name.

        Raises:
            SettingsError: ``timing.csv`` is missing, damaged or another program's.
        """
        return read_curves(self.timing_csv).get("mean", {})

    def last_rows(self, file: Literal["metrics.csv", "timing.csv"], names: Collection[str] = ()) -> list[Row]:
        """The rows of the last step, of those with one of the `names` if given; none if the file is missing.

        Read from the file's end, which a run may be writing.

        Raises:
            SettingsError: the file is damaged or cannot be read.
        """
        path = self.path / file
        size = 1 << 14
        with refused(f"read {path}"), suppress(FileNotFoundError), open_file(path) as opened:
            while True:
                start = max(0, opened.seek(0, os.SEEK_END) - size)
                opened.seek(start)
                lines = opened.read(size).split(b"\n")[1:-1]  # without the header or a cut line, and an unfinished one
                try:
                    rows = [row for row in map(Row.parse, lines) if not names or row.name in names]
                except ValueError:
                    raise SettingsError(f"{path} is damaged: a line is not {HEADER}") from None
                last = [row for row in rows if row.step == rows[-1].step]
                # A row of an earlier step shows that all of the last step were read; 16 MB are enough to find one.
                if start == 0 or len(last) < len(rows) or size >= 1 << 24:
                    return last
                size *= 8
        return []

    @property
    def saved_steps(self) -> dict[int, Path]:
        """The checkpoints by their step, the newest last."""
        return saved_steps(self.checkpoints)

    # --- how it came about ------------------------------------------------------------------------------------------

    @property
    def starts(self) -> list[Mapping[str, Any]]:
        """What each start of the run was made with; empty if that is missing or damaged: no number depends on it."""
        try:
            return [start for start in self.all_starts() if isinstance(start, dict)]
        except SettingsError:
            return []

    @property
    def _newest_start(self) -> Mapping[str, Any]:
        return ({}, *self.starts)[-1]

    def all_starts(self) -> list[Any]:
        """What is in ``provenance.json``, to be added to; empty if there is none.

        Raises:
            SettingsError: it is damaged, which is no reason to lose what it holds.
        """
        with refused(f"read {self.provenance}"), suppress(FileNotFoundError), open_file(self.provenance) as file:
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                starts = json.loads(file.read())["starts"]
                if isinstance(starts, list):
                    return starts
            raise SettingsError(f"{self.provenance} is damaged; put it back as it was, or move it away")
        return []

    @property
    def plugins(self) -> list[str]:
        """The modules of others that the newest start named, and its environment's: to be said, never to be loaded."""
        from rl_plasticity.plugins import module_of

        named, env = self._newest_start.get("plugins"), self.settings.get("env")
        modules = [*map(str, named)] if isinstance(named, list) else []
        if isinstance(env, dict) and (module := module_of(str(env.get("name")))):
            modules.append(module)
        return [*dict.fromkeys(modules)]

    @property
    def plugin_sources(self) -> dict[str, str]:
        """A digest of each plug that the newest start used a choice of."""
        start = self._newest_start
        sources, used = start.get("plugin_sources"), start.get("plugins_used")
        if not (isinstance(sources, dict) and isinstance(used, dict)):
            return {}
        return {str(module): str(digest) for module, digest in sources.items() if module in used}


def find(places: Iterable[str | os.PathLike[str]]) -> tuple[list[RunFolder], list[RunFolder]]:
    """The runs' folders in `places`: those named themselves, and those found below a sweep's folder or by a glob.

    Each is listed once. Hidden folders are not searched.

    Raises:
        SettingsError: a place that does not exist or in which no run is.
    """
    named: dict[Path, RunFolder] = {}
    below: dict[Path, RunFolder] = {}
    for place in places:
        if not os.fspath(place):
            raise SettingsError("a folder's name is empty")
        path = expanded(place)
        matches = [path] if exists(path) else [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207
        if not matches:
            raise SettingsError(f"{place} does not exist")
        with refused(f"search {place}"):
            runs = [run for match in matches for run in ([match] if RunFolder(match).is_run() else _runs_below(match))]
        for run in runs:
            (named if run == path else below)[run.resolve()] = RunFolder(run)
        if not runs:
            raise SettingsError(f"{place} is no run's folder (config.yaml, metrics.csv) and there is none below it")
    return list(named.values()), [folder for key, folder in below.items() if key not in named]


# ------------------------------------------------------------------------------------------------------------------


def _runs_below(folder: Path) -> list[Path]:
    def fails(error: OSError) -> None:
        if error.filename == str(folder):
            raise error

    found, seen = [], set()
    for place, folders, files in os.walk(folder, onerror=fails, followlinks=True):
        real = os.path.realpath(place)
        if "config.yaml" in files:
            found.append(Path(place))
        # What a run holds is no run, and a link may lead back to where it lies.
        folders[:] = [] if found[-1:] == [Path(place)] or real in seen else sorted(f for f in folders if f[0] != ".")
        seen.add(real)
    return sorted(found)


@functools.cache
def _parsed(text: str) -> dict[str, Any]:
    # A run writes no aliases, and a few of them stand for any number of settings.
    if len(text) > MOST or ("*" in text and any(isinstance(token, AliasToken) for token in scan(text))):
        raise ValueError("no settings")
    config = OmegaConf.to_container(OmegaConf.create(text)) if text else {}
    if not isinstance(config, dict):
        raise ValueError("no settings")
    return {str(name): value for name, value in config.items()}
