"""The scripts for figures that are no runs: what they compute, on numbers by hand and on a few images."""

import runpy
from pathlib import Path

import pytest
import torch

PAPERS = Path(__file__).parents[2] / "papers"
FIGURE_6 = runpy.run_path(str(PAPERS / "spectral_figure6.py"))
FIGURE_1 = runpy.run_path(str(PAPERS / "swr_figure1.py"))


def test_every_solution_of_the_toy_fits_and_has_the_spectral_norm_that_the_paper_says():
    for c in FIGURE_6["SCALES"]:
        w1, w2 = FIGURE_6["solution"](c)
        assert FIGURE_6["loss"](w1, w2, FIGURE_6["AS_BEFORE"]).item() == 0
        assert FIGURE_6["loss"](w1, w2, FIGURE_6["CHANGED"]).item() == 0.25
        assert torch.linalg.svdvals(w1).tolist() == pytest.approx([c + 1 / c, 0], abs=1e-12)


def test_a_step_of_the_toy_is_that_of_the_paper_s_gradients():
    c, step = 4.0, 0.1
    w1, w2 = (w.requires_grad_() for w in FIGURE_6["solution"](c))
    losses = FIGURE_6["descend_"](w1, w2, FIGURE_6["CHANGED"], torch.tensor(step), 1)
    # Equation 1, with half the gradients because the loss is the mean of two inputs, of which one is fitted.
    assert torch.allclose(w1, torch.tensor([[-1, c - step / 2 / c], [1 / c, -1]], dtype=torch.float64), atol=1e-15)
    assert torch.allclose(w2, torch.tensor([1 / c - step / 2 * c, c], dtype=torch.float64), atol=1e-15)
    f1 = (0.25 - 0.2) * (4 - 0.0125)
    assert losses.tolist() == pytest.approx([0.25, f1**2 / 4])


def test_a_large_spectral_norm_overshoots_and_its_unit_never_learns_again_but_is_faster_with_small_steps(tmp_path):
    outcomes = FIGURE_6["main"](small=True, out=str(tmp_path / "figure.png"))
    highest, changed, back = outcomes  # c = 1, 2, 4, 8, 16; step sizes 0.001, 0.01, 0.1, 1
    assert (tmp_path / "figure.png").stat().st_size > 5_000
    assert highest[:, 0].tolist() == [0.25] * 5
    assert changed[:, 0].tolist() == sorted(changed[:, 0].tolist(), reverse=True)
    assert (highest[3:, 2] > 50).all()
    assert (highest[:3, 2] == 0.25).all()  # below 4 / c^2
    assert back[:2, 3].max() < 1e-12
    assert back[2:, 3].tolist() == [0.25] * 3
