import numpy as np
import pytest
from folders import write_run

from papers import layout
from rl_plasticity.comparison import loading
from rl_plasticity.runs.folder import RunFolder

TASK = ["num_tasks=2", "epochs_per_task=10"]


def supervised(folder, *settings, seeds):
    """Runs of two tasks of 40 and 60 updates; `seeds` maps a seed to its metrics' rows."""
    ends = {"task/index": [(40, 0), (100, 1)]}
    rows = {str(seed): ends | metrics for seed, metrics in seeds.items()}
    return loading.read(RunFolder(write_run(folder, [*TASK, *settings], rows, "supervised")))


def of_task(*values):
    return {"task/train_accuracy": list(zip((40, 100), values, strict=True))}


def lines(axes):
    return {line.get_color(): (line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.lines}


def test_a_line_is_the_mean_of_the_seeds_and_its_band_one_standard_error(tmp_path):
    runs = supervised(tmp_path / "a", seeds={0: of_task(0.2, 0.4), 1: of_task(0.6, 0.5)})
    axes = layout.draw({"metrics": ["task/train_accuracy"], "x": "task"}, {"none": runs}).axes[0]
    assert lines(axes) == {"gray": ([1.0, 2.0], [pytest.approx(0.4), pytest.approx(0.45)])}
    corners = axes.collections[0].get_paths()[0].vertices
    assert {round(y, 6) for x, y in corners if x == 1} == {0.2, 0.6}  # sd 0.2828 / sqrt(2)
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("training accuracy", "task")
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["no method"]


def test_rows_and_columns_are_the_values_of_their_settings_and_metrics_are_rows_too(tmp_path):
    spec = {"rows": "net.layer_norm", "columns": "task.name", "metrics": ["task/train_accuracy"]}
    runs = [
        run
        for i, (task, norm) in enumerate([("label_flip", "false"), ("random_labels", "true")])
        for run in supervised(
            tmp_path / f"{i}", f"task={task}", f"net.layer_norm={norm}", seeds={0: of_task(0.1 * (i + 1), 0.5)}
        )
    ]
    figure = layout.draw(spec, {"none": runs})
    assert [axes.get_title() for axes in figure.axes] == [
        "no LayerNorm, label_flip", "no LayerNorm, random_labels",
        "LayerNorm, label_flip", "LayerNorm, random_labels",
    ]  # fmt: skip
    assert [[y[1][0] for y in lines(axes).values()] for axes in figure.axes] == [[0.1], [], [], [0.2]]
    assert [text.get_text() for text in figure.axes[1].texts] == ["no steps that\nall runs have"]


def test_epochs_count_from_the_end_of_the_tasks_before(tmp_path):
    curve = {"eval/test_accuracy": [(0, 0.0), (20, 0.1), (40, 0.2), (70, 0.3), (100, 0.4)]}
    runs = supervised(tmp_path / "a", seeds={0: curve})
    spec = {"metrics": ["eval/test_accuracy"], "x": "epoch"}
    whole = layout.draw(spec, {"none": runs}).axes[0]
    assert lines(whole)["gray"][0] == [0, 5, 10, 17.5, 25]  # 10 epochs of 4 updates; then an epoch is counted alike
    second = layout.draw(spec | {"tasks_before": 1}, {"none": runs}).axes[0]
    assert lines(second)["gray"] == ([0, 5, 10], [0.2, 0.3, 0.4])  # 10 epochs of 6 updates


def test_strengths_are_means_over_the_run_in_their_order_and_what_has_none_is_a_dotted_line(tmp_path):
    methods = {
        "none": supervised(tmp_path / "none", seeds={0: of_task(0.2, 0.4)}),
        "spectral": [
            run
            for coef, end in [("1e-2", 0.9), ("1e-4", 0.5)]
            for run in supervised(tmp_path / coef, "reg=spectral", f"reg.coef={coef}", seeds={0: of_task(0.1, end)})
        ],
    }
    axes = layout.draw({"kind": "strengths", "over": "reg.coef", "metrics": ["task/train_accuracy"]}, methods).axes[0]
    flat = next(line for line in axes.lines if line.get_linestyle() == ":")
    assert flat.get_ydata() == pytest.approx([0.3, 0.3])
    curve = next(line for line in axes.lines if line.get_marker() == "o")
    assert curve.get_xdata().tolist() == [1e-4, 1e-2]
    assert curve.get_ydata() == pytest.approx([0.3, 0.5])
    assert axes.get_xscale() == "log"


def test_a_row_is_a_method_s_mean_over_a_run_with_an_interval_and_a_mark_for_each_value(tmp_path):
    def of(label, norm, *ends):
        seeds = {i: {"eval/test_accuracy": [(10, 0.0), (20, end), (40, end)]} for i, end in enumerate(ends)}
        arguments = ["reg=l2"] if label == "l2" else []
        return supervised(tmp_path / label / norm, f"net.layer_norm={norm}", *arguments, seeds=seeds)

    methods = {"none": [*of("none", "true", 0.4, 0.8), *of("none", "false", 0.2, 0.2)], "l2": of("l2", "false", 0.6)}
    panel = {"kind": "rows", "metric": "eval/test_accuracy", "by": "net.layer_norm"}
    axes, _ = layout.draw({"columns": 2, "panels": [panel | {"methods": ["none", "l2"]}, panel]}, methods).axes
    marks = {(line.get_color(), line.get_ydata()[0]): line.get_xdata()[0] for line in axes.lines}
    assert list(marks.values()) == pytest.approx([0.45, 0.15, 0.45])  # the first value counts 10 updates of 40
    (true, below), (false, above), (_, second) = marks
    assert true != false
    assert above < below < 0.5 < second < 1.5
    ((low, _), (high, _)) = axes.collections[0].get_segments()[0]
    half = 12.706 * np.std([0.3, 0.6], ddof=1) / np.sqrt(2)  # t of one degree of freedom
    assert (low, high) == pytest.approx((0.45 - half, 0.45 + half), rel=1e-3)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["no method", "l2"]
    assert axes.get_ylim() == (1.5, -0.5)  # the first on top
    header, *written = layout.numbers({"columns": 1, "panels": [panel]}, methods)
    lines_of = [dict(zip(header, line, strict=True)) for line in written]
    of_none = [line for line in lines_of if (line["method"], line["mark"]) == ("none", "true")]
    means = {line["seed"]: float(line["mean_of_run"]) for line in of_none}
    assert means == pytest.approx({"0": 0.3, "1": 0.6, "": 0.45})
    assert (float(of_none[2]["low"]), float(of_none[2]["high"])) == pytest.approx((0.45 - half, 0.45 + half), rel=1e-3)
    assert [line["n"] for line in of_none] == ["1", "1", "2"]
    assert len(written) == 3 + 3 + 2


def test_rows_leave_out_what_is_not_finite_and_say_so_and_runs_that_share_no_step(tmp_path):
    def of(label, *curves):
        seeds = {seed: {"eval/test_accuracy": curve} for seed, curve in enumerate(curves)}
        return supervised(tmp_path / label, *([] if label == "none" else [f"reg={label}"]), seeds=seeds)

    ends = [(10, 0.2), (20, 0.4)], [(10, 0.4), (20, 0.6)]
    methods = {
        "none": of("none", *ends),
        "l2": of("l2", *ends, [(10, 0.2), (20, np.inf)], [(10, np.nan), (20, 0.1)]),
        "swr": of("swr", [(10, 0.2)], [(11, 0.2)]),
    }
    spec = {"columns": 1, "panels": [{"kind": "rows", "metric": "eval/test_accuracy"}]}
    axes = layout.draw(spec, methods).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["no method", "l2 (2 not finite)", "swr"]
    assert [line.get_xdata()[0] for line in axes.lines] == pytest.approx([0.4, 0.4])
    means = {line[1]: line[5:] for line in layout.numbers(spec, methods)[1:] if not line[4]}
    assert means["l2"] == means["none"]
    assert means["l2"][-1] == "2"
    assert "swr" not in means


def test_a_table_is_mean_and_standard_deviation_at_the_end_with_the_number_of_seeds(tmp_path):
    methods = {
        "WD": supervised(tmp_path / "wd", seeds={0: of_task(0.1, 0.4), 1: of_task(0.1, 0.6)}),
        "WRS": supervised(tmp_path / "wrs", "reg=wrs", seeds={0: of_task(0.1, 0.7)}),
    }
    spec = {"kind": "table", "by": ["data.name"], "metrics": ["task/train_accuracy"]}
    assert layout.table(spec, methods) == [
        ["method", "digits"], ["WD", f"0.5000 ± {np.std([0.4, 0.6], ddof=1):.4f} (2)"], ["WRS", "0.7000 (1)"],
    ]  # fmt: skip
