"""Help and complaints without torch: what the constructors declare, kept as plain data that is true or not used."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import rl_plasticity
from rl_plasticity.configs import kinds
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.settings import settings_of

# Each command as a process of its own would, one after another in one that has not imported torch, until one does.
ONE_AFTER_ANOTHER = """
import io, json, runpy, sys
from contextlib import redirect_stderr, redirect_stdout
for line in sys.argv[1].splitlines():
    command, *sys.argv[1:] = line.split()
    out, err, status = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            runpy.run_module(f"rl_plasticity.{command}", run_name="__main__", alter_sys=True)
        except SystemExit as stopped:
            status = stopped.code or 0
    slow = sorted({"torch", "rl_plasticity_zoo.resnet", "matplotlib"} & {*sys.modules})
    print(json.dumps([status, out.getvalue(), err.getvalue(), slow]), flush=True)
    if "torch" in slow:
        break
"""
HELP = {f"{command} --help": [] for command in ("train", "supervised", "diagnose", "evaluate", "watch", "compare")}
HELP |= {"train --help agent=xqc reg=spectral+l2": ["reg.l2.coef="], "supervised --help net=resnet18": ["resnet18, "]}
MISSPELT = {
    "train regg=spectral": ["'regg'", "'reg'"],
    "train reg=spectral reg.coef=-1": ["reg.coef", "from 0 up", "-1"],
    "train env=cheeta-run": ["env 'cheeta-run'", "cheetah-run"],
    "train env.sequence=[walker-run,walker-wlak]": ["env 'walker-wlak'", "walker-walk"],
    "diagnose run repeets=3": ["'repeets'", "'repeats'"],
    "compare bseline=x": ["'bseline'", "'baseline'"],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder for caches in which something is kept."""
    folder = tmp_path_factory.mktemp("cache")
    assert call(folder, "train --help")[0][0] == 0
    (kept,) = folder.glob("rl_plasticity/settings-*.json")
    assert kept.stat().st_size > 10_000
    return folder


def call(home, *lines, **variables):
    """What became of each command: its status, output, complaint, and what it imported that takes long."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), **variables}
    told = [sys.executable, "-c", ONE_AFTER_ANOTHER, "\n".join(lines)]
    done = subprocess.run(told, env=environment, capture_output=True, text=True, cwd=home)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def ended(home):
    lines = [*HELP, *MISSPELT]
    return dict(zip(lines, call(home, *lines), strict=True))


@pytest.mark.parametrize("line", HELP)
def test_help_imports_neither_torch_nor_the_zoo_s_networks(line, ended):
    status, said, complaint, slow = ended[line]
    assert (status, complaint, slow) == (0, "", [])
    assert said.startswith(f"python -m rl_plasticity.{line.split()[0]} ")
    assert all(words in said for words in HELP[line])


@pytest.mark.parametrize("line", MISSPELT)
def test_a_misspelt_name_is_one_line_with_status_2_and_imports_no_torch(line, ended):
    status, out, err, slow = ended[line]
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"rl_plasticity.{line.split()[0]}: ")
    assert [name for name in MISSPELT[line] if name not in err] == [], err
    assert "torch" not in slow


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """The file, made anew in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kinds._keep()
    kinds._read.cache_clear()
    yield kinds._file()
    kinds._read.cache_clear()


@pytest.fixture
def without_torch(monkeypatch):
    """As in a process that has imported these modules alone, without a plug."""

    def only(**modules):
        monkeypatch.setattr(kinds, "sys", SimpleNamespace(version=sys.version, modules=modules))
        monkeypatch.setattr(kinds.plugins, "installed", tuple)

    return only


def test_what_is_kept_is_what_the_constructors_declare(kept):
    read = kinds._read()
    places = {place for kind in KINDS.values() for place in (kind.home, kind.inner[1], *kind.common)} - {""}
    assert read.keys() == places
    for kind in KINDS.values():
        made = {(one, ""): kinds.imported(one) for one in kind.common}
        for home in {kind.home, kind.inner[1]} - {""}:
            assert [*read[home]] == [*kinds.imported(home)]
            made |= {(home, choice): make for choice, make in kinds.imported(home).items()}
        for (place, choice), make in made.items():
            for name, declared in settings_of(make).items():
                there = read[place][choice][name]
                # As text too: 1 is not 1.0, and a list is no tuple.
                assert repr((there.default, there.setting)) == repr((declared.default, declared.setting))
                assert there.expected == declared.expected


@pytest.mark.parametrize("damage", [lambda _: b"", lambda whole: whole[:-1], lambda _: b"3", lambda _: b"\x80\x04N."])
def test_instead_of_a_damaged_file_the_constructors_are_asked_and_another_is_written(damage, kept, without_torch):
    without_torch(rl_plasticity=rl_plasticity)
    kinds._keep()
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert kinds._kept() is None
    assert kept.read_bytes() == whole
    assert kinds._kept() == kinds._read()


def test_what_is_kept_of_a_source_that_was_changed_is_not_used_and_kept_anew(without_torch, kept, tmp_path):
    source = tmp_path / "sources" / "__init__.py"
    source.parent.mkdir()
    source.write_text("discount = 0.99")
    without_torch(rl_plasticity=SimpleNamespace(__file__=str(source)))
    kinds._keep()
    assert kinds._kept() == kinds._read()
    source.write_text("discount = 0.98")  # the size says nothing
    kinds._read.cache_clear()
    assert kinds._kept() is None
    assert kinds._kept() == kinds._read()


def test_what_plugs_add_named_or_installed_is_in_the_help_although_something_is_kept(home, tmp_path):
    adds = "from rl_plasticity.regularizers import REGULARIZERS\nREGULARIZERS['{}'] = REGULARIZERS['l2']\n"
    (tmp_path / "mine.py").write_text(adds.format("my_own"))
    (tmp_path / "theirs.py").write_text(adds.format("installed"))
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    paths = os.pathsep.join([str(tmp_path), str(Path(rl_plasticity.__file__).parents[1])])
    (info / "entry_points.txt").write_text("[rl_plasticity.plugins]\ntheirs = theirs\n")
    ((status, said, _, _),) = call(home, "train --help reg=my_own plugins=[mine]", PYTHONPATH=paths)
    assert status == 0
    assert {"my_own", "installed"} <= {*re.findall(r"\w+", said)}
