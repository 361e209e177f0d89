"""Faults of the machine, of the files and of the user: one line each, and nothing lost."""

import contextlib
import errno
import hashlib
import io
import itertools
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import StopAfter, once
from folders import resume, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_plasticity import command_line, supervised, train
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.diagnosis.probe import PROBE_SIZE
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs.checkpoint import load
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.journal import Journal
from rl_plasticity.runs.lock import Lock, is_held

PENDULUM = ["env=gym:Pendulum-v1", "agent.hidden=[16,16]", "batch_size=16", "device=cpu", "compile=false", "threads=1"]
PENDULUM += [
    "random_env_steps=20",
    "total_env_steps=60",
    "replay_ratio=1",
    "eval_episodes=1",
    "eval_every_env_steps=60",
]
PENDULUM += ["checkpoint_every_env_steps=20", "log_every_updates=5", "measure_every_updates=0"]
DIGITS = ["data.train_size=100", "net.widths=[8]", "epochs_per_task=2", "num_tasks=2", "device=cpu", "threads=1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(PENDULUM, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def main(monkeypatch, capsys):
    """The RL command as a process runs it, with something that happens at a step; its status and what it says."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # put back at the end

    def call(*arguments, step=None, happens=lambda: None):
        class Happens:
            received, left = property(lambda self: self.look()), step

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def require_none(self):
                """Steps are counted, and not those of evaluations."""

            def look(self):
                if self.left is not None:
                    self.left -= 1
                    if self.left == 0:
                        happens()
                return 0

        monkeypatch.setattr("rl_plasticity.runs.session.StopSignal", Happens)
        monkeypatch.setattr(sys, "argv", ["train", *arguments])
        try:
            command_line.train(train.command)
            status = 0
        except SystemExit as end:
            status = end.code
        said = capsys.readouterr().err
        assert "Traceback" not in said
        return status, "".join(line for line in said.splitlines() if line.startswith("rl_plasticity."))

    return call


def assert_nothing_was_lost(folder, whole):
    """Going on from the last checkpoint gives the numbers of a run that was never stopped."""
    resume(folder)
    assert (folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


# --- the folder -----------------------------------------------------------------------------------------------------


def test_a_full_disk_ends_the_run_with_one_line_and_loses_nothing(main, whole, tmp_path):
    folder, limits = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # noqa: E731
    try:
        status, said = main(*PENDULUM, f"out={folder}", step=30, happens=full)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 1
    assert "File too large; the last good checkpoint is" in said  # a limit of each file, here, instead of the disk's
    assert "step_000000020.pt" in said
    assert_nothing_was_lost(folder, whole)


def test_a_process_that_may_open_no_more_files_ends_with_one_line_and_loses_nothing(main, whole, tmp_path):
    folder, limits = tmp_path / "run", resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        status, said = main(
            *PENDULUM,
            f"out={folder}",
            step=30,
            happens=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1])),
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert status == 1
    wrong = rf"rl_plasticity.train: {folder}\S*: Too many open files; its checkpoints cannot be reached"
    assert re.fullmatch(wrong, said), said
    assert_nothing_was_lost(folder, whole)


def test_a_folder_that_becomes_read_only_ends_the_run_with_one_line_and_loses_nothing(main, whole, tmp_path):
    folder, user = tmp_path / "run", os.geteuid()
    forbid = lambda: os.seteuid(65534) if user == 0 else (folder / "checkpoints").chmod(0o555)  # noqa: E731
    try:
        status, said = main(*PENDULUM, f"out={folder}", step=30, happens=forbid)
    finally:
        os.seteuid(user)
        (folder / "checkpoints").chmod(0o755)
    assert status == 1
    assert "Permission denied" in said
    assert_nothing_was_lost(folder, whole)


def test_a_place_that_cannot_be_written_is_bad_input(main):
    status, said = main(*PENDULUM, "out=/proc/run")
    assert status == 2
    assert said.startswith("rl_plasticity.train: cannot write to /proc/run: ")


def test_a_folder_whose_settings_cannot_be_written_is_bad_input_and_free_for_another_run(tmp_path):
    folder, limits = RunFolder(tmp_path / "run"), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # the lock has room, the settings have not
        with pytest.raises(SettingsError, match=f"cannot write to {folder}: File too large"):
            train.command.prepare([*PENDULUM, f"out={folder}"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []  # what was made is taken back
    assert not is_held(folder)
    assert run(PENDULUM, folder, StopAfter(0)) == folder.path


def test_a_full_disk_at_the_start_takes_back_the_folders_it_made_and_no_other(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunFolder, "write_settings", full)
    mine, new = tmp_path / "mine", tmp_path / "new" / "deep" / "run"
    mine.mkdir()
    for out in (mine, new):
        with pytest.raises(SettingsError, match=f"cannot write to {out}: No space left on device"):
            train.command.prepare([*PENDULUM, f"out={out}"])
    assert [p for p in tmp_path.rglob("*") if p.name != ".lock"] == [mine]


def test_a_folder_that_is_deleted_ends_the_run_with_one_line_and_is_not_brought_back(main, tmp_path):
    folder = tmp_path / "run"
    status, said = main(*PENDULUM, f"out={folder}", step=30, happens=lambda: shutil.rmtree(folder))
    assert status == 1
    assert "moved or deleted while the run was writing it" in said or "No such file or directory" in said
    assert not folder.exists()


def test_a_folder_that_is_renamed_ends_the_run_which_goes_on_under_the_new_name(main, whole, tmp_path):
    folder, renamed = tmp_path / "run", tmp_path / "renamed"

    def rename():
        folder.rename(renamed)
        folder.mkdir()  # somebody else's by now
        (folder / "metrics.csv").touch()

    status, said = main(*PENDULUM, f"out={folder}", step=30, happens=rename)
    assert status == 1
    assert "moved or deleted while the run was writing it" in said or "No such file or directory" in said
    assert [p.name for p in folder.iterdir()] == ["metrics.csv"]
    assert_nothing_was_lost(renamed, whole)


@pytest.mark.parametrize("name", ["metrics.csv", "timing.csv"])
@pytest.mark.parametrize("damage", ["shortened", "missing", "other rows", "zeros", "header only"])
def test_rows_that_are_not_those_of_the_checkpoint_are_refused_and_nothing_is_touched(name, damage, whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(
        {
            "shortened": content[:-1],
            "missing": b"",
            "other rows": content[:-4] + b"9.9\n",
            "zeros": content[:-90] + bytes(90),
            "header only": content.split(b"\n")[0] + b"\n",
        }[damage]
    )
    if damage == "missing":
        path.unlink()
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(SettingsError, match=rf"cannot resume: {path} .*; put it back as it was, or train anew"):
        train.command.prepare([f"resume={folder}"])
    assert {p: p.read_bytes() for p in before} == before
    path.write_bytes(content + b"0,70,half a ro")  # written after the checkpoint: it comes again
    train.command.prepare([f"resume={folder}"])


def test_a_damaged_provenance_is_neither_lost_nor_a_traceback(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    (folder / "provenance.json").write_text("{")
    with pytest.raises(SettingsError, match=r"provenance.json is damaged; put it back as it was, or move it away"):
        train.command.prepare([f"resume={folder}"])
    assert (folder / "provenance.json").read_text() == "{"


def test_no_bytes_of_a_damaged_csv_reach_the_terminal(whole, tmp_path):
    folder = RunFolder(shutil.copytree(whole, tmp_path / "run"))
    rows = (
        bytes(100_000) + b"0,70,a,1.0",
        b"x y " * 30_000 + b",1,a,3",
        b"0,\0\x1b[2J,a,1",
        b"0,5,a," + b"\x07 " * 50_000,
    )
    for row in rows:
        folder.metrics_csv.write_bytes((whole / "metrics.csv").read_bytes() + row + b"\n")
        with pytest.raises(SettingsError, match=r"metrics.csv is damaged") as error:
            folder.metrics()
        assert str(error.value).isprintable()
        assert len(str(error.value)) < len(str(folder)) + 400


HOLDER = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); "


def test_a_second_process_on_one_folder_refuses_until_the_first_is_gone_even_killed(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    hold = HOLDER + "f.write('process 7 on a'); f.flush(); print('held', flush=True); sys.stdin.read()"
    arguments = [sys.executable, "-c", hold, folder / ".lock"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(SettingsError, match=rf"{folder} is being written by process 7 on a"):
            train.command.prepare([f"resume={folder}"])
        other.kill()
        other.wait()
    train.command.prepare([f"resume={folder}"])  # now this process has it
    done = subprocess.run([sys.executable, "-c", HOLDER, folder / ".lock"], capture_output=True, text=True)
    assert "BlockingIOError" in done.stderr


def test_a_lock_that_another_host_did_not_release_is_taken_and_that_host_is_named(tmp_path, capsys):
    folder = RunFolder(tmp_path)
    for owner, said in (
        ("process 7 on b\n", f"process 7 on b was at work in {tmp_path} and did not say that it ended: has it?\n"),
        (f"process 7 on {platform.node()}\n", ""),  # whose locks are seen
        ("", ""),
    ):
        folder.lock.write_text(owner)
        with Lock(folder):
            assert folder.lock.read_text() == f"process {os.getpid()} on {platform.node()}\n"
        assert folder.lock.read_text() == ""
        assert capsys.readouterr().err == said


def test_a_run_killed_before_its_first_checkpoint_starts_again_on_resume(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(SettingsError, match="no checkpoint in"):  # here they were deleted: nothing is written over
        train.command.prepare([f"resume={folder}"])
    (folder / "metrics.csv").write_text("run,step,name,value\n0,0,critic/rank,3.0\n0,")
    assert_nothing_was_lost(folder, whole)
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / ".lock").touch()  # killed before the settings were written
    assert run(PENDULUM, folder, StopAfter(0)) == folder


def test_ctrl_c_while_the_package_is_imported_ends_without_a_traceback(tmp_path):
    (tmp_path / "torch.py").write_text("import time; print('importing', flush=True); time.sleep(10_000)")
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "rl_plasticity.train", *PENDULUM, f"out={tmp_path / 'run'}"]
    subprocess.run([*command[:3], "--help"], check=True, stdout=subprocess.DEVNULL)  # keeps what settings there are
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=here) as process:
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGINT)
        output = process.communicate()
    assert process.returncode == -signal.SIGINT  # 130 for a shell
    assert output == (b"", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["torch.py"]


def test_a_journal_that_cannot_be_written_is_no_reason_to_stop(tmp_path):
    folder, limits = RunFolder(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    folder.log.write_text("cut")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
        with Journal(folder) as journal:
            journal.write("finished")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert folder.log.read_text() == "cut"


# --- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["step_000000060.pt", "rows_000000040_000000060.pt"])
def test_a_damaged_checkpoint_is_passed_over_and_the_numbers_are_the_same(name, whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "run")
    path = folder / "checkpoints" / name
    path.write_bytes(path.read_bytes()[:-1])
    assert_nothing_was_lost(folder, whole)
    assert "falling back to step_000000040.pt" in capsys.readouterr().err
    assert load(folder / "checkpoints")["at"] == 60


def test_checkpoints_deleted_while_the_run_writes_are_all_written_again(main, whole, tmp_path):
    folder = tmp_path / "run"
    delete = lambda: shutil.rmtree(folder / "checkpoints")  # noqa: E731
    assert main(*PENDULUM, f"out={folder}", step=50, happens=delete) == (0, "")
    assert_nothing_was_lost(folder, whole)
    assert load(folder / "checkpoints")["at"] == 60


def test_damage_to_rows_that_both_checkpoints_need_is_counted_and_the_run_goes_on_without_them(tmp_path, capsys):
    folder = run(PENDULUM, tmp_path / "run", StopAfter(45))
    (folder / "checkpoints" / "rows_000000020_000000040.pt").write_bytes(b"junk")
    said = "without 40 of the 45 transitions of each run's replay buffer"
    with pytest.raises(SettingsError, match=f"put it back as it was, or go on {said} with allow_lost_rows=true"):
        train.command.prepare([f"resume={folder}"])
    before = (folder / "metrics.csv").read_bytes()
    session, parts = train.command.prepare([f"resume={folder}", "allow_lost_rows=true"])
    assert f"going on from step 45 {said}" in capsys.readouterr().err
    session.stop = StopAfter(5)
    train.command.execute(session, parts)
    assert (parts.buffer.size, parts.buffer.added) == (10, 50)
    assert (folder / "metrics.csv").read_bytes().startswith(before)
    resume(folder)  # nothing is missing any more
    assert load(folder / "checkpoints")["buffer"]["size"] == 20


def test_a_run_goes_on_without_any_of_its_transitions_if_told_to(tmp_path):
    folder = run(PENDULUM, tmp_path / "run", StopAfter(45))
    for path in (folder / "checkpoints").glob("rows_*"):
        path.unlink()
    session, parts = train.command.prepare([f"resume={folder}", "allow_lost_rows=true"])
    session.stop = StopAfter()
    assert train.command.execute(session, parts) == (True, None)
    assert parts.buffer.size == 20  # of the steps 40 to 60


def test_a_checkpoint_of_another_configuration_is_refused_with_the_difference(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("tau: 0.005", "tau: 0.01").replace("batch_size: 16", "batch_size: 17"))
    with pytest.raises(SettingsError, match=r"agent.tau is 0.01, was 0.005; batch_size is 17, was 16$"):
        train.command.prepare([f"resume={folder}"])


def rewritten(folder, change):
    """The run's folder with its newest checkpoint as `change` makes it, its checksum right; the older ones gone."""
    *older, newest = sorted((folder / "checkpoints").glob("step_*.pt"))
    for path in older:
        path.unlink()
    state = torch.load(io.BytesIO(newest.read_bytes()[:-32]), weights_only=True)
    changed = change(state)
    content = io.BytesIO()
    torch.save(state if changed is None else changed, content)
    newest.write_bytes(content.getvalue() + hashlib.sha256(content.getvalue()).digest())
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: [1, 2], "it holds no state"),
        (lambda state: state.update(at="x"), "it holds no state of a run"),
        (lambda state: state.update(chunks=[[0.5, 1]]), "it holds no state of a run"),
        (lambda state: state.pop("sizes") and None, "holds no checkpoint of a run"),
        (lambda state: state["sizes"].update({"timing.csv": "x"}), "holds no checkpoint of a run"),
        (lambda state: state["sizes"].update({"timing.csv": 2**70}), "holds no checkpoint of a run"),
        (lambda state: state.pop("chunks") and None, "holds no checkpoint of a run"),
        (lambda state: state.update(settings=3), "holds no checkpoint of a run"),
        (lambda state: state["settings"].update(seed=torch.zeros(0)), "holds no checkpoint of a run"),
    ],
)
def test_a_checkpoint_that_is_whole_and_of_no_run_is_refused_before_anything_is_written(change, said, whole, tmp_path):
    folder = rewritten(shutil.copytree(whole, tmp_path / "run"), change)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(SettingsError, match=said):
        train.command.prepare([f"resume={folder}"])
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"} == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.pop("agent") and None, "the checkpoint is not of this run: KeyError: 'agent'"),
        (lambda state: state.update(agent=7), "the checkpoint is not of this run: TypeError"),
        (lambda state: state.update(envs={}), "the checkpoint is not of this run: "),
        (lambda state: state["progress"].update(step="x"), "holds no progress of such a run"),
        (lambda state: state["progress"].pop("updates") and None, "holds no progress of such a run"),
        (
            lambda state: state["progress"].update(episode_return=torch.tensor([True])),
            "holds no progress of such a run",
        ),
        (lambda state: state["progress"].update(episode_return=torch.zeros(7).double()), "no progress of such a run"),
        (lambda state: state["buffer"].update(newest_obs=torch.zeros(9, 9)), "cannot resume: a replay buffer of"),
    ],
)
def test_a_checkpoint_with_other_content_than_the_run_s_ends_with_one_line_and_no_number_changed(
    change, said, whole, main, tmp_path
):
    folder = rewritten(shutil.copytree(whole, tmp_path / "run"), change)
    status, line = main(f"resume={folder}")
    assert status == 1
    assert said in line
    for name in ("metrics.csv", "timing.csv", "provenance.json", "config.yaml"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("text", ["{", '{"starts": {}}', "[]", "\0"])
def test_a_damaged_provenance_is_kept_and_the_run_refused_until_it_is_moved_away(text, whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    (folder / "provenance.json").write_text(text)
    with pytest.raises(SettingsError, match=r"provenance.json is damaged; put it back as it was, or move it away"):
        train.command.prepare([f"resume={folder}"])
    assert (folder / "provenance.json").read_text() == text
    (folder / "provenance.json").unlink()
    resume(folder)


def test_a_run_of_the_other_command_is_not_resumed_and_named_as_such(whole):
    with pytest.raises(
        SettingsError, match=r"config.yaml: a run of rl_plasticity.supervised is needed; this is one of "
    ):
        supervised.command.prepare([f"resume={whole}"])


@pytest.mark.parametrize("name", ["a" * 300, "ü" * 200])
def test_a_name_that_no_file_can_have_is_refused_for_a_new_run_and_to_resume(name, tmp_path):
    for argument in (f"out={tmp_path / name}", f"resume={tmp_path / name}"):
        with pytest.raises(SettingsError, match="File name too long"):
            train.command.prepare([*(PENDULUM if argument.startswith("out") else []), argument])
    assert list(tmp_path.iterdir()) == []


# --- the clock ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", [itertools.count(1e9, -60), itertools.cycle([1e9, 4e9, 0])])
def test_a_clock_that_goes_backwards_or_jumps_both_ways_changes_nothing(clock, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: next(clock))
    folder = run(PENDULUM, tmp_path / "run", StopAfter(30))
    assert_nothing_was_lost(folder, whole)


# --- the environment ------------------------------------------------------------------------------------------------


class Broken(gym.Env):
    """Raises in one of its steps."""

    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Box(-1, 1, (1,))
    steps, raises_at, made, closed = itertools.count(), 0, 0, 0

    def __init__(self):
        Broken.made += 1

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        if next(self.steps) == self.raises_at:
            raise KeyError("a bug\nof its author")
        return np.zeros(3, np.float32), 0.0, False, False, {}

    def close(self):
        Broken.closed += 1


@pytest.mark.parametrize(
    ("raises_at", "left"),
    [(4 * PROBE_SIZE + 29, "the last good checkpoint is"), (10, "there is no checkpoint")],
    ids=["in training", "while the frozen transitions are drawn"],
)
def test_an_environment_that_raises_ends_the_run_with_one_line_and_all_are_closed(raises_at, left, main, tmp_path):
    if "BrokenForTests-v0" not in gym.registry:
        gym.register("BrokenForTests-v0", Broken)
    Broken.steps, Broken.raises_at, Broken.made, Broken.closed = itertools.count(), raises_at, 0, 0
    status, said = main(
        *once([*PENDULUM, "env=gym:BrokenForTests-v0", "measure_every_updates=60"]), f"out={tmp_path / 'run'}"
    )
    assert status == 1
    assert "an environment raised KeyError: 'a bug" in said
    assert left in said
    assert Broken.closed == Broken.made >= 2  # of training and of evaluation


def test_a_warning_of_the_package_is_one_line_of_the_command_and_another_s_goes_where_it_went(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train"])

    def act(arguments):
        warnings.simplefilter("always")
        warnings.warn_explicit("the network\nis odd", UserWarning, command_line.__file__, 1)
        warnings.warn_explicit("so is this", UserWarning, "/elsewhere/other.py", 7)

    others = []
    show = lambda message, *rest: others.append(str(message))  # noqa: E731
    monkeypatch.setattr(warnings, "showwarning", show)
    command_line.main("train", lambda _: "", act)
    assert capsys.readouterr().err == "rl_plasticity.train: the network is odd\n"
    assert others == ["so is this"]
    assert warnings.showwarning is show


# --- bad input, whatever it is --------------------------------------------------------------------------------------

FUZZ = int(os.environ.get("FUZZ", 50))  # how many examples
NAMES = ["env", "reg", "reset", "agent", "preset", "resume", "task", "data", "net", "optimizer", "lr", "out", "seed"]
NAMES += ["reg.coef", "reg.scope", "reset.every_updates", "agent.hidden", "env.workers", "env.name", "net.widths"]
NAMES += ["data.root", "data.train_size", "num_tasks", "threads", "device", "reg._target_", "_target_", "hydra.run.dir"]
VALUES = [
    "",
    "null",
    "-1",
    "0",
    "2",
    "1e999",
    "nan",
    "true",
    "x",
    "[",
    "[]",
    "[1,2]",
    "{a:1}",
    "${seed}",
    "${oc.env:X}",
]
VALUES += ["spectral", "swr+l2", "[none,swr]", "periodic", "demo", "cnn", "gym:CartPole-v1", "os.system", "/", "a\0b"]
VALUES += ["random_labels", "binary_pairs", "..", "'", '"', "é", "--help", "!!python/object:os.system", "sgd", "none"]
VALUES += ["[1,[2]]", "'x", "---"]
WORD = st.text(max_size=8)
SETTING = st.tuples(st.sampled_from(NAMES) | WORD, st.sampled_from(VALUES) | WORD).map("=".join)
ARGUMENTS = st.lists(st.one_of(SETTING, st.text(max_size=12)), max_size=3)


@pytest.mark.parametrize("command", [train.command, supervised.command])
def test_no_arguments_whatever_give_anything_but_a_run_or_one_line_and_no_folder(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = ["env=gym:Pendulum-v1"] if command is train.command else DIGITS[:1]

    @settings(max_examples=FUZZ, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(ARGUMENTS)
    def fuzz(arguments):
        said = {re.split("[.=]", a)[0] for a in arguments}
        try:
            session, built = command.prepare([*(a for a in quick if re.split("[.=]", a)[0] not in said), *arguments])
        except SettingsError:
            assert list(tmp_path.iterdir()) == []
        else:
            built.close()
            session.lock.release()
            assert session.folder.config.exists()
            shutil.rmtree(tmp_path / session.folder.path.parts[0])

    fuzz()


SAVED = {kind: schema.dump(schema.load(kind, [])).splitlines() for kind in (Train, Supervised)}
UNSAFE = ["!!python/object/apply:os.system [x]", "\n_target_: os.mkdir", "- 1"]


@settings(max_examples=2 * FUZZ, deadline=None, derandomize=True)
@given(
    st.sampled_from([Train, Supervised]),
    st.integers(0, 50),
    st.booleans(),
    st.one_of(st.text(max_size=20), st.sampled_from([*VALUES, *UNSAFE])),
)
def test_no_saved_settings_whatever_give_anything_but_settings_or_one_line(tmp_path_factory, kind, line, keep, text):
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    lines = list(SAVED[kind])
    line %= len(lines)
    lines[line] = f"{lines[line].partition(':')[0]}: {text}" if keep else text
    path.write_text("\n".join(lines), errors="replace")
    with contextlib.suppress(SettingsError):
        schema.load_saved(kind, RunFolder(path.parent).settings)


def test_settings_cannot_name_a_class_to_be_made(tmp_path):
    for argument in ("_target_=os.system", "reg._target_=os.system", "agent._target_=os.system"):
        with pytest.raises(SettingsError, match="unknown setting"):
            schema.load(Train, ["reg=spectral", argument])
    text = schema.dump(schema.load(Train, ["reg=spectral", f"out={tmp_path / 'run'}"]))
    mark = tmp_path / "made"
    for changed in (
        text.replace("reg:\n", f"reg:\n  _target_: os.mkdir\n  path: {mark}\n"),
        text.replace("name: spectral", f"name: !!python/object/apply:os.mkdir ['{mark}']"),
        text + f"_target_: os.mkdir\npath: {mark}\n",
    ):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_text(changed)
        with pytest.raises(SettingsError):
            train.command.prepare([f"resume={folder}"])
    assert not mark.exists()
