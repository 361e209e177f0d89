"""Plugs: modules that add to what the package offers by name.

A module that is imported may add to the public dicts (`REGULARIZERS`, `INTERVENTIONS`, `AGENTS`, `NETWORKS`,
`OPTIMIZERS`, `TASKS`, `DATA`, `METRICS`) and register Gymnasium environments. What it adds is as good as built in. A
plug is named on the command line (``plugins=[my_module]``), or is an installed package with an entry point in the group
``rl_plasticity.plugins``. No saved file can make a module load.
"""

import importlib
from collections.abc import Sequence
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
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever the module raises
            raise SettingsError(f"plugins: cannot import {module!r}: {first_line(error)}") from error
        if module not in loaded:
            loaded.append(module)


@cache
def _load_installed() -> None:
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:  # whatever the package raises
            why = str(error).splitlines() or [""]
            raise SettingsError(
                f"the plug {entry.name!r} of {entry.value}: {type(error).__name__}: {why[0]}"
            ) from error
