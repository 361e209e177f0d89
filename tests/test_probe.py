"""What a probe gathers, against the pure functions on what it should have gathered; and that it changes nothing."""

import random

import numpy as np
import pytest
import torch
from conftest import CASES
from torch import nn

from rl_plasticity.learner import Learner
from rl_plasticity.metrics import (
    METRICS,
    OfFeatures,
    OfGradients,
    OfWeights,
    balancedness,
    dormant_fraction,
    effective_rank,
    singular_values,
    stable_rank,
)
from rl_plasticity.networks import MLP
from rl_plasticity.probe import Probe, size_of
from rl_plasticity.regularizers import make_regularizer
from rl_plasticity.supervised import cross_entropy


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
    monkeypatch.setitem(METRICS, "wrong", OfWeights(lambda matrix, s: s))
    with pytest.raises(ValueError, match=r"metric 'wrong': expected the shape \[2\], got \[2, 5\]"):
        Probe(learner, [x]).measure(cross_entropy, [y])


def test_features_are_read_after_the_non_linearity():
    learner = learner_of()
    with torch.no_grad():
        learner.net[0].weight[0, :4] = 0  # half the units of run 0 output their bias
        learner.net[0].bias[0, :4] = torch.tensor([-1.0, -1.0, 0.0, 1.0])
    found = Probe(learner, [labelled()[0]]).features()
    hidden = torch.relu(learner.net[0](labelled()[0]))
    torch.testing.assert_close(found["dormant/1"], dormant_fraction(hidden, 0.025))
    assert found["dead/1"][0] >= 3 / 8
    assert found["dead/1"][1] < 3 / 8


def test_one_run_among_others_is_measured_as_it_is_alone():
    x, y = labelled()
    together = Probe(learner_of(), [x]).measure(cross_entropy, [y])
    for i, seed in enumerate((3, 4)):
        alone = Probe(learner_of([seed]), [x[i : i + 1]]).measure(cross_entropy, [y[i : i + 1]])
        assert together.keys() == alone.keys()
        for name, value in together.items():
            torch.testing.assert_close(value[i : i + 1], alone[name], rtol=1e-3, atol=1e-5, msg=name)


def test_distance_is_from_the_weights_the_run_started_from_even_after_a_reset():
    learner = learner_of()
    probe = Probe(learner, [labelled()[0]])
    assert probe.weights()["distance"].tolist() == [0, 0]
    train(learner)
    assert (probe.weights()["distance"] > 0).all()
    learner.restart_(torch.tensor([1]))
    distance = probe.weights()["distance"]
    assert distance[0] > 0
    assert distance[1] == 0


def test_the_representation_change_is_since_the_last_measurement():
    learner = learner_of()
    x, y = labelled()
    probe = Probe(learner, [x])
    changes = [probe.measure(cross_entropy, [y])["representation_change"]]
    train(learner)
    changes += [probe.measure(cross_entropy, [y])["representation_change"] for _ in range(2)]
    assert changes[0].tolist() == changes[2].tolist() == [0, 0]
    assert (changes[1] > 0).all()


def test_a_saved_probe_goes_on_from_the_features_it_saw_last():
    learner = learner_of()
    x, y = labelled()
    probe = Probe(learner, [x])
    train(learner)
    probe.measure(cross_entropy, [y])
    train(learner)
    rebuilt = Probe(learner, [x])
    rebuilt.load_state_dict(probe.state_dict())
    expected, found = (p.measure(cross_entropy, [y])["representation_change"] for p in (probe, rebuilt))
    assert torch.equal(expected, found)
    assert (found > 0).all()


def test_balancedness_is_measured_only_where_rescaling_keeps_the_function():
    weights = [p.detach() for n, p in learner_of().net.named_parameters() if n.endswith("weight")]
    x = labelled()[0]
    torch.testing.assert_close(Probe(learner_of(), [x]).weights()["balancedness"], balancedness(weights, updates=50))
    assert "balancedness" not in Probe(learner_of(layer_norm=True), [x]).weights()
    tanh = Learner(lambda seeds: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)))
    assert "balancedness" not in Probe(tanh, [x[0]]).weights()


@pytest.mark.parametrize("case", ["plain", "stacked3", "cnn_bn", "stacked_cnn_bn", "foreign"])
def test_measuring_changes_nothing_of_the_training(case):
    learners = []
    for measured in (False, True):
        kind = CASES[case]
        torch.manual_seed(0)
        batches = [kind.input() for _ in range(3)]

        def make(seeds, kind=kind):
            return kind.make(seeds[0]) if len(seeds) == 1 else kind.of_seeds(seeds)

        seeds = range(*(kind.runs or (1,)))
        learner = Learner(make, seeds, lambda net: make_regularizer("spectral", net))
        learner.net.train()
        probe = Probe(learner, [batches[0]])
        for batch in batches:
            output = learner.net(batch)
            learner.minimize(output.square().reshape(*kind.runs, -1).mean(-1))
            if measured:
                k = len(kind.runs)
                random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
                found = probe.measure(lambda out, k=k: out.square().flatten(k).mean(-1), [])
                drawn = random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002
                random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
                assert drawn == (random.random(), np.random.rand(), torch.rand(()).item())  # noqa: NPY002
                assert all(value.shape == kind.runs for value in found.values())
                assert all(m.training for m in learner.net.modules())
        learners.append(learner.state_dict())
    for name, value in learners[0].items():
        assert torch.equal(value, learners[1][name]), name
