"""The steps at which runs are compared, and whether runs had finished or been reset by then."""

from collections.abc import Sequence
from functools import reduce

import numpy as np

from rl_plasticity.comparison.groups import Group
from rl_plasticity.comparison.loading import Run
from rl_plasticity.configs.commands import ONCE, learning_env_steps, updates_after
from rl_plasticity.errors import SettingsError
from rl_plasticity.interventions import INTERVENTIONS
from rl_plasticity.metrics import statistics
from rl_plasticity.metrics.statistics import Array, Steps
from rl_plasticity.runs.names import Curve
from rl_plasticity.runs.plan import LEARNS_AGAIN

OF_EPISODES = "train/return"  # episodes end at any step


def shared(metric: str, curves: Sequence[Curve]) -> Steps:
    """The steps at which all of these curves of a metric have a value; there may be none.

    A value is never used for another step: runs measured every 100 and every 400 steps share the steps 400, 800, ...
    Episodes may end at other steps in each run. Their steps are all those at which an episode of any run ends, from
    where every run has a value to where the shortest one ends.
    """
    if metric == OF_EPISODES:
        common: Steps = np.unique(np.concatenate([curve.steps for curve in curves]))
        start, end = max(curve.steps[0] for curve in curves), min(curve.steps[-1] for curve in curves)
        common = common[(common >= start) & (common <= end)]
    else:
        common = reduce(np.intersect1d, (curve.steps for curve in curves))
    return common


def at(curve: Curve, steps: Steps) -> Array:
    """A curve's values at `shared` steps."""
    return statistics.value_at(curve.steps, curve.values, steps)


def compared(groups: Sequence[Group], task: str, metric: str, unit: str, warnings: list[str]) -> Steps:
    """The steps of a task that every run has. Runs are compared at the last of them.

    Raises:
        SettingsError: no step is in all runs.
    """
    runs = [run for g in groups for run in g.tasks.get(task, ())]
    steps = shared(metric, [run.curves[metric] for run in runs])
    if not len(steps):
        shortest = min(runs, key=lambda run: run.curves[metric].steps[-1])
        latest = max(runs, key=lambda run: run.curves[metric].steps[0])
        end, first = shortest.curves[metric].steps[-1], latest.curves[metric].steps[0]
        if first > end:
            raise SettingsError(
                f"{shortest} ends at {unit} {end}, before the first {metric} of {latest} at {first}: leave one"
            )
        several = [f"{_every(steps)} in {run}" for steps, run in _timetables(runs, metric, end)]
        raise SettingsError(f"no {unit} has {metric} of every run: it is there {' and '.join(several[:2])}; leave one")
    timetables = _timetables(runs, metric, int(steps[-1]))
    if len(timetables) > 1 and metric != OF_EPISODES:
        several = [f"{_every(of_run)} in {run}" for of_run, run in timetables]
        more = f" and {len(several) - 3} more" if len(several) > 3 else ""
        of_task = f"{task}: " if len(groups[0].tasks) > 1 else ""
        common = f"the one {unit} that all have" if len(steps) == 1 else f"the {len(steps)} {unit}s that all have"
        warnings.append(
            f"{of_task}{metric} is there {', '.join(several[:3])}{more}: only {common}, to {steps[-1]}, "
            f"{'counts' if len(steps) == 1 else 'count'}"
        )
    return steps


def unfinished(groups: Sequence[Group], warnings: list[str]) -> set[int]:
    """The ids of the runs that have not reached their end: for a supervised run, that of the longest with its task."""
    ids = set()
    seeds: dict[str, list[str]] = {}
    for g in groups:
        for task, runs in g.tasks.items():
            longest = max(len(p.borders) for other in groups for p in other.tasks.get(task, ()))
            for r in runs:
                if r.kind == "train":
                    done = max(int(curve.steps[-1]) for curve in r.curves.values())
                    total, unit = int(r.settings["total_env_steps"]), "env steps"
                else:
                    done, total, unit = len(r.borders), int(r.settings.get("num_tasks") or longest), "tasks"
                if done < total:
                    ids.add(id(r))
                    warning = f"* {g.label} is unfinished, at {done} of {total} {unit}: {r.folder}"
                    seeds.setdefault(warning, []).append(str(r.seed))
    warnings += [f"{warning} (seed {', '.join(numbers)})" for warning, numbers in seeds.items()]
    return ids


def never_reset(run: Run, unit: str, step: int) -> bool:
    """Whether the run has an intervention that had not come once by this step: so far it is a run without one."""
    once = run.settings.get(ONCE)
    if isinstance(once, int):
        return _made(run, unit, step)[0] < once
    periods = [run.settings.get(f"reset.every_{name}", "none") for name in ("updates", "tasks")]
    if periods == ["none", "none"]:  # no intervention, or one with periods of its own
        return False
    before = _before_branch(run) if run.branched else (0, 0)  # what would have come there did not come
    made = zip(periods, before, _made(run, unit, step), strict=True)
    return not any(isinstance(period, int) and then // period < now // period for period, then, now in made)


def just_reset(run: Run, unit: str, step: int) -> bool:
    """Whether the run was reset so shortly before this step that it has hardly learned since."""
    every = run.settings.get("reset.every_updates")
    forgets = getattr(INTERVENTIONS.get(run.settings["reset.name"]), "forgets", True)
    if not isinstance(every, int) or run.settings.get(ONCE) or not forgets:
        return False
    updates = _made(run, unit, step)[0]
    return every <= updates and updates % every < LEARNS_AGAIN * every


# ------------------------------------------------------------------------------------------------------------------


def _made(run: Run, unit: str, step: int) -> tuple[int, int]:
    """The numbers of updates and of changes of task that a run had made by a step."""
    if run.kind == "train":
        env_step = int(run.borders[step - 1]) if unit == "task" else step
        every = int(run.settings["env.switch_every_env_steps"]) if run.settings.get("on_change") == "restart" else None
        learning = learning_env_steps(env_step, int(run.settings["random_env_steps"]), every)
        updates = int(run.settings["prime_updates"]) + updates_after(learning, float(run.settings["replay_ratio"]))
        tasks = int((run.borders < env_step).sum())
    elif unit == "task":  # at its end nothing has been done for the next task
        updates, tasks = int(run.borders[step - 1]), step - 1
    else:
        updates, tasks = step, int((run.borders < step).sum())
    return updates, tasks


def _before_branch(run: Run) -> tuple[int, int]:
    """The numbers of updates and of changes of task that a branch's run had made where it branched."""
    if run.kind == "train":
        return _made(run, "env step", run.settings["at"])
    updates = run.folder.branch.get("updates")  # branches of earlier versions do not say
    tasks = max(0, int(run.settings["at"]) - 1) // int(run.settings["epochs_per_task"])
    return updates if isinstance(updates, int) else 0, tasks


def _timetables(runs: Sequence[Run], metric: str, until: int) -> list[tuple[Steps, Run]]:
    """The different series of steps at which runs have the metric, each with the first run that has it."""
    found: dict[bytes, tuple[Steps, Run]] = {}
    for run in runs:
        steps = run.curves[metric].steps
        steps = steps[steps <= until]
        found.setdefault(steps.tobytes(), (steps, run))
    return list(found.values())


def _every(steps: Steps) -> str:
    """``every 100``, or ``at 7 steps`` where they are not equally spaced."""
    gaps = np.unique(np.diff(steps))
    if len(gaps) == 1:
        return f"every {gaps[0]}"
    return f"at {steps[0]}" if len(steps) == 1 else f"at {len(steps)} steps"
