import os
import subprocess
import sys

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


def test_the_bar_says_once_a_second_how_many_episodes_of_an_evaluation_are_done(monkeypatch, capsys):
    clock = Clock("env steps", total=1000, step=0, updates_per_step=1)
    now = [clock.evaluation_shown]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    capsys.readouterr()
    for done in range(10):
        clock.show_evaluation(done // 3, 10)
        now[0] += 0.6
    clock.close()
    shown = capsys.readouterr().err
    assert [f"evaluating: {done} of 10 episodes" in shown for done in range(4)] == [True, True, True, False]
    assert 4 <= shown.count("evaluating") <= 5  # when the bar is closed it is shown again


def test_the_estimate_begins_anew_when_the_first_updates_are_made(monkeypatch, capsys):
    clock = Clock("env steps", total=1000, step=0, updates_per_step=1, compiles=True)
    now = [clock.mark]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    now[0] += 1
    clock.show(500)  # random steps
    assert "remaining" not in clock.bar.bar_format
    clock.start_updates()
    now[0] += 57
    clock.end_updates(1)
    assert "compiling the update: done in 57 s" in capsys.readouterr().err
    clock.show(501)
    assert "remaining" in clock.bar.bar_format
    assert (clock.bar.initial, clock.bar.n) == (501, 501)
    assert not clock.is_time_to_tell()
    for step in range(502, 513):
        clock.start_updates()
        now[0] += 1
        clock.end_updates(1)
        clock.show(step)
    assert clock.is_time_to_tell()
    rates = clock.rates(512, anew=False)
    assert rates["seconds_left"] == pytest.approx(488)
    assert rates["env_steps_per_second"] == pytest.approx(1)
    assert clock.rates(512) == rates  # the first ones go on to the evaluation
    assert not clock.is_time_to_tell()
    clock.close()


def test_progress_is_restored_whole():
    one, other = Progress(3, 7), Progress()
    one.more = torch.tensor([1.0, 2.0])  # what a command's own counts with
    other.load_state_dict(one.state_dict())
    assert (other.step, other.updates, other.more.tolist()) == (3, 7, [1.0, 2.0])


@pytest.fixture
def watched(monkeypatch):
    """A clock and what is counted by hand: seconds, and how often other work interrupted the threads."""
    now, count = [0.0], [0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(progress, "_interruptions", lambda: count[0])

    def watch(threads, interruptions=0, first=0, between=0):
        """41 updates of a second, interrupted so often each, the first one besides, and so often between them."""
        clock = Clock("env steps", total=1000, step=0, updates_per_step=1, threads=threads)
        for i in range(41):
            clock.start_updates()
            now[0] += 1.0
            count[0] += interruptions + (first if i == 0 else 0)
            clock.end_updates(1)
            count[0] += between
        clock.close()

    return watch


def test_threads_that_others_interrupt_are_told_of_once_with_the_setting_that_helps(watched, capsys):
    watched(threads=2, interruptions=300)
    said = capsys.readouterr().err
    assert said.count("Other work interrupts this run's 2 threads") == 1
    assert "threads=1" in said


@pytest.mark.parametrize(
    "given",
    [
        {"threads": 2, "interruptions": 40},
        {"threads": 1, "interruptions": 300},  # which waits for nobody
        {"threads": 2, "first": 30_000},  # the compiler runs in processes beside this one
        {"threads": 2, "between": 1000},  # environments in other processes
    ],
)
def test_threads_that_are_left_alone_in_their_updates_are_not(given, watched, capsys):
    watched(**given)
    assert "interrupts" not in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux chooses the core of a process")
def test_a_thread_that_another_takes_the_processor_from_is_interrupted():
    allowed, before = os.sched_getaffinity(0), progress._interruptions()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            for process in (0, other.pid):
                os.sched_setaffinity(process, {min(allowed)})
            while progress._interruptions() < before + 3:
                sum(range(10_000))
        finally:
            os.sched_setaffinity(0, allowed)
            other.kill()
