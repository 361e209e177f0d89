"""`attach`: a regularizer in the steps of any torch optimizer equals the loop written out by hand."""

import copy
import runpy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from conftest import CASES, assert_equal_states, difference, plain_mlp, plainly, refused
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.overrides import TorchFunctionMode

from rl_plasticity import attach, make_intervention, measure
from rl_plasticity.learning.learner import Learner
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import REGULARIZERS, Chain, Regularizer, SideBySide, make_regularizer

# Strong enough that each changes the weights far beyond the tolerance within a few steps.
SETTINGS = {
    "l2": {"coef": 0.3},
    "l2_init": {"coef": 0.3},
    "wasserstein": {"coef": 3.0},
    "ewc": {"coef": 3.0, "fisher_decay": 0.9, "anchor_decay": 0.9},
    "spectral": {"coef": 0.1},
    "swr": {"coef": 0.1},
    "wrs": {"every_updates": 3, "norm_decay": 1.0},
    "weight_clipping": {"coef": 0.7},
    "weight_decay": {"coef": 3.0},
    "parseval": {"coef": 0.1},
    "normalize_project": {},
    "hypersphere": {},
    "orthogonal": {"coef": 1.0},
    "hare_tortoise": {"every_updates": 3, "momentum": 0.5},
}
# What looks at data takes another loop by hand: tests/regularizers/test_outputs.py.
NAMES = [name for name, kind in REGULARIZERS.items() if name != "none" and not kind.looks_at_data]
OF_EACH_HOOK = ("l2", "spectral", "ewc", "weight_decay", "wrs", "hare_tortoise")
BATCH = 16


def make(name, net):
    return make_regularizer(name, net, **SETTINGS.get(name, {}))


def twins(make_net=plain_mlp):
    net = make_net()
    return net, copy.deepcopy(net)


def stacked():
    return MLP((5, 8, 8, 3), [0, 1, 2])


def data(steps, *shape, seed=5):
    return torch.randn(steps, *(shape or (BATCH, 5)), generator=torch.Generator().manual_seed(seed))


def loss_of(net, x):
    """Of each run; larger than one, so that clipping clips."""
    return 5 * (net(x) - torch.linspace(-1, 1, 3)).square().mean((-2, -1))


def assert_same(net, other, atol=1e-6):
    torch.testing.assert_close(*(dict(one.named_parameters()) for one in (net, other)), rtol=1e-6, atol=atol)


def adam(net, **settings):
    return torch.optim.Adam(net.parameters(), lr=1e-2, **settings)


def sgd(net):
    return torch.optim.SGD(net.parameters() if isinstance(net, nn.Module) else net, lr=1e-2)


def lbfgs(net, line_search=None):
    return torch.optim.LBFGS(net.parameters(), 0.1, max_iter=5, line_search_fn=line_search)


def wolfe(net):
    return lbfgs(net, "strong_wolfe")


def attached_and_by_hand(name, make_net=plain_mlp, optimizer=adam):
    net, other = twins(make_net)
    stepped = optimizer(net)
    return (net, stepped, attach(name, stepped, net, **SETTINGS[name])), (other, adam(other), make(name, other))


def handled(regularizer, optimizer=adam, **settings):
    """A network, its optimizer, and what is attached to it by name or by what makes it of the network."""
    net = plain_mlp()
    its = optimizer(net)
    made = regularizer if isinstance(regularizer, str) else regularizer(net)
    return net, its, attach(made, its, net, **settings)


class Counting(Regularizer):
    def __init__(self, net):
        super().__init__(net, 0.0)
        self.penalties = self.projections = 0
        self.observed = []

    def penalty(self, net):
        self.penalties += 1
        return sum(p.square().sum() for p in net.parameters())

    def observe_(self, net, gradients):
        self.observed.append({name: g.clone() for name, g in gradients.items()})

    def project_(self, net):
        self.projections += 1


def steps(net, optimizer, number, loss=loss_of):
    for x in data(number):
        plainly(optimizer, loss(net, x))


def by_hand(net, regularizer, optimizers, x):
    net.zero_grad()
    (loss_of(net, x) + regularizer.penalty(net)).sum().backward()
    regularizer.observe_(net, {n: p.grad for n, p in net.named_parameters() if p.grad is not None})
    for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
        optimizer.step()
    project_(regularizer, net)


def project_(regularizer, net, lr=1e-2):
    regularizer.project_(net, *regularizer.given_lr(lr))


def closing(net, optimizer, loss):
    """A closure of this loss, and the list of what it has returned."""
    values = []

    def closure():
        optimizer.zero_grad()
        value = loss(net)
        value.backward()
        values.append(value)
        return value

    return closure, values


def closure_of(net, optimizer, x):
    return closing(net, optimizer, lambda n: loss_of(n, x))[0]


def in_closure(net, optimizer, x):
    optimizer.step(closure_of(net, optimizer, x))


def in_closure_by_hand(net, regularizer, optimizer, x):
    optimizer.step(closing(net, optimizer, lambda n: loss_of(n, x) + regularizer.penalty(n))[0])
    project_(regularizer, net, optimizer.param_groups[0]["lr"])


def accumulated(net, optimizer, x):
    optimizer.zero_grad()
    for micro in x.chunk(3):
        (loss_of(net, micro) / 3).backward()
    optimizer.step()


def clipped(net, optimizer, x, penalty=None):
    optimizer.zero_grad()
    loss_of(net, x).backward()
    assert nn.utils.clip_grad_norm_(net.parameters(), 0.1) > 0.1
    for p, addition in zip(net.parameters(), penalty or (), strict=bool(penalty)):
        p.grad += addition
    optimizer.step()


def clipped_by_hand(net, regularizer, optimizer, x):
    clipped(net, optimizer, x, torch.autograd.grad(regularizer.penalty(net), [*net.parameters()]))


def compiled_step(net, optimizer, x):
    optimizer.zero_grad()
    loss_of(net, x).backward()
    if not hasattr(optimizer, "compiled"):
        optimizer.compiled = torch.compile(optimizer.step, backend="eager")
    optimizer.compiled()


def inside_the_backward_pass(net, optimizers, x):
    of_parameter = {optimizer.param_groups[0]["params"][0]: optimizer for optimizer in optimizers}

    def step(p):
        of_parameter[p].step()
        of_parameter[p].zero_grad()

    hooks = [p.register_post_accumulate_grad_hook(step) for p in of_parameter]
    loss_of(net, x).backward()
    for hook in hooks:
        hook.remove()


def split(net):
    return [torch.optim.Adam(net[:2].parameters(), 1e-2), sgd(net[2:])]


def in_turns(net, optimizers, x):
    for part, optimizer in zip(x.chunk(2), optimizers, strict=True):
        net.zero_grad()
        loss_of(net, part).backward()
        optimizer.step()


def in_turns_by_hand(net, regularizer, optimizers, x):
    """One penalty a round, of the weights that the round starts with."""
    penalty, parameters = regularizer.penalty(net), dict(net.named_parameters())
    of_penalty = [torch.zeros_like(p) for p in parameters.values()]
    if penalty.requires_grad:
        of_penalty = torch.autograd.grad(penalty, [*parameters.values()], materialize_grads=True)
    additions = dict(zip(parameters, of_penalty, strict=True))
    for part, optimizer in zip(x.chunk(2), optimizers, strict=True):
        net.zero_grad()
        loss_of(net, part).backward()
        held = {id(p) for p in optimizer.param_groups[0]["params"]}
        own = {name: p for name, p in parameters.items() if id(p) in held}
        for name, p in own.items():
            p.grad += additions[name]
        regularizer.observe_(net, {name: p.grad for name, p in own.items()})
        optimizer.step()
    project_(regularizer, net)


def parallel(**settings):
    return lambda net: DistributedDataParallel(net, **settings)


class Loop(NamedTuple):
    names: Sequence[str]
    step: Callable = lambda net, optimizer, x: plainly(optimizer, loss_of(net, x))  # of the network that is called
    optimizer: Callable = adam
    hand: Callable = by_hand
    its: Callable = adam  # the optimizer by hand
    wrap: Callable = lambda net: net
    kind: str = "plain"
    steps: int = 10
    dtype: torch.dtype = torch.float32


DOUBLE = {"steps": 4, "dtype": torch.float64}
LOOPS = {
    "plainly": Loop(OF_EACH_HOOK),
    "a convolutional network": Loop(("spectral", "swr", "ewc", "weight_decay"), kind="cnn_bn"),
    "a network of others": Loop(("spectral", "swr", "ewc", "weight_decay"), kind="foreign"),
    "a closure that zeroes": Loop(OF_EACH_HOOK, in_closure),
    "a closure by keyword": Loop(("l2",), lambda net, its, x: its.step(closure=closure_of(net, its, x))),
    # With SGD: Adam would hide most of a factor 3.
    "accumulation": Loop(("l2", "spectral"), accumulated, sgd, its=sgd),
    "clipping, which clips the loss's gradient alone": Loop(("l2",), clipped, sgd, clipped_by_hand, sgd),
    "inside the backward pass": Loop(
        ("l2", "weight_decay", "wrs"),
        inside_the_backward_pass,
        lambda net: [sgd([p]) for p in net.parameters()],
        its=sgd,
    ),
    "two optimizers": Loop(OF_EACH_HOOK, optimizer=split, its=split),
    "two optimizers that take turns": Loop(OF_EACH_HOOK, in_turns, split, in_turns_by_hand, split),
    "LBFGS": Loop(("l2_init", "swr", "weight_decay"), in_closure, lbfgs, in_closure_by_hand, lbfgs, **DOUBLE),
    "LBFGS, line search": Loop(("spectral", "weight_clipping"), in_closure, wolfe, in_closure_by_hand, wolfe, **DOUBLE),
    "a compiled step": Loop(("ewc",), compiled_step),
    "compiled and parallel": Loop(("ewc",), wrap=lambda net: torch.compile(nn.DataParallel(net), backend="eager")),
    "a process, views of buckets": Loop(("swr",), wrap=parallel(gradient_as_bucket_view=True)),
    "a process, unused parameters": Loop(("ewc",), wrap=parallel(find_unused_parameters=True)),
    "accelerate": Loop(("spectral", "weight_decay"), optimizer=lambda net: AcceleratedOptimizer(adam(net))),
}


@pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified")
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, loop in LOOPS.items() for name in loop.names])
def test_a_loop_with_the_handle_equals_the_loop_written_out_by_hand(kind, name, request):
    if kind.startswith("a process"):
        request.getfixturevalue("one_process")
    loop = LOOPS[kind]
    net, other = twins(lambda: CASES[loop.kind].make(1).to(loop.dtype))
    unregularized = copy.deepcopy(net)
    optimizer, its, plain, called = loop.optimizer(net), loop.its(other), loop.optimizer(unregularized), loop.wrap(net)
    handle, regularizer = attach(name, optimizer, called, **SETTINGS[name]), make(name, other)
    for _ in range(loop.steps):
        x = CASES[loop.kind].input()
        x = x.to(loop.dtype) if x.is_floating_point() else x
        loop.step(called, optimizer, x)
        loop.hand(other, regularizer, its, x)
        loop.step(unregularized, plain, x)
    assert_same(net, other)
    assert difference(net, unregularized) > 1e-4
    assert handle.penalty.dtype == loop.dtype


COMBINED = ("spectral", "ewc", "weight_decay")
OBJECTS = {
    "a chain": lambda net: Chain(net, *[make(name, net) for name in COMBINED]),
    "side by side": lambda net: SideBySide(net, *[(1, lambda n, name=name: make(name, n)) for name in COMBINED]),
}


@pytest.mark.parametrize("name", [*NAMES, *OBJECTS])
def test_several_runs_train_attached_as_by_hand_and_the_penalty_is_each_run_s(name):
    if name in OBJECTS:
        net, other = twins(stacked)
        optimizer, its, regularizer = adam(net), adam(other), OBJECTS[name](other)
        handle = attach(OBJECTS[name](net), optimizer, net)
    else:
        (net, optimizer, handle), (other, its, regularizer) = attached_and_by_hand(name, stacked)
    for x in data(8, 3, BATCH, 5):
        expected = regularizer.penalty(other).detach()
        regularizer.load_state_dict(handle.state_dict())  # a penalty moves spectral's vectors
        plainly(optimizer, loss_of(net, x))
        by_hand(other, regularizer, its, x)
        torch.testing.assert_close(handle.penalty, expected, rtol=1e-4, atol=1e-6)
    assert handle.penalty.shape == (3,)
    assert not handle.penalty.requires_grad
    assert_same(net, other)


def test_a_parameter_without_gradient_gets_the_penalty_s_in_memory_of_its_own():
    kind = type("Tied", (Counting,), {"penalty": lambda self, net: (net.a + net.b).sum()})  # one tensor, of both
    net = nn.Module()
    net.a, net.b, net.unused = (nn.Parameter(torch.ones(3)) for _ in range(3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    attach(kind(net), optimizer, net)
    optimizer.step()
    assert net.unused.grad is None
    net.a.grad.zero_()
    assert torch.equal(net.b.grad, torch.ones(3))
    torch.testing.assert_close(net.a, torch.full((3,), 0.9))


@pytest.mark.parametrize("kind", ["part of a flat buffer", "entries that share memory", "with a graph"])
def test_a_gradient_is_changed_where_it_is_or_replaced_where_that_would_change_others(kind):
    flat = torch.zeros(6)
    mine = {
        "part of a flat buffer": flat.view(2, 3),
        "entries that share memory": torch.ones(1).expand(2, 3),
        "with a graph": torch.ones(2, 3).requires_grad_() * 1.0,
    }[kind]
    net = nn.Linear(3, 2, bias=False)
    optimizer = sgd(net)
    attach("l2", optimizer, net, coef=1.0)
    before, given = net.weight.detach().clone(), mine.detach().clone()
    net.weight.grad = mine
    optimizer.step()
    torch.testing.assert_close(net.weight, before - 1e-2 * (given + before))
    in_place = kind == "part of a flat buffer"
    assert torch.equal(mine, before if in_place else given)
    assert (net.weight.grad.data_ptr() == flat.data_ptr()) == in_place


def test_frozen_parameters_stay_and_thawed_ones_are_regularized_from_then_on():
    net, optimizer, _ = handled(Counting, sgd)
    net[4].requires_grad_(False)
    head = net[4].weight.detach().clone()
    plainly(optimizer, loss_of(net, data(1)[0]))
    assert torch.equal(net[4].weight, head)
    net[4].requires_grad_(True)
    optimizer.zero_grad()
    optimizer.step()  # of the penalty alone: w - lr * 2 w
    torch.testing.assert_close(net[4].weight, 0.98 * head)


@pytest.mark.parametrize(("name", "fused", "unscale_first"), [
    ("l2", False, False), ("spectral", True, False), ("ewc", False, True), ("ewc", True, True),
    ("wrs", True, False), ("weight_decay", False, False),
])  # fmt: skip
def test_with_a_grad_scaler_it_equals_the_unscaled_loop_and_skips_what_the_scaler_skips(name, fused, unscale_first):
    attached = attached_and_by_hand(name, optimizer=lambda net: adam(net, fused=fused))
    (net, optimizer, handle), (other, its, regularizer) = attached
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    scales = set()
    for number, x in enumerate(data(12)):
        factor = float("inf") if number in (2, 7) else 1.0
        optimizer.zero_grad()
        scaler.scale(loss_of(net, x) * factor).backward()
        if unscale_first:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.add(scaler.get_scale())
        if factor == 1.0:
            by_hand(other, regularizer, its, x)
    assert {512.0, 1024.0} <= scales  # halved by a skipped step, doubled again
    assert_same(net, other)
    torch.testing.assert_close(handle.state_dict(), dict(regularizer.state_dict()), rtol=1e-4, atol=1e-6)


def test_what_a_closure_returns_keeps_its_kind():
    _, optimizer, handle = handled("l2", sgd, coef=2.0)
    assert optimizer.step(lambda: None) is None
    number = optimizer.step(lambda: 1.5)
    assert type(number) is float
    assert number == pytest.approx(1.5 + handle.penalty.item())
    assert optimizer.step(None) is None  # no closure


def test_the_calls_of_one_line_search_are_observed_and_projected_once():
    net, optimizer, handle = handled(Counting, lbfgs)
    regularizer = handle.regularizer
    closure, values = closing(net, optimizer, lambda n: loss_of(n, data(1)[0]))
    for _ in range(3):
        optimizer.step(closure)
    assert regularizer.penalties == len(values) > 6
    assert len(regularizer.observed) == regularizer.projections == 3


def test_of_lbfgs_weight_decay_subtracts_the_weights_before_the_step_not_those_of_its_last_closure():
    net, other = twins(lambda: plain_mlp().double())
    optimizer, its = lbfgs(net), lbfgs(other)
    attach("weight_decay", optimizer, net, coef=0.2)
    for x in data(4).double():
        before = [p.detach().clone() for p in other.parameters()]
        in_closure(net, optimizer, x)
        in_closure(other, its, x)
        with torch.no_grad():
            for p, was in zip(other.parameters(), before, strict=True):
                p.sub_(0.1 * 0.2 * was)
        assert_same(net, other, 1e-12)


def test_the_projection_waits_for_every_optimizer_and_an_extra_step_gets_a_penalty_of_its_own():
    net = plain_mlp()
    regularizer = Counting(net)
    a, b = sgd(net[:2]), sgd(net[2:])
    attach(regularizer, [a, b], net)
    weight, head = net[0].weight.detach().clone(), net[4].weight.detach().clone()
    a.step()
    a.step()
    assert (regularizer.projections, regularizer.penalties) == (0, 2)
    b.step()
    assert (regularizer.projections, regularizer.penalties) == (1, 2)
    # b once; a twice, and as nobody zeroed its gradients, the first one's is still in the second
    torch.testing.assert_close(net[4].weight, 0.98 * head)
    torch.testing.assert_close(net[0].weight, 0.98 * weight - 0.01 * (2 * weight + 2 * 0.98 * weight))


def test_several_networks_of_one_optimizer_have_a_handle_each_that_leaves_the_others_alone():
    pairs = {"spectral": twins(), "ewc": twins()}
    nets, others = zip(*pairs.values(), strict=True)
    optimizer, its = adam(nn.ModuleList(nets)), [adam(other) for other in others]
    handles = [attach(name, optimizer, net, **SETTINGS[name]) for name, (net, _) in pairs.items()]
    regularizers = [make(name, other) for name, (_, other) in pairs.items()]
    for x in data(6):
        plainly(optimizer, sum(loss_of(net, x) for net in nets))
        for other, regularizer, hand in zip(others, regularizers, its, strict=True):
            by_hand(other, regularizer, hand, x)
    for net, other in pairs.values():
        assert_same(net, other)
    assert all(handle.penalty.ndim == 0 for handle in handles)


@pytest.fixture
def one_process(tmp_path):
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("torch was built without gloo")
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_what_looks_at_data_is_refused_in_several_processes_which_have_data_of_their_own(one_process, monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    for name, settings in (("churn", {"coef": 1.0}), ("continual_backprop", {})):
        net = plain_mlp()
        refused(lambda n=net, k=name, s=settings: attach(k, sgd(n), n, **s), "penalty(net, inputs)", "project_(net)")


def test_unused_parameters_of_a_data_parallel_process_take_the_penalty(one_process):
    net = nn.ModuleDict({"used": nn.Linear(5, 3), "unused": nn.Linear(4, 4)})
    net.forward = lambda x: net["used"](x)
    wrapped = DistributedDataParallel(net, find_unused_parameters=True)
    optimizer, before = sgd(net), net["unused"].weight.detach().clone()
    attach("l2", optimizer, wrapped, coef=0.3)
    for _ in range(2):  # the second call is where DistributedDataParallel finds out
        plainly(optimizer, loss_of(wrapped, data(1)[0]))
    torch.testing.assert_close(net["unused"].weight, (1 - 0.3e-2) ** 2 * before)


def test_a_removed_handle_leaves_the_loop_as_it_was_and_may_be_removed_twice_and_attached_again():
    net, other = twins()
    optimizer, its = sgd(net), sgd(other)
    handle = attach("l2", optimizer, net, coef=0.3)
    assert handle.penalty is None
    handle.remove()
    handle.remove()
    steps(net, optimizer, 3)
    steps(other, its, 3)
    assert difference(net, other) == 0
    assert handle.penalty is None
    again = attach(handle.regularizer, optimizer, net)
    plainly(optimizer, loss_of(net, data(1)[0]))
    assert again.penalty > 0


def test_bad_input_is_refused_in_one_line_that_says_what_is_wrong():
    net, other = twins()
    optimizer = sgd(net)
    l2, spectral = make_regularizer("l2", net), attach("spectral", optimizer, net)
    attach(l2, sgd(net), net)
    attach(l2, optimizer, net)
    odd = nn.Module()
    odd.a, odd.b = nn.Linear(2, 2), nn.Parameter(torch.ones(2, dtype=torch.complex64))
    for arguments, settings, names in (
        (("l2", optimizer, net), {"coeff": 1}, ["'coeff'", "'l2'", "'coef'"]),
        (("l3", optimizer, net), {}, ["'l3'"]),
        (("l2", optimizer, net), {"coef": -1}, ["coef", "-1"]),
        ((l2, optimizer, net), {"coef": 1}, ["coef"]),
        ((3, optimizer, net), {}, ["regularizer", "Regularizer", "int"]),
        (("l2", net, net), {}, ["optimizer", "Sequential"]),
        (("l2", [], net), {}, ["optimizer"]),
        (("l2", [optimizer, l2], net), {}, ["L2"]),
        (("l2", optimizer, other), {}, ["SGD"]),
        (("l2", optimizer, AveragedModel(net)), {}, ["SGD"]),
        (("l2", [optimizer, sgd(net[4])], net), {}, ["4.bias, 4.weight"]),
        (("l2", sgd(net[:2]), net), {}, ["2.weight, 2.bias, 4.weight and 1 more"]),
        (("swr", sgd(net[:2]), net), {}, ["2.weight, 2.bias, 4.weight and 1 more"]),
        ((Chain(net, l2), sgd(net[:2]), net), {}, ["2.weight"]),
        ((make_regularizer("l2", net[:2]), sgd(net[2:]), net[2:]), {}, ["'0.weight' is no longer a parameter"]),
        ((l2, optimizer, net), {}, ["L2", "remove()"]),
        (("spectral", optimizer, net), {"coef": 0.1}, ["Spectral", "remove()"]),
        (("l2", sgd(odd), odd), {}, ["complex", "'b'"]),
        (("spectral", net, adam(net)), {}, ["net", "Adam", "attach(regularizer, optimizer, net)"]),
        (("spectral+l2", adam(net), net), {}, ["'spectral+l2'", "Chain(net, "]),
    ):
        refused(lambda arguments=arguments, settings=settings: attach(*arguments, **settings), *names)
    spectral.remove()  # nothing that was refused has left a hook or a handle
    attach("spectral", optimizer, net)


@pytest.mark.parametrize("name", ["l2", "l2_init", "swr", "spectral", "continual_backprop"])
def test_a_regularizer_made_for_other_shapes_is_refused_even_where_they_would_broadcast(name):
    net, narrow = plain_mlp(), plain_mlp()
    narrow[4] = nn.Linear(narrow[4].in_features, 1)  # l2_init would pull each output's weights to this one's
    for wrap in (lambda r: r, lambda r: Chain(net, make_regularizer("l2", net), r)):
        refused(lambda w=wrap: attach(w(make_regularizer(name, narrow)), adam(net), net), "'4.weight'", "[3, ", "[1, ")
    attach(make_regularizer(name, plain_mlp()), adam(net), net)


def with_a_table(rows=4, **settings):
    return nn.Sequential(nn.Embedding(rows, 3, **settings), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))


@pytest.mark.parametrize(
    ("method", "how"), [("weight_clipping", {}), ("l2", {"roles": {"0.weight": "ignore"}}), ("l2", None)]
)
def test_a_table_with_sparse_gradients_is_trained_where_it_has_no_penalty(method, how):
    net = with_a_table(sparse=True)
    optimizer = sgd(net)
    net[0].weight.requires_grad_(how is not None)  # a table that is not trained has no gradients
    handle = attach(method, optimizer, net, **(how or {}))
    loss_of(net, torch.tensor([1])).backward()
    optimizer.step()
    assert handle.penalty is not None


class Unscaling(torch.optim.SGD):
    _step_supports_amp_scaling = True

    def step(self, closure=None, *, grad_scaler=None):
        return super().step(closure)


@pytest.mark.filterwarnings("ignore:GradScaler is going to stop passing itself")
def test_what_shows_at_the_step_alone_is_refused_there():
    net = nn.Module()
    net.weight, net.head = nn.Parameter(torch.randn(4, 3)), nn.Linear(3, 3)
    optimizer = sgd(net)
    attach("l2", optimizer, net)
    loss_of(lambda i: net.head(nn.functional.embedding(i, net.weight, sparse=True)), torch.tensor([1])).backward()
    refused(optimizer.step, "'weight'", "sparse", "roles={'weight': 'ignore'}", error=RuntimeError)
    net = plain_mlp()
    unscaling, scaler = Unscaling(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    attach("l2", unscaling, net)
    scaler.scale(loss_of(net, data(1)[0])).backward()
    refused(lambda: scaler.step(unscaling), "Unscaling", error=RuntimeError)


@pytest.mark.parametrize("name", [name for name in REGULARIZERS if name != "none"])
def test_a_state_that_leaves_tables_alone_fits_the_network_once_its_vocabulary_has_grown(name):
    def attached(rows):
        net = with_a_table(rows)
        optimizer = adam(net)
        settings = {"coef": 0.1} if name == "churn" else {}
        return net, optimizer, attach(name, optimizer, net, roles={"0.weight": "ignore"}, **settings)

    net, optimizer, handle = attached(4)
    plainly(optimizer, net(torch.tensor([1, 2])).square())
    grown, its, other = attached(7)
    with torch.no_grad():
        for p, q in zip(grown.parameters(), net.parameters(), strict=True):
            p[: len(q)].copy_(q)
    other.load_state_dict(handle.state_dict())
    assert_equal_states(handle.state_dict(), other.state_dict())
    plainly(its, grown(torch.tensor([1, 2])).square())
    assert all(p.isfinite().all() for p in grown.parameters())


def test_a_state_of_other_roles_or_of_another_method_is_said_and_changes_nothing():
    net = with_a_table()
    handle = attach("l2_init", adam(net), net, roles={"0.weight": "ignore"})
    state = make_regularizer("l2_init", net).state_dict()
    refused(lambda: handle.load_state_dict(state), "'initial/0/weight'", "roles=", "only=", error=RuntimeError)
    handle = attach("spectral", adam(net), net, coef=0.5)
    state = make_regularizer("weight_clipping", net).state_dict()
    refused(lambda: handle.load_state_dict(state), "Spectral", error=RuntimeError)
    assert handle.regularizer.coef == 0.5


@pytest.mark.filterwarnings("ignore:FSDP is switching to use")
def test_sharded_parameters_are_refused(one_process):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    net = plain_mlp()
    fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
    whole = FullyShardedDataParallel(plain_mlp(), device_id=torch.device("cpu"))
    for sharded, names in ((net, ("DTensor", "'0.weight'")), (whole, ("FullyShardedDataParallel",))):
        refused(lambda sharded=sharded: attach("l2", sgd(sharded), sharded), *names)


def test_the_example_of_plain_torch_trains_and_prints_its_penalty(capsys):
    main = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "plain_torch.py"))["main"]
    assert main(steps=30) < 1.3  # log(4) = 1.39 at the start
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all(float(line.rpartition("penalty ")[2]) > 0 for line in lines)


class AcceleratedOptimizer(torch.optim.Optimizer):
    """As accelerate 1.x has it: a subclass that never calls its base's constructor."""

    def __init__(self, optimizer):
        self.optimizer, self.gradient_state_sync = optimizer, True

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)
    defaults = property(lambda self: self.optimizer.defaults)

    def zero_grad(self, set_to_none=None):
        if self.gradient_state_sync:
            self.optimizer.zero_grad()

    def step(self, closure=None):
        if self.gradient_state_sync:  # not while gradients are accumulated
            self.optimizer.step(closure)


def test_an_intervention_finds_the_moments_inside_such_a_wrapper():
    net = plain_mlp()
    optimizer = AcceleratedOptimizer(adam(net))
    plainly(optimizer, loss_of(net, data(1)[0]))
    make_intervention("head").apply_(net, optimizer)
    assert not optimizer.state[net[4].weight]["exp_avg"].any()
    assert optimizer.state[net[0].weight]["exp_avg"].any()


class NoHooks(torch.optim.Optimizer):
    """As wrappers of several libraries are: without the constructor of its base, with the optimizer under any name."""

    def __init__(self, base):
        self._base_optimizer, self.param_groups, self.state, self.defaults = base, base.param_groups, base.state, {}
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()

    def step(self, closure=None):
        return self._base_optimizer.step()


class OwnGradients(torch.optim.Optimizer):
    """As sharpness-aware minimization is: it moves the weights, computes other gradients there, and moves them back."""

    def __init__(self, base):
        super().__init__(base.param_groups, {})
        self.base_optimizer = base

    def first_step(self):
        self.moved = [p.grad.clone() for p in self.params]
        torch._foreach_add_(self.params, self.moved)

    def second_step(self):
        torch._foreach_sub_(self.params, self.moved)
        self.base_optimizer.step()

    def step(self, closure=None):
        with torch.no_grad():
            self.first_step()
            for p in self.params:
                p.grad = p.sin()
            self.second_step()

    params = property(lambda self: self.param_groups[0]["params"])


@pytest.mark.parametrize("name", ["l2", "weight_decay"])
@pytest.mark.parametrize("kind", [NoHooks, OwnGradients])
def test_an_optimizer_inside_another_is_found_under_any_name(kind, name):
    net, other = twins()
    plain = copy.deepcopy(net)
    handle = attach(name, kind(sgd(net)), net, coef=0.3)
    inner = sgd(other)
    attach(name, inner, other, coef=0.3)
    for _ in range(3):
        for optimizer, of in ((kind(handle.optimizers[0]), net), (kind(inner), other), (kind(sgd(plain)), plain)):
            plainly(optimizer, loss_of(of, data(1)[0]))
    assert handle.steps == 3
    assert difference(net, other) == 0
    assert difference(net, plain) > 1e-3


def test_an_optimizer_whose_step_calls_no_hooks_and_one_that_steps_in_two_parts_are_refused():
    net = plain_mlp()
    alone = type("Alone", (NoHooks,), {"step": lambda self: None})(sgd(net))
    alone._base_optimizer = None
    refused(lambda: attach("l2", alone, net), "Alone", "constructor")
    kind = type("SAM", (torch.optim.SGD,), dict.fromkeys(("first_step", "second_step"), lambda self: None))
    refused(lambda: attach("l2", kind(net.parameters(), lr=0.1), net), "SAM", "second_step")


@pytest.mark.parametrize("name", ["weight_decay", "orthogonal", "wrs"])
def test_rates_are_known_where_gradients_are_gone_right_after_the_step(name):
    net, other = twins()
    forgets = sgd(net)
    forgets.register_step_post_hook(lambda optimizer, *_: optimizer.zero_grad())
    settings = {"norm_decay": 0.3} if name == "wrs" else {"coef": 0.3}
    for of, optimizer in ((net, forgets), (other, sgd(other))):
        attach(name, optimizer, of, **settings)
        steps(of, optimizer, 3)
    assert difference(net, other) == 0


def test_a_module_without_weights_is_replaced_while_other_hooks_of_the_step_wait():
    net = plain_mlp()
    optimizer = sgd(net)
    handles = [attach(name, optimizer, net) for name in ("l2", "weight_decay")]
    steps(net, optimizer, 1)
    net[1] = nn.Tanh()
    steps(net, optimizer, 1)
    assert [handle.steps for handle in handles] == [2, 2]


@pytest.mark.parametrize("name", ["churn", "feature_rank"])
def test_penalties_of_outputs_leave_alone_what_roles_ignore(name):
    net = plain_mlp()
    optimizer = sgd(net)
    attach(name, optimizer, net, coef=10.0, roles={"0.weight": "ignore"})
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(net, data(1)[0]).backward()
        before = {name: p.grad.clone() for name, p in net.named_parameters()}
        with torch.no_grad():
            net[2].weight += 0.1  # else nothing has moved
        optimizer.step()
    assert torch.equal(net[0].weight.grad, before["0.weight"])
    assert not torch.equal(net[2].weight.grad, before["2.weight"])


def test_a_regularizer_of_one_network_is_not_attached_to_another():
    one, other = plain_mlp(), plain_mlp()
    regularizer = make_regularizer("hare_tortoise", one)
    attach(regularizer, sgd(one), one)
    refused(lambda: attach(regularizer, sgd(other), other), "another network")


def test_a_state_of_other_shapes_is_refused_before_anything_has_changed():
    net, wider = plain_mlp(), nn.Sequential(nn.Linear(9, 16), *[*plain_mlp()][1:])
    handle, other = (attach("l2_init", sgd(of), of, coef=coef) for of, coef in ((net, 0.1), (wider, 0.2)))
    before = {name: value.clone() for name, value in handle.state_dict().items()}
    refused(lambda: handle.load_state_dict(other.state_dict()), "initial/0/weight", error=RuntimeError)
    assert all(torch.equal(value, before[name]) for name, value in handle.state_dict().items())


def test_a_step_that_raised_leaves_no_old_weights_to_decay():
    net, other = twins()
    optimizer, good = sgd(net), copy.deepcopy(net.state_dict())
    attach("weight_decay", optimizer, net, coef=0.5)
    attach("weight_decay", whole := sgd(other), other, coef=0.5)
    stops = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    with torch.no_grad():
        net[0].weight *= 100
    with pytest.raises(ZeroDivisionError):
        steps(net, optimizer, 1)
    stops.remove()
    net.load_state_dict(good)
    steps(net, optimizer, 1)
    steps(other, whole, 1)
    assert difference(net, other) == 0


def test_ewc_acts_where_an_optimizer_holds_nothing_of_its_own_and_where_all_is_frozen_for_a_step():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizers = [sgd(net[0]), sgd(net[1])]
    attach("ewc", optimizers, net, roles={"0.weight": "ignore", "0.bias": "ignore"})
    for frozen in (False, True, False):
        net[1].requires_grad_(not frozen)
        net(torch.ones(3, 4)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def test_an_optimizer_that_no_longer_steps_while_others_do_is_said_once():
    net = plain_mlp()
    first, second = (torch.optim.SGD(net[i].parameters(), lr=0.1) for i in (0, 2))
    attach("hypersphere", [first, second], net, only=[net[0].weight, net[2].weight])

    def train():
        for step in range(60):
            loss_of(net, data(1)[0]).backward()
            for optimizer in (first, second)[step > 5 :]:
                optimizer.step()

    with pytest.warns(UserWarning, match=r"Hypersphere projects.*SGD has not.*handle\.grow\(optimizer=") as said:
        train()
    assert len(said) == 1


def test_a_closure_may_take_arguments():
    class Passing(torch.optim.SGD):
        def step(self, closure=None):
            return closure(2, scale=3)

    net = plain_mlp()
    attach("l2", optimizer := Passing(net.parameters(), lr=0.1), net, coef=0.0)
    assert optimizer.step(lambda x, scale: torch.tensor(float(x * scale))) == 6


def test_names_with_slashes_are_not_mixed_up():
    net = nn.ModuleDict({"a/b": nn.Linear(3, 3), "a": nn.ModuleDict({"b": nn.Linear(3, 5)}), "head": nn.Linear(3, 2)})
    net.forward = lambda x: net["head"](net["a/b"](x)) + net["a"]["b"](x)[..., :2]
    optimizer = sgd(net)
    handle = attach("l2_init", optimizer, net, coef=1.0)
    with torch.no_grad():
        net["a/b"].weight += 1
    again = {
        "make": lambda: copy.deepcopy(net),
        "make_regularizer": lambda of: make_regularizer("l2_init", of, coef=1.0),
    }
    make_intervention("periodic").apply_(net, optimizer, regularizer=handle.regularizer, **again)
    assert handle.regularizer.penalty(net) == 0


class AnotherDefaultDevice(TorchFunctionMode):
    """Refuses what torch refuses after ``torch.set_default_device("cuda")``: numbers from the CPU's generator there."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in (torch.rand, torch.randn, torch.randperm, torch.randint) and kwargs.get("generator") is not None:
            assert kwargs.get("device") is not None
        return function(*args, **kwargs)


@pytest.mark.parametrize("name", sorted({*REGULARIZERS} - {"none"}))
def test_another_default_device_changes_nothing(name):
    net = plain_mlp()
    optimizer, x = sgd(net), data(1)[0]
    with AnotherDefaultDevice():
        attach(name, optimizer, net, **({"coef": 0.1} if name == "churn" else {}))
        for _ in range(2):
            plainly(optimizer, loss_of(net, x))
        make_intervention("redo").apply_(other := plain_mlp(), sgd(other), example=x)


def test_a_regularizer_left_behind_by_a_new_optimizer_says_so_once_and_acts_again_where_it_is_attached_to_it():
    net = plain_mlp()
    old, new = adam(net), adam(net)
    handle = attach("l2", old, net)
    steps(net, old, 3)
    with pytest.warns(UserWarning, match=r"L2\b.*step\(\) of Adam.*grow\(optimizer=") as said:
        steps(net, new, 12)
    assert len(said) == 1
    handle.remove()
    again = attach(handle.regularizer, new, net)
    steps(net, new, 1)
    assert again.penalty is not None


@pytest.mark.filterwarnings("error")
def test_accumulation_changes_behind_it_and_an_optimizer_in_turns_are_no_reason_to_say_so():
    net, optimizer, handle = handled("l2", sgd)
    net.load_state_dict(plain_mlp().state_dict())
    for _ in range(4):
        for x in data(3):
            loss_of(net, x).backward()
        optimizer.step()
        net[0].weight.data.mul_(0.9)
    handle.remove()
    old, new = adam(net), adam(net)
    attach("l2", old, net)
    for _ in range(6):
        steps(net, old, 1)
        steps(net, new, 3)


class Total(Regularizer):
    def __init__(self, net, returns=torch.Tensor.sum):
        super().__init__(net)
        self.returns = returns

    def penalty(self, net):
        return self.returns(self.layers[0].weight(net))


def by_attach(net, returns=torch.Tensor.sum):
    optimizer = adam(net)
    attach(Total(net, returns), optimizer, net)
    plainly(optimizer, net(data(3, BATCH, 5)).square().mean())


def by_learner(net):
    learner = Learner(lambda seeds: MLP((5, 8, 3), seeds), [0, 1, 2], Total)
    learner.minimize(loss_of(learner.net, data(3, BATCH, 5)))


WAYS = {
    "attach": by_attach,
    "learner": by_learner,
    "chain": lambda net: Chain(net, Total(net), make_regularizer("l2", net)).penalty(net),
    "side by side": lambda net: SideBySide(net, (2, Total), (1, lambda n: make_regularizer("l2", n))).penalty(net),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_penalty_that_is_not_one_number_for_each_run_is_refused_in_one_line(way):
    refused(lambda: WAYS[way](stacked()), match=r"Total\.penalty\b.*\[\d\].*\[\]")


def test_one_number_is_enough_for_one_run_and_what_is_no_tensor_is_named():
    net = MLP((5, 8, 3), [0, 1])
    side = SideBySide(net, (1, Total), (1, lambda n: make_regularizer("l2", n)))
    torch.testing.assert_close(side.penalty(net)[0], next(net.parameters())[0].sum())
    refused(lambda: by_attach(stacked(), lambda p: 0.0), "[3]", "float")


@pytest.mark.parametrize("scripted", [torch.jit.script, lambda net: torch.jit.trace(net, torch.ones(4, 5))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_networks_are_refused_in_one_line(scripted):
    net = scripted(plain_mlp())
    for act in (
        lambda: attach("l2", adam(net), net),
        lambda: make_regularizer("spectral", nn.Sequential(nn.Linear(5, 5), net)),
        lambda: make_intervention("redo").apply_(net, (), example=torch.ones(4, 5)),
        lambda: measure(net, torch.ones(4, 5)),
    ):
        refused(act, "Sequential", "torch.jit", error=ValueError)
