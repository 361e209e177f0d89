"""Tell how runs are getting on: ``python -m rl_plasticity.status results``."""

import math
import os
import platform
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from rl_plasticity.comparison.loading import find, split
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.runs.folder import RunFolder
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

STATES = (
    "finished",
    "stopped",
    "running",
    "killed",
    "damaged",
    "failed",
)  # in this order: what needs you is at the end
SILENT = 30 * 60  # a run on a machine that cannot be asked counts as killed when its files are this many seconds old
LATEST = {"eval/return": "return", "eval/test_accuracy": "test accuracy", "eval/train_accuracy": "train accuracy"}


class Row(NamedTuple):
    """A file's ``run,step,name,value``."""

    run: str
    step: int
    name: str
    value: float


class Status(NamedTuple):
    """What is known of a run.

    Args:
        done, total: env steps or epochs; 0 if not known.
        unit: which of the two.
        rate: updates, of all runs in the process together: one, a second; 0 if not known.
        ends: when, in seconds since 1970; only of a run at work.
        latest: the last evaluation, for people.
        note: one line, why it failed.
    """

    folder: Path
    state: str
    done: int = 0
    total: int = 0
    unit: str = ""
    rate: float = 0.0
    ends: float | None = None
    latest: str = ""
    note: str = ""


def main() -> None:
    """Run it; status 0, or 2 for bad input."""
    arguments = sys.argv[1:]
    if not arguments or any(a in ("-h", "--help") for a in arguments):
        print(HELP, end="")
        sys.exit(0 if arguments else 2)
    try:
        places, every = parse(arguments)
        while True:
            named, below = find(places)
            lines = table([read(folder) for folder in [*named, *below]], time.time())
            print(*(["\033[H\033[2J"] if every and sys.stdout.isatty() else []), "\n".join(lines), sep="", flush=True)
            if every is None:
                return
            time.sleep(every)
    except SettingsError as error:
        print(f"rl_plasticity.status: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def parse(arguments: Sequence[str]) -> tuple[list[str], float | None]:
    """The places to look for runs, and the seconds between two tables.

    Raises:
        SettingsError: an unknown or unreadable option, or no place.
    """
    every: float | None = None
    places, options = split(arguments)
    for name, value in options:
        if name != "every":
            raise SettingsError(f"unknown option {name!r}{nearest(name, ['every'])}")
        try:
            every = float(value)
        except ValueError:
            every = math.nan
        if not (math.isfinite(every) and every > 0):
            raise SettingsError(f"every must be a number of seconds above 0, got {value!r}")
    if not places:
        raise SettingsError("name at least one folder with runs")
    return places, every


def read(folder: Path) -> Status:
    """How the run in `folder` is getting on, from its log and the ends of its files; it may be writing them."""
    try:
        config = (folder / "config.yaml").read_text(errors="replace")
        if not (match := re.search(r"^(total_env_steps|epochs_per_task): *(\d+) *$", config, re.MULTILINE)):
            return Status(folder, "damaged", note="config.yaml holds no settings of a run of this package")
        supervised, unit, total = False, "env steps", int(match[2])
        if match[1] == "epochs_per_task":
            tasks = re.search(r"^num_tasks: *(\d+) *$", config, re.MULTILINE)
            supervised, unit, total = True, "epochs", total * int(tasks[1]) if tasks else 0
        timing = {row.name: row.value for row in _last(folder / "timing.csv")}
        rows = _last(folder / "metrics.csv")
        # The newest step that any file knows of; rows of a supervised run count updates, not epochs.
        timed, left = (timing.get(f"{unit.replace(' ', '_')}_{n}", math.nan) for n in ("done", "left"))
        if 0 <= timed < 1e15 and 0 <= left < 1e15:
            total = int(timed + left)
        saved = [int(p.stem[5:]) for p in (folder / "checkpoints").glob("step_*.pt") if p.stem[5:].isdigit()]
        steps = [int(timed)] if 0 <= timed < 1e15 else []
        done = max([0, *steps, *saved, *(row.step for row in rows if not supervised)])
        state, note = _state(folder, done, total)
        ends = None
        if state == "running" and 0 <= timing.get("seconds_left", -1) < 1e9:
            ends = (folder / "timing.csv").stat().st_mtime + timing["seconds_left"]
        rate = timing.get("updates_per_second", 0.0) if state == "running" else 0.0
        return Status(folder, state, done, total, unit, rate, ends, _mean(_last(folder / "metrics.csv", LATEST)), note)
    except OSError as error:
        return Status(folder, "damaged", note=f"cannot read {Path(str(error.filename)).name}: {error.strerror}")
    except ValueError as error:
        return Status(folder, "damaged", note=str(error))


def _state(folder: Path, done: int, total: int) -> tuple[str, str]:
    """Which of STATES, and a note."""
    entry = last_entry(RunFolder(folder))
    if entry is not None and entry.word in ("finished", "stopped", "failed"):
        return entry.word, entry.text
    if entry is None and 0 < total <= done:  # an older version's, or started from Python: it keeps no log
        return "finished", ""
    if is_held(RunFolder(folder)):
        return "running", ""
    written = (folder / name for name in ("config.yaml", "log.txt", "metrics.csv", "timing.csv", "checkpoints"))
    changed = max(path.stat().st_mtime for path in written if path.exists())
    # A lock is not always seen from another machine: the age of the files has to do.
    here = entry is not None and entry.text.startswith(f"on {platform.node()},")
    if not here and time.time() - changed < SILENT:
        return "running", entry.text if entry else ""
    return "killed", f"last sign of life {_when(changed, time.time())}"


def _last(path: Path, names: Collection[str] = ()) -> list[Row]:
    """The rows of the last step, of those with one of the `names` if given, read from the file's end; none if missing.

    Raises:
        ValueError: the file is damaged.
    """
    size = 1 << 14
    while True:
        try:
            with path.open("rb") as file:
                start = max(0, file.seek(0, os.SEEK_END) - size)
                file.seek(start)
                lines = file.read(size).split(b"\n")[1:-1]  # less the header or a cut line, and a line being written
        except FileNotFoundError:
            return []
        rows = [row for row in (_row(line, path) for line in lines) if not names or row.name in names]
        found = [row for row in rows if row.step == rows[-1].step]
        # All rows of the last step were read if one of another step is before them. 16 MB are enough to look for them.
        if start == 0 or len(found) < len(rows) or size >= 1 << 24:
            return found
        size *= 8


def _row(line: bytes, path: Path) -> Row:
    fields = line.decode(errors="replace").rsplit(",", 3)
    try:
        return Row(fields[0], int(fields[1]), fields[2], float(fields[3]))
    except (IndexError, ValueError):
        raise ValueError(f"{path.name} is damaged: a line is not run,step,name,value") from None


def _mean(rows: Sequence[Row]) -> str:
    """The mean over the runs of the best known of LATEST, with its name."""
    for name, said in LATEST.items():
        values = [row.value for row in rows if row.name == name and not row.run.endswith("mean")]
        if values:
            return f"{said} {sum(values) / len(values):.4g}"
    return ""


# ------------------------------------------------------------------------------------------------------------------


def table(found: Sequence[Status], now: float) -> list[str]:
    """The lines to print: a header, one for each run, and how many are in which state."""
    lines = [("run", "state", "done", "rate", "ends", "last", "")]
    for one in sorted(found, key=lambda s: (STATES.index(s.state), s.folder)):
        done = f"{one.done:,}".replace(",", " ") + f" {one.unit}" if one.unit else ""
        if one.total:
            done = f"{one.done:,} of {one.total:,}".replace(",", " ") + f" {one.unit} ({one.done / one.total:.0%})"
        rate = f"{one.rate:.3g} updates/s" if one.rate else ""
        ends = f"{_when(one.ends, now)} (in {_duration(one.ends - now)})" if one.ends else ""
        lines.append((str(one.folder), one.state, done, rate, ends, one.latest, one.note))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)] + [0]
    shown = [
        "  ".join(cell.ljust(n) for cell, n in zip(line, widths, strict=True) if n or cell).rstrip() for line in lines
    ]
    count = Counter(one.state for one in found)
    always = ("running", "finished", "failed")
    states = [f"{count[s]} {s}" for s in (*always, *(s for s in STATES if s not in always)) if s in always or count[s]]
    return [*shown, "", f"{len(found)} run{'s' * (len(found) != 1)}: {', '.join(states)}"]


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
    main()
