"""``train`` on tasks that change."""

import gymnasium as gym
import pytest
from conftest import StopAfter, assert_equal_states, once
from folders import PENDULUM, go, resume, rows, run
from gymnasium.envs.classic_control import PendulumEnv

from rl_plasticity import evaluate, train
from rl_plasticity.agents import SAC, ReplayBuffer
from rl_plasticity.configs import schema, written
from rl_plasticity.configs.commands import Evaluate, Train, updates_by
from rl_plasticity.envs import Envs
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.making import task_of
from rl_plasticity.runs.trained import Trained
from rl_plasticity.training.acting import is_random

# Pendulum's third observation, its speed, goes up to 8; a shift or a permutation is another task to the policy.
gym.register("ShortPendulum-v1", PendulumEnv, max_episode_steps=20)  # evaluations are most of these runs
PENDULUM = [*PENDULUM, "env=gym:ShortPendulum-v1"]
CHANGING = [*PENDULUM, "env.changes=[observation_permutation,observation_shift]", "env.switch_every_env_steps=15"]
CHANGING += ["eval_every_env_steps=10", "replay_ratio=1", "random_env_steps=5"]


def logged(folder, name, run="0"):
    return {int(r["step"]): float(r["value"]) for r in rows(folder, name) if r["run"] == run}


def test_the_env_step_that_ends_a_task_belongs_to_it():
    s = schema.load(Train, ["env.changes=[reward_flip]", "env.switch_every_env_steps=10"])
    assert [task_of(s, step) for step in (0, 1, 10, 11, 20, 21)] == [0, 0, 0, 1, 1, 2]
    assert task_of(schema.load(Train, []), 1000) == 0


def test_what_is_known_of_each_task_before_and_after_and_its_area_are_logged(tmp_path):
    folder = run([*CHANGING, "seeds=2"], tmp_path / "run")
    for n in ("0", "1"):
        returns = logged(folder, "eval/return", n)
        assert [*returns] == [10, 15, 20, 30, 40, 45, 50, 60]
        assert logged(folder, "task/return", n) == {step: returns[step] for step in (15, 30, 45, 60)}
        area = logged(folder, "task/area", n)
        assert area[15] == pytest.approx((10 * returns[10] + 5 * returns[15]) / 15)
        assert area[30] == pytest.approx((5 * returns[20] + 10 * returns[30]) / 15)
        assert area[45] == pytest.approx((10 * returns[40] + 5 * returns[45]) / 15)
        assert logged(folder, "task/index", n) == {15: 0, 30: 1, 45: 2, 60: 3}
        assert len({*logged(folder, "task/first_return", n).values()}) == 4


def test_evaluations_are_of_the_task_that_was_trained_and_then_of_the_one_that_comes(tmp_path, monkeypatch):
    seen = []
    seek = Envs.seek
    monkeypatch.setattr(Envs, "seek", lambda envs, n: seen.append((n >> 20, envs.change)) or seek(envs, n))
    run(CHANGING, tmp_path / "run")
    evaluated = [(step, change) for step, change in seen if step]
    assert seen[-len(evaluated) - 1] == (0, 0)
    expected = [(10, 0), (15, 0), (15, 1), (20, 1), (30, 1), (30, 2), (40, 2), (45, 2), (45, 3), (50, 3), (60, 3)]
    assert evaluated == expected


def test_the_first_return_of_a_task_is_that_of_the_agent_that_has_learned_the_tasks_before(tmp_path):
    given = ["checkpoint_every_env_steps=15", "total_env_steps=30"]
    folder = run([*CHANGING, *given], tmp_path / "run")
    trained = Trained.of(RunFolder(folder), step=15)
    envs = trained.envs([0])
    envs.change = 1
    assert trained.play(trained.agent(envs), envs, [0]).item() == logged(folder, "task/first_return")[30]


@pytest.mark.parametrize("how", [[], ["reset=periodic", "reset.every_updates=null", "reset.every_tasks=1"]])
def test_evaluate_plays_the_task_and_the_agent_of_the_checkpoint(how, tmp_path):
    folder = run([*CHANGING, "seeds=2", "checkpoint_every_env_steps=30", *how], tmp_path / "run", StopAfter(40))
    for step in (30, 40):
        returns = evaluate.evaluate(RunFolder(folder), Evaluate(checkpoint=step))
        assert returns.flatten().tolist() == [logged(folder, "eval/return", n)[step] for n in ("0", "1")]


@pytest.fixture(
    scope="module",
    params=[
        ["reset=[none,periodic]", "reset.periodic.every_updates=null", "reset.periodic.every_tasks=1"],
        ["reset=redo", "reset.every_tasks=2", "reset.every_updates=null", "on_change=restart", "buffer_size=12"],
    ],
)
def never_stopped(request, tmp_path_factory):
    """What was asked for, and the run."""
    how = [*request.param, "total_env_steps=36", "eval_every_env_steps=40", "log_every_updates=5"]
    return how, run([*CHANGING, *how], tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.parametrize("steps", [29, 30, 31])
def test_a_run_stopped_around_a_change_goes_on_to_the_same_numbers(never_stopped, steps, tmp_path):
    how, whole = never_stopped
    folder = run([*CHANGING, *how], tmp_path / "run", StopAfter(steps))
    resume(folder)
    assert rows(folder) == rows(whole)
    states = [checkpoint.load(f / "checkpoints") for f in (folder, whole)]
    for part in ("agent", "envs", "buffer"):
        assert_equal_states(*(state[part] for state in states))


def test_a_run_that_is_extended_at_a_change_equals_one_that_was_as_long_from_the_start(never_stopped, tmp_path):
    how, whole = never_stopped
    folder = run([*CHANGING, *how, "total_env_steps=30"], tmp_path / "run")
    go(train.command, [f"resume={folder}", "total_env_steps=36"])
    assert (folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


def test_every_method_meets_the_same_changes_and_every_seed_its_own(tmp_path):
    states = []
    made = [[*CHANGING, "reg=none"], [*CHANGING, "reg=l2", "agent.hidden=[8]"], [*CHANGING, "seed=1"]]
    for n, arguments in enumerate(made):
        folder = run(arguments, tmp_path / str(n), StopAfter(20))
        envs = RunFolder(folder)
        trained = train.evaluation_envs(schema.load_saved(Train, envs.settings), [0], [envs.settings["seed"]])
        trained.change = 3
        states.append(trained.seek(7).tolist())
    assert states[0] == states[1] != states[2]


def test_a_reset_at_every_change_is_a_fresh_agent_for_each_task(tmp_path, monkeypatch):
    restarted, at = [], []
    restart = SAC.restart_
    monkeypatch.setattr(
        SAC, "restart_", lambda agent, runs=None: restarted.append(max(at, default=0)) or restart(agent, runs)
    )
    given = [*CHANGING, "reset=periodic", "reset.every_updates=null", "reset.every_tasks=1", f"out={tmp_path / 'run'}"]
    on_step = {"on_step": lambda session: at.append(session.progress.step)}
    train.command.execute(*train.command.prepare(once(given), on_step))
    assert restarted == [0, 15, 30, 45]  # the first is a copy's, to see that it can be done


PRIMED = ["prime_updates=20", "prime_after_env_steps=15", "on_change=clear"]


@pytest.mark.parametrize(("how", "stop", "sizes"), [
    (["on_change=keep"], None, range(6, 61)),
    (["on_change=clear"], None, [*range(6, 16), *[*range(1, 16)] * 3]),
    (["on_change=restart"], None, [*range(6, 16)] * 4),  # five random env steps come first in each task
    (PRIMED, 20, [*range(6, 16), 15, 15, 1, 2, 3]),  # priming at a change sees what came before it
])  # fmt: skip
def test_the_transitions_of_earlier_tasks_are_kept_or_forgotten(how, stop, sizes, tmp_path, monkeypatch):
    seen = []
    sample = ReplayBuffer.sample
    monkeypatch.setattr(ReplayBuffer, "sample", lambda b, *of: seen.append(b.size) or sample(b, *of))
    run([*CHANGING, *how], tmp_path / "run", StopAfter(stop))
    assert seen == [*sizes]


def test_a_run_that_restarts_at_changes_begins_each_task_with_random_actions_and_no_update():
    given = [*CHANGING, "on_change=restart", "replay_ratio=0.5"]
    s = schema.load(Train, once(given))
    assert [step for step in range(60) if is_random(s, step)] == [k + i for k in (0, 15, 30, 45) for i in range(5)]
    due = [updates_by(s, step) - updates_by(s, step - 1) for step in range(1, 61)]
    assert [sum(due[k : k + 5]) for k in (0, 15, 30, 45)] == [0, 0, 0, 0]
    assert [sum(due[k : k + 15]) for k in (0, 15, 30, 45)] == [5, 5, 5, 5]
    assert train.planned_updates(s) == sum(due)


def test_a_sequence_says_which_env_it_is_from_python_too():
    given = ["env.sequence=[walker-walk,walker-run]", "env.switch_every_env_steps=9"]
    env = {"sequence": ("walker-walk", "walker-run"), "switch_every_env_steps": 9}
    for s in (schema.load(Train, given), schema.load(Train, written.from_python({"env": env}))):
        assert (s.env.name, s.env.sequence) == ("walker-walk", ["walker-walk", "walker-run"])


RESET = ["reset=periodic", "reset.every_updates=null"]
FLIPPING = ["env.changes=[reward_flip]", "env.switch_every_env_steps=25"]


@pytest.mark.parametrize(("arguments", "says"), [
    ([*FLIPPING, *RESET, "reset.every_tasks=2"], ""),  # of 25, 25 and 10 env steps
    ([*FLIPPING, *RESET, "reset.every_tasks=3"], "reset.every_tasks=3"),
    ([*FLIPPING, "reset=periodic", "reset.every_tasks=1"], ""),  # though none by updates
    (["reset=periodic", "reset.every_tasks=1"], "reset.every_updates=2560000"),
    ([*FLIPPING, "env.switch_every_env_steps=60"], "env.switch_every_env_steps=60"),
])  # fmt: skip
def test_what_changes_that_never_come_would_do_is_said(arguments, says, tmp_path, capsys):
    run([*PENDULUM, *arguments], tmp_path / "run", StopAfter(1))
    told = ("every_tasks=", "switch_every_env_steps=", "on_change=")  # and no other line names a setting so
    said = [line for line in capsys.readouterr().err.splitlines() if any(name in line for name in told)]
    assert len(said) == bool(says)
    assert says in "".join(said)
