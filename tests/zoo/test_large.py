"""VGG-16, ResNet-18, WRN-28-10 and ViT-tiny: sizes on the meta device, where nothing is allocated."""

import pytest
import torch
from torch import nn

from rl_plasticity.networks import CReLU, make_network
from rl_plasticity.regularizers import hidden_units, layers
from rl_plasticity.structure import read


def count(net):
    return sum(p.numel() for p in net.parameters())


def on_meta(name, side=32, **settings):
    with torch.device("meta"):
        return make_network(name, (3, side, side), 10, [0], **settings)


# By hand. A 3x3 convolution has 9 * in * out weights, a BatchNorm or LayerNorm 2 * n.
VGG_KERNELS = 9 * (
    3 * 64 + 64 * 64 + 64 * 128 + 128 * 128 + 128 * 256 + 2 * 256 * 256 + 256 * 512 + 5 * 512 * 512
)  # fmt: skip
VGG_CHANNELS = 2 * 64 + 2 * 128 + 3 * 256 + 6 * 512
VGG_CLASSIFIER = (4096 * 4096 + 4096) + (4096 * 10 + 10)


@pytest.mark.parametrize(("name", "side", "settings", "expected"), [
    ("vgg16_bn", 224, {}, 134_309_962),
    ("vgg16", 64, {}, VGG_KERNELS + VGG_CHANNELS + 4 * 512 * 4096 + 4096 + VGG_CLASSIFIER),
    ("vgg16_bn", 32, {"hidden_layers": 0}, VGG_KERNELS + 3 * VGG_CHANNELS + 512 * 10 + 10),  # the WRS paper's
    ("resnet18", 32, {"small_images": False}, 11_181_642),
    ("resnet18", 32, {}, 11_173_962),
    ("vit_tiny", 32, {"patch": 4}, 5_362_762),
])  # fmt: skip
def test_networks_have_the_published_number_of_parameters(name, side, settings, expected):
    assert count(on_meta(name, side, **settings)) == expected


def test_resnet18_for_small_images_has_a_3x3_stem_that_keeps_the_size():
    net = on_meta("resnet18", small_images=True)
    assert not any(isinstance(m, nn.MaxPool2d) for m in net)
    assert net[:3](torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 64, 32, 32)
    assert net[:-3](torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 512, 4, 4)
    imagenet = on_meta("resnet18", small_images=False)
    assert imagenet[:-3](torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 512, 7, 7)


def test_wrn28_10_has_the_number_of_parameters_of_its_table():
    total = 9 * 3 * 16 + 2 * 640 + 640 * 10 + 10
    for before, n in ((16, 160), (160, 320), (320, 640)):
        # Four blocks of two convolutions, the first one from `before` channels; a 1x1 shortcut; a norm before each.
        total += 9 * before * n + 7 * 9 * n * n + before * n + 2 * before + 7 * 2 * n
    net = on_meta("wrn28_10")
    assert count(net) == total == 36_479_194
    assert sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in net.modules()) == 28 - 3
    assert net[:-3](torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 640, 8, 8)


def test_every_convolution_of_table_one_s_networks_has_a_norm_layer_right_behind_it():
    for name in ("vgg16_bn", "resnet18", "resnet18_imagenet", "wrn28_10_norms"):
        net = NETS[name]()
        found = [y.name for y in layers(net) if y.role == "conv"]
        assert [y.name for y in read(net).before_norms] == found, name
    standard = on_meta("wrn28_10")
    without = {y.name for y in layers(standard) if y.role == "conv"} - {y.name for y in read(standard).before_norms}
    assert without == {*(f"{i}.residual.3" for i in range(1, 13)), *(f"{i}.shortcut" for i in (1, 5, 9))}
    extra = sum(5 * 2 * n for n in (160, 320, 640))  # gains and shifts behind four second convolutions and a shortcut
    assert count(net) == 36_479_194 + extra


NETS = {
    "vgg16": lambda: on_meta("vgg16"),
    "vgg16_bn": lambda: on_meta("vgg16_bn"),
    "resnet18": lambda: on_meta("resnet18"),
    "resnet18_imagenet": lambda: on_meta("resnet18", small_images=False),
    "wrn28_10": lambda: on_meta("wrn28_10"),
    "wrn28_10_norms": lambda: on_meta("wrn28_10", norm_after_every_conv=True),
    "vit_tiny": lambda: on_meta("vit_tiny"),
    "resnet18_mean_only": lambda: on_meta("resnet18", norm="mean_only"),
}


@pytest.mark.parametrize("name", NETS)
def test_every_parameter_belongs_to_a_layer_and_only_the_last_layer_is_a_head(name):
    net = NETS[name]()
    found = layers(net)
    named = [n for y in found for n in (y.weight_name, y.bias_name) if n]
    assert sorted(named) == sorted(n for n, _ in net.named_parameters())
    assert [y.head for y in found] == [False] * (len(found) - 1) + [True]
    assert net(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 10)


def test_hidden_units_of_a_residual_network_are_those_inside_its_blocks_only():
    units = hidden_units(NETS["resnet18"]())
    inside = [f"{i}.residual" for i in range(3, 11)]
    assert [(u.incoming.name, u.outgoing[0].name) for u in units] == [(f"{b}.0", f"{b}.3") for b in inside]
    units = hidden_units(NETS["wrn28_10"]())
    assert [(u.incoming.name, [y.name for y in u.outgoing]) for u in units] == [
        ("0", ["1.residual.0", "1.shortcut"]),  # the stem feeds the first block's activation and nothing else
        *((f"{i}.residual.0", [f"{i}.residual.3"]) for i in range(1, 13)),
    ]


def test_initial_weights_have_the_spread_their_docstrings_state():
    small = make_network("resnet18", (3, 32, 32), 10, [0])
    kernel = small[6].residual[3].weight  # 128 to 128 channels
    assert kernel.std().item() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)
    vit = make_network("vit_tiny", (3, 8, 8), 10, [0])
    # Of n normal numbers it has a relative standard error of 1 / sqrt(2 n).
    assert vit.head.weight.std().item() == pytest.approx(192**-0.5, rel=5 / (2 * 1920) ** 0.5)
    for weight in (vit.blocks[0].attention.in_proj_weight, vit.blocks[3].mlp[0].weight, vit.patches.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not any(p.any() for n, p in vit.named_parameters() if n.endswith("bias"))
    assert all((m.weight == 1).all() for m in vit.modules() if isinstance(m, nn.LayerNorm))


def test_crelu_in_resnet18_doubles_the_inputs_of_each_block_s_second_convolution_and_the_stream_keeps_its_width():
    net, plain = on_meta("resnet18", activation="crelu"), on_meta("resnet18")
    blocks = range(3, 11)
    for name, p in net.named_parameters():
        shape = [*plain.get_parameter(name).shape]
        if name in [f"{i}.residual.3.weight" for i in blocks]:
            shape[1] *= 2
        assert [*p.shape] == shape, name
    assert [type(net[i].residual[2]) for i in blocks] == [CReLU] * 8
    assert [type(m) for m in (net[2], *(net[i].relu for i in blocks))] == [nn.ReLU] * 9
    assert net(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 10)
    leaky = on_meta("resnet18", activation="leaky_relu")
    assert {type(m) for m in leaky.modules() if "ReLU" in type(m).__name__} == {nn.LeakyReLU}
