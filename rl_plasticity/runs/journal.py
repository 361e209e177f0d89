"""The journal of a run, ``log.txt``: when each start began and how it ended."""

import os
import platform
import time
from contextlib import suppress
from typing import IO, NamedTuple, Self

from rl_plasticity.errors import one_line
from rl_plasticity.runs.folder import TIME, RunFolder


class Entry(NamedTuple):
    """A line of a journal. `word` is started, used, finished, stopped or failed; `text` is the rest."""

    word: str
    text: str


class Journal:
    """Appends lines ``TIME WORD TEXT``, first ``started``. A run continues if the file cannot be written."""

    def __init__(self, folder: RunFolder) -> None:
        self._cpu_s = _cpu_s()
        self._file: IO[bytes] | None = None
        self._before = 0
        with suppress(OSError):
            self._file = folder.log.open("ab", buffering=0)
            self._before = self._file.tell()
            if self._before:
                self._file.write(b"\n")  # the line before may have been cut
        self.write(f"started on {platform.node()}, process {os.getpid()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def write(self, event: str) -> None:
        """Add a line, ``failed: why``, in one write, so that no reader sees half of it."""
        with suppress(OSError):
            if self._file:
                self._file.write(f"{time.strftime(TIME)} {one_line(event)}\n".encode())

    def take_back(self) -> None:
        """Remove the lines of this start, because it left the run as it was."""
        with suppress(OSError):
            if self._file:
                self._file.truncate(self._before)

    def end(self, event: str) -> None:
        """Add two lines: the CPU time since the start, and how the run ended."""
        self.write(f"used {_cpu_s() - self._cpu_s:.2f} CPU seconds")
        self.write(event)


def _cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


def last_entry(folder: RunFolder) -> Entry | None:
    """The last whole line of the folder's journal; None if there is none."""
    try:
        with folder.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    lines = [line.split(" ", 2) for line in text.split("\n")[:-1] if line]
    return Entry(lines[-1][1].rstrip(":"), one_line("".join(lines[-1][2:]))) if lines and len(lines[-1]) > 1 else None
