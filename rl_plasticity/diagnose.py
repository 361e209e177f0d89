"""Find out whether a run's networks still learn as fresh ones do: ``python -m rl_plasticity.diagnose RUN``."""

import sys

if __name__ == "__main__":
    from rl_plasticity import terminal

    terminal.prepare()
    from rl_plasticity import command_line

    if ":" not in "".join(sys.argv[1:2]):  # a function that makes a network, see `of_files`
        command_line.at_once("diagnose")

import copy
import importlib
import json
import types
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from rl_plasticity import command_line, plugins, supervised
from rl_plasticity.agents import Agent, Batch, ReplayBuffer
from rl_plasticity.agents.sac import LOG_STD_MAX, LOG_STD_MIN, Actor
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Diagnose, Supervised, Train
from rl_plasticity.diagnosis.checks import of_log_std, of_values
from rl_plasticity.diagnosis.probe import PROBE_SIZE
from rl_plasticity.diagnosis.report import Report, Verdict
from rl_plasticity.diagnosis.trainability import BANK, Bank, Data, Subject
from rl_plasticity.diagnosis.trials import NOW
from rl_plasticity.diagnosis.verdict import diagnose, reports
from rl_plasticity.errors import SettingsError, first_line, nearest
from rl_plasticity.learning.learner import Learner
from rl_plasticity.paths import expanded
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.files import require_new, write_atomically, write_text
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.names import RunName
from rl_plasticity.runs.plan import Plan
from rl_plasticity.runs.trained import PROBE, Trained, saved_settings
from rl_plasticity.seeding import RunStreams, derive
from rl_plasticity.structure import Example
from rl_plasticity.training.acting import frozen_transitions
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


class Unbounded(nn.Module):
    """An actor without the bounds of its log standard deviation, because no target beyond them could be learned."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self.trunk, self.normalize = actor.trunk, actor.normalize

    def forward(self, obs: Tensor) -> Tensor:
        output: Tensor = self.trunk(obs if self.normalize is None else self.normalize(obs))
        return output


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
                subject = subject_of(learner, Unbounded if isinstance(learner.net, Actor) else lambda net: net)
                bank = Bank(agent.inputs(batch)[network], learner.runs)
                every = reports(
                    subject, Data(bank), None, None, newest and d.remedies, d.repeats, d.updates, 0, beside[network]
                )
                for run in runs:
                    yield Diagnosis(step, names[run], network, data, every[run])


def subject_of(learner: Learner, shown: Any = lambda net: net) -> Subject:
    """A learner's network. New weights come from its own seeds, with its running statistics of observations.

    Args:
        shown: returns the part of a network that is diagnosed.
    """
    source = copy.deepcopy(learner)  # a learner counts its draws of weights

    def fresh() -> nn.Module:
        net = source.fresh()
        theirs = dict(learner.net.named_buffers())
        for name, buffer in net.named_buffers():
            if "normalize." in name:
                buffer.copy_(theirs[name])
        return cast(nn.Module, shown(net))

    return Subject(shown(learner.net), (), fresh, without_dropout=True)


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


# --- agents of Stable-Baselines3 --------------------------------------------------------------------------------------


def is_agent(arguments: Sequence[str]) -> bool:
    """Whether the first argument is the file of an agent that Stable-Baselines3 saved, ``model.zip``."""
    return arguments[:1] != [] and arguments[0].endswith(".zip") and not Path(arguments[0]).is_dir()


def of_saved_agent(file: str, settings: Diagnose) -> int:
    """Diagnose the networks of an agent that Stable-Baselines3 saved, ``model.zip env=gym:NAME``; returns the status.

    Raises:
        SettingsError: Stable-Baselines3 is not installed, a setting does not fit, or the file or env cannot be used.
    """
    for name in ("checkpoint", "seed", "run"):
        if getattr(settings, name) is not None:
            raise SettingsError(f"{name}= is for the folder of a run; {file} holds one agent")
    path = expanded(file)
    if not path.is_file():
        raise SettingsError(f"there is no file {path}")
    if settings.env is None:
        raise SettingsError("give env=gym:NAME, whose observations the agent reads, or env=FILE.pt with observations")
    if settings.out is not None:
        require_new(Path(settings.out), ".json")
    try:
        from rl_plasticity.integrations import saved_agents
    except ImportError as error:
        raise SettingsError(f"{path} needs Stable-Baselines3: pip install 'rl_plasticity[sb3]' ({error})") from error
    agent = saved_agents.Agent(path, settings.algorithm)
    rewards = None
    if settings.env.endswith(".pt"):
        given = _loaded(settings.env)
        if not isinstance(given, Tensor):
            raise SettingsError(f"{settings.env} must hold a tensor of observations, got {type(given).__name__}")
        obs = agent.preprocessed(given)
    else:
        obs, rewards = saved_agents.of_random_actions(agent, settings.env)
    tried = {"remedies": settings.remedies, "repeats": settings.repeats, "updates": settings.updates}
    found = saved_agents.diagnosed(agent, obs, rewards, settings.network, **tried)
    rows = [[name, r.verdict, str(r.evidence.get(NOW, ""))] for name, r in found.items()]
    header = ["network", "verdict", "learned of what a fresh network learns"]
    print(f"{agent.algorithm}, {path}\n" + "\n".join(command_line.aligned([header, *rows])))
    for name, report in found.items():
        if report.verdict != "plastic":
            print(f"\n{name}\n{report}")
    if settings.out is not None:
        written = [{"network": name, **json.loads(report.to_json())} for name, report in found.items()]
        write_text(Path(settings.out), json.dumps(written, indent=1))
        print(f"wrote {settings.out}")
    return max((STATUS[report.verdict] for report in found.values()), key=(0, 3, 1).index)


# --- the command ------------------------------------------------------------------------------------------------------


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
    if is_agent(arguments):
        return of_saved_agent(arguments[0], schema.load(Diagnose, arguments[1:]))
    for argument in arguments:
        if argument.startswith(("env=", "algorithm=")):
            raise SettingsError(
                f"{argument} is for an agent saved by Stable-Baselines3: name its file, model.zip, first"
            )
    return look(*command_line.looked_at(Diagnose, arguments))


class _Command(types.ModuleType):
    """Makes this module callable: an import of it hides the function ``rl_plasticity.diagnose``."""

    __call__ = staticmethod(diagnose)


if __name__ == "__main__":
    command_line.main("diagnose", partial(command_line.help_of, Diagnose), act)
else:
    sys.modules[__name__].__class__ = _Command
