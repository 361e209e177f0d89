"""What helps a network that has stopped learning: ``python scripts/already_trained.py FILE.csv TABLE``.

The network of ``examples/trained_every_day.py`` trains without a method until it has stopped learning, at the end of
day 30. From its file of that night go on, each by itself:

- ``late``: regularizers, attached on day 31 and kept, with today's weights or a fresh network's as their reference;
- ``once``: interventions, applied once on the morning of day 31, with nothing afterwards.

``start`` are regularizers that were there from day 1. Day 5 in the two others is the night of a network that still
learns: what it then knows of that day's labels right after an intervention, or after ten more steps on them with the
regularizer.

If FILE.csv is not there yet it is measured first, which takes about half an hour of CPU time on one thread for three
seeds. Then TABLE is printed: means over seeds of the accuracy on a day's data at its end, with the range in brackets.
The rows ``dead`` of the file are the share of dead units in the second layer, on both nights.
"""

import argparse
import copy
import csv
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rl_plasticity import attach, make_intervention, make_regularizer

DAY = runpy.run_path(str(Path(__file__).resolve().parents[1] / "examples" / "trained_every_day.py"))
LEARNING, STOPPED = 5, 30  # nights from which it goes on
SHOWN = {"start": (1, 10, 20, 30, 40), "late": (LEARNING, 31, 35, 40), "once": (LEARNING, 31, 35, 40, 50)}
START: list[tuple[str, dict[str, Any]]] = [
    ("none", {}),
    ("spectral", {"coef": 1e-3}),
    ("l2_init", {"coef": 1e-2}),
    ("swr", {"coef": 1e-2}),
]
LATE: list[tuple[str, dict[str, Any]]] = [
    ("none", {}),
    *(("spectral", {"coef": coef}) for coef in (1e-4, 1e-3, 1e-2, 1e-1)),
    *(("parseval", {"coef": coef}) for coef in (1e-3, 1e-2)),
    *(("orthogonal", {"coef": coef}) for coef in (1e-4, 1e-3)),
    *(("l2", {"coef": coef}) for coef in (1e-4, 1e-3, 1e-2)),
    *(("weight_decay", {"coef": coef}) for coef in (1e-4, 1e-3, 1e-2)),
    *(("l2_init", {"coef": coef, "fresh": fresh}) for coef in (1e-3, 1e-2) for fresh in (False, True)),
    *(("wasserstein", {"coef": 10.0, "fresh": fresh}) for fresh in (False, True)),
    *(("ewc", {"coef": 100.0, "fresh": fresh}) for fresh in (False, True)),
    *(("swr", {"coef": coef, "fresh": fresh}) for coef in (1e-3, 1e-2) for fresh in (False, True)),
    *(("normalize_project", {"fresh": fresh}) for fresh in (False, True)),
    *(("wrs", {"every_updates": every}) for every in (10, 1_000)),
    ("hypersphere", {}),
    ("weight_clipping", {"coef": 2.0}),
    *(("continual_backprop", {"coef": 1e-3, "fresh": fresh}) for fresh in (False, True)),
    ("self_normalized_resets", {}),
    ("churn", {"coef": 10.0}),
    ("hare_tortoise", {"every_updates": 1_000}),
]
ONCE: list[tuple[str, dict[str, Any]]] = [
    ("none", {}),
    ("a new optimizer", {}),
    ("periodic", {}),
    *(("head", {"num_layers": layers}) for layers in (1, 2, 3)),
    *(("shrink_perturb", {"coef": coef, "init": "fresh"}) for coef in (0.2, 0.5, 0.8)),
    *(("redo", {"threshold": threshold}) for threshold in (0.0, 0.025, 0.1)),
    *(("selective_reinit", {"choose": "share", "factor": share}) for share in (0.1, 0.5)),
    ("fire", {}),
]


def label(method: str, settings: dict[str, Any]) -> str:
    words = [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in settings.items()]
    words = [word for word in words if not word.startswith(("fresh", "init", "choose"))]
    return " ".join([method, *words, *(["fresh"] if settings.get("fresh") else [])])


def a_network(saved: dict[str, Any] | None, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """As it was saved, or new."""
    torch.manual_seed(seed)
    net = DAY["make_net"]()
    optimizer = torch.optim.Adam(net.parameters(), lr=DAY["LR"])
    if saved is not None:
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))  # torch takes the tensors themselves
    return net, optimizer


def attached(method: str, settings: dict[str, Any], net: nn.Module, optimizer: Any, seed: int) -> None:
    """With the network as it is now as the reference, or with ``fresh`` in the settings a new one."""
    own = {name: value for name, value in settings.items() if name != "fresh"}
    torch.manual_seed(10_000 + seed)
    reference = DAY["make_net"]() if settings.get("fresh") else net
    attach(make_regularizer(method, reference, **own), optimizer, net)


def intervened(method: str, settings: dict[str, Any], net: nn.Module, optimizer: Any, day: int, seed: int) -> float:
    """The accuracy on the `day`'s data right afterwards."""
    torch.manual_seed(20_000 + seed)
    inputs, labels = DAY["data_of"](day, seed)
    if method == "a new optimizer":
        optimizer.state.clear()
    elif method != "none":
        if method == "selective_reinit":  # looks at the last gradients
            nn.functional.cross_entropy(net(inputs), labels).backward()
        example = {"example": (inputs,)} if method == "redo" else {}
        make_intervention(method, **settings).apply_(net, optimizer, **example)
    with torch.no_grad():
        return (net(inputs).argmax(-1) == labels).float().mean().item()


def measured(seed: int, steps: int) -> Iterator[tuple[str, str, int, int, float]]:
    """Table, method, seed, day, accuracy."""

    def days(net: nn.Module, optimizer: Any, first: int, last: int) -> Iterator[tuple[int, float]]:
        for day in range(first, last + 1):
            yield day, DAY["train"](net, optimizer, day, steps, seed)

    ends = {table: shown[-1] for table, shown in SHOWN.items()}
    nights: dict[int, dict[str, Any]] = {}
    for method, settings in START:
        net, optimizer = a_network(None, seed)
        if method != "none":
            attached(method, settings, net, optimizer, seed)
        for day, accuracy in days(net, optimizer, 1, ends["start"]):
            yield "start", label(method, settings), seed, day, accuracy
            if method == "none" and day in (LEARNING, STOPPED):
                with torch.no_grad():
                    silent = (net[:4](DAY["data_of"](day, seed)[0]) == 0).all(0)  # behind the second layer's ReLU
                yield "dead", "second layer", seed, day, silent.float().mean().item()
                nights[day] = copy.deepcopy({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    for method, settings in LATE:
        name = label(method, settings)
        net, optimizer = a_network(nights[LEARNING], seed)
        attached(method, settings, net, optimizer, seed)
        yield "late", name, seed, LEARNING, DAY["train"](net, optimizer, LEARNING, min(10, steps), seed)
        net, optimizer = a_network(nights[STOPPED], seed)
        attached(method, settings, net, optimizer, seed)
        for day, accuracy in days(net, optimizer, STOPPED + 1, ends["late"]):
            yield "late", name, seed, day, accuracy
    for method, settings in ONCE:
        name = label(method, settings)
        for night in (LEARNING, STOPPED):
            net, optimizer = a_network(nights[night], seed)
            yield "once", name, seed, night, intervened(method, settings, net, optimizer, night, seed)
        for day, accuracy in days(net, optimizer, STOPPED + 1, ends["once"]):
            yield "once", name, seed, day, accuracy


def measure(path: Path, seeds: int, steps: int, say: Callable[..., None] = print) -> None:
    torch.set_num_threads(1)
    lines = []
    for seed in range(seeds):
        for line in measured(seed, steps):
            lines.append(line)
            if line[0] in SHOWN and line[3] == SHOWN[line[0]][-1]:
                say(*line, flush=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("table", "method", "seed", "day", "accuracy"))
        writer.writerows((*line[:4], f"{line[4]:.3f}") for line in lines)


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
        measure(given.file, given.seeds, given.steps)
    print("\n".join(table(given.file, given.table)))


if __name__ == "__main__":
    main()
