"""The page that `compare` writes, in a real browser: groups are hidden, curves are read, tables are sorted."""

import re

import pytest
from folders import curve, write_run

from rl_plasticity.compare import compare

RETURNS = {"none": [10.0, 20.0, 60.0], "l2": [5.0, 6.0, 7.0], "swr": [1.0, 2.0, 123.0]}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    place = tmp_path_factory.mktemp("page")
    for reg, returns in RETURNS.items():
        rows = {str(seed): curve([value + seed for value in returns]) for seed in range(5)}
        rows = {seed: of | curve([value / 2 for value in returns], "critic/sigma1") for seed, of in rows.items()}
        write_run(place / "runs" / reg, [f"reg={reg}", "total_env_steps=3000"], rows)
    compare(place / "runs", out=place / "out")
    return (place / "out" / "report.html").as_uri()


def point_at(page, share, svg=0):
    """Move to so much of the way from the left end of the first panel's axis to its right end."""
    box = page.evaluate(
        """i => {
            const svg = document.querySelectorAll("figure svg")[i];
            svg.scrollIntoView({block: "center"});
            const [x0, y0, x1, y1] = JSON.parse(svg.nextElementSibling.textContent)[0].box;
            const [a, b] = [[x0, y0], [x1, y1]].map((p) => new DOMPoint(...p).matrixTransform(svg.getScreenCTM()));
            return [a.x, a.y, b.x, b.y];
        }""",
        svg,
    )
    page.mouse.move(box[0] + share * (box[2] - box[0]), (box[1] + box[3]) / 2)


def read(page):
    return page.locator(".tip").inner_text().splitlines()


def test_pointing_at_curves_reads_their_values_at_the_nearest_step_the_largest_first(opened, address):
    page = opened(address)
    assert page.locator(".tip").is_hidden()
    point_at(page, 0.98)
    assert [line.split("[")[0].split() for line in read(page)] == [
        ["3,000"],
        ["swr", "125"],
        ["no", "method", "62"],
        ["l2", "9"],
    ]
    assert re.search(r"no method\s+62 \[60\.04, 63\.96\]", page.locator(".tip").inner_text())
    point_at(page, 0.5)
    assert read(page)[0] == "2,000"
    page.mouse.move(5, 5)
    assert page.locator(".tip").is_hidden()


def test_a_curve_that_has_ended_is_not_read_as_if_it_went_on(opened, tmp_path):
    for reg, returns in (("none", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), ("swr", [54.0, 55.0, 56.0])):
        write_run(tmp_path / reg, [f"reg={reg}", "total_env_steps=6000"], {str(n): curve(returns) for n in range(2)})
    compare(tmp_path, out=tmp_path / "out")
    page = opened((tmp_path / "out" / "report.html").as_uri())
    point_at(page, 0.99)
    step, curve_of_none = read(page)
    assert step == "6,000"
    assert re.match(r"no method\*?\s", curve_of_none)
    point_at(page, 0.41)
    assert read(page)[0] == "3,000"
    assert len(read(page)) == 3
    assert "[" not in page.locator(".tip").inner_text()  # two seeds: no interval is shown anywhere


def test_a_click_on_a_key_hides_its_group_in_every_figure_and_another_shows_it_again(opened, address):
    page = opened(address)
    shown = """place => [...document.querySelectorAll(`svg [data-group="${place}"]`)]
        .filter((one) => one.getClientRects().length).length"""
    before = [page.evaluate(shown, place) for place in range(3)]
    assert all(count > 5 for count in before)
    labels = [row.split("\t")[0] for row in page.locator("table.sortable tbody tr").all_inner_texts()]
    swr = labels.index("swr")
    page.locator(f'svg [data-key="{swr}"]').last.click()
    after = [page.evaluate(shown, place) for place in range(3)]
    assert after == [0 if place == swr else count for place, count in enumerate(before)]
    assert page.locator("tr.off").inner_text().startswith("swr")
    point_at(page, 0.98)
    assert not any(line.startswith("swr") for line in read(page))
    key = page.locator(f'svg [data-key="{swr}"]').first
    assert key.get_attribute("aria-pressed") == "false"
    key.focus()
    page.keyboard.press("Enter")
    assert [page.evaluate(shown, place) for place in range(3)] == before


def test_a_click_on_a_column_s_head_sorts_by_its_numbers_and_another_the_other_way(opened, address):
    page = opened(address)

    def first():
        # A name in words has the group's label in a line below it.
        return [re.split(r"[\t\n]", row)[0] for row in page.locator("table.sortable tbody tr").all_inner_texts()]

    head = page.get_by_role("button", name="final", exact=True)
    head.click()
    assert first() == ["swr", "no method", "l2"]  # 125, 62, 9: not as text
    assert page.locator('th[aria-sort="descending"]').inner_text().startswith("final")
    head.click()
    assert first() == ["l2", "no method", "swr"]
    page.get_by_role("button", name=re.compile("^gap")).click()
    assert first() == ["swr", "l2", "no method"]  # the baseline has no gap
    page.get_by_role("button", name="group", exact=True).click()
    assert first() == ["l2", "no method", "swr"]


def test_it_is_dark_where_the_system_is_and_light_on_paper(opened, address):
    page = opened(address, scheme="dark")
    colour = "() => getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(colour) == "rgb(18, 18, 18)"
    assert "invert" in page.evaluate("() => getComputedStyle(document.querySelector('figure svg')).filter")
    page.emulate_media(media="print")
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    assert page.evaluate("() => getComputedStyle(document.querySelector('figure svg')).filter") == "none"
    assert page.locator(".hint").is_hidden()
    assert page.pdf()[:4] == b"%PDF"


@pytest.mark.parametrize("width", [390, 820, 1440])
def test_nothing_but_its_tables_and_wide_figures_is_wider_than_the_window(opened, address, width):
    page = opened(address, width)
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
