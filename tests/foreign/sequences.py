"""Networks of sequences: recurrent ones, attention, state spaces, experts that a router chooses."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, bare, ids, made_of, mlp, ones, row, rows


def cell_policy(net: nn.Module, obs: Tensor) -> tuple[Tensor, Tensor]:
    """An LSTM cell step by step, as recurrent policies have it."""
    x, state = net.encoder(obs), (obs.new_zeros(len(obs), 8), obs.new_zeros(len(obs), 8))
    for t in range(3):
        state = net.cell(x[:, t], state)
    return net.policy(state[0]), net.value(state[0])


def cross_attention(net: nn.Module, x: Tensor, memory: Tensor) -> Tensor:
    """Attention whose queries, keys and values have matrices of their own."""
    m = net.memory(memory)
    return net.head(net.attention(net.query(x), m, m, need_weights=False)[0])


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


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


def switch(net: nn.Module, x: Tensor) -> Tensor:
    """Each example goes to its best expert alone, with a residual."""
    h = net.first(x)
    y = net.norm(h)
    share, best = net.router(y).softmax(-1).max(-1)
    out = torch.zeros_like(y)
    for i, e in enumerate(net.experts):
        mine = best == i
        out[mine] = e(y[mine]) * share[mine].unsqueeze(-1)
    return net.head(h + out)


SEQUENCES = {
    "lstm_cell": Expected(
        lambda: made_of(cell_policy, encoder=nn.Sequential(nn.Linear(5, 6), nn.ReLU()), cell=nn.LSTMCell(6, 8),
            policy=nn.Linear(8, 3), value=nn.Linear(8, 1)),
        row(2, 3, 5), heads=("policy", "value"), traced=False),
    "bilstm": Expected(  # Both directions, two layers, hidden states projected to fewer.
        lambda: made_of(lambda net, tokens: net.head(net.rnn(net.table(tokens))[0]), table=nn.Embedding(20, 5),
            head=nn.Linear(8, 3), rnn=nn.LSTM(5, 6, num_layers=2, bidirectional=True, proj_size=4, batch_first=True)),
        ids, tables=("table.weight",)),
    "cross_attention": Expected(
        lambda: made_of(cross_attention, query=nn.Linear(4, 8), memory=nn.Linear(5, 6),
            attention=nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True), head=nn.Linear(8, 3)),
        rows((2, 3, 4), (2, 6, 5))),
    "encoder": Expected(
        lambda: made_of(lambda net, tokens: net.head(net.encoder(net.embedding(tokens) + net.position).mean(1)),
            embedding=nn.Embedding(20, 8), position=bare(1, 6, 8, size=0.1), encoder=encoder(), head=nn.Linear(8, 3)),
        ids, norms=("*.norm?.weight",), units=2, traced=False),
    "mamba": Expected(
        lambda: made_of(mamba, embedding=nn.Embedding(20, 8), norm=nn.LayerNorm(8),
            in_proj=nn.Linear(8, 32, bias=False), conv1d=nn.Conv1d(16, 16, 4, groups=16, padding=3),
            x_proj=nn.Linear(16, 2 + 2 * 4, bias=False), dt_proj=nn.Linear(2, 16, bias=False),
            dt_bias=nn.Parameter(torch.linspace(-4, -2, 16)),
            A_log=nn.Parameter(torch.log(torch.arange(1, 5).float()).repeat(16, 1)), D=ones(16),
            out_proj=nn.Linear(16, 8, bias=False), head=nn.Linear(8, 20)),
        ids, norms=("norm.weight",), gains=("D",), undecided=("A_log",), biases={"dt_bias": "dt_proj.weight"},
        traced=False),
    "moe_switch": Expected(
        lambda: made_of(switch, first=nn.Linear(5, 6), router=nn.Linear(6, 2), norm=nn.LayerNorm(6),
            experts=nn.ModuleList(mlp(6, 8, 6) for _ in range(2)), head=nn.Linear(6, 2)),
        row(4, 5), norms=("norm.weight",), units=2, traced=False),
}  # fmt: skip
