"""A terminal that is closed, disappears or interrupts causes no traceback and ends no run.

It imports nothing slow, because a command calls it first.
"""

import errno
import io
import os
import select
import sys
from types import TracebackType
from typing import Any, TextIO

from rl_plasticity import which_extra

_NOBODY_LISTENS = (errno.EPIPE, errno.EIO)  # ... | head -1; a terminal that was closed
_lost: dict[int, OSError] = {}  # by the file's number: why what was written to it is lost


class Lenient(io.FileIO):
    """Standard output or error that drops what cannot be written."""

    def write(self, data: Any) -> int:
        try:
            written: int | None
            while (written := super().write(data)) is None:  # another program made the terminal one that never blocks
                select.select([], [self], [])
            return written
        except OSError as error:
            _lost.setdefault(self.fileno(), error)
            return len(data)


def lenient(number: int, like: TextIO | None) -> TextIO:
    """A stream to the file `number`, with the buffering and encoding of the stream `like`."""
    raw = Lenient(number, "w", closefd=False)
    if like is None:
        return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "replace")
    unbuffered, lines = (bool(getattr(like, name, False)) for name in ("write_through", "line_buffering"))
    # As in Python itself, an unbuffered stream has nothing between text and file.
    binary: Any = raw if unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(binary, like.encoding, like.errors, line_buffering=lines, write_through=unbuffered)


def prepare() -> None:
    """Prepare the streams and the hook for errors of a command's process, before its slow imports."""
    sys.excepthook = _end
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # 2>&-: the next file to be opened would get this number, and what is meant for a terminal
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None or _number(stream) == number:
            setattr(sys, name, lenient(number, stream))


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report in one line what ends a process during imports: no files, memory or space left, or a missing library."""
    if issubclass(kind, OSError | ImportError | MemoryError):
        said = " ".join(str(error).split()) or kind.__name__
        print(f"rl_plasticity: cannot start: {said}{which_extra(error)}", file=sys.stderr)
    elif kind is not KeyboardInterrupt:
        sys.__excepthook__(kind, error, trace)


def listens() -> bool:
    """Whether standard output can still be written, as far as is known."""
    return 1 not in _lost


def require_printed() -> None:
    """Raises OSError if a command's output was not printed, unless the reader was gone."""
    if sys.stdout is not None:
        sys.stdout.flush()
    if 1 in _lost and _lost[1].errno not in _NOBODY_LISTENS:
        raise OSError(_lost[1].errno, _lost[1].strerror, "standard output")


def _number(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError):  # a notebook's
        return None
