"""Classes in ``CALLBACKS``: when they are called, and that they are saved, resumed and able to refuse."""

import pytest
import torch
from conftest import StopAfter, once, refused
from folders import PENDULUM, go, goes_on_as_if_never_stopped, rows
from torch import nn

from rl_plasticity import CALLBACKS, supervised, train
from rl_plasticity.errors import FaultyRun

DIGITS = ["data.train_size=200", "net.widths=[8]", "batch_size=100", "epochs_per_task=2", "num_tasks=2", "seeds=2"]
DIGITS += ["device=cpu", "compile=false", "threads=2", "eval_every_epochs=2", "log_every_updates=4"]
DIGITS += ["measure_every_updates=1", "reset=shrink_perturb", "checkpoint_every_epochs=1"]
CHANGING = [*PENDULUM, "env.changes=[action_flip]", "env.switch_every_env_steps=20", "measure_every_updates=20"]
CHANGING += ["total_env_steps=40", "checkpoint_every_env_steps=20", "eval_every_env_steps=20"]
HOOKS = ("on_start", "on_task", "on_update", "on_measurement", "on_evaluation", "on_step")
calls = []


class Counting(nn.Module):
    """Logs at each step how many calls there were, in all starts of the run."""

    def __init__(self, settings, parts):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.net = (parts.learner if hasattr(parts, "learner") else parts.agent.learners["critic"]).net
        self.runs = settings.seeds

    def state_dict(self, *args, **kwargs):  # the network is the run's own
        return {"calls": self.calls.clone()}

    def load_state_dict(self, state):
        self.calls.copy_(state["calls"])


def hook(name):
    def call(self, session):
        self.calls += name != "on_start"
        weights = sum(float(p.detach().double().sum()) for p in self.net.parameters())
        calls.append((name, session.progress.step, session.progress.updates, weights))
        if name == "on_step":
            session.log({"calls": self.calls.expand(self.runs)})

    return call


for name in HOOKS:
    setattr(Counting, name, hook(name))


@pytest.fixture(autouse=True)
def _counted(monkeypatch):
    monkeypatch.setitem(CALLBACKS, "counting", Counting)
    calls.clear()


def names(*wanted):
    return [(name, step, updates) for name, step, updates, _ in calls if name in wanted]


def test_in_the_supervised_command_each_is_called_when_the_documentation_says_and_resumes(tmp_path):
    latest = []  # functions that are given for one run are called before and read what training logged
    given = {"on_step": lambda session: latest.append({*session.latest})}
    session, built = supervised.command.prepare([*DIGITS, f"out={tmp_path / 'run'}"], given)
    session.stop = StopAfter()
    supervised.command.execute(session, built)
    assert len(latest) == 4
    assert "calls" not in latest[0]
    assert names("on_start") == [("on_start", 0, 0)]
    assert calls[0][0] == "on_start"
    assert names("on_task") == [("on_task", 0, 0), ("on_task", 2, 4)]
    assert names("on_update") == [("on_update", n // 2, n + 1) for n in range(8)]
    assert names("on_step") == [("on_step", n, 2 * n) for n in range(1, 5)]
    assert names("on_evaluation") == [("on_evaluation", 2, 4), ("on_evaluation", 4, 8)]
    assert names("on_measurement") == [("on_measurement", 0, 0), ("on_measurement", 2, 4), ("on_measurement", 4, 8)]
    before, after = (next(c[3] for c in calls if c[:2] == (name, 2)) for name in ("on_step", "on_task"))
    assert before != after  # the intervention at the change of task came between
    whole = goes_on_as_if_never_stopped(DIGITS, tmp_path, 3, command=supervised.command)
    assert float(rows(whole, "calls")[-1]["value"]) > 5


def test_in_the_rl_command_each_is_called_when_the_documentation_says_and_resumes(tmp_path):
    def end(session):
        assert session.latest["eval/return"].shape == (1,)
        assert session.parts["agent"].learners.keys() == {"critic", "actor"}
        session.end_early()

    session, built = train.command.prepare(once([*CHANGING, f"out={tmp_path / 'run'}"]), {"on_evaluation": end})
    session.stop = StopAfter()
    train.command.execute(session, built)
    assert [step for _, step, _ in names("on_step")] == [*range(1, 21)]
    folder = go(train.command, [f"resume={tmp_path / 'run'}"])
    assert names("on_start") == [("on_start", 0, 0), ("on_start", 20, 0)]
    assert names("on_evaluation") == [("on_evaluation", 20, 0), ("on_evaluation", 40, 20)]
    assert names("on_task") == [("on_task", 20, 0)]
    assert [updates for _, _, updates in names("on_update")] == [*range(1, 21)]
    assert [step for _, step, _ in names("on_step")] == [*range(1, 41)]
    assert names("on_measurement") == [("on_measurement", 0, 0), ("on_measurement", 40, 20)]
    whole = goes_on_as_if_never_stopped(CHANGING, tmp_path, 30)
    assert (folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert float(rows(whole, "calls")[-1]["value"]) > 5


def test_a_run_with_the_state_of_a_callback_is_not_resumed_without_it(tmp_path, monkeypatch):
    folder = go(supervised.command, [*DIGITS, f"out={tmp_path / 'run'}"], StopAfter(2))
    monkeypatch.delitem(CALLBACKS, "counting")
    refused(lambda: go(supervised.command, [f"resume={folder}"]), match=r"callbacks\.counting", error=FaultyRun)


def test_one_that_refuses_the_run_does_so_before_anything_is_written(tmp_path, monkeypatch):
    closed, close = [], train.Parts.close

    def refuse(settings, parts):
        raise ValueError("this run is not\nfor me")

    monkeypatch.setattr(train.Parts, "close", lambda parts: closed.append(close(parts)))
    monkeypatch.setitem(CALLBACKS, "counting", refuse)
    refused(lambda: go(train.command, [*PENDULUM, f"out={tmp_path / 'run'}"]), match=r"^this run is not for me$")
    assert len(closed) == 1
    assert not (tmp_path / "run").exists()
