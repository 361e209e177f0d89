"""Presets: settings that come before those of the command line, in files of this package.

A file is one preset, its settings as on the command line; or a paper's table, with all of that paper's presets:

    source: who, and where in the paper
    presets: {NAME: {data: mnist, net: mlp}}     what each preset chooses
    used: {data=mnist: net=mlp|cnn}              where data is mnist, the paper's net was one of these
    settings: {data=mnist: {batch_size: 512}}    where data is mnist; later lines have the last word

A condition is ``group=choice|choice group=choice``, all of which must hold; the empty one always does. It is asked of
what is chosen in the end, on the command line or else by the preset or by default: so a preset's settings are those of
the task that it is used with. Of several regularizers or interventions (a list, a chain) each takes its own settings.
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
SHARED = ("env", "data")  # groups whose settings all choices have
Condition = Mapping[str, tuple[str, ...]]  # of each group the choices of which one must have been made


class Table(NamedTuple):
    """What a file says of all its presets; in a file of one preset only the source and that one.

    Attributes:
        source: who says so, and where.
        presets: what each chooses; in a file of one preset the other settings too.
        used: under which condition which choices were made in the source.
        rows: under which condition which settings hold.
    """

    source: str
    presets: Mapping[str, Mapping[str, Any]]
    used: tuple[tuple[str, str], ...] = ()
    rows: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def settings_of(self, preset: str, groups: Groups, by_default: Mapping[str, Any]) -> dict[str, Any]:
        """The preset's settings by name, beside what is chosen.

        Args:
            by_default: what would be chosen if nothing else were said than the preset.
        """
        # Where another choice was made than the preset's, its settings of its own choice do not count.
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
        """In one line, which of the choices the source of this preset did not make; empty if it made all."""
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
    """Those of a command, each as its file has it."""
    return tuple(map(_read, sorted((FOLDER / command).glob("*.yaml"))))


def names(command: str) -> list[str]:
    """All presets of a command."""
    return sorted(name for table in tables(command) for name in table.presets)


def table_of(command: str, name: str) -> Table:
    """The one that this preset stands in."""
    return next(table for table in tables(command) if name in table.presets)


def conditions(text: str) -> Condition:
    """What ``net=mlp data=mnist|emnist`` asks for."""
    terms = (term.partition("=") for term in text.split())
    return {group: tuple(choices.split("|")) for group, _, choices in terms}


def described(command: str, written: Callable[[Any], str]) -> list[str]:
    """All presets for ``--help``: where each comes from, what it chooses, what it sets and where.

    Args:
        written: a value as the command line takes it.
    """

    def line(values: Mapping[str, Any]) -> str:
        return " ".join(f"{name}={written(value)}" for name, value in values.items())

    lines: list[str] = []
    for table in tables(command):
        if not table.rows:
            ((name, values),) = table.presets.items()
            sets = line(values) or "nothing: all is as it is by default"
            lines += [f"  preset={name}", *_wrapped(table.source, 4, 4), *_wrapped(sets, 4, 4)]
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
    source = content.pop("source", "")
    if "presets" not in content:
        return Table(source, {path.stem: content})
    return Table(source, content["presets"], *(tuple(content[part].items()) for part in ("used", "settings")))


def _holds(condition: str, groups: Groups) -> dict[str, list[str]] | None:
    """The prefixes of what fulfils a condition, by group; None where nothing does."""
    fulfil = {
        group: [prefix for prefix, leaf in groups[group].leaves(group) if leaf in choices]
        for group, choices in conditions(condition).items()
    }
    return fulfil if all(fulfil.values()) else None


def _wrapped(text: str, first: int, others: int) -> list[str]:
    """Lines of 80 characters at most, as far as there are spaces or alternatives (a|b), indented by so many."""
    wrapper = textwrap.TextWrapper(80, " " * first, " " * others, break_long_words=False, break_on_hyphens=False)
    return [line.replace("| ", "|") for line in wrapper.wrap(text.replace("|", "| "))]
