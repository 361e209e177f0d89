"""A first choice: transformers' language models, recurrent networks, attention, experts, noise, tied weights."""

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, ids, made_of, vectors

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
OF_TRANSFORMERS = ("bert", "gpt2", "llama", "t5")


def of_transformers(network: str, config: str, **sizes: Any) -> Callable[[], nn.Module]:
    """Makes a small network of that library."""

    def make() -> nn.Module:
        import transformers

        return getattr(transformers, network)(getattr(transformers, config)(vocab_size=20, **sizes))

    return make


class Recurrent(nn.Module):
    """An embedding, a recurrent layer, a policy's and a value's head."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.rnn = kind(6, 8, num_layers=2, batch_first=True)
        self.policy, self.value = nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        h = self.rnn(self.embedding(tokens))[0][:, -1]
        return self.policy(h), self.value(h)


def cross_attention(net: nn.Module, x: Tensor, memory: Tensor) -> Tensor:
    """Attention whose queries, keys and values have matrices of their own."""
    m = net.memory(memory)
    return net.head(net.attention(net.query(x), m, m, need_weights=False)[0])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.position = nn.Parameter(torch.randn(1, 6, 8) * 0.1)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens) + self.position).mean(1))


def u_net(net: nn.Module, x: Tensor) -> Tensor:
    skip = net.down1(x)
    return net.head(net.merge(torch.cat([net.up(net.down2(skip)), skip], 1)))


def mamba(net: nn.Module, tokens: Tensor) -> Tensor:
    """A selective state space as Mamba's: depthwise convolution, bare A_log, D and dt_bias, a gate."""
    h = net.embedding(tokens)  # [batch, length, 8]
    x, gate = net.in_proj(net.norm(h)).chunk(2, -1)
    x = F.silu(net.conv1d(x.transpose(1, 2))[..., : tokens.shape[1]].transpose(1, 2))
    low, b, c = net.x_proj(x).split([2, 4, 4], -1)
    step = F.softplus(net.dt_proj(low) + net.dt_bias)  # [batch, length, 16]
    decay = torch.exp(step.unsqueeze(-1) * -torch.exp(net.A_log))  # [batch, length, 16, 4]
    state, outputs = torch.zeros_like(decay[:, 0]), []
    for t in range(tokens.shape[1]):
        state = decay[:, t] * state + (step[:, t] * x[:, t]).unsqueeze(-1) * b[:, t].unsqueeze(1)
        outputs.append((state * c[:, t].unsqueeze(1)).sum(-1))
    y = (torch.stack(outputs, 1) + x * net.D) * F.silu(gate)
    return net.head(h + net.out_proj(y))


class Experts(nn.Module):
    """A mixture of experts with stacked weights ``[experts, in, out]``."""

    def __init__(self, einsum: bool) -> None:
        super().__init__()
        self.einsum = einsum
        self.first, self.router, self.head = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 2)
        self.w1 = nn.Parameter(torch.randn(3, 6, 12) / math.sqrt(6))
        self.w2 = nn.Parameter(torch.randn(3, 12, 6) / math.sqrt(12))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()  # [batch, 6]
        share = self.router(x).softmax(-1)  # [batch, experts]
        if self.einsum:
            h = torch.einsum("bi,eio->ebo", x, self.w1).relu()
            y = torch.einsum("ebi,eio->ebo", h, self.w2)
        else:
            y = torch.bmm(torch.bmm(x.expand(3, *x.shape), self.w1).relu(), self.w2)
        return self.head((y * share.T.unsqueeze(-1)).sum(0))


class NoisyLinear(nn.Module):
    """Fortunato et al. (2018): weights with noise of a learned size."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(n)
        self.weight_mu = nn.Parameter(torch.empty(m, n).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((m, n), 0.5 * bound))
        self.bias_mu = nn.Parameter(torch.empty(m).uniform_(-bound, bound))
        self.bias_sigma = nn.Parameter(torch.full((m,), 0.5 * bound))
        self.register_buffer("weight_noise", torch.randn(m, n))
        self.register_buffer("bias_noise", torch.randn(m))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight_mu + self.weight_sigma * self.weight_noise
        return F.linear(x, weight, self.bias_mu + self.bias_sigma * self.bias_noise)


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(tokens)))


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), NoisyLinear(8, 8), nn.ReLU(), nn.Linear(8, 3))


FIRST = {
    "bert": Expected(
        of_transformers(
            "BertForSequenceClassification", "BertConfig", hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=16, max_position_embeddings=8, num_labels=3,
        ),
        lambda: {"input_ids": ids()}, heads=("classifier",), norms=("*LayerNorm.weight",), units=3
    ),
    "gpt2": Expected(
        of_transformers(
            "GPT2LMHeadModel", "GPT2Config", n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0,
            eos_token_id=0,
        ),
        lambda: {"input_ids": ids()}, heads=("lm_head",), norms=("*.ln_?.weight",), tables=("*.w?e.weight",),
        transposed=("*.c_*.weight",),
    ),
    "llama": Expected(
        of_transformers(
            "LlamaForCausalLM", "LlamaConfig", hidden_size=8, intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=8, tie_word_embeddings=False,
            bos_token_id=0, eos_token_id=0,
        ),
        lambda: {"input_ids": ids()}, heads=("lm_head",), norms=("*norm.weight",)),
    "t5": Expected(
        of_transformers(
            "T5ForConditionalGeneration", "T5Config", d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2,
            decoder_start_token_id=0, pad_token_id=0, tie_word_embeddings=False,
        ),
        lambda: {"input_ids": ids(), "decoder_input_ids": ids()}, heads=("lm_head",), norms=("*layer_norm.weight",),
        tables=("shared.weight", "*relative_attention_bias.weight"), units=4,
    ),
    "lstm": Expected(lambda: Recurrent(nn.LSTM), ids, heads=("policy", "value"), traced=True),
    "bilinear": Expected(
        lambda: made_of(
            lambda net, x: net.head(net.bilinear(net.left(x).relu(), net.right(x).relu()).relu()),
            left=nn.Linear(4, 6), right=nn.Linear(4, 5), bilinear=nn.Bilinear(6, 5, 7), head=nn.Linear(7, 2),
        ),
        lambda: vectors(2, 4), heads=("head",), traced=True, units=1,
    ),
    "cross_attention": Expected(
        lambda: made_of(
            cross_attention, query=nn.Linear(4, 8), memory=nn.Linear(5, 6),
            attention=nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True), head=nn.Linear(8, 3),
        ),
        lambda: (vectors(2, 3, 4), vectors(2, 6, 5)), heads=("head",), traced=True,
    ),
    "encoder": Expected(Encoder, ids, heads=("head",), norms=("*.norm?.weight",), units=2),
    "unet": Expected(
        lambda: made_of(
            u_net, down1=nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU()),
            down2=nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.GroupNorm(2, 6), nn.ReLU()),
            up=nn.ConvTranspose2d(6, 4, 2, stride=2), merge=nn.Sequential(nn.Conv2d(8, 4, 3, padding=1), nn.ReLU()),
            head=nn.Conv2d(4, 2, 1),
        ),
        lambda: vectors(2, 3, 8, 8), heads=("head",), norms=("down?.1.weight",), transposed=("up.weight",),
        traced=True, units=2,
    ),
    "mamba": Expected(
        lambda: made_of(
            mamba, embedding=nn.Embedding(20, 8), norm=nn.LayerNorm(8), in_proj=nn.Linear(8, 32, bias=False),
            conv1d=nn.Conv1d(16, 16, 4, groups=16, padding=3), x_proj=nn.Linear(16, 2 + 2 * 4, bias=False),
            dt_proj=nn.Linear(2, 16, bias=False), dt_bias=nn.Parameter(torch.linspace(-4, -2, 16)),
            A_log=nn.Parameter(torch.log(torch.arange(1, 5).float()).repeat(16, 1)), D=nn.Parameter(torch.ones(16)),
            out_proj=nn.Linear(16, 8, bias=False), head=nn.Linear(8, 20),
        ),
        ids, heads=("head",), norms=("norm.weight",), gains=("D",), undecided=("A_log",),
        biases={"dt_bias": "dt_proj.weight"},
    ),
    "experts_bmm": Expected(lambda: Experts(False), lambda: vectors(4, 5), heads=("head",), undecided=("w?",)),
    "experts_einsum": Expected(
        lambda: Experts(True), lambda: vectors(4, 5), heads=("head",), undecided=("w?",), traced=True
    ),
    "noisy": Expected(
        noisy, lambda: vectors(2, 5), heads=("4",), undecided=("2.*_mu", "2.*_sigma"),
        traced=True,
    ),
    "tied": Expected(Tied, ids, heads=("head",), traced=True, units=1),
}  # fmt: skip
