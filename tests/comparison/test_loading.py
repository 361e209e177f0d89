import numpy as np
import pytest
from folders import curve, write_run

from rl_plasticity.comparison import loading
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs.folder import RunFolder


def read(folder):
    return loading.read(RunFolder(folder))


def test_each_seed_of_a_folder_is_a_run(tmp_path):
    rows = {"3": curve([10.0, 20.0]), "4": curve([1.0, 2.0])}
    runs = read(write_run(tmp_path / "a", ["env=cheetah-run"], rows))
    assert [run.seed for run in runs] == [3, 4]
    assert runs[1].curves["eval/return"].steps.tolist() == [1000, 2000]
    assert runs[1].curves["eval/return"].values.tolist() == [1.0, 2.0]
    assert runs[0].kind == "train"
    assert runs[0].settings["env.name"] == "cheetah-run"


def test_rows_of_several_runs_and_metrics_may_come_in_any_order(tmp_path):
    folder = write_run(tmp_path / "a", [], {"0": {}})
    lines = ["1,5,q_mean,3.0", "0,5,q_mean,1.0", "0,5,alpha,-1e-07", "1,9,q_mean,4.0", "0,9,q_mean,nan"]
    (folder / "metrics.csv").write_text("\n".join(["run,step,name,value", *lines, ""]))
    one, zero = read(folder)
    assert (one.seed, zero.seed) == (1, 0)
    assert one.curves["q_mean"].values.tolist() == [3.0, 4.0]
    np.testing.assert_equal(zero.curves["q_mean"].values, [1.0, np.nan])
    assert zero.curves["alpha"].values.tolist() == [-1e-7]


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


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("metrics.csv", None, "No such file"),
        ("metrics.csv", "run,step,name,value\n0,1000,eval/return\n", "damaged"),
        ("metrics.csv", "run,step,name,value\n0,ten,eval/return,1.0\n", "damaged"),
        ("metrics.csv", "run,step,name,value\nreg.coef=1 last,5,q_mean,1.0\n", "'reg.coef=1 last'"),
        ("metrics.csv", "epoch,loss\n1,2\n", "run,step,name,value"),
        ("config.yaml", "learning_rate: 3\n", "config.yaml"),
        ("config.yaml", "a: [1\n", "config.yaml"),
    ],
)
def test_a_missing_damaged_or_foreign_file_is_named_with_what_is_wrong(tmp_path, file, text, said):
    folder = write_run(tmp_path / "a", [], {"0": curve([1.0])})
    (folder / file).unlink() if text is None else (folder / file).write_text(text)
    with pytest.raises(SettingsError, match=said) as error:
        read(folder)
    assert str(folder / file) in str(error.value)
