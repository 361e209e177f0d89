"""Reads settings as users write them: ``name=value`` on the command line, keywords in Python.

A group chooses a constructor of the package or of a plug by name (``reg=spectral``). ``group.setting`` is an argument
of that constructor (``reg.coef=1e-3``). A value is a number, true, false, null, a list ``[a,b]`` or text. A value in
quotes is text. Values between commas are for a sweep.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from rl_plasticity.configs.commands import as_written_name
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.errors import SettingsError, shown
from rl_plasticity.paths import expanded

FLAGS = {"-m", "--multirun"}  # each asks for a sweep
PATHS = ("out", "resume", "from", "data.root")  # settings whose value may hold any character
WORDS = {"true": True, "false": False, "null": None}
RANGE = re.compile(r"range\((.*)\)")
Asked = Iterable[str] | Mapping[str, Any]  # arguments of a command, or the result of `from_python`


def parse(argument: str) -> tuple[str, Any]:
    """The name and the value of ``name=value``.

    Raises:
        SettingsError: it cannot be read.
    """
    name, text = apart(argument)
    if name in PATHS:
        return name, None if text == "null" and name == "data.root" else str(expanded(text))
    if RANGE.fullmatch(text) or len(_between_commas(text, argument)) > 1:
        raise SettingsError(
            f"{shown(argument)} has several values: add -m to train a run of each, or write {name}=[{text}] for a list"
        )
    return name, _value(text, argument)


def each(argument: str) -> list[str]:
    """One argument for each value of a sweep's argument: ``seed=0,1``, ``seed=range(0,10)``.

    Raises:
        SettingsError: the argument cannot be read, or names no value.
    """
    name, text = apart(argument)
    if name in PATHS:
        return [argument]
    values: list[Any] = _between_commas(text, argument)
    if found := RANGE.fullmatch(text):
        try:
            values = [*range(*map(int, found[1].split(",")))]
        except (ValueError, TypeError) as error:
            raise SettingsError(f"{shown(argument)}: expected range(FIRST,END) of integers") from error
    if not values:
        raise SettingsError(f"{shown(argument)} has no value")
    return [f"{name}={value}" for value in values]


def from_python(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name from keywords: ``reg="spectral"``, ``reg={"name": "spectral", "coef": 1e-3}``."""
    given: dict[str, Any] = {}
    for group, asked in zip(map(as_written_name, settings), settings.values(), strict=True):
        is_nested = group in KINDS and isinstance(asked, Mapping)
        for name, value in flat_values(asked, f"{group}.") if is_nested else [(group, asked)]:
            value = list(value) if isinstance(value, tuple) else value
            given[name.removesuffix(".name")] = os.fspath(value) if isinstance(value, os.PathLike) else value
    return given


def by_name(asked: Asked, read: Callable[[str], tuple[str, Any]] | None = None) -> dict[str, Any]:
    """The values of settings by name.

    Args:
        read: returns the name and the value of an argument; by default `parse`.

    Raises:
        SettingsError: one cannot be read, or a setting is given twice.
    """
    if isinstance(asked, Mapping):
        return dict(asked)
    given: dict[str, Any] = {}
    for name, value in map(read or parse, asked):
        if name in given:
            raise SettingsError(f"{name} is given twice")
        given[name] = value
    return given


def flat_values(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs of a dotted name and a value from nested settings: ``("reg.coef", 1)`` from ``{"reg": {"coef": 1}}``."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat_values(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The opposite of `flat_values`."""
    found: dict[str, Any] = {}
    for name, value in flat.items():
        *places, last = name.split(".")
        inside = found
        for place in places:
            inside = inside.setdefault(place, {})
        inside[last] = value
    return found


def as_written(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_written, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else "null" if value is None else str(value)


# ------------------------------------------------------------------------------------------------------------------


def apart(argument: str) -> tuple[str, str]:
    """The name of a setting and its value as it is written."""
    name, equals, text = argument.partition("=")
    if not equals:
        raise _unreadable(argument)
    if name in ("out", "resume", "from") and not text:
        raise SettingsError(f"{name} needs a value: {name}=FOLDER")
    return name, text if name in PATHS else text.strip()


def _between_commas(text: str, argument: str) -> list[str]:
    """The parts of `text` between commas. A comma within brackets, braces or quotes does not divide."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote or character in "'\"":
            quote = "" if character == quote else quote or character
        depth += (character in "[({") - (character in "])}") if not quote else 0
        if character == "," and not (quote or depth):
            parts.append("")
        else:
            parts[-1] += character
        if depth < 0:
            break
    if quote or depth:
        raise _unreadable(argument)
    return [part.strip() for part in parts]


def _value(text: str, argument: str) -> Any:
    if text[:1] == "[" and text[-1:] == "]":
        inside = text[1:-1].strip()
        return [_value(part, argument) for part in _between_commas(inside, argument)] if inside else []
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _unreadable(argument: str) -> SettingsError:
    return SettingsError(f"cannot read {shown(argument)}: settings are written name=value; quote a list with spaces")
