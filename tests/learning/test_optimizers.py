"""Optimizers for many runs: torch's step for step, and a contract that holds for all, those of plugs too."""

import pytest
import torch
from conftest import plain_mlp, plainly, refused

from rl_plasticity.learning.optimizers import OPTIMIZERS, SGD, Adam, AdamW, RMSprop, orthogonalized
from rl_plasticity.networks import MLP


def step(net, optimizer, x):
    parameters = list(net.parameters())
    optimizer.update_(parameters, torch.autograd.grad(net(x).square().mean(), parameters))


RMS = (0.01, 0.9, 1e-3)


@pytest.mark.parametrize(("ours", "theirs"), [
    (lambda net: Adam(net, lr=0.01), lambda ps: torch.optim.Adam(ps, lr=0.01)),
    (lambda net: Adam(net, 0.02, (0.8, 0.9), 1e-3), lambda ps: torch.optim.Adam(ps, 0.02, (0.8, 0.9), 1e-3)),
    (lambda net: SGD(net, lr=0.01), lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9)),
    (lambda net: AdamW(net, 0.02, weight_decay=0.5), lambda ps: torch.optim.AdamW(ps, 0.02, weight_decay=0.5)),
    (lambda net: RMSprop(net, lr=0.01), lambda ps: torch.optim.RMSprop(ps, lr=0.01)),
    (lambda net: RMSprop(net, *RMS, centered=True), lambda ps: torch.optim.RMSprop(ps, *RMS, centered=True)),
])  # fmt: skip
def test_it_equals_torch_s_step_for_step(ours, theirs):
    net, reference = plain_mlp().double(), plain_mlp().double()
    reference.load_state_dict(net.state_dict())
    ours, theirs = ours(net), theirs(reference.parameters())
    for n in range(20):
        x = torch.randn(16, 5).double() * 10 ** (n % 3 - 1)
        step(net, ours, x)
        plainly(theirs, reference(x).square().mean())
        # A square root makes a rounding error of a gradient near 0 a large one: in float32 one processor's passes.
        torch.testing.assert_close([*net.parameters()], [*reference.parameters()], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_is_optimized_alone_as_among_others(name):
    together, alone = MLP((5, 8, 3), [1, 2]), MLP((5, 8, 3), [2])
    optimizers = [OPTIMIZERS[name](net) for net in (together, alone)]
    for _ in range(5):
        x = torch.randn(2, 16, 5)
        parameters = list(together.parameters())
        loss = together(x).square().mean((1, 2)).sum()
        optimizers[0].update_(parameters, torch.autograd.grad(loss, parameters))
        step(alone, optimizers[1], x[1:])
    its = [p[1:] for p in together.parameters()]
    torch.testing.assert_close(its, [*alone.parameters()], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 6, 4), (2, 4, 6), (5, 5)])
def test_orthogonalizing_brings_every_singular_value_near_one_and_keeps_the_singular_vectors(shape):
    matrix = torch.randn(shape, dtype=torch.float64)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    near = orthogonalized(matrix)
    singular = torch.linalg.svdvals(near)
    assert ((singular > 0.6) & (singular < 1.3)).all()
    inside = u.mT @ near @ vh.mT
    torch.testing.assert_close(inside, torch.diag_embed(torch.diagonal(inside, dim1=-2, dim2=-1)), atol=1e-9, rtol=0)
    # 1.5 and -0.5 converge to the polar factor itself
    torch.testing.assert_close(orthogonalized(matrix, 40, (1.5, -0.5, 0.0)), u @ vh, atol=1e-9, rtol=0)
    assert not orthogonalized(torch.zeros(2, 3, 4)).any()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_learning_rate_can_be_changed_in_place_and_is_saved(name):
    net = plain_mlp()
    optimizer = OPTIMIZERS[name](net)
    optimizer.lr.fill_(0.0)
    before = [p.detach().clone() for p in net.parameters()]
    step(net, optimizer, torch.randn(4, 5))
    assert all(torch.equal(p, q) for p, q in zip(before, net.parameters(), strict=True))
    assert optimizer.state_dict()["lr"] == 0


def test_a_negative_learning_rate_is_an_error():
    refused(lambda: Adam(plain_mlp(), lr=-1), "lr ", "-1", error=ValueError)
