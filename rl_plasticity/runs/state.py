"""The state of a run, read from its files."""

import math
import platform
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rl_plasticity.errors import SettingsError
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.journal import last_entry
from rl_plasticity.runs.lock import is_held
from rl_plasticity.runs.names import RunName

STATES = ("finished", "stopped", "running", "killed", "damaged", "failed")  # those that need attention come last
SILENT = 30 * 60  # seconds without a change to its files, after which a run on another machine counts as killed
LATEST = {"eval/return": "return", "eval/test_accuracy": "test accuracy", "eval/train_accuracy": "train accuracy"}


class Status(NamedTuple):
    """The state of a run.

    Args:
        done, total: number of env steps or epochs; 0 if unknown.
        unit: the name of the steps.
        rate: updates per second, where an update of all runs in the process counts as one; 0 if unknown.
        ends: the expected end of a running run, in seconds since 1970.
        latest: the last evaluation in words, of each of several settings that train side by side.
        note: one line: the reason of a failure, the last sign of life.
    """

    folder: RunFolder
    state: str
    done: int = 0
    total: int = 0
    unit: str = ""
    rate: float = 0.0
    ends: float | None = None
    latest: Sequence[str] = ()
    note: str = ""


def read(folder: RunFolder) -> Status:
    """The state of the run in `folder`, from its journal and the ends of its files, which it may be writing."""
    try:
        return _read(folder)
    except SettingsError as error:
        return Status(folder, "damaged", note=str(error).replace(f"{folder}/", ""))
    except OSError as error:
        return Status(folder, "damaged", note=f"cannot read {Path(str(error.filename)).name}: {error.strerror}")


def _read(folder: RunFolder) -> Status:
    unit = "epochs" if folder.kind == "supervised" else "env steps"
    timing = {row.name: row.value for row in folder.last_rows("timing.csv") if 0 <= row.value < math.inf}
    done, left = (timing.get(f"{unit.replace(' ', '_')}_{n}") for n in ("done", "left"))
    # Of epochs it is known from the timing alone.
    total = folder.settings.get("total_env_steps") if done is None or left is None else int(done + left)
    # The newest step that any file knows of; rows of a supervised run count updates, not epochs.
    steps = [int(done or 0), *folder.saved_steps]
    if unit == "env steps":
        steps += [row.step for row in folder.last_rows("metrics.csv")]
    state, note = _state(folder)
    rate, ends = 0.0, None
    if state == "running":
        rate = timing.get("updates_per_second", 0.0)
        if (seconds := timing.get("seconds_left", math.inf)) < 1e9:  # later moments may have no date
            ends = folder.timing_csv.stat().st_mtime + seconds
    return Status(
        folder, state, max(steps), total if isinstance(total, int) else 0, unit, rate, ends, _latest(folder), note
    )


def _state(folder: RunFolder) -> tuple[str, str]:
    """One of STATES, and a note."""
    entry = last_entry(folder)
    if entry is not None and entry.word in ("finished", "stopped", "failed"):
        return entry.word, entry.text
    if is_held(folder):
        return "running", ""
    written = (folder.config, folder.log, folder.metrics_csv, folder.timing_csv, folder.checkpoints)
    changed = max(path.stat().st_mtime for path in written if path.exists())
    # A lock is not always seen from another machine: the age of the files has to do.
    here = entry is not None and entry.text.startswith(f"on {platform.node()},")
    if not here and time.time() - changed < SILENT:
        return "running", entry.text if entry else ""
    return "killed", f"last sign of life {at(changed)}"


def _latest(folder: RunFolder) -> list[str]:
    """The first known metric of LATEST in words, as a mean over the seeds of each setting side by side."""
    rows = folder.last_rows("metrics.csv", LATEST)
    for name, words in LATEST.items():
        values: defaultdict[str, list[float]] = defaultdict(list)
        for row in rows:
            if row.name == name:
                values[RunName.parse(row.run).group].append(row.value)
        if values:
            return [f"{words} {group} {sum(v) / len(v):.4g}".replace("  ", " ") for group, v in values.items()]
    return []


def at(moment: float) -> str:
    """A moment, in seconds since 1970, as local time."""
    return time.strftime("%d %b %H:%M", time.localtime(moment))
