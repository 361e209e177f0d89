"""Environments of many runs, here and in worker processes."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import folders
import gymnasium as gym
import numpy as np
import pytest
from conftest import alive, refused, wait_for
from test_control import Counting, actions

from rl_plasticity import train
from rl_plasticity.envs import EnvFault, Envs, make_env, vector
from rl_plasticity.envs.vector import Worker
from rl_plasticity.errors import FaultyRun


@pytest.fixture
def forked(monkeypatch):
    """Workers without a fresh interpreter, which would take seconds and not know the tests' environments."""
    monkeypatch.setattr(vector, "START", "fork")


@pytest.mark.parametrize(("workers", "number"), [(False, 0), ("auto", 0), (True, 3), (1, 1), (2, 2), (9, 3)])
def test_every_run_has_its_own_environment_and_equals_one_stepped_alone(workers, number, forked):
    seeds = (5, 6, 7)
    envs = Envs("gym:Pendulum-v1", seeds, workers=workers)
    assert sum(isinstance(group, Worker) for group in envs.groups) == number
    singles = [make_env("gym:Pendulum-v1", seed) for seed in seeds]
    obs = envs.reset()
    assert np.array_equal(obs, np.stack([one.reset()[0] for one in singles]))
    for act in actions(205, 3, 1):
        step = envs.step(act)
        for run, one in enumerate(singles):
            last, reward, terminated, truncated, _ = one.step(act[run])
            assert np.array_equal(step.next_obs[run], last)
            assert step.reward[run] == np.float32(reward)
            assert (step.terminated[run], step.truncated[run]) == (terminated, truncated)
            assert np.array_equal(step.obs[run], one.reset()[0] if truncated else last)
    envs.close()


@pytest.mark.parametrize(
    ("name", "action", "steps", "terminates"),
    [("cheetah-run", 0, 1000, False), ("gym:InvertedPendulum-v5", 1, 60, True)],
)
def test_control_suite_episodes_are_truncated_after_1000_steps_and_termination_is_said(name, action, steps, terminates):
    envs = Envs(name, [0])
    envs.reset()
    taken = [envs.step(np.full((1, envs.act_dim), action, np.float32)) for _ in range(steps)]
    assert any(step.terminated[0] for step in taken) == terminates
    assert [i for i, step in enumerate(taken) if step.truncated[0]] == ([] if terminates else [999])
    assert terminates or not np.array_equal(taken[-1].obs, taken[-1].next_obs)


CHANGES = {"sequence": ["walker-stand", "walker-walk"], "changes": ["dynamics", "observation_shift"]}
CHANGES |= {"switch_every_env_steps": 15, "change_seeds": [5, 6]}


@pytest.mark.parametrize(("name", "steps", "given"), [
    *(("cheetah-run", 20, {}), ("finger-turn_hard", 20, {}), ("gym:Pendulum-v1", 230, {})),
    ("walker-stand", 15, CHANGES),  # around a change, which is when the next episode begins
    ("walker-stand", 31, CHANGES | {"workers": 1}),
])  # fmt: skip
def test_saved_environments_continue_bit_for_bit_in_new_ones(name, steps, given, forked):
    envs, others = (Envs(name, [1, 1], **given) for _ in range(2))  # of one seed, but each where it was
    envs.reset()
    for act in actions(steps, 2, envs.act_dim):
        before = envs.step(act)
    assert np.array_equal(others.load_state_dict(envs.state_dict()), before.obs)
    assert not np.array_equal(before.obs[0], before.obs[1])
    for act in actions(30, 2, envs.act_dim, seed=1):
        np.testing.assert_equal(envs.step(act), others.step(act))
    envs.close(), others.close()


class Faulty(Counting):
    """Does in its third step what it was told when it was made."""

    does = staticmethod(lambda: None)

    def step(self, action):
        if self.t == 2:
            self.does()
        return super().step(action)


gym.register("FaultyForTests-v0", Faulty)


def two_steps(envs):
    envs.reset()
    for _ in range(2):
        envs.step(np.zeros((envs.runs, 2), np.float32))


def no_data():
    raise KeyError("no\ndata")


@pytest.mark.parametrize(("does", "workers", "timeout", "says"), [
    (no_data, False, None, r"raised KeyError: 'no\\ndata' \(test_vector.py, line \d+\)$"),
    (no_data, True, None, r"raised KeyError: 'no\\ndata' \(test_vector.py, line \d+\)$"),
    (partial(time.sleep, 10_000), True, 0.1, r"an environment took longer than env.timeout_seconds=0.1$"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), 2, None, r"process died \(exit codes \[-9, -9\]\)$"),
])  # fmt: skip
def test_an_environment_at_fault_is_one_line_and_no_process_stays(does, workers, timeout, says, forked, monkeypatch):
    monkeypatch.setattr(Faulty, "does", staticmethod(does))
    envs = Envs("gym:FaultyForTests-v0", [0, 1, 2], workers=workers)
    two_steps(envs)
    envs.timeout = timeout  # of the faulty step alone: the others end, however busy the machine is
    refused(lambda: envs.step(np.zeros((3, 2), np.float32)), match=says, error=EnvFault)
    assert not any(group.process.is_alive() for group in envs.groups if isinstance(group, Worker))
    envs.close()


def test_an_environment_that_hangs_where_networks_are_first_measured_ends_the_run(forked, monkeypatch, tmp_path):
    monkeypatch.setattr(Faulty, "does", staticmethod(partial(time.sleep, 10_000)))
    own = [*folders.PENDULUM, "env=gym:FaultyForTests-v0", "env.action_repeat=1", "measure_every_updates=10"]
    own += ["env.workers=1", "env.timeout_seconds=2"]
    refused(lambda: folders.run(own, tmp_path / "run"), "longer than env.timeout_seconds=2;", error=FaultyRun)


def no_room(start, process):
    if process.name.endswith("2"):  # one worker starts, the next one finds no room
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    start(process)


def at_once_killed(start, process):
    start(process)
    process.kill()


@pytest.mark.parametrize("fault", [no_room, at_once_killed])
def test_workers_that_cannot_be_started_are_one_line_and_no_process_stays(fault, forked, monkeypatch):
    kind, names = multiprocessing.get_context("fork").Process, iter("123")
    start = kind.start

    def failing(process):
        process.name = next(names)
        fault(start, process)

    monkeypatch.setattr(kind, "start", failing)
    with pytest.raises(EnvFault, match=r"^the environments' processes [^\n]+$"):
        Envs("gym:Pendulum-v1", [0, 1], workers=True)
    for process in multiprocessing.active_children():
        process.join(600)
    assert multiprocessing.active_children() == []


def test_an_environment_that_cannot_be_made_in_a_worker_is_one_line(forked, monkeypatch):
    monkeypatch.setattr(vector, "check_name", lambda name: None)
    with pytest.raises(EnvFault, match=r"SettingsError: .*'gym:Nowhere-v0'"):
        Envs("gym:Nowhere-v0", [0, 1], workers=True)
    assert multiprocessing.active_children() == []


def test_something_else_can_be_done_while_workers_step(forked, monkeypatch, tmp_path):
    done = tmp_path / "done"
    monkeypatch.setattr(Faulty, "does", staticmethod(partial(wait_for, done.exists)))
    envs = Envs("gym:FaultyForTests-v0", [0, 1], workers=2)
    two_steps(envs)
    envs.begin_step(np.zeros((2, 2), np.float32))
    done.touch()
    assert envs.end_step().reward.tolist() == [3, 3]
    envs.close()


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "pass"])
def test_no_worker_outlives_a_process_that_is_killed_or_closes_nothing(end, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, tempfile\nplace = tempfile.TemporaryDirectory()\nfrom rl_plasticity.envs import Envs\n"
        "if __name__ == '__main__':\n"
        "    envs = Envs('gym:Pendulum-v1', [0, 1], workers=2)\n"
        "    print(*(group.process.pid for group in envs.groups), flush=True)\n"
        f"    {end}\n"
    )
    said = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    workers = [int(pid) for pid in said.stdout.split()]
    assert len(workers) == 2, said.stderr
    wait_for(lambda: not any(map(alive, workers)))


WITNESS = """
import os, sys
import gymnasium as gym
from gymnasium.envs.classic_control import PendulumEnv

class Witness(PendulumEnv):
    def __init__(self, **settings):
        super().__init__(**settings)
        with open("witness.txt", "a") as file:
            print(os.getppid(), "torch" in sys.modules, file=file)

gym.register("Witness-v0", Witness, max_episode_steps=20)
"""


def test_a_worker_of_a_command_imports_no_torch(tmp_path):
    (tmp_path / "witness.py").write_text(WITNESS)
    settings = ["env=gym:witness:Witness-v0", "env.workers=2", "seeds=2", "total_env_steps=3", "replay_ratio=0"]
    settings += ["eval_episodes=1", "measure_every_updates=0", "compile=false", "threads=1", "device=cpu", "out=run"]
    paths = os.pathsep.join([str(tmp_path), str(Path(vector.__file__).parents[2])])
    told = [sys.executable, "-m", "rl_plasticity.train", *settings]
    environment = {**os.environ, "PYTHONPATH": paths}
    run = subprocess.Popen(
        told, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    said = run.communicate()
    assert run.returncode == 0, said
    made = [line.split() for line in (tmp_path / "witness.txt").read_text().splitlines()]
    assert [torch for parent, torch in made if parent == str(run.pid)] == ["False"] * 4  # to train, and to evaluate
    assert [torch for parent, torch in made if parent != str(run.pid)] == ["True"] * 2  # the command's own process


def test_a_run_with_workers_has_the_numbers_of_one_without(tmp_path, forked):
    given = {"env": "gym:InvertedPendulum-v5", "seeds": 2, "total_env_steps": 6, "random_env_steps": 4, "threads": 1}
    given |= {"compile": False, "measure_every_updates": 0, "agent.hidden": (8, 8)}
    numbers = [
        (train.run(**given, **{"env.workers": workers, "eval_episodes": 4, "out": tmp_path / str(workers)}))
        for workers in (False, 2, True)
    ]
    assert len({(folder.path / "metrics.csv").read_text() for folder in numbers}) == 1
    assert [train.beside_each_other(*of) for of in ((10, 1, 16), (10, 10, 2), (10, 40, 2), (7, 4, 1), (0, 1, 1))] == [
        10, 2, 1, 1, 1,
    ]  # fmt: skip


def test_a_worker_of_a_script_has_the_tasks_that_the_script_registers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"{WITNESS}\nfrom rl_plasticity.envs import Envs\nif __name__ == '__main__':\n"
        "    envs = Envs('gym:Witness-v0', [0, 1], workers=2)\n    print(envs.reset().shape)\n    envs.close()\n"
    )
    said = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert said.stdout == "(2, 3)\n", said.stderr
    assert {line.split()[1] for line in (tmp_path / "witness.txt").read_text().splitlines()} == {"False"}
