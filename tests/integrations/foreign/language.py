"""Transformers as their libraries write them: language models, two towers, diffusion, decisions."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foreign.expected import Expected, ids, vectors


class RMSNorm(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(n)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


class Attention(nn.Module):
    """Separate projections, rotated queries and keys; for Qwen3 these are normalized first."""

    def __init__(self, n: int = 8, heads: int = 2, bias: bool = False, norms: bool = False) -> None:
        super().__init__()
        self.n_heads, self.width = heads, n // heads
        self.q_proj, self.k_proj = nn.Linear(n, n, bias=bias), nn.Linear(n, n, bias=bias)
        self.v_proj, self.o_proj = nn.Linear(n, n, bias=bias), nn.Linear(n, n, bias=False)
        self.q_norm = RMSNorm(self.width) if norms else nn.Identity()
        self.k_norm = RMSNorm(self.width) if norms else nn.Identity()
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


class Experts(nn.Module):
    """Mixtral's experts: stacked bare weights [experts, out, in], tokens sent to the two best of them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(3, 8) * 0.3)
        self.gate_up_proj = nn.Parameter(torch.randn(3, 2 * 12, 8) * 0.3)
        self.down_proj = nn.Parameter(torch.randn(3, 8, 12) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, 8)
        share, chosen = F.linear(flat, self.gate).softmax(-1).topk(2, -1)
        out = torch.zeros_like(flat)
        for expert in range(3):
            token, place = torch.where(chosen == expert)
            gate, up = F.linear(flat[token], self.gate_up_proj[expert]).chunk(2, -1)
            made = F.linear(F.silu(gate) * up, self.down_proj[expert])
            out.index_add_(0, token, made * share[token, place, None])
        return out.reshape(x.shape)


class Decoder(nn.Module):
    """Llama, Qwen3 or Mixtral."""

    def __init__(self, bias: bool = False, norms: bool = False, experts: bool = False) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "input_layernorm": RMSNorm(8), "self_attn": Attention(bias=bias, norms=norms),
                    "post_attention_layernorm": RMSNorm(8), "mlp": Experts() if experts else SwiGLU(),
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


class Bert(nn.Module):
    """Three embeddings are added; norm layers behind each sum; a pooler before the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place, self.kind = nn.Embedding(20, 8), nn.Embedding(6, 8), nn.Embedding(2, 8)
        self.register_buffer("position_ids", torch.arange(6)[None])
        self.norm, self.layers = nn.LayerNorm(8), nn.Sequential(BertLayer(), BertLayer())
        self.pooler, self.classifier = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        h = self.word(input_ids) + self.place(self.position_ids) + self.kind(torch.zeros_like(input_ids))
        h = self.layers(self.norm(h))
        return self.classifier(torch.tanh(self.pooler(h[:, 0])))


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


class NanoNorm(nn.Module):
    """nanoGPT's LayerNorm: bare, the bias optional."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(n)), None, 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class NanoBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.c_attn, self.c_proj = NanoNorm(8), nn.Linear(8, 24, bias=False), nn.Linear(8, 8, bias=False)
        self.ln_2, self.gelu = NanoNorm(8), nn.GELU()
        self.fc, self.proj = nn.Linear(8, 12, bias=False), nn.Linear(12, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = (y.view(b, t, 2, c // 2).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.proj(self.gelu(self.fc(self.ln_2(x))))


class NanoGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(20, 8), nn.Embedding(8, 8), nn.Dropout(0.0)
        self.h, self.ln_f = nn.ModuleList([NanoBlock(), NanoBlock()]), NanoNorm(8)
        self.lm_head = nn.Linear(8, 20, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor) -> Tensor:
        assert idx.size(1) <= 8
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(0, idx.size(1))))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class ParallelBlock(nn.Module):
    """GPT-NeoX: attention and MLP read the same input and are both added."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2, self.attention = nn.LayerNorm(8), nn.LayerNorm(8), Attention()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.ln1(x)) + self.down(F.gelu(self.up(self.ln2(x))))


class NeoX(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_in, self.blocks = nn.Embedding(20, 8), nn.Sequential(ParallelBlock(), ParallelBlock())
        self.final_norm, self.embed_out = nn.LayerNorm(8), nn.Linear(8, 20, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embed_out(self.final_norm(self.blocks(self.embed_in(tokens))))


class Albert(nn.Module):
    """One block that is called three times, behind a small table that a layer widens."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.widen, self.block = nn.Embedding(20, 4), nn.Linear(4, 8), BertLayer()
        self.classifier = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.widen(self.word(tokens))
        for _ in range(3):
            h = self.block(h)
        return self.classifier(h.mean(1))


class RWKV(nn.Module):
    """Receptance, weight, key, value: bare decays and mixing shares of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.ln1, self.ln2, self.ln_out = nn.Embedding(20, 8), *(nn.LayerNorm(8) for _ in range(3))
        self.time_decay, self.time_first = nn.Parameter(torch.linspace(-2, 1, 8)), nn.Parameter(torch.full((8,), 0.3))
        self.time_mix_k = nn.Parameter(torch.linspace(0, 1, 8)[None, None])
        self.time_mix_v = nn.Parameter(torch.linspace(0, 1, 8)[None, None])
        self.key, self.value, self.receptance = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.output, self.head = nn.Linear(8, 8, bias=False), nn.Linear(8, 20, bias=False)
        self.channel_mix_k = nn.Parameter(torch.linspace(0, 1, 8)[None, None])
        self.channel_key, self.channel_value = nn.Linear(8, 12, bias=False), nn.Linear(12, 8, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.emb(tokens)
        x = self.ln1(h)
        last = F.pad(x, (0, 0, 1, -1))
        k = self.key(x * self.time_mix_k + last * (1 - self.time_mix_k))
        v = self.value(x * self.time_mix_v + last * (1 - self.time_mix_v))
        r, decay = self.receptance(x).sigmoid(), -self.time_decay.exp()
        top, bottom, outputs = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0]), []
        for t in range(6):
            now = (self.time_first + k[:, t]).exp()
            outputs.append((top + now * v[:, t]) / (bottom + now))
            top, bottom = (decay.exp() * s + k[:, t].exp() * y for s, y in ((top, v[:, t]), (bottom, 1.0)))
        h = h + self.output(r * torch.stack(outputs, 1))
        x = self.ln2(h)
        k = self.channel_key(x * self.channel_mix_k + F.pad(x, (0, 0, 1, -1)) * (1 - self.channel_mix_k))
        return self.head(self.ln_out(h + self.channel_value(F.relu(k).square())))


class T5Attention(nn.Module):
    def __init__(self, biased: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(11, 2) if biased else None

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.view(y.shape[0], -1, 2, 4).transpose(1, 2)

        scores = split(self.q(x)) @ split(self.k(memory)).transpose(-1, -2)
        if self.relative_attention_bias is not None:
            places = torch.arange(6)
            scores = scores + self.relative_attention_bias(places[None] - places[:, None] + 5).permute(2, 0, 1)
        y = scores.softmax(-1) @ split(self.v(memory))
        return self.o(y.transpose(1, 2).reshape(x.shape))


class T5Layer(nn.Module):
    def __init__(self, decodes: bool) -> None:
        super().__init__()
        self.norm1, self.attention = RMSNorm(8), T5Attention(biased=True)
        self.norm2, self.cross = (RMSNorm(8), T5Attention(biased=False)) if decodes else (None, None)
        self.norm3, self.wi, self.wo = RMSNorm(8), nn.Linear(8, 12, bias=False), nn.Linear(12, 8, bias=False)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y)
        if self.cross is not None:
            x = x + self.cross(self.norm2(x), memory)
        return x + self.wo(F.relu(self.wi(self.norm3(x))))


class T5(nn.Module):
    """An encoder and a decoder of one table, relative positions by a table, RMSNorms."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(20, 8)
        self.encoder, self.decoder = T5Layer(False), T5Layer(True)
        self.encoder_norm, self.decoder_norm, self.lm_head = RMSNorm(8), RMSNorm(8), nn.Linear(8, 20, bias=False)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        memory = self.encoder_norm(self.encoder(self.shared(input_ids)))
        return self.lm_head(self.decoder_norm(self.decoder(self.shared(decoder_input_ids), memory)))


class Clip(nn.Module):
    """Two towers, bare projections [in, out], a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 4, stride=4, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(8) * 0.3)
        self.visual_positions = nn.Parameter(torch.randn(5, 8) * 0.3)
        self.ln_pre, self.ln_post, self.ln_final = (nn.LayerNorm(8) for _ in range(3))
        self.visual_block, self.text_block = BertLayer(), BertLayer()
        self.proj = nn.Parameter(torch.randn(8, 6) * 0.3)
        self.token_embedding = nn.Embedding(20, 8)
        self.positional_embedding = nn.Parameter(torch.randn(6, 8) * 0.3)
        self.text_projection = nn.Parameter(torch.randn(8, 6) * 0.3)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        x = self.conv1(image).flatten(2).transpose(1, 2)
        token = self.class_embedding + torch.zeros(x.shape[0], 1, 8, dtype=x.dtype)
        x = self.ln_pre(torch.cat([token, x], 1) + self.visual_positions)
        x = self.ln_post(self.visual_block(x)[:, 0]) @ self.proj
        y = self.text_block(self.token_embedding(text) + self.positional_embedding)
        y = self.ln_final(y)[:, -1] @ self.text_projection
        x, y = x / x.norm(dim=-1, keepdim=True), y / y.norm(dim=-1, keepdim=True)
        return self.logit_scale.exp() * x @ y.t()


class DiTBlock(nn.Module):
    """Shift, scale and gate from the condition, which start at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(8, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.fc1, self.act, self.fc2 = nn.Linear(8, 12), nn.GELU(approximate="tanh"), nn.Linear(12, 8)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(8, 48))
        nn.init.zeros_(self.adaLN_modulation[1].weight), nn.init.zeros_(self.adaLN_modulation[1].bias)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(c).unsqueeze(1).chunk(6, dim=-1)
        q, k, v = self.qkv(self.norm1(x) * (1 + scale1) + shift1).chunk(3, -1)
        x = x + gate1 * self.proj((q @ k.transpose(-1, -2) / 8**0.5).softmax(-1) @ v)
        return x + gate2 * self.fc2(self.act(self.fc1(self.norm2(x) * (1 + scale2) + shift2)))


class DiT(nn.Module):
    """A diffusion transformer: patches, fixed positions, conditions on the time and a label."""

    def __init__(self) -> None:
        super().__init__()
        self.x_embedder = nn.Conv2d(3, 8, 2, stride=2)
        self.pos_embed = nn.Parameter(torch.randn(1, 4, 8), requires_grad=False)
        self.t_embedder = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 8))
        self.y_embedder = nn.Embedding(3, 8)
        self.block, self.final_norm = DiTBlock(), nn.LayerNorm(8, elementwise_affine=False, eps=1e-6)
        self.final_modulation, self.final = nn.Sequential(nn.SiLU(), nn.Linear(8, 16)), nn.Linear(8, 12)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        angles = t[:, None] * torch.tensor([1.0, 0.1])
        c = self.t_embedder(torch.cat([angles.cos(), angles.sin()], -1).to(x)) + self.y_embedder(y)
        x = self.block(x, c)
        shift, scale = self.final_modulation(c).unsqueeze(1).chunk(2, -1)
        return self.final(self.final_norm(x) * (1 + scale) + shift)


class Perceiver(nn.Module):
    """A learned array of latents asks the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, 8) * 0.3)
        self.norm, self.q, self.k, self.v = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(5, 8), nn.Linear(5, 8)
        self.up, self.down, self.head = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(self.latents).expand(x.shape[0], -1, -1)
        h = (q @ self.k(x).transpose(-1, -2)).softmax(-1) @ self.v(x)
        return self.head((h + self.down(F.gelu(self.up(self.norm(h))))).mean(1))


class Whisper(nn.Module):
    """Two convolutions along time, sinusoids as positions, an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(4, 8, 3, padding=1), nn.Conv1d(8, 8, 3, stride=2, padding=1)
        self.register_buffer("positional", torch.randn(4, 8, generator=torch.Generator().manual_seed(2)))
        self.block, self.ln_post, self.head = BertLayer(), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(x)))).permute(0, 2, 1) + self.positional
        return self.head(self.ln_post(self.block(x)))


class DecisionTransformer(nn.Module):
    """Returns, states and actions in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.timestep = nn.Embedding(4, 8)
        self.of_return, self.of_state, self.of_action = nn.Linear(1, 8), nn.Linear(5, 8), nn.Linear(2, 8)
        self.ln, self.block = nn.LayerNorm(8), BertLayer()
        self.predict_state, self.predict_action = nn.Linear(8, 5), nn.Sequential(nn.Linear(8, 2), nn.Tanh())

    def forward(self, returns: Tensor, states: Tensor, actions: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        time = self.timestep(steps)
        tokens = [self.of_return(returns) + time, self.of_state(states) + time, self.of_action(actions) + time]
        h = self.block(self.ln(torch.stack(tokens, 2).flatten(1, 2))).unflatten(1, (-1, 3))
        return self.predict_state(h[:, :, 2]), self.predict_action(h[:, :, 1])


class LinearAttention(nn.Module):
    """elu(q) + 1 and elu(k) + 1 in place of the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        q, k = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1
        context = torch.einsum("btd,bte->bde", k, self.v(x))
        y = torch.einsum("btd,bde->bte", q, context) / (q @ k.sum(1).unsqueeze(-1))
        return self.head(self.norm(x + self.out(y)))


NORMS = ("*norm.weight",)
LANGUAGE = {
    "llama_like": Expected(Decoder, ids, heads=("lm_head",), norms=NORMS, traced=True),
    "qwen3_like": Expected(
        lambda: Decoder(bias=True, norms=True), ids, heads=("lm_head",), norms=NORMS, traced=True
    ),
    "mixtral_like": Expected(
        lambda: Decoder(experts=True), ids, heads=("lm_head",), norms=NORMS,
        stacks_of_rows=("*.gate_up_proj", "*.mlp.down_proj"), traced=True,
    ),
    "bert_like": Expected(
        Bert, lambda: {"input_ids": ids()}, heads=("classifier",), norms=("*norm.weight", "*norm?.weight"),
        tables=("word.weight", "place.weight", "kind.weight"), traced=True, units=3,
    ),
    "gpt2_like": Expected(
        GPT2, ids, heads=("lm_head",), norms=("*ln_?.weight",), tables=("w?e.weight",),
        transposed=("*.c_*.weight", "*.attn_proj.weight"), traced=True,
    ),
    "nanogpt": Expected(NanoGPT, ids, heads=("lm_head",), norms=("*ln_?.weight",), tables=("w?e.weight",), units=2),
    "neox": Expected(
        NeoX, ids, heads=("embed_out",), norms=("*ln?.weight", "final_norm.weight"), tables=("embed_in.weight",),
        traced=True, units=2,
    ),
    "albert": Expected(
        Albert, ids, heads=("classifier",), norms=("block.norm?.weight",), tables=("word.weight",), traced=True
    ),
    "rwkv": Expected(
        RWKV, ids, heads=("head",), norms=("ln?.weight", "ln_out.weight"), tables=("emb.weight",),
        undecided=("time_decay", "*_mix_?"), traced=True,
    ),
    "t5_like": Expected(
        T5, lambda: {"input_ids": ids(), "decoder_input_ids": ids()}, heads=("lm_head",),
        norms=("*norm?.weight", "*norm.weight"), tables=("shared.weight", "*.relative_attention_bias.weight"),
        traced=True, units=2,
    ),
    "clip": Expected(
        Clip, lambda: (vectors(2, 3, 8, 8), ids()), heads=("proj", "text_projection"),
        norms=("ln_*.weight", "*.norm?.weight"), tables=("token_embedding.weight", "visual_positions", "positional_*"),
        transposed=("proj", "text_projection"), undecided=("logit_scale", "class_embedding"),
        units=2,
    ),
    "dit": Expected(
        DiT, lambda: (vectors(2, 3, 4, 4), torch.tensor([3.0, 7.0]), torch.tensor([0, 2])), heads=("final",),
        tables=("y_embedder.weight",), traced=True, units=2, classifier=("final",),
    ),
    "perceiver": Expected(
        Perceiver, lambda: vectors(2, 4, 5), heads=("head",), norms=("norm.weight",), undecided=("latents",),
        tables=(), traced=True, units=1,
    ),
    "whisper": Expected(
        Whisper, lambda: vectors(2, 4, 8), heads=("head",), norms=("block.norm?.weight", "ln_post.weight"),
        traced=True, units=2,
    ),
    "decision_transformer": Expected(
        DecisionTransformer,
        lambda: (vectors(2, 4, 1), vectors(2, 4, 5), vectors(2, 4, 2), torch.arange(4).expand(2, 4)),
        heads=("predict_state", "predict_action.0"), norms=("ln.weight", "block.norm?.weight"),
        tables=("timestep.weight",), traced=True, units=1,
    ),
    "linear_attention": Expected(LinearAttention, ids, heads=("head",), norms=("norm.weight",), traced=True),
}  # fmt: skip
