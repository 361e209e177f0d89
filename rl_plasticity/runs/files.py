"""Files in a run's folder: written whole or not at all, named by step, and readable while a run writes them."""

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from rl_plasticity.errors import SettingsError, refused
from rl_plasticity.runs.names import HEADER, Curve

T = TypeVar("T")


def write_text(path: Path, text: str | bytes) -> None:
    """Write a small file, whole or not at all. Bytes of names that are not UTF-8 become escapes."""
    content = text if isinstance(text, bytes) else text.encode(errors="backslashreplace")
    write_atomically(path, lambda file: file.write(content))


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a temporary file, force it to the disk, and rename it, so that no reader sees half a file."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # left by a killed process; a link there would let us write to its target
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)  # the rename itself must reach the disk too
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def require_new(path: Path, suffix: str) -> None:
    """Raises SettingsError unless a new file with this `suffix` can be written at `path`."""
    if path.suffix != suffix:
        raise SettingsError(f"out must end in {suffix}, got {path}")
    with refused(f"write to {path}"):
        if path.exists():
            raise SettingsError(f"{path} exists; choose another out=")
    if not os.access(path.parent, os.W_OK):
        raise SettingsError(f"cannot write to the folder {path.parent}")


def checkpoint_path(folder: Path, *numbers: int) -> Path:
    """The path of a step's checkpoint, or of the rows from the first number up to the second."""
    return folder / f"{'step' if len(numbers) == 1 else 'rows'}_{'_'.join(f'{n:09d}' for n in numbers)}.pt"


def checkpoint_files(folder: Path) -> dict[tuple[int, ...], Path]:
    """The files in `folder` whose names are exactly those of `checkpoint_path`, by their numbers, in order.

    Any other file is the user's: ``step_best.pt``.
    """
    named = [(tuple(map(int, re.findall("[0-9]+", path.name))), path) for path in folder.glob("*.pt")]
    return dict(sorted((n, p) for n, p in named if len(n) in (1, 2) and p == checkpoint_path(folder, *n)))


def saved_steps(folder: Path) -> dict[int, Path]:
    """The checkpoints in `folder` by their step, the newest last."""
    return {numbers[0]: path for numbers, path in checkpoint_files(folder).items() if len(numbers) == 1}


def read_json(path: Path, parse: Callable[[Any], T], missing: T) -> T:
    """What `parse` makes of the JSON in a file; `missing` if there is no such file.

    Raises:
        SettingsError: it cannot be read, or `parse` raises something.
    """
    with refused(f"read {path}"), suppress(FileNotFoundError):
        text = path.read_bytes()
        try:
            return parse(json.loads(text))
        except Exception as error:  # whatever the file holds
            raise SettingsError(f"{path} is damaged: restore it, or move it away") from error
    return missing


def read_curves(path: Path) -> dict[str, dict[str, Curve]]:
    """The curves in a file of rows, by the names of run and metric.

    A last line without a line end is left out: the run was killed while it wrote, or is writing.

    Raises:
        SettingsError: the file cannot be read, or holds something else.
    """
    with refused(f"read {path}"):
        data = path.read_bytes()
    columns: dict[str, dict[str, tuple[list[int], list[float]]]] = {}
    try:
        header, *lines = data[: data.rfind(b"\n") + 1].decode().split("\n")
        if header != HEADER and not HEADER.encode().startswith(data):  # the run was killed while it wrote that
            raise ValueError(header)
        for line in lines[:-1]:
            run, step, metric, value = line.rsplit(",", 3)  # a run's name may hold commas
            steps, values = columns.setdefault(run, {}).setdefault(metric, ([], []))
            steps.append(int(step))
            values.append(float(value))
        return {
            run: {name: Curve(np.array(s, np.int64), np.array(v, np.float64)) for name, (s, v) in of_run.items()}
            for run, of_run in columns.items()
        }
    except (ValueError, OverflowError) as error:
        raise SettingsError(f"{path} is damaged: a line is not {HEADER}") from error
