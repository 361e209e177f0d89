"""Networks of others: what is read of each, and what each method does with it, as its results have it."""

import csv
import re
from dataclasses import replace

import pytest
from foreign import FOREIGN
from foreign.__main__ import FILE
from foreign.matrix import CRASH, ORACLES, WRONG, Case, is_in, of_activation, result, results

from papers import foreign_networks
from rl_plasticity.interventions import INTERVENTIONS, recycling
from rl_plasticity.regularizers import REGULARIZERS
from rl_plasticity.structure import Structure, activations_of, structure

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* leaves alone:UserWarning"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
]


@pytest.fixture(scope="module", params=FOREIGN)
def network(request):
    """Name and case: one for all tests of a network, which is read once."""
    return request.param, Case(FOREIGN[request.param])


with FILE.open(newline="") as opened:
    RECORDED = [*csv.DictReader(opened)]


def test_the_results_have_every_network_and_method_with_and_without_an_example_and_are_counted():
    found = [(row["network"], row["method"], row["example"]) for row in RECORDED]
    assert found == [(name, method, given) for name in FOREIGN for method in ORACLES for given in ("yes", "no")]
    assert f"{len(FOREIGN)} networks" in (FILE.parents[2] / "README.md").read_text()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in foreign_networks.table(RECORDED)]
    assert [line[0] for line in lines[2:]] == [*ORACLES]
    assert all(sum(map(int, line[1:4])) == len(FOREIGN) for line in lines[2:])
    # These act on parameters, whichever layers they are of.
    by_parameter = {"periodic", "optimizer", "shrink_perturb", "selective_reinit"}
    by_parameter |= {"l2_init", "wasserstein", "ewc", "weight_decay", "hare_tortoise"}  # as l2
    as_another = {"dash", "regrama", "plasticity_injection"}  # as fire and redo; the last in networks made for it
    expected = {*REGULARIZERS, *INTERVENTIONS} - {"none"} - by_parameter - as_another
    assert {method.split()[0] for method in ORACLES} == expected


def test_each_method_is_right_or_refused_as_the_results_say(network):
    name, case = network
    found = results(case)
    assert not {cell: r for cell, r in found.items() if r.word in (WRONG, CRASH)}
    words = {(method, "yes" if given else "no"): r.word for (method, given), r in found.items()}
    of_network = [row for row in RECORDED if row["network"] == name]
    recorded = {(row["method"], row["example"]): row["outcome"] for row in of_network}
    assert words == recorded, "python -m foreign, in tests, writes the results again"
    said = {(method, "yes" if given else "no"): ours(r.why) for (method, given), r in found.items()}
    assert said == {(row["method"], row["example"]): ours(row["message"]) for row in of_network}


def ours(message: str) -> str:
    """A message without torch's reason for not tracing, which changes with its version."""
    return re.sub(r"cannot be traced \(.*\):", "cannot be traced:", message)


def structure_of(case, with_example) -> Structure | None:
    try:
        return case.structure(with_example)
    except ValueError:
        return None


def test_what_is_read_is_what_the_definition_says(network):
    _, case = network
    net, expected, found = case.fresh(), case.expected, structure_of(case, True)
    if not expected.followed:
        if found is not None and found.unknown is None:
            assert {layer.role for layer in found.layers} == {"undecided"}
        return
    assert found.unknown is None
    assert not found.unreached
    assert all(is_in(name, expected.undecided) for name in found.undecided)
    known = {name for name in case.parameters if not is_in(name, expected.undecided) and not of_activation(net, name)}
    held = {n for layer in found.layers if layer.role != "undecided" for n in layer.parameter_names}
    computed = {name for name in known | held if ".parametrizations." in f".{name}"}
    assert held - computed == known - computed
    for role in ("norm", "gain"):
        gains = {layer.weight_name for layer in found.layers if layer.role == role and layer.weight_name}
        assert gains == {name for name in case.parameters if is_in(name, getattr(expected, f"{role}s"))}
    for seen in (found, structure_of(case, False)):
        heads = {node.name for node in seen.nodes if node.head}
        assert heads == (set(expected.heads) if seen.unknown is None else set())
    assert (seen.unknown is None) == expected.traced
    units = found.hidden_units(net)
    assert len(units) == expected.units
    for unit, activation in zip(units, activations_of(net, units, case.example) if units else [], strict=True):
        axis = 1 if unit.incoming.role == "conv" else -1
        assert activation.shape[axis] == unit.incoming.matrix(net).shape[-2]


def misread(structure, **wrong):
    """The structure with `wrong` in its first layer of a kind, as if it had been read so."""
    nodes = [*structure.nodes]
    i = next(i for i, node in enumerate(nodes) if node.role == wrong.get("of", "linear") and node.weight_name)
    nodes[i] = replace(nodes[i], **{key: value for key, value in wrong.items() if key != "of"})
    return replace(structure, nodes=tuple(nodes))


MISREAD = {
    "a gain for a bias": ("bert_like", {"of": "norm", "role": "parameter"}, ("spectral", "wrs", "swr")),
    "a hidden layer for the head": ("vgg", {"head": True}, ("wrs", "parseval", "orthogonal", "normalize_project")),
    "a matrix as it is not stored": ("gpt2_like", {"transposed": False}, ("wrs", "weight_clipping", "hypersphere")),
    "a layer that is left out": (
        "dueling_dqn", {"weight_name": None, "bias_name": None},
        ("spectral", "weight_clipping", "hypersphere", "wrs", "swr"),
    ),
    "a weight without its bias": ("dueling_dqn", {"bias_name": None}, ("spectral", "weight_clipping")),
    "no layer before it": ("vgg", {"inputs": ()}, ("swr", "swr scope=preserving")),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISREAD)
def test_an_oracle_finds_what_was_misread(kind):
    name, wrong, methods = MISREAD[kind]
    case = Case(FOREIGN[name])
    case._read[True] = replace(misread(case.structure(True), **wrong), example=None)
    assert {method: result(case, method, True).word for method in methods} == dict.fromkeys(methods, WRONG)


@pytest.mark.parametrize("name", ["flatten_positions", "view_tokens", "channels_averaged"])
def test_an_oracle_finds_units_whose_columns_are_not_theirs(name, monkeypatch):
    for module in (structure, recycling):
        monkeypatch.setattr(module, "recyclable", lambda net, units, example: [*units], raising=False)
    assert result(Case(FOREIGN[name]), "redo", True).word == WRONG
