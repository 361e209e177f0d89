"""Find out whether a run's networks still learn as fresh ones do: ``python -m rl_plasticity.diagnose RUN``."""

if __name__ == "__main__":  # help and misspelt settings do not wait for torch
    from rl_plasticity import command_line

    command_line.at_once("diagnose")

import importlib
import json
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from rl_plasticity import __version__, command_line, plugins, supervised
from rl_plasticity.agents import Agent, Batch, ReplayBuffer
from rl_plasticity.agents.sac import LOG_STD_MAX, LOG_STD_MIN, Actor
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Diagnose, Supervised, Train
from rl_plasticity.diagnosis.checks import of_log_std, of_values
from rl_plasticity.diagnosis.probe import PROBE_SIZE
from rl_plasticity.diagnosis.report import LEARNED, Report, Verdict
from rl_plasticity.diagnosis.subject import Subject, subject_of
from rl_plasticity.diagnosis.tasks import LARGE_BANK, Bank, TaskSource
from rl_plasticity.diagnosis.verdict import BAD, diagnose, reports
from rl_plasticity.errors import SettingsError, first_line, nearest, printable
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.diagnosed import Diagnosis, Item, Kept
from rl_plasticity.runs.files import require_new, write_text
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.plan import Plan
from rl_plasticity.runs.trained import PROBE, Trained, saved_settings
from rl_plasticity.seeding import RunStreams, derive
from rl_plasticity.structure import Example
from rl_plasticity.training.acting import frozen_transitions
from rl_plasticity.training.diagnosing import unbounded
from rl_plasticity.training.epochs import cross_entropy, first_images

STATUS: dict[Verdict, int] = {"plastic": 0, "losing": 1, "lost": 1, "something else": 1, "not detectable": 3}


class Source(Protocol):
    """The networks of a run at its checkpoints, and the data on which they are diagnosed."""

    plan: Plan

    @property
    def networks(self) -> Sequence[str]:
        """The names of the networks."""
        ...

    def data_at(self, step: int, is_last: bool) -> Sequence[str]:
        """The names of the data on which networks are diagnosed at this checkpoint."""
        ...

    def trial(self, item: Item) -> tuple[Subject, TaskSource]:
        """A network of all runs, and what its copies learn."""
        ...

    def beside(self, item: Item) -> Sequence[Sequence[str]]:
        """Findings on a network of each run that are no matter of learning; empty where none are looked for."""
        ...

    def close(self) -> None:
        """Let go of environments."""
        ...


def look(folder: RunFolder, d: Diagnose) -> int:
    """Print the verdict on every network of every run at every checkpoint, each as soon as it is known.

    Without `out` the results are kept in the folder's ``diagnosis.json``. What is kept there is not tried again. With
    `branch` the run is branched instead, see `branches.look`.

    Returns:
        The exit status for the newest checkpoint: 1 if a network is not plastic, 3 if that cannot be told, else 0.
    """
    if d.branch:
        from rl_plasticity import branches  # it needs what `compare` needs

        return branches.look(folder, d)
    if d.branch_env_steps or d.branch_into:
        raise SettingsError("branch_env_steps= and branch_into= need branch=true")
    if d.out is not None:
        require_new(Path(d.out), ".json")
    if not folder.is_run():
        saved_settings(Train, folder)  # raises, and names what there is
    source_of: Callable[[RunFolder, str, int], Source] = OfTasks if folder.kind == "supervised" else OfAgents
    saved = [*folder.saved_steps]
    if not saved:
        raise SettingsError(f"no checkpoint in {folder.checkpoints}")
    kept = Kept(folder, {"repeats": d.repeats, "updates": d.updates, "version": __version__}, writes=d.out is None)
    known = sorted({*saved, *(item.step for item in kept.found)})
    steps = [step for step in known if d.checkpoint in (None, step)]
    if not steps:
        hint = nearest(d.checkpoint, map(str, known))
        raise SettingsError(f"no checkpoint of step {d.checkpoint} in {folder.checkpoints}{hint}")
    with closing(source_of(folder, d.device, saved[0])) as source:
        if d.network not in (None, *source.networks):
            raise SettingsError(f"no network {d.network!r}{nearest(d.network, source.networks)}")
        runs = [source.plan.names[run].in_words for run in source.plan.chosen(d.seed, d.run)]
        networks = source.networks if d.network is None else [d.network]
        items = [item for step in steps for item in _items(source, kept, step, step == steps[-1], networks)]
        if not items:
            raise SettingsError(
                f"the checkpoint of step {d.checkpoint} is gone, and {d.network} was not diagnosed there"
            )
        found = _found(source, kept, items, runs, d)
    last = [f for f in found if f.step == steps[-1]]
    for f in (f for f in last if f.report.verdict != "plastic"):
        print(f"\n{f.run}, {f.network}, {f.data}, step {f.step}\n{f.report}")
    if d.out is not None:
        write_text(Path(d.out), json.dumps([f.row for f in found], indent=1))
        print(f"wrote {d.out}")
    return _status([f.report for f in last])


def _status(looked_at: Sequence[Report]) -> int:
    """The exit status: 1 if a network is not plastic, 3 if that cannot be told of one, else 0."""
    return max((STATUS[report.verdict] for report in looked_at), key=(0, 3, 1).index)


def _items(source: Source, kept: Kept, step: int, is_last: bool, networks: Sequence[str]) -> list[Item]:
    """What to look at in a checkpoint. If its file is gone, it is what was kept."""
    data = source.data_at(step, is_last) if step in kept.checksums else ()
    items = [Item(step, one, network) for one in data for network in networks]
    others = [item for item in sorted(kept.found) if item.step == step and item.data not in data]
    return items + [item for item in others if item.network in networks]


def _found(source: Source, kept: Kept, items: Sequence[Item], runs: Sequence[str], d: Diagnose) -> list[Diagnosis]:
    """Print and return the diagnoses of these runs: those that were kept, and the others after their trials."""
    names = [name.in_words for name in source.plan.names]
    last = items[-1].step

    def is_known(item: Item) -> bool:
        rows = kept.found.get(item, [])
        without_remedies = any(row.report.verdict in BAD and not row.report.remedies for row in rows)
        is_short = [row.run for row in rows] != names or (d.remedies and item.step == last and without_remedies)
        return not is_short or item.step not in kept.checksums

    missing = [item for item in items if not is_known(item)]
    print(_announced(items, missing, kept, d), file=sys.stderr)

    header = ["step", "run", "network", "data", "verdict", LEARNED]
    where = [[str(item.step), printable(run), item.network, item.data] for item in items for run in runs]
    widths = [max(map(len, column)) for column in zip(header[:4], *where, strict=True)] + [len(max(STATUS, key=len)), 0]

    def say(cells: Sequence[str]) -> None:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        print(line, flush=True)

    say(header)
    for item in items:
        if item in missing:
            subject, data = source.trial(item)
            remedies, beside = d.remedies and item.step == last, source.beside(item)
            every = reports(subject, data, None, None, remedies, d.repeats, d.updates, 0, beside)
            own = zip(names, every, strict=True)
            kept.add(item, [Diagnosis(item.step, run, item.network, item.data, report) for run, report in own])
        for f in kept.found[item]:
            if f.run in runs:
                evidence = str(f.report.learned or "")
                say([str(f.step), printable(f.run), f.network, f.data, f.report.verdict, evidence])
    return [f for item in items for f in kept.found[item] if f.run in runs]


def _announced(items: Sequence[Item], missing: Sequence[Item], kept: Kept, d: Diagnose) -> str:
    """A line that says what will be tried, how long that takes, and where the results are kept."""
    file, known = kept.folder.diagnosis, len(items) - len(missing)
    if not missing:
        return f"nothing is left to try: {file} has all {known}"
    steps, data, networks = (list(dict.fromkeys(column)) for column in zip(*missing, strict=True))
    at = f"checkpoint {steps[0]}" if len(steps) == 1 else f"{len(steps)} checkpoints"
    text = f"{len(missing)} to try: {' and '.join(networks)} at {at}, on {' and '.join(data)}"
    text += f"; {known} more are known" if known else ""
    return text if d.out else f"{text}; kept in {file}"


# --- agents -----------------------------------------------------------------------------------------------------------


class OfAgents:
    """An RL run's networks, on transitions of random actions, and at the last checkpoint on the replay buffer's too.

    The random transitions are those of the first task, the same at every env step.

    Args:
        step: any saved env step.
    """

    def __init__(self, folder: RunFolder, device: str, step: int) -> None:
        self.folder, self.device = folder, device
        trained = Trained.of(folder, device, step)
        self.plan = trained.plan
        self.envs = trained.envs(range(len(self.plan.seeds)))
        self.envs.change = 0
        self._at, self._trained = step, trained
        try:
            self._agent = trained.agent(self.envs)
        except BaseException:
            self.envs.close()
            raise
        self.networks = [*self._agent.learners]

    def data_at(self, step: int, is_last: bool) -> Sequence[str]:
        return ["random", "buffer"] if is_last and step else ["random"]

    def trial(self, item: Item) -> tuple[Subject, TaskSource]:
        learner = self._agent_at(item.step).learners[item.network]
        subject = subject_of(learner, unbounded)
        inputs = self._agent.inputs(self._batch(item))[item.network]
        return subject, TaskSource(Bank(inputs, learner.runs))

    def beside(self, item: Item) -> Sequence[Sequence[str]]:
        return _beside(self._agent_at(item.step), self._batch(item))[item.network]

    def close(self) -> None:
        self.envs.close()

    def _agent_at(self, step: int) -> Agent:
        if step != self._at:
            self._trained = Trained.of(self.folder, self.device, step)
            self._agent, self._at = self._trained.agent(self.envs), step
        return self._agent

    def _batch(self, item: Item) -> Batch:
        return self._random if item.data == "random" else self._replayed

    @cached_property
    def _random(self) -> Batch:
        return frozen_transitions(self.plan.seeds, self._trained.settings.device, self._agent, self.envs)[0]

    @cached_property
    def _replayed(self) -> Batch:
        """Transitions from the replay buffer of the present checkpoint, `PROBE_SIZE` of each run."""
        s, seeds, step = self._trained.settings, self.plan.seeds, self._at
        capacity = min(s.buffer_size, s.total_env_steps)
        sizes = self.envs.obs_dim, self.envs.act_dim
        buffer = ReplayBuffer(len(seeds), capacity, *sizes, self._agent.discount, s.device, self.envs.spaces.levels)
        try:
            saved = checkpoint.load(self.folder.checkpoints, step)
            checkpoint.Checkpoints(self.folder.checkpoints, saved).restore({"buffer": buffer})
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


class OfTasks:
    """A supervised run's network, on the first images of its task, also with drawn labels."""

    networks = ("net",)

    def __init__(self, folder: RunFolder, device: str, step: int) -> None:
        self.folder = folder
        self.settings = saved_settings(Supervised, folder)
        self.plan = Plan.of(self.settings)
        self.parts = supervised.build(self.settings, self.plan)

    def data_at(self, step: int, is_last: bool) -> Sequence[str]:
        return ["images"]

    def trial(self, item: Item) -> tuple[Subject, TaskSource]:
        s, learner, sequence = self.settings, self.parts.learner, self.parts.sequence
        try:
            learner.load_state_dict(checkpoint.load(self.folder.checkpoints, item.step, whole=False)["learner"])
        except (ValueError, KeyError, RuntimeError) as error:
            raise SettingsError(f"the checkpoint of epoch {item.step} cannot be used: {first_line(error)}") from error
        last = sequence.num_tasks * s.epochs_per_task - 1
        task = sequence.task(min(item.step, last) // s.epochs_per_task)
        x, y = first_images(task, self.parts.data, LARGE_BANK, learner.runs)
        return subject_of(learner), TaskSource(Bank(x, learner.runs), (cross_entropy, y))

    def beside(self, item: Item) -> Sequence[Sequence[str]]:
        return ()

    def close(self) -> None:
        self.parts.close()


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
    return _status([report])


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
    return look(*command_line.looked_at(Diagnose, arguments))


class _Command(types.ModuleType):
    """Makes this module callable: an import of it hides the function ``rl_plasticity.diagnose``."""

    __call__ = staticmethod(diagnose)


if __name__ == "__main__":
    command_line.main("diagnose", partial(command_line.help_of, Diagnose), act)
else:
    sys.modules[__name__].__class__ = _Command
