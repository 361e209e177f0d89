"""Strengths that are multiplied by the learning rate, in a Learner, in anybody's loop and by hand."""

import copy
from functools import partial

import pytest
import torch
from conftest import plain_mlp
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LinearLR, MultiStepLR

from rl_plasticity import attach
from rl_plasticity.errors import SettingsError
from rl_plasticity.interventions import LearningRateDecay
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import Adam
from rl_plasticity.regularizers import WeightDecay, make_regularizer

LR, DECAY, STEPS, MILESTONES = 0.01, 0.3, 60, (20, 40)


def same_to(tolerance, net, other):
    for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")


def batches(steps=STEPS, *axes):
    return torch.randn(steps, *axes, 16, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def step(net, optimizer, scheduler, x):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
    scheduler.step()


def test_a_learner_with_weight_decay_and_a_decayed_rate_equals_adamw_under_a_scheduler_step_for_step():
    learner = Learner(lambda _: plain_mlp().double(), (0,), partial(WeightDecay, coef=DECAY), partial(Adam, lr=LR))
    other = copy.deepcopy(learner.net)
    optimizer = torch.optim.AdamW(other.parameters(), lr=LR, weight_decay=DECAY)
    scheduler, decay = MultiStepLR(optimizer, MILESTONES), LearningRateDecay(at_updates=MILESTONES)
    for updates, x in enumerate(batches(), 1):
        learner.minimize(learner.net(x).square().mean())
        if decay.due(updates):
            decay.apply_(learner)
        step(other, optimizer, scheduler, x)
        same_to(1e-7, learner.net, other)  # the strength is a float32


SCHEDULERS = {
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=5 * LR, total_steps=60),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, LR / 10, 2 * LR, 7, cycle_momentum=False),
    "LinearLR": lambda o: LinearLR(o, start_factor=0.1, total_iters=30),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("before", [True, False])
def test_attach_to_adam_with_a_scheduler_equals_adamw_under_it_step_for_step(kind, before):
    net = plain_mlp().double()
    other = copy.deepcopy(net)
    adam = torch.optim.Adam(net.parameters(), lr=LR)
    theirs = torch.optim.AdamW(other.parameters(), lr=LR, weight_decay=DECAY)
    if before:
        mine, scheduler = SCHEDULERS[kind](adam), SCHEDULERS[kind](theirs)
    attach("weight_decay", adam, net, coef=DECAY)
    if not before:
        mine, scheduler = SCHEDULERS[kind](adam), SCHEDULERS[kind](theirs)
    for x in batches(50):
        step(net, adam, mine, x)
        step(other, theirs, scheduler, x)
        same_to(1e-7, net, other)


def test_each_parameter_follows_the_rate_of_its_own_group_of_whichever_optimizer():
    net = plain_mlp().double()
    other = copy.deepcopy(net)

    def groups(of):
        return [{"params": of[0].parameters(), "lr": LR}, {"params": of[2:].parameters(), "lr": LR}]

    shares = [lambda n: 0.5 ** (n // 10), lambda n: 1.0 if n < 30 else 0.01]
    optimizers = [torch.optim.Adam([group]) for group in groups(net)]
    mine = [LambdaLR(o, share) for o, share in zip(optimizers, shares, strict=True)]
    attach("weight_decay", optimizers, net, coef=DECAY)
    theirs = torch.optim.AdamW(groups(other), weight_decay=DECAY)
    scheduler = LambdaLR(theirs, shares)
    for x in batches():
        net.zero_grad()
        net(x).square().mean().backward()
        for stepping in (*optimizers, *mine):
            stepping.step()
        step(other, theirs, scheduler, x)
        same_to(1e-7, net, other)


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


@pytest.mark.parametrize("method", ["weight_decay", "wrs", "orthogonal"])
def test_without_the_rate_it_is_refused(method):
    net = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    regularizer = make_regularizer(method, net)
    regularizer.penalty(net)
    with pytest.raises(SettingsError, match=r"learning rate.*project_\(net, lr\)"):
        regularizer.project_(net)
    with pytest.raises(SettingsError, match="learning rate"):
        attach(method, torch.optim.Adafactor(net.parameters(), lr=None), net) if False else refuse(method, net)


def refuse(method, net):
    class Without(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

    attach(method, Without(net.parameters()), net)
