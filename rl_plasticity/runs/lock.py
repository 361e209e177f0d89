"""A lock on a run's folder for one process at a time; the system releases it when the process ends."""

from filelock import FileLock, Timeout

from rl_plasticity.runs.folder import RunFolder


def locked(folder: RunFolder) -> FileLock:
    """Lock the folder; raises `Timeout` if another process has it."""
    lock = FileLock(folder.lock)
    lock.acquire(timeout=0.5)  # is_held has it for an instant
    return lock


def is_held(folder: RunFolder) -> bool:
    """Whether a process holds the lock of the folder, as far as this machine can see."""
    if not folder.lock.exists():
        return False
    try:
        with FileLock(folder.lock).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False
