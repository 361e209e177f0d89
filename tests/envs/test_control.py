import ctypes.util
import os
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from conftest import refused
from dm_control.rl.control import PhysicsError

from rl_plasticity.envs import Control, make_env


def actions(steps, runs, act_dim, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (steps, runs, act_dim)).astype(np.float32)


class Counting(gym.Env):
    """Counts its steps; says what it was told."""

    observation_space = gym.spaces.Dict({"b": gym.spaces.Box(-9, 9, (1, 2)), "a": gym.spaces.Box(-9, 9, (1,))})
    action_space = gym.spaces.Box(np.array([0.0, -4.0]), np.array([2.0, 0.0]), dtype=np.float64)

    def __init__(self, terminate_at=None, truncate_at=None, fail_at=None, nan_at=None):
        self.at = {"terminate": terminate_at, "truncate": truncate_at, "fail": fail_at, "nan": nan_at}

    def observe(self):
        return {"b": np.full((1, 2), self.t), "a": np.array([self.noise])}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.noise = 0, float(self.np_random.uniform())
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        self.action = action
        if self.t == self.at["fail"]:
            raise PhysicsError("mjWARN_BADQACC")
        reward = float("nan") if self.t == self.at["nan"] else float(self.t)
        return self.observe(), reward, self.t == self.at["terminate"], self.t == self.at["truncate"], {}


def test_actions_are_rescaled_to_the_task_s_own_bounds_and_clipped_and_observations_joined_in_the_space_s_order():
    gym.register("rl_plasticity_tests/Counting-v0", Counting)
    env = make_env("gym:rl_plasticity_tests/Counting-v0", 0)
    assert env.action_space == gym.spaces.Box(-1, 1, (2,))
    assert env.reset()[0].dtype == np.float32
    obs = env.step(np.array([0.5, -1.0], np.float32))[0]
    assert env.unwrapped.action.tolist() == [1.5, -4.0]
    assert obs[1:].tolist() == [1.0, 1.0]  # "a" comes first
    assert 0 < obs[0] < 1
    env.step(np.array([7.0, 7.0], np.float32))
    assert env.unwrapped.action.tolist() == [2.0, 0.0]


@pytest.mark.parametrize("how", [{"terminate_at": 5}, {"truncate_at": 5}])
def test_action_repeat_sums_rewards_and_stops_at_an_end_which_is_the_task_s_own(how):
    env = Control(Counting(**how), 0, action_repeat=3)
    env.reset()
    assert env.step(np.zeros(2, np.float32))[1:4] == (1 + 2 + 3, False, False)
    assert env.step(np.zeros(2, np.float32))[1:4] == (4 + 5, "terminate_at" in how, "truncate_at" in how)


@pytest.mark.parametrize("fault", ["fail_at", "nan_at"])
def test_a_physics_error_ends_the_episode_with_a_warning_not_the_run_and_keeps_what_was_earned(fault):
    env = Control(Counting(**{fault: 5}), 0, action_repeat=2)
    env.reset()
    for _ in range(2):
        good = env.step(np.zeros(2, np.float32))[0]
    with pytest.warns(UserWarning, match=r"episode 1\b"):
        obs, reward, terminated, truncated, _ = env.step(np.zeros(2, np.float32))
    assert np.array_equal(obs, good)
    assert (reward, terminated, truncated) == (0.0, False, True)
    env.reset()
    assert not env.step(np.zeros(2, np.float32))[3]
    env = Control(Counting(**{fault: 3}), 0, action_repeat=4)
    env.reset()
    with pytest.warns(UserWarning, match=r"episode \d+"):
        assert env.step(np.zeros(2, np.float32))[1] == 1 + 2


def test_an_unstable_simulation_of_a_real_task_ends_its_episode():
    env = make_env("cheetah-run", 0)
    env.reset()
    env.unwrapped.physics.data.qvel[:] = 1e12
    with pytest.warns(UserWarning, match="the simulation became unstable"):
        assert env.step(np.zeros(6, np.float32))[3]
    env.reset()
    assert not env.step(np.zeros(6, np.float32))[3]


def test_episodes_differ_and_depend_on_seed_and_number_only():
    env, same, other = make_env("cheetah-run", 1), make_env("cheetah-run", 1), make_env("cheetah-run", 2)
    first, second = env.reset()[0], env.reset()[0]
    assert not np.array_equal(first, second)
    same.reset()
    same.step(np.ones(6, np.float32))  # what happened before does not matter
    assert np.array_equal(same.reset()[0], second)
    assert not np.array_equal(other.reset()[0], first)


def test_a_replay_that_ends_elsewhere_is_an_error():
    env = make_env("gym:Pendulum-v1", 1)
    env.reset()
    env.step(np.ones(1, np.float32))
    state = env.state()
    state["actions"] = state["actions"] * -1
    other = make_env("gym:Pendulum-v1", 1)
    other.saved = state
    refused(other.restore, match="ended at another observation", error=ValueError)


@pytest.mark.parametrize("name", ["lqr-lqr_2_1", "quadruped-escape", "dog-fetch", "stacker-stack_2"])
def test_two_environments_of_one_seed_are_the_same_system(name):
    a, b = make_env(name, 5), make_env(name, 5)
    b.reset()  # whatever happened in another episode
    a.episode = b.episode = 6
    assert np.array_equal(a.reset()[0], b.reset()[0])
    for act in actions(10, 1, a.action_space.shape[0]):
        for x, y in zip(a.step(act[0])[:4], b.step(act[0])[:4], strict=True):
            assert np.array_equal(x, y)


@pytest.mark.skipif(not ctypes.util.find_library("EGL"), reason="the simulator cannot be imported with EGL")
def test_triton_is_loaded_before_the_simulator_that_draws_with_egl(tmp_path):
    (tmp_path / "triton.py").write_text("import sys; print('dm_control' in sys.modules)")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    said = subprocess.run(
        [sys.executable, "-c", "from rl_plasticity.envs import task_names; task_names()"],
        env={**os.environ, "PYTHONPATH": paths, "MUJOCO_GL": "egl"}, capture_output=True, text=True,
    )  # fmt: skip
    assert said.stdout == "False\n", said.stderr
