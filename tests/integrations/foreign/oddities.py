"""Networks that do what reading easily gets wrong: constants, computed weights, shared layers, other orders of axes."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

from foreign.expected import Expected, made_of, vectors


def row(*shape: int) -> Callable[[], Tensor]:
    return lambda: vectors(*shape)


X = row(4, 5)

# --- something between two layers -----------------------------------------------------------------------------------


def between(change: Callable[[Tensor], Tensor], columns: int = 8, units: int = 1, traced: bool = True) -> Expected:
    """Something without parameters behind a ReLU; the second layer's units are always read by the head alone."""
    return Expected(
        lambda: made_of(
            lambda net, x: net.head(net.second(change(net.first(x).relu())).relu()),
            first=nn.Linear(5, 8), second=nn.Linear(columns, 6), head=nn.Linear(6, 3),
        ),
        X, heads=("head",), traced=traced, units=units,
    )  # fmt: skip


def of_channels(change: Callable[[Tensor], Tensor], columns: int, units: int = 1) -> Expected:
    """The channels of a map [batch, 4, 2, 2] come to a linear layer in some way."""
    return Expected(
        lambda: made_of(
            lambda net, x: net.head(net.fc(change(net.conv(x).relu())).relu()),
            conv=nn.Conv2d(3, 4, 3), fc=nn.Linear(columns, 6), head=nn.Linear(6, 3),
        ),
        row(2, 3, 4, 4), heads=("head",), traced=True, units=units, classifier=("fc", "head"),
    )  # fmt: skip


def changed(change: Callable[[Tensor], Tensor], columns: int) -> Expected:
    """Two layers and an activation that changes the number of units."""
    return Expected(
        lambda: made_of(
            lambda net, x: net.head(change(net.first(x))), first=nn.Linear(5, 8), head=nn.Linear(columns, 3)
        ),
        X, heads=("head",), traced=True,
    )  # fmt: skip


def used_by_its_weight(forward: Callable[..., Tensor], undecided: tuple[str, ...]) -> Expected:
    """The module is only where the weight is kept."""
    return Expected(
        lambda: made_of(forward, first=nn.Linear(5, 8), kept=nn.Linear(8, 6), head=nn.Linear(6, 3)),
        X, heads=("head",), undecided=undecided, traced=True, units=2,
    )  # fmt: skip


def low_rank(n: int, m: int) -> nn.Module:
    """A weight that is the product of two factors."""
    u, v = nn.Parameter(torch.randn(m, 2)), nn.Parameter(torch.randn(2, n))
    return made_of(lambda net, x: F.linear(x, net.u @ net.v), u=u, v=v)


def parametrized(by: Callable[[nn.Module], nn.Module]) -> Expected:
    def make() -> nn.Module:
        net = inside(nn.Linear)
        by(net[2])
        return net

    return Expected(make, X, heads=("4",), traced=True, units=2)


def set_one(h: Tensor) -> Tensor:
    h = h.clone()
    h[:, 0] = 1.0
    return h


# --- layers with a forward of their own -----------------------------------------------------------------------------


class MaskedLinear(nn.Linear):
    """MADE's and masked flows'."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__(n, m)
        self.register_buffer("mask", (torch.arange(m)[:, None] % n >= torch.arange(n)).float())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.mask * self.weight, self.bias)


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


def inside(layer: Callable[[int, int], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), layer(8, 8), nn.ReLU(), nn.Linear(8, 3))


def at_the_end(layer: Callable[[int, int], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), layer(8, 3))


def computed(make: Callable[[], nn.Module], place: int, units: int = 0) -> Expected:
    """The layer in this place computes its weight in ways of its own: it is left alone."""
    return Expected(make, lambda: vectors(4, 5), heads=("4",), undecided=(f"{place}.*",), traced=True, units=units)


def pruned() -> nn.Module:
    """torch's pruning: the weight is made in a hook, before every call."""
    net = inside(nn.Linear)
    prune.random_unstructured(net[2], "weight", amount=0.3)
    return net


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).transpose(-1, -2)


def called_twice(net: nn.Module, x: Tensor) -> Tensor:
    """A universal transformer's depth: the same layer again and again."""
    h = net.first(x).relu()
    for _ in range(2):
        h = net.again(h).relu()
    return net.head(h)


class Grouped(nn.Conv2d):
    """A forward of its own that is torch's."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, groups=self.groups)


def grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), Grouped(4, 4, 2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3)
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def frozen(*names: str) -> nn.Module:
    net = mlp()
    for name in names:
        net.get_parameter(name).requires_grad_(False)
    return net


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


class KANLinear(nn.Module):
    """efficient-kan's: a matrix of the base, and coefficients [out, in, bases] that are viewed as a matrix."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.base_weight = nn.Parameter(torch.randn(m, n) / math.sqrt(n))
        self.spline_weight = nn.Parameter(0.1 * torch.randn(m, n, 4))
        self.register_buffer("grid", torch.linspace(-2, 2, 4))

    def forward(self, x: Tensor) -> Tensor:
        bases = torch.exp(-(x.unsqueeze(-1) - self.grid).square())  # [batch, in, bases]
        base = F.linear(F.silu(x), self.base_weight)
        return base + F.linear(bases.view(x.shape[0], -1), self.spline_weight.view(self.spline_weight.shape[0], -1))


def film(net: nn.Module, x: Tensor, condition: Tensor) -> Tensor:
    gamma, beta = net.film(condition)[:, :, None, None].chunk(2, 1)
    return net.head((net.conv(x) * (1 + gamma) + beta).relu().mean([2, 3]))


# --- several networks at once ---------------------------------------------------------------------------------------


class Vmapped(nn.Module):
    """An ensemble as torch.func builds it."""

    def __init__(self) -> None:
        super().__init__()
        member = lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))  # noqa: E731
        members = [member(), member()]
        state, _ = stack_module_state(members)
        self.names = [name.replace(".", "_") for name in state]
        self.stacked = nn.ParameterDict({name.replace(".", "_"): nn.Parameter(p) for name, p in state.items()})
        self.member = (member().to("meta"),)  # in a tuple: its parameters are not this module's

    def forward(self, x: Tensor) -> Tensor:
        def call(state: dict[str, Tensor]) -> Tensor:
            return functional_call(self.member[0], {name.replace("_", "."): p for name, p in state.items()}, (x,))

        return torch.vmap(call)(dict(self.stacked.items()))


class Ensemble(nn.Module):
    """Members by a batched product; their biases [n, 1, out]."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.w1, self.b1 = nn.Parameter(torch.randn(3, 5, 8) / 2), nn.Parameter(0.1 * torch.randn(3, 1, 8))
        self.w2, self.b2 = nn.Parameter(torch.randn(3, 8, 2) / 3), nn.Parameter(0.1 * torch.randn(3, 1, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = x.expand(3, *x.shape)
        if self.fused:
            return torch.baddbmm(self.b2, torch.baddbmm(self.b1, x, self.w1).relu(), self.w2)
        return torch.bmm((torch.bmm(x, self.w1) + self.b1).relu(), self.w2) + self.b2


# --- single numbers and vectors -------------------------------------------------------------------------------------


def activated(act: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), act, nn.Linear(8, 3))


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


class DynamicTanh(nn.Module):
    """Zhu et al. (2025): a tanh in place of a norm, with a gain and a shift behind it."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1) * 0.5)
        self.weight, self.bias = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.alpha * x) * self.weight + self.bias


def normed(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), norm, nn.ReLU(), nn.Linear(8, 3))


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


HALF = torch.bfloat16
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
    "over_positions": Expected(
        lambda: made_of(
            lambda net, x: net.head(net.second(net.first(x).relu().transpose(1, 2)).relu()),
            first=nn.Linear(5, 8), second=nn.Linear(8, 6), head=nn.Linear(6, 3),
        ),
        row(2, 8, 5), heads=("head",), traced=True, units=1,
    ),
    "grouped_linear": Expected(
        lambda: made_of(
            grouped_linear, first=nn.Linear(5, 8), grouped=nn.Linear(4, 3), head=nn.Linear(6, 3),
        ),
        X, heads=("head",), traced=True,
    ),
    "masked_linear": computed(lambda: inside(MaskedLinear), 2),
    "low_rank_product": computed(lambda: inside(low_rank), 2),
    "pruned": Expected(pruned, X, heads=("4",), undecided=("2.weight_orig",), traced=True),
    "cosine_linear_last": computed(lambda: at_the_end(CosineLinear), 4, units=1),
    "masked_convolution": Expected(
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), MaskedConv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
        ),
        row(2, 3, 4, 4), heads=("5",), undecided=("2.*",),
    ),
    "weight_norm": parametrized(parametrizations.weight_norm),
    "spectral_norm": parametrized(parametrizations.spectral_norm),
    "symmetric": parametrized(lambda m: parametrize.register_parametrization(m, "weight", Symmetric())),
    "tied_autoencoder": Expected(  # The decoder's matrix is the encoder's, transposed.
        lambda: made_of(
            lambda net, x: F.linear(net.encoder(x).relu(), net.encoder.weight.t(), net.bias),
            encoder=nn.Linear(6, 8), bias=nn.Parameter(0.1 * torch.randn(6)),
        ),
        row(4, 6), heads=("encoder",), traced=True,
    ),
    "called_twice": Expected(
        lambda: made_of(
            called_twice, first=nn.Linear(5, 8), again=nn.Linear(8, 8), head=nn.Linear(8, 3),
        ),
        X, heads=("head",), traced=True,
    ),
    "used_by_its_weight": used_by_its_weight(  # and its bias is never read
        lambda net, x: net.head(F.linear(net.first(x).relu(), net.kept.weight).relu()), ("kept.bias",)
    ),
    "added_later": used_by_its_weight(
        lambda net, x: net.head((F.linear(net.first(x).relu(), net.kept.weight) + net.kept.bias).relu()), ()
    ),
    "grouped_own_forward": Expected(grouped, row(2, 3, 4, 4), heads=("5",), traced=True, units=1),
    "pointwise": Expected(  # A convolution's kernel [out, in, 1, 1], viewed as the matrix of a linear layer.
        lambda: made_of(
            lambda net, x: net.head(F.linear(net.first(x).relu(), net.conv.weight.flatten(1), net.conv.bias).relu()),
            first=nn.Linear(5, 8), conv=nn.Conv2d(8, 6, 1), head=nn.Linear(6, 3),
        ),
        X, heads=("head",), undecided=("conv.*",), traced=True,
    ),
    "bare_value": Expected(  # One output, by a bare matrix [1, in].
        lambda: made_of(
            lambda net, x: F.linear(net.first(x).relu(), net.w, net.b),
            first=nn.Linear(5, 8), w=nn.Parameter(torch.randn(1, 8) / 3), b=nn.Parameter(torch.ones(1)),
        ),
        X, heads=("w",), biases={"b": "w"}, traced=True, units=1,
    ),
    "second_axis": Expected(  # Matrices [in, n, out], taken by their second axis.
        lambda: made_of(
            lambda net, x: net.head(torch.cat([x @ net.w[:, 0], x @ net.w[:, 1]], -1).relu()),
            w=nn.Parameter(torch.randn(5, 2, 6) / 2), head=nn.Linear(12, 3),
        ),
        X, heads=("head",), undecided=("w",), traced=True,
    ),
    "prototypes": Expected(  # The output is how far the features are from learned points.
        lambda: made_of(
            lambda net, x: -torch.cdist(net.body(x), net.prototypes),
            body=nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4)),
            prototypes=nn.Parameter(torch.randn(3, 4)),
        ),
        X, heads=("prototypes",), undecided=("prototypes",), traced=True, units=1,
    ),
    "bfloat16": Expected(lambda: mlp().to(HALF), lambda: vectors(4, 5).to(HALF), heads=("5",), norms=("1.weight",),
        traced=True, units=2,
    ),
    "frozen_first": Expected(
        lambda: frozen("0.weight", "0.bias"), X, heads=("5",), norms=("1.weight",), traced=True, units=1
    ),
    "frozen_norm": Expected(
        lambda: frozen("1.weight", "1.bias"), X, heads=("5",), norms=("1.weight",), traced=True, units=2,
        statistics=True,
    ),
    "frozen_head": Expected(
        lambda: frozen("5.weight", "5.bias"), X, heads=("5",), norms=("1.weight",), traced=True, units=1
    ),
    "siren": Expected(
        lambda: made_of(
            siren, layers=nn.ModuleList([nn.Linear(2, 8), nn.Linear(8, 8)]), head=nn.Linear(8, 1),
        ),
        row(4, 2), heads=("head",), traced=True,
    ),
    "fourier_learned": Expected(  # Features of learned frequencies [in, out].
        lambda: made_of(
            fourier, frequencies=nn.Parameter(torch.randn(4, 5)),
            mlp=nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3)),
        ),
        row(3, 4), heads=("mlp.2",), transposed=("frequencies",), traced=True, units=1,
    ),
    "kan": Expected(
        lambda: nn.Sequential(KANLinear(4, 6), KANLinear(6, 3)), row(3, 4), traced=True,
        heads=("1.base_weight", "1"), undecided=("*.spline_weight",),
    ),
    "fast_kan": Expected(
        lambda: made_of(
            fast_kan, grid=torch.linspace(-2, 2, 3), norm=nn.LayerNorm(6), first=nn.Linear(5 * 3, 6, bias=False),
            head=nn.Linear(6 * 3, 3),
        ),
        X, heads=("head",), norms=("norm.weight",), traced=True,
    ),
    "maxout": changed(lambda h: h.view(-1, 4, 2).amax(-1), 4),
    "crelu": changed(lambda h: torch.cat([h.relu(), (-h).relu()], -1), 16),
    "glu": changed(lambda h: F.glu(h, -1), 4),
    "softmax": changed(lambda h: h.softmax(-1), 8),
    "top_k": changed(lambda h: h * (h >= h.topk(3, -1).values[:, -1:]), 8),
    "straight_through": changed(lambda h: h + (h.sign() - h).detach(), 8),
    "hypernetwork": Expected(  # Ha et al. (2017): a network makes the matrix of a layer.
        lambda: made_of(
            lambda net, x, z: net.head(F.linear(x, net.hyper(z).view(8, 5)).relu()),
            hyper=nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 8 * 5)), head=nn.Linear(8, 3),
        ),
        lambda: (vectors(4, 5), vectors(1, 2)), heads=("head",), traced=True, units=1,
    ),
    "film": Expected(
        lambda: made_of(
            film, conv=nn.Conv2d(3, 6, 3), film=nn.Linear(4, 12), head=nn.Linear(6, 3),
        ),
        lambda: (vectors(2, 3, 5, 5), vectors(2, 4)), heads=("head",), traced=True,
    ),
    "vmapped": Expected(Vmapped, X, heads=(), undecided=("*",), followed=False),
    "ensemble_bmm": Expected(
        lambda: Ensemble(False), X, heads=("w2",), undecided=("*",)
    ),
    "ensemble_baddbmm": Expected(
        lambda: Ensemble(True), X, heads=("w2",), undecided=("*",)
    ),
    "ensemble_einsum": Expected(  # Members by einsum, each [out, in].
        lambda: made_of(
            lambda net, x: torch.einsum("nbi,noi->nbo", torch.einsum("bi,noi->nbo", x, net.w1).relu(), net.w2),
            w1=nn.Parameter(torch.randn(3, 8, 5) / 2), w2=nn.Parameter(torch.randn(3, 2, 8) / 3),
        ),
        X, heads=("w2",), undecided=("*",), traced=True,
    ),
    "bare_factors": Expected(  # Two thin matrices in a row, both trained.
        lambda: made_of(
            lambda net, x: net.head(F.linear(F.linear(x, net.v), net.u).relu()),
            v=nn.Parameter(torch.randn(2, 5)), u=nn.Parameter(torch.randn(8, 2)), head=nn.Linear(8, 3),
        ),
        X, heads=("head",), traced=True, units=1,
    ),
    "prelu": Expected(
        lambda: activated(nn.PReLU(8)), X, heads=("2",), undecided=("1.weight",), traced=True, units=1
    ),
    "temperature": Expected(
        lambda: made_of(
            temperature, image=nn.Linear(5, 4), text=nn.Linear(6, 4),
            logit_scale=nn.Parameter(torch.tensor(math.log(1 / 0.07))),
        ),
        lambda: (vectors(4, 5), vectors(4, 6)), heads=("image", "text"), undecided=("logit_scale",), traced=True,
    ),
    "calibrated": Expected(  # Temperature scaling: the logits are divided.
        lambda: made_of(
            lambda net, x: net.body(x) / net.temperature,
            body=mlp(), temperature=nn.Parameter(torch.ones(1) * 1.5),
        ),
        X, heads=("body.5",), norms=("body.1.weight",), undecided=("temperature",), traced=True, units=2,
    ),
    "rezero": Expected(
        lambda: made_of(
            re_zero, first=nn.Linear(5, 8), lin=nn.Linear(8, 8), head=nn.Linear(8, 3),
            alpha=nn.Parameter(torch.zeros(1)),
        ),
        X, heads=("head",), undecided=("alpha",), traced=True,
    ),
    "fixup": Expected(
        lambda: made_of(
            fixup, first=nn.Linear(5, 8), lin1=nn.Linear(8, 8, bias=False), lin2=nn.Linear(8, 8, bias=False),
            head=nn.Linear(8, 3), bias1=nn.Parameter(torch.zeros(1)), bias2=nn.Parameter(torch.zeros(1)),
            bias3=nn.Parameter(torch.zeros(1)), scale=nn.Parameter(torch.ones(1)),
        ),
        X, heads=("head",), undecided=("scale",), traced=True,
    ),
    "scale_norm": Expected(  # Nguyen and Salazar (2019): one learned length.
        lambda: normed(
            made_of(lambda net, x: net.g * F.normalize(x, dim=-1), g=nn.Parameter(torch.tensor(math.sqrt(8))))
        ),
        X, heads=("3",), undecided=("1.g",), traced=True,
    ),
    "dynamic_tanh": Expected(
        lambda: normed(DynamicTanh(8)), X, heads=("3",), gains=("1.weight",), undecided=("1.alpha",), traced=True
    ),
    "real_nvp": Expected(
        lambda: made_of(
            real_nvp, net=nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6)),
            scale=nn.Parameter(torch.zeros(3)),
        ),
        row(4, 6), heads=("net.2",), undecided=("scale",), traced=True, units=1,
    ),
    "energy_gradient": Expected(
        lambda: made_of(
            energy_gradient, energy=nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1)),
        ),
        row(3, 4), heads=("energy.2",), traced=True, units=1, followed=False,
    ),
}  # fmt: skip
