"""Fine-tuning with few parameters: adapters by hand as peft and others build them, on frozen networks."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, ids, made_of, vectors


class LoraLinear(nn.Module):
    """As peft: the frozen layer, factors in dicts by the adapter's name."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_dropout = nn.ModuleDict({"default": nn.Identity()})
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x: Tensor) -> Tensor:
        low = self.lora_A["default"](self.lora_dropout["default"](x))
        return self.base_layer(x) + self.lora_B["default"](low) * 2.0


def lora_embedding(net: nn.Module, tokens: Tensor) -> Tensor:
    """As peft adapts a table: bare factors."""
    low = F.embedding(tokens, net.lora_embedding_A["default"].T)
    return net.head(net.base_layer(tokens) + (low @ net.lora_embedding_B["default"].T) * 2.0)


def lora_conv(net: nn.Module, x: Tensor) -> Tensor:
    """As peft adapts a convolution: one of its kernel's size, then a pointwise one."""
    x = F.relu(net.base_layer(x) + net.lora_B(net.lora_A(x)) * 0.5)
    return net.head(x.mean((2, 3)))


class LoraOfItself(nn.Linear):
    """As loralib: a linear layer with a forward of its own and bare factors."""

    def __init__(self, n: int, m: int, rank: int = 2) -> None:
        super().__init__(n, m)
        self.weight.requires_grad_(False)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(rank, n) * 0.3), nn.Parameter(torch.zeros(m, rank))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + (x @ self.lora_A.T @ self.lora_B.T) * 0.5


class MergedLora(nn.Linear):
    """Factors whose product is added to the weight before it is used."""

    def __init__(self, n: int, m: int, rank: int = 2) -> None:
        super().__init__(n, m)
        self.weight.requires_grad_(False)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(rank, n) * 0.3), nn.Parameter(torch.zeros(m, rank))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight + self.lora_B @ self.lora_A, self.bias)


class Dora(MergedLora):
    """The merged matrix by its rows' lengths, times learned ones."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__(n, m)
        self.magnitude = nn.Parameter(self.weight.norm(dim=1).detach())

    def forward(self, x: Tensor) -> Tensor:
        merged = self.weight + self.lora_B @ self.lora_A
        return F.linear(x, merged / merged.norm(dim=1, keepdim=True) * self.magnitude[:, None], self.bias)


def ia3(net: nn.Module, x: Tensor) -> Tensor:
    """Frozen layers; keys, values and hidden units are multiplied by vectors that start at ones."""
    scores = net.q(x) @ (net.k(x) * net.l_k).transpose(-1, -2)
    x = x + scores.softmax(-1) @ (net.v(x) * net.l_v)
    return net.head(net.down(F.relu(net.up(x)) * net.l_ff))


def prefix_tuning(net: nn.Module, x: Tensor) -> Tensor:
    """Trained keys and values in front of those of a frozen layer."""
    k = torch.cat([net.prefix_k.expand(x.shape[0], -1, -1), net.k(x)], 1)
    v = torch.cat([net.prefix_v.expand(x.shape[0], -1, -1), net.v(x)], 1)
    return net.out((net.q(x) @ k.transpose(-1, -2)).softmax(-1) @ v)


def prompt_tuning(net: nn.Module, tokens: Tensor) -> Tensor:
    """Trained tokens in front of embedded ones; a frozen encoder; a trained head."""
    x = net.embedding(tokens)
    x = torch.cat([net.prompt.unsqueeze(0).expand(x.shape[0], -1, -1), x], 1)
    return net.head((x @ x.transpose(-1, -2)).softmax(-1).matmul(F.gelu(net.mix(x))).mean(1))


def houlsby(net: nn.Module, x: Tensor) -> Tensor:
    """Bottlenecks with an activation, added to what frozen layers make."""
    h = net.fc1(x)
    h = torch.relu(h + net.up1(net.act(net.down1(h))))
    h = net.fc2(h)
    return net.head(h + net.up2(torch.tanh(net.down2(h))))


class BitFit(nn.Module):
    """All weights are frozen, the biases are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        for name, p in self.body.named_parameters():
            p.requires_grad_("bias" in name)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Vera(nn.Module):
    """Frozen random factors that all layers share, and trained vectors between them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6).requires_grad_(False)
        self.register_buffer("a", torch.randn(2, 6)), self.register_buffer("b", torch.randn(6, 2))
        self.d1, self.d2 = (nn.Parameter(torch.full((2,), 0.1)) for _ in range(2))
        self.b1, self.b2 = (nn.Parameter(torch.zeros(6)) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc1(x) + F.linear(F.linear(x, self.a) * self.d1, self.b) * self.b1)
        return self.head(torch.relu(self.fc2(x) + F.linear(F.linear(x, self.a) * self.d2, self.b) * self.b2))


def side_tuning(net: nn.Module, x: Tensor) -> Tensor:
    """A frozen network and a small trained one, blended by a learned share."""
    share = net.alpha.sigmoid()
    return net.head(share * net.base(x) + (1 - share) * net.side(x))


def merged(kind: type[nn.Linear]) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), kind(8, 8), nn.ReLU(), nn.Linear(8, 3))


OBS = lambda: vectors(4, 5)  # noqa: E731
ADAPTERS = {
    "lora_peft": Expected(  # Two adapted layers and a head that is trained whole (peft's modules_to_save).
        lambda: made_of(
            lambda net, x: net.head(F.relu(net.fc2(F.relu(net.fc1(x))))),
            fc1=LoraLinear(nn.Linear(5, 8)), fc2=LoraLinear(nn.Linear(8, 8)), head=nn.Linear(8, 3),
        ),
        OBS, heads=("head",), factors=("*lora_*",), traced=True,
    ),
    "lora_embedding": Expected(
        lambda: made_of(
            lora_embedding, base_layer=nn.Embedding(20, 8).requires_grad_(False),
            lora_embedding_A=nn.ParameterDict({"default": torch.randn(2, 20)}),
            lora_embedding_B=nn.ParameterDict({"default": torch.zeros(8, 2)}), head=nn.Linear(8, 3),
        ),
        ids, heads=("head",), factors=("lora_*",), tables=(), transposed=("lora_embedding_A*",), traced=True,
    ),
    "lora_conv": Expected(
        lambda: made_of(
            lora_conv, base_layer=nn.Conv2d(3, 6, 3, padding=1).requires_grad_(False),
            lora_A=nn.Conv2d(3, 2, 3, padding=1, bias=False), lora_B=nn.Conv2d(2, 6, 1, bias=False),
            head=nn.Linear(6, 3),
        ),
        lambda: vectors(2, 3, 5, 5), heads=("head",), factors=("lora_*",), traced=True,
    ),
    "lora_loralib": Expected(lambda: merged(LoraOfItself), OBS, heads=("4",), factors=("2.lora_*",), traced=True),
    "dora": Expected(
        lambda: merged(Dora), OBS, heads=("4",), undecided=("2.lora_*", "2.magnitude", "2.bias"), traced=True
    ),
    "ia3": Expected(
        lambda: made_of(
            ia3, q=nn.Linear(8, 8).requires_grad_(False), k=nn.Linear(8, 8).requires_grad_(False),
            v=nn.Linear(8, 8).requires_grad_(False), up=nn.Linear(8, 8).requires_grad_(False),
            down=nn.Linear(8, 8).requires_grad_(False), head=nn.Linear(8, 8).requires_grad_(False),
            l_k=nn.Parameter(torch.ones(8)), l_v=nn.Parameter(torch.ones(8)), l_ff=nn.Parameter(torch.ones(8)),
        ),
        lambda: vectors(2, 4, 8), heads=("head",), gains=("l_*",), traced=True,
    ),
    "prefix_tuning": Expected(
        lambda: made_of(
            prefix_tuning, q=nn.Linear(8, 8).requires_grad_(False), k=nn.Linear(8, 8).requires_grad_(False),
            v=nn.Linear(8, 8).requires_grad_(False), out=nn.Linear(8, 8).requires_grad_(False),
            prefix_k=nn.Parameter(torch.randn(1, 3, 8) * 0.3), prefix_v=nn.Parameter(torch.randn(1, 3, 8) * 0.3),
        ),
        lambda: vectors(2, 4, 8), heads=("out",), tables=("prefix_*",), traced=True,
    ),
    "prompt_tuning": Expected(
        lambda: made_of(
            prompt_tuning, embedding=nn.Embedding(20, 8).requires_grad_(False),
            prompt=nn.Parameter(torch.randn(3, 8) * 0.3), mix=nn.Linear(8, 8).requires_grad_(False),
            head=nn.Linear(8, 3),
        ),
        ids, heads=("head",), tables=("prompt",), traced=True,
    ),
    "houlsby": Expected(
        lambda: made_of(
            houlsby, fc1=nn.Linear(5, 8).requires_grad_(False), fc2=nn.Linear(8, 8).requires_grad_(False),
            down1=nn.Linear(8, 2), up1=nn.Linear(2, 8), down2=nn.Linear(8, 2), up2=nn.Linear(2, 8), act=nn.ReLU(),
            head=nn.Linear(8, 3),
        ),
        OBS, heads=("head",), traced=True, units=2,
    ),
    "bottleneck": Expected(  # A trained layer beside two narrow ones: no adapter, for nothing is frozen.
        lambda: made_of(
            lambda net, x: net.head(torch.relu(net.wide(x) + net.up(net.down(x)))),
            wide=nn.Linear(5, 8), down=nn.Linear(5, 2), up=nn.Linear(2, 8), head=nn.Linear(8, 3),
        ),
        OBS, heads=("head",), traced=True,
    ),
    "bitfit": Expected(BitFit, OBS, heads=("body.4",), traced=True),
    "vera": Expected(Vera, lambda: vectors(4, 6), heads=("head",), undecided=("d?", "b?"), traced=True),
    "side_tuning": Expected(
        lambda: made_of(
            side_tuning, base=nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6)).requires_grad_(False),
            side=nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 6)), alpha=nn.Parameter(torch.tensor(0.3)),
            head=nn.Linear(6, 3),
        ),
        OBS, heads=("head",), undecided=("alpha",), traced=True, units=1,
    ),
}  # fmt: skip
