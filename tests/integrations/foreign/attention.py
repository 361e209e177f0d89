"""Attention in its many forms, and several layers of which a router chooses or blends."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, made_of, vectors


class BiasedKeys(nn.Module):
    """torch's attention with an additional key and value, behind a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
        return self.head(self.attention(x, x, x, attn_mask=mask, need_weights=False)[0])


class EinsumHeads(nn.Module):
    """Bare projections [in, heads, width], as ported from JAX."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(6, 2, 4) * 0.3) for _ in range(3))
        self.wo, self.head = nn.Parameter(torch.randn(2, 4, 6) * 0.3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btd,dhk->bhtk", x, w) for w in (self.wq, self.wk, self.wv))
        y = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return self.head(x + torch.einsum("bhtk,hkd->btd", y, self.wo))


class Pointer(nn.Module):
    """Additive attention over the inputs, scored by a bare vector, is the output itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.w1, self.w2 = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 6), nn.Linear(8, 6)
        self.v = nn.Parameter(torch.randn(6) * 0.4)

    def forward(self, x: Tensor) -> Tensor:
        memory, last = self.encoder(x)
        return (torch.tanh(self.w1(memory) + self.w2(last[0]).unsqueeze(1)) * self.v).sum(-1)


class RelativeKeys(nn.Module):
    """Shaw's attention: a bare table of relative positions is added to the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.relative = nn.Parameter(torch.randn(7, 6) * 0.4)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(4)
        keys = self.k(x).unsqueeze(1) + self.relative[places[None] - places[:, None] + 3]  # [batch, 4, 4, 6]
        scores = (self.q(x).unsqueeze(2) * keys).sum(-1) / math.sqrt(6)
        return self.head(scores.softmax(-1) @ self.v(x))


class Bottlenecked(nn.Module):
    """A vector-quantized or memory layer as a softmax over a bare codebook [codes, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(5, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
        self.codebook = nn.Parameter(torch.randn(4, 6) * 0.4)

    def forward(self, x: Tensor) -> Tensor:
        share = (self.encoder(x) @ self.codebook.t()).softmax(-1)
        return self.decoder(share @ self.codebook)


# --- several layers, of which a router chooses or blends --------------------------------------------------------------


def expert() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))


class Blended(nn.Module):
    """All experts, blended by a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.router = nn.Linear(5, 6), nn.Linear(6, 3)
        self.experts, self.head = nn.ModuleList(expert() for _ in range(3)), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        made = torch.stack([e(x) for e in self.experts], 1)
        return self.head((self.router(x).softmax(-1).unsqueeze(-1) * made).sum(1))


class Switch(nn.Module):
    """Each example goes to its best expert alone, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.router, self.norm = nn.Linear(5, 6), nn.Linear(6, 2), nn.LayerNorm(6)
        self.experts, self.head = nn.ModuleList(expert() for _ in range(2)), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        y = self.norm(h)
        share, best = self.router(y).softmax(-1).max(-1)
        out = torch.zeros_like(y)
        for i, e in enumerate(self.experts):
            mine = best == i
            out[mine] = e(y[mine]) * share[mine].unsqueeze(-1)
        return self.head(h + out)


class MixtureDensity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.Tanh())
        self.shares, self.means, self.scales = nn.Linear(8, 3), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.body(x)
        scales = F.softplus(self.scales(h)) + 1e-3
        errors = -0.5 * ((y - self.means(h)) / scales).square() - scales.log()
        return torch.logsumexp(self.shares(h).log_softmax(-1) + errors, -1)


class MultiTask(nn.Module):
    """A shared trunk, a dict of heads, a table of tasks that is joined to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = nn.Embedding(2, 3)
        self.trunk = nn.Sequential(nn.Linear(5 + 3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.heads = nn.ModuleDict({"reach": nn.Linear(8, 2), "push": nn.Linear(8, 3)})

    def forward(self, x: Tensor, task: Tensor) -> dict[str, Tensor]:
        h = self.trunk(torch.cat([x, self.tasks(task)], -1))
        return {name: head(h) for name, head in self.heads.items()}


class BatchEnsembleLinear(nn.Linear):
    """Wen et al. (2020): one matrix, and for each member signs of what goes in and comes out."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__(n, m)
        self.r = nn.Parameter(torch.randn(2, n).sign())
        self.s = nn.Parameter(torch.randn(2, m).sign())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x * self.r.unsqueeze(1), self.weight) * self.s.unsqueeze(1) + self.bias


SETS, OBS = lambda: vectors(2, 4, 5), lambda: vectors(4, 5)
ATTENTION = {
    "mha_bias_kv": Expected(BiasedKeys, SETS, heads=("head",), vectors=("attention.bias_?",), traced=True),
    "einsum_heads": Expected(
        EinsumHeads, lambda: vectors(2, 4, 6), heads=("head",), undecided=("w?",), traced=True
    ),
    "pointer": Expected(
        Pointer, lambda: vectors(2, 4, 3), heads=("w1", "w2"), undecided=("v",), traced=True
    ),
    "relative_keys": Expected(
        RelativeKeys, lambda: vectors(2, 4, 6), heads=("head",), undecided=("relative",), traced=True
    ),
    "codebook": Expected(Bottlenecked, OBS, heads=("decoder.2",), traced=True, units=1),
    "moe_soft": Expected(Blended, OBS, heads=("head",), traced=True, units=4),
    "moe_switch": Expected(Switch, OBS, heads=("head",), norms=("norm.weight",), units=2),
    "mdn": Expected(
        MixtureDensity, lambda: (vectors(4, 5), vectors(4, 1)), heads=("shares", "means", "scales"), traced=True,
        units=1,
    ),
    "multi_task": Expected(
        MultiTask, lambda: (vectors(4, 5), torch.tensor([0, 1, 1, 0])), heads=("heads.reach", "heads.push"),
        tables=("tasks.weight",), traced=True, units=2,
    ),
    "batch_ensemble_linear": Expected(
        lambda: made_of(
            lambda net, x: net.fc2(F.relu(net.fc1(x.expand(2, *x.shape)))),
            fc1=BatchEnsembleLinear(5, 8), fc2=BatchEnsembleLinear(8, 3),
        ),
        OBS, heads=("fc2",), undecided=("fc?.r", "fc?.s"), biases={"fc1.bias": "", "fc2.bias": ""},
    ),
}  # fmt: skip
