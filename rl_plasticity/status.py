"""Show the progress of runs: ``python -m rl_plasticity.status results``."""

import time
from collections import Counter
from collections.abc import Sequence

from rl_plasticity import command_line
from rl_plasticity.errors import counted
from rl_plasticity.runs.folder import find
from rl_plasticity.runs.state import STATES, Status, at, read

HELP = """python -m rl_plasticity.status FOLDER...

Prints a line for each run in the folders. A folder is that of a run, that of a sweep or a glob. The line says how far
it is, its updates per second, when it will end (local time, and the time left), and its last
return or accuracy (the mean over seeds; settings that train side by side have one each).

  running   it is at work
  finished  all its steps are made
  stopped   it saved a checkpoint when told to end; continue with resume=FOLDER
  killed    its process ended without reporting why (out of memory, for example); continue with resume=FOLDER
  failed    it could not go on; the line says why
  damaged   its files cannot be read; the line says why
"""

TITLES = ("state", "done", "updates", "ends", "run", "last", "note")


def command(arguments: Sequence[str]) -> None:
    """Print the table."""
    places, _ = command_line.places_and_options("status", arguments, ())
    print("\n".join(table([read(folder) for folder in find(places)], time.time())))


def table(statuses: Sequence[Status], now: float) -> list[str]:
    """The lines to print: each run, those that need attention last; the number of runs in each state."""
    ordered = sorted(statuses, key=lambda s: (STATES.index(s.state), s.folder.path))
    count = Counter(s.state for s in ordered)
    of_each = ", ".join(f"{number} {state}" for state, number in count.items())
    return [
        *command_line.aligned([TITLES, *(_cells(s, now) for s in ordered)]),
        "",
        f"{counted(len(ordered), 'run')}: {of_each}",
    ]


def _cells(s: Status, now: float) -> tuple[str, ...]:
    of = f"{100 * s.done // s.total}% of {s.total:,}" if s.total else str(s.done)
    return (
        s.state,
        f"{of} {s.unit}" if s.unit else "",
        f"{s.rate:.4g}/s" if s.rate else "",
        f"{at(s.ends)} ({command_line.about(s.ends - now)})" if s.ends else "",
        str(s.folder),
        "; ".join(s.latest),
        s.note,
    )


if __name__ == "__main__":
    command_line.main("status", lambda _: HELP.rstrip(), command)
