"""Which runs one process trains: a list among the settings of `reg` or `reset` trains all its members side by side."""

import itertools
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from rl_plasticity.configs.schema import Supervised, Train
from rl_plasticity.interventions import Intervention, make_intervention
from rl_plasticity.regularizers import Chain, Regularizer, SideBySide, make_regularizer

STRENGTHS = ("coef", "coef_classifier", "norm_decay")  # a regularizer takes one for each run


class Setting(NamedTuple):
    """What a group of runs, one for each seed, trains with: the groups `reg` and `reset`, free of lists."""

    name: str  # what sets it apart, "reg.coef=1e-05 reset.every_updates=1000"; "" where there is only one
    reg: dict[str, Any]
    reset: dict[str, Any]


def settings(s: Train | Supervised) -> list[Setting]:
    """Every combination of what the lists in `reg` and `reset` hold, in the order of the runs."""
    methods = [("", s.reg)]
    if s.reg["name"] == "side_by_side":
        methods = [(f"reg.name={name}", group) for name, group in s.reg.items() if name != "name"]
    return [
        Setting(" ".join(filter(None, (method, of_reg, of_reset))), reg, reset)
        for method, group in methods
        for of_reg, reg in _combinations("reg", group)
        for of_reset, reset in _combinations("reset", s.reset)
    ]


def _combinations(group: str, nested: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """`nested` with one member of each list that is in it, and a name made of those."""
    lists = sorted(_lists(nested), key=lambda one: one[0][-1] in STRENGTHS)  # next to each other: one regularizer
    for chosen in itertools.product(*(members for _, members in lists)):
        one, names = deepcopy(nested), []
        for (path, _), member in zip(lists, chosen, strict=True):
            names.append(f"{group}.{'.'.join(path)}={member}")
            inner = one
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = member
        yield " ".join(names), one


def _lists(nested: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    for key, value in nested.items():
        if isinstance(value, dict):
            yield from _lists(value, (*path, key))
        elif isinstance(value, list):
            yield (*path, key), value


def names(s: Train | Supervised) -> list[str]:
    """Each run's name in ``metrics.csv``: its seed, with what sets its setting apart before it."""
    seeds = range(s.seed, s.seed + s.seeds)
    return [f"{one.name} seed={seed}" if one.name else str(seed) for one in settings(s) for seed in seeds]


def seeds(s: Train | Supervised) -> list[int]:
    """Each run's seed: the same ones for every setting, so that settings can be compared in pairs."""
    return [*range(s.seed, s.seed + s.seeds)] * len(settings(s))


def regularizer_for(s: Train | Supervised) -> Callable[[nn.Module], Regularizer]:
    """From a network to the regularizer that the settings choose.

    Settings that differ in strengths alone make one regularizer with a strength for each run; others stand apart.
    """
    parts: list[tuple[int, Callable[[nn.Module], Regularizer]]] = []
    for _, alike in itertools.groupby(
        settings(s), lambda one: {k: v for k, v in one.reg.items() if k not in STRENGTHS}
    ):
        regs = [one.reg for one in alike]
        varied = [key for key in STRENGTHS if any(reg.get(key) != regs[0].get(key) for reg in regs)]
        strengths = {key: torch.tensor([reg[key] for reg in regs]).repeat_interleave(s.seeds) for key in varied}
        parts.append((len(regs) * s.seeds, partial(_regularizer, **(regs[0] | strengths))))
    return parts[0][1] if len(parts) == 1 else lambda net: SideBySide(net, *parts)


def _regularizer(net: nn.Module, name: str, **others: Any) -> Regularizer:
    if name == "chain":
        return Chain(net, *(_regularizer(net, **part) for part in others.values()))
    return make_regularizer(name, net, **others)


def interventions_for(s: Train | Supervised) -> list[tuple[Intervention, list[int] | None]]:
    """The interventions that the settings choose, each with the runs it is for (None: all)."""
    resets = [one.reset for one in settings(s)]
    found: list[tuple[Intervention, list[int] | None]] = []
    for i, reset in enumerate(resets):
        if reset["name"] != "none" and reset not in resets[:i]:
            groups = [j for j, other in enumerate(resets) if other == reset]
            own = [j * s.seeds + seed for j in groups for seed in range(s.seeds)]
            found.append((make_intervention(**reset), None if len(groups) == len(resets) else own))
    return found
