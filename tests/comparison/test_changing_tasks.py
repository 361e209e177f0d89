"""Comparisons of reinforcement learning on tasks that change."""

import numpy as np
import pytest
from folders import curve, write_run

from rl_plasticity.compare import compare
from rl_plasticity.comparison.groups import group
from rl_plasticity.comparison.loading import read
from rl_plasticity.comparison.table import summarize
from rl_plasticity.runs.folder import RunFolder

SEQUENCE = ["env.sequence=[walker-stand,walker-walk]", "env.switch_every_env_steps=300", "total_env_steps=1200"]
SEQUENCE += ["random_env_steps=0", "replay_ratio=1"]
# Two tasks in turn, each twice, evaluated every 100 env steps.
RETURNS = [10, 30, 50, 0, 5, 8, 20, 45, 60, 1, 2, 7]
FIRST = [1, 2, 25, 3]


def rows(returns=RETURNS, first=FIRST):
    ends = [float(x) for x in returns[2::3]]
    found = curve([float(x) for x in returns], "eval/return", 100)
    found |= curve([float(x) for x in first], "task/first_return", 300) | curve(ends, "task/return", 300)
    area = [float(np.mean(returns[i : i + 3])) for i in range(0, len(returns), 3)]
    return found | curve(area, "task/area", 300) | curve([0.0, 1.0, 2.0, 3.0], "task/index", 300)


def of(tmp_path, *, shift=0.0, seeds=2, more=(), name="run"):
    by_seed = {seed: rows([x + shift + seed for x in RETURNS], [x + shift for x in FIRST]) for seed in range(seeds)}
    return write_run(tmp_path / name, [*SEQUENCE, f"seeds={seeds}", *more], by_seed)


def test_tasks_are_numbered_and_their_ends_are_the_borders(tmp_path):
    run, _ = read(RunFolder(of(tmp_path)))
    assert run.borders.tolist() == [300, 600, 900, 1200]
    assert run.curves["task/return"].steps.tolist() == [1, 2, 3, 4]
    assert run.curves["eval/return"].steps.tolist() == [*range(100, 1201, 100)]


def test_a_sequence_and_a_task_that_is_drawn_are_called_other_tasks(tmp_path):
    given = ["env=walker-stand", "env.changes=[dynamics]", *SEQUENCE[1:]]
    (run,) = read(RunFolder(write_run(tmp_path / "a", given, {0: rows()})))
    (g,) = group([run])
    assert [*g.tasks] == ["walker-stand (dynamics changing)"]
    (in_turn,) = read(RunFolder(write_run(tmp_path / "b", SEQUENCE, {0: rows()})))
    (both,) = group([run, in_turn], mix=["env"])
    assert [*both.tasks] == ["walker-stand (dynamics changing)", "walker-stand, walker-walk in turn"]


def test_the_table_is_of_the_ends_of_tasks_with_what_was_known_before(tmp_path):
    c = compare(of(tmp_path))
    assert (c.metric, c.unit, c.at) == ("task/return", "task", {"walker-stand, walker-walk in turn": 4})
    (row,) = c.rows
    assert row["mean"].value == 7.5
    assert row["area_under_curve"].value == pytest.approx(np.mean([50, 8, 60, 7]) + 0.5)
    assert row["first_return"].value == np.mean(FIRST)
    assert "last_minus_first_third" not in row.estimates  # 4 tasks are no 3 rounds of 2


def test_the_last_third_is_measured_against_the_first_in_whole_rounds(tmp_path):
    drawn = ["env=walker-stand", "env.changes=[dynamics]", *SEQUENCE[1:]]
    (row,) = summarize(group(read(RunFolder(write_run(tmp_path / "a", drawn, {0: rows()}))))).rows
    assert row["last_minus_first_third"].value == 7 - 50  # of 4 tasks the last and the first


def test_methods_that_act_at_changes_of_task_are_measured_against_no_method(tmp_path):
    at_each = ["reset=periodic", "reset.every_updates=null", "reset.every_tasks=1"]
    never = ["reset=head", "reset.every_updates=null", "reset.every_tasks=4"]
    folders = [of(tmp_path), of(tmp_path, name="b", shift=3, more=at_each), of(tmp_path, name="c", more=never)]
    c = summarize(group([run for folder in folders for run in read(RunFolder(folder))]))
    assert c.baseline.label == "none"
    gaps = {row.label: row.estimates.get("gap") and row["gap"].value for row in c.rows}
    assert gaps == {"none": None, "none + head": 0, "none + periodic": 3}
