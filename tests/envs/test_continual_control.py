"""Tasks that follow each other, and tasks that are drawn anew."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.utils.env_checker import check_env
from test_control import Counting, actions
from test_discrete import Cells

from rl_plasticity.envs import Control, Envs, make_env
from rl_plasticity.envs.continual import CONSTANTS, KINDS, Changing

NAMES = ["walker-stand", "walker-walk", "walker-run"]


class Told(gym.Env):
    """Observations 0 to 4; remembers the action, whose fractions of the range it was made with."""

    observation_space = gym.spaces.Box(-9, 9, (5,))
    action_space = gym.spaces.Box(np.array([0.0, -4.0, 1.0]), np.array([2.0, 0.0, 9.0]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        return np.arange(5.0), {}

    def step(self, action):
        self.fractions = (action - self.action_space.low) / (self.action_space.high - self.action_space.low)
        return np.arange(5.0), 3.0, False, False, {}


def changing(*kinds, seed=0, shift_std=1.0):
    return Changing([Told()], kinds, seed, shift_std=shift_std)


def at(env, number, fractions=(0.1, 0.4, 0.7)):
    """What is seen, done and earned after the change of this number."""
    env.change_to(number)
    env.reset()
    low, high = Told.action_space.low, Told.action_space.high
    obs, reward, *_ = env.step(low + np.array(fractions) * (high - low))
    return obs, env.env.fractions, reward


def test_without_a_change_everything_is_as_it_is_and_so_it_is_before_the_first_one():
    obs, fractions, reward = at(changing(*KINDS[:5]), 0)
    assert (obs.tolist(), reward) == ([0, 1, 2, 3, 4], 3)
    np.testing.assert_allclose(fractions, [0.1, 0.4, 0.7])
    assert at(changing(), 5)[0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", KINDS[:5])
def test_a_change_is_a_function_of_its_number_and_the_seed_whatever_came_before(kind):
    env, other, of_another_seed = changing(kind), changing(kind), changing(kind, seed=1)
    for number in (3, 1, 2, 3):
        seen = at(env, number)
    np.testing.assert_equal(seen, at(other, 3))
    numbers = range(1, 9)
    differ = [np.concatenate([*map(np.ravel, at(env, n))]).round(6).tolist() for n in numbers]
    assert len({*map(tuple, differ)}) > (1 if kind == "reward_flip" else 2)
    if kind != "reward_flip":
        assert differ != [np.concatenate([*map(np.ravel, at(of_another_seed, n))]).round(6).tolist() for n in numbers]


def test_each_kind_changes_what_it_says():
    obs, fractions, reward = at(changing("observation_permutation"), 1)
    assert sorted(obs) == [0, 1, 2, 3, 4]
    assert reward == 3
    np.testing.assert_allclose(fractions, [0.1, 0.4, 0.7])
    shifts = np.array(
        [at(changing("observation_shift", seed=n, shift_std=0.5), 1)[0] - np.arange(5) for n in range(400)]
    )
    assert abs(shifts.std() - 0.5) < 0.03
    assert abs(shifts.mean()) < 0.03
    assert sorted(at(changing("action_permutation"), 1)[1].round(6)) == [0.1, 0.4, 0.7]
    assert len({tuple(at(changing("action_permutation", seed=n), 1)[1].round(6)) for n in range(99)}) == 6
    for seed in range(9):
        flipped = at(changing("action_flip", seed=seed), 1)[1]
        np.testing.assert_allclose(sorted(np.abs(flipped - [0.1, 0.4, 0.7])), [0, 0, 0.4], atol=0.41)
        assert (flipped.round(6) == [0.9, 0.6, 0.3]).sum() == 1
    assert [at(changing("reward_flip"), n)[2] for n in range(5)] == [3, -3, 3, -3, 3]


def test_kinds_are_drawn_apart_so_one_more_leaves_the_others_as_they_were():
    alone, both = (at(changing(*kinds), 4) for kinds in (["action_flip"], ["observation_shift", "action_flip"]))
    np.testing.assert_array_equal(alone[1], both[1])


def constants(env):
    model = env.unwrapped.physics.model if hasattr(env.unwrapped, "physics") else env.unwrapped.model
    return {
        "gravity": np.array(model.opt.gravity)[2:],
        "friction": np.array(model.geom_friction)[:, 0],
        "mass": np.array(model.body_mass)[1:],
        "inertia": np.array(model.body_inertia)[1:].ravel(),
        "strength": np.array(model.actuator_gainprm)[:, 0],
    }


def assert_drawn(factors):
    """That factors ``[changes, constants]`` are from 1/3 to 3, reach far to both sides and go their own ways."""
    logs = np.log(np.array(factors)) / np.log(3)
    assert np.abs(logs).max() <= 1
    assert (logs.min(0) < -0.7).all()
    assert (logs.max(0) > 0.7).all()
    if logs.shape[1] > 1:
        assert np.abs(np.corrcoef(logs.T) - np.eye(logs.shape[1])).max() < 0.6


@pytest.mark.parametrize("name", ["cheetah-run", "gym:HalfCheetah-v5"])
def test_dynamics_scales_gravity_friction_masses_and_strengths_by_factors_of_their_own(name):
    env = make_env(name, 0, changes=["dynamics"], dynamics_factor=3.0)
    env.reset()
    first, seen = constants(env), []
    for env.change in range(1, 30):
        env.reset()
        factors = {}
        for what, values in constants(env).items():
            present = first[what] != 0
            ratio = values[present] / first[what][present]
            np.testing.assert_allclose(ratio, ratio[0])  # one for all of them
            factors[what] = ratio[0]
        assert factors["inertia"] == pytest.approx(factors["mass"])
        seen.append([factors[what] for what in ("gravity", "friction", "mass", "strength")])
    assert_drawn(seen)
    env.change = 0
    env.reset()
    np.testing.assert_equal(constants(env), first)


def test_another_physics_moves_otherwise_and_masses_count():
    env, other = (make_env("cheetah-run", 0, changes=["dynamics"], change_seed=n) for n in (0, 1))
    for one in (env, other):
        one.reset()
        one.change = 1
        one.reset()
    for act in actions(20, 1, 6):
        a, b = env.step(act[0])[0], other.step(act[0])[0]
    assert np.abs(a - b).max() > 0.01
    physics = env.unwrapped.physics
    assert physics.model.body_subtreemass[1] == pytest.approx(physics.model.body_mass[1:].sum())  # it was set anew


def test_tasks_follow_each_other_and_cut_the_episode_off():
    env = make_env("walker-stand", 0, sequence=NAMES, switch_every_env_steps=7)
    env.reset()
    tasks, cut = [], []
    for act in actions(30, 1, 6):
        tasks.append(env.unwrapped.task._move_speed)
        _, _, terminated, truncated, _ = env.step(act[0])
        assert not terminated
        cut.append(truncated)
        if truncated:
            env.reset()
    assert [i for i, c in enumerate(cut, start=1) if c] == [7, 14, 21, 28]
    assert tasks == [0] * 7 + [1] * 7 + [8] * 7 + [0] * 7 + [1] * 2


def test_a_task_of_a_sequence_is_the_very_task():
    env, alone = make_env("walker-stand", 3, sequence=NAMES), make_env("walker-run", 3)
    env.change, env.episode, alone.episode = 2, 10, 10
    assert np.array_equal(env.reset()[0], alone.reset()[0])
    for act in actions(50, 1, 6):
        np.testing.assert_equal(env.step(act[0])[:4], alone.step(act[0])[:4])


def test_a_terminated_episode_at_a_change_stays_terminated():
    env = Control(Counting(terminate_at=4), 0, switch_every_env_steps=4)
    env.reset()
    ends = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(4)]
    assert ends == [(False, False)] * 3 + [(True, False)]


CONTINUAL = {"sequence": NAMES, "changes": ["dynamics", "observation_shift", "action_permutation"]}
CONTINUAL |= {"switch_every_env_steps": 15}


def test_environments_that_do_not_change_by_themselves_change_when_told():
    told = Envs("walker-stand", [9], change_seeds=[5], **CONTINUAL | {"switch_every_env_steps": None})
    by_itself = Envs("walker-stand", [9], change_seeds=[5], **CONTINUAL | {"switch_every_env_steps": 1})
    by_itself.reset()
    for told.change in range(1, 5):
        obs = by_itself.step(np.zeros((1, 6), np.float32)).obs
        assert np.array_equal(told.seek(told.change + 1), obs)


CLASSIC = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"]
CLASSIC = {name: CONSTANTS[type(gym.make(name).unwrapped).__name__] for name in CLASSIC}


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


def test_an_episode_that_goes_on_beyond_the_change_stays_the_task_that_it_was():
    env = Changing(Told(), ["reward_flip"], switch_every_env_steps=3)
    env.reset()
    assert [env.step(Told.action_space.low)[1] for _ in range(5)] == [3] * 5
    env.reset()
    assert env.step(Told.action_space.low)[1] == -3


@pytest.mark.parametrize("name", CLASSIC)
def test_the_constants_of_classic_control_are_scaled_each_by_a_factor_of_its_own_and_come_back(name):
    env = Changing(gym.make(name), ["dynamics"], seed=4, dynamics_factor=3.0)
    task, names = env.unwrapped, CLASSIC[name]
    first, seen = np.array([getattr(gym.make(name).unwrapped, one) for one in names]), []
    for number in range(1, 30):
        env.change_to(number)
        seen.append(np.array([getattr(task, one) for one in names]) / first)
        if name == "CartPole-v1":
            assert task.total_mass == task.masspole + task.masscart
            assert task.polemass_length == task.masspole * task.length
    assert_drawn(seen)
    env.change_to(0)
    assert [getattr(task, one) for one in names] == first.tolist()
    if name == "CartPole-v1":
        assert (task.total_mass, task.polemass_length) == (1.1, 0.05)


@pytest.mark.parametrize(("name", "constant"), [(n, c) for n, names in CLASSIC.items() for c in names])
def test_a_step_follows_every_constant(name, constant):
    env, same = (Changing(gym.make(name), ["dynamics"]) for _ in range(2))
    factors = [2.0 if one == constant else 1.0 for one in CLASSIC[name]]
    env.reset(seed=0), same.reset(seed=0)
    env.physics[0][1](*factors)
    act = env.action_space.high * 0.5 if isinstance(env.action_space, gym.spaces.Box) else 0
    for _ in range(3):
        one, other = env.step(act)[0], same.step(act)[0]
    assert np.abs(one - other).max() > 1e-6
