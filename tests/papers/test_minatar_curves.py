"""``python -m papers.minatar_curves``: returns beside published ones."""

import math

import pytest
from conftest import called
from folders import curve, write_run

from papers import minatar_curves

PUBLISHED = [
    {"env": "minatar:breakout", "env_step": step, "return": "1.5", "low": "1.2", "high": "1.8"}
    for step in ("90", "110", "200")
]


def runs_of(folder, env="minatar:breakout"):
    rows = {seed: curve([float(seed + i) for i in range(20)], "train/return", 10) for seed in (0, 2)}
    write_run(folder / "a", ["preset=minatar", f"env={env}", "total_env_steps=200", "random_env_steps=0"], rows)


def test_a_return_is_the_mean_of_the_last_episodes_that_had_ended_by_the_env_step(tmp_path, monkeypatch):
    monkeypatch.setattr(minatar_curves, "EPISODES", 10)
    runs_of(tmp_path)
    lines = minatar_curves.of_runs(PUBLISHED, tmp_path)
    values = {(line["seed"], line["env_step"]): float(line["return"]) for line in lines}
    assert math.isnan(values["0", "90"])  # nine episodes
    assert values["0", "110"] == pytest.approx(5.5)  # 1 to 10
    assert values["2", "200"] == pytest.approx(2 + 14.5)


def test_the_command_writes_the_returns_and_the_figure_beside_the_published_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(minatar_curves, "EPISODES", 10)
    runs_of(tmp_path / "runs")
    file = tmp_path / "published.csv"
    file.write_text("env,env_step,return,low,high\nminatar:breakout,200,1.5,1.2,1.8\n")
    said = called(minatar_curves.main, file, "--runs", tmp_path / "runs")[1]
    assert "| breakout | 200 | 1.5 (1.2 to 1.8) | 15.5 " in said
    assert (tmp_path / "figure.png").stat().st_size > 1000
    assert (tmp_path / "returns.csv").read_text().startswith("env,seed,env_step,return\nminatar:breakout,0,200,14.5\n")


@pytest.mark.parametrize(("text", "arguments", "said"), [
    ("env,step\nminatar:breakout,200\n", (), ["published.csv", "columns env, env_step, return, low, high"]),
    ("env,env_step,return,low,high\n", ("--runs", "runs"), ["published.csv", "lines"]),
    ("env,env_step,return,low,high\nminatar:breakout,200,1,1,1\n", (), ["no", "returns.csv", "--runs"]),
    ("env,env_step,return,low,high\nminatar:breakout,200,1,1,1\n", ("--runs", "runz"), ["no folder", "runz"]),
])  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_written(text, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs_of(tmp_path / "runs")
    (tmp_path / "published.csv").write_text(text)
    status, _, err = called(minatar_curves.main, "published.csv", *arguments)
    assert status == 2
    assert all(word in err.splitlines()[-1] for word in said)
    assert not (tmp_path / "returns.csv").exists()
