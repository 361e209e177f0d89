"""Presets: sets of settings in files of this package, which the command line overrides.

A file holds one preset, with settings as on the command line besides `source`, `used` and `leaves_out`, or a paper's
table with all of its presets:

    source: who, and where in the paper
    presets: {NAME: {data: mnist, net: mlp}}     what each preset chooses
    used: {data=mnist: net=mlp|cnn}              where data is mnist, the paper's net was one of these
    leaves_out: what of the paper's agent is not in it, for the one line that says so
    settings: {data=mnist: {batch_size: 512}}    where data is mnist; later lines have the last word

A condition is ``group=choice|choice group=choice``. All of its terms must hold; the empty condition always holds.
It is tested on the final choices: those of the command line, else of the preset, else the default ones. So the settings
of a preset fit the task that it is used with. In a list or a chain, each method takes its own settings.
"""

import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from omegaconf import OmegaConf

if TYPE_CHECKING:
    from rl_plasticity.configs.commands import Group

Groups: TypeAlias = "Mapping[str, Group]"
FOLDER = Path(__file__).parent / "preset"
SHARED = ("env", "data")  # groups in which every choice has the same settings
Condition = Mapping[str, tuple[str, ...]]  # the allowed choices of each group


class Table(NamedTuple):
    """The content of a file.

    Attributes:
        source: the authors, and the place in the paper.
        presets: the choices of each preset; in a file of one preset its other settings too.
        used: pairs of a condition and the choices that the source made under it.
        rows: pairs of a condition and the settings under it; none in a file of one preset.
        leaves_out: what the source has and no preset sets, in words.
    """

    source: str
    presets: Mapping[str, Mapping[str, Any]]
    used: tuple[tuple[str, str], ...] = ()
    rows: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    leaves_out: str = ""

    def settings_of(self, preset: str, groups: Groups, by_default: Mapping[str, Any]) -> dict[str, Any]:
        """The preset's settings by name, without its choices.

        Args:
            groups: the final choices.
            by_default: the choices of the preset itself.
        """
        # A setting of the preset's choice has no place where another choice replaces it.
        elsewhere = {name for name, g in groups.items() if name not in SHARED and g.choice != by_default[name]}
        own = self.presets[preset].items()
        values = {n: value for n, value in own if n not in groups and n.partition(".")[0] not in elsewhere}
        for condition, row in self.rows:
            if (prefixes := _holds(condition, groups)) is not None:
                for setting, value in row.items():
                    group, dot, last = setting.partition(".")
                    values |= {f"{prefix}{dot}{last}": value for prefix in prefixes.get(group, [group])}
        return values

    def unlike(self, preset: str, groups: Groups) -> str:
        """One line that names the choices that the preset's source did not make; empty if it made them all."""
        others: list[str] = []
        for condition, used in self.used:
            if _holds(condition, groups) is not None:
                beside = " ".join(f"{group}={groups[group].choice}" for group in conditions(condition))
                for group, choices in conditions(used).items():
                    if not {leaf for _, leaf in groups[group].leaves(group)} <= {*choices}:
                        other = f"{group}={groups[group].choice}"
                        if not any(said.partition(" with ")[0] == other for said in others):
                            others.append(other + (f" with {beside}" if beside else ""))
        who = self.source.partition(" (")[0]
        return f"preset {preset}: {who} did not use {', nor '.join(others)}" if others else ""


@cache
def tables(command: str) -> tuple[Table, ...]:
    """The tables of a command, one for each file."""
    return tuple(map(_read, sorted((FOLDER / command).glob("*.yaml"))))


def names(command: str) -> list[str]:
    """The names of all presets of a command."""
    return sorted(name for table in tables(command) for name in table.presets)


def agents_of_papers() -> list[str]:
    """The presets of ``train`` that ``agent=`` takes too: those that say what of a paper's agent they leave out."""
    return [name for name in names("train") if table_of("train", name).leaves_out]


def table_of(command: str, name: str) -> Table:
    """The table of this preset."""
    return next(table for table in tables(command) if name in table.presets)


def conditions(text: str) -> Condition:
    """The condition that is written ``net=mlp data=mnist|emnist``."""
    terms = (term.partition("=") for term in text.split())
    return {group: tuple(choices.split("|")) for group, _, choices in terms}


def described(command: str, written: Callable[[Any], str]) -> list[str]:
    """Lines for ``--help`` about all presets: the source, the choices and the settings of each.

    Args:
        written: turns a value into its text on the command line.
    """

    def line(values: Mapping[str, Any]) -> str:
        return " ".join(f"{name}={written(value)}" for name, value in values.items())

    lines: list[str] = []
    for table in tables(command):
        if not table.rows:
            ((name, values),) = table.presets.items()
            sets = line(values) or "nothing: all is as it is by default"
            lines += [f"  preset={name}", *_wrapped(table.source, 4, 4), *_wrapped(sets, 4, 4)]
            lines += _wrapped(f"leaves out: {table.leaves_out}", 4, 4) if table.leaves_out else []
            continue
        lines += _wrapped(f"{table.source}:", 2, 2)
        for name, values in table.presets.items():
            lines += _wrapped(f"preset={name}: {line(values)}", 4, 8)
        lines.append("    sets, where the choices before the colon are made (later lines overrule):")
        for condition, row in table.rows:
            lines += _wrapped(f"{condition or 'always'}: {line(row)}", 4, 8)
        lines.append("    what the paper used (where another choice is made, one line says so):")
        for condition, used in table.used:
            lines += _wrapped(f"{condition or 'always'}: {used}", 4, 8)
    return lines


# ------------------------------------------------------------------------------------------------------------------


def _read(path: Path) -> Table:
    content: Any = OmegaConf.to_container(OmegaConf.load(path)) or {}
    source, leaves_out = content.pop("source", ""), content.pop("leaves_out", "")
    used, rows = (tuple(content.pop(part, {}).items()) for part in ("used", "settings"))
    return Table(source, content.get("presets", {path.stem: content}), used, rows, leaves_out)


def _holds(condition: str, groups: Groups) -> dict[str, list[str]] | None:
    """The prefixes of the choices that fulfil a condition, by group; None if it does not hold."""
    fulfil = {
        group: [prefix for prefix, leaf in groups[group].leaves(group) if leaf in choices]
        for group, choices in conditions(condition).items()
    }
    return fulfil if all(fulfil.values()) else None


def _wrapped(text: str, first: int, others: int) -> list[str]:
    """Break text at spaces and alternatives (a|b) into lines of at most 80 characters.

    Args:
        first, others: the indents of the first line and of the others.
    """
    wrapper = textwrap.TextWrapper(80, " " * first, " " * others, break_long_words=False, break_on_hyphens=False)
    return [line.replace("| ", "|") for line in wrapper.wrap(text.replace("|", "| "))]
