"""A lock on a run's folder for one process at a time; the system releases it when the process ends."""

import fcntl
import os
import platform
import sys
import time
from contextlib import suppress
from typing import Self

from rl_plasticity.errors import one_line
from rl_plasticity.runs.files import open_file
from rl_plasticity.runs.folder import RunFolder


class Lock:
    """Keeps other processes off the folder until it is released, or until this process ends in any way.

    The file names the process and its host until the release. If a process of another host did not release it, a line
    on stderr says so: it was killed, or the two hosts do not see each other's locks.

    Raises:
        BlockingIOError: another process has the lock; the error's text names it.
    """

    def __init__(self, folder: RunFolder) -> None:
        # Not through a link: the content of the file is replaced.
        self._file: int | None = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        for left in reversed(range(50)):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    owner = self._owner() or "another process"
                    os.close(self._file)
                    raise BlockingIOError(owner) from None
                time.sleep(0.01)  # is_held has it for an instant
            except OSError:
                said = one_line(f"the file system of {folder} has no locks: start no other process on it")
                print(said, file=sys.stderr)
                break
        here = f"on {platform.node()}"
        if (owner := self._owner()) and not owner.endswith(here):
            said = one_line(f"{owner} was at work in {folder} and did not say that it ended: has it?")
            print(said, file=sys.stderr)
        os.truncate(self._file, 0)
        os.pwrite(self._file, f"process {os.getpid()} {here}\n".encode(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _owner(self) -> str:
        assert self._file is not None
        return os.pread(self._file, 200, 0).decode(errors="replace").strip()

    def release(self) -> None:
        """Let others have the folder; a second call does nothing."""
        if self._file is not None:
            with suppress(OSError):
                os.truncate(self._file, 0)
            os.close(self._file)
            self._file = None


def is_held(folder: RunFolder) -> bool:
    """Whether a process holds the lock of the folder, as far as this machine can see.

    It does not see a run on another machine if the network file system has no locks, or separate ones for each machine.
    """
    try:
        with open_file(folder.lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
