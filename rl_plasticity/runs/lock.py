"""A lock on a run's folder for one process at a time; the system releases it when the process ends."""

import fcntl

from filelock import FileLock

from rl_plasticity.runs.folder import RunFolder


def locked(folder: RunFolder) -> FileLock:
    """Lock the folder; raises filelock's `Timeout` if another process has it."""
    lock = FileLock(folder.lock)
    lock.acquire(timeout=0.5)  # is_held has it for an instant
    return lock


def is_held(folder: RunFolder) -> bool:
    """Whether a process holds the lock of the folder, as far as this machine can see."""
    try:
        with folder.lock.open("rb") as file:  # which others' runs may be, where they may not be written
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
