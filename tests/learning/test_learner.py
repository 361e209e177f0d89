from functools import partial

import torch
from conftest import loss_of, nothing_drawn, plain_mlp
from torch import nn

from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import Adam
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import make_regularizer


def make_mlp(seeds):
    return MLP((5, 8, 3), seeds)


def make_plain(seeds):
    return plain_mlp()


def test_minimize_adds_the_penalty_and_projects_after_the_step():
    learner = Learner(make_plain, [0], partial(make_regularizer, "weight_clipping", coef=0.01), partial(Adam, lr=1.0))
    learner.minimize(learner.net(torch.randn(4, 5)).square().mean())
    assert learner.net[0].weight.abs().max() <= 0.01 / 5**0.5 + 1e-7

    learner = Learner(make_plain, [0], partial(make_regularizer, "l2", coef=2.0))
    weight = learner.net[0].weight.detach().clone()
    metrics = learner.minimize(sum(0 * p.sum() for p in learner.net.parameters()))
    assert metrics["penalty"].item() > 0
    assert (learner.net[0].weight.abs() < weight.abs()).all()
    assert not metrics["penalty"].requires_grad


def test_the_gradient_norm_is_that_of_loss_and_penalty_over_all_parameters():
    learner = Learner(make_mlp, [0, 1], lambda net: make_regularizer("l2", net, coef=0.5))
    x = torch.randn(2, 16, 5)
    total = loss_of(learner.net(x), (2,)) + learner.regularizer.penalty(learner.net)
    gradients = torch.autograd.grad(total.sum(), list(learner.net.parameters()))
    expected = torch.stack([torch.cat([g[run].flatten() for g in gradients]).norm() for run in range(2)])
    torch.testing.assert_close(learner.minimize(loss_of(learner.net(x), (2,)))["gradient_norm"], expected)


def test_a_restarted_run_equals_a_new_learner_with_other_weights_and_the_others_go_on():
    learner = Learner(make_mlp, [0, 1], lambda net: make_regularizer("l2_init", net, coef=0.1))
    x = torch.randn(2, 16, 5)
    first = [p.detach().clone() for p in learner.net.parameters()]
    for _ in range(3):
        learner.minimize(loss_of(learner.net(x), (2,)))
    before = {k: v.clone() for k, v in learner.state_dict().items()}
    learner.restart_(torch.tensor([1]))
    for (name, now), then in zip(learner.state_dict().items(), before.values(), strict=True):
        if now.ndim:
            assert torch.equal(now[0], then[0]), name
    assert not torch.equal(learner.net[0].weight[1], first[0][1])  # new weights, not the first ones again
    assert learner.optimizer.step.tolist() == [3, 0]
    assert all(m[1].abs().max() == 0 for n in learner.optimizer.names for m in learner.optimizer.moments(n))
    assert learner.regularizer.penalty(learner.net)[1] == 0  # L2-Init's anchor is the new initialization


def test_initial_is_what_the_current_weights_started_from():
    learner = Learner(make_mlp, [0, 1])
    start = learner.net[0].weight.detach().clone()
    learner.fresh()  # an unrelated draw
    assert torch.equal(learner.initial()[0].weight, start)
    learner.restart_(torch.tensor([1]))
    restarted = learner.net[0].weight.detach().clone()
    assert torch.equal(learner.initial()[0].weight, restarted)
    assert torch.equal(restarted[0], start[0])


def test_making_a_learner_leaves_the_global_random_state_alone():
    with nothing_drawn():
        Learner(make_plain, [0]).restart_()


def test_a_module_keeps_its_buffers_in_a_restart():
    learner = Learner(lambda seeds: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), [0])
    address = learner.net[1].running_mean.data_ptr()
    learner.minimize(learner.net(torch.randn(8, 3)).square().mean())
    assert learner.net[1].num_batches_tracked == 1
    learner.restart_()
    assert learner.net[1].num_batches_tracked == 0
    assert torch.equal(learner.net[1].running_mean, torch.zeros(4))
    assert learner.net[1].running_mean.data_ptr() == address
