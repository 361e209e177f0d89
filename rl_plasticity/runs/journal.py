"""Who is at work in a run's folder, by a lock, and what became of each start of the run, in ``log.txt``."""

import fcntl
import os
import platform
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, Self

NAME, LOCK = "log.txt", ".lock"


class Entry(NamedTuple):
    """The last line of a log. `word` is started, finished, stopped or failed; `text` is what follows it."""

    word: str
    text: str


class Log:
    """Appends lines ``TIME WORD TEXT``, the first of them ``started``. A log that cannot be written stops no run."""

    def __init__(self, folder: Path) -> None:
        self.file: IO[bytes] | None = None
        with suppress(OSError):
            self.file = (folder / NAME).open("ab", buffering=0)
        if self.file and self.file.tell():
            self.file.write(b"\n")  # the line before may have been cut
        self.say(f"started on {platform.node()}, process {os.getpid()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file:
            self.file.close()

    def say(self, event: str) -> None:
        """Add a line; one write, so that no reader sees a half."""
        with suppress(OSError):
            if self.file:
                self.file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {' '.join(event.split())}\n".encode())


def last(folder: Path) -> Entry | None:
    """The last whole line of the folder's log; None if there is none."""
    try:
        with (folder / NAME).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    lines = [line.split(" ", 2) for line in text.split("\n")[:-1] if line]
    return Entry(lines[-1][1].rstrip(":"), "".join(lines[-1][2:])) if lines and len(lines[-1]) > 1 else None


def hold(folder: Path) -> int:
    """Keep other processes off the folder until the file that comes back is closed, or this process ends, however.

    Raises:
        BlockingIOError: another process has it; its text says which.
    """
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    for left in reversed(range(50)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not left:
                owner = os.read(file, 300).decode(errors="replace").strip() or "another process"
                os.close(file)
                raise BlockingIOError(owner) from None
            time.sleep(0.01)  # is_held has it for an instant
        except OSError:
            print(f"the file system of {folder} has no locks: start no other process on it", file=sys.stderr)
            break
    os.truncate(file, 0)
    os.write(file, f"process {os.getpid()} on {platform.node()}\n".encode())
    return file


def is_held(folder: Path) -> bool:
    """Whether a process that this machine knows of is at work in the folder.

    On a network file system without locks, or with locks that each machine has for itself, a run of another machine
    is not seen.
    """
    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
