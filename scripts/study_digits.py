"""Random labels on the digits with every method: ``python scripts/study_digits.py FOLDER``.

Runs the supervised demo (5 seeds) once for each method into FOLDER, leaves out what is there already, prints a table of
the training accuracy at the end of tasks 1, 3, 6 and 12 (mean and 95 % interval over seeds, Student's t), and draws
it.
"""

import csv
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
import numpy as np
from scipy import stats

mpl.use("agg")
import matplotlib.pyplot as plt

METHODS = {
    "none": ["reg=none"],
    "l2_1e-4": ["reg=l2", "reg.coef=1e-4"],
    "l2_1e-3": ["reg=l2", "reg.coef=1e-3"],
    "l2_init_1e-3": ["reg=l2_init", "reg.coef=1e-3"],
    "l2_init_1e-2": ["reg=l2_init", "reg.coef=1e-2"],
    "spectral_1e-4": ["reg=spectral", "reg.coef=1e-4"],
    "spectral_1e-3": ["reg=spectral", "reg.coef=1e-3"],
    "swr_1e-4": ["reg=swr", "reg.coef=1e-4"],
    "swr_1e-3": ["reg=swr", "reg.coef=1e-3"],
    "wrs": ["reg=wrs", "reg.rescale_head=true"],
    "weight_clipping_3": ["reg=weight_clipping"],
    "shrink_perturb_0.4": ["reset=shrink_perturb", "reset.coef=0.4"],
    "head": ["reset=head"],
    "redo": ["reset=redo", "reset.every_updates=1000", "reset.every_tasks=null"],
    "layernorm": ["net.layer_norm=true"],
    "layernorm+spectral_1e-3": ["net.layer_norm=true", "reg=spectral", "reg.coef=1e-3"],
}


def accuracies(folder: Path) -> np.ndarray:
    """Training accuracy at the end of each task, ``[seeds, tasks]``."""
    found = defaultdict(list)
    with (folder / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            if row["name"] == "task/train_accuracy":
                found[row["run"]].append(float(row["value"]))
    return np.array([found[run] for run in sorted(found)])


def half_width(values: np.ndarray) -> np.ndarray:
    """Half the 95 % interval of the mean over the first axis."""
    n = len(values)
    return stats.t.ppf(0.975, n - 1) * values.std(0, ddof=1) / np.sqrt(n)


def main() -> None:
    out = Path(sys.argv[1])
    for name, settings in METHODS.items():
        if not (out / name).exists():
            command = [sys.executable, "-m", "rl_plasticity.supervised", "preset=demo", "seeds=5", "threads=1"]
            subprocess.run([*command, *settings, f"out={out / name}"], check=True)
    shown = [0, 2, 5, 11]
    print("| method | " + " | ".join(f"task {t + 1}" for t in shown) + " |")
    print("|---|" + "---|" * len(shown))
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    for i, name in enumerate(METHODS):
        values = accuracies(out / name)
        mean, half = values.mean(0), half_width(values)
        print(f"| `{name}` | " + " | ".join(f"{mean[t]:.2f} ± {half[t]:.2f}" for t in shown) + " |")
        axis = axes[0 if name.partition("_")[0] in ("none", "l2", "spectral", "swr", "wrs") else 1]
        for each in axes if name == "none" else [axis]:
            tasks = np.arange(1, len(mean) + 1)
            colour = "black" if name == "none" else f"C{i % 10}"
            each.plot(tasks, mean, label=name, color=colour)
            each.fill_between(tasks, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)
    for axis in axes:
        axis.set_xlabel("task")
        axis.set_ylim(0, 1.02)
        axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("training accuracy at the end of the task")
    figure.tight_layout()
    figure.savefig(out / "study_digits.png", dpi=120)


if __name__ == "__main__":
    main()
