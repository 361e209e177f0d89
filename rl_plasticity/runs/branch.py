"""A branch: a new run that begins at a checkpoint of another run, with other settings from there on.

The new folder gets the rows of the other run up to that step, and its checkpoint with the new settings. Then it is a
run like any other: it continues from there, and a killed one resumes.
"""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import ONCE, Supervised, Train
from rl_plasticity.configs.written import Asked, by_name
from rl_plasticity.errors import SettingsError, counted, reason, refused
from rl_plasticity.learning.learner import Learner
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.files import write_text
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.plan import Plan, variants
from rl_plasticity.runs.trained import saved_settings

S = TypeVar("S", Train, Supervised)
# What a run begins with, and what the counts and shapes in a checkpoint depend on; with a dot, every such setting.
FIXED: dict[Any, str] = {
    Train: "preset seed seeds env env. agent buffer_size random_env_steps prime_updates prime_after_env_steps",
    Supervised: "preset seed seeds task task. data data. net net. num_tasks epochs_per_task batch_size",
}
REGULARIZER, DECIDED = ".regularizer.", (".regularizer.", ".optimizer.")  # in the names of a trained module's tensors


def load(kind: type[S], asked: Asked) -> S:
    """The settings of a new run: those of `schema.load`, or with ``from=FOLDER`` those of a branch.

    A branch has the settings of the run in the folder, and those that are given. A given choice replaces a group.

    Raises:
        SettingsError: bad settings, no such run or checkpoint, or a setting that a branch cannot change.
    """
    given = by_name(asked)
    if given.get("from") is None:
        settings = schema.load(kind, given)
        if settings.at is not None:
            raise SettingsError(f"at={settings.at} needs from=FOLDER, the folder of the run with this checkpoint")
        return settings
    folder: RunFolder = RunFolder(str(given["from"]))
    if given.get("resume") is not None:
        raise SettingsError(f"from={folder} starts a new run, resume={given['resume']} continues one: give only one")
    schema.load_plugs(given.get("plugins", []))
    with refused(f"read {folder}"):
        parent = parent_settings(kind, folder)
        steps = [*folder.saved_steps]
    machine, fixed = schema.marked(kind, "machine"), FIXED[kind].split()
    for name in given:
        if name not in machine and (name in fixed or f"{name.partition('.')[0]}." in fixed):
            raise SettingsError(f"{name} cannot be given with from=: a branch takes it from {folder}")
    base = replace(parent, out="auto", resume=None, from_=None, at=None)
    if any(name.partition(".")[0] == "reset" for name in given):  # what acted once in the run is another intervention
        base = replace(base, reset_once_after_updates=None)
    settings = schema.load(kind, given, base)
    at = max(steps, default=None) if settings.at is None else settings.at
    if at not in steps:
        raise SettingsError(f"at={at}: {folder} has no such checkpoint (valid: {', '.join(map(str, steps)) or 'none'})")
    if isinstance(settings, Train) and isinstance(parent, Train):
        _require_consistent(settings, parent, folder, at)
    if len(variants(settings)) > 1:
        raise SettingsError("a branch is one run, without lists in reg or reset: for several, give -m reset=none,head")
    return replace(settings, from_=str(folder.path.absolute()), at=at)


def parent_settings(kind: type[S], folder: RunFolder) -> S:
    """The settings of the run to branch.

    Raises:
        SettingsError: there is no such run, its plugs are not loaded, or it holds several settings side by side.
    """
    parent = saved_settings(kind, folder)
    if len(variants(parent)) > 1:
        raise SettingsError(
            f"{folder} trained several settings side by side: train each one alone (-m) and branch that run"
        )
    return parent


def state_of(
    saved: dict[str, Any], s: S, plan: Plan, parent: S, make: Callable[[S, Plan], nn.Module]
) -> dict[str, Any]:
    """The checkpoint of a branch with the settings `s`, from the `saved` one of its parent.

    What the settings decide is as they say, and what training made is as it was. So tensors of regularizer and
    optimizer are new where the settings changed them: strengths, learning rates. All others are the saved ones. A
    regularizer that the parent did not have is as if made for the network that the run began with.

    Args:
        make: makes the agent or learner of the runs of a plan.

    Raises:
        SettingsError: the checkpoint does not fit the settings.
    """
    once, made = s.reset_once_after_updates, int(saved["progress"]["updates"])
    if once is not None and once <= made and once != parent.reset_once_after_updates:
        raise SettingsError(f"{ONCE}={once} must be above the {counted(made, 'update')} made before at={s.at}")
    name = next(part for part in ("agent", "learner") if part in saved)
    module, before = make(s, plan), make(parent, Plan.of(parent)).state_dict()
    try:
        _fit_(module, saved[name], before, s.reg.name == parent.reg.name)
    except Exception as error:  # the settings do not fit, or a file that is whole holds anything
        other = [f"{n}={v}" for n, v in s.flat.items() if "." in n and parent.flat.get(n) != v]
        raise SettingsError(f"the checkpoint of at={s.at} does not fit {', '.join(other)}: {reason(error)}") from error
    return {**saved, name: module.state_dict()}


def write(place: Path, s: S, saved: dict[str, Any], parent: RunFolder) -> None:
    """Write the folder of a branch, whole or not at all; `saved` gets the sizes and ends of its files.

    Args:
        place: where nothing is yet.
        saved: the checkpoint of the branch.

    Raises:
        OSError: it cannot be written, or something is there meanwhile.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".branch-", dir=place.parent) as beside:
        new = RunFolder(Path(beside) / "new")
        new.path.mkdir()
        for path in (parent.metrics_csv, parent.timing_csv):
            with path.open("rb") as file:
                write_text(new.path / path.name, file.read(saved["sizes"][path.name]))
        came: dict[str, Any] = {"from": s.from_, "at": s.at, "starts": parent.starts}
        came |= {"updates": saved["progress"]["updates"]}
        write_text(new.provenance, json.dumps({"branch": came, "starts": []}, indent=2) + "\n")
        saved["settings"] = s.flat
        checkpoint.write(new.checkpoints, saved)
        new.write_settings(schema.dump(s))
        new.path.rename(place)


# --------------------------------------------------------------------------------------------------------------------


def _require_consistent(s: Train, parent: Train, folder: RunFolder, at: int) -> None:
    """Raises SettingsError where a branch at this env step cannot have the settings `s`."""
    if s.total_env_steps <= at:
        raise SettingsError(f"total_env_steps={s.total_env_steps} must be above at={at}, where the branch starts")
    if bool(s.measure_every_updates) is not (measured := bool(parent.measure_every_updates)):
        did = "measured" if measured else "did not measure"
        raise SettingsError(
            f"measure_every_updates={s.measure_every_updates}: {folder} {did} plasticity, and a branch must do the same"
        )
    if s.prime_updates and at == s.prime_after_env_steps and s.replay_ratio != parent.replay_ratio:
        raise SettingsError(f"replay_ratio={s.replay_ratio:g} cannot be given at={at}, the env step of heavy priming")


def _fit_(module: nn.Module, saved: Mapping[str, Any], before: Mapping[str, Any], is_same_method: bool) -> None:
    """Load the `saved` state into a new `module`, but keep what its settings decide.

    Args:
        before: the state of a module that was just made with the settings of `saved`.
        is_same_method: whether these choose the same regularizer.

    Raises:
        Exception: it does not fit.
    """
    mine = module.state_dict()
    of_method, theirs = ({n for n in state if REGULARIZER in f".{n}"} for state in (mine, saved))
    if other := sorted((mine.keys() ^ saved.keys()) - of_method - theirs):
        raise ValueError(f"only one of them has {other[0]}")
    is_same_method = is_same_method and of_method == theirs
    decided = {n for n in mine if any(part in f".{n}" for part in DECIDED)}
    # What a new module begins with otherwise, a trained one has from its settings: initial weights, a critic's atoms.
    if begun := sorted(n for n in mine.keys() - decided if n in before and not torch.equal(mine[n], before[n])):
        raise ValueError(f"they change {begun[0]}, which the checkpoint has")
    kept = {n for n in decided if n in before and torch.equal(mine[n], before[n])}
    decided -= kept if is_same_method else kept - of_method
    module.load_state_dict({n: value if n in decided else saved[n] for n, value in mine.items()})
    for path, learner in module.named_modules():
        if isinstance(learner, Learner):  # a restarted run has begun with other weights than a new learner's
            made, own = (r.state_dict() for r in (learner.make_regularizer(learner.initial()), learner.regularizer))
            for n, value in made.items():
                if f"{path}{REGULARIZER}{n}".removeprefix(".") in decided:
                    own[n].copy_(value)
