"""Faults of the machine, of the files and of the user: one line each, and nothing lost."""

import contextlib
import itertools
import os
import re
import resource
import shutil
import subprocess
import sys
import threading

import folders
import gymnasium as gym
import numpy as np
import pytest
from conftest import StopAfter, called, files, once, refused
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

PENDULUM = [*folders.PENDULUM, "checkpoint_every_env_steps=10", "log_every_updates=5"]
PENDULUM = once([*PENDULUM, "random_env_steps=10", "total_env_steps=30"])
DIGITS = ["data.train_size=100", "net.widths=[8]", "epochs_per_task=2", "num_tasks=2", "device=cpu", "threads=1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(PENDULUM, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def main(monkeypatch):
    """The RL command as a process runs it, with something that happens at a step; its status and what it says."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # put back at the end

    def call(*arguments, step=None, happens=lambda: None):
        class Happens(StopAfter):
            def __init__(self):
                super().__init__(step)

            @property
            def received(self):
                if super().received == 0 and self.left == 0:
                    happens()
                return 0

        monkeypatch.setattr("rl_plasticity.runs.session.StopSignal", Happens)
        status, _, said = called(lambda: command_line.train(train.command), *arguments)
        assert "Traceback" not in said
        return status, "".join(line for line in said.splitlines() if line.startswith("rl_plasticity."))

    return call


def assert_nothing_was_lost(folder, whole):
    """Going on from the last checkpoint gives the numbers of a run that was never stopped."""
    resume(folder)
    assert (folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


@contextlib.contextmanager
def machine_as_before(folder):
    """The limits and the user of this process, and the rights of a run's folder, are put back."""
    limits = {number: resource.getrlimit(number) for number in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)}
    user = os.geteuid()
    try:
        yield
    finally:
        for number, limit in limits.items():
            resource.setrlimit(number, limit)
        os.seteuid(user)
        (folder / "checkpoints").chmod(0o755)


def limit(number, value):
    return lambda folder: resource.setrlimit(number, (value, resource.getrlimit(number)[1]))


def forbid(folder):
    if os.geteuid() == 0:
        os.seteuid(65534)
    else:
        (folder / "checkpoints").chmod(0o555)


FAULTS = {  # a limit of each file instead of the disk's
    "full disk": (limit(resource.RLIMIT_FSIZE, 2000), ["File too large", "last good checkpoint", "step_000000010.pt"]),
    "open files": (limit(resource.RLIMIT_NOFILE, 3), ["Too many open files", "checkpoints"]),
    "read only": (forbid, ["Permission denied"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_machine_ends_the_run_with_one_line_and_loses_nothing(fault, main, whole, tmp_path):
    folder = tmp_path / "run"
    happens, names = FAULTS[fault]
    with machine_as_before(folder):
        status, said = main(*PENDULUM, f"out={folder}", step=15, happens=lambda: happens(folder))
    assert (status, said.count("rl_plasticity.train: ")) == (1, 1)
    assert [name for name in names if name not in said] == [], said
    assert_nothing_was_lost(folder, whole)


def test_a_folder_that_is_deleted_is_not_brought_back_and_one_that_is_renamed_goes_on_under_its_new_name(
    main, whole, tmp_path
):
    folder, renamed = tmp_path / "run", tmp_path / "renamed"

    def rename():
        folder.rename(renamed)
        folder.mkdir()  # somebody else's by now
        (folder / "metrics.csv").touch()

    for happens in (lambda: shutil.rmtree(folder), rename):
        assert not folder.exists()
        status, said = main(*PENDULUM, f"out={folder}", step=15, happens=happens)
        assert status == 1
        assert re.search("moved or deleted|No such file", said)
    assert (folder / "metrics.csv").read_bytes() == b""
    assert_nothing_was_lost(renamed, whole)


@pytest.mark.parametrize("name", ["metrics.csv", "timing.csv"])
def test_rows_that_are_not_those_of_the_checkpoint_are_refused_and_nothing_is_touched(name, whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    path = folder / name
    content = path.read_bytes()
    for damaged in (content[:-1], content[:-4] + b"9.9\n", content.split(b"\n")[0] + b"\n", None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        before = files(folder)
        refused(lambda: train.command.prepare([f"resume={folder}"]), str(path))
        assert files(folder) == before
    path.write_bytes(content + b"0,70,half a ro")  # written after the checkpoint: it comes again
    train.command.prepare([f"resume={folder}"])


HOLDER = "import filelock, sys; lock = filelock.FileLock(sys.argv[1]); lock.acquire(timeout=0); "
HOLDER += "print('held', flush=True); "


def test_a_second_process_on_one_folder_refuses_until_the_first_is_gone_even_killed(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    arguments = [sys.executable, "-c", HOLDER + "sys.stdin.read()", folder / ".lock"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        refused(lambda: train.command.prepare([f"resume={folder}"]), str(folder), "another process")
        other.kill()
        other.wait()
    train.command.prepare([f"resume={folder}"])  # now this process has it
    assert subprocess.run([*arguments[:2], HOLDER, folder / ".lock"], capture_output=True).stdout == b""


def test_a_run_killed_before_its_first_checkpoint_starts_again_on_resume(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints")
    refused(lambda: train.command.prepare([f"resume={folder}"]), match="checkpoint")
    (folder / "metrics.csv").write_text("run,step,name,value\n0,0,critic/rank,3.0\n0,")
    assert_nothing_was_lost(folder, whole)
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / ".lock").touch()  # killed before the settings were written
    assert run(PENDULUM, folder, StopAfter(0)) == folder


@pytest.mark.parametrize("name", ["step_000000030.pt", "rows_000000020_000000030.pt"])
def test_a_damaged_checkpoint_is_passed_over_and_the_numbers_are_the_same(name, whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "run")
    path = folder / "checkpoints" / name
    path.write_bytes(path.read_bytes()[:-1])
    assert_nothing_was_lost(folder, whole)
    assert "step_000000020.pt" in capsys.readouterr().err
    assert load(folder / "checkpoints")["at"] == 30


def test_a_checkpoint_of_another_configuration_is_refused_with_the_difference(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("tau: 0.005", "tau: 0.01").replace("batch_size: 16", "batch_size: 17"))
    names = ["agent.tau is 0.01, was 0.005", "batch_size is 17, was 16"]
    refused(lambda: train.command.prepare([f"resume={folder}"]), *names)


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


# In training, and while the frozen transitions are drawn.
@pytest.mark.parametrize(("raises_at", "left"), [(4 * PROBE_SIZE + 19, "step_0"), (10, "there is no checkpoint")])
def test_an_environment_that_raises_ends_the_run_with_one_line_and_all_are_closed(raises_at, left, main, tmp_path):
    if "BrokenForTests-v0" not in gym.registry:
        gym.register("BrokenForTests-v0", Broken)
    Broken.steps, Broken.raises_at, Broken.made, Broken.closed = itertools.count(), raises_at, 0, 0
    broken = ["env=gym:BrokenForTests-v0", "env.action_repeat=1", "measure_every_updates=60"]
    status, said = main(*once([*PENDULUM, *broken, f"out={tmp_path / 'run'}"]))
    assert status == 1
    assert "an environment raised KeyError: 'a bug" in said
    assert left in said
    assert Broken.closed == Broken.made > 0


FUZZ = int(os.environ.get("FUZZ", 30))  # how many examples
NAMES = ["env", "reg", "reset", "agent", "preset", "resume", "task", "data", "net", "optimizer", "lr", "out", "seed"]
NAMES += ["reg.coef", "reg.scope", "reset.every_updates", "agent.hidden", "env.workers", "env.name", "net.widths"]
NAMES += ["data.root", "data.train_size", "num_tasks", "threads", "device", "reg._target_", "_target_", "hydra.run.dir"]
VALUES = ["", "null", "-1", "0", "2", "1e999", "nan", "true", "[", "[]", "[1,2]", "{a:1}", "${seed}", "${oc.env:X}"]
VALUES += ["spectral", "swr+l2", "[none,swr]", "periodic", "demo", "cnn", "gym:CartPole-v1", "os.system", "/", "a\0b"]
VALUES += ["random_labels", "binary_pairs", "..", "'", '"', "é", "--help", "!!python/object:os.system", "sgd", "none"]
VALUES += ["[1,[2]]", "'x", "---", "x"]
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
