"""The page of a comparison, ``report.html``. It holds its figures, style and script, and loads nothing."""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rl_plasticity.comparison.groups import Group, differing
from rl_plasticity.comparison.loading import Run
from rl_plasticity.comparison.summary import FEW, Comparison, counted, mean, short_version
from rl_plasticity.diagnosis.report import LEARNED
from rl_plasticity.runs.diagnosed import Diagnosis
from rl_plasticity.runs.names import short

GENERATOR = "rl_plasticity.compare"
HERE = Path(__file__).parent
MOST = 1_900_000  # the most characters of figures and provenance on a page
WIDE = 1.75  # the size of curves relative to their size in print
HINT = (
    '<p class="muted hint">Point at curves to read them. A click on a name in a legend hides its group everywhere, '
    "one on the head of a column sorts the table.</p>"
)


class Picture(NamedTuple):
    """A figure as the page shows it: as an SVG, or as a PNG where the SVG is too large; `width` in inches."""

    name: str
    title: str
    svg: str
    png: bytes
    width: float
    caption: str


def page(title: str, parts: Sequence[str], head: Mapping[str, str], live: bool = False) -> str:
    """A whole document. No script can run in it but the package's own.

    Args:
        parts: pieces of HTML.
        head: names and contents of ``meta`` elements.
        live: whether the page asks its server for updates.
    """
    style, script = (HERE / "page.css").read_text(), (HERE / "page.js").read_text()
    script += (HERE / "live.js").read_text().removeprefix('"use strict";\n') if live else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    policy += "; connect-src 'self'" if live else ""
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            *(f'<meta name="{escape(name)}" content="{escape(content)}">' for name, content in head.items()),
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>\n</head>\n<body>",
            *parts,
            f"<script>{script}</script>",
            "</body>\n</html>\n",
        ]
    )


def groups_of(comparison: Comparison, colours: Sequence[str]) -> str:
    """The labels and colors of the groups for the script, in the order of the comparison's rows."""
    known = [{"label": row.group.name, "colour": c} for row, c in zip(comparison.rows, colours, strict=True)]
    text = json.dumps(known).replace("<", "\\u003c")  # so that it ends no element
    return f'<script type="application/json" id="groups">{text}</script>'


def render(
    comparison: Comparison,
    pictures: Sequence[Picture],
    colours: Sequence[str],
    command: str,
    head: Mapping[str, str],
) -> str:
    """The page of a comparison.

    Args:
        colours: the color of the group of each row.
        command: the command line that made the page.
        head: what the page says about its folder, so that this can be replaced safely: its files and whose runs it has.
    """
    curves = [p for p in pictures if p.name.startswith(("learning_curves", "accuracy_over", "return_over"))]
    learned = [p for p in pictures if p.name.startswith("trainability")]
    others = [p for p in pictures if p not in curves and p not in learned]
    provenance = _provenance(comparison)
    left, images = MOST - len(provenance), {}
    for picture in [*curves, *learned, *others]:
        images[picture.name] = _image(picture, left, 1.45 if picture in others else WIDE)
        left -= len(images[picture.name])
    groups = [row.group for row in comparison.rows]
    differ = differing([g.settings for g in groups])
    same = {name: value for name, value in groups[0].settings.items() if name not in differ}
    runs = [run for g in groups for run in g.runs]
    parts = [
        f"<h1>{escape(', '.join(comparison.at))}: {counted(len(groups), 'group')} of runs compared</h1>",
        f'<p class="lead">{escape(comparison.verdict())}</p>',
        warned(comparison.warnings),
        "<h2>Statistics</h2>",
        table(comparison),
        f'<p class="muted">{escape(comparison.caption)}</p>',
        *([_table(comparison.published_table())] if comparison.published else []),
        *(_candidates(choice) for choice in comparison.candidates),
        "<h2>Learning curves</h2>",
        HINT,
        *(_figure(p, "", images[p.name]) for p in curves),
        *_trainability(comparison, [_figure(p, "", images[p.name]) for p in learned]),
        "<h2>Figures</h2>",
        '<div class="figures">',
        *(_figure(p, f"<h3>{escape(p.title)}</h3>", images[p.name]) for p in others),
        "</div>",
        "<h2>Settings</h2>",
        _settings(groups, differ) if differ else "<p>There is one group.</p>",
        _folded(
            "Settings that all groups share", _table([["setting", "value"], *([n, short(v)] for n, v in same.items())])
        ),
        _folded(f"Provenance of each run ({len(runs)})", provenance),
        f'<p class="muted">Made by <code>{escape(command)}</code></p>',
        groups_of(comparison, colours),
    ]
    title = f"{', '.join(comparison.at)}: comparison"
    return page(title, parts, {"generator": GENERATOR, **head})


# ------------------------------------------------------------------------------------------------------------------


def _candidates(choice: Comparison) -> str:
    """The groups of a choice, the chosen one first."""
    said = f"Chosen by {choice.metric} at {choice.where}: the first. Gaps are over it."
    return f'<h3>Candidates</h3>{_table(choice.table())}<p class="muted">{escape(said)}</p>'


def _trainability(c: Comparison, shown: Sequence[str]) -> list[str]:
    """The section of what `diagnose` found, with its figures; nothing if no run was diagnosed."""
    several = len(c.at) > 1
    rows = [
        f'<tr data-group="{place}">{_cells([row.name, *[task] * several, network, data, *_verdicts(found)])}</tr>'
        for place, row in enumerate(c.rows)
        for task, runs in row.group.tasks.items()
        for (network, data), found in _newest(runs).items()
    ]
    if not rows:
        return []
    header = ["group", *["task"] * several, "network", "data", c.step_of_checkpoints, "runs", "verdict", LEARNED]
    said = (
        "The verdicts of <code>diagnose</code> at the newest checkpoint it looked at. The share that was learned is a "
        f"mean over runs. It has a 95 % Student's t interval over runs if there are {FEW} or more, and over repeats if "
        "there is one."
    )
    table = rows_of(header, rows, ' class="sortable"')
    return ["<h2>Trainability</h2>", *shown, table, f'<p class="muted">{said}</p>']


def _newest(runs: Sequence[Run]) -> dict[tuple[str, str], list[Diagnosis]]:
    """The diagnoses of each run at its newest checkpoint that has any, by network and data."""
    newest: dict[tuple[str, str], list[Diagnosis]] = {}
    for run in runs:
        last = max((one.step for one in run.diagnoses), default=0)
        for one in (one for one in run.diagnoses if one.step == last):
            newest.setdefault((one.network, one.data), []).append(one)
    return newest


def _verdicts(found: Sequence[Diagnosis]) -> list[str]:
    """The step, the number of runs, their verdicts with the most frequent first, and what they learned on average."""
    steps = sorted({one.step for one in found})
    counts = Counter(one.report.verdict for one in found)
    verdict = (
        found[0].report.verdict if len(counts) == 1 else ", ".join(f"{n} {word}" for word, n in counts.most_common())
    )
    cells = [f"{steps[0]} to {steps[-1]}" if len(steps) > 1 else str(steps[0]), str(len(found)), verdict]
    learned = [one.learned for one in found if one.learned]
    if not learned:
        return [*cells, "-"]
    of_runs = mean([np.array([one.mean for one in learned])])
    value, interval = of_runs.value, of_runs.interval
    if len(learned) == 1 and np.isfinite(learned[0]).all():
        interval = learned[0][1:]
    return [*cells, f"{value:.2f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")]


def _settings(groups: Sequence[Group], names: Sequence[str]) -> str:
    values = ([short(g.settings[name]) if name in g.settings else "-" for name in names] for g in groups)
    return _table([["group", *names], *([g.label, *line] for g, line in zip(groups, values, strict=True))])


def warned(warnings: Sequence[str]) -> str:
    """A box with the first warnings, and the others folded; empty without warnings."""
    if not warnings:
        return ""
    items = [f"<li>{escape(warning)}</li>" for warning in warnings]
    shown, rest = "".join(items[:8]), "".join(items[8:])
    more = f"<details><summary>{len(items) - 8} more</summary><ul>{rest}</ul></details>" if rest else ""
    return f'<div class="warnings"><strong>Warnings</strong><ul>{shown}</ul>{more}</div>'


def table(comparison: Comparison) -> str:
    """The table of the statistics, which the script can sort."""
    header, *lines = comparison.table()
    rows = []
    for place, (row, (label, *line)) in enumerate(zip(comparison.rows, lines, strict=True)):
        # As in figures, and below it as arguments say it.
        called = "" if row.name == label else f'<div class="muted">{escape(label)}</div>'
        baseline = ' class="baseline"' if row.group is comparison.baseline else ""
        rows.append(f'<tr data-group="{place}"{baseline}><td>{escape(row.name)}{called}</td>{_cells(line)}</tr>')
    return rows_of(header, rows, ' class="sortable"')


def _table(lines: Sequence[Sequence[str]]) -> str:
    return rows_of(lines[0], [f"<tr>{_cells(line)}</tr>" for line in lines[1:]])


def rows_of(header: Sequence[str], rows: Sequence[str], attributes: str = "") -> str:
    """A table; `rows` are elements, `header` is text."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    many = " many" if len(header) > 4 else ""  # more than a phone is wide
    whole = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll{many}"><table{attributes}>{whole}</table></div>'


def _cells(line: Sequence[str]) -> str:
    wrap = ' class="wrap"'
    return "".join(f"<td{wrap if len(cell) > 48 else ''}>{escape(cell)}</td>" for cell in line)


def figure(p: Picture, heading: str) -> str:
    """A figure of curves with its caption, whatever its size."""
    return _figure(p, heading, _image(p, 2 * len(p.svg), WIDE))


def _figure(p: Picture, heading: str, image: str) -> str:
    wide = ' class="wide"' if p.width > 5 else ""
    return (
        f'<figure{wide}>{heading}<div class="scroll">{image}</div><figcaption>{escape(p.caption)}</figcaption></figure>'
    )


def _image(p: Picture, left: int, scale: float) -> str:
    """The figure as an SVG or a PNG, or the name of its file if neither fits into the characters that are left."""
    style = f'style="width: {p.width * scale:.1f}in"'
    if len(p.svg) <= left / 2:
        return p.svg.replace("<svg ", f'<svg {style} aria-label="{escape(p.title)}" ', 1)
    data = base64.b64encode(p.png).decode()
    if len(data) <= left:
        return f'<img src="data:image/png;base64,{data}" alt="{escape(p.title)}" {style}>'
    return f"<p>As large as the page may be: <code>figures/{escape(p.name)}.png</code></p>"


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _provenance(c: Comparison) -> str:
    lines = [["group", "task", "seed", "folder", "commit", "version", "torch", "plugs", "device", "started", "command"]]
    found = [(row, task, run) for row in c.rows for task, runs in row.group.tasks.items() for run in runs]
    for row, task, run in found:
        start = dict(run.starts[-1]) if run.starts else {}
        start |= {"torch": (start.get("libraries") or {}).get("torch")}
        names = ("commit", "rl_plasticity", "torch", "device", "time", "command")
        commit, version, torch, *rest = (str(start.get(name) or "unknown") for name in names)
        plugs = ", ".join(f"{module} {digest}" for module, digest in run.plugs.items()) or "none"
        of_run = [row.group.label, task, str(run.seed), str(run.folder)]
        lines.append([*of_run, short_version(commit), version, torch, plugs, *rest])
    return _table(lines)
