"""Transformers as their libraries write them: language models, two towers, diffusion, decisions."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, ids, made_of, vectors


class RMSNorm(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(n)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


class Attention(nn.Module):
    """Separate projections, rotated queries and keys; these are normalized first, as Qwen3 does."""

    def __init__(self, n: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.n_heads, self.width = heads, n // heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(n, n, bias=False) for _ in range(4))
        self.q_norm, self.k_norm = RMSNorm(self.width), RMSNorm(self.width)
        angles = torch.outer(torch.arange(6).float(), 1 / 100 ** torch.linspace(0, 1, self.width // 2))
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def rotated(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        b, t, n = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(b, t, self.n_heads, self.width).transpose(1, 2)

        q, k = self.q_norm(split(self.q_proj(x))), self.k_norm(split(self.k_proj(x)))
        y = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), split(self.v_proj(x)), is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, n))


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 12, bias=False), nn.Linear(8, 12, bias=False)
        self.down_proj = nn.Linear(12, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Decoder(nn.Module):
    """Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "input_layernorm": RMSNorm(8), "self_attn": Attention(),
                    "post_attention_layernorm": RMSNorm(8), "mlp": SwiGLU(),
                }
            )
            for _ in range(2)
        )  # fmt: skip
        self.norm, self.lm_head = RMSNorm(8), nn.Linear(8, 20, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed_tokens(tokens)
        for layer in self.layers:
            h = h + layer["self_attn"](layer["input_layernorm"](h))
            h = h + layer["mlp"](layer["post_attention_layernorm"](h))
        return self.lm_head(self.norm(h))


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.dense = (nn.Linear(8, 8) for _ in range(4))
        self.intermediate, self.output, self.act = nn.Linear(8, 12), nn.Linear(12, 8), nn.GELU()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / math.sqrt(8)
        x = self.norm1(x + self.dense(scores.softmax(-1) @ self.value(x)))
        return self.norm2(x + self.output(self.act(self.intermediate(x))))


def bert(net: nn.Module, input_ids: Tensor) -> Tensor:
    """Three embeddings are added; norm layers behind each sum; a pooler before the classifier."""
    h = net.word(input_ids) + net.place(net.position_ids) + net.kind(torch.zeros_like(input_ids))
    h = net.layers(net.norm(h))
    return net.classifier(torch.tanh(net.pooler(h[:, 0])))


class Conv1D(nn.Module):
    """transformers' layer of GPT-2: linear, the weight stored [in, out]."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf) * 0.3), nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.size()[:-1], self.nf)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(shape)


class GPT2Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.c_attn, self.attn_proj = Conv1D(24, 8), Conv1D(8, 8)
        self.c_fc, self.c_proj = Conv1D(12, 8), Conv1D(8, 12)

    @staticmethod
    def gelu(x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.c_attn(self.ln_1(x)).split(8, 2)
        mask = torch.full((6, 6), -1e9, dtype=x.dtype).triu(1)
        x = x + self.attn_proj((q @ k.transpose(-1, -2) / 8**0.5 + mask).softmax(-1) @ v)
        return x + self.c_proj(self.gelu(self.c_fc(self.ln_2(x))))


class GPT2(nn.Module):
    """Bare layers [in, out], a written-out GELU, a head that is the table of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(20, 8), nn.Embedding(6, 8)
        self.h, self.ln_f = nn.ModuleList([GPT2Block(), GPT2Block()]), nn.LayerNorm(8)
        self.lm_head = nn.Linear(8, 20, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(-1)))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def clip(net: nn.Module, image: Tensor, text: Tensor) -> Tensor:
    """Two towers, bare projections [in, out], a learned temperature."""
    x = net.conv1(image).flatten(2).transpose(1, 2)
    token = net.class_embedding + torch.zeros(x.shape[0], 1, 8, dtype=x.dtype)
    x = net.ln_pre(torch.cat([token, x], 1) + net.visual_positions)
    x = net.ln_post(net.visual_block(x)[:, 0]) @ net.proj
    y = net.text_block(net.token_embedding(text) + net.positional_embedding)
    y = net.ln_final(y)[:, -1] @ net.text_projection
    x, y = x / x.norm(dim=-1, keepdim=True), y / y.norm(dim=-1, keepdim=True)
    return net.logit_scale.exp() * x @ y.t()


NORMS = ("*norm.weight",)
LANGUAGE = {
    "llama_like": Expected(Decoder, ids, heads=("lm_head",), norms=NORMS, traced=True),
    "bert_like": Expected(
        lambda: made_of(
            bert, word=nn.Embedding(20, 8), place=nn.Embedding(6, 8), kind=nn.Embedding(2, 8),
            position_ids=torch.arange(6)[None], norm=nn.LayerNorm(8), layers=nn.Sequential(BertLayer(), BertLayer()),
            pooler=nn.Linear(8, 8), classifier=nn.Linear(8, 3),
        ),
        lambda: {"input_ids": ids()}, heads=("classifier",), norms=("*norm.weight", "*norm?.weight"),
        tables=("word.weight", "place.weight", "kind.weight"), traced=True, units=3,
    ),
    "gpt2_like": Expected(
        GPT2, ids, heads=("lm_head",), norms=("*ln_?.weight",), tables=("w?e.weight",),
        transposed=("*.c_*.weight", "*.attn_proj.weight"), traced=True,
    ),
    "clip": Expected(
        lambda: made_of(
            clip, conv1=nn.Conv2d(3, 8, 4, stride=4, bias=False), class_embedding=nn.Parameter(torch.randn(8) * 0.3),
            visual_positions=nn.Parameter(torch.randn(5, 8) * 0.3), ln_pre=nn.LayerNorm(8), ln_post=nn.LayerNorm(8),
            ln_final=nn.LayerNorm(8), visual_block=BertLayer(), text_block=BertLayer(),
            proj=nn.Parameter(torch.randn(8, 6) * 0.3), token_embedding=nn.Embedding(20, 8),
            positional_embedding=nn.Parameter(torch.randn(6, 8) * 0.3),
            text_projection=nn.Parameter(torch.randn(8, 6) * 0.3),
            logit_scale=nn.Parameter(torch.tensor(math.log(1 / 0.07))),
        ),
        lambda: (vectors(2, 3, 8, 8), ids()), heads=("proj", "text_projection"),
        norms=("ln_*.weight", "*.norm?.weight"),
        tables=("token_embedding.weight", "visual_positions", "positional_*"), transposed=("proj", "text_projection"),
        undecided=("logit_scale", "class_embedding"), units=2,
    ),
}  # fmt: skip
