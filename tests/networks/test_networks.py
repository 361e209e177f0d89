import inspect

import pytest
import torch

from rl_plasticity.networks import NETWORKS
from rl_plasticity.regularizers import runs_of

STACKED = ("mlp", "cnn", "cnn_bn")
SINGLE = [name for name in NETWORKS if name not in STACKED]
QUICK = (*STACKED, "resnet18", "vit_tiny")


def test_the_names_are_those_of_the_papers_networks():
    assert set(NETWORKS) == {*STACKED, "vgg16", "vgg16_bn", "resnet18", "wrn28_10", "vit_tiny"}


@pytest.mark.parametrize("name", NETWORKS)
def test_it_maps_images_of_any_channels_to_classes(name):
    single = name in SINGLE
    with torch.device("meta" if single else "cpu"):  # nothing of the large ones is allocated
        net = NETWORKS[name]((1, 32, 32), 7, [5] if single else [5, 6])
        images = torch.zeros(*(() if single else (2,)), 3, 1, 32, 32)
    assert net(images).shape == ((3, 7) if single else (2, 3, 7))
    assert runs_of(net) == (() if single else (2,))


@pytest.mark.parametrize("name", SINGLE)
def test_a_net_without_a_runs_axis_refuses_several_seeds(name):
    with pytest.raises(ValueError, match=r"has no runs axis: train one run per process \(seeds=1\), got 2 seeds"):
        NETWORKS[name]((3, 32, 32), 10, [0, 1])


@pytest.mark.parametrize("name", QUICK)
def test_initial_weights_come_from_the_seed_and_the_global_random_state_is_left_alone(name):
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    first = NETWORKS[name]((1, 8, 8), 4, [3])
    assert torch.equal(torch.rand(2), expected)
    same, other = (NETWORKS[name]((1, 8, 8), 4, [seed]) for seed in (3, 8))
    random = [n for n, p in first.named_parameters() if p.unique().numel() > 2]
    assert random
    a, b, c = (dict(net.named_parameters()) for net in (first, same, other))
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert not any(torch.equal(a[n], c[n]) for n in random)


def test_the_mlp_takes_its_hidden_widths_norm_and_activation():
    net = NETWORKS["mlp"]((1, 4, 4), 3, [0], widths=(6, 5), layer_norm=True, activation="leaky_relu")
    assert [tuple(p.shape[1:]) for n, p in net.named_parameters() if "weight" in n] == [
        (6, 16), (6,), (5, 6), (5,), (3, 5),
    ]  # fmt: skip
    assert sum(p.numel() for p in NETWORKS["mlp"]((1, 28, 28), 10, [0]).parameters()) == (
        784 * 100 + 100 + 100 * 100 + 100 + 100 * 10 + 10
    )


def test_settings_and_their_defaults_can_be_read_from_the_signature():
    for make in NETWORKS.values():
        assert list(inspect.signature(make).parameters)[:3] == ["shape", "num_classes", "seeds"]
    assert inspect.signature(NETWORKS["vgg16_bn"]).parameters["batch_norm"].default is True
    assert inspect.signature(NETWORKS["vit_tiny"]).parameters["patch"].default == 4


@pytest.mark.parametrize("name", ["vgg16", "vit_tiny"])
def test_images_that_are_not_square_are_an_error(name):
    with pytest.raises(ValueError, match=r"\(channels, side, side\), got \(3, 32, 64\)"):
        NETWORKS[name]((3, 32, 64), 10, [0])
