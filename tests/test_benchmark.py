import json
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import refused

from rl_plasticity import command_line, plugins, supervised
from rl_plasticity.benchmark import command
from rl_plasticity.benchmarks import rows, suites
from rl_plasticity.metrics.statistics import student_interval
from rl_plasticity.regularizers import REGULARIZERS
from rl_plasticity.sweeps import job

SUITE = """
choosing: seed=100 seeds=2
test: seed=0 seeds=3
tasks:
  labels:
    asks: little
    command: supervised
    settings: data.train_size=100 epochs_per_task=2 num_tasks=2 compile=false threads=1 measure_every_updates=0
    lr: 1e-3
    metric: task/train_accuracy
    also: {reset: reset.every_tasks=1}
    fresh: reset=periodic
    minutes: 0.1
"""
PLUG = """
from rl_plasticity.regularizers import REGULARIZERS, L2

class Mine(L2):
    def __init__(self, net, coef=1e-2): super().__init__(net, coef)

REGULARIZERS["mine"] = Mine
"""
DIVERGES = """
    def penalty(self, net): return super().penalty(net) * torch.where(self.coef > 0.05, torch.nan, 1.0)
"""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """A tiny suite with rows of no method and of fresh networks, in whose folder a plug lies."""
    folder = tmp_path / "suites"
    folder.mkdir()
    (folder / "quick-1.yaml").write_text(SUITE)
    (folder / "methods.yaml").write_text("none:\nfresh:\nl2: reg=l2\nspectral: reg=spectral reg.coef=1,2\n")
    monkeypatch.setattr(suites, "FOLDER", folder)
    monkeypatch.setattr(rows, "FOLDER", folder)
    monkeypatch.chdir(tmp_path)
    same = [("quick-1", task, "", str(seed)) for task in ("labels", "other") for seed in range(3)]
    all_methods = ("none", 0.1), ("fresh", 0.9), ("l2", 0.001), ("spectral", 5.0)
    rows.write(folder / "quick-1.csv", [
        rows.Row(suite, task, name, settings, seed, f"{value + int(seed) / 100}", "", "")
        for suite, task, settings, seed in same for name, value in all_methods
    ])  # fmt: skip
    (tmp_path / "my_plug").mkdir()
    (tmp_path / "my_plug/__init__.py").write_text("from my_plug.methods import Mine")
    (tmp_path / "my_plug/methods.py").write_text(PLUG)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_files", {})
    monkeypatch.setattr(plugins, "loaded", [])
    yield tmp_path
    REGULARIZERS._given.pop("mine", None)
    for name in ("my_plug", "my_plug.methods"):
        sys.modules.pop(name, None)


class Forked(multiprocessing.get_context("fork").Process):
    """A run's process that has imported what it needs."""

    def __init__(self, arguments, stdout, cwd, **_):
        super().__init__(target=self.work, args=(arguments[4:], stdout, cwd))
        self.start()

    @staticmethod
    def work(arguments, stdout, cwd):
        os.chdir(cwd)
        sys.argv = arguments
        with open(stdout.fileno(), "w", closefd=False) as log, redirect_stdout(log), redirect_stderr(log):
            command_line.train(supervised.command)

    def poll(self):
        return self.exitcode

    returncode = property(poll)


@pytest.fixture
def forked(monkeypatch):
    """Runs whose processes start at once; a test without it has those of users."""
    monkeypatch.setattr(job, "subprocess", SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL))
    monkeypatch.setattr(job, "POLL_S", 0.05)


def test_a_plug_is_scored_at_the_strength_that_other_seeds_chose_resumed_submitted_and_verified(suite, capfd, request):
    asked = ["quick", "reg=mine", "plugins=[my_plug]"]
    assert command(asked) == 0
    err = capfd.readouterr().err
    assert "reg.coef=0.001,0.01,0.1" in err
    chose = rows.read(next(suite.rglob("rows.csv")))[0].settings
    assert ("labels: the best reg.coef is" in err) == ("reg.coef=0.01" not in chose.split())
    assert command(asked) == 0  # goes on where it was stopped: at its end
    out = capfd.readouterr().out
    assert "to make" not in out
    assert re.search(r"0\.\d.*, 3 seeds, .*: overall .*better than 1, undecided against 0, worse than 1 of 2 ", out)
    assert "  better than: l2\n  worse than: spectral\n" in out
    (folder,) = (suite / "results/benchmark/quick-1").glob("reg=mine-*")
    found = rows.read(folder / "rows.csv")
    assert [row.seed for row in found] == ["0", "1", "2"]
    assert all(row.settings.startswith("lr=1e-3 reg=mine reg.coef=0.") for row in found)
    assert b"better than" in (suite / "results/benchmark/quick-1/page.html").read_bytes()

    capfd.readouterr()
    assert command(["submit", str(folder)]) == 0
    file = folder / "submission.json"
    assert f"benchmark verify {file} plugins=[my_plug]\n" in capfd.readouterr().out
    assert command(["verify", str(file), "plugins=[my_plug]"]) == 0
    assert re.search("the same numbers\n.*1 of 1 task", capfd.readouterr().out)
    request.getfixturevalue("forked")
    claimed = json.loads(file.read_text())
    assert claimed["sources"] == {"my_plug": {"__init__.py": "from my_plug.methods import Mine", "methods.py": PLUG}}
    untouched = [{**row} for row in claimed["rows"]]
    for row in claimed["rows"]:
        row["raw"] = str(float(row["raw"]) + 0.2)
    file.write_text(json.dumps(claimed))
    assert command(["verify", str(file), "plugins=[my_plug]"]) == 1
    assert "DIFFERS: the mean is off by -0.2" in capfd.readouterr().out
    for forged, named in (
        ({"seed": "0"}, "seed"),
        ({"method": "l2"}, "damaged"),
        ({"suite": "quick"}, "damaged"),
        ({"settings": "lr=1e-3 reg=mine reg.coef=7"}, "reg.coef=7"),
        ({"raw": "abc"}, "damaged"),
    ):
        file.write_text(json.dumps({**claimed, "rows": [{**row, **forged} for row in claimed["rows"]]}))
        refused(lambda: command(["verify", str(file), "plugins=[my_plug]"]), named)
    better = [{**row, "raw": "0.99"} if row["seed"] == "1" else row for row in untouched]
    for processor in (claimed["rows"][0]["processor"], "another"):
        file.write_text(json.dumps({**claimed, "rows": [{**row, "processor": processor} for row in better]}))
        assert command(["verify", str(file), "plugins=[my_plug]"]) == 1
    claimed["rows"] = [{**row, "settings": "reg=l2 plugins=[antigravity]"} for row in claimed["rows"]]
    file.write_text(json.dumps(claimed))
    refused(lambda: command(["verify", str(file)]), "plugins")  # no file loads a module
    assert "antigravity" not in sys.modules
    origin = next(folder.rglob("test/**/provenance.json"))
    started = json.loads(origin.read_text())
    started["starts"][0]["plugin_sources"]["my_plug"] = "edited meanwhile"
    origin.write_text(json.dumps(started))
    refused(lambda: command(asked), "my_plug", str(origin.parent.name))
    plugins._files["my_plug"] = (None, {"my_plug.py": b"another source"})
    refused(lambda: command(["verify", str(file)]), "my_plug")


def test_a_method_that_a_task_refuses_has_a_row_that_says_why_and_keeps_its_scores_on_others(suite, capfd, forked):
    text = SUITE + SUITE.partition("tasks:\n")[2].replace("labels:", "other:").replace("settings:", "settings: net=cnn")
    (suite / "suites/quick-1.yaml").write_text(text)
    assert command(["quick", "net.injected_layers=1", "name=narrow"]) == 0
    out = capfd.readouterr().out
    assert [word for word in ("refused: ", "injected_layers", "no overall score") if word not in out] == []
    (folder,) = (suite / "results/benchmark/quick-1").glob("narrow-*")
    assert [row.seed for row in rows.read(folder / "rows.csv")] == ["0", "1", "2", ""]


@pytest.mark.parametrize(("strengths", "settings"), [
    ("0.01,0.1", "lr=1e-3 reg=mine reg.coef=0.01"),
    ("0.1", "reg=mine reg.coef=0.1"),
])  # fmt: skip
def test_a_strength_that_does_not_stay_finite_takes_no_other_with_it(suite, capfd, forked, strengths, settings):
    asked = ["quick", "reg=mine", f"reg.coef={strengths}", "plugins=[my_plug]", "name=strong"]
    (suite / "my_plug/methods.py").write_text(f"""import torch
{PLUG.replace("super().__init__(net, coef)", "super().__init__(net, coef)" + DIVERGES)}""")
    assert command(asked) == 0
    has_others = "," in strengths
    assert ("tried one by one" in capfd.readouterr().err) == has_others
    (folder,) = (suite / "results/benchmark/quick-1").glob("strong-*")
    found = rows.read(folder / "rows.csv")
    assert {row.settings for row in found} == {settings}
    assert [row.raw for row in found if not row.seed] == ["failed: no strength stays finite"] * (not has_others)
    assert command(asked) == 0  # what would fail again is not made
    assert "training" not in capfd.readouterr().out
    assert command(["quick"]) == 0
    assert re.search(r"^strong +[\d-]" if has_others else "^strong +not on all", capfd.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("choices", ["reg=l2,spectral", "net.widths=[4,4],[32,32]"])
def test_of_several_values_of_any_setting_one_is_chosen_and_scored(suite, forked, choices):
    assert command(["quick", choices, "name=chosen"]) == 0
    (folder,) = (suite / "results/benchmark/quick-1").glob("chosen-*")
    found = rows.read(folder / "rows.csv")
    assert [row.seed for row in found] == ["0", "1", "2"]
    name, _, values = choices.partition("=")
    (of_row,) = {suites.as_given(shlex.split(row.settings))[name] for row in found}
    assert of_row in values.replace("],[", "];[").split(";" if "[" in values else ",")


def test_rows_of_no_method_and_fresh_networks_may_be_the_user_s_and_are_asked_for_before_anything_is_made(suite, capfd):
    shipped = rows.read(suite / "suites/quick-1.csv")
    (suite / "suites/quick-1.csv").unlink()
    rows.write(suite / "suites/quick-1.csv", [row for row in shipped if row.method == "l2"])
    refused(lambda: command(["quick", "reg=l2", "name=mine"]), "published=none,fresh", "labels")
    refused(lambda: command(["quick", "reg=l2", "published=none,fresh"]), "published=")
    assert not (suite / "results").exists()
    (suite / "results/benchmark/quick-1").mkdir(parents=True)
    rows.write(
        suite / "results/benchmark/quick-1/quick-1.csv", [row for row in shipped if row.method in ("none", "fresh")]
    )
    assert command(["quick"]) == 0
    assert re.search(r"^l2 +-?0\.", capfd.readouterr().out, re.MULTILINE)


def test_of_two_methods_with_one_name_the_newest_counts_and_a_name_is_drawn_as_it_is(suite, capfd):
    (suite / "suites/quick-1.yaml").write_text(SUITE + SUITE.partition("tasks:\n")[2].replace("labels:", "other:"))
    of_task = {task: [row for row in rows.read(suite / "suites/quick-1.csv") if row[1:3] == (task, "l2")]
               for task in ("labels", "other")}  # fmt: skip
    for age, (folder, found) in enumerate(
        {"old": of_task["labels"] + of_task["other"], "new": of_task["labels"]}.items()
    ):
        path = suite / f"results/benchmark/quick-1/{folder}/rows.csv"
        path.parent.mkdir(parents=True)
        rows.write(path, [row._replace(method=r"a $\q$") for row in found])
        os.utime(path, (age, age))
    assert command(["quick"]) == 0
    assert re.search(r"^a \$\\q\$ +not on all tasks", capfd.readouterr().out, re.MULTILINE)
    path.write_text(path.read_text().replace("processor,", "processor,what,"))
    refused(lambda: command(["quick"]), "new/rows.csv")


def test_rows_of_other_suites_other_seeds_and_numbers_that_are_not_finite_have_no_score(suite):
    of_suite, shipped = suites.load("quick"), rows.read(suite / "suites/quick-1.csv")
    l2 = next(row for row in shipped if row[1:3] == ("labels", "l2"))
    before = rows.scores(of_suite, shipped)
    stray = [l2._replace(suite="standard-1", raw="7"), l2._replace(seed="10", raw="7"), l2._replace(task="third")]
    np.testing.assert_equal(rows.scores(of_suite, [*shipped, *stray]).values, before.values)
    infinite = [row._replace(raw="inf") if row == l2 else row for row in shipped]
    found = rows.scores(of_suite, infinite)
    assert np.isnan(found.values[found.methods.index("l2"), 0])


@pytest.mark.parametrize(("asked", "named"), [
    (["quik", "reg=l2"], ["quik", "quick-1"]),
    (["reg=l2"], ["quick-1"]),
    (["quick", "reg=l3"], ["l3", "l2"]),
    (["quick", "rge=l2"], ["rge", "reg"]),
    (["quick", "reg=l2", "reg=l2"], ["reg", "twice"]),
    (["quick", "name=a", "reg=l2", "name=b"], ["name", "twice"]),
    (["quick", "reg=l2", "env=cheetah-run"], ["env", "method"]),
    (["quick", "reg=l2", "reg.coeff=1"], ["coeff", "reg.coef"]),
    (["quick", "reg=l2", "tasks=label"], ["label", "labels"]),
    (["quick", "reg=l2", "name=l2"], ["l2", "published"]),
    (["quick", "published=l3"], ["l3", "l2"]),
    (["quick", "name=mine"], ["name=", "settings"]),
    (["submit"], ["submit", "folder"]),
    (["verify", "nothing.json"], ["nothing.json"]),
    (["quick", "--verbose"], ["--verbose"]),
])  # fmt: skip
def test_bad_input_is_named_before_anything_is_written(suite, asked, named):
    refused(lambda: command(asked), *named)
    assert not (suite / "results").exists()


@pytest.mark.parametrize("name", suites.NAMES)
def test_the_shipped_rows_are_of_tasks_and_methods_that_there_are_and_each_task_loses_what_a_fresh_network_has(name):
    suite, methods = suites.load(name), suites.published()
    found = rows.published(suite)
    assert [row for row in found if row.task not in suite.tasks or row.method not in methods] == []
    for task in {row.task for row in found}:
        none, fresh = (
            np.array([float(row.raw) for row in found if (row.task, row.method) == (task, method)])
            for method in (suites.NONE, suites.FRESH)
        )
        low, _ = student_interval([fresh], [none])
        assert low > 0, task
