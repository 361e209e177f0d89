"""What is packed and installed, and what no file of it may do."""

import ast
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from rl_plasticity.runs import provenance

ROOT = Path(__file__).parent.parent
PACKAGE, ZOO = ROOT / "rl_plasticity", ROOT / "rl_plasticity_zoo"
NOTE = "rl_plasticity/commit.txt"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.parametrize("noted", ["abc+\n", None])
def test_an_installed_package_s_commit_is_the_one_it_was_built_from(noted, tmp_path, monkeypatch):
    place = tmp_path / "rl_plasticity" / "runs"
    place.mkdir(parents=True)
    monkeypatch.setattr(provenance, "__file__", str(place / "provenance.py"))
    if noted:
        (place.parent / "commit.txt").write_text(noted)
    assert provenance._commit() == (noted and "abc+")


def test_the_wheel_holds_the_package_once_with_its_settings_and_nothing_generic(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0].split("-")[0] for n in names} == {"rl_plasticity", "rl_plasticity_zoo"}
    both = [path for package in (PACKAGE, ZOO) for path in package.rglob("*") if path.is_file()]
    expected = {str(path.relative_to(ROOT)) for path in both if path.suffix != ".pyc"}
    packed = [n for n in names if not n.split("/")[0].endswith(".dist-info")]
    assert sorted(packed) == sorted([*expected, NOTE])
    assert len(packed) == len(set(packed))
    assert "rl_plasticity/py.typed" in packed  # so that who installs it has its types


def test_wheel_and_source_distribution_name_the_commit_that_they_were_built_from(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    noted = zipfile.ZipFile(wheel).read(NOTE).decode()
    assert re.fullmatch(rf"{commit}\+?\n", noted)
    with tarfile.open(sdist) as archive:
        (member,) = [m for m in archive.getmembers() if m.name.endswith(NOTE)]
        assert archive.extractfile(member).read().decode() == noted
        assert any(m.name.endswith("/hatch_build.py") for m in archive.getmembers())


def test_the_source_distribution_holds_each_file_once_and_no_links(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert not any(m.issym() or m.islnk() for m in members)
    top = {m.name.split("/")[1] for m in members}
    assert not top & {"agents", "envs", "configs"}
    wanted = {"rl_plasticity", "rl_plasticity_zoo", "papers", "tests", "scripts"}
    assert wanted | {"README.md", "LICENSE", "pyproject.toml"} <= top
    assert sum(m.name.endswith("/agents/sac.py") for m in members) == 1


@pytest.mark.parametrize("name", ["agents", "envs", "configs"])
def test_the_root_links_to_the_package_s_folder(name):
    link = ROOT / name
    assert link.is_symlink()
    assert link.resolve() == PACKAGE / name


def calls(path):
    """The names of the functions the file calls and of the modules it imports, with the calls."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.name, node) for alias in node.names)
            yield getattr(node, "module", None) or "", node


def test_nothing_in_the_package_unpickles_or_makes_what_a_file_names():
    unsafe = r"(pickle|dill|shelve|marshal|joblib\.load|cloudpickle|eval|exec|instantiate|os\.system)(\..*)?"
    unsafe += r"|yaml\.(load_all|unsafe_.*|full_.*)"
    loads = 0
    for file in [*PACKAGE.rglob("*.py"), *ZOO.rglob("*.py")]:
        for name, node in calls(file):
            assert not re.fullmatch(unsafe, name), (file, name)
            if name == "yaml.load":
                assert "SafeLoader" in ast.unparse(node), file
            if name == "torch.load":
                loads += 1
                assert any(k.arg == "weights_only" and k.value.value is True for k in node.keywords), file
            if name in ("np.load", "numpy.load"):
                assert any(k.arg == "allow_pickle" and k.value.value is False for k in node.keywords), file
    assert loads >= 1


def test_every_pinned_version_is_what_runs_here_and_torch_is_pinned_nowhere_else():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for name in ("torch", "numpy", "mujoco", "dm_control", "gymnasium", "filelock", "Shimmy"):
        assert metadata.version(name).split("+")[0] == pins[name]
    assert "torch==" not in (ROOT / "pyproject.toml").read_text()
