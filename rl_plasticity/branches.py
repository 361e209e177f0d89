"""Find out which remedy raises the return: continue a run from a checkpoint with each, and compare the returns."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rl_plasticity.compare import show
from rl_plasticity.comparison.groups import Group
from rl_plasticity.comparison.loading import Run, read
from rl_plasticity.comparison.table import Comparison, summarize
from rl_plasticity.configs.commands import ONCE, Diagnose, Train, updates_by
from rl_plasticity.errors import FaultyRun, SettingsError, nearest, one_line, printable, refused
from rl_plasticity.runs import branch, checkpoint, naming
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.machine import device_here
from rl_plasticity.runs.names import Curve
from rl_plasticity.runs.trained import saved_settings
from rl_plasticity.sweeps.job import finished

AS_IT_IS = "as it is"
RETURN = "eval/return"
EVALUATIONS = 5  # of each branch, at least
# Interventions act once, after the first update of the branch.
RESETS: dict[str, Sequence[str]] = {
    "redo": (),
    "head": (),
    "shrink_perturb": ("reset.coef=0.5", "reset.init=fresh"),
    "fire": (),
    "periodic": (),
}
REGULARIZERS = ("spectral", "swr", "wrs", "l2_init")  # from there on, in place of the run's own


def branch_run(folder: RunFolder, d: Diagnose) -> int:
    """Branch the run, unchanged and into each remedy, and print how the returns compare.

    What was made by an earlier call is not made again, and a branch that was stopped continues.

    Returns:
        0; 3 if no remedy can be told from continuing unchanged; 128 + the signal that stopped it.

    Raises:
        SettingsError: the run cannot be branched, or something else is where the branches belong.
    """
    at, steps, asked = planned(folder, d)
    place = Path(d.out) if d.out else folder.path / "branches" / f"{at}_to_{at + steps}"
    settings = {name: branch.load(Train, arguments) for name, arguments in asked.items()}
    for name, s in settings.items():
        _require_same(RunFolder(place / name), s)
    done = [name for name in asked if finished(place / name)]
    announced = f"branching from env step {at} to {at + steps}; branches: {', '.join(asked)}; results in {place}"
    print(printable(announced), file=sys.stderr, flush=True)
    made: dict[str, Path] = {}
    for name, arguments in asked.items():
        if name not in done:
            print(f"{name} ({len(made) + 1} of {len(asked)})", file=sys.stderr, flush=True)
            try:
                if signal := _make(place / name, arguments):
                    print("stopped; run the same command again to continue", file=sys.stderr)
                    return 128 + signal
            except (ValueError, FaultyRun) as error:
                if name == AS_IT_IS:
                    raise
                print(one_line(f"{name} is left out: {error}"), file=sys.stderr, flush=True)
                continue
        made[name] = place / name
    comparison = compared(made, at)
    show(comparison, command="diagnose")
    return 0 if any(not row.undecided for row in comparison.rows if row.label != AS_IT_IS) else 3


def planned(folder: RunFolder, d: Diagnose) -> tuple[int, int, dict[str, list[str]]]:
    """The env step to branch at, the env steps of each branch, and the arguments of each.

    Raises:
        SettingsError: the run cannot be branched so.
    """
    if given := [f"{name}={getattr(d, name)}" for name in ("seed", "run", "network") if getattr(d, name) is not None]:
        raise SettingsError(f"branch=true uses all seeds and networks: leave out {' '.join(given)}")
    parent = branch.parent_settings(Train, folder)
    saved = checkpoint.load(folder.checkpoints, d.checkpoint, whole=False)
    at, updates = int(saved["at"]), int(saved["progress"]["updates"])
    steps = d.branch_env_steps or max(1, parent.total_env_steps // 10)
    if updates_by(parent, at + steps) == updates_by(parent, at):
        raise SettingsError(f"no update would be made in {steps} env steps from {at}: give a larger branch_env_steps")
    device = device_here(d.device) if d.device != "auto" or device_here("auto") == "cpu" else parent.device
    common = [f"from={folder}", f"at={at}", f"total_env_steps={at + steps}", f"device={device}"]
    common.append(f"eval_every_env_steps={min(parent.eval_every_env_steps, max(1, steps // EVALUATIONS))}")
    common.append(f"eval_episodes={parent.eval_episodes or 10}")
    resets = {n: [f"reset={n}", f"{ONCE}={updates + 1}", *own] for n, own in RESETS.items()}
    regularizers = {name: [f"reg={name}"] for name in REGULARIZERS if name != parent.reg.name}
    remedies = resets | regularizers
    for name in d.branch_into:
        if name not in remedies:
            raise SettingsError(f"branch_into: unknown remedy {name!r}{nearest(name, remedies)}")
    chosen = [name for name in remedies if name in (d.branch_into or remedies)]
    return at, steps, {AS_IT_IS: common, **{name: [*common, *remedies[name]] for name in chosen}}


def compared(made: Mapping[str, Path], at: int) -> Comparison:
    """The comparison of branches by their mean return over the evaluations after the env step `at`, by seed."""
    groups = []
    for name, place in made.items():
        runs = [_after(run, at) for run in read(RunFolder(place))]
        groups.append(Group(name, runs[0].settings, {str(runs[0].settings["env.name"]): runs}))
    return summarize(groups, RETURN, baseline=AS_IT_IS)


# ------------------------------------------------------------------------------------------------------------------


def _after(run: Run, at: int) -> Run:
    """The run with the mean of its evaluations after `at` as its only return, at the last of them."""
    steps, values = run.curves[RETURN]
    later = steps > at
    return replace(run, curves={RETURN: Curve(steps[later][-1:], np.array([values[later].mean()]))})


def _require_same(there: RunFolder, s: Train) -> None:
    """Raises SettingsError if something other than this branch is in its place."""
    with refused(f"read {there}"):
        if naming.is_free(there.path):
            return
    saved = saved_settings(Train, there)
    now, then = (naming.identity(replace(one, from_=None)) for one in (s, saved))
    if other := [f"{n}={then.get(n)}, not {now[n]}" for n in now if now[n] != then.get(n)]:
        raise SettingsError(f"{there} holds another run, with {other[0]}: choose another out=, or move that run away")


def _make(place: Path, arguments: Sequence[str]) -> int:
    """Train a branch, or train it on; returns the signal that stopped it, or 0."""
    from rl_plasticity.train import command

    begun = RunFolder(place).config.is_file()
    session, built = command.prepare([f"resume={place}"] if begun else [*arguments, f"out={place}"])
    return 0 if command.execute(session, built) else session.stop.received
