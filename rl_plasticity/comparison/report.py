"""The page of a comparison, ``report.html``: one file with its figures, which loads nothing and runs nothing."""

import base64
from collections.abc import Sequence
from html import escape

from rl_plasticity.comparison.figures import Drawn
from rl_plasticity.comparison.groups import differing
from rl_plasticity.comparison.table import Comparison
from rl_plasticity.errors import counted
from rl_plasticity.runs.names import short

GENERATOR = '<meta name="generator" content="rl_plasticity.compare">'
STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; white-space: nowrap }
tr { border-bottom: 1px solid #8884 } th, td { padding: .2rem .8rem .2rem 0; text-align: left }
figure { margin: 1.5rem 0 }
img { max-width: 100%; background: white } figcaption, .muted { color: gray }
"""


def render(c: Comparison, figures: Sequence[tuple[Drawn, bytes]], command: str) -> str:
    """The page, from the figures and their PNGs and the command line that made it."""
    groups = [row.group for row in c.rows]
    differ = differing([g.settings for g in groups])
    same = {name: short(value) for name, value in groups[0].settings.items() if name not in differ}
    settings = [["group", *differ], *([g.label, *(short(g.settings.get(n)) for n in differ)] for g in groups)]
    title = f"{', '.join(c.steps)}: {counted(len(groups), 'group')} of runs"
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(c.verdict())}</p>",
        f"<ul>{''.join(f'<li>{escape(warning)}</li>' for warning in c.warnings)}</ul>",
        f"{table_of(c.table())}<p class=muted>{escape(c.caption)}</p>",
        *(figure_of(drawn.title, png, drawn.caption) for drawn, png in figures),
        "<h2>Settings</h2>" + table_of(settings),
        "<h2>Settings that all groups share</h2>" + table_of([["setting", "value"], *map(list, same.items())]),
        f"<p class=muted>Made by <code>{escape(command)}</code></p>",
    ]
    return document(title, parts, GENERATOR)


def document(title: str, parts: Sequence[str], head: str = "") -> str:
    """A page in one file, of parts that are HTML."""
    head = f'<meta charset="utf-8">{head}<title>{escape(title)}</title><style>{STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{chr(10).join(parts)}\n</body>\n</html>\n'


def figure_of(title: str, png: bytes, caption: str) -> str:
    """A figure with its title and caption as HTML."""
    image = f'<img alt="{escape(title)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
    return f"<figure><h2>{escape(title)}</h2>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def table_of(lines: Sequence[Sequence[str]]) -> str:
    """A table as HTML, its first line the header."""
    head, *rows = ("".join(f"<td>{escape(cell)}</td>" for cell in line) for line in lines)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<div class=scroll><table><tr>{head.replace('td>', 'th>')}</tr>{body}</table></div>"
