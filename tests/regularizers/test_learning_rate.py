"""Strengths that are multiplied by the learning rate, in a Learner, in anybody's loop and by hand."""

import copy
from functools import partial

import pytest
import torch
from conftest import plain_mlp, refused
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR

from rl_plasticity import attach
from rl_plasticity.interventions import LearningRateDecay
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import Adam
from rl_plasticity.regularizers import WeightDecay, make_regularizer

LR, DECAY, STEPS, MILESTONES = 0.01, 0.3, 60, (20, 40)
TIGHT = {"rtol": 1e-7, "atol": 1e-7}  # the strength is a float32


def batches():
    return torch.randn(STEPS, 16, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def step(net, optimizers, schedulers, x):
    net.zero_grad()
    net(x).square().mean().backward()
    for stepping in (*optimizers, *schedulers):
        stepping.step()


def test_a_learner_with_weight_decay_and_a_decayed_rate_equals_adamw_under_a_scheduler_step_for_step():
    learner = Learner(lambda _: plain_mlp().double(), (0,), partial(WeightDecay, coef=DECAY), partial(Adam, lr=LR))
    other = copy.deepcopy(learner.net)
    optimizer = torch.optim.AdamW(other.parameters(), lr=LR, weight_decay=DECAY)
    scheduler, decay = MultiStepLR(optimizer, MILESTONES), LearningRateDecay(at_updates=MILESTONES)
    for updates, x in enumerate(batches(), 1):
        learner.minimize(learner.net(x).square().mean())
        if decay.due(updates):
            decay.apply_(learner)
        step(other, [optimizer], [scheduler], x)
        torch.testing.assert_close([*learner.net.parameters()], [*other.parameters()], **TIGHT)


HALVES = [lambda n: 0.5 ** (n // 10), lambda n: 1.0 if n < 30 else 0.01]


def test_attached_each_parameter_s_decay_is_at_the_rate_of_its_own_group_of_whichever_optimizer():
    net = plain_mlp().double()
    other = copy.deepcopy(net)

    def groups(of):
        return [{"params": of[0].parameters(), "lr": LR}, {"params": of[2:].parameters(), "lr": LR}]

    optimizers = [torch.optim.Adam([g]) for g in groups(net)]
    theirs = torch.optim.AdamW(groups(other), weight_decay=DECAY)
    attach("weight_decay", optimizers, net, coef=DECAY)
    schedulers = [LambdaLR(o, half) for o, half in zip(optimizers, HALVES, strict=True)]
    its = LambdaLR(theirs, HALVES)
    for x in batches():
        step(net, optimizers, schedulers, x)
        step(other, [theirs], [its], x)
        torch.testing.assert_close([*net.parameters()], [*other.parameters()], **TIGHT)


def test_wrs_and_orthogonal_multiply_their_strength_by_the_rate_they_are_given():
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    wrs = make_regularizer("wrs", net, every_updates=10, norm_decay=10.0)
    for lr in (1e-2, {"1.weight": 1e-3, "1.bias": 1e-3}):
        wrs.project_(net, lr)
    torch.testing.assert_close(net[1].weight, torch.full((4,), 0.9 * 0.99))
    orthogonal = make_regularizer("orthogonal", net, coef=5.0)
    w = net[0].weight.detach().clone()
    orthogonal.project_(net, 0.01)
    torch.testing.assert_close(net[0].weight, w - 4 * 0.05 * (w @ w.T @ w - w))


class WithoutRate(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})


@pytest.mark.parametrize("method", ["weight_decay", "wrs", "orthogonal"])
def test_without_the_rate_it_is_refused(method):
    net = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    regularizer = make_regularizer(method, net)
    regularizer.penalty(net)
    refused(lambda: regularizer.project_(net), "learning rate", "project_(net, lr)")
    refused(lambda: attach(method, WithoutRate(net.parameters()), net), "learning rate")
