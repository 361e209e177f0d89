"""Errors with messages of one line: what is wrong, what was expected, the nearest valid name."""

import difflib
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

Made = TypeVar("Made")


class _ForUser(Exception):
    """An error whose message is one line for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class SettingsError(_ForUser, ValueError):
    """Bad input."""


class FaultyRun(_ForUser, RuntimeError):
    """The run cannot go on."""


@contextmanager
def refused(act: str) -> Iterator[None]:
    """A context that reports a fault of the file system as bad input: ``cannot read results/a: Permission denied``.

    Args:
        act: what the block does: ``read results/a``.

    Raises:
        SettingsError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        file = str(error.filename or "")
        where = f" ({file})" if file not in act else ""
        raise SettingsError(f"cannot {act}: {error.strerror or error}{where}") from error


def warn(message: str) -> None:
    """Warn at the caller's line: the first frame outside this package and outside torch, which calls hooks."""
    frame = sys._getframe(1)
    # A command is a caller too. Without code of the user, its warnings are lines of the command.
    while frame.f_back and (name := str(frame.f_globals.get("__name__"))) != "rl_plasticity.command_line":
        if name.partition(".")[0] not in ("rl_plasticity", "torch"):
            break
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        message, UserWarning, frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__"), registry
    )


def one_line(message: str) -> str:
    """`message` for a terminal: one line with escapes for what is not printable, and only both ends of a long one."""
    message = re.sub(r"\s*[\n\r\t\v\f]\s*", " ", _ends(message.strip()))
    return _ends(printable(message))


def say(line: str) -> None:
    """Print a line for the user on stderr."""
    print(one_line(line), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """`text`, such as a file's name, with escapes for everything but visible characters and spaces."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def _ends(text: str) -> str:
    """`text`, without its middle if it is longer than 2000 characters."""
    return text if len(text) <= 2000 else f"{text[:998]}...{text[-998:]}"


def closest(name: object, valid: Iterable[str]) -> str | None:
    """The one of `valid` that a misspelt `name` most likely means; None if none is close."""
    valid = list(valid)
    close = [v for v in valid if v.rpartition(".")[2] == str(name)]  # the group was forgotten
    close = close or difflib.get_close_matches(str(name), valid, n=1, cutoff=0.5)
    lasts = {v.rpartition(".")[2]: v for v in valid}  # it was forgotten, and the rest misspelt
    close = close or [lasts[last] for last in difflib.get_close_matches(str(name), lasts, n=1)]
    return close[0] if close else None


def nearest(name: object, valid: Iterable[str]) -> str:
    """A hint for an error message about a misspelt `name`: the nearest valid one, or all of them."""
    valid = list(valid)
    close = closest(name, valid)
    return f"; did you mean {close!r}?" if close is not None else f" (valid: {', '.join(valid) or 'none'})"


def in_short(names: Iterable[object]) -> str:
    """The first three names, and how many more there are."""
    every = [*map(str, names)]
    return ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")


def counted(number: float, noun: str) -> str:
    """A rounded number of things: ``1 seed``, ``2 seeds``."""
    return f"{number:.0f} {noun}" if round(number) == 1 else f"{number:.0f} {noun}s"


def shown(value: object) -> str:
    """A value for a message: on one line, and no longer than a line."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}... ({len(text)} characters)"


def reason(error: BaseException) -> str:
    """An error's message in one line; its type if the message is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def first_line(error: BaseException) -> str:
    """An error's type and message in one line: ``KeyError: 'x'``."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def base_of(kind: Callable[..., object]) -> type | None:
    """The class to which a constructor that ends in ``**`` passes what it does not name; None for any other."""
    passes_on = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(kind).parameters.values())
    return kind.__base__ if isinstance(kind, type) and passes_on else None


def _arguments(kind: Callable[..., object]) -> list[inspect.Parameter]:
    """The arguments of a class or function, and those of the class to which it passes others."""
    base = base_of(kind)
    return [*inspect.signature(kind).parameters.values(), *(_arguments(base) if base else [])]


def choose(
    kinds: Mapping[str, Callable[..., Made]],
    name: str,
    settings: Mapping[str, Any],
    what: str,
    owner: type | None = None,
) -> Callable[..., Made]:
    """The one of `kinds` called `name` with its settings filled in; call it with the other arguments.

    Args:
        what: the word for one of the kinds in messages: ``regularizer``.
        owner: the class that was given these settings beside its own, which may be meant too.

    Raises:
        SettingsError: an unknown name or setting; the nearest valid one is named.
    """
    if name not in kinds:
        raise SettingsError(f"unknown {what} {name!r}{nearest(name, kinds)}")
    kind = kinds[name]
    filled = kind.keywords if isinstance(kind, partial) else {}
    valid = [p.name for p in _arguments(kind) if p.default is not p.empty and p.name not in filled]
    for key in settings:
        if key not in valid:
            valid += [p.name for p in _arguments(owner)] if owner else []
            raise SettingsError(f"unknown setting {key!r} of {what} {name!r}{nearest(key, valid)}")
    return partial(kind, **settings)
