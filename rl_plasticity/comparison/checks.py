"""What somebody who reads a comparison has to be warned of."""

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rl_plasticity.comparison.groups import Group
from rl_plasticity.comparison.loading import Run
from rl_plasticity.configs.commands import ONCE, updates_by
from rl_plasticity.interventions import INTERVENTIONS
from rl_plasticity.metrics.statistics import Steps

LEARNS_AGAIN = 0.1  # of a period: in less after a reset, a network has hardly learned


def of_resets(g: Group, unit: str, steps: Mapping[str, Steps]) -> Iterator[str]:
    """Warnings where an intervention had not come by the step of the comparison, or had only just come."""
    reset, once = str(g.settings.get("reset.name")), g.settings.get(ONCE)
    every = once or g.settings.get("reset.every_updates") or 0
    forgets = getattr(INTERVENTIONS.get(reset), "forgets", True) and not once
    for task, runs in g.tasks.items() if every else ():
        made = min(_updates(run, unit, int(steps[task][-1])) for run in runs)
        if made < every:
            yield f"{g.label}: no {reset} had come by then, after {made} updates, so these are runs without it"
        elif forgets and made % every < LEARNS_AGAIN * every:
            yield f"{g.label}: the last {reset} came {made % every} updates before, too few to learn again"


def unfinished(g: Group, groups: Sequence[Group], warnings: list[str]) -> bool:
    """Whether runs of a group have not reached their end: for a supervised run, that of the longest with its task."""
    found: dict[str, list[str]] = {}
    for task, runs in g.tasks.items():
        longest = max(len(run.borders) for other in groups for run in other.tasks[task])
        for run in runs:
            if run.kind == "train":
                done, total = (
                    max(int(curve.steps[-1]) for curve in run.curves.values()),
                    run.settings["total_env_steps"],
                )
            else:
                done, total = len(run.borders), run.settings.get("num_tasks") or longest
            if done < total:
                found.setdefault(f"{run.folder}, at {done} of {total}", []).append(str(run.seed))
    warnings += [f"* {g.label} is unfinished: {where} (seed {', '.join(seeds)})" for where, seeds in found.items()]
    return bool(found)


def of_origins(groups: Sequence[Group]) -> Iterator[str]:
    """Warnings of runs that different code made, or that branched at different steps."""
    runs = [run for g in groups for run in g.runs]
    starts = [start for run in runs for start in run.starts]
    found = {"commits": {str(start["commit"])[:10] for start in starts if start.get("commit")}}
    found["versions"] = {str(start["rl_plasticity"]) for start in starts if start.get("rl_plasticity")}
    found["steps of branching"] = {str(at) for run in runs if (at := run.settings.get("at")) is not None}
    for module, digest in {mark for run in runs for mark in run.plugs.items()}:
        found.setdefault(f"sources of the plug {module}, which are not pooled", set()).update(digest.split("+"))
    for what, values in found.items():
        if len(values) > 1:
            yield f"runs of different {what}: {', '.join(sorted(values))}"


# ------------------------------------------------------------------------------------------------------------------


def _updates(run: Run, unit: str, step: int) -> int:
    """The number of updates that a run had made by a step."""
    at = int(run.borders[step - 1]) if unit == "task" else step
    if run.kind == "supervised":
        return at
    env = SimpleNamespace(switch_every_env_steps=run.settings["env.switch_every_env_steps"])
    s: Any = SimpleNamespace(**run.settings, env=env)
    return int(s.prime_updates + updates_by(s, at))
