"""What is read of a network: traced, watched in a real call, said by the user, or refused."""

import copy

import pytest
import torch
from conftest import FabricModule, plain_mlp, refused
from foreign.expected import bare, made_of, mlp, ones, vectors, zeros
from foreign.language import rms_norm
from torch import nn
from torch.nn import functional as F

from rl_plasticity.errors import SettingsError
from rl_plasticity.interventions import make_intervention
from rl_plasticity.networks import NETWORKS, make_network
from rl_plasticity.regularizers import REGULARIZERS, Regularizer, make_regularizer
from rl_plasticity.settings import settings_of
from rl_plasticity.structure import activations_of, hidden_units, layers, read

both_ways = pytest.mark.parametrize("example", [None, vectors(5, 4)], ids=["traced", "watched"])


def twin(obstacle=lambda x: x):
    """Two chains, registered one after the other; what `obstacle` does keeps symbols out."""

    def forward(net, x):
        x = obstacle(x)
        return net.q0(x), net.q1(x)

    return made_of(forward, q0=mlp(4, 6, 1), q1=mlp(4, 6, 1))


def one_axis(x):
    if x.dim() == 1:
        x = x.unsqueeze(0)
    return x


def four_columns(x):
    assert x.shape[1] == 4
    return x


def joined_with_zeros(x):
    return x + torch.zeros(x.shape[0], 4)


def looked_at(x):
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize("obstacle", [one_axis, four_columns, joined_with_zeros, looked_at])
def test_a_real_call_shows_what_cannot_be_traced(obstacle):
    structure = read(twin(obstacle), torch.randn(3, 4))
    assert structure.unknown is None
    assert [(layer.name, layer.role, layer.inputs, layer.head) for layer in structure.layers] == [
        ("q0.0", "linear", (), False),
        ("q0.2", "linear", (0,), True),
        ("q1.0", "linear", (), False),
        ("q1.2", "linear", (2,), True),
    ]


def test_a_user_s_own_hooks_see_no_symbols():
    net, seen = plain_mlp(), []
    for module in net.modules():
        module.register_forward_hook(lambda m, inputs, output: seen.append(type(output)))
        module.register_forward_pre_hook(lambda m, inputs: seen.append(type(inputs[0])))
    assert read(net).unknown is None
    assert seen == []
    read(net, torch.randn(2, 5))
    assert set(seen) == {torch.Tensor}


ORDERED = ("swr", "wrs", "parseval", "feature_rank", "normalize_project", "orthogonal")
ORDERED += ("continual_backprop", "self_normalized_resets")


@pytest.mark.parametrize(("name", "obstacle"), [*((name, looked_at) for name in ORDERED), ("swr", four_columns)])
def test_without_a_trace_or_an_example_what_depends_on_order_or_heads_says_what_to_pass(name, obstacle):
    net = twin(obstacle)
    refused(lambda: make_regularizer(name, net), "Network.forward", "example=", error=ValueError)
    make_regularizer(name, net, example=(torch.randn(3, 4),))
    make_regularizer(name, net, example={"x": torch.randn(3, 4)})


def test_modules_without_a_forward_are_regularized_where_that_needs_no_order_and_a_log_std_where_it_is_said():
    net = nn.ModuleDict({"actor": plain_mlp(), "critic": plain_mlp()})
    regularizer = make_regularizer("spectral", net, coef=1.0)
    parts = [make_regularizer("spectral", part, coef=1.0) for part in net.values()]
    expected = sum(r.penalty(p) for r, p in zip(parts, net.values(), strict=True))
    torch.testing.assert_close(regularizer.penalty(net), expected)
    refused(lambda: make_regularizer("wrs", net), "WeightRescaling", "ModuleDict", error=ValueError)
    make_regularizer("wrs", net, heads=["actor.4", "critic.4"])
    net.log_std = nn.Parameter(torch.full((1, 3), -0.3))  # as single-file agents have it
    refused(lambda: make_regularizer("spectral", net), "log_std", "'ignore'", error=ValueError)
    make_regularizer("spectral", net, coef=1.0, roles={"log_std": "ignore"}).penalty(net).backward()
    assert net.log_std.grad is None
    assert net["actor"][0].weight.grad is not None


def test_heads_can_be_said():
    net = twin(looked_at)
    make_regularizer("wrs", net, rescale_head=True)  # of both heads, which needs no order
    refused(lambda: make_intervention("head").apply_(net, ()), "head", "Network.forward", error=ValueError)
    regularizer = make_regularizer("wrs", net, heads=["q0.2", "q1.2"], every_updates=1)
    before = [net.q0[2].weight.clone(), net.q1[2].weight.clone()]
    regularizer.project_(net, *regularizer.given_lr(1.0))
    torch.testing.assert_close(net.q0[0].weight.norm(dim=1), torch.ones(6))
    assert all(torch.equal(a, b) for a, b in zip(before, (net.q0[2].weight, net.q1[2].weight), strict=True))
    refused(lambda: make_regularizer("wrs", net, heads=["q0.3"]), "'q0.3'", "'q0.2'")


def test_a_part_that_a_call_does_not_reach_is_not_guessed_at():
    net = made_of(lambda net, x: net.q(x), q=nn.Linear(4, 2), target=nn.Linear(4, 2))
    for name in ORDERED:
        refused(lambda name=name: make_regularizer(name, net), match=r"\btarget\b", error=ValueError)


@pytest.mark.parametrize("passes_it_on", [False, True])
def test_a_regularizer_that_was_added_is_made_for_what_was_read_with_an_argument_or_not(monkeypatch, passes_it_on):
    class Plain(Regularizer):
        def __init__(self, net, coef=1.0):
            super().__init__(net, coef)
            self.other = Regularizer(plain_mlp())  # of another network, which is read by itself
            self.structure.require_heads("plain")

        def penalty(self, net, inputs=None):
            return self._zeros()

    class PassingOn(Plain):
        def __init__(self, net, coef=1.0, structure=None):
            Regularizer.__init__(self, net, coef, structure)
            self.structure.require_heads("plain")

    monkeypatch.setitem(REGULARIZERS, "plain", PassingOn if passes_it_on else Plain)
    net = twin(looked_at)
    made = make_regularizer("plain", net, heads=["q0.2", "q1.2"])
    assert [layer.name for layer in made.layers if layer.head] == ["q0.2", "q1.2"]
    assert passes_it_on or len(made.other.layers) == 3
    refused(lambda: make_regularizer("plain", net), match=r"plain\b.*heads=", error=ValueError)


def test_an_example_that_does_not_fit_says_so():
    with pytest.raises(ValueError, match=r"example\b.*Sequential.*shapes cannot be multiplied"):
        read(plain_mlp(), torch.randn(2, 4))


@pytest.mark.parametrize(("name", "wrap"), [
    *((name, torch.optim.swa_utils.AveragedModel) for name in ("spectral", "ewc", "wrs", "continual_backprop")),
    *(("churn", wrap) for wrap in (torch.compile, nn.DataParallel, FabricModule)),
])  # fmt: skip
def test_a_wrapper_changes_neither_the_numbers_nor_the_state_s_names(name, wrap):
    plain = plain_mlp()
    wrapped = wrap(copy.deepcopy(plain))
    mine, theirs = make_regularizer(name, plain), make_regularizer(name, wrapped)
    assert mine.state_dict().keys() == theirs.state_dict().keys()
    for net in (plain, wrapped):
        for p in net.parameters():
            p.data.mul_(1.5)
    for _ in range(2):
        x = torch.randn(6, 5)
        torch.testing.assert_close(mine.penalty(plain, x), theirs.penalty(wrapped, x))
        for regularizer, net in ((mine, plain), (theirs, wrapped)):
            regularizer.observe_loss_(net, torch.ones(()))
            regularizer.observe_(net, {n: torch.ones_like(p) for n, p in plain.named_parameters()})
            regularizer.project_(net, *regularizer.given_lr(1.0))
    torch.testing.assert_close([*plain.parameters()], [*wrapped.parameters()])


def between(norm=False, returns=lambda h, output: output):
    def forward(net, x):
        h = net.a(x).relu()
        return returns(h, net.norm(net.b(h)))

    parts = {"a": nn.Linear(4, 8), "b": nn.Linear(8, 3), "norm": nn.LayerNorm(3) if norm else nn.Identity()}
    return made_of(forward, **parts)


@pytest.mark.parametrize("norm", [False, True])
def test_scope_preserving_refuses_a_network_that_returns_what_it_would_scale(norm):
    net = between(norm, lambda h, output: (h, output))
    for example in (None, torch.randn(5, 4)):
        with pytest.raises(ValueError, match=r"\ba \(.*returns"):
            make_regularizer("swr", net, example=example, scope="preserving")


ENDS = {"squashed": (torch.tanh, "tanh"), "shifted": (lambda y: y + 2, "constant")}


@both_ways
@pytest.mark.parametrize("end", ENDS)
def test_swr_says_where_what_is_returned_does_not_scale(end, example):
    net = between(returns=lambda h, output: ENDS[end][0](output))
    with pytest.warns(UserWarning, match=rf"returns \(.*{ENDS[end][1]}"):
        make_regularizer("swr", net, example=example)


@both_ways
def test_hidden_units_come_out_of_functions_too(example):
    net = made_of(
        lambda net, x: net.c(torch.tanh(net.b(F.relu(net.norm(net.a(x)))))),
        a=nn.Linear(4, 6), norm=nn.LayerNorm(6), b=nn.Linear(6, 5), c=nn.Linear(5, 2),
    )  # fmt: skip
    units = hidden_units(net, example)
    assert [(u.incoming.name, [n.name for n in u.norms], u.activation, u.outgoing[0].name) for u in units] == [
        ("a", ["norm"], "relu()", "b"),
        ("b", [], "tanh()", "c"),
    ]
    every = read(net, example).activations()
    assert [(u.activation, [n.name for n in u.norms]) for u in every] == [("relu()", ["norm"]), ("tanh()", [])]
    x = torch.randn(7, 4)
    first, second = activations_of(net, units, (x,))
    expected = F.relu(net.norm(net.a(x)))
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(second, torch.tanh(net.b(expected)))


NOT_HIDDEN = {  # of layers a [4, 6], b [6, 6], wide [12, 6]; h is the output of a
    "joined before": lambda net, h, x: net.b(torch.cat([h, -h], -1).relu()[..., :6]),
    "turned before": lambda net, h, x: net.b(h.view(-1, 2, 3).transpose(1, 2).reshape(-1, 6).relu()),
    "repeated": lambda net, h, x: net.b(h.chunk(2, -1)[0].relu().repeat(1, 2)),
    "gated": lambda net, h, x: net.b(h.relu() * h.sigmoid()),
    "added to the output": lambda net, h, x: net.b(h.relu()) + h.relu(),
    "a skip connection": lambda net, h, x: net.b(h.relu()) + h,
    "joined with other units": lambda net, h, x: net.wide(torch.cat([h.relu(), net.other(x).relu()], -1)),
    "joined with itself": lambda net, h, x: net.wide(torch.cat([h.relu()] * 2, -1)),
    "of the input": lambda net, h, x: net.norm(net.other(x.relu())),
}


@pytest.mark.parametrize("how", NOT_HIDDEN)
def test_units_are_hidden_only_where_the_next_layer_reads_them_and_nothing_else_in_order(how):
    layers = {"a": nn.Linear(4, 6), "b": nn.Linear(6, 6), "other": nn.Linear(4, 6), "wide": nn.Linear(12, 6)}
    net = made_of(lambda net, x: NOT_HIDDEN[how](net, net.a(x), x), **layers, norm=nn.LayerNorm(6))
    assert hidden_units(net, torch.randn(3, 4)) == []
    structure = read(net)
    assert structure.unknown or structure.hidden_units(net) == []


@both_ways
def test_an_activation_module_that_several_layers_share_is_told_apart_by_its_calls(example):
    net = made_of(
        lambda net, x: net.c(net.relu(net.b(net.relu(net.a(x))))),
        a=nn.Linear(4, 6), b=nn.Linear(6, 5), c=nn.Linear(5, 2), relu=nn.ReLU(),
    )  # fmt: skip
    found = [(u.incoming.name, u.activation, u.call) for u in hidden_units(net, example)]
    assert found == [("a", "relu", 0), ("b", "relu", 1)]


def of_bare_parameters():
    def forward(net, x):
        h = net.b(net.norm(net.a(x).relu() * net.scale)).relu() @ net.w + net.c
        noisy = F.linear(h.relu(), net.mu + net.sigma * torch.ones(2, 5))
        return noisy, h + net.log_std.exp() * torch.randn_like(h)

    return made_of(
        forward, a=nn.Linear(4, 6), norm=rms_norm(6), b=nn.Linear(6, 3), scale=ones(6), w=bare(3, 5), c=zeros(5),
        log_std=nn.Parameter(torch.full((5,), -0.5)), mu=bare(2, 5), sigma=nn.Parameter(torch.full((2, 5), 0.1)),
    )  # fmt: skip


@both_ways
def test_a_bare_parameter_is_told_by_its_use(example):
    structure = read(of_bare_parameters(), example)
    of = [layer for layer in structure.layers if layer.weight_name]
    found = {layer.weight_name: (layer.role, layer.bias_name, layer.transposed) for layer in of}
    assert found == {
        "a.weight": ("linear", "a.bias", False),
        "scale": ("gain", None, False),
        "norm.weight": ("norm", None, False),
        "b.weight": ("linear", "b.bias", False),
        "w": ("linear", "c", True),
        "mu": ("undecided", None, False),
        "sigma": ("undecided", None, False),
        "log_std": ("undecided", None, False),
    }


def test_roles_say_what_bare_parameters_are():
    net = of_bare_parameters()
    structure = read(net, roles={"log_std": "ignore", "m*": "matrix", "sigma": "ignore"})
    assert structure.undecided == ()
    assert "sigma" not in [layer.weight_name for layer in structure.layers]
    refused(lambda: read(net, roles={"log_std": "nrom"}), "'nrom'", "'norm'")
    refused(lambda: read(net, roles={"log_sdt": "norm"}), "'log_sdt'", "'log_std'")
    with pytest.raises(SettingsError, match=r"'w'.*\[3, 4, 6\].*'ignore'"):
        read(made_of(lambda net, x: torch.bmm(x, net.w), w=bare(3, 4, 6)), roles={"w": "matrix"})


def test_a_mixed_network_s_float32_layers_are_held_whatever_the_others_are():
    net = nn.Sequential(nn.Linear(8, 8).bfloat16(), nn.Linear(8, 8))
    regularizer = make_regularizer("swr", net, coef=1e-2)
    assert regularizer.coef.dtype == torch.float32
    initial = net[1].weight.norm().item()
    net[1].weight.data.mul_(2)
    for _ in range(500):
        regularizer.project_(net, *regularizer.given_lr(1.0))
    assert net[1].weight.norm().item() == pytest.approx(initial, rel=0.01)


def update(regularizer, net, x):
    penalty = regularizer.penalty(net, x)
    if penalty.requires_grad:
        penalty.backward()
    regularizer.observe_(net, {n: torch.ones_like(p) for n, p in net.named_parameters()})
    regularizer.project_(net, *regularizer.given_lr(1.0))


@pytest.mark.parametrize("name", [n for n in REGULARIZERS if n != "none"])
def test_what_is_frozen_later_is_left_alone_while_it_is(name):
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), *mlp(6, 6, 2))
    strong = {"every_updates": 1, "coef": 0.5, "momentum": 0.5, "maturity": 0}
    declared = settings_of(REGULARIZERS[name])
    regularizer = make_regularizer(name, net, **{n: v for n, v in strong.items() if n in declared})
    for p in net.parameters():
        p.data.mul_(3)
    net[:2].requires_grad_(False)
    before, moved = [p.clone() for p in net[:2].parameters()], net[3].weight.clone()
    update(regularizer, net, torch.randn(3, 4))
    assert all(torch.equal(a, b) for a, b in zip(before, net[:2].parameters(), strict=True))
    assert all(p.grad is None for p in net[:2].parameters())
    if name not in ("ewc", "self_normalized_resets"):  # which do nothing at once
        assert net[3].weight.grad is not None or not torch.equal(net[3].weight, moved)
    net[:2].requires_grad_(True)
    regularizer.penalty(net, torch.randn(3, 4))  # and not any more


@pytest.mark.filterwarnings("ignore:.*leaves alone what is behind")
@pytest.mark.parametrize("name", [n for n in REGULARIZERS if n not in ("none", "swr")])
def test_what_is_unfrozen_later_is_an_error_that_says_to_make_the_regularizer_again(name):
    net, x = plain_mlp(), torch.randn(6, 5)
    net[0].requires_grad_(False)
    regularizer = make_regularizer(name, net)
    regularizer.penalty(net, x)
    net[0].requires_grad_(True)
    refused(lambda: update(regularizer, net, x), "0.weight", error=RuntimeError)


def test_a_strength_that_a_loaded_state_replaces_is_said():
    old, new = (make_regularizer("spectral", plain_mlp(), coef=coef) for coef in (1e-3, 1e-4))
    with pytest.warns(UserWarning, match=r"coef\b.*\b0\.0001\b.*\b0\.001\b"):
        new.load_state_dict(old.state_dict())
    assert new.coef == old.coef
    new.load_state_dict(old.state_dict())  # the same: nothing to say
    old, new = (make_regularizer("wrs", plain_mlp(), norm_decay=decay) for decay in (1e-3, 1e-4))
    with pytest.warns(UserWarning, match="norm_decay"):
        new.load_state_dict(old.state_dict())


def stored(change):
    net = nn.Sequential(nn.Linear(3, 3))
    net[0].weight = nn.Parameter(change(net[0].weight.detach()))
    return net


@pytest.mark.parametrize(("make", "said"), [
    (lambda: nn.Sequential(nn.LazyLinear(3)), "shape"),
    (lambda: stored(lambda weight: weight.to(torch.complex64)), "complex"),
    (lambda: stored(torch.Tensor.to_sparse), "sparse"),
])  # fmt: skip
def test_parameters_that_no_method_can_act_on_are_one_clear_line(make, said):
    refused(lambda: make_regularizer("l2", make()), "0.weight", said, error=ValueError)


def test_every_named_network_can_be_read_without_an_example():
    for name in NETWORKS:
        with torch.device("meta"):
            net = make_network(name, (3, 32, 32), 10, [0])
        assert read(net).unknown is None, name
        assert sum(layer.head for layer in layers(net)) == 1
