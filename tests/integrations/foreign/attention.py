"""Attention in its many forms, and several layers of which a router chooses or blends."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, ids, vectors


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


class MultiQuery(nn.Module):
    """Several heads of queries, one of keys and values, in one packed layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 8 + 4 + 4), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).split([8, 4, 4], -1)
        q = q.unflatten(-1, (2, 4)).transpose(1, 2)
        y = (q @ k.unsqueeze(1).transpose(-1, -2)).softmax(-1) @ v.unsqueeze(1)
        return self.head(x + self.out(y.transpose(1, 2).flatten(2)))


class Pointer(nn.Module):
    """Additive attention over the inputs, scored by a bare vector, is the output itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.w1, self.w2 = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 6), nn.Linear(8, 6)
        self.v = nn.Parameter(torch.randn(6) * 0.4)

    def forward(self, x: Tensor) -> Tensor:
        memory, last = self.encoder(x)
        return (torch.tanh(self.w1(memory) + self.w2(last[0]).unsqueeze(1)) * self.v).sum(-1)


class SetTransformer(nn.Module):
    """Inducing points ask a set, the set asks them; a seed pools it."""

    def __init__(self) -> None:
        super().__init__()
        self.inducing, self.seed = (nn.Parameter(torch.randn(1, n, 8) * 0.4) for n in (3, 1))
        self.inputs, self.q, self.k, self.v = (nn.Linear(n, 8) for n in (4, 8, 8, 8))
        self.q2, self.k2, self.v2, self.fc, self.head = *(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        q = self.q(self.inducing.repeat(x.size(0), 1, 1))
        h = q + (q @ self.k(x).transpose(1, 2) / 8**0.5).softmax(2) @ self.v(x)
        h = h + F.relu(self.fc(h))
        q = self.q2(self.seed.repeat(x.size(0), 1, 1))
        return self.head((q + (q @ self.k2(h).transpose(1, 2) / 8**0.5).softmax(2) @ self.v2(h)).squeeze(1))


class SlotAttention(nn.Module):
    """Slots compete for the inputs, round by round, and a GRU cell changes them."""

    def __init__(self) -> None:
        super().__init__()
        self.slots_mu, self.slots_log_sigma = (nn.Parameter(torch.randn(1, 1, 6) * 0.4) for _ in range(2))
        self.register_buffer("noise", torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(2)))
        self.norm_inputs, self.norm_slots = nn.LayerNorm(5), nn.LayerNorm(6)
        self.q, self.k, self.v = nn.Linear(6, 6, bias=False), nn.Linear(5, 6), nn.Linear(5, 6)
        self.cell, self.head = nn.GRUCell(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_inputs(x)
        k, v = self.k(x), self.v(x)
        slots = self.slots_mu + self.slots_log_sigma.exp() * self.noise
        for _ in range(2):
            share = (self.q(self.norm_slots(slots)) @ k.transpose(-1, -2)).softmax(1) + 1e-8
            updates = (share / share.sum(-1, keepdim=True)) @ v
            slots = self.cell(updates.reshape(-1, 6), slots.reshape(-1, 6)).view(2, 3, 6)
        return self.head(slots)


class AttentionPool(nn.Module):
    """A bare query asks once; its answers are classified."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.act = nn.Linear(5, 8), nn.ReLU()
        self.query, self.head = nn.Parameter(torch.randn(8) * 0.4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.body(x))
        share = (h @ self.query / math.sqrt(8)).softmax(-1)
        return self.head((share.unsqueeze(-1) * h).sum(1))


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


class ExternalAttention(nn.Module):
    """Two small memories in the place of keys and values: linear layers with a softmax between."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.mk, self.mv = nn.Linear(5, 8), nn.Linear(8, 4, bias=False), nn.Linear(4, 8, bias=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        share = self.mk(x).softmax(1)
        return self.head(x + self.mv(share / (1e-9 + share.sum(-1, keepdim=True))))


class GatedPooling(nn.Module):
    """Multiple-instance learning: tanh and sigmoid gates score each instance."""

    def __init__(self) -> None:
        super().__init__()
        self.v, self.u, self.w, self.head = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 1), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        share = self.w(torch.tanh(self.v(x)) * torch.sigmoid(self.u(x))).softmax(1)
        return self.head((share * x).sum(1))


class Bottlenecked(nn.Module):
    """A vector-quantized or memory layer as a softmax over a bare codebook [codes, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(5, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
        self.codebook = nn.Parameter(torch.randn(4, 6) * 0.4)

    def forward(self, x: Tensor) -> Tensor:
        share = (self.encoder(x) @ self.codebook.t()).softmax(-1)
        return self.decoder(share @ self.codebook)


# --- several layers, of which a router chooses or blends ----------------------------------------------------------------


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


class MMoE(nn.Module):
    """Multi-gate mixture: each task has a gate over the same experts, and a tower."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 8), nn.ReLU()) for _ in range(2))
        self.gates = nn.ModuleList(nn.Linear(6, 2, bias=False) for _ in range(2))
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1)) for _ in range(2))

    def forward(self, x: Tensor) -> list[Tensor]:
        made = torch.stack([e(x) for e in self.experts], 1)
        return [
            tower((gate(x).softmax(-1).unsqueeze(-1) * made).sum(1))
            for gate, tower in zip(self.gates, self.towers, strict=True)
        ]


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


class BatchEnsemble(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = BatchEnsembleLinear(5, 8), BatchEnsembleLinear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(x.expand(2, *x.shape))))


class DeepEnsemble(nn.Module):
    """Means and variances of several networks, combined."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(nn.Sequential(nn.Linear(5, 8), nn.SiLU(), nn.Linear(8, 2)) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.stack([member(x) for member in self.members])
        mean, scale = made[..., 0], F.softplus(made[..., 1])
        return mean.mean(0), (scale + mean.square()).mean(0) - mean.mean(0).square()


class EinsumEnsemble(nn.Module):
    """Critics as stacked bare matrices [n, in, out] and biases [n, 1, out], as model-based agents write them."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(3, 5, 8) * 0.4), nn.Parameter(torch.zeros(3, 1, 8))
        self.w2, self.b2 = nn.Parameter(torch.randn(3, 8, 1) * 0.4), nn.Parameter(torch.zeros(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(torch.einsum("bi,nio->nbo", x, self.w1) + self.b1)
        return torch.baddbmm(self.b2, h, self.w2)


class ModulatedRouter(nn.Module):
    """Soft modularization: a task's routing of modules, layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.task, self.obs = nn.Linear(3, 6), nn.Linear(5, 6)
        self.layer1 = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.routing, self.layer2 = nn.Linear(6, 4), nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        h, z = F.relu(self.obs(x)), self.task(task)
        p = self.routing(F.relu(z * h)).view(-1, 2, 2).softmax(-1)
        made = torch.stack([F.relu(module(h)) for module in self.layer1], 1)
        mixed = p @ made
        return self.head(sum(F.relu(module(mixed[:, i])) for i, module in enumerate(self.layer2)))


SETS, OBS = lambda: vectors(2, 4, 5), lambda: vectors(4, 5)
ATTENTION = {
    "mha_bias_kv": Expected(BiasedKeys, SETS, heads=("head",), vectors=("attention.bias_?",), traced=True),
    "einsum_heads": Expected(
        EinsumHeads, lambda: vectors(2, 4, 6), heads=("head",), undecided=("w?",), traced=True
    ),
    "multi_query": Expected(
        MultiQuery, lambda: vectors(2, 4, 8), heads=("head",), norms=("norm.weight",), traced=True
    ),
    "pointer": Expected(
        Pointer, lambda: vectors(2, 4, 3), heads=("w1", "w2"), undecided=("v",), traced=True
    ),
    "set_transformer": Expected(
        SetTransformer, lambda: vectors(2, 4, 4), heads=("head",), undecided=("inducing", "seed"), traced=True
    ),
    "slot_attention": Expected(
        SlotAttention, SETS, heads=("head",), norms=("norm_*.weight",), undecided=("slots_*",), traced=True
    ),
    "attention_pool": Expected(AttentionPool, SETS, heads=("head",), undecided=("query",), traced=True),
    "relative_keys": Expected(
        RelativeKeys, lambda: vectors(2, 4, 6), heads=("head",), undecided=("relative",), traced=True
    ),
    "external_attention": Expected(ExternalAttention, SETS, heads=("head",), traced=True),
    "gated_pooling": Expected(GatedPooling, SETS, heads=("head",), traced=True),
    "codebook": Expected(Bottlenecked, OBS, heads=("decoder.2",), traced=True, units=1),
    "moe_soft": Expected(Blended, OBS, heads=("head",), traced=True, units=4),
    "moe_switch": Expected(Switch, OBS, heads=("head",), norms=("norm.weight",), units=2),
    "mmoe": Expected(MMoE, lambda: vectors(4, 6), heads=("towers.0.2", "towers.1.2"), traced=True, units=2),
    "mdn": Expected(
        MixtureDensity, lambda: (vectors(4, 5), vectors(4, 1)), heads=("shares", "means", "scales"), traced=True, units=1
    ),
    "multi_task": Expected(
        MultiTask, lambda: (vectors(4, 5), torch.tensor([0, 1, 1, 0])), heads=("heads.reach", "heads.push"),
        tables=("tasks.weight",), traced=True, units=2,
    ),
    "batch_ensemble_linear": Expected(
        BatchEnsemble, OBS, heads=("fc2",), undecided=("fc?.r", "fc?.s"),
        biases={"fc1.bias": "", "fc2.bias": ""},  # behind the signs, not behind the layer
    ),
    "deep_ensemble": Expected(
        DeepEnsemble, OBS, heads=("members.0.2", "members.1.2"), traced=True, units=2
    ),
    "einsum_ensemble": Expected(
        EinsumEnsemble, OBS, heads=("w2.0", "w2.1", "w2.2"), stacks=("w?",), undecided=("b?",), traced=True
    ),
    "soft_modules": Expected(
        ModulatedRouter, lambda: (vectors(4, 5), vectors(4, 3)), heads=("head",), traced=True
    ),
}  # fmt: skip
