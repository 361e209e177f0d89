"""What earlier versions had, and what replaces it: settings, choices, presets, commands, forms of a value."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from rl_plasticity.errors import SettingsError, nearest, shown

_FILE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("gone.yaml").read_text("utf-8"))
GONE: dict[str, str] = _FILE["went"]
DID_NOTHING: dict[str, list[Any]] = _FILE["did_nothing"]


def as_gone(setting: str) -> str:
    """A setting's key in `GONE`: its group and its last word, ``reg.from_update`` for ``reg.l2.from_update``."""
    *groups, last = setting.split(".")
    return f"{groups[0]}.{last}" if groups else last


def did_nothing(setting: str, value: Any) -> bool:
    """Whether a saved setting is one that went, with the value that did nothing."""
    return value in DID_NOTHING.get(as_gone(setting), ())


def unknown(what: str, name: object, valid: Iterable[str], written: str = "", hint: str = "") -> SettingsError:
    """The error about a name that is not `valid`: what replaces it if it is gone, else the nearest valid one.

    Args:
        what: the word for such names: ``setting``.
        written: its key in `GONE`, if that is not the name itself: ``preset=spectral``.
        hint: more words about an unknown name.
    """
    written = written or str(name)
    if written in GONE:
        return SettingsError(f"{written} {GONE[written]}")
    return SettingsError(f"unknown {what} {shown(name)}{nearest(name, valid)}{hint}")
