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
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from rl_plasticity.errors import SettingsError, closest, first_line
from rl_plasticity.settings import Setting

Plugins = Annotated[
    Sequence[str], Setting("modules of yours that add choices, imported first: [my_module]", belongs_to="machine")
]
ENTRY_POINTS = "rl_plasticity.plugins"
loaded: list[str] = []  # the modules that were named in this process, in order; workers import the same ones
_sources: dict[str, tuple[Any, dict[str, bytes]]] = {}  # each module's files, and the import at which they were read


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
    _remember_source(module)
    if module not in loaded:
        loaded.append(module)


def sources() -> dict[str, str]:
    """A SHA-256 of each plug's source at its import: of its file, or of all files of its package.

    Other modules that a plug imports are not covered.
    """
    return {module: _digest(files) for module, files in source_files().items()}


def source_files() -> dict[str, dict[str, bytes]]:
    """The files of each plug at its import, by name, relative to the package if the plug is one."""
    return {module: _sources[module][1] for module in dict.fromkeys([*loaded, *_load_installed()])}


def used(constructors: Mapping[str, Any], env: str = "") -> dict[str, list[str]]:
    """The plugs that define any of these constructors or the environment, each with the names of those."""
    homes = {name: str(getattr(make, "__module__", "")) for name, make in constructors.items()} | {env: module_of(env)}
    found = {
        module: [name for name, home in homes.items() if home.partition(".")[0] == module.partition(".")[0]]
        for module in source_files()
    }
    return {module: names for module, names in found.items() if names}


def changed(before: Mapping[str, str]) -> list[str]:
    """The plugs whose source now has another digest than `before`."""
    now = sources()
    return [module for module, digest in before.items() if now.get(module, digest) != digest]


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
        _remember_source(entry.module)
        modules.append(entry.module)
    return tuple(modules)


def _remember_source(module: str) -> None:
    """Read a module's source at its import, because the file may be edited while the process runs."""
    spec = sys.modules[module].__spec__  # another one after a reload
    if module in _sources and _sources[module][0] is spec:
        return
    package = sys.modules[module.partition(".")[0]]
    file = getattr(package, "__file__", None) and getattr(sys.modules[module], "__file__", None)
    if file and hasattr(package, "__path__"):
        found = [(Path(place), path) for place in package.__path__ for path in Path(place).rglob("*.py")]
        files = {path.relative_to(place.parent).as_posix(): path.read_bytes() for place, path in sorted(found)}
    else:
        files = {Path(file).name: Path(file).read_bytes()} if file else {}
    _sources[module] = (spec, files)


def _digest(files: Mapping[str, bytes]) -> str:
    """The digest of one file, as ``sha256sum`` prints it; for several, of their names and contents."""
    if len(files) == 1:
        return hashlib.sha256(*files.values()).hexdigest()
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(b"%s\0%s\0" % (name.encode("utf-8", "surrogateescape"), content))
    return digest.hexdigest()
