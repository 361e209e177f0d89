"""A method in a window of updates is the method inside it, and nothing outside."""

import importlib

import pytest
import torch
from conftest import refused
from folders import without_what_plugs_add

from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import SGD
from rl_plasticity.networks import make_network
from rl_plasticity.regularizers import make_regularizer
from rl_plasticity.training.epochs import cross_entropy


@pytest.fixture
def window(monkeypatch):
    """The plug's class, which is no choice for other tests."""
    with without_what_plugs_add(monkeypatch):
        yield importlib.import_module("papers.windows").Window


def trained(updates, regularize, act=lambda learner, n: None):
    """A stacked network after some updates, and the norms of its kernels' rows after each."""
    torch.manual_seed(0)
    learner = Learner(lambda seeds: make_network("cnn_bn", (1, 8, 8), 3, seeds), [0, 1], regularize, SGD)
    norms = []
    for n in range(updates):
        act(learner, n)
        learner.minimize(cross_entropy(learner.net(torch.rand(2, 6, 1, 8, 8)), torch.randint(3, (2, 6))))
        norms.append(next(learner.net.parameters()).detach().flatten(2).norm(dim=-1))
    return learner.net.state_dict(), norms


def test_a_penalty_acts_inside_its_window_alone(window):
    def switch(learner, n):
        learner.regularizer.coef.fill_(0.5 if 2 <= n < 5 else 0.0)

    def l2(net):
        return make_regularizer("l2", net, coef=0.5, of="kernels_and_gains")

    expected, _ = trained(8, l2, switch)
    found, _ = trained(8, lambda net: window(net, "l2", 0.5, 2, 5))
    never, _ = trained(8, lambda net: make_regularizer("none", net))
    torch.testing.assert_close(dict(found), dict(expected))
    assert any((found[name] - value).abs().max() > 1e-3 for name, value in never.items())
    before, _ = trained(8, lambda net: window(net, "l2", 0.5, 8))
    assert all(torch.equal(before[name], value) for name, value in never.items())


def test_a_projection_acts_inside_its_window_alone(window):
    _, norms = trained(31, lambda net: window(net, "wrs", from_update=10, until_update=20))
    of_unit_norm = [n for n, norm in enumerate(norms) if torch.allclose(norm, torch.ones_like(norm), atol=1e-5)]
    assert of_unit_norm == [19]  # of the updates 9, 19 and 29, after which WRS acts


@pytest.mark.parametrize("ends", [(5, 5), (5, 3)])
def test_a_window_that_ends_before_it_begins_is_refused(ends, window):
    net = make_network("cnn_bn", (1, 8, 8), 3, [0])
    refused(lambda: window(net, "l2", 0.1, *ends), "until_update", "from_update=5", str(ends[1]))
