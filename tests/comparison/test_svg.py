"""Figures as pieces of a page: what was drawn of which group, and the values behind the curves."""

import base64
import dataclasses
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from html import unescape

import numpy as np
import pytest
from folders import curve, write_run

from rl_plasticity.comparison import report
from rl_plasticity.comparison.figures import THIN, colours, draw
from rl_plasticity.comparison.groups import group
from rl_plasticity.comparison.loading import read
from rl_plasticity.comparison.summary import summarize
from rl_plasticity.comparison.svg import READ, inline
from rl_plasticity.runs.folder import RunFolder

RETURNS = {"none": [10.0, 20.0, 60.0], "swr": [1.0, 2.0, 33.0]}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    place, runs = tmp_path_factory.mktemp("runs"), []
    for reg, returns in RETURNS.items():
        rows = {str(seed): curve([value + seed for value in returns]) for seed in range(5)}
        runs += read(RunFolder(write_run(place / reg, [f"reg={reg}", "total_env_steps=3000"], rows)))
    return summarize(group(runs))


@pytest.fixture(scope="module")
def pictures(comparison):
    return {drawn.name: inline(drawn) for drawn in draw(comparison)}


def panels(text):
    return json.loads(text.partition('<script type="application/json">')[2].removesuffix("</script>"))


def test_an_svg_is_whole_and_has_no_name_that_another_figure_could_have(pictures):
    for text in pictures.values():
        svg = text.partition("<script")[0]
        root = ET.fromstring(svg.replace("<svg ", '<svg xmlns:xlink="x" ', 1))
        assert root.tag == "svg"
        assert not re.findall(r'<g id=|<!--|<metadata|width="[^"]*pt"', svg)
    named: dict[str, set[str]] = {}  # clip paths and markers, which are named by what they are
    for text in pictures.values():
        for found, what in re.findall(r' id="([^"]*)"[^>]*>\s*(<[^>]*>|)', text):
            named.setdefault(found, set()).add(what)
    assert named
    assert all(len(what) == 1 for what in named.values())


def test_every_group_is_marked_in_every_figure_and_in_the_legends(pictures):
    for name, text in pictures.items():
        marked = set(re.findall(r'data-group="(\d+)"', text))
        assert marked == ({"0", "1"} if name != "probability_of_improvement" else {"1"}), name
        assert set(re.findall(r'data-key="(\d+)"', text)) == (
            {"0", "1"} if name in ("learning_curves", "performance_profiles") else set()
        )


def test_the_values_of_a_curve_are_the_means_and_intervals_at_its_steps(pictures):
    (panel,) = panels(pictures["learning_curves"])
    assert [one["group"] for one in panel["curves"]] == [0, 1]
    for one, returns in zip(panel["curves"], RETURNS.values(), strict=True):
        assert one["steps"] == [1000, 2000, 3000]
        assert one["means"] == [value + 2 for value in returns]  # of seeds 0 to 4
        half = 2.776 * np.sqrt(2.5 / 5)  # Student's t, 4 degrees of freedom
        assert one["low"] == pytest.approx([value + 2 - half for value in returns], abs=0.01)
        assert one["high"] == pytest.approx([value + 2 + half for value in returns], abs=0.01)


def test_the_box_of_a_panel_is_where_its_curve_lies(pictures):
    text = pictures["learning_curves"]
    (panel,) = panels(text)
    x0, y0, x1, y1 = panel["box"]
    first, last = panel["steps"]
    paths = re.findall(r'<g data-group="0">\s*<path d="([^"]*)"', text)
    (mean,) = [path for path in paths if path.count("L") == 2]
    points = np.array([float(v) for v in re.findall(r"[-\d.]+", mean)]).reshape(-1, 2)
    expected = x0 + (np.array([1000, 2000, 3000]) - first) / (last - first) * (x1 - x0)
    np.testing.assert_allclose(points[:, 0], expected, atol=0.02)
    assert ((points[:, 1] > y0) & (points[:, 1] < y1)).all()


def test_every_seed_is_a_thin_line_and_long_curves_are_thinned(tmp_path):
    values = np.random.default_rng(0).normal(size=(6, 900)).tolist()
    rows = {str(seed): curve(one, every=10) for seed, one in enumerate(values)}
    comparison = summarize(group(read(RunFolder(write_run(tmp_path / "run", ["total_env_steps=9000"], rows)))))
    drawn = next(one for one in draw(comparison) if one.name == "learning_curves")
    mean, thin = drawn.figure.axes[0].lines[:2]
    assert len(mean.get_xdata()) == 500
    y = np.asarray(thin.get_ydata())
    assert np.isnan(y).sum() == 6
    each = y.reshape(6, THIN + 1)[:, :-1]
    assert each[:, 0].tolist() == [one[0] for one in values]
    assert each[:, -1].tolist() == [one[-1] for one in values]
    assert len(panels(inline(drawn))[0]["curves"][0]["steps"]) == READ
    assert "thin line" in drawn.caption


def test_no_script_runs_on_a_page_but_its_own(comparison, pictures):
    for live in (False, True):
        row = comparison.rows[0]
        odd = dataclasses.replace(row.group, label="</script><script>alert(1)//")
        known = report.groups_of(dataclasses.replace(comparison, rows=[dataclasses.replace(row, group=odd)]), ["#000"])
        text = report.page("a title", ["<p>a part</p>", known], {}, live)
        (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
        asked = ["connect-src 'self'"] if live else []
        assert policy.split("; ")[0] == "default-src 'none'"
        assert policy.split("; ")[3:] == [f"script-src 'sha256-{digest}'", *asked]
        assert text.index("Content-Security-Policy") < text.index("<title>")
        assert "alert(1)" not in re.sub(r'<script type="application/json"[^<]*</script>', "", text)


def test_text_that_looks_like_an_attribute_stays_as_it_is(tmp_path):
    label = 'a d="0.1234"'
    for i, value in enumerate((label, "other")):
        folder = write_run(tmp_path / str(i), ["total_env_steps=3000"], {"0": curve([1.0, 2.0])})
        config = (folder / "config.yaml").read_text()
        (folder / "config.yaml").write_text(re.sub("^batch_size: .*$", f"batch_size: '{value}'", config, flags=re.M))
    runs = [run for i in range(2) for run in read(RunFolder(tmp_path / str(i)))]
    figures = draw(summarize(group(runs)))  # whose style holds while there are more to come
    text = inline(next(figures))
    assert label in unescape(text)


def test_what_is_not_finite_is_no_number_of_the_page(tmp_path):
    rows = {str(seed): curve([1.0, float("nan"), 2.0]) for seed in range(5)}
    comparison = summarize(group(read(RunFolder(write_run(tmp_path / "run", ["total_env_steps=3000"], rows)))))
    (panel,) = panels(inline(next(iter(draw(comparison)))))
    assert panel["curves"][0]["means"] == [1.0, None, 2.0]


def test_a_page_that_grows_too_large_takes_pngs_and_then_names_files(comparison, pictures, monkeypatch):
    lines = report.Picture("learning_curves", "Learning curves", pictures["learning_curves"], b"png", 3.35, "a caption")
    others = [report.Picture(f"other{i}", "Other", "<svg " + " " * 900, b"x" * 600, 3.35, "") for i in range(2)]
    rest = len(report._provenance(comparison))
    monkeypatch.setattr(report, "MOST", rest + 2 * len(lines.svg) + 1000)
    text = report.render(comparison, [lines, *others], colours(comparison), "command", {})
    assert text.count("<svg") == 3
    monkeypatch.setattr(report, "MOST", rest + len(lines.svg) + 1000)  # an SVG may take a half of what is left
    text = report.render(comparison, [lines, *others], colours(comparison), "command", {})
    assert (text.count("<svg"), text.count("<img")) == (2, 1)
    monkeypatch.setattr(report, "MOST", rest + 1050)
    text = report.render(comparison, [lines, *others], colours(comparison), "command", {})
    assert (text.count("<svg"), text.count("<img")) == (0, 2)
    assert "figures/other1.png" in text
