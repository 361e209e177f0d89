"""What happens to a network or an optimizer after `attach`: noticed at the next step, or taken in by `grow`."""

import copy
import pickle
import sys
import warnings

import pytest
import torch
from conftest import changed, difference, plain_mlp, plainly, refused, snapshot
from test_attached import OF_EACH_HOOK, SETTINGS, Counting, adam, data, handled, loss_of, sgd, steps
from torch import nn
from torch.nn.utils import parametrizations, prune, weight_norm

from rl_plasticity import attach
from rl_plasticity.errors import SettingsError
from rl_plasticity.regularizers import REGULARIZERS, Chain, make_regularizer

WITH_COEF = {"churn": {"coef": 0.1}, **SETTINGS}
NAMES = [name for name in REGULARIZERS if name != "none"]
pytestmark = pytest.mark.filterwarnings("ignore:.*(changes the function|leaves alone|only approximately|starts at)")


def attached(name, net, optimizer):
    return attach(name, optimizer, net, **WITH_COEF.get(name, {}))


class Clipping(torch.optim.Adam):
    """Steps by ``super().step()``, whose hooks are called too once a plain Adam was made."""

    fails = False

    def step(self, closure=None):
        if self.fails:
            raise FloatingPointError
        return super().step(closure)


class TwoDeep(Clipping):
    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("kind", [Clipping, TwoDeep])
@pytest.mark.parametrize("by_closure", [False, True])
def test_a_step_within_a_step_acts_once(kind, by_closure):
    torch.optim.Adam([torch.ones(1, requires_grad=True)])  # Adam.step calls hooks from now on
    net, optimizer, handle = handled(Counting, lambda net: kind(net.parameters(), lr=1e-2))
    x = data(1)[0]

    def closure():
        optimizer.zero_grad()
        loss = 0 * net(x).sum()
        loss.backward()
        return loss

    before = [p.detach().clone() for p in net.parameters()]
    for number in (1, 2, 3):
        if by_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        assert handle.regularizer.penalties == handle.regularizer.projections == handle.steps == number
    if not by_closure:
        closure()
        kept = [p.detach().clone() for p in net.parameters()]
        optimizer.step()
        torch.testing.assert_close([p.grad for p in net.parameters()], [2 * p for p in kept])  # and not twice that
    assert any((p != was).any() for p, was in zip(net.parameters(), before, strict=True))


def test_after_a_step_that_failed_the_next_one_is_regularized():
    torch.optim.Adam([torch.ones(1, requires_grad=True)])
    net, optimizer, handle = handled(Counting, lambda net: Clipping(net.parameters(), lr=1e-2))
    for fails in (True, True, False):
        optimizer.fails = fails
        loss_of(net, data(1)[0]).backward()
        try:
            optimizer.step()
        except FloatingPointError:
            assert fails
    assert (handle.regularizer.penalties, handle.regularizer.projections) == (3, 1)


def larger_head(net, more=2):
    """The head with more outputs, the first of which are the old ones."""
    old = net[-1]
    new = nn.Linear(old.in_features, old.out_features + more)
    with torch.no_grad():
        new.weight[: old.out_features], new.bias[: old.out_features] = old.weight, old.bias
    net[-1] = new


def new_block(net):
    net.append(nn.ReLU())
    net.append(nn.Linear(net[-2].out_features, 3))


def other_data(net):
    with torch.no_grad():
        net[-1].weight.data = torch.cat([net[-1].weight, net[-1].weight])
        net[-1].bias.data = torch.cat([net[-1].bias, net[-1].bias])


# What becomes of a network, and the name in the line that says so.
CHANGES = {
    "larger head": (larger_head, "4.weight"),
    "values of another shape": (other_data, "4.weight"),
    "block": (new_block, "6.weight"),
    "assigned": (lambda net: net.load_state_dict(plain_mlp().state_dict(), assign=True), "0.weight"),
    "replaced by one of the same shape": (lambda net: net.__setitem__(-1, nn.Linear(8, 3)), "4.weight"),
    "pruned": (lambda net: prune.random_unstructured(net[4], "weight", 0.5), "4.weight"),
    "weight_norm": (lambda net: weight_norm(net[4]), "4.weight"),
    "parametrized": (lambda net: parametrizations.weight_norm(net[4]), "4.weight"),
    "removed": (lambda net: net.__delitem__(-1), "4.weight"),
}


def seen_by(regularizer, name):
    return any(name in method.names for method in getattr(regularizer, "parts", [regularizer]))


def out(net, x):
    return net(x).square().mean()


# Every change for a method of each hook, and one for every method.
CHANGED = [(n, c) for n in NAMES for c in CHANGES if n in OF_EACH_HOOK or c == "larger head"]


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(("name", "change"), CHANGED)
def test_a_network_that_changed_is_refused_at_the_next_step_in_one_line_or_is_acted_on_as_it_is(name, change):
    net, optimizer, handle = handled(name, **WITH_COEF.get(name, {}))
    plainly(optimizer, out(net, data(1)[0]))
    do, where = CHANGES[change]
    before = {id(p) for p in net.parameters()}
    do(net)
    added = [p for p in net.parameters() if id(p) not in before]
    if added:
        optimizer.add_param_group({"params": added})
    acts = seen_by(handle.regularizer, "4.weight") or {n for n, _ in net.named_parameters()} - {*handle._parameters}
    kept = snapshot(net)
    optimizer.zero_grad()
    out(net, data(1)[0]).backward()
    harmless = change in ("assigned", "replaced by one of the same shape")  # the optimizer holds what is there now
    if change == "values of another shape" and not acts:
        return  # Adam refuses it
    if harmless or not acts:
        optimizer.step()
        return
    refused(optimizer.step, f"'{where.partition('.')[0]}.", "grow", error=RuntimeError)
    assert not changed(net, kept)


def test_a_layer_that_the_optimizer_does_not_hold_is_said():
    net, optimizer, _ = handled("l2")
    net.load_state_dict(plain_mlp().state_dict(), assign=True)
    loss_of(net, data(1)[0]).backward()
    refused(optimizer.step, "'0.weight' was replaced", error=RuntimeError)


@pytest.mark.parametrize("name", [*OF_EACH_HOOK, "churn", "continual_backprop"])
def test_a_new_head_with_a_new_optimizer_is_said_at_once_and_taken_in(name):
    net, optimizer, handle = handled(name, **WITH_COEF.get(name, {}))
    steps(net, optimizer, 2)
    larger_head(net)
    optimizer = adam(net)
    with pytest.warns(UserWarning, match=r"does nothing any more.*grow") as said:
        steps(net, optimizer, 3, out)
    assert len(said) == 1
    handle.grow(optimizer=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plainly(optimizer, out(net, data(1)[0]))
    assert handle.steps == 1


@pytest.mark.parametrize("name", NAMES)
def test_what_stayed_keeps_its_references_when_a_head_grows(name):
    net, optimizer, handle = handled(name, **WITH_COEF.get(name, {}))
    steps(net, optimizer, 5, out)
    old = {n: b.clone() for n, b in handle.state_dict().items()}
    larger_head(net)
    optimizer.add_param_group({"params": [*net[-1].parameters()]})
    handle.grow()
    now = handle.state_dict()
    assert now.keys() == old.keys()
    for n, was in old.items():
        if now[n].shape == was.shape and not (n.startswith(("norm/", "sorted/")) and "/4/" in n):
            assert torch.equal(now[n], was), n
        elif now[n].ndim == was.ndim and not n.startswith("sorted/") and now[n].shape != was.shape:
            assert torch.equal(now[n][tuple(map(slice, was.shape))], was), n
    steps(net, optimizer, 3, out)
    assert all(p.isfinite().all() for p in net.parameters())


def test_references_of_a_grown_head_are_those_of_the_old_rows_and_of_the_new_ones():
    net = plain_mlp()
    start = net[-1].weight.detach().clone()
    chain = Chain(net, *(make_regularizer(name, net, coef=0.1) for name in ("l2_init", "swr", "wasserstein")))
    optimizer = adam(net)
    handle = attach(chain, optimizer, net)
    steps(net, optimizer, 3)
    larger_head(net)
    optimizer.add_param_group({"params": [*net[-1].parameters()]})
    added = net[-1].weight[3:].detach().clone()
    handle.grow()
    l2_init, swr, wasserstein = handle.regularizer.parts
    whole = torch.cat([start, added])
    torch.testing.assert_close(l2_init._recall("initial", "4.weight"), whole)
    torch.testing.assert_close(swr._recall("norm", "4.weight"), whole.norm())
    torch.testing.assert_close(wasserstein._recall("sorted", "4.weight"), whole.flatten().sort().values)


def test_a_head_replaced_by_a_new_one_starts_from_now_and_the_rest_stays():
    net, optimizer, handle = handled("l2_init", coef=0.1)
    first = net[0].weight.detach().clone()
    steps(net, optimizer, 3)
    net[-1] = nn.Linear(8, 3)
    optimizer.add_param_group({"params": [*net[-1].parameters()]})
    handle.grow()
    torch.testing.assert_close(handle.regularizer._recall("initial", "4.weight"), net[-1].weight.detach())
    torch.testing.assert_close(handle.regularizer._recall("initial", "0.weight"), first)


def test_settings_heads_and_roles_are_as_they_were_and_only_keeps_its_names():
    net = plain_mlp()
    regularizer = make_regularizer("l2_init", net, coef=0.3, only=[net[4].weight, net[0].bias])
    larger_head(net)
    grown = regularizer.grown(net)
    assert {*grown.names} == {"0.bias", "4.weight"}
    assert float(grown.coef) == pytest.approx(0.3)
    by_head = make_regularizer("l2", net, of="heads", heads=["2"])
    assert by_head.grown(net).names == by_head.names


@pytest.mark.parametrize("name", NAMES)
def test_in_a_loop_of_one_s_own_a_grown_layer_is_said_too(name):
    net = plain_mlp()
    regularizer = make_regularizer(name, net, **WITH_COEF.get(name, {}))
    larger_head(net)

    def update():
        regularizer.penalty(net, data(1)[0])
        regularizer.observe_(net, {n: torch.zeros_like(p) for n, p in net.named_parameters()})
        regularizer.project_(net, 0.1)

    if seen_by(regularizer, "4.weight"):
        refused(update, "'4.weight'", "grown", error=RuntimeError)
    else:
        update()


def test_a_frozen_bias_makes_swr_say_that_it_is_no_longer_exact():
    net, optimizer, _ = handled("swr")
    steps(net, optimizer, 1)
    net[2].bias.requires_grad_(False)
    with pytest.warns(UserWarning, match=r"swr.*2\.bias.*frozen"):
        steps(net, optimizer, 1)


COPIES = [*((name, copy.deepcopy) for name in NAMES)]
COPIES += [(name, lambda parts: pickle.loads(pickle.dumps(parts))) for name in (*OF_EACH_HOOK, "churn")]


@pytest.mark.parametrize(("name", "how"), COPIES)
def test_a_copy_of_network_optimizer_and_handle_trains_as_they_do_and_growing_by_nothing_changes_nothing(name, how):
    net, optimizer, handle = handled(name, **WITH_COEF.get(name, {}))
    steps(net, optimizer, 2, out)
    other, its, copied = how((net, optimizer, handle))
    for x in data(3):
        plainly(optimizer, out(net, x))
        handle.grow()
        plainly(its, out(other, x))
    assert difference(net, other) == 0
    assert copied.regularizer is not handle.regularizer
    assert copied.steps == 3


@pytest.mark.parametrize("name", [name for name in NAMES if REGULARIZERS[name].looks_at_data])
def test_calls_inside_transforms_are_left_alone_and_said_at_the_step(name):
    net, optimizer, _ = handled(name, **WITH_COEF.get(name, {}))
    x = data(1)[0]
    grads = torch.func.grad(lambda p: torch.func.functional_call(net, p, (x,)).sum())(dict(net.named_parameters()))
    torch.func.vmap(net)(x)
    for n, p in net.named_parameters():
        p.grad = grads[n].detach()
    refused(optimizer.step, "torch.func", error=RuntimeError)


def test_processes_that_begin_after_attach_are_noticed_at_the_step(monkeypatch):
    net = plain_mlp()
    optimizer = adam(net)
    attached("churn", net, optimizer)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    loss_of(net, data(1)[0]).backward()
    refused(optimizer.step, "Churn", "process")


@pytest.mark.parametrize("name", NAMES)
def test_a_network_without_a_forward_is_acted_on_part_by_part(name):
    net = nn.ModuleDict({"actor": plain_mlp(), "critic": plain_mlp()})
    net.std = nn.Parameter(torch.ones(3))
    optimizer = sgd(net)
    if name in ("l2", "l2_init", "wasserstein", "ewc", "hypersphere", "weight_decay", "hare_tortoise"):  # need no order
        attached(name, net, optimizer)
    else:
        error = SettingsError if name == "churn" else ValueError
        refused(
            lambda: attached(name, net, optimizer),
            "no forward: take its parts, one by one (actor, critic)",
            error=error,
        )
    attached(name, net.actor, optimizer)


def test_handles_that_are_forgotten_cost_later_steps_nothing():
    def hooks_after_one():
        net = plain_mlp()
        attach("l2", torch.optim.SGD(net.parameters(), lr=0.1), net)
        return len(sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks)

    assert hooks_after_one() == hooks_after_one() == hooks_after_one()
