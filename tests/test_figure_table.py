"""``scripts/figure_table.py``: a study's figure.csv as a page's table."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("figure_table", Path(__file__).parent.parent / "scripts/figure_table.py")
figure_table = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(figure_table)


def test_a_table_has_a_row_for_each_method_and_a_column_for_each_panel_and_mark(tmp_path):
    lines = ["panel,method,mark,metric,seed,mean_of_run,low,high,n"]
    lines += ["run,none,0,m,0,3.0,,,1", "run,none,0,m,,10.6,-1.4,22.6,5", "run,none,9,m,,2.2,2.1,2.4,5"]
    lines += ["walk,l2,0,m,,7.0,,,1", "run,l2,0,m,,5.0,4.0,6.0,5"]
    (tmp_path / "figure.csv").write_text("\n".join(lines))
    assert figure_table.table(tmp_path / "figure.csv") == [
        "|  | run, 0 | run, 9 | walk, 0 |",
        "| --- | --- | --- | --- |",
        "| none | 11 [-1, 23] | 2 [2, 2] |  |",
        "| l2 | 5 [4, 6] |  | 7 |",
    ]


def test_without_marks_a_column_is_a_panel(tmp_path):
    (tmp_path / "figure.csv").write_text("panel,method,mark,metric,seed,mean_of_run,low,high,n\na,none,,m,,1,,,1\n")
    assert figure_table.table(tmp_path / "figure.csv")[0] == "|  | a |"
