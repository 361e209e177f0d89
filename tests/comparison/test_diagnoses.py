"""The diagnoses that lie in runs' folders, as a comparison shows them: a figure over time and a table of verdicts."""

import json
import re

import pytest
from folders import curve, diagnosis, write_diagnosis, write_run

from rl_plasticity.compare import compare
from rl_plasticity.comparison.figures import draw, in_words
from rl_plasticity.diagnosis.report import NOW, Estimate, Report
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs.diagnosed import read
from rl_plasticity.runs.folder import RunFolder


def made(folder, reg, seeds, rows=(), **given):
    write_run(
        folder,
        [f"reg={reg}", "total_env_steps=2000"],
        {str(seed): curve([1.0 + seed, 2.0 + seed]) for seed in range(seeds)},
        **given,
    )
    if rows:
        write_diagnosis(folder, rows)
    return folder


def of_seeds(values, **given):
    """Diagnoses of seed after seed, each with the last of its shares lowered by the seed's `values`."""
    return [row for seed, low in enumerate(values) for row in diagnosis([1.0, 0.9, low], f"seed {seed}", **given)]


def table_of(page):
    section = page.partition("<h2>Trainability</h2>")[2].partition("<h2>")[0]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", section)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


def test_the_page_shows_the_newest_verdicts_of_each_group_and_what_was_learned(tmp_path):
    lost = of_seeds([0.2, 0.3, 0.4, 0.5, 0.6], verdict="lost")
    lost[-1]["verdict"] = "losing"
    lost += diagnosis([0.7], "seed 0", data="buffer", every=1) + diagnosis([0.1], "seed 9")  # older, and no such run
    made(tmp_path / "runs" / "none", "none", 5, lost)
    made(tmp_path / "runs" / "l2", "l2", 1, diagnosis([0.95, 0.9], verdict="plastic"))
    made(tmp_path / "runs" / "swr", "swr", 2)
    compare(tmp_path / "runs", out=tmp_path / "out")
    header, *lines = table_of((tmp_path / "out" / "report.html").read_text())
    assert header[1:6] == ["network", "data", "env step", "runs", "verdict"]
    assert lines == [
        ["no method", "critic", "random", "2000", "5", "4 lost, 1 losing", "0.40 [0.20, 0.60]"],  # t of 5 runs: 2.776
        ["l2", "critic", "random", "1000", "1", "plastic", "0.90 [0.85, 0.95]"],  # over the repeats of one run
    ]
    assert (tmp_path / "out" / "figures" / "trainability.pdf").is_file()


def test_the_figure_has_a_line_for_each_group_and_a_panel_for_each_network_and_data(tmp_path):
    rows = of_seeds([0.2, 0.3, 0.4, 0.5, 0.6]) + of_seeds([0.8] * 5, network="actor")
    made(tmp_path / "none", "none", 5, [*rows, *diagnosis([0.3], data="buffer")])  # once makes no curve
    made(tmp_path / "l2", "l2", 1, diagnosis([0.95, 0.9]))
    made(tmp_path / "swr", "swr", 2)
    (drawn,) = (d for d in draw(compare(tmp_path / "*")) if d.name == "trainability")
    panels = {axes.get_title(): curves for axes, curves in drawn.curves.items()}
    assert panels.keys() == {"critic, random", "actor, random"}
    none, l2 = panels["critic, random"]
    assert (none.place, none.steps.tolist()) == (0, [0, 1000, 2000])
    assert none.means.tolist() == pytest.approx([1.0, 0.9, 0.4])
    assert (none.low[-1], none.high[-1]) == pytest.approx((0.2037, 0.5963), abs=1e-3)
    assert (l2.low.tolist(), l2.high.tolist()) == (pytest.approx([0.9, 0.85]), pytest.approx([1.0, 0.95]))
    assert [text.get_text() for text in drawn.figure.legends[0].texts] == ["no method", "l2"]  # swr has no diagnosis


def test_supervised_runs_are_told_apart_by_their_names_and_count_epochs(tmp_path):
    names = ["reg.name=none seed=0", "reg.name=spectral seed=0"]
    rows = {name: {"task/train_accuracy": [(1, 0.5), (2, 0.6)], "task/index": [(1, 0.0), (2, 1.0)]} for name in names}
    write_run(tmp_path / "run", ["reg=[none,spectral]"], rows, "supervised")
    found = [row for name in names for row in diagnosis([0.9, len(name) / 100], name, "net", "images", every=60)]
    write_diagnosis(tmp_path / "run", found)
    compare(tmp_path / "run", out=tmp_path / "out", metric="task/train_accuracy")
    header, *lines = table_of((tmp_path / "out" / "report.html").read_text())
    assert header[3] == "epoch"
    assert [(line[0], line[3], line[6][:4]) for line in lines] == [
        ("no method", "60", "0.20"),
        ("spectral", "60", "0.24"),
    ]


def test_a_page_of_runs_without_a_diagnosis_has_no_such_section(tmp_path):
    compare(made(tmp_path / "none", "none", 2), out=tmp_path / "out")
    assert "Trainability" not in (tmp_path / "out" / "report.html").read_text()


def test_the_report_of_a_diagnosis_is_read(tmp_path):
    report = Report("losing", "why", evidence={NOW: Estimate(0.7, float("nan"), float("nan"))})
    none = Report("not detectable", "why")
    rows = [diagnosis([0.0], "seed 3")[0] | json.loads(one.to_json()) for one in (report, none)]
    write_diagnosis(tmp_path, rows)
    first, second = read(RunFolder(tmp_path))
    assert (first.step, first.run, first.network, first.data) == (0, "seed 3", "critic", "random")
    assert first.learned is not None
    assert first.learned.mean == 0.7
    assert (second.report.verdict, second.learned) == ("not detectable", None)


WHOLE = diagnosis([0.5])[0]


def _file(row):
    return json.dumps({"settings": {}, "checkpoints": {}, "rows": [row]}).encode()


FOREIGN = {
    "no JSON": b"{",
    "no text": b"\xff\xfe\x00",
    "no rows": b'{"a": 1}',
    "no list": b"3",
    "nothing": b"null",
    "deep": b"[" * 100_000,
    "another program's": b'[{"step": 3}]',
    "a row of another program": _file({"step": 3}),
    "a step that is none": _file(WHOLE | {"step": 10**30}),
    "a step of text": _file(WHOLE | {"step": "3"}),
    "an unknown verdict": _file(WHOLE | {"verdict": "fine"}),
    "a list as a verdict": _file(WHOLE | {"verdict": []}),
    "a name that is none": _file(WHOLE | {"run": ["seed 0"]}),
    "no evidence": _file(WHOLE | {"evidence": 1}),
    "numbers of text": _file(WHOLE | {"evidence": {NOW: {"mean": "a", "low": 0, "high": 0}}}),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_damaged_or_foreign_file_is_one_line_and_loses_no_run(what, tmp_path):
    folder = made(tmp_path / "none", "none", 2)
    (folder / "diagnosis.json").write_bytes(FOREIGN[what])
    with pytest.raises(SettingsError, match=r"diagnosis\.json"):
        read(RunFolder(folder))
    comparison = compare(folder)
    assert [w for w in comparison.warnings if "diagnosis" in w] == [
        f"left out: {folder / 'diagnosis.json'} is damaged or no diagnosis; move it away"
    ]
    assert comparison.rows[0].seeds == 2


def test_names_from_a_file_are_no_part_of_the_page_and_no_formula(tmp_path):
    evil = "<script>$\\frac$"
    compare(made(tmp_path / "none", "none", 1, diagnosis([0.9, 0.8], network=evil)), out=tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert evil not in page
    assert "&lt;script&gt;$\\frac$" in page


def test_trainability_that_was_logged_while_training_is_named_in_words_for_any_network():
    assert in_words("critic/trainability") == "critic trainability (fresh: 1)"
    assert in_words("net/trainability") == "net trainability (fresh: 1)"
    assert in_words("eval/return") == "return"
    assert in_words("critic/sigma1") == "critic/sigma1"
    assert in_words("critic/trainability/trunk.0") == "critic/trainability/trunk.0"
