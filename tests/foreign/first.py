"""A first choice: recurrent networks, attention, experts, noise, tied weights."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, bare, ids, made_of, mlp, ones, row, rows


def recurrent(net: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """An embedding, a recurrent layer, a policy's and a value's head."""
    h = net.rnn(net.embedding(tokens))[0][:, -1]
    return net.policy(h), net.value(h)


def cross_attention(net: nn.Module, x: Tensor, memory: Tensor) -> Tensor:
    """Attention whose queries, keys and values have matrices of their own."""
    m = net.memory(memory)
    return net.head(net.attention(net.query(x), m, m, need_weights=False)[0])


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def u_net(net: nn.Module, x: Tensor) -> Tensor:
    skip = net.down1(x)
    return net.head(net.merge(torch.cat([net.up(net.down2(skip)), skip], 1)))


def mamba(net: nn.Module, tokens: Tensor) -> Tensor:
    """A selective state space as Mamba's: depthwise convolution, bare A_log, D and dt_bias, a gate."""
    h = net.embedding(tokens)  # [batch, length, 8]
    x, gate = net.in_proj(net.norm(h)).chunk(2, -1)
    x = F.silu(net.conv1d(x.transpose(1, 2))[..., : tokens.shape[1]].transpose(1, 2))
    low, b, c = net.x_proj(x).split([2, 4, 4], -1)
    step = F.softplus(net.dt_proj(low) + net.dt_bias)  # [batch, length, 16]
    decay = torch.exp(step.unsqueeze(-1) * -torch.exp(net.A_log))  # [batch, length, 16, 4]
    state, outputs = torch.zeros_like(decay[:, 0]), []
    for t in range(tokens.shape[1]):
        state = decay[:, t] * state + (step[:, t] * x[:, t]).unsqueeze(-1) * b[:, t].unsqueeze(1)
        outputs.append((state * c[:, t].unsqueeze(1)).sum(-1))
    y = (torch.stack(outputs, 1) + x * net.D) * F.silu(gate)
    return net.head(h + net.out_proj(y))


def experts(net: nn.Module, x: Tensor) -> Tensor:
    """A mixture of experts with stacked weights ``[experts, in, out]``."""
    x = net.first(x).relu()  # [batch, 6]
    share = net.router(x).softmax(-1)  # [batch, experts]
    y = torch.bmm(torch.bmm(x.expand(3, *x.shape), net.w1).relu(), net.w2)
    return net.head((y * share.T.unsqueeze(-1)).sum(0))


def experts_by_einsum(net: nn.Module, x: Tensor) -> Tensor:
    x = net.first(x).relu()
    h = torch.einsum("bi,eio->ebo", x, net.w1).relu()
    y = torch.einsum("ebi,eio->ebo", h, net.w2)
    return net.head((y * net.router(x).softmax(-1).T.unsqueeze(-1)).sum(0))


def of_experts(forward: Callable[..., Tensor]) -> nn.Module:
    return made_of(
        forward, first=nn.Linear(5, 6), router=nn.Linear(6, 3), head=nn.Linear(6, 2),
        w1=bare(3, 6, 12, size=0.4), w2=bare(3, 12, 6, size=0.3),
    )  # fmt: skip


def noisy_linear(n: int, m: int) -> nn.Module:
    """Fortunato et al. (2018): weights with noise of a learned size."""

    def forward(net: nn.Module, x: Tensor) -> Tensor:
        weight = net.weight_mu + net.weight_sigma * net.weight_noise
        return F.linear(x, weight, net.bias_mu + net.bias_sigma * net.bias_noise)

    shapes = {"weight": (m, n), "bias": (m,)}
    learned = {f"{name}_{what}": bare(*shape, size=0.2) for name, shape in shapes.items() for what in ("mu", "sigma")}
    return made_of(forward, **learned, **{f"{name}_noise": torch.randn(*shape) for name, shape in shapes.items()})


def tied() -> nn.Module:
    """A language model whose head is its embedding."""
    net = made_of(
        lambda net, tokens: net.head(net.body(net.embedding(tokens))),
        embedding=nn.Embedding(20, 8), body=mlp(8, 16, 8), head=nn.Linear(8, 20, bias=False),
    )  # fmt: skip
    net.head.weight = net.embedding.weight
    return net


FIRST = {
    "lstm": Expected(
        lambda: made_of(recurrent, embedding=nn.Embedding(20, 6), rnn=nn.LSTM(6, 8, num_layers=2, batch_first=True),
            policy=nn.Linear(8, 3), value=nn.Linear(8, 1)),
        ids, heads=("policy", "value")),
    "bilinear": Expected(
        lambda: made_of(lambda net, x: net.head(net.bilinear(net.left(x).relu(), net.right(x).relu()).relu()),
            left=nn.Linear(4, 6), right=nn.Linear(4, 5), bilinear=nn.Bilinear(6, 5, 7), head=nn.Linear(7, 2)),
        row(2, 4), units=1),
    "cross_attention": Expected(
        lambda: made_of(cross_attention, query=nn.Linear(4, 8), memory=nn.Linear(5, 6),
            attention=nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True), head=nn.Linear(8, 3)),
        rows((2, 3, 4), (2, 6, 5))),
    "encoder": Expected(
        lambda: made_of(lambda net, tokens: net.head(net.encoder(net.embedding(tokens) + net.position).mean(1)),
            embedding=nn.Embedding(20, 8), position=bare(1, 6, 8, size=0.1), encoder=encoder(), head=nn.Linear(8, 3)),
        ids, norms=("*.norm?.weight",), units=2, traced=False),
    "unet": Expected(
        lambda: made_of(u_net, down1=nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU()),
            down2=nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.GroupNorm(2, 6), nn.ReLU()),
            up=nn.ConvTranspose2d(6, 4, 2, stride=2), merge=nn.Sequential(nn.Conv2d(8, 4, 3, padding=1), nn.ReLU()),
            head=nn.Conv2d(4, 2, 1)),
        row(2, 3, 8, 8), norms=("down?.1.weight",), transposed=("up.weight",), units=2),
    "mamba": Expected(
        lambda: made_of(mamba, embedding=nn.Embedding(20, 8), norm=nn.LayerNorm(8),
            in_proj=nn.Linear(8, 32, bias=False), conv1d=nn.Conv1d(16, 16, 4, groups=16, padding=3),
            x_proj=nn.Linear(16, 2 + 2 * 4, bias=False), dt_proj=nn.Linear(2, 16, bias=False),
            dt_bias=nn.Parameter(torch.linspace(-4, -2, 16)),
            A_log=nn.Parameter(torch.log(torch.arange(1, 5).float()).repeat(16, 1)), D=ones(16),
            out_proj=nn.Linear(16, 8, bias=False), head=nn.Linear(8, 20)),
        ids, norms=("norm.weight",), gains=("D",), undecided=("A_log",), biases={"dt_bias": "dt_proj.weight"},
        traced=False),
    "experts_bmm": Expected(lambda: of_experts(experts), row(4, 5), undecided=("w?",), traced=False),
    "experts_einsum": Expected(lambda: of_experts(experts_by_einsum), row(4, 5), undecided=("w?",)),
    "noisy": Expected(
        lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), noisy_linear(8, 8), nn.ReLU(), nn.Linear(8, 3)),
        row(2, 5), heads=("4",), undecided=("2.*_mu", "2.*_sigma")),
    "tied": Expected(tied, ids, units=1),
}  # fmt: skip
