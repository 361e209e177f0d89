"""The default folder of a run: its name says what the run is, and is that of no other run."""

import re

import pytest
from conftest import once, refused
from folders import PENDULUM, begun

from rl_plasticity import train
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.runs import naming

CHANGING = ["env.switch_every_env_steps=9"]


def named(*arguments, kind=Train):
    return naming.name(schema.load(kind, arguments))


@pytest.mark.parametrize(("arguments", "name"), [
    ("", "none_seed0"),
    ("reg=spectral+l2 reset=periodic seeds=3", "spectral+l2_periodic_seed0-2"),
    ("reg=[none,swr] reset=[none,head]", "none-swr_none-head_seed0"),
    ("agent.layer_norm=false reg=spectral", "spectral_agent.layer_norm=false_seed0"),
    ("reg=swr reg.coef=0.1 device=cpu eval_every_env_steps=7", "swr_reg.coef=0.1_seed0"),
    ("reg=swr reg.coef=1e-3", "swr_seed0"),  # as it is without
    ("reg=swr reg.coef=0.1 agent.layer_norm=false", "swr_reg.coef=0.1_agent.layer_norm=false_seed0"),
    ("total_env_steps=9 agent.layer_norm=false", "none_agent.layer_norm=false_total_env_steps=9_seed0"),
    ("reg=l2 reg.coef=[1e-5,0.01]", "l2_reg.coef=1e-5,0.01_seed0"),
    ("preset=demo replay_ratio=4", "demo_none_replay_ratio=4_seed0"),
    ("total_env_steps=9 reg=l2 reg.coef=0.1", "l2_reg.coef=0.1_total_env_steps=9_seed0"),  # the method first
])  # fmt: skip
def test_a_name_has_the_choices_and_the_first_unusual_settings_and_digits_if_there_are_more(arguments, name):
    assert named(*arguments.split()) == f"cheetah-run_{name}"


def test_a_name_begins_with_the_task_or_the_tasks():
    assert named("env=gym:Pendulum-v1", "reg=spectral", "seed=4") == "Pendulum-v1_spectral_seed4"
    two = "walker-run_none_env.sequence=walker-run,walker-run_env.switch_every_env_steps=9_seed0"
    assert named("env.sequence=[walker-run,walker-run]", *CHANGING) == two
    assert named("preset=swr-mnist", "net=cnn_bn", kind=Supervised) == "warm_start_swr-mnist_cnn_bn_none_seed0"
    assert named("reg=swr", "reg.coef=0.1", kind=Supervised) == "random_labels_swr_reg.coef=0.1_seed0"


def test_no_two_runs_have_one_name_and_seeds_share_the_digits():
    others = [
        [f"agent.hidden=[{','.join(['16'] * n)}]"] for n in (198, 199)  # longer than a name
    ] + [
        ["env.sequence=[walker-run,walker-walk]", *CHANGING],
        ["env.sequence=[walker-run,walker-stand]", *CHANGING],
        ["reg=l2", "reset=head", "reg.coef=0.1"],
        ["reg=l2", "reset=shrink_perturb", "reset.coef=0.1"],
        ["agent.lr=0.01", "agent.tau=0.1"],
        ["agent.lr=0.01", "agent.tau=0.2"],
        ["agent.lr=0.01"],
    ]  # fmt: skip
    assert len({named(*one) for one in others}) == len(others)
    first, second = (named("agent.lr=0.01", "agent.tau=0.1", f"seed={seed}") for seed in (0, 1))
    assert first.removesuffix("_seed0") == second.removesuffix("_seed1")


@pytest.mark.parametrize("odd", ["reg=[none,spectral,swr,wrs,l2,l2_init,ewc,parseval]", "env=../../a b/c$d;*"])
def test_a_name_is_one_folder_and_has_nothing_that_a_shell_reads(odd):
    assert re.fullmatch(r"[\w.+=,-]{,70}_[0-9a-f]{6}_seed8-9", named(odd, "reset=shrink_perturb", "seed=8", "seeds=2"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results"


def test_a_run_that_was_made_is_not_made_again_but_offered_to_be_resumed_whatever_was_decided_later(here):
    settings = schema.load(Train, once([*PENDULUM, "device=auto", "threads=auto"]))
    path = here / naming.name(settings)
    path.mkdir(parents=True)
    (path / ".lock").touch()  # killed before it wrote anything: free
    assert begun(train.command, PENDULUM).folder.path.samefile(path)
    refused(lambda: train.command.prepare(PENDULUM), "exists", f"resume=results/{path.name}")
    assert len([*here.iterdir()]) == 1
