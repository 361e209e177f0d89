import os
import signal
import sys
from types import SimpleNamespace

import pytest
from conftest import StopAfter, files, once, refused
from folders import PENDULUM, begun, resume, run

from rl_plasticity import command_line, supervised
from rl_plasticity import train as train_module
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.errors import FaultyRun
from rl_plasticity.runs import progress
from rl_plasticity.runs.command import Command
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.journal import Journal, last_entry
from rl_plasticity.runs.lock import is_held
from rl_plasticity.runs.machine import resolved
from rl_plasticity.runs.progress import Clock
from rl_plasticity.runs.session import StopSignal
from rl_plasticity.train import command


def command_whose_loop(outcome):
    def loop(session, built):
        assert is_held(session.folder)
        session.stop.received = signal.SIGTERM
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    nothing = SimpleNamespace(is_stacked=True, close=lambda: None)
    return Command(Train, lambda *_: nothing, loop, lambda *_: (0, "no steps"), lambda *_: None)


@pytest.mark.parametrize(("outcome", "status", "entry"), [
    (True, None, ("finished", "")),
    (False, 143, ("stopped", "")),
    (FaultyRun("not finite;\nno more"), 1, ("failed", "not finite; no more; there is no checkpoint")),
    (ZeroDivisionError("a bug"), "a bug", ("failed", "ZeroDivisionError: a bug")),
])  # fmt: skip
def test_how_a_run_ended_is_in_its_log_which_it_then_lets_go(outcome, status, entry, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train", f"out={tmp_path / 'run'}"])
    ended = None
    try:
        command_line.train(command_whose_loop(outcome))
    except (SystemExit, ZeroDivisionError) as end:
        ended = end.args[0]
    assert ended == status
    assert last_entry(RunFolder(tmp_path / "run")) == entry
    assert not is_held(RunFolder(tmp_path / "run"))


def test_signals_are_as_before_when_a_run_has_ended():
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.received == signal.SIGINT
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("name", ["metrics.csv", "tensorboard/more", "checkpoints/a.pt"])
def test_a_run_is_not_resumed_through_a_link(name, tmp_path):
    folder, there = run(PENDULUM, tmp_path / "run", StopAfter(30)), tmp_path / "there"
    (tmp_path / "link").symlink_to(folder)
    resume(tmp_path / "link", StopAfter(2))  # the folder itself may be one
    path = folder / name
    if path.exists():
        path.rename(there)
    path.symlink_to(there)
    before = files(tmp_path)
    refused(lambda: resume(folder), str(path), "link")
    assert files(tmp_path) == before


def test_resuming_takes_what_belongs_to_the_machine_and_nothing_else(tmp_path):
    folder = run(PENDULUM, tmp_path / "run", StopAfter(30))
    for argument in ("seed=5", "reg=l2", "replay_ratio=3", "out=elsewhere", "compile=true"):
        name = argument.partition("=")[0]
        refused(lambda given=argument: command.prepare([f"resume={folder}", given]), "leave out", name)
    resume(folder, StopAfter(2))
    given = ["threads=2", "env.workers=true", "env.timeout_seconds=77"]
    session = begun(command, [f"resume={folder}", *given])
    assert session.settings.threads == 2
    env = RunFolder(folder).settings["env"]
    assert (session.settings.env.workers, session.settings.env.timeout_seconds) == (True, 77)
    assert (env["workers"], env["timeout_seconds"]) == (False, 600)


@pytest.mark.parametrize(("of", "kind", "arguments"), [(train_module, Train, PENDULUM), (supervised, Supervised, [])])
def test_settings_for_another_machine_can_be_checked_on_one_without_a_gpu(of, kind, arguments, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    settings = schema.load(kind, once([*arguments, "device=cuda"]))
    of.command.check(settings)
    refused(lambda: of.command.prepare(once([*arguments, "device=cuda"])), match="device=cuda")


@pytest.mark.parametrize(("device", "given", "workers"), [("cpu", "auto", False), ("cuda", "auto", 3), ("cuda", 2, 2)])
def test_environments_have_a_process_for_each_core_beside_a_gpu_and_none_on_a_cpu(device, given, workers, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 5})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    settings = resolved(schema.load(Train, once([f"device={device}", f"env.workers={given}"])))
    assert settings.env.workers == workers


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def test_a_line_being_written_does_not_count_and_a_cut_one_does_not_swallow_the_next_start(folder):
    Journal(folder).write("stopped")
    with folder.log.open("a") as file:
        file.write("2026-01-01T00:00:00+0000 fai")
    assert last_entry(folder) == ("stopped", "")
    Journal(folder).start()
    assert last_entry(folder).word == "started"
    assert "stopped" in folder.log.read_text()  # nothing is overwritten


def test_a_journal_that_cannot_be_written_stops_no_run(folder):
    missing = RunFolder(folder.path / "missing")
    Journal(missing).write("finished")
    assert last_entry(missing) is None
    assert not is_held(missing)


@pytest.fixture
def now(monkeypatch):
    """The time of day, to set."""
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


def test_rates_and_the_time_left_count_neither_random_steps_nor_compiling(now, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
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
    assert capsys.readouterr().err.count("compiling the update, which takes up to 3 minutes") == 1
    Clock("env steps", total=1000, step=100, compiles=True).start_updates()
    assert "took 57 to 57 s here before" in capsys.readouterr().err
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


def test_on_a_gpu_updates_count_when_they_have_finished(now, monkeypatch):
    class Event:
        def __init__(self, enable_timing):
            self.at = None

        def record(self):
            self.at = now[0] + 7  # what was launched before takes 7 s

        def query(self):
            return now[0] >= self.at

        def synchronize(self):
            now[0] = max(now[0], self.at)

        def elapsed_time(self, end):
            return 1000 * (end.at - self.at)

    monkeypatch.setattr("torch.cuda.Event", Event)
    clock = Clock("env steps", total=100, step=0, device="cuda")
    for counted in (0, 0, 0, 2, 4):
        assert clock.updates == counted
        clock.start_updates()
        now[0] += 0.5
        clock.end_updates(2)
    assert clock.rate == pytest.approx(4)
    for waited, counted in ((0, 6), (7, 8)):
        now[0] += waited
        clock.rates(1)
        assert clock.updates == counted
    clock.close()
