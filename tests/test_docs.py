"""The documents: their links, pictures and tables."""

import pkgutil
import re
from pathlib import Path

import pytest
import yaml

from papers import shown

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(page):
    """The text without blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    """What links can point to in a page: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    for link in LINK.findall(prose(page)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_links_every_page():
    linked = {link.partition("#")[0] for link in LINK.findall((ROOT / "docs" / "index.md").read_text())}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= linked


def test_the_site_has_every_page_in_its_navigation():
    def pages(nav):
        return {
            page
            for entry in nav
            for value in ([entry] if isinstance(entry, str) else entry.values())
            for page in ([value] if isinstance(value, str) else pages(value))
        }

    nav = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= nav
    for page in nav:
        assert (ROOT / "docs" / page).exists() or page in ("readme.md", "contributing.md", "changelog.md"), page


def test_every_picture_of_the_documents_is_shown_somewhere_and_small():
    shown = "".join(page.read_text() for page in PAGES)
    for picture in (ROOT / "docs").rglob("*.png"):
        assert picture.name in shown
        assert picture.stat().st_size < 250_000


@pytest.mark.parametrize("page", [page for page in PAGES if "; " in page.read_text()], ids=lambda page: page.name)
def test_each_number_with_a_source_is_what_the_source_has(page):
    text = page.read_text()
    marked = shown.MARKED.findall(text)
    assert len(marked) == len(re.findall(r"<!-- [^>]*; [^>]*-->", text)), "a marker follows no number, or is no marker"
    for number, *where in marked:
        same, cell = shown.is_shown(number, *where)
        assert same, f"{number}, but {cell}: {where}"


def test_each_table_that_the_site_draws_from_results_can_be_drawn():
    sources = [source for page in PAGES for source in shown.TABLE.findall(page.read_text())]
    for source in sources:
        assert shown.in_markdown(source).count("\n") >= 2, source


def test_a_reader_on_github_finds_a_link_to_each_table_that_the_site_draws():
    for page in PAGES:
        for before, source in re.findall(r"(\S[^\n]*\n*)<!-- table: (\S+)", page.read_text()):
            assert f"({source})" in before, (page.name, source)


@pytest.mark.parametrize("file", shown.PRINTED)
def test_a_table_that_a_command_prints_is_kept_as_it_prints_it(file):
    assert shown.rows(file) == shown.rows(shown.PRINTED[file])


WALKS = re.findall(
    r"^- `([\w/.]+):([\w.]+)`", (ROOT / "CONTRIBUTING.md").read_text().partition("## Checks")[0], re.MULTILINE
)


def test_every_place_of_the_four_walks_through_the_code_is_there():
    assert len(WALKS) >= 20
    for file, name in WALKS:
        pkgutil.resolve_name(f"rl_plasticity.{file.removesuffix('.py').replace('/', '.')}:{name}")


def test_the_map_has_a_line_for_each_room():
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Checks")[0]
    rooms = {path.parent.name for path in (ROOT / "rl_plasticity").glob("*/__init__.py")}
    assert [room for room in rooms if f"{room}/" not in text] == []
