"""Tell how runs are getting on: ``python -m rl_plasticity.status results``."""

import math
import platform
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rl_plasticity import command_line
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs.folder import Row, RunFolder, find
from rl_plasticity.runs.journal import last_entry
from rl_plasticity.runs.lock import is_held

HELP = """python -m rl_plasticity.status FOLDER... [every=SECONDS]

Prints a line for each run in the folders: runs' own folders, a sweep's folder (searched for runs) or globs. How far it
is, its updates a second, when it will end (local time), and its last return or accuracy (the mean over its seeds).

  running   at work
  finished  made all its steps
  stopped   saved a checkpoint when told to end; continue with resume=FOLDER
  killed    ended without a word: killed, out of memory, or its machine went down; continue with resume=FOLDER
  failed    could not go on; the line says why
  damaged   its files cannot be read; the line says why

  every=SECONDS      print it again and again, until Ctrl-C
"""

STATES = ("finished", "stopped", "running", "killed", "damaged", "failed")  # what needs you is printed last
YEAR = 365 * 24 * 3600
SILENT = 30 * 60  # a run on a machine that cannot be asked counts as killed when its files are this many seconds old
LATEST = {"eval/return": "return", "eval/test_accuracy": "test accuracy", "eval/train_accuracy": "train accuracy"}


class Status(NamedTuple):
    """What is known of a run.

    Args:
        done, total: env steps or epochs; 0 if not known.
        unit: which of the two.
        rate: updates a second; one update is of all runs in the process together. 0 if not known.
        ends: when, in seconds since 1970; only of a run at work.
        latest: the last evaluation, for people.
        note: one line, why it failed.
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


def command(arguments: Sequence[str]) -> None:
    """Print the table, again and again if asked to."""
    places, every = parse(arguments)
    while True:
        named, below = find(places)
        lines = table([read(folder) for folder in [*named, *below]], time.time())
        clear = "\033[H\033[2J" if every and sys.stdout.isatty() else ""
        print(clear + "\n".join(lines), flush=True)
        if every is None:
            return
        time.sleep(every)


def parse(arguments: Sequence[str]) -> tuple[list[str], float | None]:
    """The places to look for runs, and the seconds between two tables.

    Raises:
        SettingsError: an unknown or unreadable option, or no place.
    """
    places, options = command_line.places_and_options(arguments, ["every"])
    if "every" not in options:
        return places, None
    try:
        every = float(options["every"])
    except ValueError:
        every = math.nan
    if not 0 < every <= YEAR:
        raise SettingsError(f"every must be a number of seconds above 0, got {options['every']!r} (a year at most)")
    return places, every


def read(folder: RunFolder) -> Status:
    """How the run in `folder` is getting on, from its journal and the ends of its files; it may be writing them."""
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
    saved = [int(p.stem[5:]) for p in folder.checkpoints.glob("step_*.pt") if p.stem[5:].isdigit()]
    steps = [0, *saved, *(row.step for row in folder.last_rows("metrics.csv") if not supervised)]
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
    latest = _mean(folder.last_rows("metrics.csv", LATEST))
    return Status(folder, state, max(steps), total, unit, rate, ends, latest, note)


def _state(folder: RunFolder, done: int, total: int) -> tuple[str, str]:
    """Which of STATES, and a note."""
    entry = last_entry(folder)
    if entry is not None and entry.word in ("finished", "stopped", "failed"):
        return entry.word, entry.text
    if entry is None and 0 < total <= done:  # an older version's, or started from Python: it keeps no journal
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


def _mean(rows: Sequence[Row]) -> str:
    """The mean over the runs of the best known of LATEST, with its name."""
    for name, words in LATEST.items():
        values = [row.value for row in rows if row.name == name]
        if values:
            return f"{words} {sum(values) / len(values):.4g}"
    return ""


# ------------------------------------------------------------------------------------------------------------------


def table(statuses: Sequence[Status], now: float) -> list[str]:
    """The lines to print: a header, one for each run, and how many are in which state."""
    lines = [("run", "state", "done", "rate", "ends", "last", "")]
    for s in sorted(statuses, key=lambda s: (STATES.index(s.state), s.folder.path)):
        done = f"{s.done:,}".replace(",", " ") + f" {s.unit}" if s.unit else ""
        if s.total:
            done = f"{s.done:,} of {s.total:,}".replace(",", " ") + f" {s.unit} ({s.done / s.total:.0%})"
        rate = f"{s.rate:.3g} updates/s" if s.rate else ""
        ends = f"{_when(s.ends, now)} (in {_duration(s.ends - now)})" if s.ends else ""
        lines.append((str(s.folder), s.state, done, rate, ends, s.latest, s.note))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)] + [0]
    shown = [
        "  ".join(cell.ljust(n) for cell, n in zip(line, widths, strict=True) if n or cell).rstrip() for line in lines
    ]
    count = Counter(s.state for s in statuses)
    always = ("running", "finished", "failed")
    states = [f"{count[s]} {s}" for s in (*always, *(s for s in STATES if s not in always)) if s in always or count[s]]
    runs = "1 run" if len(statuses) == 1 else f"{len(statuses)} runs"
    return [*shown, "", f"{runs}: {', '.join(states)}"]


def _when(moment: float, now: float) -> str:
    """Local time, with the day if it is not today."""
    then, today = time.localtime(moment), time.localtime(now)
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%a %d %b %H:%M", then)


def _duration(seconds: float) -> str:
    minutes = max(0, round(seconds / 60))
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # status ... | head
    command_line.main("status", lambda _: HELP.rstrip(), command)
