import importlib
import json
import subprocess
import sys

import pytest
import torch
from conftest import refused
from folders import curve, without_what_plugs_add, write_run
from hypothesis import given
from hypothesis import strategies as st

from rl_plasticity import plugins
from rl_plasticity.runs.folder import RunFolder, find
from rl_plasticity.runs.names import MetricName, Row, RunName
from rl_plasticity.runs.provenance import add_start

KEYS = st.from_regex(r"[\w.+-]+", fullmatch=True)
# Any text but what reads as the next setting; a line break cannot stand in a row.
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\n")).filter(lambda text: "=" not in text)
LISTS = st.lists(st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), WORDS)).map(str)
VALUES = st.one_of(WORDS, LISTS.filter(lambda text: "=" not in text), st.just("a=b"), st.just("{'a b': 1, 'c': '='}"))
NAMES = st.builds(RunName, st.lists(st.tuples(KEYS, VALUES)).map(tuple), st.integers(min_value=0))


@given(NAMES)
def test_a_run_s_name_is_read_as_it_was_written(name):
    assert RunName.parse(str(name)) == name


@pytest.mark.parametrize(("text", "settings", "seed"), [
    ("3", (), 3),
    ("reg.widths=[1, 2] seed=12", (("reg.widths", "[1, 2]"),), 12),
    ("reg.name=a reg.coef=1 reset.b=5 seed=0", (("reg.name", "a"), ("reg.coef", "1"), ("reset.b", "5")), 0),
])  # fmt: skip
def test_a_run_is_called_by_its_seed_and_by_what_sets_it_apart_before_it(text, settings, seed):
    name = RunName(settings, seed)
    assert RunName.parse(text) == name
    assert str(name) == f"{name}" == text
    assert name.group == text.rpartition(" ")[0]
    assert name.in_words == (text if settings else f"seed {seed}")
    for wrong in ("", "mean", "seed=3", "03", "-1", "reg.coef=1 mean", "reg.coef=1 last", "a=1 seed=x"):
        refused(lambda wrong=wrong: RunName.parse(wrong), "name=value")


@pytest.mark.parametrize(("text", "parts"), [
    ("critic/stable_rank/trunk.0", ("critic", "stable_rank", "trunk.0")),
    ("net/rank/blocks/0", ("net", "rank", "blocks/0")),
    ("q_mean", ("", "q_mean", "")),
])  # fmt: skip
def test_a_metric_s_name_says_of_what_it_is_and_of_which_layer(text, parts):
    assert MetricName.parse(text) == parts
    assert str(MetricName(*parts)) == text


def test_the_settings_and_the_kind_are_those_that_were_written(tmp_path):
    (tmp_path / "run").mkdir()
    folder = RunFolder(tmp_path / "run")
    text = "task:\n  name: a\nnet:\n  name: b\nreg:\n  name: l2\n  coef: 1.0e-05\nreset:\n  name: none\nseed: 3\n"
    folder.write_settings(text + "out: a very\n  long path\n")
    reg = {"name": "l2", "coef": 1e-5}
    settings = {"task": {"name": "a"}, "net": {"name": "b"}, "reg": reg, "reset": {"name": "none"}}
    assert folder.settings == settings | {"seed": 3, "out": "a very long path"}
    assert folder.kind == "supervised"
    folder.settings["reg"]["coef"] = 7
    assert folder.settings["reg"] == reg  # nobody's changes are seen by others
    assert [p.name for p in folder.path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("content", [b"a: [1\n", b"- 1\n", b"\xff\xfe\x00", b"a: !!python/name:os.system", None])
def test_settings_that_cannot_be_read_are_one_line_that_names_the_file(tmp_path, content):
    folder = RunFolder(tmp_path)
    if content is not None:
        folder.config.write_bytes(content)
    refused(lambda: folder.settings, "config.yaml")


@pytest.mark.parametrize("cut", ["", "0,3000,eval/return,12.", "0,30", "0,3000,eval/return,"])
def test_curves_are_by_run_and_metric_without_the_line_that_a_kill_cut(tmp_path, cut):
    rows = {"3": curve([1.0, 2.0]), "reg.l=[1, 2] seed=0": curve([7.0], "q_mean")}
    folder = RunFolder(write_run(tmp_path / "a", [], rows))
    with folder.metrics_csv.open("a") as file:
        file.write(cut)
    metrics = folder.metrics()
    assert list(metrics) == [RunName((), 3), RunName((("reg.l", "[1, 2]"),), 0)]
    assert metrics[RunName((), 3)]["eval/return"].steps.tolist() == [1000, 2000]
    assert metrics[RunName((), 3)]["eval/return"].values.tolist() == [1.0, 2.0]


def test_the_last_rows_are_those_of_the_last_step(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.last_rows("metrics.csv") == []
    rows = ["0,1,b,1.0", "0,2,a,5.0", "reg.l=[1, 2] seed=0,2,a,6.0", "0,2,b,7.0", "0,3,c,0.5"]
    folder.metrics_csv.write_text("\n".join(["run,step,name,value", *rows, "0,9"]))
    assert folder.last_rows("metrics.csv") == [Row("0", 3, "c", 0.5)]
    assert folder.last_rows("metrics.csv", ["a"]) == [Row("0", 2, "a", 5.0), Row("reg.l=[1, 2] seed=0", 2, "a", 6.0)]
    assert folder.last_rows("metrics.csv", ["nothing"]) == []


DAMAGED = [b"9223372036854775808", b"9" * 5000, b"0.5", bytes(100_000), b"\0\x1b[2J", b"\x07 " * 50_000]


@pytest.mark.parametrize("step", DAMAGED, ids=range(len(DAMAGED)))
def test_a_step_that_64_bits_cannot_hold_is_damage_like_any_other_and_none_of_its_bytes_are_shown(tmp_path, step):
    folder = RunFolder(tmp_path)
    folder.metrics_csv.write_bytes(b"run,step,name,value\n0," + step + b",eval/return,1.0\n")
    line = refused(folder.metrics, "metrics.csv is damaged")
    assert line.isprintable()
    assert len(line) < len(str(folder)) + 400


@pytest.mark.parametrize("text", ["{", "[]", '{"starts": [3]}', '{"starts": [], "branch": 3}', "[" * 100_000])
def test_a_damaged_provenance_costs_no_number(tmp_path, text):
    folder = write_run(tmp_path / "a", [], {"0": curve([1.0])})
    (folder / "provenance.json").write_text(text)
    assert RunFolder(folder).starts == []
    refused(lambda: add_start(RunFolder(folder), "cpu"), "provenance.json")
    assert (folder / "provenance.json").read_text() == text
    (folder / "provenance.json").write_text(json.dumps({"starts": [{"commit": "abc"}]}))
    assert RunFolder(folder).starts == [{"commit": "abc"}]


def test_provenance_names_versions_and_command_and_keeps_every_start(tmp_path):
    folder = RunFolder(str(tmp_path))
    assert {folder, RunFolder(folder)} == {RunFolder(tmp_path)}
    add_start(folder, "cpu")
    add_start(folder, "cpu")
    first, _ = folder.starts
    assert folder.starts == json.loads(folder.provenance.read_text())["starts"]
    assert first["libraries"]["torch"] == torch.__version__
    assert {"commit", "device", "command", "rl_plasticity", "python", "threads", "time"} <= set(first)


def test_the_source_of_a_plug_is_kept_as_it_was_imported(tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "_files", {})
    (tmp_path / "my_plugs").mkdir()
    (tmp_path / "my_plugs" / "__init__.py").write_text("import my_plugs.more\n")
    (tmp_path / "my_plugs" / "more.py").write_text("y = 1\n")

    def kept():
        plugins.load(["my_plugs"])
        add_start(RunFolder(tmp_path), "cpu")
        return RunFolder(tmp_path).starts[-1]["plugin_sources"]["my_plugs"]

    with without_what_plugs_add(monkeypatch, tmp_path):
        monkeypatch.syspath_prepend(tmp_path)
        first = kept()
        (tmp_path / "my_plugs" / "more.py").write_text("# edited, and of another length\n")
        assert kept() == first
        importlib.reload(sys.modules["my_plugs"])
        assert kept() != first


def test_the_command_that_is_kept_can_be_pasted_into_a_shell(tmp_path, monkeypatch):
    arguments = ["reg=[none,l2]", "agent.hidden=[16, 16]", "out=it's $HOME & ü", "env=gym:Pendulum-v1", ""]
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # a script
    monkeypatch.setattr(sys, "orig_argv", ["python", "-O", "my script.py", *arguments])
    add_start(RunFolder(tmp_path), "cpu")
    shell = f"python() {{ printf '%s\\0' \"$@\"; }}; {RunFolder(tmp_path).starts[0]['command']}"
    said = subprocess.run(shell, shell=True, capture_output=True, text=True, check=True).stdout
    assert said.split("\0")[:-1] == ["-O", "my script.py", *arguments]


def test_runs_are_found_by_name_below_a_sweep_and_by_a_glob_once_each_and_none_within_a_run(tmp_path):
    a, b = (RunFolder(write_run(tmp_path / "sweep" / n, [], {"0": curve([1.0])})) for n in "ab")
    for within in (".hidden", "a/wandb/offline/files"):
        write_run(tmp_path / "sweep" / within, [], {"0": curve([1.0])})
    assert find([str(tmp_path / "sweep")]) == [a, b]
    assert find([b, str(tmp_path / "sweep"), str(a)]) == [b, a]
    assert find([str(tmp_path / "sw*" / "*")]) == [a, b]


@pytest.mark.parametrize("place", ["nothing", "no*", "empty"])
def test_a_place_without_runs_is_named(tmp_path, place):
    (tmp_path / "empty").mkdir()
    refused(lambda: find([str(tmp_path / place)]), place)
    refused(lambda: find([""]), "empty")


def test_runs_are_found_behind_links_each_once_and_a_circle_of_links_ends(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / "elsewhere" / name, [], {"0": curve([1.0])})
    links = tmp_path / "links"
    (links / "more").mkdir(parents=True)
    (links / "first").symlink_to(tmp_path / "elsewhere" / "a")
    (links / "more" / "all").symlink_to(tmp_path / "elsewhere")
    (links / "more" / "circle").symlink_to(links)
    (links / ".hidden").symlink_to(tmp_path / "elsewhere" / "b")
    assert sorted(folder.path.resolve().name for folder in find([links])) == ["a", "b"]
