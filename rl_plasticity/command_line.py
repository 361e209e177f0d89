"""What all commands share: help, bad input, faults, Ctrl-C, and the exit status.

It imports no torch, so that help and complaints come at once.
"""

import io
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rl_plasticity import plugins
from rl_plasticity.configs import commands, schema, written
from rl_plasticity.configs.gone import unknown
from rl_plasticity.configs.help import describe
from rl_plasticity.errors import FaultyRun, SettingsError, printable, say
from rl_plasticity.paths import exists, expanded
from rl_plasticity.runs.folder import RunFolder

if TYPE_CHECKING:
    from rl_plasticity.runs.command import Command

E = TypeVar("E", bound=commands.Evaluate | commands.Diagnose)
HELP = {"-h", "--help"}


def main(name: str, help_: Callable[[Sequence[str]], str], act: Callable[[Sequence[str]], int | None]) -> None:
    """Run the command `name` on the process's arguments.

    The exit status is the result of `act`, or 0. Bad input is 2 and a fault is 1, each with one line. Ctrl-C is 130.

    Args:
        help_: makes the text of ``--help`` from the other arguments.
        act: does the command's work with the arguments.
    """
    arguments = sys.argv[1:]
    others = [a for a in arguments if a not in HELP]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for an ASCII terminal, or a name that is not UTF-8
    try:
        if others != arguments:
            print(help_(others))
            sys.exit(0)
        with warnings.catch_warnings():
            warnings.showwarning = _one_line(name, warnings.showwarning)
            status = act(arguments)
        sys.stdout.flush()
    except SettingsError as error:
        sys.exit(complain(name, error, 2))
    except BrokenPipeError:  # ... | head -1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    except (FaultyRun, OSError, ModuleNotFoundError) as error:
        sys.exit(complain(name, error, 1))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    if status:
        sys.exit(status)


def _one_line(name: str, show: Callable[..., None]) -> Callable[..., None]:
    """A function that shows warnings: those of this package as a line of the command, others by `show`."""

    def shown(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
        if Path(filename).is_relative_to(Path(__file__).parent):
            complain(name, str(message), 0)
        else:
            show(message, category, filename, *rest)

    return shown


def complain(name: str, error: Exception | str, status: int) -> int:
    """Print one line for the user of the command `name`, and return `status`."""
    say(f"rl_plasticity.{name}: {error}")
    return status


def columns() -> int:
    """The width of a table: the variable COLUMNS, else the terminal's width; 80 for a file; 60 at least."""
    return max(60, shutil.get_terminal_size((80, 24)).columns)


def about(seconds: float) -> str:
    """A duration in words: ``40 s``, ``3 min``, ``2.5 h``."""
    if seconds < 100:
        return f"{max(1, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def fitted(lines: Sequence[Sequence[str]]) -> str:
    """A table that fits the terminal: columns without room follow below, again beside the first column."""
    first, *others = zip(*lines, strict=True)
    blocks = [[first]]
    for column in others:
        if len(blocks[-1]) > 1 and len(max(aligned([*zip(*blocks[-1], column, strict=True)]), key=len)) > columns():
            blocks.append([first])
        blocks[-1].append(column)
    return "\n\n".join("\n".join(aligned([*zip(*block, strict=True)])) for block in blocks)


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """A table as text, with two spaces between columns and without empty ones."""
    lines = [[*map(printable, line)] for line in lines]  # names that come from anywhere
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [i for i, width in enumerate(widths) if width]
    return ["  ".join(line[i].ljust(widths[i]) for i in shown).rstrip() for line in lines]


def places_and_options(
    command: str, arguments: Sequence[str], valid: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Divide arguments into places with runs, whose names may hold a =, and options ``name=value``.

    Raises:
        SettingsError: there is no place, or an option is unknown, given twice or empty.
    """
    places: list[str] = []
    options: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or "/" in name or exists(argument):
            places.append(argument)
            continue
        if name not in valid:
            raise unknown("option", name, valid, f"{command} {name}")
        if name in options:
            raise SettingsError(f"{name} is given twice")
        if not value:
            raise SettingsError(f"{name} needs a value: {name}=...")
        options[name] = value
    if not places:
        raise SettingsError("name at least one folder with runs, such as results")
    return places, options


def at_once(name: str) -> None:
    """Print the help of a command, or refuse its arguments, before it imports torch, which takes seconds.

    The command's module calls this first. If this returns, the command goes on, and reads its arguments itself.
    """
    kind = getattr(commands, name.capitalize())
    main(name, partial(help_of, kind), partial(_refuse, kind))


def _refuse(kind: type[Any], arguments: Sequence[str]) -> None:
    """Raises SettingsError where the command would, as far as no other run must be read."""
    if kind not in commands.DEFAULT_PRESET:
        if ":" not in "".join(arguments[:1]):  # a function that makes a network, see `diagnose.of_files`
            looked_at(kind, arguments)
    elif not written.FLAGS & {*arguments} and not any(a.startswith("from=") for a in arguments):
        settings = schema.load(kind, arguments)
        if kind is commands.Train and settings.resume is None:
            from rl_plasticity.envs.control import check_name

            for env in settings.env.sequence or (settings.env.name,):
                check_name(env)


def help_of(kind: type[Any], arguments: Sequence[str]) -> str:
    """The text of ``--help``: the usage, and the settings, with those of plugs that the arguments name."""
    usage = _usage(kind)
    if kind in commands.DEFAULT_PRESET:
        sweeps = "-m trains every combination of values a,b and range(0,10); launcher=joblib, slurm or ray"
        usage = f"{usage}\n{usage.replace('[', '-m [', 1)}\n{sweeps}"
    else:
        usage += "\n\nRUN is the folder of a run."
        if kind is commands.Diagnose:
            usage += " In its place: my_module:make_net weights.pt inputs.pt, a network in files."
    return f"{usage}\n\n{describe(kind, arguments, columns())}"


def _usage(kind: type[Any]) -> str:
    run = "" if kind in commands.DEFAULT_PRESET else "RUN "
    return f"python -m rl_plasticity.{commands.called(kind)} {run}[name=value ...]"


def train(command: "Command[Any, Any]") -> None:
    """Run ``python -m rl_plasticity.NAME [name=value ...]``: one run, or a sweep with ``-m``."""

    def act(arguments: Sequence[str]) -> int:
        if written.FLAGS & {*arguments}:
            from rl_plasticity.sweeps.sweep import sweep

            return sweep(command, [a for a in arguments if a not in written.FLAGS])
        session, built = command.prepare(arguments)
        for line in command.foretold(session, built):
            say(line)
        threading.excepthook = lambda args: None  # TensorBoard's thread raises what the main thread then raises too
        if command.execute(session, built):
            print(printable(f"done; results in {session.folder}"))
            return 0
        given = " ".join([*plugins.as_arguments(plugins.loaded), f"resume={session.folder}"])
        say(f"stopped; continue with python -m rl_plasticity.{command.name} {given}")
        return 128 + session.stop.received

    main(command.name, partial(help_of, command.kind), act)


def look_at(kind: type[E], look: Callable[[RunFolder, E], object]) -> None:
    """Run ``python -m rl_plasticity.NAME RUN [name=value ...]``."""

    def act(arguments: Sequence[str]) -> None:
        look(*looked_at(kind, arguments))

    main(commands.called(kind), partial(help_of, kind), act)


def looked_at(kind: type[E], arguments: Sequence[str]) -> tuple[RunFolder, E]:
    """The run's folder and the settings from the arguments.

    Raises:
        SettingsError: there is no run, or a setting is bad.
    """
    if not arguments:
        raise SettingsError(f"name the folder of a run: {_usage(kind)}")
    return RunFolder(expanded(arguments[0])), schema.load(kind, arguments[1:])
