"""What a run writes into its folder: config.yaml, provenance.json, metrics.csv, timing.csv and TensorBoard events."""

import errno
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from omegaconf import OmegaConf
from torch.utils.tensorboard import SummaryWriter

from rl_plasticity.runs.checkpoint import write_atomically

FILES = ("metrics.csv", "timing.csv")


class Results:
    """Writes rows ``run,step,name,value`` as they come, and the same to TensorBoard and, if told so, to W&B.

    ``metrics.csv`` is the source of truth: tidy, append-only, free of wall-clock times, so a resumed run's is equal to
    an uninterrupted one's, bit for bit. Rates go to ``timing.csv``. `run` is the run's name: its seed, or what sets it
    apart from the others of its process and the seed (``reg.coef=1e-05 seed=3``). TensorBoard and W&B also show the
    ``mean`` over the seeds, which is derived and therefore in no file.

    Args:
        folder: exists.
        names: one for each run.
        sizes: on resuming, what `sizes` returned at the checkpoint; rows written after it are dropped, they
            will come again.
        step: the step the run starts at.
        logger: ``wandb`` for Weights & Biases as well; else ``tensorboard``.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        sizes: Mapping[str, int] | None = None,
        step: int = 0,
        logger: str = "tensorboard",
    ) -> None:
        self.names = list(names)
        self.groups = [name.rpartition(" ")[0] for name in self.names]  # of runs that differ in the seed
        self.files: dict[str, IO[str]] = {}
        for name in FILES:
            path = folder / name
            if sizes is not None:
                os.truncate(path, sizes[name])
            self.files[name] = path.open("w" if sizes is None else "a", encoding="utf-8", newline="")
            if sizes is None:
                self.files[name].write("run,step,name,value\n")
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=step if sizes else None)
        self.wandb = _wandb_run(folder) if logger == "wandb" else None
        self.sync()

    def log(self, step: int, values: Mapping[str, torch.Tensor | np.ndarray], where: np.ndarray | None = None) -> None:
        """Of each metric ``[runs]`` a row for each run (of those in the mask `where`); their mean is only shown."""
        rows, shown = [], {}
        for name, value in values.items():
            numbers = [float(v) for v in value]
            known = [i for i in range(len(numbers)) if where is None or where[i]]
            several = len(numbers) > 1
            for i in known:
                rows.append(f"{self.names[i]},{step},{name},{numbers[i]!r}\n")
                shown[f"{name}/{self.names[i]}" if several else name] = numbers[i]
            for group in dict.fromkeys(self.groups):
                own = [numbers[i] for i in known if self.groups[i] == group]
                if own and self.groups.count(group) > 1:
                    shown[f"{name}/{f'{group} mean'.strip()}"] = sum(own) / len(own)
        self.files["metrics.csv"].write("".join(rows))
        self._show(step, shown)

    def time(self, step: int, values: Mapping[str, float]) -> None:
        """Rates and durations of the whole process."""
        for name, value in values.items():
            self.files["timing.csv"].write(f"mean,{step},{name},{value!r}\n")
        self._show(step, {f"timing/{name}": value for name, value in values.items()})
        self.flush()

    def _show(self, step: int, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            self.board.add_scalar(tag, value, step)
        if self.wandb and values:
            self.wandb.log({"step": step, **values})  # its own steps may not go back, as a resumed run's do

    def flush(self) -> None:
        """Hand everything to the operating system.

        Raises:
            OSError: it could not be written, or the files are no longer in their folder.
        """
        for file in self.files.values():
            file.flush()
            if os.fstat(file.fileno()).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "deleted while the run was writing it", file.name)

    def sync(self) -> dict[str, int]:
        """Force everything to the disk; the sizes of the files come back, for a checkpoint."""
        self.board.flush()
        self.flush()
        for file in self.files.values():
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self.files.items()}

    def close(self) -> None:
        with ExitStack() as stack:  # all are closed, even where the disk is full
            if self.wandb:
                stack.callback(self.wandb.finish)
            for close in (self.board.close, *(file.close for file in self.files.values())):
                stack.callback(close)
            self.sync()


def require(logger: str) -> None:
    """Raises ImportError if the library of this `logger` is not installed."""
    if logger == "wandb":
        try:
            from wandb import init  # noqa: F401, a folder of the name, as wandb makes them, can be imported too
        except ImportError as error:
            raise ImportError('logger=wandb needs its library: pip install "rl_plasticity[wandb]"') from error


def _wandb_run(folder: Path) -> Any:
    """The folder's run at Weights & Biases, the same at each start: its id is made of the provenance's first entry.

    Without a login, ``WANDB_MODE`` or a connection it stays in the folder; ``wandb sync`` sends it later.
    """
    import wandb

    first = json.loads((folder / "provenance.json").read_text())["starts"][0]
    settings: dict[str, Any] = {
        "project": os.environ.get("WANDB_PROJECT", "rl_plasticity"),
        "id": hashlib.sha256(json.dumps(first, sort_keys=True).encode()).hexdigest()[:12],
        "name": folder.resolve().name,
        "dir": str(folder),
        "config": OmegaConf.to_container(OmegaConf.load(folder / "config.yaml")),
        "resume": "allow",
        "settings": wandb.Settings(quiet=True, console="off", init_timeout=30, finish_timeout=60),
    }
    offline = "WANDB_MODE" not in os.environ and not wandb.login(prompt=False, verify=False)
    try:
        run = wandb.init(mode="offline" if offline else None, **settings)
    except wandb.Error as error:
        print(f"Weights & Biases: {' '.join(str(error).split())}; going on offline", file=sys.stderr)
        wandb.teardown()  # it still holds the id
        run = wandb.init(mode="offline", **settings)
    run.define_metric("*", step_metric="step")
    return run


def write_text(path: Path, text: str) -> None:
    """Write a small file, whole or not at all."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_provenance(path: Path, device: str) -> None:
    """Add this start of the run to ``provenance.json``: versions, commit, device, command line, time."""
    starts: list[dict[str, Any]] = json.loads(path.read_text())["starts"] if path.exists() else []
    libraries = ("torch", "numpy", "gymnasium", "shimmy", "dm-control", "mujoco", "hydra-core")
    starts.append(
        {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "rl_plasticity": metadata.version("rl_plasticity"),
            "commit": _commit(),
            "libraries": {name: metadata.version(name) for name in libraries},
            "python": platform.python_version(),
            "platform": platform.platform(),
            "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "cpu",
            "threads": torch.get_num_threads(),
        }
    )
    write_text(path, json.dumps({"starts": starts}, indent=2) + "\n")


def _commit() -> str | None:
    """The commit of the checkout this package lies in, with + if it was changed; None outside one."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if not git("ls-files", Path(__file__).name):
            return None  # installed inside somebody else's repository
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
