"""Attention in its many forms, and several layers of which a router chooses or blends."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, bare, made_of, mlp, row, rows, vectors


def biased_keys(net: nn.Module, x: Tensor) -> Tensor:
    """torch's attention with an additional key and value, behind a mask."""
    x = net.inputs(x)
    mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
    return net.head(net.attention(x, x, x, attn_mask=mask, need_weights=False)[0])


def einsum_heads(net: nn.Module, x: Tensor) -> Tensor:
    """Bare projections [in, heads, width], as ported from JAX."""
    q, k, v = (torch.einsum("btd,dhk->bhtk", x, w) for w in (net.wq, net.wk, net.wv))
    y = (q @ k.transpose(-1, -2)).softmax(-1) @ v
    return net.head(x + torch.einsum("bhtk,hkd->btd", y, net.wo))


def multi_query(net: nn.Module, x: Tensor) -> Tensor:
    """Several heads of queries, one of keys and values, in one packed layer."""
    q, k, v = net.qkv(net.norm(x)).split([8, 4, 4], -1)
    q = q.unflatten(-1, (2, 4)).transpose(1, 2)
    y = (q @ k.unsqueeze(1).transpose(-1, -2)).softmax(-1) @ v.unsqueeze(1)
    return net.head(x + net.out(y.transpose(1, 2).flatten(2)))


def perceiver(net: nn.Module, x: Tensor) -> Tensor:
    """A learned array of latents asks the inputs."""
    q = net.q(net.latents).expand(x.shape[0], -1, -1)
    h = (q @ net.k(x).transpose(-1, -2)).softmax(-1) @ net.v(x)
    return net.head((h + net.down(F.gelu(net.up(net.norm(h))))).mean(1))


def pointer(net: nn.Module, x: Tensor) -> Tensor:
    """Additive attention over the inputs, scored by a bare vector, is the output itself."""
    memory, last = net.encoder(x)
    return (torch.tanh(net.w1(memory) + net.w2(last[0]).unsqueeze(1)) * net.v).sum(-1)


def bottlenecked(net: nn.Module, x: Tensor) -> Tensor:
    """A vector-quantized or memory layer as a softmax over a bare codebook [codes, width]."""
    share = (net.encoder(x) @ net.codebook.t()).softmax(-1)
    return net.decoder(share @ net.codebook)


# --- several layers, of which a router chooses or blends --------------------------------------------------------------


def blended(net: nn.Module, x: Tensor) -> Tensor:
    """All experts, blended by a softmax."""
    x = torch.relu(net.first(x))
    made = torch.stack([e(x) for e in net.experts], 1)
    return net.head((net.router(x).softmax(-1).unsqueeze(-1) * made).sum(1))


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


def mixture_density(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    h = net.body(x)
    scales = F.softplus(net.scales(h)) + 1e-3
    errors = -0.5 * ((y - net.means(h)) / scales).square() - scales.log()
    return torch.logsumexp(net.shares(h).log_softmax(-1) + errors, -1)


def multi_task(net: nn.Module, x: Tensor, task: Tensor) -> dict[str, Tensor]:
    """A shared trunk, a dict of heads, a table of tasks that is joined to the input."""
    h = net.trunk(torch.cat([x, net.tasks(task)], -1))
    return {name: head(h) for name, head in net.heads.items()}


class BatchEnsembleLinear(nn.Linear):
    """Wen et al. (2020): one matrix, and for each member signs of what goes in and comes out."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__(n, m)
        self.r = nn.Parameter(torch.randn(2, n).sign())
        self.s = nn.Parameter(torch.randn(2, m).sign())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x * self.r.unsqueeze(1), self.weight) * self.s.unsqueeze(1) + self.bias


OBS = row(4, 5)
ATTENTION = {
    "mha_bias_kv": Expected(
        lambda: made_of(biased_keys, inputs=nn.Linear(5, 8), head=nn.Linear(8, 3),
            attention=nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True)),
        row(2, 4, 5), vectors=("attention.bias_?",)),
    "einsum_heads": Expected(
        lambda: made_of(einsum_heads, wq=bare(6, 2, 4, size=0.3), wk=bare(6, 2, 4, size=0.3),
            wv=bare(6, 2, 4, size=0.3), wo=bare(2, 4, 6, size=0.3), head=nn.Linear(6, 3)),
        row(2, 4, 6), undecided=("w?",)),
    "multi_query": Expected(
        lambda: made_of(multi_query, norm=nn.LayerNorm(8), qkv=nn.Linear(8, 8 + 4 + 4), out=nn.Linear(8, 8),
            head=nn.Linear(8, 3)),
        row(2, 4, 8), norms=("norm.weight",)),
    "perceiver": Expected(
        lambda: made_of(perceiver, latents=bare(3, 8, size=0.3), norm=nn.LayerNorm(8), q=nn.Linear(8, 8),
            k=nn.Linear(5, 8), v=nn.Linear(5, 8), up=nn.Linear(8, 12), down=nn.Linear(12, 8), head=nn.Linear(8, 3)),
        row(2, 4, 5), norms=("norm.weight",), undecided=("latents",), tables=(), units=1),
    "pointer": Expected(
        lambda: made_of(pointer, encoder=nn.GRU(3, 8, batch_first=True), w1=nn.Linear(8, 6), w2=nn.Linear(8, 6),
            v=bare(6, size=0.4)),
        row(2, 4, 3), heads=("w1", "w2"), undecided=("v",)),
    "codebook": Expected(
        lambda: made_of(bottlenecked, encoder=nn.Linear(5, 6), decoder=mlp(6, 8, 5), codebook=bare(4, 6, size=0.4)),
        OBS, heads=("decoder.2",), units=1),
    "moe_soft": Expected(
        lambda: made_of(blended, first=nn.Linear(5, 6), router=nn.Linear(6, 3),
            experts=nn.ModuleList(mlp(6, 8, 6) for _ in range(3)), head=nn.Linear(6, 2)),
        OBS, units=4),
    "moe_switch": Expected(
        lambda: made_of(switch, first=nn.Linear(5, 6), router=nn.Linear(6, 2), norm=nn.LayerNorm(6),
            experts=nn.ModuleList(mlp(6, 8, 6) for _ in range(2)), head=nn.Linear(6, 2)),
        OBS, norms=("norm.weight",), units=2, traced=False),
    "mdn": Expected(
        lambda: made_of(mixture_density, body=nn.Sequential(nn.Linear(5, 8), nn.Tanh()), shares=nn.Linear(8, 3),
            means=nn.Linear(8, 3), scales=nn.Linear(8, 3)),
        rows((4, 5), (4, 1)), heads=("shares", "means", "scales"), units=1),
    "multi_task": Expected(
        lambda: made_of(multi_task, tasks=nn.Embedding(2, 3),
            trunk=nn.Sequential(nn.Linear(5 + 3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()),
            heads=nn.ModuleDict({"reach": nn.Linear(8, 2), "push": nn.Linear(8, 3)})),
        lambda: (vectors(4, 5), torch.tensor([0, 1, 1, 0])), heads=("heads.reach", "heads.push"),
        tables=("tasks.weight",), units=2),
    "batch_ensemble_linear": Expected(
        lambda: made_of(lambda net, x: net.fc2(F.relu(net.fc1(x.expand(2, *x.shape)))), fc1=BatchEnsembleLinear(5, 8),
            fc2=BatchEnsembleLinear(8, 3)),
        OBS, heads=("fc2",), undecided=("fc?.r", "fc?.s"), biases={"fc1.bias": "", "fc2.bias": ""}, traced=False),
}  # fmt: skip
