"""The numbers that a run writes into its folder: metrics.csv, timing.csv, TensorBoard events."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from types import MappingProxyType
from typing import IO, Any

import numpy as np
import torch
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard.summary import hparams

from rl_plasticity.errors import SettingsError, refused
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.names import HEADER, MetricName, RunName, short

END = 1000  # bytes, some ten rows


class Results:
    """Writes rows ``run,step,name,value`` as they come, and the same to TensorBoard.

    ``metrics.csv`` is the source of truth: tidy, append-only and without wall-clock times. So a resumed run's file
    equals an uninterrupted one's, bit for bit. Rates go to ``timing.csv``. In TensorBoard each of several runs has a
    folder of its own, so that the curves of one metric share a plot.

    Args:
        folder: must exist.
        names: one for each run.
        sizes: on resuming, the result of `sync` at the checkpoint. Later rows are dropped; the run writes them again.
        step: the step at which the run starts.
        settings: flat, shown by TensorBoard as hyperparameters; each run's own replace them.
    """

    def __init__(
        self,
        folder: RunFolder,
        names: Sequence[RunName],
        sizes: Mapping[str, int] | None = None,
        step: int = 0,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._texts = [str(name) for name in names]
        self._places = [name.file_name for name in names] if len(names) > 1 else [""]
        self.files: dict[str, IO[str]] = {}
        for path in (folder.metrics_csv, folder.timing_csv):
            if sizes is None:
                path.write_text(f"{HEADER}\n")
            else:
                os.truncate(path, sizes[path.name])
            self.files[path.name] = path.open("a+", encoding="utf-8", newline="")
        # Readers forget what an earlier start showed from this step on, because it comes again. Values of the
        # checkpoint's own step were shown before the checkpoint was written.
        start = SessionLog(status=SessionLog.START)
        begins = Event(wall_time=time.time(), step=0 if sizes is None else step + 1, session_log=start)
        self.boards = {place: EventFileWriter(str(folder.tensorboard / place)) for place in ("", *self._places)}
        for board in self.boards.values():
            board.add_event(begins)
        shown = dict.fromkeys(
            ["eval/return"] if "env.name" in settings else ["task/train_accuracy", "task/test_accuracy"]
        )
        for place, name in zip(self._places, names, strict=True):
            own = {
                n: v if isinstance(v, bool | int | float) else short(v) for n, v in {**settings, **name.values}.items()
            }
            for found in hparams(own, shown) if settings else ():  # type: ignore[no-untyped-call]
                self.boards[place].add_event(Event(wall_time=time.time(), summary=found))
        self.sync()

    def write(
        self, step: int, values: Mapping[str, torch.Tensor | np.ndarray], where: np.ndarray | None = None
    ) -> None:
        """Write a row of each metric ``[runs]`` for each run, or each in the mask `where`."""
        rows: list[str] = []
        shown: dict[str, dict[str, float]] = {place: {} for place in self._places}
        for name, value in values.items():
            for i, number in enumerate(map(float, value)):
                if where is None or where[i]:
                    rows.append(f"{self._texts[i]},{step},{name},{number!r}\n")
                    shown[self._places[i]][name] = number
        self.files["metrics.csv"].write("".join(rows))
        self._show(step, shown)

    def write_timing(self, step: int, values: Mapping[str, float]) -> None:
        """Write rates and durations of the whole process."""
        for name, value in values.items():
            self.files["timing.csv"].write(f"mean,{step},{name},{value!r}\n")
        self._show(step, {"": {f"timing/{name}": value for name, value in values.items()}})
        self.flush()

    def _show(self, step: int, shown: Mapping[str, Mapping[str, float]]) -> None:
        for place, values in shown.items():
            if values:  # in one event, which takes as long as ten values
                found = Summary(value=[Summary.Value(tag=tag_of(name), simple_value=v) for name, v in values.items()])
                self.boards[place].add_event(Event(wall_time=time.time(), step=step, summary=found))

    def flush(self) -> None:
        """Hand everything to the operating system; raises OSError if it cannot be written."""
        for file in self.files.values():
            file.flush()

    def sync(self) -> dict[str, int]:
        """Force everything to the disk; return the sizes of the files, for a checkpoint."""
        for board in self.boards.values():
            board.flush()
        self.flush()
        for file in self.files.values():
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self.files.items()}

    def ends(self) -> dict[str, str]:
        """The last `END` bytes of each file, as `sync` left it, for a checkpoint."""
        return {name: _end(file.fileno(), file.tell()) for name, file in self.files.items()}

    def close(self) -> None:
        with ExitStack() as stack:  # all are closed, even where the disk is full
            for board in self.boards.values():
                stack.callback(board.close)
            for file in self.files.values():
                stack.callback(file.close)
            self.sync()


@cache
def tag_of(name: str) -> str:
    """A metric's tag in TensorBoard. It opens the first group by name, which is eval: the others come after it."""
    of = MetricName.parse(name).of
    return name if of in ("eval", "task", "timing", "train") else f"{'networks' if of else 'train'}/{name}"


def require_as_saved(folder: RunFolder, saved: Mapping[str, Any]) -> None:
    """Check that the files still hold what they held at a checkpoint, before a run continues from it.

    Raises:
        SettingsError: a file was changed.
    """
    for path in (folder.metrics_csv, folder.timing_csv):
        size = saved["sizes"][path.name]
        with refused(f"read {path}"), path.open("rb") as file:
            there, end = os.fstat(file.fileno()).st_size, _end(file.fileno(), size)
        if there < size or end != saved["ends"][path.name]:
            raise SettingsError(
                f"{path} ({there} bytes) no longer holds the rows of the checkpoint ({size} bytes); restore it, or "
                "train again in another folder (out=)"
            )


def _end(file: int, size: int) -> str:
    return os.pread(file, min(size, END), max(0, size - END)).decode(errors="replace")
