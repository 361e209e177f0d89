"""Who is at work in a run's folder: one process at a time, by a lock that the system drops when the process ends."""

import fcntl
import os
import platform
import sys
import time
from typing import Self

from rl_plasticity.runs.folder import RunFolder


class Lock:
    """Keeps other processes off the folder until it is released, or this process ends, however.

    Raises:
        BlockingIOError: another process has it; the error's text says which.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._file: int | None = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o666)
        for left in reversed(range(50)):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    owner = os.read(self._file, 200).decode(errors="replace").strip() or "another process"
                    self.release()
                    raise BlockingIOError(owner) from None
                time.sleep(0.01)  # is_held has it for an instant
            except OSError:
                print(f"the file system of {folder} has no locks: start no other process on it", file=sys.stderr)
                break
        os.truncate(self._file, 0)
        os.write(self._file, f"process {os.getpid()} on {platform.node()}\n".encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Let others have the folder; a second call does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def is_held(folder: RunFolder) -> bool:
    """Whether a process that this machine knows of is at work in the folder.

    On a network file system without locks, or with locks that each machine has for itself, a run of another machine
    is not seen.
    """
    try:
        with folder.lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
