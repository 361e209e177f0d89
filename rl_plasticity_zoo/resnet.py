"""ResNet-18 and WRN-28-10, one run at a time.

Each activation is a module of its own, used once, so that ``regularizers.hidden_units`` tells them apart.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from torch import Tensor, nn

from rl_plasticity import Setting
from rl_plasticity.networks import Activation, make_activation
from rl_plasticity_zoo.norms import MeanOnlyBatchNorm2d
from rl_plasticity_zoo.one_run import fit_gain_, one_run

Norm = Literal["batch", "mean_only"]
_NORMS = {"batch": nn.BatchNorm2d, "mean_only": MeanOnlyBatchNorm2d}


def _conv3x3(fan_in: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(fan_in, out, 3, stride, padding=1, bias=False)


def _initialize_(net: nn.Module, activation: Activation, mode: Literal["fan_out", "fan_in"] = "fan_out") -> None:
    """Kernels normal with variance gain^2 / (out * kh * kw), or with in for out; the rest is torch's.

    For ReLU the square of the gain is 2 (He et al. 2015).
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            fit_gain_(module.weight, activation)


class BasicBlock(nn.Module):
    """relu(norm(conv(act(norm(conv x)))) + x), with a 1x1 convolution and a norm on x where the shape changes."""

    def __init__(self, fan_in: int, out: int, stride: int, norm: type[nn.Module], activation: Activation) -> None:
        super().__init__()
        inside, factor = make_activation(activation, dim=1)
        self.residual = nn.Sequential(
            _conv3x3(fan_in, out, stride),
            norm(out),
            inside,
            _conv3x3(factor * out, out),
            norm(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or fan_in != out:
            self.shortcut = nn.Sequential(nn.Conv2d(fan_in, out, 1, stride, bias=False), norm(out))
        self.relu = _of_stream(activation)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return output


def _of_stream(activation: Activation) -> nn.Module:
    """The activation of what a block gives to the next one: as wide as it is."""
    non_linearity, factor = make_activation(activation)
    return non_linearity if factor == 1 else nn.ReLU()


def resnet18(
    shape: Sequence[int],
    num_classes: int,
    seeds: Sequence[int],
    small_images: Annotated[bool, Setting("whether the stem is a 3x3 convolution without pooling")] = True,
    norm: Annotated[
        Norm, Setting("norm layers: BatchNorm; mean_only subtracts the mean and does not divide")
    ] = "batch",
    activation: Activation = "relu",
) -> nn.Sequential:
    """ResNet-18: ``[batch, c, h, w] -> [batch, classes]``, for images of any size.

    Source: He et al. (2016), Table 1, with 1x1 convolutions as shortcuts where the shape changes (their option B).
    A norm layer follows every convolution, those of the shortcuts too, as in Liu et al. (2021), section VI-A.

    Args:
        small_images: a 3x3 stride-1 stem without max-pooling, as is usual for 32 pixels; else the paper's stem for
            ImageNet (7x7, stride 2, then 3x3 max-pooling of stride 2).
        norm: "mean_only" is mean-only batch normalization (`MeanOnlyBatchNorm2d`), which goes with bounded weight
            normalization. Nothing then takes out a kernel's scale, so its variance is 2 / (in * kh * kw), which keeps
            that of the activations (ours; with the other the outputs start some ten times as small).
        activation: "crelu" (Shang et al. 2016) and "deep_fourier" are inside the blocks, where they double the inputs
            of the second convolution. That is our reading: on the stream between blocks, which keeps its width and its
            ReLU, they would make a convolution of every shortcut.
    """
    with one_run("resnet18", seeds):
        kind = _NORMS[norm]
        first = _conv3x3(shape[0], 64) if small_images else nn.Conv2d(shape[0], 64, 7, 2, padding=3, bias=False)
        modules = [first, kind(64), _of_stream(activation)]
        if not small_images:
            modules.append(nn.MaxPool2d(3, 2, padding=1))
        fan_in = 64
        for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            modules += [BasicBlock(fan_in, out, stride, kind, activation), BasicBlock(out, out, 1, kind, activation)]
            fan_in = out
        net = nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, num_classes))
        _initialize_(net, activation, "fan_out" if norm == "batch" else "fan_in")
    return net


class PreActivationBlock(nn.Module):
    """conv(act(norm(conv a))) + x with a = act(norm(x)); where the shape changes, a 1x1 convolution of a is added.

    With `norm_after_every_conv` what is added has a norm layer: norm(conv(act(norm(conv a)))), norm(conv a).
    """

    def __init__(self, fan_in: int, out: int, stride: int, norm_after_every_conv: bool, activation: Activation) -> None:
        super().__init__()
        (first, factor), (second, _) = make_activation(activation, dim=1), make_activation(activation, dim=1)
        self.activate = nn.Sequential(nn.BatchNorm2d(fan_in), first)
        self.residual = nn.Sequential(
            _conv3x3(factor * fan_in, out, stride), nn.BatchNorm2d(out), second, _conv3x3(factor * out, out)
        )
        shortcut: nn.Module | None = None
        if stride != 1 or fan_in != out:
            shortcut = nn.Conv2d(factor * fan_in, out, 1, stride, bias=False)
        if norm_after_every_conv:
            self.residual.append(nn.BatchNorm2d(out))
            shortcut = shortcut and nn.Sequential(shortcut, nn.BatchNorm2d(out))
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        active = self.activate(x)
        output: Tensor = self.residual(active) + (x if self.shortcut is None else self.shortcut(active))
        return output


def wrn28_10(
    shape: Sequence[int],
    num_classes: int,
    seeds: Sequence[int],
    norm_after_every_conv: Annotated[
        bool, Setting("whether BatchNorm also follows the convolutions whose output is added (WRS paper, Table I)")
    ] = False,
    activation: Activation = "relu",
) -> nn.Sequential:
    """Wide ResNet, 28 layers deep and 10 times as wide, without dropout: ``[batch, c, h, w] -> [batch, classes]``.

    Source: Zagoruyko and Komodakis (2016), Table 1, with pre-activation blocks. The head's weights are normal with
    variance 2 / fan_in, its bias zero, as in their code (pytorch/utils.py): torch's own start outputs of 0.19.

    Args:
        norm_after_every_conv: Liu et al. (2021), section VI-A and Table I, "add BN for all convolution layers": behind
            a block's second convolution and a shortcut's too. Without, the standard network of their Table II.
        activation: "crelu" and "deep_fourier" double the inputs of what they feed: the stream keeps its width.
    """
    with one_run("wrn28_10", seeds):
        modules: list[nn.Module] = [_conv3x3(shape[0], 16)]
        fan_in = 16
        for out, stride in ((160, 1), (320, 2), (640, 2)):
            first = PreActivationBlock(fan_in, out, stride, norm_after_every_conv, activation)
            modules += [first, *(PreActivationBlock(out, out, 1, norm_after_every_conv, activation) for _ in range(3))]
            fan_in = out
        last, factor = make_activation(activation, dim=1)
        head = nn.Linear(factor * 640, num_classes)
        net = nn.Sequential(*modules, nn.BatchNorm2d(640), last, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
        _initialize_(net, activation)
        nn.init.kaiming_normal_(head.weight, nonlinearity="relu")
        nn.init.zeros_(head.bias)
    return net
