"""A run that branches from a saved checkpoint of another one."""

import numpy as np
import pytest
import torch
from conftest import StopAfter, assert_equal_states
from folders import PENDULUM, go, resume, rows, run

from rl_plasticity import train
from rl_plasticity.agents import ReplayBuffer
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.folder import RunFolder

# The checkpoint at 40 lies within an episode, and between two resets, measurements and log lines.
TRAINED = [*(s for s in PENDULUM if not s.startswith("measure_every")), "seeds=2", "reg=spectral", "reset=periodic"]
TRAINED += ["reset.every_updates=15", "measure_every_updates=25", "log_every_updates=7"]


def content(folder):
    """Every file of a folder."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    return run(TRAINED, tmp_path_factory.mktemp("branch") / "parent")


def branch(parent, out, *more, stop=None, command=train.command):
    return go(command, [f"from={parent}", f"out={out}", *more], stop)


def metrics(folder):
    return (folder / "metrics.csv").read_bytes()


def test_a_branch_without_a_change_equals_the_run_bit_for_bit(parent, tmp_path):
    before = content(parent)
    made = branch(parent, tmp_path / "same", "at=40")
    assert metrics(made) == metrics(parent)
    assert content(parent) == before


def test_a_branch_that_is_stopped_resumes_to_the_numbers_that_it_would_have_had(parent, tmp_path):
    made = branch(parent, tmp_path / "same", "at=40", stop=StopAfter(7))
    assert metrics(made) != metrics(parent)
    assert metrics(resume(made)) == metrics(parent)


def test_a_branch_with_a_reset_equals_the_run_until_there_and_differs_after(parent, tmp_path):
    made = branch(parent, tmp_path / "head", "at=40", "reset=head", "reset.every_updates=25")
    before, after = ([r for r in rows(f) if int(r["step"]) <= 40] for f in (parent, made))
    assert before == after
    assert metrics(made) != metrics(parent)
    assert RunFolder(made).settings["reset"] == {
        "name": "head",
        "every_updates": 25,
        "every_tasks": None,
        "num_layers": None,
    }


# What changes is the intervention, the regularizer or its strength.
LISTS = ["reset=[periodic,head,none]", "reg=[spectral,none,l2_init]", "reg.coef=[0.0001,0.01]"]


@pytest.mark.parametrize("list_", LISTS)
def test_the_variants_of_a_list_begin_as_branches_of_their_own_and_learn_the_same(list_, parent, tmp_path):
    made = branch(parent, tmp_path / "list", "at=40", list_)
    name, values = list_.split("=")
    called = f"{name}.name" if "." not in name else name
    first = checkpoint.load(made / "checkpoints", 40)
    buffer = ReplayBuffer(2 * len(values.split(",")), 60, 3, 1)
    buffer.load_state_dict(first["buffer"] | first["table"])
    for i, value in enumerate(values[1:-1].split(",")):
        alone = branch(parent, tmp_path / value, "at=40", f"{name}={value}")
        theirs, runs = checkpoint.load(alone / "checkpoints", 40), slice(2 * i, 2 * i + 2)
        for key, tensor in theirs["agent"].items():
            if ".regularizer." not in key and tensor.ndim and key != "streams":
                assert torch.equal(first["agent"][key][runs], tensor), key
        assert torch.equal(first["progress"]["episode_return"][runs], theirs["progress"]["episode_return"])
        assert_equal_states(first["envs"]["states"][runs.start : runs.stop], theirs["envs"]["states"])
        own = ReplayBuffer(2, 60, 3, 1)
        own.load_state_dict(theirs["buffer"] | theirs["table"])
        age = torch.arange(40).expand(2, -1)
        every = torch.arange(40).expand(buffer.runs, -1)
        assert_equal_states([x[runs] for x in buffer.sample(every)], [*own.sample(age)])
        mine = [r for r in rows(made) if r["run"].startswith(f"{called}={value} ")]
        assert [(r["step"], r["name"], r["run"][-1]) for r in mine] == [
            (r["step"], r["name"], r["run"]) for r in rows(alone)
        ]
        before = [float(r["value"]) for r in mine if int(r["step"]) <= 40]
        assert before == [float(r["value"]) for r in rows(alone) if int(r["step"]) <= 40]
        numbers = [np.array([float(r["value"]) for r in of]) for of in (mine, rows(alone))]
        np.testing.assert_allclose(*numbers, rtol=2e-3, atol=2e-3)
