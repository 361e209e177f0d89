import os
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import random_batch
from torch.fx.experimental.proxy_tensor import make_fx

from rl_plasticity.agents import SAC
from rl_plasticity.compiling.compiled import compiled, keep_compiled
from rl_plasticity.compiling.precision import use_onednn_
from rl_plasticity.compiling.rewrites import Rewrites
from rl_plasticity.interventions import make_intervention
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import SGD
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import Chain, make_regularizer

aten, prims = torch.ops.aten, torch.ops.prims


def spectral_and_swr(net):
    return Chain(net, make_regularizer("spectral", net, coef=1e-2), make_regularizer("swr", net))


def assert_close_states(a, b):
    # Added in another order, the same float32 numbers differ by a few 1e-7. Adam divides by the gradient's own size:
    # where it is a rounding error, 50 steps may differ by 1.5e-2. A wrong equation changes every step, by about lr.
    torch.testing.assert_close(dict(a.state_dict()), dict(b.state_dict()), rtol=1e-3, atol=1e-4)


def test_compiled_updates_with_resets_equal_the_plain_ones_by_either_library_s_products():
    torch.manual_seed(0)
    plain, quick = (SAC(4, 2, [0, 1], spectral_and_swr, hidden=(16,)) for _ in range(2))
    before = [p.clone() for p in plain.parameters()]
    addresses = [t.data_ptr() for t in (*quick.parameters(), *quick.buffers())]
    use_onednn_(quick.critic, 1)
    update = compiled(quick.update)
    resets = [make_intervention("periodic", every_updates=15), make_intervention("redo", every_updates=10)]
    for number in range(1, 34):
        batch, noise = random_batch(2), torch.randn(2, 2, 32, 2)
        expected, metrics = plain.update(batch, noise), update(batch, noise)
        for agent in (plain, quick):
            for reset in resets:
                if reset.due(number):
                    reset.apply_(agent, inputs=agent.inputs(batch))
    assert_close_states(plain, quick)
    assert not any(torch.equal(p, q) for p, q in zip(before, quick.parameters(), strict=True))
    torch.testing.assert_close(metrics, expected, rtol=1e-3, atol=1e-3)
    assert addresses == [t.data_ptr() for t in (*quick.parameters(), *quick.buffers())]


def test_a_batch_of_another_size_is_traced_anew_but_neither_the_same_size_nor_a_loaded_state(traced):
    learner, other, loaded = (Learner(lambda s: MLP((5, 8, 3), s), [seed]) for seed in (0, 0, 5))

    def update(learner, x):
        learner.minimize(learner.net(x).square().mean((1, 2)))

    quick = compiled(partial(update, learner))
    for step, size in enumerate((32, 24, 24, 32, 32)):
        if step == 4:
            for one in (learner, other):
                one.load_state_dict(loaded.state_dict())
        x = torch.randn(1, size, 5)
        quick(x)
        update(other, x)
        assert_close_states(other, learner)
    assert len(traced) == 2


def test_agents_of_different_structure_do_not_share_a_graph(traced):
    # The guards that would tell them apart are left out, and both run the same code.
    less_usual = {"num_critics": 2, "log_std": "tanh", "init_alpha": 2.0}
    usual = {"hidden": (12,), "activation": "rational"}
    for settings in (less_usual | {"hidden": (8,), "init": "torch"}, usual):
        agent, other = (SAC(4, 2, [0], **settings) for _ in range(2))
        batch, noise = random_batch(1), torch.randn(2, 1, 32, 2)
        compiled(agent.update)(batch, noise)
        other.update(batch, noise)
        assert_close_states(other, agent)
    assert len(traced) == 2


def test_one_update_has_a_graph_for_each_of_more_than_dynamo_s_eight_networks(traced):
    def doubled(net, x):
        return net(x) * 2

    for _ in range(10):
        net = torch.nn.Linear(3, 2)
        torch.testing.assert_close(compiled(doubled)(net, torch.ones(3)), doubled(net, torch.ones(3)))
    assert len(traced) == 10


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Where a process with these variables, whose home is tmp_path, keeps what it compiles; None for torch's place."""

    def folder(flags=None, **variables):
        with monkeypatch.context() as patch:
            patch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # so that it is put back
            patch.delenv("TORCHINDUCTOR_CACHE_DIR")
            patch.delenv("XDG_CACHE_HOME", raising=False)
            for name, value in {"HOME": str(tmp_path), **variables}.items():
                patch.setenv(name, value)
            if flags:
                patch.setattr(Path, "read_text", lambda path: f"processor\t: 0\nflags\t\t: {flags}\n")
            keep_compiled()
            said = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        return said and Path(said)

    return folder


def test_what_is_compiled_is_kept_among_the_user_s_caches_or_where_the_user_says(kept, tmp_path, monkeypatch):
    assert kept(TORCHINDUCTOR_CACHE_DIR="/somewhere") == Path("/somewhere")
    assert not any(tmp_path.iterdir())
    assert kept().parent == tmp_path / ".cache" / "rl_plasticity" / "compiled"
    assert kept().is_dir()
    assert kept(XDG_CACHE_HOME="else/where").is_relative_to(tmp_path / ".cache")  # it is not absolute
    assert kept(XDG_CACHE_HOME=str(tmp_path / "caches")).is_relative_to(tmp_path / "caches")
    (tmp_path / "file").touch()
    assert kept(HOME=str(tmp_path / "file")) is None  # torch's own folder stays
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # root may write anywhere
    assert kept() is None


def test_processors_that_cannot_run_each_other_s_code_have_folders_of_their_own(kept):
    one, other, again = (kept(flags) for flags in ("fpu avx2", "fpu avx2 avx512f", "fpu avx2"))
    assert one == again != other
    # Torch would take what it compiled for the one where it is told the other.
    assert kept(ATEN_CPU_CAPABILITY="avx2") != kept(ATEN_CPU_CAPABILITY="default")


def rewritten(function, *inputs):
    """The operations of `function` before and after, which give the same numbers."""
    module = make_fx(function, tracing_mode="fake")(*inputs)
    before = [n.target for n in module.graph.nodes]
    expected = function(*inputs)
    Rewrites()(module.graph)
    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(*inputs), expected, rtol=1e-6, atol=1e-6)
    return before, [n.target for n in module.graph.nodes]


A, B, C, BIAS = torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(2, 4, 3), torch.randn(2, 1, 5)


def read_both_ways(a, b):
    product = torch.bmm(a, b)
    return product.permute(0, 2, 1) + product


@pytest.mark.parametrize(("function", "inputs", "replaced"), [
    (lambda a, b: torch.bmm(a, b).permute(0, 2, 1) * 2, (A, B), True),  # a product of the transposed factors
    (read_both_ways, (A, C), False),
    (lambda a, b: torch.bmm(a, b).permute(1, 0, 2) * 2, (A, C), False),
    (torch.baddbmm, (BIAS, A, B), True),  # the bias is added after the product
    (lambda *x: torch.baddbmm(*x, beta=0.5), (BIAS, A, B), False),
])  # fmt: skip
def test_a_product_is_transposed_or_given_its_bias_where_that_is_quicker(function, inputs, replaced):
    before, after = rewritten(function, *inputs)
    assert (before != after) == replaced
    assert aten.baddbmm.default not in after or not replaced
    if replaced and aten.permute.default in before:
        assert after.count(aten.permute.default) == 2
        assert after.index(aten.permute.default) < after.index(aten.bmm.default)


def test_what_is_computed_twice_is_computed_once_but_what_is_drawn_or_only_looks_alike_is_not():
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    twice = lambda a, b: torch.bmm(a, b).relu() + torch.bmm(a, b).relu().sum()  # noqa: E731
    before, after = rewritten(twice, a, b)
    assert before.count(aten.bmm.default) == before.count(aten.relu.default) == 2
    assert after.count(aten.bmm.default) == after.count(aten.relu.default) == 1
    signs = lambda a: (1 / (a * 0.0)).clamp(-1, 1) + (1 / (a * -0.0)).clamp(-1, 1)  # noqa: E731
    for both in (lambda a: (a * 2, a * 2), signs):
        before, after = rewritten(both, a.abs())  # results of their own; other zeros
        assert before == after
    before, after = rewritten(lambda a: a.var(0).sum() + a.var(0, correction=0).sum(), a)
    assert before == after
    module = make_fx(lambda a: torch.rand_like(a) - torch.rand_like(a))(a)
    Rewrites()(module.graph)
    assert [n.target for n in module.graph.nodes].count(aten.rand_like.default) == 2


def test_a_copy_that_is_taken_before_a_step_is_of_the_weights_before_it():
    """Torch's own order of the last writes would make churn nothing at all."""
    x = torch.randn(2, 32, 5)
    penalties, ends = [], []
    for compiles in (False, True):
        torch._dynamo.reset()
        churn, sgd = partial(make_regularizer, "churn", coef=1.0), partial(SGD, lr=1e-2)
        learner = Learner(lambda s: MLP((5, 8, 3), s, layer_norm=False), [0, 1], churn, sgd)

        def update(x, learner=learner):
            return learner.minimize(learner.net(x).sub(1).square().mean((1, 2)), x)

        make = compiled(update) if compiles else update
        penalties.append(torch.stack([make(x)["penalty"].clone() for _ in range(4)]))
        ends.append(learner.state_dict())
    assert (penalties[0][1:, 0] > 1e-5).all()
    torch.testing.assert_close(*penalties, rtol=1e-3, atol=1e-9)
    torch.testing.assert_close(*map(dict, ends), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_a_chain_of_copies_hands_each_value_on_whatever_the_order_of_the_inputs(order):
    def shift(*inputs):
        weight, previous, older = (inputs[order.index(i)] for i in range(3))
        older.copy_(previous)
        previous.copy_(weight)
        weight.add_(1)
        return weight.sum()

    torch._dynamo.reset()
    named = {i: torch.full((4,), float(10 * i)) for i in range(3)}
    compiled(shift)(*(named[i] for i in order))
    assert [named[i][0].item() for i in range(3)] == [1.0, 0.0, 10.0]
