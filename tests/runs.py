"""Folders as runs leave them, made without training."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from rl_plasticity.configs import schema
from rl_plasticity.configs.schema import Supervised, Train

Rows = Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]


@cache
def config(kind, arguments):
    return schema.dump(schema.load({"train": Train, "supervised": Supervised}[kind], list(arguments)))


def write_run(folder: Path, arguments: Sequence[str], rows: Rows, kind: str = "train") -> Path:
    """A folder with settings and, for each run and metric, rows (step, value)."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config(kind, tuple(arguments)))
    lines = [
        f"{run},{step},{name},{value!r}\n"
        for run, metrics in rows.items()
        for name, points in metrics.items()
        for step, value in points
    ]
    (folder / "metrics.csv").write_text("run,step,name,value\n" + "".join(lines))
    return folder


def curve(values: Sequence[float], name: str = "eval/return", every: int = 1000) -> dict[str, list[tuple[int, float]]]:
    """A metric at every so many steps."""
    return {name: [(every * (i + 1), value) for i, value in enumerate(values)]}


def tasks(values: Sequence[float], every: int = 60) -> dict[str, list[tuple[int, float]]]:
    """A supervised run's rows at the end of each task."""
    found = curve(values, "task/train_accuracy", every) | curve([v / 2 for v in values], "task/online_accuracy", every)
    return found | curve([float(i) for i in range(len(values))], "task/index", every)
