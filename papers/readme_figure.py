"""Draw the README's figure: ``python -m papers.readme_figure PLAIN LAYER_NORM``.

The two folders are runs of the digits' demo, each about three minutes on one thread:

    python -m rl_plasticity.supervised preset=demo "reg=[none,swr,spectral]" reg.swr.coef=1e-3 \\
        reg.spectral.coef=1e-3 seeds=5 out=PLAIN
    python -m rl_plasticity.supervised preset=demo "reg=[none,spectral]" reg.spectral.coef=1e-3 \\
        net.layer_norm=true seeds=5 out=LAYER_NORM

Writes docs/plasticity.png, for dark pages docs/plasticity-dark.png, and the numbers to docs/results/front.csv. Without
folders it draws docs/diagnosis.png, from docs/results/diagnose.
"""

import csv
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from papers import shown
from rl_plasticity.compare import frame
from rl_plasticity.comparison.plotting import PALETTE, STYLE, looks

LABELS = {
    (False, "none"): "no method",
    (False, "swr"): "SWR",
    (False, "spectral"): "spectral",
    (True, "none"): "LayerNorm",
    (True, "spectral"): "LayerNorm + spectral",
}


def accuracies(folders: list[Path]) -> dict[str, np.ndarray]:
    """The training accuracy at the end of each task, [seeds, tasks], of each method."""
    found: dict[str, list[list[float]]] = {}
    for layer_norm, folder in zip((False, True), folders, strict=True):
        rows_of = frame(folder).query("metric == 'task/train_accuracy'").sort_values("step")
        for (method, _), rows in rows_of.groupby(["reg.name", "seed"]):
            found.setdefault(LABELS[layer_norm, method], []).append(rows["value"].tolist())
    return {label: np.array(rows) for label, rows in found.items()}


def draw(curves: dict[str, np.ndarray], file: Path, ink: str, paper: str) -> None:
    """One panel; each method's name stands at the end of its curve."""
    colours = {"text.color": ink, "axes.edgecolor": ink, "xtick.color": ink, "ytick.color": ink, "axes.labelcolor": ink}
    style: dict[Any, Any] = {**STYLE, **colours, "figure.facecolor": paper, "axes.facecolor": paper}
    with plt.rc_context(style):
        figure, axes = plt.subplots(figsize=(6.2, 2.9), dpi=160)
        ends, styles = {}, looks([*curves])
        for label, values in curves.items():
            tasks, look = np.arange(1, values.shape[1] + 1), styles[label]
            axes.plot(tasks, values.mean(0), linewidth=1.8, marker="o", markersize=3, **look)
            axes.fill_between(tasks, values.min(0), values.max(0), color=look["color"], alpha=0.2, linewidth=0)
            ends[label] = (float(values[:, -1].mean()), look["color"])
        height = -1.0
        for label, (end, colour) in sorted(ends.items(), key=lambda item: item[1][0]):
            height = max(end, height + 0.075)  # names of curves that end together do not overlap
            axes.annotate(label, (tasks[-1] + 0.25, height), color=colour, va="center", annotation_clip=False)
        axes.axhline(0.1, color=ink, linewidth=0.6, linestyle=":")
        axes.annotate("chance", (1, 0.1), xytext=(0, 2), textcoords="offset points", fontsize=7)
        axes.set(xlabel="task (new labels each time)", ylabel="training accuracy", ylim=(0, 1.04), xlim=(0.8, 12.1))
        axes.set_xticks(tasks)
        figure.savefig(file)
        plt.close(figure)


def draw_verdicts(docs: Path) -> None:
    """What `diagnose` says of networks whose state is known: its estimate over what long training shows."""
    known, said = (
        {(row["case"], row["seed"]): row for row in shown.rows(f"results/diagnose/{name}")}
        for name in ("known.csv", "verdicts.csv rule=after call=batches")
    )
    verdicts = {"plastic": 2, "not detectable": 4, "losing": 5, "lost": 1, "something else": 7}
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(4.6, 2.9))
        for verdict, color in verdicts.items():
            cases = [case for case, row in said.items() if row["verdict"] == verdict]
            x, y = ([float(of[case][column]) for case in cases] for of, column in ((known, "share"), (said, "score")))
            axes.scatter(np.clip(x, -0.1, 1.1), np.clip(y, -0.1, 1.1), 14, PALETTE[color], alpha=0.7, lw=0)
            axes.scatter([], [], 14, PALETTE[color], label=f"{verdict} ({len(cases)})")
        axes.set(xlabel="learned in 2 000 updates, relative to a fresh network", ylabel="estimate of diagnose")
        axes.legend(bbox_to_anchor=(1, 1), loc="upper left")
        figure.savefig(docs / "diagnosis.png", dpi=200)
        plt.close(figure)


def main(*folders: str) -> None:
    docs = Path(__file__).parent.parent / "docs"
    if not folders:
        return draw_verdicts(docs)
    curves = accuracies([*map(Path, folders)])
    with (docs / "results" / "front.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "seed", "task", "training accuracy"])
        for label, values in curves.items():
            for (seed, task), value in np.ndenumerate(values):
                writer.writerow([label, seed, task + 1, f"{value:.4f}"])
    draw(curves, docs / "plasticity.png", ink="#1f2328", paper="white")
    draw(curves, docs / "plasticity-dark.png", ink="#d1d7e0", paper="#0d1117")


if __name__ == "__main__":
    main(*sys.argv[1:])
