import pytest
import torch

from rl_plasticity.metrics import discounted_returns, q_overestimation, representation_change


def test_the_representation_s_change_and_the_overestimation_by_hand():
    before, after = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[3.0, 0.0], [1.0, 4.0]])
    assert representation_change(before, after).item() == pytest.approx(0.2)  # relative to what it was
    assert representation_change(after, before).item() == pytest.approx(26**-0.5)
    assert representation_change(torch.zeros(2, 2), torch.zeros(2, 2)).item() == 0
    q, returns = torch.tensor([[3.0, 5.0], [0.0, 1.0]]), torch.tensor([[1.0, 4.0], [2.0, 2.0]])
    assert q_overestimation(q, returns).tolist() == [1.5, -1.5]


def flags(*steps, length=4):
    out = torch.zeros(length, dtype=torch.bool)
    out[list(steps)] = True
    return out


def test_returns_bootstrap_at_truncation_and_at_the_end_but_not_at_termination():
    reward, value = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([10.0, 20.0, 30.0, 40.0])
    terms = discounted_returns(reward, 0.5, flags(1), flags(), value)
    assert terms.tolist() == [2.0, 2.0, 3 + 0.5 * (4 + 0.5 * 40), 4 + 0.5 * 40]
    cut = discounted_returns(reward, 0.5, flags(), flags(1), value)
    assert cut.tolist() == [1 + 0.5 * 12, 2 + 0.5 * 20, 15.0, 24.0]
    truncated = flags()
    discounted_returns(reward, 0.5, flags(), truncated)
    assert not truncated.any()  # arguments stay as they are
    assert discounted_returns(reward, 0.5, flags(1, 3), flags(1, 3), value).tolist() == [2.0, 2.0, 5.0, 4.0]
    assert discounted_returns(reward, 0.5, flags(), flags(1)).tolist() == [2.0, 2.0, 5.0, 4.0]
