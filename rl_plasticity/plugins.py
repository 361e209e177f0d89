"""Plugs: modules that add to what the package offers by name.

A module that is imported may add to the public dicts (`REGULARIZERS`, `INTERVENTIONS`, `AGENTS`, `NETWORKS`,
`OPTIMIZERS`, `TASKS`, `DATA`, `METRICS`) and register Gymnasium environments. What it adds is as good as built in. A
plug is named on the command line (``plugins=[my_module]``, or ``env=gym:my_module:My-v0`` for one that registers an
environment), or is an installed package with an entry point in the group ``rl_plasticity.plugins``. No saved file can
make a module load.
"""

import importlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import metadata
from typing import Annotated

from rl_plasticity.errors import SettingsError, first_line
from rl_plasticity.settings import Setting

Plugins = Annotated[
    Sequence[str], Setting("modules of yours that add choices, imported first: [my_module]", belongs_to="machine")
]
ENTRY_POINTS = "rl_plasticity.plugins"
loaded: list[str] = []  # the modules named in this process, in order: workers import the same


def load(plugins: Plugins = ()) -> None:
    """Import installed plugs and these modules; each is imported once.

    Raises:
        SettingsError: one cannot be imported.
    """
    _load_installed()
    for module in plugins:
        load_one(module, "plugins")


def load_one(module: str, asked: str) -> None:
    """Import a module that was named by the user in the setting `asked`.

    Raises:
        SettingsError: it cannot be imported.
    """
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever the module raises
        raise SettingsError(f"{asked}: cannot import {module!r}: {first_line(error)}") from error
    if module not in loaded:
        loaded.append(module)


def module_of(env: str) -> str:
    """``my_module`` of ``gym:my_module:My-v0``; empty for other environments."""
    return env.removeprefix("gym:").rpartition(":")[0] if env.startswith("gym:") else ""


def missing(named: Iterable[str]) -> str:
    """What to add so that the modules that a run's files name are loaded; empty where they all are."""
    others = [name for name in named if name not in loaded]
    return f"the run was made with plugs: add plugins=[{','.join(others)}]" if others else ""


@cache
def _load_installed() -> None:
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:  # whatever the package raises
            raise SettingsError(f"the installed plug {entry.name!r} ({entry.value}): {first_line(error)}") from error
