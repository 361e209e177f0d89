"""examples/notebooks: each runs from top to bottom, its numbers say what its prose says, it is committed as it ran."""

import base64
import json
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import pytest
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
A_PATH = re.compile(r"""(?:^|[\s"'=(\[])(?:/\w|~/|file:|[A-Za-z]:\\)""", re.MULTILINE)


class Ran(NamedTuple):
    names: dict[str, Any]  # after the last cell
    printed: dict[str, str]  # by the cell's id


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def shown(cell: dict[str, Any]) -> str:
    """What is committed as printed by the cell."""
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Execute the cells in this process: a kernel costs 0.6 s of CPU for itself and 2 to 3 s to import torch again."""
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir(), temporary.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    matplotlib.use("agg")

    def run(path: Path) -> Ran:
        ran = Ran({"__name__": "__main__"}, {})
        for cell in cells(path, "code"):
            exec(compile("".join(cell["source"]), f"{path.name}, cell {cell['id']}", "exec"), ran.names)
            ran.printed[cell["id"]] = capsys.readouterr().out
        left = [*here.iterdir(), *temporary.iterdir()]
        assert not [path for path in left if not path.name.startswith("torchinductor_")]  # torch's own cache
        return ran

    yield run
    plt.close("all")


def plasticity_is_lost_without_a_regularizer_alone(ran: Ran) -> None:
    accuracy = ran.names["accuracy"]  # [tasks, methods, seeds]
    nothing, spectral, fresh_start = accuracy[-1]
    assert (accuracy[0] > 0.9).all()
    assert nothing.mean() < 0.5
    assert (nothing < spectral).all()
    assert min(spectral.mean(), fresh_start.mean()) > 0.9
    assert 0.3 < ran.names["low"] < ran.names["high"]  # of the difference seed by seed: far from 0

    for name, direction in (("dormant", 1), ("feature_rank", -1), ("weight_norm", 1), ("sigma1", 1)):
        means = ran.names["measured"][name].mean(-1)  # [tasks, methods]
        assert (direction * means[:, 0].diff() > 0).all(), name
        first, last = means[0], means[-1]
        assert ((last - first)[1:].abs() < (last - first)[0].abs() / 2).all(), name


def one_line_is_the_loop_by_hand_and_what_does_not_apply_is_refused(ran: Ran) -> None:
    names, printed = ran.names, ran.printed
    sigma1 = {net: names["measure"](names[net], names["images"])["sigma1"] for net in ("plain", "net")}
    assert sigma1["net"] < 0.9 * sigma1["plain"]
    for net in sigma1:
        accuracy = (names[net](names["images"]).argmax(-1) == names["labels"]).float().mean()
        assert accuracy > 0.7  # most of the labels
    assert "both ways are alike: True" in printed["by-hand"]
    assert len(re.findall("^- ", printed["refusals"], re.MULTILINE)) == printed["refusals"].count("\n") / 2 == 6
    assert "pass example=" in printed["refusals"]
    assert "SoftWeightRescaling" in printed["example"]
    assert "the weights of one batch: True" in printed["accumulation"]
    assert "the penalty is torch.float32" in printed["accumulation"]
    assert "bit for bit: True" in printed["resume"]
    assert names["before"] >= 0.25 > 2 * names["dormant"]()


def a_difference_is_found_where_there_is_one_and_none_is_claimed_of_short_runs(ran: Ran) -> None:
    digits, returns = ran.names["digits"], ran.names["returns"]
    none, spectral = digits.rows
    assert (none.label, spectral.label) == ("none", "spectral")
    assert none["mean"].value < 0.5 < 0.9 < spectral["mean"].value
    assert spectral["gap"].interval[0] > 0
    assert "excludes 0" in ran.printed["compare"]
    assert ran.names["finals"]["none"] == pytest.approx(none["mean"].value)

    assert all(row["mean"].value < -800 for row in returns.rows)  # nothing is learned
    assert all(row["iqm"].interval is None for row in returns.rows)
    assert "fewer than 5 seeds" in ran.printed["compare-rl"]


CLAIMS = {
    "see_plasticity_loss": plasticity_is_lost_without_a_regularizer_alone,
    "a_regularizer_in_your_loop": one_line_is_the_loop_by_hand_and_what_does_not_apply_is_refused,
    "compare_runs": a_difference_is_found_where_there_is_one_and_none_is_claimed_of_short_runs,
}
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@each
def test_a_notebook_runs_leaves_nothing_behind_and_shows_what_it_says(path, run):
    ran = run(path)
    CLAIMS[path.stem](ran)
    lines = {cell["id"]: shown(cell).count("\n") for cell in cells(path, "code")}
    assert {name: text.count("\n") for name, text in ran.printed.items()} == lines, "run make notebooks"


@each
def test_what_is_committed_was_run_in_order_without_an_error_a_warning_or_a_path_of_a_machine(path):
    code = cells(path, "code")
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    for output in (output for cell in code for output in cell["outputs"]):
        assert output["output_type"] in ("stream", "display_data")
        assert output.get("name", "stdout") == "stdout"
        picture = output.get("data", {}).get("image/png", "")
        assert len(base64.b64decode(picture)) < 100_000
    assert not [line for cell in code for line in shown(cell).splitlines() if A_PATH.search(line)]
    assert not any(cell["metadata"] for cell in code)  # times


@each
def test_links_of_a_notebook_lead_to_files_and_the_page_of_the_notebooks_names_it(path):
    text = "\n".join("".join(cell["source"]) for cell in cells(path, "markdown"))
    for link in re.findall(r"\]\(([^)\s#]+)", text):
        assert (path.parent / link).exists(), link
    assert f"](../examples/notebooks/{path.name})" in (ROOT / "docs" / "start.md").read_text()
