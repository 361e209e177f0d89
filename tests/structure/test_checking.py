"""What an example or the first batch shows that reading misses: whose columns a layer reads, and f' = C f."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rl_plasticity.regularizers import make_regularizer
from rl_plasticity.structure import read, recyclable

pytestmark = pytest.mark.filterwarnings("ignore:.* leaves alone:UserWarning")
METHODS = {"continual_backprop": {"coef": 1.0, "maturity": 0}}
METHODS["self_normalized_resets"] = {"every_updates": 1, "least": 1, "most": 1}


class Net(nn.Module):
    """conv [4 channels] or linear [8 units], an activation, something between, and a linear layer."""

    def __init__(self, between, columns, first=None):
        super().__init__()
        self.first, self.activation = first or nn.Conv2d(2, 4, 3), nn.ReLU()
        self.other = nn.Sequential(nn.Linear(columns, 6), nn.ReLU(), nn.Linear(6, 3))
        self.between = between

    def forward(self, x):
        return self.other(self.between(self.activation(self.first(x)))).flatten(1)


IMAGES, VECTORS = torch.randn(5, 2, 6, 6), torch.randn(5, 4)  # of the images 16 positions come out
WRONG = {
    "flatten(2)": (lambda: Net(lambda h: h.flatten(2), 16), IMAGES),
    "nn.Flatten(2)": (lambda: Net(nn.Flatten(2), 16), IMAGES),
    "max over channels": (lambda: Net(lambda h: h.amax(1).flatten(1), 16), IMAGES),
    "pool along units": (lambda: Net(lambda h: F.max_pool1d(h, 3, 1, 1), 8, nn.Linear(4, 8)), VECTORS),
    "tokens for units": (lambda: Net(lambda h: h.mT, 8, nn.Linear(4, 8)), torch.randn(5, 8, 4)),
}


def silenced(make):
    """A network in float64 of whose first layer the second unit is silent."""
    torch.manual_seed(0)
    net = make().double()
    layer = net.first[-1] if isinstance(net.first, nn.Sequential) else net.first
    with torch.no_grad():
        if layer is net.first:
            layer.weight[1] = 0
        layer.bias[1] = -100
    return net.eval()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", WRONG)
def test_a_regularizer_leaves_them_alone_with_an_example_and_refuses_at_the_first_batch_without(kind, name):
    make, x = WRONG[kind]
    net, x = silenced(make), x.double()
    regularizer = make_regularizer(name, net, example=x, **METHODS[name])
    first = net.first.weight.clone()
    for _ in range(3):
        regularizer.penalty(net, x)
        regularizer.project_(net)
    assert torch.equal(net.first.weight, first)
    net = silenced(make)
    before = copy.deepcopy(net.state_dict())
    try:
        regularizer = make_regularizer(name, net, **METHODS[name])
    except ValueError as error:
        assert "example=" in str(error)  # noqa: PT017
        return
    if "activation" in [unit.activation for unit in regularizer.recycled.units]:
        with pytest.raises(ValueError, match=r"\bactivation\b.*example="):
            regularizer.penalty(net, x)
        assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())


def test_the_check_changes_nothing_of_the_network():
    class Counting(Net):
        calls, state = 0, None

        def forward(self, x):
            self.calls, self.state = self.calls + 1, x
            return super().forward(x + 0 * torch.randn_like(x))

    first = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
    net = Counting(nn.Flatten(), 64, first)
    units = read(net, IMAGES).chains(net)
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
