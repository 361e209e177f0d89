"""A run's folder: its files, settings, numbers and provenance.

It imports nothing slow at the top, so that ``status`` starts fast.
"""

import glob
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from rl_plasticity.errors import SettingsError, closest, refused
from rl_plasticity.paths import exists, expanded
from rl_plasticity.runs.files import read_curves, read_json, saved_steps, write_text
from rl_plasticity.runs.names import HEADER, Curve, Row, RunName

Kind = Literal["train", "supervised"]
TIME = "%Y-%m-%dT%H:%M:%S%z"  # as time.strftime writes one
# The group by which the settings of each command are known.
GROUPS: dict[str, Kind] = {"env": "train", "task": "supervised"}


@dataclass(init=False, unsafe_hash=True)
class RunFolder(os.PathLike[str]):
    """The folder of a run. It is read only on demand, and need not exist yet."""

    path: Path

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.metrics_csv = self.path / "metrics.csv"
        self.timing_csv = self.path / "timing.csv"
        self.checkpoints = self.path / "checkpoints"
        self.provenance = self.path / "provenance.json"
        self.diagnosis = self.path / "diagnosis.json"
        self.log = self.path / "log.txt"
        self.lock = self.path / ".lock"
        self.tensorboard = self.path / "tensorboard"

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__

    # --- the settings -----------------------------------------------------------------------------------------------

    def is_run(self) -> bool:
        """Whether the folder holds a run."""
        return self.config.is_file() or self.metrics_csv.is_file()

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, nested.

        Raises:
            SettingsError: ``config.yaml`` cannot be read or holds none.
        """
        with refused(f"read {self.config}"):
            text = self.config.read_text("utf-8", errors="replace")
        try:
            return dict(yaml.load(text, yaml.CSafeLoader))
        except (yaml.YAMLError, TypeError, ValueError) as error:
            raise SettingsError(f"{self.config} holds no settings") from error

    def write_settings(self, text: str) -> None:
        """Write ``config.yaml``, whole or not at all."""
        write_text(self.config, text)

    @property
    def kind(self) -> Kind:
        """The command that made the run.

        Raises:
            SettingsError: as `settings`, or the settings are of neither command.
        """
        settings = self.settings
        for group, kind in GROUPS.items():
            if isinstance(settings.get("reset"), dict) and isinstance(settings.get(group), dict):
                return kind
        raise SettingsError(f"{self.config} holds no settings of a run of this package")

    # --- the numbers ------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[RunName, dict[str, Curve]]:
        """The curves of each run, by the metric's name.

        Raises:
            SettingsError: ``metrics.csv`` is missing, damaged or of another program.
        """
        curves = read_curves(self.metrics_csv)
        for run, of_run in curves.items():
            for metric, (steps, _) in of_run.items():
                self._require_rising((run, metric, step) for step in steps.tolist())
        try:
            return {RunName.parse(run): of_run for run, of_run in curves.items()}
        except SettingsError as error:
            raise SettingsError(f"{self.metrics_csv} is damaged: {error}") from error

    def timing(self) -> dict[str, Curve]:
        """The rates and durations of the whole process, by name.

        Raises:
            SettingsError: ``timing.csv`` is missing, damaged or of another program.
        """
        return read_curves(self.timing_csv).get("mean", {})

    def last_rows(self, file: Literal["metrics.csv", "timing.csv"], names: Collection[str] = ()) -> list[Row]:
        """The rows of the last step, only those with one of the `names` if given; none if the file is missing.

        The file is read from its end, and a run may be writing it.

        Raises:
            SettingsError: the file is damaged or cannot be read.
        """
        path = self.path / file
        with refused(f"read {path}"), suppress(FileNotFoundError), path.open("rb") as opened:
            for size in (1 << 14, 1 << 17, 1 << 20, 1 << 24):
                start = max(0, opened.seek(0, os.SEEK_END) - size)
                opened.seek(start)
                lines = opened.read(size).split(b"\n")[1:-1]  # without the header or a cut line, and an unfinished one
                try:
                    rows = [row for row in map(Row.parse, lines) if not names or row.name in names]
                except ValueError:
                    raise SettingsError(f"{path} is damaged: a line is not {HEADER}") from None
                if path == self.metrics_csv:
                    self._require_rising((row.run, row.name, row.step) for row in rows)
                last = [row for row in rows if row.step == rows[-1].step]
                if start == 0 or len(last) < len(rows):  # an earlier row shows that all of the last step were read
                    break
            return last
        return []

    def _require_rising(self, rows: Iterable[tuple[str, str, int]]) -> None:
        """Raises SettingsError unless the steps of a run's metric rise, in rows of run, metric and step."""
        last: dict[tuple[str, str], int] = {}
        for run, metric, step in rows:
            if step <= (before := last.get((run, metric), -1)):
                said = f"step {step} comes twice" if step == before else f"step {step} comes after step {before}"
                raise SettingsError(f"{self.metrics_csv} is damaged: {said} for {metric} of run {run}")
            last[run, metric] = step

    @property
    def saved_steps(self) -> dict[int, Path]:
        """The checkpoints by their step, the newest last."""
        return saved_steps(self.checkpoints)

    def require_no_link(self) -> None:
        """Raises SettingsError if one of its files is a link: a run that is resumed would write to where it leads."""
        with refused(f"read {self}"):
            for path in (*self.path.iterdir(), *self.checkpoints.rglob("*"), *self.tensorboard.rglob("*")):
                if path.is_symlink():
                    raise SettingsError(f"cannot resume: {path} is a link, which may lead out of the run's folder")

    # --- how it came about ------------------------------------------------------------------------------------------

    def origin(self) -> dict[str, Any]:
        """The content of ``provenance.json``: ``starts``, and in a branch ``branch``: ``from``, ``at``, ``starts``.

        Raises:
            SettingsError: it is damaged. It is not replaced, so that nothing in it is lost.
        """

        def checked(content: dict[str, Any]) -> dict[str, Any]:
            if not all(isinstance(s, dict) for s in [*content["starts"], *content.get("branch", {}).get("starts", [])]):
                raise TypeError(content)
            return content

        return read_json(self.provenance, checked, {"starts": []})

    @property
    def starts(self) -> list[Mapping[str, Any]]:
        """The provenance of each start of the run, after those of the run that it branched from.

        It is empty if the file is missing or damaged, as no number depends on it.
        """
        with suppress(SettingsError):
            origin = self.origin()
            return [*origin.get("branch", {}).get("starts", []), *origin["starts"]]
        return []

    @property
    def plugins(self) -> list[str]:
        """The modules of plugs that the newest start and the environment name: to be shown, never to be loaded."""
        from rl_plasticity.plugins import modules_of

        named, env = ({}, *self.starts)[-1].get("plugins"), self.settings.get("env")
        of_env = modules_of(env) if isinstance(env, dict) else []
        return [*dict.fromkeys([*map(str, named if isinstance(named, list) else []), *of_env])]


def no_folder(folder: Path) -> SettingsError:
    """The error about a folder that does not exist, with the nearest one beside it."""
    close = closest(folder.name, [path.name for path in folder.absolute().parent.glob("*/")])
    return SettingsError(f"there is no folder {folder}" + (f"; did you mean {folder.parent / close}?" if close else ""))


def find(places: Iterable[str | os.PathLike[str]]) -> list[RunFolder]:
    """The runs' folders that `places` name, and those below a named folder or a glob; hidden ones are not searched.

    Each is listed once.

    Raises:
        SettingsError: a place does not exist, or holds no run.
    """
    found: dict[Path, RunFolder] = {}
    for place in places:
        if not os.fspath(place):
            raise SettingsError("the name of a folder is empty")
        path = expanded(place)
        matches = [path] if exists(path) else [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207
        if not matches:
            raise no_folder(path)
        with refused(f"search {place}"):
            runs = [run for match in matches for run in ([match] if RunFolder(match).is_run() else runs_below(match))]
        if not runs:
            raise SettingsError(
                f"{place} is not a run's folder (with config.yaml, metrics.csv), and there is none below it"
            )
        for run in runs:
            found.setdefault(run.resolve(), RunFolder(run))
    return [*found.values()]


# ------------------------------------------------------------------------------------------------------------------


def runs_below(folder: Path) -> list[Path]:
    """The folders below this one that hold a run, or this one alone if it does; hidden folders are not searched."""

    def fails(error: OSError) -> None:
        if error.filename == str(folder):
            raise error

    found, visited = [], set()
    for place, folders, files in os.walk(folder, onerror=fails, followlinks=True):
        real = os.path.realpath(place)
        if "config.yaml" in files:
            found.append(Path(place))
        # A run's folder holds no other run, and a link may lead back to a parent.
        ends = "config.yaml" in files or real in visited
        folders[:] = [] if ends else [name for name in folders if not name.startswith(".")]
        visited.add(real)
    return sorted(found)
