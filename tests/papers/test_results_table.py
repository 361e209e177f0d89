"""``python -m papers.results_table``: a study's numbers as a page's table."""

import pytest
from conftest import called

from papers import results_table

FIGURE = "panel,method,mark,metric,seed,mean_of_run,low,high,n"


def table(tmp_path, *lines):
    (tmp_path / "file.csv").write_text("\n".join(lines) + "\n")
    return results_table.table(tmp_path / "file.csv")


def runs(line, n=5):
    return [line.format(seed=seed) for seed in range(n)]


def test_a_table_has_a_row_for_each_method_and_a_column_for_each_panel_and_mark(tmp_path):
    lines = [*runs("run,none,0,m,{seed},3.0,,,1"), "run,none,0,m,,110.6,-1.4,222.6,5"]
    lines += [*runs("run,none,9,m,{seed},3.0,,,1"), "run,none,9,m,,2.2,2.1,2.4,5"]
    lines += ["walk,l2,0,m,0,7.0,,,1", "walk,l2,0,m,,7.0,,,1"]
    lines += [*runs("run,l2,0,m,{seed},5.0,,,1"), "run,l2,0,m,,5.0,4.0,6.0,5"]
    assert table(tmp_path, FIGURE, *lines) == [
        "|  | run, 0 | run, 9 | walk, 0 |",
        "| --- | --- | --- | --- |",
        "| none | 111 [-1, 223] | 2.20 [2.10, 2.40] |  |",
        "| l2 | 5 [4, 6] |  | 7.00 |",
    ]


@pytest.mark.parametrize("text", ["run,step,name,value\na,0,b,1", FIGURE, ""])
def test_another_file_is_refused_in_one_line(text, tmp_path):
    (tmp_path / "other.csv").write_text(text)
    status, _, err = called(results_table.main, tmp_path / "other.csv")
    assert (status, "other.csv is no figure.csv" in err) == (2, True)


def test_against_a_method_there_are_the_gaps_of_the_means_over_a_run_seed_by_seed_and_for_all_at_once(tmp_path):
    scores = {"none": [1, 2, 3, 4, 5], "l2": [12, 13, 15, 17, 18], "swr": [21, 23, 23, 25, 23]}
    lines = [f"run,{m},9,m,{seed},{x},,,1" for m, xs in scores.items() for seed, x in enumerate(xs)]
    lines += [f"run,{m},9,m,,{sum(xs) / 5},,,5" for m, xs in scores.items()]
    (tmp_path / "file.csv").write_text("\n".join([FIGURE, *lines]) + "\n")
    head, _, none, l2, swr = results_table.table(tmp_path / "file.csv", against="none")
    assert head == "|  | run, 9 | run, 9 gap to none | run, 9 for all gaps at once |"
    assert none == "| none | 3.0 | baseline |  |"
    # Differences 11 11 12 13 13: 12, s / sqrt 5 = .447; t with 4 degrees of freedom is 2.776 at 95 %, 3.495 at 97.5 %.
    assert l2 == "| l2 | 15.0 | +12.0 [+10.8, +13.2] | +12.0 [+10.4, +13.6] |"
    # 20 21 20 21 18: 20, s^2 = 1.5, s / sqrt 5 = .5477
    assert swr == "| swr | 23.0 | +20.0 [+18.5, +21.5] | +20.0 [+18.1, +21.9] |"
    with pytest.raises(ValueError, match=r"'nothing'.*none, l2, swr"):
        results_table.table(tmp_path / "file.csv", against="nothing")
