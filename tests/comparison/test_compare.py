import re
import shutil
from html.parser import HTMLParser

import matplotlib
import pytest
from conftest import called, refused
from folders import curve, without_what_plugs_add, write_run

from rl_plasticity import command_line
from rl_plasticity.compare import HELP, OPTIONS, command, compare, frame, parse
from rl_plasticity.comparison.figures import draw
from rl_plasticity.errors import SettingsError

MORE = {"critic/sigma1": [(1000, 2.0), (2000, 3.0)], "actor/weight_norm": [(500, 1.0), (1500, 900.0)]}
MORE |= {"q_overestimation": [(1000, -1.0), (2000, 1.0)], "alpha": [(1000, 1.0)]}


def call(*arguments):
    return called(lambda: command_line.main("compare", lambda _: HELP, command), *arguments)


def make_sweep(folder):
    """Strengths, periods and no method, two seeds each; metrics that not every run has."""
    settings = [["reg=spectral", "reg.coef=1e-3"], ["reg=spectral"], ["reset=periodic"], []]
    settings += [["reset=periodic", "reset.every_updates=9"]]
    for i, chosen in enumerate(settings):
        rows = {str(seed): curve([1.0 + i, 5.0 + i + seed]) | (MORE if i else {}) for seed in range(2)}
        write_run(folder / str(i), [*chosen, "total_env_steps=2000"], rows)
    return folder


@pytest.fixture
def sweep(tmp_path):
    return make_sweep(tmp_path / "sweep")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A sweep that was compared: the place, and what `call` returned."""
    place = tmp_path_factory.mktemp("made")
    before = dict(matplotlib.rcParams)
    result = call(make_sweep(place / "sweep"), f"out={place / 'out'}", "target=5")
    assert dict(matplotlib.rcParams) == before, "matplotlib's settings are the user's"
    return place, result


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take seconds, and say nothing of where they are written to."""
    monkeypatch.setattr("rl_plasticity.comparison.figures.draw", lambda comparison: [])


@pytest.fixture
def one(tmp_path):
    return write_run(tmp_path / "one", ["total_env_steps=9000"], {"7": curve([1.0, 2.0]) | curve([3.0], "alpha")})


class Page(HTMLParser):
    """Checks that tags close in order, and gathers attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.text, self.tags = [], [], "", set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_a_sweep_becomes_a_table_a_csv_figures_and_a_page(made):
    tmp_path, (status, out, err) = made
    assert status == 0
    assert "spectral coef=1e-3" in out
    assert "steps to the target" in out
    assert "fewer than 5 seeds" in err
    names = ["learning_curves", "final_performance", "sensitivity"]
    names += ["metrics_critic", "metrics_actor", "metrics_other"]
    figures = tmp_path / "out" / "figures"
    assert {p.name for p in figures.iterdir()} == {f"{n}.{kind}" for n in names for kind in ("png", "pdf")}
    assert all(p.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for p in figures.glob("*.png"))
    assert all(p.read_bytes()[:4] == b"%PDF" for p in figures.glob("*.pdf"))
    assert (tmp_path / "out" / "comparison.csv").read_text().startswith("group,task,seed,metric,step,statistic")
    assert {p.name for p in tmp_path.iterdir()} == {"sweep", "out"}  # no temporary folder is left


def test_the_page_loads_nothing_and_is_well_formed(made):
    text = (made[0] / "out" / "report.html").read_text()
    page = Page(text)
    assert not page.tags & {"link", "iframe", "object", "image"}
    loaded = ("src", "href", "xlink:href", "srcset")
    assert all(value.startswith("data:") for name, value in page.attributes if name in loaded)
    assert not re.search(r"https?:|@import|url\((?!#)", text)
    assert text.count("<img") == text.count("<figcaption") == 6
    assert len(text) < 2_000_000
    assert all(shown in page.text for shown in ("reg.coef", "env step 2000", "replay_ratio", "fewer than 5 seeds"))


def test_what_comes_from_outside_is_escaped(tmp_path):
    odd = "<b>&\"'"
    for i, reset in enumerate(("none", "periodic")):
        folder = write_run(tmp_path / f"{odd}{i}", [f"reset={reset}", "total_env_steps=1000"], {"0": curve([1.0])})
        config = (folder / "config.yaml").read_text()
        (folder / "config.yaml").write_text(config.replace("name: cheetah-run", "name: '<i>x&y'"))
    status, _, _ = call(tmp_path / f"{odd}0", tmp_path / f"{odd}1", f"out={tmp_path / 'out'}", "metric=eval/return")
    assert status == 0
    text = (tmp_path / "out" / "report.html").read_text()
    page = Page(text)
    assert not page.tags & {"b", "i"}
    assert "<script" not in text
    assert "<i>x&y" in page.text


@pytest.mark.filterwarnings("error")
def test_values_that_are_not_finite_or_huge_are_drawn_without_a_warning_and_empty_panels_say_why(tmp_path, monkeypatch):
    drawn = {}

    def kept(comparison):
        for one in draw(comparison):
            drawn[one.name] = one.figure
            yield one

    monkeypatch.setattr("rl_plasticity.comparison.figures.draw", kept)
    nan, ends = float("nan"), {"l2": (2.0, float("nan")), "swr": (float("nan"),) * 2, "wrs": (2.0, 1e308)}
    for reg, values in ends.items():
        rows = {str(seed): curve([1.0, value]) | curve([nan, nan], "q_mean") for seed, value in enumerate(values)}
        write_run(tmp_path / "s" / reg, [f"reg={reg}", "total_env_steps=2000"], rows)
    write_run(tmp_path / "s" / "none", ["total_env_steps=2000"], {"0": curve([1.0, 5.0]), "1": curve([1.0, 6.0])})
    status, out, err = call(tmp_path / "s", f"out={tmp_path / 'out'}")
    assert status == 0
    assert "l2: eval/return is not finite at the end of 1 run" in err
    assert "2 (1 not finite)" in out
    assert "2 (2 not finite)" in out
    assert [text.get_text() for text in drawn["metrics_other"].axes[0].texts] == ["no finite value"]
    assert not drawn["learning_curves"].axes[0].texts


@pytest.mark.usefixtures("undrawn")
def test_a_comparison_is_replaced_and_nothing_else_is(tmp_path, one):
    out = tmp_path / "out"
    call(one, f"out={out}")
    first = (out / "comparison.csv").read_text()
    status, _, _ = call(one, f"out={out}", "metric=alpha")
    assert status == 0
    assert (out / "comparison.csv").read_text() != first
    mine, earlier = [out / "mine.png", out / "figures" / "mine.pdf"], out / "figures" / "metrics_critic.pdf"
    for path in (*mine, earlier):
        path.write_bytes(b"mine")
    assert call(one, f"out={out}")[0] == 0
    assert all(path.exists() for path in mine)
    assert not earlier.exists(), "a figure of an earlier comparison would belong to other runs"


@pytest.mark.usefixtures("undrawn")
def test_what_is_in_the_way_is_said_before_any_run_is_read_and_nothing_of_others_is_deleted(tmp_path, one):
    mine = tmp_path / ".comparison.new" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    assert call(one, f"out={tmp_path / 'comparison'}")[0] == 0
    assert mine.read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    broken = shutil.copytree(one, tmp_path / "broken")
    (broken / "metrics.csv").write_text("no metrics")
    assert "broken" in call(broken, f"out={tmp_path / 'elsewhere'}")[2]
    for out in (tmp_path / "file", tmp_path / ("x" * 300)):
        status, _, err = call(broken, f"out={out}")
        assert (status, err.count("\n")) == (2, 1)
        assert "broken" not in err
    assert (tmp_path / "file").read_text() == "mine"
    assert {p.name for p in tmp_path.iterdir()} == {".comparison.new", "broken", "comparison", "file", "one"}


@pytest.mark.parametrize("page", ["", "<html></html>", '<meta name="files" content="report.html">'])
def test_a_folder_of_another_program_is_not_replaced(tmp_path, one, page):
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.html").write_text(page)
    status, _, err = call(one, f"out={out}")
    assert status == 2
    assert "out=" in err
    assert [p.name for p in out.iterdir()] == ["report.html"]


@pytest.mark.parametrize(("arguments", "said"), [
    (["SWEEP", "metrics=x"], ["'metrics'", "'metric'"]),
    (["reg=l3"], ["'reg'"]),
    (["SWEEP", "metric=eval/retur"], ["'eval/return'"]),
    (["SWEEP", "baseline=spectra"], ["'spectra'", "'spectral coef=1e-4'"]),
    (["SWEEP", "target=high"], ["target", "'high'"]),
    (["SWEEP", "mix=env.nam"], ["'env.name'"]),
    (["SWEEP", "against=x"], ["compare against was removed"]),
    (["SWEEP", "every=5"], ["unknown option 'every'"]),  # status had it
    (["SWEEP", "metric=a", "metric=b"], ["metric", "twice"]),
    (["nowhere"], ["nowhere"]),
    (["", "SWEEP"], ["empty"]),
    (["SWEEP", "leave_out=spectral"], ["'spectral'", "'spectral coef=1e-"]),
])  # fmt: skip
def test_bad_input_is_one_line_with_status_2_and_nothing_is_written(tmp_path, sweep, arguments, said, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = call(*(str(sweep) if a == "SWEEP" else a for a in arguments))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("rl_plasticity.compare: ")
    assert all(part in err for part in said)
    assert [p.name for p in tmp_path.iterdir()] == ["sweep"]


def test_a_folder_whose_name_holds_an_equals_sign_is_a_folder_and_help_names_every_option(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reg=l2").mkdir()
    assert parse(["reg=l2", "a/b=c", "out=x"])[0] == ["reg=l2", "a/b=c"]
    assert parse(["a", "leave_out=coef=1e-5,coef=1e-3"])[1]["leave_out"] == ["coef=1e-5", "coef=1e-3"]
    status, out, _ = call("--help")
    assert status == 0
    assert all(f"{option}=" in out for option in OPTIONS)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("form", "begins"), [("latex", "\\begin{table}"), ("markdown", "| group |")])
def test_a_table_for_a_paper_is_all_that_is_printed(tmp_path, sweep, form, begins):
    status, out, err = call(sweep, f"out={tmp_path / 'out'}", f"table={form}")
    assert status == 0
    assert out.startswith(begins)
    assert "wrote" not in out
    assert "report.html" in err
    status, out, err = call(sweep, f"out={tmp_path / 'other'}", "table=latx")
    assert (status, out) == (2, "")
    assert "'latex'" in err
    assert not (tmp_path / "other").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_broken_run_is_left_out_with_a_word_and_refused_where_there_is_no_other(tmp_path, sweep):
    (sweep / "0" / "metrics.csv").write_text("nonsense\n")
    status, _, err = call(sweep / "0", f"out={tmp_path / 'out'}")
    assert status == 2
    assert "metrics.csv" in err
    for kept in range(2, 5):
        shutil.rmtree(sweep / str(kept))
    status, out, err = call(sweep, f"out={tmp_path / 'out'}")
    assert status == 0
    assert "left out: " in err
    assert "metrics.csv" in Page((tmp_path / "out" / "report.html").read_text()).text
    assert "1 group of 2 seeds" in out


@pytest.mark.usefixtures("undrawn")
def test_a_run_without_a_row_or_without_one_of_some_seeds_is_said_and_prevents_no_comparison(tmp_path, sweep):
    (sweep / "0" / "metrics.csv").write_text("run,step,name,value\n")
    (sweep / "3" / "config.yaml").write_text((sweep / "3" / "config.yaml").read_text().replace("seeds: 1", "seeds: 4"))
    status, out, err = call(sweep, f"out={tmp_path / 'out'}")
    assert (status, "4 groups" in out) == (0, True)
    assert err.splitlines()[:2] == [
        f"rl_plasticity.compare: left out: {sweep / '0'} has written no number yet",
        f"rl_plasticity.compare: {sweep / '3'} has numbers for only 2 of its 4 seeds",
    ]
    with pytest.warns(UserWarning, match="no number yet|2 of its 4 seeds"):
        assert {*frame(sweep)["group"]} == {row.group.label for row in compare(sweep).rows}
    refused(lambda: compare(sweep / "0"), match="no number yet")


@pytest.mark.usefixtures("undrawn")
def test_from_python_the_same_comparison_comes_back_and_is_written_only_where_wanted(made, tmp_path, monkeypatch):
    sweep, page = made[0] / "sweep", (made[0] / "out" / "report.html").read_text()
    monkeypatch.chdir(tmp_path)
    comparison = compare(sweep, target=5)
    assert list(tmp_path.iterdir()) == []
    assert all(cell in page for line in comparison.table() for cell in line)
    assert comparison.to_csv() == (made[0] / "out" / "comparison.csv").read_text()
    compare(sweep, out="here", metric="alpha", mix=["env.name"])
    assert (tmp_path / "here" / "report.html").is_file()
    for folders, wrong in (([sweep], {"metric": "x"}), ([sweep], {"out": sweep}), ([], {})):
        with pytest.raises(SettingsError):
            compare(*folders, **wrong)


@pytest.mark.usefixtures("undrawn")
def test_the_command_loads_plugs_whose_metrics_say_which_values_are_better(tmp_path, monkeypatch):
    plug = "from rl_plasticity.metrics import METRICS, OfWeights"
    (tmp_path / "plug_of_metrics.py").write_text(f"{plug}\nMETRICS['plug_spread'] = OfWeights(abs, 'lower')\n")
    monkeypatch.chdir(tmp_path)
    for name, mean in (("l2", 1.0), ("swr", 2.0)):
        rows = {str(seed): curve([mean + seed / 10] * 3, "actor/plug_spread") for seed in range(3)}
        write_run(tmp_path / name, [f"reg={name}"], rows)
    with without_what_plugs_add(monkeypatch, tmp_path):
        monkeypatch.syspath_prepend(tmp_path)
        assert "does not say" in call("l2", "swr", "metric=actor/plug_spread", "out=c")[2]
        status, out, err = call("l2", "swr", "metric=actor/plug_spread", "out=d", "plugins=[plug_of_metrics]")
        assert status == 0, err
        assert "does not say" not in err
        assert "lower is better" in out
