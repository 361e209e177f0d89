"""Show the progress of runs: ``python -m rl_plasticity.status results``."""

import math
import shlex
import sys
import textwrap
import time
from collections.abc import Sequence

from rl_plasticity import command_line, plugins
from rl_plasticity.command_line import aligned, columns
from rl_plasticity.errors import SettingsError, printable
from rl_plasticity.runs.folder import find
from rl_plasticity.runs.state import STATES, Status, cells_of, counted, read

HELP = """python -m rl_plasticity.status FOLDER... [every=SECONDS]

Prints a line for each run in the folders: runs' own folders, a sweep's folder (searched for runs) or globs. How far it
is (of all env steps or epochs), its updates a second, when it will end (local time, and how long that is), and its last
return or accuracy (the mean over its seeds; each of several settings side by side has its own). Where all runs lie in
one folder, that stands at the top.

  running   at work
  finished  made all its steps
  stopped   saved a checkpoint when told to end; continue with resume=FOLDER
  killed    ended without a word: killed, out of memory, or its machine went down; continue with resume=FOLDER
  failed    could not go on; the line says why
  damaged   its files cannot be read; the line says why

  every=SECONDS      print it again and again, until Ctrl-C
"""

YEAR = 365 * 24 * 3600


def command(arguments: Sequence[str]) -> None:
    """Print the table, repeatedly if asked to."""
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
    """Read the places of the runs, and the seconds between two tables.

    Raises:
        SettingsError: an option that is unknown or cannot be read, or no place.
    """
    places, options = command_line.places_and_options(arguments, ["every"])
    try:
        every = float(options["every"]) if "every" in options else None
    except ValueError:
        every = math.nan
    if every is not None and not 0 < every <= YEAR:
        raise SettingsError(f"every must be a number of seconds above 0, got {options['every']!r} (a year at most)")
    return places, every


def table(statuses: Sequence[Status], now: float) -> list[str]:
    """The lines to print: the common folder, a header, each run with its note, and the number of runs in each state.

    They are no wider than the terminal, except that a path is never cut: it is needed to resume a run.
    """
    width = columns()
    ordered = sorted(statuses, key=lambda s: (STATES.index(s.state), s.folder.path))
    parents = {s.folder.path.parent for s in ordered}
    where = printable(f"in {parents.pop()}") if len(parents) == 1 else ""
    names = [printable(s.folder.path.name if where else str(s.folder)) for s in ordered]
    measures = {s.latest.rpartition(" ")[0] for s in ordered if s.latest}
    measure = measures.pop() if len(measures) == 1 else ""
    rows_of = [cells_of(s, now) for s in ordered]
    cells: list[tuple[str, ...]] = [(*row[:-1], row[-1].removeprefix(f"{measure} ")) for row in rows_of]
    units = {s.unit for s in ordered if s.unit}
    unit = units.pop() if len(units) == 1 else ""  # at the top where it is the same for all
    cells = [(state, done.removesuffix(f" {unit}"), *row) for state, done, *row in cells]
    titles = ("state", unit or "done", "rate", "ends", measure or "last")
    cells = [tuple(t if any(line[i] for line in cells) else "" for i, t in enumerate(titles)), *cells]
    names = ["run", *names]
    rows = [[row] for row in aligned([(name, *line) for name, line in zip(names, cells, strict=True)])]
    if max(len(row) for (row,) in rows) > width:  # each name gets a line of its own
        rows = [[name, f"  {row}"] for name, row in zip(names, aligned(cells), strict=True)]
    notes = ["", *(s.note for s in ordered)]
    lines = [f"{where}:"] if where else []
    for row, note, resume in zip(rows, notes, ["", *map(continued, ordered)], strict=True):
        lines += [*row, *textwrap.wrap(note, width, initial_indent="    ", subsequent_indent="    ")]
        lines += [f"    {resume}"] if resume else []
    return [*lines, "", counted(statuses)]


def continued(s: Status) -> str:
    """The line that says how to continue an unfinished run; empty for others."""
    if s.state not in ("stopped", "killed"):
        return ""
    try:
        kind, plugs = s.folder.kind, s.folder.plugins
    except (SettingsError, OSError):  # it was deleted meanwhile, or cannot be resumed
        return ""
    given = [*plugins.as_arguments(plugs), f"resume={s.folder}"]
    return printable(f"continue: python -m rl_plasticity.{kind} {shlex.join(given)}")


if __name__ == "__main__":
    command_line.main("status", lambda _: HELP.rstrip(), command)
