"""A run that branches from a saved checkpoint of another one."""

import pytest
from conftest import StopAfter, assert_equal_states, files, once, refused
from folders import PENDULUM, go, resume, rows, run, run_supervised

from rl_plasticity import supervised, train
from rl_plasticity.configs.commands import Train
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.trained import load_agent
from rl_plasticity.sweeps import sweep

# The checkpoint at 40 lies within an episode, and between two resets, measurements and log lines.
TRAINED = [*(s for s in PENDULUM if not s.startswith("measure_every")), "seeds=2", "reg=spectral", "reset=periodic"]
TRAINED += ["reset.every_updates=15", "measure_every_updates=25", "log_every_updates=7"]


@pytest.fixture(scope="module", autouse=True)
def of_few_transitions():
    """The measurements."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rl_plasticity.training.acting.PROBE_SIZE", 16)
        yield


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    return run(TRAINED, tmp_path_factory.mktemp("branch") / "parent")


def branch(parent, out, *more, stop=None, command=train.command):
    return go(command, [f"from={parent}", f"out={out}", *more], stop)


def metrics(folder):
    return (folder / "metrics.csv").read_bytes()


def test_a_branch_without_a_change_equals_the_run_bit_for_bit_also_when_it_was_stopped(parent, tmp_path):
    before = files(parent)
    made = branch(parent, tmp_path / "same", "at=40", stop=StopAfter(7))
    assert metrics(made) != metrics(parent)
    assert metrics(resume(made)) == metrics(parent)
    assert files(parent) == before


def test_a_branch_equals_the_run_until_an_intervention_which_can_act_once_and_not_in_a_branch_of_it(parent, tmp_path):
    made = branch(parent, tmp_path / "once", "at=40", "reset=head", "reset_once_after_updates=26", stop=StopAfter(12))
    head = branch(parent, tmp_path / "head", "at=40", "reset=head", "reset.every_updates=26")  # of 40 updates
    before, after = ([r for r in rows(f) if int(r["step"]) <= 40] for f in (parent, head))
    assert before == after
    assert RunFolder(head).settings["reset"]["every_updates"] == 26
    assert metrics(resume(made)) == metrics(head) != metrics(parent)
    assert RunFolder(made).settings["reset_once_after_updates"] == 26
    later = branch(made, tmp_path / "later", "total_env_steps=80", "reg=none")
    counts = [load_agent(folder).critic.counts["resets"].tolist() for folder in (made, later)]
    assert counts == [[2, 2], [2, 2]]  # at update 15 in the parent, and 26


# Epochs: a checkpoint at 3 lies within the second task.
TASKS = ["data.train_size=200", "net.widths=[8]", "num_tasks=3", "epochs_per_task=2", "seeds=2", "batch_size=50"]
TASKS += ["device=cpu", "compile=false", "threads=1", "log_every_updates=3", "measure_every_updates=3", "lr=0.01"]
TASKS += ["checkpoint_every_epochs=3", "eval_every_epochs=1", "reg=l2_init"]


@pytest.fixture(scope="module")
def of_tasks(tmp_path_factory):
    return run_supervised(TASKS, tmp_path_factory.mktemp("branch") / "tasks")


def test_a_supervised_branch_without_a_change_equals_the_run_bit_for_bit(of_tasks, tmp_path):
    before = files(of_tasks)
    made = branch(of_tasks, tmp_path / "same", "at=3", stop=StopAfter(1), command=supervised.command)
    assert metrics(resume(made, command=supervised.command)) == metrics(of_tasks)
    assert files(of_tasks) == before


def test_a_branch_keeps_moments_and_what_a_regularizer_knows_and_takes_their_new_strengths(of_tasks, tmp_path):
    made = branch(of_tasks, tmp_path / "lr", "at=3", "lr=0.5", "reg.coef=0.5", command=supervised.command)
    first, theirs = (checkpoint.load(folder / "checkpoints", 3)["learner"] for folder in (made, of_tasks))
    for name in ("optimizer.lr", "regularizer.coef"):
        assert first.pop(name) == 0.5 != theirs.pop(name)
    assert_equal_states(first, theirs)
    assert metrics(made) != metrics(of_tasks)


def test_a_new_regularizer_is_that_of_the_network_the_run_began_with(of_tasks, tmp_path):
    made = branch(of_tasks, tmp_path / "wasserstein", "at=3", "reg=wasserstein", command=supervised.command)
    began = run_supervised([*TASKS[:-1], "reg=wasserstein"], tmp_path / "began")
    both = (checkpoint.load(folder / "checkpoints", at)["learner"] for folder, at in ((made, 3), (began, 0)))
    captured, whole = ({n: v for n, v in of.items() if n.startswith("regularizer.")} for of in both)
    assert_equal_states(captured, whole)


REFUSED = [
    (["at=41"], "at=41", "40", "60"),
    (["at=60"], "total_env_steps=60", "at=60"),
    (["at=40", "seeds=3"], "seeds"),
    (["at=40", "buffer_size=100"], "buffer_size"),
    (["at=40", "agent.hidden=[32,32]"], "agent.hidden"),
    (["at=40", "reg.coeff=1"], "reg.coeff", "reg.coef"),
    (["at=40", "resume=x"], "from", "resume"),
    (["at=40", "env.changes=[action_flip]"], "env.changes"),
    (["at=40", "reg=[none,l2]"], "-m"),
    (["at=40", "measure_every_updates=0"], "measure_every_updates"),
    (["at=40", "reset=none", "reset_once_after_updates=30"], "reset_once_after_updates=30", "reset="),
    (["at=40", "reset=head", "reset_once_after_updates=20"], "reset_once_after_updates=20", "20 updates"),
    (["at=40", "reset=head", "agent.init_alpha=0.1"], "agent.init_alpha"),
    (["at=40", "reset=head", "agent.sac.init=torch"], "agent.init=torch"),
]


@pytest.mark.parametrize(("settings", "words"), [(s, w) for s, *w in REFUSED], ids=lambda x: " ".join(x))
def test_what_a_branch_cannot_do_is_refused_before_anything_is_written(settings, words, parent, tmp_path):
    before = files(parent)
    refused(lambda: branch(parent, tmp_path / "branch", *settings), *words)
    assert not [*tmp_path.iterdir()]
    assert files(parent) == before


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
    came = made.origin()["branch"]
    assert (came["from"], came["at"], came["starts"]) == (str(parent), 40, RunFolder(parent).starts)
    assert (made.settings["from"], made.settings["at"]) == (str(parent), 40)
    resume(made.path)
    assert made.origin()["branch"] == came
    starts = made.starts
    assert (len(starts), starts[0]) == (3, RunFolder(parent).starts[0])
    again = RunFolder(branch(made, tmp_path / "again", "total_env_steps=80"))
    assert again.origin()["branch"]["at"] == 60
    assert again.starts[:3] == starts


def test_a_sweep_branches_a_run_for_each_of_its_values(parent, tmp_path):
    asked = [f"from={parent}", "at=40", "reset=none,head", "reset.head.every_updates=25", f"out={tmp_path}"]
    found = sweep.runs(Train, asked)
    assert [run.settings.reset.name for run in found] == ["none", "head"]
    assert {run.settings.reg.name for run in found} == {"spectral"}
    unbranched = once(
        [*(a for a in TRAINED if not a.startswith("reset.")), *(a for a in asked if not a.startswith(("from", "at")))]
    )
    assert not {run.folder for run in sweep.runs(Train, unbranched)} & {run.folder for run in found}
