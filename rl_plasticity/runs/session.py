"""The session that a run's loop calls to begin or restore the run, to log, to save and to stop."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Generic, Literal, Self, TypeVar

import numpy as np
from filelock import FileLock
from torch import Tensor, nn

from rl_plasticity.compiling.compiled import set_tracing
from rl_plasticity.compiling.shares import Cut, Shares, cuts, largest_product
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.errors import FaultyRun, counted, first_line
from rl_plasticity.runs import provenance
from rl_plasticity.runs.checkpoint import Checkpoints, Part
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.journal import Journal
from rl_plasticity.runs.plan import Plan
from rl_plasticity.runs.progress import Clock, Progress
from rl_plasticity.runs.results import Results

S = TypeVar("S", Train, Supervised)


class StopSignal:
    """A context that remembers the first SIGINT or SIGTERM, so that the run ends after its step; a second one kills.

    SIGHUP, which comes when the terminal is closed, is remembered too, unless it is ignored (nohup). A second SIGHUP
    does not kill, because the shell and the system may both send one.

    Outside the main thread, where no signal can be handled, the context does nothing.

    Args:
        tell: called at each signal.
    """

    def __init__(self, tell: Callable[[], object] = lambda: None) -> None:
        self.received, self.tell = 0, tell
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            heeded = [signal.SIGINT, signal.SIGTERM]
            if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
                heeded.append(signal.SIGHUP)
            self._before = {n: signal.signal(n, self.handle) for n in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Remember the signal."""
        self.received = number
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        self.tell()


@dataclass(eq=False)
class Session(Generic[S]):
    """One run, with everything that the loops of both commands share.

    Callbacks get the session. They can read everything, above all `parts` and `latest`, and call `log` and `end_early`.

    Args:
        settings: of the run, without ``auto``.
        folder: of the run, locked for this process.
        plan: of the runs that train at once.
        saved: the checkpoint to continue from.
        lock: of the folder.
        callbacks: objects by name, whose methods ``on_step``, ``on_update``, ... are called. The state of one that has
            a state is saved and restored as the part ``callbacks.NAME``.
        extended: the new text of ``config.yaml`` if the run becomes longer; it is written when the run is restored.

    Attributes:
        parts: everything that is saved and restored, by name.
        progress: the counts of steps and updates.
        latest: the metrics that were logged last, each ``[runs]``.
        has_begun: whether the session may change the folder: the run is new, or it was restored.
    """

    settings: S
    folder: RunFolder
    plan: Plan
    saved: dict[str, Any] | None = None
    lock: FileLock | None = None
    callbacks: Mapping[str, object] = field(default_factory=dict)
    extended: str | None = None

    def __post_init__(self) -> None:
        self.stop = StopSignal()
        self.journal = Journal(self.folder)
        self.latest: dict[str, Tensor | np.ndarray] = {}
        self.has_begun = self.saved is None
        self.ended_early = False

    # --- the life of a run ------------------------------------------------------------------------------------------

    @contextmanager
    def begun(
        self,
        parts: Mapping[str, Part],
        progress: Progress,
        *,
        unit: Literal["env steps", "epochs"],
        total: int,
        save_every: int,
    ) -> Iterator[bool]:
        """A context for the loop. It begins or restores the run, and writes the last checkpoint at its end.

        Args:
            parts: everything to save, by name.
            progress: saved too. Metrics are logged over its env steps, or over its updates if the unit is epochs.
            total: number of steps.
            save_every: number of steps between two checkpoints.

        Yields:
            Whether the run is a new one.

        Raises:
            FaultyRun: the checkpoint cannot be restored.
        """
        s = self.settings
        watching: Any = {f"callbacks.{n}": c for n, c in self.callbacks.items() if hasattr(c, "load_state_dict")}
        self.parts: Mapping[str, Part] = {**parts, **watching}
        self.progress, self.total, self.unit = progress, total, unit
        self.checkpoints = Checkpoints(self.folder.checkpoints, self.saved)
        self.save_every = save_every
        if self.saved is not None:
            self._restore(self.saved, {**self.parts, "progress": progress})
        if self.extended is not None:  # not earlier: the folder of a run that cannot be restored stays as it was
            self.folder.write_settings(self.extended)
        self.has_begun = True
        self.journal.start()
        provenance.add_start(self.folder, s.device, s.onednn_from)
        sizes = self.saved["sizes"] if self.saved else None
        self.results = Results(self.folder, self.plan.names, sizes, self.axis, s.flat)
        self.clock = Clock(unit, total, progress.step, bool(s.compile), s.device)
        self.saved_at = (progress.step, progress.updates) if self.saved else None
        if self.saved and progress.step < total:
            self.say(f"goes on after {progress.step:,} of {total:,} {unit}")
        self.call("on_start")
        try:
            yield not self.saved
            self.save()
        finally:
            self.close()

    def _restore(self, saved: Mapping[str, Any], parts: Mapping[str, Part]) -> None:
        if lost := [name for name in saved if name.startswith("callbacks.") and name not in parts]:
            raise FaultyRun(f"cannot resume: the checkpoint holds the state of {lost[0]}, which is not loaded")
        try:
            self.checkpoints.restore(parts)
        except Exception as error:  # a file that is whole may hold anything
            raise FaultyRun(f"cannot resume: the checkpoint does not fit: {first_line(error)}") from error

    def divided(self, whole: Any, make: Callable[[slice], Any]) -> Shares[Any]:
        """The trained module, divided among threads if it holds several runs on a CPU.

        Args:
            make: the module of some of the runs.
        """
        s = self.settings
        found: list[Cut] = []
        if s.device == "cpu" and len(self.plan.seeds) > 1:
            product = largest_product(whole, int(s.batch_size)) if s.compile else None
            found = cuts(self.plan.side_by_side, int(s.threads), product)
        self.shares = Shares(whole, make, found, int(s.threads), set_tracing if s.compile else None)
        return self.shares

    @property
    def axis(self) -> int:
        """The step of the run on the axis of the logged metrics."""
        return self.progress.step if self.unit == "env steps" else self.progress.updates

    @property
    def when(self) -> str:
        """That step in words, for messages: ``at env step 300``."""
        return f"at env step {self.axis}" if self.unit == "env steps" else f"after {counted(self.axis, 'update')}"

    def goes_on(self) -> bool:
        """Whether to make another step: it is not the end, no signal came, and no callback ended the run."""
        return self.progress.step < self.total and not self.stop.received and not self.ended_early

    def end_early(self) -> None:
        """Stop after the current step, and save. For callbacks."""
        self.ended_early = True

    def call(self, name: str) -> None:
        """Call the method of this name, ``on_step``, of each callback that has it."""
        for callback in self.callbacks.values():
            if method := getattr(callback, name, None):
                method(self)

    def log(self, values: Mapping[str, Tensor | np.ndarray], where: np.ndarray | None = None) -> None:
        """Write metrics ``[runs]``, or those of the runs in the mask `where`."""
        self.latest = {
            name: value.cpu().clone() if isinstance(value, Tensor) else value for name, value in values.items()
        }
        self.results.write(self.axis, self.latest, where)

    def evaluating(self, done: int, episodes: int) -> None:
        """Show how many episodes of an evaluation are done."""
        self.clock.show_evaluation(done, episodes)

    def evaluated(self, values: Mapping[str, Tensor | np.ndarray], summary: str) -> None:
        """Write an evaluation and the rates since the last one; `summary` goes to the progress bar."""
        self.log(values)
        self.tell()
        self.clock.latest = summary
        self.call("on_evaluation")

    def after_step(self) -> None:
        """Call the callbacks, save if a checkpoint is due, and move the progress bar."""
        self.call("on_step")
        if self.progress.step % self.save_every == 0:
            self.save()
        self.show()

    def show(self) -> None:
        """Move the progress bar; write the first rates early for `status`, as the first evaluation may be far."""
        self.clock.show(self.progress.step)
        if self.clock.is_time_to_tell():
            self.tell()

    def say(self, line: str) -> None:
        """Print a line above the progress bar."""
        self.clock.bar.write(line, file=sys.stderr)

    def tell(self) -> None:
        """Write the rates, for `status`."""
        self.results.write_timing(self.axis, self.clock.rates(self.progress.step))

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
        more = {"sizes": self.results.sync(), "ends": self.results.ends(), "settings": self.settings.flat}
        self.checkpoints.save(self.progress.step, {**self.parts, "progress": self.progress}, more)
        self.saved_at = here

    def close(self) -> None:
        """End the threads, and close the progress bar and the results."""
        self.shares.close()
        try:
            self.clock.close()
        finally:
            self.results.close()

    # --- faults -----------------------------------------------------------------------------------------------------

    def require_finite_weights(self, module: nn.Module) -> None:
        """Raises FaultyRun if a parameter of `module` is not finite."""
        if not all(bool(p.isfinite().all()) for p in module.parameters()):
            raise FaultyRun(f"weights are no longer finite {self.when}")

    def require_finite_losses(self, losses: Mapping[str, Tensor]) -> None:
        """Raises FaultyRun with the names of the runs whose loss ``[*runs]`` is not finite."""
        for name, loss in losses.items():
            bad = (~loss.isfinite()).reshape(-1).nonzero().flatten().tolist()
            if bad:
                runs = ", ".join(self.plan.names[run].in_words for run in bad)
                raise FaultyRun(f"{name} of {runs} is not finite {self.when}")
