"""Help and complaints without torch: what the constructors declare, kept as plain data that is true or not used."""

import json
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rl_plasticity.configs import kinds
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.settings import settings_of


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder for caches in which something is kept."""
    folder = tmp_path_factory.mktemp("cache")
    call(folder, "train", "--help")
    (kept,) = folder.glob("rl_plasticity/settings-*.json")
    assert kept.stat().st_size > 10_000
    return folder


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """The file, made anew in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kinds._keep()
    kinds._read.cache_clear()
    yield kinds._file()
    kinds._read.cache_clear()


def call(home, command, *arguments, **variables):
    """A command in a process of its own, and the names of all that it imported."""
    told = [sys.executable, "-X", "importtime", "-m", f"rl_plasticity.{command}", *arguments]
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), **variables}
    done = subprocess.run(told, env=environment, capture_output=True, text=True, cwd=home)
    imports = re.compile(r"^import time:.*\| +(\S+)$\n", re.MULTILINE)
    said = re.sub(r"^import time:.*\n", "", done.stderr, flags=re.MULTILINE)
    return done.returncode, done.stdout, said, {*imports.findall(done.stderr)}


# Each as a process of its own would, one after another in one that has not imported torch, until one does.
ONE_AFTER_ANOTHER = """
import io, json, runpy, sys
from contextlib import redirect_stderr, redirect_stdout
for line in json.loads(sys.argv[1]):
    command, *sys.argv[1:] = line.split()
    out, err, status = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            runpy.run_module(f"rl_plasticity.{command}", run_name="__main__", alter_sys=True)
        except SystemExit as stopped:
            status = stopped.code or 0
    slow = sorted({"torch", "gymnasium", "matplotlib"} & {*sys.modules})
    print(json.dumps([status, out.getvalue(), err.getvalue(), slow]), flush=True)
    if "torch" in slow:
        break
"""
HELP = [f"{command} --help" for command in ("train", "supervised", "evaluate", "watch", "compare", "status")]
MISSPELT = {
    "train regg=spectral": ["'regg'", "'reg'"],
    "train reg=spectral reg.coef=-1": ["reg.coef", "from 0 up", "-1"],
    "train preset=dmeo": ["preset 'dmeo'", "'demo'"],
    "train env=cheeta-run": ["env 'cheeta-run'", "cheetah-run"],
    "train env.sequence=[walker-run,walker-wlak]": ["env 'walker-wlak'", "walker-walk"],
    "train launcher=ray": ["launcher=ray", "-m"],
    "supervised optimizer=adamm": ["optimizer 'adamm'", "'adam'"],
    "evaluate": ["python -m rl_plasticity.evaluate RUN [name=value ...]"],
    "watch run widht=3": ["'widht'", "'width'"],
    "compare bseline=x": ["'bseline'", "'baseline'"],
}


@pytest.fixture(scope="module")
def ended(home):
    """What became of each command: its status, output, complaint, and what it imported that takes long."""
    lines = [*HELP, *MISSPELT]
    told = [sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps(lines)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(home)}
    done = subprocess.run(told, env=environment, capture_output=True, text=True, cwd=home)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(lines), (found[-1:], done.stderr)
    return dict(zip(lines, found, strict=True))


@pytest.mark.parametrize("line", HELP)
def test_help_imports_no_torch(line, ended):
    status, said, complaint, slow = ended[line]
    assert (status, complaint, said.partition(" [")[0].split()[:2]) == (0, "", ["python", "-m"])
    assert f"rl_plasticity.{line.split()[0]}" in said
    assert slow == []


@pytest.mark.parametrize("line", MISSPELT)
def test_a_misspelt_name_is_one_line_with_status_2_and_imports_no_torch(line, ended):
    status, out, err, slow = ended[line]
    assert (status, out) == (2, "")
    assert err.startswith(f"rl_plasticity.{line.split()[0]}: ")
    assert [name for name in MISSPELT[line] if name not in err] == [], err
    assert err.count("\n") == 1
    assert "torch" not in slow


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_what_is_kept_is_what_the_constructors_declare(kept):
    read = kinds._read()
    places = {place for kind in KINDS.values() for place in (kind.home, kind.inner[1], *kind.common)} - {""}
    assert read.keys() == places
    for kind in KINDS.values():
        made = {(one, ""): kinds._imported(one) for one in kind.common}
        for home in {kind.home, kind.inner[1]} - {""}:
            assert [*read[home]] == [*kinds._imported(home)]
            made |= {(home, choice): make for choice, make in kinds._imported(home).items()}
        for (place, choice), make in made.items():
            # As text too: 1 is not 1.0, and a list is no tuple.
            assert (read[place][choice], repr(read[place][choice])) == (settings_of(make), repr(settings_of(make)))


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:-1],
        lambda whole: whole.replace(b"0.0001", b"0.0002", 1),
        lambda whole: whole.replace(b"strength", b"strenght", 1),
        lambda whole: whole + b"\xff",
        lambda whole: b"\x80\x04N.",
        lambda whole: b"[]\n" + whole.partition(b"\n")[2],
    ],
)
def test_a_damaged_file_is_not_read(damage, kept):
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert kept.read_bytes() != whole
    with pytest.raises(ValueError, match=r"damaged|decode"):
        kinds._read()


def test_instead_of_a_damaged_file_the_constructors_are_asked_and_another_is_written(kept, monkeypatch):
    monkeypatch.setattr(kinds, "sys", SimpleNamespace(version=sys.version, modules={}))  # as before torch is imported
    whole = kept.read_text()
    kept.write_text(whole.replace("strength", "strenght"))
    assert kinds._kept() is None
    assert kept.read_text() == whole
    assert kinds._kept() == kinds._read()


def test_a_changed_constructor_changes_the_help_although_something_is_kept(home, tmp_path, monkeypatch):
    package = tmp_path / "rl_plasticity"
    shutil.copytree(kinds.PACKAGE, package)
    (kept,) = home.glob("rl_plasticity/*.json")
    monkeypatch.setattr(kinds, "PACKAGE", package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kinds._file().parent.mkdir(parents=True)
    shutil.copy(kept, kinds._file())  # of the same sources
    place = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    before = call(tmp_path, "train", "--help", "agent", **place)
    assert "  agent.discount=0.99 " in before[1]
    assert "torch" not in before[3]
    agent = package / "agents" / "sac.py"
    text = agent.read_text()
    changed = re.sub(r"(discount: Annotated.*= 0\.9)9", r"\g<1>8", text)
    assert changed != text
    assert len(changed) == len(text)  # the size says nothing
    agent.write_text(changed)
    after = call(tmp_path, "train", "--help", "agent", **place)
    assert "  agent.discount=0.98 " in after[1]


def test_without_a_folder_for_caches_nothing_is_kept_and_nothing_is_wrong(kept, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept / "below"))
    kinds._keep()
    kinds._read.cache_clear()
    with pytest.raises(OSError, match="Not a directory"):  # the same is asked for as after damage
        kinds._read()


def test_settings_that_what_is_kept_would_take_are_refused_by_the_constructors(home, tmp_path):
    shutil.copytree(home, tmp_path / "cache")
    (file,) = tmp_path.glob("cache/rl_plasticity/*.json")
    declared = json.loads(file.read_text().partition("\n")[2])
    coef = declared["regularizers:REGULARIZERS"]["spectral"]["coef"]
    assert coef[2]["least"] == 0
    coef[2]["least"] = None
    forged = json.dumps(declared)
    file.write_text(f"{kinds._mark(kinds._sources(), forged)}\n{forged}")
    arguments = ["reg=spectral", "reg.coef=-1", "env=gym:Pendulum-v1"]
    status, _, said, imported = call(tmp_path / "cache", "train", *arguments)
    assert (status, said) == (2, "rl_plasticity.train: reg.coef must be a number from 0 up, got -1\n")
    assert "torch" in imported  # it was taken first
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["rl_plasticity"]  # no results


def test_what_plugs_add_named_or_installed_is_in_the_help_although_something_is_kept(home, tmp_path):
    adds = "from rl_plasticity.regularizers import REGULARIZERS\nREGULARIZERS['{}'] = REGULARIZERS['l2']\n"
    (tmp_path / "mine.py").write_text(adds.format("my_own"))
    (tmp_path / "theirs.py").write_text(adds.format("installed"))
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    paths = os.pathsep.join([str(tmp_path), str(kinds.PACKAGE.parent)])
    for named, entry, there in (("plugins=[mine]", "", "my_own"), ("", "theirs = theirs\n", "installed")):
        (info / "entry_points.txt").write_text(f"[rl_plasticity.plugins]\n{entry}")
        status, said, _, _ = call(home, "train", "--help", "all", *named.split(), PYTHONPATH=paths)
        assert status == 0
        assert f"  reg={there}\n" in said
    assert not {"my_own", "installed"} & {
        *re.findall(r"reg=(\w+)", call(home, "train", "--help", "all")[1])
    }  # nor kept
