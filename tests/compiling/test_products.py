import copy

import pytest
import torch

from rl_plasticity.compiling import precision, products
from rl_plasticity.compiling.precision import NEVER, onednn_pays_from, use_onednn_
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Train
from rl_plasticity.networks import MLP, StackedLinear
from rl_plasticity.runs.machine import resolved, set_products_

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("of", ["a layer", "its input's gradient", "its weight's gradient"])
def test_a_product_is_the_exact_one_up_to_float32_in_every_layout_that_a_layer_needs(runs, of):
    a, b = torch.randn(runs, 20, 30), torch.randn(runs, 7, 30)
    if of != "a layer":
        b = b.mT.contiguous().mT
    if of == "its weight's gradient":
        a = a.mT.contiguous().mT
    found = products.onednn(a, b)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), a.double() @ b.double().mT, rtol=1e-5, atol=1e-5)


def test_a_layer_and_all_its_derivatives_are_those_of_torch_s_products():
    torch.manual_seed(0)
    usual = MLP((6, 20, 20, 3), [0, 1])
    other = copy.deepcopy(usual)
    assert use_onednn_(other, 1) == 3
    x, found = torch.randn(2, 9, 6, requires_grad=True), []
    for net in (usual, other):
        loss = net(x).square().mean()
        gradients = torch.autograd.grad(loss, [x, *net.parameters()], create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in gradients), [x, *net.parameters()])
        found.append((loss, *gradients, *second))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_functional_transforms_which_know_torch_s_products_alone_see_the_same_layer():
    layer = StackedLinear(4, 3, [0])
    use_onednn_(layer, 1)

    def one(weight, x):
        return torch.func.functional_call(layer, {"weight": weight}, x.unsqueeze(0)).square().sum()

    x = torch.randn(5, 1, 4)
    each = torch.func.vmap(torch.func.grad(one), (None, 0))(layer.weight.detach(), x)
    (whole,) = torch.autograd.grad(one(layer.weight, x.squeeze(1)), layer.weight)
    torch.testing.assert_close(each.sum(0), whole)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_other_types_are_torch_s_to_multiply_and_so_is_autocast(kind):
    layer, x = StackedLinear(4, 3, [0]), torch.randn(1, 5, 4)
    use_onednn_(layer, 1)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert layer.to(kind)(x.to(kind)).dtype == kind


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """The calls that measure; what they find is kept in tmp_path."""
    calls = []
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(precision, "pays_from", lambda *given: calls.append(given) or 48)
    return calls


def test_a_machine_is_measured_once_and_a_run_goes_on_with_what_it_began_with(measured, monkeypatch):
    assert [onednn_pays_from() for _ in range(3)] == [48] * 3
    assert measured == [("cpu", 1, "onednn")]
    begun = resolved(schema.load(Train, ["env=cheetah-run", "device=cpu"]))
    assert begun.onednn_from == 48
    monkeypatch.setattr(precision, "onednn_pays_from", lambda: pytest.fail("measured again"))
    again = resolved(schema.load(Train, ["env=cheetah-run", "device=cpu", "onednn_from=16"]))
    assert again.onednn_from == 16
    net = MLP((6, 20, 20, 3), [0])
    set_products_(net, again)
    assert [layer.onednn for layer in net if isinstance(layer, StackedLinear)] == [False, True, False]


def test_without_onednn_or_a_place_to_keep_what_was_measured_it_never_pays(measured, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "nothing there"))
    assert onednn_pays_from() == NEVER
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert onednn_pays_from() == NEVER
    assert measured == []


def test_where_the_width_cannot_be_written_it_never_pays_and_no_run_ends(measured, tmp_path):
    (tmp_path / f"onednn_from_{torch.__version__}").mkdir()
    assert onednn_pays_from() == NEVER
