"""Different regularizers for different runs of one network, against the same regularizers in networks of their own."""

from functools import partial

import pytest
import torch
from conftest import CASES, loss_of, refused
from foreign.expected import made_of
from torch import nn

from rl_plasticity.interventions import PeriodicReset
from rl_plasticity.learning.learner import Learner
from rl_plasticity.networks import MLP, make_network
from rl_plasticity.regularizers import Chain, SideBySide, make_regularizer

# One of each kind of hook, of what is looked at and of what is kept.
NAMES = ("none", "l2", "spectral", "ewc", "swr", "weight_decay", "wrs", "hare_tortoise", "churn", "continual_backprop")
SOON = {"wrs": {"every_updates": 2}, "hare_tortoise": {"every_updates": 2}, "continual_backprop": {"maturity": 1}}


def maker(name):
    return partial(make_regularizer, name, **SOON.get(name, {}))


def minimize(learner, batch, steps):
    for _ in range(steps):
        learner.minimize(loss_of(learner.net(batch), learner.runs), batch)


def of_mlps(regularize, seeds):
    return Learner(lambda seeds: MLP((5, 8, 8, 3), seeds, layer_norm=True), seeds, regularize)


@pytest.mark.parametrize("name", NAMES)
def test_each_method_does_to_its_runs_what_it_does_to_them_alone_and_after_a_reset_too(name):
    parts = [(1, maker("l2_init")), (2, maker(name)), (1, maker("none"))]
    batch = torch.randn(4, 6, 5)
    together = of_mlps(lambda net: SideBySide(net, *parts), [3, 5, 6, 8])
    apart = [of_mlps(make, seeds) for (_, make), seeds in zip(parts, ([3], [5, 6], [8]), strict=True)]
    for _ in range(2):
        for learner, seen in zip([together, *apart], [batch, batch[:1], batch[1:3], batch[3:]], strict=True):
            minimize(learner, seen, 4)
        for key, value in together.net.state_dict().items():
            expected = torch.cat([learner.net.state_dict()[key] for learner in apart])
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
        for learner in (together, *apart):
            PeriodicReset(4).apply_(learner)


def test_it_traces_whole_and_gives_what_eager_gives():
    case, results = CASES["stacked3_small"], []
    batch = case.input()
    for compiled in (False, True):
        torch._dynamo.reset()
        net = case.make(1)
        chained = lambda net: Chain(net, *(maker(name)(net) for name in ("churn", "ewc", "wrs")))  # noqa: E731
        regularizer = SideBySide(net, (1, chained), (1, maker("feature_rank")), (1, maker("continual_backprop")))

        def step(net=net, regularizer=regularizer):
            penalty = regularizer.penalty(net, batch).detach()
            regularizer.observe_loss_(net, penalty + 1)
            regularizer.observe_(net, {n: torch.ones_like(p) for n, p in net.named_parameters()})
            regularizer.project_(net, *regularizer.given_lr(1e-2))
            return penalty

        run = torch.compile(step, fullgraph=True, backend="eager") if compiled else step
        results.append([*(run().detach().clone() for _ in range(3)), *(p.detach() for p in net.parameters())])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-7)


def test_inside_one_another_they_see_their_own_runs_of_every_tensor_of_the_inputs():
    def pair(seeds):
        return made_of(lambda net, xs: net.mlp(xs[0] + xs[1]), mlp=MLP((5, 8, 3), seeds))

    xs = [torch.randn(4, 6, 5), torch.randn(4, 6, 5)]
    nested = lambda net: SideBySide(net, (1, maker("churn")), (2, maker("l2")))  # noqa: E731
    terms = []
    for net, regularize, inputs in (
        (pair([1, 2, 3, 4]), lambda net: SideBySide(net, (1, maker("none")), (3, nested)), ([*xs],)),
        (pair([2]), maker("churn"), ([x[1:2] for x in xs],)),
    ):
        regularizer = regularize(net)
        for p in net.parameters():
            p.data.mul_(1.5)
        terms.append(regularizer.penalty(net, inputs))
    torch.testing.assert_close(terms[0][:2], torch.tensor([0.0, terms[1].item()]))
    assert terms[1] > 0


def test_shared_weights_count_once_and_weights_that_are_computed_from_buffers_are_those_of_their_own_runs():
    tied = MLP((5, 5, 5, 3), [0, 1])
    tied[2].weight = tied[0].weight
    whole, parts = make_regularizer("l2", tied), SideBySide(tied, (1, maker("l2")), (1, maker("l2")))
    torch.testing.assert_close(parts.penalty(tied), whole.penalty(tied))
    bounded = make_network("mlp", (1, 4, 4), 3, [0, 1], "bounded_weight_norm", widths=[8, 8])
    whole, parts = (
        make_regularizer("spectral", bounded),
        SideBySide(bounded, (1, maker("none")), (1, maker("spectral"))),
    )
    torch.testing.assert_close(parts.penalty(bounded)[1], whole.penalty(bounded)[1], rtol=0.1, atol=0)


def test_parts_that_do_not_add_up_to_the_runs_are_refused():
    net = CASES["stacked3"].make(0)
    refused(lambda: SideBySide(net, (2, maker("swr"))), "2 runs", "[3]", error=ValueError)
    refused(lambda: SideBySide(nn.Linear(2, 2), (1, maker("swr"))), "runs", error=ValueError)
