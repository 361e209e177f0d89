"""What environments may give and take: every space of Gymnasium trains, or is refused in one line."""

import gymnasium as gym
import numpy as np
import pytest
from conftest import refused
from folders import SMALL
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rl_plasticity import train
from rl_plasticity.envs import Changing, Control, make_env
from rl_plasticity.errors import SettingsError

LARGEST = np.finfo(np.float32).max
NAME = "rl_plasticity_tests/Drawn-v0"
NUMBERS = spaces.Box(-1, 1, (2,), np.float32)

pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered")  # Gymnasium's own casts


class Drawn(gym.Env):
    """Shows what its spaces have; every action must be in them. Its episodes never end."""

    observation_space, action_space, reward = NUMBERS, NUMBERS, 1.0

    def __init__(self, **spaces_and_reward):
        vars(self).update(spaces_and_reward)
        self.seen = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), (action, self.action_space)
        assert np.isfinite(action).all()
        self.seen.append(np.array(action).tolist())
        return self.observation_space.sample(), self.reward, False, False, {}


def register(**of_it):
    """Register a `Drawn` with these spaces and reward, in place of the last one; its name."""
    gym.registry.pop(NAME, None)
    gym.register(NAME, lambda **more: Drawn(**of_it, **more))
    return f"gym:{NAME}"


@pytest.fixture(autouse=True)
def _forget():
    yield
    gym.registry.pop(NAME, None)


def trained(env, out, *more):
    return train.command.prepare(
        [*SMALL, f"env={env}", f"out={out}", "total_env_steps=3", "random_env_steps=1", "replay_ratio=1", *more]
    )


WHOLE = [
    (np.int64, -1, 1), (np.int8, -128, 127), (np.uint8, 0, 255), (np.int16, -2**15, 2**15 - 1), (np.bool_, 0, 1),
    (np.int64, 2**60, 2**60 + 2), (np.uint64, 2**64 - 3, 2**64 - 1), (np.int32, 7, 7),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "low", "high"), WHOLE)
def test_every_integer_of_a_box_has_an_equal_share_of_the_actions(dtype, low, high):
    env = Drawn(action_space=spaces.Box(np.array([low], dtype), np.array([high], dtype), dtype=dtype))
    control, number = Control(env, 0), int(high) - int(low) + 1
    control.reset()
    for i in range(0, number, max(1, number // 2000)):
        for third in (3 * i, 3 * i + 1, 3 * i + 2):  # the middle of each third of a share
            act = (third + 0.5) / (3 * number) * 2 - 1
            assert int(control._meant(np.array([act]))[0]) == int(low) + i
    for end, act in ((low, -1), (high, 1)):
        control.step(np.array([act], np.float32))
        assert env.seen[-1] == [end]


def test_integers_that_are_flipped_or_permuted_stay_the_integers_of_the_space():
    box = spaces.Box(np.array([-3, 5], np.int8), np.array([0, 8], np.int8), dtype=np.int8)
    task = Drawn(action_space=box)
    env = Changing(task, ["action_permutation", "action_flip"], seed=3)
    for change in range(6):
        env.change_to(change)
        del task.seen[:]
        for i in range(4):
            env.step(np.array([i - 3, i + 5], np.int8))
        assert {tuple(sorted(column)) for column in zip(*task.seen, strict=True)} == {(-3, -2, -1, 0), (5, 6, 7, 8)}
    uneven = spaces.Box(np.array([0, 0]), np.array([1, 2]), dtype=np.int64)
    refused(
        lambda: Changing(Drawn(action_space=uneven), ["action_permutation"]), "[action_permutation]", error=ValueError
    )


@pytest.mark.parametrize("bound", [LARGEST, 1e30])
def test_a_width_that_no_action_has_is_refused(bound, tmp_path):
    env = register(action_space=spaces.Box(-bound, bound, (2,), np.float32))
    refused(lambda: trained(env, tmp_path / "run"), "Drawn-v0", f"{bound:g}", "[-1, 1]")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("bound", "is_said"), [(1, False), (99, False), (100, True), (1e10, True)])
def test_a_line_says_before_the_run_that_a_range_of_actions_is_unusual(bound, is_said):
    control = make_env(register(action_space=spaces.Box(-bound, bound, (2,), np.float32)), 0)
    assert any("unusual" in note for note in control.notes) is is_said
    assert any(f"[-{bound:g}, {bound:g}]" in note for note in control.notes) is (bound != 1)


TEXT = spaces.Text(9)
NO_VECTORS = {
    "whole": (TEXT, ["Text(", "MODULE:CLASS"]),
    "mission": (
        spaces.Dict(image=spaces.Box(0, 255, (7, 7, 3), np.uint8), mission=TEXT, direction=spaces.Discrete(4)),
        ["['mission']", "gymnasium.wrappers:FilterObservation", "filter_keys=[direction,image]"],
    ),
    "inner": (spaces.Dict(a=spaces.Dict(b=spaces.Sequence(NUMBERS)), c=NUMBERS), ["['a']['b']", "filter_keys=[c]"]),
    "graph": (spaces.Tuple([spaces.Graph(NUMBERS, None), NUMBERS]), ["[0]", "Graph(", "filter_keys=[1]"]),
    "one of": (spaces.OneOf([NUMBERS, TEXT]), ["[1]", "MODULE:CLASS"]),
    "empty": (spaces.Box(0, 1, (0,)), ["0 numbers"]),
    "huge": (spaces.Discrete(10**9), ["1000000000"]),
}


@pytest.mark.parametrize("name", NO_VECTORS)
def test_an_observation_that_is_no_vector_is_one_line_with_its_part_and_a_wrapper_that_helps(name, tmp_path):
    space, names = NO_VECTORS[name]
    refused(lambda: trained(register(observation_space=space), tmp_path / "run"), "Drawn-v0", *names)
    assert not (tmp_path / "run").exists()


def test_what_the_line_says_helps(tmp_path):
    env = register(observation_space=NO_VECTORS["mission"][0], reward=2)
    helps = ["env.wrappers=[gymnasium.wrappers:FilterObservation]"]
    helps += ["env.kwargs.FilterObservation.filter_keys=[direction,image]", "env.max_episode_steps=9"]
    session, built = trained(env, tmp_path / "run", *helps)
    assert built.eval_envs.spaces.obs_dim == 7 * 7 * 3 + 4
    train.command.execute(session, built)


@pytest.mark.parametrize("reward", [np.array([[2.5]], np.float32), np.float16(2.5), 2.5])
def test_a_reward_of_one_number_is_that_number(reward):
    control = Control(Drawn(reward=reward), 0)
    control.reset()
    assert control.step(np.zeros(2, np.float32))[1] == 2.5
    changing = Changing(Drawn(reward=reward), ["reward_flip"])
    changing.change_to(1)
    assert changing.step(np.zeros(2, np.float32))[1] == -2.5


@pytest.mark.parametrize("reward", [np.ones(2), None, "1", 1j, []])
def test_a_reward_that_is_no_number_is_one_line_before_anything_is_written(reward, tmp_path):
    refused(lambda: trained(register(reward=reward), tmp_path / "run"), "reward", "one number")
    assert not (tmp_path / "run").exists()


def test_what_is_flattened_and_rescaled_is_one_line_before_the_run(tmp_path, capsys):
    of_it = {"observation_space": spaces.Dict(a=NUMBERS, b=spaces.Discrete(3)), "reward": 1}
    env = register(**of_it, action_space=spaces.Box(0, 9, (1,), np.int64))
    trained(env, tmp_path / "run", "env.max_episode_steps=20")[1].close()
    (line,) = capsys.readouterr().err.splitlines()
    for said in (env, "(Dict) are flattened to 5", "integers of [0, 9]"):
        assert said in line


DTYPES = [np.bool_, np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint64, np.float16, np.float32, np.float64]


@st.composite
def boxes(draw, shapes=((), (0,), (1,), (3,), (2, 2), (4, 5, 3))):
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(shapes))
    if np.dtype(dtype).kind == "f":
        most = min(float(np.finfo(dtype).max), 3e38)  # of float32, which all observations become
        ends = [-np.inf, -most, -500.0, -1.0, 0.0, 0.25, 1.0, 500.0, most, np.inf]
    elif dtype is np.bool_:
        ends = [False, True]
    else:
        least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        ends = sorted({least, least + 2, max(least, -1), 0, 1, 5, 120, most - 1, most})
        ends = [n for n in ends if abs(n) < 2**62]  # Gymnasium cannot draw from wider ranges
    low, high = sorted((draw(st.sampled_from(ends)), draw(st.sampled_from(ends))))
    if np.isinf(low) and low == high:
        low, high = -np.inf, np.inf
    return spaces.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), dtype=dtype)


PLAIN = st.one_of(
    boxes(),
    st.builds(spaces.Discrete, st.integers(1, 5), start=st.integers(-3, 3)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    st.builds(spaces.MultiBinary, st.integers(1, 4)),
    st.builds(spaces.Text, st.integers(1, 6)),
    st.builds(spaces.Graph, st.just(NUMBERS), st.just(spaces.Discrete(2))),
)
ANY = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.builds(spaces.Dict, st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
        st.builds(spaces.Tuple, st.lists(inner, max_size=3)),
        st.builds(spaces.OneOf, st.lists(inner, min_size=1, max_size=3)),
        st.builds(spaces.Sequence, inner),
    ),
    max_leaves=4,
)


@settings(max_examples=300)
@given(ANY, st.booleans())
@example(spaces.Box(np.float16(-1), np.float16(1), (1,), np.float16), False)
def test_every_space_of_actions_gets_actions_in_it_and_each_of_its_integers_or_is_refused(space, changes):
    env = Drawn(action_space=space)
    try:
        control = Control(Changing(env, ["action_flip"]) if changes else env, 0)
    except ValueError:
        return
    control.change = int(changes)
    control.reset()
    dim, number = control.spaces.act_dim, control.spaces.num_actions
    for part in np.linspace(0, 1, 520, endpoint=False):
        act = -1 + 2 * part if number is None else np.floor(part * number)
        control.step(np.full(dim, act, np.float32))
    reached = {tuple(np.atleast_1d(action)) for action in env.seen}
    if number is not None:
        assert len(reached) == number
    elif np.dtype(space.dtype).kind != "f" and int(space.high[0]) - int(space.low[0]) < 260:
        assert {action[0] for action in reached} == {*range(int(space.low[0]), int(space.high[0]) + 1)}


@settings(max_examples=200)
@given(ANY, st.booleans())
def test_every_space_of_observations_is_seen_as_a_finite_vector_or_refused(space, changes):
    env = Drawn(observation_space=space)
    try:
        control = Control(Changing(env, ["observation_permutation"]) if changes else env, 0)
    except ValueError:
        return
    control.change = int(changes)
    first, _ = control.reset()
    obs = control.step(np.zeros(2, np.float32))[0]
    assert first.shape == obs.shape == (control.spaces.obs_dim,)
    assert first.dtype == obs.dtype == np.float32


@settings(max_examples=12)
@given(ANY, ANY)
def test_an_environment_of_any_spaces_trains_or_is_refused_in_one_line(tmp_path_factory, seen, done):
    env, out = register(observation_space=seen, action_space=done), tmp_path_factory.mktemp("runs") / "run"
    agent = ["agent=dqn"] if isinstance(done, spaces.Discrete) else []
    try:
        session, built = trained(env, out, "env.max_episode_steps=3", *agent)
    except SettingsError:  # of one line
        assert not out.exists()
        return
    assert train.command.execute(session, built)
