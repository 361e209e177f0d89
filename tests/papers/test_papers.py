import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from subprocess import CompletedProcess

import pytest
from conftest import refused
from folders import launch_here

from papers import __main__ as papers
from papers import study as studies
from rl_plasticity import compare
from rl_plasticity.configs import schema
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.sweeps.launchers import Basic

TINY = ["data.train_size=60", "num_tasks=2", "epochs_per_task=2", "net.widths=[4]", "seeds=2"]
TINY += ["device=cpu", "compile=false", "log_every_updates=2", "measure_every_updates=0"]
EXPONENTS = "spectral/figure-7"


def test_a_study_makes_its_runs_its_figure_and_a_page_and_again_only_what_is_missing(tmp_path, capsys, monkeypatch):
    compared = []
    monkeypatch.setattr(Basic, "launch", launch_here)
    monkeypatch.setattr(compare, "compare", lambda *places, **options: compared.append((places, options)))
    whole = studies.load(EXPONENTS, small=True)
    two = replace(whole, methods={label: whole.methods[label] for label in ("none", "k = 4")})
    pages = {"all": {}, "k": {"where": {"reg.name": "spectral"}, "baseline": "spectral"}, "no": {"where": {"seeds": 7}}}
    two = replace(two, pages=pages)
    monkeypatch.setattr(studies, "load", lambda name, small: two)
    asked = [EXPONENTS, "small=true", f"out={tmp_path}", *TINY]
    assert papers.command(asked) == 0
    place = tmp_path / "small" / EXPONENTS
    said = capsys.readouterr()
    assert "2 succeeded" in said.out
    assert "no page no: none of its runs is finished" in said.err
    assert {p.name for p in place.iterdir()} == {"runs", "figure.png", "figure.pdf", "record.json"}
    mixed = ("task", "data", "net", "num_tasks", "epochs_per_task")
    (of_all, options), (of_page, options_of_page) = compared  # and no page of no run
    assert options == {"out": place / "all", "mix": mixed}
    assert options_of_page == {"out": place / "k", "mix": mixed, "baseline": "spectral"}
    made = [path for path in (place / "runs").iterdir() if RunFolder(path).is_run()]
    assert [RunFolder(path).settings["reg"].get("k") for path in of_page] == [4]
    assert sorted(of_all) == sorted(made)  # and not what other settings left there
    assert {RunFolder(path).settings["reg"].get("k") for path in made} == {None, 4}
    record = json.loads((place / "record.json").read_text())
    assert record["given"] == TINY
    assert record["cpu_hours_of_ended_starts"] is not None
    assert record["run_updates"] == 2 * 2 * 2 * 2 * 2  # methods, seeds, tasks, epochs, batches
    assert record["command"] == f"python -m papers {shlex.join(asked)}"
    assert {run["method"] for run in record["runs"].values()} == {"none", "k = 4"}
    before = {path: path.stat().st_mtime_ns for path in (place / "runs").rglob("metrics.csv")}
    monkeypatch.setattr(papers, "draw", lambda *_: None)
    assert papers.command(asked) == 0
    assert "0 succeeded, 0 failed, 0 stopped, 2 skipped" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_dry_run_says_each_method_s_command_and_writes_nothing(tmp_path, capsys):
    asked = [EXPONENTS, f"out={tmp_path}", "dry_run=true", "device=cuda", "launcher=joblib", "data.root=/a b"]
    assert papers.command(asked) is None
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 5
    assert said[1].startswith("k = 1: python -m rl_plasticity.supervised -m preset=spectral-fashion,spectral-mnist")
    assert all("device=cuda" in line and "launcher=joblib" in line for line in said)
    assert all("'data.root=/a b'" in line for line in said)  # as a shell takes it
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("arguments", "names"), [
    (["spectral/figur-3"], ["'spectral/figure-3'"]),
    (["srw/table-1"], ["'swr/table-1'"]),
    ([EXPONENTS, "smal=true"], ["'smal'", "'small'"]),
    ([EXPONENTS, "reg.coef=1"], ["spectral/figure-7", "reg.coef", "reg=none"]),
    ([EXPONENTS, "small=yes"], ["small", "true or false", "'yes'"]),
    ([EXPONENTS, "spectral/figure-8"], ["one figure at a time"]),
    (["seeds=3"], ["seeds=3"]),
    (["wrs/figure-7-counting"], ["paper=...", "UCF-QNRF", "small=true"]),
    (["swr/figure-1", "launcher=joblib"], ["launcher=joblib"]),
])  # fmt: skip
def test_bad_input_is_refused_before_anything_is_written(arguments, names, tmp_path):
    refused(lambda: papers.command([*arguments, f"out={tmp_path}"]), *names)
    assert not [*tmp_path.iterdir()]


LIST = """
import sys
sys.path.insert(0, sys.argv[1])
from papers import __main__ as papers

def forbid(event, args):
    writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
    if writes or event in ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.mkdir"):
        raise AssertionError(f"{event} {args}")

sys.addaudithook(forbid)
papers.command(["out=nowhere"])
assert "torch" not in sys.modules
"""


def test_the_list_has_every_study_and_measures_starts_and_writes_nothing_and_needs_no_torch(tmp_path):
    call = [sys.executable, "-c", LIST, str(studies.REPOSITORY)]
    run = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    assert {line.split()[0] for line in run.stdout.splitlines() if "/" in line[:9]} == {*studies.names()}
    assert "the exponent k on MNIST and Fashion-MNIST" in run.stdout
    assert not [*tmp_path.iterdir()]
    states = {
        line.split()[0]: line.rsplit("  ", 1)[-1]
        for line in run.stdout.splitlines()
        if re.match(r"\w+/\S+ +[\d.]+e", line)
    }
    records = (studies.REPOSITORY / "docs/results").glob("*/*/record.json")
    published = {json.loads(path.read_text())["study"] for path in records}
    assert states == {name: "published" if name in published else "not here" for name in studies.names()}


def test_a_script_gets_its_folder_its_arguments_and_what_is_given_besides_as_options(tmp_path, capsys, monkeypatch):
    asked = ["swr/figure-1", "small=true", f"out={tmp_path}", "data=mnist"]
    place = tmp_path / "small/swr/figure-1"
    papers.command([*asked, "dry_run=true"])
    said = f"python papers/swr_figure1.py --small --out {place}/figure.png --data mnist\n"
    assert capsys.readouterr().out == said
    assert not place.exists()
    called = []
    monkeypatch.setattr(papers.subprocess, "run", lambda call, check: called.append(call) or CompletedProcess(call, 3))
    assert papers.command(asked) == 3
    assert [part.removeprefix(f"{studies.REPOSITORY}/") for part in called[0][1:]] == said.split()[1:]
    assert "swr/figure-1: failed" in capsys.readouterr().out
    assert not place.exists()  # there is nothing in it


def test_a_study_is_whole_small_or_some_of_its_runs(tmp_path):
    study = studies.load(EXPONENTS, small=True)
    assert papers.state(study, tmp_path) == ""
    runs = [run for of_method in study.runs(tmp_path / "small" / EXPONENTS / "runs").values() for run in of_method]
    for n, run in enumerate(runs):
        run.folder.mkdir(parents=True)
        (run.folder / "config.yaml").write_text(schema.dump(run.settings))
        (run.folder / "log.txt").write_text("2026-11-22T00:00:00+00:00 finished at step 1\n")
        assert papers.state(study, tmp_path) == ("small" if n == 4 else f"small: {n + 1} of 5")
    record = tmp_path / "small" / EXPONENTS / "record.json"
    for text, words in (('{"given": []}', ""), ('{"given": ["seeds=3", "lr=1"]}', " with seeds=3 lr=1"), ("[", "")):
        record.write_text(text)
        assert papers.state(study, tmp_path) == f"small{words}"
