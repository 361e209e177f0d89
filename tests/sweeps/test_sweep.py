import os
import signal
import sys

import pytest
from conftest import refused

from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Train
from rl_plasticity.runs import naming
from rl_plasticity.supervised import command
from rl_plasticity.sweeps import job
from rl_plasticity.sweeps.sweep import runs, sweep

TWO = ["launcher=joblib", "launcher.n_jobs=2"]


def combinations(*arguments):
    return [" ".join(run.arguments) for run in runs(Train, arguments)]


def test_a_sweep_is_every_combination_of_values_ranges_patterns_chains_and_lists_the_last_setting_first():
    both = [f"env={env}-run replay_ratio=2 seed={seed}" for env in ("cheetah", "walker") for seed in (0, 1)]
    assert combinations("env=cheetah-run,walker-run", "replay_ratio=2", "seed=0,1") == both
    assert combinations("seed=range(3,9,3)") == ["seed=3", "seed=6"]
    assert combinations("reg=none,spectral+l2") == ["reg=none", "reg=spectral+l2"]
    assert combinations("reg=[none,swr]") == ["reg=[none,swr]"]  # side by side in one process
    assert runs(Train, ["env=gym:Pendulum-v1,cheetah-run"])[0].settings.env.name == "gym:Pendulum-v1"


def test_each_run_has_the_name_and_the_settings_it_would_have_alone(tmp_path):
    first, second = runs(Train, [f"out={tmp_path}", "reg=spectral", "reg.coef=0.1,0.2", "seed=4"])
    alone = schema.load(Train, ["reg=spectral", "reg.coef=0.2", "seed=4"])
    assert second.settings == alone
    assert second.folder == tmp_path / naming.name(alone)
    assert first.folder.parent == tmp_path


@pytest.mark.parametrize(("arguments", "expected"), [
    (
        "reg=none,spectral reg.spectral.coef=1e-3,1e-2",
        [("none", {}), ("spectral", {"coef": 1e-3}), ("spectral", {"coef": 1e-2})],
    ),
    (
        "reset.periodic.every_updates=2000 reset=none,periodic,head",
        [("none", {}), ("periodic", {"every_updates": 2000}), ("head", {})],
    ),
    ("reg=l2,spectral+l2 reg.l2.coef=1e-3", [("l2", {"coef": 1e-3}), ("spectral+l2", {"l2.coef": 1e-3})]),
    ("reg=swr,[none,swr] reg.swr.coef=0.25", [("swr", {"coef": 0.25}), (["none", "swr"], {"swr.coef": 0.25})]),
])  # fmt: skip
def test_a_setting_that_names_a_choice_is_for_the_runs_that_make_it(arguments, expected):
    group = "reset" if "reset" in arguments else "reg"
    found = [getattr(run.settings, group) for run in runs(Train, arguments.split())]
    assert [settings.name for settings in found] == [choice for choice, _ in expected]
    for settings, (_, own) in zip(found, expected, strict=True):
        assert {name: settings.settings[name] for name in own} == own


@pytest.mark.parametrize(("arguments", "names"), [
    ("reg=none,l2 reg.spectral.coef=1", ["reg.spectral.coef", "reg=none"]),
    ("reg=none,spectral reg.spectral.coeff=1", ["'reg.coef'"]),
    ("reg=spectral reg.spectral.coef=1 reg.coef=1", ["reg.coef is given twice"]),
    ("device=cpu,auto", ["the same run twice"]),
    ("seed=0,-1", ["seed", "from 0 up", "got -1"]),
    ("seed=0 resume=x", ["resume="]),
    ("seed=range(x)", ["range(FIRST,END)"]),
    ("launcher=joblip", ["'joblip'", "'joblib'"]),
    ("launcher=ray launcher.num_gpu=1", ["'launcher.num_gpus'"]),
    ("launcher=joblib launcher.n_jobs=0 seed=0,1", ["n_jobs", "other than 0", "got 0"]),
    ("launcher.n_jobs=2", ["'launcher.n_jobs'", "valid: none"]),
])  # fmt: skip
def test_a_bad_setting_of_any_run_is_found_before_the_first_one_starts(arguments, names, tmp_path, monkeypatch):
    monkeypatch.setattr(job.Job, "__call__", lambda job: 1 / 0)
    refused(lambda: sweep(command, [f"out={tmp_path / 'out'}", *arguments.split()]), *names)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("launcher", "library"), [("slurm", "submitit"), ("ray", "ray")])
def test_a_launcher_whose_library_is_missing_says_what_to_install_before_anything_is_written(
    launcher, library, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, library, None)
    arguments = [f"out={tmp_path / 'out'}", "seed=0,1", f"launcher={launcher}"]
    refused(lambda: sweep(command, arguments), library, f"rl_plasticity[{launcher}]")
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def a_sweep(tmp_path, monkeypatch):
    """Sweeps over runs that are a shell script, which knows its `folder` and its arguments."""
    monkeypatch.setattr(job, "POLL_S", 0.02)
    monkeypatch.setattr(command, "check", lambda settings: None)
    program = tmp_path / "program"
    program.touch(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    def start(script, *arguments, first=""):
        save = 'for last; do :; done; cd "${last#*=}" || mkdir "${last#*=}" && cd "${last#*=}" || exit 1; '
        save += "touch config.yaml"  # which says nothing of any run, so it is taken for this one's
        program.write_text(
            f'#!/bin/sh\n{first}\n{save}\necho "$5" >> {tmp_path}/calls\n{script}\necho now finished > log.txt\n'
        )
        (tmp_path / "calls").write_text("")
        status = sweep(command, [f"out={tmp_path / 'out'}", *arguments])
        return status, (tmp_path / "calls").read_text().split()

    return start


def table(printed):
    """The outcome of each run, by what its name has after the task."""
    lines = printed.partition("\n\n")[2].splitlines()
    return {
        name.removeprefix("random_labels_"): outcome
        for name, outcome in (line.split(None, 1) for line in lines[:-1])
        if "seed" in name
    }


def test_a_sweep_goes_on_after_a_failure_and_again_makes_only_what_is_missing(a_sweep, capsys, tmp_path):
    fail = 'case "$*" in *swr*) echo rl_plasticity.supervised: diverged; exit 1;; esac'
    arguments = ["reg=none,swr,wrs", "seed=0"]
    status, calls = a_sweep(fail, *arguments)
    printed = capsys.readouterr().out
    assert (status, len(calls)) == (1, 3)
    assert table(printed) == {
        "none_seed0": "succeeded", "swr_seed0": "failed: rl_plasticity.supervised: diverged", "wrs_seed0": "succeeded"
    }  # fmt: skip
    assert "2 succeeded, 1 failed, 0 stopped, 0 skipped" in printed

    status, calls = a_sweep("", *arguments)
    assert status == 0
    assert len(calls) == 1
    assert calls[0].startswith("resume=")
    assert calls[0].endswith("random_labels_swr_seed0")
    skipped = dict.fromkeys(("none_seed0", "wrs_seed0"), "skipped: its results exist")
    assert table(capsys.readouterr().out) == skipped | {"swr_seed0": "succeeded"}

    for folder in tmp_path.glob("out/*_w*_seed0"):
        (folder / "config.yaml").write_text("log_every_updates: 7\n")
    status, calls = a_sweep("exit 1", *arguments, "log_every_updates=9")
    assert (status, calls) == (0, [])
    printed = capsys.readouterr()
    assert "0 succeeded, 0 failed, 0 stopped, 3 skipped" in printed.out
    assert "1 run began with log_every_updates=7" in printed.err


@pytest.mark.parametrize(("launcher", "number"), [([], signal.SIGINT), (TWO, signal.SIGTERM)], ids=["basic", "joblib"])
def test_a_stopped_sweep_lets_its_runs_save_and_starts_no_more(launcher, number, a_sweep, capsys):
    once = f"mkdir ../once 2>/dev/null && kill -{number:d} {os.getpid()}"  # a second signal would kill at once
    script = f"{once}; while :; do sleep 0.1; done"
    status, calls = a_sweep(script, "seed=range(0,6)", *launcher, first="trap 'echo saved; exit 143' TERM")
    assert status == 128 + number
    outcomes = list(table(capsys.readouterr().out).values())
    # The second one may be told to stop before its shell has set the trap, after it, and after it has written its call.
    at_once = 2 if launcher else 1
    assert 1 <= len(calls) <= outcomes.count("stopped: saved") <= at_once
    assert outcomes.count("stopped: before it started") >= 6 - at_once
    status, calls = a_sweep("", "seed=range(0,6)", *launcher)
    assert (status, len(calls)) == (0, 6)
