"""A network that is trained every day and saved every night: ``python trained_every_day.py [method=spectral]``.

Each day has new labels for the same inputs. A day loads the network, its optimizer and the regularizer's state from a
file, trains, and writes all three back. A new process therefore continues exactly where the last one stopped: run the
command again for the next days. Without a method (``method=none``), the network stops learning after some thirty days.
You can continue from its file with another method, which is then attached to the network as it is.

Settings of the method are given in the same way: ``method=l2_init coef=1e-3``. Ten days take about five seconds of CPU
time.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity import SettingsError, attach

INPUTS, CLASSES, STEPS, BATCH, LR = 500, 10, 200, 100, 1e-3


def make_net() -> nn.Module:
    layers: list[nn.Module] = []
    for fan_in in (64, 128, 128):
        layers += [nn.Linear(fan_in, 128), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, CLASSES))


def data_of(day: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The inputs ``[inputs, 64]``, the same every day, and the day's labels ``[inputs]``."""
    inputs = torch.randn(INPUTS, 64, generator=torch.Generator().manual_seed(seed))
    return inputs, torch.randint(CLASSES, (INPUTS,), generator=torch.Generator().manual_seed(1_000 * (seed + 1) + day))


def train(net: nn.Module, optimizer: torch.optim.Optimizer, day: int, steps: int = STEPS, seed: int = 0) -> float:
    """Train on the day's data; returns the accuracy on them afterwards."""
    inputs, labels = data_of(day, seed)
    draws = torch.Generator().manual_seed(day)
    for _ in range(steps):
        batch = torch.randint(INPUTS, (BATCH,), generator=draws)
        optimizer.zero_grad()
        F.cross_entropy(net(inputs[batch]), labels[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        return (net(inputs).argmax(-1) == labels).float().mean().item()


def write(state: dict[str, Any], path: Path) -> None:
    """Write the file atomically, so that a reader always finds a complete state, old or new."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def one_day(path: Path, method: str, steps: int = STEPS, **settings: Any) -> tuple[int, float]:
    """Load, train and save, as one day's process does; returns the day, counted from 1, and its accuracy."""
    torch.manual_seed(0)
    net, day = make_net(), 1
    optimizer = torch.optim.Adam(net.parameters(), lr=LR)
    saved = torch.load(path, weights_only=True) if path.exists() else None
    if saved is not None:
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        day = saved["day"] + 1
    handle = attach(method, optimizer, net, **settings)  # the reference is this morning's weights ...
    if saved is not None and saved["method"] == method:
        handle.load_state_dict(saved["regularizer"])  # ... or the saved one
    accuracy = train(net, optimizer, day, steps)
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "regularizer": handle.state_dict()}
    write({**state, "method": method, "day": day}, path)
    return day, accuracy


def main(file: str = "network.pt", method: str = "spectral", days: int = 10, **settings: Any) -> None:
    if method == "spectral":
        settings = {"coef": 1e-3, **settings}
    for _ in range(days):
        print("day {:3d}  accuracy {:.2f}".format(*one_day(Path(file), method, **settings)), flush=True)


if __name__ == "__main__":
    if not all("=" in argument for argument in sys.argv[1:]):
        sys.exit(__doc__)
    given = dict(argument.split("=") for argument in sys.argv[1:])
    try:
        main(**{n: v if n in ("file", "method") else int(v) if v.isdecimal() else float(v) for n, v in given.items()})
    except SettingsError as error:
        sys.exit(str(error))
