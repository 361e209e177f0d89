"""Networks for images, signals and volumes, as torchvision, timm and the papers' own code have them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, bare, made_of, mlp, row, vectors


def basic_block(n: int, m: int, stride: int) -> nn.Module:
    shortcut = nn.Sequential(nn.Conv2d(n, m, 1, stride, bias=False), nn.BatchNorm2d(m))

    def forward(net: nn.Module, x: Tensor) -> Tensor:
        out = net.bn2(net.conv2(net.relu(net.bn1(net.conv1(x)))))
        return net.relu(out + net.downsample(x))

    return made_of(
        forward, conv1=nn.Conv2d(n, m, 3, stride, 1, bias=False), bn1=nn.BatchNorm2d(m), relu=nn.ReLU(inplace=True),
        conv2=nn.Conv2d(m, m, 3, 1, 1, bias=False), bn2=nn.BatchNorm2d(m),
        downsample=shortcut if stride > 1 else nn.Identity(),
    )  # fmt: skip


def res_net(net: nn.Module, x: Tensor) -> Tensor:
    x = net.layers(net.maxpool(net.relu(net.bn1(net.conv1(x)))))
    return net.fc(torch.flatten(net.avgpool(x), 1))


class LayerNorm2d(nn.LayerNorm):
    """As torchvision and timm derive it."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


def attention(net: nn.Module, x: Tensor) -> Tensor:
    """timm's, with one matrix for queries, keys and values."""
    b, n, c = x.shape
    q, k, v = net.qkv(x).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
    attn = ((q * (c // 2) ** -0.5) @ k.transpose(-2, -1)).softmax(-1)
    return net.proj((attn @ v).transpose(1, 2).reshape(b, n, c))


def block(net: nn.Module, x: Tensor) -> Tensor:
    x = x + net.attn(net.norm1(x))
    return x + net.mlp(net.norm2(x))


def vi_t(net: nn.Module, x: Tensor) -> Tensor:
    """A token and positions, as timm's."""
    x = net.proj(x).flatten(2).transpose(1, 2)
    x = torch.cat((net.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + net.pos_embed
    return net.head(net.norm(net.blocks(x))[:, 0])


def normed(norm: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), norm, nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


def c3_d(net: nn.Module, x: Tensor) -> Tensor:
    x = net.pool(F.relu(net.bn(net.conv1(x))))
    return net.fc(F.relu(net.conv2(x)).mean([2, 3, 4]))


def image(n: int = 3) -> Tensor:
    return vectors(2, n, 8, 8)


BN = ("*bn?.weight", "*downsample.1.weight")  # torchvision's names
VISION = {
    "resnet_basic": Expected(
        lambda: made_of(res_net, conv1=nn.Conv2d(3, 4, 3, padding=1, bias=False), bn1=nn.BatchNorm2d(4),
            relu=nn.ReLU(True), maxpool=nn.MaxPool2d(3, 2, 1),
            layers=nn.Sequential(basic_block(4, 4, 1), basic_block(4, 6, 2)), avgpool=nn.AdaptiveAvgPool2d(1),
            fc=nn.Linear(6, 3)),
        image, heads=("fc",), norms=BN, units=2),
    "vgg": Expected(
        lambda: made_of(lambda net, x: net.classifier(torch.flatten(net.avgpool(net.features(x)), 1)),
            features=nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(True), nn.Conv2d(4, 6, 3, padding=1),
                nn.ReLU(True), nn.MaxPool2d(2, 2), nn.Conv2d(6, 5, 3, padding=1), nn.ReLU(True)),
            avgpool=nn.AdaptiveAvgPool2d((2, 2)),
            classifier=nn.Sequential(nn.Linear(20, 8), nn.ReLU(True), nn.Dropout(), nn.Linear(8, 3))),
        image, heads=("classifier.3",), units=4, classifier=("classifier.0", "classifier.3")),
    "layer_norm_2d": Expected(lambda: normed(LayerNorm2d(4)), image, heads=("7",), norms=("1.weight",), units=1),
    "vit": Expected(
        lambda: made_of(vi_t, proj=nn.Conv2d(3, 8, 4, stride=4), cls_token=bare(1, 1, 8, size=0.02),
            pos_embed=bare(1, 5, 8, size=0.02),
            blocks=made_of(block, norm1=nn.LayerNorm(8), attn=made_of(attention, qkv=nn.Linear(8, 24), proj=nn.Linear(8,
                8)), norm2=nn.LayerNorm(8), mlp=mlp(8, 12, 8, activation=nn.GELU)), norm=nn.LayerNorm(8),
            head=nn.Linear(8, 3)),
        image, norms=("*norm*.weight",), tables=("pos_embed",), vectors=("cls_token",), units=1),
    "espcn": Expected(  # Super-resolution: the upscaling shuffles channels into pixels.
        lambda: made_of(lambda net, x: net.conv3(F.relu(net.shuffle(net.conv2(F.relu(net.conv1(x)))))),
            conv1=nn.Conv2d(3, 4, 3, padding=1), conv2=nn.Conv2d(4, 16, 3, padding=1), shuffle=nn.PixelShuffle(2),
            conv3=nn.Conv2d(4, 3, 3, padding=1)),
        image, heads=("conv3",), units=1),
    "grouped_transposed": Expected(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2),
            nn.ReLU(), nn.Conv2d(6, 3, 1)),
        image, heads=("4",), transposed=("2.weight",), units=1),
    "dcgan_generator": Expected(
        lambda: nn.Sequential(nn.ConvTranspose2d(6, 8, 2, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
            nn.ConvTranspose2d(8, 4, 4, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(True),
            nn.ConvTranspose2d(4, 3, 4, 2, 1, bias=False), nn.Tanh()),
        row(3, 6, 1, 1), heads=("6",), norms=("[14].weight",), transposed=("[036].weight",), units=2),
    "group_norm_without_affine": Expected(
        lambda: normed(nn.GroupNorm(2, 4, affine=False)), image, heads=("7",), units=2, statistics=True),
    "instance_norm": Expected(
        lambda: normed(nn.InstanceNorm2d(4, affine=True)), image, heads=("7",), norms=("1.weight",), units=2),
    "c3d": Expected(
        lambda: made_of(c3_d, conv1=nn.Conv3d(1, 4, 3, padding=1), bn=nn.BatchNorm3d(4), pool=nn.MaxPool3d(2),
            conv2=nn.Conv3d(4, 5, 3, padding=1), fc=nn.Linear(5, 3)),
        row(2, 1, 4, 4, 4), heads=("fc",), norms=("bn.weight",), units=2),
}  # fmt: skip
