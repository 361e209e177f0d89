"""The default folder of a run: its name says what the run is, and is that of no other run."""

import re

import pytest
from conftest import once, refused
from folders import PENDULUM

from rl_plasticity import train
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.runs import naming

CHANGING = ["env.switch_every_env_steps=9"]
HEX = r"[0-9a-f]{6}"


def named(*arguments, kind=Train):
    return naming.name(schema.load(kind, arguments))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], "cheetah-run_none_seed0"),
        (["env=gym:Pendulum-v1", "reg=spectral", "seed=4"], "Pendulum-v1_spectral_seed4"),
        (["reg=spectral+l2", "reset=periodic", "seeds=3"], "cheetah-run_spectral+l2_periodic_seed0-2"),
        (["reg=[none,swr]", "reset=[none,head]"], "cheetah-run_none-swr_none-head_seed0"),
        (["agent.layer_norm=false", "reg=spectral"], "cheetah-run_spectral_agent.layer_norm=false_seed0"),
        (["reg=swr", "reg.coef=0.1", "device=cpu", "eval_every_env_steps=7"], "cheetah-run_swr_reg.coef=0.1_seed0"),
        (["reg=swr", "reg.coef=1e-3"], "cheetah-run_swr_seed0"),  # as it is without
        (
            ["reg=swr", "reg.coef=0.1", "agent.layer_norm=false"],
            "cheetah-run_swr_reg.coef=0.1_agent.layer_norm=false_seed0",
        ),
        (
            ["total_env_steps=99", "agent.layer_norm=false"],
            "cheetah-run_none_agent.layer_norm=false_total_env_steps=99_seed0",
        ),
        (["reg=l2", "reg.coef=[1e-5,0.01]"], "cheetah-run_l2_reg.coef=1e-5,0.01_seed0"),
        (["preset=demo", "replay_ratio=4"], "cheetah-run_demo_none_replay_ratio=4_seed0"),
        (
            ["total_env_steps=99", "reg=l2", "reg.coef=0.1"],
            "cheetah-run_l2_reg.coef=0.1_total_env_steps=99_seed0",
        ),  # the method first
        (
            ["env.sequence=[walker-run,walker-run]", *CHANGING],
            "walker-run_none_env.sequence=walker-run,walker-run_env.switch_every_env_steps=9_seed0",
        ),
    ],
)
def test_a_name_has_the_choices_and_the_first_settings_that_are_unusual_and_digits_where_that_is_not_all(
    arguments, name
):
    assert re.fullmatch(name.replace("+", r"\+").replace(r"\S\+", r"\S+"), named(*arguments))


def test_images_have_the_task_and_the_choices_that_the_preset_does_not_make():
    of = {
        "preset=swr-mnist net=cnn_bn": "swr-mnist_cnn_bn_none_seed0",
        "reg=swr reg.coef=0.1": "swr_reg.coef=0.1_seed0",
    }
    for arguments, ending in of.items():
        assert named(*arguments.split(), kind=Supervised).partition("_")[0] in ("warm", "random")
        assert named(*arguments.split(), kind=Supervised).endswith(ending)


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


@pytest.mark.parametrize(
    "arguments",
    [
        ["reg=[none,spectral,swr,wrs,l2,l2_init,ewc,parseval]", "seeds=10"],
        ["env=../../a b/c$d;*", "reset=shrink_perturb", "seed=9"],
    ],
)
def test_a_name_is_one_folder_and_has_nothing_that_a_shell_reads(arguments):
    assert re.fullmatch(rf"[\w.+=,-]{{,70}}_{HEX}_seed\d[\d-]*", named(*arguments))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results"


def test_a_run_that_was_made_is_not_made_again_but_offered_to_be_resumed_whatever_was_decided_later(here):
    settings = schema.load(Train, once([*PENDULUM, "device=auto", "threads=auto"]))
    path = here / naming.name(settings)
    path.mkdir(parents=True)
    (path / ".lock").touch()  # killed before it wrote anything: free
    session, built = train.command.prepare(PENDULUM)
    built.close()
    session.lock.release()
    assert session.folder.path.samefile(path)
    refused(lambda: train.command.prepare(PENDULUM), "exists", f"resume=results/{path.name}")
    assert len([*here.iterdir()]) == 1
