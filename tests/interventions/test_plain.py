"""Interventions on a plain network with torch optimizers: against a learner, a new network and new optimizers."""

import copy

import pytest
import torch
from conftest import CASES, Functional, assert_equal_states, changed, plain_mlp, plainly, refused, snapshot
from foreign.expected import made_of
from torch import nn, optim

from rl_plasticity import attach
from rl_plasticity.agents import SAC
from rl_plasticity.interventions import LearningRateDecay, make_intervention
from rl_plasticity.learning.learner import Learner
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import make_regularizer

OPTIMIZERS = {
    "Adam": lambda net: optim.Adam(net.parameters(), amsgrad=True),
    "AdamW": lambda net: optim.AdamW(net.parameters()),
    "fused": lambda net: optim.Adam(net.parameters(), fused=True),
    "SGD": lambda net: optim.SGD(net.parameters(), lr=1e-2, momentum=0.9, dampening=0.5),
    "RMSprop": lambda net: optim.RMSprop(net.parameters(), centered=True, momentum=0.9),
    "Adagrad": lambda net: optim.Adagrad(net.parameters()),
    "Adadelta": lambda net: optim.Adadelta(net.parameters()),
    "Adamax": lambda net: optim.Adamax(net.parameters()),
    "NAdam": lambda net: optim.NAdam(net.parameters()),
    "RAdam": lambda net: optim.RAdam(net.parameters()),
    "Muon": lambda net: [
        optim.Muon([p for p in net.parameters() if p.ndim == 2], lr=1e-2),
        optim.SGD([p for p in net.parameters() if p.ndim != 2], 1e-2, 0.9),
    ],
}


def train(net, optimizers, x, steps=3):
    for step in range(steps):
        output = net(x)
        plainly(optimizers, (output - torch.linspace(-1 - step, 1, output.shape[-1])).square().mean())


def trained(make=plain_mlp, optimizer=lambda net: optim.Adam(net.parameters()), x=None):
    net = make()
    optimizers = optimizer(net)
    x = torch.randn(6, 5) if x is None else x
    train(net, optimizers, x)
    return net, optimizers, x


def state_of(optimizers, parameter):
    optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
    return {k: v for o in optimizers for k, v in o.state.get(parameter, {}).items() if isinstance(v, torch.Tensor)}


def counting():
    def forward(net, x):
        net.calls += 1
        return net.body(x)

    return made_of(forward, body=plain_mlp(), calls=torch.zeros((), dtype=torch.int64))


@pytest.mark.parametrize("kind", ["plain", "cnn_bn", "stacked3"])
def test_redo_of_a_plain_network_equals_redo_of_a_learner_with_its_weights_and_moments(kind):
    case = CASES[kind]
    x, k = case.input(), len(case.runs)
    learner = Learner(case.of_seeds, range(*(case.runs or (1,))), lambda net: make_regularizer("l2_init", net))
    for _ in range(3):
        learner.minimize(learner.net(x).sub(torch.arange(3.0)).square().flatten(k).mean(-1))
    net = copy.deepcopy(learner.net)
    # In another order than the network's, and in groups: only the parameter itself says whose state it is.
    parameters = [*reversed([*net.parameters()])]
    optimizer = optim.Adam([{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.1}])
    for name, p in net.named_parameters():
        m, v = (moment.clone() for moment in learner.optimizer.moments(name))
        optimizer.state[p] = {"step": torch.tensor(3.0), "exp_avg": m, "exp_avg_sq": v}
    before, redo = snapshot(net), make_intervention("redo", threshold=0.8)
    done = redo.apply_(net, optimizer, example=(x,), make=lambda: learner._new([1] * (case.runs or (1,))[0]))
    assert_equal_states(redo.apply_(learner, inputs={"net": (x,)}), done)
    assert (done["reset_units"] > 0).all()
    assert_equal_states(learner.net.state_dict(), net.state_dict())
    assert len(changed(net, before)) > 3
    for name, p in net.named_parameters():
        m, v = learner.optimizer.moments(name)
        assert_equal_states(optimizer.state[p], {"step": torch.tensor(3.0), "exp_avg": m, "exp_avg_sq": v})
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 0.1]


def test_an_example_shows_functions_as_activations_and_the_head_where_data_decides_the_way():
    net, optimizer, x = trained(Functional)
    net.body[0].bias.data[2] = -100.0
    before = snapshot(net)
    make_intervention("redo", threshold=0).apply_(net, optimizer, example=x)
    assert "body.0.bias" in changed(net, before)
    assert not net.body[1].weight[:, 2].any()
    before = snapshot(net)
    refused(lambda: make_intervention("head").apply_(net, optimizer), "example=", error=ValueError)
    make_intervention("head").apply_(net, optimizer, example=x)
    assert changed(net, before) == {"body.2.weight", "body.2.bias"}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_head_reset_zeroes_what_an_optimizer_holds_of_the_head_and_keeps_its_step_count(kind):
    net, optimizers, _ = trained(optimizer=OPTIMIZERS[kind])
    before = snapshot(net)
    states = {p: {k: v.clone() for k, v in state_of(optimizers, p).items()} for p in net.parameters()}
    assert all(any(v.any() for k, v in state.items() if k != "step") for state in states.values())
    make_intervention("head").apply_(net, optimizers)
    assert changed(net, before) == {"4.weight", "4.bias"}
    for name, p in net.named_parameters():
        for key, value in state_of(optimizers, p).items():
            if name.startswith("4.") and value.shape == p.shape:
                assert not value.any(), key
            else:
                assert torch.equal(value, states[p][key]), key


@pytest.mark.parametrize("kind", [*OPTIMIZERS, "Adagrad from 0.1", "Rprop", "Adafactor"])
def test_after_a_full_reset_training_goes_on_as_with_a_new_network_and_a_new_optimizer(kind):
    more = {
        "Adagrad from 0.1": lambda net: optim.Adagrad(net.parameters(), initial_accumulator_value=0.1),
        "Rprop": lambda net: optim.Rprop(net.parameters()),
        "Adafactor": lambda net: optim.Adafactor(net.parameters()),
    }
    make_optimizer = (OPTIMIZERS | more)[kind]
    net, optimizers, x = trained(optimizer=make_optimizer)
    new = plain_mlp()
    parameters = [*net.parameters()]
    make_intervention("periodic").apply_(net, optimizers, make=lambda: copy.deepcopy(new))
    assert all(p is q for p, q in zip(net.parameters(), parameters, strict=True))
    train(net, optimizers, x, 4)
    train(new, make_optimizer(new), x, 4)
    assert_equal_states(net.state_dict(), new.state_dict())


def test_an_optimizer_keeps_its_groups_and_its_state_of_other_networks_and_may_lack_parameters_of_this_one():
    net, other = plain_mlp(), plain_mlp()
    optimizer = optim.Adam([{"params": [*net[0].parameters()], "lr": 0.1}, {"params": [*other.parameters()]}])
    train(other, optimizer, torch.randn(6, 5)), train(net, optimizer, torch.randn(6, 5))
    state, before = copy.deepcopy(optimizer.state_dict()["state"]), snapshot(net)
    make_intervention("head").apply_(torch.compile(net, backend="eager"), optimizer)  # the network inside
    assert changed(net, before) == {"4.weight", "4.bias"}
    make_intervention("shrink_perturb", init="fresh").apply_(net, optimizer)
    for i, of_parameter in optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, state[i][key]) for key, value in of_parameter.items())
    make_intervention("periodic").apply_(net, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 1e-3]
    assert {id(p) for p in optimizer.state} == {id(p) for p in other.parameters()}


@pytest.mark.parametrize("given", [{}, {"make": lambda: fresh_mlp()}])
def test_new_weights_are_those_of_a_new_network_by_torch_s_random_state_and_others_each_time(given):
    net, optimizer, _ = trained(fresh_mlp)
    torch.manual_seed(3)
    expected = [fresh_mlp() for _ in range(2)]
    state = torch.get_rng_state()
    torch.manual_seed(3)
    for new in expected:
        make_intervention("periodic").apply_(net, optimizer, **given)
        assert_equal_states(net.state_dict(), new.state_dict())
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(expected[0][0].weight, expected[1][0].weight)


def fresh_mlp():
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


def test_a_module_that_initializes_its_children_has_the_last_word():
    def reset_parameters(net):
        nn.init.constant_(net.head.weight, 7.0)
        nn.init.constant_(net.head.bias, 8.0)

    net = type("Own", (nn.Module,), {"reset_parameters": reset_parameters})()
    net.head = nn.Linear(3, 2)
    net.head.weight.data.zero_(), net.head.bias.data.zero_()
    make_intervention("periodic").apply_(net, ())
    assert (net.head.weight == 7).all()
    assert (net.head.bias == 8).all()
    attention = nn.MultiheadAttention(8, 2)
    make_intervention("periodic").apply_(attention, ())
    assert not attention.out_proj.bias.any()  # zero by attention's own _reset_parameters, not by Linear's


def forgetful(left_out):
    """A linear layer whose reset leaves out a parameter, or a part of one."""

    def reset_parameters(net):
        nn.init.ones_(net.weight if left_out == "bias" else net.weight[:1])
        if left_out == "weight":
            nn.init.ones_(net.bias)

    net = type("Forgetful", (nn.Linear,), {"reset_parameters": reset_parameters})(3, 2)
    nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
    return net


def tied():
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    return net


@pytest.mark.parametrize(("make", "names"), [
    (lambda: CASES["foreign"].make(0), "'position'"),
    (lambda: forgetful("weight"), "'weight'"),
    (lambda: forgetful("bias"), "'bias'"),
    (tied, "'0.weight' is shared"),
    (counting, "'calls' is a buffer"),
])  # fmt: skip
def test_what_no_module_resets_is_named_and_nothing_changes(make, names):
    net = make()
    before = snapshot(net)
    refused(lambda: make_intervention("periodic").apply_(net, ()), names, "make=")
    assert not changed(net, before)
    make_intervention("periodic").apply_(net, (), make=make)


def test_what_needs_less_than_the_whole_network_leaves_the_rest_to_who_resets_it():
    net, optimizer, x = trained(lambda: CASES["foreign"].make(0), x=CASES["foreign"].input())
    before = snapshot(net)
    refused(lambda: make_intervention("shrink_perturb", init="fresh").apply_(net), "'position'")
    make_intervention("head").apply_(net, optimizer)  # needs the head only
    make_intervention("redo", threshold=0.9).apply_(net, optimizer, example=x)
    assert {"head.weight", "mlp.0.weight"} <= changed(net, before) <= {
        "head.weight", "head.bias", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight",
    }  # fmt: skip
    make_intervention("shrink_perturb", init="fresh").apply_(counting())  # of parameters only, not of its buffer


@pytest.mark.parametrize("given", [{}, {"make": lambda: CASES["cnn_bn"].make(5)}])
def test_a_full_reset_takes_over_fresh_batch_norm_statistics(given):
    net, optimizer, _ = trained(lambda: CASES["cnn_bn"].make(0), x=CASES["cnn_bn"].input())
    assert net.features[1].running_mean.any()
    make_intervention("periodic").apply_(net, optimizer, **given)
    assert not net.features[1].running_mean.any()
    assert (net.features[1].running_var == 1).all()
    assert net.features[1].num_batches_tracked == 0


def test_without_make_frozen_parameters_and_their_modules_statistics_stay():
    net = CASES["cnn_bn"].make(0)
    net(CASES["cnn_bn"].input())
    net.features.requires_grad_(False)
    before = snapshot(net)
    make_intervention("periodic").apply_(net, ())
    assert changed(net, before) == {f"classifier.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")}
    make_intervention("periodic").apply_(net, (), make=lambda: CASES["cnn_bn"].make(5))
    assert "features.0.weight" in changed(net, before)
    assert not net.features[0].weight.requires_grad


def test_what_make_returns_takes_the_network_s_types_and_what_is_frozen_in_it():
    net = plain_mlp().double()
    net[2].bfloat16().requires_grad_(False)
    regularizer = make_regularizer("l2_init", net)
    seen = []

    def like_it(fresh):
        seen.extend((p.dtype, p.requires_grad) for p in fresh.parameters())
        return make_regularizer("l2_init", fresh)

    make_intervention("periodic").apply_(net, (), make=plain_mlp, regularizer=regularizer, make_regularizer=like_it)
    assert seen == [(p.dtype, p.requires_grad) for p in net.parameters()]
    kinds = [(torch.float64, True), (torch.bfloat16, False), (torch.float64, True)]
    assert seen == [kind for kind in kinds for _ in range(2)]
    assert torch.equal(net[0].weight, regularizer._recall("initial", "0.weight"))


def test_targets_take_the_new_head_the_mixture_and_the_new_network():
    net, optimizer, _ = trained()
    target = plain_mlp()
    before = snapshot(target)
    make_intervention("head").apply_(net, optimizer, followers=target)
    assert changed(target, before) == {"4.weight", "4.bias"}
    assert torch.equal(target[4].weight, net[4].weight)
    assert not torch.equal(target[0].weight, net[0].weight)

    before, new = snapshot(target), plain_mlp()
    make_intervention("shrink_perturb", init="fresh", coef=0.3).apply_(net, make=lambda: new, followers=[target])
    mixture = {name: 0.7 * value + 0.3 * new.state_dict()[name] for name, value in before.items()}
    torch.testing.assert_close(dict(target.state_dict()), mixture)

    make_intervention("periodic").apply_(net, optimizer, followers=(target, other := plain_mlp()))
    for follower in (target, other):
        assert not changed(follower, snapshot(net))


@pytest.mark.parametrize("name", ["redo", "selective_reinit"])
def test_targets_are_left_to_follow_by_averaging_where_single_units_or_weights_are_renewed(name):
    net, optimizer, x = trained()
    net[0].bias.data[2] = -100  # a dead unit
    target = plain_mlp()
    before = snapshot(target)
    assert make_intervention(name).apply_(net, optimizer, example=x, followers=target)["reset_weights"] > 0
    assert not changed(target, before)


def test_a_regularizer_takes_the_new_weights_as_its_reference_where_they_are_new():
    net, optimizer, _ = trained()
    given = {
        "regularizer": make_regularizer("l2_init", net),
        "make_regularizer": lambda n: make_regularizer("l2_init", n),
    }
    before = snapshot(given["regularizer"])
    train(net, optimizer, torch.randn(6, 5))
    make_intervention("head").apply_(net, optimizer, **given)
    assert changed(given["regularizer"], before) == {"initial/4/weight", "initial/4/bias"}
    assert torch.equal(given["regularizer"]._recall("initial", "4.weight"), net[4].weight)
    make_intervention("periodic").apply_(net, optimizer, **given)
    assert given["regularizer"].penalty(net) == 0
    train(net, optimizer, torch.randn(6, 5))
    make_intervention("periodic").apply_(net, optimizer)
    assert given["regularizer"].penalty(net) > 0  # was not told


def adam(net):
    return optim.Adam(net.parameters())


def wider():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 3))


X = torch.ones(6, 5)
OPTIMIZER = "apply_(net, optimizer)"
REFUSED = [
    ("head", lambda net: {"optimizer": adam(plain_mlp())}, ["Adam"]),
    ("periodic", lambda net: {"optimizer": optim.LBFGS(net.parameters())}, ["LBFGS"]),
    ("head", lambda net: {"optimizer": [1, 2]}, ["torch.optim", "int"]),
    ("head", lambda net: {}, [OPTIMIZER]),
    ("periodic", lambda net: {}, [OPTIMIZER]),
    ("redo", lambda net: {"example": X}, [OPTIMIZER]),
    ("redo", lambda net: {"optimizer": adam(net)}, ["example="]),
    ("redo", lambda net: {"optimizer": adam(net), "example": torch.ones(5)}, ["batch"]),
    ("redo", lambda net: {"optimizer": adam(net), "inputs": {}}, ["example="]),
    ("shrink_perturb", lambda net: {}, ["init='fresh'"]),
    ("periodic", lambda net: {"optimizer": (), "regularizer": make_regularizer("swr", net)}, ["make_regularizer="]),
    ("periodic", lambda net: {"regularizer": attach("l2_init", adam(net), net)}, ["Attached", "handle.regularizer"]),
    ("head", lambda net: {"optimizer": (), "followers": nn.Linear(5, 8)}, ["followers="]),
    ("head", lambda net: {"optimizer": (), "runs": [0]}, ["runs"]),
    ("periodic", lambda net: {"optimizer": (), "make": wider}, ["make=", "'2.bias'", "(8,)", "(9,)"]),
    ("periodic", lambda net: {"optimizer": (), "make": lambda: net}, ["make="]),
    ("periodic", lambda net: {"optimizer": (), "make": lambda: None}, ["make=", "NoneType"]),
]


@pytest.mark.parametrize(("name", "given", "names"), REFUSED)
def test_what_is_missing_or_does_not_belong_is_said_in_one_line_before_anything_changes(name, given, names):
    net = plain_mlp()
    before, given = snapshot(net), given(net)
    refused(lambda: make_intervention(name).apply_(net, **given), *names, error=ValueError)
    assert not changed(net, before)


def test_learners_and_agents_have_their_own_optimizers_and_inputs_and_schedulers_decay_torch_s_rates():
    learner = Learner(lambda seeds: plain_mlp())
    agent = SAC(4, 2, [0], lambda net: make_regularizer("l2", net), hidden=(8, 8))
    decay = LearningRateDecay(at_updates=[1])
    for intervention, arguments, given, *names in (
        (make_intervention("head"), (learner, adam(learner.net)), {}, "optimizer", "Learner"),
        (make_intervention("redo"), (agent,), {"example": X}, "example", "plain network"),
        (make_intervention("head"), (agent, [0]), {}, "runs=", "inputs="),
        (make_intervention("head"), (adam(learner.net),), {}, "Adam"),
        (decay, (net := plain_mlp(), adam(net)), {}, "torch.optim.lr_scheduler"),
    ):
        refused(lambda i=intervention, a=arguments, g=given: i.apply_(*a, **g), *names)


@pytest.mark.parametrize("kind", [optim.Rprop, optim.Adafactor])
@pytest.mark.parametrize("name", ["head", "redo"])
def test_state_that_is_no_moment_is_refused_rather_than_zeroed(name, kind):
    net, optimizer, x = trained(optimizer=lambda net: kind(net.parameters()))
    before = snapshot(net)
    refused(lambda: make_intervention(name).apply_(net, optimizer, example=x), kind.__name__)
    assert not changed(net, before)


def test_some_runs_of_a_stacked_network_take_make_and_cannot_restart_a_shared_step_count():
    net = MLP((5, 8, 3), [0, 1, 2])
    optimizer = adam(net)
    plainly(optimizer, net(torch.randn(3, 6, 5)).square())
    before = snapshot(net)
    refused(lambda: make_intervention("head").apply_(net, optimizer, runs=[1]), "make=")
    make = {"make": lambda: MLP((5, 8, 3), [3, 4, 5])}
    refused(lambda: make_intervention("periodic").apply_(net, optimizer, runs=[1], **make), "steps")
    assert not changed(net, before)
    make_intervention("head").apply_(net, optimizer, runs=[1], **make)
    weight, moment = net[3].weight, optimizer.state[net[3].weight]["exp_avg"]
    assert torch.equal(weight[[0, 2]], before["3.weight"][[0, 2]])
    assert torch.equal(weight[1], MLP((5, 8, 3), [3, 4, 5])[3].weight[1])
    assert [bool(m.any()) for m in moment] == [True, False, True]


def test_redo_changes_no_unit_that_is_read_on_a_way_which_the_example_does_not_take():
    names = {name: nn.Linear(6, 6) for name in "aboc"}
    net = made_of(
        lambda net, x: net.o(torch.relu(net.b(net.a(x).relu()) if x.sum() > 0 else net.c(net.a(x).relu()))), **names
    )
    x = torch.rand(32, 6)
    with torch.no_grad():
        net.a.weight[1], net.a.bias[1] = 0, -5
    before = net(x), net(-x)
    refused(
        lambda: make_intervention("redo", threshold=0.0).apply_(net, adam(net), example=x),
        match=r"\bc\b",
        error=ValueError,
    )
    assert all(torch.equal(net(y), f) for y, f in zip((x, -x), before, strict=True))


@pytest.mark.parametrize("intervention", ["shrink_perturb", "head", "periodic"])
def test_what_is_attached_and_not_passed_is_said_to_hold_on_to_the_old_weights(intervention):
    apply_ = make_intervention(intervention, **({"init": "fresh"} if intervention == "shrink_perturb" else {})).apply_
    net, optimizer, _ = trained()
    handle = attach("l2_init", optimizer, net, coef=0.1)
    with pytest.warns(UserWarning, match=r"L2Init\b.*regularizer=handle\.regularizer\b.*make_regularizer="):
        apply_(net, optimizer)
    # Nothing is said where it is passed, holds on to nothing, is of another network or is gone.
    apply_(
        net, optimizer, regularizer=handle.regularizer, make_regularizer=lambda net: make_regularizer("l2_init", net)
    )
    handle.remove()
    apply_(net, optimizer)
    attach("l2", optimizer, net)
    attach("l2_init", optim.SGD((other := plain_mlp()).parameters(), 0.1), other)
    apply_(net, optimizer)


def test_a_weight_that_network_and_target_share_changes_once():
    shared = nn.Linear(3, 4)
    net, target = nn.Sequential(shared, nn.ReLU(), nn.Linear(4, 2)), nn.Sequential(shared, nn.ReLU(), nn.Linear(4, 2))
    fresh, before = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), shared.weight.clone()
    reset = make_intervention("shrink_perturb", coef=0.5, init="fresh")
    reset.apply_(net, make=lambda: copy.deepcopy(fresh), followers=target)
    torch.testing.assert_close(shared.weight, 0.5 * before + 0.5 * fresh[0].weight)
