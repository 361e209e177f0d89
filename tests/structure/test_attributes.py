"""What a network holds is after a look at it what it was before: tensors, modes, hooks, attributes, random states."""

import collections
import copy
import random

import numpy as np
import pytest
import torch
from conftest import nothing_drawn, refused
from foreign.expected import made_of
from torch import nn

from rl_plasticity import attach, make_intervention, measure
from rl_plasticity.structure import HiddenLayer, read, recyclable


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.relu, self.two = nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(8).eval()
        self.zero = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5))
        self.calls, self.mean, self.last = 0, torch.zeros(5), None
        self.history, self.by_name, self.recent = [], {"calls": [0], "sum": torch.zeros(3)}, collections.deque(maxlen=3)
        self.array, self.kinds, self.losses = np.zeros(2), set(), [None]
        self.generator, self.numpy, self.python = torch.Generator(), np.random.default_rng(0), random.Random(0)
        self.register_buffer("replaced", torch.zeros(5))
        self.register_buffer("counted", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.mean.lerp_(x.detach().mean(0), 0.1)
        self.replaced = self.replaced + x.detach().mean(0)
        self.counted.add_(1)
        self.last = self.late = x.detach()
        self.history.append(x.detach().mean())
        self.losses[0] = self.one.weight.sum()  # with its graph
        self.by_name["calls"][0] += 1
        self.by_name["sum"].data += 1
        self.by_name["new"] = self.calls
        self.recent.append(self.calls)
        self.array += 1
        self.kinds.add(self.calls)
        own = torch.rand(3, generator=self.generator) + float(self.numpy.random()) + self.python.random()
        drawn = own + torch.rand(3) + random.random() + np.random.rand()  # noqa: NPY002
        return self.two(self.relu(self.norm(self.one(self.zero(x) - self.mean - self.replaced / self.calls)))) + drawn


def state(net):
    return repr(
        [
            (name, value.get_state().tolist() if isinstance(value, torch.Generator) else value)
            for name, value in sorted(net.__dict__.items())
            if name == "_buffers" or name not in {"numpy", "python", "generator", *nn.Module().__dict__}
        ]
    ) + repr((net.numpy.bit_generator.state, net.python.getstate(), net.generator.get_state().tolist()))


X = torch.randn(6, 5)


def units_of(net):
    return [HiddenLayer(*(layer for layer in read(net).layers if layer.name == "one"), (), "relu", 0, (), 8)]


NEW = Stateful()
LOOKS = {
    "measure": lambda net: measure(net, X),
    "measure with a loss": lambda net: measure(net, X, lambda output: output.square().mean()),
    "trace": lambda net: read(net),
    "example": lambda net: read(net, (X,)),
    "check of units": lambda net: recyclable(net, units_of(net), X),
    "redo": lambda net: make_intervention("redo").apply_(net, (), example=X, make=lambda: NEW),
}


@pytest.mark.filterwarnings("ignore:.*leaves alone")
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("called", [0, 2])
def test_a_look_at_a_network_leaves_it_and_all_random_states_as_they_were(look, called):
    torch.manual_seed(0)
    net = Stateful()
    for _ in range(called):
        net(X)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    before, tensors = state(net), (net.mean, net.by_name["sum"], net.replaced, net.history, net.losses[0])
    held, modes = copy.deepcopy(net.state_dict()), [module.training for module in net.modules()]
    with nothing_drawn():
        if look == "measure with a loss":  # what draws cannot be differentiated example by example
            refused(lambda: LOOKS[look](net), "example", error=ValueError)
        else:
            LOOKS[look](net)
    assert state(net) == before
    after = (net.mean, net.by_name["sum"], net.replaced, net.history, net.losses[0])
    assert all(a is b for a, b in zip(after, tensors, strict=True))
    assert [module.training for module in net.modules()] == modes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in net.parameters())
    if look in ("trace", "example", "check of units"):
        assert all(torch.equal(held[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize("name", ["churn", "continual_backprop", "self_normalized_resets"])
def test_in_training_such_state_moves_once_a_step_and_not_by_the_regularizer(name):
    torch.manual_seed(0)
    net, alone = Stateful(), Stateful()
    alone.load_state_dict(net.state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    attach(name, optimizer, net, example=(X,), **{"coef": 0.1} if name == "churn" else {})
    assert state(net) == state(alone)
    for _ in range(3):
        optimizer.zero_grad()
        net(X).square().mean().backward()
        alone(X)
        optimizer.step()
        assert state(net) == state(alone)
    assert net.calls == 3


CAPTURED = []


def capturing():
    """Installs at its first call the hooks by which it sees its own features, as transformers' backbones do."""

    def forward(net, x):
        if not net.installed:
            net.body.register_forward_hook(lambda body, args, features: CAPTURED.append(features))
            net.installed = True
        CAPTURED.clear()
        net.body(x)
        return net.head(*CAPTURED)

    return made_of(forward, body=nn.Sequential(nn.Linear(5, 8), nn.ReLU()), head=nn.Linear(8, 3), installed=False)


@pytest.mark.parametrize("called", [0, 2])
@pytest.mark.parametrize("look", ["measure", "example", "churn", "feature_rank"])
def test_hooks_that_a_network_installs_at_its_first_call_are_there_as_often_as_it_notes(look, called):
    torch.manual_seed(0)
    net = capturing()
    for _ in range(called):
        net(X)
    if look in LOOKS:
        LOOKS[look](net)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        attach(look, optimizer, net, example=(X,), coef=0.1)
        for _ in range(2):
            net(X).sum().backward()
            optimizer.step()
    assert net.installed == (len(net.body._forward_hooks) == 1)
    assert net(X).shape == (6, 3)
