"""Folders as runs leave them: trained ones, and ones made without training."""

import csv
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import gymnasium as gym
from conftest import StopAfter, assert_equal_states, once

from rl_plasticity import CALLBACKS, plugins, supervised, train
from rl_plasticity.agents import AGENT_NETWORKS
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.configs.kinds import KINDS, imported
from rl_plasticity.diagnosis.report import NOW, Estimate, Report
from rl_plasticity.metrics import METRICS
from rl_plasticity.runs import checkpoint

EXAMPLES = Path(__file__).parent.parent / "examples"
LOOKS = Path(__file__).parent.parent / "papers" / "looks"
WINDOWS = LOOKS.with_name("windows.py")

SMALL = ["agent.hidden=[16,16]", "batch_size=16", "device=cpu", "compile=false", "threads=1", "eval_episodes=1"]
SMALL += ["measure_every_updates=0"]
# An episode has 50 env steps.
PENDULUM = [*SMALL, "env=gym:Pendulum-v1", "env.action_repeat=4", "random_env_steps=20", "total_env_steps=60"]
PENDULUM += ["replay_ratio=1", "eval_every_env_steps=60", "checkpoint_every_env_steps=40", "log_every_updates=20"]

Rows = Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]


def go(command, arguments, stop=None):
    """Make one run of a command until `stop`; its folder. Raises FaultyRun with the line that a user would read."""
    session, built = command.prepare(arguments)
    session.stop = stop or StopAfter()
    command.execute(session, built)
    return session.folder.path


def begun(command, arguments):
    """The session of a run that was begun and makes no step; everything is let go."""
    session, built = command.prepare(arguments)
    built.close()
    session.lock.release()
    return session


def run(arguments, out, stop=None):
    """Train the RL command's run; of settings given twice the last counts."""
    return go(train.command, once([*arguments, f"out={out}"]), stop)


def run_supervised(arguments, out, stop=None):
    return go(supervised.command, once([*arguments, f"out={out}"]), stop)


def resume(folder, stop=None, command=train.command):
    return go(command, [f"resume={folder}"], stop)


def goes_on_as_if_never_stopped(arguments, folder, *stops, command=train.command, more=()):
    """The folder of a run that was not stopped: one that was, each time after some steps, ends as it did.

    Args:
        stops: after how many steps, since the last time.
        more: what resuming needs.
    """
    whole, parts = (once([*arguments, f"out={folder / name}"]) for name in ("whole", "parts"))
    whole, parts = go(command, whole), go(command, parts, StopAfter(stops[0]))
    assert len(rows(parts)) < len(rows(whole))
    for stop in (*stops[1:], None):
        go(command, [f"resume={parts}", *more], StopAfter(stop))
    assert (parts / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    part = "agent" if command is train.command else "learner"
    assert_equal_states(*(checkpoint.load(f / "checkpoints")[part] for f in (whole, parts)))
    return whole


def launch_here(launcher, jobs):
    """Instead of a launcher's `launch`: runs of the supervised command one after another, not each as a process."""
    for job in jobs:
        run_supervised(job.arguments, job.folder)
        job.end("succeeded")


def rows(folder, name=None):
    """The lines of a run's metrics, of one metric where it is named."""
    with (Path(folder) / "metrics.csv").open() as file:
        return [r for r in csv.DictReader(file) if name is None or r["name"] == name]


@cache
def config(kind, arguments):
    return schema.dump(schema.load({"train": Train, "supervised": Supervised}[kind], list(arguments)))


def write_run(folder: Path, arguments: Sequence[str], rows: Rows, kind: str = "train") -> Path:
    """A folder with settings and, for each run and metric, rows (step, value)."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config(kind, tuple(arguments)))
    lines = [
        f"{run},{step},{name},{value!r}\n"
        for run, metrics in rows.items()
        for name, points in metrics.items()
        for step, value in points
    ]
    (folder / "metrics.csv").write_text("run,step,name,value\n" + "".join(lines))
    return folder


def curve(values: Sequence[float], name: str = "eval/return", every: int = 1000) -> dict[str, list[tuple[int, float]]]:
    """A metric at every so many steps."""
    return {name: [(every * (i + 1), value) for i, value in enumerate(values)]}


def tasks(values: Sequence[float], every: int = 60) -> dict[str, list[tuple[int, float]]]:
    """A supervised run's rows at the end of each task."""
    found = curve(values, "task/train_accuracy", every) | curve([v / 2 for v in values], "task/online_accuracy", every)
    return found | curve([float(i) for i in range(len(values))], "task/index", every)


@contextmanager
def without_what_plugs_add(monkeypatch, *places):
    """Whatever plugs add, or import from below one of the places, is gone afterwards."""
    homes = [imported(kind.home) for kind in KINDS.values() if kind.home]
    dicts = [getattr(d, "data", d) for d in (*homes, METRICS, CALLBACKS, AGENT_NETWORKS, gym.registry)]
    before, modules = [dict(d) for d in dicts], {*sys.modules}
    monkeypatch.setattr(plugins, "loaded", [])
    monkeypatch.syspath_prepend(EXAMPLES)
    try:
        yield
    finally:
        plugins.loaded.clear()
        for now, then in zip(dicts, before, strict=True):
            now.clear()
            now.update(then)
        for name in {*sys.modules} - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith((*map(str, (EXAMPLES, LOOKS, WINDOWS, *places)),)):
                del sys.modules[name]


def script(name):
    """A module of scripts/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent.parent / f"scripts/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def diagnosis(learned, run="seed 0", network="critic", data="random", verdict="losing", every=1000):
    """Rows of a ``diagnosis.json``: what a network learned of what a fresh one learns, by checkpoint."""
    half = 0.05
    return [
        {
            "step": every * i,
            "run": run,
            "network": network,
            "data": data,
            **json.loads(Report(verdict, "why", evidence={NOW: Estimate(value, value - half, value + half)}).to_json()),
        }
        for i, value in enumerate(learned)
    ]
