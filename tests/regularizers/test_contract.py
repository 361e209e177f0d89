"""What holds for every regularizer, on every kind of network."""

import copy

import pytest
import torch
from conftest import CASES, STACKED, assert_equal_states, loss_of, plain_mlp, refused
from foreign.expected import made_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from rl_plasticity.interventions import INTERVENTIONS, make_intervention
from rl_plasticity.learning.learner import Learner
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import REGULARIZERS, Chain, make_regularizer
from rl_plasticity.settings import settings_of
from rl_plasticity.structure import read

CHAIN = "chain"
NAMES = [*REGULARIZERS, CHAIN]
STRONG = {"redo": {"threshold": 0.8}, "regrama": {"threshold": 0.8}, "selective_reinit": {"factor": 0.5}}  # to act
SOON = {  # so that each does something within three updates
    "churn": {"share": 0.1, "window": 2, "after_updates": 2, "first": 0.1},
    "wrs": {"every_updates": 3},
    "hare_tortoise": {"every_updates": 3},
    "continual_backprop": {"maturity": 1},
    "self_normalized_resets": {"every_updates": 2, "least": 1, "most": 12},
}
OF_EACH_HOOK = ("spectral", "ewc", "churn", "wrs", "hare_tortoise", "continual_backprop", CHAIN)
WITH_COEF = [n for n in REGULARIZERS if "coef" in settings_of(REGULARIZERS[n])]


READ = {}


def structure_of(net):
    """Read once of networks with the same parameters: it takes longer than a few updates."""
    key = tuple((name, p.shape) for name, p in net.named_parameters())
    return READ.get(key) or READ.setdefault(key, read(net))


def make(name, net, **settings):
    settings = {"structure": structure_of(net)} | settings
    if name == CHAIN:
        return Chain(net, *(make_regularizer(part, net, **settings) for part in ("spectral", "swr")))
    return make_regularizer(name, net, **(SOON.get(name, {}) | settings))


def update(net, regularizer, batch):
    """Every hook once, with gradients of one; the penalty."""
    penalty = regularizer.penalty(net, batch)
    regularizer.observe_loss_(net, penalty.detach() + 1)
    regularizer.observe_(net, {n: torch.ones_like(p) for n, p in net.named_parameters()})
    regularizer.project_(net, 0.1)
    return penalty


def sgd(net, regularizer, case, batch, steps):
    for _ in range(steps):
        of_task = loss_of(net(batch), case.runs)
        loss = (of_task + regularizer.penalty(net, batch)).sum()
        regularizer.observe_loss_(net, of_task.detach())
        names, parameters = [n for n, _ in net.named_parameters()], list(net.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        regularizer.observe_(net, dict(zip(names, gradients, strict=True)))
        for p, g in zip(parameters, gradients, strict=True):
            p.data.sub_(g, alpha=0.1)
        regularizer.project_(net, 0.1)


def trained(name, case, batch, steps=4, **settings):
    net = case.make(1)
    sgd(net, make(name, net, **settings), case, batch, steps)
    return [p.detach().clone() for p in net.parameters()]


def equal(ones, others):
    return all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def test_saving_rebuilding_and_loading_equals_never_having_stopped_and_every_tensor_keeps_its_address(name, case):
    batch, net = case.input(), case.make(1)
    regularizer = make(name, net)
    addresses = [t.data_ptr() for t in (*regularizer.buffers(), *net.parameters())]
    sgd(net, regularizer, case, batch, 3)
    saved = copy.deepcopy((net.state_dict(), regularizer.state_dict()))
    sgd(net, regularizer, case, batch, 3)
    assert [t.data_ptr() for t in (*regularizer.buffers(), *net.parameters())] == addresses

    other = case.make(2)  # other weights, so that anything captured anew would show
    rebuilt = make(name, other)
    other.load_state_dict(saved[0])
    rebuilt.load_state_dict(saved[1])
    sgd(other, rebuilt, case, batch, 3)
    assert_equal_states(net.state_dict(), other.state_dict())


# Called eagerly, churn looks whether a network's statistics are as they were, which no graph has.
@pytest.mark.parametrize(
    ("name", "case"),
    [*((n, "stacked3") for n in NAMES), *((n, "cnn_bn") for n in OF_EACH_HOOK if n != "churn")],
    indirect=["case"],
)
def test_nothing_that_it_does_depends_on_data(name, case, monkeypatch):
    """Not a trace, which takes a second: an operation whose result Python would have to know is an error here."""
    net, batch = case.make(1), case.input()
    regularizer = make(name, net)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert update(net, regularizer, batch).shape == case.runs


def test_it_sees_substituted_parameters(name, case):
    batch = case.input()

    def penalized():
        parts = {"net": (net := case.make(1)), "regularizer": make(name, net)}
        return made_of(lambda module: module.regularizer.penalty(module.net, batch), **parts)

    module, other = penalized(), penalized()
    doubled = {n: 2 * p.detach() for n, p in module.named_parameters()}
    for p in other.net.parameters():
        p.data.mul_(2)
    seen = functional_call(module, doubled)
    torch.testing.assert_close(seen, other())
    assert seen.isfinite().all()


@pytest.mark.parametrize("kind", STACKED)
def test_runs_do_not_influence_each_other(name, kind):
    case = CASES[kind]
    batch = case.input()
    ends = []
    for disturbance in (1.0, 5.0):
        net = case.make(1)
        regularizer = make(name, net)
        for p in net.parameters():
            p.data[1] *= disturbance
        sgd(net, regularizer, case, batch, 4)
        ends.append([p.detach().clone() for p in net.parameters()])
    assert_equal_states(*([p[[0, 2]] for p in end] for end in ends))
    assert any(not torch.equal(a[1], b[1]) for a, b in zip(*ends, strict=True))


def test_a_run_that_starts_afresh_takes_over_the_fresh_state_and_the_others_keep_theirs(name):
    runs = 8  # as many as a layer has units
    learner = Learner(lambda s: MLP((5, 8, 8, 3), s), range(runs), lambda net: make(name, net))
    x = torch.randn(runs, 6, 5)
    for _ in range(4):
        learner.minimize(loss_of(learner.net(x), (runs,)), x)
    before = {k: v.clone() for k, v in learner.regularizer.state_dict().items()}
    learner.restart_(torch.tensor([runs - 1]))
    fresh = make(name, learner.initial())
    for k, v in learner.regularizer.state_dict().items():
        if v.ndim and "counted/" not in k:  # a restarted run goes on counting
            assert torch.equal(v[: runs - 1], before[k][: runs - 1]), k
            torch.testing.assert_close(v[runs - 1], fresh.state_dict()[k][runs - 1])


# After every intervention what has most state, and each method after the one that starts it afresh.
RESETS = [(n, r) for n in NAMES for r in INTERVENTIONS if r == "periodic" or n in ("ewc", "continual_backprop", CHAIN)]


@pytest.mark.parametrize(("name", "reset"), RESETS, indirect=["name"])
@pytest.mark.filterwarnings("ignore:.*leaves alone", "ignore:swr keeps")  # with room for an injection
def test_training_goes_on_after_every_intervention_with_state_in_place_and_as_if_the_other_runs_had_none(name, reset):
    x = torch.randn(3, 6, 5)
    ends, widths, room = [], (5, 8, 3), 0
    if reset == "plasticity_injection":
        widths, room = (5, 8, 8, 3), 2
    for runs in (None, torch.tensor([1]), torch.tensor([], dtype=torch.int64)):
        learner = Learner(lambda s: MLP(widths, s, injected_layers=room), range(3), lambda net: make(name, net))
        state = learner.regularizer.state_dict()
        addresses = [v.data_ptr() for v in state.values()]
        for step in range(5):
            if step == 2:
                intervention = make_intervention(reset, every_updates=4, **STRONG.get(reset, {}))
                intervention.apply_(learner, runs=runs, inputs={"net": (x,)})
            learner.minimize(loss_of(learner.net(x), (3,)), x)
        assert [v.data_ptr() for v in learner.regularizer.state_dict().values()] == addresses
        assert all(v.isfinite().all() for v in (*learner.net.parameters(), *state.values()))
        ends.append([p.detach().clone() for p in learner.net.parameters()])
    for everywhere, in_one, never in zip(*ends, strict=True):
        assert torch.equal(in_one[[0, 2]], never[[0, 2]])
        torch.testing.assert_close(in_one[1], everywhere[1])
    assert any(not torch.equal(in_one[1], never[1]) for _, in_one, never in zip(*ends, strict=True))


@pytest.mark.parametrize("name", WITH_COEF)
def test_each_run_may_have_its_own_strength(name):
    case = CASES["stacked_cnn_bn"]
    batch = case.input()
    strengths = [0.03, 0.01, 0.3] if name != "weight_clipping" else [0.5, 1.0, 0.1]
    together = trained(name, case, batch, coef=torch.tensor(strengths))
    for run, strength in enumerate(strengths):
        alone = trained(name, case, batch, coef=strength)
        torch.testing.assert_close([p[run] for p in together], [p[run] for p in alone])


@pytest.mark.parametrize("name", WITH_COEF)
def test_strength_zero_is_a_no_op_and_another_changes_training(name, case):
    batch = case.input()
    plain = trained("none", case, batch, 3)
    assert name == "weight_clipping" or equal(trained(name, case, batch, 3, coef=0.0), plain)
    assert not equal(trained(name, case, batch, 3, coef=0.1), plain)


@pytest.mark.parametrize("name", WITH_COEF)
@pytest.mark.parametrize("bad", [-1.0, torch.tensor([0.1, 0.1])])
def test_a_bad_strength_is_an_error_that_names_the_argument_and_the_value(name, bad):
    refused(lambda: make(name, MLP((5, 8, 8, 3), [0, 1, 2]), coef=bad), "coef", str(bad), error=ValueError)


@pytest.mark.parametrize(("name", "settings", "names"), [
    ("swr", {"coef": 1.5}, ["coef", "0 to 1", "1.5"]),
    ("swr", {"coef_classifier": 2.0}, ["coef_classifier", "0 to 1", "null", "2.0"]),
    ("swr", {"scope": "some"}, ["scope", "all", "preserving", "'some'"]),
    ("swr", {"accumulate": "no"}, ["accumulate", "exact", "paper", "'no'"]),
    ("swr", {"scope": "preserving", "accumulate": "paper"}, ["accumulate=exact"]),
    ("wrs", {"every_updates": 0}, ["every_updates", "1", "0"]),
    ("wrs", {"norm_decay": -1.0}, ["norm_decay", "0", "-1.0"]),
    ("wrs", {"per": "row"}, ["per", "unit", "layer", "'row'"]),
    ("wrs", {"per": "layer", "variant": "input_channel"}, ["per=layer"]),
    ("weight_clipping", {"coef": 0.0}, ["coef", "above 0", "0.0"]),
    ("orthogonal", {"scale": 0.0}, ["scale", "above 0", "0.0"]),
    ("hare_tortoise", {"momentum": 1.5}, ["momentum", "0 to 1", "1.5"]),
    ("self_normalized_resets", {"least": 20, "most": 10}, ["least", "most=10"]),
    ("l2", {"of": "kernels_and_gains"}, ["of=kernels_and_gains"]),
    ("l2", {"of": "weight"}, ["of", "kernels_and_gains", "'weight'"]),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(name, settings, names):
    refused(lambda: make_regularizer(name, plain_mlp(), **settings), *names, error=ValueError)


@pytest.mark.parametrize("name", [n for n in REGULARIZERS if n != "none"])
def test_a_network_without_anything_to_act_on_is_an_error(name):
    with pytest.raises(ValueError, match=rf"\b({name}|{REGULARIZERS[name].__name__})\b"):
        make_regularizer(name, plain_mlp().requires_grad_(False))


def test_a_chain_adds_the_penalties_and_projects_in_order():
    net = plain_mlp()
    parts = [make_regularizer("l2", net, coef=0.3), make_regularizer("l2_init", net, coef=0.7)]
    net[0].weight.data.add_(1)
    expected = parts[0].penalty(net) + parts[1].penalty(net)
    torch.testing.assert_close(Chain(net, *parts).penalty(net), expected)

    halve, clip = make_regularizer("weight_decay", net, coef=0.5), make_regularizer("weight_clipping", net, coef=0.1)
    net[0].weight.data.fill_(1.0)
    chain = Chain(net, halve, clip)
    chain.penalty(net)
    chain.project_(net, 1.0)
    # 1 is has_half, then clipped to 0.1 / sqrt(5); the other way round it would be 0.1 / sqrt(5) - 0.5
    torch.testing.assert_close(net[0].weight, torch.full((8, 5), 0.1 / 5**0.5))


@pytest.mark.parametrize("name", REGULARIZERS)
def test_a_moved_network_in_float64_gets_float64_state(name):
    net = plain_mlp().double()
    assert update(net, make_regularizer(name, net), torch.randn(4, 5).double()).dtype == torch.float64
