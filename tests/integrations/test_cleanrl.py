"""`attach` in a single-file soft actor-critic."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "cleanrl_sac.py"
SMALL = {"total_steps": 40, "learning_starts": 20, "width": 8, "batch_size": 16, "critic_lr": 1e-2, "actor_lr": 1e-2}


def trained(**settings):
    """Actor, critics and targets."""
    nets = runpy.run_path(str(EXAMPLE))["main"](**SMALL, **settings)
    return [[p.detach() for p in net.parameters()] for net in nets]


@pytest.mark.parametrize("reg", ["spectral", "swr"])
def test_the_regularizer_reaches_every_network_of_the_example_and_each_run_is_the_same(reg):
    attached, again, plain = trained(reg=reg, coef=0.1), trained(reg=reg, coef=0.1), trained(reg="l2", coef=0.0)
    for net, same, other in zip(attached, again, plain, strict=True):
        assert all(p.equal(q) for p, q in zip(net, same, strict=True))
        assert max((p - q).abs().max() for p, q in zip(net, other, strict=True)) > 1e-3
