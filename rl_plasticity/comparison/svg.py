"""Figures as parts of a page: SVGs whose groups can be hidden and whose curves can be read (see `page.js`)."""

import io
import json
import math
import re
from typing import Any

import numpy as np

from rl_plasticity.comparison.figures import Drawn, MeanCurve, for_page
from rl_plasticity.comparison.plotting import some
from rl_plasticity.comparison.report import Picture
from rl_plasticity.comparison.summary import Comparison

READ = 120  # the most steps of a curve that a reader can point at


def picture(comparison: Comparison, drawn: Drawn, png: bytes = b"") -> Picture:
    """A figure as a page shows it."""
    shown = for_page(comparison, drawn)
    return Picture(drawn.name, drawn.title, inline(shown), png, shown.figure.get_figwidth(), drawn.caption)


def inline(drawn: Drawn) -> str:
    """The figure as an ``svg`` element, without the parts that only a separate file needs.

    Whatever was drawn for a group has the attribute ``data-group`` with its place among the comparison's rows. Its name
    in a legend has ``data-key``. The values of the curves follow as JSON: for each panel its box in the units of the
    ``viewBox``, the first and the last step of its axis, and for each group its place, steps, means and intervals.
    """
    file = io.StringIO()
    drawn.figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->\s*|<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", r'<svg \1 role="img">', text, count=1)
    text = re.sub(r'<g id="group(\d+)"', r'<g data-group="\1"', text)
    text = re.sub(r'<g id="key(\d+)"', r'<g data-key="\1"', text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # several figures on a page have the same
    text = re.sub(r"<[^<>]*>", lambda tag: re.sub(r' (?:d|x|y|transform)="[^"]*"', _short, tag[0]), text)
    values = json.dumps(_panels(drawn), separators=(",", ":"), allow_nan=False)
    data = f'<script type="application/json">{values}</script>' if drawn.curves else ""
    return text.rstrip() + data


def _short(attribute: re.Match[str]) -> str:
    """The attribute with its coordinates rounded down to two decimals, a hundredth of 1/72 inch."""
    return re.sub(r"(\.\d\d)\d+", r"\1", " ".join(attribute[0].split("\n")).replace(' "', '"'))


def _panels(drawn: Drawn) -> list[dict[str, Any]]:
    width, height = 72 * drawn.figure.get_size_inches()
    panels = []
    for axes, curves in drawn.curves.items():
        box = axes.get_position()  # in shares of the figure, from below
        corners = (box.x0 * width, (1 - box.y1) * height, box.x1 * width, (1 - box.y0) * height)
        panels.append(
            {
                "box": [_digits(v) for v in corners],
                "steps": [_digits(v, 9) for v in axes.get_xlim()],
                "curves": [_curve(one) for one in curves],
            }
        )
    return panels


def _curve(curve: MeanCurve) -> dict[str, Any]:
    at = some(np.arange(len(curve.steps)), READ)
    shown = {"means": curve.means[at], "low": curve.low[at], "high": curve.high[at]}
    if not np.isfinite(curve.low).any():
        shown |= {"low": np.zeros(0), "high": np.zeros(0)}
    numbers = {name: [_digits(value) for value in values.tolist()] for name, values in shown.items()}
    return {"group": curve.place, "steps": curve.steps[at].tolist(), **numbers}


def _digits(value: float, digits: int = 4) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
