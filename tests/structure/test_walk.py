"""What bare parameters, modules with a forward of their own and constant operands are taken for."""

import copy
import math
import types
import warnings

import pytest
import torch
from conftest import RMSNorm
from torch import nn
from torch.nn import functional as F

from rl_plasticity.interventions import make_intervention
from rl_plasticity.regularizers import make_regularizer
from rl_plasticity.structure import read

quiet = pytest.mark.filterwarnings("ignore:.* leaves alone:UserWarning")


def untraced(x):
    """Keeps symbols out."""
    return x if x.sum() > 0 else 1 * x


def sigma1(matrix):
    return torch.linalg.svdvals(matrix.double())[0]


def spectral_oracle(matrices=(), vectors=(), gains=()):
    total = sum((sigma1(m) ** 2 - 1) ** 2 for m in matrices)
    total = total + sum(v.double().square().sum() ** 2 for v in vectors)
    return (total + sum((g.double() - 1).square().sum() for g in gains)).float()


# --- bare parameters ------------------------------------------------------------------------------------------------


class BareLinear(nn.Module):
    """As torch_geometric has it: no nn.Linear, a weight and a bias of its own."""

    def __init__(self, n, m):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(m, n) / math.sqrt(n))
        self.bias = nn.Parameter(torch.randn(m))

    def forward(self, x):
        return F.linear(untraced(x), self.weight, self.bias)


class Model(nn.Module):
    """What a small language model's block holds, that cannot be traced."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.body = nn.Linear(4, 6), RMSNorm(6), BareLinear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(self.norm(self.embed(x))).relu())


@pytest.mark.parametrize("of", ["weights", "biases", "norms"])
def test_l2_of_some_parameters_refuses_what_was_not_read(of):
    with pytest.raises(ValueError, match=r"\bbody\.weight\b.*example="):
        make_regularizer("l2", Model(), of=of)
    make_regularizer("l2", Model(), of=of, example=torch.randn(5, 4))


class Actor(nn.Module):
    """A Gaussian policy as spinningup, tianshou and others have it; `how` the scale comes to what is returned."""

    def __init__(self, how):
        super().__init__()
        self.mu, self.how = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), how
        self.log_std = nn.Parameter(torch.full((1, 3), -0.5))

    def forward(self, x):
        mu = self.mu(x)
        if self.how == "unused":
            return mu
        if self.how == "distribution":
            return torch.distributions.Normal(mu, self.log_std.exp().expand_as(mu), validate_args=False).mean
        if self.how == "zeros":
            return mu, (self.log_std + torch.zeros_like(mu)).exp()
        if self.how == "times zero":
            return mu, mu * 0 + self.log_std
        return torch.cat([mu, self.log_std.expand(x.shape[0], -1)], -1)


@pytest.mark.parametrize("checks", [True, False], ids=["before torch.compile", "after it, which turns checks off"])
def test_a_distribution_in_a_forward_is_traced_whether_or_not_torch_checks_its_arguments(checks):
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.mean = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x):
            mean = self.mean(torch.tanh(self.body(x)))
            return torch.distributions.Normal(mean, 0.1 * mean.abs()).log_prob(mean).sum(-1)

    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(checks)
    try:
        assert read(Policy()).unknown is None
        assert torch.distributions.Distribution._validate_args is checks
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


@quiet
@pytest.mark.parametrize("example", [None, torch.randn(5, 4)], ids=["traced", "watched"])
@pytest.mark.parametrize("how", ["unused", "distribution", "zeros", "times zero", "joined"])
def test_the_log_std_of_an_actor_is_never_penalized(how, example):
    net = Actor(how)
    try:
        regularizer = make_regularizer("spectral", net, example=example, coef=1.0)
    except ValueError as error:
        assert example is None
        assert "log_std" in str(error)  # noqa: PT017
        return
    oracle = spectral_oracle([net.mu[0].weight, net.mu[2].weight], [net.mu[0].bias, net.mu[2].bias])
    penalty = regularizer.penalty(net)
    torch.testing.assert_close(penalty, oracle)
    penalty.backward()
    assert net.log_std.grad is None


# --- modules whose forward is their own -----------------------------------------------------------------------------


class Shifted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


class Squashed(nn.ReLU):
    def forward(self, x):
        return x.sigmoid()


class Plus(nn.Dropout):
    def forward(self, x):
        return x + 0.5


class Columns(nn.LayerNorm):
    """Normalizes nothing."""

    def forward(self, x):
        return x * self.weight + self.bias


def instance():
    layer = nn.Linear(6, 6)
    layer.forward = types.MethodType(lambda self, x: F.linear(x, self.weight, self.bias) + 1, layer)
    return layer


def fails(net, x, **settings):
    """How far SWR's f' is from C f, in float64, C the factor that fits best; whether that was said; as an oracle."""
    torch.manual_seed(3)
    net = copy.deepcopy(net).double().eval()
    x = x.double()
    settings |= {"example": None if settings["example"] is None else x}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        regularizer = make_regularizer("swr", net, coef=0.5, **settings)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1 + 3 * torch.rand(()))
        before = net(x)
        regularizer.project_(net, *regularizer.given_lr(1.0))
        after = net(x)
    factor = 1.0 if settings.get("scope") == "preserving" else (after * before).sum() / before.square().sum()
    off = ((after - factor * before).norm() / after.norm()).item()
    return off, any("only approximately" in str(w.message) for w in said)


def is_said(net, x, example):
    """That where f' = C f fails SWR says so, and scope=preserving refuses."""
    off, said = fails(net, x, example=example)
    assert off > 1e-6, "the case shows nothing"
    assert said
    with pytest.raises(ValueError, match="scope=preserving"):
        fails(net, x, example=example, scope="preserving")


OWN = {
    "linear": lambda: Shifted(6, 6),
    "activation": Squashed,
    "dropout": Plus,
    "instance": instance,
}


@quiet
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("kind", OWN)
def test_a_class_with_a_forward_of_its_own_is_not_taken_for_torch_s(kind, watched):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), OWN[kind](), nn.ReLU(), nn.Linear(6, 3))
    x = torch.randn(8, 4)
    is_said(net, x, x if watched else None)


@pytest.mark.parametrize("watched", [False, True])
def test_a_norm_layer_s_class_that_normalizes_nothing_is_a_gain_with_a_bias(watched):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), Columns(6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        net[2].bias.normal_()
    x = torch.randn(8, 4)
    off, said = fails(net, x, example=x if watched else None)
    assert off < 1e-9
    assert not said
    off, _ = fails(net, x, example=x if watched else None, scope="preserving")
    assert off < 1e-9


@pytest.mark.parametrize("watched", [False, True])
def test_a_linear_layer_that_only_casts_is_the_same_layer(watched):
    class Cast(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight.to(x.dtype), self.bias)

    torch.manual_seed(0)
    nets = [nn.Sequential(kind(4, 6), nn.ReLU(), kind(6, 3)) for kind in (Cast, nn.Linear)]
    nets[1].load_state_dict(nets[0].state_dict())
    x = torch.randn(5, 4)
    structures = [read(net, x if watched else None) for net in nets]
    assert structures[0].layers == structures[1].layers
    penalties = [make_regularizer("spectral", n, structure=s).penalty(n) for n, s in zip(nets, structures, strict=True)]
    assert penalties[0] == penalties[1]


# --- constants ------------------------------------------------------------------------------------------------------


class Constant(nn.Module):
    def __init__(self, operation):
        super().__init__()
        self.a, self.b, self.operation = nn.Linear(4, 6), nn.Linear(6, 3), operation
        self.register_buffer("one", torch.linspace(0.5, 1.5, 6))
        self.register_buffer("mask", torch.arange(6) % 2 == 0)
        self.register_buffer("index", torch.tensor([1, 3]))
        self.register_buffer("matrix", torch.eye(6))

    def forward(self, x):
        return self.b(self.operation(self.a(x).relu(), self))


def scatter(h, net):
    return h.scatter(1, net.index.expand(len(h), 2), net.one[:2].expand(len(h), 2))


def in_place(h, net):
    h.add_(net.one)
    return h


def assigned(h, net):
    h = h.clone()
    h[:, net.index] = net.one[:2]
    return h


CONSTANTS = {
    "cat": lambda h, net: torch.cat([h[:, :3], net.one[:3].expand(len(h), 3)], 1),
    "stack": lambda h, net: torch.stack([h, net.one.expand_as(h)]).sum(0),
    "where": lambda h, net: torch.where(net.mask, h, net.one),
    "where of a number": lambda h, net: torch.where(net.mask, h, 1.0),
    "method where": lambda h, net: h.where(net.mask, net.one),
    "masked_fill": lambda h, net: h.masked_fill(net.mask, 1.0),
    "max": lambda h, net: torch.max(h, net.one),
    "maximum": lambda h, net: torch.maximum(h, net.one),
    "minimum": lambda h, net: torch.minimum(h, net.one),
    "clamp": lambda h, net: h.clamp(max=0.5),
    "clamp by a tensor": lambda h, net: torch.clamp(h, min=net.one),
    "setitem": assigned,
    "index_add": lambda h, net: h.index_add(1, net.index, net.one[:2].expand(len(h), 2)),
    "index_copy": lambda h, net: h.index_copy(1, net.index, net.one[:2].expand(len(h), 2)),
    "index_fill": lambda h, net: h.index_fill(1, net.index, 1.0),
    "addcmul": lambda h, net: torch.addcmul(net.one, h, net.one),
    "addmm": lambda h, net: torch.addmm(net.one, h, net.matrix),
    "linear": lambda h, net: F.linear(h, net.matrix, net.one),
    "lerp": lambda h, net: torch.lerp(h, net.one.expand_as(h), 0.5),
    "scatter": scatter,
    "in place": in_place,
    "quotient": lambda h, net: net.one / (h + h.mean() * 9),
    "floor": lambda h, net: (9 * h).to(torch.int64).to(h.dtype),
    "buffer as bias": lambda h, net: F.linear(h, net.a.weight.detach()[:, :1] * 0 + net.matrix, net.one),
}


@pytest.mark.filterwarnings("ignore:.*(leaves alone|only approximately):UserWarning")
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("operation", CONSTANTS)
def test_a_constant_operand_of_any_operation_is_an_addition(operation, watched):
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    try:
        is_said(Constant(CONSTANTS[operation]), x, x if watched else None)
    except ValueError as error:
        assert not watched
        assert "example=" in str(error)  # noqa: PT017


HOMOGENEOUS = {
    "relu": lambda h, net: F.leaky_relu(h - 2 * h, 0.1),
    "padded with zeros": lambda h, net: F.pad(h, (0, 2))[..., :6],
    "reshaped and scaled": lambda h, net: 3 * h.view(-1, 2, 3).flatten(1).relu(),
    "mask of zeros": lambda h, net: h.masked_fill(net.mask, 0.0),
    "where of zeros": lambda h, net: torch.where(net.mask, h, 0.0),
    "index": lambda h, net: torch.cat([h[:, net.index], h[:, 2:]], 1),
    "index_select": lambda h, net: h.index_select(1, torch.tensor([5, 4, 3, 2, 1, 0])),
    "times a buffer": lambda h, net: h * net.one / net.one.sum(),
    "product with a buffer": lambda h, net: h @ net.matrix,
    "parts": lambda h, net: torch.cat([h[:, 3:], h[:, :3]], 1),
    "larger of two": lambda h, net: torch.max(h, h.flip(1)),
}


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("operation", HOMOGENEOUS)
def test_what_only_moves_or_scales_is_still_exact_and_nothing_is_said(operation, watched):
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    for scope in ("all", "preserving"):
        off, said = fails(Constant(HOMOGENEOUS[operation]), x, example=x if watched else None, scope=scope)
        assert off < 1e-9
        assert not said


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(2 * x.detach().numpy())

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Unseen(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 2)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return self.two(Twice.apply(self.one(x)) * self.scale)


@pytest.mark.parametrize(
    ("name", "asks"),
    [("wrs", r"heads=\["), ("spectral", r"roles="), ("swr", r"^swr\b")],
)
def test_who_gave_an_example_that_could_not_be_followed_is_not_asked_for_one(name, asks):
    with pytest.raises(ValueError, match=asks):
        make_regularizer(name, Unseen(), example=(torch.randn(3, 4),))


# --- weights that the forward computes --------------------------------------------------------------------------------


class Used(nn.Module):
    """Bare parameters of these shapes, and what is done with them."""

    def __init__(self, use, *shapes):
        super().__init__()
        self.use = use
        self.parts = nn.ParameterList(torch.randn(shape) for shape in shapes)

    def forward(self, x):
        return self.use(x, *self.parts)


COMPUTED = {
    "masked": (lambda h, w: F.linear(h, w * torch.ones(6)), (1, 6)),
    "positive": (lambda h, w: h @ w.exp().t(), (1, 6)),
    "product": (lambda h, u, v: F.linear(h, u @ v), (1, 2), (2, 6)),
    "viewed": (lambda h, w: F.linear(h, w.view(3, 6)), (3, 2, 3)),
    "second axis": (lambda h, w: h @ w[:, 1], (6, 2, 3)),
    "vector": (lambda h, w: h @ w, (6,)),
    "four axes": (lambda h, w: torch.einsum("bi,mnio->bmno", h, w), (2, 2, 6, 3)),
    "distances": (torch.cdist, (3, 6)),
}


@quiet
@pytest.mark.parametrize("example", [None, torch.randn(5, 4)], ids=["traced", "watched"])
@pytest.mark.parametrize("how", COMPUTED)
def test_a_layer_whose_weight_is_computed_is_the_head_and_left_alone_and_what_is_before_it_is_none(how, example):
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), Used(*COMPUTED[how]))
    structure = read(net, example)
    assert [layer.weight_name for layer in structure.layers if layer.head] == [None]
    assert {*structure.undecided} == {n for n, _ in net.named_parameters() if n.startswith("4")}
    with pytest.raises(ValueError, match=r"head.*\b4\b"):
        make_intervention("head").apply_(net, (), example=example, make=lambda: net)
    with pytest.raises(ValueError, match="feature_rank"):
        make_regularizer("feature_rank", net, example=example)
    before = copy.deepcopy(net.state_dict())
    make_regularizer("wrs", net, example=example, every_updates=1).project_(net, 1.0)
    for name in ("0.weight", "2.weight"):
        torch.testing.assert_close(net.get_parameter(name).norm(dim=1), torch.ones(6))
    assert all(torch.equal(before[n], p) for n, p in net.named_parameters() if n.startswith("4"))


class Tied(nn.Module):
    """The decoder's matrix is the encoder's."""

    def __init__(self):
        super().__init__()
        self.between, self.encoder = nn.Linear(6, 6), nn.Linear(4, 6)
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return F.linear(self.between(self.encoder(x).relu()).relu(), self.encoder.weight.t(), self.bias)


@pytest.mark.parametrize("example", [None, torch.randn(5, 4)], ids=["traced", "watched"])
def test_a_matrix_that_is_the_head_s_too_is_no_hidden_one(example):
    net = Tied()
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
        make_intervention("head").apply_(net, (), example=example, make=Tied)
