"""Whether an agent learns as well in bfloat16 as in float32: ``python scripts/learns_the_same.py FOLDER``.

Trains the preset demo with ``precision=float32`` and ``bfloat16``, without a regularizer and with spectral
regularization, on two tasks, every seed in both: the same environments, initial weights and noise. Then a table of the
differences seed by seed and a figure of the learning curves, FOLDER/precision.png.

Where the processor has no units for bfloat16, its products are computed from the same rounded factors by float32
products, and rounded as they would be: the numbers of a processor with units but for the order of the sums, at 0.8 of
float32's speed. The script says so.

What is finished in FOLDER is not trained again, and a run that was killed goes on. ``--share 0/2`` takes every second
group of five seeds, so that two processes can share the work; ``--table`` trains nothing. ``--width 128`` makes the
hidden layers and the batches half as large, which takes a fifth of the time, and ``--env-steps`` shortens the runs.
"""

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_plasticity import train
from rl_plasticity.comparison.groups import method_in_words
from rl_plasticity.compiling import precision
from rl_plasticity.metrics.statistics import area_under_curve, paired_differences, student_interval
from rl_plasticity.networks import StackedLinear
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.names import Curve
from rl_plasticity.sweeps.job import finished

TASKS = ("cheetah-run", "walker-walk")
REGS = ("none", "spectral")
PRECISIONS = ("float32", "bfloat16")
SEEDS, TOGETHER = 10, 5
# The hidden layers' products alone are wide enough to gain from it.
BFLOAT16_FROM = 128

# --- bfloat16 without units for it ----------------------------------------------------------------------------------

library = torch.library.Library("learns_the_same", "DEF")
library.define("bmm(Tensor a, Tensor b) -> Tensor")
library.impl("bmm", lambda a, b: torch.bmm(a.float(), b.float()).bfloat16(), "CPU")
library.impl("bmm", lambda a, b: a.new_empty(a.shape[0], a.shape[1], b.shape[2]), "Meta")
bmm = torch.ops.learns_the_same.bmm


class Product(torch.autograd.Function):
    """x W^T of rounded factors, rounded, and so its gradients: what autograd makes of torch.bmm in bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x, weight = x.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(x, weight)
        output: Tensor = bmm(x, weight.mT).float()
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        g = g.bfloat16()
        to_x = bmm(g, weight).float() if ctx.needs_input_grad[0] else None
        return to_x, bmm(g.mT, x).float() if ctx.needs_input_grad[1] else None


def emulate() -> None:
    """Let layers that read bfloat16 multiply by float32 products of what is rounded, and let such runs begin."""
    own = StackedLinear.forward

    def forward(self: StackedLinear, input: Tensor) -> Tensor:
        if self.operands is None or not torch.compiler.is_compiling():
            return own(self, input)  # acting and measuring: few products, so that slow ones will do
        result: Tensor = Product.apply(input, self.weight) + self.bias.unsqueeze(1)
        return result

    StackedLinear.forward = forward  # type: ignore[method-assign]
    precision.has_bfloat16 = lambda device: True


# --- the runs -------------------------------------------------------------------------------------------------------


def folder_of(folder: Path, task: str, reg: str, precise: str, first: int) -> Path:
    return folder / f"{task}_{reg}_{precise}_seed{first}"


def curves(folder: Path, task: str, reg: str, precise: str, metric: str = "eval/return") -> dict[int, Curve]:
    """A metric of every seed that is finished."""
    found: dict[int, Curve] = {}
    for first in range(0, SEEDS, TOGETHER):
        out = folder_of(folder, task, reg, precise, first)
        if finished(out):
            found |= {name.seed: metrics[metric] for name, metrics in RunFolder(out).metrics().items()}
    return found


def train_some(out: Path, task: str, reg: str, precise: str, first: int, width: int, env_steps: int) -> None:
    """Five seeds, side by side."""
    if RunFolder(out).is_run():
        train.run(resume=str(out))
        return
    train.run(
        env=task, reg=reg, seed=first, seeds=TOGETHER, preset="demo", agent={"name": "sac", "hidden": [width, width]},
        batch_size=width, total_env_steps=env_steps, precision=precise, bfloat16_from=BFLOAT16_FROM, device="cpu",
        threads=1, compile=True, out=str(out),
    )  # fmt: skip


# --- what came of it ------------------------------------------------------------------------------------------------

# The end: the mean of the last three evaluations, which are of few episodes each.
MEASURES: dict[str, tuple[str, Any]] = {
    "return at the end": ("eval/return", lambda steps, values: float(values[-3:].mean())),
    "mean over the curve": ("eval/return", area_under_curve),
    "Q overestimation at the end": ("q_overestimation", lambda steps, values: float(values[-3:].mean())),
    "largest sigma1 of the critic": ("critic/sigma1", lambda steps, values: float(values[-1])),
    "of the actor": ("actor/sigma1", lambda steps, values: float(values[-1])),
}


def report(folder: Path) -> None:
    """Means in float32, and how far bfloat16 is above, seed by seed; in brackets Student's intervals at 95 %."""
    print("| task | regularizer | pairs | " + " | ".join(MEASURES) + " |")
    print("|---" * (3 + len(MEASURES)) + "|")
    for task, reg in product(TASKS, REGS):
        cells, pairs = [], 0
        for metric, of_curve in MEASURES.values():
            values = [
                {seed: of_curve(*curve) for seed, curve in curves(folder, task, reg, precise, metric).items()}
                for precise in PRECISIONS
            ]
            gap = -paired_differences(*values)
            pairs = len(gap)
            if pairs > 1:
                low, high = student_interval([gap])
                cells.append(f"{np.mean([*values[0].values()]):.3g}, {gap.mean():+.2g} [{low:+.2g}, {high:+.2g}]")
        print(f"| {task} | {reg} | {pairs} | " + " | ".join(cells) + " |")


def draw(folder: Path, path: Path) -> None:
    """Learning curves: a panel for each task and regularizer, each seed a thin line, the mean a thick one."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(TASKS), len(REGS), figsize=(3.5 * len(REGS), 3 * len(TASKS)), squeeze=False, layout="constrained"
    )
    for axis, (task, reg) in zip(axes.flat, product(TASKS, REGS), strict=True):
        for precise, colour in zip(PRECISIONS, ("black", "C1"), strict=True):
            found = [*curves(folder, task, reg, precise).values()]
            for one in found:
                axis.plot(one.steps, one.values, color=colour, linewidth=0.5, alpha=0.35)
            if found:
                mean = np.mean([one.values for one in found], axis=0)
                axis.plot(found[0].steps, mean, color=colour, linewidth=2, label=f"{precise} ({len(found)} seeds)")
        axis.set(title=f"{task}, {method_in_words(reg)}", xlabel="env steps")
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("return")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=120)
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=256, help="of hidden layers, and transitions in a batch")
    parser.add_argument("--env-steps", type=int, default=26_000, help="of each run")
    parser.add_argument("--share", default="0/1", metavar="I/N", help="every N-th group of runs, from the I-th")
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    first, every = map(int, options.share.split("/"))
    # Both precisions of some seeds, then the others: half a table is one of whole pairs.
    groups = [*product(range(0, SEEDS, TOGETHER), TASKS, REGS)][first::every]
    if not options.table:
        if not precision.has_bfloat16("cpu"):
            print("no units for bfloat16 here: its products are computed from rounded factors", flush=True)
            emulate()
        for (seed, task, reg), precise in product(groups, PRECISIONS):
            out = folder_of(options.folder, task, reg, precise, seed)
            if not finished(out):
                train_some(out, task, reg, precise, seed, options.width, options.env_steps)
    report(options.folder)
    draw(options.folder, options.folder / "precision.png")


if __name__ == "__main__":
    main()
