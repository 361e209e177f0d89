"""Strengths that are learning rate * decay follow the learning rate, in a Learner, in anybody's loop and by hand."""

import copy
import warnings
from functools import partial

import pytest
import torch
from conftest import SmallCNN, plain_mlp
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim.lr_scheduler import LambdaLR, LinearLR, MultiStepLR

from rl_plasticity import attach
from rl_plasticity.errors import SettingsError
from rl_plasticity.interventions import LearningRateDecay, PeriodicReset
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import Adam
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import Chain, SideBySide, WeightDecay, make_regularizer

LR, DECAY, STEPS, MILESTONES = 0.01, 0.3, 60, (20, 40)


def same_to(tolerance, net, other):
    for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")


def batches(steps=STEPS, *axes):
    return torch.randn(steps, *axes, 16, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def of_norm(_=None):
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


OVERWRITING = {
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=5 * LR, total_steps=60),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, LR / 10, 2 * LR, 7, cycle_momentum=False),
}


def step(net, optimizer, scheduler, x):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
    scheduler.step()


def learner_of(make, regularize, seeds=(0,)):
    return Learner(lambda seeds: make(seeds).double(), seeds, regularize, partial(Adam, lr=LR))


def test_a_learner_with_weight_decay_and_a_decayed_rate_equals_adamw_under_a_scheduler_step_for_step():
    learner = learner_of(lambda _: plain_mlp(), lambda net: WeightDecay(net, coef=LR * DECAY))
    other = copy.deepcopy(learner.net)
    optimizer = torch.optim.AdamW(other.parameters(), lr=LR, weight_decay=DECAY)
    scheduler, decay = MultiStepLR(optimizer, MILESTONES), LearningRateDecay(at_updates=MILESTONES)
    for updates, x in enumerate(batches(), 1):
        learner.minimize(learner.net(x).square().mean())
        if decay.due(updates):
            decay.apply_(learner)
        step(other, optimizer, scheduler, x)
        same_to(1e-12, learner.net, other)


class ByHand:
    """A rate that a loop sets, with no scheduler."""

    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, 0

    def step(self):
        self.steps += 1
        self.optimizer.param_groups[0]["lr"] = LR / (1 + self.steps)


SCHEDULERS = OVERWRITING | {  # a warm-up, so that the rate at `attach` is not the one that the strength is for
    "LinearLR": lambda o: LinearLR(o, start_factor=0.1, total_iters=30),
    "by hand": ByHand,
}


@pytest.mark.parametrize(
    ("kind", "scheduled"), [*((kind, "after attach") for kind in SCHEDULERS), ("LinearLR", "before attach")]
)
def test_attach_to_adam_with_a_scheduler_equals_adamw_under_it_step_for_step(kind, scheduled):
    net = plain_mlp().double()
    other = copy.deepcopy(net)
    adam = torch.optim.Adam(net.parameters(), lr=LR)
    if scheduled == "before attach":
        mine = SCHEDULERS[kind](adam)
    attach("weight_decay", adam, net, coef=LR * DECAY)
    if scheduled == "after attach":
        mine = SCHEDULERS[kind](adam)
    theirs = torch.optim.AdamW(other.parameters(), lr=LR, weight_decay=DECAY)
    scheduler = SCHEDULERS[kind](theirs)
    for x in batches(50):
        step(net, adam, mine, x)
        step(other, theirs, scheduler, x)
        same_to(1e-12, net, other)


@pytest.mark.parametrize("split", ["groups", "optimizers"])
def test_each_parameter_follows_the_rate_of_its_own_group(split):
    net = plain_mlp().double()
    other = copy.deepcopy(net)

    def groups(of):
        return [{"params": of[0].parameters(), "lr": LR}, {"params": of[2:].parameters(), "lr": LR}]

    shares = [lambda n: 0.5 ** (n // 10), lambda n: 1.0 if n < 30 else 0.01]
    if split == "groups":
        optimizers = [torch.optim.Adam(groups(net))]
        mine = [LambdaLR(optimizers[0], shares)]
    else:
        optimizers = [torch.optim.Adam([group]) for group in groups(net)]
        mine = [LambdaLR(o, share) for o, share in zip(optimizers, shares, strict=True)]
    attach("weight_decay", optimizers, net, coef=LR * DECAY)
    theirs = torch.optim.AdamW(groups(other), weight_decay=DECAY)
    scheduler = LambdaLR(theirs, shares)
    for x in batches():
        net.zero_grad()
        net(x).square().mean().backward()
        for stepping in (*optimizers, *mine):
            stepping.step()
        step(other, theirs, scheduler, x)
        same_to(1e-12, net, other)


def test_wrs_follows_the_rate_of_a_learner_a_scheduler_s_and_one_that_is_said():
    learner = learner_of(of_norm, partial(make_regularizer, "wrs", norm_decay=0.1))
    LearningRateDecay(at_updates=[1], factor=0.5).apply_(learner)
    before = learner.net[1].weight.detach().clone()
    learner.regularizer.project_(learner.net)
    torch.testing.assert_close(learner.net[1].weight, before * 0.95)

    net = of_norm()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-30)  # nothing but the projection moves the gain
    attach("wrs", optimizer, net, norm_decay=0.1)
    scheduler = MultiStepLR(optimizer, [1], gamma=0.5)
    for _ in range(2):
        step(net, optimizer, scheduler, torch.randn(8, 5))
    torch.testing.assert_close(net[1].weight, torch.full((4,), 0.9 * 0.95))

    net = of_norm()
    net[1].bias.data.fill_(2.0)
    regularizer = make_regularizer("wrs", net, every_updates=10, norm_decay=0.1)
    for said in ((), (1e-3, 1e-2), (1e-4,)):  # without another initial rate it is the one before
        if said:
            regularizer.follow_(*said)
        regularizer.project_(net)
    torch.testing.assert_close(net[1].weight, torch.full((4,), 0.9 * 0.99 * 0.999))
    torch.testing.assert_close(net[1].bias, torch.full((4,), 2 * 0.9 * 0.99 * 0.999))


def wrapped(how, net, name):
    make = partial(make_regularizer, name)
    if how == "windowed":
        return make(net, from_update=3)
    parts = {"chain": lambda: Chain(net, make_regularizer("spectral", net), make(net))}
    parts["side by side"] = lambda: SideBySide(net, (1, partial(make_regularizer, "wrs")), (1, make))
    return parts[how]()


@pytest.mark.parametrize("how", ["windowed", "chain", "side by side"])
def test_what_is_inside_another_follows(how):
    regularizer = wrapped(how, MLP((5, 8, 3), [0, 1], layer_norm=True), "weight_decay")
    regularizer.follow_(1e-3, initial_lr=1e-2)
    inner = [regularizer.inner] if how == "windowed" else regularizer.parts[1:]
    assert torch.allclose(inner[0].lr_share, torch.tensor(0.1))


def test_orthogonal_s_step_follows_a_scheduler_s_rate_and_by_hand_those_of_the_names_that_are_given():
    net = plain_mlp().double()
    other = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-30)  # nothing but the projection moves the weights
    attach("orthogonal", optimizer, net, coef=0.05)
    scheduler = MultiStepLR(optimizer, [1], gamma=0.5)
    regularizer = make_regularizer("orthogonal", other, coef=0.05)
    for rates in ({"0.weight": LR, "2.weight": LR}, {"0.weight": LR / 2}):
        step(net, optimizer, scheduler, torch.randn(8, 5).double())
        regularizer.follow_(rates, initial_lr=LR)
        before = [other[i].weight.detach().clone() for i in (0, 2)]
        regularizer.project_(other)
    torch.testing.assert_close(net[0].weight, other[0].weight)
    for (i, coef), w in zip(((0, 0.025), (2, 0.05)), before, strict=True):  # a name that is not given keeps its rate
        torch.testing.assert_close(other[i].weight, w - 4 * coef * (w @ w.T @ w - w))
    assert not torch.allclose(net[2].weight, other[2].weight)


def test_a_resumed_run_keeps_the_decay_and_warns_of_no_other_strength():
    def make():
        return learner_of(partial(MLP, (5, 8, 3)), lambda net: WeightDecay(net, coef=LR * DECAY), seeds=(0, 1))

    learner = make()
    xs = batches(6, 2)
    for x in xs[:3]:
        learner.minimize(learner.net(x).square().mean((-1, -2)))
    LearningRateDecay(at_updates=[1]).apply_(learner)
    saved = {name: value.clone() for name, value in learner.state_dict().items()}
    assert saved["regularizer.coef"] == LR * DECAY  # as it was given
    other = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.load_state_dict(saved)
    for one in (learner, other):
        for x in xs[3:]:
            one.minimize(one.net(x).square().mean((-1, -2)))
    same_to(0, learner.net, other.net)
    LearningRateDecay(at_updates=[1]).apply_(other)
    assert torch.allclose(other.regularizer.lr_share, torch.tensor(0.01, dtype=torch.float64))
    with pytest.warns(UserWarning, match=r"\bcoef\b.*\b0\.5\b.*\b0\.003\b"):
        WeightDecay(other.net, coef=0.5).load_state_dict(learner.regularizer.state_dict())


@pytest.mark.parametrize("order", ["optimizer first", "regularizer first", "optimizer before attach"])
def test_an_attached_run_that_was_saved_after_a_decay_goes_on_with_it_in_whatever_order_it_is_loaded(order):
    def make(net):
        optimizer = torch.optim.Adam(net.parameters(), lr=LR)
        return optimizer, attach("weight_decay", optimizer, net, coef=LR * DECAY)

    def train(net, optimizer, xs):
        for x in xs:
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

    xs = batches(9)
    net = plain_mlp().double()
    optimizer, handle = make(net)
    train(net, optimizer, xs[:3])
    optimizer.param_groups[0]["lr"] = LR / 10  # no scheduler keeps what it was
    train(net, optimizer, xs[3:6])
    other = copy.deepcopy(net)
    saved = copy.deepcopy((optimizer.state_dict(), handle.state_dict()))
    if order == "optimizer before attach":
        resumed = torch.optim.Adam(other.parameters(), lr=LR)
        resumed.load_state_dict(saved[0])
        attach("weight_decay", resumed, other, coef=LR * DECAY).load_state_dict(saved[1])
    else:
        resumed, new = make(other)
        for one, state in list(zip((resumed, new), saved, strict=True))[:: 1 if order == "optimizer first" else -1]:
            one.load_state_dict(state)
    train(net, optimizer, xs[6:])
    train(other, resumed, xs[6:])
    same_to(0, net, other)


def test_a_reset_leaves_the_share_as_it_leaves_the_rate():
    learner = learner_of(partial(MLP, (5, 8, 3)), WeightDecay, seeds=(0, 1))
    LearningRateDecay(at_updates=[1]).apply_(learner)
    for runs in ([1], None):
        PeriodicReset(4).apply_(learner, runs=runs)
        assert learner.optimizer.lr.item() == pytest.approx(LR / 10)
        assert torch.allclose(learner.regularizer.lr_share, torch.tensor(0.1, dtype=torch.float64))


def test_a_compiled_update_sees_a_decay_without_being_traced_anew():
    torch._dynamo.reset()
    net = MLP((5, 8, 3), [0, 1], layer_norm=True)
    regularizers = [WeightDecay(net, coef=0.1), make_regularizer("wrs", net, norm_decay=0.1)]
    graphs = CompileCounterWithBackend("aot_eager")

    def update():
        for regularizer in regularizers:
            regularizer.penalty(net)
            regularizer.project_(net)

    traced = torch.compile(update, fullgraph=True, backend=graphs)
    traced()
    for regularizer in regularizers:
        regularizer.follow_(1e-3, initial_lr=1e-2)
    before = net[1].weight.detach().clone()
    traced()
    torch.testing.assert_close(net[1].weight, before * 0.99 * 0.99)
    assert graphs.frame_count == 1


def test_a_rate_without_the_one_that_strengths_are_for_is_refused():
    regularizer = WeightDecay(plain_mlp())
    for initial in (None, 0.0):
        with pytest.raises(SettingsError, match=rf"initial_lr.*got {initial}"):
            regularizer.follow_(1e-3, initial_lr=initial)
    make_regularizer("spectral", SmallCNN()).follow_(1e-3)  # depends on no rate


@pytest.mark.parametrize("kept", [True, False])
def test_attached_while_the_rate_is_zero_it_is_refused_before_the_first_step(kept):
    net = plain_mlp()
    adam = torch.optim.Adam(net.parameters(), lr=LR)
    adam.param_groups[0]["lr"] = 0.0  # a warmup that begins there
    if kept:
        adam.param_groups[0]["initial_lr"] = LR
        attach("weight_decay", adam, net)
    else:
        with pytest.raises(SettingsError, match=r"learning rate.*\b0\b.*\.follow_\(lr, initial_lr=lr\)"):
            attach("weight_decay", adam, net)
        attach("l2", adam, net)
    step(net, adam, LambdaLR(adam, lambda n: 1.0), torch.randn(8, 5))


@pytest.mark.parametrize("method", ["weight_decay", "wrs", "orthogonal"])
@pytest.mark.parametrize("kind", OVERWRITING)
def test_attached_behind_such_a_scheduler_it_is_refused_unless_it_was_told_the_rate(kind, method):
    net = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)).double()
    adam = torch.optim.Adam(net.parameters(), lr=LR)
    scheduler = OVERWRITING[kind](adam)
    with pytest.raises(SettingsError, match=rf"{kind}\b.*attach"):
        attach(method, adam, net)
    attach("l2", adam, net)  # does not depend on it
    regularizer = make_regularizer(method, net)
    regularizer.follow_(LR, initial_lr=LR)
    attach(regularizer, adam, net)
    net(batches(1)[0]).square().mean().backward()
    adam.step()
    rate = adam.param_groups[0]["lr"]
    torch.testing.assert_close(regularizer.lr_share, torch.full_like(regularizer.lr_share, rate / LR))
    del scheduler
