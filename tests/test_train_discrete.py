"""Training with discrete actions: from the command line to a resumed run, an evaluation and a diagnosis."""

import importlib
import re

import pytest
from conftest import StopAfter, assert_equal_states
from folders import resume, rows, run

from rl_plasticity import evaluate
from rl_plasticity.configs.commands import Diagnose, Evaluate
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.trained import load_agent

CHEAP = ["agent=dqn", "device=cpu", "compile=false", "threads=1", "eval_episodes=1", "batch_size=8", "replay_ratio=0.5"]
CHEAP += ["agent.target_every_updates=5", "agent.epsilon_env_steps=60", "measure_every_updates=20", "seeds=2"]
CHEAP += ["random_env_steps=20", "total_env_steps=90", "eval_every_env_steps=60", "checkpoint_every_env_steps=40"]
CARTPOLE = [*CHEAP, "env=gym:CartPole-v1", "agent.hidden=[8]", "agent.num_steps=3", "log_every_updates=10"]
GAME = [*CHEAP, "env=minatar:breakout", "agent.network=cnn", "agent.hidden=[8]", "agent.channels=2"]
GAME += ["env.sequence=[minatar:breakout,minatar:space_invaders]", "env.switch_every_env_steps=30", "buffer_size=60"]
GAME += ["env.changes=[channel_permutation,action_permutation]", "reset=head", "reset.every_updates=13", "reg=swr"]
GAME += ["on_change=restart"]


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    return run(CARTPOLE, tmp_path_factory.mktemp("cartpole") / "run")


@pytest.mark.parametrize("settings", [CARTPOLE, GAME], ids=["cartpole", "games"])
def test_a_stopped_and_resumed_run_equals_one_never_stopped_bit_for_bit(settings, cartpole, tmp_path):
    if settings is GAME:
        pytest.importorskip("minatar")
    whole = run(GAME, tmp_path / "whole") if settings is GAME else cartpole
    stopped = run(settings, tmp_path / "stopped", StopAfter(47))
    resume(stopped)
    assert (stopped / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    tables = [checkpoint.load(folder / "checkpoints")["table"] for folder in (whole, stopped)]
    assert_equal_states(*tables)
    if settings is GAME:
        assert str(tables[0]["obs"].dtype) == "torch.uint8"


def test_epsilon_and_the_metrics_of_a_value_network_are_logged(cartpole):
    names = {row["name"] for row in rows(cartpole)}
    assert {"critic/loss", "critic/gradient_norm", "q_mean", "epsilon", "eval/return", "critic/dormant"} <= names
    epsilon = {int(row["step"]): float(row["value"]) for row in rows(cartpole, "epsilon")}
    assert epsilon[max(epsilon)] == pytest.approx(0.1)
    assert epsilon[min(epsilon)] == pytest.approx(1 - 0.9 * min(epsilon) / 60, abs=0.02)


def test_epsilon_falls_again_from_its_start_at_a_change_that_restarts(tmp_path):
    changes = ["env.changes=[observation_permutation]", "env.switch_every_env_steps=45", "log_every_updates=1"]
    changes += ["on_change=restart", "replay_ratio=1", "measure_every_updates=0", "seeds=1"]
    folder = run([*CARTPOLE, *changes], tmp_path / "run")
    epsilon = [float(row["value"]) for row in rows(folder, "epsilon") if row["run"] == "0"]
    assert len(epsilon) == 50  # without the 20 random env steps of each task
    assert epsilon[:25] == epsilon[25:] == sorted(epsilon[:25], reverse=True)


def test_its_return_is_evaluated_again_to_the_same_number(cartpole, capsys):
    returns = evaluate.evaluate(RunFolder(cartpole), Evaluate())
    logged = [float(row["value"]) for row in rows(cartpole, "eval/return") if row["step"] == "90"]
    assert returns.mean(1).tolist() == logged
    assert load_agent(cartpole).num_actions == 2


def test_its_network_is_diagnosed(cartpole, capsys):
    of = Diagnose(checkpoint=90, repeats=2, updates=10, remedies=False, seed=0)
    status = importlib.import_module("rl_plasticity.diagnose").diagnose_run(RunFolder(cartpole), of)
    printed = capsys.readouterr().out
    assert status in (0, 1, 3)
    assert re.search(r"90 +seed 0 +critic +random", printed)
    assert re.search(r"90 +seed 0 +critic +buffer", printed)
