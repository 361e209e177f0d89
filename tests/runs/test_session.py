import sys

import pytest

from rl_plasticity.configs import schema
from rl_plasticity.configs.schema import Train
from rl_plasticity.errors import FaultyRun
from rl_plasticity.runs import session as command
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.journal import last_entry
from rl_plasticity.runs.lock import is_held
from rl_plasticity.runs.session import Clock, Command


class NeverStopped:
    received = 15


def loop(outcome):
    def run(settings, folder, saved, stop):
        assert is_held(RunFolder(folder))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return run


@pytest.mark.parametrize(
    ("outcome", "status", "entry"),
    [
        (True, None, ("finished", "")),
        (False, 143, ("stopped", "")),
        (FaultyRun("a loss is not finite;\nno checkpoint"), 1, ("failed", "a loss is not finite; no checkpoint")),
        (ZeroDivisionError("a bug"), ZeroDivisionError, ("failed", "ZeroDivisionError: a bug")),
    ],
)
def test_how_a_run_ended_is_in_its_log_which_it_then_lets_go(outcome, status, entry, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "StopSignal", NeverStopped)  # it would take over this process's signals
    monkeypatch.setattr(sys, "argv", ["train", f"out={tmp_path / 'run'}"])
    main = Command(Train, lambda s: None, lambda s: 0).main
    if status is None:
        main(loop(outcome))
    elif status is ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            main(loop(outcome))
    else:
        with pytest.raises(SystemExit) as ended:
            main(loop(outcome))
        assert ended.value.code == status
    assert last_entry(RunFolder(tmp_path / "run")) == entry
    assert not is_held(RunFolder(tmp_path / "run"))


def test_bad_input_leaves_no_log_and_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train", "sede=3", f"out={tmp_path / 'run'}"])
    with pytest.raises(SystemExit):
        Command(Train, lambda s: None, lambda s: 0).main(loop(True))
    assert not (tmp_path / "run").exists()


def test_the_time_left_counts_updates_at_their_rate_and_each_step_s_own_share(monkeypatch):
    settings = schema.load(Train, ["compile=false"])
    clock = Clock(settings, "env steps", total=1000, step=100, updates_per_step=2)
    now = [clock.mark]
    monkeypatch.setattr(command.time, "perf_counter", lambda: now[0])
    now[0] += 1
    first = clock.rates(200)  # random steps: a hundred a second, and no update yet
    assert (first["env_steps_done"], first["env_steps_left"], first["env_steps_per_second"]) == (200, 800, 100)
    assert "seconds_left" not in first
    for seconds in (30, *[0.5] * 10):  # the first updates compile
        clock.start_updates()
        now[0] += seconds
        clock.end_updates(2)
        now[0] += 0.25
    clock.rates(211)
    for _ in range(10):
        clock.start_updates()
        now[0] += 0.5
        clock.end_updates(2)
        now[0] += 0.25  # the environment, an evaluation
    found = clock.rates(221)
    clock.close()
    assert found["updates_per_second"] == pytest.approx(4)
    assert found["seconds_left"] == pytest.approx(779 * (2 / 4 + 0.25))
