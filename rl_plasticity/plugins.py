"""Plugs: modules that add choices to the package.

A module that is imported may add to the public dicts (`REGULARIZERS`, `INTERVENTIONS`, `AGENTS`, `NETWORKS`,
`OPTIMIZERS`, `TASKS`, `DATA`, `METRICS`, `CALLBACKS`) and register Gymnasium environments. Its choices are as good as
built-in ones. A plug is named on the command line (``plugins=[my_module]``, or ``env=gym:my_module:My-v0`` for one that
registers an environment), or is an installed package with an entry point in the group ``rl_plasticity.plugins``. No
saved file can load a module.
"""

import hashlib
import importlib
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated

from rl_plasticity.errors import SettingsError, closest, first_line
from rl_plasticity.settings import Setting

Plugins = Annotated[
    Sequence[str], Setting("modules of yours that add choices, imported first: [my_module]", belongs_to="machine")
]
ENTRY_POINTS = "rl_plasticity.plugins"
loaded: list[str] = []  # the modules that were named in this process, in order; workers import the same ones
_sources: dict[str, tuple[object, str]] = {}  # each module's import, and the digest of its source at that time


def load(plugins: Plugins = ()) -> None:
    """Import installed plugs and these modules, each once.

    Raises:
        SettingsError: one cannot be imported.
    """
    _load_installed()
    for module in plugins:
        load_one(module, "plugins")


def as_module(file: str) -> str:
    """``folder.my_module`` for ``folder/my_module.py``; a module's name is not changed."""
    return file.removesuffix(".py").removeprefix("./").replace("/", ".")


def load_one(module: str, asked: str) -> None:
    """Import a module that the user named in the setting `asked`.

    Raises:
        SettingsError: it cannot be imported.
    """
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever the module raises
        if isinstance(error, ModuleNotFoundError) and error.name == module:  # and not one that it imports itself
            close = closest(module, [path.stem for path in Path.cwd().glob("*.py")])
            hint = f"; did you mean {close!r}?" if close else ""
            raise SettingsError(f"{asked}: there is no module {module!r} in {Path.cwd()} or installed{hint}") from error
        raise SettingsError(f"{asked}: cannot import {module!r}: {first_line(error)}") from error
    _keep_source(module)
    if module not in loaded:
        loaded.append(module)


def sources() -> dict[str, str]:
    """A SHA-256 of each plug's source at its import, but for this package's own; what a plug imports is not covered."""
    return {module: digest for module, (_, digest) in _sources.items()}


def _keep_source(module: str) -> None:
    """Read the source when it is imported: its files may be edited while the process runs."""
    spec = sys.modules[module].__spec__  # another one after a reload
    if module.startswith("rl_plasticity") or spec is None or _sources.get(module, (None,))[0] is spec:
        return
    folders = spec.submodule_search_locations or ()
    files = sorted(path for folder in folders for path in Path(folder).rglob("*.py")) or [Path(spec.origin or "")]
    with suppress(OSError):
        _sources[module] = (spec, hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest())


def as_arguments(modules: Sequence[str]) -> list[str]:
    """The argument that names these plugs, ``plugins=[a,b]``; none if there are none."""
    return [f"plugins=[{','.join(modules)}]"] if modules else []


def module_of(env: str) -> str:
    """``my_module`` for ``gym:my_module:My-v0``; empty for other environments."""
    return env.removeprefix("gym:").rpartition(":")[0] if env.startswith("gym:") else ""


def missing(named: Iterable[str]) -> str:
    """A clause that says how to load the modules that a run's files name; empty if all are loaded."""
    others = [name for name in named if name not in loaded]
    return f"the run was made with plugs: add plugins=[{','.join(others)}]" if others else ""


@cache
def _load_installed() -> tuple[str, ...]:
    """The modules of installed plugs."""
    modules = []
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:  # whatever the package raises
            raise SettingsError(f"the installed plug {entry.name!r} ({entry.value}): {first_line(error)}") from error
        _keep_source(entry.module)
        modules.append(entry.module)
    return tuple(modules)
