"""PPO of Stable-Baselines3 on a task that changes: what the example writes, and that only the method differs."""

import csv
import runpy
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3")
EXAMPLE = Path(__file__).parents[2] / "examples" / "continual_ppo.py"


@pytest.fixture
def example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(EXAMPLE))["main"].__globals__
    names["PPO_SETTINGS"]["n_epochs"] = 2
    names["diagnose"] = partial(names["diagnose"], repeats=2, updates=10)
    return names


def rows():
    return [*csv.DictReader(Path("continual_ppo.csv").open())]


@pytest.mark.filterwarnings("ignore")
def test_each_task_is_a_line_a_second_call_trains_nothing_and_a_strength_of_0_is_no_method(example):
    example["METHODS"]["l2_init"]["coef"] = 0.0
    made = example["main"](seeds=1, tasks=2, steps=32)
    written = rows()
    assert [[*row.values()] for row in written] == made
    assert [(row["method"], row["seed"], row["task"]) for row in written] == [
        (method, "1", task) for method in ("none", "l2_init", "new agent") for task in ("1", "2")
    ]
    none, same, new = ([list(row.values())[3:] for row in written[at : at + 2]] for at in (0, 2, 4))
    assert none == same
    assert none[0][:4] == new[0][:4]  # the first agent is the same one
    assert none[1] != new[1]
    assert Path("continual_ppo.png").stat().st_size > 5_000
    example["run"] = None
    assert example["main"](seeds=1, tasks=2, steps=32) == made
    assert rows() == written


@pytest.mark.filterwarnings("ignore")
def test_the_changes_reach_the_agent_and_the_evaluation_alike(example):
    orders, evaluate = {}, example["evaluate_policy"]

    def evaluated(model, env, episodes):
        task = env.get_attr("change")[0]
        assert model.get_env().get_attr("change") == [task + 1] * 8  # the next task has begun there
        assert len(model.rollout_buffer.observations) == 32 * 8
        orders[task] = [order.tolist() for order in env.get_attr("order")]
        return evaluate(model, env, 1)

    example["evaluate_policy"] = evaluated
    example["run"]("none", 3, 3, 32)
    assert [*orders] == [0, 1, 2]
    assert all(order == orders[task][0] for task in orders for order in orders[task])
    assert orders[0][0] == [0, 1, 2, 3] != orders[1][0]
