"""What an example or the first batch shows that reading misses: whose columns a layer reads, and f' = C f."""

import copy

import pytest
import torch
from torch import nn

from rl_plasticity.regularizers import make_regularizer

pytestmark = pytest.mark.filterwarnings("ignore:.* leaves alone:UserWarning")


VECTORS = torch.randn(5, 4)


class ThroughAView(nn.Module):
    def forward(self, x):
        part = x[:, :2]
        part += 1
        return x


@pytest.mark.parametrize("scope", ["all", "preserving"])
def test_swr_finds_by_the_example_what_reading_misses(scope):
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), ThroughAView(), nn.Linear(6, 3))
    if scope == "preserving":
        with pytest.raises(ValueError, match=r"scope=preserving.*%"):
            make_regularizer("swr", net, example=VECTORS, scope=scope)
    else:
        with pytest.warns(UserWarning, match=r"swr.*%"):
            make_regularizer("swr", net, example=VECTORS)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scope", ["all", "preserving"])
@pytest.mark.parametrize("norm", [nn.Identity, lambda: nn.LayerNorm(6), lambda: nn.BatchNorm1d(6)])
def test_swr_says_nothing_of_networks_for_which_its_theorem_holds_and_changes_nothing(norm, scope):
    net = nn.Sequential(nn.Linear(4, 6), norm(), nn.ReLU(), nn.Linear(6, 6), nn.LeakyReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        net[0].weight.mul_(1e-3)  # an epsilon counts then
    before = copy.deepcopy(net.state_dict())
    regularizer = make_regularizer("swr", net, example=VECTORS, scope=scope, coef=1e-2, coef_classifier=1e-3)
    assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())
    assert (regularizer.coef.item(), regularizer.coef_classifier.item()) == pytest.approx((1e-2, 1e-3))
    assert regularizer.structure.example is None
