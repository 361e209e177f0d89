"""Settings that a run leaves to the machine: device, precision, compiling, threads."""

import math
import os
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from rl_plasticity.compiling import precision
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.errors import SettingsError

S = TypeVar("S", Train, Supervised)
COMPILE_FROM_UPDATES = 10_000  # compiling takes as long as it saves in 6 000 (SAC, cnn) to 11 000 (mlp) updates


def resolved(s: S) -> S:
    """`s` with every ``auto`` decided that needs no network, so that the saved settings say what was used.

    Raises:
        SettingsError: the device is not there, or does not have the precision.
    """
    device = device_here(s.device)
    precise: Any = precision.decided(s.precision, device)
    least = s.bfloat16_from
    if precise == "bfloat16" and least is None:
        torch.set_num_threads(1 if s.threads == "auto" else s.threads)
        least = precision.pays_from(device, min(s.seeds, 8))
    changed: dict[str, Any] = {}
    if device == "cpu" and s.onednn_from is None:
        changed["onednn_from"] = precision.onednn_pays_from()
    if isinstance(s, Train) and s.env.workers == "auto":  # while a GPU updates, the cores are free for environments
        workers = cores() if device == "cuda" else False
        changed["env"] = replace(s.env, settings={**s.env.settings, "workers": workers})
    return replace(s, device=device, precision=precise, bfloat16_from=least, **changed)


def set_products_(module: nn.Module, s: Train | Supervised) -> None:
    """Let the wide layers of a module with a runs axis multiply as the settings say."""
    if s.precision == "bfloat16":
        precision.read_bfloat16_(module, s.bfloat16_from or 1)
    elif s.device == "cpu" and s.onednn_from is not None:
        precision.use_onednn_(module, s.onednn_from)


def device_here(asked: str) -> Any:
    """The device that was asked for, with ``cpu`` or ``cuda`` in place of ``auto``.

    Raises:
        SettingsError: it is not there.
    """
    cuda = torch.cuda.is_available()
    if asked == "cuda" and not cuda:
        raise SettingsError("device=cuda, but torch finds no GPU here; use device=cpu or auto")
    return asked if asked != "auto" else "cuda" if cuda else "cpu"


def require_memory(needed: float, device: str, what: str) -> None:
    """Raises SettingsError if `what` needs more bytes than are free on the device, as far as the system says."""
    known = [math.inf]
    if device == "cuda":
        known = [torch.cuda.mem_get_info()[0]]
    else:
        with suppress(OSError, TypeError):
            known.append(1024 * int(re.search(r"MemAvailable: *(\d+)", Path("/proc/meminfo").read_text())[1]))  # type: ignore[index]
        with suppress(OSError, ValueError):  # of a container; no limit reads "max"
            known.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    if needed > min(known):
        raise SettingsError(f"{what} needs {needed / 1e9:.3g} GB of memory, and {min(known) / 1e9:.3g} GB are free")


def decided(s: S, runs: int, is_stacked: bool, updates: float) -> S:
    """`s` with ``compile=auto`` and ``threads=auto`` decided; sets torch's number of threads.

    Args:
        runs: number of runs that train at once.
        is_stacked: whether the networks have a runs axis; to compile others for a CPU takes minutes, and gains nothing.
        updates: number of updates of a run.
    """
    compiles = s.compile
    if compiles == "auto":
        has_compiler = s.device == "cuda" or any(shutil.which(c) for c in ("c++", "g++", "clang++"))
        compiles = has_compiler and is_stacked and updates >= COMPILE_FROM_UPDATES
    threads = s.threads
    if threads == "auto":
        threads = 1 if is_stacked and runs == 1 else cores()
    set_threads(s, threads, runs)
    return replace(s, compile=compiles, threads=threads)


def set_threads(s: Train | Supervised, threads: int, runs: int) -> None:
    """Let torch itself use one thread if runs are divided among threads, else those of the setting."""
    torch.set_num_threads(1 if s.device == "cpu" and runs > 1 else threads)


def cores() -> int:
    """Number of cores that this process may use, by the machine, the container and ``OMP_NUM_THREADS``."""
    number = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # "200000 100000": of each 100 ms 200 ms of processor time; "max 100000"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        number = min(number, max(1, round(int(quota) / int(period))))
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(number, int(asked))) if asked.isdecimal() else number
