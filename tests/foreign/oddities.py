"""Networks that do what reading easily gets wrong: constants, computed weights, shared layers, other orders of axes."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

from foreign.expected import Expected, bare, frozen, made_of, mlp, ones, row, rows, vectors

X = row(4, 5)


def three(forward: Callable[..., Tensor], columns: int = 8, **expected: object) -> Expected:
    """Three layers, by their names."""
    layers = {"first": (5, 8), "second": (columns, 6), "head": (6, 3)}
    make = lambda: made_of(forward, **{name: nn.Linear(*shape) for name, shape in layers.items()})  # noqa: E731
    return Expected(make, X)._replace(**expected)


def between(change: Callable[[Tensor], Tensor], columns: int = 8) -> Expected:
    """Something without parameters behind a ReLU; the second layer's units are always read by the head alone."""

    def forward(net: nn.Module, x: Tensor) -> Tensor:
        return net.head(net.second(change(net.first(x).relu())).relu())

    return three(forward, columns, units=1)


def of_channels(change: Callable[[Tensor], Tensor], columns: int, units: int = 1) -> Expected:
    """The channels of a map [batch, 4, 2, 2] come to a linear layer in some way."""

    def make() -> nn.Module:
        forward = lambda net, x: net.head(net.fc(change(net.conv(x).relu())).relu())  # noqa: E731
        return made_of(forward, conv=nn.Conv2d(3, 4, 3), fc=nn.Linear(columns, 6), head=nn.Linear(6, 3))

    return Expected(make, row(2, 3, 4, 4), units=units, classifier=("fc", "head"))


def changed(change: Callable[[Tensor], Tensor], columns: int) -> Expected:
    """Two layers and an activation that changes the number of units."""
    forward = lambda net, x: net.head(change(net.first(x)))  # noqa: E731
    return Expected(lambda: made_of(forward, first=nn.Linear(5, 8), head=nn.Linear(columns, 3)), X)


class MaskedLinear(nn.Linear):
    """MADE's and masked flows'."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.new_ones(self.weight.shape).tril() * self.weight, self.bias)


class Grouped(nn.Conv2d):
    """A forward of its own that is torch's."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, groups=self.groups)


def with_third(change: Callable[[nn.Module], nn.Module], **expected: object) -> Expected:
    """The layer at 2 is changed from outside."""

    def make() -> nn.Module:
        net = mlp(5, 8, 8, 3)
        change(net[2])
        return net

    return Expected(make, X, heads=("4",))._replace(**expected)


def layer_normed(*frozen_parameters: str) -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    return frozen(net, *frozen_parameters) if frozen_parameters else net


def of_layer_normed(*frozen_parameters: str, **expected: object) -> Expected:
    expected = {"heads": ("5",), "norms": ("1.weight",), **expected}
    return Expected(lambda: layer_normed(*frozen_parameters), X)._replace(**expected)


def ensemble(net: nn.Module, x: Tensor) -> Tensor:
    """Members by a batched product; their biases [n, 1, out]."""
    x = x.expand(3, *x.shape)
    return torch.bmm((torch.bmm(x, net.w1) + net.b1).relu(), net.w2) + net.b2


def temperature(net: nn.Module, image: Tensor, text: Tensor) -> Tensor:
    """CLIP's: the logarithm of a scale."""
    image, text = F.normalize(net.image(image)), F.normalize(net.text(text))
    return net.logit_scale.exp() * image @ text.t()


def energy_gradient(net: nn.Module, x: Tensor) -> Tensor:
    """A score that is the gradient of an energy, taken in the forward."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(net.energy(x).sum(), x, create_graph=True)
    return -gradient


ODDITIES = {
    "constant_joined": between(lambda h: torch.cat([h, torch.ones_like(h[:, :1])], 1), columns=9),
    "padded": between(lambda h: F.pad(h[:, 1:], (1, 0), value=0.7)),
    "rolled": between(lambda h: h.roll(1, -1)),
    "sorted": between(lambda h: h.sort(-1).values),
    "cumulative": between(lambda h: h.cumsum(-1)),
    "normalized": between(lambda h: F.normalize(h, dim=-1)),
    "pool_along_units": between(lambda h: F.max_pool1d(h.unsqueeze(1), 3, 1, 1).squeeze(1)),
    "mean_of_units_subtracted": between(lambda h: h - h.mean(-1, keepdim=True)),
    "outer_product": between(lambda h: (h.unsqueeze(-1) * h.unsqueeze(-2)).flatten(1), columns=64),
    "flatten_channels": of_channels(lambda h: h.flatten(1), 16, units=2),
    "flatten_positions": of_channels(lambda h: h.flatten(2).mean(1), 4),
    "view_positions": of_channels(lambda h: h.view(h.shape[0], 4, -1).amax(1), 4),
    "view_tokens": of_channels(lambda h: h.view(h.shape[0], 4, -1), 4),
    "channels_last": of_channels(lambda h: h.permute(0, 2, 3, 1).flatten(1), 16),
    "channels_averaged": of_channels(lambda h: h.mean(1).flatten(1), 4),
    "rows_flattened": of_channels(lambda h: h.mean(2).flatten(1), 8, units=2),
    "batch_into_positions": of_channels(lambda h: h.reshape(-1, 4), 4),
    "over_positions": three(
        lambda net, x: net.head(net.second(net.first(x).relu().transpose(1, 2)).relu()), example=row(2, 8, 5), units=1),
    "masked_linear": Expected(
        lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), MaskedLinear(8, 8), nn.ReLU(), nn.Linear(8, 3)),
        X, heads=("4",), undecided=("2.*",)),
    "pruned": with_third(lambda m: prune.random_unstructured(m, "weight", amount=0.3), undecided=("2.weight_orig",)),
    "weight_norm": with_third(parametrizations.weight_norm, units=2),
    "spectral_norm": with_third(parametrizations.spectral_norm, units=2),
    "tied_autoencoder": Expected(  # The decoder's matrix is the encoder's, transposed.
        lambda: made_of(lambda net, x: F.linear(net.encoder(x).relu(), net.encoder.weight.t(), net.bias),
            encoder=nn.Linear(6, 8), bias=bare(6, size=0.1)),
        row(4, 6), heads=("encoder",)),
    "called_twice": Expected(
        lambda: made_of(lambda net, x: net.head(net.again(net.again(net.first(x).relu()).relu()).relu()),
            first=nn.Linear(5, 8), again=nn.Linear(8, 8), head=nn.Linear(8, 3)),
        X),
    "used_by_its_weight": three(
        lambda net, x: net.head(F.linear(net.first(x).relu(), net.second.weight).relu()),
        undecided=("second.bias",), units=2),
    "grouped_own_forward": Expected(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Grouped(4, 4, 2, groups=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(4, 3)),
        row(2, 3, 4, 4), heads=("5",), units=1),
    "bare_value": Expected(  # One output, by a bare matrix [1, in].
        lambda: made_of(lambda net, x: F.linear(net.first(x).relu(), net.w, net.b), first=nn.Linear(5, 8),
            w=bare(1, 8, size=0.333), b=ones(1)),
        X, heads=("w",), biases={"b": "w"}, units=1),
    "second_axis": Expected(  # Matrices [in, n, out], taken by their second axis.
        lambda: made_of(lambda net, x: net.head(torch.cat([x @ net.w[:, 0], x @ net.w[:, 1]], -1).relu()),
            w=bare(5, 2, 6, size=0.5), head=nn.Linear(12, 3)),
        X, undecided=("w",)),
    "prototypes": Expected(  # The output is how far the features are from learned points.
        lambda: made_of(lambda net, x: -torch.cdist(net.body(x), net.prototypes), body=mlp(5, 8, 4),
            prototypes=bare(3, 4)),
        X, heads=("prototypes",), undecided=("prototypes",), units=1),
    "bfloat16": Expected(
        lambda: layer_normed().bfloat16(),
        lambda: vectors(4, 5).bfloat16(), heads=("5",), norms=("1.weight",), units=2),
    "frozen_first": of_layer_normed("0.weight", "0.bias", units=1),
    "frozen_norm": of_layer_normed("1.weight", "1.bias", units=2, statistics=True),
    "frozen_head": of_layer_normed("5.weight", "5.bias", units=1),
    "maxout": changed(lambda h: h.view(-1, 4, 2).amax(-1), 4),
    "crelu": changed(lambda h: torch.cat([h.relu(), (-h).relu()], -1), 16),
    "glu": changed(lambda h: F.glu(h, -1), 4),
    "softmax": changed(lambda h: h.softmax(-1), 8),
    "top_k": changed(lambda h: h * (h >= h.topk(3, -1).values[:, -1:]), 8),
    "straight_through": changed(lambda h: h + (h.sign() - h).detach(), 8),
    "bilinear": Expected(
        lambda: made_of(lambda net, x: net.head(net.bilinear(net.left(x).relu(), net.right(x).relu()).relu()),
            left=nn.Linear(4, 6), right=nn.Linear(4, 5), bilinear=nn.Bilinear(6, 5, 7), head=nn.Linear(7, 2)),
        row(2, 4), units=1),
    "hypernetwork": Expected(  # Ha et al. (2017): a network makes the matrix of a layer.
        lambda: made_of(lambda net, x, z: net.head(F.linear(x, net.hyper(z).view(8, 5)).relu()), hyper=mlp(2, 6, 8 * 5),
            head=nn.Linear(8, 3)),
        rows((4, 5), (1, 2)), units=1),
    "ensemble_bmm": Expected(
        lambda: made_of(ensemble, w1=bare(3, 5, 8, size=0.4), b1=bare(3, 1, 8, size=0.4), w2=bare(3, 8, 2, size=0.4),
            b2=bare(3, 1, 2, size=0.4)),
        X, heads=("w2",), undecided=("*",), traced=False),
    "ensemble_einsum": Expected(  # Members by einsum, each [out, in].
        lambda: made_of(lambda net,
            x: torch.einsum("nbi,noi->nbo", torch.einsum("bi,noi->nbo", x, net.w1).relu(), net.w2),
            w1=bare(3, 8, 5, size=0.5), w2=bare(3, 2, 8, size=0.333)),
        X, heads=("w2",), undecided=("*",)),
    "bare_factors": Expected(  # Two thin matrices in a row, both trained.
        lambda: made_of(lambda net, x: net.head(F.linear(F.linear(x, net.v), net.u).relu()), v=bare(2, 5), u=bare(8, 2),
            head=nn.Linear(8, 3)),
        X, units=1),
    "prelu": Expected(
        lambda: nn.Sequential(nn.Linear(5, 8), nn.PReLU(8), nn.Linear(8, 3)),
        X, heads=("2",), undecided=("1.weight",), units=1),
    "temperature": Expected(
        lambda: made_of(temperature, image=nn.Linear(5, 4), text=nn.Linear(6, 4),
            logit_scale=nn.Parameter(torch.tensor(math.log(1 / 0.07)))),
        rows((4, 5), (4, 6)), heads=("image", "text"), undecided=("logit_scale",)),
    "energy_gradient": Expected(
        lambda: made_of(energy_gradient, energy=nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1))),
        row(3, 4), heads=("energy.2",), units=1, followed=False),
}  # fmt: skip
