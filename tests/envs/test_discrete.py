"""Discrete actions and images: Gymnasium's tasks, changes of them, and the games of MinAtar."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import refused
from test_spaces import NAME, Drawn, register

from rl_plasticity.envs import Envs, make_env
from rl_plasticity.envs.continual import Changing
from rl_plasticity.envs.control import Control
from rl_plasticity.step import Spaces
from rl_plasticity.training.acting import random_act

STAND = "walker-stand"


class Cells(gym.Env):
    """An image whose numbers are all different; remembers its action."""

    def __init__(self, channels=3, actions=4, dtype=np.uint8, last=False):
        shape = (5, 6, channels) if last else (channels, 5, 6)
        self.observation_space = gym.spaces.Box(0, 1 if dtype == np.bool_ else 255, shape, dtype)
        self.action_space = gym.spaces.Discrete(actions, start=2)

    def reset(self, *, seed=None, options=None):
        space = self.observation_space
        return np.arange(np.prod(space.shape)).reshape(space.shape).astype(space.dtype), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.action = action
        return self.reset()[0], 1.0, False, False, {}


def acted(env, index):
    """The action that the task got for the index."""
    env.step(np.array([index], np.float32))
    return env.unwrapped.action


def test_an_action_is_the_index_of_one_and_an_image_comes_flat_in_fractions_of_its_largest_value():
    env = Control(Cells(), seed=0)
    assert env.spaces == Spaces((3, 5, 6), 1, 4, 255)
    assert env.spaces.obs_dim == 90
    np.testing.assert_array_equal(env.reset()[0], np.arange(90, dtype=np.float32) / np.float32(255))
    assert [acted(env, index) for index in range(4)] == [2, 3, 4, 5]
    assert env.state()["actions"].tolist() == [[0], [1], [2], [3]]


@pytest.mark.parametrize(("shape", "seen"), [((5, 6, 3), (3, 5, 6)), ((10, 5, 7), (10, 5, 7))])
def test_the_last_axis_of_an_image_is_its_channels_where_it_is_the_shortest(shape, seen):
    env = make_env(register(observation_space=gym.spaces.Box(0, 255, shape, np.uint8)), 0)
    gym.registry.pop(NAME)
    assert env.spaces.obs_shape == seen


def test_random_actions_are_all_of_them_equally_often():
    uniform = torch.linspace(0, 1, 1000, dtype=torch.float64)[:-1].float()
    counts = random_act(uniform, Spaces((4,), 1, 3)).long().bincount()
    assert counts.tolist() == [333, 333, 333]
    assert random_act(torch.tensor([0.0, 0.5, 0.75]), Spaces((4,), 3)).tolist() == [-1.0, 0.0, 0.5]


def test_permuted_channels_move_whole_pictures_and_permuted_actions_are_a_permutation():
    env = Control(Changing([Cells()], ["channel_permutation", "action_permutation"], 5), 0)
    whole = np.arange(90).reshape(3, 30)
    orders, actions = set(), set()
    for change in range(8):
        env.change = change
        env.reset()
        pictures = np.round(env.obs * 255).astype(int).reshape(3, 30)
        order = [int(picture[0]) // 30 for picture in pictures]
        np.testing.assert_array_equal(pictures, whole[order])
        orders.add(tuple(order))
        actions.add(tuple(acted(env, index) for index in range(4)))
        if change == 0:
            assert (order, *actions) == ([0, 1, 2], (2, 3, 4, 5))
    assert len(orders) > 2
    assert len(actions) > 3
    assert all(sorted(one) == [2, 3, 4, 5] for one in actions)


def test_flipped_discrete_actions_count_from_the_other_end():
    env = Control(Changing([Cells()], ["action_flip"]), 0)
    env.change = 1
    env.reset()
    assert [acted(env, index) for index in range(4)] == [5, 4, 3, 2]


def test_a_sequence_of_images_shows_missing_channels_as_zeros():
    env = Control(Changing([Cells(2), Cells(3)]), 0)
    assert env.spaces.obs_shape == (3, 5, 6)
    seen = []
    for change in (0, 1):
        env.change = change
        seen.append(env.reset()[0])
    assert not seen[0][60:].any()
    np.testing.assert_array_equal(seen[0][:60], seen[1][:60])


def test_an_episode_of_discrete_actions_is_replayed_to_where_it_was():
    envs, again = (Envs("gym:CartPole-v1", [0, 1]) for _ in range(2))
    envs.reset()
    for step in range(9):
        envs.step(np.full((2, 1), step % 2, np.float32))
    np.testing.assert_array_equal(again.load_state_dict(envs.state_dict()), envs.vector.get_attr("obs"))


REFUSED = [
    (lambda: make_env("", 0), "''", "gym:NAME"),
    (lambda: make_env("cheeta-run", 0), "'cheeta-run'", "cheetah-run"),
    (lambda: make_env("gym:Pendulm-v1", 0), "gym:Pendulum-v1"),
    (lambda: make_env("gym:Blackjak-v1", 0), "gym:Blackjack-v1"),
    (lambda: make_env("minatar:breakuot", 0), "'minatar:breakuot'", "minatar:breakout"),
    (lambda: Control(Drawn(action_space=gym.spaces.MultiDiscrete([2, 2])), 0), "Drawn has MultiDiscrete"),
    (lambda: Changing([Cells(), Cells(actions=3)], []), "same spaces", "Discrete(4", "Discrete(3"),
    (lambda: Changing([Cells()], ["observation_shift"]), "observation_shift"),
    (lambda: Changing([gym.make("CartPole-v1")], ["channel_permutation"]), "channel_permutation"),
    (lambda: Envs(STAND, [0], sequence=[STAND, "cheetah-run"]), "walker-stand", "Dict("),
    (lambda: Envs(STAND, [0], sequence=[STAND, "walker-rum"]), "'walker-rum'", "walker-run"),
    (lambda: Envs(STAND, [0], sequence=["walker-run"]), "env=walker-stand", "env.sequence=[walker-run]"),
    (lambda: Envs(STAND, [0], changes=["dynamic"]), "'dynamic'", "'dynamics'"),
    (lambda: Changing(Cells(), [], switch_every_env_steps=0), "switch_every_env_steps", "at least 1", "0"),
    (lambda: Envs("gym:FrozenLake-v1", [0], changes=["dynamics"]), "[dynamics]", "MuJoCo", "FrozenLake-v1"),
]


@pytest.mark.parametrize(("call", "names"), [(call, names) for call, *names in REFUSED])
def test_what_no_environment_can_be_or_do_is_one_line(call, names):
    refused(call, *names, error=ValueError)


@pytest.fixture
def game():
    pytest.importorskip("minatar")
    return make_env("minatar:breakout", 0)


def test_a_game_shows_its_own_state_channels_first(game):
    obs, _ = game.reset()
    assert game.spaces == Spaces((4, 10, 10), 1, 6, 1)
    np.testing.assert_array_equal(obs.reshape(4, 10, 10), game.unwrapped.game.state().transpose(2, 0, 1))


def test_an_episode_of_a_game_depends_on_its_seed_and_actions_alone_and_not_on_the_last_action_before(game):
    def episode(number, actions):
        game.episode = number - 1
        seen = [game.reset()[0]]
        for action in actions:
            seen.append(game.step(np.array([action], np.float32))[0])
        return np.stack(seen)

    first = [episode(number, [1, 3, 1, 1]) for number in range(1, 40)]  # a tenth of the actions are the last one again
    episode(77, [3, 3])
    for number, expected in enumerate(first, start=1):
        np.testing.assert_array_equal(episode(number, [1, 3, 1, 1]), expected)
