"""What an attached method adds to a loop's step: ``python scripts/bench_attached.py [NAME ...] [rounds=20]``.

A plain step (forward, loss, backward, Adam) of a small GPT of bare torch modules and of a ResNet-18, the same step with
the method attached, and the same with the method written out in the loop take turns in one process, on one thread.
Printed is what each adds to the plain step of its turn, in percent of it: the median of CPU time over the rounds.

By hand a method is as a loop's author would write it: a term of the loss where it is one, so that loss and penalty
share a forward and a backward pass, and sums without gradient elsewhere. `attach` keeps the two gradients apart.
"""

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from rl_plasticity import attach
from rl_plasticity.networks import resnet18

Step = Callable[[], None]
CONTEXT, VOCABULARY, WIDTH = 64, 65, 128


class Block(nn.Module):
    """Causal attention and an MLP, each behind a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Four blocks: 0.8 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block(WIDTH, 4) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions)))


class Loop:
    """A network with its optimizer and one batch."""

    def __init__(self, kind: str) -> None:
        torch.manual_seed(0)
        if kind == "GPT":
            self.net: nn.Module = GPT()
            self.x = torch.randint(VOCABULARY, (8, CONTEXT))
            self.y = torch.randint(VOCABULARY, (8, CONTEXT))
        else:
            self.net = resnet18(10)
            self.x, self.y = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.modules = dict(self.net.named_modules())
        self.parameters = list(self.net.parameters())

    def linear_maps(self) -> list[nn.Module]:
        """The layers with a matrix, without the head."""
        found = [m for m in self.modules.values() if isinstance(m, nn.Linear | nn.Conv2d)]
        return found[:-1]

    def units(self) -> Iterator[tuple[nn.Module, nn.Module, nn.Module]]:
        """The layer that makes hidden units, its activation and the layer that reads them."""
        for name, module in self.modules.items():
            if name.endswith("mlp"):
                yield module[0], module[1], module[2]
            elif name.endswith("residual"):
                yield module[0], module[2], module[3]

    def step(self, term: Callable[[Tensor], Tensor] | None = None, before: Step | None = None) -> None:
        """One step; `term` of the output joins the loss, `before` comes between backward and step."""
        self.optimizer.zero_grad()
        output = self.net(self.x)
        loss = F.cross_entropy(output.flatten(0, -2), self.y.flatten())
        (loss if term is None else loss + term(output)).backward()
        if before is not None:
            before()
        self.optimizer.step()


# --- the methods as a loop's author would write them ---------------------------------------------------------------


def ewc(loop: Loop) -> Step:
    anchors = [p.detach().clone() for p in loop.parameters]
    fishers = [torch.zeros_like(p) for p in anchors]

    @torch.no_grad()
    def before() -> None:
        gradients = [p.grad for p in loop.parameters]
        pulls = torch._foreach_sub(loop.parameters, anchors)
        torch._foreach_mul_(pulls, fishers)
        torch._foreach_lerp_(fishers, torch._foreach_mul(gradients, gradients), 1e-4)
        torch._foreach_lerp_(anchors, loop.parameters, 1e-4)
        torch._foreach_add_(gradients, pulls, alpha=1e-4)

    return partial(loop.step, before=before)


def parseval(loop: Loop) -> Step:
    def term(output: Tensor) -> Tensor:
        total = torch.zeros(())
        for layer in loop.linear_maps():
            w = layer.weight.flatten(1)
            w = w if w.shape[0] <= w.shape[1] else w.T
            total = total + (w @ w.T - 2 * torch.eye(len(w))).square().sum()
        return 1e-4 * total

    return partial(loop.step, term)


def churn(loop: Loop) -> Step:
    previous = {name: p.detach().clone() for name, p in loop.net.named_parameters()}

    def term(output: Tensor) -> Tensor:
        buffers = {name: b.clone() for name, b in loop.net.named_buffers()}
        with torch.no_grad():
            before = functional_call(loop.net, previous | buffers, loop.x)
            torch._foreach_copy_(list(previous.values()), loop.parameters)
        return 0.1 * (output - before).square().mean()

    return partial(loop.step, term)


def feature_rank(loop: Loop) -> Step:
    seen = []
    head = [m for m in loop.modules.values() if isinstance(m, nn.Linear)][-1]
    head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    vectors = [torch.randn(head.in_features) for _ in range(2)]

    def term(output: Tensor) -> Tensor:
        features = seen.pop().flatten(0, -2)
        with torch.no_grad():
            u = F.normalize(features.T @ (features @ vectors[0]), dim=0)
            top = (features @ u).square().sum()
            v = F.normalize(top * vectors[1] - features.T @ (features @ vectors[1]), dim=0)
            vectors[:] = u, v
        return 1e-3 * ((features @ u).square().sum() - (features @ v).square().sum())

    return partial(loop.step, term)


def continual_backprop(loop: Loop) -> Step:
    units = list(loop.units())
    sizes = [torch.zeros(len(incoming.weight)) for incoming, _, _ in units]
    uses, ages, due = [s.clone() for s in sizes], [s.clone() for s in sizes], [0.0 for _ in sizes]

    def look(i: int, module: nn.Module, args: tuple[Tensor, ...], h: Tensor) -> None:
        with torch.no_grad():
            sizes[i] = h.abs().mean((0, 2, 3) if h.ndim == 4 else (0, 1))

    for i, (_, activation, _) in enumerate(units):
        activation.register_forward_hook(partial(look, i))

    @torch.no_grad()
    def after() -> None:
        for i, (incoming, _, outgoing) in enumerate(units):
            ages[i] += 1
            uses[i].lerp_(sizes[i] * outgoing.weight.abs().mean((0, *range(2, outgoing.weight.ndim))), 0.01)
            mature = ages[i] > 100
            due[i] += 1e-4 * float(mature.sum())
            if due[i] >= 1:
                unit = (uses[i] / (1 - 0.99 ** ages[i])).where(mature, torch.inf).argmin()
                nn.init.kaiming_uniform_(incoming.weight[unit : unit + 1], 5**0.5)
                outgoing.weight[:, unit] = uses[i][unit] = ages[i][unit] = 0
                due[i] -= 1

    def step() -> None:
        loop.step()
        after()

    return step


def self_normalized_resets(loop: Loop) -> Step:
    units = list(loop.units())
    fires = [torch.zeros(len(incoming.weight), dtype=torch.bool) for incoming, _, _ in units]
    ages, silences = [torch.zeros(len(f)) for f in fires], [torch.zeros(len(f), 48) for f in fires]

    def look(i: int, module: nn.Module, args: tuple[Tensor, ...], h: Tensor) -> None:
        with torch.no_grad():
            fires[i] = h.amax((0, 2, 3) if h.ndim == 4 else (0, 1)) > 0

    for i, (_, activation, _) in enumerate(units):
        activation.register_forward_hook(partial(look, i))

    @torch.no_grad()
    def after() -> None:
        for i, (incoming, _, outgoing) in enumerate(units):
            silent = ages[i] + len(loop.x)
            bins = (silent.log2() * 2).long().clamp(max=47)
            silences[i].scatter_add_(1, bins[:, None], fires[i].float()[:, None])
            ages[i] = silent.where(~fires[i], 0)
            worst = int(ages[i].argmax())
            if ages[i][worst] >= 100_000:
                nn.init.kaiming_uniform_(incoming.weight[worst : worst + 1], 5**0.5)
                outgoing.weight[:, worst] = ages[i][worst] = 0

    def step() -> None:
        loop.step()
        after()

    return step


BY_HAND = (feature_rank, churn, continual_backprop, self_normalized_resets, ewc, parseval)


def attached(name: str, loop: Loop) -> Step:
    with warnings.catch_warnings():  # that it leaves alone what is behind the sums of branches
        warnings.simplefilter("ignore")
        attach(name, loop.optimizer, loop.net, **{"coef": 0.1} if name == "churn" else {})
    return loop.step


def added(steps: list[Step], rounds: int) -> list[float]:
    """What each adds to the step of the first, as a share of it."""
    seconds: list[list[float]] = []
    for i in range(rounds + 2):
        turn = []
        for step in steps:
            start = time.process_time()
            step()
            turn.append(time.process_time() - start)
        if i >= 2:  # the first warm up
            seconds.append(turn)
    return [statistics.median(turn[i] / turn[0] - 1 for turn in seconds) for i in range(1, len(steps))]


def main() -> None:
    names = [a for a in sys.argv[1:] if "=" not in a]
    rounds = int(dict(a.split("=") for a in sys.argv[1:] if "=" in a).get("rounds", 20))
    torch.set_num_threads(1)
    print(f"{'% of a plain step':<24} {'GPT':>9} {'by hand':>9} {'ResNet-18':>11} {'by hand':>9}")
    for by_hand in BY_HAND:
        name = by_hand.__name__
        if names and name not in names:
            continue
        shares: list[float] = []
        for kind in ("GPT", "ResNet-18"):
            times = rounds * (10 if kind == "GPT" else 1)  # a step of it is that much shorter
            shares += added([Loop(kind).step, attached(name, Loop(kind)), by_hand(Loop(kind))], times)
        gpt, its, resnet, of_resnet = (100 * share for share in shares)
        print(f"{name:<24} {gpt:>9.0f} {its:>9.0f} {resnet:>11.0f} {of_resnet:>9.0f}", flush=True)


if __name__ == "__main__":
    main()
