"""The life of a run around its loop: it is checked, made or resumed, locked, trained and finished."""

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import torch
from filelock import FileLock, Timeout

from rl_plasticity.compiling import precision
from rl_plasticity.compiling.precision import NEVER
from rl_plasticity.configs import schema, written
from rl_plasticity.configs.commands import LONGEST, Group, called, period
from rl_plasticity.configs.written import Asked
from rl_plasticity.errors import FaultyRun, SettingsError, refused
from rl_plasticity.runs import branch, checkpoint, naming
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.journal import last_entry
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


@dataclass(kw_only=True)
class Built:
    """The objects that a command makes from its settings, before anything is written.

    Args:
        is_stacked: whether the networks have a runs axis.
    """

    is_stacked: bool = True
    callbacks: dict[str, object] = field(default_factory=dict)

    def close(self) -> None:
        """Let go of processes and files."""


@dataclass
class Command(Generic[S, B]):
    """One of the commands that train.

    Args:
        kind: the dataclass of its settings.
        build: makes what a run needs of its settings and plan, before anything is written; raises ValueError or
            ImportError.
        train: the loop, until the last step or until `Session.goes_on` says no; returns whether it made the last step.
        length: the number of all updates of a run, and its length in words: ``3000 env steps``.
        trained: makes an agent or a learner like that of the built parts, with other settings or runs.
    """

    kind: type[S]
    build: Callable[[S, Plan], B]
    train: Callable[[Session[S], B], bool]
    length: Callable[[S, B], tuple[float, str]]
    trained: Callable[[B, S, Plan], Any]

    @property
    def name(self) -> str:
        """The name of the command: ``train``."""
        return called(self.kind)

    def run(
        self,
        *,
        on_step: Callable[[Session[S]], object] | None = None,
        on_update: Callable[[Session[S]], object] | None = None,
        on_evaluation: Callable[[Session[S]], object] | None = None,
        **settings: Any,
    ) -> RunFolder:
        """Train from Python: ``run(env="cheetah-run", reg="spectral", total_env_steps=20_000, out="results/mine")``.

        Args:
            on_step, on_update, on_evaluation: functions that are called with the session after each env step or epoch,
                update and evaluation. They can read it (``session.parts["agent"]`` or ``["learner"]``,
                ``session.latest``) and end it (``session.end_early()``).
            settings: those of the command line; ``reg={"name": "spectral", "coef": 1e-3}`` for a group with settings.

        Raises:
            SettingsError: bad input; nothing was written.
            FaultyRun: the run could not go on.
        """
        callbacks = {"on_step": on_step, "on_update": on_update, "on_evaluation": on_evaluation}
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
            journal = session.journal
            stack.enter_context(session.stop)
            if session.lock:
                stack.callback(session.lock.release)
            stack.callback(built.close)
            stack.enter_context(precision.tf32(session.settings.precision == "tf32"))
            try:
                finished = self.train(session, built)
            except (FaultyRun, OSError) as error:
                fault = FaultyRun(f"{error}; {last_checkpoint(folder)}")
                if session.has_begun:
                    journal.end(f"failed: {fault}")
                raise fault from error
            except BaseException as error:
                journal.end(f"failed: {type(error).__name__}: {error}")
                raise
            journal.end("finished" if finished else "stopped")
            return finished

    def foretold(self, session: Session[S], built: B) -> list[str]:
        """The lines that announce the run to the user; see `plan.foretold`."""
        return foretold(session.settings, session.plan, *self.length(session.settings, built))

    def check(self, settings: S) -> None:
        """Check that these settings can be run, perhaps on another machine, which may have a GPU.

        Raises:
            SettingsError: they cannot.
        """
        self._made(replace(settings, device="cpu", precision="float32"))[2].close()

    def prepare(self, asked: Asked, callbacks: Mapping[str, Any] | None = None) -> tuple[Session[S], B]:
        """The session and its built parts. Everything is checked before the folder is made.

        Raises:
            SettingsError: bad input.
        """
        given = written.by_name(asked)
        settings: S = branch.load(self.kind, given)
        if settings.resume is None:
            return self._begun(settings, callbacks)
        with refused(f"read {settings.resume}"):
            return self._resumed(settings, RunFolder(settings.resume), given, callbacks)

    def _begun(self, settings: S, callbacks: Mapping[str, Any] | None) -> tuple[Session[S], B]:
        """The session of a new run, or of a branch."""
        place: Path = RESULTS / naming.name(settings) if settings.out == "auto" else Path(settings.out)
        _require_free(place)
        parent, saved = None if settings.from_ is None else RunFolder(settings.from_), None
        if parent:
            before = branch.parent_settings(self.kind, parent)
            saved = checkpoint.load(parent.checkpoints, settings.at)
            require_as_saved(parent, saved)
        settings, plan, built = self._made(replace(settings, resume=None), callbacks)
        with ExitStack() as otherwise:
            otherwise.callback(built.close)
            settings = self._with_periods(replace(settings, out=str(place)), built)
            if parent and saved:
                saved = branch.state_of(saved, settings, plan, before, partial(self.trained, built))
                with refused(f"write to {place}"):
                    branch.write(place, settings, saved, parent)
            folder = RunFolder(place)
            lock = _locked(folder)
            otherwise.callback(lock.release)
            if not parent:
                _require_free(place)  # again: another process may have chosen the same one meanwhile
                with refused(f"write to {folder}"):
                    folder.write_settings(schema.dump(settings))
            otherwise.pop_all()
        return Session(settings, folder, plan, saved, lock, built.callbacks), built

    def _resumed(
        self, settings: S, folder: RunFolder, given: Mapping[str, Any], callbacks: Mapping[str, Any] | None
    ) -> tuple[Session[S], B]:
        settings, before = self._continued(settings, given, folder)
        folder.require_no_link()
        folder.origin()  # refuses a damaged one
        with ExitStack() as otherwise:
            lock = _locked(folder)
            otherwise.callback(lock.release)
            saved = None
            # A run that was killed before its first checkpoint starts from the beginning.
            if folder.saved_steps or any(row.step for row in folder.last_rows("metrics.csv")):
                saved = checkpoint.load(folder.checkpoints)
                then: Any = schema.load_saved(self.kind, saved["settings"])
                if different := "; ".join(_differences(then.flat, settings.flat, self.kind)):
                    raise SettingsError(f"config.yaml differs from the settings of the checkpoint: {different}")
                require_as_saved(folder, saved)
            settings, plan, built = self._made(replace(settings, out=str(folder), resume=None), callbacks)
            # The saved settings get the new length, so that the next start need not give it again.
            is_extended = LENGTH in given
            extended = schema.dump(replace(settings, out=before.out)) if is_extended else None
            otherwise.pop_all()
        return Session(settings, folder, plan, saved, lock, built.callbacks, extended), built

    def _continued(self, settings: S, given: Mapping[str, Any], folder: RunFolder) -> tuple[S, S]:
        """The settings with which the run in `folder` continues, and those that it had."""
        machine = {"plugins", *schema.marked(self.kind, "machine")} - {"out", "compile", "bfloat16_from", "onednn_from"}
        if others := [name for name in given if name not in machine | {LENGTH}]:
            raise SettingsError(f"resume={folder} takes its settings from that folder: leave out {' '.join(others)}")
        before = saved_settings(self.kind, folder)
        changed: dict[str, Any] = {name: getattr(settings, name) for name in given if hasattr(settings, name)}
        if changed.get(LENGTH, math.inf) < (length := getattr(before, LENGTH, 0)):
            raise SettingsError(
                f"{LENGTH}={changed[LENGTH]} must be at least {length}, as in {folder}: a run can only be extended"
            )
        for name, group in before.groups.items():
            own = {k: given.get(f"{name}.{k}", v) for k, v in group.settings.items()}
            changed[name] = replace(group, settings=own)
        # What began without this setting goes on with the products that it began with.
        changed["onednn_from"] = before.onednn_from or NEVER
        return replace(before, **changed), before

    def _with_periods(self, settings: S, built: B) -> S:
        """The settings with periods for ``auto``, which is decided last: they are no part of a folder's name."""
        whole: Group | None = getattr(settings, "agent", None)  # a row has the actor's metrics where it learns
        every = 1 if whole is None else whole.settings.get("actor_every_updates", 1)
        least = max(1, math.ceil(getattr(settings, "replay_ratio", 1)))
        periods: Any = {
            name: period(self.length(settings, built)[0], longest, least, every)
            for name, longest in LONGEST[self.kind].items()
            if getattr(settings, name) == "auto"
        }
        return replace(settings, **periods)

    def _made(self, settings: S, callbacks: Mapping[str, Any] | None = None) -> tuple[S, Plan, B]:
        """The settings with every ``auto`` decided that depends on the machine, their plan, and the built parts."""
        try:
            settings = resolved(settings)
            plan = Plan.of(settings)
            if isinstance(settings.threads, int):
                torch.set_num_threads(settings.threads)
            built = self.build(settings, plan)
            with ExitStack() as otherwise:
                otherwise.callback(built.close)
                built.callbacks = {"of_this_run": SimpleNamespace(**{n: f for n, f in (callbacks or {}).items() if f})}
                built.callbacks |= {name: kind(settings, built) for name, kind in CALLBACKS.items()}
                settings = decided(settings, len(plan.seeds), built.is_stacked, self.length(settings, built)[0])
                otherwise.pop_all()
        except (ValueError, ImportError, FaultyRun) as error:
            raise SettingsError(str(error)) from error
        return settings, plan, built


def last_checkpoint(folder: RunFolder) -> str:
    """A clause for messages that names the checkpoint from which a broken run can continue."""
    try:
        paths = [*folder.saved_steps.values()]
    except OSError:
        return "its checkpoints cannot be read"
    return f"the last good checkpoint is {paths[-1]}" if paths else "there is no checkpoint"


# --------------------------------------------------------------------------------------------------------------------


def _require_free(path: Path) -> None:
    """Raises SettingsError if something is there already."""
    with refused(f"read {path}"):
        if not naming.is_free(path):
            raise SettingsError(f"{path} exists already; continue that run with resume={path} or choose another out=")


def _locked(folder: RunFolder) -> FileLock:
    """Lock the folder against other processes until the run or this process ends, in whatever way.

    Raises:
        SettingsError: another process has it, or it cannot be written.
    """
    with refused(f"write to {folder}"):
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            return locked(folder)
        except Timeout:
            entry = last_entry(folder)
            said = f"another process is writing to {folder}; {entry.text if entry else ''}"
            raise SettingsError(said) from None


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any], kind: type[Any]) -> list[str]:
    """The differences between two sets of settings, without those that belong to the machine, and a greater length."""
    machine = schema.marked(kind, "machine")
    changed = [n for n in {**saved, **now} if n not in machine and saved.get(n) != now.get(n)]
    return [f"{n} is {now.get(n)!r}, was {saved.get(n)!r}" for n in changed if n != LENGTH or now[n] < saved[n]]
