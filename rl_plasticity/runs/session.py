"""What the commands share: how a run is prepared, stopped, timed and named. The algorithms are in the commands."""

import hashlib
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from tqdm import tqdm

from rl_plasticity.configs import schema
from rl_plasticity.configs.schema import Supervised, Train
from rl_plasticity.errors import FaultyRun, SettingsError
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.folder import RunFolder, RunName, write_text
from rl_plasticity.runs.journal import Journal
from rl_plasticity.runs.lock import Lock
from rl_plasticity.runs.results import require
from rl_plasticity.sweeps import sweep

S = TypeVar("S", Train, Supervised)
E = TypeVar("E")
Saved = dict[str, Any] | None
COMPILE_FROM_UPDATES = 10_000  # compiling takes as long as it saves in 6 000 (SAC, cnn) to 11 000 (mlp) updates


class StopSignal:
    """Remembers the first SIGINT or SIGTERM, so that the run ends after its step; a second one kills as usual."""

    def __init__(self) -> None:
        self.received = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)


class Command(Generic[S]):
    """One command of the package.

    Args:
        kind: the dataclass of its settings; its name in lower case is the command's.
        check: raises ValueError or ImportError for settings that cannot be run, before anything is made.
        planned_updates: how many updates a run with these settings makes.
        faults: what else than a `FaultyRun` ends a run with one line.
    """

    def __init__(
        self,
        kind: type[S],
        check: Callable[[S], None],
        planned_updates: Callable[[S], float],
        faults: tuple[type[Exception], ...] = (),
    ) -> None:
        self.kind: type[S] = kind
        self.check: Callable[[S], None] = check
        self.planned_updates: Callable[[S], float] = planned_updates
        self.name = kind.__name__.lower()
        self.faults = faults
        self.lock: Lock | None = None  # of the folder prepared last

    def main(self, run: Callable[[S, Path, Saved, StopSignal], bool]) -> None:
        """Run it; status 0, 1 (a fault of the run), 2 (bad input), or 128 + the signal that stopped it."""
        arguments: list[str] = sys.argv[1:]
        if any(a in ("-h", "--help") for a in arguments):
            usage = f"python -m rl_plasticity.{self.name} [name=value ...]"
            print(f"{usage}\n{usage.replace('[', '-m [', 1)}\n{sweep.USAGE}\n\n" + schema.describe(self.kind))
            return
        try:
            if sweep.FLAGS & {*arguments}:
                sys.exit(sweep.sweep(self.kind, self.check, name_of, [a for a in arguments if a not in sweep.FLAGS]))
            if of_sweeps := [a for a in arguments if a.startswith(("hydra/", "hydra."))]:
                raise SettingsError(f"{of_sweeps[0]} is for a sweep: add -m")
            settings, folder, saved = self.prepare(arguments)
        except SettingsError as error:
            sys.exit(complain(self.name, error, 2))
        stop = StopSignal()
        threading.excepthook = lambda args: None  # TensorBoard's thread raises what the main thread then raises too
        try:
            with Journal(RunFolder(folder)) as events:
                finished, fault = self._run(run, settings, folder, saved, stop, events)
        finally:
            self._release()
        if fault:
            sys.exit(complain(self.name, fault, 1))
        if finished:
            print(f"done; results in {folder}")
        else:
            print(f"stopped; continue with resume={folder}", file=sys.stderr)
            sys.exit(128 + stop.received)

    def _run(
        self,
        run: Callable[[S, Path, Saved, StopSignal], bool],
        settings: S,
        folder: Path,
        saved: Saved,
        stop: StopSignal,
        events: Journal,
    ) -> tuple[bool, str | None]:
        """Whether the run finished, and the fault that ended it."""
        try:
            finished = run(settings, folder, saved, stop)
        except FaultyRun as error:
            fault = str(error)
        except OSError as error:
            fault = f"{error.filename or folder}: {error.strerror or error}; {last_checkpoint(folder)}"
        except self.faults as error:
            fault = f"{error}; {last_checkpoint(folder)}"
        except BaseException as error:
            events.write(f"failed: {type(error).__name__}: {error}")
            raise
        else:
            events.write("finished" if finished else "stopped")
            return finished, None
        events.write(f"failed: {fault}")
        return False, fault

    def prepare(self, arguments: Sequence[str]) -> tuple[S, Path, Saved]:
        """Settings, folder and, on resuming, the checkpoint. Everything is checked before the folder is made.

        Raises:
            SettingsError: bad input.
        """
        settings = schema.load(self.kind, arguments)
        saved: Saved = None
        if settings.resume is not None:
            settings, folder, saved = self._resumed(settings, arguments)
        else:
            folder = Path(settings.out if settings.out != "auto" else Path("results") / name_of(settings, arguments))
            try:
                started = (
                    ".config.yaml.tmp",
                    RunFolder(folder).lock.name,
                )  # by a process that was killed before it wrote any settings
                if folder.exists() and (not folder.is_dir() or any(p.name not in started for p in folder.iterdir())):
                    raise SettingsError(
                        f"{folder} exists; continue that run with resume={folder} or choose another out="
                    )
            except OSError as error:
                raise SettingsError(f"cannot read {folder}: {error.strerror}") from error
        try:
            settings = replace(self.resolved(settings), out=str(folder), resume=None)
            require(settings.logger)
            self.check(settings)
        except (ValueError, ImportError) as error:
            raise SettingsError(str(error)) from error
        if saved is None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._lock(folder)
                write_text(folder / "config.yaml", schema.dump(settings))
            except OSError as error:
                raise SettingsError(f"cannot write to {folder}: {error.strerror}") from error
        return settings, folder, saved

    def _resumed(self, settings: S, arguments: Sequence[str]) -> tuple[S, Path, Saved]:
        assert settings.resume is not None
        folder = Path(settings.resume)
        names = [a.partition("=")[0] for a in arguments]
        others = [a for a, name in zip(arguments, names, strict=True) if name not in ("resume", "device", "threads")]
        if others:
            raise SettingsError(f"resume={folder} takes its settings from there; leave out {' '.join(others)}")
        given = {name: getattr(settings, name) for name in names}
        settings = replace(schema.load_saved(self.kind, folder / "config.yaml"), **given)
        try:
            self._lock(folder)
            saved = checkpoint.load(folder / "checkpoints")
        except FileNotFoundError as error:
            if _has_steps(folder / "metrics.csv"):
                raise SettingsError(f"cannot resume: {error}") from error
            return settings, folder, None  # killed before its first checkpoint: from the beginning
        except ValueError as error:
            raise SettingsError(f"cannot resume: {error}") from error
        except OSError as error:
            raise SettingsError(f"cannot write to {folder}: {error.strerror}") from error
        if different := _differences(saved["settings"], asdict(settings)):
            said = "; ".join(different)
            raise SettingsError(f"cannot resume: config.yaml is not what the checkpoint was made with: {said}")
        return settings, folder, saved

    def _lock(self, folder: Path) -> None:
        """Keep other processes off the folder, until this one ends (however it does) or prepares another run.

        Raises:
            SettingsError: another process has it.
        """
        self._release()
        try:
            self.lock = Lock(RunFolder(folder))
        except BlockingIOError as error:
            raise SettingsError(f"{folder} is being written by {error}") from error

    def _release(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def resolved(self, s: S) -> S:
        """`s` with every ``auto`` decided, so that the saved settings say what was done.

        Raises:
            SettingsError: a device that is not there.
            ValueError, ImportError: `planned_updates` cannot be told.
        """
        cuda = torch.cuda.is_available()
        if s.device == "cuda" and not cuda:
            raise SettingsError("device=cuda, but torch finds no GPU here; use device=cpu or auto")
        device = s.device if s.device != "auto" else ("cuda" if cuda else "cpu")
        compile_ = s.compile
        if compile_ == "auto":
            has_compiler = device == "cuda" or any(shutil.which(c) for c in ("c++", "g++", "clang++"))
            compile_ = has_compiler and self.planned_updates(s) >= COMPILE_FROM_UPDATES
        threads = torch.get_num_threads() if s.threads == "auto" else s.threads
        return replace(s, device=device, compile=compile_, threads=threads)


def close_all(*closing: Callable[[], object]) -> None:
    """Call all of them, in order, even where one raises."""
    with ExitStack() as stack:
        for close in reversed(closing):
            stack.callback(close)


def _has_steps(metrics: Path) -> bool:
    """Whether rows beyond step 0 were written, which come after the first checkpoint."""
    return metrics.exists() and re.search(rb"^[^,\n]*,[1-9]", metrics.read_bytes(), re.MULTILINE) is not None


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What two settings differ in, apart from where the run is and what it runs on."""
    found = []
    for key in dict.fromkeys([*saved, *now]):
        a, b, name = saved.get(key), now.get(key), f"{prefix}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += _differences(a, b, f"{name}.")
        elif a != b and name not in ("out", "resume", "device", "threads"):
            found.append(f"{name} is {b}, was {a}")
    return found


def complain(name: str, error: Exception | str, status: int) -> int:
    """One line for the user of the command `name`; `status` comes back."""
    print(f"rl_plasticity.{name}: {' '.join(str(error).split())}", file=sys.stderr)
    return status


def main_on_folder(kind: type[E], run: Callable[[Path, E], None]) -> None:
    """``python -m rl_plasticity.KIND RUN [name=value ...]``; the statuses are those of `Command.main`."""
    name, arguments = kind.__name__.lower(), sys.argv[1:]
    usage = f"python -m rl_plasticity.{name} RUN [name=value ...]"
    if any(a in ("-h", "--help") for a in arguments):
        print(f"{usage}\n\nRUN is the folder of a run.\n\n" + schema.describe(kind))
        return
    try:
        if not arguments:
            raise SettingsError(f"a run's folder is needed: {usage}")
        run(Path(arguments[0]).expanduser(), schema.load(kind, arguments[1:]))
    except SettingsError as error:
        sys.exit(complain(name, error, 2))
    except (FaultyRun, OSError) as error:
        sys.exit(complain(name, error, 1))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def last_checkpoint(folder: Path) -> str:
    """For messages: which checkpoint a broken run can go on from."""
    try:
        found = sorted((folder / "checkpoints").glob("step_*.pt"))
    except OSError:
        return "its checkpoints cannot be reached"
    return f"the last good checkpoint is {found[-1]}" if found else "there is no checkpoint"


def require_finite_weights(module: nn.Module, when: str, folder: Path) -> None:
    """Raises FaultyRun if a parameter of `module` is not finite; `when` is for the message."""
    if not all(bool(p.isfinite().all()) for p in module.parameters()):
        raise FaultyRun(f"weights are no longer finite {when}; {last_checkpoint(folder)}")


def require_finite_loss(name: str, loss: Tensor, runs: Sequence[RunName], when: str, folder: Path) -> None:
    """Raises FaultyRun that names those of the `runs` whose `loss` ``[*runs]`` is not finite."""
    bad = (~loss.isfinite()).reshape(-1).nonzero().flatten().tolist()
    if bad:
        which = ", ".join(runs[run].in_words for run in bad)
        raise FaultyRun(f"{name} of {which} is not finite {when}; {last_checkpoint(folder)}")


def name_of(s: Train | Supervised, arguments: Sequence[str]) -> str:
    """A folder's name made of the choices."""
    if isinstance(s, Train):
        parts, said = [s.env.name.replace(":", "-").replace("/", "-")], ["env", "env.name"]
    else:
        parts, said = [s.task["name"], s.data.name, s.net["name"]], ["task", "data", "net"]
    several = {"chain": "+", "side_by_side": "-"}.get(s.reg["name"])
    parts.append(several.join(n for n in s.reg if n != "name") if several else s.reg["name"])
    parts += [s.reset["name"]] * (s.reset["name"] != "none") + [s.preset] * (s.preset not in ("paper", "none"))
    said += ["reg", "reset", "preset", "seed", "seeds", "out", "device", "threads", "compile", "logger"]
    parts += sorted(a.replace("/", "-") for a in arguments if a.partition("=")[0] not in said)
    name = "_".join(parts)
    if len(name) > 150:  # file systems take 255 bytes
        name = f"{name[:140]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{name}_seed{s.seed}" if s.seeds == 1 else f"{name}_seed{s.seed}-{s.seed + s.seeds - 1}"


class Clock:
    """The progress bar, the rates in ``timing.csv``, and how long a slow run will take.

    Args:
        unit: what a step is.
        total, step: how many there are, and how many were made before.
        updates_per_step: to say how long the rest takes.
    """

    def __init__(self, s: Train | Supervised, unit: str, total: int, step: int, updates_per_step: float) -> None:
        self.s, self.unit, self.total, self.updates_per_step = s, unit, total, updates_per_step
        self.bar = tqdm(total=total, initial=step, unit=f" {unit}", smoothing=0.1, mininterval=1)
        self.said = "no evaluation yet"
        self.mark, self.mark_step = time.perf_counter(), step
        self.updates, self.in_updates, self.rate = 0, 0.0, 0.0
        self.warm = False  # the first updates may include compiling; they do not count
        self.started = self.learning_since = 0.0
        self.announced = False

    def start_updates(self) -> None:
        """Updates begin now."""
        self.started = time.perf_counter()
        if not self.warm and self.s.compile:
            self.bar.write("compiling the update, which takes up to a minute", file=sys.stderr)

    def end_updates(self, number: int) -> None:
        """So many updates were made since `start_updates`."""
        if self.warm:
            self.in_updates += time.perf_counter() - self.started
            self.updates += number
            self.rate = self.updates / self.in_updates
        else:
            self.warm, self.learning_since = True, time.perf_counter()

    def rates(self, step: int) -> dict[str, float]:
        """Since the last call: steps and updates (of all runs together: one) a second; then start anew.

        And how many steps are done and left, and how many seconds: updates at their rate, and for each step what it
        took besides. Steps before the first update say nothing about the later ones, so there the seconds are left out.
        """
        now = time.perf_counter()
        unit, steps, seconds = self.unit.replace(" ", "_"), step - self.mark_step, now - self.mark
        left = self.total - step
        rates = {f"{unit}_per_second": steps / seconds, "updates_per_second": self.rate}
        rates |= {f"{unit}_done": float(step), f"{unit}_left": float(left)}
        if self.rate and steps:
            rates["seconds_left"] = left * (self.updates_per_step / self.rate + (seconds - self.in_updates) / steps)
        self.mark, self.mark_step, self.updates, self.in_updates = now, step, 0, 0.0
        return rates

    def show(self, step: int) -> None:
        """Move the bar."""
        self.bar.set_postfix_str(f"{self.rate:.0f} updates/s, {self.said}", refresh=False)
        self.bar.update(step - self.bar.n)
        if not self.announced and self.rate and time.perf_counter() - self.learning_since > 60:
            self.announced = True
            hours = (self.total - step) * self.updates_per_step / self.rate / 3600
            if hours > 1:
                self.bar.write(
                    f"At {self.rate:.0f} updates/s on this {self.s.device} the rest takes about {hours:.0f} h. "
                    "preset=demo shows something within minutes.",
                    file=sys.stderr,
                )

    def close(self) -> None:
        """Leave the bar as it is."""
        self.bar.close()
