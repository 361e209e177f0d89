"""One run from its first step to its last: checked, begun or resumed, logged, saved, stopped and finished."""

import json
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_plasticity import plugins
from rl_plasticity.compiling import precision
from rl_plasticity.compiling.compiled import set_tracing
from rl_plasticity.compiling.shares import Cut, Shares, cuts, largest_matrix
from rl_plasticity.configs import schema, written
from rl_plasticity.configs.commands import LONGEST, Supervised, Train, period
from rl_plasticity.configs.kinds import KINDS, constructors
from rl_plasticity.configs.written import Given
from rl_plasticity.errors import FaultyRun, SettingsError, first_line, one_line
from rl_plasticity.runs import checkpoint, naming
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.journal import Journal
from rl_plasticity.runs.lock import Lock
from rl_plasticity.runs.plan import Plan, foretold
from rl_plasticity.runs.progress import Clock, Progress
from rl_plasticity.runs.results import Results, require, require_as_saved
from rl_plasticity.runs.trained import saved_settings, threads_of_torch

S = TypeVar("S", Train, Supervised)
B = TypeVar("B", bound="Built")
COMPILE_FROM_UPDATES = 10_000  # compiling takes as long as it saves in 6 000 (SAC, cnn) to 11 000 (mlp) updates
LENGTH = "total_env_steps"  # the one setting of its own that a run can be resumed with: a larger one extends it
RESULTS = Path("results")  # where runs go unless they are told


CALLBACKS: dict[str, Callable[[Any, Any], object]] = {}
"""What looks at every run, by name: called as ``kind(settings, parts)`` before anything is written. See `Session`."""


class Built(Protocol):
    """What a command makes of its settings before anything is written."""

    callbacks: dict[str, object]

    @property
    def is_stacked(self) -> bool:
        """Whether the networks have a runs axis."""
        ...

    def close(self) -> None:
        """Let go of processes and files."""
        ...


class Part(Protocol):
    """What is saved and restored with a run."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Interrupted(Exception):
    """A stop signal came within an evaluation, which may never end."""


class StopSignal:
    """Within it the first SIGINT or SIGTERM is remembered, so that the run ends after its step; a second one kills.

    So is SIGHUP, which comes when the terminal is closed, unless it is ignored (nohup). It may come twice, from the
    shell and from the system, so that a second one of it kills nothing.

    Outside the main thread, where no signal can be handled, it does nothing.
    """

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            heeded = [signal.SIGINT, signal.SIGTERM]
            if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
                heeded.append(signal.SIGHUP)
            self._before = {n: signal.signal(n, self._handle) for n in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def require_none(self) -> None:
        """Raises Interrupted if a signal has come."""
        if self.received:
            raise Interrupted

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)


class Session(Generic[S]):
    """One run, and all that its loop shares with the other command's.

    Callbacks get the session: they can read everything, `parts` and `latest` above all, and call `log` and `end_early`.

    Args:
        settings: every ``auto`` decided.
        folder: locked for this process.
        plan: of the runs that train at once.
        saved: the checkpoint to go on from.
        lock: of the folder.
        callbacks: objects by name, whose methods ``on_step``, ``on_update``, ... are called. One that has a state is
            saved and restored, as the part ``callbacks.NAME``.
        extended: the text of ``config.yaml`` once the run is restored, if it is to be longer than it was.

    Attributes:
        parts: what the run is made of, by name.
        progress: where it is.
        latest: the metrics that were logged last, each ``[runs]``.
        has_begun: whether the folder is the run's to change: it is new, or was restored.
    """

    parts: Mapping[str, Part]
    progress: Progress
    results: Results
    clock: Clock
    shares: Shares[Any]

    def __init__(
        self,
        settings: S,
        folder: RunFolder,
        plan: Plan,
        saved: dict[str, Any] | None = None,
        lock: Lock | None = None,
        callbacks: Mapping[str, object] | None = None,
        extended: str | None = None,
    ) -> None:
        self.settings: S = settings
        self.folder, self.plan, self.saved, self.lock = folder, plan, saved, lock
        self.stop = StopSignal()
        self.callbacks: Mapping[str, object] = callbacks or {}
        self.latest: dict[str, Tensor | np.ndarray] = {}
        self.has_begun = saved is None
        self._extended = extended
        self._ended_early = False

    # --- the life of a run ------------------------------------------------------------------------------------------

    @contextmanager
    def begun(self, parts: Mapping[str, Part], progress: Progress, **given: Any) -> Iterator[bool]:
        """The run from `begin`, which takes the same arguments, to its last checkpoint.

        A stop signal within an evaluation ends it there: the checkpoint is of before the evaluation.
        """
        is_new = self.begin(parts, progress, **given)
        try:
            try:
                yield is_new
            except Interrupted:
                if not progress.step:  # the run begins again
                    return
            self.save()
        finally:
            self.close()

    def begin(
        self,
        parts: Mapping[str, Part],
        progress: Progress,
        *,
        unit: Literal["env steps", "epochs"],
        total: int,
        updates_per_step: float,
        save_every: int,
        table: str | None = None,
    ) -> bool:
        """Name what the run is made of, restore it from the checkpoint if there is one, and open the results.

        Args:
            parts: all that is saved, by name.
            progress: saved too; metrics are logged over its env steps, or over its updates where the unit is epochs.
            total: how many steps there are.
            save_every: after how many of them a checkpoint is written.
            table: which of the parts is a `checkpoint.Table`, whose rows are saved as they come.

        Returns:
            Whether the run is a new one.

        Raises:
            FaultyRun: the checkpoint cannot be restored.
        """
        s = self.settings
        watching: Any = {f"callbacks.{n}": c for n, c in self.callbacks.items() if hasattr(c, "load_state_dict")}
        parts = self.parts = {**parts, **watching}
        self.progress, self.total, self.unit, self.table = progress, total, unit, table
        self.save_every = save_every
        if self.saved is not None:
            if lost := [name for name in self.saved if name.startswith("callbacks.") and name not in parts]:
                raise FaultyRun(f"cannot resume: the checkpoint holds the state of {lost[0]}, which is not loaded")
            try:
                for name, part in {**parts, "progress": progress}.items():
                    state = self.saved[name]
                    if name == table:
                        state |= {**self.saved["table"], "size": state["size"] - self.saved["lost"]}
                    part.load_state_dict(state)
            except ValueError as error:
                raise FaultyRun(f"cannot resume: {error}") from error
            except Exception as error:  # a file that is whole may hold anything
                raise FaultyRun(f"cannot resume: the checkpoint is not of this run: {first_line(error)}") from error
        if self._extended is not None:  # only now: a run that cannot be restored stays as long as it was
            self.folder.write_settings(self._extended)
        self.has_begun = True
        groups = {name: group for name, group in vars(s).items() if name in KINDS}
        used = plugins.used(constructors(groups), str(groups.get("env", {}).get("name")))
        self.folder.add_start(s.device, plugins.loaded, plugins.sources(), used)
        self.folder.keep_sources(plugins.source_files(), plugins.sources())
        sizes = self.saved["sizes"] if self.saved else None
        self.results = Results(self.folder, self.plan.names, sizes, self.axis, s.logger)
        self.checkpoints = checkpoint.Checkpoints(self.folder.checkpoints, self.saved)
        threads = torch.get_num_threads() if s.device == "cpu" else 1
        self.clock = Clock(unit, total, progress.step, updates_per_step, s.device, bool(s.compile), threads)
        self.saved_at: tuple[int, int] | None = None
        if self.saved is not None:
            self.saved_at = progress.step, progress.updates
        self.call("on_start")
        return self.saved is None

    def divided(self, whole: Any, make: Callable[[slice], Any]) -> Shares[Any]:
        """What is trained, divided among threads if it is of several runs and on a CPU; `make` makes those of some."""
        s = self.settings
        found: list[Cut] = []
        if s.device == "cpu" and len(self.plan.seeds) > 1:
            found = cuts(self.plan.side_by_side, int(s.threads), largest_matrix(whole) if s.compile else None)
        self.shares = Shares(whole, make, found, int(s.threads), set_tracing if s.compile else None)
        return self.shares

    @property
    def axis(self) -> int:
        """Where on the axis of the logged metrics the run is."""
        return self.progress.step if self.unit == "env steps" else self.progress.updates

    @property
    def when(self) -> str:
        """For messages: ``at env step 300``."""
        return f"at env step {self.axis}" if self.unit == "env steps" else f"after {self.axis} updates"

    def goes_on(self) -> bool:
        """Whether there is another step to make: not at the end, no stop signal, no callback that ended it."""
        return self.progress.step < self.total and not self.stop.received and not self._ended_early

    def end_early(self) -> None:
        """For callbacks: stop after the step under way, and save."""
        self._ended_early = True

    def call(
        self, name: Literal["on_start", "on_task", "on_update", "on_evaluation", "on_measurement", "on_step"]
    ) -> None:
        """Call the method of this name of each callback that has it."""
        for callback in self.callbacks.values():
            if method := getattr(callback, name, None):
                method(self)

    def log(self, values: Mapping[str, Tensor | np.ndarray], where: np.ndarray | None = None) -> None:
        """Write metrics ``[runs]``, of the runs in the mask `where`."""
        self.latest = {
            name: value.cpu().clone() if isinstance(value, Tensor) else value for name, value in values.items()
        }
        self.results.write(self.axis, self.latest, where)

    def evaluating(self, done: int, episodes: int) -> None:
        """Show how many of an evaluation's episodes are done.

        Raises:
            Interrupted: the run is to end. The evaluation is made when it is resumed.
        """
        self.clock.show_evaluation(done, episodes)
        self.stop.require_none()

    def evaluated(self, values: Mapping[str, Tensor | np.ndarray], summary: str) -> None:
        """Write an evaluation and the rates since the last one; `summary` goes to the progress bar."""
        self.saved_at = None  # a checkpoint of this step, if there is one, is of before the evaluation
        self.log(values)
        self.results.write_timing(self.axis, self.clock.rates(self.progress.step))
        self.clock.latest = summary
        self.call("on_evaluation")

    def after_step(self) -> None:
        """Call back, save where that is due, and show how far the run is."""
        self.call("on_step")
        if self.progress.step % self.save_every == 0:
            self.save()
        self.show()

    def show(self) -> None:
        """Move the progress bar; write the first rates before the first evaluation, which may be far, for `status`."""
        self.clock.show(self.progress.step)
        if self.clock.is_time_to_tell():
            self.results.write_timing(self.axis, self.clock.rates(self.progress.step, anew=False))

    def save(self) -> None:
        """Write a checkpoint, unless one was written at this step and number of updates.

        Raises:
            FaultyRun: weights are not finite.
        """
        here = self.progress.step, self.progress.updates
        if self.saved_at == here:
            return
        for part in self.parts.values():
            if isinstance(part, nn.Module):
                self.require_finite_weights(part)
        state = {n: self.parts[n].state_dict() for n in self.parts if n != self.table}
        table: Any = self.parts[self.table] if self.table else None
        if self.table:
            state[self.table] = table.position()
        state |= {"progress": self.progress.state_dict(), "sizes": self.results.sync(), "ends": self.results.ends()}
        self.checkpoints.save(self.progress.step, {**state, "settings": asdict(self.settings)}, table)
        self.saved_at = here

    def close(self) -> None:
        """Close the bar and the results, and end the threads."""
        self.shares.close()
        try:
            self.clock.close()
        finally:
            self.results.close()

    # --- what may not be --------------------------------------------------------------------------------------------

    def require_finite_weights(self, module: nn.Module) -> None:
        """Raises FaultyRun if a parameter of `module` is not finite."""
        if not all(bool(p.isfinite().all()) for p in module.parameters()):
            raise FaultyRun(f"weights are no longer finite {self.when}")

    def require_finite_losses(self, losses: Mapping[str, Tensor]) -> None:
        """Raises FaultyRun that names those runs of which a loss ``[*runs]`` is not finite."""
        for name, loss in losses.items():
            bad = (~loss.isfinite()).reshape(-1).nonzero().flatten().tolist()
            if bad:
                runs = ", ".join(self.plan.names[run].in_words for run in bad)
                raise FaultyRun(f"{name} of {runs} is not finite {self.when}")


class Command(Generic[S, B]):
    """One of the commands that train.

    Args:
        kind: the dataclass of its settings; its name in lower case is the command's.
        build: what it makes of settings and plan before anything is written; raises ValueError or ImportError.
        train: the loop, until the last step or `Session.goes_on` says no; returns whether the last step was made.
        planned_updates: how many updates that could be compiled a run makes.
        length: how many updates a run makes in all, and in how many steps, for people.
    """

    def __init__(
        self,
        kind: type[S],
        build: Callable[[S, Plan], B],
        train: Callable[[Session[S], B], bool],
        planned_updates: Callable[[S, B], float],
        length: Callable[[S, B], tuple[float, str]],
    ) -> None:
        self.kind: type[S] = kind
        self.name = kind.__name__.lower()
        self.build: Callable[[S, Plan], B] = build
        self.train: Callable[[Session[S], B], bool] = train
        self.planned_updates: Callable[[S, B], float] = planned_updates
        self.length: Callable[[S, B], tuple[float, str]] = length

    def run(self, settings: Mapping[str, Any], callbacks: Mapping[str, Any]) -> RunFolder:
        """From Python: make one run, and return its folder.

        Raises:
            SettingsError: bad input; nothing was written.
            FaultyRun: the run could not go on.
        """
        session, built = self.prepare(written.from_python(settings), callbacks)
        fault = self.execute(session, built)[1]
        if fault:
            raise FaultyRun(fault)
        return session.folder

    def execute(self, session: Session[S], built: B) -> tuple[bool, str | None]:
        """Train, and close what was built; whether the run finished, and the fault that ended it.

        Its end is written into ``log.txt``, unless the run could not be restored: then the folder stays as it was.
        """
        folder = session.folder
        with ExitStack() as stack:
            journal = stack.enter_context(Journal(folder))
            stack.enter_context(session.stop)
            if session.lock:
                stack.enter_context(session.lock)
            stack.callback(built.close)
            stack.enter_context(precision.tf32(session.settings.precision == "tf32"))
            try:
                finished = self.train(session, built)
            except FaultyRun as error:
                fault = f"{error}; {last_checkpoint(folder)}"
            except OSError as error:
                fault = f"{os.fsdecode(error.filename or folder)}: {error.strerror or error}; {last_checkpoint(folder)}"
            except BaseException as error:
                journal.end(f"failed: {type(error).__name__}: {error}")
                raise
            else:
                journal.end("finished" if finished else "stopped")
                return finished, None
            if session.has_begun:
                journal.end(f"failed: {fault}")
            else:
                journal.take_back()
            return False, fault

    def foretold(self, session: Session[S], built: B) -> list[str]:
        """Four lines for people, before the run starts: see `plan.foretold`."""
        return foretold(session.settings, session.plan, *self.length(session.settings, built))

    def check(self, settings: S) -> None:
        """See that these settings can be run, perhaps on another machine: only that one knows whether it has a GPU.

        Raises:
            SettingsError: they cannot.
        """
        self._built(resolved(replace(settings, device="cpu", precision="float32")), _plan(settings)).close()

    def prepare(self, asked: Iterable[str | Given], callbacks: Mapping[str, Any] | None = None) -> tuple[Session[S], B]:
        """The session, and what was built of its settings. Everything is checked before the folder is made.

        Raises:
            SettingsError: bad input.
        """
        given = [written.parse(argument) if isinstance(argument, str) else argument for argument in asked]
        settings = schema.load(self.kind, given)
        if settings.resume is not None:
            try:
                return self._resumed(settings, given, callbacks)
            except OSError as error:
                raise SettingsError(f"cannot read {settings.resume}: {error.strerror or error}") from error
        _new_folder(settings)
        settings = replace(resolved(settings), resume=None)
        plan = _plan(settings)
        built = self._built(settings, plan)
        with ExitStack() as otherwise:
            otherwise.callback(built.close)
            schema.warn_of_unlike(settings)
            settings = self._decided(settings, plan, built)
            folder, lock, made = _claimed(settings)
            otherwise.callback(_remove, folder, made)
            otherwise.enter_context(lock)
            # Periods are decided last: they are no part of the name.
            periods: Any = {
                name: period(self.length(settings, built)[0], longest)
                for name, longest in LONGEST[self.kind].items()
                if getattr(settings, name) == "auto"
            }
            settings = replace(settings, out=str(folder), **periods)
            try:
                folder.write_settings(schema.dump(settings))
            except OSError as error:
                raise SettingsError(f"cannot write to {folder}: {error.strerror}") from error
            otherwise.pop_all()
        return Session(settings, folder, plan, None, lock, _all(callbacks, built)), built

    def _resumed(
        self, settings: S, given: Sequence[Given], callbacks: Mapping[str, Any] | None
    ) -> tuple[Session[S], B]:
        assert settings.resume is not None
        folder = RunFolder(settings.resume)
        _require_own(folder)
        machine = {"plugins", *schema.marked(self.kind, "machine")} - {"out", "compile", "bfloat16_from"}
        if others := [g.text for g in given if g.name not in machine | {LENGTH}]:
            raise SettingsError(f"resume={folder} takes its settings from there; leave out {' '.join(others)}")
        if folder.config.is_file() and (plugs := plugins.missing(folder.plugins)):  # else metrics could be missing
            raise SettingsError(f"cannot resume {folder}: {plugs}")
        for module in plugins.changed(folder.plugin_sources):
            said = f"{folder}: the code of the plug {module} is not what it was: numbers may differ from those before"
            print(one_line(said), file=sys.stderr)
        anew = {g.name: getattr(settings, g.name) for g in given if hasattr(settings, g.name)}
        before = saved_settings(self.kind, folder)
        if LENGTH in anew and anew[LENGTH] < (made := getattr(before, LENGTH)):
            raise SettingsError(f"{LENGTH}={anew[LENGTH]}: a run can only be extended, and {folder} has {made}")
        settings = replace(before, **anew)
        for g in given:
            if g.name not in anew and g.name != "plugins":
                group, _, name = g.name.partition(".")
                getattr(settings, group)[name] = g.value
        folder.all_starts()
        with ExitStack() as otherwise:
            lock = otherwise.enter_context(_locked(folder))
            saved = _checkpoint_of(folder, getattr(settings, "allow_lost_rows", False))
            if saved and not _is_of_a_run(saved):
                raise SettingsError(f"cannot resume: {folder.checkpoints} holds no checkpoint of a run")
            if saved and (different := _differences(saved["settings"], asdict(settings), self.kind)):
                what = "; ".join(different)
                raise SettingsError(f"cannot resume: config.yaml is not what the checkpoint was made with: {what}")
            if saved:
                require_as_saved(folder, saved["sizes"], saved.get("ends", {}))
            settings = replace(resolved(settings), out=str(folder), resume=None)
            plan = _plan(settings)
            built = self._built(settings, plan)
            otherwise.callback(built.close)
            settings = self._decided(settings, plan, built)
            # The next start need not be told the length again.
            extended = schema.dump(replace(settings, out=before.out)) if LENGTH in anew else None
            otherwise.pop_all()
        return Session(settings, folder, plan, saved, lock, _all(callbacks, built), extended), built

    def _built(self, settings: S, plan: Plan) -> B:
        try:
            require(settings.logger)
            if isinstance(settings.threads, int):
                torch.set_num_threads(settings.threads)
            with ExitStack() as otherwise:
                built = self.build(settings, plan)
                otherwise.callback(built.close)
                built.callbacks = {name: kind(settings, built) for name, kind in CALLBACKS.items()}
                otherwise.pop_all()
            return built
        except (ValueError, ImportError, FaultyRun) as error:
            raise SettingsError(str(error)) from error

    def _decided(self, s: S, plan: Plan, built: B) -> S:
        """`s` with ``compile=auto`` and ``threads=auto`` decided; torch has as many threads from here on."""
        compiles = s.compile
        if compiles == "auto":
            has_compiler = s.device == "cuda" or any(shutil.which(c) for c in ("c++", "g++", "clang++"))
            compiles = has_compiler and self.planned_updates(s, built) >= COMPILE_FROM_UPDATES
        threads = s.threads
        if threads == "auto":
            threads = 1 if built.is_stacked and len(plan.seeds) == 1 else cores()
        torch.set_num_threads(threads_of_torch(s, threads, len(plan.seeds)))
        return replace(s, compile=compiles, threads=threads)


def resolved(s: S) -> S:
    """`s` with every ``auto`` decided that needs no network, so that the saved settings say what was done.

    Raises:
        SettingsError: a device that is not there, or a precision that it does not have.
    """
    cuda = torch.cuda.is_available()
    if s.device == "cuda" and not cuda:
        raise SettingsError("device=cuda, but torch finds no GPU here; use device=cpu or auto")
    device: Any = s.device if s.device != "auto" else ("cuda" if cuda else "cpu")
    precise: Any = precision.decided(s.precision, device)
    least = s.bfloat16_from
    if precise == "bfloat16" and least is None:
        torch.set_num_threads(1 if s.threads == "auto" else s.threads)
        least = precision.pays_from(device, min(s.seeds, 8))
    changed: dict[str, Any] = {}
    if isinstance(s, Train) and s.env["workers"] == "auto":  # updates on a GPU leave the cores to the environments
        changed["env"] = {**s.env, "workers": cores() if device == "cuda" else False}
    return replace(s, device=device, precision=precise, bfloat16_from=least, **changed)


def cores() -> int:
    """Those that this process may use: of the machine, of a container, of ``OMP_NUM_THREADS``."""
    number = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # "200000 100000": of each 100 ms 200 ms of processor time; "max 100000"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        number = min(number, max(1, round(int(quota) / int(period))))
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(number, int(asked))) if asked.isdecimal() else number


def last_checkpoint(folder: RunFolder) -> str:
    """For messages: which checkpoint a broken run can go on from."""
    try:
        paths = [*folder.saved_steps.values()]
    except OSError:
        return "its checkpoints cannot be reached"
    return f"the last good checkpoint is {paths[-1]}" if paths else "there is no checkpoint"


# --------------------------------------------------------------------------------------------------------------------


def _all(of_this_run: Mapping[str, Any] | None, built: Built) -> dict[str, object]:
    """The functions that were given for one run, as one callback, and those of `CALLBACKS`."""
    given = {name: function for name, function in (of_this_run or {}).items() if function}
    return {"of_this_run": SimpleNamespace(**given), **built.callbacks}


def _plan(settings: Train | Supervised) -> Plan:
    try:
        return Plan.of(settings)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _new_folder(settings: Train | Supervised) -> RunFolder:
    """Where a new run goes.

    Raises:
        SettingsError: something is there.
    """
    path = Path(settings.out)
    try:
        if settings.out == "auto":
            path = naming.place(RESULTS, settings)
        if not naming.is_free(path):
            raise SettingsError(f"{path} exists; continue that run with resume={path} or choose another out=")
    except OSError as error:
        raise SettingsError(f"cannot read {error.filename or path}: {error.strerror}") from error
    return RunFolder(path)


def _claimed(settings: Train | Supervised) -> tuple[RunFolder, Lock, list[Path]]:
    """Make the folder of a new run and lock it; another process may have chosen the same one a moment ago.

    Returns:
        The folder, its lock, and which folders were made for it, its own first.

    Raises:
        SettingsError: something is there, or it cannot be made.
    """
    while True:
        folder = _new_folder(settings)
        made = [place for place in (folder.path, *folder.path.parents) if not place.exists()]
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            lock = Lock(folder)
        except BlockingIOError as error:
            if settings.out == "auto" and naming.place(RESULTS, settings) != folder.path:
                continue  # it has begun another run, which has the name now
            raise _held(folder, error) from error
        except OSError as error:
            _remove(folder, made)
            raise SettingsError(f"cannot write to {folder}: {error.strerror}") from error
        if naming.is_free(folder.path):
            return folder, lock, made
        lock.release()  # it has begun a run and ended it


def _require_own(folder: RunFolder) -> None:
    """Raises SettingsError where going on would write elsewhere: the folder may come from anybody."""
    below = [path for place in (folder.checkpoints, folder.tensorboard) for path in place.rglob("*")]
    for path in [*folder.own, *below]:
        if path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir()):
            what = "a link" if path.is_symlink() else "no file"
            raise SettingsError(f"cannot resume: {path} is {what}, and a run writes into its own folder alone")


def _held(folder: RunFolder, owner: BlockingIOError) -> SettingsError:
    return SettingsError(f"{folder} is being written by {owner}")


def _locked(folder: RunFolder) -> Lock:
    """Keep other processes off the folder, until this one ends (however it does) or the run has.

    Raises:
        SettingsError: another process has it, or it cannot be written.
    """
    try:
        return Lock(folder)
    except BlockingIOError as error:
        raise _held(folder, error) from error
    except OSError as error:
        raise SettingsError(f"cannot write to {folder}: {error.strerror}") from error


def _remove(folder: RunFolder, made: Sequence[Path]) -> None:
    """Take back what was made of a run that could not begin: these folders, the run's own first."""
    with suppress(OSError):  # not empty: another process was faster
        if made:
            folder.lock.unlink(missing_ok=True)
        for path in made:
            path.rmdir()


def _checkpoint_of(folder: RunFolder, allow_lost_rows: bool) -> dict[str, Any] | None:
    """The newest checkpoint; None if the run was killed before its first, so it starts from the beginning.

    Raises:
        SettingsError: there is none though steps were made, or it cannot be read.
    """
    try:
        return checkpoint.load(folder.checkpoints, allow_lost_rows=allow_lost_rows)
    except FileNotFoundError as error:
        if _has_steps(folder):
            raise SettingsError(f"cannot resume: {error}") from error
        return None
    except ValueError as error:
        raise SettingsError(f"cannot resume: {error}") from error
    except OSError as error:
        raise SettingsError(f"cannot read {folder.checkpoints}: {error.strerror}") from error
    except Exception as error:  # a file that is whole may hold anything
        raise SettingsError(f"{folder.checkpoints} holds no checkpoint of a run: {first_line(error)}") from error


def _is_of_a_run(saved: Mapping[str, Any]) -> bool:
    """Whether a checkpoint, which may be any whole file, says of which run it is and how long its files were."""
    sizes, settings = saved.get("sizes"), saved.get("settings")
    try:
        json.dumps(settings)  # no tensors, which cannot be compared
    except (TypeError, ValueError):
        return False
    if not (isinstance(settings, dict) and isinstance(sizes, dict) and isinstance(saved.get("chunks"), list)):
        return False
    return all(type(n) is int and 0 <= n < 2**63 for n in map(sizes.get, ("metrics.csv", "timing.csv")))


def _has_steps(folder: RunFolder) -> bool:
    """Whether rows beyond step 0 were written, which come after the first checkpoint."""
    metrics = folder.metrics_csv
    return metrics.exists() and re.search(rb"^[^,\n]*,[1-9]", metrics.read_bytes(), re.MULTILINE) is not None


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any], kind: type[Any]) -> list[str]:
    """What two settings differ in, apart from what belongs to the machine."""
    before, after = (schema.without_machine(kind, settings) for settings in (saved, now))
    if LENGTH in after and type(was := before.get(LENGTH)) is int and after[LENGTH] > was:  # it was extended
        before[LENGTH] = after[LENGTH]
    names = dict.fromkeys([*before, *after])
    return [f"{n} is {after.get(n)!r}, was {before.get(n)!r}" for n in names if before.get(n) != after.get(n)]
