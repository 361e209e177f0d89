"""Measures of what a network does and can still learn, ``-> [*runs]``, in the dtype of the input."""

import torch
from torch import Tensor


def representation_change(before: Tensor, after: Tensor) -> Tensor:
    """||H' - H||_F / ||H||_F between hidden activations ``[*runs, batch, units]`` on the same inputs, ``[*runs]``.

    0 is no change. If `before` is all zero: 0 when nothing changed, else infinite. Lewandowski et al. (2024), section
    5.2, say "the distance between the hidden activations"; that it is relative to their size is ours. Variants: not
    divided by the norm (`representation_distance`), divided per example, 1 - cosine similarity, or 1 - linear CKA,
    which ignores rotations.
    """
    moved = torch.linalg.matrix_norm(after - before)
    return torch.where(moved > 0, moved / torch.linalg.matrix_norm(before), 0)


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
