import pytest
import torch

from rl_plasticity.runs import progress
from rl_plasticity.runs.progress import Clock, Progress


@pytest.fixture
def now(monkeypatch):
    """The time of day, to set."""
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


def test_the_rates_begin_with_learning_and_the_time_left_counts_evaluations_but_no_random_step_or_compiler(now, capsys):
    clock = Clock("env steps", total=1000, step=100, compiles=True)
    now[0] += 1
    clock.show(200)  # random steps: a hundred a second, and no update yet
    first = clock.rates(200)
    assert (first["env_steps_done"], first["env_steps_left"], first["env_steps_per_second"]) == (200, 800, 100)
    assert "seconds_left" not in first
    assert "remaining" not in clock.bar.bar_format
    clock.told = False
    for step, seconds in enumerate((57, *[0.5] * 24), start=201):
        assert clock.is_time_to_tell() is (step > 222)
        clock.start_updates()
        now[0] += seconds
        clock.end_updates(2)
        clock.show(step)
    assert "compiling the update: done in 57 s" in capsys.readouterr().err
    assert "remaining" in clock.bar.bar_format
    assert clock.is_time_to_tell()
    now[0] += 13  # an evaluation
    rates = clock.rates(225)
    assert not clock.is_time_to_tell()
    assert rates["updates_per_second"] == pytest.approx(4)
    assert rates["env_steps_per_second"] == pytest.approx(25 / 25)
    assert rates["seconds_left"] == pytest.approx(775)
    now[0] -= 1e9  # the clock of the machine was set
    assert "seconds_left" not in clock.rates(230)
    clock.close()


def test_the_bar_says_once_a_second_how_many_episodes_of_an_evaluation_are_done(now, capsys):
    clock = Clock("env steps", total=1000, step=0)
    capsys.readouterr()
    for done in range(10):
        clock.show_evaluation(done // 3, 10)
        now[0] += 0.6
    clock.close()
    shown = capsys.readouterr().err
    assert [f"evaluating: {done} of 10 episodes" in shown for done in range(4)] == [True] * 4
    assert 4 <= shown.count("evaluating") <= 6  # when the bar is closed it is shown again


def test_progress_is_restored_whole():
    one, other = Progress(3, 7), Progress()
    one.more, other.more = torch.tensor([1.0, 2.0]), torch.zeros(2)  # what a command's own counts with
    other.load_state_dict(one.state_dict())
    assert (other.step, other.updates, other.more.tolist()) == (3, 7, [1.0, 2.0])
    with pytest.raises(KeyError):
        other.load_state_dict({"step": 3, "updates": 7})
