import json
import os
from dataclasses import replace

import pytest
from folders import curve, tasks, write_run

from rl_plasticity.comparison.groups import Group, group, labels, short
from rl_plasticity.comparison.loading import read
from rl_plasticity.comparison.summary import summarize
from rl_plasticity.errors import SettingsError
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


def test_labels_are_the_choices_that_differ(tmp_path):
    found = labels_of(tmp_path, ["reg=swr"], ["reg=none"], ["reset=periodic"], ["reg=spectral", "reset=head"])
    assert found == ["none", "none + periodic", "spectral + head", "swr"]


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("none", "no method"),
        ("none + periodic", "periodic"),
        ("none layer_norm=false", "no method"),
        ("none layer_norm=true", "LayerNorm"),
        ("none + redo layer_norm=true", "LayerNorm + redo"),
        ("spectral layer_norm=true coef=1e-3", "LayerNorm + spectral coef=1e-3"),
        ("spectral layer_norm=false", "spectral, no LayerNorm"),
        ("layer_norm=false", "no LayerNorm"),
        ("layer_norm=true lr=1e-3", "LayerNorm + lr=1e-3"),
        ("none (never reset)", "no method (never reset)"),
        ("none lr=1e-3", "no method lr=1e-3"),
        ("swr", "swr"),
    ],
)
def test_figures_name_a_group_in_the_words_of_a_paper(label, name):
    assert Group(label, {}, {}).name == name


def test_a_strength_is_named_only_where_it_tells_groups_apart(tmp_path):
    found = labels_of(tmp_path, ["reg=spectral", "reg.coef=1e-3"], ["reg=spectral"], ["reg=swr", "reg.coef=1e-2"])
    assert found == ["spectral coef=1e-4", "spectral coef=1e-3", "swr"]


def test_settings_outside_the_choices_are_named_for_every_group_and_a_common_choice_is_not(tmp_path):
    assert labels_of(tmp_path / "a", ["replay_ratio=2"], ["replay_ratio=16"]) == ["replay_ratio=2", "replay_ratio=16"]
    found = labels_of(tmp_path / "b", ["agent.layer_norm=false"], ["reg=l2"])
    assert found == ["none layer_norm=false", "l2 layer_norm=true"]


def test_a_chain_is_called_by_its_parts_in_their_order(tmp_path):
    found = labels_of(tmp_path, ["reg=spectral+l2"], ["reg=l2+spectral"], ["reg=spectral+l2", "reg.l2.coef=1"])
    assert sorted(found) == ["l2+spectral", "spectral+l2 coef=1", "spectral+l2 coef=1e-4"]


def test_equal_last_names_are_written_out():
    a = {"reg.name": "l2", "reset.name": "shrink_perturb", "reg.coef": 1, "reset.coef": 2}
    found = labels([a, a | {"reg.coef": 3}, a | {"reset.coef": 3}])
    assert found == ["reg.coef=1 reset.coef=2", "reg.coef=3 reset.coef=2", "reg.coef=1 reset.coef=3"]


def test_an_agent_of_a_paper_is_called_by_its_preset_and_what_differs_from_it(tmp_path):
    found = labels_of(
        tmp_path / "a", ["agent=xqc"], ["agent=xqc", "agent.lr=1e-4"],
        ["agent=bro", "reg=spectral"], ["agent=droq", "agent.hidden=[64,64]"], [], ["reg=swr", "agent.hidden=[64,64]"],
    )  # fmt: skip
    own = ["xqc", "xqc lr=1e-4", "bro spectral + periodic", "droq hidden=[64, 64]", "none", "swr hidden=[64, 64]"]
    assert sorted(found) == sorted(own)
    assert labels_of(tmp_path / "b", ["agent=xqc"]) == ["xqc"]


def test_no_two_groups_share_a_label(tmp_path):
    choices = [[f"reg={r}", f"reset={i}", f"lr={lr}"] for r in ("l2", "swr") for i in ("none", "head") for lr in (1, 2)]
    found = labels_of(tmp_path, *choices, kind="supervised")
    assert len(set(found)) == len(choices)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-3, "1e-3"), (0.1, "0.1"), (2560000, "2.56e6"), (1000, "1000"), (1.0, "1"), (0, "0"), (True, "true"),
     (None, "null"), ([64, 64], "[64, 64]"), (-5e-7, "-5e-7"), (123456.5, "123456.5")],
)  # fmt: skip
def test_values_are_written_short(value, text):
    assert short(value) == text


@pytest.mark.parametrize(
    ("kind", "other", "name"),
    [
        ("train", "env=walker-run", "env.name"),
        ("train", "env.action_repeat=2", "env.action_repeat"),
        ("train", "total_env_steps=5", "total_env_steps"),
        ("supervised", "task=label_flip", "task.name"),
        ("supervised", "data=mnist", "data.name"),
        ("supervised", "net.layer_norm=true", "net.layer_norm"),
        ("supervised", "num_tasks=3", "num_tasks"),
        ("supervised", "epochs_per_task=3", "epochs_per_task"),
    ],
)
def test_different_tasks_and_lengths_are_refused_with_the_way_out_and_allowed_when_mixed(tmp_path, kind, other, name):
    runs = runs_of(tmp_path, ["reg=none"], [other, "reg=l2"], kind=kind)
    with pytest.raises(SettingsError, match=rf"{name}\b.*\bmix={name}\b"):
        group(runs)
    assert len(group(runs, [name])) == 2


def test_a_second_difference_keeps_the_first_in_the_way_out_and_a_misspelt_one_names_the_nearest(tmp_path):
    runs = runs_of(tmp_path, ["reg=none"], ["env=walker-run", "total_env_steps=5"])
    for mix, named in (("env.name", r"mix=env\.name,total_env_steps$"), ("env.nam", r"'env\.nam'.*'env\.name'")):
        with pytest.raises(SettingsError, match=named):
            group(runs, [mix])


def test_mixed_tasks_are_strata_of_one_group_and_a_mixed_net_is_a_group(tmp_path):
    (g,) = group(runs_of(tmp_path / "a", ["env=walker-run"], ["env=cheetah-run"]), ["env.name"])
    assert list(g.tasks) == ["cheetah-run", "walker-run"]
    assert g.label == "none"
    runs = runs_of(tmp_path / "b", ["net=mlp"], ["net.layer_norm=true"], kind="supervised")
    assert [g.label for g in group(runs, ["net"])] == ["layer_norm=false", "layer_norm=true"]
    nets = group(runs_of(tmp_path / "c", ["net=mlp"], ["net=cnn"], kind="supervised"), ["net"])
    assert [[*g.tasks] for g in nets] == [["random_labels digits"]] * 2  # so that they can be compared


def test_the_commands_are_never_mixed(tmp_path):
    runs = runs_of(tmp_path / "a", []) + runs_of(tmp_path / "b", [], kind="supervised")
    with pytest.raises(SettingsError, match=r"RL.*supervised"):
        group(runs)


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


def test_a_run_that_is_there_twice_with_other_numbers_is_refused_and_one_can_be_left_out(tmp_path):
    with pytest.raises(SettingsError, match="leave_out="):  # no step of both, so nothing tells
        group(lists(tmp_path / "apart", curve([1.0]), curve([1.0], every=700)))
    runs = lists(tmp_path, curve([1.0, 2.0]), curve([1.0, 2.5]))
    with pytest.raises(SettingsError, match=r"\(l2, seed 0\).*leave_out=.*/b:l2"):
        group(runs)
    groups = group(runs, leave_out=[f"{tmp_path / 'b'}:l2"])
    assert [(g.label, g.runs[0].folder.path.name) for g in groups] == [("none", "a"), ("l2", "a"), ("swr", "b")]
    assert [g.label for g in group(runs, leave_out=["l2"])] == ["none", "swr"]
    for left, named in (
        (["l3"], "'l3'.*'l2'"),
        ([f"{tmp_path / 'c'}:l2"], "/c:l2"),
        (["l2", "none", "swr"], "leave_out=l2,none,swr"),
    ):
        with pytest.raises(SettingsError, match=named):
            group(runs, leave_out=left)


def test_settings_in_the_names_of_runs_make_groups(tmp_path):
    names = [f"reg.coef={coef} seed={seed}" for coef in ("1e-05", "0.001") for seed in range(2)]
    folder = write_run(tmp_path / "a", ["reg=l2"], {name: curve([1.0]) for name in names})
    other = write_run(tmp_path / "b", ["reg=l2", "reg.coef=1e-5"], {"5": curve([1.0])})
    a, b = group([run for place in (folder, other) for run in read(RunFolder(place))])
    assert (a.label, b.label) == ("coef=1e-5", "coef=1e-3")
    assert [run.seed for run in a.runs] == [0, 1, 5]


def test_runs_whose_plug_had_other_code_are_not_pooled_and_a_warning_says_so(tmp_path):
    runs = runs_of(tmp_path, *[["reg=l2", f"seed={i}"] for i in range(3)], ["reg=none"], seeds=1)
    a, b = {"plugin_sources": {"mine": "a" * 64}}, {"plugin_sources": {"mine": "b" * 64}}
    for number, starts in enumerate([[a], [b], [b, b], [a]]):
        runs[number] = replace(runs[number], seed=number, starts=starts)
    groups = group(runs)
    assert {g.label: len(g.runs) for g in groups} == {"none": 1, "l2 mine=aaaaaaaa": 1, "l2 mine=bbbbbbbb": 2}
    warnings = summarize(groups).warnings
    assert any(" mine " in warning and "l2 mine=aaaaaaaa, l2 mine=" in warning for warning in warnings)


def test_runs_that_use_nothing_of_a_plug_are_pooled_whatever_its_code_and_a_warning_says_so(tmp_path):
    runs = runs_of(tmp_path, ["reg=l2"], ["reg=none"], seeds=2)
    for number, digest in enumerate("abab"):
        used = {"mine": ["l2"]}  # of the folder: of its runs those use it that choose it
        start = {"plugin_sources": {"mine": digest * 64}, "plugins_used": used}
        runs[number] = replace(runs[number], starts=[start])
    groups = group(runs)
    assert {g.label: len(g.runs) for g in groups} == {"none": 2, "l2 mine=aaaaaaaa": 1, "l2 mine=bbbbbbbb": 1}
    assert [w for w in summarize(groups).warnings if w.startswith("none: ") and " mine" in w]


def test_equal_code_and_plugs_that_others_were_made_without_keep_a_group_together(tmp_path):
    runs = runs_of(tmp_path, ["reg=l2"], seeds=3)
    same = {"plugin_sources": {"mine": "a" * 64}}
    runs[0], runs[1] = replace(runs[0], starts=[same]), replace(runs[1], starts=[same, same])
    (g,) = group(runs)  # the last one, of an earlier version or made without the plug, says nothing
    assert g.label == "l2"
    assert not [w for w in summarize([g]).warnings if "the plug mine" in w]


def test_a_plug_that_changed_while_a_run_was_trained_is_named(tmp_path):
    (run,) = runs_of(tmp_path, ["reg=l2"], seeds=1)
    run = replace(run, starts=[{"plugin_sources": {"mine": d * 64}} for d in "ab"])
    assert [w for w in summarize(group([run])).warnings if " mine " in w and str(run) in w]


def branched(folder, parent, at):
    """The folder, as of a run that branched there."""
    config = folder / "config.yaml"
    config.write_text(f"{config.read_text()}from: {parent}\nat: {at}\n")
    return folder


def test_branches_are_groups_as_other_runs_are_and_the_caption_says_where_they_branched(tmp_path):
    curves = {str(seed): curve([1.0, 2.0 + seed]) for seed in range(2)}
    parent = write_run(tmp_path / "parent", ["reg=none"], curves)
    same = branched(write_run(tmp_path / "same", ["reg=none"], curves), parent, 1000)
    head = branched(write_run(tmp_path / "head", ["reset=head"], curves), parent, 1000)
    groups = group([run for folder in (parent, same, head) for run in read(RunFolder(folder))])
    assert [g.label for g in groups] == ["none", "none at=1000", "none + head"]
    comparison = summarize(groups, None, None, "none", None)
    assert f" branched from {os.path.relpath(parent)} at env step 1000. " in comparison.caption
    assert [row.get("gap").note for row in comparison.rows if row.group.label != "none"] == ["2 seeds", "2 seeds"]
    assert not any("branched" in warning for warning in comparison.warnings)
    assert summarize(groups, None, None, None, None).baseline.label == "none"  # of two plain groups, not the branch
    head = branched(write_run(tmp_path / "later", ["reset=head"], curves), parent, 2000)
    groups = group([run for folder in (parent, same, head) for run in read(RunFolder(folder))])
    assert [g.label for g in groups] == ["none", "none at=1000", "none + head"]
    (warning,) = (w for w in summarize(groups, None, None, None, None).warnings if "branched" in w)
    assert "1000" in warning
    assert "2000" in warning
    (warning,) = (w for w in summarize(groups, None, None, None, None).warnings if "would come after" in w)
    assert "head" in warning
    (g,) = group(read(RunFolder(head)))
    assert g.label == "none + head"


def test_an_intervention_that_acts_once_is_no_default_baseline_and_is_named_where_its_time_differs(tmp_path):
    once = "reset_once_after_updates"
    given = (["reg=none"], ["reset=periodic", f"{once}=5"], ["reset=head", f"{once}=5"])
    groups = group(runs_of(tmp_path / "a", *given))
    assert [g.label for g in groups] == ["none", "none + head", "none + periodic"]
    assert summarize(groups).baseline.label == "none"
    assert labels_of(tmp_path / "b", *given, ["reset=head", f"{once}=6"]) == [
        "none",
        f"none + head {once}=5",
        f"none + head {once}=6",
        "none + periodic",
    ]
    every = ["random_env_steps=0", "replay_ratio=1", "total_env_steps=1000", "reset=head"]
    for number, reset in ((1000, "head"), (1001, "head (never reset)")):
        groups = group(runs_of(tmp_path / f"{number}", ["reset=none", *every[:-1]], [*every, f"{once}={number}"]))
        assert summarize(groups).rows[1].group.label == f"none + {reset}"


def test_a_supervised_branch_counts_the_resets_that_came_after_it(tmp_path):
    given = ["reset=head", "reset.every_updates=100", "epochs_per_task=2", "num_tasks=3"]
    rows = {"0": tasks([0.5, 0.6, 0.7])}  # 60 updates each
    parent = write_run(tmp_path / "parent", ["reset=none", *given[2:]], rows, "supervised")
    for made, label in ((120, "none + head (never reset)"), (90, "none + head")):
        folder = branched(write_run(tmp_path / f"{made}", given, rows, "supervised"), parent, 3)
        branch = {"from": str(parent), "at": 3, "updates": made, "starts": []}
        (folder / "provenance.json").write_text(json.dumps({"branch": branch, "starts": []}))
        groups = group([run for one in (parent, folder) for run in read(RunFolder(one))])
        assert summarize(groups).rows[1].group.label == label
