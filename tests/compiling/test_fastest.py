from functools import partial

import pytest
import torch
from conftest import assert_equal_states, random_batch
from test_compiled import spectral_and_swr
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rl_plasticity.agents import SAC
from rl_plasticity.compiling import fastest
from rl_plasticity.compiling.compiled import Captured
from rl_plasticity.compiling.fastest import Fastest
from rl_plasticity.interventions import make_intervention
from rl_plasticity.regularizers import make_regularizer
from rl_plasticity.seeding import RunStreams


class Tape(TorchDispatchMode):
    """A CUDA graph's double on a CPU: the operations of one call, replayed on the tensors of the recording.

    Numbers stay those of the recording, and what would wait for the device raises. So it misses what a graph misses: a
    count kept in Python, a tensor put in another's place, ``item``.
    """

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default or "nonzero" in func.__name__:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    @torch.no_grad()
    def replay(self):
        for func, args, kwargs, out in self.calls:
            for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr() and old.numel():
                    old.detach().copy_(new)


class Taped(Captured):
    def __init__(self, update, module):
        super().__init__(update)
        self.module = module

    def run_apart(self, inputs):
        return self.update(*inputs)

    def record(self, inputs):
        tensors = [*self.module.parameters(), *self.module.buffers()]
        before = [x.detach().clone() for x in tensors]
        tape = Tape()
        with torch.random.fork_rng([]), tape:
            metrics = self.update(*inputs)
        with torch.no_grad():
            for x, old in zip(tensors, before, strict=True):  # a recording runs nothing
                x.detach().copy_(old)

        def replay():
            tape.replay()
            return metrics

        return replay


class OnTape(Fastest):
    """On a CPU, with tapes for graphs; `lines` is what it said."""

    def __init__(self, update, compiles=True):
        self.lines = []
        super().__init__(update, compiles, self.lines.append)

    def captured(self, update):
        return Taped(update, self.update.__self__)


def batch(size=32):
    return random_batch(2, size), torch.randn(2, 2, size, 2)


def right(update, device, **options):
    return lambda *arguments: update(*arguments)


def no_compiler(update, device, **options):
    def call(*arguments):
        raise AssertionError("inductor: \nmore")

    return call


def fails_late(update, device, **options):
    def call(*arguments):
        update(*arguments)
        raise RuntimeError("launch failed")

    return call


def wrong_loss(update, device, **options):
    return lambda *arguments: (metrics := update(*arguments)) | {"critic/loss": metrics["critic/loss"] * 1.01}


def forgets_weights(update, device, **options):
    """Its metrics are right, but what it writes is lost."""

    def call(*arguments):
        module = update.__self__
        before = [p.detach().clone() for p in module.parameters()]
        metrics = update(*arguments)
        with torch.no_grad():
            for p, old in zip(module.parameters(), before, strict=True):
                p.copy_(old)
        return metrics

    return call


def only_without_combo_kernels(update, device, **options):
    return no_compiler(update, device) if options.get("combo_kernels") else update


@pytest.mark.parametrize(("compiler", "taken", "reasons"), [
    (right, "compiled, as one", []),
    (only_without_combo_kernels, "compiled, as one", ["AssertionError: inductor:"]),
    (no_compiler, "as one CUDA graph, not compiled", ["AssertionError: inductor:"] * 2),
    (fails_late, "as one CUDA graph, not compiled", ["RuntimeError: launch failed"] * 2),
    (wrong_loss, "as one CUDA graph, not compiled", ["critic/loss is not the plain"] * 2),
    (forgets_weights, "as one CUDA graph, not compiled", ["is not the plain"] * 2),
])  # fmt: skip
def test_the_first_way_that_gives_the_plain_updates_is_taken(compiler, taken, reasons, monkeypatch):
    monkeypatch.setattr(fastest, "compiled", compiler)
    plain, quick = (SAC(4, 2, [0, 1], spectral_and_swr, hidden=(16, 16)) for _ in range(2))
    addresses = [x.data_ptr() for x in (*quick.parameters(), *quick.buffers())]
    update, reset = OnTape(quick.update), make_intervention("periodic", every_updates=7)
    batches = [batch() for _ in range(15)]
    state = torch.get_rng_state()
    for number, given in enumerate(batches, start=1):
        expected, found = plain.update(*given), update(*given)
        assert torch.equal(expected["critic/loss"], found["critic/loss"]), number
        for agent in (plain, quick):
            if reset.due(number):
                reset.apply_(agent)
    assert_equal_states(plain.state_dict(), quick.state_dict())
    assert addresses == [x.data_ptr() for x in (*quick.parameters(), *quick.buffers())]
    assert torch.equal(state, torch.get_rng_state())
    (line,) = update.lines
    assert line.startswith(f"updates: {taken}")
    assert line.count("(") == len(reasons)
    assert all(reason in line for reason in reasons)


class Draws(nn.Module):
    """An update that draws from generators of its own, whose state it saves, and returns a plain number."""

    def __init__(self):
        super().__init__()
        self.streams = RunStreams([0, 1])

    def update(self):
        return {"drawn": self.streams.uniform(3), "number": 1.0}


def test_what_a_module_saves_beside_its_tensors_is_put_back_too():
    plain, quick = Draws(), Draws()
    update = OnTape(quick.update, compiles=False)
    for _ in range(3):
        assert torch.equal(plain.update()["drawn"], update()["drawn"])


class Waits(nn.Module):
    """An update that waits for the device, counts in Python, or draws numbers."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.count = kind, 0
        self.register_buffer("x", torch.zeros(3))

    def update(self, v):
        self.count += 1
        if self.kind == "waits":
            self.x.add_(v * float(v[0]))
        elif self.kind == "counts":
            self.x.add_(v * self.count)
        elif self.kind == "NaN":
            self.x.add_(v * torch.nan)
        else:
            self.x.add_(v * torch.rand_like(v))
        return {"x": self.x.clone()}


@pytest.mark.parametrize(
    ("kind", "taken"),
    [("waits", "kernel by kernel"), ("counts", "kernel by kernel"), ("draws", "as one"), ("NaN", "as one")],
)
def test_what_a_recording_would_miss_is_left_to_plain_updates_but_not_what_is_drawn_or_not_finite(kind, taken):
    module = Waits(kind)
    update = OnTape(module.update, compiles=False)
    update(torch.ones(3))
    assert update.lines[0].startswith(f"updates: {taken}")


def test_a_short_last_batch_and_a_state_that_is_loaded_go_on_as_plain_updates_do():
    plain, quick, other = (SAC(4, 2, [0, 1], partial(make_regularizer, "wrs"), hidden=(8,)) for _ in range(3))
    update = OnTape(quick.update, compiles=False)
    for number in range(9):
        given = batch(20 if number == 6 else 32)
        if number == 4:
            for agent in (plain, quick):
                agent.load_state_dict(other.state_dict())
        expected, found = plain.update(*given), update(*given)
        assert torch.equal(expected["critic/loss"], found["critic/loss"]), number


def test_on_a_cpu_updates_are_compiled_or_as_they_are(monkeypatch):
    made = []
    monkeypatch.setattr(fastest, "compiled", lambda update: made.append(update) or len)
    assert fastest.fastest(str, "cpu", compiles=True) is len
    assert fastest.fastest(str, "cpu", compiles=False) is str
    assert made == [str]
