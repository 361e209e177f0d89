import math

import torch
from conftest import disturbed
from torch import nn

from rl_plasticity.networks import MLP, StackedLinear
from rl_plasticity.seeding import derive


def test_every_run_computes_what_an_ordinary_mlp_with_its_weights_computes():
    net = disturbed(MLP((5, 8, 7, 3), [10, 11, 12]))
    x = torch.randn(3, 6, 5)
    for run in range(3):
        single = nn.Sequential(
            nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 7), nn.LayerNorm(7), nn.ReLU(), nn.Linear(7, 3)
        )
        single.load_state_dict({k: v[run] for k, v in net.state_dict().items()})
        torch.testing.assert_close(net(x)[run], single(x[run]), rtol=1e-5, atol=1e-6)


def test_each_layer_draws_from_a_seed_of_its_own():
    layer = StackedLinear(8, 8, [derive(3, 1)])
    assert torch.equal(MLP((5, 8, 8, 3), [3])[3].weight, layer.weight)
    expected = torch.nn.init.orthogonal_(torch.empty(8, 8), math.sqrt(2), torch.Generator().manual_seed(derive(3, 1)))
    assert torch.equal(layer.weight[0], expected)


def test_torch_s_initialization_draws_the_very_numbers_of_torch_s_own_layers_for_each_run_from_its_own_seed():
    net = MLP((5, 8, 3), [3, 4], init="torch")
    for depth, (layer, sizes) in enumerate(zip((net[0], net[3]), ((5, 8), (8, 3)), strict=True)):
        for run, seed in enumerate((3, 4)):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive(seed, depth))
                oracle = nn.Linear(*sizes)
            assert torch.equal(layer.weight[run], oracle.weight)
            assert torch.equal(layer.bias[run], oracle.bias)
