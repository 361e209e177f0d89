"""The pages of the methods: headings, settings, and what of their reference code tests/test_vectors.py does not see."""

import copy
import re

import pytest
import torch
from folders import script
from torch import nn

from rl_plasticity import INTERVENTIONS, REGULARIZERS, make_intervention, make_regularizer
from rl_plasticity.configs.written import as_written
from rl_plasticity.networks import Injectable
from rl_plasticity.settings import settings_of

vectors = script("make_vectors")
PAGES = vectors.DOCS / "methods"
METHODS = {name: method for name, method in {**REGULARIZERS, **INTERVENTIONS}.items() if name != "none"}
HEADINGS = ["Equation", "Reference code", "Source", "Where we deviate", "Settings and cost", "Needs and refusals"]
HEADINGS += ["In our studies"]


def page(name):
    return (PAGES / f"{name}.md").read_text()


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


@pytest.mark.parametrize(("name", "settings"), [
    ("continual_backprop", {"coef": 0.1, "maturity": 2, "decay": 0.9}),
    ("self_normalized_resets", {"most": 24, "every_updates": 1000, "least": 1}),
])  # fmt: skip
def test_the_reference_code_of_renewed_units_renews_the_same_ones(name, settings):
    net = make_net(norm=False)
    with torch.no_grad():
        net[0].bias[3] = -50  # silent for ever, whatever comes
    method = make_regularizer(name, net, **settings)
    renew = vectors.reference(name)["renew_"]
    torch.manual_seed(3)
    layers = vectors.linear(net)
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
            vectors.call(renew, known | {"threshold": settings.get("most")} | settings | state[i])
            before = weights[i + 1]
            ours, theirs = (((now == 0) & (before != 0)).any(0) for now in (layers[i + 1].weight, w_out))
            assert torch.equal(ours, theirs)
            renewed += int(ours.sum())
    assert renewed >= 2


def test_the_reference_code_of_plasticity_injection_gives_the_function_and_the_gradients():
    net, x = make_net(), torch.randn(16, 5, dtype=torch.float64)
    features, old, new = copy.deepcopy(net[:3]), copy.deepcopy(net[3:]), copy.deepcopy(make_net(5)[3:])
    ours = nn.Sequential(net[:3], Injectable(net[3:]))
    fresh = nn.Sequential(copy.deepcopy(features), Injectable(copy.deepcopy(new)))
    at_first = copy.deepcopy(new)
    old.requires_grad_(False)
    make_intervention("plasticity_injection").apply_(ours, (), make=lambda: copy.deepcopy(fresh))
    for part in (ours[0], ours[1].head, features, new):
        moved(part, 7)
    theirs = vectors.reference("plasticity_injection")["forward"](features(x), old, new, at_first)
    torch.testing.assert_close(ours(x), theirs)
    for output in (ours(x), theirs):
        output.square().sum().backward()
    for mine, its in ((ours[0], features), (ours[1].head, new)):
        for p, q in zip(mine.parameters(), its.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
