"""Reasons other than lost plasticity why a network does not learn. Each check returns one sentence, or none."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from rl_plasticity.diagnosis.subject import groups_of
from rl_plasticity.diagnosis.tasks import Criterion, called
from rl_plasticity.diagnosis.trials import Trials, learn
from rl_plasticity.errors import SettingsError, first_line, in_short
from rl_plasticity.seeding import derive, random_states_kept
from rl_plasticity.structure import tensors_in, with_tensors
from rl_plasticity.structure.layer import runs_of

NO_NOISE = 1e-3  # a standard deviation of actions from -1 to 1 with which an agent hardly explores
HALF = (torch.bfloat16, torch.float16)
CHECKED = 20  # updates whose gradients are looked at
BLIND = 0.03  # the share of the outputs' spread that columns must have to be seen
FAR = 3e-3  # the share of the loss that outputs must be able to change


def not_finite(net: nn.Module) -> list[list[str]]:
    """Weights of each run that are infinite or NaN."""
    found: list[list[str]] = [[] for _ in range(math.prod(runs_of(net)))]
    for name, p in net.named_parameters():
        bad = (~p.isfinite()).reshape(len(found), -1)
        for of_run, count in zip(found, bad.sum(1).tolist(), strict=True):
            of_run += [f"{count} of {bad.shape[1]} in {name!r}"] * (count > 0)
    return [[f"not finite: {in_short(of_run)}"] if of_run else [] for of_run in found]


def of_data(trials: Trials) -> list[str]:
    """Data that no network can learn. Each batch goes once through a fresh network and the one that is diagnosed.

    A network whose outputs its own loss cannot take, where it takes a fresh network's, cannot begin to learn either.
    Values of very different sizes are a cause only if neither copes with them, as one with a norm layer may.

    Raises:
        SettingsError: a batch that the networks or the loss cannot take.
    """
    subject, source, has_effect = trials.subject, trials.source, False
    targets = torch.cat([x.flatten() for _, *given in source.given for x in tensors_in(given)] or [torch.zeros(1)])
    axis, criterion = len(subject.runs), source.own and source.own[0]
    nets = [subject.copied(weights).net for weights in (trials.fresh[0], None)]
    for k, batch in enumerate(source.given):
        where = f"batch {k}" if source.bank is None else "the inputs"
        level, large = _small_columns(batch[0], axis)
        seen: list[tuple[float, float, float, float]] = []
        for net in nets:
            try:
                with random_states_kept(subject.net.parameters()), torch.enable_grad():
                    seen.append(_seen(net, batch, criterion, axis, level))
            except Exception as error:  # whatever a network or a loss may raise
                if seen and not axis:  # the loss of a policy whose standard deviation is negative, for example
                    return [
                        f"outputs: {where}: the loss fails for this network, not for a fresh one: {first_line(error)}"
                    ]
                raise SettingsError(f"{where} cannot be learned: {first_line(error)}") from error
        if len(targets) > 1 and bool((targets == targets[0]).all()):
            return [f"constant targets: all {len(targets)} are {targets[0].item():g}"]
        (loss, mine), (reach, other), (size, same), blind = zip(*seen, strict=True)
        if not math.isfinite(loss):
            return [f"not finite: {where}: a fresh network's loss is {loss:g}{_reason(batch, axis)}"]
        if not axis and not math.isfinite(mine):  # of several runs one alone may be so
            return [f"outputs: {where}: this network's loss is {mine:g}, and a fresh one's is {loss:.3g}"]
        if blind[0] < BLIND and not blind[1] >= BLIND:
            return [f"scales: {where}: column {large} is so large that a fresh network hardly sees most other columns"]
        for y in tensors_in(batch[1:]) if 0 < max(reach, other) < FAR else ():
            most, column = y.double().square().mean(axis).sqrt().flatten().max(0)
            if y.is_floating_point() and most > 100 * (size := max(size, same)):
                which = f"column {int(column)} of the targets"
                return [f"scales: {where}: {which} is about {most:.3g}, but outputs start within {size:.3g}"]
        has_effect = has_effect or reach > 0
    return [] if has_effect else [f"constant loss: it is {loss:g}, and no output changes it"]


def _seen(
    net: nn.Module, batch: Sequence[Any], criterion: Criterion | None, axis: int, level: Any
) -> tuple[float, float, float, float]:
    """What a network makes of a batch: four numbers.

    1. The loss.
    2. The share of it that outputs of the present size, or of size 1, could change; 0 if they have no effect.
    3. That size.
    4. How far the outputs move, as a share of their spread, if the small columns of the inputs are held still.

    Args:
        level: inputs with such columns; None if there are few.
    """
    torch.manual_seed(0)
    outputs = called(net, batch[0])
    found = [x for x in tensors_in(outputs) if x.requires_grad]
    each = criterion(outputs, *batch[1:]) if criterion else torch.stack([x.sum() for x in found])
    finite = each.isfinite()
    loss = (each[finite] if axis and finite.any() else each).sum()  # one run that is not says nothing of the others
    slopes = torch.autograd.grad(loss, found, allow_unused=True) if loss.requires_grad else ()
    slope = sum(float(g.abs().sum()) for g in slopes if g is not None)
    size, value, blind = max([1.0, *(float(x.detach().abs().max()) for x in found)]), float(loss.detach()), math.nan
    if level is not None and found:
        torch.manual_seed(0)
        change = next(x for x in tensors_in(called(net, level)) if x.requires_grad) - found[0]
        blind = float((change.norm() / (found[0] - found[0].mean(axis, keepdim=True)).norm()).detach())
    return value, slope and slope * size / max(abs(value), 1e-30), size, blind


def _small_columns(inputs: Any, axis: int) -> tuple[Any, int]:
    """Inputs with each column below a hundredth of the largest at its mean, and that one; None if they are few."""

    def spread(x: Tensor) -> Tensor:
        return x.std(axis, keepdim=True, correction=0)

    every = [spread(x).flatten().float() for x in tensors_in(inputs) if x.is_floating_point()]
    spreads = torch.cat(every) if every else torch.zeros(1)
    least = float(spreads.max()) / 100
    small = (spreads > 0) & (spreads < least)
    if not small.any() or 2 * small.sum() < (spreads > 0).sum():
        return None, 0

    def level(x: Tensor) -> Tensor:
        return torch.where(spread(x) < least, x.mean(axis, keepdim=True), x) if x.is_floating_point() else x

    return with_tensors(inputs, level), int(spreads.argmax())


def _reason(batch: Sequence[Any], axis: int) -> str:
    """The first value that is not finite, or targets that are all the same."""
    for what, values in zip(("inputs", "targets"), batch, strict=False):
        for x in tensors_in(values):
            for place in (~x.isfinite()).nonzero().tolist()[:1]:
                names = ", ".join(map("{} {}".format, ("row", "column"), place[axis:]))
                return f", because {names} of the {what} is {x[tuple(place)].item()}"
    same = {y for x in tensors_in(batch[1:]) for y in x.flatten().tolist()}
    return f", because all targets are {same.pop():g}" if len(same) == 1 else ""


def of_updates(trials: Trials) -> tuple[list[str], bool]:
    """What the first updates of a copy, which learns as the network is trained, show: what does not move, and why.

    Also whether anything moves, or could with the user's loss.
    """
    subject, task = trials.subject, trials.tasks[0]
    net, optimizers = subject.as_it_is(task)
    sizes: dict[Tensor, Tensor] = {}  # of the gradients, summed over the updates

    def note_gradient(p: Tensor) -> None:
        sizes[p] = sizes.get(p, 0) + cast(Tensor, p.grad).float().abs()

    for p in net.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(note_gradient)  # type: ignore[no-untyped-call]
    before, updates = {name: p.detach().clone() for name, p in net.named_parameters()}, min(CHECKED, task.updates)
    with random_states_kept(subject.net.parameters()):
        learn(net, optimizers, task.begin(net), updates, derive(trials.seed, 0, 2), trials.clip)
    rates = {p: group["lr"] for group in groups_of(optimizers) for p in group["params"]}
    still: dict[str, list[str]] = {}
    for name, p in net.named_parameters():
        if reason := _why_still(p, before[name], sizes.get(p), rates):
            still.setdefault(reason, []).append(name)
    every = sum(p.numel() for p in before.values())
    found = [
        reason.format(f"{in_short(names)} ({sum(before[name].numel() for name in names) / every:.0%} of the weights)")
        for reason, names in still.items()
    ]
    norm = math.hypot(*(float(size.norm()) / updates for size in sizes.values()))
    if trials.clip is not None and trials.clip / (norm or 1) < 0.01:
        found.append(f"clipping: max_grad_norm={trials.clip:g} leaves {trials.clip / norm:.2%} of the gradient")
    moves = any(not torch.equal(p, before[name]) for name, p in net.named_parameters())
    could = any(p.requires_grad and rates.get(p) for p in net.parameters())
    return found, moves or (could and not subject.knows(task))


def _why_still(p: Tensor, before: Tensor, size: Tensor | None, rates: Mapping[Tensor, float]) -> str:
    """Why a parameter did not move, with {} for its name; empty if it did.

    Args:
        before: its values before the updates.
        size: of its gradients; None if it had none.
        rates: the learning rates of parameters that an optimizer holds.
    """
    if not p.requires_grad:
        return "frozen: {} do not require a gradient"
    if p not in rates:
        return "not in the optimizer: {}"
    if size is None:
        return "no gradient: the loss does not reach {}, for example because of detach()"
    if rates[p] <= max(rates.values()) / 1000:
        return f"learning rate: it is {'at most a thousandth of the greatest' if rates[p] else '0'} for {{}}"
    if not (has := size != 0).any():
        return "zero gradient: the loss does not change with {}"
    if float((p != before)[has].float().mean()) < 0.5:
        kind = "rounding" if p.dtype in HALF else "vanishing steps"
        return f"{kind}: the steps are too small for most entries of {{}}"
    return ""


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
    return [f"values: the mean is {mean:.3g}, but rewards like these allow {most:.3g}"] if abs(mean) > most else []


def of_log_std(log_std: Tensor, least: float, most: float) -> list[str]:
    """A policy whose log standard deviation is at its bounds, where it has no gradient, or that hardly explores.

    Args:
        log_std: the bounded values for some observations.
        least, most: the bounds.
    """
    at_bounds = float(((log_std <= least) | (log_std >= most)).float().mean())
    gone = float((log_std.exp() < NO_NOISE).float().mean())
    found = [f"log_std: {at_bounds:.0%} of the values are at a bound, where they have no gradient"] * (at_bounds > 0.5)
    return found + [f"entropy: the standard deviation of {gone:.0%} of the actions is below {NO_NOISE:g}"] * (
        gone > 0.5
    )
