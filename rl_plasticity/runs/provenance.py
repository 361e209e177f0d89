"""The provenance of a run, in its folder: versions, commit, machine, command line, sources of plugs."""

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import torch

from rl_plasticity import __version__, plugins
from rl_plasticity.compiling.compiled import processor
from rl_plasticity.runs.files import write_text
from rl_plasticity.runs.folder import TIME, RunFolder


def add_start(folder: RunFolder, device: str, onednn_from: int | None = None) -> None:
    """Add a start of the run to ``provenance.json``: versions, commit, device, products, command line, time, plugs."""
    origin = folder.origin()
    libraries = "torch numpy gymnasium shimmy dm-control mujoco scipy scikit-learn"
    origin["starts"].append(
        {
            "time": time.strftime(TIME),
            "command": command_line_of_this(),
            "rl_plasticity": __version__,
            "commit": _commit(),
            "plugins": plugins.loaded,
            "plugin_sources": plugins.sources(),
            "libraries": {name: metadata.version(name) for name in libraries.split()},
            "python": platform.python_version(),
            "platform": platform.platform(),
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "processor": processor(),
            "onednn_from": onednn_from,
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        }
    )
    write_text(folder.provenance, json.dumps(origin, indent=2) + "\n")


def command_line_of_this() -> str:
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
