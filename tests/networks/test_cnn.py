import math

import pytest
import torch
from conftest import disturbed, refused
from torch import nn

from rl_plasticity.networks import CNN, StackedBatchNorm2d, StackedConv2d, kumar_cnn
from rl_plasticity.regularizers import layers
from rl_plasticity.seeding import derive


def sizes(net):
    return [tuple(y.weight(net).shape[1:]) for y in layers(net)]


def ordinary(batch_norm, activation=nn.ReLU, shape=(3, 9, 12)):
    channels, height, width = shape
    norm = lambda: [nn.BatchNorm2d(16)] * batch_norm  # noqa: E731
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, padding=2), *norm(), activation(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 5, padding=2), *norm(), activation(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * (height // 4) * (width // 4), 100), activation(), nn.Linear(100, 7),
    )  # fmt: skip


@pytest.mark.parametrize("activation", ["relu", "leaky_relu"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_every_run_computes_what_an_ordinary_cnn_with_its_weights_computes(batch_norm, activation):
    net = disturbed(CNN((3, 9, 12), 7, [10, 11, 12], batch_norm, activation))
    kind = {"relu": nn.ReLU, "leaky_relu": nn.LeakyReLU}[activation]
    singles = [ordinary(batch_norm, kind) for _ in range(3)]
    for run, single in enumerate(singles):
        single.load_state_dict({k: v[run] for k, v in net.state_dict().items()})
    for training in (True, True, False, True):  # two batches move the statistics, evaluation leaves them
        x = 2 * torch.randn(3, 6, 3, 9, 12) + torch.arange(3.0).reshape(3, 1, 1, 1, 1)
        outputs = net.train(training)(x)
        outputs.square().sum().backward()
        for run, single in enumerate(singles):
            expected = single.train(training)(x[run])
            torch.testing.assert_close(outputs[run], expected, rtol=1e-4, atol=1e-4)
            expected.square().sum().backward()
            its = {k: v[run] for k, v in net.state_dict().items()}
            torch.testing.assert_close(its, dict(single.state_dict()), rtol=1e-5, atol=1e-5)
    for run, single in enumerate(singles):
        for p, q in zip(net.parameters(), single.parameters(), strict=True):
            torch.testing.assert_close(p.grad[run], q.grad, rtol=1e-3, atol=1e-3 * q.grad.abs().max().item())


def test_the_layers_are_those_of_the_paper_with_our_choices_where_it_is_silent():
    convolutions = [(16, 1, 5, 5), (16, 16, 5, 5)]
    assert sizes(CNN((1, 28, 28), 10, [0])) == [*convolutions, (100, 16 * 7 * 7), (10, 100)]
    with_norm = [convolutions[0], (16,), convolutions[1], (16,), (100, 784), (10, 100)]
    assert sizes(CNN((1, 28, 28), 10, [0], batch_norm=True)) == with_norm
    # 28 x 28: convolutions 16*25 + 16 and 16*16*25 + 16, linear layers 784*100 + 100 and 100*10 + 10.
    count = sum(p.numel() for p in CNN((1, 28, 28), 10, [0]).parameters())
    assert count == 416 + 6416 + 78_500 + 1010


@pytest.mark.parametrize("padding", [False, True])
def test_a_product_with_patches_equals_the_convolution_and_its_gradients(padding):
    by_patches, ordinary = (StackedConv2d(2, 4, 3, [0, 1, 2], padding, by_patches=b).double() for b in (True, False))
    images = [torch.randn(3, 5, 2, 6, 7, dtype=torch.float64).requires_grad_()]
    images.append(images[0].detach().clone().requires_grad_())
    nn.init.normal_(by_patches.bias)
    ordinary.load_state_dict(by_patches.state_dict())
    ours, theirs = by_patches(images[0]), ordinary(images[1])
    assert ours.shape == theirs.shape == ((3, 5, 4, 6, 7) if padding else (3, 5, 4, 4, 5))
    assert ours.flatten(2).data_ptr() == ours.data_ptr()  # a linear layer reads it without a copy
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn(ours.shape, dtype=torch.float64)
    for output in (ours, theirs):
        (output * weights).sum().backward()
    pairs = zip((images[0], *by_patches.parameters()), (images[1], *ordinary.parameters()), strict=True)
    assert all(torch.allclose(p.grad, q.grad) for p, q in pairs)


def test_the_network_of_kumar_et_al_has_the_layers_of_their_appendix():
    convolutions = [(16, 3, 5, 5), (16, 16, 5, 5)]  # 32 - 4 = 28, 14, 10, 5 pixels: no padding
    assert sizes(kumar_cnn((3, 32, 32), 2, [0])) == [*convolutions, (100, 16 * 5 * 5), (100, 100), (2, 100)]
    # With concatenated ReLU the fraction of units that leaves at least as many parameters is .73 (A.1.3).
    count = lambda net: sum(p.numel() for p in net.parameters())  # noqa: E731
    smaller = kumar_cnn((3, 32, 32), 2, [0], activation="crelu", channels=11, widths=(73, 73))
    fewer = kumar_cnn((3, 32, 32), 2, [0], activation="crelu", channels=11, widths=(72, 72))
    assert count(fewer) < count(smaller)
    assert abs(count(smaller) / count(kumar_cnn((3, 32, 32), 2, [0])) - 1) < 0.05
    refused(lambda: kumar_cnn((3, 15, 32), 2, [0]), match=r"\b16\b", error=ValueError)
    assert kumar_cnn((3, 16, 17), 2, [0])(torch.randn(1, 4, 3, 16, 17)).shape == (1, 4, 2)


def test_initial_weights_as_torch_makes_them_are_the_numbers_of_its_own_layers():
    net = CNN((3, 8, 8), 4, [7], init="torch")
    for depth, (name, kind) in enumerate([("0", lambda: nn.Conv2d(3, 16, 5)), ("9", lambda: nn.Linear(100, 4))]):
        torch.manual_seed(derive(7, 3 * depth))  # the first layer and the fourth
        expected = kind()
        assert torch.equal(net.get_parameter(f"{name}.weight")[0], expected.weight)
        assert torch.equal(net.get_parameter(f"{name}.bias")[0], expected.bias)
    small = CNN((3, 8, 8), 4, [7], init="small_heads")
    assert torch.linalg.svdvals(small[9].weight[0])[0].item() == pytest.approx(0.01, rel=1e-4)
    assert torch.linalg.svdvals(small[7].weight[0])[0].item() == pytest.approx(math.sqrt(2), rel=1e-4)


@pytest.mark.parametrize("shape", [(1, 3, 8), (8, 8), (64,)])
def test_a_shape_that_is_no_image_or_too_small_is_an_error(shape):
    refused(lambda: CNN(shape, 10, [0]), match=r"\b4\b", error=ValueError)


def test_batch_norm_state_has_a_runs_axis_and_keeps_its_address():
    norm = StackedBatchNorm2d(4, 3)
    before = {k: (v.shape[0], v.data_ptr()) for k, v in norm.state_dict().items()}
    assert set(before) == set(nn.BatchNorm2d(4).state_dict())
    norm(torch.randn(3, 5, 4, 2, 2))
    assert {k: (v.shape[0], v.data_ptr()) for k, v in norm.state_dict().items()} == before
    assert norm.num_batches_tracked.tolist() == [1, 1, 1]
