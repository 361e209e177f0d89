"""Paths as they are written."""

import os
from pathlib import Path


def expanded(path: str | os.PathLike[str]) -> Path:
    """A path with the home folder for its ``~``; as a shell does, one that is nobody's stays a name."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def cache_folder() -> Path:
    """Ours among the user's caches: whatever is in it can be deleted.

    Raises:
        OSError: the user has no home.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = folder if folder.is_absolute() else expanded("~/.cache")
    if not folder.is_absolute():
        raise FileNotFoundError("there is no home folder")
    return folder / "rl_plasticity"


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether something is there, as far as can be seen: a name too long for any file is nowhere."""
    return os.path.exists(path)  # noqa: PTH110  Path's raises then
