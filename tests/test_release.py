"""What a release is made by: workflows, forms, the container, the changelog, and the pages of what is promised."""

import csv
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import rl_plasticity

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def jobs(path):
    return yaml.safe_load(path.read_text())["jobs"].values()


def steps(path):
    return [step for job in jobs(path) for step in job["steps"]]


@pytest.mark.parametrize(("schema", "files"), [
    ("github-workflows", WORKFLOWS),
    ("github-issue-forms", FORMS),
    ("github-issue-config", [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"]),
    ("citation-file-format", [ROOT / "CITATION.cff"]),
])  # fmt: skip
def test_the_files_that_others_read_are_of_their_schema(schema, files):
    pytest.importorskip("check_jsonschema")
    assert files
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files)]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_that_the_makefile_has(path):
    there = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {name for step in steps(path) for name in re.findall(r"^make ([\w-]+)", step.get("run", ""), re.MULTILINE)}
    assert {"test", "wheel"} <= called <= there


def test_what_is_tested_is_what_is_promised():
    (ci,) = (path for path in WORKFLOWS if path.name == "ci.yml")
    (job,) = jobs(ci)
    least, below = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()
    promised = [f"3.{minor}" for minor in range(int(least), int(below))]
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if "Python :: 3" in c]
    assert job["strategy"]["matrix"]["python"] == named == promised
    systems = {"ubuntu-latest": "Operating System :: POSIX :: Linux", "macos-latest": "Operating System :: MacOS"}
    promised_systems = {c for c in PROJECT["classifiers"] if c.startswith("Operating System")}
    assert promised_systems <= {systems[name] for name in job["strategy"]["matrix"]["os"]}


def test_torch_may_be_what_is_tested_and_every_page_that_says_so_says_the_same():
    (bound,) = (one.specifier for one in map(Requirement, PROJECT["dependencies"]) if one.name == "torch")
    (pin,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    _, minor = Version(pin).release[:2]
    (least,) = (one.version for one in bound if one.operator == ">=")
    assert pin in bound
    assert f"2.{minor}.99" in bound
    assert f"2.{minor + 1}.0" not in bound
    for page in ("docs/install.md", "scripts/check_gpu.py"):
        assert f"{least} to 2.{minor}" in (ROOT / page).read_text(), page


def released():
    """The newest version in the changelog, and its date."""
    return re.findall(r"^## \[(\d\S*)\] - (\S+)$", CHANGELOG, re.MULTILINE)[0]


def test_a_release_is_published_only_by_its_tag_behind_the_checks(tmp_path):
    (release,) = (path for path in WORKFLOWS if path.name == "release.yml")
    whole = yaml.safe_load(release.read_text())
    assert whole[True] == {"push": {"tags": ["v*"]}}  # YAML takes `on` for true
    assert whole["jobs"]["publish"]["needs"] == "build"
    (tag,) = (step["run"] for step in steps(release) if "GITHUB_REF_NAME" in step.get("run", ""))
    bash = shutil.which("bash")
    (tmp_path / "rl_plasticity").mkdir()
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    newest, _ = released()
    tags = [(newest, f"v{newest}", 0), (newest, "v0.0.1", 1), (newest, newest, 1), ("9.9.0.dev0", "v9.9.0.dev0", 1)]
    for version, name, status in tags:  # a version that is being made has no section in the changelog
        (tmp_path / "rl_plasticity" / "__init__.py").write_text(f'__version__ = "{version}"\n')
        environment = {"GITHUB_REF_NAME": name, "PATH": "/usr/bin:/bin"}
        done = subprocess.run([bash, "-e", "-c", tag], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr


def test_every_place_that_says_the_version_says_the_same():
    version = rl_plasticity.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest, date = released()
    assert citation["version"] == version
    if Version(version).is_devrelease:  # on the way to the next one, which has no date yet
        assert Version(version) > Version(newest)
        assert "date-released" not in citation
    else:
        assert version == newest
        assert str(citation["date-released"]) == date
    assert f"this is version {version}" in (ROOT / "README.md").read_text()
    assert f"Now that is {newest.rpartition('.')[0]}." in (ROOT / "SECURITY.md").read_text()


def test_the_container_copies_what_is_there_and_not_ignored_and_runs_a_supported_python_as_nobody():
    text = (ROOT / "Dockerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for name in line.split()}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
    assert {"README.md", "LICENSE", "pyproject.toml", "rl_plasticity"} <= copied  # to build a wheel
    (python,) = re.findall(r"^FROM python:(3\.\d+)-", text, re.MULTILINE)
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE)[-1] not in ("root", "0")
    (extras,) = re.findall(r"^ARG EXTRAS=(.+)$", text, re.MULTILINE)
    assert {*extras.split(",")} <= PROJECT["optional-dependencies"].keys()


def test_every_claim_of_the_page_on_security_names_a_test_that_there_is():
    with (ROOT / "docs" / "security_claims.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) > 15
    for row in rows:
        file, _, test = row["its test"].partition("::")
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.MULTILINE), row
