"""Figure 1 of the SWR paper: weights scaled with and without proportionality.

``python papers/swr_figure1.py --data cifar10``

Section 3.2: a CNN is trained for 100 epochs. Then the weights of every layer are scaled by a ratio. In one branch
nothing else changes. In the other the bias of layer l is scaled by the ratio to the power of l, as in Theorem 1, so
that f' = C f. Each branch is trained for 50 more epochs. Dashed: the test accuracy right after scaling. Solid: the best
one of the further epochs. Black: the best one before.

The paper gives the epochs, the data and 5 runs. Its Appendix D gives the CNN, Adam with 0.001, and batches of 256. It
does not say which network this figure shows, which ratios, what happens to Adam's moments (here they stay), and whether
the biases are scaled without proportionality (here they are not).
"""

import argparse
import copy
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")

import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

from rl_plasticity import DATA, NETWORKS, OPTIMIZERS, TASKS, Learner, SettingsError, make_regularizer
from rl_plasticity.metrics.statistics import student_interval
from rl_plasticity.seeding import RunStreams, derive
from rl_plasticity.structure import layers
from rl_plasticity.tasks import Data, Task, load
from rl_plasticity.training.epochs import batches, cross_entropy, evaluate

RATIOS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
SEEDS = range(5)
WHOLE = (RATIOS, 100, 50, 256)  # ratios, epochs before scaling, epochs after it, batch size
SMALL = (RATIOS[::3], 20, 10, 64)


class Scaled(NamedTuple):
    """Test accuracies ``[runs]`` right after scaling, and the best ones of the further epochs."""

    after: Tensor
    best: Tensor


@torch.no_grad()
def scale_(net: nn.Module, ratio: float, proportional: bool) -> None:
    """Scale the weights of every layer by `ratio`, and with `proportional` the biases as in Theorem 1."""
    target = copy.deepcopy(net) if proportional else net
    for layer in layers(target):
        weight = layer.weight(target)
        if weight is not None:
            weight.mul_(ratio)
    if proportional:  # SWR with coef=1 restores the norms it was made with, so its factor is the ratio
        make_regularizer("swr", target, coef=1.0).project_(net)


def learner_of(shape: tuple[int, ...], num_classes: int, seeds: Sequence[int]) -> Learner:
    """An untrained CNN with Adam."""
    adam, cnn = OPTIMIZERS["adam"], NETWORKS["cnn"]
    return Learner(lambda s: cnn(shape, num_classes, s), seeds, make_optimizer=lambda net: adam(net, lr=1e-3))


def train(learner: Learner, task: Task, data: Data, order: RunStreams, epochs: int, batch_size: int) -> Tensor:
    """Train on the task; returns the test accuracy after each epoch, ``[epochs, runs]``."""
    accuracies = []
    for _ in range(epochs):
        for x, y in batches(task, data, order, batch_size, learner.runs):
            learner.minimize(cross_entropy(learner.net(x), y))
        accuracies.append(evaluate(task, data, learner)["test_accuracy"])
    return torch.stack(accuracies)


def scaled(
    data: Data, seeds: Sequence[int], ratios: Sequence[float], epochs: int, more_epochs: int, batch_size: int
) -> tuple[Tensor, dict[tuple[float, bool], Scaled]]:
    """The best test accuracies before scaling, ``[runs]``, and the outcomes of each ratio, proportional or not."""
    task = TASKS["stationary"](data, seeds).task(0)
    learner = learner_of(data.shape, data.num_classes, seeds)
    before = train(learner, task, data, RunStreams([derive(s, 0) for s in seeds]), epochs, batch_size).amax(0)
    outcomes = {}
    for ratio in ratios:
        for proportional in (False, True):
            branch = copy.deepcopy(learner)
            scale_(branch.net, ratio, proportional)
            after = evaluate(task, data, branch)["test_accuracy"]
            order = RunStreams([derive(s, 1) for s in seeds])  # all branches see the same images in the same order
            outcomes[ratio, proportional] = Scaled(
                after, train(branch, task, data, order, more_epochs, batch_size).amax(0)
            )
    return before, outcomes


def interval(accuracies: Tensor) -> str:
    """The mean with Student's interval, as text."""
    low, high = student_interval([accuracies.double().numpy()])
    return f"{accuracies.mean():.4f} [{low:.4f}, {high:.4f}]"


def main(small: bool = False, data: str = "cifar10", root: str | None = None, out: str = "swr_figure1.png") -> None:
    """Print the table and draw the figure."""
    name, (ratios, epochs, more_epochs, batch_size) = ("digits", SMALL) if small else (data, WHOLE)
    before, outcomes = scaled(load(name, root), SEEDS, ratios, epochs, more_epochs, batch_size)
    print(f"{name}, {len(SEEDS)} runs, means with 95 % intervals")
    print(f"best test accuracy of {epochs} epochs: {interval(before)}")
    print(f"ratio  proportional  {'right after scaling':<22}  best of {more_epochs} more epochs")
    for (ratio, proportional), o in outcomes.items():
        kind = "yes" if proportional else "no"
        print(f"{ratio:>5g}  {kind:>12}  {interval(o.after):<22}  {interval(o.best)}")

    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    titles = ("without proportionality", "with proportionality")
    for axis, title, proportional in zip(axes, titles, (False, True), strict=True):
        axis.axhline(float(before.mean()), color="black", label=f"best of {epochs} epochs")
        for k, label, look in ((1, f"best of {more_epochs} more", "b.-"), (0, "right after scaling", "r.--")):
            axis.plot(ratios, [outcomes[ratio, proportional][k].mean() for ratio in ratios], look, label=label)
        axis.set(title=title, xlabel="ratio by which weights are scaled")
        axis.invert_xaxis()
    axes[0].set_ylabel("test accuracy")
    axes[0].legend(fontsize=7)
    figure.savefig(out, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Figure 1 of the SWR paper.")
    parser.add_argument("--small", action="store_true", help="the bundled digits, 20 and 10 epochs, 4 ratios")
    parser.add_argument("--data", default="cifar10", help=f"one of {', '.join(DATA)}")
    parser.add_argument("--data.root", dest="root", help="folder with the data set; downloaded by default")
    parser.add_argument("--out", default="swr_figure1.png", help="file of the figure")
    try:
        main(**vars(parser.parse_args()))
    except SettingsError as error:
        parser.error(str(error))
