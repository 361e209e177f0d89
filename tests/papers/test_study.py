import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest
from conftest import refused
from folders import without_what_plugs_add
from hypothesis import given
from hypothesis import strategies as st

from papers import cost, layout
from papers import study as studies
from rl_plasticity.comparison import groups
from rl_plasticity.configs import presets, schema, written
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs import naming

LOOKS = Path(__file__).parents[2] / "papers" / "looks"
DOCS = Path(__file__).parents[2] / "docs"
SMALL = [(name, small) for name in studies.names() for small in (False, True)]


@pytest.fixture(scope="module", autouse=True)
def _no_look_stays_and_what_a_name_needs_is_loaded_once():
    usual = {}

    def load(kind, given):
        key = kind, repr(given)
        usual[key] = usual.get(key) or schema.load(kind, given)
        return usual[key]

    with pytest.MonkeyPatch.context() as monkeypatch, without_what_plugs_add(monkeypatch, LOOKS):
        monkeypatch.setattr(naming, "schema", SimpleNamespace(load=load, marked=cache(schema.marked)))
        monkeypatch.setattr(presets, "files", cache(presets.files))
        yield


def each_value(arguments):
    """The first value of every list, and then each other value once: not every combination."""
    lists = [written.each(argument) for argument in arguments]
    first = [values[0] for values in lists]
    yield first
    for i, values in enumerate(lists):
        if not values[0].startswith("seed="):
            yield from ([*first[:i], value, *first[i + 1 :]] for value in values[1:])


@pytest.fixture(scope="module", params=SMALL, ids=lambda chosen: "-".join(map(str, chosen)))
def study(request):
    """Each, one after another, so that its runs are listed once."""
    return studies.load(*request.param)


@pytest.fixture(scope="module")
def of_one_seed(study):
    """The runs of each method: another seed changes nothing else."""
    return {} if study.is_script else study.runs(Path("nowhere"), ["seeds=1"])


def test_every_value_of_every_study_can_be_set(study):
    assert study.shows
    assert not study.where.startswith("docs/") or (Path(__file__).parents[2] / study.where).is_file()
    if study.is_script:
        return
    kind = study.makes.kind
    seen = {}
    for i, (label, arguments) in enumerate(study.arguments().items()):
        shared = [a if i == 0 else written.each(a)[0] for a in arguments if a in study.settings]
        for settings in each_value([*shared, *(a for a in arguments if a not in study.settings)]):
            identity = str(naming.identity(schema.load(kind, settings)))
            assert seen.setdefault(identity, label) == label, f"{label} is {seen[identity]}'s run again"


def test_what_a_study_draws_is_what_can_be_drawn(study):
    if study.is_script or study.draw.get("kind") == "table":
        return
    panels, columns = layout._panels(study.draw, {label: [] for label in study.methods})
    assert columns >= 0
    assert {label for panel in panels for label in panel.methods} <= study.methods.keys()
    assert {panel.kind for panel in panels} <= layout._DRAWN.keys()


def test_every_page_of_a_study_has_runs_and_a_baseline_among_them(study, of_one_seed):
    if study.is_script or study.pages == {"comparison": {}}:
        return
    runs = [run for of_method in of_one_seed.values() for run in of_method]
    flat = [dict(written.flat_values(written.nested(run.settings.flat))) for run in runs]
    tasks = {*groups.IGNORED, "env.name"}
    for page in study.pages.values():
        assert page.keys() <= {"where", "baseline", "metric"}
        there = [s for s in flat if all(s.get(n, v) == v for n, v in page.get("where", {}).items())]
        assert all(name in s for name in page.get("where", {}) for s in there)
        assert page["baseline"] in groups.labels([{n: v for n, v in s.items() if n not in tasks} for s in there])


def test_the_costs_of_every_study_are_those_of_its_runs(study, of_one_seed):
    costs = study.cost
    assert (costs.hours is None) == (costs.machine == "")
    paper, _, figure = study.name.partition("/")
    if study.is_script or "comes_with" in studies._read(paper)["studies"][figure]:
        return
    runs = run_updates = 0
    for label, of_method in of_one_seed.items():
        seeds = max(a for a in study.arguments()[label] if a.startswith(("seed=", "seeds=")))  # seeds= after seed=
        processes, of_each = len(written.each(seeds)), 1
        if seeds.startswith("seeds="):
            of_each = int(seeds.removeprefix("seeds="))
        runs += processes * len(of_method)
        run_updates += processes * of_each * sum(cost.updates(written.nested(run.settings.flat)) for run in of_method)
    assert (costs.runs, costs.run_updates) == (runs, run_updates)


def test_the_hours_of_studies_are_those_of_their_records():
    records = [*(DOCS / "results").glob("*/*/record.json")]
    assert records
    for path in records:
        record = json.loads(path.read_text())
        of_study = studies.load(record["study"]).cost
        hours = record.get("cpu_hours_of_ended_starts")
        assert of_study.hours == (record["hours_of_ended_starts"] if hours is None else hours)
        assert of_study.by_clock == (hours is None)
        assert {of_study.machine} == {machine["processor"] for machine in record["machines"]}
        assert of_study.runs == len(record["runs"])


def test_the_last_argument_of_a_name_counts_and_a_method_s_come_after_the_study_s():
    study = studies.load("spectral/figure-8", small=True)
    asked = study.arguments(["epochs_per_task=1", "seeds=2", "reg.coef=3e-3"])["spectral"]
    assert [a for a in asked if a.startswith(("epochs_per_task", "seeds", "reg"))] == [
        "epochs_per_task=1", "seeds=2", "reg=spectral", "reg.coef=3e-3",
    ]  # fmt: skip


FALSE = [
    ("spectral/figure-12", True, ["reg=l2_init"]),
    ("spectral/figure-12", True, ["reg=spectral+l2"]),
    ("spectral/figure-12", False, ["reset=head", "device=cpu"]),
    ("spectral/figure-7", True, ["reg.k=2"]),
    ("spectral/figure-3", True, ["net.activation=tanh"]),
    ("spectral/figure-16", True, ["reset=none"]),
    ("digits/random-labels", True, ["reg.coef=1e-2"]),
    ("digits/random-labels", True, ["net.layer_norm=true"]),
    ("rl/continual-walker", True, ["agent.layer_norm=true"]),
]


@pytest.mark.parametrize(("name", "small", "given"), FALSE, ids=str)
def test_a_setting_that_makes_a_line_another_method_s_is_refused_before_a_run_is_made(name, small, given, tmp_path):
    refused(lambda: studies.load(name, small).runs(tmp_path, given), match=rf"{name}.*{given[0].partition('=')[0]}")


TRUE = ["seeds=2", "device=cpu", "lr=1e-4", "num_tasks=3", "net.widths=[5]", "seed=7"]


@hypothesis.settings(max_examples=20)
@given(
    st.lists(
        st.sampled_from([*TRUE, "reg=swr", "reg=none", "reset=redo", "reg.k=3", "net.activation=crelu"]),
        unique_by=lambda a: a.split("=")[0],
    )
)
def test_whatever_is_overridden_each_line_of_a_figure_is_of_its_label_s_method_or_all_is_refused(given):
    study = replace(studies.load("spectral/figure-12", small=True), settings=["preset=demo", "seeds=1"])
    methods = {label: next(iter(runs)).settings for label, runs in study.runs(Path("nowhere")).items()}
    try:
        runs = study.runs(Path("nowhere"), given)
    except SettingsError:
        assert {*given} - {*TRUE}
        return
    now = {label: next(iter(of_method)).settings for label, of_method in runs.items()}
    assert {label: (s.reg.name, s.reset.name) for label, s in now.items()} == {
        label: (s.reg.name, s.reset.name) for label, s in methods.items()
    }
    assert len({str(naming.identity(s)) for s in now.values()}) == len(methods)


def test_settings_that_depend_on_others_are_those_of_the_papers_unless_they_are_given():
    study = studies.load("swr/figure-4")

    runs = study.runs(Path("nowhere"), ["seeds=1"])

    def strengths(label, setting):
        return [run.settings.flat[setting] for run in runs[label]]

    # Table 3 for MNIST, CIFAR-10, CIFAR-100 without and with BatchNorm, and Tiny ImageNet
    assert strengths("S&P", "reset.coef") == [0.2, 0.4, 0.6, 0.4, 0.4]
    assert strengths("SWR", "reg.coef") == [1e-4, 1e-1, 1e-1, 1e-1, 1e-4]
    assert strengths("SWR", "reg.coef_classifier")[3:] == [1e-2, 1.0]
    assert strengths("L2 Init", "reg.coef") == [1e-5, 1e-2, 1e-2, 1e-2, 1e-3]
    sweeps = study.sweeps(["reset.coef=0.9"])["S&P"]
    assert [[a for a in arguments if a.startswith("reset.coef")] for arguments in sweeps] == [["reset.coef=0.9"]] * 5
