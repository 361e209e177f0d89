"""Which settings are chosen, by what, and what is refused."""

import csv
import math

import pytest
from folders import curve, tasks, write_run

from rl_plasticity.compare import compare, frame, parse, show
from rl_plasticity.comparison.choosing import choose
from rl_plasticity.comparison.figures import draw
from rl_plasticity.comparison.groups import group
from rl_plasticity.comparison.loading import read
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs.folder import RunFolder


def scored(validation, test):
    """A run of two tasks, with its accuracies at the end of each."""
    rows = tasks([1.0, 1.0]) | curve(test, "task/test_accuracy", 60)
    return rows | (curve(validation, "task/validation_accuracy", 60) if validation else {})


def sweep(folder, chosen, accuracies, seeds=2):
    """Runs of one setting whose seeds differ a little, on test images the other way round."""
    rows = {
        s: scored([v + 0.01 * s for v in accuracies[0]], [v - 0.01 * s for v in accuracies[1]]) for s in range(seeds)
    }
    write_run(folder, [*chosen, "num_tasks=2"], rows, "supervised")


@pytest.fixture
def runs(tmp_path):
    """Spectral is best on validation images at 1e-3, on test images at 1e-2; first tasks and AUCs say otherwise."""
    folder = tmp_path / "runs"
    sweep(folder / "a", ["reg=spectral", "reg.coef=1e-4"], ([0.9, 0.5], [0.9, 0.5]))
    sweep(folder / "b", ["reg=spectral", "reg.coef=1e-3"], ([0.3, 0.7], [0.3, 0.6]), seeds=3)
    sweep(folder / "c", ["reg=spectral", "reg.coef=1e-2"], ([0.9, 0.6], [0.9, 0.9]))
    sweep(folder / "d", ["reg=l2", "reg.coef=1e-4"], ([0.2, 0.4], [0.2, 0.3]))
    sweep(folder / "e", ["reg=l2", "reg.coef=1e-3"], ([0.2, 0.2], [0.2, 0.8]))
    sweep(folder / "f", [], ([0.1, 0.1], [0.1, 0.1]))
    return folder


def groups_in(folder):
    return group([run for place in sorted(folder.iterdir()) for run in read(RunFolder(place))])


def test_the_best_on_validation_images_is_compared_on_test_images(runs):
    comparison = compare(runs, choose=["reg.coef"])
    assert [row.group.label for row in comparison.rows] == ["none", "l2 coef=1e-4", "spectral coef=1e-3"]
    assert [row["mean"].value for row in comparison.rows] == pytest.approx([0.095, 0.295, 0.59])
    assert comparison.metric == "task/test_accuracy"
    assert comparison.verdict().startswith(
        "Chosen: l2 coef=1e-4 (0.405) from l2 coef=1e-3 (0.205), by task/validation_accuracy of 2 seeds at task 2; "
        "spectral coef=1e-3 (0.71) from spectral coef=0.01 (0.605), spectral coef=1e-4 (0.505), "
        "by task/validation_accuracy of 2 to 3 seeds at task 2. 3 groups of "
    )


def test_a_choice_at_the_edge_of_what_was_tried_is_warned_of(runs):
    warnings = compare(runs, choose=["reg.coef"]).warnings
    assert not any("tried" in warning for warning in warnings)  # spectral's is in the middle, l2 has two
    sweep(runs / "g", ["reg=l2", "reg.coef=1e-5"], ([0.2, 0.9], [0.2, 0.3]))
    warnings = compare(runs, choose=["reg.coef"]).warnings
    assert "l2 coef=1e-5: reg.coef=1e-5 is the smallest tried; a better one may lie beyond" in warnings


def test_a_frame_of_several_folders_has_the_groups_that_compare_makes(runs):
    pytest.importorskip("pandas")
    both = frame(runs / "b", runs / "f")
    assert [*both.columns][:3] == ["group", "task", "seed"]
    ends = both[(both.metric == "task/test_accuracy") & (both.step == 2)]
    assert ends.groupby("group").value.mean().to_dict() == pytest.approx({"none": 0.095, "spectral": 0.59})
    assert set(both["reg.name"]) == {"none", "spectral"}


def test_what_is_chosen_stands_on_the_page_and_the_command_takes_the_option(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("rl_plasticity.comparison.figures.draw", lambda comparison: [])  # seconds
    places, options = parse([str(runs), f"out={tmp_path / 'out'}", "choose=reg.coef,lr"])
    assert options["choose"] == ["reg.coef", "lr"]
    compare(*places, **options | {"choose": ["reg.coef"]})
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Chosen: l2 coef=1e-4 (0.405) from" in page
    assert "choose=reg.coef" in page
    assert page.count("<h3>Candidates</h3>") == 2
    rows = [*csv.DictReader((tmp_path / "out" / "comparison.csv").read_text().splitlines())]
    assert {row["group"] for row in rows if "candidate" not in row["statistic"]} == {
        "none", "l2 coef=1e-4", "spectral coef=1e-3",
    }  # fmt: skip
    tried = {row["group"]: row for row in rows if row["statistic"] == "candidate_mean"}
    assert {label.partition(" ")[0] for label in tried} == {"l2", "spectral"}
    assert len(tried) == 5
    assert [tried["spectral coef=0.01"][name] for name in ("metric", "step", "n")] == [
        "task/validation_accuracy", "2", "2",
    ]  # fmt: skip
    assert float(tried["spectral coef=0.01"]["value"]) == pytest.approx(0.605)
    assert "spectral coef=1e-3" not in {row["group"] for row in rows if row["statistic"] == "candidate_gap"}


def test_a_setting_that_is_not_named_is_not_chosen(tmp_path):
    for i, (lr, coef) in enumerate([(1, 1e-3), (1, 1e-2), (2, 1e-3), (2, 1e-2)]):
        sweep(tmp_path / "runs" / str(i), ["reg=l2", f"lr={lr}", f"reg.coef={coef}"], ([0.5, 0.1 * i], [0.5, 0.5]))
    groups = groups_in(tmp_path / "runs")
    assert [g.settings["reg.coef"] for g in choose(groups, ["reg.coef"], None, [])[0]] == [1e-2, 1e-2]
    ((only,), told, _) = choose(groups, ["reg.coef", "lr"], None, [])
    assert (only.settings["lr"], only.settings["reg.coef"]) == (2, 1e-2)
    assert told.count(" (0.") == 4


def test_of_equal_means_the_first_is_chosen_and_a_run_that_is_not_finite_never_is(tmp_path):
    for i, end in enumerate([0.5, 0.5, math.nan]):
        sweep(tmp_path / "runs" / str(i), ["reg=l2", f"reg.coef={10.0**-i}"], ([0.9, end], [0.5, 0.5]))
    (chosen,), told, _ = choose(groups_in(tmp_path / "runs"), ["reg.coef"], None, [])
    assert chosen.settings["reg.coef"] == 0.1
    assert "coef=0.01 (-inf)" in told


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"choose": ["reg.coe"]}, "'reg.coe'.*'reg.coef'"),
        ({"choose": ["reg.name"]}, "choose=reg.name"),
        ({"choose": ["reg.coef"], "metric": "task/train_acc"}, "task/train_acc"),
        ({"choose": ["reg.coef"], "choose_seeds": [0, 1, 2]}, "choose_seeds.*with seeds 0, 1"),
        ({"choose": ["reg.coef"], "choose_seeds": [7]}, "choose_seeds.*with seeds 0, 1"),
        ({"choose_seeds": [1]}, "choose=NAME"),
        ({"better": "low"}, "better.*higher.*lower.*'low'"),
    ],
)
def test_what_cannot_be_chosen_is_one_line(runs, options, named):
    with pytest.raises(SettingsError, match=named):
        compare(runs, **options)


def test_without_validation_images_nothing_is_chosen_and_training_accuracies_are_by_themselves(runs):
    assert len(compare(runs, metric="task/train_accuracy", choose=["reg.coef"]).rows) == 3
    rows = {0: scored(None, [0.5, 0.9])}
    write_run(runs / "g", ["reg=l2", "reg.coef=1e-2", "num_tasks=2"], rows, "supervised")
    with pytest.raises(SettingsError, match=r"task/validation_accuracy.*/g \(seed 0\)"):
        compare(runs, choose=["reg.coef"])


def returns(folder, *of_coefs, name="eval/return"):
    """Runs of l2 in reinforcement learning: of each strength the seeds' values at the end."""
    for i, values in enumerate(of_coefs):
        rows = {seed: curve([0.0, value], name) for seed, value in enumerate(values)}
        write_run(folder / str(i), ["reg=l2", f"reg.coef={i + 1}", "total_env_steps=2000"], rows)
    return folder


def test_returns_are_chosen_by_themselves_and_a_warning_says_that_this_flatters(tmp_path):
    comparison = compare(returns(tmp_path / "runs", [1, 2], [5, 6], [3, 4]), choose=["reg.coef"])
    assert [row.group.settings["reg.coef"] for row in comparison.rows] == [2]
    assert "coef=2 (5.5) from coef=3 (3.5), coef=1 (1.5), by eval/return of 2 seeds at env step 2000" in (
        comparison.chosen
    )
    assert any("made the choice too" in warning and "choose_seeds=" in warning for warning in comparison.warnings)
    decided = compare(returns(tmp_path / "decided", [1, 2, 1], [8, 9, 8]), choose=["reg.coef"])
    assert "apart" not in decided.chosen
    one = compare(returns(tmp_path / "one", [1], [8]), choose=["reg.coef"])
    assert "1 seed" in one.chosen
    assert "chance" in one.chosen


APART = "these seeds do not tell the two apart"


def test_a_choice_that_the_seeds_do_not_decide_says_so_by_the_statistics_of_a_plain_comparison(tmp_path, capsys):
    folder = returns(tmp_path / "runs", [1, 9, 2, 8], [3, 7, 6, 5], [0, 0, 1, 0])
    comparison = compare(folder, choose=["reg.coef"])
    (choice,) = comparison.candidates
    plain = compare(folder, baseline="coef=2")
    assert [row.label for row in choice.rows] == ["coef=2", "coef=1", "coef=3"]
    for row in plain.rows:
        (same,) = [other for other in choice.rows if other.label == row.label]
        for name in ("mean", "gap", "joint"):
            assert same.get(name) == row.get(name), (row.label, name)
    low, high = plain.rows[0]["joint"].interval
    assert low < 0 < high
    said = f"; the next is 0.25 below it (95 % interval that holds for all 2 groups at once [{low:.2f}, {high:.2f}])"
    assert said in comparison.chosen
    assert comparison.chosen.endswith(f"{APART}. ")
    assert comparison.verdict().startswith(comparison.chosen)
    show(comparison)
    shown = capsys.readouterr().out
    assert "Chosen by eval/return at env step 2000, the first:\ngroup   seeds  final" in shown
    assert shown.index("coef=3  ") > shown.index("coef=1  ")


def test_after_a_choice_the_figure_of_the_sensitivity_shows_all_candidates_of_all_methods(runs):
    comparison = compare(runs, choose=["reg.coef"])
    drawn = next(drawn for drawn in draw(comparison) if "sensitivity" in drawn.name)
    assert drawn.name == "sensitivity_of_the_choice"
    (axes,) = drawn.figure.axes
    lines = {line.get_label(): [*map(list, line.get_xydata())] for line in axes.lines}
    assert lines["spectral"] == [pytest.approx(p) for p in ([1e-4, 0.505], [1e-3, 0.71], [1e-2, 0.605])]
    assert lines["l2"] == [pytest.approx(p) for p in ([1e-4, 0.405], [1e-3, 0.205])]
    assert "task/validation_accuracy at task 2" in drawn.caption


def test_seeds_that_decide_are_not_compared(tmp_path):
    folder = returns(tmp_path / "runs", [9, 9, 1], [1, 1, 9])  # by the last seed the second, by all the first
    comparison = compare(folder, choose=["reg.coef"], choose_seeds=[2])
    (row,) = comparison.rows
    assert (row.group.settings["reg.coef"], row["mean"].value) == (2, 1)
    assert [run.seed for run in row.group.runs] == [0, 1]
    assert not any("made the choice too" in warning for warning in comparison.warnings)


def test_what_is_better_where_it_is_lower_is_chosen_where_it_is_lowest(tmp_path):
    folder = returns(tmp_path / "runs", [0.4], [0.1], [0.3], name="critic/dormant")
    assert compare(folder, metric="critic/dormant", choose=["reg.coef"]).rows[0].group.settings["reg.coef"] == 2
    other = compare(folder, metric="critic/dormant", choose=["reg.coef"], better="higher")
    assert other.rows[0].group.settings["reg.coef"] == 1


def test_the_command_reads_seeds_as_numbers(tmp_path):
    assert parse(["a", "choose=reg.coef", "choose_seeds=3,4"])[1]["choose_seeds"] == [3, 4]
    with pytest.raises(SettingsError, match=r"choose_seeds\b.*'x'"):
        parse(["a", "choose=reg.coef", "choose_seeds=x"])
