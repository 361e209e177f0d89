"""Published returns beside a comparison, and ours in the same form."""

import csv

import matplotlib
import numpy as np
import pytest
from folders import curve, write_run

from rl_plasticity.compare import compare
from rl_plasticity.comparison.figures import draw
from rl_plasticity.comparison.published import read
from rl_plasticity.errors import SettingsError

HEAD = ",exp_name,env_name,seed,metric,env_step,value"


def publish(path, *lines):
    path.write_text("\n".join([HEAD, *(f"{i},{line}" for i, line in enumerate(lines))]) + "\n")
    return path


@pytest.fixture
def runs(tmp_path):
    """Two seeds of cheetah-run, two simulator steps an env step, evaluated at env steps 1000 and 2000."""
    settings = ["env=cheetah-run", "env.action_repeat=2", "total_env_steps=2000"]
    write_run(
        tmp_path / "a", settings, {str(seed): curve([10.0, 50.0 + seed]) | curve([1.0], "alpha") for seed in range(2)}
    )
    return tmp_path / "a"


@pytest.fixture
def theirs(tmp_path):
    points = [
        f"xqc,cheetah-run,{seed},avg_return,{step}.0,{step / 100 + seed}" for seed in (7, 8) for step in (0, 2000)
    ]
    others = ["xqc,walker-run,7,avg_return,2000.0,999", "xqc,cheetah-run,7,avg_length,2000.0,1000"]
    return publish(tmp_path / "xqc.csv", *points, *others, "sac,cheetah-run,0,avg_return,3000.0,5")


def test_their_env_steps_are_divided_by_the_action_repeat_and_each_seed_is_a_curve(theirs):
    xqc, sac = read(theirs, {"cheetah-run": 2})
    assert (xqc.name, xqc.task, sac.name) == ("xqc", "cheetah-run", "sac")
    assert [c.steps.tolist() for c in xqc.curves] == [[0, 1000]] * 2
    assert [c.values.tolist() for c in xqc.curves] == [[7.0, 27.0], [8.0, 28.0]]
    step, mean, interval = xqc.at(1999)
    assert (step, mean) == (1000, 27.5)
    assert interval[1] == pytest.approx(27.5 + 12.706 * 0.5, rel=1e-3)  # Student's t for two
    assert np.isnan(sac.at(1000)[1])


def test_gymnasium_s_tasks_have_their_own_names_there(tmp_path):
    path = publish(tmp_path / "ppo.csv", "ppo,Pendulum-v1,0,avg_return,3.0,-5", "ppo,gym:Pendulum-v1,1,avg_return,3,-7")
    (ppo,) = read(path, {"gym:Pendulum-v1": 1})
    assert (ppo.task, ppo.at(3)[:2]) == ("gym:Pendulum-v1", (3, -6.0))


def test_a_comparison_shows_them_in_its_table_its_figure_and_its_page(runs, theirs, tmp_path):
    with matplotlib.rc_context():
        comparison = compare(runs, against=[theirs], out=tmp_path / "out")
    head, xqc, sac = comparison.published_table()
    assert head[:4] == ["published", "task", "seeds", "env step"]
    assert xqc[:4] == ["xqc", "cheetah-run", "2", "1000"]
    assert xqc[4].startswith("27.5")
    assert sac == ["sac", "cheetah-run", "1", "1500", "5.00"]
    curves = next(drawn for drawn in draw(comparison) if drawn.name == "learning_curves")
    (axes,) = curves.figure.axes
    lines = [line.get_xydata().tolist() for line in axes.lines if line.get_color() == "#707070"]
    assert lines == [[[0.0, 7.5], [1000.0, 27.5]], [[1500.0, 5.0]]]
    assert "xqc" in (tmp_path / "out" / "report.html").read_text()
    assert f"against={theirs}" in (tmp_path / "out" / "report.html").read_text()


def test_our_returns_are_written_in_their_form_and_read_back_alike(runs, tmp_path):
    compare(runs, out=tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out" / "curves.csv").read_text().splitlines()))
    assert rows[-1] == {
        "exp_name": "none", "env_name": "cheetah-run", "seed": "1", "metric": "avg_return", "env_step": "4000",
        "value": "51.0",
    }  # fmt: skip
    (back,) = read(tmp_path / "out" / "curves.csv", {"cheetah-run": 2})
    assert [c.values.tolist() for c in back.curves] == [[10.0, 50.0], [10.0, 51.0]]
    assert back.curves[0].steps.tolist() == [1000, 2000]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "no column 'exp_name'"),
        (f"{HEAD}\n0,x,cheetah-run,0,avg_return,soon,1\n", "line 2: env_step and value must be numbers"),
        (f"{HEAD}\n0,x,walker-run,0,avg_return,1,1\n", "no avg_return of cheetah-run; it has walker-run"),
        (None, "cannot read .*No such file"),
    ],
)
def test_a_file_of_another_form_is_refused_in_one_line_and_nothing_is_written(text, said, runs, tmp_path):
    file = tmp_path / "their.csv"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingsError, match=said) as error:
        compare(runs, against=[file], out=tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_returns_are_not_shown_beside_another_metric(runs, theirs):
    with pytest.raises(SettingsError, match=r"against=.*beside alpha"):
        compare(runs, against=[theirs], metric="alpha")
