"""What an example or the first batch shows that reading misses: whose columns a layer reads, and f' = C f."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from rl_plasticity.regularizers import make_regularizer
from rl_plasticity.structure import read, recyclable

pytestmark = pytest.mark.filterwarnings("ignore:.* leaves alone:UserWarning")


IMAGES, VECTORS = torch.randn(5, 2, 6, 6), torch.randn(5, 4)


def test_the_check_changes_nothing_of_the_network():
    class Counting(nn.Sequential):
        calls, state = 0, None

        def forward(self, x):
            self.calls, self.state = self.calls + 1, x
            return super().forward(x + 0 * torch.randn_like(x))

    net = Counting(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 3)
    )
    units = replace(read(net, IMAGES), example=None).hidden_units(net)
    calls, state = net.calls, net.state
    before = copy.deepcopy(net.state_dict())
    torch.manual_seed(3)
    assert recyclable(net, units, IMAGES) == units
    drawn = torch.rand(())
    torch.manual_seed(3)
    assert torch.rand(()) == drawn
    assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())
    assert (net.calls, net.state) == (calls, state)
    assert all(module.training for module in net.modules())
    assert all(p.grad is None for p in net.parameters())


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
