"""``scripts/learns_the_same.py``: what stands for bfloat16 where there are no units for it."""

import pytest
import torch
from folders import script

from rl_plasticity.compiling import precision
from rl_plasticity.networks import StackedLinear


@pytest.fixture
def module(monkeypatch):
    monkeypatch.setattr(StackedLinear, "forward", StackedLinear.forward)  # both are put back after the test
    monkeypatch.setattr(precision, "has_bfloat16", precision.has_bfloat16)
    module = script("learns_the_same")
    yield module
    module.library._destroy()


def of_layer(runs=2):
    layer = StackedLinear(64, 48, range(runs))
    layer.operands = torch.bfloat16
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(runs, 32, 64, generator=generator, requires_grad=True)
    y = layer(x)
    g = torch.randn(y.shape, generator=generator)
    return [y.detach(), *torch.autograd.grad(y, [x, layer.weight, layer.bias], g)]


def test_the_products_computed_in_float32_are_those_in_bfloat16_but_for_the_order_of_the_sums(module, monkeypatch):
    expected = of_layer()
    module.emulate()
    assert precision.has_bfloat16("cpu")
    plain = of_layer()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    computed = of_layer()
    for one, other, exact in zip(computed, expected, plain, strict=True):
        torch.testing.assert_close(exact, other, rtol=0, atol=0)  # what is not compiled is as it was
        differ = one != other
        assert differ.float().mean() < 0.01  # a sum that lies between two numbers of bfloat16 may be rounded to either
        torch.testing.assert_close(one, other, rtol=2**-7, atol=1e-4)
        assert one.dtype == torch.float32
