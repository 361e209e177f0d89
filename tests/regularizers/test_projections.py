import pytest
import torch
from conftest import plain_mlp
from torch import nn

from rl_plasticity.regularizers import Orthogonal, WeightDecay, layers


def test_weight_decay_refuses_to_subtract_the_same_weights_twice():
    net = plain_mlp()
    regularizer = WeightDecay(net, coef=0.5)
    for _ in range(2):
        before = net[0].weight.detach().clone()
        with pytest.raises(RuntimeError, match=r"WeightDecay.*regularizer.penalty\(net\)"):
            regularizer.project_(net, 1.0)
        assert torch.equal(net[0].weight, before)
        regularizer.penalty(net)
        regularizer.project_(net, 1.0)
        torch.testing.assert_close(net[0].weight, before / 2)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_orthogonal_steps_along_the_gradient_of_the_smaller_gram_matrix_s_distance(shape, scale):
    net = nn.Sequential(nn.Linear(shape[1], shape[0]), nn.ReLU(), nn.Linear(shape[0], 2)).double()
    weight = net[0].weight.detach().clone().requires_grad_()
    gram = weight.T @ weight if shape[0] > shape[1] else weight @ weight.T
    (gradient,) = torch.autograd.grad((gram - scale * torch.eye(len(gram))).square().sum(), weight)
    head = net[2].weight.detach().clone()
    Orthogonal(net, coef=0.01, scale=scale).project_(net, 1.0)
    torch.testing.assert_close(net[0].weight, weight - 0.01 * gradient)
    assert torch.equal(net[2].weight, head)


@pytest.mark.parametrize("make", [
    lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 25, 1)),
    lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6, 1)).to(
        memory_format=torch.channels_last
    ),
])  # fmt: skip
def test_orthogonal_writes_a_matrix_to_where_its_entries_are_stored(make):
    net = make().double()
    layer = layers(net)[0]
    matrix = layer.matrix(net).detach().clone()
    torch.testing.assert_close(layer.of_matrix(matrix, net[0].weight.shape), net[0].weight, rtol=0, atol=0)
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    step = gram @ matrix - matrix if matrix.shape[0] <= matrix.shape[1] else matrix @ gram - matrix
    Orthogonal(net, coef=0.01).project_(net, 1.0)
    torch.testing.assert_close(layer.matrix(net), matrix - 0.04 * step)
