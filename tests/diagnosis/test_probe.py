"""What a probe gathers, against the pure functions on what it should have gathered; and that it changes nothing."""

import copy

import numpy as np
import pytest
import torch
from conftest import CASES, assert_equal_states, disturbed, nothing_drawn, plain_mlp
from foreign.expected import made_of
from torch import nn

import rl_plasticity
from rl_plasticity.diagnosis.probe import Probe, measure, size_of
from rl_plasticity.learning.learner import Learner
from rl_plasticity.metrics import (
    METRICS,
    OfFeatures,
    OfGradients,
    OfWeights,
    dormant_fraction,
    effective_rank,
    singular_values,
    stable_rank,
)
from rl_plasticity.metrics.measured import Metric
from rl_plasticity.networks import MLP, Injectable, make_network
from rl_plasticity.regularizers import make_regularizer
from rl_plasticity.training.epochs import cross_entropy


def learner_of(seeds=(3, 4), layer_norm=False):
    return Learner(lambda seeds: MLP((5, 8, 6, 3), seeds, layer_norm), seeds)


def labelled(n=40, runs=2):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(runs, n, 5, generator=generator), torch.randint(3, (runs, n), generator=generator)


def train(learner, updates=3):
    for i in range(updates):
        x, y = labelled()
        learner.minimize(cross_entropy(learner.net(x + i), y))


def test_the_mean_over_layers_and_each_layer_are_those_of_its_own_weights():
    learner = learner_of()
    train(learner)
    found = Probe(learner, [labelled()[0]]).measure(cross_entropy, [labelled()[1]])
    spectra = [singular_values(p.detach()) for n, p in learner.net.named_parameters() if n.endswith("weight")]
    torch.testing.assert_close(found["stable_rank"], torch.stack([stable_rank(s) for s in spectra]).mean(0))
    torch.testing.assert_close(found["effective_rank/2"], effective_rank(spectra[1]))
    torch.testing.assert_close(found["mean_sigma1"], torch.stack([s[..., 0] for s in spectra]).mean(0))
    assert found["stable_rank"].shape == (2,)
    assert "sigma1" not in found  # that name is the largest of any layer, in `size_of`
    sizes = size_of(learner, torch.tensor([2.0, 3.0]))
    torch.testing.assert_close(sizes["sigma1"], torch.stack([s[..., 0] for s in spectra]).amax(0))
    torch.testing.assert_close(sizes["effective_lr"], torch.tensor([2.0, 3.0]) / sizes["weight_norm"])


def test_what_somebody_adds_is_measured_of_every_layer_or_unit_like_the_others(monkeypatch):
    learner = learner_of()
    x, y = labelled()
    monkeypatch.setitem(METRICS, "nuclear_norm", OfWeights(lambda matrix, s: s.sum(-1)))
    monkeypatch.setitem(METRICS, "positive", OfFeatures(lambda h, s: (h > 0).sum((-1, -2))))  # integers
    monkeypatch.setitem(METRICS, "gradient_norms", OfGradients(lambda s: s.square().sum(-1)))
    values = Probe(learner, [x]).measure(cross_entropy, [y])
    nuclear = [torch.linalg.matrix_norm(learner.net[i].weight.detach(), ord="nuc") for i in (0, 2, 4)]
    torch.testing.assert_close(values["nuclear_norm/2"], nuclear[1])
    torch.testing.assert_close(values["nuclear_norm"], torch.stack(nuclear).mean(0))
    hidden = torch.relu(learner.net[0](x))
    assert values["positive/1"].tolist() == (hidden > 0).sum((-1, -2)).tolist()
    assert values["gradient_norms"].shape == (2,)
    for bare in (abs, Metric(abs)):
        with pytest.raises(TypeError, match=r"'bare'.*OfWeights.*abs"):
            METRICS["bare"] = bare
        with pytest.raises(TypeError, match="'bare'"):
            METRICS.__ior__({"bare": bare})


def test_a_unit_that_is_dead_or_read_by_nothing_gets_no_gradient_and_weights_without_gradient_do_not_move():
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.copy_(torch.tensor([0.0, -100.0, 0.0, 0.0]))  # the second unit is dead
        net[2].weight.copy_(torch.tensor([[1.0, 1.0, 0.0, 2.0]]))  # nothing reads the third
    x, y = torch.ones(8, 2), torch.zeros(8, 1)
    probe = Probe(net, x)
    assert probe.measure(nn.functional.mse_loss, y)["gradient_dormant"].item() == 0.5
    assert probe.measure()["moved"].item() == 0
    nn.functional.mse_loss(net(x), y).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    # Of 17 numbers: 2 units with 2 weights and a bias, 2 columns of the head and of the unread unit a third, its bias.
    assert probe.measure()["moved"].item() == pytest.approx(10 / 17)
    net[0].weight.requires_grad_(False)
    assert "gradient_dormant" not in Probe(net, x).measure(nn.functional.mse_loss, y)


def test_the_representation_change_is_since_the_last_measurement_and_the_distance_since_the_run_s_last_start():
    learner = learner_of()
    x, y = labelled()
    probe = Probe(learner, [x])
    found = [probe.measure(cross_entropy, [y])]
    train(learner)
    found += [probe.measure(cross_entropy, [y]) for _ in range(2)]
    assert [(f["representation_change"] > 0).tolist() for f in found] == [[False] * 2, [True] * 2, [False] * 2]
    assert [(f["distance"] > 0).tolist() for f in found] == [[False] * 2, [True] * 2, [True] * 2]
    learner.restart_(torch.tensor([1]))
    assert (probe.weights()["distance"] > 0).tolist() == [True, False]


@pytest.mark.parametrize("case", ["plain", "stacked_cnn_bn", "cnn_bn", "foreign"])
def test_any_network_is_measured_in_one_line_by_the_names_and_numbers_of_training_and_nothing_of_it_changes(case):
    kind = CASES[case]
    x, k = kind.input(), len(kind.runs)
    learner = Learner(kind.of_seeds, range(*(kind.runs or (1,))), lambda net: make_regularizer("spectral", net))
    learner.net(x).sum().backward()
    gradients = {name: p.grad.clone() for name, p in learner.net.named_parameters()}
    before = copy.deepcopy(learner.state_dict())

    def loss(output):
        return output.square().flatten(k).mean(-1)

    probe = Probe(learner, [x])
    with nothing_drawn():
        expected = probe.measure(loss, []) | size_of(learner, torch.ones(kind.runs))
    assert all(value.shape == kind.runs for value in expected.values())
    if case == "foreign":  # tokens between examples and units, see the next test
        expected = {name: value for name, value in expected.items() if "dormant" not in name and "feature" not in name}
    with nothing_drawn():
        found = rl_plasticity.measure(learner.net, x, loss)
    assert_equal_states(learner.state_dict(), before)
    assert_equal_states({name: p.grad for name, p in learner.net.named_parameters()}, gradients)
    assert all(m.training for m in learner.net.modules())
    # These are relative to something that a network alone does not have.
    for name in expected.keys() - {"distance", "moved", "representation_change", "effective_lr"}:
        assert torch.equal(found[name], expected[name]), name
    assert not {"distance", "representation_change", "effective_lr"} & found.keys()
    without = measure(learner, (x,))
    assert {name for name in found if name not in without} == {name for name in found if "gradient" in name} != set()
    assert all(torch.equal(found[name], value) for name, value in without.items())


def test_behind_tokens_the_units_are_in_the_last_axis_and_metrics_are_float32_in_any_format():
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        net[0].bias[:5] = -100.0
    x = torch.randn(6, 4, 3)  # examples, tokens, features
    found = measure(net, x)
    assert {value.dtype for value in measure(copy.deepcopy(net).bfloat16(), x.bfloat16()).values()} == {torch.float32}
    hidden = net[1](net[0](x)).flatten(0, 1)
    assert found["dead"] == 5 / 8
    torch.testing.assert_close(found["dormant"], dormant_fraction(hidden, 0.025))
    torch.testing.assert_close(found["feature_rank"], effective_rank(singular_values(hidden)))


def test_an_example_is_a_tensor_a_tuple_or_a_dict_and_targets_are_one_or_several():
    net = made_of(lambda net, obs, act: net.body(obs - 2 * act), body=plain_mlp())
    a, b, y = torch.randn(6, 5), torch.randn(6, 5), torch.randint(3, (6,))
    loss = nn.functional.cross_entropy
    expected = measure(net.body, a - 2 * b, loss, y)
    for example, targets in (((a, b), y), ([a, b], (y,)), ({"act": b, "obs": a}, y)):
        found = measure(net, example, loss, targets)
        torch.testing.assert_close(found, {name.replace("/", "/body."): value for name, value in expected.items()})


def test_a_probe_of_a_network_measures_from_its_parameters_when_it_was_made_and_saves_them():
    net, x = plain_mlp(), torch.randn(6, 5)
    probe = Probe(net, x)
    assert probe.measure()["distance"] == probe.measure()["representation_change"] == 0
    start = [p.detach().clone() for p in net.parameters()]
    disturbed(net)
    values = probe.measure()
    expected = torch.stack([(p - q).square().sum() for p, q in zip(net.parameters(), start, strict=True)]).sum().sqrt()
    torch.testing.assert_close(values["distance"], expected)
    assert values["representation_change"] > 0
    assert values["weight_norm"] == measure(net, x)["weight_norm"]
    rebuilt = Probe(net, x)
    assert rebuilt.weights()["distance"] == 0
    rebuilt.load_state_dict(probe.state_dict())
    assert rebuilt.measure()["distance"] == values["distance"]
    assert not any("net" in name or "body" in name for name in probe.state_dict())


MLP_, ROWS = plain_mlp(), torch.ones(6, 5)


@pytest.mark.parametrize(("given", "named"), [
    ((nn.Sequential(nn.ReLU()), ROWS), "no layer"),
    ((MLP_, torch.ones(5)), r"example.*batch.*\[8\]"),
    ((MLP_, ROWS, None, torch.ones(6)), "targets.*loss"),
    ((MLP_, ROWS, ROWS), "loss.*Tensor.*not callable"),
    ((MLP_, ROWS, nn.functional.mse_loss, torch.ones(5, 3)), r"examples.*\[6, 5\], \[5, 3\]"),
    ((MLP_, ROWS, lambda output: output.sum() * output.sum().item()), "RuntimeError"),
])  # fmt: skip
def test_what_cannot_be_measured_is_said_in_one_line(given, named):
    with pytest.raises(ValueError, match=named) as error:
        measure(*given)
    assert "\n" not in str(error.value)


def with_head(cell):
    return made_of(lambda net, *inputs: net.head(net.cell(*inputs)[0]), cell=cell, head=nn.Linear(8, 3))


ATTENTION = nn.MultiheadAttention(8, 2, kdim=5, vdim=6, batch_first=True)


@pytest.mark.parametrize(
    ("net", "shapes"),
    [(with_head(nn.LSTM(5, 8, 2)), [(6, 4, 5)]), (with_head(ATTENTION), [(6, 4, 8), (6, 4, 5), (6, 4, 6)])],
)
@pytest.mark.filterwarnings("ignore:measure has no metrics of all hidden units")
def test_every_matrix_of_a_module_is_measured_under_a_name_of_its_own(net, shapes):
    found = measure(net, tuple(torch.randn(shape) for shape in shapes))
    matrices = {name: p.detach().double().numpy() for name, p in net.named_parameters() if p.ndim == 2}
    sigmas = [np.linalg.norm(m, 2) for m in matrices.values()]
    np.testing.assert_allclose(found["mean_sigma1"], np.mean(sigmas), rtol=1e-5)
    assert len([name for name in found if name.startswith("frobenius_norm/")]) == len(matrices) > 3
    for name, matrix in matrices.items():
        found_norm = found[f"frobenius_norm/{name.removesuffix('.weight')}"]
        np.testing.assert_allclose(found_norm, np.linalg.norm(matrix), rtol=1e-5)


def moved(layer, move, after):
    """A layer whose units are moved to other axes before the activation."""
    return made_of(lambda net, x: net.after(torch.relu(move(net.layer(x)))), layer=layer, after=after)


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (moved(nn.Linear(5, 48), lambda h: h.view(-1, 3, 4, 4), nn.ConvTranspose2d(3, 2, 2)), (7, 5)),
        (moved(nn.Linear(5, 6), lambda h: h.transpose(1, 2), nn.Conv1d(6, 2, 1)), (7, 9, 5)),
        (moved(nn.Conv2d(5, 6, 1), lambda h: h.permute(0, 2, 3, 1), nn.Linear(6, 2)), (7, 5, 4, 4)),
        (moved(nn.Conv2d(5, 6, 1), lambda h: h.flatten(1), nn.Identity()), (7, 5, 4, 4)),
    ],
    ids=["decoder", "transposed", "channels last", "flattened"],
)
def test_units_that_were_moved_to_another_axis_are_left_out_with_the_reason(net, shape):
    with pytest.warns(UserWarning, match="'layer'"):
        found = measure(net, torch.randn(shape))
    assert "dormant" not in found
    assert "moved to another axis" in found.left_out["dormant"]
    assert found["stable_rank"] > 0


@pytest.mark.parametrize(
    ("faulty", "why"),
    [
        (lambda matrix: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda matrix: matrix, r"shape \[\], got \[3, .*\]"),
        (lambda matrix: 1.0, "AttributeError: 'float'"),
    ],
)
def test_a_metric_that_fails_is_nan_by_name_and_takes_no_other_with_it(monkeypatch, faulty, why):
    x, expected = torch.randn(6, 5), measure(plain_mlp(), torch.randn(6, 5)).keys()
    mine = OfWeights(lambda matrix, s: faulty(matrix) if matrix.shape[-2] == 3 else s[..., 0])
    monkeypatch.setitem(METRICS, "mine", mine)
    with pytest.warns(UserWarning, match=f"mine of '4'.*{why}"):
        found = measure(plain_mlp(), x)
    assert found["mine/4"].isnan()
    assert found["mine/0"] > 0
    assert expected <= found.keys()


@pytest.mark.parametrize(
    ("kind", "bounds"), [(nn.Tanh, (-1, 1)), (nn.Sigmoid, (0, 1)), (nn.Softsign, (-1, 1)), (nn.Hardsigmoid, (0, 1))]
)
def test_a_saturated_network_shows_as_such(kind, bounds):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(17, 64), kind(), nn.Linear(64, 64), kind(), nn.Linear(64, 6)), torch.randn(50, 17)
    shares = []
    for scale in (0.1, 20.0):
        with torch.no_grad():
            net[0].weight.mul_(scale), net[2].weight.mul_(scale * 10)
        found = measure(net, x)
        for i in (1, 3):
            h = np.asarray(net[: i + 1](x).detach().double())
            z = (2 * h - sum(bounds)) / (bounds[1] - bounds[0])
            np.testing.assert_allclose(found[f"saturated/{i}"], np.mean(np.abs(z) > 0.99), atol=1e-3)
        shares.append(found["saturated"])
    assert shares[0] < 0.01 < 0.03 < shares[1]
    assert "saturated" not in measure(plain_mlp(), torch.randn(6, 5))


def test_an_actor_s_tanh_and_the_copies_of_an_injection_are_no_hidden_units():
    x, of_units = torch.randn(50, 4), [*METRICS]
    trunk, head = [nn.Linear(4, 8), nn.ReLU()], [nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)]
    plain = measure(nn.Sequential(*trunk, *head), x)
    for net in (nn.Sequential(*trunk, *head, nn.Tanh()), nn.Sequential(*trunk, Injectable(nn.Sequential(*head)))):
        found = measure(net, x)
        assert {name: found[name] for name in of_units if name in found} == {
            name: plain[name] for name in of_units if name in plain
        }
    assert "dormant" in measure(nn.Sequential(*trunk), x)  # features that others read
    assert "dormant" in measure(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), *head[:1]), x)


def test_training_measures_the_units_that_measure_does_also_those_that_cannot_be_recycled():
    shape, x = (3, 8, 8), torch.rand(6, 3, 8, 8)
    learner = Learner(lambda seeds: make_network("resnet18", shape, 4, seeds), [0])
    of_learner, of_net = Probe(learner, [x]).measure(), measure(learner.net, x)
    assert {n for n in of_learner if n.startswith("dormant")} == {n for n in of_net if n.startswith("dormant")}
    assert "dormant" in of_learner


def test_what_a_network_or_a_call_has_not_is_listed_with_the_reason():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x, labels = torch.randn(8, 4), torch.randint(2, (8,))
    values = measure(net, x)
    assert {*values.left_out} == {
        *("gradient_condition", "gradient_rank", "gradient_dormant", "saturated"),
        *("distance", "moved", "representation_change"),
    }
    assert "loss" in values.left_out["gradient_rank"]
    assert "gradient_rank" not in measure(net, x, nn.functional.cross_entropy, labels).left_out
    with pytest.raises(KeyError, match=r"'dormnat'.*'dormant'"):
        values["dormnat"]
    assert values.get("dormnat") is None
