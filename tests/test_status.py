import os
import time
from contextlib import contextmanager

import pytest
from conftest import called
from folders import curve, write_run

from rl_plasticity import command_line, status
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.journal import Journal
from rl_plasticity.runs.lock import locked
from rl_plasticity.runs.state import SILENT
from rl_plasticity.status import HELP, Status, command, table

NOW = time.mktime((2026, 3, 4, 12, 0, 0, 0, 0, -1))
RL = ["env=cheetah-run", "total_env_steps=10000"]


def read(folder):
    return status.read(RunFolder(folder))


def timed(folder, step=2000, **values):
    lines = [f"mean,{step},{name},{value!r}\n" for name, value in values.items()]
    (folder / "timing.csv").write_text("run,step,name,value\nmean,1,seconds_left,1.0\n" + "".join(lines))
    return folder


def said(folder, *events, host="elsewhere"):
    lines = [f"started on {host}, process 1", *events]
    (folder / "log.txt").write_text("".join(f"2026-03-04T12:00:00+0000 {line}\n" for line in lines))
    return folder


@contextmanager
def at_work(folder):
    with locked(RunFolder(folder)):
        Journal(RunFolder(folder)).start()
        yield


@pytest.fixture
def rl(tmp_path):
    return write_run(tmp_path / "run", RL, {"0": curve([5.0, 7.0]) | {"critic/loss": [(2100, 0.5)]}})


def test_a_run_at_work_tells_its_newest_step_its_rate_and_its_end_from_when_it_last_said_so(rl):
    timed(rl, env_steps_done=2000.0, env_steps_left=8000.0, updates_per_second=118.0, seconds_left=600.0)
    os.utime(rl / "timing.csv", (NOW, NOW))
    with at_work(rl):
        found = read(rl)
    assert read(rl).state == "killed"  # without its lock
    assert (found.state, found.done, found.total, found.rate) == ("running", 2100, 10000, 118.0)
    assert found.ends == pytest.approx(NOW + 600)
    assert found.latest == ["return 7"]  # not the loss, which came later
    line = table([found], NOW + 60)[1]
    assert line == f"running  21% of 10,000 env steps  118/s    04 Mar 12:10 (9 min)  {rl}  return 7"


@pytest.mark.parametrize(("age", "state"), [(60, "running"), (SILENT + 60, "killed"), (-3600, "running")])
def test_a_run_of_a_machine_whose_locks_are_not_seen_goes_by_the_age_of_its_files(rl, age, state):
    then = time.time() - age
    for path in said(rl).iterdir():
        os.utime(path, (then, then))
    found = read(rl)
    assert found.state == state
    assert found.ends is None


@pytest.mark.parametrize(("events", "state", "note"), [
    (["finished"], "finished", ""),
    (["stopped"], "stopped", ""),
    (["failed: an action is not finite at env step 3; no checkpoint"], "failed", "an action is not finite at env"),
    (["failed: an action is not finite", "started on elsewhere, process 2", "finished"], "finished", ""),
])  # fmt: skip
def test_the_last_line_of_the_log_decides(rl, events, state, note):
    found = read(said(rl, *events))
    assert (found.state, found.note[: len(note) or 9]) == (state, note)


def test_epochs_of_a_supervised_run_come_from_its_timing_and_its_checkpoints_not_from_its_updates(tmp_path):
    rows = {"0": {"eval/train_accuracy": [(600, 0.25)], "eval/test_accuracy": [(600, 0.125)]}}
    folder = write_run(tmp_path / "run", ["epochs_per_task=100"], rows, "supervised")
    assert (read(folder).done, read(folder).total) == (0, 0)  # the number of tasks is the task's own
    timed(folder, 600, epochs_done=60.0, epochs_left=940.0)
    (folder / "checkpoints").mkdir()
    for name in ("step_000000070.pt", "step_90.pt", "step_²²²²²²²²².pt", "step_best.pt"):
        (folder / "checkpoints" / name).touch()
    found = read(said(folder, "stopped"))
    assert (found.done, found.total, found.unit, found.latest) == (70, 1000, "epochs", ["test accuracy 0.125"])


@pytest.mark.parametrize(("left", "total"), [({"env_steps_left": 3e9}, 5_000_000_000), ({}, 10_000)])
def test_numbers_of_steps_have_no_bound_and_the_setting_is_the_total_where_one_of_them_is_missing(rl, left, total):
    timed(rl, env_steps_done=2e9, seconds_left=1e300, **left)
    with at_work(rl):
        found = read(rl)
    assert (found.done, found.total, found.ends) == (2_000_000_000, total, None)


def test_the_last_return_is_the_mean_over_the_seeds_however_much_was_logged_since(tmp_path):
    rows = {"0": curve([1.0, 10.0]), "1": curve([2.0, 20.0])}
    rows["1"] |= {"critic/loss": [(2000 + i, 0.5) for i in range(10_000)]}
    folder = write_run(tmp_path / "run", RL, rows)
    text = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    text = [text[0], *sorted(text[1:], key=lambda line: int(line.split(",")[1]))]
    (folder / "metrics.csv").write_text("".join(text) + "1,99")  # and a line being written
    assert (folder / "metrics.csv").stat().st_size > 1 << 17
    assert read(folder).latest == ["return 15"]
    assert read(folder).done == 11999


def test_settings_side_by_side_have_a_return_each_and_no_mean_over_them(tmp_path):
    rows = {f"reg.name={reg} seed={seed}": curve([value + seed]) for reg, value in (("none", 1.0), ("swr", 100.0))
            for seed in (0, 2)}  # fmt: skip
    found = read(write_run(tmp_path / "run", RL, rows))
    assert found.latest == ["return reg.name=none 2", "return reg.name=swr 101"]


@pytest.mark.parametrize(("file", "content", "note"), [
    ("config.yaml", b"\xff\xfe\x00", "config.yaml"),
    ("metrics.csv", b"run,step,name,value\n0,x,eval/return,1.0\n", "metrics.csv is damaged"),
    ("timing.csv", b"a\nb,c\nd\n", "timing.csv is damaged"),
    ("config.yaml", None, "cannot read config.yaml: No such file"),
])  # fmt: skip
def test_a_foreign_or_damaged_folder_is_one_line(rl, file, content, note):
    (rl / file).unlink(missing_ok=True)
    if content is not None:
        (rl / file).write_bytes(content)
    found = read(rl)
    assert found.state == "damaged"
    assert note in found.note


def test_control_sequences_in_names_and_notes_are_escaped(rl):
    found = Status(RunFolder(rl.parent / "\x1b[2J"), "failed", 1, 2, "epochs", note="\x1b[1mno")
    assert table([found], NOW)[1].split("  ")[-1].strip() == "\\x1b[1mno"
    assert f"  {rl.parent}/\\x1b[2J  " in table([found], NOW)[1]


def call(*arguments):
    return called(lambda: command_line.main("status", lambda _: HELP, command), *arguments)


def test_what_needs_attention_is_at_the_end_and_the_last_line_counts(tmp_path):
    for name, event in {"a": "failed: no", "b": "finished", "c": "stopped", "d": "finished"}.items():
        said(write_run(tmp_path / "sweep" / name, RL, {"0": curve([1.0])}), event)
    lines = call(tmp_path / "sweep")[1].splitlines()
    runs = [line.split() for line in lines[1:-2]]
    assert [line[0] for line in runs] == ["finished", "finished", "stopped", "failed"]
    assert [next(word for word in line if "/" in word)[-1] for line in runs] == ["b", "d", "c", "a"]
    assert runs[-1][-1] == "no"
    assert lines[-1] == "4 runs: 2 finished, 1 stopped, 1 failed"
    assert call(tmp_path / "sw*" / "[ab]")[1].splitlines()[-1] == "2 runs: 1 finished, 1 failed"
    nothing = tmp_path / "nothing"
    assert call(nothing) == (2, "", f"rl_plasticity.status: there is no folder {nothing}\n")
    assert call(tmp_path, "every=3")[2].startswith("rl_plasticity.status: status every was removed")
