"""How a run is saved and resumed: one file a checkpoint, written whole or not at all, loaded without running code."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a temporary file beside `path`, force it to the disk, then rename it: old or new, never half."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
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


def save(folder: Path, step: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Write `state` (tensors, arrays, numbers, strings and containers of them) as the checkpoint of this step.

    The `keep` newest checkpoints stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step:09d}.pt"
    write_atomically(path, lambda file: torch.save(_plain(state), file))
    for old in _all(folder)[:-keep]:
        old.unlink()
    return path


def load(folder: Path, step: int | None = None) -> dict[str, Any]:
    """The newest checkpoint in `folder`, or the one of this `step`.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it cannot be read.
    """
    found = {int(path.stem.removeprefix("step_")): path for path in _all(folder)}
    if not found:
        raise FileNotFoundError(f"no checkpoint in {folder}")
    path = found.get(max(found) if step is None else step)
    if path is None:
        raise FileNotFoundError(f"no checkpoint of step {step} in {folder} (valid: {', '.join(map(str, found))})")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and runtime errors alike
        reason = str(error).splitlines()[0]
        raise ValueError(f"the checkpoint {path} cannot be read: {reason}") from error
    return state


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("step_*.pt"))


def _plain(value: Any) -> Any:
    """`value` with arrays as tensors, which ``weights_only`` loading accepts."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
