"""What earlier versions had, and what replaces it: settings, choices, presets, commands, forms of a value."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from rl_plasticity.errors import SettingsError, nearest, shown

PAPERS = "went in 0.3: a paper's figure begins and ends a method, python -m papers in a checkout"
STABLE_BASELINES3 = "went in 0.3: load the agent with Stable-Baselines3, and diagnose its networks from Python"
PRESETS = "is a preset for each data set since 0.3: preset="

GONE: dict[str, str] = {
    "logger": "went in 0.3: metrics.csv and TensorBoard have every row, and a plug's CALLBACKS send them anywhere",
    "allow_lost_rows": "went in 0.3: a run whose rows are damaged is not resumed; begin it again",
    "reg.from_update": PAPERS,
    "reg.until_update": PAPERS,
    "reg.from_epoch": PAPERS,
    "reg.until_epoch": PAPERS,
    "reg=all": "went in 0.3: name each, reg=[none,l2,spectral]",
    "reset=all": "went in 0.3: name each, reset=[none,periodic]",
    "reg=chain": "is written reg=l2+spectral in saved settings since 0.3: compare it with the version that made it",
    "reg=side_by_side": "is a list in saved settings since 0.3: compare it with the version that made it",
    "reset=side_by_side": "is a list in saved settings since 0.3: compare it with the version that made it",
    "glob(": "went in 0.3: name each value, reg=none,l2 with -m",
    "${": "went in 0.3: write the value itself",
    "preset=spectral": f"{PRESETS}spectral-mnist, -fashion, -emnist, -svhn, -cifar10, -cifar100, -tiny or -imagenet32",
    "preset=swr": f"{PRESETS}swr-mnist, -cifar10, -cifar100, -cifar100-bn or -tiny",
    "preset=wrs": f"{PRESETS}wrs-cifar10, -cifar100 or -tiny",
    "agent.dropout": "is a setting of agent=later_sac agent.network=dropout_mlp since 0.3",
    "command live": "went in 0.3: python -m rl_plasticity.status results and python -m rl_plasticity.compare results",
    "command reproduce": "is python -m papers since 0.2, in a checkout of the repository",
    "choose": "went from compare in 0.3: compare every value, then report the best one on seeds of its own",
    "against": "went from compare in 0.3: python -m papers draws the papers' curves, in a checkout",
}
GONE |= {name: STABLE_BASELINES3 for name in ("model.zip", "diagnose env", "diagnose algorithm")}
GONE |= {f"agent.{name}": "is a setting of agent=rainbow since 0.3" for name in ("dueling", "atoms")}
# The values with which a setting that went did nothing: saved runs that have them are the runs of today.
DID_NOTHING: dict[str, list[Any]] = yaml.safe_load(Path(__file__).with_name("did_nothing.yaml").read_text("utf-8"))
OF_LATER_SAC = (name for name in DID_NOTHING if name.startswith("agent.") and name not in (*GONE, "agent.log_std"))
GONE |= dict.fromkeys(OF_LATER_SAC, "is a setting of agent=later_sac since 0.3")


def as_gone(setting: str) -> str:
    """A setting's key in `GONE`: its group and its last word, ``reg.from_update`` for ``reg.l2.from_update``."""
    *groups, last = setting.split(".")
    return f"{groups[0]}.{last}" if groups else last


def did_nothing(setting: str, value: Any) -> bool:
    """Whether a saved setting is one that went, with the value that did nothing."""
    return value in DID_NOTHING.get(as_gone(setting), ())


def unknown(what: str, name: object, valid: Iterable[str], written: str = "", hint: str = "") -> SettingsError:
    """The error about a name that is not `valid`: what replaces it if it is gone, else the nearest valid one.

    Args:
        what: the word for such names: ``setting``.
        written: its key in `GONE`, if that is not the name itself: ``preset=spectral``.
        hint: more words about an unknown name.
    """
    written = written or str(name)
    if written in GONE:
        return SettingsError(f"{written} {GONE[written]}")
    return SettingsError(f"unknown {what} {shown(name)}{nearest(name, valid)}{hint}")
