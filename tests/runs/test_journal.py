import os
import re
import resource
import signal
import subprocess
import sys
import time

import pytest
from filelock import Timeout

from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.journal import Journal, last_entry
from rl_plasticity.runs.lock import is_held, locked


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path)


def test_a_run_holds_its_folder_until_it_is_killed_and_the_journal_still_says_started(run):
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        lock = locked(run)
        journal = Journal(run)
        journal.start()
        os.write(done, b"!")
        signal.pause()
        lock.release()
        journal.write("unreachable")
    os.read(ready, 1)
    assert is_held(run)
    assert is_held(run)  # asking takes nothing away
    with pytest.raises(Timeout):
        locked(run)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not is_held(run)
    entry = last_entry(run)
    assert (entry.word, entry.text.endswith(f", process {child}")) == ("started", True)


def test_a_reason_of_several_lines_is_kept_in_one(run):
    Journal(run).write("failed: disk\nfull: really")
    assert last_entry(run) == ("failed", "disk full: really")
    assert len(run.log.read_text().splitlines()) == 1


def test_a_line_being_written_does_not_count_and_a_cut_one_does_not_swallow_the_next_start(run):
    Journal(run).write("stopped")
    with run.log.open("a") as file:
        file.write("2026-01-01T00:00:00+0000 fai")
    assert last_entry(run) == ("stopped", "")
    Journal(run).start()
    assert last_entry(run).word == "started"
    assert "stopped" in run.log.read_text()  # nothing is overwritten


def test_a_journal_that_cannot_be_written_stops_no_run(run):
    missing = RunFolder(run.path / "missing")
    Journal(missing).write("finished")
    assert last_entry(missing) is None
    assert not is_held(missing)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    run.log.write_text("cut")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))  # the disk is full
        Journal(run).write("finished")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert run.log.read_text() == "cut"


def test_the_end_of_a_run_says_its_cpu_time_and_that_of_processes_it_waited_for_but_no_other_time(run):
    before = sum(os.times()[:4])
    journal = Journal(run)
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    time.sleep(0.5)
    journal.end("finished")
    most = sum(os.times()[:4]) - before
    assert last_entry(run) == ("finished", "")
    [used] = re.findall(r"\S+ used (\S+) CPU seconds\n", run.log.read_text())
    assert 0.45 < float(used) < most + 0.1  # of the half second asleep nothing
