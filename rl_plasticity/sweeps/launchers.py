"""Launchers of a sweep's runs: one after another, on this machine's cores, with Slurm or with Ray.

The engines schedule the runs. The launchers only call them.
"""

import getpass
import importlib
import logging
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from rl_plasticity.configs import written
from rl_plasticity.configs.gone import unknown
from rl_plasticity.errors import SettingsError
from rl_plasticity.settings import Setting, settings_of
from rl_plasticity.sweeps.job import Job

SLURM_POLL_S = 5
LOST_S = 60  # a job that is not in the queue and has no outcome is lost after this time: new files may appear late


@dataclass
class Basic:
    """Runs one after another."""

    def threads(self, jobs: int) -> int | None:
        """Number of threads of each of this number of runs."""
        return None

    def launch(self, jobs: Sequence[Job]) -> None:
        """Make all runs; return when all have ended."""
        for job in jobs:
            job()


@dataclass
class Joblib:
    """Runs on the cores of this machine, and on its GPU if it has one."""

    n_jobs: Annotated[
        int, Setting("runs at a time; -1: one per core, -2: one less. Each gets cores // n_jobs threads")
    ] = -1

    def threads(self, jobs: int) -> int | None:
        import joblib

        if not self.n_jobs:
            raise SettingsError("launcher.n_jobs must be an integer other than 0, got 0")
        return max(1, int(joblib.cpu_count()) // min(int(joblib.effective_n_jobs(self.n_jobs)), jobs))

    def launch(self, jobs: Sequence[Job]) -> None:
        import joblib

        # Threads, because each only waits for its run. One job at a time, so that no thread takes several in advance.
        joblib.Parallel(self.n_jobs, require="sharedmem", batch_size=1)(joblib.delayed(job)() for job in jobs)


@dataclass
class Slurm:
    """An array of Slurm jobs, through submitit. A run that meets the time limit saves, queues again and goes on."""

    timeout_min: Annotated[int, Setting("time limit of each job in minutes", least=1)] = 1440
    signal_delay_s: Annotated[int, Setting("seconds before the time limit when a run is told to save", least=1)] = 120
    max_num_timeout: Annotated[int, Setting("how often a run may reach the time limit and queue again", least=0)] = 1000
    array_parallelism: Annotated[int, Setting("jobs that run at the same time", least=1)] = 256
    cpus_per_task: Annotated[int, Setting("cores, and threads, of each run", least=1)] = 1
    gpus_per_node: Annotated[int | None, Setting("number of GPUs of each run", least=1)] = None
    gres: Annotated[str | None, Setting("part of a GPU, such as shard:1, if Slurm is set up for it")] = None
    mem_gb: Annotated[int | None, Setting("memory of each run in GB", least=1)] = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    setup: Annotated[Sequence[str] | None, Setting('shell lines to run first, such as ["module load cuda"]')] = None
    additional_parameters: Annotated[Sequence[str], Setting("other options of sbatch, such as [nice=5]")] = ()

    def threads(self, jobs: int) -> int | None:
        _extra("submitit", "slurm")
        return self.cpus_per_task

    def launch(self, jobs: Sequence[Job]) -> None:
        import submitit

        # Parameters that submitit has for every cluster have no prefix.
        common = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb")
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        timeouts = given.pop("max_num_timeout")
        more = dict(parameter.partition("=")[::2] for parameter in given.pop("additional_parameters"))
        given["additional_parameters"] = {"requeue": True, **more}
        sweep = jobs[0].sweep
        try:
            executor = submitit.AutoExecutor(sweep / "slurm", cluster="slurm", slurm_max_num_timeout=timeouts)
            executor.update_parameters(
                name="rl_plasticity", **{k if k in common else f"slurm_{k}": v for k, v in given.items()}
            )
            with executor.batch():
                submitted = [executor.submit(job) for job in jobs]
        except RuntimeError as error:  # there is no sbatch, or it refused
            for job in jobs:
                job.end(f"failed: {' '.join(str(error).split())}")
            return
        ids = {job: queued.job_id for job, queued in zip(jobs, submitted, strict=True)}
        print(f"queued as Slurm job {ids[jobs[0]].partition('_')[0]}", flush=True)
        last_seen = dict.fromkeys(jobs, time.monotonic())
        cancelled = False
        while waiting := [job for job in jobs if job.outcome is None]:
            time.sleep(SLURM_POLL_S)
            queue = _slurm("squeue", "-h", "-r", "-o", "%i", "-u", getpass.getuser())
            if (sweep / "stop").exists() and not cancelled:
                cancelled = _slurm("scancel", "--state=PENDING", *(ids[job] for job in waiting)) is not None
            if queue is None:
                continue  # the controller does not answer at the moment
            for job in waiting:
                if job.outcome is not None:
                    continue
                if ids[job] in queue.split():
                    last_seen[job] = time.monotonic()
                elif cancelled:
                    job.end("stopped: taken out of the queue")
                elif time.monotonic() - last_seen[job] > LOST_S:
                    job.end(
                        f"failed: Slurm job {ids[job]} left the queue without reporting anything; see {sweep / 'slurm'}"
                    )


@dataclass
class Ray:
    """A Ray cluster. A run whose node dies continues on another one."""

    address: Annotated[
        str | None, Setting("Ray cluster; null: this machine; auto or HOST:PORT: one that is running")
    ] = None
    num_cpus: Annotated[float, Setting("cores, and threads, of each run", least=0)] = 1.0
    num_gpus: Annotated[float, Setting("GPUs of each run; with 0.25, four runs share one", least=0)] = 0.0

    def threads(self, jobs: int) -> int | None:
        _extra("ray", "ray")
        return max(1, int(self.num_cpus))

    def launch(self, jobs: Sequence[Job]) -> None:
        ray = _extra("ray", "ray")
        if not ray.is_initialized():
            try:
                ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise SettingsError(f"launcher.address={self.address}: {str(error).splitlines()[0]}") from error
        # Ray retries without limit when a node or a worker dies, and the run continues from its checkpoint.
        call = ray.remote(num_cpus=self.num_cpus, num_gpus=self.num_gpus, max_retries=-1)(_call)
        left = {call.options(name=job.folder.name).remote(job): job for job in jobs}
        while left:
            (ended, *_), _ = ray.wait(list(left))
            job = left.pop(ended)
            try:
                ray.get(ended)
            except ray.exceptions.RayError as error:
                job.end(f"failed: {str(error).splitlines()[0]}")
            else:
                print(f"{job.folder.name}: {job.outcome}", flush=True)
        ray.shutdown()


Launcher = Basic | Joblib | Slurm | Ray
LAUNCHERS: dict[str, type[Launcher]] = {"basic": Basic, "joblib": Joblib, "slurm": Slurm, "ray": Ray}


def apart(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide arguments into those of runs and those of the launcher, ``launcher=NAME launcher.SETTING=VALUE``."""
    of_launcher = [a for a in arguments if a.startswith(("launcher=", "launcher."))]
    return [a for a in arguments if a not in of_launcher], of_launcher


def load(arguments: Sequence[str]) -> Launcher:
    """The launcher that ``launcher=NAME launcher.SETTING=VALUE`` choose.

    Raises:
        SettingsError: one line that says what is wrong, what was expected and the nearest valid name.
    """
    given = written.by_name(arguments)
    name = given.pop("launcher", "basic")
    if name not in LAUNCHERS:
        raise unknown("launcher", name, LAUNCHERS)
    launcher = LAUNCHERS[name]
    declared = {f"launcher.{setting}": one for setting, one in settings_of(launcher).items()}
    settings: dict[str, Any] = {}
    for key, value in given.items():
        if key not in declared:
            raise unknown("setting", key, declared)
        settings[key.removeprefix("launcher.")] = declared[key].checked(key, value)
    return launcher(**settings)


def _extra(library: str, launcher: str) -> Any:
    """A library that an extra installs; asked for before a sweep writes anything."""
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        raise SettingsError(f'launcher={launcher} needs {library}: pip install "rl_plasticity[{launcher}]"') from error


def _slurm(*command: str) -> str | None:
    """The output of a command; None if it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _call(job: Job) -> None:
    job()
