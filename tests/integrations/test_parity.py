"""`scripts/parity.py`: what is finished is not trained again, what was cut off goes on."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from rl_plasticity import train

pytest.importorskip("stable_baselines3")

SCRIPT = Path(__file__).parents[2] / "scripts" / "parity.py"
ENV = "gym:Pendulum-v1"


def test_a_seed_that_was_cut_off_is_trained_again_ours_go_on_and_nothing_finished_is_touched(tmp_path, monkeypatch):
    parity = runpy.run_path(str(SCRIPT))
    # A run's own globals, which all its functions share.
    names = parity["main"].__globals__
    monkeypatch.setitem(names, "TASKS", {ENV: (60, 20)})
    for name, value in {"RANDOM_ENV_STEPS": 57, "EPISODES": 1, "SEEDS": 2, "HIDDEN": [8, 8]}.items():
        monkeypatch.setitem(names, name, value)
    monkeypatch.setattr("sys.argv", ["parity.py", str(tmp_path), "--tasks", ENV, "--only", "sb3,ours"])
    whole, starts = train.run, []

    def cut_off_at_first(**settings):
        starts.append(settings)
        if "resume" in settings:
            return whole(**settings)
        stop = lambda session: session.progress.step == 40 and session.end_early()  # noqa: E731
        return whole(**{**settings, "compile": False}, on_step=stop)

    monkeypatch.setattr(train, "run", cut_off_at_first)
    theirs, ours = tmp_path / ENV / "sb3", tmp_path / ENV / "ours"
    theirs.mkdir(parents=True)
    (theirs / "seed_1.csv").write_text("step,return\n20,1\n40,2\n60,3\n")
    (theirs / "seed_0.partial.csv").write_text("step,return\n20,7\n")
    parity["main"]()
    assert (parity["last_step"](parity["ours"](ours)), len(starts)) == (40, 1)
    assert [list(steps) for steps, _ in parity["theirs"](theirs).values()] == [[20, 40, 60]] * 2
    assert list(parity["theirs"](theirs)[1][1]) == [1, 2, 3]
    before = (theirs / "seed_0.csv").read_bytes()
    for _ in range(2):
        parity["main"]()
        assert (parity["last_step"](parity["ours"](ours)), len(starts)) == (60, 2)
    assert (theirs / "seed_0.csv").read_bytes() == before
    assert (tmp_path / "parity.png").stat().st_size > 1000


def test_methods_are_compared_at_the_last_step_that_all_have_and_by_their_last_three_evaluations_seed_by_seed(capsys):
    parity = runpy.run_path(str(SCRIPT))
    steps = range(2_500, 12_501, 2_500)

    def curves(*returns):
        return {i: (np.array(steps[: len(r)]), np.array(r, float)) for i, r in enumerate(returns)}

    ours = curves([9, 10, 20, 30, 999], [9, 20, 30, 40, 999])
    parity["report"]({"ours": ours, "torch": curves([0, 40, 50, 60], [0, 70, 70, 70])}, "walker-walk")
    text = capsys.readouterr().out
    assert "walker-walk, 10000 env steps" in text
    row = next(line for line in text.splitlines() if line.startswith("| `torch`"))
    assert row.startswith(
        "| `torch` | 50 70 | 60 [-67, 187] | +35 [-29, 99] | 1.00 |"
    )  # 35 +- 12.706 * 5, of 30 and 40
