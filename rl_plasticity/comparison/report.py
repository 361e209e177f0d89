"""One self-contained page: ``report.html``. It loads nothing; figures are in it."""

import base64
import shlex
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from rl_plasticity.comparison.groups import Group, differing, short
from rl_plasticity.comparison.summary import FEW, Comparison, counted

GENERATOR = "rl_plasticity.compare"
STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 4rem; background: #fff; color: #1a1a1a;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.lead { font-size: 1.05rem; margin: .4rem 0 1rem; max-width: 46rem; }
.muted { color: #555; font-size: .9rem; }
.warnings { border-left: 4px solid #d08700; background: #fff8e8; padding: .6rem 1rem; margin: 1rem 0;
  font-size: .92rem; }
.warnings ul { margin: .2rem 0 0; padding-left: 1.1rem; }
/* What goes on beyond an edge casts a shadow there: phones show a scroll bar only while one scrolls. */
.scroll { overflow-x: auto; background: no-repeat local 0 0 / 3rem 100% linear-gradient(to right, #fff 40%, #fff0),
  no-repeat local 100% 0 / 3rem 100% linear-gradient(to left, #fff 40%, #fff0),
  no-repeat 0 0 / 1rem 100% linear-gradient(to right, #0004, #0000),
  no-repeat 100% 0 / 1rem 100% linear-gradient(to left, #0004, #0000); }
.scroll::-webkit-scrollbar { height: 8px; }
.scroll::-webkit-scrollbar-thumb { background: #aaa; border-radius: 4px; }
table { border-collapse: collapse; overflow-wrap: normal; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem 1rem .35rem .3rem; border-bottom: 1px solid #e3e3e3; white-space: nowrap;
  vertical-align: top; }
th { border-bottom: 1.5px solid #777; font-weight: 600; white-space: normal; vertical-align: bottom; }
td.wrap { white-space: normal; min-width: 14rem; }
tr.baseline td { background: #0000000c; }
.figures { display: flex; flex-wrap: wrap; gap: 0 3rem; }
figure { margin: 0 0 1.6rem; flex: 0 1 33rem; min-width: 0; }
figure.wide { flex-basis: 100%; }
figure img { max-width: 100%; height: auto; display: block; }
figure.wide img { min-width: 34rem; }
figcaption { color: #444; font-size: .9rem; margin-top: .4rem; max-width: 46rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
details { margin: .8rem 0; }
summary { cursor: pointer; font-weight: 600; }
code { font-size: .85em; }
@media (max-width: 40rem) { h1 { font-size: 1.25rem; } figure.wide img { min-width: 0; }
  .many::before { content: "scrolls sideways →"; position: sticky; left: 0; color: #555; font-size: .8rem; }
  .many td:first-child, .many th:first-child { position: sticky; left: 0; background: #fff; white-space: normal;
    overflow-wrap: anywhere; min-width: 9rem; max-width: 38vw; background-clip: padding-box; }
  .many tr.baseline td:first-child { background: #f3f3f3; } }
@media print { body { max-width: none; padding: 0; font-size: 11pt; } figure, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .scroll { overflow: visible; background: none; } table { font-size: 8pt; } }
"""


class Picture(NamedTuple):
    """A figure as the page shows it; `width` in inches."""

    name: str
    title: str
    png: bytes
    width: float
    caption: str


def render(comparison: Comparison, pictures: Sequence[Picture], command: str, files: Sequence[str]) -> str:
    """The page.

    Args:
        command: the command line that made it.
        files: what lies in the comparison's folder; it is noted, so that the folder can be told from others.
    """
    curves = [p for p in pictures if p.name.startswith(("learning_curves", "accuracy_over_updates"))]
    others = [p for p in pictures if p not in curves]
    groups = [row.group for row in comparison.rows]
    differ = differing([g.settings for g in groups])
    same = {name: value for name, value in groups[0].settings.items() if name not in differ}
    runs = [run for g in groups for run in g.runs]
    parts = [
        f"<h1>{escape(', '.join(comparison.at))}: {counted(len(groups), 'group')} of runs compared</h1>",
        f'<p class="lead">{escape(comparison.verdict())}</p>',
        _warnings(comparison.warnings),
        "<h2>Statistics</h2>",
        _table(comparison.table(), [row.group is comparison.baseline for row in comparison.rows]),
        f'<p class="muted">{escape(_explained(comparison))}</p>',
        "<h2>Learning curves</h2>",
        *(_figure(p, "") for p in curves),
        "<h2>Figures</h2>",
        '<div class="figures">',
        *(_figure(p, f"<h3>{escape(p.title)}</h3>") for p in others),
        "</div>",
        "<h2>Settings</h2>",
        _settings(groups, differ) if differ else "<p>There is one group.</p>",
        _folded(
            "Settings that all groups share", _table([["setting", "value"], *([n, short(v)] for n, v in same.items())])
        ),
        _folded(f"Provenance of each run ({len(runs)})", _provenance(comparison)),
        f'<p class="muted">Made by <code>{escape(command)}</code></p>',
    ]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta name="generator" content="{GENERATOR}">',
            f'<meta name="files" content="{escape(" ".join(files))}">',
            f"<title>{escape(', '.join(comparison.at))}: comparison</title>",
            f"<style>{STYLE}</style>\n</head>\n<body>",
            *parts,
            "</body>\n</html>\n",
        ]
    )


# ------------------------------------------------------------------------------------------------------------------


def _settings(groups: Sequence[Group], names: Sequence[str]) -> str:
    values = ([short(g.settings[name]) if name in g.settings else "-" for name in names] for g in groups)
    return _table([["group", *names], *([g.label, *line] for g, line in zip(groups, values, strict=True))])


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = [f"<li>{escape(warning)}</li>" for warning in warnings]
    shown, rest = "".join(items[:8]), "".join(items[8:])
    more = f"<details><summary>{len(items) - 8} more</summary><ul>{rest}</ul></details>" if rest else ""
    return f'<div class="warnings"><strong>Warnings</strong><ul>{shown}</ul>{more}</div>'


def _explained(c: Comparison) -> str:
    """What the columns are."""
    text = f"{c.metric} at {c.where}"
    if c.scale != 1:
        text += ", divided by 1000"
    text += f": mean ± standard error, and interquartile mean (IQM), from {FEW} seeds on with its 95 % stratified "
    text += "bootstrap interval. "
    text += "Mean over tasks: of the same value. " if c.unit == "task" else "AUC: mean over the curve up to there. "
    if any(row.diverged for row in c.rows):
        text += "Runs that are not finite are the worst in IQM and P(improvement) and left out of the other means. "
    if any(row.online is not None for row in c.rows):
        text += "Online accuracy: on each batch before it was learned, mean over tasks. "
    if c.target is not None:
        text += "Steps to the target: median over runs, never counting as infinite, and how many reached it. "
    if c.baseline is not None:
        text += f"P(improvement) and gap (difference of means) are over the baseline, {c.baseline.label}; "
        text += "pairs: the seeds that both have, whose differences the gap is of. Its interval is Student's t, for "
        text += "each group by itself. "
    return text + ("* has unfinished runs." if any(row.unfinished for row in c.rows) else "")


def _table(lines: Sequence[Sequence[str]], marked: Sequence[bool] = ()) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in lines[0])
    body = ""
    for i, line in enumerate(lines[1:]):
        cells = "".join(f"<td{_wrap(cell)}>{escape(cell)}</td>" for cell in line)
        body += f'<tr class="baseline">{cells}</tr>' if i < len(marked) and marked[i] else f"<tr>{cells}</tr>"
    many = " many" if len(lines[0]) > 4 else ""  # more than a phone is wide
    return f'<div class="scroll{many}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _wrap(cell: str) -> str:
    return ' class="wrap"' if len(cell) > 48 else ""


def _figure(p: Picture, heading: str) -> str:
    data = base64.b64encode(p.png).decode()
    wide = ' class="wide"' if p.width > 5 else ""
    image = f'<img src="data:image/png;base64,{data}" alt="{escape(p.title)}" style="width: {p.width * 1.45:.1f}in">'
    return (
        f'<figure{wide}>{heading}<div class="scroll">{image}</div><figcaption>{escape(p.caption)}</figcaption></figure>'
    )


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _provenance(c: Comparison) -> str:
    lines = [["group", "task", "seed", "folder", "commit", "version", "device", "started", "command"]]
    for row in c.rows:
        for task, runs in row.group.tasks.items():
            for run in runs:
                start = run.starts[-1] if run.starts else {}
                command = start.get("command")  # a list in earlier versions
                lines.append(
                    [
                        row.group.label,
                        task,
                        str(run.seed),
                        str(run.folder),
                        str(start.get("commit") or "unknown")[:10],
                        str(start.get("rl_plasticity", "unknown")),
                        str(start.get("device", "unknown")),
                        str(start.get("time", "unknown")),
                        shlex.join(map(str, command)) if isinstance(command, list) else str(command or "unknown"),
                    ]
                )
    return _table(lines)
