import os
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from conftest import alive, wait_for

from rl_plasticity.sweeps import job as jobs_module
from rl_plasticity.sweeps import launchers
from rl_plasticity.sweeps.job import Job
from rl_plasticity.sweeps.launchers import Basic, Joblib, load


@pytest.fixture
def a_job(tmp_path, monkeypatch):
    """Makes a job whose run is a shell script instead of this package; ``$4`` on are its arguments."""
    (tmp_path / "sweep").mkdir()

    monkeypatch.setattr(jobs_module, "POLL_S", 0.02)

    def make(script, shell="/bin/sh", **given):
        program = tmp_path / "program"
        program.write_text(f"#!{shell}\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        settings = {"folder": tmp_path / "out", "sweep": tmp_path / "sweep", "cwd": tmp_path} | given
        return Job("train", ("reg=swr", "seed=1"), **settings)

    return make


def sleeping(monkeypatch, module, sleep):
    """`sleep` in the place of time.sleep, for one module alone."""
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))


OUT = 'for last; do :; done; folder="${last#*=}"; mkdir -p "$folder"'


def test_a_run_gets_its_arguments_is_resumed_if_it_has_begun_and_not_started_if_it_ended(a_job, tmp_path):
    job = a_job(f'{OUT}; echo "$@" $OMP_NUM_THREADS > arguments', threads=3)
    job()
    words = ["-m", "rl_plasticity.sweeps.job", str(os.getpid()), "train"]
    assert (tmp_path / "arguments").read_text().split() == [*words, "reg=swr", "seed=1", f"out={job.folder}", "3"]
    assert job.outcome == "succeeded"
    (job.folder / "config.yaml").touch()
    job = a_job('echo "$@" > arguments')
    job()
    assert (tmp_path / "arguments").read_text().split() == [*words, f"resume={job.folder}"]
    (job.folder / "log.txt").write_text("now started\nthen finished\n")
    job = a_job("exit 1")
    job()
    assert job.outcome == "succeeded"


@pytest.mark.parametrize(("script", "outcome"), [
    ("echo rl_plasticity.train: the loss is not finite >&2; echo later >&2; exit 1",
     "failed: rl_plasticity.train: the loss is not finite"),
    (r"printf ' 3%%|#  |\r 9%%|## |\rValueError: bad\n'; exit 1", "failed: ValueError: bad"),
    ("echo at work; kill -KILL $$", "failed: killed by SIGKILL (out of memory?); at work"),
    ("echo at work; kill -TERM $$", "failed: killed by SIGTERM; at work"),
    ("mkdir out; echo 'then finished' > out/log.txt; kill -TERM $$", "succeeded"),
    ("echo continue with resume=x; exit 143", "stopped: continue with resume=x"),
])  # fmt: skip
def test_the_outcome_says_in_a_line_what_became_of_the_run(script, outcome, a_job):
    job = a_job(script)
    assert job.outcome is None
    job()
    assert job.outcome == outcome


def test_the_reason_is_of_this_attempt_not_of_an_earlier_one(a_job):
    a_job("echo rl_plasticity.train: old; exit 1")()
    job = a_job("exit 1")
    job()
    assert job.outcome == "failed: it printed nothing"


def test_a_job_that_cannot_write_has_failed_and_raises_nothing(a_job, tmp_path, capsys):
    a_job("exit 0", sweep=tmp_path / "nowhere")()
    assert "out: failed: [Errno 2]" in capsys.readouterr().out


def test_the_stop_file_makes_a_run_save_and_no_other_start(a_job):
    job = a_job("trap 'echo saved; exit 143' TERM; touch started; while :; do sleep 0.1; done")
    stop = subprocess.Popen(["sh", "-c", "while ! [ -e started ]; do sleep 0.05; done; touch sweep/stop"], cwd=job.cwd)
    job()
    stop.wait()
    assert job.outcome == "stopped: saved"
    job()
    assert job.outcome == "stopped: before it started"


def test_the_signal_before_slurm_s_time_limit_does_not_kill_the_run_itself(a_job):
    job = a_job("import os; os.kill(os.getpid(), 12); print('alive'); os._exit(1)", shell=f"{sys.executable} -u")
    job()
    assert job.outcome == "failed: alive"


SAVES = "trap 'sleep 0.2; echo once >> saved; exit 143' TERM; touch started; while :; do sleep 0.1; done"


@pytest.mark.parametrize("is_queued_again", [True, False])
def test_a_run_saves_once_before_it_is_queued_again_or_its_worker_ends(is_queued_again, a_job, monkeypatch):
    helpers = SimpleNamespace(DelayedSubmission=lambda job: ("again", job, (job.cwd / "saved").read_text()))
    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(helpers=helpers))
    job = a_job(SAVES)
    queued = []

    def end_once_started(seconds):
        if (job.cwd / "started").exists() and not queued:
            queued.append(job.checkpoint() if is_queued_again else None)
            sys.exit(-1)  # as submitit does in its signal handler

    sleeping(monkeypatch, jobs_module, end_once_started)
    with pytest.raises(SystemExit):
        job()
    assert queued == [("again", job, "once\n") if is_queued_again else None]
    assert (job.cwd / "saved").read_text() == "once\n"
    assert job.outcome is None


COMMAND_THAT_WAITS = """
import os, runpy, time
start = runpy.run_module
def command(name, **_):
    print(name, os.getpid(), flush=True)
    time.sleep(10_000)
runpy.run_module = command
start("rl_plasticity.sweeps.job", run_name="__main__")
"""


def test_a_run_dies_with_the_process_that_waits_for_it():
    command = [sys.executable, "-c", COMMAND_THAT_WAITS]
    waiting = subprocess.Popen(["sh", "-c", '"$@" $$ train & wait', "sh", *command], stdout=subprocess.PIPE, text=True)
    name, run = waiting.stdout.readline().split()
    assert name == "rl_plasticity.train"
    waiting.kill()
    waiting.wait()
    waiting.stdout.close()
    wait_for(lambda: not alive(int(run)))


def test_launchers_have_defaults_and_typed_settings_and_runs_as_many_threads_as_cores(monkeypatch):
    for library in ("submitit", "ray"):
        monkeypatch.setitem(sys.modules, library, SimpleNamespace())
    assert load([]) == Basic()
    assert load(["launcher=joblib"]) == Joblib(n_jobs=-1)
    slurm = load(["launcher=slurm", "launcher.timeout_min=5", "launcher.additional_parameters=[nice=5]"])
    assert (slurm.timeout_min, slurm.additional_parameters) == (5, ["nice=5"])
    assert load(["launcher=slurm", "launcher.cpus_per_task=6"]).threads(9) == 6
    assert load(["launcher=ray", "launcher.num_cpus=0.5"]).threads(9) == 1


@pytest.mark.parametrize(("n_jobs", "jobs", "threads"), [(4, 9, 2), (3, 9, 3), (-1, 9, 1), (-1, 2, 5), (100, 100, 1)])
def test_runs_share_the_cores_of_the_machine(n_jobs, jobs, threads, monkeypatch):
    import joblib

    monkeypatch.setattr(joblib, "cpu_count", lambda: 10)
    monkeypatch.setattr(joblib, "effective_n_jobs", lambda n: 10 if n == -1 else n)
    assert Joblib(n_jobs).threads(jobs) == threads


class FakeExecutor:
    """Submits nothing; the jobs numbered 0 write their outcome at once."""

    def __init__(self, *_, **__):
        self.submitted = []

    def update_parameters(self, **given):
        FakeExecutor.given = given

    def batch(self):
        return nullcontext()

    def submit(self, job):
        self.submitted.append(job)
        if len(self.submitted) == 1:
            job.end("succeeded")
        return SimpleNamespace(job_id=f"7_{len(self.submitted) - 1}")


def test_a_job_that_slurm_loses_has_failed_and_the_others_are_waited_for(a_job, monkeypatch, tmp_path):
    for name, printed in (("sbatch", ""), ("squeue", "7_2")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{printed}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(AutoExecutor=FakeExecutor))
    monkeypatch.setattr(launchers, "LOST_S", 0)
    monkeypatch.setattr(launchers, "SLURM_POLL_S", 0.01)
    jobs = [a_job("", folder=a_job("").folder / str(i)) for i in range(3)]
    polls = iter(range(5))
    sleeping(monkeypatch, launchers, lambda _: next(polls) == 4 and jobs[2].end("succeeded"))
    load(["launcher=slurm", "launcher.mem_gb=3", "launcher.additional_parameters=[nice=5]"]).launch(jobs)
    assert [job.outcome for job in jobs][::2] == ["succeeded", "succeeded"]
    assert "Slurm job 7_1 left the queue" in jobs[1].outcome
    assert (FakeExecutor.given["mem_gb"], FakeExecutor.given["slurm_signal_delay_s"]) == (3, 120)
    assert FakeExecutor.given["slurm_additional_parameters"] == {"requeue": True, "nice": "5"}
    assert "slurm_partition" not in FakeExecutor.given
