import os
import signal

import pytest

from rl_plasticity.runs import journal as log
from rl_plasticity.runs.journal import Log


def test_a_run_holds_its_folder_until_it_is_killed_and_the_log_still_says_started(tmp_path):
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        log.hold(tmp_path)
        held = Log(tmp_path)
        os.write(done, b"!")
        signal.pause()
        held.say("unreachable")
    os.read(ready, 1)
    assert log.is_held(tmp_path)
    assert log.is_held(tmp_path)  # asking takes nothing away
    with pytest.raises(BlockingIOError, match=f"process {child} on "):
        log.hold(tmp_path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not log.is_held(tmp_path)
    entry = log.last(tmp_path)
    assert (entry.word, entry.text.endswith(f", process {child}")) == ("started", True)


def test_a_reason_of_several_lines_is_kept_in_one(tmp_path):
    with Log(tmp_path) as kept:
        kept.say("failed: disk\nfull: really")
    assert log.last(tmp_path) == ("failed", "disk full: really")
    assert len((tmp_path / log.NAME).read_text().splitlines()) == 2


def test_a_line_being_written_does_not_count_and_a_cut_one_does_not_swallow_the_next_start(tmp_path):
    with Log(tmp_path) as kept:
        kept.say("stopped")
    with (tmp_path / log.NAME).open("a") as file:
        file.write("2026-01-01T00:00:00+0000 fai")
    assert log.last(tmp_path) == ("stopped", "")
    with Log(tmp_path):
        pass
    assert log.last(tmp_path).word == "started"
    assert "stopped" in (tmp_path / log.NAME).read_text()  # nothing is overwritten


def test_a_log_that_cannot_be_written_stops_no_run(tmp_path):
    with Log(tmp_path / "missing") as kept:
        kept.say("finished")
    assert log.last(tmp_path / "missing") is None
    assert not log.is_held(tmp_path / "missing")
