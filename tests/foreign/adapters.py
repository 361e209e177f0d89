"""Fine-tuning with few parameters: adapters by hand as peft and others build them, on frozen networks."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, bare, frozen, ids, made_of, mlp, ones, row, zeros


def lora(base: nn.Linear, rank: int = 2) -> nn.Module:
    """As peft: the frozen layer, factors in dicts by the adapter's name."""

    def forward(net: nn.Module, x: Tensor) -> Tensor:
        low = net.lora_A["default"](net.lora_dropout["default"](x))
        return net.base_layer(x) + net.lora_B["default"](low) * 2.0

    low, high = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
    nn.init.zeros_(high.weight)
    parts = {"lora_dropout": nn.Identity(), "lora_A": low, "lora_B": high}
    dicts = {name: nn.ModuleDict({"default": part}) for name, part in parts.items()}
    return made_of(forward, base_layer=frozen(base), **dicts)


def lora_embedding(net: nn.Module, tokens: Tensor) -> Tensor:
    """As peft adapts a table: bare factors."""
    low = F.embedding(tokens, net.lora_embedding_A["default"].T)
    return net.head(net.base_layer(tokens) + (low @ net.lora_embedding_B["default"].T) * 2.0)


class LoraOfItself(nn.Linear):
    """As loralib: a linear layer with a forward of its own and bare factors."""

    def __init__(self, n: int, m: int, rank: int = 2) -> None:
        super().__init__(n, m)
        self.weight.requires_grad_(False)
        self.lora_A, self.lora_B = bare(rank, n, size=0.3), zeros(m, rank)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + (x @ self.lora_A.T @ self.lora_B.T) * 0.5


def ia3(net: nn.Module, x: Tensor) -> Tensor:
    """Frozen layers; keys, values and hidden units are multiplied by vectors that start at ones."""
    scores = net.q(x) @ (net.k(x) * net.l_k).transpose(-1, -2)
    x = x + scores.softmax(-1) @ (net.v(x) * net.l_v)
    return net.head(net.down(F.relu(net.up(x)) * net.l_ff))


def merged(kind: type[nn.Linear]) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), kind(8, 8), nn.ReLU(), nn.Linear(8, 3))


def bit_fit() -> nn.Module:
    """All weights are frozen, the biases are trained."""
    return frozen(mlp(5, 8, 8, 3), "0.weight", "2.weight", "4.weight")


OBS = row(4, 5)
ADAPTERS = {
    "lora_peft": Expected(  # Two adapted layers and a head that is trained whole (peft's modules_to_save).
        lambda: made_of(lambda net, x: net.head(F.relu(net.fc2(F.relu(net.fc1(x))))), fc1=lora(nn.Linear(5, 8)),
            fc2=lora(nn.Linear(8, 8)), head=nn.Linear(8, 3)),
        OBS, factors=("*lora_*",)),
    "lora_embedding": Expected(
        lambda: made_of(lora_embedding, base_layer=frozen(nn.Embedding(20, 8)),
            lora_embedding_A=nn.ParameterDict({"default": torch.randn(2, 20)}),
            lora_embedding_B=nn.ParameterDict({"default": torch.zeros(8, 2)}), head=nn.Linear(8, 3)),
        ids, factors=("lora_*",), tables=(), transposed=("lora_embedding_A*",)),
    "lora_loralib": Expected(lambda: merged(LoraOfItself), OBS, heads=("4",), factors=("2.lora_*",)),
    "ia3": Expected(
        lambda: made_of(ia3, q=frozen(nn.Linear(8, 8)), k=frozen(nn.Linear(8, 8)), v=frozen(nn.Linear(8, 8)),
            up=frozen(nn.Linear(8, 8)), down=frozen(nn.Linear(8, 8)), head=frozen(nn.Linear(8, 8)), l_k=ones(8),
            l_v=ones(8), l_ff=ones(8)),
        row(2, 4, 8), gains=("l_*",)),
    "bottleneck": Expected(  # A trained layer beside two narrow ones: no adapter, for nothing is frozen.
        lambda: made_of(lambda net, x: net.head(torch.relu(net.wide(x) + net.up(net.down(x)))), wide=nn.Linear(5, 8),
            down=nn.Linear(5, 2), up=nn.Linear(2, 8), head=nn.Linear(8, 3)),
        OBS),
    "bitfit": Expected(bit_fit, OBS, heads=("4",)),
}  # fmt: skip
