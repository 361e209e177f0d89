"""The state of a run, read from its files."""

import math
import platform
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rl_plasticity.errors import SettingsError
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.journal import last_entry
from rl_plasticity.runs.lock import is_held
from rl_plasticity.runs.names import Row, RunName

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
        latest: the last evaluation in words; empty if several settings trained side by side.
        note: one line: the reason of a failure, or the last evaluation of each setting.
    """

    folder: RunFolder
    state: str
    done: int = 0
    total: int = 0
    unit: str = ""
    rate: float = 0.0
    ends: float | None = None
    latest: str = ""
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
    settings, supervised = folder.settings, folder.kind == "supervised"
    timing = {row.name: row.value for row in folder.last_rows("timing.csv")}
    unit, lengths = "env steps", [settings.get("total_env_steps", 0)]
    if supervised:  # the number of tasks may be the task's own, which is not known here
        unit, lengths = "epochs", [settings.get("num_tasks"), settings.get("epochs_per_task")]
    total = math.prod(n if isinstance(n, int) else 0 for n in lengths)
    # The newest step that any file knows of; rows of a supervised run count updates, not epochs.
    steps = [0, *folder.saved_steps, *(row.step for row in folder.last_rows("metrics.csv") if not supervised)]
    timed, left = (timing.get(f"{unit.replace(' ', '_')}_{n}", math.nan) for n in ("done", "left"))
    if 0 <= timed < 1e15:
        steps.append(int(timed))
        if 0 <= left < 1e15:
            total = int(timed + left)
    state, note = _state(folder, max(steps), total)
    rate, ends = 0.0, None
    if state == "running":
        rate = timing.get("updates_per_second", 0.0)
        if 0 <= timing.get("seconds_left", -1) < 1e9:
            ends = folder.timing_csv.stat().st_mtime + timing["seconds_left"]
    latest, of_each = _latest(folder.last_rows("metrics.csv", LATEST))
    note = "; ".join(filter(None, (note, of_each)))
    return Status(folder, state, max(steps), total, unit, rate, ends, latest, note)


def _state(folder: RunFolder, done: int, total: int) -> tuple[str, str]:
    """One of STATES, and a note."""
    entry = last_entry(folder)
    if entry is not None and entry.word in ("finished", "stopped", "failed"):
        return entry.word, entry.text
    if entry is None and 0 < total <= done:  # which could not be written
        return "finished", ""
    if is_held(folder):
        return "running", ""
    written = (folder.config, folder.log, folder.metrics_csv, folder.timing_csv, folder.checkpoints)
    changed = max(path.stat().st_mtime for path in written if path.exists())
    # A lock is not always seen from another machine: the age of the files has to do.
    here = entry is not None and entry.text.startswith(f"on {platform.node()},")
    if not here and time.time() - changed < SILENT:
        return "running", entry.text if entry else ""
    return "killed", f"last sign of life {_when(changed, time.time())}"


def _latest(rows: Sequence[Row]) -> tuple[str, str]:
    """The first known metric of LATEST as a mean over the seeds: of a single group, or else of each group."""
    for name, words in LATEST.items():
        groups: dict[str, list[float]] = {}
        for row in rows:
            if row.name == name:
                settings = RunName.parse(row.run).settings
                label = " ".join(v if s.endswith(".name") else f"{s.rpartition('.')[2]}={v}" for s, v in settings)
                groups.setdefault(label, []).append(row.value)
        means = {label: f"{sum(values) / len(values):.4g}" for label, values in groups.items()}
        if len(means) == 1:
            return f"{words} {next(iter(means.values()))}", ""
        if means:
            return "", f"{words}: " + ", ".join(f"{label} {mean}" for label, mean in means.items())
    return "", ""


# ------------------------------------------------------------------------------------------------------------------


def cells_of(s: Status, now: float) -> tuple[str, str, str, str, str]:
    """Cells of a table: the state, the progress, the rate, the expected end, and the last evaluation."""
    return (
        s.state,
        f"{100 * s.done // s.total}% of {_short(s.total)} {s.unit}"
        if s.total
        else f"{s.done} {s.unit}"
        if s.unit
        else "",
        f"{_digits(s.rate)}/s" if s.rate else "",
        f"{_when(s.ends, now)} ({_duration(s.ends - now)})" if s.ends else "",
        s.latest,
    )


def counted(statuses: Sequence[Status]) -> str:
    """The number of runs in each state: ``3 runs: 1 running, 2 finished, 0 failed``."""
    count = Counter(s.state for s in statuses)
    always = ("running", "finished", "failed")
    states = [f"{count[s]} {s}" for s in (*always, *(s for s in STATES if s not in always)) if s in always or count[s]]
    runs = "1 run" if len(statuses) == 1 else f"{len(statuses)} runs"
    return f"{runs}: {', '.join(states)}"


def _digits(number: float) -> str:
    """A number with three digits, or with more if they are before the point."""
    return f"{number:.0f}" if 100 <= number < 1e6 else f"{number:.3g}"


def _short(number: int) -> str:
    """``1M``, ``26k``, ``800``."""
    if number < 10_000:
        return str(number)
    size, letter = (10**6, "M") if number >= 10**6 else (1000, "k")
    return f"{round(number / size, 1):g}{letter}"


def _when(moment: float, now: float) -> str:
    """Local time, with the weekday if it is not today; a date if it is more than six days away."""
    then, today = time.localtime(moment), time.localtime(now)
    if abs(moment - now) > 6 * 24 * 3600:
        return time.strftime("%d %b", then)
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%a %H:%M", then)


def _duration(seconds: float) -> str:
    hours = max(0.0, seconds) / 3600
    return f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"
