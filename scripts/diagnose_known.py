"""Whether `diagnose` is right about networks whose plasticity is known by construction.

    python scripts/diagnose_known.py                 # all of them
    python scripts/diagnose_known.py dead gru        # those whose names contain one of these words

Every network is diagnosed with the defaults, but no remedies are tried, which decide nothing. Networks that were
trained on a sequence of tasks also learn the next task for real. Its training accuracy decides which verdict is
expected, by a rule that was fixed before: ``plastic`` from 0.95, ``lost`` below 0.5, ``losing`` or ``lost`` in between.

A star marks the networks on which nothing of `diagnose` was tuned.
"""

import argparse
import copy
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity import attach, diagnose, make_regularizer

Given = dict[str, Any]
"""Arguments of `diagnose`. ``expected`` replaces the verdict that is expected, ``known`` says why."""
BAD = ("losing", "lost")


@dataclass(frozen=True)
class Known:
    """A network whose verdict is known.

    Args:
        expected: the verdicts that are right; empty: `build` finds out.
        build: makes the network, and the other arguments of `diagnose`.
        tuned: whether something of `diagnose` was chosen with such a network in sight.
    """

    expected: tuple[str, ...]
    build: Callable[[], tuple[nn.Module, Given]]
    tuned: bool


KNOWN: dict[str, Known] = {}


def known(*expected: str, tuned: bool = True) -> Callable[[Any], Any]:
    """Register a function under its name."""

    def register(build: Callable[[], tuple[nn.Module, Given]]) -> Callable[[], tuple[nn.Module, Given]]:
        KNOWN[build.__name__.replace("_", " ")] = Known(expected, build, tuned)
        return build

    return register


# --- parts ------------------------------------------------------------------------------------------------------------


@cache
def digits() -> tuple[Tensor, Tensor]:
    """1200 images of 64 pixels, and their labels."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))[:1200]
    return torch.tensor(data.data, dtype=torch.float32)[order] / 8 - 1, torch.tensor(data.target)[order]


def random_labels(task: int) -> Tensor:
    return torch.randint(0, 10, (1200,), generator=torch.Generator().manual_seed(100 + task))


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def mlp(*sizes: int, act: type[nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    parts: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        hidden = i < len(sizes) - 2
        parts += [nn.Linear(a, b), *([nn.LayerNorm(b)] * (hidden and norm)), *([act()] * hidden)]
    return nn.Sequential(*parts)


def of_digits(width: int = 100, **kwargs: Any) -> nn.Sequential:
    return mlp(64, width, width, 10, **kwargs)


def fit(
    net: nn.Module, x: Tensor, y: Tensor, loss: Any, epochs: int, optimizer: torch.optim.Optimizer
) -> torch.optim.Optimizer:
    """Train in batches of 50."""
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            loss(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return optimizer


def adam(net: nn.Module, lr: float = 1e-3) -> torch.optim.Adam:
    return torch.optim.Adam(net.parameters(), lr=lr)


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((net(x).argmax(-1) == y).float().mean())


def after_tasks(net: nn.Module, regularizer: str | None = None) -> tuple[nn.Module, Given]:
    """Nine tasks of random labels, as ``preset: demo`` has them; the tenth says what is expected."""
    x, _ = digits()
    optimizer = adam(net, 3e-3)
    if regularizer is not None:
        attach(make_regularizer(regularizer, net), optimizer, net)
    for task in range(9):
        fit(net, x, random_labels(task), F.cross_entropy, 60, optimizer)
    aged = copy.deepcopy(net)
    ended = accuracy(net, x, random_labels(8))
    fit(net, x, random_labels(9), F.cross_entropy, 60, optimizer)
    following = accuracy(net, x, random_labels(9))
    expected = ("plastic",) if following >= 0.95 else ("lost",) if following < 0.5 else BAD
    given = {"inputs": x, "loss": F.cross_entropy, "targets": random_labels(8)}
    return aged, given | {"expected": expected, "known": f"task 9 ended at {ended:.2f}, task 10 at {following:.2f}"}


@torch.no_grad()
def biased(layer: nn.Module, value: float, share: float = 1.0) -> None:
    """Give a share of the units a bias that decides what they do."""
    bias: Any = layer.bias
    bias[: round(share * len(bias))] = value


# --- networks that are named in the documentation or the tests --------------------------------------------------------


@known("plastic")
def fresh():
    return of_digits(), {"inputs": digits()[0]}


@known("plastic")
def trained_on_the_true_labels():
    net = of_digits()
    x, y = digits()
    optimizer = fit(net, x, y, F.cross_entropy, 20, adam(net))
    return net, {"inputs": x, "loss": F.cross_entropy, "targets": y, "optimizer": optimizer}


@known()
def nine_tasks():
    return after_tasks(of_digits())


@known()
def nine_tasks_with_LayerNorm():
    return after_tasks(of_digits(norm=True))


@known()
def nine_tasks_with_spectral():
    return after_tasks(of_digits(), "spectral")


@known("lost")
def dead_layer():
    net = of_digits()
    biased(net[2], -100.0)
    return net, {"inputs": digits()[0]}


@known("lost")
def saturated_tanh():
    net = of_digits(act=nn.Tanh)
    for i in (0, 2):
        biased(net[i], 50.0)
    return net, {"inputs": digits()[0]}


@known("plastic")
def half_of_512_units_dead():
    net = mlp(64, 512, 512, 10)
    for i in (0, 2):
        biased(net[i], -100.0, 0.5)
    return net, {"inputs": digits()[0]}


@known("something else")
def stale_moments():
    net = of_digits()
    x, y = digits()
    optimizer = fit(net, x, y, F.cross_entropy, 5, adam(net))
    for state in optimizer.state.values():
        state["exp_avg_sq"].mul_(1e10)
    return net, {"inputs": x, "loss": F.cross_entropy, "targets": y, "optimizer": optimizer}


@known("something else")
def learning_rate_of_0():
    net = of_digits()
    x, y = digits()
    return net, {"inputs": x, "loss": F.cross_entropy, "targets": y, "optimizer": adam(net, 0.0)}


@known("plastic")
def large_outputs():
    net = of_digits()
    with torch.no_grad():
        net[-1].weight.mul_(100)
    return net, {"inputs": digits()[0]}


@known("something else")
def frozen():
    return of_digits().requires_grad_(False), {"inputs": digits()[0]}


@known("something else")
def a_weight_that_is_NaN():
    net = of_digits()
    net[2].weight.data[3, 4] = math.nan
    return net, {"inputs": digits()[0]}


class Critic(nn.Module):
    """Two Q functions."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.q = nn.ModuleList([mlp(23, width, width, 1) for _ in range(2)])

    def forward(self, obs: Tensor, act: Tensor) -> tuple[Tensor, ...]:
        both = torch.cat([obs, act], -1)
        return tuple(q(both) for q in self.q)


def of_critic() -> tuple[Tensor, Tensor]:
    x = inputs(512, 23)
    return x[:, :17].contiguous(), x[:, 17:].tanh().contiguous()


@known("plastic")
def critic_that_fits_its_returns():
    net = Critic()
    obs, act = of_critic()
    value = 50 + 10 * (obs[:, :1] + act[:, :1].square())
    optimizer = adam(net, 3e-4)
    for _ in range(600):
        rows = torch.randint(512, (128,))
        optimizer.zero_grad()
        sum(F.mse_loss(q, value[rows]) for q in net(obs[rows], act[rows])).backward()
        optimizer.step()
    return net, {"inputs": (obs, act), "optimizer": optimizer}


@known("losing", "lost")
def critic_with_one_dead_Q():
    net = Critic()
    biased(net.q[0][2], -100.0)
    return net, {"inputs": of_critic()}


class Gpt(nn.Module):
    """A small causal transformer."""

    def __init__(self, vocabulary: int = 24, width: int = 48, length: int = 16) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight
        return self.head(self.blocks(x, mask=self.mask, is_causal=True))


def of_text(rows: int = 64) -> Tensor:
    return torch.randint(0, 24, (rows, 16), generator=torch.Generator().manual_seed(5))


def next_token(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output[:, :-1].flatten(0, 1), targets[:, 1:].flatten())


@known("plastic")
def GPT_after_some_training():
    net, text = Gpt(), of_text()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    fit(net, text, text, next_token, 40, optimizer)
    return net, {"inputs": text, "optimizer": optimizer, "make": Gpt}


@known("losing", "lost")
def GPT_whose_last_norm_has_a_gain_of_0():
    net = Gpt()
    with torch.no_grad():  # nothing of the text reaches the head, and no gradient reaches the blocks
        net.blocks.norm.weight.zero_()
        net.head.weight.zero_()
    net.blocks.norm.bias.data.zero_()
    return net, {"inputs": of_text(), "make": Gpt}


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)),
    )


@known("plastic")
def CNN_trained_on_the_true_labels():
    net = cnn()
    x, y = digits()
    fit(net, x, y, F.cross_entropy, 5, adam(net))
    return net, {"inputs": x, "loss": F.cross_entropy, "targets": y}


@known("lost")
def CNN_with_dead_channels():
    net = cnn()
    biased(net[4], -100.0)
    return net, {"inputs": digits()[0]}


# --- networks on which nothing was tuned ------------------------------------------------------------------------------


class Gru(nn.Module):
    """Reads the eight rows of an image one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(8, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x.unflatten(1, (8, 8)))[0][:, -1])


@known("plastic", tuned=False)
def GRU_trained_on_the_true_labels():
    net = Gru()
    x, y = digits()
    fit(net, x, y, F.cross_entropy, 5, adam(net, 3e-3))
    return net, {"inputs": x, "loss": F.cross_entropy, "targets": y}


@known("lost", tuned=False)
def GRU_whose_update_gate_is_shut():
    net = Gru()
    with torch.no_grad():
        net.gru.bias_ih_l0[64:128] = 200.0  # z = 1, so the state stays 0
    return net, {"inputs": digits()[0]}


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.branch(x))


@known("plastic", tuned=False)  # training uses the statistics of its batches, and mends the running ones
def ResNet_whose_running_statistics_are_broken():
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), Residual(16), nn.MaxPool2d(2), Residual(16)),
        *(nn.Flatten(), nn.Linear(256, 10)),
    )
    x, y = digits()
    fit(net, x, y, F.cross_entropy, 3, adam(net))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.fill_(1e12)
            module.running_mean.fill_(1e3)
    return net.eval(), {"inputs": x}


@known("something else", tuned=False)
def bfloat16_with_a_tiny_rate():
    net = mlp(64, 200, 200, 200, 10, act=nn.GELU)
    x, y = digits()
    fit(net, x, y, F.cross_entropy, 5, adam(net))
    net = net.bfloat16()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-6)
    return net, {"inputs": x, "loss": F.cross_entropy, "targets": y, "optimizer": optimizer}


@known("lost", tuned=False)
def layers_whose_units_are_all_alike():
    net = of_digits()
    with torch.no_grad():  # equal units have equal gradients, so they stay equal: each layer has one unit
        net[0].weight.copy_(10 * net[0].weight[:1])
        net[2].weight.fill_(0.02)
        net[4].weight.copy_(torch.randn(10, 1).expand(10, 100) / 10)
        for layer in (net[0], net[2]):
            layer.bias.fill_(0.1)
    return net, {"inputs": digits()[0]}


class Bag(nn.Module):
    """The mean of the embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(300, 64, mode="mean")
        self.rest = mlp(64, 128, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.rest(self.table(tokens))


@known("plastic", tuned=False)
def bag_of_embedded_tokens():
    net = Bag()
    tokens = torch.randint(0, 300, (500, 12))
    fit(net, tokens, tokens[:, 0] % 8, F.cross_entropy, 10, adam(net, 3e-3))
    return net, {"inputs": tokens}


class Policy(nn.Module):
    """Mean and log standard deviation, clamped as SAC's."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.mean, self.log_std = mlp(17, 256, 256), nn.Linear(256, 6), nn.Linear(256, 6)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(obs).relu()
        return self.mean(h), self.log_std(h).clamp(-10, 2)


@known("losing", "lost", "something else", tuned=False)  # half of the outputs have no gradient
def actor_whose_log_std_is_at_its_bound():
    net = Policy()
    biased(net.log_std, -60.0)
    return net, {"inputs": inputs(256, 17)}


@known("lost", tuned=False)
def weights_that_decayed_to_0():
    net = of_digits()
    x, y = digits()
    fit(net, x, y, F.cross_entropy, 60, torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=30.0))
    return net, {"inputs": x}


@known("plastic", tuned=False)
def regression_that_was_trained_on_other_inputs():
    net = mlp(12, 256, 256, 3)
    elsewhere = 3 * inputs(1000, 12) + 4
    target = torch.stack([elsewhere[:, 0] * elsewhere[:, 1], elsewhere[:, 2].sin(), elsewhere.sum(1)], 1)
    optimizer = fit(net, elsewhere, (target - target.mean(0)) / target.std(0), F.mse_loss, 30, adam(net))
    return net, {"inputs": torch.randn(400, 12), "optimizer": optimizer}


@known("plastic", tuned=False)
def mixer_with_much_dropout():
    net = nn.Sequential(mlp(64, 200, 200), nn.GELU(), nn.Dropout(0.8), nn.Linear(200, 10))
    x, y = digits()
    fit(net, x, y, F.cross_entropy, 10, adam(net))
    return net, {"inputs": x}


@known("plastic", tuned=False)
def network_whose_inputs_have_no_scale():
    net = mlp(64, 200, 200, 10, norm=True)
    x, y = digits()
    fit(net, 1000 * x, y, F.cross_entropy, 10, adam(net))
    return net, {"inputs": 1000 * x}


# --- the table --------------------------------------------------------------------------------------------------------


def examine(name: str, one: Known) -> tuple[bool, str]:
    """Whether the verdict is right, and the line of the table."""
    torch.manual_seed(0)
    start = time.perf_counter()
    net, given = one.build()
    expected, why = given.pop("expected", one.expected), given.pop("known", "")
    built = time.perf_counter()
    report = diagnose(net, given.pop("inputs"), remedies=False, **given)
    right = report.verdict in expected
    learned = report.evidence.get("your network", "-")
    said = "; ".join([*([why] if why else []), *(cause.partition(":")[0] for cause in report.causes)])
    star = " " if one.tuned else "*"
    took = f"{built - start:5.0f} s {time.perf_counter() - built:5.0f} s"
    line = f"{'ok   ' if right else 'WRONG'} {star}{name:44} {' or '.join(expected):18} {report.verdict:15}"
    return right, f"{line} {learned!s:20} {took}  {said}" + ("" if right else f"\n{report}")


def main(words: Sequence[str]) -> int:
    """Print the table; returns 1 if a verdict is wrong."""
    torch.set_num_threads(1)
    chosen = {n: one for n, one in KNOWN.items() if not words or any(w.lower() in n.lower() for w in words)}
    print(f"{'':7}{'network':44} {'expected':18} {'verdict':15} {'learned of fresh':20} built    diagnosed")
    right: dict[bool, list[bool]] = {True: [], False: []}
    for name, one in chosen.items():
        is_right, line = examine(name, one)
        right[one.tuned].append(is_right)
        print(line, flush=True)
    for tuned, results in right.items():
        print(f"{sum(results)} of {len(results)} right" + (" of those that nobody tuned on (*)" if not tuned else ""))
    return int(not all(right[True] + right[False]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="examine only the networks whose names contain one of these")
    sys.exit(main(parser.parse_args().words))
