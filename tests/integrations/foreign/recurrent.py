"""Recurrent networks: torch's layers and cells in loops, cells by hand, state spaces, whatever is called repeatedly."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, ids, vectors


class CellPolicy(nn.Module):
    """An LSTM cell step by step, as recurrent policies have it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cell = nn.Sequential(nn.Linear(5, 6), nn.ReLU()), nn.LSTMCell(6, 8)
        self.policy, self.value = nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        x, state = self.encoder(obs), (obs.new_zeros(len(obs), 8), obs.new_zeros(len(obs), 8))
        for t in range(3):
            state = self.cell(x[:, t], state)
        return self.policy(state[0]), self.value(state[0])


class HandLSTM(nn.Module):
    """An LSTM of bare matrices [in, 4 hidden]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_x, self.weight_h = nn.Parameter(torch.randn(5, 24) * 0.3), nn.Parameter(torch.randn(6, 24) * 0.3)
        self.bias, self.head = nn.Parameter(torch.zeros(24)), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(2, 6, dtype=x.dtype)
        for t in range(3):
            i, f, g, o = (x[:, t] @ self.weight_x + h @ self.weight_h + self.bias).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.head(h)


class BiLSTM(nn.Module):
    """Both directions, two layers, hidden states projected to fewer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 5), nn.Linear(8, 3)
        self.rnn = nn.LSTM(5, 6, num_layers=2, bidirectional=True, proj_size=4, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.table(tokens))[0])


class ReluRNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.RNN(5, 8, nonlinearity="relu", batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[1][0])


class ConvLSTM(nn.Module):
    """Gates by one convolution over frame and state."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.head = nn.Conv2d(2 + 4, 16, 3, padding=1), nn.Conv2d(4, 2, 1)

    def forward(self, frames: Tensor) -> Tensor:
        h = c = torch.zeros_like(frames[:, 0, :1]).repeat(1, 4, 1, 1)
        for t in range(2):
            i, f, g, o = self.gates(torch.cat([frames[:, t], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.head(h)


class Bahdanau(nn.Module):
    """A GRU encoder, and a decoder cell that asks it by additive attention."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(20, 6), nn.Embedding(20, 6)
        self.encoder, self.decoder = nn.GRU(6, 8, batch_first=True), nn.GRUCell(6 + 8, 8)
        self.of_state, self.of_memory, self.energy = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(6, 1, bias=False)
        self.head = nn.Linear(8, 20)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, h = self.encoder(self.source(source))
        h, keys, words, outputs = h[0], self.of_memory(memory), self.target(target), []
        for t in range(3):
            share = self.energy(torch.tanh(self.of_state(h).unsqueeze(1) + keys)).softmax(1)
            h = self.decoder(torch.cat([words[:, t], (share * memory).sum(1)], -1), h)
            outputs.append(self.head(h))
        return torch.stack(outputs, 1)


class MinGRU(nn.Module):
    """Gates that do not read the state."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.candidate, self.head = nn.Linear(5, 8), nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        z, new = self.gate(x).sigmoid(), self.candidate(x)
        h = torch.zeros_like(new[:, 0])
        for t in range(3):
            h = (1 - z[:, t]) * h + z[:, t] * new[:, t]
        return self.head(h)


class S4D(nn.Module):
    """A diagonal state space, its kernel from bare parameters, convolved with the input."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 6), nn.Linear(6, 2)
        self.log_dt = nn.Parameter(torch.linspace(-3, -1, 6))
        self.log_a = nn.Parameter(torch.zeros(6, 4) + math.log(0.5))
        self.c = nn.Parameter(torch.randn(6, 4) * 0.4)
        self.skip, self.out = nn.Parameter(torch.randn(6)), nn.Linear(6, 12)

    def forward(self, u: Tensor) -> Tensor:
        u = self.encoder(u).transpose(1, 2)  # [batch, 6, length]
        decay = self.log_dt.exp()[:, None] * -self.log_a.exp()
        kernel = (self.c.unsqueeze(-1) * (decay.unsqueeze(-1) * torch.arange(4)).exp()).sum(1)
        spectrum = torch.fft.rfft(u, n=8) * torch.fft.rfft(kernel, n=8)
        y = torch.fft.irfft(spectrum, n=8)[..., :4] + u * self.skip.unsqueeze(-1)
        return self.decoder(F.glu(self.out(F.gelu(y).transpose(1, 2)), dim=-1))


class EchoState(nn.Module):
    """A frozen reservoir and a trained readout."""

    def __init__(self) -> None:
        super().__init__()
        self.w_in, self.w = nn.Linear(4, 8).requires_grad_(False), nn.Linear(8, 8, bias=False).requires_grad_(False)
        self.readout = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(2, 8, dtype=x.dtype)
        for t in range(3):
            h = torch.tanh(self.w_in(x[:, t]) + self.w(h))
        return self.readout(h)


class NeuralODE(nn.Module):
    """Euler steps of one small network."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
        self.slope = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x)
        for _ in range(3):
            h = h + 0.3 * self.slope(h)
        return self.head(h)


class IndRNN(nn.Module):
    """Each unit reads its own state alone, by a bare vector."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
        self.recurrent = nn.Parameter(torch.linspace(-0.9, 0.9, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        h = torch.zeros_like(x[:, 0])
        for t in range(3):
            h = torch.relu(x[:, t] + self.recurrent * h)
        return self.head(h)


class QRNN(nn.Module):
    """Gates by a causal convolution, pooled along time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(4, 18, 2), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        z, f, o = self.conv(F.pad(x.transpose(1, 2), (1, 0))).chunk(3, 1)
        c = torch.zeros_like(z[..., 0])
        for t in range(3):
            c = f[..., t].sigmoid() * c + (1 - f[..., t].sigmoid()) * z[..., t].tanh()
        return self.head(o[..., -1].sigmoid() * c)


class MDNRNN(nn.Module):
    """An LSTM whose heads are a mixture of Gaussians."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(5, 8, batch_first=True)
        self.shares, self.means, self.log_scales = nn.Linear(8, 3), nn.Linear(8, 6), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, _ = self.rnn(x)
        return self.shares(h).log_softmax(-1), self.means(h), self.log_scales(h).exp()


class LayerNormGRU(nn.Module):
    """DreamerV3's cell: one matrix for all gates, a norm layer behind it, an update that starts closed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.head = nn.Linear(4 + 6, 18, bias=False), nn.LayerNorm(18), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(2, 6, dtype=x.dtype)
        for t in range(3):
            reset, candidate, update = self.norm(self.linear(torch.cat([x[:, t], h], -1))).chunk(3, -1)
            update = (update - 1).sigmoid()
            h = update * (reset.sigmoid() * candidate).tanh() + (1 - update) * h
        return self.head(h)


class DeepEquilibrium(nn.Module):
    """Iterations to a fixed point of one layer that reads the input each time."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.state, self.norm = nn.Linear(4, 6), nn.Linear(6, 6, bias=False), nn.LayerNorm(6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        u, z = self.inputs(x), torch.zeros(4, 6, dtype=x.dtype)
        for _ in range(4):
            z = torch.relu(self.norm(self.state(z) + u))
        return self.head(z)


class R2D2(nn.Module):
    """Convolutions for each frame, an LSTM along time, dueling heads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(4 * 4, 6)
        self.lstm = nn.LSTM(6 + 1, 8, batch_first=True)
        self.value = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1))
        self.advantage = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, frames: Tensor, reward: Tensor) -> Tensor:
        b, t = frames.shape[:2]
        x = F.relu(self.fc(F.relu(self.conv(frames.flatten(0, 1))).flatten(1))).view(b, t, -1)
        h, _ = self.lstm(torch.cat([x, reward], -1))
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(-1, keepdim=True)


class GTrXLGate(nn.Module):
    """The gate of stabilized transformers: a GRU of bare sums."""

    def __init__(self) -> None:
        super().__init__()
        self.wr, self.ur, self.wz, self.uz, self.wg, self.ug = (nn.Linear(6, 6, bias=False) for _ in range(6))
        self.bias = nn.Parameter(torch.full((6,), 2.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        r, z = torch.sigmoid(self.wr(y) + self.ur(x)), torch.sigmoid(self.wz(y) + self.uz(x) - self.bias)
        return (1 - z) * x + z * torch.tanh(self.wg(y) + self.ug(r * x))


class GTrXL(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Linear(4, 6), nn.LayerNorm(6)
        self.attention, self.gate = nn.MultiheadAttention(6, 2, batch_first=True), GTrXLGate()
        self.policy = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        y = self.norm(x)
        return self.policy(self.gate(x, torch.relu(self.attention(y, y, y, need_weights=False)[0])))


SERIES = lambda: vectors(2, 3, 5)  # noqa: E731
RECURRENT = {
    "lstm_cell": Expected(CellPolicy, SERIES, heads=("policy", "value")),
    "hand_lstm": Expected(
        HandLSTM, SERIES, heads=("head",), transposed=("weight_?",), undecided=("weight_h",), traced=True
    ),
    "bilstm": Expected(BiLSTM, ids, heads=("head",), tables=("table.weight",), traced=True),
    "relu_rnn": Expected(ReluRNN, SERIES, heads=("head",), traced=True),
    "conv_lstm": Expected(ConvLSTM, lambda: vectors(2, 2, 2, 4, 4), heads=("head",), traced=True),
    "bahdanau": Expected(
        Bahdanau, lambda: (ids(), ids()[:, :3]), heads=("head",), tables=("source.weight", "target.weight"), traced=True
    ),
    "min_gru": Expected(MinGRU, SERIES, heads=("head",), traced=True),
    "s4d": Expected(
        S4D, lambda: vectors(2, 4, 4), heads=("decoder",), undecided=("log_dt", "log_a", "c", "skip"), traced=True
    ),
    "echo_state": Expected(EchoState, lambda: vectors(2, 3, 4), heads=("readout",), traced=True),
    "neural_ode": Expected(NeuralODE, lambda: vectors(4, 4), heads=("head",), traced=True),
    "ind_rnn": Expected(
        IndRNN, lambda: vectors(2, 3, 4), heads=("head",), undecided=("recurrent",), traced=True
    ),
    "qrnn": Expected(QRNN, lambda: vectors(2, 3, 4), heads=("head",), traced=True),
    "mdn_rnn": Expected(MDNRNN, SERIES, heads=("shares", "means", "log_scales"), traced=True),
    "layernorm_gru": Expected(
        LayerNormGRU, lambda: vectors(2, 3, 4), heads=("head",), norms=("norm.weight",), traced=True
    ),
    "deep_equilibrium": Expected(
        DeepEquilibrium, lambda: vectors(4, 4), heads=("head",), norms=("norm.weight",), traced=True
    ),
    "r2d2": Expected(
        R2D2, lambda: (vectors(2, 3, 3, 6, 6), vectors(2, 3, 1)), heads=("value.2", "advantage.2"), traced=True, units=3,
        classifier=("fc", "lstm", "value.0", "value.2", "advantage.0", "advantage.2"),
    ),
    "gtrxl": Expected(
        GTrXL, lambda: vectors(2, 3, 4), heads=("policy",), norms=("norm.weight",), tables=(), traced=True, units=1
    ),
}  # fmt: skip
