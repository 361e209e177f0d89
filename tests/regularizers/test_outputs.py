"""Penalties on what a network returns for a batch."""

import copy
import pickle
from functools import partial

import pytest
import torch
from conftest import FabricModule, assert_equal_states, disturbed, plain_mlp, plainly, refused
from foreign.expected import bare, made_of
from test_rescaling import tied
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from rl_plasticity import attach
from rl_plasticity.agents import SAC
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import SGD
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import REGULARIZERS, Chain, Churn, FeatureRank, make_regularizer

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))


def test_churn_by_cross_entropy_is_of_the_probabilities_of_before_and_now():
    net = plain_mlp()
    before = copy.deepcopy(net)
    regularizer = Churn(net, coef=2.0, distance="cross_entropy")
    value = regularizer.penalty(disturbed(net, 0.3), X)
    expected = 2.0 * F.cross_entropy(net(X), before(X).softmax(-1))
    torch.testing.assert_close(value, expected)


def test_churn_without_coef_follows_the_loss_as_in_the_double_dqn_of_c_chain():
    """Their lists and means, with numbers small enough that the strength changes within a few updates."""
    churn = partial(Churn, share=0.3, window=3, after_updates=4)
    learner = Learner(lambda s: MLP((5, 8, 3), s).double(), [0, 1], churn, SGD)
    losses, distances, strength, now = [[], []], [[], []], [50.0, 50.0], learner.net
    for update in range(1, 9):
        before, now, x = now, copy.deepcopy(learner.net), torch.randn(2, 6, 5).double()
        distance = (now(x) - before(x)).square().mean((1, 2)).detach()
        loss = (learner.net(x) - update).mean((1, 2))  # below zero: its size counts
        made, loss = learner.minimize(loss, x)["penalty"], loss.detach()
        torch.testing.assert_close(made, torch.tensor(strength, dtype=torch.float64) * distance, atol=1e-14, rtol=1e-9)
        for run in (0, 1):
            losses[run].append(abs(float(loss[run])))
            distances[run].append(float(distance[run]))
            if update >= 4:
                means = [sum(each[run][-3:]) / 3 for each in (losses, distances)]
                strength[run] = 0.3 * means[0] / (means[1] + 1e-8)
    assert len({*strength, 50.0}) == 3


def test_churn_that_follows_the_loss_refuses_updates_without_one_and_optimizers_which_do_not_see_it():
    net = plain_mlp()
    regularizer = Churn(net)
    regularizer.penalty(net, X)
    regularizer.project_(net)
    refused(lambda: regularizer.penalty(net, X), "observe_loss_(net, loss)", "coef=", error=RuntimeError)
    optimizer = torch.optim.SGD(net.parameters())
    for made in ("churn", Chain(net, make_regularizer("l2", net), Churn(net))):
        refused(lambda made=made: attach(made, optimizer, net), "follows the loss", "coef=")


@pytest.mark.parametrize("name", [name for name, kind in REGULARIZERS.items() if kind.looks_at_data])
def test_an_update_by_hand_without_a_batch_is_refused_as_one_by_a_learner_before_anything_changes(name):
    net = plain_mlp()
    regularizer = make_regularizer(name, net)
    for _ in range(2):
        refused(lambda: regularizer.project_(net), "batch", "regularizer.penalty(net, inputs)", error=RuntimeError)
        regularizer.penalty(net, X)
        regularizer.observe_loss_(net, torch.ones(()))
        regularizer.project_(net)  # one batch is one update's
    learner = Learner(lambda s: MLP((5, 8, 3), s), [0], lambda n: make_regularizer(name, n))
    before = copy.deepcopy(learner.net.state_dict())
    refused(lambda: learner.minimize(learner.net(X[None]).square().mean((1, 2))), "minimize(loss, inputs)")
    assert_equal_states(learner.net.state_dict(), before)


def test_a_network_that_returns_no_numbers_is_refused_and_a_number_for_the_whole_batch_does_not_count():
    def policy(returns):
        return made_of(lambda net, x: returns(net.linear(x)), linear=nn.Linear(5, 3))

    normal = policy(lambda y: torch.distributions.Normal(y, 1.0))
    refused(lambda: Churn(normal).penalty(normal, X), "Network", "Normal", error=ValueError)
    both = policy(lambda y: {"loss": 100 * y.mean(), "logits": y})
    alone = policy(lambda y: y)
    alone.load_state_dict(both.state_dict())
    terms = []
    for net in (both, alone):
        regularizer = Churn(net)
        terms.append(regularizer.penalty(disturbed(net, 0.3), X))
    torch.testing.assert_close(*terms)


@pytest.mark.parametrize("wrap", [lambda net: net, torch.nn.DataParallel, FabricModule])
def test_attached_it_sees_what_the_loop_calls_the_network_with(wrap):
    net = plain_mlp()
    by_hand = copy.deepcopy(net)
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.1) for n in (net, by_hand)]
    called = wrap(net)
    attach("churn", optimizers[0], called, coef=5.0)
    regularizer = Churn(by_hand, coef=5.0)
    for x in torch.randn(5, 6, 5):
        optimizers[0].zero_grad()
        called(x.double() if wrap is FabricModule else x).square().mean().backward()
        with torch.no_grad():
            called(2 * x)  # an evaluation in between
        optimizers[0].step()
        plainly(optimizers[1], by_hand(x).square().mean() + regularizer.penalty(by_hand, x))
        regularizer.project_(by_hand)
    torch.testing.assert_close([*net.parameters()], [*by_hand.parameters()])


def test_attached_it_sees_any_arguments_and_none_of_the_graph_that_made_them():
    net = made_of(lambda net, *xs, **more: net.cell(xs[0], more["state"]), cell=nn.GRUCell(5, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    handle = attach("churn", optimizer, net, coef=1.0)
    networks = []
    for _ in range(2):
        networks.append(copy.deepcopy(net))
        optimizer.zero_grad()
        state = torch.zeros(6, 4)
        for _ in range(3):
            last, state = state.detach(), net(X, state=state)
        state.sum().backward()
        optimizer.step()
    before, now = (one(X, state=last) for one in networks)
    torch.testing.assert_close(handle.penalty, (now - before).square().mean().detach())


def test_attached_to_a_network_that_the_loop_does_not_call_it_refuses_and_removed_it_is_gone():
    net = plain_mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    handle = attach("churn", optimizer, net, coef=0.1)
    net[:2](X).sum().backward()
    refused(optimizer.step, "not called", error=RuntimeError)
    handle.remove()
    assert not net._forward_pre_hooks
    optimizer.step()


def test_a_copied_or_pickled_network_tells_nobody_what_it_is_called_with():
    net = plain_mlp()
    handle = attach("churn", torch.optim.SGD(net.parameters(), lr=0.1), net, coef=0.1)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        other(X)
        assert handle._inputs is None
    net(X)
    assert handle._inputs is not None


def test_feature_rank_is_right_again_when_the_units_die_that_its_vectors_were_along_and_never_negative():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), torch.randn(64, 4)
    regularizer, bias = make_regularizer("feature_rank", net, coef=1.0), net[0].bias.detach().clone()
    for alive in ([0], [1], [1, 2, 3]):
        net[0].bias.data.fill_(-100)
        net[0].bias.data[alive] = bias[alive]
        values = []
        for _ in range(200):
            values.append(regularizer.penalty(net, (x,)).item())
            regularizer.project_(net)
        largest = torch.linalg.svdvals(net[:2](x))[0].square().item()  # the smallest is 0: units are dead
        assert min(values) >= 0
        assert values[-1] == pytest.approx(largest, rel=1e-3)


def test_feature_rank_of_each_critic_adds_up_and_training_makes_features_more_alike():
    agent = SAC(3, 2, [0], lambda net: FeatureRank(net), num_critics=2, hidden=(8, 8))
    assert len(agent.critic.regularizer.heads) == 2
    ratios, x = [], torch.randn(1, 64, 5, generator=torch.Generator().manual_seed(1))
    for coef in (0.0, 0.01):
        make = lambda s: MLP((5, 8, 8, 3), s, activation="silu")  # noqa: E731  # no unit is dead
        learner = Learner(make, [0], partial(FeatureRank, coef=coef), partial(SGD, lr=0.01))
        for _ in range(100):
            learner.minimize(learner.net(x).sub(1).square().mean((1, 2)), x)
        s = torch.linalg.svdvals(nn.Sequential(*[*learner.net][:-1])(x)[0])
        ratios.append((s[-1] / s[0]).item())
    assert ratios[1] > ratios[0]


def test_feature_rank_survives_a_batch_that_overflows_and_follows_features_of_any_size():
    net = plain_mlp()
    regularizer = FeatureRank(net, coef=1.0)
    assert not regularizer.penalty(net, X * torch.inf).isfinite()
    for scale in (1.0, 1e12):
        for _ in range(200):
            value = regularizer.penalty(net, X * scale)
        s = torch.linalg.svdvals(net[:-1](X * scale))
        torch.testing.assert_close(value, s[0].square(), rtol=0.05, atol=0)


def test_feature_rank_takes_a_head_that_is_called_by_keyword():
    net = made_of(lambda net, x: net.h(input=net.a(x).relu()), a=nn.Linear(5, 4), h=nn.Linear(4, 3))
    assert make_regularizer("feature_rank", net, example=(X,)).penalty(net, X) > 0


@pytest.mark.parametrize(("net", "example", "says"), [
    (nn.LSTM(5, 5), X, "feature_rank"),
    (made_of(lambda net, x: net.first(x) @ net.out, first=nn.Linear(5, 4), out=bare(4, 2)), X, "'out'"),
    (tied(nn.Identity()), torch.arange(6), "FeatureRank"),
])  # fmt: skip
def test_feature_rank_refuses_a_head_that_is_no_linear_module_or_tied(net, example, says):
    refused(lambda: make_regularizer("feature_rank", net, example=(example,)), says, error=ValueError)


def test_the_batches_of_one_update_are_all_compared_with_the_network_before_the_last_one():
    net = plain_mlp().double()
    regularizer, before = Churn(net, coef=1.0), copy.deepcopy(net)
    for _ in range(2):
        disturbed(net, 0.3)
        for x in X.double().split(2):
            expected = (net(x) - before(x)).square().mean()
            torch.testing.assert_close(regularizer.penalty(net, x), expected, rtol=1e-12, atol=0)
        assert expected > 1e-4
        before = copy.deepcopy(net)
        regularizer.project_(net)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("by", ["attach", "hand"])
def test_feature_rank_of_a_checkpointed_network_is_right_or_refused_in_one_line(by, reentrant):
    def forward(net, x):
        return checkpoint(lambda x: net.head(net.body(x)), x, use_reentrant=reentrant)

    net = made_of(forward, body=nn.Sequential(nn.Linear(5, 8), nn.Tanh()), head=nn.Linear(8, 3))
    x = X.clone().requires_grad_()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    regularizer = make_regularizer("feature_rank", net, heads=["head"])
    if by == "attach":
        attach(regularizer, optimizer, net)

    def update():
        loss = net(x).square().mean() + (regularizer.penalty(net, (x,)) if by == "hand" else 0)
        loss.backward()
        optimizer.step()

    refused(update, "checkpoint", error=RuntimeError)


def test_the_features_of_a_head_that_is_called_at_each_step_are_those_of_all_steps():
    def decoder(net, x):
        h, out = x.new_zeros(len(x), 4), []
        for _ in range(3):
            h = net.cell(x, h)
            out.append(net.head(h))
        return torch.stack(out, 1)

    net = made_of(decoder, cell=nn.GRUCell(5, 4), head=nn.Linear(4, 3))
    regularizer = make_regularizer("feature_rank", net, example=X, coef=1.0)
    features, h = [], torch.zeros(len(X), 4)
    with torch.no_grad():
        for _ in range(3):
            features.append(h := net.cell(X, h))
        for _ in range(500):
            penalty = regularizer.penalty(net, X)
    sigma = torch.linalg.svdvals(torch.cat(features))
    torch.testing.assert_close(penalty, sigma[0] ** 2 - sigma[-1] ** 2, rtol=1e-2, atol=1e-4)
