"""Figure 6 of the spectral paper, how a large spectral norm impedes training: ``python papers/spectral_figure6.py``.

Appendix A.1: a network without biases, f(x) = w2 ReLU(W1 x) with W1 = [[-1, c], [1/c, -1]] and w2 = [1/c, c], fits the
inputs x1 = (0, 1) and x2 = (1, 0), both with target 1, without error for every c. The spectral norm of W1 is c + 1/c.
Then the target of x1 becomes 0. The steps are gradient descent on the mean of (f(x) - y)^2 / 2 over both inputs, from
each c and with each step size. Nothing is random.

The paper gives the network, the inputs, the targets and the gradients. We chose c, the step sizes, the number of
updates, the return of x1's target to 1 afterwards, and what is plotted: the text of the paper that this was made from
has no pictures. (The paper says that the squared gradient norm of w2 is c; by its own gradient, [c, 0], it is c^2.)

Result: a large c is not slower. With a small step size it is faster, because its gradient is larger. But from a step
size of about 4 / c^2 on it overshoots: the loss rises by orders of magnitude. Soon the hidden unit ends up below zero
for both inputs, which fits the target 0 perfectly and never learns the target 1 again. This does not happen for a c
near 1.
"""

import argparse
import math
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")

import torch
from matplotlib import pyplot as plt
from torch import Tensor

INPUTS = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)  # x1, x2
CHANGED, AS_BEFORE = (torch.tensor(y, dtype=torch.float64) for y in ([0.0, 1.0], [1.0, 1.0]))
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)  # c
STEP_SIZES = tuple(float(f"{10 ** (k / 4):.2g}") for k in range(-12, 1))  # 0.001 to 1


class Outcomes(NamedTuple):
    """The highest loss, the last with target 0, and the last with target 1 again, each ``[c, step sizes]``."""

    highest: Tensor
    changed: Tensor
    changed_back: Tensor


def solution(c: float) -> tuple[Tensor, Tensor]:
    """Weights W1 ``[2, 2]`` and w2 ``[2]`` that fit both targets of the first task."""
    return torch.tensor([[-1, c], [1 / c, -1]], dtype=torch.float64), torch.tensor([1 / c, c], dtype=torch.float64)


def loss(w1: Tensor, w2: Tensor, targets: Tensor) -> Tensor:
    """The mean over both inputs of half the squared error: ``[..., 2, 2], [..., 2], [2] -> [...]``."""
    hidden = (w1.unsqueeze(-3) @ INPUTS.unsqueeze(-1)).squeeze(-1).relu()  # [..., inputs, units]
    return ((hidden * w2.unsqueeze(-2)).sum(-1) - targets).square().mean(-1) / 2


def descend_(w1: Tensor, w2: Tensor, targets: Tensor, step_sizes: Tensor, updates: int) -> Tensor:
    """The losses before each update and after the last one, ``[updates + 1, ...]``; infinite where not finite."""
    losses = []
    for _ in range(updates):
        now = loss(w1, w2, targets)
        losses.append(now.detach())
        of_w1, of_w2 = torch.autograd.grad(now.sum(), (w1, w2))  # each loss depends only on its own weights
        with torch.no_grad():
            w1 -= step_sizes[..., None, None] * of_w1
            w2 -= step_sizes[..., None] * of_w2
    return torch.stack([*losses, loss(w1, w2, targets).detach()]).nan_to_num(nan=math.inf)


def outcomes_of(scales: Sequence[float], step_sizes: Sequence[float], updates: int) -> Outcomes:
    """Train both tasks, from each solution and with each step size."""
    steps = torch.tensor(step_sizes, dtype=torch.float64).expand(len(scales), -1)
    w1, w2 = (
        torch.stack(w).unsqueeze(1).repeat(1, len(step_sizes), *([1] * w[0].ndim)).requires_grad_()
        for w in zip(*map(solution, scales), strict=True)
    )
    first = descend_(w1, w2, CHANGED, steps, updates)
    second = descend_(w1, w2, AS_BEFORE, steps, updates)
    return Outcomes(torch.cat([first, second]).amax(0), first[-1], second[-1])


def sizes(small: bool) -> tuple[int, Sequence[float]]:
    """The number of updates for each target, and the step sizes."""
    return (50, STEP_SIZES[::4]) if small else (300, STEP_SIZES)


def main(small: bool = False, out: str = "spectral_figure6.png") -> Outcomes:
    """Print the table and draw the figure; returns the outcomes."""
    updates, step_sizes = sizes(small)
    outcomes = outcomes_of(SCALES, step_sizes, updates)
    print(f"{updates} updates for each target; the loss begins at 0.25")
    print("spectral norm  step size  highest loss  last, target 0  last, target 1 again")
    for i, c in enumerate(SCALES):
        for j, step in enumerate(step_sizes):
            highest, changed, back = (float(values[i, j]) for values in outcomes)
            print(f"{c + 1 / c:>13.3f} {step:>10g} {highest:>13.3g} {changed:>15.2g} {back:>21.2g}")

    titles = ("highest loss", "last loss, target 0", "last loss, target 1 again")
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained")
    for axis, title, losses in zip(axes, titles, outcomes, strict=True):
        for i, c in enumerate(SCALES):
            values = losses[i].clamp(min=1e-12)  # the lower end of the lines
            colour = plt.get_cmap("viridis")(i / len(SCALES))
            axis.plot(step_sizes, values, marker=".", color=colour, label=f"{c + 1 / c:.3g}")
        axis.set(title=title, xlabel="step size", xscale="log", yscale="log")
    axes[0].legend(title="spectral norm", fontsize=7, title_fontsize=7)
    figure.savefig(out, dpi=150)
    plt.close(figure)
    return outcomes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Figure 6 of the spectral paper.")
    parser.add_argument("--small", action="store_true", help="50 updates and every fourth step size")
    parser.add_argument("--out", default="spectral_figure6.png", help="file of the figure")
    main(**vars(parser.parse_args()))
