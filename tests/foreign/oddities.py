"""Networks that do what reading easily gets wrong: constants, computed weights, shared layers, other orders of axes."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

from foreign.expected import Expected, bare, frozen, made_of, mlp, ones, row, rows, vectors, zeros

X = row(4, 5)

# --- something between two layers -----------------------------------------------------------------------------------


def three(forward: Callable[..., Tensor], columns: int = 8, **expected: object) -> Expected:
    """Three layers, by their names."""
    layers = {"first": (5, 8), "second": (columns, 6), "head": (6, 3)}
    make = lambda: made_of(forward, **{name: nn.Linear(*shape) for name, shape in layers.items()})  # noqa: E731
    return Expected(make, X)._replace(**expected)


def between(change: Callable[[Tensor], Tensor], columns: int = 8, units: int = 1, traced: bool = True) -> Expected:
    """Something without parameters behind a ReLU; the second layer's units are always read by the head alone."""

    def forward(net: nn.Module, x: Tensor) -> Tensor:
        return net.head(net.second(change(net.first(x).relu())).relu())

    return three(forward, columns, traced=traced, units=units)


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


def set_one(h: Tensor) -> Tensor:
    h = h.clone()
    h[:, 0] = 1.0
    return h


# --- layers with a forward of their own -----------------------------------------------------------------------------


def low_rank(n: int, m: int) -> nn.Module:
    """A weight that is the product of two factors."""
    return made_of(lambda net, x: F.linear(x, net.u @ net.v), u=bare(m, 2), v=bare(2, n))


class MaskedLinear(nn.Linear):
    """MADE's and masked flows'."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.new_ones(self.weight.shape).tril() * self.weight, self.bias)


class CosineLinear(nn.Linear):
    """Rows and inputs of length one, as few-shot and face recognition have them."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x), F.normalize(self.weight))


class MaskedConv2d(nn.Conv2d):
    """PixelCNN's: only the pixels before."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones_like(self.weight)
        mask[:, :, 1, 2:] = 0
        mask[:, :, 2] = 0
        return F.conv2d(x, self.weight * mask, self.bias, padding=1)


class Grouped(nn.Conv2d):
    """A forward of its own that is torch's."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, groups=self.groups)


def inside(layer: Callable[[int, int], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), layer(8, 8), nn.ReLU(), nn.Linear(8, 3))


def at_the_end(layer: Callable[[int, int], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), layer(8, 3))


def convolutional(layer: nn.Module, columns: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), layer, nn.ReLU(), nn.Flatten(), nn.Linear(columns, 3))


def computed(make: Callable[[], nn.Module], place: int, units: int = 0) -> Expected:
    """The layer in this place computes its weight in ways of its own: it is left alone."""
    return Expected(make, X, heads=("4",), undecided=(f"{place}.*",), units=units)


def with_third(change: Callable[[nn.Module], nn.Module], **expected: object) -> Expected:
    """The layer at 2 is changed from outside."""

    def make() -> nn.Module:
        net = mlp(5, 8, 8, 3)
        change(net[2])
        return net

    return Expected(make, X, heads=("4",))._replace(**expected)


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).transpose(-1, -2)


def called_twice(net: nn.Module, x: Tensor) -> Tensor:
    """A universal transformer's depth: the same layer again and again."""
    h = net.first(x).relu()
    for _ in range(2):
        h = net.again(h).relu()
    return net.head(h)


def normed(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), norm, nn.ReLU(), nn.Linear(8, 3))


def layer_normed(*frozen_parameters: str) -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    return frozen(net, *frozen_parameters) if frozen_parameters else net


def of_layer_normed(*frozen_parameters: str, **expected: object) -> Expected:
    expected = {"heads": ("5",), "norms": ("1.weight",), **expected}
    return Expected(lambda: layer_normed(*frozen_parameters), X)._replace(**expected)


# --- units of other kinds -------------------------------------------------------------------------------------------


def siren(net: nn.Module, x: Tensor) -> Tensor:
    for layer in net.layers:
        x = torch.sin(30.0 * layer(x))
    return net.head(x)


def fourier(net: nn.Module, x: Tensor) -> Tensor:
    z = 2 * math.pi * x @ net.frequencies
    return net.mlp(torch.cat([z.sin(), z.cos()], -1))


def fast_kan(net: nn.Module, x: Tensor) -> Tensor:
    """Radial bases and ordinary linear layers."""
    x = net.first(torch.exp(-(x[..., None] - net.grid).square()).flatten(1))
    return net.head(torch.exp(-(net.norm(x)[..., None] - net.grid).square()).flatten(1))


def kan_linear(n: int, m: int) -> nn.Module:
    """efficient-kan's: a matrix of the base, and coefficients [out, in, bases] that are viewed as a matrix."""

    def forward(net: nn.Module, x: Tensor) -> Tensor:
        bases = torch.exp(-(x.unsqueeze(-1) - net.grid).square())  # [batch, in, bases]
        spline = F.linear(bases.view(x.shape[0], -1), net.spline_weight.view(net.spline_weight.shape[0], -1))
        return F.linear(F.silu(x), net.base_weight) + spline

    weights = {"base_weight": bare(m, n, size=n**-0.5), "spline_weight": bare(m, n, 4, size=0.1)}
    return made_of(forward, **weights, grid=torch.linspace(-2, 2, 4))


def film(net: nn.Module, x: Tensor, condition: Tensor) -> Tensor:
    gamma, beta = net.film(condition)[:, :, None, None].chunk(2, 1)
    return net.head((net.conv(x) * (1 + gamma) + beta).relu().mean([2, 3]))


# --- several networks at once ---------------------------------------------------------------------------------------


def vmapped() -> nn.Module:
    """An ensemble as torch.func builds it."""
    state, _ = stack_module_state([mlp(5, 8, 3), mlp(5, 8, 3)])
    member = mlp(5, 8, 3).to("meta")

    def forward(net: nn.Module, x: Tensor) -> Tensor:
        call = lambda values: functional_call(member, {n.replace("_", "."): p for n, p in values.items()}, (x,))  # noqa: E731
        return torch.vmap(call)(dict(net.stacked.items()))

    return made_of(forward, stacked=nn.ParameterDict({name.replace(".", "_"): p for name, p in state.items()}))


def ensemble(net: nn.Module, x: Tensor) -> Tensor:
    """Members by a batched product; their biases [n, 1, out]."""
    x = x.expand(3, *x.shape)
    return torch.bmm((torch.bmm(x, net.w1) + net.b1).relu(), net.w2) + net.b2


def fused_ensemble(net: nn.Module, x: Tensor) -> Tensor:
    return torch.baddbmm(net.b2, torch.baddbmm(net.b1, x.expand(3, *x.shape), net.w1).relu(), net.w2)


def members(forward: Callable[..., Tensor], traced: bool = False) -> Expected:
    parts = {"w1": (3, 5, 8), "b1": (3, 1, 8), "w2": (3, 8, 2), "b2": (3, 1, 2)}
    make = lambda: made_of(forward, **{name: bare(*shape, size=0.4) for name, shape in parts.items()})  # noqa: E731
    return Expected(make, X, heads=("w2",), undecided=("*",), traced=traced)


# --- single numbers and vectors -------------------------------------------------------------------------------------


def temperature(net: nn.Module, image: Tensor, text: Tensor) -> Tensor:
    """CLIP's: the logarithm of a scale."""
    image, text = F.normalize(net.image(image)), F.normalize(net.text(text))
    return net.logit_scale.exp() * image @ text.t()


def re_zero(net: nn.Module, x: Tensor) -> Tensor:
    x = net.first(x)
    return net.head(x + net.alpha * net.lin(x).relu())


def fixup(net: nn.Module, x: Tensor) -> Tensor:
    """Zhang et al. (2019): scalars in place of norms."""
    x = net.first(x).relu()
    out = F.relu(net.lin1(x + net.bias1) + net.bias2)
    return net.head(F.relu(net.lin2(out) * net.scale + net.bias3 + x))


def dynamic_tanh(net: nn.Module, x: Tensor) -> Tensor:
    """Zhu et al. (2025): a tanh in place of a norm, with a gain and a shift behind it."""
    return torch.tanh(net.alpha * x) * net.weight + net.bias


def real_nvp(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """A coupling: half of the input scales and shifts the other half."""
    a, b = x.chunk(2, -1)
    s, t = net.net(a).chunk(2, -1)
    s = torch.tanh(s) * net.scale.exp()
    return torch.cat([a, b * s.exp() + t], -1), s.sum(-1)


def energy_gradient(net: nn.Module, x: Tensor) -> Tensor:
    """A score that is the gradient of an energy, taken in the forward."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(net.energy(x).sum(), x, create_graph=True)
    return -gradient


def grouped_linear(net: nn.Module, x: Tensor) -> Tensor:
    """A linear layer over groups of units."""
    h = net.first(x).relu().view(-1, 2, 4)
    return net.head(net.grouped(h).relu().flatten(1))


ODDITIES = {
    "constant_joined": between(lambda h: torch.cat([h, torch.ones_like(h[:, :1])], 1), columns=9),
    "constant_set": between(set_one, traced=False),
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
    "grouped_linear": Expected(
        lambda: made_of(grouped_linear, first=nn.Linear(5, 8), grouped=nn.Linear(4, 3), head=nn.Linear(6, 3)), X),
    "masked_linear": computed(lambda: inside(MaskedLinear), 2),
    "low_rank_product": computed(lambda: inside(low_rank), 2),
    "pruned": with_third(lambda m: prune.random_unstructured(m, "weight", amount=0.3), undecided=("2.weight_orig",)),
    "cosine_linear_last": computed(lambda: at_the_end(CosineLinear), 4, units=1),
    "masked_convolution": Expected(
        lambda: convolutional(MaskedConv2d(4, 4, 3), 16),
        row(2, 3, 4, 4), heads=("5",), undecided=("2.*",), traced=False),
    "weight_norm": with_third(parametrizations.weight_norm, units=2),
    "spectral_norm": with_third(parametrizations.spectral_norm, units=2),
    "symmetric": with_third(lambda m: parametrize.register_parametrization(m, "weight", Symmetric()), units=2),
    "tied_autoencoder": Expected(  # The decoder's matrix is the encoder's, transposed.
        lambda: made_of(lambda net, x: F.linear(net.encoder(x).relu(), net.encoder.weight.t(), net.bias),
            encoder=nn.Linear(6, 8), bias=bare(6, size=0.1)),
        row(4, 6), heads=("encoder",)),
    "called_twice": Expected(
        lambda: made_of(called_twice, first=nn.Linear(5, 8), again=nn.Linear(8, 8), head=nn.Linear(8, 3)), X),
    "used_by_its_weight": three(
        lambda net, x: net.head(F.linear(net.first(x).relu(), net.second.weight).relu()),
        undecided=("second.bias",), units=2),
    "added_later": three(
        lambda net, x: net.head((F.linear(net.first(x).relu(), net.second.weight) + net.second.bias).relu()), units=2),
    "grouped_own_forward": Expected(
        lambda: convolutional(Grouped(4, 4, 2, groups=2), 4), row(2, 3, 4, 4), heads=("5",), units=1),
    "pointwise": Expected(  # A convolution's kernel [out, in, 1, 1], viewed as the matrix of a linear layer.
        lambda: made_of(lambda net,
            x: net.head(F.linear(net.first(x).relu(), net.conv.weight.flatten(1), net.conv.bias).relu()),
            first=nn.Linear(5, 8), conv=nn.Conv2d(8, 6, 1), head=nn.Linear(6, 3)),
        X, undecided=("conv.*",)),
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
    "siren": Expected(
        lambda: made_of(siren, layers=nn.ModuleList([nn.Linear(2, 8), nn.Linear(8, 8)]), head=nn.Linear(8, 1)),
        row(4, 2)),
    "fourier_learned": Expected(  # Features of learned frequencies [in, out].
        lambda: made_of(fourier, frequencies=bare(4, 5), mlp=mlp(10, 8, 3)),
        row(3, 4), heads=("mlp.2",), transposed=("frequencies",), units=1),
    "kan": Expected(
        lambda: nn.Sequential(kan_linear(4, 6), kan_linear(6, 3)),
        row(3, 4), heads=("1.base_weight", "1"), undecided=("*.spline_weight",)),
    "fast_kan": Expected(
        lambda: made_of(fast_kan, grid=torch.linspace(-2, 2, 3), norm=nn.LayerNorm(6),
            first=nn.Linear(5 * 3, 6, bias=False), head=nn.Linear(6 * 3, 3)),
        X, norms=("norm.weight",)),
    "maxout": changed(lambda h: h.view(-1, 4, 2).amax(-1), 4),
    "crelu": changed(lambda h: torch.cat([h.relu(), (-h).relu()], -1), 16),
    "glu": changed(lambda h: F.glu(h, -1), 4),
    "softmax": changed(lambda h: h.softmax(-1), 8),
    "top_k": changed(lambda h: h * (h >= h.topk(3, -1).values[:, -1:]), 8),
    "straight_through": changed(lambda h: h + (h.sign() - h).detach(), 8),
    "hypernetwork": Expected(  # Ha et al. (2017): a network makes the matrix of a layer.
        lambda: made_of(lambda net, x, z: net.head(F.linear(x, net.hyper(z).view(8, 5)).relu()), hyper=mlp(2, 6, 8 * 5),
            head=nn.Linear(8, 3)),
        rows((4, 5), (1, 2)), units=1),
    "film": Expected(
        lambda: made_of(film, conv=nn.Conv2d(3, 6, 3), film=nn.Linear(4, 12), head=nn.Linear(6, 3)),
        rows((2, 3, 5, 5), (2, 4))),
    "vmapped": Expected(vmapped, X, heads=(), undecided=("*",), followed=False, traced=False),
    "ensemble_bmm": members(ensemble),
    "ensemble_baddbmm": members(fused_ensemble)._replace(heads=("b2",)),
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
    "calibrated": Expected(  # Temperature scaling: the logits are divided.
        lambda: made_of(lambda net, x: net.body(x) / net.temperature, body=layer_normed(),
            temperature=nn.Parameter(torch.ones(1) * 1.5)),
        X, heads=("body.5",), norms=("body.1.weight",), undecided=("temperature",), units=2),
    "rezero": Expected(
        lambda: made_of(re_zero, first=nn.Linear(5, 8), lin=nn.Linear(8, 8), head=nn.Linear(8, 3), alpha=zeros(1)),
        X, undecided=("alpha",)),
    "fixup": Expected(
        lambda: made_of(fixup, first=nn.Linear(5, 8), lin1=nn.Linear(8, 8, bias=False),
            lin2=nn.Linear(8, 8, bias=False), head=nn.Linear(8, 3), bias1=zeros(1), bias2=zeros(1), bias3=zeros(1),
            scale=ones(1)),
        X, undecided=("scale",)),
    "scale_norm": Expected(  # Nguyen and Salazar (2019): one learned length.
        lambda: normed(made_of(lambda net, x: net.g * F.normalize(x, dim=-1),
                g=nn.Parameter(torch.tensor(math.sqrt(8))))),
        X, heads=("3",), undecided=("1.g",)),
    "dynamic_tanh": Expected(
        lambda: normed(made_of(dynamic_tanh, alpha=nn.Parameter(torch.ones(1) * 0.5), weight=ones(8), bias=zeros(8))),
        X, heads=("3",), gains=("1.weight",), undecided=("1.alpha",)),
    "real_nvp": Expected(
        lambda: made_of(real_nvp, net=mlp(3, 8, 6), scale=zeros(3)),
        row(4, 6), heads=("net.2",), undecided=("scale",), units=1),
    "energy_gradient": Expected(
        lambda: made_of(energy_gradient, energy=nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1))),
        row(3, 4), heads=("energy.2",), units=1, followed=False),
}  # fmt: skip
