"""Soft actor-critic with a high replay ratio, and network regularizers against plasticity loss.

The public names below are imported at first use. Therefore ``import rl_plasticity.regularizers`` needs only torch and
numpy, and a command can be interrupted before it has imported anything.
"""

import importlib
import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_plasticity.agents import AGENTS, SAC, Agent, Batch, ReplayBuffer
    from rl_plasticity.diagnosis.probe import Probe, measure
    from rl_plasticity.diagnosis.verdict import diagnose
    from rl_plasticity.errors import FaultyRun, SettingsError
    from rl_plasticity.interventions import INTERVENTIONS, Intervention, make_intervention
    from rl_plasticity.learning.attached import attach
    from rl_plasticity.learning.learner import Learner
    from rl_plasticity.learning.optimizers import OPTIMIZERS
    from rl_plasticity.metrics import METRICS
    from rl_plasticity.networks import MLP, NETWORKS
    from rl_plasticity.regularizers import REGULARIZERS, Chain, Regularizer, make_regularizer
    from rl_plasticity.runs.command import CALLBACKS
    from rl_plasticity.runs.folder import RunFolder
    from rl_plasticity.runs.trained import load_agent
    from rl_plasticity.settings import Setting
    from rl_plasticity.tasks import DATA, TASKS

__version__ = "0.3.0.dev0"

_HOMES = {
    "agents": ("AGENTS", "SAC", "Agent", "Batch", "ReplayBuffer"),
    "learning.attached": ("attach",),
    "errors": ("FaultyRun", "SettingsError"),
    "interventions": ("INTERVENTIONS", "Intervention", "make_intervention"),
    "learning.learner": ("Learner",),
    "metrics": ("METRICS",),
    "networks": ("MLP", "NETWORKS"),
    "learning.optimizers": ("OPTIMIZERS",),
    "diagnosis.probe": ("Probe", "measure"),
    "diagnosis.verdict": ("diagnose",),
    "regularizers": ("REGULARIZERS", "Chain", "Regularizer", "make_regularizer"),
    "runs.command": ("CALLBACKS",),
    "runs.folder": ("RunFolder",),
    "runs.trained": ("load_agent",),
    "settings": ("Setting",),
    "tasks": ("DATA", "TASKS"),
}

__all__ = [
    "AGENTS",
    "CALLBACKS",
    "DATA",
    "INTERVENTIONS",
    "METRICS",
    "MLP",
    "NETWORKS",
    "OPTIMIZERS",
    "REGULARIZERS",
    "SAC",
    "TASKS",
    "Agent",
    "Batch",
    "Chain",
    "FaultyRun",
    "Intervention",
    "Learner",
    "Probe",
    "Regularizer",
    "ReplayBuffer",
    "RunFolder",
    "Setting",
    "SettingsError",
    "attach",
    "diagnose",
    "load_agent",
    "make_intervention",
    "make_regularizer",
    "measure",
]


# Packages in the extra `rl`: the commands and the agents need them, regularizers in a loop of torch do not.
_OF_RL = {"dm_control", "gymnasium", "matplotlib", "mujoco", "filelock", "packaging", "shimmy"}
_OF_RL |= {"sklearn", "tensorboard", "tqdm", "yaml"}


def which_extra(error: BaseException) -> str:
    """The clause of an import error that says what to install; empty if no extra of this package provides it."""
    module = error.name if isinstance(error, ModuleNotFoundError) and error.name else ""
    return ': pip install "rl_plasticity[rl]"' if module.partition(".")[0] in _OF_RL else ""


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report in one line that a command needs an extra which is not installed."""
    if extra := which_extra(error):
        print(f"rl_plasticity: cannot start: {error}{extra}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:  # python -m rl_plasticity.COMMAND, whose module is imported next
    sys.excepthook = _end

_COMMANDS = ("benchmark", "compare", "evaluate", "status", "supervised", "train", "watch")


def __getattr__(name: str) -> object:
    home = name if name in _COMMANDS else next((home for home, names in _HOMES.items() if name in names), None)
    if home is not None:
        try:
            module = importlib.import_module(f"rl_plasticity.{home}")
            return module if name in _COMMANDS else getattr(module, name)
        except ModuleNotFoundError as error:
            if not which_extra(error):
                raise
            needed = f"rl_plasticity.{name} needs {error.name}{which_extra(error)}"
            raise ModuleNotFoundError(needed, name=error.name) from error
    if name == "fit_fresh_targets":
        raise ImportError("rl_plasticity.fit_fresh_targets is in rl_plasticity_zoo.metrics since 0.3")
    raise AttributeError(f"module 'rl_plasticity' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
