"""ResNet-18 and WRN-28-10, one run at a time.

Each ReLU is a module of its own, used once, so that ``regularizers.hidden_units`` tells them apart.
"""

from torch import Tensor, nn


def _conv3x3(fan_in: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(fan_in, out, 3, stride, padding=1, bias=False)


def _initialize_(net: nn.Module) -> None:
    """Kernels normal with variance 2 / (out * kh * kw) (He et al. 2015); the rest stays as torch makes it."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class BasicBlock(nn.Module):
    """relu(norm(conv(relu(norm(conv x)))) + x), with a 1x1 convolution and a norm on x where the shape changes."""

    def __init__(self, fan_in: int, out: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _conv3x3(fan_in, out, stride),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            _conv3x3(out, out),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or fan_in != out:
            self.shortcut = nn.Sequential(nn.Conv2d(fan_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return output


def resnet18(num_classes: int, small_images: bool = True, channels: int = 3) -> nn.Sequential:
    """ResNet-18: ``[batch, c, h, w] -> [batch, classes]``, for images of any size.

    Source: He et al. (2016), Table 1, with 1x1 convolutions as shortcuts where the shape changes (their option B).

    Args:
        small_images: a 3x3 stride-1 stem without max-pooling, as is usual for 32 pixels; else the paper's stem for
            ImageNet (7x7, stride 2, then 3x3 max-pooling of stride 2).
    """
    first = _conv3x3(channels, 64) if small_images else nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False)
    modules = [first, nn.BatchNorm2d(64), nn.ReLU()]
    if not small_images:
        modules.append(nn.MaxPool2d(3, 2, padding=1))
    fan_in = 64
    for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        modules += [BasicBlock(fan_in, out, stride), BasicBlock(out, out, 1)]
        fan_in = out
    net = nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, num_classes))
    _initialize_(net)
    return net


class PreActivationBlock(nn.Module):
    """conv(relu(norm(conv a))) + x with a = relu(norm(x)); where the shape changes, a 1x1 convolution of a is added."""

    def __init__(self, fan_in: int, out: int, stride: int) -> None:
        super().__init__()
        self.activate = nn.Sequential(nn.BatchNorm2d(fan_in), nn.ReLU())
        self.residual = nn.Sequential(_conv3x3(fan_in, out, stride), nn.BatchNorm2d(out), nn.ReLU(), _conv3x3(out, out))
        changes = stride != 1 or fan_in != out
        self.shortcut = nn.Conv2d(fan_in, out, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = self.activate(x)
        output: Tensor = self.residual(active) + (x if self.shortcut is None else self.shortcut(active))
        return output


def wrn28_10(num_classes: int, channels: int = 3) -> nn.Sequential:
    """Wide ResNet, 28 layers deep and 10 times as wide, without dropout: ``[batch, c, h, w] -> [batch, classes]``.

    Source: Zagoruyko and Komodakis (2016), Table 1, with pre-activation blocks. Liu et al. (2021) add a BatchNorm to
    the convolutions that have none; this is the standard network, as in their section VI-B.
    """
    modules: list[nn.Module] = [_conv3x3(channels, 16)]
    fan_in = 16
    for out, stride in ((160, 1), (320, 2), (640, 2)):
        modules += [PreActivationBlock(fan_in, out, stride), *(PreActivationBlock(out, out, 1) for _ in range(3))]
        fan_in = out
    head = [nn.BatchNorm2d(640), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(640, num_classes)]
    net = nn.Sequential(*modules, *head)
    _initialize_(net)
    return net
