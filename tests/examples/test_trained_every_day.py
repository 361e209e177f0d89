"""A network that is trained every day: through its file it is the network of a loop that never stopped."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import assert_equal_states, refused

from rl_plasticity import attach

EXAMPLE = Path(__file__).parents[2] / "examples" / "trained_every_day.py"
DAY = runpy.run_path(str(EXAMPLE))
STEPS = 7
# Each acts, and within three days of seven steps.
SETTINGS = {
    "churn": {"coef": 0.1},
    "feature_rank": {},
    "wrs": {"every_updates": 4},
    "hare_tortoise": {"every_updates": 4},
    "continual_backprop": {"coef": 0.01, "maturity": 3},
    "self_normalized_resets": {"every_updates": 5, "least": 100, "most": 300},
}


def never_stopped(method, days, **settings):
    torch.manual_seed(0)
    net = DAY["make_net"]()
    optimizer = torch.optim.Adam(net.parameters(), lr=DAY["LR"])
    handle = attach(method, optimizer, net, **settings)
    accuracies = [DAY["train"](net, optimizer, day, STEPS) for day in range(1, days + 1)]
    return {"net": net.state_dict(), "regularizer": handle.state_dict(), "day": days}, accuracies


def saved(path):
    """What the loop that never stopped has too."""
    return {name: value for name, value in torch.load(path).items() if name in ("net", "regularizer", "day")}


# One of each hook, and all that look at data; the contract saves and loads the state of every method.
METHODS = ["none", "spectral", "ewc", "weight_decay", *SETTINGS]


@pytest.mark.parametrize("method", METHODS)
def test_days_through_a_file_equal_a_loop_that_never_stopped(method, tmp_path):
    settings = SETTINGS.get(method, {})
    whole, accuracies = never_stopped(method, 3, **settings)
    by_day = [DAY["one_day"](tmp_path / "network.pt", method, STEPS, **settings) for _ in range(3)]
    assert by_day == [(1, accuracies[0]), (2, accuracies[1]), (3, accuracies[2])]
    assert_equal_states(saved(tmp_path / "network.pt"), whole)


def test_new_processes_go_on_where_the_last_one_stopped(tmp_path):
    DAY["one_day"](tmp_path / "network.pt", "l2_init", STEPS, coef=1e-2)
    told = ["file=network.pt", "method=l2_init", "coef=1e-2", "days=1", f"steps={STEPS}"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, str(EXAMPLE), *told]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.startswith("day   2  accuracy 0.")
    assert_equal_states(saved(tmp_path / "network.pt"), never_stopped("l2_init", 2, coef=1e-2)[0])


def test_a_write_that_fails_leaves_the_state_of_the_day_before(tmp_path, monkeypatch):
    path = tmp_path / "network.pt"
    DAY["one_day"](path, "none", STEPS)
    before = path.read_bytes()

    def half(state, file):
        file.write(before[:100])
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", half)
    refused(lambda: DAY["one_day"](path, "none", STEPS), match="no space", error=OSError)
    assert path.read_bytes() == before
