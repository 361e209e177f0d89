"""The diagnoses of a run's networks, and the file in its folder that keeps them, ``diagnosis.json``.

The file holds an object. ``rows`` has one entry for each network of each run at each checkpoint, on some data: the keys
``step``, ``run``, ``network`` and ``data``, and those of `Report`. ``settings`` are those that decide the numbers.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from rl_plasticity.diagnosis.report import Report
from rl_plasticity.errors import SettingsError, say
from rl_plasticity.runs.files import read_json, write_text
from rl_plasticity.runs.folder import RunFolder


class Item(NamedTuple):
    """A network of all runs of a folder at one checkpoint, on some data: what is diagnosed together."""

    step: int
    data: str
    network: str


class Diagnosis(NamedTuple):
    """The report on one network of one run at one checkpoint, on some data.

    Args:
        run: its name in words, see `RunName.in_words`.
    """

    item: Item
    run: str
    report: Report

    @property
    def row(self) -> dict[str, Any]:
        """The diagnosis as plain data."""
        return {**self.item._asdict(), "run": self.run, **json.loads(self.report.to_json())}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """The diagnosis whose row is `row`; an exception of some kind if it is none's."""
        return cls(Item(row["step"], row["data"], row["network"]), row["run"], Report.of(row))


def _content(path: Path) -> tuple[list[Diagnosis], Mapping[str, Any]]:
    """The diagnoses, and the settings with which they were made."""
    nothing: tuple[list[Diagnosis], Mapping[str, Any]] = ([], {})
    return read_json(path, lambda of: ([*map(Diagnosis.of, of["rows"])], dict(of["settings"])), nothing)


def read(folder: RunFolder) -> list[Diagnosis]:
    """The diagnoses that are kept in a run's folder, by rising step; none if there is no file.

    Raises:
        SettingsError: the file is damaged.
    """
    return sorted(_content(folder.diagnosis)[0], key=lambda row: row.item.step)


class Kept:
    """The diagnoses that are kept in a file, to take and to add to.

    Those that were made with other settings, or cannot be read, are replaced. A line on stderr says so.

    Args:
        settings: those that decide the numbers.

    Attributes:
        found: all diagnoses by what was diagnosed together.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = path, settings
        try:
            rows, theirs = _content(path)
        except SettingsError:  # another version wrote it, for example
            say(f"{path} cannot be read: it will be replaced")
            rows, theirs = [], settings
        other = [f"{name}={theirs.get(name)}" for name, value in settings.items() if theirs.get(name) != value]
        if rows and other:
            say(f"{path} was made with {', '.join(other)}: it will be replaced")
            rows = []
        self.found: dict[Item, list[Diagnosis]] = {}
        for row in rows:
            self.found.setdefault(row.item, []).append(row)

    def add(self, item: Item, rows: Sequence[Diagnosis]) -> None:
        """Keep the diagnoses of all runs, in place of earlier ones."""
        self.found[item] = [*rows]
        every = [row.row for of_item in sorted(self.found) for row in self.found[of_item]]
        content = {"settings": self.settings, "rows": every}
        try:
            write_text(self.path, json.dumps(content, indent=1) + "\n")
        except OSError as error:
            say(f"{self.path} cannot be written, and the results are not kept: {error.strerror or error}")
