"""Runs as a comparison sees them: the flat settings and the curves of each seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_plasticity.configs.commands import SIDE_BY_SIDE
from rl_plasticity.configs.written import flat_values
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.names import Curve, MetricName, RunName

Settings = dict[str, Any]
LARGEST = 1e100  # larger values count as infinite: a float cannot hold their square, nor a figure their range


@dataclass(frozen=True)
class Run:
    """One training of one seed.

    Args:
        kind: the command, ``train`` or ``supervised``.
        settings: the settings of the folder and of the run's name in ``metrics.csv``, flat: ``reg.coef``.
        curves: by metric. The steps of ``task/...`` are the numbers of the tasks, from 1.
        borders: the step at the end of each task, where there are several.
        starts: the provenance of the folder, one entry for each start.
    """

    folder: RunFolder
    kind: str
    seed: int
    settings: Settings
    curves: Mapping[str, Curve]
    borders: NDArray[np.int64]
    starts: Sequence[Mapping[str, Any]] = ()

    def __str__(self) -> str:
        return f"{self.folder} (seed {self.seed})"

    @property
    def plugs(self) -> dict[str, str]:
        """The digest of each plug's source, to eight digits; several, joined by +, where it changed between starts."""
        found: dict[str, dict[str, None]] = {}
        for start in self.starts:
            sources = start.get("plugin_sources")
            for module, digest in sources.items() if isinstance(sources, dict) else ():
                found.setdefault(str(module), {})[str(digest)[:8]] = None
        return {module: "+".join(digests) for module, digests in found.items()}

    def unit(self, metric: str) -> str:
        """What the steps of a metric count: env step, update or task."""
        if MetricName.parse(metric).of == "task":
            return "task"
        return "env step" if self.kind == "train" else "update"


def read(folder: RunFolder) -> list[Run]:
    """Read the runs that were trained in `folder`, one for each seed and setting.

    Raises:
        SettingsError: the folder is damaged, not a run's or without a number.
    """
    kind, settings = folder.kind, dict(flat_values(folder.settings))
    runs: list[Run] = []
    metrics = folder.metrics()
    if not metrics:
        raise SettingsError(f"{folder} has written no number yet")
    for name, of_run in metrics.items():
        curves = {
            metric: Curve(steps, np.where(np.abs(values) > LARGEST, np.copysign(np.inf, values), values))
            for metric, (steps, values) in of_run.items()
        }
        ends = curves.pop("task/index", None)
        if ends is not None:  # it is written last at the end of a task, so the others have at least as many rows
            number = ends.values.astype(np.int64) + 1
            for metric, curve in curves.items():
                if MetricName.parse(metric).of == "task":
                    curves[metric] = Curve(number[: len(curve.values)], curve.values[: len(number)])
        borders = ends.steps if ends is not None else np.array([], np.int64)
        own = _overridden(settings, name)
        runs.append(Run(folder, kind, name.seed, own, curves, borders, folder.starts))
    return runs


# ------------------------------------------------------------------------------------------------------------------


def _overridden(settings: Settings, name: RunName) -> Settings:
    """The folder's `settings` updated by a run's name; ``reg.name=spectral`` chooses one of several side by side."""
    of_run = name.values
    for group in SIDE_BY_SIDE:
        if f"{group}.name" in of_run:
            chosen = f"{group}.{of_run[f'{group}.name']}."
            own = {f"{group}.{k.removeprefix(chosen)}": v for k, v in settings.items() if k.startswith(chosen)}
            settings = {k: v for k, v in settings.items() if not k.startswith(f"{group}.")} | own
    return settings | of_run
