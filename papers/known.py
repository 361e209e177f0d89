"""Networks whose state is known, each built by a line of known.txt, and known because it is trained long.

A line is ``group | expected | network | what it has lived through | its next task | its optimizer``, in the words of
`NETS`, `TASKS` and `changed`. A third of the cases is held out, chosen by a hash: nothing may be tuned on them.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, no-any-return, operator, union-attr, attr-defined"

import ast
import copy
import csv
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

ROWS, BATCH, UPDATES, SHORT = 1024, 64, 2000, 100
RATES, ORDERS = (3e-3, 1e-3, 1e-2, 3e-4), 3
HEALTHY, LOST = 0.95, 0.6  # of the loss that fresh networks remove
ARMS = [f"{arm}_{what}_{t}" for what in ("loss", "accuracy") for arm in ("aged", "fresh") for t in (SHORT, UPDATES)]
TRUTH = ["case", "group", "set", "seed", "expected", "truth", "share", "as_trained", "nothing", *ARMS]
RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "diagnose"
Maker = Callable[[], nn.Module]
Jobs = dict[tuple[str, ...], Callable[[], dict[str, Any]]]

# --- networks ---------------------------------------------------------------------------------------------------------


class Normalizer(nn.Module):
    """Divides by statistics in buffers, which no forward pass changes."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("std", torch.ones(inputs))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Recurrent(nn.Module):
    """Reads the eight rows of an image one after the other."""

    def __init__(self, kind: str = "GRU", width: int = 48) -> None:
        super().__init__()
        self.cells, self.head = getattr(nn, kind)(8, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x.unflatten(1, (8, 8)))[0][:, -1])


class Transformer(nn.Module):
    """Reads the rows of an image, or predicts the next token of a text."""

    def __init__(self, tokens: int = 0, width: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.read = nn.Embedding(tokens, width) if tokens else nn.Linear(8, width)
        self.place, self.tokens = nn.Parameter(0.1 * torch.randn(8, width)), tokens
        self.block = nn.TransformerEncoderLayer(width, 2, 64, dropout, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, tokens or 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.read(x if self.tokens else x.unflatten(1, (8, 8))) + self.place
        h = self.block(h, src_mask=torch.full((8, 8), -math.inf).triu(1) if self.tokens else None)
        return self.head(h if self.tokens else h.mean(1))


class Vae(nn.Module):
    """Returns reconstruction, mean and log variance."""

    def __init__(self, act: str = "ReLU") -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(outputs=16, act=act), mlp(inputs=8, outputs=64, act=act)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.encoder(x).chunk(2, -1)
        return self.decoder(mean + (log_var / 2).exp() * torch.randn_like(mean)), mean, log_var


class Heads(nn.Module):
    """A classifier and a regression on one trunk; with `detached`, the trunk gets no gradient."""

    def __init__(self, act: str = "ReLU", detached: bool = False) -> None:
        super().__init__()
        self.trunk, self.detached = nn.Sequential(mlp(outputs=64, act=act), getattr(nn, act)()), detached
        self.classes, self.values = nn.Linear(64, 10), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x).detach() if self.detached else self.trunk(x)
        return self.classes(h), self.values(h)


class Residual(nn.Module):
    def __init__(self, act: str, norm: bool) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.LayerNorm(64) if norm else nn.Identity(), *mlp(64, 64, 64, 1, act))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def mlp(
    inputs=64, outputs=10, width=64, depth=2, act="ReLU", norm=None, dropout=0.0, out=None, normalizer=False
) -> nn.Sequential:
    parts: list[nn.Module] = [Normalizer(inputs)] if normalizer else []
    for fan_in in [inputs, *[width] * (depth - 1)]:
        parts += [nn.Linear(fan_in, width), *([getattr(nn, norm)(width)] if norm else []), getattr(nn, act)()]
        parts += [nn.Dropout(dropout)] if dropout else []
    last = [] if out is None else [nn.Softmax(-1) if out == "Softmax" else getattr(nn, out)()]
    return nn.Sequential(*parts, nn.Linear(width, outputs), *last)


def residual(act: str = "ReLU", norm: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64), Residual(act, norm), Residual(act, norm), nn.Linear(64, 10))


def cnn(act: str = "ReLU", norm: bool = False) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Unflatten(1, (1, 8, 8))]
    for a, b in ((1, 8), (8, 16)):
        parts += [nn.Conv2d(a, b, 3, 2, 1), *([nn.BatchNorm2d(b)] if norm else []), getattr(nn, act)()]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(64, 64), getattr(nn, act)(), nn.Linear(64, 10))


NETS = {f.__name__.lower(): f for f in (Recurrent, Transformer, Vae, Heads, mlp, residual, cnn)}

# --- tasks: each number k makes another one of the kind ---------------------------------------------------------------


class Task(NamedTuple):
    """Inputs, targets and loss, and the loss of the best constant output; None: of a fresh network."""

    x: Tensor
    y: Tensor
    loss: Callable[[Any, Tensor], Tensor]
    nothing: float | None = None


@cache
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))[:ROWS]
    return torch.tensor(data.data, dtype=torch.float32)[order] / 8 - 1, torch.tensor(data.target)[order]


def drawn(k: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + k)


def of_classes(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, -2), y.flatten())


def labels(net: nn.Module, k: int, scale: float = 1.0, offset: float = 0.0) -> Task:
    """The true labels with other names."""
    x, y = digits()
    return Task(scale * x + offset, torch.randperm(10, generator=drawn(k))[y], of_classes, math.log(10))


def random(net: nn.Module, k: int, scale: float = 1.0, offset: float = 0.0) -> Task:
    return labels(net, k, scale, offset)._replace(y=torch.randint(0, 10, (ROWS,), generator=drawn(k)))


def pixels(net: nn.Module, k: int) -> Task:
    x, y = digits()
    return Task(x[:, torch.randperm(64, generator=drawn(k))], y, of_classes, math.log(10))


def probable(net: nn.Module, k: int) -> Task:
    """The true labels, for outputs that are probabilities."""
    return labels(net, k)._replace(loss=lambda p, y: F.nll_loss(p.clamp_min(1e-8).log(), y))


def bounded(net: nn.Module, k: int, low: float = 0.0, high: float = 1.0) -> Task:
    """The classes as vectors of two values."""
    x, y = labels(net, k)[:2]
    wanted = low + (high - low) * F.one_hot(y, 10).float()
    return Task(x, wanted, F.mse_loss, float(wanted.var(0).mean()))


def values(net: nn.Module, k: int, scale: float = 1.0, offset: float = 0.0, outputs: int = 10) -> Task:
    """A regression on a random function."""
    x, draws = digits()[0], drawn(k)
    y = (x @ torch.randn(64, 64, generator=draws) / 4).tanh() @ torch.randn(64, outputs, generator=draws) / 5
    return Task(x, scale * y + offset, F.mse_loss, float((scale * y).var(0).mean()))


def of_action(q: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(q.gather(1, y[:, :1].long()).squeeze(1), y[:, 1])


@torch.no_grad()
def td(net: nn.Module, k: int, scale: float = 1.0, discount: float = 0.97) -> Task:
    """Q-learning's targets by the present network, of random transitions and rewards."""
    x, draws = digits()[0], drawn(k)
    act, following = torch.randint(0, 10, (ROWS, 1), generator=draws), torch.randperm(ROWS, generator=draws)
    reward = scale * values(net, k).y.gather(1, act).squeeze(1)
    target = reward + discount * net(x[following]).amax(1)
    return Task(x, torch.cat([act, target.unsqueeze(1)], 1), of_action, float(target.var()))


def text(net: nn.Module, k: int) -> Task:
    """Tokens, each drawn by the one before it."""
    draws = drawn(k)
    following, tokens = torch.randint(0, 16, (16, 2), generator=draws), [torch.arange(ROWS) % 16]
    for _ in range(8):
        tokens.append(following[tokens[-1], torch.randint(0, 2, (ROWS,), generator=draws)])
    x = torch.stack(tokens, 1)
    return Task(x[:, :-1], x[:, 1:], of_classes, math.log(16))


def of_image(output: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
    image, mean, log_var = output
    return F.mse_loss(image, y) + 5e-4 * (mean.square() + log_var.exp() - log_var - 1).sum(-1).mean()


def images(net: nn.Module, k: int) -> Task:
    x = pixels(net, k).x
    return Task(x, x, of_image, float(x.var(0).mean()))


def both(net: nn.Module, k: int) -> Task:
    x, y, loss, _ = labels(net, k)
    wanted = torch.cat([y.unsqueeze(1).float(), values(net, k, outputs=3).y], 1)
    return Task(x, wanted, lambda out, y: loss(out[0], y[:, 0].long()) + F.mse_loss(out[1], y[:, 1:]))


TASKS = {f.__name__: f for f in (labels, pixels, random, probable, bounded, values, td, text, images, both)}

# --- what networks live through ---------------------------------------------------------------------------------------


class Adam:
    """Adam on one flat tensor, in three quarters of the time of torch's for networks this small."""

    def __init__(self, net: nn.Module, lr: float) -> None:
        parameters = [*net.parameters()]
        self.p, self.lr, self.t = torch.cat([p.detach().flatten() for p in parameters]), lr, 0
        self.g, self.m, self.v = (torch.zeros_like(self.p) for _ in range(3))
        sizes = [p.numel() for p in parameters]
        for p, data, grad in zip(parameters, self.p.split(sizes), self.g.split(sizes), strict=True):
            p.data, p.grad = data.view_as(p), grad.view_as(p)

    def zero_grad(self) -> None:
        self.g.zero_()

    def step(self) -> None:
        self.t += 1
        self.m.lerp_(self.g, 0.1)
        self.v.mul_(0.999).addcmul_(self.g, self.g, value=0.001)
        root = (self.v / (1 - 0.999**self.t)).sqrt_().add_(1e-8)
        self.p.addcdiv_(self.m, root, value=-self.lr / (1 - 0.9**self.t))


def learn(net: nn.Module, task: Task, optimizer: Any, updates: int, seed: int) -> Iterator[int]:
    """Train in batches, and yield the number of updates after each."""
    order, (x, y, loss, _), kind = torch.Generator().manual_seed(seed), task, next(net.parameters()).dtype
    x = x.to(kind) if x.is_floating_point() else x
    for t in range(updates):
        if t % (ROWS // BATCH) == 0:
            rows = torch.randperm(ROWS, generator=order)
            batches = [*zip(x[rows].split(BATCH), y[rows].split(BATCH), strict=True)]
        inputs, targets = batches[t % len(batches)]
        optimizer.zero_grad()
        loss(net(inputs), targets).backward()
        optimizer.step()
        yield t + 1


def lived(net: nn.Module, kind: str, k=0, epochs=20, lr=1e-3, times=1, **other: Any) -> None:
    """Let it learn one task after the other; of TD learning, each with ten times new targets."""
    optimizer, parts = Adam(net, lr), 10 if kind == "td" else 1
    for i in range(k, k + times):
        for part in range(parts):
            updates = epochs * ROWS // BATCH // parts
            for _ in learn(net, TASKS[kind](net, i, **other), optimizer, updates, 100 * i + part):
                pass
    for p in net.parameters():
        p.data, p.grad = p.data.clone(), None


def hidden(net: nn.Module) -> list[Any]:
    return [m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d)][:-1]


@torch.no_grad()
def changed(net: nn.Module, kind: str, by: float = 1.0, layers: int = 9) -> None:
    """Change the weights: `by` is a factor, or a share of the hidden units."""
    for layer in hidden(net)[:layers]:
        n = round(by * len(layer.bias)) if by <= 1 else 0
        if kind in ("kill", "shut"):  # dead under ReLU; at the bound of a tanh or sigmoid
            layer.bias[:n] = -100.0 if kind == "kill" else 50.0
        elif kind == "alike":  # the same weights in, and so the same gradients
            layer.weight[:n], layer.bias[:n] = layer.weight[:1].clone(), layer.bias[:1].clone()
        elif kind == "freeze":
            layer.requires_grad_(False)
    last = [m for m in net.modules() if isinstance(m, nn.Linear)][-1]
    if kind == "alike":
        last.weight.copy_(last.weight[:, :1].expand_as(last.weight).clone())
    scaled = {"head": [last.weight], "scale": [*net.parameters()]}
    scaled["weights"] = [p for p in net.parameters() if p.ndim > 1]
    for p in scaled.get(kind, ()):
        p.mul_(by)
    if kind == "half":
        net.bfloat16()
    elif kind == "eval":
        net.eval()
    for m in net.modules():
        if kind == "statistics" and isinstance(m, Normalizer):  # of inputs that are far from 0, and large
            m.mean.fill_(50.0)
            m.std.fill_(100.0)
        elif kind == "broken" and isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d):
            m.running_var.fill_(1e6)
            m.running_mean.fill_(1e3)


def optimized(net: nn.Module, task: Task, lr: float, stale=1.0, floor=1.0, still=False, kind="Adam") -> Any:
    """An optimizer that has trained the network a little.

    Args:
        stale: multiplies its second moments.
        floor: divides its rate, as a schedule does.
        still: whether the rate of the hidden layers is 0.
    """
    first = [p for layer in hidden(net) for p in layer.parameters()] if still else []
    rest = [p for p in net.parameters() if all(p is not q for q in first)]
    optimizer = getattr(torch.optim, kind)(
        [{"params": rest}, *([{"params": first, "lr": 0.0}] if still else [])], lr=lr
    )
    for _ in learn(net, task, optimizer, 32, 0):
        pass
    for state in optimizer.state.values():
        state["exp_avg_sq"].mul_(stale)
    for group in optimizer.param_groups if floor != 1 else ():
        group |= {"initial_lr": group["lr"], "lr": group["lr"] / floor}
    optimizer.zero_grad()
    return optimizer


class Known(NamedTuple):
    """A network, what makes one like it, its next task, and its optimizer if that is a part of the case."""

    net: nn.Module
    make: Maker
    task: Task
    optimizer: torch.optim.Optimizer | None


class Case(NamedTuple):
    """A line of the table."""

    group: str
    expected: str
    net: str
    life: str
    task: str
    optimizer: str

    @property
    def name(self) -> str:
        return "; ".join(filter(None, self[2:]))

    @property
    def set(self) -> str:
        return "held_out" if zlib.crc32(self.name.encode()) % 3 == 0 else "tune"

    def build(self, seed: int = 0) -> Known:
        torch.manual_seed(seed)
        (kind, settings), (of_task, given) = words(self.net), words(self.task)
        net = NETS[kind](**settings)
        for step in filter(None, self.life.split(", ")):
            name, arguments = words(step)
            (lived if name in TASKS else changed)(net, name, **arguments)
        task = TASKS[of_task](net, **given)
        optimizer = optimized(net, task, **words(f"- {self.optimizer}")[1]) if self.optimizer else None
        return Known(net, lambda: NETS[kind](**settings), task, optimizer)


def words(text: str) -> tuple[str, dict[str, Any]]:
    """A name and its arguments."""

    def plain(value: str) -> Any:
        return value if value[0].isalpha() and value != "True" else ast.literal_eval(value)

    name, *pairs = text.split()
    return name, {key: plain(value) for key, value in (pair.split("=") for pair in pairs)}


def cases() -> list[Case]:
    lines = Path(__file__).with_suffix(".txt").read_text().splitlines()
    return [Case(*map(str.strip, line.split("|"))) for line in lines if line[0] != "#"]


# --- the truth --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def measured(net: nn.Module, task: Task) -> tuple[float, float]:
    """Loss and accuracy on the whole task; the accuracy is NaN where the targets are no classes."""
    training, kind = net.training, next(net.parameters()).dtype
    torch.manual_seed(0)
    out = net.eval()(task.x.to(kind) if task.x.is_floating_point() else task.x)
    net.train(training)
    right = math.nan if task.y.is_floating_point() else float((out.argmax(-1) == task.y).float().mean())
    return float(task.loss(out, task.y).nan_to_num(nan=math.inf)), right


def curve(net: nn.Module, task: Task, optimizer: Any, order: int) -> list[float]:
    """Losses after `SHORT` and `UPDATES`, then accuracies."""
    torch.manual_seed(order)
    found = [measured(net, task) for t in learn(net.train(), task, optimizer, UPDATES, order) if t in (SHORT, UPDATES)]
    return [*map(float, np.array(found).T.flatten())]


def best(make: Maker, task: Task, enough: float) -> list[float]:
    """The mean over the orders, at the rate that ends best in the first order, or the first that reaches `enough`."""

    def of(rate: float, order: int) -> list[float]:
        torch.manual_seed(order)
        net = make().float().requires_grad_(True)
        return curve(net, task, Adam(net, rate), order)

    first: list[float] = []
    for one in RATES:
        end = of(one, 0)
        if not first or end[1] < first[1]:
            first, rate = end, one
        if first[1] <= enough:
            break
    return [*map(float, np.mean([first, *(of(rate, order) for order in range(1, ORDERS))], 0))]


FRESH: dict[Any, list[float]] = {}  # what fresh networks learned, for all cases


def truth(case: Case, seed: int = 0) -> dict[str, Any]:
    """Train copies of the network and fresh ones long, and return a row of known.csv."""
    net, make, task, optimizer = case.build(seed)

    def fresh() -> nn.Module:  # it divides by the same statistics
        one = make()
        for mine, old in zip(one.modules(), net.modules(), strict=True):
            if isinstance(mine, Normalizer):
                mine.load_state_dict(old.state_dict())
        return one

    of = case.net, case.task, float(task.y.float().sum()), "statistics" in case.life
    torch.manual_seed(0)
    nothing = measured(fresh(), task)[0] if task.nothing is None else task.nothing
    if of not in FRESH:
        FRESH[of] = best(fresh, task, nothing / 100)
    other = FRESH[of]
    aged = best(lambda: copy.deepcopy(net), task, nothing - 0.99 * (nothing - other[1]))

    def share(end: float) -> float:
        return max(-1.0, (nothing - end) / (nothing - other[1]))

    found = share(aged[1])
    word = "healthy" if found >= HEALTHY else "lost" if found <= LOST else "between"
    net, optimizer = copy.deepcopy((net, optimizer))
    trained = "" if optimizer is None else share(curve(net, task, optimizer, 0)[1])
    numbers = zip(ARMS, [*aged[:2], *other[:2], *aged[2:], *other[2:]], strict=True)
    row = {"case": case.name, "group": case.group, "set": case.set, "seed": seed, "expected": case.expected}
    row |= {"truth": word, "share": found, "as_trained": trained, "nothing": nothing, **dict(numbers)}
    return {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()}


def table(name: str, columns: Sequence[str], jobs: Jobs) -> list[dict[str, str]]:
    """The rows of a file, to which those of the jobs are added that it does not have yet."""
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / name).open("a+", newline="", buffering=1) as file:
        file.seek(0)
        rows = [*csv.DictReader(file)]
        writer, keys = csv.DictWriter(file, columns, lineterminator="\n"), ("case", "seed", "rule", "call")
        if not file.tell():
            writer.writeheader()
        for key, job in jobs.items():
            given = dict(zip(keys, key, strict=False))
            if not any(given.items() <= row.items() for row in rows):
                rows.append(given | {column: str(value) for column, value in job().items()})
                writer.writerow(rows[-1])
                print(*rows[-1].values(), sep=" | ", flush=True)
    return rows
