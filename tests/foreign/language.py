"""Transformers as their libraries write them: language models, two towers, diffusion, decisions."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, bare, ids, made_of, ones, zeros


def rms_norm(n: int) -> nn.Module:
    return made_of(
        lambda net, x: net.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + net.variance_epsilon)),
        weight=ones(n), variance_epsilon=1e-6,
    )  # fmt: skip


def attention(net: nn.Module, x: Tensor) -> Tensor:
    """Separate projections, rotated queries and keys; these are normalized first, as Qwen3 does."""
    b, t, n = x.shape

    def split(y: Tensor) -> Tensor:
        return y.view(b, t, 2, n // 2).transpose(1, 2)

    def rotated(y: Tensor) -> Tensor:
        first, second = y.chunk(2, -1)
        return y * net.cos + torch.cat([-second, first], -1) * net.sin

    q, k = net.q_norm(split(net.q_proj(x))), net.k_norm(split(net.k_proj(x)))
    y = F.scaled_dot_product_attention(rotated(q), rotated(k), split(net.v_proj(x)), is_causal=True)
    return net.o_proj(y.transpose(1, 2).reshape(b, t, n))


def decoder_layer() -> nn.ModuleDict:
    angles = torch.outer(torch.arange(6).float(), 1 / 100 ** torch.linspace(0, 1, 2)).repeat(1, 2)
    projections = {f"{name}_proj": nn.Linear(8, 8, bias=False) for name in "qkvo"}
    swi_glu = {"gate_proj": (8, 12), "up_proj": (8, 12), "down_proj": (12, 8)}
    return nn.ModuleDict(
        {
            "input_layernorm": rms_norm(8), "post_attention_layernorm": rms_norm(8),
            "self_attn": made_of(
                attention, **projections, q_norm=rms_norm(4), k_norm=rms_norm(4), cos=angles.cos(), sin=angles.sin()
            ),
            "mlp": made_of(
                lambda net, x: net.down_proj(F.silu(net.gate_proj(x)) * net.up_proj(x)),
                **{name: nn.Linear(*shape, bias=False) for name, shape in swi_glu.items()},
            ),
        }
    )  # fmt: skip


def decoder(net: nn.Module, tokens: Tensor) -> Tensor:
    """Llama."""
    h = net.embed_tokens(tokens)
    for layer in net.layers:
        h = h + layer["self_attn"](layer["input_layernorm"](h))
        h = h + layer["mlp"](layer["post_attention_layernorm"](h))
    return net.lm_head(net.norm(h))


def bert_layer() -> nn.Module:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        scores = net.query(x) @ net.key(x).transpose(-1, -2) / math.sqrt(8)
        x = net.norm1(x + net.dense(scores.softmax(-1) @ net.value(x)))
        return net.norm2(x + net.output(net.act(net.intermediate(x))))

    squares = {name: nn.Linear(8, 8) for name in ("query", "key", "value", "dense")}
    norms = {"norm1": nn.LayerNorm(8), "norm2": nn.LayerNorm(8)}
    return made_of(forward, **squares, **norms, intermediate=nn.Linear(8, 12), output=nn.Linear(12, 8), act=nn.GELU())


def bert(net: nn.Module, input_ids: Tensor) -> Tensor:
    """Three embeddings are added; norm layers behind each sum; a pooler before the classifier."""
    h = net.word(input_ids) + net.place(net.position_ids) + net.kind(torch.zeros_like(input_ids))
    h = net.layers(net.norm(h))
    return net.classifier(torch.tanh(net.pooler(h[:, 0])))


class Conv1D(nn.Module):
    """transformers' layer of GPT-2: linear, the weight stored [in, out]."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.weight, self.bias = nf, bare(nx, nf, size=0.3), zeros(nf)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.size()[:-1], self.nf)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(shape)


def gpt2_block(net: nn.Module, x: Tensor) -> Tensor:
    """A written-out GELU."""
    q, k, v = net.c_attn(net.ln_1(x)).split(8, 2)
    mask = torch.full((6, 6), -1e9, dtype=x.dtype).triu(1)
    x = x + net.attn_proj((q @ k.transpose(-1, -2) / 8**0.5 + mask).softmax(-1) @ v)
    h = net.c_fc(net.ln_2(x))
    return x + net.c_proj(0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))))


def gpt2() -> nn.Module:
    """Bare layers [in, out], a head that is the table of tokens."""

    def forward(net: nn.Module, tokens: Tensor) -> Tensor:
        x = net.wte(tokens) + net.wpe(torch.arange(tokens.size(-1)))
        for block in net.h:
            x = block(x)
        return net.lm_head(net.ln_f(x))

    def block() -> nn.Module:
        convs = {"c_attn": (24, 8), "attn_proj": (8, 8), "c_fc": (12, 8), "c_proj": (8, 12)}
        layers = {name: Conv1D(*shape) for name, shape in convs.items()}
        return made_of(gpt2_block, ln_1=nn.LayerNorm(8), ln_2=nn.LayerNorm(8), **layers)

    net = made_of(
        forward, wte=nn.Embedding(20, 8), wpe=nn.Embedding(6, 8), h=nn.ModuleList([block(), block()]),
        ln_f=nn.LayerNorm(8), lm_head=nn.Linear(8, 20, bias=False),
    )  # fmt: skip
    net.lm_head.weight = net.wte.weight
    return net


LANGUAGE = {
    "llama_like": Expected(
        lambda: made_of(decoder, embed_tokens=nn.Embedding(20, 8),
            layers=nn.ModuleList([decoder_layer(), decoder_layer()]), norm=rms_norm(8),
            lm_head=nn.Linear(8, 20, bias=False)),
        ids, heads=("lm_head",), norms=("*norm.weight",)),
    "bert_like": Expected(
        lambda: made_of(bert, word=nn.Embedding(20, 8), place=nn.Embedding(6, 8), kind=nn.Embedding(2, 8),
            position_ids=torch.arange(6)[None], norm=nn.LayerNorm(8), layers=nn.Sequential(bert_layer(), bert_layer()),
            pooler=nn.Linear(8, 8), classifier=nn.Linear(8, 3)),
        lambda: {"input_ids": ids()}, heads=("classifier",), norms=("*norm.weight", "*norm?.weight"),
        tables=("word.weight", "place.weight", "kind.weight"), units=3),
    "gpt2_like": Expected(
        gpt2,
        ids, heads=("lm_head",), norms=("*ln_?.weight",), tables=("w?e.weight",),
        transposed=("*.c_*.weight", "*.attn_proj.weight")),
}  # fmt: skip
