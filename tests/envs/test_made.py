"""How a task is made: its time limit, its arguments and wrappers, and names that no task has."""

import json
import sys

import gymnasium as gym
import numpy as np
import pytest
import shimmy  # noqa: F401  registers tasks that stay registered
import yaml
from conftest import refused
from folders import SMALL, resume, rows, run
from folders import without_what_plugs_add as without
from test_spaces import Drawn

from rl_plasticity import plugins, train
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Train
from rl_plasticity.configs.help import describe
from rl_plasticity.configs.written import from_python
from rl_plasticity.envs import make_env
from rl_plasticity.envs.control import LONGEST, check_name
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.trained import load_agent

ENDLESS = "rl_plasticity_tests/Endless-v0"
LAKE = [*SMALL, "agent=dqn", "total_env_steps=40", "random_env_steps=20", "replay_ratio=1", "eval_every_env_steps=20"]
LAKE += ["checkpoint_every_env_steps=10", "env=gym:FrozenLake-v1"]
STACK = ["env.wrappers=[gymnasium.wrappers:FrameStackObservation]", "env.kwargs.FrameStackObservation.stack_size=3"]
WRAPPER = """
import gymnasium as gym

class Times(gym.RewardWrapper):
    def __init__(self, env, factor=2.0):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward
"""


@pytest.fixture(autouse=True)
def _registered(monkeypatch, tmp_path):
    with without(monkeypatch, tmp_path):  # what is registered is forgotten, too
        gym.register(ENDLESS, Drawn)
        yield


def steps_of(env):
    env.reset()
    for step in range(1, 6000):
        if env.step(np.zeros(env.action_space.shape, np.float32))[3]:
            return step
    return None


@pytest.mark.parametrize(
    ("name", "given", "steps"),
    [(f"gym:{ENDLESS}", None, LONGEST), (f"gym:{ENDLESS}", 7, 7), ("gym:Pendulum-v1", None, 200),
     ("gym:Pendulum-v1", 300, 300), ("cheetah-run", 9, 9), ("lqr-lqr_2_1", None, LONGEST)],
)  # fmt: skip
def test_every_episode_has_an_end_the_given_one_or_the_task_s_own_or_one_that_is_said(name, given, steps):
    env = make_env(name, 0, max_episode_steps=given)
    assert steps_of(env) == steps
    assert any("env.max_episode_steps" in note for note in env.notes) is (steps == LONGEST)


def test_a_limit_above_that_of_the_task_itself_is_refused():
    refused(lambda: make_env("cheetah-run", 0, max_episode_steps=2000), "=2000", "at most 1000")


def test_a_wrapper_that_is_named_twice_has_its_arguments_twice(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(WRAPPER)
    plugins.load(["mine"])
    rewards = []
    for wrappers in ([], ["mine:Times"], ["mine:Times", "mine:Times"]):
        env = make_env("gym:Pendulum-v1", 0, wrappers=wrappers, kwargs={"Times": {"factor": 3.0}} if wrappers else {})
        env.reset()
        rewards.append(env.step(np.zeros(1, np.float32))[1])
    assert rewards == pytest.approx([rewards[0], 3 * rewards[0], 9 * rewards[0]])


def test_a_task_that_counts_its_own_steps_keeps_its_limit():
    class Counts(Drawn):
        max_steps = 3000

    gym.register("rl_plasticity_tests/Endless-v1", Counts)
    env = make_env("gym:rl_plasticity_tests/Endless-v1", 0)
    assert (steps_of(env), env.notes) == (None, [])


def test_a_run_without_evaluations_ends_and_a_policy_of_it_can_be_evaluated(tmp_path):
    arguments = [*LAKE, "eval_episodes=0", "env.sequence=[gym:FrozenLake-v1,gym:FrozenLake-v1]"]
    folder = run([*arguments, "env.switch_every_env_steps=15"], tmp_path / "run")
    assert not rows(folder, "eval/return")
    assert not rows(folder, "task/return")
    assert "env_steps_done" in (folder / "timing.csv").read_text()
    assert load_agent(folder) is not None


def test_arguments_and_wrappers_are_saved_resumed_exactly_and_the_same_in_every_command(tmp_path):
    given = [*LAKE, *STACK, "env.kwargs.is_slippery=false", "env.kwargs.desc=[SFF,FFF,FFG]", "env.max_episode_steps=8"]
    whole, halved = run(given, tmp_path / "a"), run([*given, "total_env_steps=25"], tmp_path / "b")
    train.command.execute(*train.command.prepare([f"resume={halved}", "total_env_steps=40"]))
    for name in ("eval/return", "train/return"):
        assert [r for r in rows(whole, name) if r["step"] != "25"] == [
            r for r in rows(halved, name) if r["step"] != "25"
        ]
    env = yaml.safe_load((whole / "config.yaml").read_text())["env"]
    assert env["wrappers"] == ["gymnasium.wrappers:FrameStackObservation"]
    own = {"is_slippery": False, "desc": ["SFF", "FFF", "FFG"]}
    assert env["kwargs"] == own | {"FrameStackObservation": {"stack_size": 3}}


def test_python_gives_arguments_as_a_dictionary_and_a_run_without_any_is_saved_as_ever(tmp_path):
    settings = schema.load(Train, ["env=gym:FrozenLake-v1"]).flat
    assert not [name for name in settings if "kwargs" in name or "wrappers" in name or "max_episode" in name]
    both = {"name": "gym:FrozenLake-v1", "kwargs": {"map_name": "8x8"}, "wrappers": ["FlattenObservation"]}
    assert schema.load(Train, from_python({"env": both})).env.settings["kwargs.map_name"] == "8x8"


def test_a_wrapper_of_ones_own_is_named_on_the_command_line_and_no_file_loads_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(WRAPPER)
    own = ["env=gym:Pendulum-v1", "agent=sac", "env.wrappers=[mine:Times]", "env.kwargs.Times.factor=0.0"]
    folder = run([*LAKE, *own, "env.workers=true"], tmp_path / "run")
    assert {float(row["value"]) for row in rows(folder, "eval/return")} == {0.0}
    start = RunFolder(folder).starts[-1]
    assert start["plugins"] == ["mine"]
    assert "mine" in start["plugin_sources"]
    plugins.loaded.clear()
    sys.modules.pop("mine")
    (folder / "provenance.json").write_text(json.dumps({"starts": []}))
    for look in (lambda: resume(folder), lambda: load_agent(folder)):
        refused(look, "plugins=[mine]")
    assert "mine" not in sys.modules
    plugins.load(["mine"])
    assert load_agent(folder) is not None


BAD = {
    "env.kwargs.nothing=3": ["FrozenLake", "nothing"],
    "env.kwargs.map_name=9x9": ["FrozenLake", "9x9"],
    "env.kwargs={map_name: 8x8, is_slippery: false}": ["env.kwargs.NAME=VALUE"],
    "env.wrappers=[FrameStackObservatio]": ["FrameStackObservatio", "'FrameStackObservation'"],
    "env.wrappers=[FrameStackObservation]": ["stack_size"],
    "env.wrappers=FlattenObservation": ["env.wrappers", "list"],
    "env.wrappers=[os:system]": ["os:system"],
    "env.wrappers=[nosuchmodule:Mine]": ["nosuchmodule"],
    "env.wrappers=[RecordVideo]": ["RecordVideo"],
    "env.wrappers=[gymnasium.wrappers:NormalizeObservation]": ["NormalizeObservation"],
    "env.max_episode_steps=0": ["env.max_episode_steps", "1"],
    "env.sequence=3": ["env.sequence"],
}


@pytest.mark.parametrize("argument", BAD)
def test_bad_arguments_and_wrappers_are_one_line_before_anything_is_written(argument, tmp_path):
    given = [*(one for one in LAKE if not argument.startswith(one.partition("=")[0] + "=")), argument]
    refused(lambda: train.command.prepare([*given, f"out={tmp_path / 'run'}"]), *BAD[argument])
    assert not (tmp_path / "run").exists()


def test_help_has_the_given_arguments_beside_the_settings():
    text = describe(Train, ["env=gym:FrozenLake-v1", "env.kwargs.is_slippery=true"], 100)
    assert "env.kwargs.is_slippery=true" in text
    assert "env.wrappers=[]" in text


def test_two_arguments_of_one_name_are_refused():
    refused(lambda: schema.load(Train, ["env.kwargs.a=1", "env.kwargs.a.b=2"]), "env.kwargs.a", "twice")


NAMES = {
    "gym:ALE/Pong-v5": ["ale-py", "gym:ale_py:ALE/Pong-v5"],
    "gym:ale/Pong-v5": ["ale-py", "ale_py"],
    "gym:Mine/Task-v0": ["Mine/", "gym:MODULE:Mine/Task-v0"],
    "gym:tabular/Blackjak-v0": ["gym:tabular/Blackjack-v0"],
    "gym:gymnasium.envs:phys2d/CartPol-v1": ["gym:gymnasium.envs:phys2d/CartPole-v1"],
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_with_a_namespace_gets_names_of_it_or_what_to_install(name):
    line = refused(lambda: check_name(name), repr(name), *NAMES[name])
    assert "Ant-" not in line
