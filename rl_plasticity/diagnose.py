"""Find out whether a run's networks still learn as fresh ones do: ``python -m rl_plasticity.diagnose RUN``."""

import sys

if __name__ == "__main__":
    from rl_plasticity import terminal

    terminal.prepare()
    from rl_plasticity import command_line

    if ":" not in "".join(sys.argv[1:2]):  # a function that makes a network, see `of_files`
        command_line.at_once("diagnose")

import importlib
import json
import types
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rl_plasticity import command_line, plugins, supervised
from rl_plasticity.agents import Agent, Batch, ReplayBuffer
from rl_plasticity.agents.sac import LOG_STD_MAX, LOG_STD_MIN, Actor
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Diagnose, Supervised, Train
from rl_plasticity.diagnosis.checks import of_log_std, of_values
from rl_plasticity.diagnosis.probe import PROBE_SIZE
from rl_plasticity.diagnosis.report import Report, Verdict
from rl_plasticity.diagnosis.trainability import BANK, Bank, Data, subject_of
from rl_plasticity.diagnosis.trials import NOW
from rl_plasticity.diagnosis.verdict import diagnose, reports
from rl_plasticity.errors import SettingsError, first_line, nearest
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.files import require_new, write_atomically, write_text
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.names import RunName
from rl_plasticity.runs.plan import Plan
from rl_plasticity.runs.trained import PROBE, Trained, saved_settings
from rl_plasticity.seeding import RunStreams, derive
from rl_plasticity.structure import Example
from rl_plasticity.training.acting import frozen_transitions
from rl_plasticity.training.diagnosing import tried
from rl_plasticity.training.epochs import cross_entropy, first_images

STATUS: dict[Verdict, int] = {"plastic": 0, "losing": 1, "lost": 1, "something else": 1, "not detectable": 3}


@dataclass(frozen=True)
class Diagnosis:
    """The report on one network of one run at one checkpoint, on some data."""

    step: int
    run: RunName
    network: str
    data: str
    report: Report


def look(folder: RunFolder, d: Diagnose) -> int:
    """Print the verdict on every network of every run at every saved checkpoint, and write `out` if it is given.

    Returns:
        The exit status for the newest checkpoint: 1 if a network is not plastic, 3 if that cannot be told, else 0.
    """
    if d.out is not None:
        require_new(Path(d.out), ".json")
        require_new(Path(d.out).with_suffix(".png"), ".png")
    if not folder.path.is_dir():
        saved_settings(Train, folder)  # raises, and names what there is
    of_kind = of_supervised if folder.kind == "supervised" else of_agent
    saved = [*folder.saved_steps]
    steps = [step for step in saved if d.checkpoint in (None, step)]
    if not steps:
        of_step = f" of step {d.checkpoint}{nearest(d.checkpoint, map(str, saved))}" if saved else ""
        raise SettingsError(f"no checkpoint in {folder.checkpoints}{of_step}")
    found = [*of_kind(folder, d, steps)]
    header = ["step", "run", "network", "data", "verdict", "learned of what a fresh network learns"]
    rows = (
        (f.step, f.run.in_words, f.network, f.data, f.report.verdict, f.report.evidence.get(NOW, "")) for f in found
    )
    print("\n".join(command_line.aligned([header, *([*map(str, row)] for row in rows)])))
    last = [f for f in found if f.step == steps[-1]]
    for f in (f for f in last if f.report.verdict != "plastic"):
        print(f"\n{f.run.in_words}, {f.network}, {f.data}, step {f.step}\n{f.report}")
    if d.out is not None:
        _write(Path(d.out), found, folder)
    return max((STATUS[f.report.verdict] for f in last), key=(0, 3, 1).index)


def _write(out: Path, found: Sequence[Diagnosis], folder: RunFolder) -> None:
    rows = [
        {"step": f.step, "run": f.run.in_words, "network": f.network, "data": f.data, **json.loads(f.report.to_json())}
        for f in found
    ]
    write_text(out, json.dumps(rows, indent=1))
    from rl_plasticity.comparison.trainability import Point, draw

    learned = [(f, f.report.evidence[NOW]) for f in found if NOW in f.report.evidence]
    figure = draw([Point(f.step, f.run.in_words, f.network, f.data, e) for f, e in learned], folder)
    write_atomically(out.with_suffix(".png"), lambda file: figure.savefig(file, format="png", dpi=200))
    print(f"wrote {out} and {out.with_suffix('.png')}")


# --- agents -----------------------------------------------------------------------------------------------------------


def of_agent(folder: RunFolder, d: Diagnose, steps: Sequence[int]) -> Iterator[Diagnosis]:
    """Diagnose an RL run's networks at these env steps, on transitions of random actions.

    At the last env step the replay buffer's transitions are used too. The random transitions are those of the first
    task, the same at every env step.
    """
    trained = Trained.of(folder, d.device, steps[0])
    names, seeds = trained.plan.names, trained.plan.seeds
    runs = trained.plan.chosen(d.seed, d.run)
    with closing(trained.envs(range(len(seeds)))) as envs:
        envs.change = 0
        agent = trained.agent(envs)
        if d.network not in (None, *agent.learners):
            raise SettingsError(f"no network {d.network!r}{nearest(d.network, agent.learners)}")
        batches = {"random": frozen_transitions(seeds, trained.settings.device, agent, envs)[0]}
    for step in steps:
        trained = Trained.of(folder, d.device, step)
        agent = trained.agent(envs)
        newest = step == steps[-1]
        if newest and step:
            batches["buffer"] = _replayed(trained, folder, agent, envs.obs_dim, envs.act_dim, step)
        for data, batch in batches.items():
            beside = _beside(agent, batch)
            for network, learner in agent.learners.items():
                if d.network not in (None, network):
                    continue
                subject = subject_of(learner, tried)
                bank = Bank(agent.inputs(batch)[network], learner.runs)
                every = reports(
                    subject, Data(bank), None, None, newest and d.remedies, d.repeats, d.updates, 0, beside[network]
                )
                for run in runs:
                    yield Diagnosis(step, names[run], network, data, every[run])


def _replayed(trained: Trained, folder: RunFolder, agent: Agent, obs_dim: int, act_dim: int, step: int) -> Batch:
    """Transitions from the replay buffer of this checkpoint, `PROBE_SIZE` of each run."""
    s = trained.settings
    seeds = trained.plan.seeds
    buffer = ReplayBuffer(len(seeds), min(s.buffer_size, s.total_env_steps), obs_dim, act_dim, agent.discount, s.device)
    try:
        saved = checkpoint.load(folder.checkpoints, step)
        checkpoint.Checkpoints(folder.checkpoints, saved).restore({"buffer": buffer})
    except (ValueError, KeyError) as error:
        raise SettingsError(f"the replay buffer of step {step} cannot be read: {first_line(error)}") from error
    drawn = RunStreams([derive(seed, PROBE) for seed in seeds], s.device).uniform(min(PROBE_SIZE, buffer.size))
    return buffer.sample((drawn * buffer.size).long())


def _beside(agent: Agent, batch: Batch) -> dict[str, list[list[str]]]:
    """Findings on each network of each run that are no matter of learning."""
    found: dict[str, list[list[str]]] = {name: [[] for _ in batch.reward] for name in agent.learners}
    with torch.no_grad():
        values = agent.value(batch.obs, batch.act)
        if "critic" in found:
            found["critic"] = [of_values(q, r, agent.discount) for q, r in zip(values, batch.reward, strict=True)]
        actor = agent.learners.get("actor")
        if actor is not None and isinstance(actor.net, Actor):
            found["actor"] = [of_log_std(log_std, LOG_STD_MIN, LOG_STD_MAX) for log_std in actor.net(batch.obs)[1]]
    return found


# --- supervised -------------------------------------------------------------------------------------------------------


def of_supervised(folder: RunFolder, d: Diagnose, steps: Sequence[int]) -> Iterator[Diagnosis]:
    """Diagnose a supervised run's network at these epochs, on the first images of its task, also with drawn labels."""
    s = saved_settings(Supervised, folder)
    plan = Plan.of(s)
    parts = supervised.build(s, plan)
    chosen, runs = plan.chosen(d.seed, d.run), parts.learner.runs
    if d.network not in (None, "net"):
        raise SettingsError(f"no network {d.network!r}: a supervised run has one, net")
    last = parts.sequence.num_tasks * s.epochs_per_task - 1
    for step in steps:
        try:
            parts.learner.load_state_dict(checkpoint.load(folder.checkpoints, step, whole=False)["learner"])
        except (ValueError, KeyError, RuntimeError) as error:
            raise SettingsError(f"the checkpoint of epoch {step} cannot be used: {first_line(error)}") from error
        task = parts.sequence.task(min(step, last) // s.epochs_per_task)
        x, y = first_images(task, parts.data, BANK, runs)
        subject, data = subject_of(parts.learner), Data(Bank(x, runs), (cross_entropy, y))
        every = reports(subject, data, None, None, step == steps[-1] and d.remedies, d.repeats, d.updates, 0)
        for run in chosen:
            yield Diagnosis(step, plan.names[run], "net", "images", every[run])


# --- any network ------------------------------------------------------------------------------------------------------


def of_files(make: str, weights: str, inputs: str, settings: Diagnose) -> int:
    """Diagnose a network from files, ``my_module:make_net weights.pt inputs.pt``; returns the exit status."""
    module, _, name = make.partition(":")
    try:
        maker = getattr(importlib.import_module(plugins.as_module(module)), name, None)
    except Exception as error:  # whatever the module raises
        raise SettingsError(f"cannot import {module!r}: {first_line(error)}") from error
    if not callable(maker):
        raise SettingsError(f"{module} has no function {name!r} that makes a network")
    if settings.out is not None:
        require_new(Path(settings.out), ".json")
    net: nn.Module = maker()
    try:
        net.load_state_dict(_loaded(weights))
    except (RuntimeError, TypeError, AttributeError) as error:
        raise SettingsError(f"{weights} does not fit the network: {' '.join(str(error).split())}") from error
    example: Example = _loaded(inputs)
    report = diagnose(
        net, example, make=maker, remedies=settings.remedies, repeats=settings.repeats, updates=settings.updates
    )
    print(report)
    if settings.out is not None:
        write_text(Path(settings.out), report.to_json())
    return STATUS[report.verdict]


def _loaded(path: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the file holds
        raise SettingsError(f"cannot read {path}: {first_line(error)}") from error


def act(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit status."""
    if len(arguments) >= 3 and ":" in arguments[0] and not Path(arguments[0]).exists():
        make, weights, inputs, *others = arguments
        return of_files(make, weights, inputs, schema.load(Diagnose, others))
    return look(*command_line.looked_at(Diagnose, arguments))


class _Command(types.ModuleType):
    """Makes this module callable: an import of it hides the function ``rl_plasticity.diagnose``."""

    __call__ = staticmethod(diagnose)


if __name__ == "__main__":
    command_line.main("diagnose", partial(command_line.help_of, Diagnose), act)
else:
    sys.modules[__name__].__class__ = _Command
