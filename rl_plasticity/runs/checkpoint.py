"""Checkpoints of a run: files that are written whole or not at all, verified, and loaded without running code."""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rl_plasticity import __version__
from rl_plasticity.errors import SettingsError, reason, refused, say
from rl_plasticity.runs.files import checkpoint_files, checkpoint_path, saved_steps, write_atomically

FORMAT = 5  # of the files; a run is continued from this one alone
READ_TOO = 4  # and networks are read from this one too: a strength meant another thing


class Part(Protocol):
    """An object that is saved and restored with a run."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@runtime_checkable
class Table(Part, Protocol):
    """A part whose rows are added at the end and dropped at the beginning: a replay buffer."""

    added: int  # number of rows ever added
    size: int  # number of rows in it, the newest ones

    def position(self) -> dict[str, Any]:
        """The state without the rows."""
        ...

    def since(self, row: int) -> dict[str, Tensor]:
        """The rows from number `row` to the newest, along dimension 0 of each tensor."""
        ...


class Checkpoints:
    """The checkpoints of one run: the newest two, and that of step 0 with the untrained network.

    ``step_NNN.pt`` is the state at a step. It names the ``rows_FIRST_END.pt`` that hold its table; each has the rows
    that were added between two checkpoints. So each row is written once, before the checkpoint that names it. Every
    file ends with the SHA-256 of its content, because PyTorch's reader does not notice changed bytes. Files with other
    names are the user's.

    Args:
        folder: of the checkpoints; its parent exists.
        saved: the result of `load` if the run continues from there.
    """

    def __init__(self, folder: Path, saved: Mapping[str, Any] | None = None) -> None:
        self.folder, self.saved = folder, saved or {}
        self.chunks: list[list[int]] = saved["chunks"] if saved else []
        self.newest = checkpoint_path(folder, saved["at"]) if saved else None

    def restore(self, parts: Mapping[str, Part]) -> None:
        """Restore the state of each part."""
        for name, part in parts.items():
            state = self.saved[name]
            if isinstance(part, Table):
                state = {**state, **self.saved["table"]}
            part.load_state_dict(state)

    def save(self, step: int, parts: Mapping[str, Part], more: Mapping[str, Any] | None = None) -> Path:
        """Write the states of the parts, and `more`: tensors, arrays, numbers, strings and containers of them.

        Only those rows of the one `Table` are written that no file holds yet. Files that neither this checkpoint nor
        the one before needs are removed, except the checkpoint of step 0.
        """
        self.folder.mkdir(exist_ok=True)  # not its parents: a deleted run's folder is not brought back
        states, chunks = dict(more or {}), list[list[int]]()
        for name, part in parts.items():
            if isinstance(part, Table):
                states[name], chunks = part.position(), self._append(part)
            else:
                states[name] = part.state_dict()
        path = checkpoint_path(self.folder, step)
        _write(path, {**states, "format": FORMAT, "version": __version__, "at": step, "chunks": chunks})
        if path != self.newest:  # of a step that is saved twice, the checkpoint before it stays
            needed = [(0,), *map(tuple, [*self.chunks, *chunks])]
            kept = {path, self.newest, *(checkpoint_path(self.folder, *numbers) for numbers in needed)}
            for old in checkpoint_files(self.folder).values():
                if old not in kept:
                    old.unlink()
        self.chunks, self.newest = chunks, path
        return path

    def _append(self, table: Table) -> list[list[int]]:
        oldest = table.added - table.size
        chunks = [chunk for chunk in self.chunks if chunk[1] > oldest]
        first = chunks[-1][1] if chunks else oldest
        if first < table.added:
            chunks.append([first, table.added])
            _write(checkpoint_path(self.folder, first, table.added), table.since(first))
        return chunks


def load(folder: Path, step: int | None = None, *, whole: bool = True) -> dict[str, Any]:
    """Load the newest undamaged one of the last two checkpoints in `folder`, or the one of this `step`.

    Args:
        whole: load the rows of its table too, as ``table``, to continue the run.

    Raises:
        SettingsError: there is none, or it cannot be read, or is of another file format.
    """
    with refused(f"read {folder}"):
        paths = saved_steps(folder)
    if step not in (None, *paths) or not paths:
        raise SettingsError(
            f"there is no checkpoint of step {step} in {folder} (valid: {', '.join(map(str, paths)) or 'none'})"
        )
    problems: list[str] = []
    newest = [*paths.values()][:-3:-1]  # not that of step 0, which is kept beside them to be looked at
    for path in newest if step is None else [paths[step]]:
        try:
            state = _read(path)
            if state.get("format") not in (READ_TOO, FORMAT)[whole:]:
                raise SettingsError(f"version {state.get('version')} wrote {path}, and this is version {__version__}")
            if whole:
                chunks = [_read(checkpoint_path(folder, *chunk)) for chunk in state["chunks"]]
                state["table"] = {n: torch.cat([chunk[n] for chunk in chunks]) for n in chunks[0]} if chunks else {}
        except SettingsError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            say(f"{problem}; falling back to {path.name}")
        return state
    raise SettingsError("; ".join(problems))


def write(folder: Path, state: dict[str, Any]) -> None:
    """Write a state that was loaded whole as the first checkpoint in a new `folder`, with all its rows in one file.

    `state` becomes what `load` returns of it.
    """
    folder.mkdir()
    table = state["table"]
    chunks = [[state["chunks"][0][0], state["chunks"][-1][1]]] if table else []
    state |= {"chunks": chunks, "format": FORMAT, "version": __version__}
    for chunk in chunks:
        _write(checkpoint_path(folder, *chunk), table)
    _write(checkpoint_path(folder, state["at"]), {n: v for n, v in state.items() if n != "table"})


def _write(path: Path, value: Mapping[str, Any]) -> None:
    content = io.BytesIO()
    torch.save(_plain(value), content)
    content.write(hashlib.sha256(content.getbuffer()).digest())
    write_atomically(path, lambda file: file.write(content.getbuffer()))


def _read(path: Path) -> dict[str, Any]:
    """Raises SettingsError if the file is missing or damaged, or would run code."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content[:-32]).digest() != content[-32:]:
            raise ValueError("its checksum is wrong (it is damaged, or of another version)")
        return dict(torch.load(io.BytesIO(content[:-32]), map_location="cpu", weights_only=True))
    except Exception as error:  # zip, pickle, file and runtime errors alike
        why = getattr(error, "strerror", None) or reason(error)
        raise SettingsError(f"the checkpoint {path} cannot be read: {why}") from error


def _plain(value: Any) -> Any:
    """`value` with arrays as tensors, which ``weights_only`` loading accepts."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
