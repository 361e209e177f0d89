"""What `mkdocs.yml` leaves to Python: files outside docs/, the reference, equations, GitHub's anchors.

- The pages are read on GitHub as well, so their links are relative and lead out of docs/: whatever a page links there
  (README, examples, a folder) gets a page of the site.
- The reference is made of the package's public names: those in ``rl_plasticity.__all__`` and every package's
  ``__all__``, and all that the other modules of public names define. A public name without a docstring ends the build.
- Equations become MathML while the site is built, so that no script is needed to read them.
"""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from functools import partial
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from papers.shown import SOURCE, TABLE, in_markdown
from rl_plasticity.__main__ import COMMANDS

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
PICTURE = re.compile(r'(src(?:set)?=")([^":]+)(")()')  # of a <picture>, in the same four parts
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
# What lies outside docs/ and is read as a page; by its place on the site.
PAGES = {"readme.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"  # whole files of code would hide the pages about them
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".yaml": "yaml", ".cff": "yaml"}
# What a command is from Python, where that does not have the command's name.
FUNCTIONS = dict(train="run", supervised="run", status="command", benchmark="command", diagnose="diagnose_run")
# What no `__all__` names, by module: the names that are public, or none for all that it defines.
ALSO: dict[str, tuple[str, ...]] = {
    "learning.optimizers": (),
    "learning.attached": (),
    "integrations.lightning": (),
    "integrations.stable_baselines3": ("Regularize",),
    "integrations.torchrl": (),
    "integrations.transformers": (),
    "comparison.table": ("Comparison", "Estimate"),
    "configs.commands": ("Train", "Supervised", "Evaluate", "Watch"),
    "runs.command": ("CALLBACKS",),
    "runs.folder": ("RunFolder", "find"),
    "runs.names": ("RunName", "MetricName", "Curve"),
    "runs.session": ("Session",),
    "settings": ("Setting", "checked", "settings_of"),
    "runs.state": ("Status", "read"),
    "tasks.continual": (),
}
# Pages of several rooms; any other room has its own.
TOGETHER = {
    **dict.fromkeys([*COMMANDS, "configs", "comparison"], "commands"),
    **dict.fromkeys(["learning", "integrations", "diagnosis"], "loops"),
    **dict.fromkeys(["settings", "errors"], "settings"),
}
ABOUT = {
    "commands": "What each command is from Python: [From Python](../plugs.md#from-python) shows them at work.",
    "loops": "Regularizers in any training loop: [Use it in your own training](../your-own-training.md).",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings have GitHub's anchors, and the navigation the pages that are made here."""
    config.mdx_configs["toc"]["slugify"] = lambda text, _: re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
    made = {"API": list(reference()), "Examples": [place(path) for path in scripts(ROOT / "examples")]}
    for section in (inside for entry in config.nav or [] if isinstance(entry, dict) for inside in entry.values()):
        for entry in section:
            if isinstance(entry, dict):
                entry.update({name: pages for name, pages in made.items() if name in entry})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference, and a page for whatever the pages link outside docs/."""
    for name, text in reference().items():
        files.append(File.generated(config, name, content=text))
    for name, source in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    todo = [target for file in files.documentation_pages() for target in linked(source_of(file), file.content_string)]
    for path in [*scripts(ROOT / "examples"), *todo]:
        name = place(path)
        if name.endswith(".md") and name not in files.src_uris:
            in_nav = path.is_file() and path.is_relative_to(ROOT / "examples")
            level = InclusionLevel.INCLUDED if in_nav else InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, name, content=shown(path), inclusion=level))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Tables of results, and links between files of the repository as links between pages of the site."""
    source, here = source_of(page.file), posixpath.dirname(page.file.src_uri)

    def on_site(match: re.Match[str]) -> str:
        label, link, anchor, after = match.groups()
        path = target(source, link)
        if path is None:
            return match[0]
        if label.endswith(".md]("):  # a page is called by its title
            label = f"[{path.read_text().partition(chr(10))[0].removeprefix('# ')}]("
        return label + posixpath.relpath(place(path), here or ".") + (anchor or "") + after

    markdown = TABLE.sub(lambda match: f"\n\n{in_markdown(match[1])}\n\n", markdown)
    markdown = SOURCE.sub("", markdown)  # where numbers are from, for the tests
    return PICTURE.sub(on_site, LINK.sub(on_site, markdown))


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Equations as MathML, figures that open alone, numbers in one piece; source code is not searched."""
    html = EQUATION.sub(lambda match: convert(unescape(match[2])), html)
    html = re.sub(r'(<img[^>]* src="([^"]+)"[^>]*>)', r'<a href="\2">\1</a>', html)
    html = re.sub(r"(?<=<td>)[^<]*\d \[[^<]*\](?=</td>)", lambda match: match[0].replace(" ", "&nbsp;"), html)
    parts = re.split(r"(<pre.*?</pre>|<code.*?</code>|<[^>]+>)", html, flags=re.DOTALL)
    parts[::2] = [re.sub(r"(?<=\d) (?=\d{3}\b)", "&nbsp;", text) for text in parts[::2]]  # 14 000
    source = '<details class="mkdocstrings-source"'
    return "".join(parts).replace(source, f"{source} data-search-exclude")


# ------------------------------------------------------------------------------------------------------------------


def source_of(file: File) -> Path:
    """The file of the repository that a page is made of."""
    name = file.src_uri
    if name.endswith(".ipynb.md"):
        return ROOT / name.removesuffix(".md")
    return ROOT / PAGES[name] if name in PAGES else ROOT / "docs" / name


def target(source: Path, link: str) -> Path | None:
    """The file or folder of the repository that `link` in `source` leads to; None if it is no such link."""
    path = (source.parent / link).resolve()
    return path if path.is_relative_to(ROOT) and path.exists() else None


def linked(source: Path, text: str) -> Iterator[Path]:
    """What a page links, in the repository; of folders also what is in them."""
    for _, link, _, _ in LINK.findall(text):
        path = target(source, link)
        if path:
            yield path
            yield from scripts(path) if path.is_dir() else ()


def scripts(folder: Path) -> list[Path]:
    """The scripts and notebooks below a folder."""
    return sorted([*folder.rglob("*.py"), *folder.rglob("*.ipynb")])


def place(path: Path) -> str:
    """Where a file or folder of the repository is on the site, as mkdocs calls its source."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"{name.removeprefix('docs/')}/index.md"
    by_source = {source: page for page, source in PAGES.items()}
    return name.removeprefix("docs/") if name.startswith("docs/") else by_source.get(name, f"{name}.md")


def shown(path: Path) -> str:
    """A file as a page of highlighted text, a notebook as it reads, or a folder as a page that links what is in it."""
    name = path.relative_to(ROOT).as_posix()
    if path.suffix == ".ipynb":
        return "\n\n".join(piece for cell in json.loads(path.read_text())["cells"] for piece in cell_of(cell))
    if path.is_file():
        fence = "`" * 8
        text = f"{fence}{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}{fence}\n"
        return f"{NOT_SEARCHED}# {path.name}\n\n`{name}`\n\n{text}"
    inside = sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    here = posixpath.dirname(place(path))
    lines = [f"- [{p.relative_to(path)}]({posixpath.relpath(place(p), here)})" for p in inside]
    return "\n".join([f"# {name}/", "", *lines, ""])


def cell_of(cell: dict[str, Any]) -> Iterator[str]:
    """A notebook's cell as Markdown, with what it printed and drew."""
    text = "".join(cell["source"])
    yield text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if "image/png" in data:
            image = "".join(data["image/png"]).replace("\n", "")
            yield f'<img alt="what the cell drew" src="data:image/png;base64,{image}">'
        elif printed := "".join(output.get("text", data.get("text/plain", ""))).rstrip():
            yield f"```text\n{printed}\n```"


# ------------------------------------------------------------------------------------------------------------------


def reference() -> dict[str, str]:
    """The pages of the reference, by their place.

    Raises:
        PluginError: a public name has no docstring, or an entry of a public dict is missing.
        KeyError: a public name is not there.
    """
    package: Any = griffe.load("rl_plasticity", search_paths=[ROOT])
    public = {name: package[name].canonical_path for name in package.exports}
    paths = {module[str(name)].canonical_path for module in modules(package) for name in module.exports or ()}
    paths |= {f"rl_plasticity.{command}.{FUNCTIONS.get(command, command)}" for command in COMMANDS}
    for room, names in ALSO.items():
        defined = [n for n, o in package[room].members.items() if not o.is_alias and not o.is_attribute and n[0] != "_"]
        paths |= {f"rl_plasticity.{room}.{name}" for name in names or defined}
    bare = [path for path in sorted(paths) if not package[path.partition(".")[2]].docstring]
    if bare:
        raise PluginError(f"public names without a docstring: {', '.join(bare)}")
    pages: dict[str, list[str]] = {}
    for path in sorted(paths, key=lambda path: (path.split(".")[1], path.rpartition(".")[2].lower(), path)):
        pages.setdefault(TOGETHER.get(path.split(".")[1], path.split(".")[1]), []).append(path)
    texts = {"index": index(package, public)}
    for title in sorted(pages):
        about = first_paragraph(package[title]) if title in package.modules else ABOUT[title]
        entries = [entry(path, title) + choices(path, paths) for path in pages[title]]
        texts[title] = "\n\n".join([f"# {title.replace('_', ' ').capitalize()}", about, *entries])
    return {f"reference/{name}.md": text + "\n" for name, text in texts.items()}


def entry(path: str, title: str) -> str:
    """What mkdocstrings writes of a name; where a page is of several modules, with where it is."""
    heading = path.partition(".")[2] if title in ABOUT else path.rpartition(".")[2]
    return f"::: {path}\n    options:\n      heading: {heading}\n      toc_label: {heading}\n"


def modules(module: Any) -> Iterator[Any]:
    """A module and all below it."""
    yield module
    for inside in module.modules.values():
        yield from modules(inside)


def first_paragraph(described: Any) -> str:
    """That of an object's docstring."""
    return str(described.docstring.value).partition("\n\n")[0]


def index(package: Any, public: dict[str, str]) -> str:
    """The names of the package itself, each with its first line and a link."""
    rows = [
        f"| [`{name}`][{path}] | {first_paragraph(package[name])} |".replace("\n", " ") for name, path in public.items()
    ]
    about = "What `from rl_plasticity import` has. All else that is public is on the pages beside this one."
    return "\n".join(["# Public names", "", about, "", "| name | |", "|---|---|", *rows])


def choices(path: str, documented: set[str]) -> str:
    """The entries of a public dict, as a table; nothing of anything else.

    Raises:
        PluginError: a class in it is nowhere in the reference.
    """
    module, _, name = path.rpartition(".")
    if not name.isupper():
        return ""
    entries = getattr(import_module(module), name)
    if not isinstance(entries, Mapping):
        return ""
    rows = ["", "| name | |", "|---|---|"]
    for key, made in entries.items():
        while isinstance(made, partial):
            made = made.func
        made = made if hasattr(made, "__qualname__") else type(made)
        where = f"{made.__module__}.{made.__qualname__}"
        if isinstance(made, type) and where not in documented and where.startswith("rl_plasticity."):  # not the zoo's
            raise PluginError(f"{name}[{key!r}], {where}, is not in the reference: name it in its package's __all__")
        rows.append(f"| `{key}` | " + (f"[`{made.__name__}`][{where}]" if where in documented else "") + " |")
    return "\n".join([*rows, ""])


class Docstrings(griffe.Extension):
    """Docstrings as Markdown: the two colons before an indented example are one."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Of each object as it is read."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"::(?=\n\n +)", ":", obj.docstring.value)
