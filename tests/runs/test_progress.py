import pytest
import torch

from rl_plasticity.runs import progress
from rl_plasticity.runs.progress import Clock, Progress


def test_the_time_left_counts_updates_at_their_rate_and_each_step_s_own_share(monkeypatch):
    clock = Clock("env steps", total=1000, step=100, updates_per_step=2)
    now = [clock.mark]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
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
    rates = clock.rates(221)
    clock.close()
    assert rates["updates_per_second"] == pytest.approx(4)
    assert rates["seconds_left"] == pytest.approx(779 * (2 / 4 + 0.25))


def test_progress_is_restored_whole():
    one, other = Progress(3, 7), Progress()
    one.more = torch.tensor([1.0, 2.0])  # what a command's own counts with
    other.load_state_dict(one.state_dict())
    assert (other.step, other.updates, other.more.tolist()) == (3, 7, [1.0, 2.0])
