"""Parts that all figures share: type of 8 pt, colors, panels, lines with bands, legends, and axes.

The colors are those of Okabe and Ito and of Tol, which people with any kind of color vision can tell apart.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from rl_plasticity.comparison.groups import method_in_words
from rl_plasticity.runs.names import short

Array = NDArray[Any]
COLUMN, PAGE = 3.35, 6.9  # inches
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#332288", "#999933")
# Methods that look the same in every figure.
OWN = {"no method": ("gray", ":"), "LayerNorm + spectral": (PALETTE[2], "-"), "LayerNorm": (PALETTE[3], "-")}
OWN |= dict.fromkeys(("swr", "SWR"), (PALETTE[4], "-")) | {"spectral": (PALETTE[5], "-")}
OWN |= dict.fromkeys(("wrs", "WRS"), (PALETTE[6], "-")) | dict.fromkeys(("fresh", "periodic"), (PALETTE[1], "-"))
BAND = 0.18
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "axes.formatter.limits": (-3, 4),
    "axes.formatter.use_mathtext": True,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "rl_plasticity",  # the same figure, the same file
}


def take_literally(figure: Figure) -> None:
    """Show names that contain a $ as they are. They come from settings, and would fail to be drawn as formulas."""
    for text in figure.findobj(Text):
        if isinstance(text, Text) and "$" in text.get_text():  # the numbers at the axes have no text yet
            text.set_parse_math(False)


def panels(
    number: int, columns: int, width: float | None = None, height: float = 1.9, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with `number` panels of this height; `shared`: ``sharex`` or ``sharey``."""
    rows = math.ceil(number / columns)
    width = width or (COLUMN if columns == 1 else PAGE)
    figure = Figure(figsize=(width, height * rows))
    grid = figure.subplots(rows, columns, squeeze=False, **shared).ravel()
    for axes in grid[number:]:
        axes.remove()
    return figure, list(grid[:number])


def line(axes: Axes, x: Array, means: Array, band: Any = (), order: float = 2, **look: Any) -> None:
    """Draw a line and, where there are intervals (low, high), a `band` behind it; a higher `order` lies above."""
    axes.plot(x, means, ms=2.5, zorder=order, **look)
    if len(band):
        axes.fill_between(x, *band, alpha=BAND, lw=0, zorder=order - 1, color=look["color"])


def looks(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The line style of each label: no method is gray and dotted, and `OWN` methods look the same in every figure.

    Of several labels of one method, as of its strengths, the first has that color. The others go through what is left
    of the palette, then through the palette again with dashes.
    """
    found: dict[str, tuple[str, str]] = {}
    for label in labels:
        words = method_in_words(label).replace(" layer_norm=false", "")
        if " layer_norm=true" in words:
            words = f"LayerNorm + {words.replace(' layer_norm=true', '')}".replace(" + no method", "")
        name, *settings = re.split(r" (?=\S+=)", words)
        look = OWN.get(name)
        if look and look not in found.values() and not (settings and name == "no method"):
            found[label] = look
    free = [(color, ls) for ls in ("-", "--", "-.") for color in PALETTE if (color, ls) not in found.values()]
    others = itertools.cycle(free)
    return {label: dict(zip(("color", "ls"), found.get(label) or next(others), strict=True)) for label in labels}


def legend(figure: Figure, handles: Mapping[str, Line2D]) -> None:
    """Add a legend below the panels, in as many columns as fit."""
    columns = max(1, min(len(handles), int(figure.get_figwidth() / (0.45 + 0.068 * max(map(len, handles))))))
    lines = math.ceil(len(handles) / columns)
    figure.set_figheight(figure.get_figheight() + 0.05 + 0.17 * lines)
    place: Any = "outside lower center"
    spread = {"ncols": math.ceil(len(handles) / lines), "handlelength": 1.6, "columnspacing": 1.2}
    figure.legend([*handles.values()], [*handles], loc=place, **spread)


def label_rows(axes: Axes, texts: Sequence[str]) -> None:
    """Name the rows at the left, the first one at the top."""
    base = [re.sub(r" (?=\S+=)", "\n", text, count=1) if len(text) > 20 else text for text in texts]  # in two lines
    axes.set_yticks(range(len(texts)), base)
    axes.set_ylim(len(texts) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def count_steps(axes: Axes, of_tasks: bool) -> None:
    """Write tasks as whole numbers, and other steps as 20k or 1M."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=of_tasks, nbins=5, steps=[1, 2, 5, 10]))
    if not of_tasks:
        axes.xaxis.set_major_formatter(EngFormatter(sep="", useMathText=False))


def mark_strengths(axes: Axes, values: Sequence[float]) -> None:
    """Set a tick at each value, on a logarithmic axis unless one is 0."""
    ticks = sorted({*values})
    axes.set_xscale("log" if all(ticks) else "linear")
    axes.set_xticks(ticks, [*map(short, ticks)])
    axes.xaxis.set_minor_locator(NullLocator())


def say_why_empty(axes: Axes) -> None:
    """Write why a panel is empty where no line has a finite value."""
    drawn = [np.asarray(line.get_ydata(), float) for line in axes.lines if line.get_zorder() > 0]
    if not any(np.isfinite(y).any() for y in drawn):
        why = "no finite value" if drawn else "no steps that\nall runs have"
        axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color="#a00000")


def some(at: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """At most `most` of the numbers ``[n]``, evenly spread, with the first and the last."""
    return at if len(at) <= most else at[np.linspace(0, len(at) - 1, most).astype(int)]
