"""`attach` in a single-file soft actor-critic equals the same file with the regularizer written into it by hand."""

from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "cleanrl_sac.py"
SMALL = {"total_steps": 40, "learning_starts": 20, "width": 8, "batch_size": 16, "critic_lr": 1e-2, "actor_lr": 1e-2}
BY_HAND = (
    (
        "critic_handle = attach(reg, critic_optimizer, critics, coef=coef)",
        "of_critics = make_regularizer(reg, critics, coef=coef)",
    ),
    (
        "actor_handle = attach(reg, actor_optimizer, actor, coef=coef)",
        "of_actor = make_regularizer(reg, actor, coef=coef)",
    ),
    ("from rl_plasticity import attach", "from rl_plasticity import make_regularizer"),
    ("critic_loss.backward()", "(critic_loss + of_critics.penalty(critics)).backward()"),
    ("critic_optimizer.step()", "critic_optimizer.step(); of_critics.project_(critics)"),
    ("actor_loss.backward()", "(actor_loss + of_actor.penalty(actor)).backward()"),
    ("actor_optimizer.step()", "actor_optimizer.step(); of_actor.project_(actor)"),
)


def trained(changes=(), **settings):
    """Actor, critics and targets of the example's `main`, after these changes of its text."""
    source = EXAMPLE.read_text()
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    space = {"__name__": "example"}
    exec(compile(source, EXAMPLE, "exec"), space)
    return [p.detach() for net in space["main"](**SMALL, **settings) for p in net.parameters()]


def furthest(a, b):
    return max((p - q).abs().max().item() for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("reg", ["spectral", "swr"])
def test_the_example_s_agent_equals_that_of_the_loop_written_out_by_hand(reg):
    attached = trained(reg=reg, coef=0.1)
    assert furthest(attached, trained(BY_HAND, reg=reg, coef=0.1)) < 1e-6
    assert furthest(attached, trained(reg="l2", coef=0.0)) > 1e-3
