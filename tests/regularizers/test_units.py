"""Methods that start single hidden units afresh, update by update."""

import copy
import math
from functools import partial

import pytest
import torch
from conftest import assert_equal_states, plain_mlp, plainly, refused
from foreign.expected import made_of
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from rl_plasticity import attach
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.torch_state import TorchState
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import Chain, ContinualBackprop, SelfNormalizedResets, SideBySide, make_regularizer

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))


def two_layers():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def update(net, regularizer, x=X):
    """What a loop does around a step that changes nothing; which units are new."""
    before = [p.detach().clone() for p in net.parameters()]
    regularizer.penalty(net, x)
    masks = regularizer.project_(net)
    new = {name: masks.get(name, torch.zeros_like(p, dtype=torch.bool)) for name, p in net.named_parameters()}
    changed = [(p != q).reshape(len(p), -1) for p, q in zip(net.parameters(), before, strict=True)]
    return new, changed


def test_new_weights_are_uniform_with_the_initial_mean_square_and_others_each_time():
    net = nn.Sequential(nn.Linear(4000, 2), nn.ReLU(), nn.Linear(2, 3))
    bound = 1 / math.sqrt(4000)  # of torch's own initialization
    regularizer = ContinualBackprop(net, coef=1.0, maturity=0)
    rows = []
    for _ in range(4):
        new, _ = update(net, regularizer, torch.randn(3, 4000))
        rows.append(net[0].weight[new["0.bias"]].flatten().detach() / bound)
    # Five standard errors: at the middle of n draws from -1 to 1, and of a correlation, one is 1 / sqrt(n).
    for row in rows:
        sorted_row, even = row.sort().values, torch.linspace(-1, 1, 4000)
        torch.testing.assert_close(sorted_row, even, atol=5 / math.sqrt(4000), rtol=0)
    assert torch.corrcoef(torch.stack(rows)).fill_diagonal_(0).abs().max() < 5 / math.sqrt(4000)


@torch.no_grad()
def test_a_norm_layer_in_between_gets_its_initial_gain_and_shift_at_the_unit():
    net = MLP((5, 8, 8, 3), [0, 1])
    norms = [m for m in net if isinstance(m, nn.LayerNorm)]
    norms[0].weight.fill_(1.5)
    norms[0].bias.fill_(0.5)
    regularizer = ContinualBackprop(net, coef=1.0, maturity=0)
    for norm in norms:
        norm.weight.fill_(3.0)
        norm.bias.fill_(2.0)
    new, _ = update(net, regularizer, torch.randn(2, 6, 5))
    mask = new["0.bias"]
    assert mask.sum(-1).tolist() == [1, 1]
    torch.testing.assert_close(norms[0].weight, torch.where(mask, 1.5, 3.0))
    torch.testing.assert_close(norms[0].bias, torch.where(mask, 0.5, 2.0))


@pytest.mark.parametrize("name", ["continual_backprop", "self_normalized_resets"])
@pytest.mark.parametrize("attached", [False, True])
def test_the_moments_of_what_starts_afresh_become_zero_in_a_learner_and_with_attach(name, attached):
    settings = {"coef": 1.0, "maturity": 6} if name == "continual_backprop" else {"least": 1, "most": 5}
    x, make = torch.randn(1, 6, 5), partial(make_regularizer, name, **settings)
    learner = Learner(lambda s: MLP((5, 8, 3), s, layer_norm=False), [0], make)
    net, regularizer = learner.net, learner.regularizer
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
    if attached:
        regularizer = attach(name, optimizer, net, **settings).regularizer

    def step():
        loss = net(x).square().mean((1, 2))
        plainly(optimizer, loss) if attached else learner.minimize(loss, x)

    def moments(of_unit=True):
        """Of unit 4: of its incoming weights, its bias, and the weights that read it; or of all first weights."""
        kept = TorchState(net, optimizer) if attached else learner.optimizer
        parts = {"0.weight": (0, 4), "0.bias": (0, 4), "2.weight": (0, slice(None), 4)} if of_unit else {"0.weight": ()}
        return [m[at].clone() for name, at in parts.items() for m in kept.moments(name)]

    net[0].bias.data.fill_(3.0)  # all live
    for _ in range(6):
        step()
    assert all((m != 0).any() for m in moments())
    with torch.no_grad():
        net[0].bias[0, 4] = -50.0  # falls silent, and is of no more use
        if name == "continual_backprop":
            regularizer._recall("use", "0.weight")[0, 4] = 0
    step()
    assert net[0].bias[0, 4] == 0  # it started afresh
    assert not any(m.any() for m in moments())
    assert all(m.any() for m in moments(of_unit=False))


ATTENDING = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
RECURRENT = made_of(lambda net, x: net.gru(net.first(x).relu())[0], first=nn.Linear(5, 8), gru=nn.GRU(8, 8))
MAPS, OF_MAPS = torch.randn(2, 3, 8, 8), nn.LayerNorm([4, 8, 8])


@pytest.mark.parametrize(("net", "x", "says"), [
    (made_of(lambda net, x: net.b(F.relu(net.a(x))), a=nn.Linear(5, 8), b=nn.Linear(8, 3)), X, "nn.ReLU()"),
    (nn.Sequential(nn.Linear(4, 8), ATTENDING), torch.randn(3, 5, 4), "activation=nn.ReLU()"),
    (nn.Sequential(nn.Linear(5, 3)), X, "ContinualBackprop"),
    # The recurrent matrix reads other units; a row, not a column; a norm over more than the units.
    (RECURRENT, torch.randn(4, 3, 5), "ContinualBackprop"),
    (nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Linear(8, 5)), MAPS, "ContinualBackprop"),
    (nn.Sequential(nn.Conv2d(3, 4, 1), OF_MAPS, nn.ReLU(), nn.Conv2d(4, 1, 1)), MAPS, "ContinualBackprop"),
])  # fmt: skip
def test_units_that_cannot_be_told_or_whose_readers_cannot_are_refused(net, x, says):
    refused(lambda: make_regularizer("continual_backprop", net, example=(x,)), says, error=ValueError)


def test_silences_are_counted_in_examples_and_not_in_batches_or_positions():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 1, 3))
    regularizer = SelfNormalizedResets(net, least=1, most=50)
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].bias.copy_(torch.tensor([1.0, -1.0]))
        for examples, expected in ((7, 7), (3, 10), (40, 0)):  # at 50 it starts afresh
            update(net, regularizer, torch.randn(examples, 1, 8, 8))
            assert regularizer._recall("age", "0.weight").tolist() == [0, expected]


def test_one_batch_that_is_not_finite_does_not_renew_units_for_ever():
    net = two_layers()
    regularizer = ContinualBackprop(net, coef=0.01, maturity=0)
    with torch.no_grad():
        update(net, regularizer, torch.full((6, 5), torch.nan))
        update(net, regularizer)
    assert regularizer._recall("use", "0.weight").isfinite().all()


def test_inputs_that_are_no_batch_and_modules_that_are_others_by_now_are_errors():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 1, 3))
    regularizer = ContinualBackprop(net)
    refused(lambda: regularizer.penalty(net, torch.randn(1, 8, 8)), "batch", error=ValueError)
    net.append(nn.Tanh())
    refused(lambda: regularizer.penalty(net, torch.randn(2, 1, 8, 8)), "module", error=RuntimeError)


def test_what_is_looked_at_follows_the_settings_and_the_mode_of_the_network():
    class Switched(nn.Sequential):
        scale = 1.0

        def forward(self, x):
            return super().forward(x * self.scale)

    net = Switched(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    regularizer = ContinualBackprop(net)
    seen = []
    for change in (lambda: net.eval(), lambda: setattr(net, "scale", 3.0), lambda: net.train()):
        change()
        regularizer.penalty(net, X)
        seen.append(regularizer._recall("size", "0.weight").clone())
        torch.testing.assert_close(seen[-1], net[:3](X * net.scale).abs().mean(0) if not net.training else seen[-1])
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


@torch.no_grad()
def test_the_units_that_started_afresh_are_counted_by_run():
    net, x = MLP((5, 8, 8, 3), [0, 1, 2], layer_norm=False), torch.randn(3, 6, 5)

    def make(n, coef=(0.0, 0.02, 0.1)):
        return make_regularizer("continual_backprop", n, coef=torch.tensor(coef), maturity=0)

    of_two = partial(make, coef=(0.1, 0.0))
    for regularizer, expected in (
        (make(net), [0, 0, 8]),  # 0.8 units of each of the two layers are due at each of six updates
        (Chain(net, make_regularizer("swr", net), make(net)), [0, 0, 8]),
        (SideBySide(net, (1, lambda n: make_regularizer("l2", n)), (2, of_two)), [0, 8, 0]),
    ):
        masks = [update(net, regularizer, x)[0] for _ in range(6)]
        assert sum(m["0.bias"].sum(-1) + m["2.bias"].sum(-1) for m in masks).tolist() == expected
        assert {name: number.tolist() for name, number in regularizer.counts.items()} == {"reset_units": expected}


@torch.no_grad()
@pytest.mark.parametrize(("batch", "least"), [(32, 91), (100, 90), (64, 64), (250, 100)])  # a half octave ends at 90.5
def test_the_threshold_of_a_dead_unit_doubles_at_every_setting_whatever_the_batch(batch, least):
    net, x = two_layers(), torch.randn(batch, 5)
    net[0].weight.zero_()
    net[0].bias.fill_(1.0)
    every, most = 2_000 // batch, 6 * least  # updates from one setting to the next: long enough for several silences
    regularizer = SelfNormalizedResets(net, every_updates=every, least=least, most=most)
    threshold = regularizer._recall("threshold", "0.weight")
    # The printed rule, with the exact silences of a unit that never fires.
    expected, found, age, silences, now = [], [], 0, [], most
    for step in range(1, 5 * every + 1):
        net[0].bias[0], net[0].weight[0] = -1.0, 0.0
        regularizer.penalty(net, x)
        regularizer.project_(net)
        age += batch
        if age >= now:
            silences.append(age)
            age = 0
        if step % every == 0:
            q = sorted(silences)[math.ceil(0.99 * len(silences)) - 1] if silences else None
            now = min(max(least if q is None else q if q < now else 2 * now, least), most)
            silences = []
            expected.append(now)
            found.append(threshold[0].item())
    assert found == expected
    assert least < max(expected)


def called_before_and_evaluated_after(net, x):
    net(3 * x)
    net(x).sum().backward()
    [*net.modules()][-2](-x.mean() * torch.ones(6, 8))  # a module by itself is no call of the network
    with torch.no_grad():
        net(-5 * x)


def raising_after(net, x):
    net(x).sum().backward()
    with pytest.raises(RuntimeError):
        net(torch.ones(4, 5, 7))


def under_autocast(net, x):
    with torch.autocast("cpu", torch.bfloat16):
        net(x).float().sum().backward()


# Compiled, it makes no difference which loop it is.
LOOPS = [("continual_backprop", loop, False) for loop in (raising_after, under_autocast)]
LOOPS += [("continual_backprop", lambda net, x: net(x).sum().backward(), False)]
LOOPS += [("continual_backprop", called_before_and_evaluated_after, True)]
LOOPS += [("self_normalized_resets", called_before_and_evaluated_after, False)]
ATTACHED = {"continual_backprop": {"coef": 0.2, "maturity": 1}}
ATTACHED["self_normalized_resets"] = {"least": 6, "most": 12, "every_updates": 2}


@pytest.mark.parametrize(("name", "loop", "compiled"), LOOPS)
def test_attached_it_sees_of_the_last_call_what_it_sees_by_hand(name, loop, compiled):
    settings = ATTACHED[name]
    net = plain_mlp()
    other = copy.deepcopy(net)
    called = torch.compile(net, backend="eager") if compiled else net
    optimizer, its = (torch.optim.SGD(n.parameters(), lr=0.01) for n in (net, other))
    handle, regularizer = attach(name, optimizer, called, **settings), make_regularizer(name, other, **settings)
    for x in torch.randn(6, 6, 5, generator=torch.Generator().manual_seed(9)):
        optimizer.zero_grad()
        its.zero_grad()
        loop(called, x)
        optimizer.step()
        with torch.autocast("cpu", torch.bfloat16, enabled=loop is under_autocast):
            regularizer.penalty(other, x)
            other(x).float().sum().backward()
        its.step()
        regularizer.project_(other)
    assert_equal_states(net.state_dict(), other.state_dict())
    assert_equal_states(handle.state_dict(), regularizer.state_dict())
    assert handle.counts["reset_units"] == regularizer.counts["reset_units"] > 0


def test_attached_a_layer_that_is_checkpointed_is_seen_once():
    net = made_of(lambda net, x: checkpoint(net.body, x, use_reentrant=False), body=two_layers())
    plain = two_layers()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    handle = attach("continual_backprop", optimizer, net, example=(X,))
    net(X).sum().backward()
    [seen] = handle._inputs.kept.values()
    assert [len(kept) for kept in seen.values()] == [1]
    torch.testing.assert_close(seen["body.1"][0][0], plain[:2](X).abs().mean(0))
