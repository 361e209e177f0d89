"""A run's folder, a run's name and a metric's name: each is written and read here and nowhere else.

Imports nothing slow at its head, so that ``status`` starts fast.
"""

import errno
import functools
import glob
import json
import os
import platform
import re
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from importlib import metadata
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf
from yaml import AliasToken, scan

from rl_plasticity import __version__
from rl_plasticity.errors import SettingsError
from rl_plasticity.paths import exists, expanded

if TYPE_CHECKING:
    from pandas import DataFrame

Kind = Literal["train", "supervised"]
HEADER = "run,step,name,value"
MOST = 1 << 17  # bytes of a config.yaml; a run's has some thousands
TIME = "%Y-%m-%dT%H:%M:%S%z"  # as time.strftime writes one
LARGEST_PLUG = 1_000_000  # bytes of source that are kept beside the results
# The groups, each with a name, that tell whose settings they are.
GROUPS: dict[Kind, tuple[str, ...]] = {
    "train": ("env", "reg", "reset"),
    "supervised": ("task", "net", "reg", "reset"),
}


class RunName(NamedTuple):
    """What a run is called in ``metrics.csv``: ``3``, or ``reg.name=spectral reset.every_updates=5 seed=3``.

    Args:
        settings: what sets it apart from other runs of its folder, each setting's name and the text of its value. A
            value may hold spaces and commas, but nothing that reads as the next setting, `` name=``.
    """

    settings: tuple[tuple[str, str], ...]
    seed: int

    def __str__(self) -> str:
        return f"{self.group} seed={self.seed}" if self.settings else str(self.seed)

    @property
    def group(self) -> str:
        """The name without the seed; empty where runs differ in nothing else."""
        return " ".join(f"{name}={value}" for name, value in self.settings)

    @property
    def file_name(self) -> str:
        """For names of files and folders: ``seed3``, or ``reg.name=spectral_seed3``."""
        return file_name(f"{self.group} seed{self.seed}")

    @property
    def in_words(self) -> str:
        """For messages: ``seed 3``, or the whole name."""
        return str(self) if self.settings else f"seed {self.seed}"

    @property
    def values(self) -> dict[str, Any]:
        """The settings with numbers, truth values, null and lists as JSON writes them; everything else is text."""
        return {name: _value(text) for name, text in self.settings}

    @classmethod
    def parse(cls, text: str) -> Self:
        """The name whose text is `text`.

        Raises:
            SettingsError: it is no run's.
        """
        *pairs, last = [pair.partition("=") for pair in re.split(r" (?=[\w.+-]+=)", text)]
        seed = last[2] if pairs else text
        if re.fullmatch("[0-9]+", seed):
            name = cls(tuple((key, value) for key, _, value in pairs), int(seed))
            if str(name) == text:
                return name
        raise SettingsError(f"run {text!r} is no seed and no 'name=value ... seed=N'")


class MetricName(NamedTuple):
    """What a metric is called: ``critic/stable_rank/trunk.0``, ``eval/return``, ``q_mean``.

    Args:
        of: the network, or ``eval``, ``task``, ``train``; may be empty.
        layer: empty for a number of the whole network.
    """

    of: str
    quantity: str
    layer: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in self if part)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The name whose text is `text`."""
        first, slash, rest = text.partition("/")
        if not slash:
            return cls("", first)
        quantity, _, layer = rest.partition("/")
        return cls(first, quantity, layer)


class Curve(NamedTuple):
    """A metric over time, by rising step."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]


class Row(NamedTuple):
    """A line of ``metrics.csv`` or ``timing.csv``."""

    run: str
    step: int
    name: str
    value: float


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
        try:
            with open_file(self.config) as file:
                text = file.read(MOST + 1).decode()
            # Without these two the settings of a sweep's folders are the same text, which is then parsed once.
            different = re.compile(r"^(?:seed|out):.*\n(?: .*\n)*", re.MULTILINE)
            parts = (different.sub("", text), "".join(different.findall(text)))
            return {name: value for part in parts for name, value in deepcopy(_parsed(part)).items()}
        except OSError as error:
            raise SettingsError(f"cannot read {self.config}: {error.strerror}") from error
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
            return {RunName.parse(run): of_run for run, of_run in _curves(self.metrics_csv).items()}
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
        return _curves(self.timing_csv).get("mean", {})

    def last_rows(self, file: Literal["metrics.csv", "timing.csv"], names: Collection[str] = ()) -> list[Row]:
        """The rows of the last step, of those with one of the `names` if given; none if the file is missing.

        Read from the file's end, which a run may be writing.

        Raises:
            SettingsError: the file is damaged or cannot be read.
        """
        path = self.path / file
        size = 1 << 14
        while True:
            try:
                with open_file(path) as opened:
                    start = max(0, opened.seek(0, os.SEEK_END) - size)
                    opened.seek(start)
                    lines = opened.read(size).split(b"\n")[1:-1]  # less the header or a cut line, and an unfinished one
            except FileNotFoundError:
                return []
            except OSError as error:
                raise SettingsError(f"cannot read {path}: {error.strerror}") from error
            rows = [row for row in (_row(line, path) for line in lines) if not names or row.name in names]
            last = [row for row in rows if row.step == rows[-1].step]
            # All rows of the last step were read if one of another step is before them; 16 MB are enough to find it.
            if start == 0 or len(last) < len(rows) or size >= 1 << 24:
                return last
            size *= 8

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

    def all_starts(self) -> list[Any]:
        """What is in ``provenance.json``, to be added to; empty if there is none.

        Raises:
            SettingsError: it is damaged, which is no reason to lose what it holds.
        """
        try:
            with open_file(self.provenance) as file:
                starts = json.loads(file.read())["starts"]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SettingsError(f"cannot read {self.provenance}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError):
            starts = None
        if not isinstance(starts, list):
            raise SettingsError(f"{self.provenance} is damaged; put it back as it was, or move it away")
        return starts

    @property
    def plugins(self) -> list[str]:
        """The modules of others that the newest start named, and its environment's: to be said, never to be loaded."""
        from rl_plasticity.plugins import module_of

        named: Any = self.starts[-1].get("plugins") if self.starts else None
        env: Any = self.settings.get("env")
        module = module_of(str(env.get("name"))) if isinstance(env, dict) else ""
        return list(
            dict.fromkeys([*(map(str, named) if isinstance(named, list) else []), *([module] if module else [])])
        )

    @property
    def plugin_sources(self) -> dict[str, str]:
        """A digest of each plug that the newest start used a choice of."""
        start = self.starts[-1] if self.starts else {}
        sources, used = start.get("plugin_sources"), start.get("plugins_used")
        if not (isinstance(sources, dict) and isinstance(used, dict)):
            return {}
        return {str(module): str(digest) for module, digest in sources.items() if module in used}

    def add_start(
        self,
        device: str,
        plugins: Sequence[str] = (),
        sources: Mapping[str, str] | None = None,
        used: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Add a start of the run to ``provenance.json``: versions, commit, device, command line, time.

        Args:
            plugins: the modules that were named.
            sources: a digest of each plug's source, see `plugins.sources`.
            used: the plugs that something the settings choose comes from, each with the names of what does.
        """
        import torch

        starts = self.all_starts()
        libraries = ["torch", "numpy", "gymnasium", "shimmy", "dm-control", "mujoco", "hydra-core"]
        libraries += ["scipy", "scikit-learn"]
        starts.append(
            {
                "time": time.strftime(TIME),
                "command": _command(),
                "rl_plasticity": __version__,
                "commit": _commit(),
                "plugins": list(plugins),
                "plugin_sources": dict(sources or {}),
                "plugins_used": dict(used or {}),
                "libraries": {name: metadata.version(name) for name in libraries},
                "python": platform.python_version(),
                "platform": platform.platform(),
                "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
                "processor": processor(),
                "cores": os.cpu_count(),
                "threads": torch.get_num_threads(),
            }
        )
        write_text(self.provenance, json.dumps({"starts": starts}, indent=2) + "\n")

    def keep_sources(self, files: Mapping[str, Mapping[str, bytes]], digests: Mapping[str, str]) -> None:
        """Copy each plug's files below ``plugins/``, beside those of earlier starts if they were others."""
        for module, contents in files.items():
            if sum(map(len, contents.values())) > LARGEST_PLUG:
                continue
            for name, content in contents.items():
                path = Path(self) / "plugins" / f"{module}-{digests[module][:8]}" / name
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_text(path, content)


def processor() -> str:
    """What the processor is called."""
    with suppress(OSError):  # Linux's name of it is nowhere else
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


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
        matches = [path] if exists(path) else [*map(Path, sorted(glob.glob(str(path), recursive=True)))]  # noqa: PTH207
        if not matches:
            raise SettingsError(f"{place} does not exist")
        try:
            runs = [run for match in matches for run in ([match] if RunFolder(match).is_run() else _runs_below(match))]
        except OSError as error:
            raise SettingsError(f"cannot search {place}: {error.strerror}") from error
        for run in runs:
            (named if run == path else below)[run.resolve()] = RunFolder(run)
        if not runs:
            raise SettingsError(f"{place} is no run's folder (config.yaml, metrics.csv) and there is none below it")
    return list(named.values()), [folder for key, folder in below.items() if key not in named]


def checkpoint_path(folder: Path, *numbers: int) -> Path:
    """Of the checkpoint of a step, or of the rows from the first number to before the second."""
    return folder / f"{'step' if len(numbers) == 1 else 'rows'}_{'_'.join(f'{n:09d}' for n in numbers)}.pt"


def checkpoint_files(folder: Path) -> dict[tuple[int, ...], Path]:
    """The files in `folder` whose names are exactly as `checkpoint_path` makes them, by their numbers, in order.

    Whatever else is there is the user's: ``step_best.pt``.
    """
    named = [(tuple(map(int, re.findall("[0-9]+", path.name))), path) for path in folder.glob("*.pt")]
    return dict(sorted((n, p) for n, p in named if len(n) in (1, 2) and p == checkpoint_path(folder, *n)))


def saved_steps(folder: Path) -> dict[int, Path]:
    """The checkpoints in `folder` by their step, the newest last."""
    return {numbers[0]: path for numbers, path in checkpoint_files(folder).items() if len(numbers) == 1}


def file_name(text: str) -> str:
    """A run's name, or that of a mean over runs, as the name of a file or a folder."""
    return text.strip().replace(" ", "_").replace("/", "-")


def require_new(path: Path, suffix: str) -> None:
    """Raises SettingsError unless a file that ends in `suffix` can be made there."""
    if path.suffix != suffix:
        raise SettingsError(f"out must end in {suffix}, got {path}")
    try:
        there = path.exists() or path.with_name(f".{path.name}.tmp").is_dir()  # what it is called while it is written
    except OSError as error:
        raise SettingsError(f"cannot write to {path}: {error.strerror}") from error
    if there:
        raise SettingsError(f"{path} exists; choose another out=")
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise SettingsError(f"cannot write to the folder {path.parent}")


def open_file(path: Path) -> IO[bytes]:
    """Open a file for reading. What is none, a pipe or a device, could keep the reader waiting for ever: OSError."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        what = "Is a directory" if stat.S_ISDIR(mode) else "not a file"
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, what, str(path))
    return os.fdopen(number, "rb")


def write_text(path: Path, text: str | bytes) -> None:
    """Write a small file, whole or not at all; of names that are not UTF-8 the bytes as escapes."""
    content = text if isinstance(text, bytes) else text.encode(errors="backslashreplace")
    write_atomically(path, lambda file: file.write(content))


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a temporary file beside `path`, force it to the disk, then rename it: old or new, never half."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # of a process that was killed; were it a link, its target would be written
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)  # the rename itself must reach the disk too
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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


def _value(text: str) -> Any:
    """`text` as a number, truth value, null or list, as JSON writes them; else itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@functools.cache
def _parsed(text: str) -> dict[str, Any]:
    # A run writes no aliases, and a few of them stand for any number of settings.
    if len(text) > MOST or ("*" in text and any(isinstance(token, AliasToken) for token in scan(text))):
        raise ValueError("no settings")
    config = OmegaConf.to_container(OmegaConf.create(text)) if text else {}
    if not isinstance(config, dict):
        raise ValueError("no settings")
    return {str(name): value for name, value in config.items()}


def _curves(path: Path) -> dict[str, dict[str, Curve]]:
    """The curves in a file of rows, by the run's and the metric's name.

    Written for many long files: the fields of a column are every fourth of all, and no line is looked at by itself.
    A last line without its end is left out: the run was killed while it wrote, or is writing.
    """
    fields = _fields(path)
    try:
        steps = np.array(list(map(int, fields[1::4])), np.int64)
        values = np.array(list(map(float, fields[3::4])), np.float64)
    except (ValueError, OverflowError) as error:
        raise SettingsError(f"{path} is damaged: {error}") from error
    runs, metrics = (dict.fromkeys(fields[column::4]) for column in (0, 2))
    run_index, metric_index = ({name: i for i, name in enumerate(names)} for names in (runs, metrics))
    key = np.array(list(map(run_index.__getitem__, fields[0::4])), np.int64) * len(metrics)
    key += np.array(list(map(metric_index.__getitem__, fields[2::4])), np.int64)
    order = np.argsort(key, kind="stable")
    names = [(run, metric) for run in runs for metric in metrics]
    curves: dict[str, dict[str, Curve]] = {run: {} for run in runs}
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if len(order) else []:
        run, metric = names[key[rows[0]]]
        curves[run][metric] = Curve(steps[rows], values[rows])
    return curves


def _fields(path: Path) -> Sequence[str]:
    """Those of all whole lines but the header, four a line."""
    try:
        with open_file(path) as file:
            data = file.read()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    try:
        header, _, body = data[: data.rfind(b"\n") + 1].decode().partition("\n")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is damaged: it is not text") from error
    if header != HEADER:
        raise SettingsError(f"{path} is not a run's: its first line should be {HEADER!r}")
    fields = body.replace("\n", ",").split(",")[:-1]
    if len(fields) != 4 * body.count("\n"):  # a run's name may hold commas: reg.widths=[1, 2] seed=0
        lines = [line.rsplit(",", 3) for line in body.split("\n")[:-1]]
        bad = [i for i, line in enumerate(lines) if len(line) != 4]
        if bad:
            raise SettingsError(f"{path} is damaged: line {bad[0] + 2} has no 4 fields {HEADER}")
        fields = [field for line in lines for field in line]
    return fields


def _row(line: bytes, path: Path) -> Row:
    fields = line.decode(errors="replace").rsplit(",", 3)
    try:
        return Row(fields[0], int(fields[1]), fields[2], float(fields[3]))
    except (IndexError, ValueError):
        raise SettingsError(f"{path} is damaged: a line is not {HEADER}") from None


def _command() -> str:
    """The command line of this process, as it can be pasted into a shell."""
    module = getattr(sys.modules["__main__"], "__spec__", None)  # of python -m, and of a sweep's run
    arguments = ["-m", module.name, *sys.argv[1:]] if module else sys.orig_argv[1:]
    return shlex.join(["python", *arguments])


def _commit() -> str | None:
    """The commit that this package was built from or that its checkout has, with + if it was changed; else None."""
    here = Path(__file__).parent
    with suppress(OSError):  # a wheel's, see hatch_build.py
        return (here.parent / "commit.txt").read_text().strip() or None

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if not git("ls-files", Path(__file__).name):
            return None  # installed inside somebody else's repository
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
