import inspect

import pytest
import torch

from rl_plasticity.errors import SettingsError
from rl_plasticity.layers import runs_of
from rl_plasticity.networks import NETWORKS, PARAMETRIZATIONS, make_network
from rl_plasticity.settings import settings_of
from rl_plasticity.structure import layers

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
    activation = {"activation": ("relu", "relu, leaky_relu or crelu")}
    flag = "true or false"
    widths = {"widths": ((100, 100), "a list of integers from 1 up"), "layer_norm": (False, flag)}
    expected = {
        "mlp": widths | activation,
        "cnn": activation,
        "cnn_bn": activation,
        "resnet18": {"small_images": (True, flag)},
        "vit_tiny": {"patch": (4, "an integer from 1 up")},
    }
    for name, make in NETWORKS.items():
        settings = settings_of(make)
        assert {key: (s.default, s.expected) for key, s in settings.items()} == expected.get(name, {})
        assert list(settings) == list(expected.get(name, {}))
        assert all(s.setting.help for s in settings.values())
    assert list(settings_of(make_network)) == ["parametrization"]
    assert settings_of(make_network)["parametrization"].kinds[0].__args__ == ("none", *PARAMETRIZATIONS)


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_a_network_made_by_name_is_parametrized_in_all_layers_but_the_heads(parametrization):
    net = make_network("mlp", (1, 8, 8), 4, [0, 1], parametrization, widths=[6, 5], layer_norm=True)
    weights = [n for n, _ in net.named_parameters() if n.endswith(("weight", "weight.original"))]
    assert [n.endswith("original") for n in weights if n.split(".")[0] in "036"] == [True, True, False]
    assert [layer.name for layer in layers(net) if layer.head] == ["6"]
    plain = make_network("mlp", (1, 8, 8), 4, [0, 1], widths=[6, 5], layer_norm=True)
    assert torch.equal(dict(plain.named_parameters())["0.weight"], net[0].parametrizations.weight.original)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("mpl", {}, r"unknown network 'mpl'; did you mean 'mlp'\?"),
        ("mlp", {"width": [3]}, r"unknown setting 'width' of network 'mlp'; did you mean 'widths'\?"),
        ("mlp", {"widths": [8, 0]}, r"widths must be a list of integers from 1 up, got \[8, 0\]"),
        ("cnn", {"activation": "tanh"}, "activation must be relu, leaky_relu or crelu, got 'tanh'"),
        ("vit_tiny", {"patch": 0}, "patch must be an integer from 1 up, got 0"),
        ("mlp", {"parametrization": "weight_standardisation"}, "did you mean 'weight_standardization'"),
    ],
)
def test_a_wrong_name_or_setting_of_a_network_is_one_line(name, settings, says):
    with pytest.raises(SettingsError, match=says):
        make_network(name, (3, 8, 8), 4, [0], **settings)


def test_what_somebody_adds_is_made_and_checked_like_the_others(monkeypatch):
    def linear(shape, num_classes, seeds, bias: bool = True):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[0], num_classes, bias))

    monkeypatch.setitem(NETWORKS, "linear", linear)
    assert len(list(make_network("linear", (3, 1, 1), 4, [0], bias=False).parameters())) == 1
    with pytest.raises(SettingsError, match="bias must be true or false, got 3"):
        make_network("linear", (3, 1, 1), 4, [0], bias=3)


@pytest.mark.parametrize("name", ["vgg16", "vit_tiny"])
def test_images_that_are_not_square_are_an_error(name):
    with pytest.raises(ValueError, match=r"\(channels, side, side\), got \(3, 32, 64\)"):
        NETWORKS[name]((3, 32, 64), 10, [0])
