import csv
from functools import partial

import numpy as np
import pytest
from conftest import refused
from folders import curve, tasks, write_run
from scipy.stats import sem, t, ttest_ind

from rl_plasticity.comparison import table
from rl_plasticity.comparison.groups import group
from rl_plasticity.comparison.loading import read
from rl_plasticity.comparison.table import summarize
from rl_plasticity.errors import SettingsError
from rl_plasticity.metrics import statistics
from rl_plasticity.runs.folder import RunFolder

STEPS = ["total_env_steps=3000", "random_env_steps=0"]
PERIODIC = ["reset=periodic", "reset.every_updates=1000", *STEPS]


def groups_of(tmp_path, *folders, mix=(), kind="train"):
    """Of pairs of settings and, for each seed, the curve."""
    found = []
    for i, (arguments, rows) in enumerate(folders):
        found += read(RunFolder(write_run(tmp_path / str(i), arguments, {str(k): v for k, v in rows.items()}, kind)))
    return group(found, mix)


def finals(*values):
    """Seeds 0, 1, ... that end at these returns after 3 evaluations."""
    return {seed: curve([0.0, value / 2, value]) for seed, value in enumerate(values)}


def test_the_table_s_numbers_are_those_by_hand(tmp_path):
    groups = groups_of(tmp_path, (STEPS, finals(1, 2, 3, 4, 100)), (PERIODIC, finals(0, 1, 2, 3, 4)))
    assert summarize(groups).baseline.label == "none"
    c = summarize(groups, target=2, baseline="none + periodic")
    none, _ = c.rows
    assert none["mean"].value == 22
    assert none["iqm"].value == 3  # of 5, one is left out at either end
    assert none["standard_error"].value == pytest.approx(np.std([1, 2, 3, 4, 100], ddof=1) / np.sqrt(5))
    assert none["area_under_curve"].value == pytest.approx(22 / 2)  # mean of 0, v/2, v
    assert none["area_under_curve"].interval == pytest.approx(t.interval(0.95, 4, 11, sem([0.5, 1, 1.5, 2, 50])))
    assert "11.0 [-16.1, 38.1]" in c.table()[1]
    assert none["steps_to_reach"].value == 3000
    assert sorted(none["steps_to_reach"].runs) == [2000, 2000, 3000, 3000, np.inf]
    # against 0..4: 1 beats 1 and ties 1, 2 beats 2 and ties, ...; 100 beats 5
    assert none["probability_of_improvement"].value == pytest.approx((1.5 + 2.5 + 3.5 + 4.5 + 5) / 25)
    assert none["gap"].value == 20
    differences = np.array([1, 1, 1, 1, 96])
    np.testing.assert_allclose(none["gap"].interval, t.interval(0.95, 4, 20, sem(differences)))
    assert none["gap_all_at_once"].interval == none["gap"].interval  # the one group that is measured against another
    assert none["mean"].interval == pytest.approx(t.interval(0.95, 4, 22, sem([1, 2, 3, 4, 100])))


def test_seeds_are_paired_where_most_runs_have_a_partner_and_not_elsewhere(tmp_path):
    def gap(folder, runs, by):
        shifted = {seed + by: run for seed, run in finals(5, 6, 7).items()}
        groups = groups_of(tmp_path / folder, (STEPS, finals(*runs)), (PERIODIC, shifted))
        return summarize(groups, baseline="none + periodic").rows[0]["gap"]

    both = gap("a", (1, 2, 3), 1)  # seeds 1 and 2 of three
    assert (both.value, both.note, both.n) == ((2 - 5 + 3 - 6) / 2, "2 pairs", 2)
    few = gap("b", (1, 2, 3, 4), 2)  # seeds 2 and 3 of four
    assert (few.value, few.note) == (2.5 - 6, "unpaired, 4 and 3 runs")
    none = gap("c", (1, 2, 3, 4), 10)
    assert (none.value, none.note) == (2.5 - 6, "unpaired, 4 and 3 runs")


def said_of(tmp_path, runs, others):
    """The verdict on a method's runs against those of others, by seed."""
    none, l2 = ({seed: curve([float(x)]) for seed, x in of.items()} for of in (others, runs))
    return summarize(groups_of(tmp_path, (STEPS, none), (["reg=l2", *STEPS], l2)))


def test_two_shared_seeds_of_ten_decide_nothing_that_all_twenty_runs_leave_open(tmp_path):
    rng = np.random.default_rng(2)
    runs, others = rng.normal(0, 4, 10), rng.normal(0, 4, 10)
    others[:2] = runs[8:] - [3.0, 3.05]  # the two that share a seed
    c = said_of(tmp_path, dict(enumerate(runs)), {seed + 8: x for seed, x in enumerate(others)})
    gap = c.rows[1]["gap"]
    assert (gap.note, gap.value) == ("unpaired, 10 and 10 runs", pytest.approx(runs.mean() - others.mean()))
    assert gap.interval == pytest.approx((*ttest_ind(runs, others, equal_var=False).confidence_interval(),))
    assert "excludes 0" not in c.verdict()


@pytest.mark.parametrize("pairs", range(2, 9))
def test_pairs_that_all_differ_by_the_same_have_no_interval_and_decide_from_six_on_as_a_sign_test(tmp_path, pairs):
    runs = {seed: 10.0 * seed for seed in range(pairs)}
    c = said_of(tmp_path, {seed: x + 1 for seed, x in runs.items()}, runs)
    assert c.rows[1]["gap"].interval is None
    assert c.rows[1].undecided == (pairs < 6)
    assert ("excludes 0" in c.verdict()) == (pairs >= 6)
    assert f"{pairs} pairs" in c.verdict()
    assert "[1.0" not in c.verdict() + c.to_csv()


def test_the_verdict_says_of_each_method_where_it_is_and_how_many_are_better_and_worse(tmp_path):
    spread = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    ends = {"none": 5, "l2": 9, "swr": 1, "wrs": 5.05, "spectral": 12}
    folders = [
        ([f"reg={name}", *STEPS], finals(*(end + spread[:: 1 if name != "wrs" else -1]).tolist()))
        for name, end in ends.items()
    ]
    groups = groups_of(tmp_path, *folders)
    verdict = summarize(groups).verdict()
    better, worse, undecided = (
        verdict.partition(side)[2].partition(". ")[0] for side in ("Better:", "Worse:", "Undecided:")
    )
    assert ["l2" in better, "spectral" in better, "swr" in worse, "wrs" in undecided] == [True] * 4
    assert "swr" not in better + undecided
    assert "the baseline, no method (none), 2 groups did better and 1 did worse" in verdict
    assert "l2, 1 group did better and 3 did worse" in summarize(groups, baseline="l2").verdict()
    lower = summarize(groups, baseline="l2", direction="lower").verdict()
    assert "l2, 3 groups did better and 1 did worse" in lower


DRAWN = {
    "normal": lambda rng, n: rng.normal(size=n),
    "skewed": lambda rng, n: np.exp(rng.normal(size=n)),
    "heavy": lambda rng, n: rng.standard_t(2, size=n),
    "solved or not": lambda rng, n: rng.integers(2, size=n) + 0.01 * rng.normal(size=n),
    "five of a hundred": lambda rng, n: (rng.random(n) < 0.2).astype(float),
}


@pytest.mark.parametrize("drawn", DRAWN.values(), ids=DRAWN)
@pytest.mark.parametrize(
    ("n", "m", "shared"), [(3, 3, 3), (5, 5, 5), (10, 10, 2), (10, 10, 10), (2, 9, 1), (3, 12, 0), (7, 6, 6)]
)
def test_runs_of_the_same_method_are_told_apart_in_one_of_twenty_comparisons_at_most(n, m, shared, drawn, monkeypatch):
    monkeypatch.setattr(statistics, "permutation_p", partial(statistics.permutation_p, resamples=200))
    rng, times = np.random.default_rng(0), 400
    told = 0
    for _ in range(times):
        x, y = (
            dict(zip(range(first, first + k), drawn(rng, k).tolist(), strict=True))
            for first, k in ((0, n), (n - shared, m))
        )
        gap = table.gap([x], [y])
        told += gap.p <= 0.05 and not gap.includes_0
    assert told / times <= 0.05 + 5 * (0.05 * 0.95 / times) ** 0.5


@pytest.mark.parametrize(("n", "shared"), [(5, 5), (6, 6), (10, 2), (10, 9)])
def test_the_interval_of_a_gap_covers_it_in_19_of_20_comparisons(n, shared, monkeypatch):
    monkeypatch.setattr(statistics, "permutation_p", lambda *samples: 0.0)
    rng, times = np.random.default_rng(1), 4000
    covered = 0
    for _ in range(times):
        of_seed = rng.normal(size=2 * n)
        x, y = (
            dict(zip(seeds, (of_seed[seeds] + rng.normal(size=n)).tolist(), strict=True))
            for seeds in (np.arange(n), np.arange(n) + n - shared)
        )
        low, high = table.gap([x], [y]).interval
        covered += low <= 0 <= high
    assert covered / times >= 0.95 - 5 * (0.05 * 0.95 / times) ** 0.5


def test_unequal_lengths_are_compared_at_the_last_common_step_and_the_short_one_is_marked(tmp_path):
    short = {0: curve([5.0, 6.0]), 1: curve([7.0, 8.0, 9.0])}
    c = summarize(groups_of(tmp_path, (STEPS, finals(10, 20)), (PERIODIC, short)))
    assert c.at == {"cheetah-run": 2000}
    assert [row["mean"].value for row in c.rows] == [7.5, 7.0]
    assert [line[0] for line in c.table()] == ["group", "none", "none + periodic*"]
    assert [w for w in c.warnings if "none + periodic is unfinished" in w]


def test_the_baseline_is_no_method_then_the_reset_then_none_or_one_that_is_named(tmp_path):
    two, l2 = finals(1, 2), (["reg=l2", *STEPS], finals(1, 2))
    assert summarize(groups_of(tmp_path / "a", (STEPS, two), l2)).baseline.label == "none"
    assert summarize(groups_of(tmp_path / "c", (PERIODIC, two), l2)).baseline.label == "none + periodic"
    groups = groups_of(tmp_path / "b", (["reg=swr", *STEPS], two), l2)
    c = summarize(groups)
    assert c.baseline is None
    assert any("no baseline" in w for w in c.warnings)
    assert not any("gap" in cell for cell in c.table()[0])
    assert summarize(groups, baseline="swr").baseline.label == "swr"
    refused(lambda: summarize(groups, baseline="swrr"), match=r"'swrr'.*'swr'")


def test_several_tasks_are_strata(tmp_path):
    folders = [
        ([f"env={e}-run", *STEPS], finals(*v)) for e, v in (("cheetah", (100, 300)), ("walker", (800, 800, 900)))
    ]
    c = summarize(groups_of(tmp_path, *folders, mix=["env.name"]))
    (row,) = c.rows
    assert row["mean"].value == pytest.approx((200 + 2500 / 3) / 2)
    assert row["iqm"].value == pytest.approx((300 + 800 + 800) / 3)  # of all 5 together
    assert row.seeds == 2


def test_a_task_that_a_group_lacks_is_in_no_statistic(tmp_path):
    folders = [(["env=cheetah-run", *STEPS], finals(1, 2)), (["env=walker-run", *STEPS], finals(500, 600))]
    folders += [(["env=cheetah-run", *PERIODIC], finals(3, 4))]
    c = summarize(groups_of(tmp_path, *folders, mix=["env.name"]))
    assert [*c.steps] == ["cheetah-run"]
    assert c.rows[0]["mean"].value == 1.5  # of one task, in its own scale
    assert any("walker-run is left out" in w for w in c.warnings)


def test_supervised_runs_are_compared_by_task_and_by_the_test_accuracy_where_all_have_it(tmp_path):
    rows = {0: tasks([1.0, 0.8, 0.6]), 1: tasks([0.9, 0.7, 0.5])}
    short = {0: tasks([1.0, 1.0]), 1: tasks([0.9, 0.9])}
    c = summarize(groups_of(tmp_path, (["num_tasks=3"], rows), (["reg=l2", "num_tasks=3"], short), kind="supervised"))
    assert (c.metric, c.unit) == ("task/train_accuracy", "task")
    none, l2 = c.rows
    assert none["mean"].value == pytest.approx(0.75)  # at task 2
    assert none["area_under_curve"].value == pytest.approx((1 + 0.8 + 0.9 + 0.7) / 4)
    assert l2.unfinished
    assert not none.unfinished
    rows = {seed: run | curve([0.5, 0.4, 0.3], "task/test_accuracy", 60) for seed, run in rows.items()}
    assert summarize(groups_of(tmp_path / "b", ([], rows), kind="supervised")).metric == "task/test_accuracy"


def test_the_last_third_of_the_tasks_is_measured_against_the_first_and_online_accuracy_is_a_mean_over_tasks(tmp_path):
    rows = {seed: tasks([1.0, 0.8, 0.5]) | curve([0.2, 0.4, 0.9], "task/online_accuracy", 60) for seed in range(2)}
    (row,) = summarize(groups_of(tmp_path, ([], rows), kind="supervised")).rows
    assert row["last_minus_first_third"].value == pytest.approx(-0.5)
    assert row["online_accuracy"].value == pytest.approx(0.5)


def test_any_metric_can_be_compared_and_a_misspelt_one_names_the_nearest(tmp_path):
    rows = {seed: curve([1.0, 2.0]) | curve([3.0, 4.0], "critic/sigma1") for seed in range(2)}
    groups = groups_of(tmp_path, (STEPS, rows))
    assert summarize(groups, "critic/sigma1").rows[0]["mean"].value == 4
    networks = {0: {name: [(0, 1.0)] for name in ("critic/dormant", "critic/dormant/trunk.0", "actor/dormant")}}
    others = groups_of(tmp_path / "networks", ([], networks))
    for given, name, nearest in (
        (others, "dormant", "'actor/dormant'"),
        (groups, "critic/sigma", "'critic/sigma'.*'critic/sigma1'"),
    ):
        refused(lambda given=given, name=name: summarize(given, name), match=nearest)


def test_the_csv_holds_every_run_and_every_statistic(tmp_path):
    c = summarize(
        groups_of(tmp_path, (STEPS, finals(10, 20)), (PERIODIC, finals(1, 2))), target=15, baseline="none + periodic"
    )
    rows = list(csv.DictReader(c.to_csv().splitlines()))
    runs = {(r["group"], r["seed"]): float(r["value"]) for r in rows if r["statistic"] == "final"}
    assert runs == {("none", "0"): 10, ("none", "1"): 20, ("none + periodic", "0"): 1, ("none + periodic", "1"): 2}
    found = {r["statistic"]: r for r in rows if r["group"] == "none" and not r["seed"]}
    assert float(found["mean"]["value"]) == 15
    assert float(found["gap_paired"]["value"]) == 13.5
    assert found["iqm"]["low"] == ""  # of two seeds
    assert float(found["gap_paired"]["low"]) < 0 < float(found["gap_paired"]["high"])  # Student's: 12.7 standard errors
    assert float(found["probability_of_improvement"]["value"]) == 1


def line(*slopes, every, until):
    """Seeds whose curves are straight lines, evaluated every so many steps."""
    return {seed: curve([s * every * (i + 1) / 1000 for i in range(until // every)], every=every)
            for seed, s in enumerate(slopes)}  # fmt: skip


def test_different_evaluation_periods_make_no_difference_of_the_same_runs(tmp_path):
    slopes, settings = (100, 140, 90), ["total_env_steps=759", "random_env_steps=0"]
    often = line(*slopes, every=100, until=700)
    seldom = line(*slopes, every=400, until=400)
    c = summarize(groups_of(tmp_path, (settings, often), ([*settings, "reg=l2"], seldom)), target=30)
    none, l2 = c.rows
    assert c.at == {"cheetah-run": 400}
    assert l2["gap"].value == 0
    assert none["area_under_curve"].value == l2["area_under_curve"].value
    assert none["steps_to_reach"] == l2["steps_to_reach"]
    assert "includes 0" in c.verdict()
    assert any("only the 1 that all runs have, up to 400" in w for w in c.warnings)
    often, seldom = line(1, 2, every=100, until=1200), line(1, 2, every=400, until=1200)
    none, l2 = summarize(groups_of(tmp_path / "b", (STEPS, often), (["reg=l2", *STEPS], seldom))).rows
    assert none["area_under_curve"].value == l2["area_under_curve"].value == pytest.approx(1.5 * 0.8)


def test_runs_that_share_no_step_are_refused(tmp_path):
    thirds, halves = line(1, every=300, until=600), line(1, every=500, until=500)
    with pytest.raises(SettingsError, match=r"share no env step with eval/return"):
        summarize(groups_of(tmp_path / "a", (STEPS, thirds), (["reg=l2", *STEPS], halves)))


def test_returns_of_episodes_that_end_where_they_end_are_the_latest_of_each_run(tmp_path):
    rows = [{0: {"train/return": [(7, 1.0), (30, 2.0)]}}, {0: {"train/return": [(9, 5.0), (20, 6.0), (28, 7.0)]}}]
    c = summarize(groups_of(tmp_path, (STEPS, rows[0]), (["reg=l2", *STEPS], rows[1])), "train/return")
    assert c.at == {"cheetah-run": 28}
    assert [row["mean"].value for row in c.rows] == [1.0, 7.0]


def test_a_run_that_is_not_finite_is_the_worst_in_ranks_and_in_no_mean(tmp_path):
    nan, inf = float("nan"), float("inf")
    diverged = finals(100, 102, 104, 106) | {4: curve([0.0, 50.0, nan])}
    on_the_way = finals(90, 91, 92, 93) | {4: curve([nan, 47.0, 94.0])}
    c = summarize(groups_of(tmp_path, (STEPS, on_the_way), (["reg=l2", *STEPS], diverged)))
    none, l2 = c.rows
    assert (l2["mean"].value, l2["mean"].n) == (103, 4)
    assert l2["iqm"].value == pytest.approx((100 + 102 + 104) / 3)  # of five, the one that diverged is left out below
    assert l2["iqm"].interval[0] == -inf
    assert l2["probability_of_improvement"].value == pytest.approx(4 / 5)
    assert (l2["gap"].n, l2["gap"].note, l2["gap"].value) == (4, "4 pairs", 103 - 91.5)
    assert c.table()[2][1] == "5 (1 not finite)"
    assert (none["mean"].n, none["area_under_curve"].n, none["area_under_curve"].value) == (5, 4, 91.5 / 2)
    assert "nan" not in c.verdict()
    rows = {(r["statistic"], r["group"]): r for r in csv.DictReader(c.to_csv().splitlines()) if not r["seed"]}
    assert [rows[name, "l2"]["n"] for name in ("gap_paired", "mean", "iqm")] == ["4", "4", "5"]


def test_a_group_of_which_most_runs_diverged_is_never_the_highest(tmp_path):
    inf = float("inf")
    diverged = {seed: curve([0.0, 1.0, inf if seed else 900.0]) for seed in range(3)}
    c = summarize(groups_of(tmp_path, (STEPS, finals(1, 2, 3)), (["reg=l2", *STEPS], diverged)))
    assert c.rows[1]["mean"].value == 900
    assert c.rows[1]["iqm"].value == -inf
    assert "is that of no method (none)" in c.verdict()
    none = {0: curve([1.0, 1.0, inf])}
    lost = summarize(groups_of(tmp_path / "c", (STEPS, finals(1)), (["reg=l2", *STEPS], none)))
    assert "l2, because" in lost.verdict()
    assert "No group has a finite value" in summarize(groups_of(tmp_path / "b", (STEPS, none))).verdict()


def test_with_few_seeds_only_gaps_have_an_interval_which_is_student_s_and_with_one_not_even_these(tmp_path):
    against = {"baseline": "none + periodic"}
    c = summarize(groups_of(tmp_path, (STEPS, finals(110, 120)), (PERIODIC, finals(1, 2))), **against)
    none = c.rows[0]
    assert [none[name].interval for name in ("mean", "iqm", "probability_of_improvement")] == [None] * 3
    assert none["probability_of_improvement"].value == 1
    assert none["gap"].interval == pytest.approx(t.interval(0.95, 1, 113.5, sem([109, 118])))
    assert "includes 0" not in c.verdict()  # 113.5 -+ 57.2
    alone = summarize(groups_of(tmp_path / "b", (STEPS, finals(1, 2))))
    assert any("fewer than 5 seeds" in w and w.endswith(": none") for w in alone.warnings)
    one = summarize(groups_of(tmp_path / "c", (STEPS, finals(10)), (PERIODIC, finals(4))), **against)
    assert (one.rows[0]["gap"].value, one.rows[0]["gap"].interval) == (6, None)
    assert "with 1 seed there is no interval, so this may be chance" in one.verdict()


def test_the_verdict_s_interval_holds_for_all_the_groups_that_it_chose_from(tmp_path):
    rng = np.random.default_rng(0)
    noise = [finals(*rng.normal(10, 3, size=5).tolist()) for _ in range(8)]
    folders = [([f"reg.coef={i + 1}e-3", "reg=l2", *STEPS], rows) for i, rows in enumerate(noise[1:])]
    c = summarize(groups_of(tmp_path, (STEPS, noise[0]), *folders))
    best = max(c.rows, key=lambda row: row["iqm"].value)
    low, high = best["gap_all_at_once"].interval
    rows = [row for row in csv.DictReader(c.to_csv().splitlines()) if row["statistic"] == "gap_all_at_once"]
    assert (float(rows[-1]["low"]), float(rows[-1]["high"])) in [
        e.interval for row in c.rows if (e := row.estimates.get("gap_all_at_once"))
    ]
    assert low < best["gap"].interval[0] < best["gap"].interval[1] < high
    differences = best.final[0] - c.rows[0].final[0]
    expected = t.interval(1 - 0.05 / 7, 4, differences.mean(), sem(differences))
    assert (low, high) == pytest.approx(expected)
    assert "8 groups of 5 seeds" in c.verdict()
    assert "that holds for all 7 groups at once" in c.verdict()


def of(name, *values):
    """Seeds 0, 1, ... whose metric falls, or rises, to these values."""
    return {seed: curve([0.5, (0.5 + value) / 2, value], name) for seed, value in enumerate(values)}


def test_fewer_dormant_units_are_better(tmp_path):
    name = "critic/dormant"
    few, many = of(name, 0.1, 0.1, 0.1, 0.1, 0.3), of(name, 0.4, 0.4, 0.4, 0.4, 0.2)
    c = summarize(groups_of(tmp_path / "a", (STEPS, many), (["reg=l2", *STEPS], few)), name, target=0.2)
    none, l2 = c.rows
    assert l2["probability_of_improvement"].value == 24 / 25  # 0.3 is not below 0.2
    assert np.isfinite(none["steps_to_reach"].runs).sum() == 1
    assert np.isfinite(l2["steps_to_reach"].runs).sum() == 4
    assert "lower is better" in c.verdict()
    assert c.verdict().count("that of l2")
    assert not any("does not say" in warning for warning in c.warnings)


def test_a_metric_without_a_direction_says_so_and_takes_one(tmp_path):
    name = "critic/weight_norm"
    groups = groups_of(tmp_path, (STEPS, of(name, 1, 2)), (["reg=l2", *STEPS], of(name, 3, 4)))
    for direction, improvement, said in ((None, 1, True), ("lower", 0, False)):
        c = summarize(groups, name, direction=direction)
        assert c.rows[1]["probability_of_improvement"].value == improvement
        assert any(name in warning and "does not say" in warning for warning in c.warnings) == said
    broken, whole = of("critic/dormant", np.nan, 0.1), of("critic/dormant", 0.4, 0.4)  # the worst where lower is better
    c = summarize(groups_of(tmp_path / "b", (STEPS, whole), (["reg=l2", *STEPS], broken)), "critic/dormant")
    assert (c.rows[1]["probability_of_improvement"].value, c.rows[1]["iqm"].value) == (0.5, np.inf)
    assert "that of no method (none)" in c.verdict()


def test_the_table_is_latex_with_its_cells_escaped(tmp_path):
    c = summarize(groups_of(tmp_path, (["reg=l2", *STEPS], finals(1, 2)), (["reg=none", *STEPS], finals(3, 5))))
    text = c.to_latex()
    head, *_ = c.table()
    assert "\n\\begin{tabular}{l" + "r" * (len(head) - 1) + "}\n\\toprule\ngroup & seeds & final" in text
    assert "\\caption{eval/return at" in text
    assert "mean $\\pm$ standard error" in text
    assert all(part in text for part in ("IQM", "[95 \\%]", "$\\pm$"))
    assert text.count(" \\\\\n") == 3
    names = [line.split(" & ")[0] for line in text.splitlines() if line.startswith(("l2", "no"))]
    assert names == ["no method", "l2"]
    assert "at env step 3000 on cheetah-run" in text


def test_a_paper_s_table_has_strengths_that_are_not_the_defaults_and_the_columns_that_are_asked_for(tmp_path):
    methods = [["reg=none"], ["reg=l2", "reg.coef=1e-3"], ["reg=swr"], ["reg=spectral+l2", "reg.l2.coef=7e-3"]]
    methods += [["reg=none", "reset=shrink_perturb", "reset.coef=0.3"]]
    groups = groups_of(tmp_path, *((["preset=paper", *a, *STEPS], finals(1, 2)) for a in methods))
    c = summarize(groups, columns=["gap", "mean"])
    assert c.table()[0] == ["group", "gap [95 %]", "final"]
    names = {line.split(" & ")[0] for line in c.to_latex().splitlines()[7:12]}
    assert names == {"no method", "l2 coef=1e-3", "swr", r"shrink\_perturb coef=0.3", "spectral+l2 coef=7e-3"}
    both = groups_of(tmp_path / "b", *(([*STEPS, "reg=l2", f"reg.coef={x}"], finals(1, 2)) for x in ("1e-3", "2e-3")))
    assert [row[0] for row in summarize(both)._named()[1:]] == ["coef=1e-3", "coef=2e-3"]
    refused(lambda: summarize(groups, columns=["meen"]), match=r"'meen'.*'mean'")
