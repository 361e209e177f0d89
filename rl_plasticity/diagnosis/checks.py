"""Other reasons than lost plasticity why a network does not learn. Each check returns one sentence, or none."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rl_plasticity.errors import in_short
from rl_plasticity.metrics import moved_fraction
from rl_plasticity.structure import tensors_in

HALF = (torch.bfloat16, torch.float16)


def not_finite(net: nn.Module) -> list[str]:
    """Weights that are infinite or NaN."""
    bad = {name: int((~p.isfinite()).sum()) for name, p in net.named_parameters()}
    found = [f"{count} of {net.get_parameter(name).numel()} in {name!r}" for name, count in bad.items() if count]
    return [f"not finite: {in_short(found)}"] if found else []


def constant(targets: Any) -> list[str]:
    """Targets that are all the same."""
    tensors = tensors_in(targets)
    if tensors and all(x.numel() > 1 and bool((x == x.flatten()[0]).all()) for x in tensors):
        return [f"constant targets: all {sum(x.numel() for x in tensors)} are {tensors[0].flatten()[0].item():g}"]
    return []


def frozen(net: nn.Module) -> list[str]:
    """Parameters that are not trained."""
    still, every = (sum(p.numel() for p in net.parameters() if kind or not p.requires_grad) for kind in (False, True))
    return [f"frozen: {still / every:.0%} of the weights do not require a gradient"] if still else []


def not_held(net: nn.Module, optimizers: Sequence[Optimizer]) -> list[str]:
    """Trainable parameters that no optimizer changes."""
    held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    left = [repr(name) for name, p in net.named_parameters() if p.requires_grad and id(p) not in held]
    return [f"not in the optimizer: {in_short(left)}"] if optimizers and left else []


def learning_rate(optimizers: Sequence[Optimizer]) -> list[str]:
    """A learning rate of 0, or one that a schedule has brought below a hundredth of its first value."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if groups and all(float(group["lr"]) == 0 for group in groups):
        return ["learning rate: it is 0"]
    rates = [(float(group.get("initial_lr", 0)), float(group["lr"])) for group in groups]
    return [f"learning rate: it has decayed from {a:g} to {b:g}" for a, b in rates if 0 < b < a / 100][:1]


def stale_moments(net: nn.Module, optimizers: Sequence[Optimizer], gradients: Mapping[str, Tensor]) -> list[str]:
    """Adam's second moments that remember gradients far larger than the present ones.

    The number is the median over the weights of sqrt(v_hat) / |g|, where g is the gradient of the first batch. It is
    near 1 where the moments fit the present gradients.
    """
    ratios = [torch.zeros(0)]
    for optimizer, (name, g) in product(optimizers, gradients.items()):
        state = optimizer.state.get(net.get_parameter(name), {})
        if "exp_avg_sq" in state:
            unbiased = 1 - optimizer.defaults["betas"][1] ** float(state.get("step", 0))
            root = (state["exp_avg_sq"].float() / max(1e-12, unbiased)).sqrt()
            ratios.append((root / g.abs())[g != 0].cpu())
    ratio = float(torch.cat(ratios).median())  # NaN of none
    return [f"stale moments: Adam's remember gradients {ratio:.3g} times as large as today's"] if ratio > 30 else []


def does_not_move(net: nn.Module, before: Mapping[str, Tensor]) -> list[str]:
    """Weights in half precision that updates leave unchanged, because the steps round to nothing."""
    halves = {name: p for name, p in net.named_parameters() if p.dtype in HALF}
    moved = float(moved_fraction(halves.values(), (before[name] for name in halves))) if halves else 1
    return [f"rounding: only {moved:.0%} of the weights in half precision moved in the first updates"] * (moved < 0.5)


def clipped(gradients: Mapping[str, Tensor], max_grad_norm: float | None) -> list[str]:
    """Clipping that leaves less than a hundredth of the gradient of the first batch."""
    norm = math.hypot(*(float(g.norm()) for g in gradients.values()))
    if max_grad_norm is None or not max_grad_norm / (norm or 1) < 0.01:
        return []
    return [f"clipping: max_grad_norm={max_grad_norm:g} leaves {max_grad_norm / norm:.2%} of the gradient"]


# --- of agents --------------------------------------------------------------------------------------------------------


def of_values(q: Tensor, reward: Tensor, discount: float) -> list[str]:
    """Values out of the reach of these rewards: |mean Q| > 2 max |r| / (1 - discount).

    The factor 2 leaves room for the entropy, which SAC's values include.

    Args:
        q, reward: values and rewards of some transitions, ``[n]``.
    """
    if discount >= 1 or not reward.abs().max() > 0:
        return []
    most, mean = 2 * float(reward.abs().max()) / (1 - discount), float(q.mean())
    return [f"values: the mean is {mean:.3g}, and rewards like these allow {most:.3g}"] if abs(mean) > most else []


def of_log_std(log_std: Tensor, least: float, most: float) -> list[str]:
    """A policy whose log standard deviation is at its bounds, where it has no gradient.

    Args:
        log_std: the bounded values for some observations.
        least, most: the bounds.
    """
    at_bounds = float(((log_std <= least) | (log_std >= most)).float().mean())
    return [f"log_std: {at_bounds:.0%} of it is at its bounds, where it has no gradient"] if at_bounds > 0.5 else []
