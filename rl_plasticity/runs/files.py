"""Files in a run's folder: written whole or not at all, named by step, and readable while a run writes them."""

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from rl_plasticity.errors import SettingsError, refused
from rl_plasticity.runs.names import HEADER, Curve


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
        there = path.exists() or path.with_name(f".{path.name}.tmp").is_dir()  # its name while it is written
    if there:
        raise SettingsError(f"{path} exists; choose another out=")
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
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


def read_curves(path: Path) -> dict[str, dict[str, Curve]]:
    """The curves in a file of rows, by the names of run and metric.

    It is fast enough for many long files: a column is every fourth field, and no line is parsed by itself. A last line
    without a line end is left out: the run was killed while it wrote, or is writing.
    """
    fields = _fields(path)
    try:
        steps = np.array(list(map(int, fields[1::4])), np.int64)
        values = np.array(list(map(float, fields[3::4])), np.float64)
    except (ValueError, OverflowError) as error:
        raise SettingsError(f"{path} is damaged: {error}") from error
    runs, metrics = fields[0::4], fields[2::4]
    rows_of: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for row, name in enumerate(zip(runs, metrics, strict=True)):
        rows_of[name].append(row)
    curves: dict[str, dict[str, Curve]] = {run: {} for run in runs}
    # All runs have their metrics in the same order: that of their first appearance in the file.
    for run, metric in itertools.product(curves, dict.fromkeys(metrics)):
        if rows := rows_of.get((run, metric)):
            curves[run][metric] = Curve(steps[rows], values[rows])
    return curves


def _fields(path: Path) -> Sequence[str]:
    """The fields of all whole lines except the header, four for each line."""
    with refused(f"read {path}"), path.open("rb") as file:
        data = file.read()
    try:
        header, _, body = data[: data.rfind(b"\n") + 1].decode().partition("\n")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is damaged: it is not text") from error
    if header != HEADER:
        raise SettingsError(f"{path} is not a run's: its first line should be {HEADER!r}")
    fields = body.replace("\n", ",").split(",")[:-1]
    if len(fields) != 4 * body.count("\n"):  # a run's name may hold commas: reg.widths=[1, 2] seed=0
        lines = [line.rsplit(",", 3) for line in body.split("\n")[:-1]]
        bad = [i for i, line in enumerate(lines) if len(line) != 4]
        if bad:
            raise SettingsError(f"{path} is damaged: line {bad[0] + 2} has no 4 fields {HEADER}")
        fields = [field for line in lines for field in line]
    return fields
