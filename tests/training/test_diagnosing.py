"""Trials while a run trains: its rows, and that nothing else of the run knows of them."""

import math
from functools import partial

import pytest
from conftest import once, refused
from folders import PENDULUM, go, goes_on_as_if_never_stopped, rows, run, run_supervised

from rl_plasticity import supervised, train
from rl_plasticity.diagnosis import trials
from rl_plasticity.diagnosis.trials import trainability
from rl_plasticity.metrics.measured import better
from rl_plasticity.training import diagnosing

# Each run is stopped within a period.
AGENT = [*PENDULUM, "agent.layer_norm=false", "total_env_steps=50", "eval_every_env_steps=25"]
AGENT += ["checkpoint_every_env_steps=20", "reg=[none,swr]", "reset=head", "reset.head.every_updates=7"]
DIGITS = ["data.train_size=120", "net.widths=[16]", "batch_size=50", "epochs_per_task=2", "num_tasks=2", "device=cpu"]
DIGITS += ["threads=1", "eval_every_epochs=1", "log_every_updates=2", "reg.coef=[1e-4,1e-3]", "reg=l2_init", "seeds=2"]
DIGITS += ["checkpoint_every_epochs=1"]  # 3 updates an epoch, 12 in all
NAMES = {"agent": ["critic/trainability", "actor/trainability"], "digits": ["net/trainability"]}


@pytest.fixture(autouse=True)
def brief(brief_trials, monkeypatch):
    """Trials of a few updates: that a network learns is tested where the trial is."""
    monkeypatch.setattr(diagnosing, "trainability", partial(trainability, updates=4))
    monkeypatch.setattr(trials, "LEARNS", -1.0)  # after so few there would be no number


def others(folder):
    """All lines but those of the trials."""
    return [line for line in (folder / "metrics.csv").read_text().splitlines() if "trainability" not in line]


@pytest.mark.parametrize(
    ("which", "more"), [("agent", ()), ("digits", ("compile=true",))], ids=["agent, eager", "digits, compiled"]
)
def test_a_run_equals_one_without_trials_byte_for_byte_and_resumes_to_the_same_rows(which, more, tmp_path, traced):
    every = 15 if which == "agent" else 5
    with_trials = (*more, f"diagnose_every_updates={every}")
    arguments, command = (AGENT, train.command) if which == "agent" else (DIGITS, supervised.command)
    plain = go(command, once([*arguments, *more, f"out={tmp_path / 'plain'}"]))
    stop = 33 if which == "agent" else 2
    tried = goes_on_as_if_never_stopped([*arguments, *with_trials], tmp_path, stop, command=command)
    assert others(tried) == (plain / "metrics.csv").read_text().splitlines()
    for name in NAMES[which]:
        found = rows(tried, name)
        # The agent's updates begin after 20 env steps: the rows of 0, 15 and 30 updates stand there.
        steps = [0, 35, 50] if which == "agent" else [0, 5, 10]
        assert [int(r["step"]) for r in found] == [
            step for step in steps for _ in range(len({r["run"] for r in found}))
        ]
        assert {r["run"] for r in found} == {r["run"] for r in rows(plain)}
        assert len({r["value"] for r in found}) > len(steps)
        assert not any(math.isnan(float(r["value"])) for r in found)


def test_a_branch_without_a_change_has_the_same_rows(tmp_path):
    parent = run([*PENDULUM, "total_env_steps=50", "seeds=2", "diagnose_every_updates=12"], tmp_path / "parent")
    branch = go(train.command, [f"from={parent}", "at=40", f"out={tmp_path / 'branch'}"])
    assert rows(branch, "critic/trainability") == rows(parent, "critic/trainability")


def test_networks_are_tried_before_and_after_heavy_priming(tmp_path):
    given = ["prime_updates=20", "prime_after_env_steps=10", "diagnose_every_updates=1000", "total_env_steps=21"]
    found = rows(run([*PENDULUM, *given], tmp_path / "run"), "critic/trainability")
    assert [int(r["step"]) for r in found] == [0, 9, 10]


def test_inputs_that_are_too_few_are_refused_before_anything_is_written(tmp_path):
    few = [*DIGITS, "data.train_size=30", "diagnose_every_updates=5"]
    said = ("diagnose_every_updates", "net", "30 inputs are too few for 10 outputs")
    refused(lambda: run_supervised(few, tmp_path / "few"), *said)
    assert not (tmp_path / "few").exists()


def test_more_trainability_is_better():
    assert better("trainability") == "higher"
