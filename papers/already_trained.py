"""What helps a network that has stopped learning: ``python -m papers.already_trained FILE.csv TABLE``.

The network of ``examples/trained_every_day.py`` trains without a method until it has stopped learning, at the end of
day 30. From there go on, each by itself: ``late``, regularizers that are attached on day 31 and kept, with today's
weights or a fresh network's as their reference; ``once``, interventions on the morning of day 31. ``start`` are
regularizers that were there from day 1. Day 5 is the night of a network that still learns: what it then knows of that
day's labels right after an intervention, or after ten more steps with a regularizer. If FILE.csv is not there yet it is
made, in half an hour of CPU time. TABLE has means over seeds of a day's accuracy at its end, and the range.
"""

import argparse
import ast
import copy
import csv
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rl_plasticity import attach, make_intervention, make_regularizer

DAY = runpy.run_path(str(Path(__file__).resolve().parents[1] / "examples" / "trained_every_day.py"))
LEARNING, STOPPED = 5, 30  # nights from which it goes on
SHOWN = {"start": (1, 10, 20, 30, 40), "late": (LEARNING, 31, 35, 40), "once": (LEARNING, 31, 35, 40, 50)}
METHODS = {
    "start": "none, spectral coef=0.001, l2_init coef=0.01, swr coef=0.01",
    "late": "none, spectral coef=0.0001, spectral coef=0.001, spectral coef=0.01, spectral coef=0.1, "
    "parseval coef=0.001, parseval coef=0.01, orthogonal coef=0.1, orthogonal coef=1.0, l2 coef=0.0001, "
    "l2 coef=0.001, l2 coef=0.01, weight_decay coef=0.1, weight_decay coef=1.0, weight_decay coef=10.0, "
    "l2_init coef=0.001, l2_init coef=0.001 fresh, l2_init coef=0.01, l2_init coef=0.01 fresh, wasserstein coef=10, "
    "wasserstein coef=10 fresh, ewc coef=100, ewc coef=100 fresh, swr coef=0.001, swr coef=0.001 fresh, swr coef=0.01, "
    "swr coef=0.01 fresh, normalize_project, normalize_project fresh, wrs every_updates=10, wrs every_updates=1000, "
    "hypersphere, weight_clipping coef=2, continual_backprop coef=0.001, continual_backprop coef=0.001 fresh, "
    "self_normalized_resets, churn coef=10, hare_tortoise every_updates=1000",
    "once": "none, a new optimizer, periodic, head num_layers=1, head num_layers=2, head num_layers=3, "
    "shrink_perturb coef=0.2, shrink_perturb coef=0.5, shrink_perturb coef=0.8, redo threshold=0, "
    "redo threshold=0.025, redo threshold=0.1, selective_reinit factor=0.1, selective_reinit factor=0.5, fire",
}
MORE = {"shrink_perturb": {"init": "fresh"}, "selective_reinit": {"choose": "share"}}


def settings_of(method: str) -> tuple[str, dict[str, Any]]:
    """A method's name and settings, from its words in `METHODS`."""
    name, *pairs = method.removesuffix(" fresh").split()
    return name, dict((k, ast.literal_eval(v)) for k, v in (p.split("=") for p in pairs)) | MORE.get(name, {})


def a_network(saved: dict[str, Any] | None, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """As it was saved, or new."""
    torch.manual_seed(seed)
    net = DAY["make_net"]()
    optimizer = torch.optim.Adam(net.parameters(), lr=DAY["LR"])
    if saved is not None:
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))  # torch takes the tensors themselves
    return net, optimizer


def with_regularizer(method: str, saved: dict[str, Any] | None, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network with a regularizer, whose reference is the network as it is now or, with ``fresh``, a new one."""
    net, optimizer = a_network(saved, seed)
    name, settings = settings_of(method)
    torch.manual_seed(10_000 + seed)
    reference = DAY["make_net"]() if method.endswith(" fresh") else net
    attach(make_regularizer(name, reference, **settings), optimizer, net)
    return net, optimizer


def intervened(method: str, net: nn.Module, optimizer: Any, day: int, seed: int) -> float:
    """The accuracy on the `day`'s data right afterwards."""
    torch.manual_seed(20_000 + seed)
    inputs, labels = DAY["data_of"](day, seed)
    name, settings = ("", {}) if method == "a new optimizer" else settings_of(method)
    if not name:
        optimizer.state.clear()
    elif name != "none":
        if name == "selective_reinit":  # looks at the last gradients
            nn.functional.cross_entropy(net(inputs), labels).backward()  # type: ignore[no-untyped-call]
        example: dict[str, Any] = {"example": (inputs,)} if name == "redo" else {}
        make_intervention(name, **settings).apply_(net, optimizer, **example)
    with torch.no_grad():
        return float((net(inputs).argmax(-1) == labels).float().mean())


def measured(seed: int, steps: int) -> Iterator[tuple[str, str, int, int, float]]:
    """Table, method, seed, day, accuracy."""
    nights: dict[int, dict[str, Any]] = {}
    net: Any
    for table, methods in METHODS.items():
        for method in methods.split(", "):
            if table == "start":
                net, optimizer = with_regularizer(method, None, seed)
            elif table == "late":
                net, optimizer = with_regularizer(method, nights[LEARNING], seed)
                yield table, method, seed, LEARNING, DAY["train"](net, optimizer, LEARNING, min(10, steps), seed)
                net, optimizer = with_regularizer(method, nights[STOPPED], seed)
            else:
                for night in (LEARNING, STOPPED):
                    net, optimizer = a_network(nights[night], seed)
                    yield table, method, seed, night, intervened(method, net, optimizer, night, seed)
            for day in range(1 if table == "start" else STOPPED + 1, SHOWN[table][-1] + 1):
                yield table, method, seed, day, DAY["train"](net, optimizer, day, steps, seed)
                if (table, method) == ("start", "none") and day in (LEARNING, STOPPED):
                    with torch.no_grad():
                        silent = (net[:4](DAY["data_of"](day, seed)[0]) == 0).all(0)  # behind the second layer's ReLU
                    yield "dead", "second layer", seed, day, silent.float().mean().item()
                    nights[day] = copy.deepcopy({"net": net.state_dict(), "optimizer": optimizer.state_dict()})


def table(path: Path, name: str) -> list[str]:
    """Its lines, in Markdown: means over seeds and their range."""
    with path.open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["table"] == name]
    heads = [f"day {day}" + (", kept" if day == LEARNING else "") for day in SHOWN[name]]
    rows = [["", *heads], ["---"] * (1 + len(heads))]
    for method in dict.fromkeys(line["method"] for line in lines):
        row = [method]
        for day in SHOWN[name]:
            found = [float(x["accuracy"]) for x in lines if x["method"] == method and int(x["day"]) == day]
            row.append(f"{sum(found) / len(found):.2f} [{min(found):.2f}, {max(found):.2f}]")
        rows.append(row)
    return [f"| {' | '.join(row)} |" for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("table", choices=[*SHOWN])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=DAY["STEPS"], help="a day's")
    given = parser.parse_args()
    if not given.file.exists():
        torch.set_num_threads(1)
        lines = [line for seed in range(given.seeds) for line in measured(seed, given.steps)]
        with given.file.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("table", "method", "seed", "day", "accuracy"))
            writer.writerows((*line[:4], f"{line[4]:.3f}") for line in lines)
    print("\n".join(table(given.file, given.table)))


if __name__ == "__main__":
    main()
