import math

import numpy as np
import pytest
import torch
from conftest import refused

from rl_plasticity.metrics import condition_number, effective_rank, singular_values, srank, stable_rank


def test_four_measures_of_one_spectrum_differ_as_computed_by_hand():
    s = torch.tensor([4.0, 2.0, 1.0, 1.0], dtype=torch.float64)
    assert condition_number(s).item() == 4
    assert stable_rank(s).item() == pytest.approx((16 + 4 + 1 + 1) / 16)  # squares; not 8 / 4
    # p = 1/2, 1/4, 1/8, 1/8: entropy 1.75 bits
    assert effective_rank(s).item() == pytest.approx(2**1.75)
    # of the sum 8: 4, 6, 7, 8
    assert srank(s, 0.25).item() == 2  # 6/8 is exactly 0.75: >=, and k, not k - 1
    assert srank(s, 0.24).item() == 3
    assert srank(s, 0.0).item() == 4


def test_ranks_ignore_scale_even_where_squares_underflow():
    s = torch.tensor([4.0, 2.0, 1.0])
    for measure in (condition_number, stable_rank, effective_rank, srank):
        torch.testing.assert_close(measure(1e-30 * s), measure(s))


def test_a_matrix_of_zeros_has_rank_zero_and_an_infinite_condition_number():
    s = singular_values(torch.zeros(2, 3, 4))
    for measure in (stable_rank, effective_rank, srank):
        assert measure(s).tolist() == [0.0, 0.0]
    assert condition_number(s).tolist() == [math.inf, math.inf]


def test_a_singular_matrix_has_finite_ranks():
    s = singular_values(torch.diag(torch.tensor([3.0, 1.0, 0.0])))
    assert condition_number(s).item() == math.inf
    assert effective_rank(s).item() == pytest.approx(math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))
    assert srank(s).item() == 2
    matrix = torch.randn(9, 5)
    matrix[:, 1] = matrix[:, 0]
    for dtype in (torch.float32, torch.float64):  # rounding leaves a smallest singular value above 0
        assert condition_number(singular_values(matrix.to(dtype))).item() == math.inf


@pytest.mark.parametrize("shape", [(5, 9), (9, 5)])
def test_measures_of_a_random_matrix_are_those_of_numpy_s_decomposition(shape):
    matrix = torch.randn(shape, dtype=torch.float64)
    s, oracle = singular_values(matrix), np.linalg.svd(matrix.numpy(), compute_uv=False)
    np.testing.assert_allclose(s, oracle, rtol=1e-12)
    p = oracle / oracle.sum()
    assert effective_rank(s).item() == pytest.approx(np.exp(-(p * np.log(p)).sum()))
    assert stable_rank(s).item() == pytest.approx((matrix**2).sum().item() / oracle[0] ** 2)
    assert condition_number(s).item() == pytest.approx(np.linalg.cond(matrix.numpy()))
    assert srank(s, 0.1).item() == np.searchsorted(np.cumsum(oracle), 0.9 * oracle.sum()) + 1


@pytest.mark.parametrize("delta", [-0.1, 1.0])
def test_a_delta_outside_its_range_is_named(delta):
    refused(lambda: srank(torch.ones(2), delta), "delta", error=ValueError)
