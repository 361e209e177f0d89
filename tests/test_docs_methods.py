"""The pages of the methods: their headings, their settings, and their reference code against the package."""

import copy
import inspect
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from rl_plasticity import INTERVENTIONS, REGULARIZERS, make_intervention, make_regularizer
from rl_plasticity.configs.written import as_written
from rl_plasticity.networks import Injectable
from rl_plasticity.settings import settings_of

PAGES = Path(__file__).parent.parent / "docs" / "methods"
METHODS = {name: method for name, method in (REGULARIZERS | INTERVENTIONS).items() if name != "none"}
HEADINGS = ["Equation", "Reference code", "Source", "Where we deviate", "Settings and cost", "Needs and refusals"]
HEADINGS += ["In our studies"]


def page(name):
    return (PAGES / f"{name}.md").read_text()


def reference(name):
    """The functions of a page's code, by name."""
    space = {"torch": torch, "nn": nn}
    exec(re.search(r"```python\n(.*?)```", page(name), re.DOTALL)[1], space)
    return {key: value for key, value in space.items() if inspect.isfunction(value)}


def call(function, known):
    """With what the arguments' names stand for."""
    return function(**{n: known[n] for n in inspect.signature(function).parameters if n in known})


def make_net(seed=0, norm=True):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(5, 8), *[nn.LayerNorm(8)] * norm, nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)
    )
    return moved(net.double(), seed + 1)  # gains are not all 1, shifts not all 0


def moved(net, seed, by=0.1):
    """The same network after a step."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p += by * torch.randn_like(p)
    return net


def linear(net):
    return [layer for layer in net if isinstance(layer, nn.Linear)]


def agree(ours, theirs, **tolerance):
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_with_the_same_headings(name):
    assert page(name).startswith(f"# `{name}`: ")
    assert re.findall(r"^## (.*)", page(name), re.MULTILINE) == HEADINGS


def test_there_is_no_page_of_a_method_that_does_not_exist():
    assert {path.stem for path in PAGES.glob("*.md")} == {*METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_a_page_has_the_settings_and_defaults_of_the_constructor(name):
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", page(name), re.MULTILINE))
    assert rows == {n: as_written(d.default) for n, d in settings_of(METHODS[name]).items()}


PENALTIES = ["l2", "l2_init", "wasserstein", "spectral", "parseval", "feature_rank"]


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.filterwarnings("ignore")
def test_the_reference_code_of_a_penalty_gives_its_value_and_gradient(name):
    net = make_net()
    method = make_regularizer(name, net, coef=0.3)
    initial, x = copy.deepcopy(net), torch.randn(64, 5, dtype=torch.float64)
    moved(net, 7)
    with torch.no_grad():
        for _ in range(3000 if name == "feature_rank" else 400):  # vectors that follow by power iteration arrive
            method.penalty(net, (x,))
    parameters = [p for p in net.parameters()]
    value = method.penalty(net, (x,))
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    known = {"net": net, "initial": initial, "coef": 0.3, "hidden": linear(net)[:-1], "features": net[:-1](x)}
    expected = call(reference(name)["penalty"], known)
    assert expected > 0
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=0)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, parameters, allow_unused=True), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_the_reference_code_of_churn_gives_its_value_after_each_of_three_updates():
    net, x = make_net(), torch.randn(16, 5, dtype=torch.float64)
    method = make_regularizer("churn", net, coef=0.3)
    before = copy.deepcopy(net)
    for seed in range(3):
        value = method.penalty(net, (x,))
        expected = reference("churn")["penalty"](net, before, x, 0.3)
        torch.testing.assert_close(value, expected)
        assert (expected > 0) == (seed > 0)
        before = copy.deepcopy(net)
        moved(net, seed)
        method.project_(net)


def test_the_reference_code_of_ewc_gives_its_value_after_three_updates():
    net = make_net()
    method = make_regularizer("ewc", net, coef=0.3, fisher_decay=0.9, anchor_decay=0.8)
    functions = reference("ewc")
    fisher = [torch.zeros_like(p) for p in net.parameters()]
    anchor = [p.detach().clone() for p in net.parameters()]
    for seed in range(3):
        moved(net, seed)
        torch.manual_seed(seed)
        of_loss = [torch.randn_like(p) for p in net.parameters()]
        of_penalty = torch.autograd.grad(method.penalty(net), [*net.parameters()])
        names = [name for name, _ in net.named_parameters()]
        method.observe_(net, dict(zip(names, map(torch.add, of_loss, of_penalty), strict=True)))
        with torch.no_grad():
            functions["observe_"](net, of_loss, fisher, anchor, 0.9, 0.8)
        method.project_(net)
    expected = functions["penalty"](net, fisher, anchor, 0.3)
    assert expected > 0
    torch.testing.assert_close(method.penalty(net), expected)


PROJECTIONS = {
    "swr": {"coef": 0.3},
    "wrs": {"every_updates": 2, "norm_decay": 0.1},
    "normalize_project": {},
    "hypersphere": {},
    "orthogonal": {"coef": 0.01},
    "weight_clipping": {"coef": 0.5},
    "weight_decay": {"coef": 0.1},
    "hare_tortoise": {"every_updates": 2, "momentum": 0.8},
}


@pytest.mark.parametrize("name", PROJECTIONS)
@pytest.mark.filterwarnings("ignore:.*changes the function where no norm layer follows")
def test_the_reference_code_of_a_projection_gives_the_weights_of_four_updates(name):
    net = make_net()
    method = make_regularizer(name, net, **PROJECTIONS[name])
    theirs, initial, slow = (copy.deepcopy(net) for _ in range(3))
    for update in (1, 2, 3, 4):
        before = copy.deepcopy(theirs)
        method.penalty(net)
        moved(net, update)
        moved(theirs, update)
        stepped = copy.deepcopy(theirs)
        method.project_(net)
        known = {"net": theirs, "initial": initial, "before": before, "slow": slow, "update": update}
        with torch.no_grad():
            call(reference(name)["project_"], known | {"hidden": linear(theirs)[:-1]} | PROJECTIONS[name])
        agree(net, theirs)
    assert any(not torch.equal(p, q) for p, q in zip(theirs.parameters(), stepped.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("continual_backprop", {"coef": 0.1, "maturity": 2, "decay": 0.9}),
        ("self_normalized_resets", {"most": 24, "every_updates": 1000, "least": 1}),
    ],
)
def test_the_reference_code_of_renewed_units_renews_the_same_ones(name, settings):
    net = make_net(norm=False)
    with torch.no_grad():
        net[0].bias[3] = -50  # silent for ever, whatever comes
    method = make_regularizer(name, net, **settings)
    renew = reference(name)["renew_"]
    torch.manual_seed(3)
    layers = linear(net)
    state = [
        {kind: torch.zeros(width, dtype=torch.float64) for kind in ("use", "age")}
        | {"due": torch.zeros(1, dtype=torch.float64)}
        for width in (8, 6)
    ]
    renewed = 0
    for _ in range(12):
        x = torch.randn(8, 5, dtype=torch.float64)
        with torch.no_grad():
            activations = [net[:2](x), net[:4](x)]
        method.penalty(net, (x,))
        weights = [layer.weight.detach().clone() for layer in layers]
        method.project_(net)
        for i, h in enumerate(activations):
            w_out = weights[i + 1].clone()
            known = {"w_in": weights[i].clone(), "b_in": torch.zeros(len(weights[i])), "w_out": w_out, "h": h}
            call(renew, known | {"threshold": settings.get("most")} | settings | state[i])
            before = weights[i + 1]
            ours, theirs = (((now == 0) & (before != 0)).any(0) for now in (layers[i + 1].weight, w_out))
            assert torch.equal(ours, theirs)
            renewed += int(ours.sum())
    assert renewed >= 2


def applied(name, net, optimizer, **settings):
    options = {n: settings.pop(n) for n in ("make", "example") if n in settings}
    make_intervention(name, **settings).apply_(net, optimizer, **options)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("periodic", {}),
        ("head", {}),
        ("optimizer", {}),
        ("shrink_perturb", {"coef": 0.3, "init": "fresh"}),
        ("selective_reinit", {"factor": 0.5}),
        ("fire", {"iterations": 60}),
        ("dash", {"least": 0.1}),
    ],
)
def test_the_reference_code_of_an_intervention_gives_the_weights_and_moments(name, settings):
    fresh = make_net(5)

    def trained():
        net = make_net()
        optimizer = torch.optim.Adam(net.parameters())
        net(torch.ones(4, 5, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
        return net, optimizer

    (net, optimizer), (theirs, their_optimizer) = trained(), trained()
    options = settings if name in ("fire", "optimizer", "dash") else settings | {"make": lambda: copy.deepcopy(fresh)}
    applied(name, net, optimizer, **options)
    known = {"net": theirs, "optimizer": their_optimizer, "make": lambda: fresh, "initial": fresh, "fresh": fresh}
    with torch.no_grad():
        call(reference(name)["apply_"], known | settings)
    agree(net, theirs, rtol=1e-6, atol=1e-8)
    changed = any(not torch.equal(p, q) for p, q in zip(theirs.parameters(), trained()[0].parameters(), strict=True))
    assert changed == (name != "optimizer")
    for p, q in zip(net.parameters(), theirs.parameters(), strict=True):
        ours = optimizer.state.get(p, {}).get("exp_avg", torch.zeros_like(p))
        torch.testing.assert_close(ours, their_optimizer.state.get(q, {}).get("exp_avg", torch.zeros_like(q)))


def test_the_reference_code_of_redo_gives_the_weights():
    net, fresh, x = make_net(norm=False), make_net(5, norm=False), torch.randn(16, 5, dtype=torch.float64)
    with torch.no_grad():
        net[0].bias[[1, 4]] = -50
        net[2].bias[2] = -50
    theirs = copy.deepcopy(net)
    applied("redo", net, (), example=(x,), make=lambda: copy.deepcopy(fresh))
    with torch.no_grad():
        activations = [theirs[:2](x), theirs[:4](x)]
        recycle = reference("redo")["recycle_"]
        kept = [copy.deepcopy(layer) for layer in linear(theirs)]
        for i, h in enumerate(activations):
            recycle(linear(theirs)[i], linear(theirs)[i + 1], linear(fresh)[i], h)
        linear(theirs)[1].weight[:, [1, 4]] = 0  # between two recycled units it is zero
    agree(net, theirs)
    assert any(not torch.equal(a.weight, b.weight) for a, b in zip(kept, linear(theirs), strict=True))


def test_the_reference_code_of_regrama_gives_the_weights():
    net, fresh, x = make_net(norm=False), make_net(5, norm=False), torch.randn(16, 5, dtype=torch.float64)
    net(x).square().sum().backward()
    theirs = copy.deepcopy(net)
    for p, q in zip(net.parameters(), theirs.parameters(), strict=True):
        q.grad = p.grad.clone()
    applied("regrama", net, (), threshold=0.6, make=lambda: copy.deepcopy(fresh))
    with torch.no_grad():
        for i in (1, 0):  # between two recycled units the weight is zero
            reference("regrama")["recycle_"](linear(theirs)[i], linear(theirs)[i + 1], linear(fresh)[i], threshold=0.6)
    agree(net, theirs)
    assert not linear(net)[1].weight.all()
    assert not linear(net)[2].weight.all()


def test_the_reference_code_of_plasticity_injection_gives_the_function_and_the_gradients():
    net, x = make_net(), torch.randn(16, 5, dtype=torch.float64)
    features, old, new = copy.deepcopy(net[:3]), copy.deepcopy(net[3:]), copy.deepcopy(make_net(5)[3:])
    ours = nn.Sequential(net[:3], Injectable(net[3:]))
    fresh = nn.Sequential(copy.deepcopy(features), Injectable(copy.deepcopy(new)))
    at_first = copy.deepcopy(new)
    old.requires_grad_(False)
    applied("plasticity_injection", ours, (), make=lambda: copy.deepcopy(fresh))
    agree(ours[0], features)
    agree(ours[1].head, new)
    for part in (ours[0], ours[1].head, features, new):
        moved(part, 7)
    theirs = reference("plasticity_injection")["forward"](features(x), old, new, at_first)
    torch.testing.assert_close(ours(x), theirs)
    for output in (ours(x), theirs):
        output.square().sum().backward()
    for mine, its in ((ours[0], features), (ours[1].head, new)):
        for p, q in zip(mine.parameters(), its.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
