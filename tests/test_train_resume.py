import os
import re
import signal
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from conftest import StopAfter, assert_equal_states, files, once, refused, wait_for
from folders import PENDULUM, SMALL, go, goes_on_as_if_never_stopped, resume, run

from rl_plasticity import status
from rl_plasticity.agents import ReplayBuffer
from rl_plasticity.errors import FaultyRun
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.train import command

# Prefill, resets, evaluations and checkpoints, all at different times; two runs. An episode has 40 env steps.
EVENTFUL = [*SMALL, "env=gym:Pendulum-v1", "env.action_repeat=5", "seeds=2", "seed=3", "reg=spectral+swr"]
EVENTFUL += ["random_env_steps=12", "reset=periodic", "reset.every_updates=9", "total_env_steps=60"]
EVENTFUL += ["replay_ratio=0.5", "buffer_size=40", "eval_every_env_steps=38", "checkpoint_every_env_steps=30"]
EVENTFUL += ["log_every_updates=5"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run(EVENTFUL, tmp_path_factory.mktemp("eventful") / "run")


# During the prefill, before the first reset; between a reset and a checkpoint, in the second episode.
@pytest.mark.parametrize("stops", [(6, 20), (28, 19)])
def test_a_stopped_and_resumed_run_equals_one_never_stopped_bit_for_bit(stops, uninterrupted, tmp_path):
    folder = run(EVENTFUL, tmp_path / "run", StopAfter(stops[0]))
    for steps in stops[1:]:
        resume(folder, StopAfter(steps))
    resume(folder)
    assert (folder / "metrics.csv").read_bytes() == (uninterrupted / "metrics.csv").read_bytes()
    ends = [checkpoint.load(f / "checkpoints") for f in (folder, uninterrupted)]
    for end, name in zip(ends, (folder, uninterrupted), strict=True):
        del end["sizes"]["timing.csv"], end["ends"]["timing.csv"]  # wall-clock rates are written in other digits
        assert end["settings"].pop("out") == str(name)
        del end["chunks"]  # a row is in the file of the first checkpoint after it
        buffer = ReplayBuffer(2, 40, 3, 1)
        buffer.load_state_dict(end["buffer"] | end.pop("table"))
        end["buffer"] = buffer.state_dict()
    assert ends[0]["progress"]["step"] == 60
    assert ends[0]["progress"]["updates"] == 24
    assert_equal_states(*ends)


def start(arguments, cwd, program=("-m", "rl_plasticity.train"), **options):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen([sys.executable, *program, *arguments], cwd=cwd, env=environment, **pipes, **options)


class Drawing(gym.Env):
    """Its numbers come from a state that no seed sets."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (1,))
    draws = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        return self.draws.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {}


# A signal from outside could come when all is done, on a machine where this process must wait for its turn.
SIGNALLED = """
import os, runpy, signal
from rl_plasticity.runs.checkpoint import Checkpoints
save = Checkpoints.save
def signalled(self, *arguments):
    Checkpoints.save = save
    path = save(self, *arguments)
    os.kill(os.getpid(), signal.SIGKILL)
    return path
Checkpoints.save = signalled
runpy.run_module("rl_plasticity.train", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    return run(PENDULUM, tmp_path_factory.mktemp("short") / "run")


def test_a_real_process_that_is_killed_can_be_resumed_to_the_same_numbers(short, tmp_path):
    folder = tmp_path / "run"
    process = start([*PENDULUM, f"out={folder}"], tmp_path, ("-c", SIGNALLED))
    output = process.communicate()
    assert process.returncode == -signal.SIGKILL, output
    assert checkpoint.load(folder / "checkpoints")["progress"]["step"] == 0  # saved before the first step
    resume(folder)
    assert (folder / "metrics.csv").read_bytes() == (short / "metrics.csv").read_bytes()
    resume(folder)  # a finished run: nothing changes
    assert (folder / "metrics.csv").read_bytes() == (short / "metrics.csv").read_bytes()


def test_ctrl_c_in_a_terminal_reaches_worker_processes_too_and_the_run_is_saved_all_the_same(tmp_path):
    folder = tmp_path / "run"
    long = [a for a in PENDULUM if not a.startswith("total")]
    arguments = [*long, "total_env_steps=100000", "env.workers=true", f"out={folder}"]
    process = start(once(arguments), tmp_path, start_new_session=True)
    metrics = folder / "metrics.csv"
    wait_for(lambda: metrics.exists() and "critic/loss" in metrics.read_text(), process)
    os.killpg(process.pid, signal.SIGINT)
    output = process.communicate()
    assert process.returncode == 130, output
    assert f"continue with python -m rl_plasticity.train resume={folder}" in output[1]
    assert "Traceback" not in output[1]
    assert checkpoint.load(folder / "checkpoints")["progress"]["step"] > 0


def test_a_folder_whose_name_holds_settings_can_be_resumed_as_the_message_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [*PENDULUM, "reg=swr", "reg.coef=0.1"]
    folder = go(command, given, StopAfter(30))
    line = refused(lambda: command.prepare(given), "resume=")
    advice = re.search(r"resume=.*?(?= or choose)", line)[0]
    assert command.prepare([advice])[0].folder.path == folder
    refused(lambda: command.prepare(["resume=results"]), "not a run's folder", f"contains some: {folder}")


EXTENSIBLE = [*PENDULUM, "eval_every_env_steps=15", "reset=periodic", "reset.every_updates=9", "reg=swr", "seeds=2"]
EXTENSIBLE += ["log_every_updates=5"]


def test_a_finished_run_that_is_extended_equals_one_that_was_as_long_from_the_start(tmp_path, capfd):
    whole = run([*EXTENSIBLE, "total_env_steps=45"], tmp_path / "whole")
    folder = run([*EXTENSIBLE, "total_env_steps=30"], tmp_path / "run")
    go(command, [f"resume={folder}", "total_env_steps=45"], StopAfter(5))
    assert "goes on after 30 of 45 env steps" in capfd.readouterr().err
    resume(folder)  # and it goes on without being told again
    assert (folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert_equal_states(*(checkpoint.load(f / "checkpoints")["agent"] for f in (folder, whole)))
    assert RunFolder(folder).settings["total_env_steps"] == 45


def test_a_run_cannot_be_made_shorter_and_a_refused_extension_changes_no_file(uninterrupted):
    before = (uninterrupted / "config.yaml").read_bytes()
    for given, names in (
        (["total_env_steps=5"], ["total_env_steps=5", "extended"]),
        (["total_env_steps=5000", "seed=5"], ["leave out", "seed"]),
    ):
        refused(lambda given=given: command.prepare([f"resume={uninterrupted}", *given]), *names)
    assert (uninterrupted / "config.yaml").read_bytes() == before


@pytest.mark.parametrize("steps", [None, 30])
def test_a_run_that_cannot_be_restored_stays_as_it_was_with_its_length_and_its_end(steps, tmp_path):
    if "DrawingForTests-v0" not in gym.registry:
        gym.register("DrawingForTests-v0", Drawing, max_episode_steps=50)
    folder = run([*PENDULUM, "env=gym:DrawingForTests-v0"], tmp_path / "run", StopAfter(steps))
    before = files(folder)
    for more in ([], ["total_env_steps=400"]):
        with pytest.raises(FaultyRun, match=r"cannot resume: .*simulator.*self\.np_random"):
            go(command, [f"resume={folder}", *more])
    assert files(folder) == before
    assert status.read(RunFolder(folder)).state == ("finished" if steps is None else "stopped")


LATER = {
    "droq": ["agent=droq", "agent.hidden=[8]", "agent.actor_every_updates=3", "agent.lr_end=1e-5"],
    "later_sac": [
        *("agent=later_sac", "agent.network=simba", "agent.actor_width=8", "agent.log_std=clamp"),
        "agent.critic_width=8",
        *("reg=churn+continual_backprop", "reg.continual_backprop.coef=0.1", "reg.continual_backprop.maturity=2"),
        *("reset=periodic", "reset.every_updates=4"),  # with statistics of observations, and what looks at data
    ],
    "redq": ["agent=redq", "agent.hidden=[8]", "agent.num_critics=3", "agent.actor_every_updates=3"],
}


@pytest.mark.parametrize("name", LATER)
def test_a_later_agent_goes_on_where_it_was_stopped_between_two_updates_of_its_actor(name, tmp_path):
    settings = [one for one in PENDULUM if not one.startswith(("agent.hidden", "log_every"))]
    settings += [*LATER[name], "seeds=2", "batch_size=8", "random_env_steps=6", "total_env_steps=20"]
    settings += ["log_every_updates=1", "eval_every_env_steps=20"]
    goes_on_as_if_never_stopped(settings, tmp_path, 13)
