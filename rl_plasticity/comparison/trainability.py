"""A figure of what networks can still learn, over time, beside the scores of their run."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rl_plasticity.comparison.plotting import STYLE, count_steps, cycled, legend, line, panels, take_literally
from rl_plasticity.diagnosis.verdict import LOST, PLASTIC
from rl_plasticity.runs.diagnosed import Diagnosis
from rl_plasticity.runs.folder import RunFolder


def draw(points: Sequence[Diagnosis], folder: RunFolder) -> Figure:
    """Draw a panel for each network, and one for the return or the training accuracy, with a color for each run.

    Each of the points says how much was learned. The first data set is a line with 95 % intervals. Others are crosses.
    """
    metric = "eval/return" if folder.kind == "train" else "eval/train_accuracy"
    reached = {run.in_words: of_run[metric] for run, of_run in folder.metrics().items() if metric in of_run}
    known = [(p, learned) for p in points if (learned := p.learned)]
    networks, runs, data = (list(dict.fromkeys(getattr(p, of) for p, _ in known)) for of in ("network", "run", "data"))
    looks = {run: cycled(place) for place, run in enumerate(runs)}
    with mpl.rc_context(STYLE):
        figure, axes = panels(len(networks) + 1, len(networks) + 1, height=2.2)
        for network, panel in zip(networks, axes, strict=False):
            for run, look in looks.items():
                here = [(p, learned) for p, learned in known if (p.run, p.network) == (run, network)]
                main = [(p.step, *learned) for p, learned in here if p.data == data[0]]
                steps, means, low, high = np.array(main).reshape(-1, 4).T
                line(panel, steps, means, (low, high), marker="o", **look)
                for p, learned in here:
                    if p.data != data[0]:
                        panel.plot(p.step, learned.mean, marker="x", ms=5, color=look["color"])
            for threshold in (LOST, PLASTIC):
                panel.axhline(threshold, color="0.7", lw=0.6, zorder=0)
            panel.set_ylim(min(0.0, panel.get_ylim()[0]), max(1.1, panel.get_ylim()[1]))
            panel.set_title(network)
        for run in filter(reached.__contains__, runs):
            line(axes[-1], reached[run].steps, reached[run].values, **looks[run])
        axes[0].set_ylabel("learned, a fresh network: 1")
        axes[-1].set_title("return" if folder.kind == "train" else "training accuracy")
        for panel in axes:
            panel.set_xlabel("env step" if folder.kind == "train" else "epoch")
            count_steps(panel, of_tasks=False)
        legend(figure, {run: Line2D([], [], **look) for run, look in looks.items()})
        take_literally(figure)
    return figure
