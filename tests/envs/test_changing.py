"""`Changing` as a wrapper in a loop of one's own: observations of the task's own form, changes in time, physics."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.utils.env_checker import check_env
from test_continual_control import Told
from test_discrete import Cells

from rl_plasticity.envs import Changing
from rl_plasticity.envs.continual import CONSTANTS

CLASSIC = {
    "CartPole-v1": "CartPoleEnv",
    "Pendulum-v1": "PendulumEnv",
    "Acrobot-v1": "AcrobotEnv",
    "MountainCar-v0": "MountainCarEnv",
    "MountainCarContinuous-v0": "Continuous_MountainCarEnv",
}


class Parts(Told):
    """Observations in a dictionary."""

    observation_space = gym.spaces.Dict({"b": gym.spaces.Box(0, 9, (2, 2)), "a": gym.spaces.Discrete(3)})

    def reset(self, *, seed=None, options=None):
        return {"a": 1, "b": np.array([[2, 3], [4, 5]], np.float32)}, {}


@pytest.mark.filterwarnings("error", "ignore:.*different from the unwrapped", "ignore:.*too (low|high)")
@pytest.mark.parametrize("kind", ["observation_permutation", "observation_shift", "action_permutation", "dynamics"])
def test_gymnasium_s_own_check_finds_nothing(kind):
    check_env(Changing(CartPoleEnv(), [kind], switch_every_env_steps=10), skip_render_check=True)


def test_observations_keep_the_type_and_the_shape_of_the_task():
    image, vector = Changing(Cells(), ["channel_permutation"]), Changing(Told(), ["observation_permutation"])
    cells = Changing(Cells(dtype=np.bool_), ["channel_permutation"])
    for env, dtype in ((image, np.uint8), (vector, np.float32), (cells, np.bool_)):
        env.change_to(1)
        obs, _ = env.reset()
        assert obs.dtype == env.observation_space.dtype == dtype
        assert obs.shape == env.observation_space.shape == env.unwrapped.observation_space.shape
        assert env.observation_space.contains(obs)
    assert image.observation_space == Cells().observation_space  # an image to other libraries too
    assert sorted(image.reset()[0][:, 0, 0]) == [0, 30, 60]


def test_dictionaries_become_one_vector_and_shifted_whole_numbers_are_no_longer_whole():
    obs, _ = Changing(Parts()).reset()
    assert obs.tolist() == [0, 1, 0, 2, 3, 4, 5]
    env = Changing(gym.make("Blackjack-v1"), ["observation_shift"])
    whole, _ = env.reset(seed=0)
    env.change_to(1)
    shifted, _ = env.reset(seed=0)
    np.testing.assert_allclose(shifted - whole, env.offset, atol=1e-6)
    assert env.observation_space.contains(shifted)


def test_a_change_cuts_the_episode_off_and_comes_with_the_next_reset():
    env = Changing(Told(), ["reward_flip"], switch_every_env_steps=3)
    env.reset()
    seen = []
    for _ in range(10):
        _, reward, terminated, truncated, _ = env.step(Told.action_space.low)
        seen.append((reward, truncated))
        assert not terminated
        if truncated:
            env.reset()
    assert seen == [(3, False), (3, False), (3, True), (-3, False), (-3, False), (-3, True), *seen[:3], (-3, False)]
    assert env.change == 3


def test_an_episode_that_goes_on_beyond_the_change_stays_the_task_that_it_was():
    env = Changing(Told(), ["reward_flip"], switch_every_env_steps=3)
    env.reset()
    assert [env.step(Told.action_space.low)[1] for _ in range(5)] == [3] * 5
    env.reset()
    assert env.step(Told.action_space.low)[1] == -3


def test_a_terminated_episode_at_the_change_is_terminated_only():
    class Ends(Told):
        def step(self, action):
            return np.arange(5.0), 0.0, True, False, {}

    env = Changing(Ends(), ["reward_flip"], switch_every_env_steps=1)
    env.reset()
    assert env.step(Told.action_space.low)[2:4] == (True, False)


def test_without_a_period_a_change_comes_when_it_is_told_and_the_same_one_to_every_copy():
    envs = [Changing(gym.make("CartPole-v1"), ["observation_permutation"]) for _ in range(2)]
    for env in envs:
        for _ in range(50):
            env.reset()
            env.step(0)
        assert env.change == 0
        env.change_to(5)
    one, other = (env.reset(seed=3)[0] for env in envs)
    np.testing.assert_array_equal(one, other)
    assert one.tolist() != gym.make("CartPole-v1").reset(seed=3)[0].tolist()


def test_several_environments_are_shown_in_turn():
    names = ["CartPole-v0", "CartPole-v1"]  # of other lengths
    env = Changing([gym.make(name) for name in names], switch_every_env_steps=2)
    shown = []
    for _ in range(6):
        env.reset()
        shown.append(env.env.spec.id)
        env.step(0)
    assert shown == [names[0], names[0], names[1], names[1], names[0], names[0]]


@pytest.mark.parametrize("name", CLASSIC)
def test_the_constants_of_classic_control_are_scaled_each_by_a_factor_of_its_own_and_come_back(name):
    env = Changing(gym.make(name), ["dynamics"], seed=4, dynamics_factor=3.0)
    task, names = env.unwrapped, CONSTANTS[CLASSIC[name]]
    first = np.array([getattr(gym.make(name).unwrapped, one) for one in names])
    logs = []
    for number in range(1, 30):
        env.change_to(number)
        logs.append(np.log(np.array([getattr(task, one) for one in names]) / first) / np.log(3))
        if name == "CartPole-v1":
            assert task.total_mass == task.masspole + task.masscart
            assert task.polemass_length == task.masspole * task.length
    logs = np.array(logs)
    assert np.abs(logs).max() <= 1
    assert (logs.min(0) < -0.7).all()
    assert (logs.max(0) > 0.7).all()
    if len(names) > 1:
        assert np.abs(np.corrcoef(logs.T) - np.eye(len(names))).max() < 0.6
    env.change_to(0)
    assert [getattr(task, one) for one in names] == first.tolist()
    if name == "CartPole-v1":
        assert (task.total_mass, task.polemass_length) == (1.1, 0.05)


@pytest.mark.parametrize(("name", "constant"), [(n, c) for n, kind in CLASSIC.items() for c in CONSTANTS[kind]])
def test_a_step_follows_every_constant(name, constant):
    env, same = (Changing(gym.make(name), ["dynamics"]) for _ in range(2))
    factors = [2.0 if one == constant else 1.0 for one in CONSTANTS[CLASSIC[name]]]
    env.reset(seed=0), same.reset(seed=0)
    env.physics[0].scale(*factors)
    act = env.action_space.high * 0.5 if isinstance(env.action_space, gym.spaces.Box) else 0
    for _ in range(3):
        one, other = env.step(act)[0], same.step(act)[0]
    assert np.abs(one - other).max() > 1e-6


def test_cartpole_s_next_speed_is_that_of_its_equations_with_the_changed_constants():
    env = Changing(gym.make("CartPole-v1"), ["dynamics"], seed=1)
    env.change_to(1)
    env.reset(seed=0)
    task = env.unwrapped
    _, x_dot, theta, theta_dot = task.state
    mass, half = task.masscart + task.masspole, task.length
    part = (task.force_mag + task.masspole * half * theta_dot**2 * np.sin(theta)) / mass
    turn = (task.gravity * np.sin(theta) - np.cos(theta) * part) / (
        half * (4 / 3 - task.masspole * np.cos(theta) ** 2 / mass)
    )
    obs = env.step(1)[0]
    assert obs[3] == pytest.approx(theta_dot + task.tau * turn, rel=1e-6)
    assert obs[1] == pytest.approx(
        x_dot + task.tau * (part - task.masspole * half * turn * np.cos(theta) / mass), rel=1e-6
    )
    assert mass != pytest.approx(1.1, rel=0.01)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"changes": ["dynamic"]}, "'dynamic'.*'dynamics'"),
        ({"changes": ["dynamics"]}, r"\[dynamics\].*MuJoCo.*classic control.*Told"),
        ({"switch_every_env_steps": 0}, "switch_every_env_steps.*at least 1.*0"),
    ],
)
def test_what_it_cannot_do_is_one_line(given, named):
    with pytest.raises(ValueError, match=named) as error:
        Changing(Told(), **given)
    assert "\n" not in str(error.value)
