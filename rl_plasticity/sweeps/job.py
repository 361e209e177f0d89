"""One run of a sweep, as a process of its own with the command that a user would give.

A run that dies ends nothing else. Its outcome is a line in a file, because engines lose return values together with
the worker that had them.
"""

import ctypes
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_plasticity import plugins
from rl_plasticity.errors import one_line
from rl_plasticity.runs.files import write_text
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.journal import last_entry

POLL_S = 0.5
SIGNALLED_S = 120  # after its signal, Slurm kills the job or queues it again within this time

_running: dict["Job", subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Job:
    """One run of a sweep. A call trains to the end, from the newest checkpoint if there is one, and never raises.

    Args:
        command: train or supervised.
        arguments: of the run.
        folder: of the run, absolute.
        sweep: a folder for the log, the outcome and the file ``stop`` that stops all runs, on a file system that every
            node sees.
        threads: number of threads of torch; None: its own choice.
        plugins: the modules that the sweep loaded. A resumed run needs them, because saved settings name none.
    """

    command: str
    arguments: tuple[str, ...]
    folder: Path
    sweep: Path
    cwd: Path
    threads: int | None = None
    plugins: tuple[str, ...] = ()

    @property
    def log(self) -> Path:
        return self.sweep / f"{self.folder.name}.log"

    @property
    def outcome(self) -> str | None:
        """The outcome: "succeeded", "stopped: ..." or "failed: ..."; None until the run has ended."""
        try:
            return self._outcome.read_text()
        except OSError:
            return None

    @property
    def _outcome(self) -> Path:
        return self.sweep / f"{self.folder.name}.outcome"

    def end(self, outcome: str) -> None:
        """Print and record the outcome."""
        print(f"{self.folder.name}: {outcome}", flush=True)
        with suppress(OSError):
            write_text(self._outcome, outcome)

    def checkpoint(self) -> Any:
        """The job that submitit queues at the time limit: the same one, which continues from its checkpoint.

        The run saves first. To queue a job again ends it with a signal to all its processes, and a second signal kills
        a run.
        """
        import submitit

        if run := _running.get(self):
            run.terminate()
            with suppress(subprocess.TimeoutExpired):
                run.wait(SIGNALLED_S)
        return submitit.helpers.DelayedSubmission(self)

    def __call__(self) -> None:
        if (self.sweep / "stop").exists():
            return self.end("stopped: before it started")
        try:
            self.end(self._run())
        except OSError as error:
            self.end(f"failed: {error}")

    def _run(self) -> str:
        if finished(self.folder):  # it made its last step when Slurm told it to save
            return "succeeded"
        arguments = [*self.arguments, f"out={self.folder}"]
        if RunFolder(self.folder).config.exists():
            arguments = [*plugins.as_arguments(self.plugins), f"resume={self.folder}"]
        environment = dict(os.environ)
        if self.threads:
            environment["OMP_NUM_THREADS"] = str(self.threads)
        with self.log.open("ab") as log:
            start = log.tell()
            # Before the time limit, Slurm sends its signal to every process. The run inherits that it is blocked.
            # The worker receives it, and tells the run by SIGTERM to save.
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
            try:
                run = subprocess.Popen(
                    [sys.executable, "-m", __spec__.name, str(os.getpid()), self.command, *arguments],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.cwd,
                    start_new_session=True,  # Ctrl-C reaches the sweep alone, which tells its runs
                )  # fmt: skip
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            asked = False
            _running[self] = run
            try:
                while run.poll() is None:
                    if not asked and (asked := (self.sweep / "stop").exists()):
                        run.terminate()
                    time.sleep(POLL_S)
            finally:
                del _running[self]
                if run.poll() is None:  # this worker ends
                    run.terminate()
                    run.wait()
        if run.returncode == 0 or finished(self.folder):  # a signal may come after the last step
            return "succeeded"
        reason = last_line(self.log, start)
        if run.returncode < 0:
            guess = " (out of memory?)" if -run.returncode == signal.SIGKILL else ""
            return f"failed: killed by {signal.Signals(-run.returncode).name}{guess}; {reason}"
        if run.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM):
            if not asked and "SLURM_JOB_ID" in os.environ:
                time.sleep(SIGNALLED_S)  # Slurm ends this job, and decides whether to queue it again
            return f"stopped: {reason}"
        return f"failed: {reason}"


def finished(folder: Path) -> bool:
    """Whether the run in the folder has made all its steps, whoever started it."""
    entry = last_entry(RunFolder(folder))
    return entry is not None and entry.word == "finished"


def last_line(log: Path, start: int) -> str:
    """The last line in a run's log from byte `start` on: a line of the command if there is one, else any line."""
    with log.open("rb") as file:
        file.seek(start)
        text = re.sub(r"[^\n]*\r", "", file.read().decode(errors="replace"))  # progress bars
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    of_command = [line for line in lines if re.match(r"rl_plasticity\.\w+: ", line)]
    return one_line((of_command or lines or ["it printed nothing"])[-1])


if __name__ == "__main__":  # PARENT COMMAND ARGUMENT...: the command, which dies with the process that waits for it
    parent, name, *arguments = sys.argv[1:]
    if sys.platform == "linux":  # else a worker that is killed would leave its run, and another one start it again
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != int(parent):
            sys.exit("the process that waits for this run is gone")
    sys.argv[1:] = arguments
    runpy.run_module(f"rl_plasticity.{name}", run_name="__main__", alter_sys=True)
