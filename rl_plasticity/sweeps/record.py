"""Where a study's numbers come from, in one file to be kept with them when its runs are thrown away."""

from collections.abc import Iterable, Sequence
from typing import Any

from omegaconf import OmegaConf

from rl_plasticity.comparison.groups import differing
from rl_plasticity.comparison.loading import flat
from rl_plasticity.runs import journal
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.sweeps.studies import Study

MACHINE = ("processor", "cores", "device")


def text(study: Study, command: str, folders: Sequence[RunFolder]) -> str:
    """YAML: the command, commits, versions, machines and time; the settings that all runs share, and each folder's own.

    The time is that of all starts that came to an end, one after another, in hours: of one that was killed it is not
    known.
    """
    starts = [start for folder in folders for start in folder.starts]
    settings = [{n: v for n, v in flat(folder.settings).items() if n != "out"} for folder in folders]
    own = differing(settings)
    content = {
        "study": study.name,
        "shows": study.shows,
        "command": command,
        "commits": _different(start.get("commit") for start in starts),
        "libraries": _different(start.get("libraries") for start in starts),
        "machines": _different({name: start.get(name) for name in MACHINE} for start in starts),
        "first_start": min((str(start.get("time")) for start in starts), default=None),
        "hours": round(sum(map(journal.hours, folders)), 2),
        "settings": {name: value for name, value in settings[0].items() if name not in own},
        "runs": {
            folder.path.name: {name: of_folder[name] for name in own if name in of_folder}
            for folder, of_folder in zip(folders, settings, strict=True)
        },
    }
    return OmegaConf.to_yaml(OmegaConf.create(content))


def _different(values: Iterable[Any]) -> list[Any]:
    """Each value once, in order."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
