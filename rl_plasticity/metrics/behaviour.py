"""Measures of what a network does and can still learn, ``-> [*runs]``, in the dtype of the input."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def representation_change(before: Tensor, after: Tensor) -> Tensor:
    """||H' - H||_F / ||H||_F between hidden activations ``[*runs, batch, units]`` on the same inputs, ``[*runs]``.

    0 is no change. If `before` is all zero: 0 when nothing changed, else infinite. Lewandowski et al. (2024), section
    5.2, say "the distance between the hidden activations"; that it is relative to their size is ours. Variants: not
    divided by the norm (`representation_distance`), divided per example, 1 - cosine similarity, or 1 - linear CKA,
    which ignores rotations.
    """
    moved = torch.linalg.matrix_norm(after - before)
    return torch.where(moved > 0, moved / torch.linalg.matrix_norm(before), torch.zeros_like(moved))


def representation_distance(before: Tensor, after: Tensor) -> Tensor:
    """mean_b ||h'_b - h_b||_2 between hidden activations ``[*runs, batch, units]`` on the same inputs, ``[*runs]``.

    In the activations' own unit: it grows with them. `representation_change` does not.
    """
    distances: Tensor = torch.linalg.vector_norm(after - before, dim=-1)
    return distances.mean(-1)


def plasticity_score(loss_before: Tensor, loss_after: Tensor) -> Tensor:
    """1 - L_after / max(L_before, 1e-8), clamped to [0, 1]: the share of a batch's loss that an update on it removed.

    1: the batch is fitted; 0: no progress. For losses that are not negative. Source: Elsayed and Mahmood (2024,
    arXiv 2404.00781), "sample plasticity". Variants: the drop L_before - L_after itself; the drop over a whole task.
    """
    return (1 - loss_after / loss_before.clamp(min=1e-8)).clamp(0, 1)


def policy_entropy(log_prob: Tensor) -> Tensor:
    """-mean log pi(a|s) over ``[*runs, batch]`` of actions drawn from the policy, ``[*runs]``, in nats.

    A Monte-Carlo estimate. For a tanh-Gaussian `log_prob` must include the tanh's correction; the entropy of the
    Gaussian before the tanh, a variant under the same name, is larger.
    """
    return -log_prob.mean(-1)


def discounted_returns(
    reward: Tensor,
    discount: float | Tensor,
    terminated: Tensor,
    truncated: Tensor,
    bootstrap: Tensor | float = 0.0,
) -> Tensor:
    """The discounted return from each step on, G_t = r_t + discount * next_t, ``[T, ...] -> [T, ...]``; time leads.

    next_t is 0 after a terminated step, bootstrap_t (the value of the observation that step t led to) after a
    truncated one, and G_{t+1} otherwise. The last step, where the recording ends, counts as truncated unless it
    terminated; terminated wins over truncated.

    The bootstrap is needed where episodes end by a time limit only (DeepMind Control), but brings the critic's
    error in again, weighted by discount^(steps left). To measure the critic, keep the steps that are at least
    log(0.01) / log(discount) before a truncation. A bootstrap of 0 underestimates instead.

    Args:
        reward: ``[T, ...]``.
        discount: a number, or a tensor that broadcasts with ``reward[0]``.
        terminated, truncated: bool ``[T, ...]``.
        bootstrap: a number or a tensor that broadcasts with `reward`, of which truncated steps and the last one are
            used.
    """
    value = torch.as_tensor(bootstrap, dtype=reward.dtype, device=reward.device).expand_as(reward)
    ends = truncated.clone()
    ends[-1] = True
    returns = torch.empty_like(reward)
    following = torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        following = torch.where(ends[t], value[t], following).masked_fill(terminated[t], 0)
        following = returns[t] = reward[t] + discount * following
    return returns


def q_overestimation(q: Tensor, returns: Tensor) -> Tensor:
    """Mean of Q(s, a) - G over ``[*runs, batch]``, ``[*runs]``: positive where the critic promises too much.

    `returns` are discounted Monte-Carlo returns from the same states and actions (`discounted_returns`) under the
    policy that the critic evaluates. A soft critic (SAC) also counts entropy to come: give reward_t - discount * alpha
    * log pi(a_{t+1}|s_{t+1}) as the reward, or the bonus is part of the difference. Source: van Hasselt et al. (2016),
    Fujimoto et al. (2018). Variant: divided by the size of the mean return (Chen et al. 2021, REDQ).
    """
    return (q - returns).mean(-1)


def fit_fresh_targets(
    net: nn.Module,
    inputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    generator: torch.Generator | int = 0,
    updates: int = 100,
    lr: float = 1e-3,
    runs: tuple[int, ...] = (),
) -> Tensor:
    """How badly a copy of the network learns a random change of its own outputs, ``[*runs]``: 0 is perfect.

    The targets are y = f_0(x) + e: the network's present outputs plus independent standard normal noise. The value is
    mean (f(x) - y)^2 / var(e) over examples and outputs, after `updates` full-batch steps of a fresh Adam on the mean
    squared error. A network that learns nothing, or no more than a constant, has 1. What the network predicts now does
    not count: a function added to it for good leaves the value as it is. The noise is the same for all runs and depends
    on the generator only, so values are comparable between runs and over time.

    The budget matters: with many more updates than a task gives, networks that learn slowly pass for plastic. Compare
    with a fresh network of the same shape at the same `updates` and `lr`. The noise has unit size whatever the size of
    the outputs: a critic whose values reach thousands is asked for a small change.

    Source: Lyle et al. (2023), "Understanding plasticity in neural networks" (a probe of an agent's checkpoints), and
    target-fitting capacity, Lyle et al. (2022). Deviations: their targets are the mean of the network's predictions
    plus functions of the input, outputs of random networks, so the spread of the predictions has to be unlearned first.
    Ours keep the predictions and add independent noise, which measures memorizing. Up to version 0.2.0 the targets here
    were the mean prediction plus noise. Variants: noise of the size of the outputs' spread; loss of the
    mean predictor minus final loss.

    The copy is in evaluation mode: no dropout, BatchNorm with its running statistics. Half precision becomes float32 in
    the copy, since small updates would round to nothing. The network, its gradients and every global random state are
    untouched. Parameters with requires_grad false stay fixed.

    Args:
        net: returns a tensor or a tuple of tensors ``[*runs, ...]``, all of them fitted.
        inputs: tensors ``[*runs, n, ...]``: one, a tuple (``net(*inputs)``) or a dict (``net(**inputs)``).
        generator: the generator of the noise, which is advanced, or its seed.
        updates: the number of updates.
        lr: Adam's learning rate.
        runs: the leading axes; losses are summed over them, so gradients stay within a run.
            ``rl_plasticity.fit_fresh_targets`` finds them by itself.

    Raises:
        ValueError: inputs or outputs do not begin with the runs axes, the network cannot be called with the inputs, or
            it returns anything but tensors.
    """
    if isinstance(generator, int):
        generator = torch.Generator().manual_seed(generator)
    student = copy.deepcopy(net).eval()
    for tensor in (*student.parameters(), *student.buffers()):
        tensor.data = _full_precision(tensor.data)

    def given(x: Any) -> Tensor:
        return _full_precision(_beginning_with(runs, x, "inputs").detach())

    args = [] if isinstance(inputs, Mapping) else [given(x) for x in _parts(inputs)]
    named = {name: given(x) for name, x in inputs.items()} if isinstance(inputs, Mapping) else {}

    def predict() -> Tensor:  # [*runs, outputs of all examples]
        parts = [_beginning_with(runs, part, "outputs") for part in _parts(student(*args, **named))]
        return torch.cat([part.flatten(len(runs)) for part in parts], dim=-1)

    with torch.no_grad():
        try:
            start = predict()
        except (RuntimeError, TypeError, IndexError) as error:
            shapes = ", ".join(str([*x.shape]) for x in (*args, *named.values()))
            said = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"the network cannot be called with inputs of shape {shapes}: {said}") from error
        noise = torch.randn(start.shape[-1], generator=generator, device=generator.device).to(start)
        target = start + noise
    optimizer = torch.optim.Adam(student.parameters(), lr=lr)
    with torch.enable_grad():
        for _ in range(updates):
            optimizer.zero_grad()
            loss = (predict() - target).square().mean(-1).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        return (predict() - target).square().mean(-1) / noise.var(correction=0)


def _parts(given: Any) -> Sequence[Any]:
    return given if isinstance(given, tuple | list) else (given,)


def _beginning_with(runs: tuple[int, ...], part: Any, what: str) -> Tensor:
    if not isinstance(part, Tensor):
        raise ValueError(f"the network's {what} must be a tensor or a tuple of tensors, got {type(part).__name__}")
    if tuple(part.shape[: len(runs)]) != runs:
        axes = ", ".join(map(str, [*runs, "n", "..."]))
        raise ValueError(f"the network's {what} must be of shape [{axes}], behind its runs axes, got {[*part.shape]}")
    return part


def _full_precision(tensor: Tensor) -> Tensor:
    """float32 in place of half precision."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
