"""``scripts/results_table.py``: a study's numbers as a page's table."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location(
    "results_table", Path(__file__).parent.parent / "scripts/results_table.py"
)
results_table = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(results_table)


def test_a_table_has_a_row_for_each_method_and_a_column_for_each_panel_and_mark(tmp_path):
    lines = ["panel,method,mark,metric,seed,mean_of_run,low,high,n"]
    lines += ["run,none,0,m,0,3.0,,,1", "run,none,0,m,,10.6,-1.4,22.6,5", "run,none,9,m,,2.2,2.1,2.4,5"]
    lines += ["walk,l2,0,m,,7.0,,,1", "run,l2,0,m,,5.0,4.0,6.0,5"]
    (tmp_path / "figure.csv").write_text("\n".join(lines))
    assert results_table.table(tmp_path / "figure.csv") == [
        "|  | run, 0 | run, 9 | walk, 0 |",
        "| --- | --- | --- | --- |",
        "| none | 11 [-1, 23] | 2 [2, 2] |  |",
        "| l2 | 5 [4, 6] |  | 7 |",
    ]


def test_without_marks_a_column_is_a_panel(tmp_path):
    (tmp_path / "figure.csv").write_text("panel,method,mark,metric,seed,mean_of_run,low,high,n\na,none,,m,,1,,,1\n")
    assert results_table.table(tmp_path / "figure.csv")[0] == "|  | a |"


def test_of_a_comparison_it_has_each_group_s_mean_and_its_gap_to_the_baseline(tmp_path):
    lines = ["group,task,seed,metric,step,statistic,value,low,high,n"]
    lines += ["none,all,,r,9,mean,0.5,0.4,0.6,5", "none,all,,r,9,area_under_curve,0.25,,,5"]
    lines += ["l2,a,0,r,9,final,0.9,,,1", "l2,all,,r,9,mean,0.7512,,,5", "l2,all,,r,9,area_under_curve,0.3,,,5"]
    lines += ["l2,all,,r,9,gap_paired,0.2512,-0.1,0.6,5"]
    (tmp_path / "comparison.csv").write_text("\n".join(lines))
    assert results_table.table(tmp_path / "comparison.csv")[2:] == [
        "| none | 0.500 [0.400, 0.600] | 0.250 | baseline |",
        "| l2 | 0.751 | 0.300 | +0.251 [-0.100, +0.600] |",
    ]
