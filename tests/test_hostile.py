"""Files, folders and names that somebody else made: nothing of them is run, followed, waited for or shown raw."""

import json
import os
import shutil

import pytest
from conftest import StopAfter, files, refused
from folders import PENDULUM, curve, resume, run, write_run

from rl_plasticity import load_agent, status
from rl_plasticity.compare import compare, show
from rl_plasticity.errors import SettingsError, printable
from rl_plasticity.runs.files import write_text
from rl_plasticity.runs.folder import RunFolder, find
from rl_plasticity.runs.lock import Lock, is_held

RL = ["env=cheetah-run", "total_env_steps=10000"]
ODD = "a\x1b[31m\nb\r\x07\u202e<i>"  # colour, a line of its own, back to the start, a bell, right to left


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    return run(PENDULUM, tmp_path_factory.mktemp("stopped") / "run", StopAfter(45))


@pytest.fixture
def folder(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "run")


@pytest.fixture
def fake(tmp_path):
    return write_run(tmp_path / "fake", RL, {"0": curve([5.0, 7.0])})


# --- config.yaml ------------------------------------------------------------------------------------------------------


def test_a_config_whose_aliases_stand_for_a_billion_settings_is_refused_unread(fake):
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
    config = fake / "config.yaml"
    config.write_text(bomb + config.read_text())
    with pytest.raises(SettingsError, match=r"config\.yaml"):
        _ = RunFolder(fake).settings
    assert status.read(RunFolder(fake)).state == "damaged"


def test_a_star_in_a_value_is_no_alias(fake):
    config = fake / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("out: auto", "out: results/a *b"))
    assert config.read_text() != text
    assert RunFolder(fake).settings["out"] == "results/a *b"


@pytest.mark.parametrize(
    "text", ["a: " + "x" * 30_000_000, "[" * 100_000, "x: !!python/object/apply:os.mkdir [pwned]\n"]
)
def test_a_config_that_is_huge_deep_or_names_python_is_refused_in_one_line(text, fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (fake / "config.yaml").write_text(text)
    refused(lambda: RunFolder(fake).settings, "config.yaml")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("below", ["", "agent:\n  ", "reg:\n  "])
def test_what_names_a_function_is_an_unknown_setting(below, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = folder / "config.yaml"
    text, indent = config.read_text(), "  " * bool(below)
    where = below.removesuffix("  ")  # the group's line, or the beginning
    assert where in text
    config.write_text(text.replace(where, f"{where}{indent}_target_: os.mkdir\n{indent}path: pwned\n", 1))
    for go_on in (lambda: resume(folder), lambda: load_agent(folder)):
        refused(go_on, "_target_")
    assert not (tmp_path / "pwned").exists()


def test_what_a_saved_setting_refers_to_is_not_looked_up(folder, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("gym:Pendulum-v1", "${oc.env:SECRET}"))
    assert RunFolder(folder).settings["env"]["name"] == "${oc.env:SECRET}"
    assert "hunter2" not in refused(lambda: load_agent(folder))


# --- files that are no files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [path.name for path in RunFolder("x").own])
def test_a_run_is_not_resumed_through_a_link(name, folder, tmp_path):
    victim = tmp_path / "victim"
    own = folder / name
    if not own.exists():
        own.mkdir()
    if own.is_dir():
        shutil.copytree(own, victim)
        shutil.rmtree(own)
    else:
        shutil.copy(own, victim)
        own.unlink()
    own.symlink_to(victim)
    before = files(tmp_path)
    refused(lambda: resume(folder), f"{name} is a link")
    assert files(tmp_path) == before


def test_a_run_is_not_resumed_through_a_link_below_its_folders(folder, tmp_path):
    (tmp_path / "victim").mkdir()
    (folder / "tensorboard" / "seed9").symlink_to(tmp_path / "victim")
    refused(lambda: resume(folder), "seed9 is a link")


def test_a_lock_and_a_temporary_file_that_are_links_leave_what_they_lead_to(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = RunFolder(tmp_path)
    folder.lock.symlink_to(victim)
    with pytest.raises(OSError, match=r"\.lock"):
        Lock(folder)
    (tmp_path / ".file.tmp").symlink_to(victim)
    write_text(tmp_path / "file", "mine")
    assert (tmp_path / "file").read_text() == "mine"
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", [path.name for path in RunFolder("x").own if path.suffix or path.name == ".lock"])
@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_what_is_no_file_keeps_nobody_waiting(kind, name, folder):
    (folder / name).unlink()
    if kind == "a pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero")
    assert status.read(RunFolder(folder)).state in status.STATES
    assert not is_held(RunFolder(folder))
    with pytest.raises(SettingsError, match=f"{name} is (a link|no file)"):
        resume(folder)


def test_a_checkpoint_that_is_no_file_is_passed_over(folder):
    newest = [*RunFolder(folder).saved_steps.values()][-1]
    newest.unlink()
    os.mkfifo(newest)
    assert load_agent(folder) is not None


def test_a_circle_of_links_and_links_to_runs_elsewhere_end(fake, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    (place / "circle").symlink_to(place)
    (place / "linked").symlink_to(fake)
    _, below = find([place])
    assert [run.path.name for run in below] == ["linked"]


# --- numbers and records ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["0,60," + "a" * 20_000_000 + ",x", "0," + "9" * 1_000_000 + ",a,1.0"])
def test_a_line_of_millions_of_characters_is_damage_in_a_short_line(row, fake):
    with (fake / "metrics.csv").open("a") as file:
        file.write(row + "\n")
    assert len(refused(RunFolder(fake).metrics, "metrics.csv")) < 2100
    assert len("".join(status.table([status.read(RunFolder(fake))], 0.0))) < 5000


def test_a_record_nested_a_hundred_thousand_deep_is_damage(fake):
    (fake / "provenance.json").write_text('{"starts": ' + "[" * 100_000)
    assert RunFolder(fake).starts == []
    (fake / "provenance.json").write_text(json.dumps({"starts": [{"command": 7, "plugins": {"a": 1}}, 5]}))
    assert RunFolder(fake).plugins == []


# --- names that are shown ---------------------------------------------------------------------------------------------


def test_names_reach_the_terminal_as_escapes(tmp_path, capsys):
    write_run(tmp_path / ODD, RL, {"0": curve([5.0, 7.0])})
    config = tmp_path / ODD / "config.yaml"
    config.write_text(config.read_text().replace("name: cheetah-run", "name: " + json.dumps(ODD)))
    write_run(tmp_path / "good", RL, {"0": curve([5.0, 7.0])})
    _, below = find([tmp_path])
    lines = status.table([status.read(run) for run in below], 0.0)
    assert all(line.isprintable() for line in lines)
    assert any(printable(ODD) in line for line in lines)
    show(compare(tmp_path / ODD))
    out, err = capsys.readouterr()
    assert all(line.isprintable() for line in (out + err).split("\n"))
    assert "\\x1b[31m" in out


def test_labels_that_look_like_formulas_are_drawn_as_they_are(tmp_path):
    for name in ("$x^$", "$\\frac{", "$a$", "_b"):
        folder = write_run(tmp_path / name.replace("\\", ""), RL, {"0": curve([5.0, 7.0]), "1": curve([4.0, 6.0])})
        config = folder / "config.yaml"
        text = config.read_text()
        config.write_text(text.replace("batch_size: 256", "batch_size: " + json.dumps(name)))
        assert config.read_text() != text
    made = compare(tmp_path, out=tmp_path / "out")
    assert any("$x^$" in cell for line in made.table() for cell in line)
    assert (tmp_path / "out" / "report.html").exists()
