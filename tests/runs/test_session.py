import os
import signal
import sys

import pytest
from conftest import StopAfter, files, once, refused
from folders import PENDULUM, resume, run

from rl_plasticity import command_line, supervised
from rl_plasticity import train as train_module
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.envs import Envs
from rl_plasticity.errors import FaultyRun, SettingsError
from rl_plasticity.runs.command import Command
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.journal import last_entry
from rl_plasticity.runs.lock import is_held
from rl_plasticity.runs.machine import resolved
from rl_plasticity.runs.session import StopSignal
from rl_plasticity.train import command, train


class Nothing:
    is_stacked = True

    def close(self):
        pass


def command_whose_loop(outcome):
    def loop(session, built):
        assert is_held(session.folder)
        session.stop.received = signal.SIGTERM
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    trained = lambda built, s, plan: None  # noqa: E731
    return Command(Train, lambda s, plan: Nothing(), loop, lambda s, built: (0, "no steps"), trained)


@pytest.mark.parametrize(
    ("outcome", "status", "entry"),
    [
        (True, None, ("finished", "")),
        (False, 143, ("stopped", "")),
        (FaultyRun("not finite;\nno more"), 1, ("failed", "not finite; no more; there is no checkpoint")),
        (ZeroDivisionError("a bug"), "a bug", ("failed", "ZeroDivisionError: a bug")),
    ],
)
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


# --- what is saved is what is restored ------------------------------------------------------------------------------


def test_every_part_that_a_run_names_is_saved_and_restored(tmp_path, monkeypatch):
    """The parts are named once; one that a checkpoint lacks could not be restored."""
    folder = run(PENDULUM, tmp_path / "run", StopAfter(30))
    session, parts = command.prepare([f"resume={folder}"])
    assert session.saved is not None
    restored = []
    for name, kind in (("agent", type(parts.agent)), ("buffer", type(parts.buffer)), ("envs", Envs)):

        def load(part, state, name=name, load_=kind.load_state_dict):
            restored.append((name, set(state)))
            return load_(part, state)

        monkeypatch.setattr(kind, "load_state_dict", load)
    session.stop = StopAfter(2)
    train(session, parts)
    session.lock.release()
    saved = {n: set(session.saved[n]) for n in ("agent", "buffer", "envs")}
    saved["buffer"] |= set(session.saved["table"])
    assert dict(restored) == saved
    assert session.progress.step == 32


@pytest.mark.parametrize("name", ["metrics.csv", "log.txt", "checkpoints", "tensorboard/more", "checkpoints/a.pt"])
def test_a_run_is_not_resumed_through_a_link(name, tmp_path):
    folder, there = run(PENDULUM, tmp_path / "run", StopAfter(30)), tmp_path / "there"
    path = folder / name
    if path.exists():
        path.rename(there)
    path.symlink_to(there)
    before = files(tmp_path)
    refused(lambda: resume(folder), str(path), "link")
    assert files(tmp_path) == before
    path.unlink()
    if there.exists():
        there.rename(path)
    (tmp_path / "link").symlink_to(folder)
    resume(tmp_path / "link")


def test_resuming_takes_what_belongs_to_the_machine_and_nothing_else(tmp_path):
    folder = run(PENDULUM, tmp_path / "run", StopAfter(30))
    for argument in ("seed=5", "reg=l2", "replay_ratio=3", "out=elsewhere", "compile=true"):
        name = argument.partition("=")[0]
        refused(lambda given=argument: command.prepare([f"resume={folder}", given]), "leave out", name)
    resume(folder, StopAfter(2))
    given = ["threads=2", "env.workers=true", "env.timeout_seconds=77"]
    session, parts = command.prepare([f"resume={folder}", *given])
    parts.close()
    session.lock.release()
    assert session.settings.threads == 2
    env = RunFolder(folder).settings["env"]
    assert session.settings.env.settings == {
        **{n: v for n, v in env.items() if n != "name"},
        "workers": True,
        "timeout_seconds": 77,
    }
    assert (env["workers"], env["timeout_seconds"]) == (False, 600)


@pytest.mark.parametrize(("of", "kind", "arguments"), [(train_module, Train, PENDULUM), (supervised, Supervised, [])])
def test_settings_for_another_machine_can_be_checked_on_one_without_a_gpu(of, kind, arguments, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    settings = schema.load(kind, once([*arguments, "device=cuda"]))
    of.command.check(settings)
    with pytest.raises(SettingsError, match="device=cuda"):
        of.command.prepare(once([*arguments, "device=cuda"]))


@pytest.mark.parametrize(("device", "given", "workers"), [("cpu", "auto", False), ("cuda", "auto", 3), ("cuda", 2, 2)])
def test_environments_have_a_process_for_each_core_beside_a_gpu_and_none_on_a_cpu(device, given, workers, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 5})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    settings = resolved(schema.load(Train, once([f"device={device}", f"env.workers={given}"])))
    assert settings.env.workers == workers


def test_checking_settings_starts_no_worker_process(monkeypatch):
    monkeypatch.setattr("rl_plasticity.envs.vector.Worker", None)  # calling it would raise
    command.check(schema.load(Train, [*PENDULUM, "env.workers=true"]))
