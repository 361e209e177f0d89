import copy
import inspect

import pytest
import torch

from rl_plasticity.errors import SettingsError
from rl_plasticity.networks import NETWORKS, PARAMETRIZATIONS, make_network
from rl_plasticity.settings import settings_of
from rl_plasticity.structure import layers
from rl_plasticity.structure.layer import runs_of

STACKED = ("mlp", "cnn", "cnn_bn", "kumar_cnn")
SINGLE = [name for name in NETWORKS if name not in STACKED]
QUICK = (*STACKED, "resnet18", "vit_tiny")
OF_NORMED_CONVOLUTIONS = ("cnn_bn", "vgg16_bn", "resnet18", "wrn28_10")


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
    first = NETWORKS[name]((1, 16, 16), 4, [3])
    assert torch.equal(torch.rand(2), expected)
    same, other = (NETWORKS[name]((1, 16, 16), 4, [seed]) for seed in (3, 8))
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
    names = "relu, leaky_relu, smooth_leaky, gelu, silu, elu, crelu, rational or deep_fourier"
    activation = {"activation": ("relu", names)}
    flag, ints = "true or false", "a list of integers from 1 up"
    init = {"init": ("orthogonal", "orthogonal, small_heads or torch")}
    cnn = activation | {"channels": (16, "an integer from 1 up"), "widths": ((100,), ints), "padding": (True, flag)}
    vgg = {"hidden_layers": (2, "an integer from 0 to 2")} | activation
    expected = {
        "mlp": {"widths": ((100, 100), ints), "layer_norm": (False, flag)} | activation | init,
        "cnn": cnn | init,
        "cnn_bn": cnn | init,
        "kumar_cnn": activation | {"channels": (16, "an integer from 1 up"), "widths": ((100, 100), ints)} | init,
        "vgg16": vgg,
        "vgg16_bn": vgg,
        "resnet18": {"small_images": (True, flag), "norm": ("batch", "batch or mean_only")} | activation,
        "wrn28_10": {"norm_after_every_conv": (False, flag)} | activation,
        "vit_tiny": {"patch": (4, "an integer from 1 up"), "activation": ("gelu", names)},
    }
    for name, make in NETWORKS.items():
        settings = settings_of(make)
        assert {key: (s.default, s.expected) for key, s in settings.items()} == expected.get(name, {})
        assert list(settings) == list(expected.get(name, {}))
        assert all(s.setting.help for s in settings.values())
    assert list(settings_of(make_network)) == ["parametrization"]
    assert settings_of(make_network)["parametrization"].kinds[0] == ("none", *PARAMETRIZATIONS)


def test_a_network_made_by_name_has_bounded_weights_in_all_layers_but_the_heads():
    net = make_network("mlp", (1, 8, 8), 4, [0, 1], "bounded_weight_norm", widths=[6, 5], layer_norm=True)
    weights = [n for n, _ in net.named_parameters() if n.endswith(("weight", "weight.original"))]
    assert [n.endswith("original") for n in weights if n.split(".")[0] in "036"] == [True, True, False]
    assert [layer.name for layer in layers(net) if layer.head] == ["6"]
    plain = make_network("mlp", (1, 8, 8), 4, [0, 1], widths=[6, 5], layer_norm=True)
    assert torch.equal(dict(plain.named_parameters())["0.weight"], net[0].parametrizations.weight.original)


@pytest.mark.parametrize("name", NETWORKS)
def test_weight_standardization_by_name_is_of_convolutions_that_a_norm_layer_follows_or_refused(name):
    with torch.device("cpu" if name in STACKED else "meta"):
        if name not in OF_NORMED_CONVOLUTIONS:
            with pytest.raises(SettingsError, match="convolutions that a norm layer follows, and the network has none"):
                make_network(name, (1, 32, 32), 4, [0], "weight_standardization")
            return
        net = make_network(name, (1, 32, 32), 4, [0], "weight_standardization")
    found = layers(net)
    convolutions = [layer for layer in found if layer.role == "conv"]
    computed = [layer for layer in found if layer.is_computed]
    assert computed
    assert all(layer.role == "conv" for layer in computed)
    added = {"wrn28_10": 12 + 3}.get(name, 0)  # each block's second convolution, and the shortcuts
    assert len(computed) == len(convolutions) - added


@pytest.mark.parametrize("name", NETWORKS)
def test_the_logits_of_every_network_start_with_a_standard_deviation_from_a_tenth_to_ten(name):
    side = 16 if name == "wrn28_10" else 32  # the largest: less to compute
    images = torch.randn(8, 3, side, side)  # standardized, as the data are
    for seed in (0, 1) if name in STACKED else (0,):
        net = make_network(name, (3, side, side), 10, [seed])
        kinds = [p for p in PARAMETRIZATIONS if p != "weight_standardization" or name in OF_NORMED_CONVOLUTIONS]
        for kind in (None, *kinds):  # drawing the weights of a large network takes longer than copying them
            one = net if kind is None else copy.deepcopy(net)
            if kind is not None:
                PARAMETRIZATIONS[kind](one)
            with torch.no_grad():
                logits = one(images.unsqueeze(0) if name in STACKED else images)
            assert 0.1 < logits.std() < 10, (kind, seed)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("mpl", {}, r"unknown network 'mpl'; did you mean 'mlp'\?"),
        ("mlp", {"width": [3]}, r"unknown setting 'width' of network 'mlp'; did you mean 'widths'\?"),
        ("mlp", {"widths": [8, 0]}, r"widths must be a list of integers from 1 up, got \[8, 0\]"),
        ("vgg16", {"hidden_layers": 3}, "hidden_layers must be an integer from 0 to 2, got 3"),
        (
            "resnet18",
            {"norm": "mean-only"},
            "norm must be batch or mean_only, got 'mean-only'; did you mean 'mean_only'",
        ),
        ("vit_tiny", {"activation": "tanh"}, "activation must be relu, .* or deep_fourier, got 'tanh'"),
        ("kumar_cnn", {}, r"sides of at least 16, got \(3, 8, 8\)"),
        ("cnn", {"activation": "tanh"}, "activation must be relu, .* or deep_fourier, got 'tanh'"),
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
