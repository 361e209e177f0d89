"""What is read of other people's networks, and that each method does the right thing with it or refuses."""

import copy
import random
import warnings
from fnmatch import fnmatchcase

import numpy as np
import pytest
import torch
from foreign import FOREIGN, HAS_TRANSFORMERS

from rl_plasticity.regularizers import make_regularizer
from rl_plasticity.structure import activations_of, read

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* leaves alone:UserWarning"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
]
OF_TRANSFORMERS = ("bert", "gpt2", "llama", "t5")


def cases():
    """Every network that can be read."""
    missing = pytest.mark.skipif(not HAS_TRANSFORMERS, reason="needs transformers")
    names = [name for name, expected in FOREIGN.items() if expected.followed]
    return [pytest.param(name, marks=[missing] if name in OF_TRANSFORMERS else []) for name in names]


MADE = {}


def made(name):
    """A network, a copy of one that is made once, and what has to be read of it."""
    expected = FOREIGN[name]
    if name not in MADE:
        torch.manual_seed(0)
        MADE[name] = expected.make()
        moved = torch.Generator().manual_seed(7)
        for p in MADE[name].parameters():  # biases that start at zero would hide what is left out
            if p.ndim == 1 and not p.any():
                p.data.normal_(0, 0.5, generator=moved)
    return copy.deepcopy(MADE[name]), expected


def is_in(name, patterns):
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def matrices(net, expected, tables=True):
    """By name, ``(matrix [out, fan_in], parameter's name)`` of every weight, as the definition has it."""
    found = {}
    for name, module in net.named_modules():
        if hasattr(module, "parametrizations"):
            found[f"{name}.weight"] = module.weight.flatten(1)
    for name, p in net.named_parameters():
        left_out = expected.undecided + expected.vectors + (() if tables else expected.tables)
        if is_in(name, left_out) or p.ndim < 2 or not p.requires_grad or ".parametrizations." in name:
            continue
        if is_in(name, expected.stacks + expected.stacks_of_rows):
            found |= {f"{name}.{i}": part.mT if is_in(name, expected.stacks) else part for i, part in enumerate(p)}
        elif is_in(name, expected.transposed):
            groups = getattr(net.get_submodule(name.rpartition(".")[0]), "groups", 1)
            found[name] = p.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flatten(1)
        elif name.startswith("transformer.h.") and p.ndim == 2:  # GPT-2 stores [in, out]
            found[name] = p.mT
        elif is_in(name, expected.tables) and "." not in name:
            found[name] = p.reshape([n for n in p.shape if n != 1])
        else:
            found[name] = p.flatten(1)
    return found


@pytest.mark.parametrize("name", cases())
def test_every_parameter_is_a_layer_s_or_undecided_as_expected(name):
    net, expected = made(name)
    structure = read(net, expected.example())
    assert structure.unknown is None
    assert not structure.unreached
    held = {n for layer in structure.layers if layer.role != "undecided" for n in layer.parameter_names}
    assert all(is_in(n, expected.undecided) for n in structure.undecided)
    expect = {n for n, p in net.named_parameters() if p.requires_grad and not is_in(n, expected.undecided)}
    assert {n for n in held if ".parametrizations." not in n} == {n for n in expect if ".parametrizations." not in n}


@pytest.mark.parametrize("name", cases())
def test_the_heads_are_those_of_the_definition_and_without_an_example_these_or_unknown(name):
    net, expected = made(name)
    structure = read(net, expected.example())
    assert {node.name for node in structure.nodes if node.head} == set(expected.heads)
    traced = read(net)
    assert (traced.unknown is None) == expected.traced
    if traced.unknown is None:
        assert {node.name for node in traced.nodes if node.head} == set(expected.heads)
    else:
        assert not any(node.head for node in traced.nodes)


@pytest.mark.parametrize("name", cases())
def test_the_first_spectral_penalty_is_that_of_singular_values_over_exactly_the_expected_matrices(name):
    net, expected = made(name)
    total = sum((torch.linalg.svdvals(m.float())[0] ** 2 - 1) ** 2 for m in matrices(net, expected).values())
    for n, p in net.named_parameters():
        is_vector = (p.ndim == 1 or is_in(n, expected.vectors)) and p.requires_grad
        if is_vector and not is_in(n, expected.undecided) and ".parametrizations." not in n:
            is_gain = is_in(n, expected.norms + expected.gains)
            total += (p - 1).square().sum() if is_gain else p.square().sum() ** 2
    penalty = make_regularizer("spectral", net, example=expected.example(), coef=1.0).penalty(net)
    torch.testing.assert_close(penalty, total, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", cases())
def test_gains_of_norm_layers_are_read_as_such(name):
    net, expected = made(name)
    layers = read(net, expected.example()).layers
    names = [n for n, p in net.named_parameters() if p.requires_grad]
    for role, patterns in (("norm", expected.norms), ("gain", expected.gains)):
        read_so = {layer.weight_name for layer in layers if layer.role == role and layer.weight_name}
        assert read_so == {n for n in names if is_in(n, patterns)}


@pytest.mark.parametrize("name", cases())
def test_reading_changes_nothing_and_draws_nothing(name):
    net, expected = made(name)
    net.train()
    next(net.children()).eval()
    example = expected.example()
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    state = {n: t.clone() for n, t in (*net.named_parameters(), *net.named_buffers())}
    modes = [m.training for m in net.modules()]
    random.seed(3), np.random.seed(3), torch.manual_seed(3)  # noqa: NPY002
    read(net)
    read(net, example)
    drawn = random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002
    random.seed(3), np.random.seed(3), torch.manual_seed(3)  # noqa: NPY002
    assert drawn == (random.random(), np.random.rand(), torch.rand(()).item())  # noqa: NPY002
    assert modes == [m.training for m in net.modules()]
    after = {n: t for n, t in (*net.named_parameters(), *net.named_buffers())}
    assert after.keys() == state.keys()
    assert all(torch.equal(state[n], t) for n, t in after.items())
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in net.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


@pytest.mark.parametrize("name", cases())
def test_wrs_gives_each_hidden_unit_a_weight_of_norm_one_and_leaves_heads_and_tables_alone(name):
    net, expected = made(name)
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    regularizer = make_regularizer("wrs", net, example=expected.example(), every_updates=1, norm_decay=0.0)
    regularizer.project_(net)
    changed = set()
    for n, matrix in matrices(net, expected, tables=False).items():
        if n.rpartition(".")[0] not in expected.heads:
            torch.testing.assert_close(matrix.norm(dim=1), torch.ones(len(matrix)), msg=lambda m, n=n: f"{n}: {m}")
            changed.add(n if n in before else n.rpartition(".")[0])
    for n, p in net.named_parameters():
        assert n in changed or torch.equal(p, before[n]), n


@pytest.mark.parametrize("name", cases())
def test_swr_of_strength_one_gives_every_weight_its_initial_norm_back(name):
    net, expected = made(name)
    bare = [n for n, _ in net.named_parameters() if "." not in n and not is_in(n, expected.stacks + expected.gains)]
    first = {n: m.detach().norm() for n, m in matrices(net, expected).items() if n not in bare}
    gains = {n: p.detach().norm() for n, p in net.named_parameters() if is_in(n, expected.norms + expected.gains)}
    regularizer = make_regularizer("swr", net, example=expected.example(), coef=1.0)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1.5)
    regularizer.project_(net)
    after = matrices(net, expected)
    for n, norm in first.items():
        torch.testing.assert_close(after[n].norm(), norm, rtol=1e-4, atol=1e-6, msg=lambda m, n=n: f"{n}: {m}")
    for n, norm in gains.items():
        torch.testing.assert_close(net.get_parameter(n).norm(), norm, rtol=1e-4, atol=1e-6)
    assert all(p.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("name", cases())
def test_l2_init_is_half_the_squared_distance_from_the_start_whatever_could_be_read(name):
    net, expected = made(name)
    for example in (None, expected.example()):
        regularizer = make_regularizer("l2_init", net, example=example, coef=2.0)
        assert regularizer.penalty(net) == 0
        moved = copy.deepcopy(net)
        with torch.no_grad():
            for p in moved.parameters():
                p.add_(0.5)
        count = sum(p.numel() for p in net.parameters())
        torch.testing.assert_close(regularizer.penalty(moved), torch.tensor(0.25 * count))


@pytest.mark.parametrize("method", ["wrs", "swr"])
@pytest.mark.parametrize("name", cases())
def test_what_cannot_be_traced_is_refused_without_an_example(name, method):
    net, expected = made(name)
    if expected.traced:
        make_regularizer(method, net)
    else:
        with pytest.raises(ValueError, match=r"pass example=\(a real input, ...\)"):
            make_regularizer(method, net)


@pytest.mark.parametrize("name", cases())
def test_the_hidden_units_are_those_of_the_definition_and_their_activations_are_seen(name):
    net, expected = made(name)
    example = expected.example()
    units = read(net, example).hidden_units(net)
    assert len(units) == expected.units
    net.eval()
    if units:
        for unit, activation in zip(units, activations_of(net, units, example), strict=True):
            axis = 1 if unit.incoming.role == "conv" else -1
            assert activation.shape[axis] == unit.incoming.matrix(net).shape[-2]


@pytest.mark.skipif(not HAS_TRANSFORMERS, reason="needs transformers")
def test_llama_s_gains_start_at_no_penalty_and_stay_at_one_under_the_penalty_alone():
    net, expected = made("llama")
    regularizer = make_regularizer("spectral", net, example=expected.example(), coef=1.0)
    gains = [p for n, p in net.named_parameters() if is_in(n, expected.norms)]
    assert len(gains) == 5
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    first = regularizer.penalty(net).item()
    for _ in range(50):
        optimizer.zero_grad()
        regularizer.penalty(net).backward()
        optimizer.step()
    assert regularizer.penalty(net) < 0.5 * first
    assert all(torch.equal(gain, torch.ones_like(gain)) for gain in gains)


def output(net, example):
    """Of the network in evaluation mode, one tensor."""
    if isinstance(example, torch.Tensor):
        example = (example,)
    with torch.no_grad():
        out = net.eval()(**example) if isinstance(example, dict) else net.eval()(*example)
    return out[0] if isinstance(out, tuple) else getattr(out, "logits", out)


def after_a_projection(name, **settings):
    """The outputs of a network whose weights have grown, before and after swr's projection, and what swr says."""
    net, expected = made(name)
    example = expected.example()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        regularizer = make_regularizer("swr", net, example=example, coef=0.5, **settings)
    grown = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1 + torch.rand((), generator=grown))  # each by a factor of its own
        before = output(net, example)
        regularizer.project_(net)
    return before, output(net, example), " ".join(str(warning.message) for warning in said)


@pytest.mark.parametrize("name", cases())
def test_swr_that_is_to_preserve_the_function_does_so_or_refuses(name):
    try:
        before, after, _ = after_a_projection(name, scope="preserving")
    except ValueError as error:
        assert "scope=preserving needs" in str(error)  # noqa: PT017
    else:
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", cases())
def test_swr_scales_the_output_by_one_factor_or_says_that_it_does_not(name):
    before, after, said = after_a_projection(name)
    if "swr keeps f' = C f only approximately" not in said:
        factor = after.flatten() @ before.flatten() / before.square().sum()
        torch.testing.assert_close(after, factor * before, rtol=1e-4, atol=1e-5)
