"""Networks on graphs and sets, as torch_geometric and the papers' own code have them."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, made_of, vectors

SOURCE, TARGET = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 5], [1, 2, 3, 4, 5, 0, 3, 5, 1]])


def edges() -> Tensor:
    return torch.stack([SOURCE, TARGET])


def adjacency() -> Tensor:
    a = torch.eye(6)
    a[TARGET, SOURCE] = 1.0
    return a / a.sum(1, keepdim=True)


class GraphConvolution(nn.Module):
    """Kipf and Welling's own: a bare matrix [in, out], the bias behind the neighbors' sum."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, m) / math.sqrt(n))
        self.bias = nn.Parameter(0.1 * torch.randn(m))

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return torch.mm(adj, torch.mm(x, self.weight)) + self.bias


class GCNConv(nn.Module):
    """torch_geometric's: a linear layer without a bias, a scatter, the bias."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.lin, self.bias = nn.Linear(n, m, bias=False), nn.Parameter(0.1 * torch.randn(m))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        degree = torch.bincount(edge_index[1], minlength=len(x)).clamp(min=1).to(x)
        weight = (degree[edge_index[0]] * degree[edge_index[1]]).rsqrt()
        x = self.lin(x)
        messages = weight.view(-1, 1) * x.index_select(0, edge_index[0])
        index = edge_index[1].view(-1, 1).expand_as(messages)
        return x.new_zeros(x.shape).scatter_add_(0, index, messages) + self.bias


class GraphNet(nn.Module):
    """Two of a kind and a readout."""

    def __init__(self, conv1: nn.Module, conv2: nn.Module, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2, self.lin = conv1, conv2, nn.Linear(width, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.conv1(x, edge_index))
        return self.lin(F.relu(self.conv2(x, edge_index)).mean(0, keepdim=True))


class GINConv(nn.Module):
    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.nn = nn.Sequential(nn.Linear(n, 8), nn.ReLU(), nn.Linear(8, m))
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = torch.zeros_like(x).index_add_(0, edge_index[1], x[edge_index[0]])
        return self.nn(out + (1 + self.eps) * x)


class EdgeConv(nn.Module):
    """Wang et al. (2019): an MLP on both ends, the largest of each node's messages."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.nn = nn.Sequential(nn.Linear(2 * n, 8), nn.ReLU(), nn.Linear(8, m))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        here, there = x[edge_index[1]], x[edge_index[0]]
        messages = self.nn(torch.cat([here, there - here], dim=-1))
        index = edge_index[1].unsqueeze(-1).expand_as(messages)
        return messages.new_zeros(len(x), messages.shape[1]).scatter_reduce(0, index, messages, "amax")


def mpnn(net: nn.Module, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
    """Gilmer et al. (2017): messages of node and edge, a recurrent update, a readout."""
    h = net.embed(x)
    for _ in range(2):
        messages = net.message(torch.cat([h[edge_index[0]], edge_attr], -1))
        h = net.update(torch.zeros_like(h).index_add(0, edge_index[1], messages), h)
    return net.readout(h.sum(0, keepdim=True))


def set_pooling(net: nn.Module, x: Tensor) -> Tensor:
    """Lee et al. (2019): a learned query looks at the set."""
    h = net.lin(x).relu()
    return net.head(net.attention(net.seed.expand(x.shape[0], -1, -1), h, h, need_weights=False)[0][:, 0])


def nodes() -> tuple[Tensor, Tensor]:
    return vectors(6, 4), edges()


def dense() -> tuple[Tensor, Tensor]:
    return vectors(6, 4), adjacency()


def with_features() -> tuple[Tensor, Tensor, Tensor]:
    return vectors(6, 4), edges(), vectors(9, 2)


GRAPHS = {
    "gcn": Expected(
        lambda: made_of(
            lambda net, x, adj: F.log_softmax(net.gc2(F.relu(net.gc1(x, adj)), adj), dim=1),
            gc1=GraphConvolution(4, 8), gc2=GraphConvolution(8, 3),
        ),
        dense, heads=("gc2.weight",), transposed=("gc?.weight",), traced=True,
        biases={"gc1.bias": "", "gc2.bias": ""},
    ),
    "gcn_conv": Expected(
        lambda: GraphNet(GCNConv(4, 8), GCNConv(8, 6), 6), nodes, heads=("lin",)
    ),
    "gin": Expected(
        lambda: GraphNet(GINConv(4, 6), GINConv(6, 6), 6), nodes, heads=("lin",), undecided=("*.eps",), traced=True,
        units=3,
    ),
    "edge_conv": Expected(lambda: GraphNet(EdgeConv(4, 6), EdgeConv(6, 6), 6), nodes, heads=("lin",), units=2),
    "mpnn": Expected(
        lambda: made_of(
            mpnn, embed=nn.Linear(4, 6), message=nn.Sequential(nn.Linear(6 + 2, 8), nn.ReLU(), nn.Linear(8, 6)),
            update=nn.GRUCell(6, 6), readout=nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
        ),
        with_features, heads=("readout.2",), tables=(), traced=True, units=1,
    ),
    "deep_sets": Expected(
        lambda: made_of(
            lambda net, x: net.rho(net.phi(x).sum(1)),
            phi=nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6)),
            rho=nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
        ),
        lambda: vectors(2, 5, 4), heads=("rho.2",), traced=True, units=2,
    ),
    "set_pooling": Expected(
        lambda: made_of(
            set_pooling, lin=nn.Linear(4, 8), seed=nn.Parameter(torch.randn(1, 1, 8)),
            attention=nn.MultiheadAttention(8, 2, batch_first=True), head=nn.Linear(8, 3),
        ),
        lambda: vectors(2, 5, 4), heads=("head",), undecided=("seed",), traced=True,
    ),
}  # fmt: skip
