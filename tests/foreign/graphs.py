"""Networks on graphs and sets, as torch_geometric and the papers' own code have them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, bare, made_of, mlp, row, vectors, zeros

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 5], [1, 2, 3, 4, 5, 0, 3, 5, 1]])


def nodes() -> tuple[Tensor, Tensor]:
    return vectors(6, 4), EDGES


def gcn_conv(net: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
    """torch_geometric's: a linear layer without a bias, a scatter, the bias."""
    degree = torch.bincount(edge_index[1], minlength=len(x)).clamp(min=1).to(x)
    weight = (degree[edge_index[0]] * degree[edge_index[1]]).rsqrt()
    x = net.lin(x)
    messages = weight.view(-1, 1) * x.index_select(0, edge_index[0])
    index = edge_index[1].view(-1, 1).expand_as(messages)
    return x.new_zeros(x.shape).scatter_add_(0, index, messages) + net.bias


def gin_conv(net: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
    out = torch.zeros_like(x).index_add_(0, edge_index[1], x[edge_index[0]])
    return net.nn(out + (1 + net.eps) * x)


def two_of(conv: Callable[..., Tensor], parts: Callable[[int], dict[str, Any]]) -> nn.Module:
    """Two of a kind and a readout; `parts` are one's by its width."""

    def forward(net: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(net.conv1(x, edge_index))
        return net.lin(F.relu(net.conv2(x, edge_index)).mean(0, keepdim=True))

    convs = {f"conv{i}": made_of(conv, **parts(n)) for i, n in ((1, 4), (2, 6))}
    return made_of(forward, **convs, lin=nn.Linear(6, 3))


GRAPHS = {
    "gcn_conv": Expected(
        lambda: two_of(gcn_conv, lambda n: {"lin": nn.Linear(n, 6, bias=False), "bias": bare(6, size=0.1)}),
        nodes, heads=("lin",), traced=False),
    "gin": Expected(
        lambda: two_of(gin_conv, lambda n: {"nn": mlp(n, 8, 6), "eps": zeros(1)}),
        nodes, heads=("lin",), undecided=("*.eps",), units=3),
    "deep_sets": Expected(
        lambda: made_of(lambda net, x: net.rho(net.phi(x).sum(1)), phi=mlp(4, 8, 6), rho=mlp(6, 8, 3)),
        row(2, 5, 4), heads=("rho.2",), units=2),
}  # fmt: skip
