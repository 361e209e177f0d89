"""A branch: a new run that begins at a checkpoint of another run, with other settings from there on.

The new folder gets the rows of the other run up to that step, and its checkpoint with the new settings. Then it is a
run like any other: it continues from there, and a killed one resumes.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rl_plasticity import plugins
from rl_plasticity.agents.replay_buffer import stored
from rl_plasticity.compiling.shares import Cut, Shares
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import BRANCH, ONCE, SIDE_BY_SIDE, Supervised, Train
from rl_plasticity.configs.written import Given, as_written, by_name
from rl_plasticity.envs import Envs
from rl_plasticity.errors import SettingsError, refused
from rl_plasticity.learning.learner import Learner
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.files import write_text
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.names import RunName
from rl_plasticity.runs.plan import Plan, variants
from rl_plasticity.runs.results import END
from rl_plasticity.runs.trained import CHANGES, ENV, saved_settings
from rl_plasticity.seeding import derive

S = TypeVar("S", Train, Supervised)
# What a run begins with, and what the counts and shapes in a checkpoint depend on; with a dot, every such setting.
FIXED: dict[Any, str] = {
    Train: "preset seed seeds env env.action_repeat agent buffer_size random_env_steps prime_updates "
    "prime_after_env_steps",
    Supervised: "preset seed seeds task task. data data. net net. num_tasks epochs_per_task batch_size",
}
REGULARIZER, DECIDED = ".regularizer.", (".regularizer.", ".optimizer.")  # in the names of a trained module's tensors


def load(kind: type[S], asked: Iterable[str | Given]) -> S:
    """The settings of a new run: those of `schema.load`, or with ``from=FOLDER`` those of a branch.

    A branch has the settings of the run in the folder, and those that are given. A given choice replaces a group.

    Raises:
        SettingsError: bad settings, no such run or checkpoint, or a setting that a branch cannot change.
    """
    asked = list(asked)
    given = by_name(asked)
    if given.get("from") is None:
        settings = schema.load(kind, asked)
        if settings.at is not None:
            raise SettingsError(f"at={settings.at} needs from=FOLDER, the run that has this checkpoint")
        return settings
    folder: RunFolder = RunFolder(str(given["from"]))
    if given.get("resume") is not None:
        raise SettingsError(f"from={folder} begins a run, and resume={given['resume']} continues one: give one of them")
    schema.load_plugs(given.get("plugins", []))
    with refused(f"read {folder}"):
        parent = parent_settings(kind, folder)
        steps = [*folder.saved_steps]
    machine, fixed = schema.marked(kind, "machine"), FIXED[kind].split()
    for name in given:
        if name not in machine and (name in fixed or f"{name.partition('.')[0]}." in fixed):
            raise SettingsError(f"{name} cannot be given with from=: a branch has that of {folder}")
    base = replace(parent, out="auto", resume=None, from_=None, at=None)
    if any(name.partition(".")[0] == "reset" for name in given):  # what acted once in the run is another intervention
        base = replace(base, reset_once_after_updates=None)
    settings = schema.load(kind, asked, base)
    if not steps:
        raise SettingsError(f"{folder} has no checkpoint to branch from")
    at = max(steps) if settings.at is None else settings.at
    if at not in steps:
        raise SettingsError(f"at={at}: {folder} has checkpoints of {', '.join(map(str, steps))}")
    if isinstance(settings, Train) and isinstance(parent, Train):
        _require_consistent(settings, parent, folder, at)
        _require_effect(settings, parent)
    return replace(settings, from_=str(folder.path.absolute()), at=at)


def parent_settings(kind: type[S], folder: RunFolder) -> S:
    """The settings of the run to branch.

    Raises:
        SettingsError: there is no such run, its plugs are not loaded, or it holds several settings side by side.
    """
    if folder.config.is_file() and (plugs := plugins.missing(folder.plugins)):
        raise SettingsError(f"cannot branch {folder}: {plugs}")
    parent = saved_settings(kind, folder)
    if len(variants(parent)) > 1:
        raise SettingsError(f"{folder} holds several settings side by side: train each alone (-m), and branch that run")
    return parent


def state_of(
    saved: dict[str, Any],
    s: S,
    plan: Plan,
    parent: S,
    make: Callable[[S, Plan], nn.Module],
    callbacks: Mapping[str, object],
) -> dict[str, Any]:
    """The checkpoint of a branch with the settings `s`: the `saved` one of its parent, for each variant side by side.

    What the settings decide is as they say, and what training made is as it was. So tensors of regularizer and
    optimizer are new where the settings changed them: strengths, learning rates. All others are the saved ones. A
    regularizer that the parent did not have is as if made for the network that the run began with. Where tasks change
    otherwise, the episodes under way are truncated, and the next ones begin.

    Args:
        plan: of the branch.
        make: makes the agent or learner of the runs of a plan.
        callbacks: of the branch, by name. The state of one that the parent did not have is a new one's.

    Raises:
        SettingsError: the checkpoint does not fit the settings.
    """
    known: dict[str, Any] = {
        f"callbacks.{name}": callback for name, callback in callbacks.items() if hasattr(callback, "load_state_dict")
    }
    for name in saved:
        if name.startswith("callbacks.") and (name not in known or len(variants(s)) > 1):
            why = "cannot be in several variants" if name in known else "is not loaded"
            raise SettingsError(f"cannot branch: the checkpoint holds the state of {name}, which {why}")
    once, made = s.reset_once_after_updates, int(saved["progress"]["updates"])
    if once is not None and once <= made and once != parent.reset_once_after_updates:
        raise SettingsError(f"{ONCE}={once} has passed: {made} updates were made at={s.at}")
    name = next(part for part in ("agent", "learner") if part in saved)
    of_plan = partial(make, s)
    whole, before = of_plan(plan), make(parent, Plan.of(parent)).state_dict()
    shares = Shares(whole, lambda runs: of_plan(plan.some(runs)), _cuts(plan, s.seeds), threads=1)
    try:
        for module, variant in zip(shares.modules, variants(s), strict=True):
            _fit_(module, saved[name], before, variant.reg.name == parent.reg.name)
        state = {n: _repeated(n, value, s.seeds, len(shares.modules)) for n, value in saved.items()}
        state["table"] = _repeated_rows(saved["table"], len(shares.modules))
        if isinstance(s, Train) and isinstance(parent, Train) and changes_env(s, parent):
            _end_episodes_(state, s, plan)
    except Exception as error:  # the settings do not fit, or a file that is whole holds anything
        now, then = (schema.without_machine(type(one), one.flat) for one in (s, parent))
        other = [n for n in now if now[n] != then.get(n) and n.partition(".")[0] not in (*SIDE_BY_SIDE, *BRANCH)]
        given = " ".join(f"{n}={as_written(now[n])}" for n in other)
        raise SettingsError(
            f"the checkpoint of at={s.at} does not fit {given}: {' '.join(str(error).split())}"
        ) from error
    new = {key: callback.state_dict() for key, callback in known.items() if key not in saved}
    return {**state, **new, name: whole.state_dict()}


def write(place: Path, s: S, saved: dict[str, Any], parent: RunFolder, names: Sequence[Sequence[RunName]]) -> None:
    """Write the folder of a branch, whole or not at all; `saved` gets the sizes and ends of its files.

    Args:
        place: where nothing is yet.
        saved: the checkpoint of the branch.
        names: of the parent's runs, and of those of the branch.

    Raises:
        OSError: it cannot be written, or something is there meanwhile.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".branch-", dir=place.parent) as beside:
        new = RunFolder(Path(beside) / "new")
        new.path.mkdir()
        for path in (parent.metrics_csv, parent.timing_csv):
            with path.open("rb") as file:
                content = file.read(saved["sizes"][path.name])
            content = _renamed(content, *names) if path == parent.metrics_csv else content
            write_text(new.path / path.name, content)
            saved["sizes"][path.name], saved["ends"][path.name] = len(content), content[-END:].decode(errors="replace")
        came: dict[str, Any] = {"from": s.from_, "at": s.at, "starts": parent.starts}
        came |= {"updates": saved["progress"]["updates"]}
        came |= {"branch": parent.branch} if parent.branch else {}
        write_text(new.provenance, json.dumps({"branch": came, "starts": []}, indent=2) + "\n")
        saved["settings"] = s.flat
        checkpoint.write(new.checkpoints, saved)
        new.write_settings(schema.dump(s))
        new.path.rename(place)


# --------------------------------------------------------------------------------------------------------------------


def _require_consistent(s: Train, parent: Train, folder: RunFolder, at: int) -> None:
    """Raises SettingsError where a branch at this env step cannot have the settings `s`."""
    if s.total_env_steps <= at:
        raise SettingsError(f"total_env_steps={s.total_env_steps} must be above at={at}: the branch begins there")
    if bool(s.measure_every_updates) is not (measured := bool(parent.measure_every_updates)):
        did = "measured" if measured else "did not measure"
        raise SettingsError(
            f"measure_every_updates={s.measure_every_updates}: {folder} {did} plasticity, so must a branch"
        )
    if s.prime_updates and at == s.prime_after_env_steps and s.replay_ratio != parent.replay_ratio:
        raise SettingsError(f"replay_ratio={s.replay_ratio:g} cannot be given at={at}, the env step of heavy priming")


def _require_effect(s: Train, parent: Train) -> None:
    """Raises SettingsError for a changed setting that only counts where weights are new, if no weights will be new."""
    resets = {variant.reset.name for variant in variants(s)}
    renews = resets != {"none"} or {variant.reg.name for variant in variants(s)} != {"none"}
    now, then = (one.agent.flat("agent") for one in (s, parent))
    for name, has_effect in {"agent.init": renews, "agent.init_alpha": "periodic" in resets}.items():
        if not has_effect and (value := now.get(name)) != then.get(name):
            only = "with reset=periodic" if renews else "with an intervention, reset=NAME"
            raise SettingsError(f"{name}={as_written(value)} has an effect in a branch only {only}")


def changes_env(s: Train, parent: Train) -> bool:
    """Whether the tasks of a branch change otherwise than those of its parent."""
    now, then = (schema.without_machine(Train, one.env.flat("env")) for one in (s, parent))
    return now != then


def _end_episodes_(state: dict[str, Any], s: Train, plan: Plan) -> None:
    """Truncate the episodes under way in the `state` of a branch, and begin the next ones in its own environments.

    The task of the branch point has no return before it was learned, and no area: these become NaN.
    """
    saved, rows, buffer = state["envs"]["states"], state["table"], state["buffer"]
    seeds, change_seeds = ([derive(n, key) for n in plan.seeds] for key in (ENV, CHANGES))
    envs = Envs(s.env.name, seeds, change_seeds=change_seeds, **{**s.env.settings, "workers": False})
    try:
        # An episode without a step is begun once more.
        envs.vector.set_attr("episode", [one["episode"] - (len(one["actions"]) == 0) for one in saved])
        envs.vector.set_attr("steps", [one["steps"] for one in saved])
        obs = stored(torch.from_numpy(envs.reset()), envs.spaces.levels)
        state["envs"] = envs.state_dict()
    finally:
        envs.close()
    if rows:
        end, last_obs = rows["end"].clone(), rows["last_obs"]
        was_truncated = end[-1] > 0
        own = last_obs[len(last_obs) - int(was_truncated.sum()) :]
        newest = buffer["newest_obs"].clone()
        newest[was_truncated] = own
        end[-1][end[-1] == 0] = 1
        last_obs = torch.cat([last_obs[: len(last_obs) - len(own)], newest[end[-1] > 0]])
        state["table"] = {**rows, "end": end, "last_obs": last_obs}
    state["buffer"] = {**buffer, "newest_obs": obs}
    progress = state["progress"]
    unknown = torch.full_like(progress["first_return"], float("nan" if s.env.switch_every_env_steps else 0))
    state["progress"] = {
        **progress,
        "episode_return": torch.zeros_like(progress["episode_return"]),
        "first_return": unknown,
        "task_area": progress["task_area"] + unknown,
    }


def _renamed(content: bytes, before: Sequence[RunName], names: Sequence[RunName]) -> bytes:
    """Rows of a metrics.csv under new names. Where several runs branch from one, each of them gets its rows."""
    header, *lines = content.decode().splitlines(keepends=True)
    position = {str(name): i for i, name in enumerate(before)}
    fields = [line.rsplit(",", 3) for line in lines]
    rows = [header]
    for _, of_metric in groupby(fields, key=lambda row: row[1:3]):
        here = [(position[run], ",".join(rest)) for run, *rest in of_metric]
        rows += [f"{names[first + run]},{rest}" for first in range(0, len(names), len(before)) for run, rest in here]
    return "".join(rows).encode()


def _cuts(plan: Plan, seeds: int) -> list[Cut]:
    """The runs of each variant, as shares of all."""
    found: list[Cut] = []
    for part, number in enumerate(plan.side_by_side):
        first = found[-1].stop if found else 0
        for start in range(first, first + number, seeds):
            found.append(Cut(start, start + seeds, part if len(plan.side_by_side) > 1 else None, first))
    return found


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
        raise ValueError(f"{other[0]} is in one of them alone")
    is_same_method = is_same_method and of_method == theirs
    decided = {n for n in mine if any(part in f".{n}" for part in DECIDED)}
    kept = {n for n in decided if n in before and torch.equal(mine[n], before[n])}
    decided -= kept if is_same_method else kept - of_method
    module.load_state_dict({n: value if n in decided else saved[n] for n, value in mine.items()})
    for path, learner in module.named_modules():
        if isinstance(learner, Learner):  # a restarted run has begun with other weights than a new learner's
            made, own = (r.state_dict() for r in (learner.regularize(learner.initial()), learner.regularizer))
            for n, value in made.items():
                if f"{path}{REGULARIZER}{n}".removeprefix(".") in decided:
                    own[n].copy_(value)


def _repeated(name: str, value: Any, runs: int, times: int) -> Any:
    """The state of a part for every variant, one after the other, as the runs are in a plan."""
    if isinstance(value, Mapping):
        return {n: _repeated(n, inner, runs, times) for n, inner in value.items() if name != "table"}
    if isinstance(value, Tensor):  # what has a runs axis has it first; a table's rows are turned by `_repeated_rows`
        return value.repeat(times, *[1] * (value.ndim - 1)) if value.ndim and len(value) == runs else value
    return value * times if name == "states" else value  # of the environments


def _repeated_rows(table: Mapping[str, Tensor], times: int) -> dict[str, Tensor]:
    """The rows of a replay buffer, see `ReplayBuffer.since`, for every variant."""
    if not table or times == 1:
        return dict(table)
    number = torch.full(table["end"].shape, -1)  # of each last obs
    number[table["end"] > 0] = torch.arange(len(table["last_obs"]))
    number = number.repeat(1, times)
    rows = {
        name: table[name].repeat(1, times, *[1] * (table[name].ndim - 2)) for name in ("obs", "act", "reward", "end")
    }
    return rows | {"last_obs": table["last_obs"][number[number >= 0]]}
