"""Checkpoints of a run: files that are written whole or not at all, verified, and loaded without running code."""

import hashlib
import io
import os
import sys
from collections.abc import Mapping
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rl_plasticity import __version__
from rl_plasticity.errors import SettingsError, first_line, one_line, reason, refused, shown
from rl_plasticity.runs.files import checkpoint_files, checkpoint_path, open_file, saved_steps, write_atomically

FORMAT = 4  # of the files; any other format is refused


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
                state = {**state, **self.saved["table"], "size": state["size"] - self.saved["lost"]}
            part.load_state_dict(state)

    def save(self, step: int, parts: Mapping[str, Part], more: Mapping[str, Any] | None = None) -> Path:
        """Write the states of the parts, and `more`: tensors, arrays, numbers, strings and containers of them.

        Only those rows of the one `Table` are written that no file holds yet. Files that neither this checkpoint nor
        the one before needs are removed, except the checkpoint of step 0.
        """
        self.folder.mkdir(exist_ok=True)  # not its parents: a deleted run's folder is not brought back
        states, chunks, oldest = dict(more or {}), list[list[int]](), 0
        for name, part in parts.items():
            if isinstance(part, Table):
                states[name], chunks, oldest = part.position(), self._append(part), part.added - part.size
            else:
                states[name] = part.state_dict()
        path = checkpoint_path(self.folder, step)
        made_by = {"format": FORMAT, "version": __version__}
        _write(path, {**states, **made_by, "at": step, "chunks": chunks, "oldest": oldest})
        first = checkpoint_path(self.folder, 0)
        needed = {path, self.newest, first, *(checkpoint_path(self.folder, *c) for c in [*self.chunks, *chunks])}
        again = path == self.newest  # a step that is saved twice: the checkpoint before it stays
        self.chunks, self.newest = chunks, path
        for old in checkpoint_files(self.folder).values():
            if old not in needed and not again:
                old.unlink()
        return path

    def _append(self, table: Table) -> list[list[int]]:
        oldest = table.added - table.size
        chunks = [chunk for chunk in self.chunks if chunk[1] > oldest]
        # If somebody deleted a file, its rows and all later ones are written again.
        chunks = [*takewhile(lambda chunk: checkpoint_path(self.folder, *chunk).is_file(), chunks)]
        first = chunks[-1][1] if chunks else oldest
        if first < table.added:
            chunks.append([first, table.added])
            _write(checkpoint_path(self.folder, first, table.added), table.since(first))
        return chunks


def load(folder: Path, step: int | None = None, *, whole: bool = True, allow_lost_rows: bool = False) -> dict[str, Any]:
    """Load the newest undamaged one of the last two checkpoints in `folder`, or the one of this `step`.

    Damaged checkpoints that were skipped are named on stderr.

    Args:
        whole: load the rows of its table too, as ``table``, to continue the run. Otherwise no rows are needed.
        allow_lost_rows: if both checkpoints need damaged rows, take the one that loses fewer. The table is then
            shorter: without the damaged rows and those before them. ``lost`` is their number.

    Raises:
        SettingsError: there is none, or it cannot be read, or is of another file format.
    """
    with refused(f"read {folder}"):
        paths = saved_steps(folder)
    if not paths:
        raise SettingsError(f"no checkpoint in {folder}")
    if step not in (None, *paths):
        raise SettingsError(f"no checkpoint of step {step} in {folder} (valid: {', '.join(map(str, paths))})")
    problems: list[str] = []
    incomplete: list[dict[str, Any]] = []
    newest = [*paths.values()][:-3:-1]  # not that of step 0, which is kept beside them to be looked at
    for path in newest if step is None else [paths[step]]:
        try:
            state = _read(path)
            _require_place(path, state)
        except SettingsError as error:
            problems.append(str(error))
            continue
        if state.get("format") != FORMAT:
            theirs = f"version {state.get('version')} (file format {state.get('format')})"
            raise SettingsError(f"{path} was written by {theirs}, this is version {__version__} (file format {FORMAT})")
        if whole and (problem := _add_table(folder, state)):
            problems.append(problem)
            incomplete.append(state)
            continue
        for problem in problems:
            print(f"{problem}; falling back to {path.name}", file=sys.stderr)
        if whole and state.get("version") != __version__:
            other = shown(state.get("version"))
            said = f"{path} was written by version {other}, this is {__version__}: numbers may differ from that one's"
            print(one_line(said), file=sys.stderr)
        return state
    if not incomplete:
        raise SettingsError("; ".join(problems))
    state = min(incomplete, key=lambda state: state["lost"])
    lost, kept = state["lost"], sum(last - first for first, last in state["chunks"])
    damage = "; ".join(dict.fromkeys(problems))
    losing = f"without {lost} of the {lost + kept} transitions of each run's replay buffer"
    if not allow_lost_rows:
        raise SettingsError(f"{damage}; put it back as it was, or go on {losing} with allow_lost_rows=true")
    print(f"{damage}; going on from step {state['at']} {losing}", file=sys.stderr)
    return state


def checksum(path: Path) -> str:
    """The checksum at the end of a checkpoint's file.

    Raises:
        SettingsError: the file cannot be read.
    """
    with refused(f"read {path}"), open_file(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 32))
        return file.read().hex()


def write(folder: Path, state: dict[str, Any]) -> None:
    """Write a state that was loaded whole as the first checkpoint in a new `folder`, with all its rows in one file.

    `state` becomes what `load` returns of it.
    """
    folder.mkdir()
    table, lost = state["table"], state["lost"]
    for part in state.values():
        if isinstance(part, dict) and {"added", "size"} <= part.keys():
            part["size"] -= lost
    chunks = [[state["chunks"][0][0], state["chunks"][-1][1]]] if table else []
    state |= {"chunks": chunks, "oldest": state["oldest"] + lost, "lost": 0, "format": FORMAT, "version": __version__}
    for chunk in chunks:
        _write(checkpoint_path(folder, *chunk), table)
    _write(checkpoint_path(folder, state["at"]), {n: v for n, v in state.items() if n not in ("table", "lost")})


def _add_table(folder: Path, state: dict[str, Any]) -> str:
    """Add ``table``, the rows of a state's table, and ``lost``, the number of lost rows; return what is wrong.

    If some rows cannot be read, only those after the last damaged file are kept, so that the table has no gap.
    """
    chunks: list[list[int]] = state.get("chunks", [])
    parts: list[dict[str, Any]] = []
    problem = ""
    try:
        for chunk in reversed(chunks):
            parts.insert(0, _read(checkpoint_path(folder, *chunk)))
    except SettingsError as error:
        problem = str(error)
    lost = len(chunks) - len(parts)
    state["lost"] = 0
    if lost:
        state["lost"] = chunks[lost - 1][1] - state.get("oldest", chunks[0][0])
        state["chunks"] = chunks[lost:]
    try:
        state["table"] = {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}
    except Exception as error:  # a file that is whole may hold anything
        raise SettingsError(f"{folder} holds no checkpoint of a run: {first_line(error)}") from error
    return problem


def _write(path: Path, value: Mapping[str, Any]) -> None:
    content = io.BytesIO()
    torch.save(_plain(value), content)
    content.write(hashlib.sha256(content.getbuffer()).digest())
    write_atomically(path, lambda file: file.write(content.getbuffer()))


def _read(path: Path) -> dict[str, Any]:
    """Raises SettingsError if the file is missing or damaged, or would run code."""
    try:
        with open_file(path) as file:
            content = file.read()
        if hashlib.sha256(content[:-32]).digest() != content[-32:]:
            raise ValueError("its checksum is wrong (it is damaged, or of another version)")
        state: dict[str, Any] = torch.load(io.BytesIO(content[:-32]), map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle, file and runtime errors alike
        why = getattr(error, "strerror", None) or reason(error)
        raise SettingsError(f"the checkpoint {path} cannot be read: {why}") from error
    if not isinstance(state, dict):
        raise SettingsError(f"the checkpoint {path} cannot be read: it holds no state")
    return state


def _require_place(path: Path, state: Mapping[str, Any]) -> None:
    """Raises SettingsError unless the state says its step and the rows that it needs; the file may be anybody's."""
    chunks = state.get("chunks", [])
    are_pairs = isinstance(chunks, list) and all(isinstance(chunk, list) and len(chunk) == 2 for chunk in chunks)
    numbers = [state.get("at"), state.get("oldest", 0), *(chain(*chunks) if are_pairs else [None])]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise SettingsError(f"the checkpoint {path} cannot be read: it holds no state of a run")


def _plain(value: Any) -> Any:
    """`value` with arrays as tensors, which ``weights_only`` loading accepts."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
