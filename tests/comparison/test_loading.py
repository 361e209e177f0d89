import numpy as np
import pytest
from conftest import refused
from folders import curve, write_run
from hypothesis import given
from hypothesis import strategies as st

from rl_plasticity import status
from rl_plasticity.comparison import loading
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs.folder import RunFolder


def read(folder):
    return loading.read(RunFolder(folder))


def test_the_name_of_a_run_overrides_its_folder_s_settings_and_a_list_in_it_shifts_no_column(tmp_path):
    names = ["reg.coef=1e-05 seed=0", "reg.coef=0.001 seed=0", "agent.hidden=[64,32] seed=1"]
    rows = {name: curve([float(i)]) for i, name in enumerate(names)}
    runs = read(write_run(tmp_path / "a", ["reg=spectral", "reg.k=3"], rows))
    assert [run.settings["reg.coef"] for run in runs] == [1e-5, 1e-3, 1e-4]
    assert [run.settings["reg.k"] for run in runs] == [3, 3, 3]
    assert [run.seed for run in runs] == [0, 0, 1]
    assert runs[2].settings["agent.hidden"] == [64, 32]
    assert [run.curves["eval/return"].values.tolist() for run in runs] == [[0.0], [1.0], [2.0]]


def test_the_method_in_the_name_is_one_of_those_side_by_side_with_its_own_settings(tmp_path):
    names = ["reg.name=spectral reg.coef=0.01 seed=3", "reg.name=none seed=3", "reg.name=swr+l2 seed=3"]
    arguments = ["reg=[spectral,none,swr+l2]", "reg.spectral.coef=[0.01,0.1]", "reg.spectral.warmup=3"]
    spectral, none, chain = read(write_run(tmp_path / "a", arguments, {name: curve([1.0]) for name in names}))
    reg = {k: v for k, v in spectral.settings.items() if k.startswith("reg.")}
    assert reg == {"reg.name": "spectral", "reg.coef": 0.01, "reg.k": 2, "reg.warmup": 3}
    assert [k for k in none.settings if k.startswith("reg.")] == ["reg.name"]
    assert (chain.settings["reg.name"], chain.settings["reg.swr.coef"]) == ("swr+l2", 1e-3)
    assert spectral.seed == 3


def test_task_metrics_are_counted_by_task_borders_are_steps_and_a_task_that_was_cut_off_does_not_count(tmp_path):
    rows = {"task/train_accuracy": [(60, 0.9), (120, 0.8)], "task/index": [(60, 0.0), (120, 1.0)]}
    whole, cut = read(write_run(tmp_path / "a", [], {"0": rows, "1": rows | {"task/index": [(60, 0.0)]}}, "supervised"))
    assert whole.curves["task/train_accuracy"].steps.tolist() == [1, 2]
    assert whole.borders.tolist() == [60, 120]
    assert "task/index" not in whole.curves
    assert cut.curves["task/train_accuracy"].values.tolist() == [0.9]


CURVES = {run: curve([1.0, 2.0, 3.0]) | curve([5.0, 7.0], "critic/loss", 700) for run in ("0", "1")}
TRUE = {(run, name, step): value for run, of in CURVES.items() for name, points in of.items() for step, value in points}
HEAD = "run,step,name,value\n"


@given(st.data())
def test_rows_in_any_order_twice_or_cut_off_are_those_of_their_steps_or_refused_in_one_line(tmp_path_factory, data):
    folder = write_run(tmp_path_factory.mktemp("rows") / "a", ["seeds=2"], CURVES)
    lines = (folder / "metrics.csv").read_text().splitlines(keepends=True)[1:]
    chosen = data.draw(st.one_of(st.permutations(lines), st.lists(st.sampled_from(lines)), st.just(lines[::-1])))
    text = HEAD + "".join(chosen)
    (folder / "metrics.csv").write_text(text[: data.draw(st.integers(0, len(text)) | st.just(len(text)))])
    found, refusal = {}, ""
    try:
        for run in read(folder):
            for name, (steps, values) in run.curves.items():
                assert (np.diff(steps) > 0).all()
                found |= {
                    (str(run.seed), name, step): value for step, value in zip(steps.tolist(), values, strict=True)
                }
    except SettingsError as error:
        refusal = str(error)
    assert (str(folder) in refusal, "\n" in refusal) == (not found, False)
    assert found.items() <= TRUE.items()
    state = status.read(RunFolder(folder))
    assert state.state == "damaged" or [*state.latest] in ([], ["return 1"], ["return 2"], ["return 3"])
    if chosen == lines[::-1] and (folder / "metrics.csv").read_text() == text:
        assert found == {}
        assert (state.state, "comes after step" in state.note) == ("damaged", True)


@pytest.mark.parametrize("number", [0, 1, 4])
def test_a_step_that_comes_twice_is_named_with_its_metric_and_run(tmp_path, number):
    folder = write_run(tmp_path / "a", [], CURVES)
    lines = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    (folder / "metrics.csv").write_text("".join([*lines[: number + 2], lines[number + 1], *lines[number + 2 :]]))
    name = lines[number + 1].split(",")[2]
    refused(lambda: read(folder), match=f"metrics.csv is damaged: step .* comes twice for {name} of run 0")


@pytest.mark.parametrize("text", ["", "run,st", HEAD[:-1], HEAD, HEAD + "0,10"])
def test_a_run_that_was_killed_before_its_first_row_says_so(tmp_path, text):
    folder = write_run(tmp_path / "a", [], CURVES)
    (folder / "metrics.csv").write_text(text)
    refused(lambda: read(folder), match=rf"{folder} has written no number yet")


@pytest.mark.parametrize(("file", "text", "said"), [
    ("metrics.csv", None, "No such file"),
    ("metrics.csv", "run,step,name,value\n0,1000,eval/return\n", "damaged"),
    ("metrics.csv", "run,step,name,value\n0,ten,eval/return,1.0\n", "damaged"),
    ("metrics.csv", "run,step,name,value\nreg.coef=1 last,5,q_mean,1.0\n", "'reg.coef=1 last'"),
    ("metrics.csv", "epoch,loss\n1,2\n", "run,step,name,value"),
    ("config.yaml", "learning_rate: 3\n", "config.yaml"),
])  # fmt: skip
def test_a_missing_damaged_or_foreign_file_is_named_with_what_is_wrong(tmp_path, file, text, said):
    folder = write_run(tmp_path / "a", [], {"0": curve([1.0])})
    (folder / file).unlink() if text is None else (folder / file).write_text(text)
    with pytest.raises(SettingsError, match=said) as error:
        read(folder)
    assert str(folder / file) in str(error.value)
