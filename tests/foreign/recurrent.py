"""Recurrent networks: torch's layers and cells in loops, cells by hand, state spaces, whatever is called repeatedly."""

import torch
from torch import Tensor, nn

from foreign.expected import Expected, ids, made_of, row


def cell_policy(net: nn.Module, obs: Tensor) -> tuple[Tensor, Tensor]:
    """An LSTM cell step by step, as recurrent policies have it."""
    x, state = net.encoder(obs), (obs.new_zeros(len(obs), 8), obs.new_zeros(len(obs), 8))
    for t in range(3):
        state = net.cell(x[:, t], state)
    return net.policy(state[0]), net.value(state[0])


def layer_norm_gru(net: nn.Module, x: Tensor) -> Tensor:
    """DreamerV3's cell: one matrix for all gates, a norm layer behind it, an update that starts closed."""
    h = torch.zeros(2, 6, dtype=x.dtype)
    for t in range(3):
        reset, candidate, update = net.norm(net.linear(torch.cat([x[:, t], h], -1))).chunk(3, -1)
        update = (update - 1).sigmoid()
        h = update * (reset.sigmoid() * candidate).tanh() + (1 - update) * h
    return net.head(h)


RECURRENT = {
    "lstm_cell": Expected(
        lambda: made_of(cell_policy, encoder=nn.Sequential(nn.Linear(5, 6), nn.ReLU()), cell=nn.LSTMCell(6, 8),
            policy=nn.Linear(8, 3), value=nn.Linear(8, 1)),
        row(2, 3, 5), heads=("policy", "value"), traced=False),
    "bilstm": Expected(  # Both directions, two layers, hidden states projected to fewer.
        lambda: made_of(lambda net, tokens: net.head(net.rnn(net.table(tokens))[0]), table=nn.Embedding(20, 5),
            head=nn.Linear(8, 3), rnn=nn.LSTM(5, 6, num_layers=2, bidirectional=True, proj_size=4, batch_first=True)),
        ids, tables=("table.weight",)),
    "layernorm_gru": Expected(
        lambda: made_of(layer_norm_gru, linear=nn.Linear(4 + 6, 18, bias=False), norm=nn.LayerNorm(18),
            head=nn.Linear(6, 2)),
        row(2, 3, 4), norms=("norm.weight",)),
}  # fmt: skip
