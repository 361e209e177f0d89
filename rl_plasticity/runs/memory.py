"""Check whether a run fits into the available memory, before anything large is made."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from rl_plasticity.errors import SettingsError

A_RUN = 20_000  # bytes of a run: name, seeds, and the states of its random streams, 5 kB each


def require(runs: int, of_each: Mapping[str, float], device: str = "cpu") -> None:
    """Refuse runs that certainly need more memory than is free.

    Args:
        runs: number of runs that train at once.
        of_each: the least number of bytes of each run, by their purpose and the settings that decide them.
        device: of the tensors.

    Raises:
        SettingsError: it names the free memory, and the size of each purpose.
    """
    there = free(device)
    needed = runs * sum(of_each.values())
    if there is None or needed <= there:
        return
    largest = sorted(of_each, key=of_each.__getitem__, reverse=True)
    parts = [f"{what}: {_size(runs * of_each[what])}" for what in largest if of_each[what] > sum(of_each.values()) / 50]
    of = f" for {runs} runs" if runs > 1 else ""
    raise SettingsError(f"{_size(needed)} of memory would be taken{of}, {_size(there)} are free; {'; '.join(parts)}")


def of_layers(name: str, settings: Mapping[str, Any], batch_size: int) -> dict[str, float]:
    """The least number of bytes of layers whose widths are a list in a group's settings, and of a batch in them.

    Each weight counts four times, with its gradient and two moments of an optimizer. Each output counts twice, with its
    gradient.
    """
    found = {}
    for setting, widths in settings.items():
        if isinstance(widths, list) and widths and all(type(n) is int for n in widths):
            text = f"{name}.{setting}={widths}".replace(", ", ",")
            found[f"layers, {text}"] = 16.0 * (sum(widths) + sum(a * b for a, b in pairwise(widths)))
            found[f"a batch in them, batch_size={batch_size} {text}"] = 8.0 * batch_size * sum(widths)
    return found


def free(device: str = "cpu", root: Path = Path("/")) -> int | None:
    """Number of free bytes on this device; the total if the system names no free ones; None if it names neither.

    On Linux it is the least of the kernel's available memory and what is left of the limits of the process's cgroups.
    """
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    known = [*_available(root), *_left_of_limits(root)]
    if not known:
        with suppress(ValueError, OSError, AttributeError):
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(0, min(known)) if known else None


# ------------------------------------------------------------------------------------------------------------------


def _available(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield 1024 * int(line.split()[1])


def _left_of_limits(root: Path) -> Iterator[int]:
    """For each cgroup that limits this process: the limit minus the memory in use without the page cache."""
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, limit, taken, cache = groups, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top, limit, taken = groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        place = top / path.lstrip("/")
        for folder in (place, *place.parents):
            if not folder.is_relative_to(top):
                break
            with suppress(OSError, ValueError):  # no limit reads "max"
                left = int((folder / limit).read_text()) - int((folder / taken).read_text())
                stat = dict(pair.split() for pair in (folder / "memory.stat").read_text().splitlines())
                yield left + int(stat.get(cache, 0))


def _size(count: float) -> str:
    """``1.5 GB``."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"
