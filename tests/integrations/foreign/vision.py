"""Networks for images, signals and volumes, as torchvision, timm and the papers' own code have them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, made_of, vectors


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


class SqueezeExcite(nn.Module):
    """Hu et al. (2018), with linear layers."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(n, 3), nn.ReLU(), nn.Linear(3, n), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.shape
        return x * self.fc(x.mean([2, 3])).view(b, c, 1, 1)


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


class Attention(nn.Module):
    """timm's, with one matrix for queries, keys and values."""

    def __init__(self, n: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (n // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(n, 3 * n), nn.Linear(n, n)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        attn = ((q * self.scale) @ k.transpose(-2, -1)).softmax(-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(n), Attention(n, 2), nn.LayerNorm(n)
        self.mlp = nn.Sequential(nn.Linear(n, 12), nn.GELU(), nn.Linear(12, n))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def vi_t(net: nn.Module, x: Tensor) -> Tensor:
    """A token and positions, as timm's."""
    x = net.proj(x).flatten(2).transpose(1, 2)
    x = torch.cat((net.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + net.pos_embed
    return net.head(net.norm(net.blocks(x))[:, 0])


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


def vae(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The noise is a buffer here."""
    h = F.relu(net.fc1(x))
    mu, logvar = net.mu(h), net.logvar(h)
    z = mu + net.eps * torch.exp(0.5 * logvar)
    return torch.sigmoid(net.fc4(F.relu(net.fc3(z)))), mu, logvar


def vqvae(net: nn.Module, x: Tensor) -> Tensor:
    """The nearest entries of a codebook, whose gradient is passed straight through."""
    z = net.encoder(x).permute(0, 2, 3, 1)
    flat, codes = z.reshape(-1, 4), net.embedding.weight
    distance = flat.pow(2).sum(1, keepdim=True) + codes.pow(2).sum(1) - 2 * flat @ codes.t()
    q = net.embedding(distance.argmin(1)).view(z.shape)
    return net.decoder((z + (q - z).detach()).permute(0, 3, 1, 2))


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


def c3_d(net: nn.Module, x: Tensor) -> Tensor:
    x = net.pool(F.relu(net.bn(net.conv1(x))))
    return net.fc(F.relu(net.conv2(x)).mean([2, 3, 4]))


def spatial_softmax(net: nn.Module, x: Tensor) -> Tensor:
    """Levine et al. (2016): the expected position of each feature, with a learned temperature."""
    h = net.conv2(net.conv1(x).relu()).flatten(2)  # [batch, 5, 16]
    share = (h / net.temperature).softmax(-1)
    return net.fc((share * net.x).sum(-1))


def image(n: int = 3) -> Tensor:
    return vectors(2, n, 8, 8)


BN = ("*bn?.weight", "*downsample.1.weight")  # torchvision's names
CONV_BN = ("*.1.weight",)  # of `conv_bn`
VISION = {
    "resnet_basic": Expected(
        lambda: ResNet(BasicBlock(4, 4, 1), BasicBlock(4, 6, 2), width=6), image, heads=("fc",), norms=BN, traced=True,
        units=2,
    ),
    "vgg": Expected(
        lambda: made_of(
            lambda net, x: net.classifier(torch.flatten(net.avgpool(net.features(x)), 1)),
            features=nn.Sequential(
                nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(True), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(True),
                nn.MaxPool2d(2, 2), nn.Conv2d(6, 5, 3, padding=1), nn.ReLU(True),
            ),
            avgpool=nn.AdaptiveAvgPool2d((2, 2)),
            classifier=nn.Sequential(nn.Linear(20, 8), nn.ReLU(True), nn.Dropout(), nn.Linear(8, 3)),
        ),
        image, heads=("classifier.3",), traced=True, units=4, classifier=("classifier.0", "classifier.3"),
    ),
    "senet": Expected(
        lambda: made_of(
            lambda net, x: net.fc(net.se(net.conv(x)).mean([2, 3])),
            conv=conv_bn(3, 6, 3), se=SqueezeExcite(6), fc=nn.Linear(6, 3),
        ),
        image, heads=("fc",), norms=("conv.1.weight",), traced=True, units=1,
    ),
    "convnext": Expected(
        lambda: made_of(
            lambda net, x: net.head(net.norm(net.block(net.stem(x)).mean([-2, -1]))),
            stem=nn.Sequential(nn.Conv2d(3, 4, 2, stride=2), ChannelsFirst(4)), block=ConvNeXtBlock(4),
            norm=nn.LayerNorm(4), head=nn.Linear(4, 3),
        ),
        image, heads=("head",), norms=("stem.1.weight", "*norm.weight"), undecided=("block.gamma",), traced=True,
        units=1,
    ),
    "layer_norm_2d": Expected(layer_norm_2d, image, heads=("7",), norms=("1.weight",), traced=True, units=1),
    "vit": Expected(
        lambda: made_of(
            vi_t, proj=nn.Conv2d(3, 8, 4, stride=4), cls_token=nn.Parameter(0.02 * torch.randn(1, 1, 8)),
            pos_embed=nn.Parameter(0.02 * torch.randn(1, 5, 8)), blocks=nn.Sequential(Block(8)), norm=nn.LayerNorm(8),
            head=nn.Linear(8, 3),
        ),
        image, heads=("head",), norms=("*norm*.weight",), tables=("pos_embed",), vectors=("cls_token",), traced=True,
        units=1,
    ),
    "espcn": Expected(  # Super-resolution: the upscaling shuffles channels into pixels.
        lambda: made_of(
            lambda net, x: net.conv3(F.relu(net.shuffle(net.conv2(F.relu(net.conv1(x)))))),
            conv1=nn.Conv2d(3, 4, 3, padding=1), conv2=nn.Conv2d(4, 16, 3, padding=1), shuffle=nn.PixelShuffle(2),
            conv3=nn.Conv2d(4, 3, 3, padding=1),
        ),
        image, heads=("conv3",), traced=True, units=1,
    ),
    "grouped_transposed": Expected(
        grouped_transposed, image, heads=("4",), transposed=("2.weight",), traced=True, units=1
    ),
    "dcgan_generator": Expected(
        dcgan_generator, lambda: vectors(3, 6, 1, 1), heads=("6",), norms=("[14].weight",),
        transposed=("[036].weight",), traced=True, units=2,
    ),
    "vae": Expected(
        lambda: made_of(
            vae, fc1=nn.Linear(6, 8), mu=nn.Linear(8, 4), logvar=nn.Linear(8, 4), fc3=nn.Linear(4, 8),
            fc4=nn.Linear(8, 6), eps=torch.randn(4),
        ),
        lambda: vectors(3, 6), heads=("fc4",), traced=True, units=2,
    ),
    "vqvae": Expected(
        lambda: made_of(
            vqvae, encoder=nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 1)),
            embedding=nn.Embedding(5, 4),
            decoder=nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 1)),
        ),
        image, heads=("decoder.2",), undecided=("embedding.weight",), traced=True, units=2,
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
    "c3d": Expected(
        lambda: made_of(
            c3_d, conv1=nn.Conv3d(1, 4, 3, padding=1), bn=nn.BatchNorm3d(4), pool=nn.MaxPool3d(2),
            conv2=nn.Conv3d(4, 5, 3, padding=1), fc=nn.Linear(5, 3),
        ),
        lambda: vectors(2, 1, 4, 4, 4), heads=("fc",), norms=("bn.weight",), traced=True, units=2,
    ),
    "spatial_softmax": Expected(
        lambda: made_of(
            spatial_softmax, conv1=nn.Conv2d(3, 4, 3), conv2=nn.Conv2d(4, 5, 3),
            temperature=nn.Parameter(torch.ones(1)), x=torch.linspace(-1, 1, 16), fc=nn.Linear(5, 3),
        ),
        image, heads=("fc",), undecided=("temperature",), traced=True, units=1,
    ),
}  # fmt: skip
