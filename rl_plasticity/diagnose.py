"""Find out whether a run's networks still learn as fresh ones do: ``python -m rl_plasticity.diagnose RUN``."""

if __name__ == "__main__":  # help and misspelt settings do not wait for torch
    from rl_plasticity import command_line

    command_line.at_once("diagnose")

import importlib
import itertools
import sys
import time
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Union

import torch
from torch import nn

from rl_plasticity import __version__, command_line, plugins, supervised
from rl_plasticity.agents import Agent, Batch
from rl_plasticity.agents.sac import LOG_STD_MAX, LOG_STD_MIN, Actor
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Diagnose, Supervised, Train
from rl_plasticity.configs.gone import GONE
from rl_plasticity.diagnosis.agents import Deterministic, next_task, recent_and_old
from rl_plasticity.diagnosis.checks import of_log_std, of_values
from rl_plasticity.diagnosis.report import LEARNED, Report, Verdict
from rl_plasticity.diagnosis.subject import Subject, subject_of
from rl_plasticity.diagnosis.tasks import LARGE_BANK, Bank, TaskSource
from rl_plasticity.diagnosis.trials import cost
from rl_plasticity.diagnosis.verdict import BAD, diagnose, reports, subject_from
from rl_plasticity.errors import SettingsError, first_line, in_short, nearest, one_line, printable, say, shown
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.diagnosed import Diagnosis, Item, Kept
from rl_plasticity.runs.files import require_new, write_text
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.making import PROBE, make_buffer
from rl_plasticity.runs.trained import Trained, saved_settings, settings_here
from rl_plasticity.seeding import RunStreams, derived
from rl_plasticity.training.acting import frozen_transitions
from rl_plasticity.training.diagnosing import unbounded
from rl_plasticity.training.epochs import cross_entropy, first_images

TOLD = 10.0  # seconds between two lines that say how far trials are
STATUS: dict[Verdict, int] = {"plastic": 0, "not detectable": 3}  # of all others it is 1


Source = Union["OfAgents", "OfTasks"]
"""The networks of a run at its checkpoints, and the data on which they are diagnosed."""
Trial = tuple[Subject, TaskSource, Sequence[Sequence[str]]]


def diagnose_run(folder: RunFolder, d: Diagnose) -> int:
    """Print the verdict on every network of every run at every checkpoint, each as soon as it is known.

    The results are kept in the folder's ``diagnosis.json``, or in `out`. What is kept there is not tried again. With
    `branch` the run is branched instead, see `branches.branch_run`.

    Returns:
        The exit status for the newest checkpoint: 1 if a network is not plastic, 3 if that cannot be told, else 0.
    """
    if d.branch:
        from rl_plasticity import branches  # it needs what `compare` needs

        return branches.branch_run(folder, d)
    if d.branch_env_steps or d.branch_into:
        raise SettingsError("branch_env_steps= and branch_into= need branch=true")
    if d.out is not None:
        require_new(Path(d.out), ".json")
    if not folder.is_run():
        saved_settings(Train, folder)  # raises, and names what there is
    if not folder.saved_steps:
        raise SettingsError(f"there is no checkpoint in {folder.checkpoints}")
    place = Path(d.out or folder.diagnosis)
    kept = Kept(place, {"repeats": d.repeats, "updates": d.updates, "version": __version__})
    source_of: Callable[..., Source] = OfTasks if folder.kind == "supervised" else OfAgents
    with closing(source_of(folder, d.device, min(folder.saved_steps))) as source:
        newest = _diagnosed(source, kept, folder.saved_steps, d)
    if any(item.data != newest[0][0].data for item in kept.found):
        print(f"verdicts on {newest[0][0].data} decide; those on drawn targets are further evidence")
    for item, run, report in newest:
        if report.verdict != "plastic":
            print(f"\n{run}, {item.network}, {item.data}, step {item.step}\n{report}")
    return _status([one.report for one in newest])


def _status(found: Sequence[Report]) -> int:
    """The exit status: 1 if a network is not plastic, 3 if that cannot be told of one, else 0."""
    return max((STATUS.get(report.verdict, 1) for report in found), key=(0, 3, 1).index)


def _items(source: Source, kept: Kept, saved: Collection[int], d: Diagnose) -> list[Item]:
    """What to diagnose, by rising step: every network on the first data, at the last checkpoint on all of them.

    Of a checkpoint whose file is gone, it is what was kept.

    Args:
        saved: steps of the checkpoints.

    Raises:
        SettingsError: there is no such network or checkpoint.
    """
    if d.network not in (None, *source.networks):
        raise SettingsError(f"there is no network {d.network!r}{nearest(d.network, source.networks)}")
    last = max(saved) if d.checkpoint is None else d.checkpoint
    every = itertools.product(saved, source.data, source.networks)
    there = {Item(*one) for one in every if one[1] == source.data[0] or one[0] == last > 0}
    items = [item for item in there.union(kept.found) if d.checkpoint in (None, item.step)]
    chosen = [item for item in items if d.network in (None, item.network)]
    if not chosen:
        raise SettingsError(f"there is no checkpoint of step {d.checkpoint}{nearest(d.checkpoint, map(str, saved))}")
    return sorted(chosen, key=lambda one: (one.step, source.data.index(one.data), source.networks.index(one.network)))


def _diagnosed(source: Source, kept: Kept, saved: Collection[int], d: Diagnose) -> list[Diagnosis]:
    """Print the diagnoses of the chosen runs: those that were kept, and the others after their trials.

    Args:
        saved: steps of the checkpoints.

    Returns:
        Those at the newest checkpoint on the data that decide.
    """
    items, names = _items(source, kept, saved, d), [name.in_words for name in source.plan.names]
    runs = [names[run] for run in source.plan.chosen(d.seed, d.run)]

    def takes_remedies(item: Item) -> bool:
        return d.remedies and item[:2] == items[-1][:2]

    def is_missing(item: Item) -> bool:
        rows = kept.found.get(item, [])
        without = any(row.report.verdict in BAD and not row.report.remedies for row in rows)
        return item.step in saved and (not rows or (without and takes_remedies(item)))

    missing = [*filter(is_missing, items)]
    say(f"{len(missing)} to diagnose, {len(items) - len(missing)} already known; results are kept in {kept.path}")
    width = max(map(len, map(printable, runs)))
    line = f"{{:9}} {{:{width}}}  {{:8}} {{:8}} {{:15}} {{}}".format
    print(line("step", "run", "network", "data", "verdict", LEARNED), flush=True)
    for item in items:
        if item in missing:
            of = f"{missing.index(item) + 1} of {len(missing)}, {item.network} on {item.data} at step {item.step}"
            subject, tasks, findings = source.trial(item)
            subject.made = _telling(of, cost(subject, tasks, d.repeats, d.updates))
            found = reports(subject, tasks, None, None, takes_remedies(item), d.repeats, d.updates, 0, findings)
            kept.add(item, [Diagnosis(item, *one) for one in zip(names, found, strict=True)])
        for _, run, report in kept.found[item]:
            if run in runs:
                learned = str(report.learned or "")
                cells = line(str(item.step), printable(run), item.network, item.data, report.verdict, learned)
                print(cells.rstrip(), flush=True)
    return [row for item in items if item[:2] == items[-1][:2] for row in kept.found[item] if row.run in runs]


def _telling(what: str, cost: tuple[float, float]) -> Callable[[int], None]:
    """Say what trials will cost; returns a function that gets updates made, and says every `TOLD` s how many."""
    least, most = map(command_line.about, cost)
    say(f"{what}: takes {least if least == most else f'{least} to {most}'}, or longer if a verdict stays open")
    began = told = time.monotonic()
    updates = 0

    def made(number: int) -> None:
        nonlocal told, updates
        updates, now = updates + number, time.monotonic()
        if now - told >= TOLD:
            say(f"{what}: {updates} updates in {command_line.about(now - began)}")
            told = now

    return made


# --- agents -----------------------------------------------------------------------------------------------------------


class OfAgents:
    """An RL run's networks: drawn targets for transitions of random actions, and what they have to learn next.

    The random transitions are those of the first task, the same at every env step. At the last checkpoint the networks
    also learn what the agent has to learn next from its replay buffer, which decides.

    Args:
        step: any saved env step.
    """

    def __init__(self, folder: RunFolder, device: str, step: int) -> None:
        self.folder, self.device = folder, device
        trained = Trained.of(folder, device, step)
        self.plan = trained.plan
        self.envs = trained.envs(range(len(self.plan.seeds)))
        self.envs.change = 0
        self._trained, self._agent = trained, trained.agent(self.envs)
        self.networks, self.data = [*self._agent.learners], ("random", "buffer")

    def trial(self, item: Item) -> Trial:
        """A network of all runs, what its copies learn, and findings on each run that are no matter of learning."""
        agent = self._agent_at(item.step)
        learner, batch = agent.learners[item.network], self._random if item.data == "random" else self._replayed
        findings = _findings(agent, item.network, batch)
        if item.data == "random":
            return (
                subject_of(learner, unbounded),
                TaskSource(Bank(agent.inputs(batch)[item.network], learner.runs)),
                findings,
            )
        shown = Deterministic if item.network == "actor" else unbounded
        return subject_of(learner, shown), next_task(agent, item.network, batch), findings

    def close(self) -> None:
        """Let go of the environments."""
        self.envs.close()

    def _agent_at(self, step: int) -> Agent:
        if step != self._trained.step:
            self._trained = Trained.of(self.folder, self.device, step)
            self._agent = self._trained.agent(self.envs)
        return self._agent

    @cached_property
    def _random(self) -> Batch:
        return frozen_transitions(self.plan.seeds, self._trained.settings.device, self._agent, self.envs)[0]

    @cached_property
    def _replayed(self) -> Batch:
        """Recent and old transitions from the replay buffer of the present checkpoint."""
        s, seeds = self._trained.settings, self.plan.seeds
        buffer = make_buffer(s, self._agent, len(seeds), self.envs.spaces)
        saved = checkpoint.load(self.folder.checkpoints, self._trained.step)
        checkpoint.Checkpoints(self.folder.checkpoints, saved).restore({"buffer": buffer})
        drawn = RunStreams(derived(seeds, PROBE), s.device).uniform(min(LARGE_BANK, buffer.size))
        return buffer.sample(recent_and_old(drawn, buffer.size))


@torch.no_grad()
def _findings(agent: Agent, network: str, batch: Batch) -> list[list[str]]:
    """Findings on a network of each run that are no matter of learning; empty where none are looked for."""
    if network == "critic":
        values = agent.value(batch.obs, batch.act)
        return [of_values(q, r, agent.discount) for q, r in zip(values, batch.reward, strict=True)]
    if isinstance(actor := agent.learners[network].net, Actor):
        return [of_log_std(log_std, LOG_STD_MIN, LOG_STD_MAX) for log_std in actor(batch.obs)[1]]
    return []


# --- supervised -------------------------------------------------------------------------------------------------------


class OfTasks:
    """A supervised run's network, on the first images of its task, also with drawn labels."""

    networks, data = ("net",), ("images",)

    def __init__(self, folder: RunFolder, device: str, step: int) -> None:
        self.folder = folder
        self.settings, self.plan = settings_here(Supervised, folder, device)
        self.parts = supervised.build(self.settings, self.plan)

    def trial(self, item: Item) -> Trial:
        s, learner, sequence = self.settings, self.parts.learner, self.parts.sequence
        learner.load_state_dict(checkpoint.load(self.folder.checkpoints, item.step, whole=False)["learner"])
        last = sequence.num_tasks * s.epochs_per_task - 1
        task = sequence.task(min(item.step, last) // s.epochs_per_task)
        x, y = first_images(task, self.parts.data, LARGE_BANK, learner.runs)
        return subject_of(learner), TaskSource(Bank(x, learner.runs), (cross_entropy, y)), ()

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
    if settings.out:
        require_new(Path(settings.out), ".json")
    net: nn.Module = maker()
    try:
        net.load_state_dict(_state_in(_loaded(weights), net, weights))
    except (RuntimeError, TypeError, AttributeError) as error:
        raise SettingsError(f"{weights} does not fit the network: {one_line(str(error))}") from error
    subject, tasks = subject_from(net, None, maker, drawn=True), TaskSource(Bank(_loaded(inputs), ()))
    subject.made = _telling(weights, cost(subject, tasks, settings.repeats, settings.updates))
    (report,) = reports(subject, tasks, None, None, settings.remedies, settings.repeats, settings.updates, 0)
    print(report)
    if settings.out:
        write_text(Path(settings.out), report.to_json())
    return _status([report])


def _loaded(path: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the file holds
        if "Weights only load failed" in str(error):  # a whole module, for example
            raise SettingsError(f"{path} holds more than tensors: save net.state_dict(), or only inputs") from error
        raise SettingsError(f"cannot read {path}: {first_line(error)}") from error


def _state_in(content: Any, net: nn.Module, path: str) -> Any:
    """The weights of `net` in a checkpoint: in one of its entries, behind a prefix or within wrappers of `compile`.

    Raises:
        SettingsError: several networks in it fit.
    """
    names = [*net.state_dict()]
    found = {}
    for entry, held in {"": content, **(content if isinstance(content, Mapping) else {})}.items():
        state = {str(n).replace("_orig_mod.", ""): x for n, x in held.items()} if isinstance(held, Mapping) else {}
        for prefix in {n.removesuffix(names[0]) for n in state if n.endswith(names[0])}:
            chosen = {n.removeprefix(prefix): x for n, x in state.items() if n.startswith(prefix)}
            if {*chosen} == {*names}:
                found[f"{entry} {prefix}".strip()] = chosen
    if len(found) > 1:
        raise SettingsError(f"{path} holds several such networks, {in_short(map(repr, found))}: save only one of them")
    return next(iter(found.values()), content)


# --- the command ------------------------------------------------------------------------------------------------------


def act(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit status."""
    if arguments and arguments[0].endswith(".zip"):
        raise SettingsError(f"{shown(arguments[0])} {GONE['model.zip']}")
    if len(arguments) >= 3 and ":" in arguments[0] and not Path(arguments[0]).exists():
        make, weights, inputs, *others = arguments
        return of_files(make, weights, inputs, schema.load(Diagnose, others))
    return diagnose_run(*command_line.looked_at(Diagnose, arguments))


class _Command(types.ModuleType):
    """Makes this module callable: an import of it hides the function ``rl_plasticity.diagnose``."""

    __call__ = staticmethod(diagnose)


if __name__ == "__main__":
    command_line.main("diagnose", partial(command_line.help_of, Diagnose), act)
else:
    sys.modules[__name__].__class__ = _Command
