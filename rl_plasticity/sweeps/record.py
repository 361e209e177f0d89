"""Where a study's numbers come from, in one file to be kept with them when its runs are thrown away."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_plasticity.comparison.groups import differing
from rl_plasticity.configs import schema
from rl_plasticity.configs.written import flat_values
from rl_plasticity.runs import journal
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.sweeps import cost
from rl_plasticity.sweeps.studies import Study

MADE_WITH = ("rl_plasticity", "commit", "python", "libraries", "plugins")
MACHINE = ("processor", "cores", "device", "threads", "platform")


def text(study: Study, command: str, given: Sequence[str], folders: Mapping[str, Sequence[Path]]) -> str:
    """JSON: the command, versions, machines and time; the settings that all runs share; each folder's method and own.

    Both kinds of hours are of one run after another; how long a start took that was killed is not known.

    Args:
        given: settings over the study's own.
        folders: of each method's runs, by its label.
    """
    labelled = [(label, RunFolder(path)) for label, paths in folders.items() for path in paths]
    starts = [start for _, folder in labelled for start in folder.starts]
    settings = [{n: v for n, v in flat_values(folder.settings) if n != "out"} for _, folder in labelled]
    own = differing(settings)
    hours = [journal.hours(folder) for _, folder in labelled]
    cpu = [of_run.cpu for of_run in hours if of_run.cpu is not None]
    content = {
        "study": study.name,
        "shows": study.shows,
        "command": command,
        "given": [*given],
        "made_with": _different({name: start.get(name) for name in MADE_WITH} for start in starts),
        "machines": _different({name: start.get(name) for name in MACHINE} for start in starts),
        "first_start": min((start["time"] for start in starts if isinstance(start.get("time"), str)), default=None),
        "run_updates": round(sum(cost.updates(schema.load_saved(study.kind, f.settings)) for _, f in labelled)),
        "hours_of_ended_starts": round(sum(of_run.clock for of_run in hours), 2),
        "cpu_hours_of_ended_starts": round(sum(cpu), 4) if len(cpu) == len(hours) else None,
        "settings": {name: value for name, value in settings[0].items() if name not in own},
        "runs": {
            folder.path.name: {"method": label} | {name: of_folder[name] for name in own if name in of_folder}
            for (label, folder), of_folder in zip(labelled, settings, strict=True)
        },
    }
    return json.dumps(content, indent=1) + "\n"


def _different(values: Iterable[Any]) -> list[Any]:
    """Each value once, in order."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
