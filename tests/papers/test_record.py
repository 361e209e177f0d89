import json
import math

import pytest
from folders import write_run

from papers import record
from papers import study as studies
from papers.record import hours
from rl_plasticity.runs.folder import RunFolder

START = {
    "time": "2026-11-22T10:00:00+0000", "rl_plasticity": "0.1.0", "commit": "abc", "python": "3.11", "plugins": [],
    "libraries": {"torch": "2"}, "processor": "P", "cores": 2, "device": "cpu", "threads": 1, "platform": "L",
}  # fmt: skip


def written(tmp_path, *provenances, used=()):
    """The record of a study whose runs have these starts, each an hour long."""
    folders = {}
    for n, (method, arguments) in enumerate(
        {"none": [], "L2": ["reg=l2"], "L2 strong": ["reg=l2", "reg.coef=1"]}.items()
    ):
        folder = write_run(tmp_path / str(n), [*arguments, "batch_size=7"], {0: {}})
        if n < len(provenances):
            text = provenances[n] if isinstance(provenances[n], str) else json.dumps({"starts": provenances[n]})
            (folder / "provenance.json").write_text(text)
            lines = ["10:00:00+0000 started", *used, "11:00:00+0000 finished"]
            (folder / "log.txt").write_text("".join(f"2026-11-22T{line}\n" for line in lines))
        folders[method] = [folder]
    study = studies.load("rl/priming")
    return study, json.loads(record.text(study, "python -m x", ["batch_size=7"], folders))


def test_a_record_has_each_commit_and_machine_once_and_what_runs_share_and_what_they_do_not(tmp_path):
    other = {**START, "time": "2026-11-22T09:00:00+0000", "commit": "def", "cores": 4}
    study, made = written(tmp_path, [START, START], [other], [START], used=["11:00:00+0000 used 900 CPU seconds"])
    assert (made["study"], made["shows"], made["command"]) == ("rl/priming", study.shows, "python -m x")
    names = ("rl_plasticity", "commit", "python", "libraries", "plugins")
    assert made["made_with"] == [{name: start[name] for name in names} for start in (START, other)]
    assert [machine["cores"] for machine in made["machines"]] == [2, 4]
    assert made["machines"][0] == {
        name: START[name] for name in ("processor", "cores", "device", "threads", "platform")
    }
    assert made["first_start"] == other["time"]
    assert (made["hours_of_ended_starts"], made["cpu_hours_of_ended_starts"]) == (3, 0.75)
    assert made["given"] == ["batch_size=7"]
    assert made["settings"]["batch_size"] == 7
    assert "out" not in made["settings"]
    assert not {"reg.name", "reg.coef"} & {*made["settings"]}
    assert made["runs"]["0"] == {"method": "none", "reg.name": "none"}
    assert made["runs"]["1"].items() >= {"method": "L2", "reg.name": "l2", "reg.coef": 1e-4}.items()
    assert made["runs"]["2"].items() >= {"method": "L2 strong", "reg.coef": 1}.items()


def test_runs_of_earlier_versions_damaged_and_missing_provenance_leave_gaps_and_no_error(tmp_path):
    _, made = written(tmp_path, [{"commit": "${", "time": None}], "{")
    assert made["made_with"] == [
        {"rl_plasticity": None, "commit": "${", "python": None, "libraries": None, "plugins": None}
    ]
    assert made["machines"] == [dict.fromkeys(record.MACHINE)]
    assert made["first_start"] is None
    assert (made["hours_of_ended_starts"], made["cpu_hours_of_ended_starts"]) == (2, None)  # a clock alone
    assert len(made["runs"]) == 3


def test_hours_are_those_of_every_start_that_ended_and_of_its_cpu_or_they_are_not_known(tmp_path):
    run = RunFolder(tmp_path)
    assert hours(run) == (0, 0)  # without a journal
    ended = ["10:00:00+0000 started", "10:30:00+0000 used 360.00 CPU seconds", "10:30:00+0000 stopped",
             "11:00:00+0000 started", "11:10:00+0000 used 7200 CPU seconds",  # killed as it ended
             "12:00:00+0000 started", "13:00:00+0000 used 1800.00 CPU seconds", "13:00:00+0000 failed: x"]  # fmt: skip
    run.log.write_text("".join(f"2026-11-22T{line}\n" for line in ended))
    assert hours(run) == (1.5, pytest.approx(0.6))
    for used in ([], ["15:00:00+0000 used CPU"], ["15:00:00+0000 used 1x CPU seconds"]):
        lines = [*ended, "14:00:00+0000 started", *used, "15:00:00+0000 finished"]
        run.log.write_text("".join(f"2026-11-22T{line}\n" for line in lines))
        assert hours(run) == (2.5, pytest.approx(math.nan, nan_ok=True))


@pytest.mark.parametrize("lines", [
    ["12:00:00+0000 started", "09:00:00+0000 finished"],  # the clock was set back
    ["10:00:00+0000 started", "17:00:00+0000 sta", "18:00:00+0000 finished"],  # cut off, by a kill
    ["10:00:00+0000 finished", "11:00:00+0000 stopped"],
])  # fmt: skip
def test_a_damaged_journal_makes_no_hours(lines, tmp_path):
    RunFolder(tmp_path).log.write_text("".join(f"2026-11-22T{line}\n" for line in lines))
    assert hours(RunFolder(tmp_path))[0] == 0
