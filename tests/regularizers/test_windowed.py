"""A regularizer that is switched on for some of the updates, against the same one in a loop that calls it only then."""

from functools import partial

import pytest
import torch
from conftest import loss_of, plain_mlp
from torch import nn

from rl_plasticity import attach
from rl_plasticity.interventions import HeadReset, PeriodicReset
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import SGD
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import REGULARIZERS, Chain, Regularizer, SideBySide, Windowed, make_regularizer

STRONG = {"coef": 0.1}
SETTINGS = {
    "none": {},
    "wrs": {"every_updates": 2, "norm_decay": 0.1},
    "weight_clipping": {"coef": 0.5},
    "hare_tortoise": {"every_updates": 2, "momentum": 0.5},
    "continual_backprop": {"coef": 0.1, "maturity": 1},
    "self_normalized_resets": {"every_updates": 2, "least": 1, "most": 12},
}


class Drift(Regularizer):
    """Somebody's own projection with a state of its own."""

    def __init__(self, net):
        super().__init__(net)
        self._remember("moved", "0.weight", torch.zeros_like(next(net.parameters())))

    def project_(self, net):
        with torch.no_grad():
            self._recall("moved", "0.weight").add_(0.1)
            next(net.parameters()).add_(self._recall("moved", "0.weight"))


def make(name, net):
    if name == "chain":
        return Chain(net, *(make(part, net) for part in ("spectral", "wrs", "ewc")))
    if name == "side_by_side":
        return SideBySide(net, (1, partial(make, "ewc")), (2, partial(make, "wrs")))
    return Drift(net) if name == "drift" else make_regularizer(name, net, **SETTINGS.get(name, STRONG))


# Those that are left out have the hooks and the state of one that is here.
LIKE_OTHERS = ("none", "l2_init", "wasserstein", "parseval", "normalize_project", "hypersphere")
NAMES = [*(name for name in REGULARIZERS if name not in LIKE_OTHERS), "chain", "drift", "side_by_side"]


# What is seen of a batch or of the weights without changing anything.
FOLLOWING = ("u", "v", "before", "previous", "largest", "smallest", "size", "fires", "batch")


def learner_of(regularize, dtype=torch.float32):
    return Learner(
        lambda seeds: MLP((5, 8, 8, 3), seeds, layer_norm=True).to(dtype), [0, 1, 2], regularize, partial(SGD, lr=0.1)
    )


def minimize(learner, x, steps):
    for _ in range(steps):
        learner.minimize(loss_of(learner.net(x), (3,)), x)


def weights(learner):
    return [p.detach().clone() for p in learner.net.parameters()]


def assert_equal(ones, others):
    assert all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


def differ(ones, others):
    return any(not torch.equal(a, b) for a, b in zip(ones, others, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_outside_its_window_training_is_bit_for_bit_as_without_it_and_inside_as_with_it(name):
    x = torch.randn(3, 6, 5)
    plain = learner_of(partial(make, "none"))
    made = learner_of(lambda net: Windowed(net, make(name, net), from_update=3, until_update=6))
    state = {k: v.clone() for k, v in made.regularizer.inner.state_dict().items()}
    minimize(plain, x, 3)
    minimize(made, x, 3)
    assert_equal(weights(plain), weights(made))
    for key, value in made.regularizer.inner.state_dict().items():
        # What is seen without changing anything is kept up with: spectral's vectors, weight_decay's copies.
        kind = key.rpartition(".")[2].partition("/")[0]
        assert torch.equal(value, state[key]) or kind in FOLLOWING, key

    always = learner_of(partial(make, name))  # made for the initial weights, too
    before = {k: v.clone() for k, v in plain.net.state_dict().items()}
    always.net.load_state_dict(before)
    always.optimizer.load_state_dict(plain.optimizer.state_dict())
    for step in range(3):
        if name in ("spectral", "chain", "churn", "feature_rank"):  # this one has not seen what they have followed
            here = always.regularizer.state_dict()
            for key, value in made.regularizer.inner.state_dict().items():
                if step == 0 and key.rpartition(".")[2].partition("/")[0] in FOLLOWING:
                    here[key].copy_(value)
        minimize(always, x, 1)
        minimize(made, x, 1)
        assert_equal(weights(always), weights(made))
    minimize(plain, x, 3)
    assert differ(weights(plain), weights(made))

    plain.net.load_state_dict(made.net.state_dict())
    plain.optimizer.load_state_dict(made.optimizer.state_dict())
    minimize(plain, x, 3)
    minimize(made, x, 3)
    assert_equal(weights(plain), weights(made))
    assert made.regularizer.penalty(made.net, x).tolist() == [0, 0, 0]


def test_half_precision_keeps_no_rest_of_what_was_undone():
    net = plain_mlp().bfloat16()
    windowed = make_regularizer("weight_decay", net, coef=1e-3, from_update=5)
    before = [p.detach().clone() for p in net.parameters()]
    for _ in range(5):
        windowed.penalty(net)
        windowed.project_(net)
    assert_equal(before, net.parameters())
    assert not any(b.any() for n, b in windowed.named_buffers() if "rounding" in n)


def test_each_run_counts_its_own_updates_and_a_reset_run_s_window_begins_anew():
    x = torch.randn(3, 6, 5)
    learner = learner_of(partial(make_regularizer, "l2", coef=0.1, until_update=3))
    minimize(learner, x, 4)
    assert learner.regularizer.penalty(learner.net).tolist() == [0, 0, 0]
    PeriodicReset(4).apply_(learner, runs=[1])
    assert learner.regularizer.updates.tolist() == [4, 0, 4]
    penalty = learner.regularizer.penalty(learner.net)
    assert (penalty > 0).tolist() == [False, True, False]
    HeadReset(4).apply_(learner)
    assert learner.regularizer.updates.tolist() == [4, 0, 4]  # a part of the network: no new run


def test_side_by_side_each_has_a_window_of_its_own():
    makers = [partial(make_regularizer, "l2", coef=0.1, until_update=n) for n in (2, 4, None)]
    learner = learner_of(lambda net: SideBySide(net, *((1, make) for make in makers)))
    for expected in ([1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 1, 1], [0, 0, 1]):
        assert (learner.regularizer.penalty(learner.net) > 0).tolist() == [bool(e) for e in expected]
        minimize(learner, torch.randn(3, 6, 5), 1)


def test_a_window_in_a_window_counts_the_updates_inside_the_outer_one():
    net = plain_mlp()
    inner = make_regularizer("hypersphere", net, from_update=1, until_update=2)
    windowed, norms = Windowed(net, inner, from_update=2), []
    for _ in range(6):
        with torch.no_grad():
            net[0].weight.mul_(2 / net[0].weight.norm(dim=-1, keepdim=True))
        windowed.project_(net)
        norms.append(round(net[0].weight[0].norm().item(), 3))
    assert norms == [2, 2, 2, 1, 2, 2]
    assert (windowed.updates, inner.updates) == (6, 4)


def test_what_is_captured_is_of_when_it_was_made_and_swr_s_reference_moves_by_recapture():
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    initial = net[0].weight.norm().item()
    windowed = make_regularizer("swr", net, coef=1.0, from_update=1)
    with torch.no_grad():
        net[0].weight.mul_(3)
    windowed.project_(net)
    assert net[0].weight.norm().item() == pytest.approx(3 * initial)
    windowed.project_(net)
    assert net[0].weight.norm().item() == pytest.approx(initial)
    with torch.no_grad():
        net[0].weight.mul_(3)
    windowed.recapture_(net)
    windowed.project_(net)
    assert net[0].weight.norm().item() == pytest.approx(3 * initial)


def test_attached_it_counts_the_optimizer_s_steps():
    net, other = plain_mlp(), plain_mlp()
    other.load_state_dict(net.state_dict())
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (net, other)]
    attach("wrs", optimizers[0], net, every_updates=1, from_update=2)
    x = torch.randn(6, 5)
    for step in range(3):
        for one, optimizer in zip((net, other), optimizers, strict=True):
            optimizer.zero_grad()
            one(x).square().mean().backward()
            optimizer.step()
        assert differ(net.parameters(), other.parameters()) == (step == 2)
    torch.testing.assert_close(net[0].weight.norm(dim=-1), torch.ones(8))


def test_without_a_window_nothing_is_wrapped():
    assert type(make_regularizer("l2", plain_mlp())).__name__ == "L2"
