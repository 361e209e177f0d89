"""A run that branches from a saved checkpoint of another one."""

import numpy as np
import pytest
import torch
from conftest import StopAfter, assert_equal_states, once, refused
from folders import PENDULUM, go, resume, rows, run, run_supervised

from rl_plasticity import supervised, train
from rl_plasticity.agents import ReplayBuffer
from rl_plasticity.configs.commands import Train
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.trained import load_agent
from rl_plasticity.sweeps import sweep

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


def test_an_intervention_can_act_once_and_not_again_in_a_branch_of_the_branch(parent, tmp_path):
    made = branch(parent, tmp_path / "once", "at=40", "reset=head", "reset_once_after_updates=26", stop=StopAfter(12))
    head = branch(parent, tmp_path / "head", "at=40", "reset=head", "reset.every_updates=26")  # of 40 updates
    assert metrics(resume(made)) == metrics(head)
    assert RunFolder(made).settings["reset_once_after_updates"] == 26
    later = branch(made, tmp_path / "later", "total_env_steps=80", "reg=none")
    always = branch(head, tmp_path / "always", "total_env_steps=80", "reg=none")
    counts = [load_agent(folder).critic.counts["resets"].tolist() for folder in (made, later, always)]
    assert counts == [[2, 2], [2, 2], [3, 3]]  # at update 15 in the parent, 26, and 52 in the last
    again = branch(made, tmp_path / "again", "total_env_steps=80", "reset=head", "reset.every_updates=50")
    assert "reset_once_after_updates" not in RunFolder(again).settings
    assert load_agent(again).critic.counts["resets"].tolist() == [3, 3]


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


# Epochs: a checkpoint at 3 lies within the second task.
TASKS = ["data.train_size=200", "net.widths=[8]", "num_tasks=3", "epochs_per_task=2", "seeds=2", "batch_size=50"]
TASKS += ["device=cpu", "compile=false", "threads=1", "log_every_updates=3", "measure_every_updates=3", "lr=0.01"]
TASKS += ["checkpoint_every_epochs=3", "eval_every_epochs=1", "reg=l2_init"]


@pytest.fixture(scope="module")
def of_tasks(tmp_path_factory):
    return run_supervised(TASKS, tmp_path_factory.mktemp("branch") / "tasks")


def test_a_supervised_branch_without_a_change_equals_the_run_bit_for_bit(of_tasks, tmp_path):
    before = content(of_tasks)
    made = branch(of_tasks, tmp_path / "same", "at=3", stop=StopAfter(1), command=supervised.command)
    assert metrics(resume(made, command=supervised.command)) == metrics(of_tasks)
    assert content(of_tasks) == before


def test_a_supervised_branch_takes_a_learning_rate_and_keeps_the_moments(of_tasks, tmp_path):
    made = branch(of_tasks, tmp_path / "lr", "at=3", "lr=0.5", command=supervised.command)
    first, theirs = (checkpoint.load(folder / "checkpoints", 3)["learner"] for folder in (made, of_tasks))
    assert first.pop("optimizer.lr") == 0.5
    assert theirs.pop("optimizer.lr") == 0.01
    assert_equal_states(first, theirs)
    assert metrics(made) != metrics(of_tasks)


def test_a_new_regularizer_is_that_of_the_network_the_run_began_with(of_tasks, tmp_path):
    made = branch(of_tasks, tmp_path / "wasserstein", "at=3", "reg=[wasserstein,l2_init]", command=supervised.command)
    began = run_supervised([*TASKS[:-1], "reg=[wasserstein,l2_init]"], tmp_path / "began")
    captured, whole = (
        {
            n: v
            for n, v in checkpoint.load(folder / "checkpoints", at)["learner"].items()
            if n.startswith("regularizer.")
        }
        for folder, at in ((made, 3), (began, 0))
    )
    assert_equal_states(captured, whole)


def test_a_regularizer_that_is_the_same_keeps_its_state_and_takes_a_new_strength(parent, tmp_path):
    made = branch(parent, tmp_path / "coef", "at=40", "reg.coef=0.5")
    first, theirs = (checkpoint.load(folder / "checkpoints", 40)["agent"] for folder in (made, parent))
    for network in ("critic", "actor"):
        assert first.pop(f"{network}.regularizer.coef") == 0.5
        theirs.pop(f"{network}.regularizer.coef")
    assert_equal_states(first, theirs)


def test_a_branch_whose_task_changes_truncates_the_episode_under_way_and_begins_the_next(parent, tmp_path):
    change = ["env.changes=[observation_shift,action_flip]", "env.switch_every_env_steps=40"]
    made = branch(parent, tmp_path / "changing", "at=40", *change)
    first, theirs = (checkpoint.load(folder / "checkpoints", 40) for folder in (made, parent))
    assert [env["episode"] for env in first["envs"]["states"]] == [2, 2]
    assert [len(env["actions"]) for env in first["envs"]["states"]] == [0, 0]
    buffers = [ReplayBuffer(2, 60, 3, 1), ReplayBuffer(2, 60, 3, 1)]
    for buffer, saved in zip(buffers, (first, theirs), strict=True):
        buffer.load_state_dict(saved["buffer"] | saved["table"])
    every = torch.arange(40).expand(2, -1)
    assert_equal_states(*([*buffer.sample(every)] for buffer in buffers))  # the last next_obs too
    assert not torch.equal(buffers[0].newest_obs, buffers[1].newest_obs)
    assert (buffers[0].end[:, 39] == 1).all()
    circle = (first["buffer"]["newest_obs"][:, :2] ** 2).sum(-1)
    assert ((circle - 1).abs() > 1e-3).all()  # cos and sin of the angle, shifted by the first change
    before, after = ([r for r in rows(f) if int(r["step"]) <= 40] for f in (parent, made))
    assert after[: len(before)] == before
    of_task = {r["name"]: float(r["value"]) for r in after[len(before) :] if r["run"] == "0"}  # which ends there
    assert of_task["task/index"] == 0
    assert np.isfinite(of_task["task/return"])
    assert np.isnan([of_task["task/first_return"], of_task["task/area"]]).all()
    halves = branch(parent, tmp_path / "halves", "at=40", *change, stop=StopAfter(7))
    assert metrics(resume(halves)) == metrics(made)


REFUSED = [
    (["at=41"], "at=41", "40", "60"),
    (["at=60"], "total_env_steps=60", "at=60"),
    (["at=40", "seeds=3"], "seeds"),
    (["at=40", "buffer_size=100"], "buffer_size"),
    (["at=40", "agent.hidden=[32,32]"], "agent.hidden"),
    (["at=40", "agent.num_critics=2"], "agent.num_critics"),
    (["at=40", "reg.coeff=1"], "reg.coeff", "reg.coef"),
    (["at=40", "reg=spectrall"], "spectrall", "spectral"),
    (["at=40", "resume=x"], "from", "resume"),
    (["at=40", "env.action_repeat=2"], "env.action_repeat"),
    (["at=40", "env.changes=[action_flip]"], "env.changes", "env.switch_every_env_steps"),
    (["at=40", "measure_every_updates=0"], "measure_every_updates"),
    (["at=40", "reset=none", "reset_once_after_updates=30"], "reset_once_after_updates=30", "reset="),
    (["at=40", "reset=head", "reset_once_after_updates=20"], "reset_once_after_updates=20", "20 updates"),
    (["at=40", "reset=head", "agent.init_alpha=0.1"], "agent.init_alpha", "periodic"),
    (["at=40", "reset=none", "reg=none", "agent.init=torch"], "agent.init", "reset="),
]


@pytest.mark.parametrize(("settings", "words"), [(s, w) for s, *w in REFUSED], ids=lambda x: " ".join(x))
def test_what_a_branch_cannot_do_is_refused_before_anything_is_written(settings, words, parent, tmp_path):
    before = content(parent)
    refused(lambda: branch(parent, tmp_path / "branch", *settings), *words)
    assert not [*tmp_path.iterdir()]
    assert content(parent) == before


def test_a_run_of_several_settings_is_refused_and_so_is_a_step_without_a_run(of_tasks, tmp_path):
    several = run([*PENDULUM, "reg=[none,l2]"], tmp_path / "several")
    refused(lambda: branch(several, tmp_path / "branch"), str(several), "-m")
    refused(lambda: run([*PENDULUM, "at=40"], tmp_path / "branch"), "at=40", "from=")
    ended = lambda: branch(of_tasks, tmp_path / "branch", "at=6", command=supervised.command)  # noqa: E731
    refused(ended, "at=6", "6")
    refused(lambda: branch(of_tasks, tmp_path / "branch", "at=3", command=train.command), "train")
    for given in ("task=label_flip", "net.widths=[4]", "data.train_size=100", "batch_size=10", "num_tasks=5"):
        fixed = lambda: branch(of_tasks, tmp_path / "branch", "at=3", given, command=supervised.command)  # noqa: B023, E731
        refused(fixed, given.partition("=")[0])
    refused(lambda: branch(tmp_path / "nowhere", tmp_path / "branch"), "nowhere")
    assert not (tmp_path / "branch").exists()


def test_a_branch_says_where_it_came_from(parent, tmp_path):
    made = RunFolder(train.run(from_=parent, at=40, reg="l2", out=tmp_path / "l2").path)
    assert (made.branch["from"], made.branch["at"]) == (str(parent), 40)
    assert made.branch["starts"] == RunFolder(parent).starts
    assert len(made.starts) == 1
    assert (made.settings["from"], made.settings["at"]) == (str(parent), 40)
    resume(made.path)
    assert len(made.starts) == 2
    assert made.branch["at"] == 40
    again = RunFolder(branch(made, tmp_path / "again", "total_env_steps=80"))
    assert again.branch["at"] == 60
    assert again.branch["branch"]["at"] == 40


def test_a_sweep_branches_a_run_for_each_of_its_values(parent, tmp_path):
    asked = [f"from={parent}", "at=40", "reset=none,head", "reset.head.every_updates=25", f"out={tmp_path}"]
    found = sweep.runs(Train, asked)
    assert [run.settings.reset.name for run in found] == ["none", "head"]
    assert {run.settings.reg.name for run in found} == {"spectral"}
    made = run(found[1].arguments, found[1].folder)
    assert [run.folder for run in sweep.runs(Train, asked)] == [run.folder for run in found]
    assert metrics(made) == metrics(branch(parent, tmp_path / "alone", "at=40", "reset=head", "reset.every_updates=25"))
    unbranched = once(
        [*(a for a in TRAINED if not a.startswith("reset.")), *(a for a in asked if not a.startswith(("from", "at")))]
    )
    assert not {run.folder for run in sweep.runs(Train, unbranched)} & {run.folder for run in found}
