"""Networks for images, signals and volumes, as torchvision, timm and the papers' own code have them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, vectors


def conv_bn(n: int, m: int, k: int, act: type[nn.Module] | None = nn.ReLU, **how: int) -> nn.Sequential:
    """Convolution, batch norm and activation, as torchvision's Conv2dNormActivation."""
    layers = [nn.Conv2d(n, m, k, padding=k // 2, bias=False, **how), nn.BatchNorm2d(m)]
    return nn.Sequential(*layers, *([] if act is None else [act()]))


class BasicBlock(nn.Module):
    def __init__(self, n: int, m: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n, m, 3, stride, 1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(m), nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(m, m, 3, 1, 1, bias=False), nn.BatchNorm2d(m)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(n, m, 1, stride, bias=False), nn.BatchNorm2d(m))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """ResNeXt's where there are groups."""

    def __init__(self, n: int, width: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, n, 1, bias=False), nn.BatchNorm2d(n)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        return self.relu(self.bn3(self.conv3(out)) + x)


class ResNet(nn.Module):
    def __init__(self, *blocks: nn.Module, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layers, self.avgpool = nn.Sequential(*blocks), nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(True), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(True),
            nn.MaxPool2d(2, 2), nn.Conv2d(6, 5, 3, padding=1), nn.ReLU(True),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(nn.Linear(20, 8), nn.ReLU(True), nn.Dropout(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class Inception(nn.Module):
    """Branches that are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 4, 3)
        self.branch1x1 = conv_bn(4, 3, 1)
        self.branch3x3 = nn.Sequential(conv_bn(4, 3, 1), conv_bn(3, 4, 3))
        self.branch_pool = conv_bn(4, 2, 1)
        self.fc = nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        pooled = self.branch_pool(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1))
        x = torch.cat([self.branch1x1(x), self.branch3x3(x), pooled], 1)
        return self.fc(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


class DenseLayer(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(n), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(n, 6, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(6), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(6, 2, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
        return self.conv2(self.relu2(self.norm2(x)))


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.block = nn.ModuleList([DenseLayer(4), DenseLayer(6)])
        self.norm5, self.classifier = nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.conv0(x)]
        for layer in self.block:
            features.append(layer(features))
        x = F.relu(self.norm5(torch.cat(features, 1)), inplace=True)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))


class InvertedResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            conv_bn(4, 8, 1, nn.ReLU6), conv_bn(8, 8, 3, nn.ReLU6, groups=8), conv_bn(8, 4, 1, None)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_bn(3, 4, 3, nn.ReLU6), InvertedResidual(), conv_bn(4, 6, 1, nn.ReLU6))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean([2, 3]))


class SqueezeExcite(nn.Module):
    """Hu et al. (2018), with linear layers."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(n, 3), nn.ReLU(), nn.Linear(3, n), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.shape
        return x * self.fc(x.mean([2, 3])).view(b, c, 1, 1)


class SENet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.se = conv_bn(3, 6, 3), SqueezeExcite(6)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.se(self.conv(x)).mean([2, 3]))


class MBConv(nn.Module):
    """EfficientNet's block: its squeeze-and-excitation is of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depthwise = conv_bn(4, 8, 1, nn.SiLU), conv_bn(8, 8, 3, nn.SiLU, groups=8)
        self.reduce, self.excite = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.project = conv_bn(8, 4, 1, None)

    def forward(self, x: Tensor) -> Tensor:
        h = self.depthwise(self.expand(x))
        scale = self.excite(F.silu(self.reduce(F.adaptive_avg_pool2d(h, 1)))).sigmoid()
        return self.project(h * scale) + x


def efficientnet() -> nn.Module:
    head = [conv_bn(4, 6, 1, nn.SiLU), nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(6, 3)]
    return nn.Sequential(conv_bn(3, 4, 3, nn.SiLU), MBConv(), *head)


class ChannelsFirst(nn.Module):
    """ConvNeXt's own LayerNorm over channels, written out."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ConvNeXtBlock(nn.Module):
    """Its LayerScale starts at 1e-6."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(n, n, 3, padding=1, groups=n), nn.LayerNorm(n, eps=1e-6)
        self.pwconv1, self.act, self.pwconv2 = nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n)
        self.gamma = nn.Parameter(1e-6 * torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        h = self.gamma * self.pwconv2(self.act(self.pwconv1(h)))
        return x + h.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 2, stride=2), ChannelsFirst(4))
        self.block, self.norm, self.head = ConvNeXtBlock(4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.block(self.stem(x)).mean([-2, -1])))


class LayerNorm2d(nn.LayerNorm):
    """As torchvision and timm derive it."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


def layer_norm_2d() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), LayerNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1),
        nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, n: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.mlp_tokens = nn.Sequential(nn.Linear(tokens, 6), nn.GELU(), nn.Linear(6, tokens))
        self.mlp_channels = nn.Sequential(nn.Linear(n, 10), nn.GELU(), nn.Linear(10, n))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp_channels(self.norm2(x))


class Affine(nn.Module):
    """ResMLP's norm: a gain and a shift, without statistics."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))

    def forward(self, x: Tensor) -> Tensor:
        return self.alpha * x + self.beta


class ResMLPBlock(nn.Module):
    def __init__(self, tokens: int, n: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = Affine(n), Affine(n)
        self.attn = nn.Linear(tokens, tokens)
        self.mlp = nn.Sequential(nn.Linear(n, 10), nn.GELU(), nn.Linear(10, n))
        self.gamma_1, self.gamma_2 = (nn.Parameter(0.1 * torch.ones(n)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma_1 * self.attn(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.gamma_2 * self.mlp(self.norm2(x))


class OfPatches(nn.Module):
    """Patches, blocks, a norm, a mean, a head."""

    def __init__(self, block: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.proj, self.block = nn.Conv2d(3, 8, 4, stride=4), block
        self.norm, self.head = norm, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.block(x)).mean(1))


class Attention(nn.Module):
    """timm's, with one matrix for queries, keys and values; Swin's where it has a table of relative positions."""

    def __init__(self, n: int, heads: int, window: int = 0) -> None:
        super().__init__()
        self.heads, self.scale = heads, (n // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.relative_position_bias_table = None
        if window:
            self.relative_position_bias_table = nn.Parameter(0.02 * torch.randn((2 * window - 1) ** 2, heads))
            at = torch.stack(torch.meshgrid(*[torch.arange(window)] * 2, indexing="ij")).flatten(1)
            d = at[:, :, None] - at[:, None] + window - 1
            self.register_buffer("relative_position_index", d[0] * (2 * window - 1) + d[1])

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        if self.relative_position_bias_table is not None:
            bias = self.relative_position_bias_table[self.relative_position_index.view(-1)]
            attn = attn + bias.view(n, n, -1).permute(2, 0, 1).unsqueeze(0)
        return self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(n), Attention(n, 2), nn.LayerNorm(n)
        self.mlp = nn.Sequential(nn.Linear(n, 12), nn.GELU(), nn.Linear(12, n))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A token and positions, as timm's."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, 8, 4, stride=4)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, 8))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 5, 8))
        self.blocks, self.norm, self.head = nn.Sequential(Block(8)), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class SwinBlock(nn.Module):
    """Attention inside shifted windows of 2 x 2 in a map of 4 x 4."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(n), Attention(n, 2, window=2), nn.LayerNorm(n)
        self.mlp = nn.Sequential(nn.Linear(n, 12), nn.GELU(), nn.Linear(12, n))

    def forward(self, x: Tensor) -> Tensor:  # [batch, 4, 4, n]
        b, h, w, c = x.shape
        y = torch.roll(self.norm1(x), (-1, -1), (1, 2))
        y = y.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        y = self.attn(y).view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = x + torch.roll(y, (1, 1), (1, 2))
        return x + self.mlp(self.norm2(x))


class Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj, self.block = nn.Conv2d(3, 8, 2, stride=2), SwinBlock(8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.proj(x).permute(0, 2, 3, 1))
        return self.head(self.norm(x).mean([1, 2]))


class BilinearUNet(nn.Module):
    """Double convolutions, upsampling without parameters."""

    def __init__(self) -> None:
        super().__init__()
        double = lambda n, m: nn.Sequential(*conv_bn(n, m, 3), *conv_bn(m, m, 3))  # noqa: E731
        self.inc, self.down = double(3, 4), nn.Sequential(nn.MaxPool2d(2), double(4, 6))
        self.up, self.conv = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), double(10, 4)
        self.outc = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.inc(x)
        return self.outc(self.conv(torch.cat([skip, self.up(self.down(skip))], dim=1)))


class SegFormer(nn.Module):
    """Attention on fewer keys, a depthwise convolution in the MLP, a decoder of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.LayerNorm(8)
        self.sr, self.sr_norm = nn.Conv2d(8, 8, 2, stride=2), nn.LayerNorm(8)
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm2, self.fc1, self.fc2 = nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(12, 8)
        self.dwconv = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.linear, self.fuse = nn.Linear(8, 6), conv_bn(14, 6, 1)
        self.classifier = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        stem = self.proj(x)
        b, c, h, w = stem.shape
        x = self.norm(stem.flatten(2).transpose(1, 2))
        few = self.sr(x.transpose(1, 2).reshape(b, c, h, w)).flatten(2).transpose(1, 2)
        few = self.sr_norm(few)
        attn = (self.query(x) @ self.key(few).transpose(-2, -1) / c**0.5).softmax(-1)
        x = x + attn @ self.value(few)
        y = self.fc1(self.norm2(x)).transpose(1, 2).reshape(b, 12, h, w)
        x = x + self.fc2(F.gelu(self.dwconv(y).flatten(2).transpose(1, 2)))
        y = self.linear(x).transpose(1, 2).reshape(b, 6, h, w)
        return self.classifier(self.fuse(torch.cat([y, stem], 1)))


class ASPP(nn.Module):
    """DeepLab's pyramid of dilated convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = conv_bn(3, 4, 3)
        self.one = conv_bn(4, 3, 1)
        self.dilated = nn.Sequential(nn.Conv2d(4, 3, 3, padding=2, dilation=2), nn.BatchNorm2d(3), nn.ReLU())
        self.pooling = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 3, 1), nn.ReLU())
        self.project, self.classifier = conv_bn(9, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        size, x = x.shape[-2:], self.backbone(x)
        pooled = F.interpolate(self.pooling(x), size=(8, 8), mode="bilinear", align_corners=False)
        x = self.classifier(self.project(torch.cat([self.one(x), self.dilated(x), pooled], 1)))
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


class FPN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.inner1, self.inner2 = nn.Conv2d(4, 5, 1), nn.Conv2d(6, 5, 1)
        self.layer1, self.layer2 = nn.Conv2d(5, 5, 3, padding=1), nn.Conv2d(5, 5, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        c1 = self.conv1(x).relu()
        last = self.inner2(self.conv2(c1).relu())
        first = self.inner1(c1) + F.interpolate(last, scale_factor=2.0, mode="nearest")
        return {"0": self.layer1(first), "1": self.layer2(last)}


class Detector(nn.Module):
    """RetinaNet's heads: towers of their own for classes and boxes, shared by the levels."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels, self.backbone = levels, nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        self.cls_tower = nn.Sequential(nn.Conv2d(4, 5, 3, padding=1), nn.ReLU())
        self.box_tower = nn.Sequential(nn.Conv2d(4, 5, 3, padding=1), nn.ReLU())
        self.cls_logits, self.bbox_pred = nn.Conv2d(5, 6, 3, padding=1), nn.Conv2d(5, 8, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, classes, boxes = self.backbone(x), [], []
        for _ in range(self.levels):
            classes.append(self.cls_logits(self.cls_tower(x)).flatten(2))
            boxes.append(self.bbox_pred(self.box_tower(x)).flatten(2))
            x = F.max_pool2d(x, 2)
        return torch.cat(classes, 2), torch.cat(boxes, 2)


class ESPCN(nn.Module):
    """Super-resolution: the upscaling shuffles channels into pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 16, 3, padding=1)
        self.shuffle, self.conv3 = nn.PixelShuffle(2), nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv3(F.relu(self.shuffle(self.conv2(F.relu(self.conv1(x))))))


def grouped_transposed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2), nn.ReLU(),
        nn.Conv2d(6, 3, 1),
    )  # fmt: skip


def dcgan_generator() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(6, 8, 2, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
        nn.ConvTranspose2d(8, 4, 4, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(True),
        nn.ConvTranspose2d(4, 3, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip


def dcgan_discriminator() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(4, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(8, 1, 2, bias=False), nn.Sigmoid(),
    )  # fmt: skip


class VAE(nn.Module):
    """The noise is a buffer here."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.mu, self.logvar = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 4)
        self.fc3, self.fc4 = nn.Linear(4, 8), nn.Linear(8, 6)
        self.register_buffer("eps", torch.randn(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.fc1(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + self.eps * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


class VQVAE(nn.Module):
    """The nearest entries of a codebook, whose gradient is passed straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 1))
        self.embedding = nn.Embedding(5, 4)
        self.decoder = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x).permute(0, 2, 3, 1)
        flat, codes = z.reshape(-1, 4), self.embedding.weight
        distance = flat.pow(2).sum(1, keepdim=True) + codes.pow(2).sum(1) - 2 * flat @ codes.t()
        q = self.embedding(distance.argmin(1)).view(z.shape)
        return self.decoder((z + (q - z).detach()).permute(0, 3, 1, 2))


class CoordConv(nn.Module):
    """Liu et al. (2018): coordinates as channels."""

    def __init__(self) -> None:
        super().__init__()
        y, x = torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij")
        self.register_buffer("coordinates", torch.stack([y, x]).unsqueeze(0))
        self.conv1, self.conv2, self.fc = nn.Conv2d(5, 4, 3), nn.Conv2d(4, 6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, self.coordinates.expand(x.shape[0], -1, -1, -1)], 1)
        return self.fc(self.conv2(self.conv1(x).relu()).relu().mean([2, 3]))


class CoordinatesInside(CoordConv):
    """As many channels are given up as coordinates come in."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, self.coordinates.expand(x.shape[0], -1, -1, -1)], 1)
        h = self.conv1(x).relu()
        h = torch.cat([h[:, :2], self.coordinates[:, :, 1:7, 1:7].expand(x.shape[0], -1, -1, -1)], 1)
        return self.fc(self.conv2(h).relu().mean([2, 3]))


def without_affine(norm: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), norm, nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


def mobilenet_v1() -> nn.Module:
    return nn.Sequential(
        conv_bn(3, 4, 3),
        conv_bn(4, 4, 3, groups=4),
        conv_bn(4, 6, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


class WaveNet(nn.Module):
    """Causal convolutions with gates; the last layer has no residual."""

    def __init__(self) -> None:
        super().__init__()
        self.causal = nn.Conv1d(2, 4, 1)
        self.filter1, self.gate1 = nn.Conv1d(4, 4, 2), nn.Conv1d(4, 4, 2)
        self.filter2, self.gate2 = nn.Conv1d(4, 4, 2, dilation=2), nn.Conv1d(4, 4, 2, dilation=2)
        self.residual, self.skip1, self.skip2 = nn.Conv1d(4, 4, 1), nn.Conv1d(4, 5, 1), nn.Conv1d(4, 5, 1)
        self.post1, self.post2 = nn.Conv1d(5, 6, 1), nn.Conv1d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.causal(x)
        padded = F.pad(x, (1, 0))
        z = torch.tanh(self.filter1(padded)) * torch.sigmoid(self.gate1(padded))
        skip, x = self.skip1(z), x + self.residual(z)
        padded = F.pad(x, (2, 0))
        z = torch.tanh(self.filter2(padded)) * torch.sigmoid(self.gate2(padded))
        return self.post2(F.relu(self.post1(F.relu(skip + self.skip2(z)))))


class C3D(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn, self.pool = nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.MaxPool3d(2)
        self.conv2, self.fc = nn.Conv3d(4, 5, 3, padding=1), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn(self.conv1(x))))
        return self.fc(F.relu(self.conv2(x)).mean([2, 3, 4]))


class StdConv2d(nn.Conv2d):
    """Qiao et al. (2019): the weight is standardized in the forward."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


def weight_standardized() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), StdConv2d(4, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


class NormFreeConv2d(nn.Conv2d):
    """NFNet's: standardized, with a gain of its own for each unit."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__(n, m, 3)
        self.gain = nn.Parameter(torch.ones(m, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight.flatten(1)
        w = (w - w.mean(1, keepdim=True)) * torch.rsqrt(w.var(1, keepdim=True) + 1e-4)
        return F.conv2d(x, w.view_as(self.weight) * self.gain, self.bias)


def norm_free() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), NormFreeConv2d(4, 5), nn.SiLU(), nn.Flatten(), nn.Linear(80, 3))


class BlurPool(nn.Module):
    """Zhang (2019): a fixed low-pass kernel before subsampling."""

    def __init__(self, n: int) -> None:
        super().__init__()
        row = torch.tensor([0.25, 0.5, 0.25])
        self.register_buffer("kernel", (row[:, None] * row).expand(n, 1, 3, 3).clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), self.kernel, stride=2, groups=self.kernel.shape[0])


def blur_pool() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), BlurPool(4), nn.Conv2d(4, 5, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


class ShuffleUnit(nn.Module):
    """ShuffleNet's: half of the channels pass by, then all are shuffled."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.first, self.depthwise, self.last = conv_bn(n, n, 1), conv_bn(n, n, 3, None, groups=n), conv_bn(n, n, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        x = torch.cat((a, self.last(self.depthwise(self.first(b)))), dim=1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet() -> nn.Module:
    return nn.Sequential(
        conv_bn(3, 4, 3), ShuffleUnit(2), nn.Conv2d(4, 5, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(5, 3),
    )  # fmt: skip


class SpatialSoftmax(nn.Module):
    """Levine et al. (2016): the expected position of each feature, with a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)
        self.temperature = nn.Parameter(torch.ones(1))
        self.register_buffer("x", torch.linspace(-1, 1, 16))
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv2(self.conv1(x).relu()).flatten(2)  # [batch, 5, 16]
        share = (h / self.temperature).softmax(-1)
        return self.fc((share * self.x).sum(-1))


class FixupBlock(nn.Module):
    """Zhang et al. (2019): scalars in place of norms."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.bias1a, self.bias1b, self.bias2 = (nn.Parameter(torch.zeros(1)) for _ in range(3))
        self.conv1, self.conv2 = (nn.Conv2d(n, n, 3, padding=1, bias=False) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.conv1(x + self.bias1a) + self.bias1b)
        return F.relu(self.conv2(out) * self.scale + self.bias2 + x)


def fixup() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), FixupBlock(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )


class CBAM(nn.Module):
    """Attention over channels, whose MLP is called on two pools, and over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.mlp = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 6))
        self.spatial, self.fc = nn.Conv2d(2, 1, 3, padding=1), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu()
        channels = (self.mlp(x.mean([2, 3])) + self.mlp(x.amax([2, 3]))).sigmoid()
        x = x * channels[:, :, None, None]
        pooled = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return self.fc((x * self.spatial(pooled).sigmoid()).mean([2, 3]))


def image(n: int = 3) -> Tensor:
    return vectors(2, n, 8, 8)


BN = ("*bn?.weight", "*downsample.1.weight")  # torchvision's names
CONV_BN = ("*.1.weight",)  # of `conv_bn`
VISION = {
    "resnet_basic": Expected(
        lambda: ResNet(BasicBlock(4, 4, 1), BasicBlock(4, 6, 2), width=6), image, heads=("fc",), norms=BN, traced=True,
        units=2,
    ),
    "resnet_bottleneck": Expected(
        lambda: ResNet(Bottleneck(4, 6, 1), width=4), image, heads=("fc",), norms=BN, traced=True, units=2
    ),
    "resnext": Expected(  # a grouped convolution makes units, but reads none in order
        lambda: ResNet(Bottleneck(4, 6, 2), width=4), image, heads=("fc",), norms=BN, traced=True, units=1
    ),
    "vgg": Expected(
        VGG, image, heads=("classifier.3",), traced=True, units=4, classifier=("classifier.0", "classifier.3")
    ),
    "inception": Expected(Inception, image, heads=("fc",), norms=CONV_BN, traced=True, units=2),
    "densenet": Expected(DenseNet, image, heads=("classifier",), norms=("*norm?.weight",), traced=True, units=2),
    "mobilenet_v2": Expected(
        MobileNetV2, image, heads=("classifier.1",), norms=("features.?.1.weight", "*.conv.?.1.weight"), traced=True,
        units=2,
    ),
    "senet": Expected(SENet, image, heads=("fc",), norms=("conv.1.weight",), traced=True, units=1),
    "efficientnet": Expected(
        efficientnet, image, heads=("5",), norms=("0.1.weight", "1.*.1.weight", "2.1.weight"), traced=True, units=2
    ),
    "convnext": Expected(
        ConvNeXt, image, heads=("head",), norms=("stem.1.weight", "*norm.weight"), undecided=("block.gamma",),
        traced=True, units=1,
    ),
    "layer_norm_2d": Expected(layer_norm_2d, image, heads=("7",), norms=("1.weight",), traced=True, units=1),
    "mixer": Expected(
        lambda: OfPatches(MixerBlock(4, 8), nn.LayerNorm(8)), image, heads=("head",), norms=("*norm*.weight",),
        traced=True, units=2,
    ),
    "resmlp": Expected(
        lambda: OfPatches(ResMLPBlock(4, 8), Affine(8)), image, heads=("head",), gains=("*.alpha",),
        undecided=("*.gamma_?",), traced=True, units=1,
    ),
    "vit": Expected(
        ViT, image, heads=("head",), norms=("*norm*.weight",), tables=("pos_embed",), vectors=("cls_token",),
        traced=True, units=1,
    ),
    "swin": Expected(
        Swin, image, heads=("head",), norms=("*norm*.weight",), undecided=("*_table",), traced=True, units=1
    ),
    "unet_bilinear": Expected(
        BilinearUNet, image, heads=("outc",), norms=("inc.[14].weight", "down.1.[14].weight", "conv.[14].weight"),
        traced=True, units=4,
    ),
    "segformer": Expected(
        SegFormer, image, heads=("classifier",), norms=("*norm*.weight", "fuse.1.weight"), traced=True, units=1
    ),
    "deeplab": Expected(
        ASPP, image, heads=("classifier",), traced=True, units=2,
        norms=("backbone.1.weight", "one.1.weight", "dilated.1.weight", "project.1.weight"),
    ),
    "fpn": Expected(FPN, image, heads=("layer1", "layer2"), traced=True, units=2),
    "detector": Expected(lambda: Detector(1), image, heads=("cls_logits", "bbox_pred"), traced=True, units=3),
    "detector_levels": Expected(lambda: Detector(2), image, heads=("cls_logits", "bbox_pred"), traced=True),
    "espcn": Expected(ESPCN, image, heads=("conv3",), traced=True, units=1),
    "grouped_transposed": Expected(
        grouped_transposed, image, heads=("4",), transposed=("2.weight",), traced=True, units=1
    ),
    "dcgan_generator": Expected(
        dcgan_generator, lambda: vectors(3, 6, 1, 1), heads=("6",), norms=("[14].weight",),
        transposed=("[036].weight",), traced=True, units=2,
    ),
    "dcgan_discriminator": Expected(
        dcgan_discriminator, image, heads=("5",), norms=("3.weight",), traced=True, units=2
    ),
    "vae": Expected(VAE, lambda: vectors(3, 6), heads=("fc4",), traced=True, units=2),
    "vqvae": Expected(VQVAE, image, heads=("decoder.2",), undecided=("embedding.weight",), traced=True, units=2),
    "coordconv": Expected(CoordConv, image, heads=("fc",), traced=True, units=2),
    "coordinates_inside": Expected(CoordinatesInside, image, heads=("fc",), traced=True, units=1),
    "batch_norm_without_affine": Expected(
        lambda: without_affine(nn.BatchNorm2d(4, affine=False)), image, heads=("7",), traced=True, units=2
    ),
    "group_norm_without_affine": Expected(
        lambda: without_affine(nn.GroupNorm(2, 4, affine=False)), image, heads=("7",), traced=True, units=2,
        statistics=True,
    ),
    "instance_norm": Expected(
        lambda: without_affine(nn.InstanceNorm2d(4, affine=True)), image, heads=("7",), norms=("1.weight",),
        traced=True, units=2,
    ),
    "mobilenet_v1": Expected(mobilenet_v1, image, heads=("5",), norms=("?.1.weight",), traced=True, units=2),
    "wavenet": Expected(WaveNet, lambda: vectors(2, 2, 7), heads=("post2",), traced=True, units=1),
    "c3d": Expected(
        C3D, lambda: vectors(2, 1, 4, 4, 4), heads=("fc",), norms=("bn.weight",), traced=True, units=2
    ),
    "weight_standardized": Expected(
        weight_standardized, image, heads=("7",), norms=("3.weight",), undecided=("2.weight", "2.bias"), traced=True
    ),
    "norm_free": Expected(norm_free, image, heads=("5",), undecided=("2.*",), traced=True),
    "blur_pool": Expected(blur_pool, image, heads=("7",), traced=True, units=1),
    "shufflenet": Expected(
        shufflenet, image, heads=("6",), norms=("0.1.weight", "1.*.1.weight"), traced=True, units=1
    ),
    "spatial_softmax": Expected(
        SpatialSoftmax, image, heads=("fc",), undecided=("temperature",), traced=True, units=1
    ),
    "fixup": Expected(fixup, image, heads=("5",), undecided=("2.scale",), traced=True),
    "cbam": Expected(CBAM, image, heads=("fc",), traced=True),
}  # fmt: skip
