"""Names of runs and metrics: each is written and read here alone."""

import json
import re
from decimal import Decimal
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rl_plasticity.errors import SettingsError

HEADER = "run,step,name,value"


class RunName(NamedTuple):
    """The name of a run in ``metrics.csv``: ``3``, or ``reg.name=spectral reset.every_updates=5 seed=3``.

    Args:
        settings: the settings in which it differs from other runs of its folder: name and text of the value. A value
            may hold spaces and commas, but no text that reads as the next setting, `` name=``.
    """

    settings: tuple[tuple[str, str], ...]
    seed: int

    def __str__(self) -> str:
        return f"{self.group} seed={self.seed}" if self.settings else str(self.seed)

    @property
    def group(self) -> str:
        """The name without the seed; empty if the runs differ in nothing else."""
        return " ".join(f"{name}={value}" for name, value in self.settings)

    @property
    def file_name(self) -> str:
        """The name for files and folders: ``seed3``, or ``reg.name=spectral_seed3``."""
        return file_name(f"{self.group} seed{self.seed}")

    @property
    def in_words(self) -> str:
        """The name for messages: ``seed 3``, or the whole name."""
        return str(self) if self.settings else f"seed {self.seed}"

    @property
    def values(self) -> dict[str, Any]:
        """The settings as values: numbers, truth values, null and lists are read as JSON; anything else is text."""
        return {name: _value(text) for name, text in self.settings}

    @classmethod
    def parse(cls, text: str) -> Self:
        """The name whose text is `text`.

        Raises:
            SettingsError: it is no run's.
        """
        *pairs, last = [pair.partition("=") for pair in re.split(r" (?=[\w.+-]+=)", text)]
        seed = last[2] if pairs else text
        if re.fullmatch("[0-9]+", seed):
            name = cls(tuple((key, value) for key, _, value in pairs), int(seed))
            if str(name) == text:
                return name
        raise SettingsError(f"run {text!r} is neither a seed nor 'name=value ... seed=N'")


class MetricName(NamedTuple):
    """The name of a metric: ``critic/stable_rank/trunk.0``, ``eval/return``, ``q_mean``.

    Args:
        of: the network, or ``eval``, ``task``, ``train``; may be empty.
        layer: empty for a metric of the whole network.
    """

    of: str
    quantity: str
    layer: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in self if part)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The name whose text is `text`."""
        first, slash, rest = text.partition("/")
        if not slash:
            return cls("", first)
        quantity, _, layer = rest.partition("/")
        return cls(first, quantity, layer)


class Curve(NamedTuple):
    """A metric over time, in the order of the steps."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]


class Row(NamedTuple):
    """A line of ``metrics.csv`` or ``timing.csv``."""

    run: str
    step: int
    name: str
    value: float

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """The row whose line is `line`; ValueError if it is none's."""
        run, step, name, value = line.decode(errors="replace").rsplit(",", 3)
        return cls(run, int(step), name, float(value))


def file_name(text: str) -> str:
    """The name of a run, or of a mean over runs, as the name of a file or a folder."""
    return text.strip().replace(" ", "_").replace("/", "-")


def short(value: Any) -> str:
    """A setting's value as short text: 0.001 is 1e-3, 2560000 is 2.56e6, 1000 stays."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        number = Decimal(repr(value)).normalize()
        plain = f"{number:f}"
        mantissa, _, exponent = f"{number:e}".partition("e")
        scientific = f"{mantissa}e{int(exponent)}"
        return plain if len(plain) <= len(scientific) or 1 <= abs(number) < 1e5 else scientific
    return str(value)


def _value(text: str) -> Any:
    """`text` as a number, truth value, null or list, as JSON writes them; else itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
