"""How fast the supervised harness is: ``python scripts/bench_supervised.py [--threads 1] [--epochs 40] [--cases ...]``.

The real command trains (`rl_plasticity.supervised.run`, with its logs and task changes); between two of its epochs a
loop in plain torch makes one epoch of its own: the same network in size, images standardized beforehand, shuffled by
``randperm`` and gathered batch by batch, cross entropy, ``torch.optim.Adam(fused=True)``. Printed is, for each case,
the median over epochs of plain torch's time / the command's for a run's epoch: how many times as fast one run of ours
is; its quartiles; and updates a second. Epochs at whose end something is evaluated or written are not counted, nor are
the first two. With one thread it is CPU time, which other processes disturb less; with more, the wall's.

Cases: ``mlp`` (digits, 64-100-100-10, batch 50: the preset demo), plain, compiled, and compiled with 5 seeds;
``resnet18`` (images of 3 x 32 x 32, batch 128, `channels_last` on both sides), which is never compiled.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from rl_plasticity import supervised
from rl_plasticity.networks import make_network
from rl_plasticity.tasks import DATA, load
from rl_plasticity.tasks.data import Source


class Case(NamedTuple):
    name: str
    settings: dict[str, Any]
    runs: int = 1


MLP = {"preset": "demo", "num_tasks": 1, "measure_every_updates": 0}
RESNET = {"preset": "none", "data": "noise", "net": "resnet18", "task": "random_labels", "num_tasks": 1}
RESNET |= {"batch_size": 128, "compile": False, "measure_every_updates": 0}
CASES = {
    "mlp": [
        Case("mlp, plain", MLP | {"compile": False}),
        Case("mlp, compiled", MLP | {"compile": True}),
        Case("mlp, compiled, 5 seeds", MLP | {"compile": True, "seeds": 5}, 5),
    ],
    "resnet18": [Case("resnet18", RESNET)],
}


def noise() -> Source:
    """Images of CIFAR's size that nobody has to download."""
    rng = np.random.default_rng(0)
    return Source(
        train=(rng.integers(0, 256, (256, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, 256)),
        test=(rng.integers(0, 256, (64, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, 64)),
        num_classes=10,
    )


def plain_torch(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, batch_size: int, lr: float) -> Iterator[None]:
    """An epoch for each `next`."""
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, fused=True)
    while True:
        for rows in torch.randperm(len(x)).split(batch_size):
            loss = F.cross_entropy(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield


def theirs(s: Any) -> Iterator[None]:
    """Plain torch's loop for the settings of a run."""
    data = load(s.data.name, **s.data.settings)
    x, y = data.to_float(data.train_x), torch.randint(10, (len(data.train_x),))
    if s.net.name == "mlp":
        x, (a, b) = x.flatten(1), s.net.widths
        layers = torch.nn.Linear(64, a), torch.nn.ReLU(), torch.nn.Linear(a, b), torch.nn.ReLU(), torch.nn.Linear(b, 10)
        net: torch.nn.Module = torch.nn.Sequential(*layers)
    else:
        net = make_network(s.net.name, data.shape, 10, [0]).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    return plain_torch(net, x, y, s.batch_size, s.lr)


def measure(case: Case, epochs: int, clock: Callable[[], float]) -> tuple[list[float], list[float], int]:
    """Seconds of each epoch, of ours and of plain torch, and the updates in it."""
    ours: list[float] = []
    plain: list[float] = []
    state: dict[str, Any] = {}

    def turn(session: Any) -> None:
        end = clock()
        if not state:
            state["loop"], state["updates"] = theirs(session.settings), session.progress.updates
        else:
            ours.append(end - state["start"])
        before = clock()
        next(state["loop"])
        plain.append(clock() - before)
        state["start"] = clock()

    with tempfile.TemporaryDirectory() as folder:
        often = {"eval_every_epochs": 10**6, "checkpoint_every_epochs": 10**6, "epochs_per_task": epochs + 3}
        supervised.run(on_step=turn, out=f"{folder}/run", device="cpu", **(case.settings | often))
    return ours[1:-1], plain[2:-1], state["updates"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    DATA["noise"] = noise
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    print(f"{'case':<26}{'ours, updates/s':>16}{'plain torch':>12}{'ours / plain torch':>20}  quartiles")
    for name in options.cases.split(","):
        for case in CASES[name]:
            settings = case.settings | {"threads": options.threads}
            ours, plain, updates = measure(Case(case.name, settings, case.runs), options.epochs, clock)
            ratios = [case.runs * b / a for a, b in zip(ours, plain, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            rate, other = case.runs * updates / statistics.median(ours), updates / statistics.median(plain)
            print(f"{case.name:<26}{rate:>16.1f}{other:>12.1f}{middle:>20.2f}  {low:.2f}-{high:.2f}", flush=True)


if __name__ == "__main__":
    main()
