"""What figures say of themselves, and how wide they are."""

from dataclasses import replace

import pytest
from folders import curve, write_run

from rl_plasticity.comparison.figures import draw, for_page
from rl_plasticity.comparison.groups import group
from rl_plasticity.comparison.loading import read
from rl_plasticity.comparison.plotting import COLUMN, PAGE, columns_of_legend
from rl_plasticity.comparison.summary import summarize
from rl_plasticity.runs.folder import RunFolder


def comparison_of(place, seeds):
    runs = []
    for reg, by in (("none", 1.0), ("l2", 2.0)):
        rows = {str(s): curve([by, by + s]) | curve([0.1, 0.2 + s], "q_mean") for s in range(seeds)}
        runs += read(RunFolder(write_run(place / reg, [f"reg={reg}", "total_env_steps=2000"], rows)))
    return summarize(group(runs))


@pytest.mark.parametrize(("seeds", "promised"), [(1, False), (3, False), (5, True)])
def test_a_caption_promises_no_interval_that_is_not_drawn(tmp_path, seeds, promised):
    captions = {drawn.name: drawn.caption for drawn in draw(comparison_of(tmp_path, seeds))}
    assert {"learning_curves", "final_performance", "metrics_other"} <= {*captions}
    for name, caption in captions.items():
        assert ("interval" in caption.replace("without an interval", "")) == promised, (name, caption)
        assert ("thin line" in caption) <= (seeds > 1)


def test_a_page_s_learning_curves_are_as_wide_as_the_page_and_a_paper_s_as_its_column(tmp_path):
    comparison = comparison_of(tmp_path, 2)
    figures = {drawn.name: drawn for drawn in draw(comparison)}
    assert figures["learning_curves"].figure.get_figwidth() == COLUMN
    shown = for_page(comparison, figures["learning_curves"])
    assert shown.figure.get_figwidth() == PAGE
    assert len(shown.curves) == 1
    assert for_page(comparison, figures["final_performance"]) is figures["final_performance"]


def test_a_metric_that_is_0_throughout_has_no_panel_and_one_that_is_once_not_has(tmp_path):
    zero, once = (curve(values, name) for values, name in (([0, 0, 0], "N/reset_units"), ([0, 1, 0], "N/resets")))
    rows = {str(seed): curve([1.0, 2.0, 3.0]) | zero | once for seed in range(2)}
    folder = write_run(tmp_path / "run", ["reg=none", "total_env_steps=3000"], rows)
    panels = [
        axes.get_title() for drawn in draw(summarize(group(read(RunFolder(folder))))) for axes in drawn.figure.axes
    ]
    assert "N/resets" in panels
    assert "N/reset_units" not in panels


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 7])
def test_every_panel_of_metrics_has_its_steps_named_below_it_or_in_the_panel_below(tmp_path, number):
    names = [f"critic/m{i}" for i in range(number)]
    rows = {"0": curve([1.0, 2.0])}
    for name in names:
        rows["0"] |= curve([1.0, 2.0], name)
    folder = write_run(tmp_path / "run", ["reg=none", "total_env_steps=2000"], rows)
    (drawn,) = (d for d in draw(summarize(group(read(RunFolder(folder))))) if d.name == "metrics_critic")
    panels = {(at.rowspan.start, at.colspan.start): axes for axes in drawn.curves if (at := axes.get_subplotspec())}
    assert len(panels) == number
    for (row, column), axes in panels.items():
        assert (axes.get_xlabel() == "env steps") == ((row + 1, column) not in panels)


@pytest.mark.parametrize(
    ("values", "low", "high"), [([0.1, 0.9], 0.0, 1.03), ([0.01, 0.02], 0.0, 0.0309), ([0.8, 0.9], 0.7, 1.009)]
)
def test_an_axis_of_accuracies_is_whole_unless_all_of_them_are_high_or_low(tmp_path, values, low, high):
    # Three tasks, since two points are no curve whose values count.
    rows = {"0": {"task/train_accuracy": [(60, values[0]), (120, values[0]), (180, values[1])]}}
    rows["0"]["task/index"] = [(60, 0.0), (120, 1.0), (180, 2.0)]
    folder = write_run(tmp_path / "run", ["reg=none", "num_tasks=3"], rows, "supervised")
    drawn = next(draw(summarize(group(read(RunFolder(folder))))))
    bottom, top = next(iter(drawn.curves)).get_ylim()
    assert (bottom, top) == (pytest.approx(low), pytest.approx(high))


def test_a_legend_in_several_lines_has_lines_of_about_equal_length():
    assert columns_of_legend(["four"] * 4, 2.5) == 2  # three would fit, which would leave the fourth alone
    assert columns_of_legend(["four"] * 4, 6.9) == 4
    assert columns_of_legend(["a name that is wider than the figure"] * 3, 1.0) == 1


@pytest.mark.parametrize(("label", "beside"), [("l2", True), ("reg.coef=" + "1" * 30, False)])
def test_the_legend_of_accuracy_over_updates_stands_beside_it_if_its_names_are_short(tmp_path, label, beside):
    rows = {"0": {name: [(60, 0.5), (120, 0.6)] for name in ("task/train_accuracy", "eval/train_accuracy")}}
    rows["0"]["task/index"] = [(60, 0.0), (120, 1.0)]
    folder = write_run(tmp_path / "run", ["reg=none"], rows, "supervised")
    (one,) = group(read(RunFolder(folder)))
    comparison = summarize([replace(one, label=label)])
    (drawn,) = (d for d in draw(comparison) if d.name == "accuracy_over_updates")
    drawn.figure.draw_without_rendering()
    (legend,), (axes,) = drawn.figure.legends, drawn.curves
    assert (legend.get_window_extent().x0 > axes.get_window_extent().x1) == beside
