"""What the frame does for every method: a reference of other weights, inputs, autocast, and methods of one's own."""

from functools import partial

import pytest
import torch
from conftest import loss_of, nothing_drawn, plain_mlp, refused

from rl_plasticity import attach
from rl_plasticity.interventions import LearningRateDecay
from rl_plasticity.learning.learner import Learner
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import REGULARIZERS, Chain, Regularizer, SideBySide, make_regularizer
from rl_plasticity.regularizers.outputs import returned
from rl_plasticity.structure.layer import lookup

CAPTURED = {  # the kind of buffer that holds the reference
    "l2_init": "initial",
    "wasserstein": "sorted",
    "ewc": "anchor",
    "swr": "norm",
    "normalize_project": "norm",
    "hare_tortoise": "slow",
}
WRAPPED = {
    "alone": lambda net, make: make(net),
    "chain": lambda net, make: Chain(net, make_regularizer("l2", net), make(net)),
    "side by side": lambda net, make: SideBySide(net, (1, partial(make_regularizer, "none")), (2, make)),
}
X = torch.randn(3, 6, 5)


def stacked(seed=0):
    return MLP((5, 8, 8, 3), [seed, seed + 10, seed + 20], layer_norm=True)


def references(regularizer, kind):
    state = regularizer.state_dict()
    return {name: v.clone() for name, v in state.items() if name.rpartition(".")[2].partition("/")[0] == kind}


@pytest.mark.parametrize("how", WRAPPED)
@pytest.mark.parametrize("name", CAPTURED)
def test_a_network_s_weights_become_the_reference_of_the_runs_and_parameters_asked_for(name, how):
    net, other = stacked(), stacked(7)
    for p in other.parameters():
        p.data.mul_(1.5)
    make = partial(make_regularizer, name)
    regularizer = WRAPPED[how](net, make)
    kind = CAPTURED[name]
    first, wanted = references(regularizer, kind), references(WRAPPED[how](other, make), kind)
    rest = {k: v.clone() for k, v in regularizer.state_dict().items() if k not in first}
    assert any(not torch.equal(first[k], wanted[k]) for k in first)

    regularizer.capture_from_(other, torch.tensor([2]), only={"0.weight"})
    at = 1 if how == "side by side" else 2  # which of the part's own runs that is
    for key, value in references(regularizer, kind).items():
        expected = first[key].clone()
        if key.endswith("/0/weight"):
            expected[at] = wanted[key][at]
            assert not torch.equal(expected, first[key])
        assert torch.equal(value, expected), key

    regularizer.capture_from_(other)
    assert all(torch.equal(value, wanted[key]) for key, value in references(regularizer, kind).items())
    assert all(torch.equal(regularizer.state_dict()[k], v) for k, v in rest.items())  # counts, Fisher, coef


def test_a_decay_of_the_learning_rate_is_a_new_reference_for_swr_alone_wherever_it_stands():
    def regularize(net):
        both = lambda net: Chain(net, make_regularizer("swr", net), make_regularizer("l2_init", net))  # noqa: E731
        return SideBySide(net, (1, partial(make_regularizer, "none")), (2, both))

    learner = Learner(lambda seeds: MLP((5, 8, 3), seeds), [0, 1, 2], regularize)
    for p in learner.net.parameters():
        p.data.mul_(2)
    norms, weights = (references(learner.regularizer, kind) for kind in ("norm", "initial"))
    LearningRateDecay([1], factor=0.5).apply_(learner)
    torch.testing.assert_close(references(learner.regularizer, "norm"), {key: 2 * norm for key, norm in norms.items()})
    assert all(torch.equal(v, weights[key]) for key, v in references(learner.regularizer, "initial").items())


class Old(Regularizer):
    autocast = None

    def penalty(self, net):
        self.autocast = torch.is_autocast_enabled("cpu")
        return self.layers[0].weight(net).square().flatten(len(self.runs)).sum(-1)


class Looking(Regularizer):
    looks_at_data, autocast = True, None

    def penalty(self, net, inputs):
        self.autocast = torch.is_autocast_enabled("cpu")
        return returned(net, inputs)[0].float().square().flatten(len(self.runs)).mean(-1)


def test_only_what_looks_at_data_is_given_inputs():
    net = stacked()
    made = Chain(net, make_regularizer("churn", net), Old(net), SideBySide(net, (3, Old)))
    expected = 2 * net[0].weight.square().sum((1, 2))
    torch.testing.assert_close(made.penalty(net, X), expected)
    learner = Learner(lambda seeds: MLP((5, 8, 3), seeds), [0, 1, 2], Old)
    before = learner.net[0].weight.square().sum((1, 2))
    torch.testing.assert_close(learner.minimize(loss_of(learner.net(X), (3,)), X)["penalty"], before)


@pytest.mark.parametrize("how", WRAPPED)
def test_a_method_that_looks_at_data_says_what_to_pass(how):
    net = stacked()
    regularizer = WRAPPED[how](net, partial(make_regularizer, "churn"))
    refused(lambda: regularizer.penalty(net), "penalty(net, inputs)", "minimize(loss, inputs)")


def test_a_penalty_of_weights_leaves_autocast_and_one_of_data_is_computed_as_the_call_was():
    net = stacked()
    parts = [Old(net), Looking(net), Old(net), Looking(net)]
    made = Chain(net, *parts[:2], parts[2], SideBySide(net, (3, lambda net: parts[3])))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made.penalty(net, X)
    assert [part.autocast for part in parts] == [False, True, False, True]
    for enabled in (False, True):
        net = plain_mlp()
        old, looking = Old(net), Looking(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        handle = attach(Chain(net, looking, old), optimizer, net)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            net(X[0]).float().square().mean().backward()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not enabled):
            optimizer.step()
        assert (old.autocast, looking.autocast) == (False, enabled)
        handle.remove()


@pytest.mark.parametrize("hook", ["data_penalty", "rebase_", "recapture_", "follow_"])
def test_a_hook_of_earlier_versions_is_refused_where_it_is_called_or_overridden(hook):
    kind = type("Earlier", (Regularizer,), {hook: lambda self, *_: None})
    refused(lambda: kind(plain_mlp()), "Earlier", hook, "capture_from_(net)", "project_(net, lr)", error=TypeError)
    net = plain_mlp()
    refused(lambda: getattr(make_regularizer("l2", net), hook)(net), "L2", hook, error=TypeError)


class Shrink(Regularizer):
    def __init__(self, net, names):
        super().__init__(net, coef=0.5)
        self._acts_every(2)
        self._act_on(net, names)

    def capture(self, name, net):
        return {"times": torch.zeros_like(lookup(net, name), dtype=torch.float32)}

    def term(self, name, net):
        return lookup(net, name).float().square().flatten(len(self.runs)).sum(-1)

    def project(self, name, net, due):
        self._recall("times", name).add_(1)  # whichever runs are due
        weight = lookup(net, name)
        weight.mul_(torch.where(due, 1 - 2**-12, 1.0).reshape(*self.runs, *(1,) * (weight.ndim - len(self.runs))))


def test_the_frame_adds_up_terms_counts_leaves_frozen_parts_alone_and_keeps_what_half_precision_rounds_away():
    net = stacked().bfloat16()
    regularizer = Shrink(net, ["0.weight", "3.weight"])
    assert regularizer.names == ["0.weight", "3.weight"]
    wide = [net[i].weight.detach().float() for i in (0, 3)]
    torch.testing.assert_close(regularizer.penalty(net), 0.5 * sum(w.square().flatten(1).sum(-1) for w in wide))
    net[0].weight.requires_grad_(False)
    torch.testing.assert_close(regularizer.penalty(net), 0.5 * wide[1].square().flatten(1).sum(-1))
    for _ in range(200):
        regularizer.project_(net)
    assert torch.equal(net[0].weight.float(), wide[0])
    # Each factor rounds to 1 in bfloat16: 100 of them do not.
    torch.testing.assert_close(net[3].weight.float(), wide[1] * (1 - 2**-12) ** 100, rtol=4e-3, atol=0)
    assert not torch.equal(net[3].weight.float(), wide[1])


class Own(Regularizer):
    def __init__(self, net, coef=1e-3):
        super().__init__(net, coef)
        self._act_on(net, [layer for layer in self.layers if layer.matrix(net) is not None], "weight matrix")


class Squares(Own):
    def term(self, layer, net):
        return layer.matrix(net).square().sum((-2, -1))


class Everywhere(Squares):
    def __init__(self, net, coef=1.0):
        Regularizer.__init__(self, net, coef)  # acts on nothing


class Strengthless(Squares):
    def __init__(self, net, coef=1e-3):
        super().__init__(net, 0.0)


class KeepNorm(Own):
    norm = staticmethod(torch.linalg.matrix_norm)

    def capture(self, layer, net):
        return {"norm": torch.linalg.matrix_norm(layer.matrix(net))}

    def term(self, layer, net):
        return (self.norm(layer.matrix(net)) - self._recall("norm", layer.key)).square()


Coupled = type("Coupled", (Own,), {"term": lambda self, layer, net: layer.matrix(net).square().sum()})
OfAllRuns = type("OfAllRuns", (KeepNorm,), {"norm": staticmethod(torch.linalg.vector_norm)})
Returns = type("Returns", (Own,), {"project": lambda self, layer, net, due: layer.matrix(net) * 0.9})


@pytest.mark.parametrize(("kind", "settings", "names"), [
    (Own, {}, ["Own", "term, terms, project"]),
    (Everywhere, {}, ["Everywhere", "_act_on"]),
    (Strengthless, {}, ["Strengthless", "strength 0", "super().__init__(net, coef)", "0.001"]),
    (Strengthless, {"coef": 0.5}, ["Strengthless", "0.5"]),
    (OfAllRuns, {}, ["OfAllRuns", "weights of another", "matrix_norm"]),
    (Coupled, {}, ["Coupled.term", "[3]", "[]"]),
])  # fmt: skip
def test_a_method_of_one_s_own_that_does_nothing_or_mixes_runs_is_refused(kind, settings, names, monkeypatch):
    monkeypatch.setitem(REGULARIZERS, "mine", kind)
    with nothing_drawn():
        refused(lambda: make_regularizer("mine", stacked(), **settings), *names)
    net = plain_mlp()
    if kind in (Own, Everywhere):
        refused(lambda: attach(kind(net), torch.optim.SGD(net.parameters(), lr=0.1), net), *names)


def test_a_method_of_one_s_own_that_is_right_is_made_and_may_have_strength_0(monkeypatch):
    monkeypatch.setitem(REGULARIZERS, "mine", KeepNorm)
    make_regularizer("mine", stacked())
    monkeypatch.setitem(REGULARIZERS, "mine", Strengthless)
    assert make_regularizer("mine", plain_mlp(), coef=0).penalty(plain_mlp()) == 0


def test_a_projection_of_one_s_own_that_returns_a_result_is_refused():
    net = plain_mlp()
    refused(lambda: Returns(net).project_(net), "Returns.project", "in place")
