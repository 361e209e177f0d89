"""What bare parameters, modules with a forward of their own and constant operands are taken for."""

import copy
import types
import warnings

import pytest
import torch
from conftest import refused
from foreign.expected import bare, made_of, vectors
from torch import nn
from torch.nn import functional as F

from rl_plasticity.interventions import make_intervention
from rl_plasticity.regularizers import make_regularizer
from rl_plasticity.structure import read

quiet = pytest.mark.filterwarnings("ignore:.* leaves alone:UserWarning")
X = vectors(8, 4)
both_ways = pytest.mark.parametrize("example", [None, X], ids=["traced", "watched"])


@pytest.mark.parametrize("of", ["weights", "biases", "norms"])
def test_l2_of_some_parameters_refuses_what_was_not_read(of):
    net = made_of(
        lambda net, x: net.norm(F.linear(x if x.sum() > 0 else 1 * x, net.weight, net.bias)),
        weight=bare(6, 4), bias=bare(6), norm=nn.LayerNorm(6),
    )  # fmt: skip
    refused(lambda: make_regularizer("l2", net, of=of), "weight", "example=", error=ValueError)
    make_regularizer("l2", net, of=of, example=X)


@pytest.mark.parametrize("checks", [True, False], ids=["before torch.compile", "after it, which turns checks off"])
def test_a_distribution_in_a_forward_is_traced_whether_or_not_torch_checks_its_arguments(checks):
    def forward(net, x):
        mean = net.mean(torch.tanh(net.body(x)))
        return torch.distributions.Normal(mean, 0.1 * mean.abs()).log_prob(mean).sum(-1)

    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(checks)
    try:
        assert read(made_of(forward, body=nn.Linear(4, 6), mean=nn.Linear(6, 3))).unknown is None
        assert torch.distributions.Distribution._validate_args is checks
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


# A Gaussian policy as spinningup, tianshou and others have it: how the scale comes to what is returned.
SCALES = {
    "unused": lambda mu, log_std: mu,
    "distribution": lambda mu, log_std: torch.distributions.Normal(mu, log_std.exp().expand_as(mu)).mean,
    "times zero": lambda mu, log_std: (mu, mu * 0 + log_std),
    "joined": lambda mu, log_std: torch.cat([mu, log_std.expand(mu.shape[0], -1)], -1),
}


@quiet
@both_ways
@pytest.mark.parametrize("how", SCALES)
def test_the_log_std_of_an_actor_is_never_penalized(how, example):
    mu = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    net = made_of(lambda net, x: SCALES[how](net.mu(x), net.log_std), mu=mu, log_std=bare(1, 3))
    try:
        regularizer = make_regularizer("spectral", net, example=example, coef=1.0)
    except ValueError as error:
        assert example is None
        assert "log_std" in str(error)  # noqa: PT017
        return
    oracle = sum((torch.linalg.svdvals(mu[i].weight.double())[0] ** 2 - 1) ** 2 for i in (0, 2))
    oracle = oracle + sum(mu[i].bias.double().square().sum() ** 2 for i in (0, 2))
    penalty = regularizer.penalty(net)
    torch.testing.assert_close(penalty, oracle.float())
    penalty.backward()
    assert net.log_std.grad is None


def fails(net, **settings):
    """How far SWR's f' is from C f, in float64, C the factor that fits best; whether that was said; as an oracle."""
    torch.manual_seed(3)
    net, x = copy.deepcopy(net).double().eval(), X.double()
    settings |= {"example": None if settings["example"] is None else x}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        regularizer = make_regularizer("swr", net, coef=0.5, **settings)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1 + 3 * torch.rand(()))
        before = net(x)
        regularizer.project_(net)
        after = net(x)
    factor = 1.0 if settings.get("scope") == "preserving" else (after * before).sum() / before.square().sum()
    off = ((after - factor * before).norm() / after.norm()).item()
    return off, any("only approximately" in str(w.message) for w in said)


def is_said(net, example):
    """That where f' = C f fails SWR says so, and scope=preserving refuses."""
    off, said = fails(net, example=example)
    assert off > 1e-6, "the case shows nothing"
    assert said
    refused(lambda: fails(net, example=example, scope="preserving"), "scope=preserving", error=ValueError)


def holds(net, example):
    """That f' = C f, and f' = f with scope=preserving, and nothing is said."""
    for scope in ("all", "preserving"):
        off, said = fails(net, example=example, scope=scope)
        assert off < 1e-9
        assert not said


def own(kind, forward):
    layer = type("Own", (type(kind),), {"forward": forward})
    kind.__class__ = layer
    return kind


def instance():
    layer = nn.Linear(6, 6)
    layer.forward = types.MethodType(lambda self, x: F.linear(x, self.weight, self.bias) + 1, layer)
    return layer


def with_middle(layer):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), layer(), nn.ReLU(), nn.Linear(6, 3))


OWN = {
    "linear": lambda: own(nn.Linear(6, 6), lambda self, x: nn.Linear.forward(self, x) + 1),
    "activation": lambda: own(nn.ReLU(), lambda self, x: x.sigmoid()),
    "instance": instance,
}


@quiet
@both_ways
@pytest.mark.parametrize("kind", OWN)
def test_a_class_with_a_forward_of_its_own_is_not_taken_for_torch_s(kind, example):
    is_said(with_middle(OWN[kind]), example)


SAME = {
    "a gain with a bias": lambda: own(nn.LayerNorm(6), lambda self, x: x * self.weight + self.bias),
    "only casts": lambda: own(nn.Linear(6, 6), lambda self, x: F.linear(x, self.weight.to(x.dtype), self.bias)),
}


@both_ways
@pytest.mark.parametrize("kind", SAME)
def test_a_forward_of_its_own_that_only_scales_or_casts_is_read_as_what_it_does(kind, example):
    net = with_middle(SAME[kind])
    nn.init.normal_(net[2].bias)
    holds(net, example)


class ThroughAView(nn.Module):
    def forward(self, x):
        part = x[:, :2]
        part += 1
        return x


def test_a_scope_that_would_change_the_function_is_found_by_the_example_where_reading_misses_it():
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), ThroughAView(), nn.Linear(6, 3))
    refused(lambda: make_regularizer("swr", net, example=X, scope="preserving"), match=r"scope=.*%", error=ValueError)


def between(operation):
    torch.manual_seed(0)
    return made_of(
        lambda net, x: net.b(operation(net.a(x).relu(), net)), a=nn.Linear(4, 6), b=nn.Linear(6, 3),
        one=torch.linspace(0.5, 1.5, 6), mask=torch.arange(6) % 2 == 0, index=torch.tensor([1, 3]), matrix=torch.eye(6),
    )  # fmt: skip


def assigned(h, net):
    h = h.clone()
    h[:, net.index] = net.one[:2]
    return h


CONSTANTS = {
    "cat": lambda h, net: torch.cat([h[:, :3], net.one[:3].expand(len(h), 3)], 1),
    "where": lambda h, net: torch.where(net.mask, h, net.one),
    "where of a number": lambda h, net: torch.where(net.mask, h, 1.0),
    "masked_fill": lambda h, net: h.masked_fill(net.mask, 1.0),
    "max": lambda h, net: torch.max(h, net.one),
    "clamp": lambda h, net: h.clamp(max=0.5),
    "setitem": assigned,
    "index_add": lambda h, net: h.index_add(1, net.index, net.one[:2].expand(len(h), 2)),
    "addmm": lambda h, net: torch.addmm(net.one, h, net.matrix),
    "linear": lambda h, net: F.linear(h, net.matrix, net.one),
    "in place": lambda h, net: (h.add_(net.one), h)[1],
    "quotient": lambda h, net: net.one / (h + h.mean() * 9),
    "floor": lambda h, net: (9 * h).to(torch.int64).to(h.dtype),
    "buffer as bias": lambda h, net: F.linear(h, net.a.weight.detach()[:, :1] * 0 + net.matrix, net.one),
}
HOMOGENEOUS = {
    "relu": lambda h, net: F.leaky_relu(h - 2 * h, 0.1),
    "padded with zeros": lambda h, net: F.pad(h, (0, 2))[..., :6],
    "reshaped and scaled": lambda h, net: 3 * h.view(-1, 2, 3).flatten(1).relu(),
    "mask of zeros": lambda h, net: h.masked_fill(net.mask, 0.0),
    "index": lambda h, net: torch.cat([h[:, net.index], h[:, 2:]], 1),
    "times a buffer": lambda h, net: h * net.one / net.one.sum(),
    "product with a buffer": lambda h, net: h @ net.matrix,
    "larger of two": lambda h, net: torch.max(h, h.flip(1)),
}


@pytest.mark.filterwarnings("ignore:.*(leaves alone|only approximately):UserWarning")
@both_ways
@pytest.mark.parametrize("operation", CONSTANTS)
def test_a_constant_operand_of_any_operation_is_an_addition(operation, example):
    try:
        is_said(between(CONSTANTS[operation]), example)
    except ValueError as error:
        assert example is None
        assert "example=" in str(error)  # noqa: PT017


OTHERS = {
    "padded with ones": lambda x: F.pad(x.relu(), (2, 0), value=1.0)[..., :6],
    "tanh": torch.tanh,
    "tanh module": nn.Tanh(),
    "square": lambda x: x * x,
    "softmax": nn.Softmax(-1),
    "by hand": lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True),
}


@quiet
@both_ways
@pytest.mark.parametrize("operation", OTHERS)
def test_what_is_not_positively_homogeneous_is_said(operation, example):
    kind = OTHERS[operation]
    is_said(with_middle(lambda: kind if isinstance(kind, nn.Module) else made_of(lambda net, x: kind(x))), example)


@both_ways
@pytest.mark.parametrize("operation", HOMOGENEOUS)
def test_what_only_moves_or_scales_is_still_exact_and_nothing_is_said(operation, example):
    holds(between(HOMOGENEOUS[operation]), example)


COMPUTED = {
    "masked": (lambda h, w: F.linear(h, w * torch.ones(6)), (1, 6)),
    "positive": (lambda h, w: h @ w.exp().t(), (1, 6)),
    "product": (lambda h, u, v: F.linear(h, u @ v), (1, 2), (2, 6)),
    "second axis": (lambda h, w: h @ w[:, 1], (6, 2, 3)),
    "vector": (lambda h, w: h @ w, (6,)),
    "einsum": (lambda h, w: torch.einsum("bi,oi->bo", h, w), (3, 6)),
    "distances": (torch.cdist, (3, 6)),
}


@quiet
@both_ways
@pytest.mark.parametrize("how", COMPUTED)
def test_a_layer_whose_weight_is_computed_is_the_head_and_left_alone_and_what_is_before_it_is_none(how, example):
    use, *shapes = COMPUTED[how]
    last = made_of(lambda net, h: use(h, *net.held), held=nn.ParameterList(bare(*shape) for shape in shapes))
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), last)
    structure = read(net, example)
    assert [layer.weight_name for layer in structure.layers if layer.head] == [None]
    assert {*structure.undecided} == {n for n, _ in net.named_parameters() if n.startswith("4")}
    with pytest.raises(ValueError, match=r"head.*\b4\b"):
        make_intervention("head").apply_(net, (), example=example, make=lambda: net)
    refused(lambda: make_regularizer("feature_rank", net, example=example), "feature_rank", error=ValueError)
    before = copy.deepcopy(net.state_dict())
    make_regularizer("wrs", net, example=example, every_updates=1).project_(net, 1.0)
    for name in ("0.weight", "2.weight"):
        torch.testing.assert_close(net.get_parameter(name).norm(dim=1), torch.ones(6))
    assert all(torch.equal(before[n], p) for n, p in net.named_parameters() if n.startswith("4"))
    alone = copy.deepcopy(last)
    with pytest.raises(ValueError, match=r"held\.0\b.*may be.*roles="):
        make_regularizer("hypersphere", alone, example=None if example is None else torch.randn(5, 6))


@both_ways
def test_a_matrix_that_is_the_head_s_too_is_no_hidden_one(example):
    net = made_of(
        lambda net, x: F.linear(net.between(net.encoder(x).relu()).relu(), net.encoder.weight.t(), net.bias),
        between=nn.Linear(6, 6), encoder=nn.Linear(4, 6), bias=bare(4),
    )  # fmt: skip
    structure = read(net, example)
    assert structure.of_heads == {"encoder.weight"}
    assert [layer.bias_name for layer in structure.layers] == ["encoder.bias", "between.bias", "bias"]
    before = net.encoder.weight.detach().clone()
    make_regularizer("wrs", net, example=example, every_updates=1).project_(net, 1.0)
    assert torch.equal(net.encoder.weight, before)
    torch.testing.assert_close(net.between.weight.norm(dim=1), torch.ones(6))
    penalty = make_regularizer("l2", net, example=example, coef=2.0, of="hidden_weights").penalty(net)
    torch.testing.assert_close(penalty, net.between.weight.square().sum())
    with pytest.raises(ValueError, match=r"encoder\.weight"):
        make_intervention("head").apply_(net, (), example=example, make=lambda: net)
