"""Which remedy raises the return: a run goes on from a checkpoint with each of them, and the returns are compared."""

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rl_plasticity import command_line
from rl_plasticity.comparison.groups import Group
from rl_plasticity.comparison.loading import Run, read
from rl_plasticity.comparison.table import FEW, FEW_HINT, Comparison, Row, counted, shown, summarize
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
    parent = saved_settings(Train, folder)
    place = Path(d.out) if d.out else folder.path / "branches" / f"{at}_to_{at + steps}"
    settings = {name: branch.load(Train, arguments) for name, arguments in asked.items()}
    for name, s in settings.items():
        _require_same(RunFolder(place / name), s)
    done = [name for name in asked if finished(place / name)]
    print(_announced(folder, place, parent, at, steps, [*asked], done), file=sys.stderr, flush=True)
    made: dict[str, Path] = {}
    for name, arguments in asked.items():
        if name not in done:
            print(f"{name} ({len(made) + 1} of {len(asked)})", file=sys.stderr, flush=True)
            try:
                if signal := _make(place / name, arguments):
                    print("stopped; the same command goes on", file=sys.stderr)
                    return 128 + signal
            except (ValueError, FaultyRun) as error:
                if name == AS_IT_IS:
                    raise
                print(one_line(f"{name} is left out: {error}"), file=sys.stderr, flush=True)
                continue
        made[name] = place / name
    comparison = compared(made, at)
    print("\n".join(table(comparison)) + f"\n\n{verdict(comparison)}")
    for warning in comparison.warnings:
        print(printable(f"rl_plasticity.diagnose: {warning}"), file=sys.stderr)
    print(f"the curves: python -m rl_plasticity.compare {shlex.quote(str(place))}", file=sys.stderr)
    return 0 if any(not row.undecided for row in _others(comparison)) else 3


def planned(folder: RunFolder, d: Diagnose) -> tuple[int, int, dict[str, list[str]]]:
    """The env step to branch at, the env steps of each branch, and the arguments of each.

    Raises:
        SettingsError: the run cannot be branched so.
    """
    if given := [f"{name}={getattr(d, name)}" for name in ("seed", "run", "network") if getattr(d, name) is not None]:
        raise SettingsError(f"branch=true takes all seeds and networks: leave out {' '.join(given)}")
    if folder.is_run() and folder.kind == "supervised":
        raise SettingsError(f"branch=true compares returns: {folder} is a supervised run; branch it with from=")
    parent = branch.parent_settings(Train, folder)
    if not (saved := [*folder.saved_steps]):
        raise SettingsError(f"{folder} has no checkpoint to branch from")
    at = max(saved) if d.checkpoint is None else d.checkpoint
    if at not in saved:
        raise SettingsError(f"no checkpoint of step {at} in {folder.checkpoints}{nearest(at, map(str, saved))}")
    steps = d.branch_env_steps or max(1, parent.total_env_steps // 10)
    updates = int(checkpoint.load(folder.checkpoints, at, whole=False)["progress"]["updates"])
    if updates_by(parent, at + steps) == updates_by(parent, at):
        raise SettingsError(f"no update would be made in {steps} env steps from {at}: give more, branch_env_steps=N")
    device = device_here(d.device) if d.device != "auto" or device_here("auto") == "cpu" else parent.device
    common = [f"from={folder}", f"at={at}", f"total_env_steps={at + steps}", f"device={device}"]
    common.append(f"eval_every_env_steps={min(parent.eval_every_env_steps, max(1, steps // EVALUATIONS))}")
    resets = {n: [f"reset={n}", f"{ONCE}={updates + 1}", *own] for n, own in RESETS.items()}
    regularizers = {name: [f"reg={name}"] for name in REGULARIZERS if name != parent.reg.name}
    remedies = resets | regularizers
    for name in d.branch_into:
        if name not in remedies:
            raise SettingsError(f"branch_into: no remedy {name!r}{nearest(name, remedies)}")
    chosen = [name for name in remedies if name in (d.branch_into or remedies)]
    return at, steps, {AS_IT_IS: common, **{name: [*common, *remedies[name]] for name in chosen}}


def compared(made: Mapping[str, Path], at: int) -> Comparison:
    """The comparison of branches by their mean return over the evaluations after the env step `at`, by seed."""
    groups = []
    for name, place in made.items():
        runs = [_after(run, at) for run in read(RunFolder(place))]
        groups.append(Group(name, runs[0].settings, {str(runs[0].settings["env.name"]): runs}))
    return summarize(groups, RETURN, baseline=AS_IT_IS)


def table(c: Comparison) -> list[str]:
    """Lines with each remedy's return and its difference from continuing unchanged, the highest first."""
    lines = [["remedy", "return", "difference from continuing unchanged [95 %]"]]
    for row in sorted(c.rows, key=lambda row: _order(row["mean"].value)):
        gap = row.estimates.get("gap")
        difference = "" if gap is None else shown(gap, "{:.3g}".format)
        lines.append([row.label, c.number(row["mean"].value), difference])
    return command_line.aligned(lines)


def verdict(c: Comparison) -> str:
    """What raises the return, or that nothing can be told and which difference would have been."""
    others = sorted(_others(c), key=lambda row: _order(row["gap"].value))
    if not others:
        return "No remedy could be tried."
    best, seeds = others[0], counted(others[0]["gap"].n or 0, "seed")
    says = f"{best.label} is {c.difference(best, 'continuing unchanged')}"
    worse = [row.label for row in others if not row.undecided and row["gap"].value < 0]
    lower = f" {', '.join(worse)} {'lowers' if len(worse) == 1 else 'lower'} it." if worse else ""
    if not best.undecided and best["gap"].value > 0:
        hint = f" {FEW_HINT}" if best.seeds < FEW else ""
        return f"The best remedy over these env steps: {says}.{hint}{lower}"
    text = f"No remedy is shown to raise the return by {seeds}: {says}."
    if best.at_once:
        low, high = best.at_once
        half = (high - low) / 2
        text += f" A difference of {half:.3g} or more would have shown."
    return text + lower


# ------------------------------------------------------------------------------------------------------------------


def _order(value: float) -> float:
    """A key that sorts by falling value, and what is not finite behind it."""
    return -value if math.isfinite(value) else math.inf


def _others(c: Comparison) -> list[Row]:
    return [row for row in c.rows if row.group is not c.baseline]


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
    if not there.config.is_file():
        raise SettingsError(f"{there} is no branch of this run: choose another out=, or move it away")
    saved = saved_settings(Train, there)
    now, then = (naming.identity(replace(one, from_=None)) for one in (s, saved))
    if other := [f"{n}={then.get(n)}, not {now[n]}" for n in now if now[n] != then.get(n)]:
        raise SettingsError(f"{there} holds a run with {other[0]}: choose another out=, or move it away")


def _make(place: Path, arguments: Sequence[str]) -> int:
    """Train a branch, or train it on; returns the signal that stopped it, or 0."""
    from rl_plasticity.train import command

    begun = RunFolder(place).config.is_file()
    session, built = command.prepare([f"resume={place}"] if begun else [*arguments, f"out={place}"])
    return 0 if command.execute(session, built) else session.stop.received


def _announced(
    folder: RunFolder, place: Path, parent: Train, at: int, steps: int, names: Sequence[str], done: Sequence[str]
) -> str:
    """A line that says which branches will be made, how long they take, and where they are."""
    left = len(names) - len(done)
    text = f"{len(names)} branches of {counted(parent.seeds, 'seed')} from env step {at} to {at + steps}: "
    text += f"{', '.join(names)}; {f'{len(done)} are made; ' if done else ''}"
    try:
        rate = folder.timing()["env_steps_per_second"].values[-1]
        text += f"about {command_line.about(left * steps / rate)} at the run's rate; " if left else ""
    except (SettingsError, LookupError, ZeroDivisionError):  # a run without rates
        pass
    return printable(f"{text}in {place}")
