"""docs/vectors: what the reference code of the methods makes, beside what the package makes."""

import copy
import json
import runpy

import pytest
import torch
from conftest import called
from folders import script
from safetensors.torch import load_file, save_file
from torch import nn

from rl_plasticity import INTERVENTIONS, REGULARIZERS, make_intervention, make_regularizer
from rl_plasticity.networks import Injectable

vectors = script("make_vectors")
INDEX = json.loads((vectors.FOLDER / "vectors.json").read_text())
GIVEN, EXPECTED = (load_file(vectors.FOLDER / f"{name}.safetensors") for name in ("given", "expected"))
CHECKER = runpy.run_path(str(vectors.FOLDER / "check.py"))
# The package's settings, where it has other ones than the reference code.
SETTINGS = {name: method["settings"] for name, method in INDEX.items()} | {
    "fire": {"iterations": 60},
    "self_normalized_resets": {"most": 160, "least": 1},
    "shrink_perturb": {"coef": 0.2, "init": "fresh"},
}
# Where power iteration follows singular values: how often before each update, and how near it comes.
CALLS = {"spectral": 150, "feature_rank": 50}
TOLERANCES = {"spectral": 1e-5, "feature_rank": 5e-3}


def of(method):
    return {name: tensor for name, tensor in EXPECTED.items() if name.startswith(f"{method}/")}


def network(kind, when, injectable):
    net = vectors.given_network(kind, when, GIVEN)
    return nn.Sequential(*net[:-1], Injectable(net[-1])) if injectable else net


def trained(method, settings):
    """Ten updates by the package, as docs/vectors.md describes them; without the method if `settings` is None."""
    kind, injectable = INDEX[method]["network"], method == "plasticity_injection"
    net, before, fresh = (network(kind, when, injectable) for when in ("initial", "before", "fresh"))
    acts, regularizer = settings is not None, make_regularizer("none", net)
    if acts and method in REGULARIZERS:
        regularizer = make_regularizer(method, net, **settings)
    net.load_state_dict(before.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), **vectors.ADAM)
    gradients, made = vectors.under(GIVEN, f"{kind}/gradients"), {}
    for update, x in enumerate(GIVEN["inputs"], start=1):
        for _ in range(CALLS.get(method, 1)):
            penalty = regularizer.penalty(net, (x,))
        optimizer.zero_grad()
        (penalty + 0 * sum(p.sum() for p in net.parameters())).backward()
        named = {name.replace(".head", ""): p for name, p in net.named_parameters()}
        for name, p in named.items():
            p.grad += gradients[name][update - 1]
        regularizer.observe_(net, {name: p.grad for name, p in net.named_parameters()})
        optimizer.step()
        regularizer.project_(net, *regularizer.given_lr(vectors.ADAM["lr"]))
        if acts and method in INTERVENTIONS and update == 1:
            make = {"make": lambda: copy.deepcopy(fresh), "example": (x,)}
            make_intervention(method, **settings).apply_(net, optimizer, **make)
        if update in vectors.SAVED:
            now = {name: p.detach().clone() for name, p in named.items()}
            now |= {"penalty": penalty.detach().double(), "outputs": net(x).detach()}
            made |= {f"{method}/{update}/{name}": t for name, t in now.items()}
    return {name: made[name] for name in of(method)}


def error(made, method):
    """The largest, by the checker."""
    return max(CHECKER["error"](made[name].numpy(), tensor.numpy()) for name, tensor in of(method).items())


def test_every_method_has_vectors():
    assert {*INDEX} == {*REGULARIZERS, *INTERVENTIONS} - {"none"}


@pytest.mark.parametrize("method", INDEX)
def test_the_files_are_what_the_reference_code_makes(method):
    settings = (vectors.REGULARIZERS | vectors.INTERVENTIONS)[method]
    made = vectors.expected(method, settings, GIVEN)
    assert INDEX[method]["settings"] == settings
    torch.testing.assert_close(made, of(method), equal_nan=True, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", INDEX)
@pytest.mark.filterwarnings("ignore:.*changes the function where no norm layer follows")
def test_the_package_makes_the_vectors(method):
    assert error(trained(method, SETTINGS[method]), method) < TOLERANCES.get(method, 1e-10)


@pytest.mark.parametrize(("name", "settings"), [
    ("continual_backprop", {"coef": 0.1, "maturity": 2, "decay": 0.9}),
    ("self_normalized_resets", {"most": 24, "every_updates": 1000, "least": 1}),
])  # fmt: skip
def test_the_reference_code_of_renewed_units_renews_the_same_ones_of_those_that_are_used(name, settings):
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    net[0].bias.data[3] = -50  # silent for ever, whatever comes
    method, renew, layers = make_regularizer(name, net, **settings), vectors.reference(name)["renew_"], net[::2]
    kinds, renewed = {"use": 1, "age": 1, "due": 0}, 0
    state = [{kind: torch.zeros(n if each else 1).double() for kind, each in kinds.items()} for n in (8, 6)]
    for _ in range(12):
        x = torch.randn(8, 5).double()
        activations = vectors.activations(net, x)
        method.penalty(net, (x,))
        before = [layer.weight.detach().clone() for layer in layers]
        method.project_(net)
        for i, h in enumerate(activations):
            out = before[i + 1].clone()
            known = {"w_in": before[i].clone(), "b_in": torch.zeros(len(before[i])), "w_out": out, "h": h}
            vectors.call(renew, known | {"threshold": settings.get("most")} | settings | state[i])
            ours, theirs = (((now == 0) & (before[i + 1] != 0)).any(0) for now in (layers[i + 1].weight, out))
            assert torch.equal(ours, theirs)
            renewed += int(ours.sum())
    assert renewed >= 2


def check(*arguments):
    """The status, how many methods are right and how many are wrong, and what else was said."""
    status, out, err = called(lambda: runpy.run_path(str(vectors.FOLDER / "check.py"), run_name="__main__"), *arguments)
    return status, out.count("right  "), out.count("WRONG  "), err


def test_the_checker_finds_the_expected_tensors_right(tmp_path):
    save_file(EXPECTED | {n: t.nan_to_num(7.0) for n, t in EXPECTED.items()}, tmp_path / "mine.safetensors")
    assert check(tmp_path / "mine.safetensors", "1e-15") == (0, len(INDEX), 0, "")


def test_the_checker_finds_updates_without_a_method_wrong(tmp_path):
    without = {name: tensor for method in INDEX for name, tensor in trained(method, None).items()}
    save_file(without, tmp_path / "mine.safetensors")
    assert check(tmp_path / "mine.safetensors") == (1, 0, len(INDEX), "")
