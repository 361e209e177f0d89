"""The provenance of a run, in its folder: versions, commit, machine, command line, sources of plugs."""

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import torch

from rl_plasticity import __version__, plugins
from rl_plasticity.runs.files import write_text
from rl_plasticity.runs.folder import TIME, RunFolder

LARGEST_PLUG = 1_000_000  # bytes of source that are copied into the folder


def add_start(folder: RunFolder, device: str, used: Mapping[str, Sequence[str]] | None = None) -> None:
    """Add a start of the run to ``provenance.json``: versions, commit, device, command line, time, plugs.

    The files of each plug are copied below ``plugins/``, beside other versions of them from earlier starts.

    Args:
        used: the plugs that the settings choose something from, each with the names of those choices.
    """
    sources = plugins.sources()
    starts = folder.all_starts()
    libraries = "torch numpy gymnasium shimmy dm-control mujoco omegaconf scipy scikit-learn"
    starts.append(
        {
            "time": time.strftime(TIME),
            "command": _command(),
            "rl_plasticity": __version__,
            "commit": _commit(),
            "plugins": plugins.loaded,
            "plugin_sources": sources,
            "plugins_used": dict(used or {}),
            "libraries": {name: metadata.version(name) for name in libraries.split()},
            "python": platform.python_version(),
            "platform": platform.platform(),
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        }
    )
    folder.write_starts(starts)
    for module, contents in plugins.source_files().items():
        is_small = sum(map(len, contents.values())) <= LARGEST_PLUG
        for name, content in contents.items():
            path = folder.path / "plugins" / f"{module}-{sources[module][:8]}" / name
            if is_small and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, content)


def processor() -> str:
    """The name of the processor."""
    with suppress(OSError):  # Linux's name of it is nowhere else
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _command() -> str:
    """The command line of this process, as it can be pasted into a shell."""
    module = getattr(sys.modules["__main__"], "__spec__", None)  # of python -m, and of a sweep's run
    arguments = ["-m", module.name, *sys.argv[1:]] if module else sys.orig_argv[1:]
    return shlex.join(["python", *arguments])


def _commit() -> str | None:
    """The commit of this package's build or checkout, with + if files were changed; None if there is none."""
    here = Path(__file__).parent
    with suppress(OSError):  # a wheel's, see hatch_build.py
        return (here.parent / "commit.txt").read_text().strip() or None

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if not git("ls-files", Path(__file__).name):
            return None  # installed inside somebody else's repository
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
