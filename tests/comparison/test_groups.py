from dataclasses import replace

import pytest
from conftest import refused
from folders import curve, tasks, write_run

from rl_plasticity.comparison.groups import Group, group
from rl_plasticity.comparison.loading import read
from rl_plasticity.comparison.table import summarize
from rl_plasticity.runs.folder import RunFolder


def runs_of(tmp_path, *settings, kind="train", seeds=2):
    rows = {str(seed): curve([1.0]) if kind == "train" else tasks([1.0]) for seed in range(seeds)}
    folders = [write_run(tmp_path / str(i), arguments, rows, kind) for i, arguments in enumerate(settings)]
    return [run for folder in folders for run in read(RunFolder(folder))]


def labels_of(tmp_path, *settings, **more):
    return [g.label for g in group(runs_of(tmp_path, *settings, **more))]


def test_runs_that_differ_in_the_seed_and_in_what_changes_no_result_are_one_group(tmp_path):
    a = runs_of(tmp_path / "a", ["reg=l2", "threads=1", "eval_every_env_steps=100"])
    b = runs_of(tmp_path / "b", ["reg=l2", "threads=2", "compile=true", "log_every_updates=7", "seed=9"], seeds=4)
    (g,) = group([*a, *b[2:]])
    assert [run.seed for run in g.runs] == [0, 1, 2, 3]
    assert g.label == "l2"


def test_figures_name_a_group_in_the_words_of_a_paper():
    names = {"none": "no method", "none + periodic": "periodic", "none lr=1e-3": "no method lr=1e-3"}
    assert {label: Group(label, {}, {}).name for label in names} == names


@pytest.mark.parametrize(("settings", "expected"), [
    ([["reg=swr"], [], ["reset=periodic"], ["reg=spectral", "reset=head"]],
     ["none", "none + periodic", "spectral + head", "swr"]),
    ([["reg=spectral", "reg.coef=1e-3"], ["reg=spectral"], ["reg=swr", "reg.coef=1e-2"]],
     ["spectral coef=1e-4", "spectral coef=1e-3", "swr"]),  # a strength only where it tells groups apart
    ([["replay_ratio=2"], ["replay_ratio=16"]], ["replay_ratio=2", "replay_ratio=16"]),
    ([["agent.layer_norm=false"], ["reg=l2"]], ["none layer_norm=false", "l2 layer_norm=true"]),
    ([["reg=l2+spectral"], ["reg=spectral+l2"], ["reg=spectral+l2", "reg.l2.coef=1"]],
     ["l2+spectral", "spectral+l2 coef=1e-4", "spectral+l2 coef=1"]),
    ([["agent=xqc"], ["agent=xqc", "agent.lr=1e-4"], ["agent=bro", "reg=spectral"], []],  # of papers, by name
     ["none", "xqc lr=1e-4", "xqc", "bro spectral + periodic"]),
])  # fmt: skip
def test_a_label_names_what_differs(tmp_path, settings, expected):
    assert sorted(labels_of(tmp_path, *settings)) == sorted(expected)


def test_no_two_groups_share_a_label(tmp_path):
    choices = [[f"reg={r}", f"reset={i}", f"lr={lr}"] for r in ("l2", "swr") for i in ("none", "head") for lr in (1, 2)]
    found = labels_of(tmp_path, *choices, kind="supervised")
    assert len(set(found)) == len(choices)


@pytest.mark.parametrize(("kind", "other", "name"), [
    ("train", "env=walker-run", "env.name"),
    ("train", "total_env_steps=5", "total_env_steps"),
    ("supervised", "task=label_flip", "task.name"),
    ("supervised", "net.layer_norm=true", "net.layer_norm"),
    ("supervised", "epochs_per_task=3", "epochs_per_task"),
])  # fmt: skip
def test_different_tasks_and_lengths_are_refused_with_the_way_out_and_allowed_when_mixed(tmp_path, kind, other, name):
    runs = runs_of(tmp_path, ["reg=none"], [other, "reg=l2"], kind=kind)
    refused(lambda: group(runs), match=rf"{name}\b.*\bmix={name}\b")
    assert len(group(runs, [name])) == 2


def test_mixed_tasks_are_strata_of_one_group_and_a_mixed_net_is_a_group(tmp_path):
    (g,) = group(runs_of(tmp_path / "a", ["env=walker-run"], ["env=cheetah-run"]), ["env.name"])
    assert list(g.tasks) == ["cheetah-run", "walker-run"]
    assert g.label == "none"
    runs = runs_of(tmp_path / "b", ["net=mlp"], ["net.layer_norm=true"], kind="supervised")
    assert [g.label for g in group(runs, ["net"])] == ["layer_norm=false", "layer_norm=true"]
    nets = group(runs_of(tmp_path / "c", ["net=mlp"], ["net=cnn"], kind="supervised"), ["net"])
    assert [[*g.tasks] for g in nets] == [["random_labels digits"]] * 2  # so that they can be compared


def test_an_environment_with_another_setting_is_another_task(tmp_path):
    runs = runs_of(tmp_path, ["env.action_repeat=2"], ["env.action_repeat=4"])
    (g,) = group(runs, ["env.action_repeat"])
    assert {task: len(of) for task, of in g.tasks.items()} == {
        "cheetah-run action_repeat=2": 2, "cheetah-run action_repeat=4": 2,
    }  # fmt: skip


def test_no_label_is_empty(tmp_path):
    once = ["reset=periodic", "reset_once_after_updates=1000"]
    assert labels_of(tmp_path, ["reset=periodic"], once)[0] == "none + periodic"


@pytest.mark.parametrize(("first", "second", "why"), [
    ("agent.lr=1e-3", "reg=none", "several groups have no method"), ("reg=l2", "reg=swr", "every group has a method"),
])  # fmt: skip
def test_a_missing_baseline_is_said_with_its_cause(tmp_path, first, second, why):
    assert [w for w in summarize(group(runs_of(tmp_path, [first], [second]))).warnings if why in w]


def test_a_misspelt_mix_and_the_two_commands_together_are_refused(tmp_path):
    runs = runs_of(tmp_path / "a", ["reg=none"], ["env=walker-run", "total_env_steps=5"])
    refused(lambda: group(runs, ["env.name"]), "mix=env.name,total_env_steps")
    refused(lambda: group(runs, ["env.nam"]), "'env.nam'", "'env.name'")
    refused(lambda: group(runs + runs_of(tmp_path / "b", [], kind="supervised")), "RL", "supervised")


def lists(tmp_path, of_first, of_second):
    """Two folders in which l2 trained side by side with another method."""
    made = []
    for place, rows, other in (("a", of_first, "none"), ("b", of_second, "swr")):
        names = {f"reg.name={reg} seed=0": rows if reg == "l2" else curve([5.0, 6.0]) for reg in ("l2", other)}
        made.append(write_run(tmp_path / place, [f"reg=[l2,{other}]"], names))
    return [run for folder in made for run in read(RunFolder(folder))]


def test_a_run_that_is_there_twice_with_equal_numbers_counts_once_and_the_longer_one_is_kept(tmp_path):
    nan = float("nan")
    groups = group(lists(tmp_path, curve([1.0, nan]), curve([1.0, nan, 3.0])))
    assert [g.label for g in groups] == ["none", "l2", "swr"]
    (l2,) = groups[1].runs
    assert l2.folder.path.name == "b"


def test_a_run_that_is_there_twice_with_other_numbers_is_refused_and_a_group_can_be_left_out(tmp_path):
    runs = lists(tmp_path, curve([1.0, 2.0]), curve([1.0, 2.5]))
    refused(lambda: group(runs), "a (seed 0)", "b (seed 0)")
    groups = group(lists(tmp_path / "same", curve([1.0]), curve([1.0])), leave_out=["l2"])
    assert [g.label for g in groups] == ["none", "swr"]
    refused(lambda: group(runs[:2], leave_out=["l3"]), "'l3'", "'l2'")


def test_runs_of_another_source_of_a_plug_are_not_pooled_and_a_warning_says_so(tmp_path):
    runs = runs_of(tmp_path, *[["reg=l2", f"seed={i}"] for i in range(4)], ["reg=none"], seeds=1)
    a, b = ({"plugin_sources": {"mine": digest * 64}} for digest in "ab")
    for number, starts in enumerate([[a], [b], [b, b], [a, b], [a]]):
        runs[number] = replace(runs[number], seed=number, starts=starts)
    groups = group(runs)
    apart = {"l2 mine=aaaaaaaa": 1, "l2 mine=bbbbbbbb": 2, "l2 mine=aaaaaaaa+bbbbbbbb": 1, "none": 1}
    assert {g.label: len(g.runs) for g in groups} == apart
    assert [w for w in summarize(groups).warnings if "plug mine" in w and "aaaaaaaa" in w and "bbbbbbbb" in w]
    without = [runs[1], runs[2], replace(runs[3], starts=[])]  # what was made without the plug says nothing of it
    (g,) = group(without)
    assert (g.label, len(g.runs)) == ("l2", 3)
    assert not [w for w in summarize([g]).warnings if "plug" in w]


def test_a_branch_without_a_change_is_no_copy_of_its_run(tmp_path):
    rows = {str(seed): curve([1.0, 2.0 + seed]) for seed in range(2)}
    made = [
        write_run(tmp_path / name, [f"reset={reset}"], rows)
        for name, reset in (("a", "none"), ("b", "none"), ("c", "head"))
    ]
    for folder, at in zip(made[1:], (1000, 2000), strict=True):
        config = folder / "config.yaml"
        config.write_text(f"{config.read_text()}from: {made[0]}\nat: {at}\n")
    groups = group([run for folder in made for run in read(RunFolder(folder))])
    assert [g.label for g in groups] == ["none", "none at=1000", "none + head"]
    assert summarize(groups).baseline.label == "none"
