"""Where a run goes unless it is told: short names, and what happens when two runs have one."""

import re

import pytest
from conftest import once, refused
from folders import PENDULUM

from rl_plasticity import train
from rl_plasticity.configs import schema, written
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs import command, naming
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.lock import Lock

# Two that differ in what their common name has no room for.
LONG, OTHER = (once([*PENDULUM, f"agent.target_entropy={entropy}"]) for entropy in (-1.0, -2.0))


def load(*arguments, kind=Train):
    return schema.load(kind, once(arguments))


def write(path, settings):
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(schema.dump(settings))
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results"


CHANGING = ["env.switch_every_env_steps=9"]
WALKERS = ["env.sequence=[walker-stand,walker-walk]", *CHANGING]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], "cheetah-run_none_seed0"),
        (["env=walker-run"], "walker-run_none_seed0"),
        (["env=gym:Pendulum-v1", "reg=spectral", "seed=4"], "Pendulum-v1_spectral_seed4"),
        (["reg=spectral+l2", "reset=periodic", "preset=demo", "seeds=3"], "demo_spectral+l2_periodic_seed0-2"),
        (["preset=demo", "env=walker-run", "env.action_repeat=4"], "demo_none_walker-run_seed0"),
        (["preset=demo", "replay_ratio=4"], "demo_none_replay_ratio=4_seed0"),
        (["reg=swr", "reg.coef=0.1", "device=cpu"], "cheetah-run_swr_coef=0.1_seed0"),
        (["reg=swr", "reg.coef=1e-3"], "cheetah-run_swr_seed0"),  # as it is without
        (["total_env_steps=99", "seeds=3", "agent.lr=0.01", "reg=l2"], "cheetah-run_l2_lr=0.01_seed0-2"),
        (["reg=l2", "reg.coef=[1e-5,0.01]"], "cheetah-run_l2_coef=1e-5,0.01_seed0"),
        (["reg=[none,swr]", "reset=[none,head]"], "cheetah-run_none-swr_none-head_seed0"),
        (["reg=l2", "reset=redo", "reg.coef=0.1", "seed=7"], "cheetah-run_l2_redo_coef=0.1_seed7"),
        ([*WALKERS, "reg=l2"], "walker-stand_l2_seed0"),
        (["preset=demo", "env.sequence=[cheetah-run,cheetah-run]", *CHANGING], f"demo_none_{CHANGING[0][4:]}_seed0"),
        # No room for a whole setting.
        (["preset=demo", *WALKERS, "seed=100", "reset=periodic"], "demo_none_periodic_walker-stand_seed100"),
        (["env=walker-run", "env.changes=[dynamics]", *CHANGING], "walker-run_none_changes=dynamics_seed0"),
        (["data.root=/a", "reg=swr", "reg.coef=1e-4", "seeds=5"], "random_labels_swr_coef=1e-4_seed0-4"),
        (["preset=swr-mnist", "net=cnn_bn"], "swr-mnist_none_cnn_bn_seed0"),
        (["preset=spectral-cifar10", "task=pixel_permutation"], "spectral-cifar10_none_pixel_permut_seed0"),
    ],
)
def test_a_name_says_what_differs_from_the_preset_and_the_defaults(arguments, name):
    of_images = any(a.startswith(("data", "preset=swr", "preset=spectral")) for a in arguments)
    assert naming.name(load(*arguments, kind=Supervised if of_images else Train)) == name


@pytest.mark.parametrize(
    "arguments",
    [
        [f"agent.hidden=[{','.join(['16'] * 200)}]"],
        ["reg=[none,spectral,swr,wrs,l2,l2_init,ewc]", "seeds=10"],
        ["env=humanoid_CMU-run", "preset=bounded", "reg=weight_clipping+spectral", "seed=123456", "seeds=99"],
        [written.Given("env", "../../a b/'c'$d;*", ""), "reset=shrink_perturb", "seed=9"],
    ],
)
def test_a_name_has_40_characters_at_most_no_half_number_and_nothing_that_a_shell_reads(arguments):
    settings = schema.load(Train, arguments)
    for number in (1, 2, 12345):
        name = naming.name(settings, number)
        assert len(name) <= 40
        assert re.fullmatch(r"[\w.+=,-]+", name)
        assert name.endswith("" if number == 1 else f"_{number}")
        assert f"_seed{settings.seed}" in name
        assert "hidden=" not in name


def test_another_run_of_that_name_gets_a_number_and_the_same_run_its_own_folder(here):
    first, second = load(*LONG), load(*OTHER)
    assert naming.name(first) == naming.name(second)
    a, b = here / naming.name(first), here / naming.name(first, 2)
    assert naming.place(here, first) == a
    write(a, first)
    assert naming.place(here, second) == b
    assert naming.place(here, second, taken=[b]) == here / naming.name(first, 3)
    write(b, second)
    (a / "config.yaml").rename(here / "config.yaml")
    a.rmdir()
    assert naming.place(here, second) == b  # although the first name is free again
    assert naming.place(here, first) == a


def test_a_folder_of_something_else_is_passed_over_and_a_run_that_cannot_be_read_is_not(here):
    settings = load(*LONG)
    path = here / naming.name(settings)
    path.mkdir(parents=True)
    (path / ".lock").touch()  # killed before it wrote anything: free
    assert naming.place(here, settings) == path
    (path / "thesis.tex").touch()
    assert naming.place(here, settings) == here / naming.name(settings, 2)
    (path / "config.yaml").write_text("of: another version\n")
    assert naming.place(here, settings) == path
    with pytest.raises(SettingsError, match=r"exists.*resume="):
        train.command.prepare(LONG)


def test_a_run_that_was_made_is_not_made_again_but_offered_to_be_resumed(here):
    write(here / naming.name(load(*LONG)), load(*LONG, "device=auto", "threads=auto"))
    with pytest.raises(SettingsError, match=r"results/\S+_seed0 exists.*resume="):
        train.command.prepare(LONG)
    assert len([*here.iterdir()]) == 1


@pytest.fixture
def meanwhile(here, monkeypatch):
    """Another process writes another run's settings into a folder while this one builds its parts."""
    built = command.Command._made

    def take(path):
        monkeypatch.setattr(command.Command, "_made", lambda *a: write(path, load(*OTHER)) and built(*a))

    return take


def test_a_name_that_another_process_takes_meanwhile_is_passed_over(here, meanwhile):
    meanwhile(here / naming.name(load(*LONG)))
    session, parts = train.command.prepare(LONG)
    session.lock.release()
    parts.close()
    assert session.settings.out == str(session.folder) == f"results/{naming.name(load(*LONG), 2)}"
    assert naming.difference(session.folder, session.settings) == ""


def test_a_folder_that_another_process_filled_meanwhile_is_not_written_into(here, meanwhile):
    meanwhile(here.parent / "mine")
    refused(lambda: train.command.prepare([*LONG, "out=mine"]), "mine exists")
    assert schema.load_saved(Train, RunFolder("mine").settings) == load(*OTHER)


def test_a_run_that_another_process_is_beginning_is_said_to_be(here):
    path = here / naming.name(load(*LONG))
    path.mkdir(parents=True)
    with Lock(RunFolder(path)), pytest.raises(SettingsError, match=r"process \d+ on"):
        train.command.prepare(LONG)
