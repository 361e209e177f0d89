"""The report on a suite: the table and the verdict that are printed, and a page with a figure."""

import base64
import io
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from rl_plasticity import command_line
from rl_plasticity.benchmarks import rows
from rl_plasticity.benchmarks.rows import Row
from rl_plasticity.benchmarks.scores import Scores
from rl_plasticity.benchmarks.suites import FRESH, NONE, Suite
from rl_plasticity.comparison.plotting import PAGE, PALETTE, STYLE, label_rows
from rl_plasticity.comparison.report import document, table_of
from rl_plasticity.comparison.table import markdown
from rl_plasticity.errors import SettingsError, counted, printable
from rl_plasticity.metrics.statistics import Interval
from rl_plasticity.runs.files import write_text

MEANING = (
    "A score is 0 for a run without a method and 1 for a network that is fresh at each task (on primed tasks: one that "
    "was never primed), each at its best learning rate. A method with a score below 0 harms. Strength and learning "
    "rate are chosen for each task on other seeds than the scored ones. Overall is the interquartile mean over tasks. "
    "Brackets are 95 % intervals over seeds. They say nothing about other tasks, networks, run lengths or strengths. "
    "“Better” and “worse” mean that an interval which holds for all comparisons of a method at once excludes 0."
)


def show(suite: Suite, found: Sequence[Row], mine: str | None, place: Path | None) -> None:
    """Print the scores of all methods, or the place of one, and write ``page.html`` and ``figure.png``.

    Without a place, it prints the table of all methods in Markdown and writes nothing.

    Raises:
        SettingsError: there are no rows to score by.
    """
    if lacking := {NONE, FRESH} - {row.method for row in found if row.seed}:
        raise SettingsError(
            f"scores on {suite.name} need results of {' and '.join(sorted(lacking))}: add published=none,fresh"
        )
    scores = rows.scores(suite, found)
    if place is None:
        print(markdown(of_all(suite, scores)))
        return
    lines = of_one(suite, scores, found, mine) if mine else of_all(suite, scores)
    text = verdict(scores, mine) if mine else ""
    print("\n".join(["", command_line.fitted(lines), *([printable(text)] if text else [])]))
    place.mkdir(parents=True, exist_ok=True)
    png = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        draw(suite, scores, mine).savefig(png, dpi=200, format="png")
    write_text(place / "figure.png", png.getvalue())
    write_text(place / "page.html", render(suite, of_all(suite, scores), text, png.getvalue()))
    print(f"\nwrote {place / 'page.html'} and figure.png")


def of_all(suite: Suite, scores: Scores) -> list[list[str]]:
    """The table of all methods, the best first: overall score, rank, and the score on each task."""
    lines = [["method", "overall", "rank", *suite.tasks]]
    for at in _best_first(scores):
        name = scores.methods[at]
        ranked = math.isfinite(scores.overall[at])
        overall = _between(scores.overall[at], scores.interval(name)) if ranked else "not on all tasks"
        rank = "{} [{}, {}]".format(*scores.rank(name)) if ranked else ""
        lines.append([name, overall, rank, *map(_number, scores.of_tasks[at])])
    return lines


def of_one(suite: Suite, scores: Scores, found: Sequence[Row], name: str) -> list[list[str]]:
    """The table of one method: for each task its score, its metric, those of `none` and `fresh`, and its settings."""
    at, none, fresh = map(scores.methods.index, (name, NONE, FRESH))
    lines = [["task", "score", "metric", NONE, FRESH, "settings"]]
    for i, task in enumerate(suite.tasks):
        means = scores.raw[:, i].mean(-1)
        row = next((row for row in found if (row.method, row.task) == (name, task)), None)
        if row is not None:
            is_scored = math.isfinite(means[at])
            score = _between(scores.of_tasks[at, i], scores.interval(name, i)) if is_scored else row.raw
            lines.append([task, score, *(f"{means[j]:.4g}" for j in (at, none, fresh)), row.settings])
    return lines


def verdict(scores: Scores, name: str) -> str:
    """A method's place among the others, in a sentence that can be cited."""
    at = scores.methods.index(name)
    if not math.isfinite(scores.overall[at]):
        missing = int(np.isnan(scores.of_tasks[at]).sum())
        return f"{name} has no overall score: it has no score on {counted(missing, 'task')} of the suite"
    rank, low, high = scores.rank(name)
    gaps = {other: gap for other, gap in scores.gaps(name).items() if other not in (NONE, FRESH)}
    better, worse = sum(g[1] > 0 for g in gaps.values()), sum(g[2] < 0 for g in gaps.values())
    ranked = int(np.isfinite(scores.overall).sum())
    overall = _between(scores.overall[at], scores.interval(name))
    return (
        f"{name}: overall {overall}, rank {rank} [{low}, {high}] of {ranked}; "
        f"better than {better}, undecided against {len(gaps) - better - worse}, worse than {worse} "
        f"of {counted(len(gaps), 'other method')}"
    )


def draw(suite: Suite, scores: Scores, mine: str | None) -> Figure:
    """Overall scores with intervals, the best first, beside the score on each task as a color."""
    order = [at for at in _best_first(scores) if math.isfinite(scores.overall[at])] or _best_first(scores)
    figure = Figure(figsize=(PAGE, 0.9 + 0.17 * len(order)))
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    names = [scores.methods[at] for at in order]
    for y, (at, name) in enumerate(zip(order, names, strict=True)):
        low, high = scores.interval(name)
        color = PALETTE[1] if name == mine else "gray" if name in (NONE, FRESH) else PALETTE[0]
        left.plot([low, high], [y, y], color=color, lw=1.2)
        left.plot(scores.overall[at], y, "o", ms=3, color=color)
    for x in (0, 1):
        left.axvline(x, color="gray", ls=":", lw=0.8, zorder=0)
    label_rows(left, names)
    left.set_xlabel("score over all tasks (0: no method, 1: fresh at each task)")
    drawn = right.imshow(scores.of_tasks[order], vmin=-0.5, vmax=1.5, cmap="BrBG", aspect="auto")
    right.set_yticks([])
    right.set_xticks(range(len(suite.tasks)), [*suite.tasks], rotation=40, ha="right", rotation_mode="anchor")
    figure.colorbar(drawn, ax=right, label="score on a task")
    return figure


def render(suite: Suite, lines: Sequence[Sequence[str]], text: str, png: bytes) -> str:
    """The page: one file, which loads nothing and runs nothing."""
    title = f"Plasticity benchmark {suite.name}"
    image = f'<img alt="scores" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
    tasks = [["task", "asks"], *([task.name, task.asks] for task in suite.tasks.values())]
    about = f"<h1>{title}</h1><p>{escape(text)}</p><figure>{image}</figure>"
    return document(title, [about, table_of(lines), f"<p class=muted>{MEANING}</p>", table_of(tasks)])


# ------------------------------------------------------------------------------------------------------------------


def _best_first(scores: Scores) -> list[int]:
    return [*map(int, np.argsort(-np.nan_to_num(scores.overall, nan=-np.inf), kind="stable"))]


def _between(value: float, interval: Interval) -> str:
    return f"{_number(value)} [{', '.join(map(_number, interval))}]"


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else ""
