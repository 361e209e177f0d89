"""Which part of the package imports which, and what has to be installed for each."""

import ast
import csv
import importlib
import json
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib import metadata
from pathlib import Path

import pytest

import rl_plasticity
from rl_plasticity.__main__ import COMMANDS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "rl_plasticity"

# From the top. A module imports from its own room and from those below; rooms of one line know nothing of each other.
ROOMS = (ROOT / "CONTRIBUTING.md").read_text().partition("## Rooms")[2].partition("\n## ")[0]
LAYERS = [line.split() for line in re.findall(r"^    (.+)$", ROOMS, re.MULTILINE)]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
FILES = {
    ".".join(("rl_plasticity", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def statements(tree):
    """The imports of a file, those in functions too, but not those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (one for other in node.orelse for one in statements(other))
        else:
            yield from statements(node)


def imports(path):
    """The modules of this package that a file imports."""
    found = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{path}: a relative import"
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (below & FILES.keys()) or {node.module}
    return found & FILES.keys()


GRAPH = {name: imports(path) for name, path in FILES.items()}


def room(module):
    return module.split(".")[1] if "." in module else ""


def test_every_module_is_in_a_room():
    assert {room(name) for name in FILES} == {"", *LEVEL}


@pytest.mark.parametrize("name", FILES)
def test_a_module_imports_only_what_stands_below_it(name):
    for other in GRAPH[name]:
        if room(other) not in ("", room(name)):  # the root holds the version; it is the last to know of anything
            assert room(name), f"{name} imports {other}"
            assert LEVEL[room(other)] > LEVEL[room(name)], f"{name} imports {other}"


def test_no_two_modules_import_each_other_however_far_around():
    order = [*TopologicalSorter(GRAPH).static_order()]  # raises CycleError
    assert len(order) == len(FILES)


OUTSIDE = [path for folder in ("papers", "rl_plasticity_zoo") for path in sorted((ROOT / folder).rglob("*.py"))]
OUTSIDE += [ROOT / "examples" / f"{plug}.py" for plug in ("altnet", "nuclear_norm", "td3")]


def promised():
    """The names that the documents promise, by module."""
    with (ROOT / "docs" / "public_names.csv").open(newline="") as file:
        return {row["module"]: {*row["names"].split(", ")} for row in csv.DictReader(file)}


def asked_of_the_package(path):
    """What a file imports from the package, in functions too, and what it takes of its modules: module and name."""
    modules, found = {}, set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "rl_plasticity":
            for alias in node.names:
                if f"{node.module}.{alias.name}" in FILES:
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    found.add((f"{node.module}.{alias.name}", "__name__"))
                else:
                    found.add((node.module, alias.name))
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("rl_plasticity") for alias in node.names), path
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found.add((modules[node.value.id], node.attr))
    return found


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_papers_zoo_and_plugs_use_what_the_package_promises_to_everybody(path):
    public = promised() | {"rl_plasticity": {*rl_plasticity.__all__}}
    for module in ("rl_plasticity.metrics", "rl_plasticity.metrics.statistics"):
        public[module] = {*vars(importlib.import_module(module))}
    for module, name in asked_of_the_package(path):
        assert module in public, f"{path.name}: {module}"
        assert name in {"__name__", *public[module]}, f"{path.name}: {name} of {module}"


def test_what_the_package_promises_is_there():
    assert len(promised()) > 10
    for module, names in promised().items():
        assert names <= {*vars(importlib.import_module(module))}, module


def test_the_package_never_imports_papers_or_zoo():
    for path in PACKAGE.rglob("*.py"):
        assert not re.search(r"^\s*(from|import) (papers|rl_plasticity_zoo)\b", path.read_text(), re.MULTILINE), path


def needed_by(*distributions):
    """The names that these and all that they need are imported by."""
    found, waiting = set(), [*distributions]
    while waiting:
        name = re.sub("[-_.]+", "-", waiting.pop()).lower()
        if name not in found:
            found.add(name)
            try:
                required = metadata.requires(name) or []
            except metadata.PackageNotFoundError:  # for another system
                continue
            waiting += [re.match(r"[\w.-]+", r)[0] for r in required if "extra ==" not in r]
    modules = metadata.packages_distributions().items()
    return {module for module, homes in modules if any(re.sub("[-_.]+", "-", h).lower() in found for h in homes)}


# Each as a process of its own would end, one after another where only torch, numpy and scipy are installed.
WITHOUT = """
import io, json, runpy, sys
from contextlib import redirect_stderr
allowed = {"rl_plasticity", *sys.stdlib_module_names, *json.loads(sys.argv[2])}

class Nothing:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if first not in allowed and not first.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

before = set(sys.modules)
sys.meta_path.insert(0, Nothing())
for name, code in json.loads(sys.argv[1]).items():
    status, said, sys.argv, sys.excepthook = 0, io.StringIO(), ["-m"], sys.__excepthook__
    for module in {*sys.modules}:
        if module.partition(".")[0] == "rl_plasticity":
            del sys.modules[module]
    with redirect_stderr(said):
        try:
            exec(code)
        except ImportError as error:  # ends the process
            status = 1
            sys.excepthook(type(error), error, error.__traceback__)
    there = {module.partition(".")[0] for module in {*sys.modules} - before} - sys.stdlib_module_names
    print(json.dumps([name, status, said.getvalue(), sorted(there)]))
"""


BASE = ("torch", "numpy", "scipy")
LOOPS = ("regularizers", "interventions", "metrics", "learning.learner", "learning.attached", "diagnosis.probe")
LOOPS += ("diagnosis.verdict", "diagnosis.agents")


def test_other_people_s_loops_need_torch_numpy_and_scipy_alone_and_what_needs_the_extra_says_so():
    for name in ("gymnasium", "yaml", "tensorboard", "tqdm", "matplotlib", "mujoco"):
        assert name not in needed_by(*BASE)
    run = "runpy.run_module('rl_plasticity.{}', run_name='__main__', alter_sys=True)"
    codes = {"itself": "import rl_plasticity.integrations"}
    codes |= {"loops": f"import {', '.join(f'rl_plasticity.{name}' for name in LOOPS)}"}
    codes |= {name: run.format(name) for name in COMMANDS}
    codes |= {"name": "from rl_plasticity import RunFolder", "module": "from rl_plasticity import train"}
    codes["attribute"] = "import rl_plasticity; rl_plasticity.train"
    arguments = [json.dumps(codes), json.dumps(sorted(needed_by(*BASE)))]
    done = subprocess.run([sys.executable, "-c", WITHOUT, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert outcomes[0] == ["itself", 0, "", ["rl_plasticity"]]  # and nothing else is imported
    ended = {name: (status, said) for name, status, said, _ in outcomes}
    assert ended.keys() == codes.keys()
    assert ended["loops"] == (0, "")
    extra = 'pip install "rl_plasticity[rl]"'
    for name in COMMANDS:
        status, said = ended[name]
        assert (status, said.count("\n")) == (1, 1), (name, said)
        assert said.startswith("rl_plasticity: ")
        assert said.endswith(f": {extra}\n")
    assert re.search(rf"rl_plasticity.RunFolder .*yaml.*{re.escape(extra)}", ended["name"][1])
    for name in ("module", "attribute"):
        assert re.search(rf"rl_plasticity.train .*{re.escape(extra)}$", ended[name][1].strip())


def test_the_core_depends_on_torch_numpy_and_scipy_and_the_extra_on_what_is_said_to_be_its_own():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {
        kind: [re.match(r"[\w-]+", r)[0] for r in of_kind]
        for kind, of_kind in (("core", project["dependencies"]), ("rl", project["optional-dependencies"]["rl"]))
    }
    assert names["core"] == [*BASE]
    called = {"PyYAML": "yaml", "scikit-learn": "sklearn", "dm-control": "dm_control"}
    assert {called.get(name, name) for name in names["rl"]} == rl_plasticity._OF_RL


def test_dir_lists_the_public_names():
    assert {*dir(rl_plasticity)} == {*rl_plasticity.__all__, "__version__"}


def test_no_public_name_is_a_module_s_too():
    # Importing rl_plasticity.x sets the package's attribute x to the module, over what the package offers as x.
    assert {*rl_plasticity.__all__} & {name.partition(".")[2] for name in FILES} == {
        "diagnose"
    }  # a module that can be called


def test_a_command_is_an_attribute_and_importable_from_the_package():
    for name in COMMANDS:  # asked for as where nothing has imported them yet
        assert rl_plasticity.__getattr__(name).__name__ == (name if name == "diagnose" else f"rl_plasticity.{name}")


@pytest.mark.parametrize(("home", "old", "new"), [
    ("rl_plasticity", "fit_fresh_targets", "rl_plasticity_zoo.metrics"),
    ("rl_plasticity.metrics", "plasticity_score", "rl_plasticity_zoo.metrics"),
    ("rl_plasticity.structure", "HiddenUnits", "HiddenLayer"),
    ("rl_plasticity.structure", "untouched", "shadow"),
])  # fmt: skip
def test_a_name_that_was_public_says_what_or_where_it_is_now(home, old, new):
    with pytest.raises(ImportError, match=rf"{old} is .*{new}"):
        exec(f"from {home} import {old}")
    assert not hasattr(importlib.import_module(home), "no_such_name")
