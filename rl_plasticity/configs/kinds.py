"""The choices of each group, and the settings of each choice, as the constructors declare them.

To import the constructors is to import torch, which takes seconds. So the first process that needs their declarations
writes them as plain data into the user's cache folder. Later processes read that file until a source of this package
or of an installed plug changes. A process that has imported torch, as a plug may, reads the constructors themselves.
Every run does so before it begins. The cache only makes help and complaints fast.
"""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from rl_plasticity import plugins
from rl_plasticity.paths import cache_folder
from rl_plasticity.settings import Declared, Setting, settings_of


class Kind(NamedTuple):
    """A group's choices. A thing of this package is written ``module:NAME``.

    Args:
        home: the public dict; empty if there is none.
        default: the default choice.
        common: functions whose settings every choice but `none` has besides its own.
        given: arguments of constructors that are no settings, because the command passes them.
        inner: a setting that chooses from a second public dict, and that dict. The settings of the inner choice
            belong to the outer one too.
    """

    home: str
    default: str
    common: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    inner: tuple[str, str] = ("", "")

    @property
    def names(self) -> list[str]:
        """The names in the public dict."""
        return _names(self.home) if self.home else []

    def settings(self, choice: str, inner: Any = None) -> dict[str, Declared]:
        """The settings of a choice, with those of its inner choice: `inner`, or the default one."""
        own = _declared(self.home, choice) if choice in self.names else {}
        for one in self.common if choice != "none" else ():
            own |= _declared(one)
        name, home = self.inner
        if name in own:
            names = _names(home)
            own[name] = own[name]._replace(kinds=(tuple(names),))
            one = own[name].default if inner is None else inner
            own |= _declared(home, one) if one in names else {}
        return {name: declared for name, declared in own.items() if name not in self.given}


KINDS: dict[str, Kind] = {
    "env": Kind("", "cheetah-run", ("envs:make_env", "envs:Envs"), ("change_seed", "change_seeds")),
    "reg": Kind("regularizers:REGULARIZERS", "none"),
    "reset": Kind("interventions:INTERVENTIONS", "none"),
    "agent": Kind("agents:AGENTS", "sac", (), ("make_regularizer", "device"), ("network", "agents:AGENT_NETWORKS")),
    "task": Kind("tasks:TASKS", "random_labels", given=("num_tasks",)),
    "data": Kind("tasks:DATA", "digits", ("tasks:load",)),
    "net": Kind("networks:NETWORKS", "mlp", ("networks:make_network",)),
    "optimizer": Kind("learning.optimizers:OPTIMIZERS", "adam", given=("lr",)),
}

# --- the cache: declared settings by place and choice (empty for a function) ------------------------------------------

Kept = Mapping[str, Mapping[str, Mapping[str, Declared]]]


def _names(home: str) -> list[str]:
    """The names in a public dict."""
    kept = _kept()
    return [*(imported(home) if kept is None else kept.get(home, ()))]


def _declared(place: str, choice: str = "") -> dict[str, Declared]:
    """The settings of a choice in a public dict, or of a function."""
    kept = _kept()
    if kept is not None:
        return dict(kept[place][choice])
    return settings_of(imported(place)[choice] if choice else imported(place))


def _kept() -> Kept | None:
    """The cached declarations; None if torch is imported, plugs are named, or nothing valid is cached.

    Then the constructors are read.
    """
    if "torch" in sys.modules or plugins.loaded:
        return None
    try:
        return _read()
    except (OSError, ValueError, TypeError):
        _keep()
        return None


@cache
def _read() -> Kept:
    """Read the cache; an error if it is missing, damaged, or made from other sources."""
    mark, kept = json.loads(_file().read_text("utf-8"))
    if mark != _mark():
        raise ValueError("it was made from other sources")
    return {
        place: {
            choice: {name: _from_json(*declared) for name, declared in settings.items()}
            for choice, settings in choices.items()
        }
        for place, choices in kept.items()
    }


def _keep() -> None:
    """Import all constructors, and write their declarations to the cache."""
    mark = _mark()  # before the imports: a source that is edited meanwhile must invalidate the cache
    declared: dict[str, dict[str, dict[str, Declared]]] = {}
    for kind in KINDS.values():
        declared |= {one: {"": settings_of(imported(one))} for one in kind.common}
        for home in filter(None, (kind.home, kind.inner[1])):
            declared |= {home: {choice: settings_of(make) for choice, make in imported(home).items()}}
    text = json.dumps([mark, declared], default=lambda one: [*one] if isinstance(one, Mapping) else vars(one))
    with suppress(OSError):  # the next process tries again
        _file().parent.mkdir(parents=True, exist_ok=True)
        _file().write_text(text, "utf-8")


def _file() -> Path:
    """The cache file, one for each location of the package and each Python."""
    where = hashlib.sha256(os.fsencode(f"{sys.version} {__file__}")).hexdigest()
    return cache_folder() / f"settings-{where[:16]}.json"


def _mark() -> str:
    """A digest of all sources of the package and of installed plugs."""
    digest = hashlib.sha256()
    for module in ("rl_plasticity", *plugins.installed()):
        file = Path(sys.modules[module].__file__ or "")
        for source in sorted(file.parent.rglob("*.py")) if file.stem == "__init__" else [file]:
            digest.update(b"%s\0%s\0" % (os.fsencode(source), source.read_bytes()))
    return digest.hexdigest()


def _from_json(kinds: list[Any], default: Any, setting: dict[str, Any]) -> Declared:
    """A declared setting from JSON, whose lists were tuples."""
    alternatives = tuple(tuple(kind) if isinstance(kind, list) else kind for kind in kinds)
    return Declared(alternatives, tuple(default) if isinstance(default, list) else default, Setting(**setting))


def imported(place: str) -> Any:
    """The object that ``module:NAME`` names."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"rl_plasticity.{module}"), name)
