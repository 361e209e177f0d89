"""A record of where a study's numbers come from, in one file that is kept after its runs are deleted."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from papers import cost
from papers.study import Study
from rl_plasticity import RunFolder
from rl_plasticity.comparison.groups import differing

MADE_WITH = ("rl_plasticity", "commit", "python", "libraries", "plugins")
MACHINE = ("processor", "cores", "device", "threads", "platform")


def text(study: Study, command: str, given: Sequence[str], folders: Mapping[str, Sequence[Path]]) -> str:
    """The record of a study's runs as JSON.

    It contains the command, versions, machines and times, the settings that all runs share, and for each folder its
    method and its own settings. Both kinds of hours are sums over runs. The duration of a start that was killed is not
    known.

    Args:
        given: settings that override the study's own.
        folders: the folders of each method's runs, by its label.
    """
    labelled = [(label, RunFolder(path)) for label, paths in folders.items() for path in paths]
    starts = [start for _, folder in labelled for start in folder.starts]
    settings = [{n: v for n, v in _flat(folder.settings) if n != "out"} for _, folder in labelled]
    own = differing(settings)
    clock, cpu = (sum(kind) for kind in zip(*(hours(folder) for _, folder in labelled), strict=True))
    content = {
        "study": study.name,
        "shows": study.shows,
        "command": command,
        "given": [*given],
        "made_with": _different({name: start.get(name) for name in MADE_WITH} for start in starts),
        "machines": _different({name: start.get(name) for name in MACHINE} for start in starts),
        "first_start": min((start["time"] for start in starts if isinstance(start.get("time"), str)), default=None),
        "run_updates": round(sum(cost.updates(f.settings) for _, f in labelled)),
        "hours_of_ended_starts": round(clock, 2),
        "cpu_hours_of_ended_starts": None if math.isnan(cpu) else round(cpu, 4),
        "settings": {name: value for name, value in settings[0].items() if name not in own},
        "runs": {
            folder.path.name: {"method": label} | {name: of_folder[name] for name in own if name in of_folder}
            for (label, folder), of_folder in zip(labelled, settings, strict=True)
        },
    }
    return json.dumps(content, indent=1) + "\n"


def hours(folder: RunFolder) -> tuple[float, float]:
    """The duration of a run: hours by the clock, and CPU hours of all cores together (NaN if they were not counted).

    Only starts that ended count, as recorded in ``log.txt``. A start that was killed counts nothing, because the time
    of its end is not known.
    """
    clock, cpu, started, used = 0.0, 0.0, None, math.nan
    with suppress(OSError):
        for line in filter(None, folder.log.read_text(errors="replace").splitlines()):
            when, _, what = line.partition(" ")
            try:
                at = datetime.strptime(when, "%Y-%m-%dT%H:%M:%S%z")
            except ValueError:  # a truncated line, so the start it belongs to is not counted
                started = None
                continue
            word, _, rest = what.partition(" ")
            if word == "used":
                with suppress(ValueError):
                    used = float(rest.partition(" ")[0])
                continue
            if started and word.rstrip(":") in ("finished", "stopped", "failed"):
                clock += max(0.0, (at - started).total_seconds())
                cpu += used
            started, used = (at if word == "started" else None), math.nan
    return clock / 3600, cpu / 3600


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as pairs of a dotted name and a value."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _different(values: Iterable[Any]) -> list[Any]:
    """Each value once, in order."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
