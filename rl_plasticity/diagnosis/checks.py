"""Other reasons than lost plasticity why a network does not learn. Each check returns one sentence, or none."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rl_plasticity.diagnosis.subject import Subject, groups_of
from rl_plasticity.diagnosis.tasks import Criterion, TaskSource, TrialTask, called
from rl_plasticity.diagnosis.trials import learn
from rl_plasticity.errors import SettingsError, first_line, in_short
from rl_plasticity.structure import tensors_in, with_tensors

NO_NOISE = 1e-3  # a standard deviation of actions from -1 to 1 with which an agent hardly explores
HALF = (torch.bfloat16, torch.float16)
CHECKED = 20  # updates whose gradients are looked at
BLIND = 0.03  # the share of the outputs' spread that columns must have to be seen
FAR = 3e-3  # the share of the loss that outputs must be able to change


def not_finite(net: nn.Module) -> list[str]:
    """Weights that are infinite or NaN."""
    bad = {name: int((~p.isfinite()).sum()) for name, p in net.named_parameters()}
    found = [f"{count} of {net.get_parameter(name).numel()} in {name!r}" for name, count in bad.items() if count]
    return [f"not finite: {in_short(found)}"] if found else []


class _Seen(NamedTuple):
    """What a network makes of a batch.

    Args:
        loss: summed over the runs.
        reach: the share of the loss that outputs of the present size, or of size 1, could change; 0 if none can.
        size: that size.
        blind: how far the outputs move, as a share of their spread, if the small columns of the inputs are held still.
    """

    loss: float
    reach: float
    size: float
    blind: float


def of_data(nets: Sequence[nn.Module], source: TaskSource, axis: int) -> list[str]:
    """Data that no network can learn. Each batch goes once through each network.

    Values of very different sizes are a cause only if no network copes with them, as one with a norm layer may.

    Args:
        nets: a fresh network and the one that is diagnosed. Buffers of them may change.
        axis: that of the rows.

    Raises:
        SettingsError: a batch that the networks or the loss cannot take.
    """
    targets = torch.cat([x.flatten() for _, *given in source.given for x in tensors_in(given)] or [torch.zeros(1)])
    if len(targets) > 1 and bool((targets == targets[0]).all()):
        return [f"constant targets: all {len(targets)} are {targets[0].item():g}"]
    criterion = source.criterion or (source.own[0] if source.own else None)
    has_effect = False
    for k, batch in enumerate(source.given):
        where = f"batch {k}" if source.bank is None else "the inputs"
        level, large = _small_columns(batch[0], axis)
        try:
            seen = [_seen(net, batch, criterion, axis, level) for net in nets]
        except Exception as error:  # whatever a network or a loss may raise
            raise SettingsError(f"{where} cannot be learned: {first_line(error)}") from error
        fresh, size = seen[0], max(one.size for one in seen)
        if not math.isfinite(fresh.loss):
            return [f"not finite: {where}: a fresh network's loss is {fresh.loss:g}{_reason(batch, axis)}"]
        if fresh.blind < BLIND and not any(one.blind >= BLIND for one in seen):
            return [f"scales: {where}: column {large} is so large that a fresh network hardly sees most other columns"]
        for y in tensors_in(batch[1:]) if 0 < max(one.reach for one in seen) < FAR else ():
            sizes = y.double().square().mean(axis).sqrt().flatten()
            if y.is_floating_point() and float(sizes.max()) > 100 * size:
                column = f"column {int(sizes.argmax())} of the targets is about {sizes.max():.3g}"
                return [f"scales: {where}: {column}, and outputs begin within {size:.3g}"]
        has_effect = has_effect or fresh.reach > 0
    return [] if has_effect else [f"constant loss: it is {fresh.loss:g}, and no output changes it"]


def _seen(net: nn.Module, batch: Sequence[Any], criterion: Criterion | None, axis: int, level: Any) -> _Seen:
    torch.manual_seed(0)
    outputs = called(net, batch[0])
    found = [x for x in tensors_in(outputs) if x.requires_grad]
    loss = (criterion(outputs, *batch[1:]) if criterion else torch.stack([x.sum() for x in found])).sum()
    slopes = torch.autograd.grad(loss, found, allow_unused=True) if loss.requires_grad else ()
    slope = sum(float(g.abs().sum()) for g in slopes if g is not None)
    size, blind = max([1.0, *(float(x.detach().abs().max()) for x in found)]), math.nan
    if level is not None and found and found[0].ndim > axis:
        torch.manual_seed(0)
        same = next(x for x in tensors_in(called(net, level)) if x.requires_grad)
        spread = found[0] - found[0].mean(axis, keepdim=True)
        blind = float(((same - found[0]).norm() / spread.norm()).detach())
    value = float(loss.detach())
    return _Seen(value, slope and slope * size / max(abs(value), 1e-30), size, blind)


def _small_columns(inputs: Any, axis: int) -> tuple[Any, int]:
    """Inputs with each column below a hundredth of the largest at its mean, and that one; None if they are few."""
    rows = [x for x in tensors_in(inputs) if x.is_floating_point() and x.ndim > axis]
    spreads = torch.cat([torch.zeros(1), *(x.float().std(axis, correction=0).flatten().cpu() for x in rows)])[1:]
    least = float(spreads.max()) / 100 if len(spreads) else 0
    if not 0 < 2 * ((spreads > 0) & (spreads < least)).sum() >= (spreads > 0).sum():
        return None, 0

    def level(x: Tensor) -> Tensor:
        small = x.std(axis, keepdim=True, correction=0) < least
        return torch.where(small, x.mean(axis, keepdim=True), x)

    return with_tensors(inputs, lambda x: level(x) if any(x is y for y in rows) else x), int(spreads.argmax())


def _reason(batch: Sequence[Any], axis: int) -> str:
    """The first value that is not finite, or targets that are all the same."""
    for what, values in zip(("inputs", "targets"), batch, strict=False):
        for x in tensors_in(values):
            if len(bad := (~x.isfinite()).nonzero()):
                first = bad[0].tolist()
                column = f", column {', '.join(map(str, first[axis + 1 :]))}" * (len(first) > axis + 1)
                return f", as row {first[axis]}{column} of the {what} is {x[tuple(first)].item()}"
    labels = tensors_in(batch[1:])
    same = labels and bool((labels[0] == labels[0].flatten()[0]).all())
    return f", as all targets are {labels[0].flatten()[0].item():g}" if same else ""


def learning_rate(optimizers: Sequence[Optimizer]) -> list[str]:
    """A learning rate of 0, or one that a schedule has brought below a hundredth of its first value."""
    groups = groups_of(optimizers)
    if groups and all(float(group["lr"]) == 0 for group in groups):
        return ["learning rate: it is 0"]
    rates = [(float(group.get("initial_lr", 0)), float(group["lr"])) for group in groups]
    return [f"learning rate: it has decayed from {a:g} to {b:g}" for a, b in rates if 0 < b < a / 100][:1]


def of_updates(subject: Subject, task: TrialTask, seed: int, clip: float | None) -> list[str]:
    """What the first updates of a copy show that learns as the network is trained: what does not move, and why not."""
    net, optimizers = subject.as_it_is(task)
    sizes: dict[str, Tensor] = {}  # of the gradients, summed over the updates

    def note_gradients() -> None:
        for name, p in net.named_parameters():
            if p.grad is not None:
                sizes[name] = sizes.get(name, 0) + p.grad.detach().float().abs()

    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    learn(net, optimizers, task.begin(net), updates := min(CHECKED, task.updates), seed, clip, note_gradients)
    rates = {id(p): group["lr"] for group in groups_of(optimizers) for p in group["params"]}
    still: dict[str, list[str]] = {}
    for name, p in net.named_parameters():
        if not p.requires_grad:
            reason = "frozen: {} do not require a gradient"
        elif id(p) not in rates:
            reason = "not in the optimizer: {}"
        elif name not in sizes:
            reason = "no gradient: the loss does not reach {}, as behind detach()"
        elif rates[id(p)] == 0:
            reason = "learning rate: it is 0 for {}"
        elif not (has := sizes[name] > 0).any():
            reason = "zero gradient: the loss does not change with {}"
        elif float((p != before[name])[has].float().mean()) < 0.5:
            reason = "rounding: the steps are too small for most entries of {}"
        else:
            continue
        still.setdefault(reason, []).append(name)
    every = sum(p.numel() for p in before.values())
    found = [
        reason.format(f"{in_short(names)} ({sum(before[name].numel() for name in names) / every:.0%} of the weights)")
        for reason, names in still.items()
    ]
    norm = math.hypot(*(float(size.norm()) / updates for size in sizes.values()))
    if clip is not None and clip / (norm or 1) < 0.01:
        found.append(f"clipping: max_grad_norm={clip:g} leaves {clip / norm:.2%} of the gradient")
    if task.with_users_loss:  # drawn targets have gradients of another size than those that are remembered
        found += _stale_moments(subject, {name: size / updates for name, size in sizes.items()})
    return found


def _stale_moments(subject: Subject, gradients: Mapping[str, Tensor]) -> list[str]:
    """Adam's second moments that remember gradients far larger than the present ones.

    The number is the median over the weights of sqrt(v_hat) / |g|. It is near 1 where the moments fit.
    """
    ratios = [torch.zeros(0)]
    for optimizer, (name, g) in product(subject.optimizers, gradients.items()):
        state = optimizer.state.get(subject.net.get_parameter(name), {})
        if "exp_avg_sq" in state:
            unbiased = 1 - optimizer.defaults["betas"][1] ** float(state.get("step", 0))
            root = (state["exp_avg_sq"].float() / max(1e-12, unbiased)).sqrt()
            ratios.append((root / g)[g != 0].cpu())
    ratio = float(torch.cat(ratios).median())  # NaN of none
    return [f"stale moments: Adam's remember gradients {ratio:.3g} times as large as today's"] if ratio > 30 else []


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
    """A policy whose log standard deviation is at its bounds, where it has no gradient, or that hardly explores.

    Args:
        log_std: the bounded values for some observations.
        least, most: the bounds.
    """
    at_bounds = float(((log_std <= least) | (log_std >= most)).float().mean())
    gone = float((log_std.exp() < NO_NOISE).float().mean())
    found = [f"log_std: {at_bounds:.0%} of it is at its bounds, where it has no gradient"] * (at_bounds > 0.5)
    return found + [f"entropy: the standard deviation of {gone:.0%} of the actions is below {NO_NOISE:g}"] * (
        gone > 0.5
    )
