"""Networks on graphs and sets, as torch_geometric and the papers' own code have them."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, vectors

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


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gc1, self.gc2 = GraphConvolution(4, 8), GraphConvolution(8, 3)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return F.log_softmax(self.gc2(F.relu(self.gc1(x, adj)), adj), dim=1)


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


class GraphAttention(nn.Module):
    """Velickovic et al. (2018): a matrix [in, out] and a bare attention vector, its halves for either end."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(n, m) / math.sqrt(n))
        self.a = nn.Parameter(torch.randn(2 * m, 1) / math.sqrt(m))
        self.m = m

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        h = torch.mm(x, self.w)
        e = F.leaky_relu(h @ self.a[: self.m] + (h @ self.a[self.m :]).T, 0.2)
        e = torch.where(adj > 0, e, -9e15 * torch.ones_like(e))
        return torch.matmul(F.softmax(e, dim=1), h)


class GAT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head1, self.head2, self.out = GraphAttention(4, 6), GraphAttention(4, 6), GraphAttention(12, 3)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        x = torch.cat([F.elu(self.head1(x, adj)), F.elu(self.head2(x, adj))], dim=1)
        return F.log_softmax(F.elu(self.out(x, adj)), dim=1)


class GATConv(nn.Module):
    """torch_geometric's: vectors [1, heads, channels] that are multiplied and summed."""

    def __init__(self, n: int, m: int, heads: int) -> None:
        super().__init__()
        self.heads, self.m = heads, m
        self.lin = nn.Linear(n, heads * m, bias=False)
        self.att_src = nn.Parameter(0.3 * torch.randn(1, heads, m))
        self.att_dst = nn.Parameter(0.3 * torch.randn(1, heads, m))
        self.bias = nn.Parameter(0.1 * torch.randn(heads * m))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x).view(-1, self.heads, self.m)
        alpha = (h * self.att_src).sum(-1)[edge_index[0]] + (h * self.att_dst).sum(-1)[edge_index[1]]
        alpha = F.leaky_relu(alpha, 0.2).exp()
        total = torch.zeros(len(x), self.heads).index_add_(0, edge_index[1], alpha)
        messages = h[edge_index[0]] * (alpha / total[edge_index[1]]).unsqueeze(-1)
        return torch.zeros_like(h).index_add_(0, edge_index[1], messages).flatten(1) + self.bias


class GINConv(nn.Module):
    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.nn = nn.Sequential(nn.Linear(n, 8), nn.ReLU(), nn.Linear(8, m))
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = torch.zeros_like(x).index_add_(0, edge_index[1], x[edge_index[0]])
        return self.nn(out + (1 + self.eps) * x)


class SAGEConv(nn.Module):
    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.lin_l, self.lin_r = nn.Linear(n, m), nn.Linear(n, m, bias=False)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return self.lin_l(adj @ x) + self.lin_r(x)


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


class GraphConv(nn.Module):
    """Two matrices [in, out] as parameters, and messages by index_add."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.root = nn.Parameter(torch.randn(n, m) / math.sqrt(n))
        self.neighbors = nn.Parameter(torch.randn(n, m) / math.sqrt(n))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        messages = (x @ self.neighbors)[edge_index[0]]
        return (x @ self.root).index_add(0, edge_index[1], messages)


class MPNN(nn.Module):
    """Gilmer et al. (2017): messages of node and edge, a recurrent update, a readout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6)
        self.message = nn.Sequential(nn.Linear(6 + 2, 8), nn.ReLU(), nn.Linear(8, 6))
        self.update = nn.GRUCell(6, 6)
        self.readout = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h = self.embed(x)
        for _ in range(2):
            messages = self.message(torch.cat([h[edge_index[0]], edge_attr], -1))
            h = self.update(torch.zeros_like(h).index_add(0, edge_index[1], messages), h)
        return self.readout(h.sum(0, keepdim=True))


class GatedGraph(nn.Module):
    """torch_geometric's GatedGraphConv: a matrix [in, out] of each step in one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 6, 6) / math.sqrt(6))
        self.rnn, self.lin = nn.GRUCell(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for i in range(2):
            m = torch.matmul(x, self.weight[i])
            x = self.rnn(torch.zeros_like(m).index_add_(0, edge_index[1], m[edge_index[0]]), x)
        return self.lin(x)


class RGCN(nn.Module):
    """A matrix [in, out] of each relation, one of the node itself, a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 4, 6) / 2)
        self.root, self.bias = nn.Parameter(torch.randn(4, 6) / 2), nn.Parameter(0.1 * torch.randn(6))
        self.lin = nn.Linear(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        out = x @ self.root + self.bias
        for i in range(2):
            of_type = edge_index[:, edge_type == i]
            h = torch.zeros_like(x).index_add_(0, of_type[1], x[of_type[0]])
            out = out + h @ self.weight[i]
        return self.lin(out.relu())


class NNConv(nn.Module):
    """The matrix of each edge is made from its features by a network."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 5)
        self.nn = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 5 * 5))
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h = self.lin(x).relu()
        weight = self.nn(edge_attr).view(-1, 5, 5)
        messages = torch.matmul(h[edge_index[0]].unsqueeze(1), weight).squeeze(1)
        return self.head(h.index_add(0, edge_index[1], messages).relu())


class PointNet(nn.Module):
    """An MLP shared by the points, on coordinates that a learned 3 x 3 matrix turned."""

    def __init__(self) -> None:
        super().__init__()
        self.t_conv, self.t_fc = nn.Conv1d(3, 6, 1), nn.Linear(6, 9)
        self.conv1, self.bn1 = nn.Conv1d(3, 6, 1), nn.BatchNorm1d(6)
        self.conv2, self.bn2 = nn.Conv1d(6, 8, 1), nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, 3)
        self.register_buffer("identity", torch.eye(3))

    def forward(self, x: Tensor) -> Tensor:  # [batch, 3, points]
        turn = self.t_fc(F.relu(self.t_conv(x)).amax(2)).view(-1, 3, 3) + self.identity
        x = torch.bmm(x.transpose(2, 1), turn).transpose(2, 1)
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(F.relu(self.bn2(self.conv2(x))).amax(2))


class DeepSets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
        self.rho = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.rho(self.phi(x).sum(1))


class EquivariantSet(nn.Module):
    """Zaheer et al. (2017): the largest element is subtracted, a matrix each, one bias."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma, self.lam = nn.Linear(4, 8), nn.Linear(4, 8, bias=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.gamma(x) - self.lam(x.amax(1, keepdim=True)))
        return self.head(x.mean(1))


class SetPooling(nn.Module):
    """Lee et al. (2019): a learned query looks at the set."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.seed = nn.Linear(4, 8), nn.Parameter(torch.randn(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lin(x).relu()
        return self.head(self.attention(self.seed.expand(x.shape[0], -1, -1), h, h, need_weights=False)[0][:, 0])


def nodes() -> tuple[Tensor, Tensor]:
    return vectors(6, 4), edges()


def dense() -> tuple[Tensor, Tensor]:
    return vectors(6, 4), adjacency()


def with_features() -> tuple[Tensor, Tensor, Tensor]:
    return vectors(6, 4), edges(), vectors(9, 2)


GRAPHS = {
    "gcn": Expected(GCN, dense, heads=("gc2.weight",), transposed=("gc?.weight",), traced=True,
        biases={"gc1.bias": "", "gc2.bias": ""},  # behind the neighbors' sum
    ),
    "gcn_conv": Expected(
        lambda: GraphNet(GCNConv(4, 8), GCNConv(8, 6), 6), nodes, heads=("lin",)
    ),
    "gat": Expected(
        GAT, dense, heads=("out.a",), transposed=("*.w", "*.a"), traced=True
    ),
    "gat_conv": Expected(
        lambda: GraphNet(GATConv(4, 3, 2), GATConv(6, 3, 2), 6), nodes, heads=("lin",), undecided=("*.att_*",)
    ),
    "gin": Expected(
        lambda: GraphNet(GINConv(4, 6), GINConv(6, 6), 6), nodes, heads=("lin",), undecided=("*.eps",), traced=True,
        units=3,
    ),
    "sage": Expected(lambda: GraphNet(SAGEConv(4, 8), SAGEConv(8, 6), 6), dense, heads=("lin",), traced=True),
    "edge_conv": Expected(lambda: GraphNet(EdgeConv(4, 6), EdgeConv(6, 6), 6), nodes, heads=("lin",), units=2),
    "graph_conv": Expected(
        lambda: GraphNet(GraphConv(4, 6), GraphConv(6, 6), 6), nodes, heads=("lin",),
        transposed=("*.root", "*.neighbors"), traced=True,
    ),
    "mpnn": Expected(MPNN, with_features, heads=("readout.2",), tables=(), traced=True, units=1),
    "gated_graph": Expected(
        GatedGraph, lambda: (vectors(6, 6), edges()), heads=("lin",), stacks=("weight",), traced=True
    ),
    "rgcn": Expected(
        RGCN, lambda: (vectors(6, 4), edges(), torch.arange(9) % 2), heads=("lin",), stacks=("weight",),
        transposed=("root",), traced=True,
    ),
    "nn_conv": Expected(NNConv, with_features, heads=("head",), traced=True, units=1),
    "point_net": Expected(
        PointNet, lambda: vectors(2, 3, 7), heads=("fc",), norms=("bn?.weight",), traced=True, units=3
    ),
    "deep_sets": Expected(DeepSets, lambda: vectors(2, 5, 4), heads=("rho.2",), traced=True, units=2),
    "equivariant_set": Expected(EquivariantSet, lambda: vectors(2, 5, 4), heads=("head",), traced=True),
    "set_pooling": Expected(SetPooling, lambda: vectors(2, 5, 4), heads=("head",), undecided=("seed",), traced=True),
}  # fmt: skip
