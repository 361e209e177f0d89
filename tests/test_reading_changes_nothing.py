"""Reading a network changes nothing of it, and a second call draws no random number of the loop's."""

import copy
import random
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import spectral_norm as hooked_spectral_norm
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from rl_plasticity import attach, diagnose, make_regularizer, measure
from rl_plasticity.errors import SettingsError
from rl_plasticity.regularizers import REGULARIZERS
from rl_plasticity.structure import hidden_units, read

X = torch.randn(16, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(16) % 3


class Counting(nn.Module):
    """Draws noise and dropout in its forward, counts its calls, and keeps the last output."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two, self.relu = nn.Linear(5, 8), nn.Linear(8, 3), nn.ReLU()
        self.register_buffer("calls", torch.zeros(()))
        self.last = torch.zeros(())

    def forward(self, x):
        self.calls += 1
        h = nn.functional.dropout(self.relu(self.one(x)), 0.5, training=self.training)
        self.last = self.two(h + 0.01 * torch.randn(8)).detach()
        return self.two(h * (1 + 0.01 * torch.rand(8)))


class DropConnect(nn.Module):
    """A parametrization that draws in training mode."""

    def forward(self, weight):
        return nn.functional.dropout(weight, 0.2, training=self.training)


def drop_connected(layer):
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", DropConnect())
    return layer


def of(*hidden, first=lambda layer: layer, second=lambda layer: layer, head=lambda layer: layer):
    def make():
        torch.manual_seed(1)
        layers = [first(nn.Linear(5, 8)), *(kind() for kind in hidden), nn.ReLU(), second(nn.Linear(8, 6)), nn.ReLU()]
        return nn.Sequential(*layers, head(nn.Linear(6, 3)))

    return make


# One that calls the network of each kind, and one that reads weights; of the network that counts its calls, all do.
LOOKING = ("churn", "feature_rank", "continual_backprop", "self_normalized_resets", "spectral")
NETS = {
    "dropout": of(lambda: nn.Dropout(0.5)),
    "alpha dropout": of(lambda: nn.AlphaDropout(0.3)),
    "batch norm": of(lambda: nn.BatchNorm1d(8), lambda: nn.Dropout(0.1)),
    "spectral norm": of(first=spectral_norm, second=spectral_norm),
    "spectral norm of the head": of(head=spectral_norm),
    "hooked spectral norm": of(first=hooked_spectral_norm, second=hooked_spectral_norm),
    "hooked spectral norm of the head": of(head=hooked_spectral_norm),
    "weight norm": of(first=weight_norm),
    "orthogonal": of(second=orthogonal),
    "drop connect": of(second=drop_connected),
    "randomized leaky": of(nn.RReLU),
    "own": Counting,
}


def state_of(net):
    """Everything that a call could change: parameters, buffers, tensors kept in modules, modes, random states."""
    tensors = {name: t.clone() for name, t in [*net.named_parameters(), *net.named_buffers()]}
    kept = {(n, k): v for n, m in net.named_modules() for k, v in vars(m).items() if isinstance(v, torch.Tensor)}
    tensors |= {str(key): value.detach().clone() for key, value in kept.items()}
    return tensors, [m.training for m in net.modules()], randomness()


def randomness():
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002


def changed(net, before):
    tensors, modes, drawn = before
    now, modes_now, drawn_now = state_of(net)
    names = [name for name in now if name not in tensors or not torch.equal(now[name], tensors[name])]
    return names + ["modes"] * (modes != modes_now) + ["random states"] * (drawn != drawn_now)


def reading(net):
    yield "read", lambda: read(net)
    yield "read with an example", lambda: read(net, X)
    yield "hidden units", lambda: hidden_units(net, X)
    yield "measure", lambda: measure(net, X)
    yield "measure gradients", lambda: measure(net, X, nn.functional.cross_entropy, Y)
    for name in REGULARIZERS if isinstance(net, Counting) else LOOKING:
        made = []
        settings = {"coef": 1.0} if name == "churn" else {}

        def make(name=name, made=made, settings=settings):
            made.append(make_regularizer(name, net, **settings))
            made.append(make_regularizer(name, net, example=X, **settings))

        yield f"making {name}", make
        for _ in range(2):
            yield f"penalty of {name}", lambda made=made: made and made[-1].penalty(net, X)
        gradients = {n: torch.ones_like(p) for n, p in net.named_parameters()}
        yield f"observing of {name}", lambda made=made, g=gradients: made and made[-1].observe_(net, g)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "training"), [*((kind, True) for kind in NETS), ("batch norm", False), ("spectral norm", False)]
)
def test_reading_changes_nothing(kind, training):
    net = NETS[kind]().train(training)
    net(X)
    for what, act in reading(net):
        before = state_of(net)
        with suppress(SettingsError, ValueError, RuntimeError):  # what is refused changes nothing either
            act()
        assert not changed(net, before), what


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["spectral norm", "hooked spectral norm", "batch norm"])
def test_diagnosing_changes_nothing(kind, brief_trials):
    net = NETS[kind]()
    optimizer = torch.optim.Adam(net.parameters())
    before = state_of(net)
    diagnose(net, X, optimizer=optimizer, make=NETS[kind], repeats=2, updates=10)
    assert not changed(net, before)


def trained(net, beside=lambda: None, method=None, lr=1e-2, **settings):
    """The network after some steps, and the random state then."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    handle = attach(method, optimizer, net, **settings) if method else None
    torch.manual_seed(5)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X), Y).backward()
        optimizer.step()
        beside()
    return net, handle, randomness()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", NETS)
def test_training_goes_the_same_way_when_it_is_measured(kind):
    net, other = NETS[kind](), NETS[kind]()
    _, _, drawn = trained(net)

    def beside():
        measure(other, X)
        hidden_units(other, X)
        with suppress(ValueError):  # some cannot be differentiated for one example at a time
            measure(other, X, nn.functional.cross_entropy, Y)

    _, _, its = trained(other, beside)
    assert drawn == its
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), other.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", NETS)
def test_training_goes_the_same_way_with_a_penalty_of_strength_zero(kind):
    net, acted = NETS[kind](), 0
    _, _, drawn = trained(net)
    for method in ("churn", "feature_rank", "spectral", "ewc"):
        with suppress(SettingsError, ValueError):  # refused
            other, _, its = trained(NETS[kind](), method=method, coef=0.0)
            assert drawn == its, method
            assert all(torch.equal(p, q) for p, q in zip(net.parameters(), other.parameters(), strict=True)), method
            acted += 1
    assert acted >= 3


@pytest.mark.parametrize("kind", [k for k in NETS if "spectral" not in k])  # whose weights move in each forward
def test_weights_that_stay_do_not_churn(kind):
    _, handle, _ = trained(NETS[kind](), method="churn", lr=0.0, coef=1.0)
    assert handle.penalty == 0


def test_a_spectral_norm_is_read_as_the_forward_computed_it():
    net = NETS["spectral norm"]()
    net(X)
    used = copy.deepcopy(net).eval()[2].weight
    read_now = next(layer for layer in read(net).layers if layer.name == "2").weight(net)
    assert torch.equal(used, read_now)
    penalty = make_regularizer("spectral", net, coef=1.0).penalty(net)
    (gradient,) = torch.autograd.grad(penalty, net[2].parametrizations.weight.original)
    assert gradient.abs().max() > 0


@pytest.mark.parametrize(("kind", "method"), [("spectral norm of the head", "spectral"), ("batch norm", "churn")])
def test_a_network_with_computed_weights_traces(kind, method):
    net = NETS[kind]().eval()
    regularizer = make_regularizer(method, net, coef=1.0)
    other = copy.deepcopy(regularizer)
    compiled = torch.compile(lambda x: regularizer.penalty(net, x), fullgraph=True, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(X), other.penalty(net, X))
