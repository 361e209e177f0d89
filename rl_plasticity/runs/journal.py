"""The journal of a run, ``log.txt``: when each start began and how it ended."""

import os
import platform
import time
from contextlib import suppress
from typing import NamedTuple

from rl_plasticity.errors import one_line
from rl_plasticity.runs.folder import TIME, RunFolder


class Entry(NamedTuple):
    """A line of a journal. `word` is started, used, finished, stopped or failed; `text` is the rest."""

    word: str
    text: str


class Journal:
    """Appends lines ``TIME WORD TEXT``. A run continues if the file cannot be written."""

    def __init__(self, folder: RunFolder) -> None:
        self.path, self._cpu_s = folder.log, _cpu_s()

    def start(self) -> None:
        """Add the line of a start, apart from an earlier line that may have been cut."""
        self.write(f"started on {platform.node()}, process {os.getpid()}", before="\n")

    def write(self, event: str, before: str = "") -> None:
        """Add a line, ``failed: why``, in one write, so that no reader sees half of it."""
        with suppress(OSError), self.path.open("ab", buffering=0) as file:
            before = before if file.tell() else ""
            file.write(f"{before}{time.strftime(TIME)} {one_line(event)}\n".encode())

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
