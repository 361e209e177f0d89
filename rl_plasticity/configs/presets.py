"""Presets: sets of settings in files of this package and of plugs, which the command line overrides.

A file holds settings by their names on the command line, besides `source`, the authors and the place in the paper, and
`leaves_out`, what of a paper's agent it does not set. ``reg.l2.coef`` is for l2 where it is chosen, and for nothing
where it is not; ``reg.coef`` is for the ``reg`` of the file.
"""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rl_plasticity import plugins

FOLDER = Path(__file__).parent / "preset"


def files(command: str) -> dict[str, Path]:
    """The files of all presets of a command, by name. A plug's cannot have the name of another."""
    plugins.installed()
    found = [
        path for folder in (*reversed(plugins.preset_folders), FOLDER) for path in (folder / command).glob("*.yaml")
    ]
    return dict(sorted((path.stem, path) for path in found))


@cache
def read(file: Path) -> dict[str, Any]:
    """The content of a preset's file."""
    return yaml.safe_load(file.read_text("utf-8")) or {}


def settings_of(command: str, name: str) -> dict[str, Any]:
    """The settings of a preset, with its choices."""
    return {n: value for n, value in read(files(command)[name]).items() if n not in ("source", "leaves_out")}


def leaves_out(command: str, name: str) -> str:
    """What a preset does not set of a paper's agent; empty for other presets."""
    file = files(command).get(name)
    return read(file).get("leaves_out", "") if file else ""


def agents_of_papers() -> list[str]:
    """The presets of ``train`` that ``agent=`` takes too."""
    return [name for name, file in files("train").items() if read(file).get("leaves_out")]
