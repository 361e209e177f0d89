"""Settings: arguments with a default, whose annotation says type, range and a line of help.

A setting is declared once, at the constructor that uses it::

    def __init__(self, net, coef: Annotated[float | Tensor, Setting("strength", least=0)] = 1e-4, ...)

`settings_of` reads the declaration for the command line, ``--help`` and the saved settings. `checked` makes the
constructor itself refuse a value that is out of range. An argument without an annotation has the type of its default.
A class whose constructor ends in ``**others`` has the settings of its base class too.
A setting that chooses from a public dict has it in its annotation: ``Annotated[str, ACTIVATIONS, Setting(...)]``.

A command checks settings before it imports torch, which takes seconds. So nothing here imports torch.
"""

import collections.abc
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, Union, get_args, get_origin, get_type_hints

from rl_plasticity.errors import SettingsError, base_of, closest, shown

P = ParamSpec("P")
ValueKind = str | tuple[Any, ...] | Mapping[str, Any]
MEANT = {"gpu": "cuda"}
PLAIN: dict[str, type] = {kind.__name__: kind for kind in (bool, int, float, str, type(None))}
LARGEST_INTEGER = 2**63 - 1  # that tensors, arrays and the files can hold
LARGEST_NUMBER = 3.4028234663852886e38  # of float32; a larger number is infinity to every network


@dataclass(frozen=True)
class Setting:
    """The metadata of a setting's annotation.

    Args:
        help: one line.
        least, above, most, below: bounds of a number, or of each number of a list: >=, >, <= and <.
        belongs_to: what it describes: the ``run``, the ``machine`` that makes it, or only how the run is ``watched``.
            Only settings of the run itself make it another run.
    """

    help: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    belongs_to: Literal["run", "machine", "watched"] = "run"

    def contains(self, number: Any) -> bool:
        """Whether a number, or every number of a tensor, is finite, not too large to store, and within the bounds."""
        if isinstance(number, _tensor()):
            return all(self.contains(one) for one in number.flatten().tolist())
        return (
            abs(number) <= (LARGEST_INTEGER if isinstance(number, int) else LARGEST_NUMBER)
            and (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and (self.below is None or number < self.below)
        )

    def bounds(self) -> str:
        """`` from 0 to 1``, `` above 0``; empty without bounds."""
        low = f" above {self.above:g}" if self.above is not None else ""
        low = f" from {self.least:g}" if self.least is not None else low
        if self.most is not None:
            return f"{low} to {self.most:g}" if low else f" up to {self.most:g}"
        if self.below is not None:
            return f"{low} to below {self.below:g}" if low else f" below {self.below:g}"
        return f"{low} up" if self.least is not None else low


class Declared(NamedTuple):
    """A declared setting as plain data.

    `kinds` are the alternatives of its type. Each is the name of a type (``int``, ``NoneType``, ``Tensor``,
    ``list[float]``), a tuple of the possible values, or a public dict whose names they are.
    """

    kinds: tuple[ValueKind, ...]
    default: Any
    setting: Setting

    @property
    def expected(self) -> str:
        """The valid values in words: ``an integer from 1 up or null``."""
        words = [word for kind in self.kinds for word in self._words(kind)]
        return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)

    def accepts(self, value: Any) -> bool:
        """Whether `value` has the type and is in range."""
        return any(self._is(kind, value) for kind in self.kinds)

    def checked(self, name: str, value: Any) -> Any:
        """`value`, with an integer as a float if the setting is a number.

        Raises:
            SettingsError: it has another type, or is out of range.
        """
        for kind in self.kinds:
            if self._is(kind, value):
                return float(value) if kind == "float" else value
        words = [str(word) for kind in self.kinds if not isinstance(kind, str) for word in kind]
        close = closest(MEANT.get(value, value), words) if isinstance(value, str) else None
        if isinstance(value, float) and value.is_integer() and self.accepts(int(value)):
            close = str(int(value))  # for 1e6
        hint = f"; did you mean {close!r}?" if close else ""
        raise SettingsError(f"{name} must be {self.expected}, got {shown(value)}{hint}")

    def _words(self, kind: ValueKind) -> list[str]:
        bounds = self.setting.bounds()
        if not isinstance(kind, str):
            return [str(value) for value in kind]
        if item := item_of(kind):
            items = {"str": "strings", "bool": "true or false", "int": f"integers{bounds}", "float": f"numbers{bounds}"}
            return [f"a list of {items[item]}"]
        numbers = {"int": [f"an integer{bounds}"], "float": [f"a number{bounds}"], "Tensor": []}
        others = {"bool": ["true", "false"], "str": ["a string"], "NoneType": ["null"]}
        return {**numbers, **others}[kind]

    def _is(self, kind: ValueKind, value: Any) -> bool:
        if isinstance(kind, Mapping):
            return isinstance(value, str) and value in kind
        if isinstance(kind, tuple):
            return any(value == choice and type(value) is type(choice) for choice in kind)
        if item := item_of(kind):
            if not isinstance(value, list | tuple) or (not value and self.default not in ([], (), None)):
                return False
            return all(self._is(item, one) for one in value)
        if kind == "Tensor":
            return isinstance(value, _tensor()) and self.setting.contains(value)
        if kind in ("int", "float"):
            number = isinstance(value, int | (float if kind == "float" else int)) and not isinstance(value, bool)
            return number and self.setting.contains(value)
        return _is_text(value) if kind == "str" else isinstance(value, PLAIN[kind])


def settings_of(make: Callable[..., Any]) -> dict[str, Declared]:
    """The settings of a class or function by name: arguments with a default and a type that users can write.

    Args:
        make: for a ``functools.partial``, the arguments that it fills in are left out.
    """
    filled: tuple[str, ...] = ()
    while isinstance(make, functools.partial):
        filled, make = (*filled, *make.keywords), make.func
    return {name: declared for name, declared in _all_settings_of(make).items() if name not in filled}


@functools.cache  # called a hundred times for each run of a sweep
def _all_settings_of(make: Callable[..., Any]) -> dict[str, Declared]:
    annotated: Any = make.__init__ if isinstance(make, type) else make  # type: ignore[misc]
    hints = get_type_hints(annotated, include_extras=True)
    base = base_of(make)
    settings = dict(_all_settings_of(base)) if base else {}
    for name, parameter in inspect.signature(make).parameters.items():
        if parameter.default is not parameter.empty:
            declared = _declared(hints.get(name), parameter.default)
            if declared is not None:
                settings[name] = declared
    return settings


def checked(constructor: Callable[P, None]) -> Callable[P, None]:
    """A decorator with which a constructor refuses arguments that do not fit their annotations.

    Raises:
        SettingsError: by the constructor; it names the argument, the valid values and the given one.
        TypeError: by the constructor; it names the argument that does not exist.
    """
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def check_first(*args: P.args, **kwargs: P.kwargs) -> None:
        check(constructor, signature.bind(*args, **kwargs).arguments)
        constructor(*args, **kwargs)

    return check_first


def check(make: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raises SettingsError if one of these arguments of `make` is a setting and does not fit its annotation."""
    declared = settings_of(make)
    for name, value in arguments.items():
        if name in declared:
            declared[name].checked(name, value)


def item_of(kind: ValueKind) -> str | None:
    """``int`` for ``list[int]``; None if it is no list."""
    return kind[5:-1] if isinstance(kind, str) and kind.startswith("list[") else None


def _declared(hint: Any, default: Any) -> Declared | None:
    """The declaration of an argument; None if no value of its type can be written on a command line."""
    setting = Setting()
    if get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        setting = next((one for one in more if isinstance(one, Setting)), setting)
        if names := [one for one in more if isinstance(one, Mapping)]:
            return Declared((*names,), default, setting)
    if hint is None:
        if isinstance(default, list | tuple):
            hint = Sequence[type(default[0]) if default else int]  # type: ignore[misc]
        else:
            hint = float | None if default is None else type(default)
    kinds = [_kind(one) for one in (get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,))]
    return None if None in kinds else Declared(tuple(kind for kind in kinds if kind is not None), default, setting)


def _kind(hint: Any) -> ValueKind | None:
    """The name of a type in `Declared`; None if it has none."""
    origin, items = get_origin(hint), get_args(hint)
    if origin is Literal:
        return items
    if origin in (list, tuple, collections.abc.Sequence) and len(items) == 1:
        return f"list[{items[0].__name__}]" if items[0] in PLAIN.values() else None
    if hint in PLAIN.values():
        return hint.__name__  # type: ignore[no-any-return]
    return "Tensor" if hint is _tensor() else None


def _tensor() -> Any:
    """torch's Tensor; an empty tuple, of which nothing is an instance, if torch is not imported."""
    return getattr(sys.modules.get("torch"), "Tensor", ())


def _is_text(value: Any) -> bool:
    """Whether the value is text that files and file names can hold."""
    try:
        return isinstance(value, str) and b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False
