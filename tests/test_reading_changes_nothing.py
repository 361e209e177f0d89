"""Reading a network changes nothing of it, and a second call draws no random number of the loop's."""

import collections
import copy
import random
from contextlib import suppress

import numpy as np
import pytest
import torch
from conftest import plainly
from foreign.expected import made_of
from torch import nn
from torch.nn.utils import spectral_norm as hooked_spectral_norm
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.nn.utils.parametrize import register_parametrization

from rl_plasticity import attach, diagnose, make_intervention, make_regularizer, measure
from rl_plasticity.errors import SettingsError
from rl_plasticity.regularizers import REGULARIZERS
from rl_plasticity.structure import HiddenLayer, hidden_units, read, recyclable

X = torch.randn(16, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(16) % 3


class Stateful(nn.Module):
    """Draws in its forward, and notes its calls in every way there is."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.one, self.relu, self.two = nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(8).eval()
        self.calls, self.mean, self.last = 0, torch.zeros(5), None
        self.history, self.by_name, self.recent = [], {"calls": [0], "sum": torch.zeros(3)}, collections.deque(maxlen=3)
        self.array, self.kinds, self.losses = np.zeros(2), set(), [None]
        self.generator, self.numpy, self.python = torch.Generator(), np.random.default_rng(0), random.Random(0)
        self.register_buffer("replaced", torch.zeros(5))
        self.register_buffer("counted", torch.zeros(()))

    @property
    def kept(self):
        return self.mean, self.by_name["sum"], self.replaced, self.history, self.losses[0]

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
        return self.two(self.relu(self.norm(self.one(x - self.mean - self.replaced / self.calls)))) + drawn


def state(net):
    return repr(
        [
            (name, value.get_state().tolist() if isinstance(value, torch.Generator) else value)
            for name, value in sorted(net.__dict__.items())
            if name == "_buffers" or name not in {"numpy", "python", "generator", *nn.Module().__dict__}
        ]
    ) + repr((net.numpy.bit_generator.state, net.python.getstate(), net.generator.get_state().tolist()))


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
    "drop connect": of(second=lambda layer: register_parametrization(layer, "weight", nn.Dropout(0.2))),
    "randomized leaky": of(nn.RReLU),
    "own": Stateful,
}


def state_of(net):
    """Everything that a call could change: tensors by name, and whatever else."""
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    tensors |= {
        f"{n}.{k}": v for n, m in net.named_modules() for k, v in vars(m).items() if isinstance(v, torch.Tensor)
    }
    gradients = {f"{name}.grad": p.grad for name, p in net.named_parameters()}
    return {name: t.detach().clone() for name, t in (tensors | gradients).items() if t is not None}, {
        "modes": [m.training for m in net.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()],
        "random states": randomness(),
        "attributes": isinstance(net, Stateful) and (state(net), *map(id, net.kept)),
    }


def randomness():
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002


def changed(net, before):
    (tensors, others), (now, others_now) = before, state_of(net)
    names = [name for name in now if name not in tensors or not torch.equal(now[name], tensors[name])]
    return names + [what for what in others if others[what] != others_now[what]]


def reading(net):
    yield "read", lambda: read(net)
    yield "read with an example", lambda: read(net, X)
    yield "hidden units", lambda: hidden_units(net, X)
    yield "measure", lambda: measure(net, X)
    yield "measure gradients", lambda: measure(net, X, nn.functional.cross_entropy, Y)
    if isinstance(net, Stateful):
        of_one = [layer for layer in read(net).layers if layer.name == "one"]
        yield "check of units", lambda: recyclable(net, [HiddenLayer(*of_one, (), "relu", 0, (), 8)], X)
        redo, new = make_intervention("redo", threshold=0.0), Stateful()
        yield "redo", lambda: redo.apply_(net, (), example=X, make=lambda: new)
    for name in REGULARIZERS if isinstance(net, Stateful) else LOOKING:
        made = []
        settings = {"coef": 1.0} if name == "churn" else {}

        def make(name=name, made=made, settings=settings):
            for given in ({}, {"example": X}):
                with suppress(SettingsError, ValueError):
                    made.append(make_regularizer(name, net, **given, **settings))

        yield f"making {name}", make
        for _ in range(2):
            yield f"penalty of {name}", lambda made=made: made and made[-1].penalty(net, X)
        gradients = {n: torch.ones_like(p) for n, p in net.named_parameters()}
        yield f"observing of {name}", lambda made=made, g=gradients: made and made[-1].observe_(net, g)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "training", "calls"),
    [*((kind, True, 1) for kind in NETS), ("batch norm", False, 1), ("spectral norm", False, 1), ("own", True, 0)],
)
def test_reading_changes_nothing(kind, training, calls):
    net = NETS[kind]().train(training)
    for _ in range(calls):
        net(X)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
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
    torch.manual_seed(5), random.seed(5), np.random.seed(5)  # noqa: NPY002
    for _ in range(3):
        plainly(optimizer, nn.functional.cross_entropy(net(X), Y))
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


@pytest.mark.parametrize("name", ["churn", "continual_backprop", "self_normalized_resets"])
def test_in_training_such_state_moves_once_a_step_and_not_by_the_regularizer(name):
    net, alone = Stateful(), Stateful()
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
@pytest.mark.parametrize("look", ["measure", "read with an example", "churn", "feature_rank"])
def test_hooks_that_a_network_installs_at_its_first_call_are_there_as_often_as_it_notes(look, called):
    torch.manual_seed(0)
    net = capturing()
    for _ in range(called):
        net(X)
    if look in (looks := dict(reading(net))):
        looks[look]()
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        attach(look, optimizer, net, example=(X,), coef=0.1)
        for _ in range(2):
            net(X).sum().backward()
            optimizer.step()
    assert net.installed == (len(net.body._forward_hooks) == 1)
    assert net(X).shape == (16, 3)
