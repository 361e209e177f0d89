"""The life of a run around its loop: it is checked, made or resumed, locked, trained and finished."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, Protocol, TypeVar

import torch
from filelock import FileLock, Timeout

from rl_plasticity import plugins
from rl_plasticity.compiling import precision
from rl_plasticity.configs import schema, written
from rl_plasticity.configs.commands import LONGEST, Group, Supervised, Train, called, period
from rl_plasticity.configs.written import Given
from rl_plasticity.errors import FaultyRun, SettingsError, refused
from rl_plasticity.runs import branch, checkpoint, naming
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.journal import Journal, last_entry
from rl_plasticity.runs.lock import locked
from rl_plasticity.runs.machine import decided, resolved
from rl_plasticity.runs.plan import Plan, foretold
from rl_plasticity.runs.results import require_as_saved
from rl_plasticity.runs.session import S, Session
from rl_plasticity.runs.trained import saved_settings

B = TypeVar("B", bound="Built")
LENGTH = "total_env_steps"  # the one setting of the run itself that resume= takes: a larger value extends the run
RESULTS = Path("results")  # the default folder of runs


CALLBACKS: dict[str, Callable[[Any, Any], object]] = {}
"""Classes of callbacks for every run, by name: ``kind(settings, parts)`` makes one before anything is written.

See `Session` for their methods."""


class Built(Protocol):
    """The objects that a command makes from its settings, before anything is written."""

    callbacks: dict[str, object]

    @property
    def is_stacked(self) -> bool:
        """Whether the networks have a runs axis."""
        ...

    def close(self) -> None:
        """Let go of processes and files."""
        ...


@dataclass
class Command(Generic[S, B]):
    """One of the commands that train.

    Args:
        kind: the dataclass of its settings.
        build: makes what a run needs of its settings and plan, before anything is written; raises ValueError or
            ImportError.
        train: the loop, until the last step or until `Session.goes_on` says no; returns whether it made the last step.
        planned_updates: the number of updates of a run that could be compiled.
        length: the number of all updates of a run, and its length in words: ``3000 env steps``.
        trained: makes an agent or a learner like that of the built parts, with other settings or runs.
    """

    kind: type[S]
    build: Callable[[S, Plan], B]
    train: Callable[[Session[S], B], bool]
    planned_updates: Callable[[S, B], float]
    length: Callable[[S, B], tuple[float, str]]
    trained: Callable[[B, S, Plan], Any]

    @property
    def name(self) -> str:
        """The name of the command: ``train``."""
        return called(self.kind)

    def run(self, settings: Mapping[str, Any], callbacks: Mapping[str, Any]) -> RunFolder:
        """Make one run from Python, and return its folder.

        Raises:
            SettingsError: bad input; nothing was written.
            FaultyRun: the run could not go on.
        """
        session, built = self.prepare(written.from_python(settings), callbacks)
        self.execute(session, built)
        return session.folder

    def execute(self, session: Session[S], built: B) -> bool:
        """Train, and close what was built; return whether the run finished.

        ``log.txt`` records the end. If the run could not be restored, the folder stays as it was.

        Raises:
            FaultyRun: the run could not go on; the message names its last good checkpoint.
        """
        folder = session.folder
        with ExitStack() as stack:
            journal = stack.enter_context(Journal(folder))
            stack.enter_context(session.stop)
            if session.lock:
                stack.callback(session.lock.release)
            stack.callback(built.close)
            stack.enter_context(precision.tf32(session.settings.precision == "tf32"))
            try:
                finished = self.train(session, built)
            except (FaultyRun, OSError) as error:
                said = str(error)
                if isinstance(error, OSError):
                    said = f"{os.fsdecode(error.filename or folder)}: {error.strerror or error}"
                fault = FaultyRun(f"{said}; {last_checkpoint(folder)}")
                if session.has_begun:
                    journal.end(f"failed: {fault}")
                else:
                    journal.take_back()
                raise fault from error
            except BaseException as error:
                journal.end(f"failed: {type(error).__name__}: {error}")
                raise
            journal.end("finished" if finished else "stopped")
            return finished

    def foretold(self, session: Session[S], built: B) -> list[str]:
        """Four lines that announce the run to the user; see `plan.foretold`."""
        return foretold(session.settings, session.plan, *self.length(session.settings, built))

    def check(self, settings: S) -> None:
        """Check that these settings can be run, perhaps on another machine, which may have a GPU.

        Raises:
            SettingsError: they cannot.
        """
        self._made(replace(settings, device="cpu", precision="float32"))[2].close()

    def prepare(self, asked: Iterable[str | Given], callbacks: Mapping[str, Any] | None = None) -> tuple[Session[S], B]:
        """The session and its built parts. Everything is checked before the folder is made.

        Raises:
            SettingsError: bad input.
        """
        given = [written.parse(argument) if isinstance(argument, str) else argument for argument in asked]
        settings: S = branch.load(self.kind, given)
        if settings.from_ is not None:
            return self._branched(settings, RunFolder(settings.from_), callbacks)
        if settings.resume is None:
            return self._begun(settings, callbacks)
        with refused(f"read {settings.resume}"):
            return self._resumed(settings, RunFolder(settings.resume), given, callbacks)

    def _begun(self, settings: S, callbacks: Mapping[str, Any] | None) -> tuple[Session[S], B]:
        _new_place(settings)
        settings, plan, built = self._made(replace(settings, resume=None))
        with ExitStack() as otherwise:
            otherwise.callback(built.close)
            place: Path = _new_place(settings)  # again: another process may have chosen the same one meanwhile
            folder = RunFolder(place)
            made = [path for path in (place, *place.parents) if not path.exists()]
            lock = _locked(folder, made)
            otherwise.callback(lock.release)
            _require_free(place)
            otherwise.callback(_remove, folder, made)
            settings = self._with_periods(replace(settings, out=str(folder)), built)
            with refused(f"write to {folder}"):
                folder.write_settings(schema.dump(settings))
            otherwise.pop_all()
        return Session(settings, folder, plan, None, lock, _all(callbacks, built)), built

    def _branched(self, settings: S, parent: RunFolder, callbacks: Mapping[str, Any] | None) -> tuple[Session[S], B]:
        _new_place(settings)
        before = branch.parent_settings(self.kind, parent)
        try:
            saved = _loaded(parent, settings.at)
            require_as_saved(parent, saved["sizes"], saved["ends"])
        except SettingsError as error:
            raise SettingsError(str(error).replace("cannot resume", f"cannot branch {parent}", 1)) from error
        settings, plan, built = self._made(settings)
        with ExitStack() as otherwise:
            otherwise.callback(built.close)
            make = partial(self.trained, built)
            state = branch.state_of(saved, settings, plan, before, make)
            place: Path = _new_place(settings)  # again: another process may have chosen the same one meanwhile
            settings, folder = self._with_periods(replace(settings, out=str(place)), built), RunFolder(place)
            with refused(f"write to {place}"):
                branch.write(place, settings, state, parent)
            lock = _locked(folder)
            otherwise.callback(lock.release)
            otherwise.pop_all()
        return Session(settings, folder, plan, state, lock, _all(callbacks, built)), built

    def _resumed(
        self, settings: S, folder: RunFolder, given: Sequence[Given], callbacks: Mapping[str, Any] | None
    ) -> tuple[Session[S], B]:
        settings, before = self._goes_on_with(settings, given, folder)
        folder.require_no_link()
        folder.origin()  # refuses a damaged one
        with ExitStack() as otherwise:
            lock = _locked(folder)
            otherwise.callback(lock.release)
            saved = _checkpoint_of(folder)
            if saved:
                if different := _differences(saved["settings"], settings.flat, self.kind):
                    what = "; ".join(different)
                    raise SettingsError(f"cannot resume: config.yaml is not what the checkpoint was made with: {what}")
                require_as_saved(folder, saved["sizes"], saved["ends"])
            settings, plan, built = self._made(replace(settings, out=str(folder), resume=None))
            # The saved settings get the new length, so that the next start need not give it again.
            is_extended = any(g.name == LENGTH for g in given)
            extended = schema.dump(replace(settings, out=before.out)) if is_extended else None
            otherwise.pop_all()
        return Session(settings, folder, plan, saved, lock, _all(callbacks, built), extended), built

    def _goes_on_with(self, settings: S, given: Sequence[Given], folder: RunFolder) -> tuple[S, S]:
        """The settings with which the run in `folder` continues, and those that it had."""
        machine = {"plugins", *schema.marked(self.kind, "machine")} - {"out", "compile", "bfloat16_from"}
        if others := [g.text for g in given if g.name not in machine | {LENGTH}]:
            raise SettingsError(f"resume={folder} takes its settings from there; leave out {' '.join(others)}")
        if folder.config.is_file() and (plugs := plugins.missing(folder.plugins)):  # else metrics could be missing
            raise SettingsError(f"cannot resume {folder}: {plugs}")
        anew = {g.name: getattr(settings, g.name) for g in given if hasattr(settings, g.name)}
        before = saved_settings(self.kind, folder)
        if LENGTH in anew and anew[LENGTH] < (made := getattr(before, LENGTH)):
            raise SettingsError(f"{LENGTH}={anew[LENGTH]}: a run can only be extended, and {folder} has {made}")
        named = {g.name: g.value for g in given}
        groups: Any = {
            n: replace(group, settings={k: named.get(f"{n}.{k}", v) for k, v in group.settings.items()})
            for n, group in before.groups.items()
        }
        return replace(before, **anew, **groups), before

    def _with_periods(self, settings: S, built: B) -> S:
        """The settings with periods for ``auto``, which is decided last: they are no part of a folder's name."""
        whole: Group | None = getattr(settings, "agent", None)  # a row has the actor's metrics where it learns
        every = 1 if whole is None else whole.settings.get("actor_every_updates", 1)
        periods: Any = {
            name: period(self.length(settings, built)[0], longest, every)
            for name, longest in LONGEST[self.kind].items()
            if getattr(settings, name) == "auto"
        }
        return replace(settings, **periods)

    def _made(self, settings: S) -> tuple[S, Plan, B]:
        """The settings with every ``auto`` decided that depends on the machine, their plan, and the built parts."""
        try:
            settings = resolved(settings)
            plan = Plan.of(settings)
            if isinstance(settings.threads, int):
                torch.set_num_threads(settings.threads)
            with ExitStack() as otherwise:
                built = self.build(settings, plan)
                otherwise.callback(built.close)
                built.callbacks = {name: kind(settings, built) for name, kind in CALLBACKS.items()}
                settings = decided(settings, len(plan.seeds), built.is_stacked, self.planned_updates(settings, built))
                otherwise.pop_all()
        except (ValueError, ImportError, FaultyRun) as error:
            raise SettingsError(str(error)) from error
        return settings, plan, built


def last_checkpoint(folder: RunFolder) -> str:
    """A clause for messages that names the checkpoint from which a broken run can continue."""
    try:
        paths = [*folder.saved_steps.values()]
    except OSError:
        return "its checkpoints cannot be reached"
    return f"the last good checkpoint is {paths[-1]}" if paths else "there is no checkpoint"


# --------------------------------------------------------------------------------------------------------------------


def _all(of_this_run: Mapping[str, Any] | None, built: Built) -> dict[str, object]:
    """The functions that were given for this run, as one callback, and those of `CALLBACKS`."""
    given = {name: function for name, function in (of_this_run or {}).items() if function}
    return {"of_this_run": SimpleNamespace(**given), **built.callbacks}


def _new_place(settings: Train | Supervised) -> Path:
    """The folder of a new run.

    Raises:
        SettingsError: something is there already.
    """
    path = RESULTS / naming.name(settings) if settings.out == "auto" else Path(settings.out)
    _require_free(path)
    return path


def _require_free(path: Path) -> None:
    """Raises SettingsError if something is there already."""
    with refused(f"read {path}"):
        is_free = naming.is_free(path)
    if not is_free:
        raise SettingsError(f"{path} exists; continue that run with resume={path} or choose another out=")


def _locked(folder: RunFolder, made: Sequence[Path] = ()) -> FileLock:
    """Lock the folder against other processes until the run or this process ends, in whatever way.

    Args:
        made: the folders that are created for the run, its own first.

    Raises:
        SettingsError: another process has it, or it cannot be written.
    """
    with refused(f"write to {folder}"):
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            return locked(folder)
        except Timeout:
            entry = last_entry(folder)
            raise SettingsError(
                f"{folder} is being written by another process; {entry.text if entry else ''}"
            ) from None
        except OSError:
            _remove(folder, made)
            raise


def _remove(folder: RunFolder, made: Sequence[Path]) -> None:
    """Remove the folders of a run that could not begin, its own first."""
    with suppress(OSError):  # not empty: another process was faster
        if made:
            folder.lock.unlink(missing_ok=True)
        for path in made:
            path.rmdir()


def _checkpoint_of(folder: RunFolder) -> dict[str, Any] | None:
    """The newest checkpoint; None if the run was killed before its first one, and starts from the beginning.

    Raises:
        SettingsError: there is none although steps were made, or it cannot be read.
    """
    if not folder.saved_steps:
        metrics = folder.metrics_csv  # rows beyond step 0 come after the first checkpoint
        if not (metrics.exists() and re.search(rb"^[^,\n]*,[1-9]", metrics.read_bytes(), re.MULTILINE)):
            return None
    return _loaded(folder)


def _loaded(folder: RunFolder, step: int | None = None) -> dict[str, Any]:
    """The newest checkpoint, or that of a `step`; raises SettingsError if it cannot be read."""
    try:
        return checkpoint.load(folder.checkpoints, step)
    except SettingsError as error:
        raise SettingsError(f"cannot resume: {error}") from error


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any], kind: type[Any]) -> list[str]:
    """The differences between two sets of settings, without those that belong to the machine."""
    before, after = (schema.without_machine(kind, settings) for settings in (saved, now))
    if LENGTH in after and type(was := before.get(LENGTH)) is int and after[LENGTH] > was:  # it was extended
        before[LENGTH] = after[LENGTH]
    names = dict.fromkeys([*before, *after])
    return [f"{n} is {after.get(n)!r}, was {before.get(n)!r}" for n in names if before.get(n) != after.get(n)]
