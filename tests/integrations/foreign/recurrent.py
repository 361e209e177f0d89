"""Recurrent networks: torch's layers and cells in loops, cells by hand, state spaces, whatever is called repeatedly."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, ids, made_of, vectors


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


SERIES = lambda: vectors(2, 3, 5)  # noqa: E731
RECURRENT = {
    "lstm_cell": Expected(CellPolicy, SERIES, heads=("policy", "value")),
    "hand_lstm": Expected(
        HandLSTM, SERIES, heads=("head",), transposed=("weight_?",), undecided=("weight_h",), traced=True
    ),
    "bilstm": Expected(  # Both directions, two layers, hidden states projected to fewer.
        lambda: made_of(
            lambda net, tokens: net.head(net.rnn(net.table(tokens))[0]),
            table=nn.Embedding(20, 5), head=nn.Linear(8, 3),
            rnn=nn.LSTM(5, 6, num_layers=2, bidirectional=True, proj_size=4, batch_first=True),
        ),
        ids, heads=("head",), tables=("table.weight",), traced=True,
    ),
    "layernorm_gru": Expected(
        LayerNormGRU, lambda: vectors(2, 3, 4), heads=("head",), norms=("norm.weight",), traced=True
    ),
    "r2d2": Expected(
        R2D2, lambda: (vectors(2, 3, 3, 6, 6), vectors(2, 3, 1)), heads=("value.2", "advantage.2"), traced=True,
        units=3,
        classifier=("fc", "lstm", "value.0", "value.2", "advantage.0", "advantage.2"),
    ),
}  # fmt: skip
