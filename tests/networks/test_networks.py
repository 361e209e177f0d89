import copy

import pytest
import torch
from conftest import refused

from rl_plasticity.networks import NETWORKS, PARAMETRIZATIONS, make_network
from rl_plasticity.structure.layer import runs_of

STACKED = ("mlp", "cnn", "cnn_bn", "kumar_cnn")
SINGLE = [name for name in NETWORKS if name not in STACKED]
QUICK = (*STACKED, "resnet18", "vit_tiny")
OF_NORMED_CONVOLUTIONS = ("cnn_bn", "vgg16_bn", "resnet18", "wrn28_10")


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
    refused(lambda: NETWORKS[name]((3, 32, 32), 10, [0, 1]), match=r"seeds=1.*\b2\b", error=ValueError)


@pytest.mark.parametrize("name", QUICK)
def test_initial_weights_come_from_the_seed_and_the_global_random_state_is_left_alone(name):
    state = torch.get_rng_state()
    a, b, c = (dict(NETWORKS[name]((1, 16, 16), 4, [seed]).named_parameters()) for seed in (3, 3, 8))
    assert torch.equal(torch.get_rng_state(), state)
    random = [n for n, p in a.items() if p.flatten()[:64].unique().numel() > 2]
    assert random
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert not any(torch.equal(a[n], c[n]) for n in random)
    if name in STACKED:  # of each run from its own
        both = dict(NETWORKS[name]((1, 16, 16), 4, [8, 3]).named_parameters())
        assert all(torch.equal(both[n], torch.cat([c[n], a[n]])) for n in a)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_logits_of_every_network_start_with_a_standard_deviation_from_a_tenth_to_ten(name):
    side = {"wrn28_10": 8, "resnet18": 16, "vit_tiny": 16}.get(name, 32)  # the largest have less to compute
    images = torch.randn(8, 3, side, side)  # standardized, as the data are
    if name not in STACKED:
        images = images[:2]
    for seed in (0, 1) if name in STACKED else (0,):
        net = make_network(name, (3, side, side), 10, [seed])
        kinds = [p for p in PARAMETRIZATIONS if p != "weight_standardization" or name in OF_NORMED_CONVOLUTIONS]
        for kind in kinds:  # drawing the weights of a large network takes longer than copying them
            one = copy.deepcopy(net)
            PARAMETRIZATIONS[kind](one)
            with torch.no_grad():
                logits = one(images.unsqueeze(0) if name in STACKED else images)
            assert 0.1 < logits.std() < 10, (kind, seed)


@pytest.mark.parametrize(("name", "settings", "named"), [
    ("mpl", {}, "'mpl'.*'mlp'"),
    ("mlp", {"width": [3]}, "'width'.*'mlp'.*'widths'"),
    ("mlp", {"widths": [8, 0]}, r"widths.*\[8, 0\]"),
    ("vgg16", {"hidden_layers": 3}, "hidden_layers.*0 to 2.*3"),
    ("resnet18", {"norm": "mean-only"}, "norm.*'mean-only'.*'mean_only'"),
    ("vit_tiny", {"activation": "sine"}, "activation.*deep_fourier.*'sine'"),
    ("kumar_cnn", {}, r"16.*\(3, 8, 8\)"),
    ("cnn", {"activation": "sine"}, "activation.*deep_fourier.*'sine'"),
    ("vit_tiny", {"patch": 0}, "patch.*1.*0"),
    ("mlp", {"parametrization": "weight_standardisation"}, "'weight_standardization'"),
    ("vgg16", {"shape": (3, 32, 64)}, r"side.*\(3, 32, 64\)"),
    ("vit_tiny", {"shape": (3, 32, 64)}, r"side.*\(3, 32, 64\)"),
    ("vgg16", {"shape": (3, 28, 28)}, "32.*28"),
    ("vit_tiny", {"shape": (3, 32, 32), "patch": 5}, "patch.*5 and 32"),
])  # fmt: skip
def test_a_wrong_name_setting_or_shape_of_a_network_is_one_line(name, settings, named):
    with pytest.raises(ValueError, match=named) as error:
        make_network(name, settings.pop("shape", (3, 8, 8)), 4, [0], **settings)
    assert "\n" not in str(error.value)


def test_what_somebody_adds_is_made_and_checked_like_the_others(monkeypatch):
    def linear(shape, num_classes, seeds, bias: bool = True):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[0], num_classes, bias))

    monkeypatch.setitem(NETWORKS, "linear", linear)
    assert len(list(make_network("linear", (3, 1, 1), 4, [0], bias=False).parameters())) == 1
    refused(lambda: make_network("linear", (3, 1, 1), 4, [0], bias=3), match=r"bias\b.*true or false.*\b3\b")
