import copy
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from conftest import CASES, STACKED, changed, loss_of, random_batch, refused, snapshot
from foreign.expected import made_of
from torch import nn

from rl_plasticity.agents import SAC
from rl_plasticity.interventions import (
    INTERVENTIONS,
    Dash,
    Fire,
    HeadReset,
    Intervention,
    LearningRateDecay,
    ReDo,
    SelectiveReinit,
    ShrinkAndPerturb,
    make_intervention,
)
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import OPTIMIZERS
from rl_plasticity.networks import MLP, make_network
from rl_plasticity.regularizers import layers, make_regularizer


def learner_of(case, regularizer="l2_init"):
    seeds = list(range(case.runs[0])) if case.runs else [7]
    return Learner(case.of_seeds, seeds, lambda net: make_regularizer(regularizer, net))


def trained(case, regularizer="l2_init"):
    learner = learner_of(case, regularizer)
    x = case.input()
    for _ in range(3):
        learner.minimize(loss_of(learner.net(x), case.runs))
    return learner, {"net": (x,)}


def intervention(name):
    strong = {"redo": {"threshold": 0.8}, "regrama": {"threshold": 0.8}, "selective_reinit": {"factor": 0.5}}
    return make_intervention(name, every_updates=10, **strong.get(name, {}))


KEEPS_WEIGHTS = ("optimizer",)


# Plasticity injection needs a network made for it: test_injection.py.
@pytest.fixture(params=[name for name in INTERVENTIONS if name != "plasticity_injection"])
def name(request):
    return request.param


def test_it_acts_in_place_on_every_kind_of_network_and_leaves_the_global_random_state_alone(name, case):
    learner, inputs = trained(case)
    addresses = [t.data_ptr() for t in learner.state_dict().values()]
    before, state = snapshot(learner.net), torch.get_rng_state()
    intervention(name).apply_(learner, inputs=inputs)
    assert [t.data_ptr() for t in learner.state_dict().values()] == addresses
    assert bool(changed(learner.net, before)) == (name not in KEEPS_WEIGHTS)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("kind", "runs"), [*((kind, [1]) for kind in STACKED), ("stacked3", torch.tensor([False, True, False]))]
)
def test_it_changes_chosen_runs_only_by_index_or_by_mask(name, kind, runs):
    learner, inputs = trained(CASES[kind])
    before = snapshot(learner)
    intervention(name).apply_(learner, runs=runs, inputs=inputs)
    found = set()
    for k, v in learner.state_dict().items():
        if v.ndim and v.shape[0] == 3:
            found |= {run for run in range(3) if not torch.equal(v[run], before[k][run])}
    assert found == {1}


def test_it_is_due_at_every_multiple_of_its_period_or_at_changes_of_task_but_not_at_the_start(name):
    by_task = make_intervention(name, every_updates=None, every_tasks=2)
    assert [n for n in range(31) if intervention(name).due(n)] == [10, 20, 30]
    assert [n for n in range(7) if by_task.due_at_task(n)] == [2, 4, 6]
    assert not any(by_task.due(n) for n in range(300))
    assert not any(intervention(name).due_at_task(n) for n in range(7))
    without = make_intervention(name, every_updates=None)  # acts where apply_ is called
    assert not any(without.due(n) or without.due_at_task(n) for n in range(300))


REFUSED = [  # an intervention, its settings, what the refusal names
    *((name, {"every_updates": 0}, ["every_updates", "0"]) for name in INTERVENTIONS),
    *((name, {"every_tasks": -1}, ["every_tasks", "-1"]) for name in INTERVENTIONS),
    ("shrink_perturb", {"coef": 1.5}, ["coef", "0 to 1", "1.5"]),
    ("shrink_perturb", {"init": "new"}, ["init", "saved", "fresh", "'new'"]),
    ("head", {"num_layers": 0}, ["num_layers", "1", "null", "0"]),
    ("dash", {"least": 1.5}, ["least", "0 to 1", "1.5"]),
    ("redo", {"threshold": -0.1}, ["threshold", "0", "-0.1"]),
    ("selective_reinit", {"choose": "share", "factor": 1.5}, ["factor", "1", "choose=share", "1.5"]),
]


@pytest.mark.parametrize(("name", "settings", "names"), REFUSED)
def test_a_setting_out_of_range_is_refused(name, settings, names):
    refused(lambda: make_intervention(name, **settings), *names)


def test_what_an_intervention_cannot_act_on_is_refused():
    learner, _ = trained(CASES["plain"])
    flat = Learner(lambda seeds: nn.Sequential(nn.Linear(3, 2)), [0])
    computed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.ReLU(), nn.Linear(3, 1))
    net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 2))
    for call, *names in (
        (lambda: LearningRateDecay([5], factor=0), "factor", "0"),
        (lambda: ReDo().apply_(learner), "inputs", "'net'"),
        (lambda: ReDo().apply_(flat, inputs={"net": (torch.ones(2, 3),)}), "ReDo"),
        (lambda: Fire().apply_(computed, ()), "'0'"),
        (lambda: Fire().apply_(nn.LayerNorm(3), ()), "fire"),
        (lambda: SelectiveReinit(1).apply_(net, ()), "'0.weight'", "zero_grad"),
        (lambda: make_intervention("optimizer").apply_(net, ()), "optimizer"),
    ):
        refused(call, *names, error=ValueError)


def test_a_head_reset_changes_the_head_its_moments_and_its_anchor_only():
    learner, _ = trained(CASES["stacked3"])
    before = snapshot(learner)
    HeadReset(every_updates=1).apply_(learner)
    of_head = {f"net.6.{n}" for n in ("weight", "bias")}
    of_head |= {f"optimizer.{m}/6/{n}" for m in "mv" for n in ("weight", "bias")}
    counted = {"draws", "counted/resets", "counted/reset_weights"}
    assert changed(learner, before) == of_head | {"regularizer.initial/6/weight"} | counted
    assert not any(m.any() for n in ("6.weight", "6.bias") for m in learner.optimizer.moments(n))
    assert learner.optimizer.step.tolist() == [3, 3, 3]


def nested():
    """A layer whose name ends as the head's does."""
    return made_of(
        lambda net, x: net.head(net.body["head"](x).relu()),
        body=nn.ModuleDict({"head": nn.Linear(3, 4)}), head=nn.Linear(4, 2),
    )  # fmt: skip


def norms_between():
    """A norm layer behind a convolution stays; one between two fully connected layers goes with them."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 2)
    )  # fmt: skip


@pytest.mark.parametrize(("make", "num_layers", "modules"), [
    (lambda: MLP((5, 8, 8, 3), [0]), 2, {"3", "4", "6"}),  # the norm layer in between too
    (lambda: CASES["foreign"].of_seeds([0]), None, {"head"}),
    (nested, None, {"head"}),
    (norms_between, None, {"3", "4", "5"}),
    (lambda: make_network("cnn", (3, 16, 16), 10, [0]), None, {"7", "9"}),
    (lambda: make_network("kumar_cnn", (3, 16, 16), 10, [0]), None, {"7", "9", "11"}),
])  # fmt: skip
def test_a_head_reset_takes_the_last_layer_of_a_cnn_all_linear_ones_or_as_many_as_are_asked(make, num_layers, modules):
    names = HeadReset(every_updates=1, num_layers=num_layers)._last_names(make(), None)
    assert names == {f"{module}.{part}" for module in modules for part in ("weight", "bias")}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_after_an_optimizer_reset_a_run_trains_on_as_with_a_new_optimizer_and_the_others_as_if_nothing_were(kind):
    def learner_with(settings):
        return Learner(
            lambda s: MLP((5, 8, 3), s), [1, 2], make_optimizer=lambda net: OPTIMIZERS[kind](net, **settings)
        )

    settings = {"lr": 0.01} | STRONG.get(kind, {})
    learner, never, new = (learner_with(settings) for _ in range(3))
    x = torch.randn(2, 6, 5)

    def train(one, steps):
        for _ in range(steps):
            one.minimize(loss_of(one.net(x), (2,)))

    train(learner, 3), train(never, 3)
    weights = snapshot(learner.net)
    new.net.load_state_dict(weights)
    make_intervention("optimizer").apply_(learner, runs=[1])
    assert not changed(learner.net, weights)
    train(learner, 3), train(never, 3), train(new, 3)
    for p, q, r in zip(*(one.net.parameters() for one in (learner, never, new)), strict=True):
        torch.testing.assert_close(p[0], q[0], rtol=0, atol=0)
        torch.testing.assert_close(p[1], r[1], rtol=0, atol=0)
        assert not torch.equal(p[1], q[1])


@pytest.mark.parametrize("init", ["saved", "fresh"])
def test_shrink_and_perturb_mixes_weights_with_an_initialization_but_no_frozen_ones(init):
    learner, _ = trained(CASES["stacked1"])
    frozen = learner.net[0].bias.requires_grad_(False).detach().clone()
    before = learner.net[0].weight.detach().clone()
    start = learner.initial()[0].weight.detach()
    ShrinkAndPerturb(every_updates=1, coef=0.3, init=init).apply_(learner)
    assert torch.equal(learner.net[0].bias, frozen)
    if init == "saved":
        torch.testing.assert_close(learner.net[0].weight, 0.7 * before + 0.3 * start)
    else:
        other = (learner.net[0].weight - 0.7 * before) / 0.3
        assert not torch.allclose(other, start, atol=1e-3)
        torch.testing.assert_close(other.norm(), start.norm(), rtol=1e-3, atol=0)  # an initialization all the same


def test_a_unit_exactly_at_the_threshold_is_dormant():
    net = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    net[0].weight.data.zero_()
    net[0].bias.data.copy_(torch.tensor([1.0, 2.0, 3.0]))  # scores 0.5, 1, 1.5
    net[2].weight.data.fill_(1.0)
    learner = Learner(lambda seeds: net, [0])
    ReDo(every_updates=1, threshold=0.5).apply_(learner, inputs={"net": (torch.ones(4, 1),)})
    assert learner.net[2].weight.tolist() == [[0.0, 1.0, 1.0]]


def sac_and_batch():
    agent, batch = SAC(4, 2, [0, 1], lambda net: make_regularizer("spectral", net), hidden=(8, 8)), random_batch(2, 16)
    for noise in agent.noise(3, 16):
        agent.update(batch, noise)
    return agent, batch


def test_it_acts_on_both_learners_of_the_agent_on_chosen_runs(name):
    agent, batch = sac_and_batch()
    before = snapshot(agent)
    done = intervention(name).apply_(agent, runs=[1], inputs=agent.inputs(batch))
    found = changed(agent, before)
    for learner in ("critic", "actor"):
        assert any(k.startswith(f"{learner}.net") for k in found) == (name not in KEEPS_WEIGHTS)
        assert any(k.startswith((f"{learner}.net", f"{learner}.optimizer")) for k in found)
        assert done[f"{learner}/resets"].tolist() == [0, 1]
        assert done[f"{learner}/reset_weights"].tolist() == agent.learners[learner].counts["reset_weights"].tolist()
    after = agent.state_dict()
    assert all(torch.equal(after[k][0], before[k][0]) for k in found if not k.startswith("streams"))
    assert any(k.startswith("temperature.net") for k in found) == (name == "periodic")


@pytest.mark.parametrize("name", ["periodic", "head", "fire"])
def test_the_target_becomes_what_the_network_became(name):
    agent, _ = sac_and_batch()
    before = snapshot(agent)
    intervention(name).apply_(agent)
    for key in changed(agent, before):
        if key.startswith("critic.net."):
            assert torch.equal(agent.state_dict()[key], agent.state_dict()[key.replace("critic.net", "critic_target")])
    kept = "critic_target.critics.0.0.weight"
    assert torch.equal(agent.state_dict()[kept], before[kept]) == (name == "head")
    steps = agent.critic.optimizer.step.tolist()
    assert steps == ([3, 3] if name == "head" else [0, 0])
    if name == "periodic":
        assert agent.temperature.net().tolist() == [1.0, 1.0]
        assert agent.temperature.optimizer.step.tolist() == [0, 0]
        assert not any(m.any() for m in agent.temperature.optimizer.moments("log_alpha"))


def test_runs_that_do_not_exist_are_an_error_before_anything_changes(name):
    for kind, *runs in (("stacked3", [3], [-1], [0.5], [True, False], torch.tensor([0, 7])), ("plain", [0])):
        learner, inputs = trained(CASES[kind])
        before = snapshot(learner)
        for bad in runs:
            with pytest.raises(ValueError, match="runs" if kind == "plain" else r"from 0 to 2.*length 3"):
                intervention(name).apply_(learner, runs=bad, inputs=inputs)
            assert not changed(learner, before)


@pytest.mark.parametrize("kind", ["stacked_cnn_bn", "cnn_bn"])
def test_fire_takes_each_weight_to_a_multiple_of_its_polar_factor_and_a_kernel_position_by_position(kind):
    case = CASES[kind]
    learner, _ = trained(case)
    learner.net.double()
    before = snapshot(learner.net)
    Fire(every_updates=1, iterations=100).apply_(learner)
    k, seen = len(case.runs), 0
    for layer in layers(learner.net):
        weight, old = layer.weight(learner.net), before[layer.weight_name]
        if not layer.is_linear_map:
            assert torch.equal(weight, old)
            continue
        seen += 1
        assert torch.equal(layer.bias(learner.net), before[layer.bias_name])
        out, fan_in, *kernel = old.shape[k:]
        for at in itertools.product(*map(range, kernel)):  # a linear layer has one position, ()
            u, _, vh = torch.linalg.svd(old[(..., *at)], full_matrices=False)
            expected = u @ vh * (out / fan_in) ** 0.5 / math.prod(kernel)
            torch.testing.assert_close(weight[(..., *at)], expected)
    assert seen >= 3


def test_fire_takes_ten_newton_schulz_steps_from_the_weight_over_its_norm():
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    x = net[0].weight.detach() / net[0].weight.detach().norm()
    for _ in range(10):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    make_intervention("fire").apply_(net, ())
    torch.testing.assert_close(net[0].weight, x * (6 / 4) ** 0.5)


@pytest.mark.parametrize("kind", ["stacked3", "stacked_cnn_bn", "cnn_bn"])
def test_dash_shrinks_rows_kernels_and_whole_biases_by_their_cosine_with_the_mean_negative_gradient(kind):
    case = CASES[kind]
    learner, _ = trained(case)
    before, k = snapshot(learner.net), len(case.runs)
    with torch.no_grad():  # cosines of every size and sign
        for name in learner.optimizer.names:
            m = learner.optimizer.gradient(name)
            m.copy_(-learner.net.get_parameter(name) + torch.randn_like(m) * torch.rand(m.shape[-1]))
    Dash(every_updates=1, least=0.1).apply_(learner)
    factors = []
    for layer in layers(learner.net):
        for name in layer.parameter_names:
            old, g = before[name], learner.optimizer.gradient(name)
            if not layer.is_linear_map:
                assert torch.equal(learner.net.get_parameter(name), old)
                continue
            at = k + (2 if layer.role == "conv" else 1) if name == layer.weight_name else k  # where a vector begins
            factor = nn.functional.cosine_similarity(old.flatten(at), -g.flatten(at), dim=-1).clamp(min=0.1)
            expected = old * factor.reshape(*factor.shape, *(1,) * (old.ndim - at))
            torch.testing.assert_close(learner.net.get_parameter(name), expected)
            factors.append(factor.flatten())
    factors = torch.cat(factors)
    assert (factors == 0.1).any()
    assert ((factors > 0.1) & (factors < 1)).any()


def test_dash_by_hand_with_rows_along_across_and_against_the_negative_gradient_and_one_without():
    net = nn.Sequential(nn.Linear(2, 4))
    net[0].weight.data = torch.tensor([[3.0, 4.0], [1.0, 0.0], [2.0, 2.0], [1.0, 1.0]])
    # cosines 1, 0.71, -1, none
    net[0].weight.grad = torch.tensor([[-6e-9, -8e-9], [-1.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    net[0].bias.data, net[0].bias.grad = torch.ones(4), torch.tensor([-1.0, 0.0, 0.0, 0.0])  # 0.5 of all four together
    make_intervention("dash", least=0.25).apply_(net, ())
    half = 0.5**0.5
    torch.testing.assert_close(net[0].weight, torch.tensor([[3.0, 4.0], [half, 0], [0.5, 0.5], [0.25, 0.25]]))
    torch.testing.assert_close(net[0].bias, torch.full((4,), 0.5))


def test_dash_shrinks_a_target_by_the_factors_of_its_network_and_a_shared_weight_once():
    agent, _ = sac_and_batch()
    before = snapshot(agent)
    Dash(every_updates=1).apply_(agent)
    for name in ("critics.0.0.weight", "critics.0.6.bias"):
        now = agent.state_dict()
        factor = now[f"critic.net.{name}"] / before[f"critic.net.{name}"]
        torch.testing.assert_close(now[f"critic_target.{name}"], before[f"critic_target.{name}"] * factor)
    tied = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    tied[0].weight.grad = tied[0].weight.detach().clone()  # against it
    tied[0].bias.grad = tied[2].bias.grad = torch.ones(3)
    old = tied[0].weight.detach().clone()
    Dash(every_updates=1, least=0.5).apply_(tied, ())
    torch.testing.assert_close(tied[0].weight, 0.5 * old)


STRONG = {"trac": {"start": 0.1}}


@pytest.mark.parametrize("choose", ["share", "threshold"])
def test_selective_reinit_counts_within_each_tensor_of_each_run(choose):
    learner, _ = trained(CASES["stacked3"])
    before, fresh = snapshot(learner.net), dict(copy.deepcopy(learner).fresh().named_parameters())
    SelectiveReinit(1, choose=choose, factor=0.25).apply_(learner)
    for name, p in learner.net.named_parameters():
        use = (before[name] * learner.optimizer.gradient(name)).abs().flatten(1)
        for run in range(3):
            expected = before[name][run].flatten()
            low = int(0.25 * use.shape[1]) if choose == "share" else int((use[run] <= 0.25 * use[run].mean()).sum())
            least = use[run].argsort()[:low]
            expected[least] = fresh[name][run].flatten()[least]
            assert torch.equal(p[run].flatten(), expected), name


def test_selective_reinit_reckons_in_float32_where_the_weights_are_in_half_precision():
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)).half()
    for p in net.parameters():
        p.data = torch.linspace(0.05, 0.1, p.numel()).reshape(p.shape).half()
        p.grad = torch.full_like(p, 1e-6)  # with a weight of 0.1 it rounds to 0 in half precision
    before = snapshot(net)
    SelectiveReinit(1).apply_(net, ())
    assert not changed(net, before)


@pytest.mark.parametrize(("name", "settings", "known"), [
    *((name, STRONG.get(name, {}), name not in ("rmsprop", "upgd")) for name in OPTIMIZERS),
    ("rmsprop", {"centered": True}, True),
])  # fmt: skip
def test_selective_reinit_takes_every_optimizer_that_keeps_a_mean_of_the_gradient_and_no_other(name, settings, known):
    learner = Learner(
        lambda s: MLP((5, 8, 3), s), [0], make_optimizer=lambda net: OPTIMIZERS[name](net, lr=0.01, **settings)
    )
    x = torch.randn(1, 64, 5) * torch.tensor([1.0, 1, 1, 1, 1e-6])  # the last input's weights have small gradients
    for _ in range(5):
        learner.minimize(learner.net(x).square().mean((1, 2)))
    reinit = SelectiveReinit(1, choose="share", factor=0.2)
    if not known:
        refused(lambda: reinit.apply_(learner), "gradient")
        return
    before = learner.net[0].weight.detach().clone()
    reinit.apply_(learner)
    assert (learner.net[0].weight != before).sum((0, 1)).tolist() == [0, 0, 0, 0, 8]


@pytest.mark.parametrize("runs", [None, [1]])
def test_what_it_did_is_returned_and_added_up_by_run_and_a_saved_learner_goes_on(name, runs):
    learner, inputs = trained(CASES["stacked3"])
    acted = [1, 1, 1] if runs is None else [0, 1, 0]
    total = torch.zeros(3, dtype=torch.int64)
    assert learner.counts == {}
    for _ in range(2):
        before = snapshot(learner.net)
        done = intervention(name).apply_(learner, runs=runs, inputs=inputs)
        moved = sum((p != before[n]).flatten(1).sum(1) for n, p in learner.net.named_parameters())
        assert done["resets"].tolist() == acted
        assert torch.equal(done["reset_weights"], moved)
        assert (moved > 0).tolist() == [bool(a) and name not in KEEPS_WEIGHTS for a in acted]
        total += moved
    other = learner_of(CASES["stacked3"])
    other.load_state_dict(learner.state_dict())
    for one in (learner, other):
        assert one.counts["resets"].tolist() == [2 * a for a in acted]
        assert torch.equal(one.counts["reset_weights"], total)


def test_redo_looks_behind_the_norm_layer_gives_it_a_fresh_entry_and_counts_the_units_that_it_recycled():
    learner, inputs = trained(CASES["stacked3"])
    for i, bias in ((1, 5.0), (4, 50.0)):
        learner.net[i].bias.data += bias
    learner.net[1].bias.data[1, 2] = -100.0  # of all units the only one that never fires
    done = ReDo(every_updates=1, threshold=0.0).apply_(learner, inputs=inputs)
    assert (learner.net[1].bias[1, 2], learner.net[1].weight[1, 2]) == (0, 1)
    assert not learner.net[3].weight[1, :, 2].any()
    assert done["reset_units"].tolist() == [0, 1, 0]
    assert done["resets"].tolist() == [1, 1, 1]  # it acted where there was nothing to recycle, too
    assert done["reset_weights"][[0, 2]].tolist() == [0, 0]
    none = ReDo(every_updates=1, threshold=0.0).apply_(learner, runs=[0], inputs=inputs)
    assert none["reset_units"].tolist() == [0, 0, 0]
    assert learner.counts["reset_units"].tolist() == [0, 1, 0]
    assert HeadReset(every_updates=1).apply_(learner)["reset_units"].tolist() == [0, 0, 0]


def test_an_intervention_of_somebody_s_own_is_counted_and_a_decay_of_the_learning_rate_is_not():
    class Halve(Intervention):
        def _apply_(self, target, runs):
            target.parts["net"].learner.net[0].weight.data.mul_(0.5)

    learner, _ = trained(CASES["stacked3"])
    LearningRateDecay(at_updates=[1]).apply_(learner)
    assert learner.counts == {}
    done = Halve().apply_(learner)  # at once: no period is needed
    assert done["reset_weights"].tolist() == [learner.net[0].weight[0].numel()] * 3
    assert learner.counts["resets"].tolist() == [1, 1, 1]


def pair(name):
    """An agent whose second learner is made so that an intervention on it fails."""

    def make(seeds):
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))

    def broken(seeds):
        net = nn.Sequential(nn.Embedding(5, 3)) if name == "head" else make(seeds)
        if name == "fire":
            nn.utils.parametrizations.weight_norm(net[2])
        return net

    learners = {"one": Learner(make), "other": Learner(broken)}
    for learner in learners.values():
        learner.net[0].weight.data.add_(1) if name != "redo" else learner.net[0].bias.data[:2].fill_(-100)
    return SimpleNamespace(learners=learners, followers={}, restart_=None)


@pytest.mark.parametrize("name", ["head", "redo", "regrama", "selective_reinit", "shrink_perturb", "fire", "dash"])
def test_an_intervention_that_fails_on_one_learner_has_changed_no_other(name, monkeypatch):
    agent = pair(name)
    one, other = agent.learners.values()
    one.minimize(one.net(torch.randn(6, 5)).square().mean())  # so that there are moments
    monkeypatch.setattr(other, "initial", lambda: nn.Linear(2, 2))
    monkeypatch.setattr(other.optimizer, "gradient", lambda name: None)
    monkeypatch.setattr(other.optimizer, "moments", lambda name: [][name])
    before = snapshot(one)
    inputs = {key: (torch.randn(6, 5),) for key in agent.learners}
    with pytest.raises((ValueError, KeyError, TypeError)):
        make_intervention(name, every_updates=1).apply_(agent, inputs=inputs)
    assert changed(one, before) <= {"draws"}
