"""The report on a suite: the table and the verdict that are printed, and a page with a figure."""

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
from rl_plasticity.comparison.plotting import PAGE, PALETTE, STYLE, label_rows, take_literally
from rl_plasticity.comparison.report import document, figure_of, table_of
from rl_plasticity.comparison.table import markdown
from rl_plasticity.errors import SettingsError, counted, printable
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
    every = of_all(suite, scores)
    if place is None:
        print(markdown(every))
        return
    said = verdict(suite, scores, found, mine) if mine else []
    print(f"\n{command_line.fitted(of_one(suite, scores, found, mine) if mine else every)}")
    for line in said:
        print(printable(line))
    png = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        draw(suite, scores, mine).savefig(png, dpi=200, format="png")
    title, tasks = f"Plasticity benchmark {suite.name}", [[task.name, task.asks] for task in suite.tasks.values()]
    parts = [f"<h1>{title}</h1>", *(f"<p>{escape(line)}</p>" for line in said)]
    parts += [figure_of("Scores", png.getvalue(), MEANING), table_of(every), table_of([["task", "asks"], *tasks])]
    place.mkdir(parents=True, exist_ok=True)
    write_text(place / "figure.png", png.getvalue())
    write_text(place / "page.html", document(title, parts))
    print(f"\nwrote {place / 'page.html'} and figure.png")


def of_all(suite: Suite, scores: Scores) -> list[list[str]]:
    """The table of all methods, the best first: overall score, rank, and the score on each task."""
    lines = [["method", "overall", "rank", *suite.tasks]]
    for at in scores.best_first:
        overall = _shown(scores, at)
        rank = "{} [{}, {}]".format(*scores.rank(at)) if overall and scores.methods[at] not in (NONE, FRESH) else ""
        cells = [_shown(scores, at, task) for task in range(len(suite.tasks))]
        lines.append([scores.methods[at], overall or "not on all tasks", rank, *cells])
    return lines


def of_one(suite: Suite, scores: Scores, found: Sequence[Row], name: str) -> list[list[str]]:
    """The table of one method: for each task its score, its metric, those of `none` and `fresh`, and its settings."""
    at, *others = map(scores.methods.index, (name, NONE, FRESH))
    rows_of = {row.task: row for row in found if row.method == name}
    lines = [["task", "score", "metric", NONE, FRESH, "settings"]]
    for i, task in enumerate(suite.tasks):
        if row := rows_of.get(task):
            metrics = [f"{scores.raw[method, i].mean():.4g}" for method in (at, *others)]
            lines.append([task, _shown(scores, at, i) or ("" if row.seed else row.raw), *metrics, row.settings])
    return lines


def verdict(suite: Suite, scores: Scores, found: Sequence[Row], name: str) -> list[str]:
    """A method's place among the others: a sentence that can be cited, and then the methods that it counts."""
    at = scores.methods.index(name)
    if not (overall := _shown(scores, at)):
        missing = int(np.isnan(scores.values[at, :-1]).sum())
        return [f"{name} has no overall score: it has no score on {counted(missing, 'task')} of the suite"]
    rank, lowest, highest = scores.rank(at)
    others: dict[str, list[str]] = {"better than": [], "undecided against": [], "worse than": []}
    for other, (low, high) in scores.gaps(at).items():
        if other not in (NONE, FRESH):
            word = "better than" if low > 0 else "worse than" if high < 0 else "undecided against"
            others[word].append(other)
    number = sum(map(len, others.values()))
    counts = ", ".join(f"{word} {len(names)}" for word, names in others.items())
    mine = [row for row in found if row.method == name and row.seed]
    versions = ", ".join(dict.fromkeys(row.version for row in mine))
    processors = ", ".join(dict.fromkeys(row.processor for row in mine))
    made = f"rl_plasticity {versions}, {counted(scores.raw.shape[-1], 'seed')}, {processors}"
    return [
        f"{name} on {suite.name} ({made}): overall {overall}, rank {rank} [{lowest}, {highest}] of {number + 1}; "
        f"{counts} of {counted(number, 'other method')}",
        *(f"  {word}: {', '.join(names)}" for word, names in others.items() if names),
    ]


def draw(suite: Suite, scores: Scores, mine: str | None) -> Figure:
    """Overall scores with intervals, the best first, beside the score on each task as a color."""
    order = scores.best_first
    names, places = [scores.methods[at] for at in order], range(len(order))
    colors = [PALETTE[1] if name == mine else "gray" if name in (NONE, FRESH) else PALETTE[0] for name in names]
    figure = Figure(figsize=(PAGE, 0.9 + 0.17 * len(order)))
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    left.hlines(places, *scores.intervals[:, order, -1], colors, lw=1.2)
    left.scatter(scores.values[order, -1], places, 9, colors, zorder=3)
    for x in (0, 1):
        left.axvline(x, color="gray", ls=":", lw=0.8, zorder=0)
    label_rows(left, names)
    left.set_xlabel("score over all tasks (0: no method, 1: fresh at each task)")
    drawn = right.imshow(scores.values[order, :-1], vmin=-0.5, vmax=1.5, cmap="BrBG", aspect="auto")
    right.set_yticks([])
    right.set_xticks(range(len(suite.tasks)), [*suite.tasks], rotation=40, ha="right", rotation_mode="anchor")
    right.set_title("score on each task")
    figure.colorbar(drawn, ax=right)
    take_literally(figure)
    return figure


# ------------------------------------------------------------------------------------------------------------------


def _shown(scores: Scores, method: int, task: int = -1) -> str:
    """A score with its interval; empty if there is none."""
    value, (low, high) = scores.values[method, task], scores.intervals[:, method, task]
    return f"{value:.2f} [{low:.2f}, {high:.2f}]" if math.isfinite(value) else ""
