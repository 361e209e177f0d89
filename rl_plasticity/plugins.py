"""Plugs: modules that add choices to the package, and the public dicts that they add to.

A module that is imported may add to the public dicts (`NAMES`, `METRICS`, `CALLBACKS`) and register Gymnasium
environments. Its choices are as good as built-in ones. A plug is named on the command line (``plugins=[my_module]``, or
``env=gym:my_module:My-v0`` for one that registers an environment), or is an installed package with an entry point in
the group ``rl_plasticity.plugins``. No saved file can load a module.
"""

import hashlib
import importlib
import sys
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from rl_plasticity.errors import SettingsError, closest, first_line, nearest
from rl_plasticity.settings import Setting

Made = TypeVar("Made", bound=Callable[..., Any])
Plugins = Annotated[
    Sequence[str], Setting("your own modules that add choices, imported first: [my_module]", belongs_to="machine")
]
HARMLESS = ("", "gymnasium.wrappers")  # modules whose classes of wrappers any file may name
ENTRY_POINTS = "rl_plasticity.plugins"
NAMES: tuple[str, ...] = (
    "ACTIVATIONS",
    "AGENTS",
    "AGENT_NETWORKS",
    "AUGMENTATIONS",
    "DATA",
    "INTERVENTIONS",
    "NETWORKS",
    "OPTIMIZERS",
    "PARAMETRIZATIONS",
    "REGULARIZERS",
    "TASKS",
)
loaded: list[str] = []  # the modules that were named in this process, in order; workers import the same ones
_files: dict[str, tuple[object, dict[str, bytes]]] = {}  # each module's import, and its source at that time
preset_folders: list[Path] = []  # those of plugs
_offered: dict[str, dict[str, str]] = {name: {} for name in NAMES}  # by public dict


class Choices(UserDict[str, Made]):
    """A public dict of choices by name, which installed plugs have added to when it is read.

    A plug cannot give a name that another module has given. A choice may be written ``module:NAME``; it is imported
    when it is asked for.

    Args:
        name: that of the dict, one of `NAMES`.
    """

    def __init__(self, name: str, built_in: Mapping[str, Made] | None = None) -> None:
        self.name = name
        self._given: dict[str, Any] = {}
        self._built_in: dict[str, Made] = {}
        self.build_in(built_in or {})

    def build_in(self, choices: Mapping[str, Made]) -> None:
        """Add the package's own choices."""
        self._given |= choices
        self._built_in |= choices

    @property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        """The choices, with those of plugs, for all methods of the dict."""
        installed()
        offered: dict[str, Any] = _offered[self.name]
        for name, choice in offered.items():
            if name not in self._given or _package(self._given[name]) != _package(choice):
                self[name] = choice
        return self._given

    def __getitem__(self, name: str) -> Made:
        choice: Any = self.data[name]
        if isinstance(choice, str):
            module, _, attribute = choice.partition(":")
            self._given[name] = choice = getattr(importlib.import_module(module), attribute)
        return choice  # type: ignore[no-any-return]

    def __setitem__(self, name: str, choice: Made) -> None:
        installed()
        if name in self._given and self._built_in.get(name, choice) is not choice:
            raise SettingsError(f"the name {name!r} is built in: choose another name for yours")
        _require_free(name, self._given.get(name, choice), choice)
        self._given[name] = choice

    def __ior__(self, choices: Any) -> Self:  # type: ignore[override,misc]
        self.update(choices)
        return self


def _require_free(name: str, present: Any, choice: Any) -> None:
    """Raises SettingsError if another plug has given this name to something else."""
    theirs, ours = _package(present), _package(choice)
    typed = {"__main__", "builtins"} & {theirs, ours}  # in a session or a notebook, where names are given again
    if theirs != ours and not typed and theirs != "rl_plasticity":
        raise SettingsError(f"the name {name!r} belongs to another plug, {theirs}: choose another name for yours")


def _package(choice: Any) -> str:
    """The package that a choice is of."""
    while isinstance(choice, partial):
        choice = choice.func
    home = choice if isinstance(choice, str) else getattr(choice, "__module__", None) or ""
    return home.partition(":")[0].partition(".")[0]


def offer(presets: Path | None = None, **choices: Mapping[str, str]) -> None:
    """Add to public dicts without importing anything: ``offer(NETWORKS={"mine": "my_module:my_network"})``.

    Args:
        presets: a folder with ``train/NAME.yaml`` and ``supervised/NAME.yaml``.

    Raises:
        SettingsError: there is no such public dict.
    """
    for name, of_one in choices.items():
        if name not in NAMES:
            raise SettingsError(f"there is no public dict {name}{nearest(name, NAMES)}")
        for key, choice in of_one.items():
            _require_free(key, _offered[name].setdefault(key, choice), choice)
    if presets and presets not in preset_folders:
        preset_folders.append(presets)


def load(plugins: Plugins = ()) -> None:
    """Import installed plugs and these modules, each once.

    Raises:
        SettingsError: one cannot be imported.
    """
    installed()
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
            raise SettingsError(
                f"{asked}: there is no module {module!r} in {Path.cwd()}, on PYTHONPATH or installed{hint}"
            ) from error
        raise SettingsError(f"{asked}: cannot import {module!r}: {first_line(error)}") from error
    _keep_source(module)
    if module not in loaded:
        loaded.append(module)


def sources() -> dict[str, str]:
    """A SHA-256 of each plug's source at its import, but for this package's own; what a plug imports is not covered."""
    return {module: hashlib.sha256(b"\0".join(files.values())).hexdigest() for module, (_, files) in _files.items()}


def files_of(module: str) -> dict[str, str]:
    """The source files of a plug at its import, by name; those of a package by their paths in it."""
    return {name: content.decode(errors="replace") for name, content in _files[module][1].items()}


def _keep_source(module: str) -> None:
    """Read the source when it is imported: its files may be edited while the process runs."""
    spec = sys.modules[module].__spec__  # another one after a reload
    is_ours = module.partition(".")[0] in ("rl_plasticity", "rl_plasticity_zoo")
    if is_ours or spec is None or _files.get(module, (None,))[0] is spec:
        return
    folders = [*map(Path, spec.submodule_search_locations or ())]
    files = sorted((path, folder) for folder in folders for path in folder.rglob("*.py"))
    origin = Path(spec.origin or "")
    with suppress(OSError):
        named = {path.relative_to(folder).as_posix(): path for path, folder in files or [(origin, origin.parent)]}
        _files[module] = (spec, {name: path.read_bytes() for name, path in named.items()})


def as_arguments(modules: Sequence[str]) -> list[str]:
    """The argument that names these plugs, ``plugins=[a,b]``; none if there are none."""
    return [f"plugins=[{','.join(modules)}]"] if modules else []


def module_of(env: str) -> str:
    """``my_module`` for ``gym:my_module:My-v0``; empty for other environments."""
    return env.removeprefix("gym:").rpartition(":")[0] if env.startswith("gym:") else ""


def modules_of(env: Mapping[str, Any]) -> list[str]:
    """The modules that settings of an environment name: its name, its sequence and its wrappers."""
    lists = {n: v for n, v in env.items() if isinstance(v, list | tuple)}
    wrappers = [f"gym:{wrapper}" for wrapper in lists.get("wrappers", ())]
    found = [module_of(str(name)) for name in (env.get("name"), *lists.get("sequence", ()), *wrappers)]
    return [module for module in dict.fromkeys(found) if module not in HARMLESS]


def missing(named: Iterable[str]) -> str:
    """A clause that says how to load the modules that a run's files name; empty if all are loaded."""
    others = [name for name in named if name not in loaded]
    return f"the run was made with plugs: add plugins=[{','.join(others)}]" if others else ""


@cache
def installed() -> tuple[str, ...]:
    """The modules of installed plugs, which this imports, and of the zoo where it stands beside this package.

    Raises:
        SettingsError: one cannot be imported.
    """
    modules = {entry.module: entry.name for entry in metadata.entry_points(group=ENTRY_POINTS)}
    if (Path(__file__).parents[1] / "rl_plasticity_zoo").is_dir():  # in a checkout that is not installed too
        modules.setdefault("rl_plasticity_zoo", "zoo")
    for module, name in modules.items():
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever the package raises
            raise SettingsError(f"the installed plug {name!r} ({module}): {first_line(error)}") from error
        _keep_source(module)
    return tuple(modules)
