"""Show the progress of runs: ``python -m rl_plasticity.status results``."""

import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence

from rl_plasticity import command_line, plugins
from rl_plasticity.configs.written import parse as parsed
from rl_plasticity.errors import SettingsError, counted, printable
from rl_plasticity.runs.folder import find
from rl_plasticity.runs.state import STATES, Status, at, read
from rl_plasticity.settings import Declared, Setting

HELP = """python -m rl_plasticity.status FOLDER... [every=SECONDS]

Prints a line for each run in the folders: runs' own folders, a sweep's folder (searched for runs) or globs. How far it
is (of all env steps or epochs), its updates a second, when it will end (local time, and how long that is), and its last
return or accuracy (the mean over its seeds; each of several settings side by side has its own).

  running   at work
  finished  made all its steps
  stopped   saved a checkpoint when told to end; continue with resume=FOLDER
  killed    ended without a word: killed, out of memory, or its machine went down; continue with resume=FOLDER
  failed    could not go on; the line says why
  damaged   its files cannot be read; the line says why

  every=SECONDS      print it again and again, until Ctrl-C
"""

TITLES = ("state", "done", "updates", "ends", "last", "run")
YEAR = 365 * 24 * 3600


def command(arguments: Sequence[str]) -> None:
    """Print the table, repeatedly if asked to."""
    places, every = parse(arguments)
    while True:
        found = [read(folder) for folder in find(places)]
        clear = "\033[H\033[2J" if every and sys.stdout.isatty() else ""
        print(clear + "\n".join(table(found, time.time())), flush=True)
        if every is None:
            return
        time.sleep(every)


def parse(arguments: Sequence[str]) -> tuple[list[str], float | None]:
    """Read the places of the runs, and the seconds between two tables.

    Raises:
        SettingsError: an option that is unknown or cannot be read, or no place.
    """
    places, options = command_line.places_and_options(arguments, ["every"])
    if "every" not in options:
        return places, None
    _, every = parsed(f"every={options['every']}")
    return places, Declared(("float",), None, Setting(above=0, most=YEAR)).checked("every", every)


def table(statuses: Sequence[Status], now: float) -> list[str]:
    """The lines to print: each run with its notes, those that need attention last; the number of runs in each state."""
    ordered = sorted(statuses, key=lambda s: (STATES.index(s.state), s.folder.path))
    cells = [_cells(s, now) for s in ordered]
    titles = [title if any(column) else "" for title, *column in zip(TITLES, *cells, strict=True)]
    first, *lines = command_line.aligned([titles, *cells])
    for line, s in zip(lines, ordered, strict=True):
        first += "".join(f"\n{text}" for text in (line, *(f"    {printable(note)}" for note in _notes(s))))
    count = Counter(s.state for s in statuses)
    states = dict.fromkeys(["running", "finished", "failed", *(state for state in STATES if count[state])])
    runs = counted(len(statuses), "run")
    return [*first.split("\n"), "", f"{runs}: {', '.join(f'{count[state]} {state}' for state in states)}"]


def _cells(s: Status, now: float) -> tuple[str, ...]:
    of = f"{100 * s.done // s.total}% of {s.total:,}" if s.total else str(s.done)
    return (
        s.state,
        f"{of} {s.unit.removesuffix('s') if (s.total or s.done) == 1 else s.unit}" if s.unit else "",
        f"{s.rate:.4g}/s" if s.rate else "",
        f"{at(s.ends)} ({command_line.about(s.ends - now)})" if s.ends else "",
        s.latest[0] if len(s.latest) == 1 else "",
        str(s.folder),
    )


def _notes(s: Status) -> list[str]:
    """The lines below a run's: why it is so, the evaluation of each setting, and how to continue."""
    notes = [s.note, "; ".join(s.latest) if len(s.latest) > 1 else ""]
    if s.state in ("stopped", "killed"):
        try:
            given = [*plugins.as_arguments(s.folder.plugins), f"resume={s.folder}"]
            notes.append(f"continue: python -m rl_plasticity.{s.folder.kind} {shlex.join(given)}")
        except (SettingsError, OSError):  # it was deleted meanwhile
            pass
    return [note for note in notes if note]


if __name__ == "__main__":
    command_line.main("status", lambda _: HELP.rstrip(), command)
