"""The blocks of code in the documents: Python is run, commands are checked by the commands themselves, or run small.

A block that is neither is named in `NOT_RUN` with the reason, so that a new one fails until it is sorted.
"""

import re
import shlex
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from folders import PENDULUM, run, without_what_plugs_add
from test_docs import PAGES

from papers import __main__ as papers
from papers import study as studies
from rl_plasticity import command_line, compare, status, supervised, train
from rl_plasticity.__main__ import COMMANDS
from rl_plasticity.configs import schema, written
from rl_plasticity.configs.commands import Diagnose, Evaluate, Supervised, Train, Watch
from rl_plasticity.envs.control import check_name, make_env
from rl_plasticity.evaluate import evaluate
from rl_plasticity.sweeps import launchers, sweep

DOCS = [page for page in PAGES if page.name not in ("CONTRIBUTING.md", "CHANGELOG.md")]
TINY = {
    "env": {"name": "gym:Pendulum-v1", "action_repeat": 4},
    "agent": {"name": "sac", "hidden": [8]}, "batch_size": 8, "random_env_steps": 20,
    "total_env_steps": 40, "replay_ratio": 1, "eval_every_env_steps": 20, "eval_episodes": 1, "compile": False,
    "threads": 1, "measure_every_updates": 0, "device": "cpu",
}  # fmt: skip
TINY_DIGITS = {
    "data": {"name": "digits", "train_size": 100}, "num_tasks": 2, "epochs_per_task": 1, "compile": False, "threads": 1,
    "device": "cpu",
}  # fmt: skip


class Block(NamedTuple):
    """What a page takes for granted around a block of its Python, and what is made small in it.

    Args:
        has: text that tells the block from the page's others.
        before, after: lines run before and after it; what comes after holds what the page says of it.
        instead: text of the block, and what stands there in the test.
        needs: a library that need not be here; such a block is run by itself.
    """

    has: str
    before: str = ""
    after: str = ""
    instead: Mapping[str, str] = {}
    needs: str = ""


A_LOOP = """
import torch
from torch import nn
def make_net(): return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
net, x, labels = make_net(), torch.randn(6, 3), torch.zeros(6, dtype=torch.int64)
optimizer = torch.optim.Adam(net.parameters())
"""
A_NEXT_TASK = """
from torch.nn import functional as F
loss = F.cross_entropy
x = torch.randn(64, 3); y = labels = torch.randint(0, 2, (64,)); next_batches = [(x, y)]
"""
BRIEFLY = {"make=make_net)": "make=make_net, repeats=2, updates=10)"}
IMAGES = """
import numpy as np
images = test_images = np.zeros((20, 1, 8, 8)); labels = test_labels = np.arange(20) % 10
"""
CLASSES = """
import numpy as np
for i in range(1000): np.save(f"{i}.npy", np.zeros((5, 3, 32, 32), np.uint8))
"""
TRANSFORMERS = """
from torch import nn
from transformers import Trainer, TrainingArguments
model, data = nn.Linear(3, 2), []
arguments = TrainingArguments(output_dir="out", report_to=[], use_cpu=True)
"""
A_NIGHT = """
def train(net, optimizer): net(x).square().mean().backward(); optimizer.step()
torch.save({"net": make_net().state_dict(), "optimizer": optimizer.state_dict()}, "network.pt")
"""
A_RECOMMENDER = """
class Recommender(nn.Module):
    def __init__(self, users):
        super().__init__()
        self.user, self.rest = nn.Embedding(users, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    def forward(self, users): return self.rest(self.user(users))
make_recommender = Recommender
net = make_recommender(5)
optimizer = torch.optim.Adam(net.parameters())
"""
VECTORS = Path(__file__).parent.parent / "docs" / "vectors"
PYTHON: dict[str, list[Block]] = {
    "README.md": [
        Block("diagnose(net, batches=", before=A_LOOP + A_NEXT_TASK, instead=BRIEFLY),
        Block("handle = attach(", before=A_LOOP, after="assert handle.regularizer.coef.isclose(torch.tensor(1e-3))"),
    ],
    "diagnose.md": [
        Block("batches=next_batches", before=A_LOOP + A_NEXT_TASK, instead=BRIEFLY,
            after="assert report.protocol['targets'] == 'batches'"),
        Block("earlier=last_week", before="last_week = net.state_dict()",
            instead={"diagnose(net, x": "diagnose(net, x, repeats=2, updates=10"},
            after="assert report.evidence.keys() >= {'as it is trained', 'the earlier one'}"),
        Block("import branch", needs="stable_baselines3",
            before="import gymnasium; from stable_baselines3 import DQN\n"
                "make_env = lambda: gymnasium.make('CartPole-v1')\n"
                "model = DQN('MlpPolicy', make_env(), buffer_size=99)",
            instead={"env_steps=20_000": "env_steps=2, remedies={'l2': {}}, repeats=2, episodes=1"}),
        Block("SAC.load", needs="stable_baselines3",
            before="import gymnasium\nfrom stable_baselines3 import SAC\nfrom rl_plasticity.diagnosis import agents\n"
                "agents.PLAYED, env = 200, gymnasium.make('Pendulum-v1')\n"
                "model = SAC('MlpPolicy', 'Pendulum-v1', buffer_size=200).learn(110)\n"
                "model.save('model')\nmodel.save_replay_buffer('buffer')",
            instead={"env=env": "env=env, repeats=2, updates=10, remedies=False",
                "diagnose(model)": "diagnose(model, repeats=2, updates=10, remedies=False)"},
            after="assert {*report.networks} == {'critic', 'actor'}"),
    ],
    "already-trained.md": [
        Block("saved = torch.load", before=A_LOOP + A_NIGHT,
            after="assert torch.load('network.pt')['regularizer'].keys() == handle.state_dict().keys()"),
        Block("make_net(), coef", before="new, make_net_of = make_net(), make_net\nmake_net = lambda: new",
            after="initial = handle.state_dict()['initial/0/weight']\nmake_net = make_net_of\n"
                "assert torch.equal(initial, new[0].weight) and not torch.equal(initial, net[0].weight)"),
        Block("def attached(", before=A_RECOMMENDER,
            after="net(torch.tensor([0, 3])).square().sum().backward(); optimizer.step(); first = net\n"
                "parts = {'net': net, 'optimizer': optimizer, 'regularizer': handle}\n"
                "torch.save({name: part.state_dict() for name, part in parts.items()}, 'recommender.pt')"),
        Block("def grown(",
            after="assert torch.equal(net.user.weight[:5], first.user.weight) and len(net.user.weight) == 7\n"
                "moment = optimizer.state[net.user.weight]['exp_avg']\n"
                "assert moment[:5].any() and not moment[5:].any()\n"
                "assert torch.equal(net.rest[0].weight, first.rest[0].weight)\n"
                "net(torch.tensor([0, 6])).square().sum().backward(); optimizer.step()\n"
                "net, optimizer = make_net(), None; optimizer = torch.optim.Adam(net.parameters())"),
        Block("fill_(", after="assert handle.state_dict()['coef'] == torch.tensor(1e-2)"),
        Block("make_intervention"),
    ],
    "metrics.md": [
        Block("METRICS[",
            after=A_LOOP + "from rl_plasticity import measure\n"
                "found = measure(net, x, nn.functional.cross_entropy, labels)\n"
                "assert {'nuclear_norm', 'active', 'gradient_norms'} <= found.keys()"),
    ],
    "plugs.md": [
        Block("class NuclearNorm",
            after="from rl_plasticity import make_regularizer\n"
                "net = nn.Linear(3, 2); expected = 1e-3 * torch.linalg.svdvals(net.weight).sum()\n"
                "torch.testing.assert_close(make_regularizer('nuclear', net, coef=1e-3).penalty(net), expected)\n"
                "make_regularizer('row_clip', net, limit=0.1).project_(net)\n"
                "torch.testing.assert_close(net.weight.norm(dim=1), torch.full((2,), 0.1))"),
        Block("short = {",
            instead={'"env": "gym:Pendulum-v1", ': "**TINY, ", '"total_env_steps": 5000, "random_env_steps": 500,': "}",
                ' "replay_ratio": 1,\n         "eval_every_env_steps": 1000}': "",
                "supervised.run(": "supervised.run(**TINY_DIGITS, "}),
        Block("class LargestWeight", instead={"supervised.run(": "supervised.run(**TINY_DIGITS, "}),
        Block("load_agent", before="obs = torch.zeros(2, 1, 3)", after="assert act.shape == (2, 1, 1)"),
    ],
    "start.md": [
        Block('compare("results/digits")', before="import shutil; shutil.copytree('results/a', 'results/digits')"),
    ],
    "start-own-loop.md": [
        Block("# my_loop.py", instead={"updates=500": "updates=50", "range(12)": "range(2)"}),
        Block("import diagnose",
            instead={"range(200)": "range(10)", "make=make_net": "make=make_net, repeats=2, updates=10"}),
        Block("import attach", instead={"range(12)": "range(2)"}, after="assert handle.regularizer.coef == 1e-3"),
        Block("import make_intervention", after="assert 0 <= done['reset_units'] <= 128"),
    ],
    "start-own-method.md": [
        Block("import my_method",
            after="regularizer = handle.regularizer; weight = net[0].weight\n"
                "assert regularizer.penalty(net) < 1e-12\n"
                "norms = [w.detach().norm() for w in (net[0].weight, net[2].weight)]\n"
                "with torch.no_grad(): weight *= 3\n"
                "torch.testing.assert_close(regularizer.penalty(net), 1e-2 * (2 * norms[0]).square())"),
    ],
    "supervised.md": [
        Block("import numpy as np, torchvision", needs="torchvision"),
        Block("classes = np.stack", before=CLASSES, instead={":600": ":2", "600:": "2:"},
            after="assert np.load('test.npz')['labels'].tolist() == sorted([*range(1000)] * 3)"),
        Block("def squares", before=IMAGES, after="assert DATA['squares']().num_classes == 10"),
    ],
    "your-own-training.md": [
        Block("handle = attach(", before=A_LOOP),
        Block("loss = task_loss", before="optimizer.zero_grad(); task_loss = net(x).square().mean()\n",
            instead={"...; optimizer.step()": "loss.backward(); optimizer.step()"}),
        Block("scheduler",
            before=A_LOOP + "regularizer = make_regularizer('weight_decay', net, coef=1e-4)\n"
                "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)\nregularizer.penalty(net)"),
        Block("handle.grow(", before="handle = attach('l2', optimizer, net); net.head = None\n"
                "def larger(head): return nn.Linear(2, 3)",
            after="assert '0.weight' in handle.regularizer.names and 'head.weight' in handle.regularizer.names"),
        Block("make_intervention(",
            before=A_LOOP + "from functools import partial; from rl_plasticity import make_regularizer\n"
                "make_like_it = partial(make_regularizer, 'l2_init')\nregularizer = make_like_it(net)"),
        Block("from rl_plasticity.structure import read", before="obs = x"),
    ],
    "vectors.md": [
        Block("import numpy", instead={"docs/vectors/": f"{VECTORS}/"},
            after=f"import runpy; assert not runpy.run_path('{VECTORS}/check.py')['main']('mine.safetensors', 1e-14)"),
    ],
    "integrations.md": [
        Block("integrations.stable_baselines3", needs="stable_baselines3", instead={"100_000": "120"},
            before="from stable_baselines3 import SAC\n"),
        Block("import Changing",
            after="assert (env.change, evaluation.change) == (0, 3) and obs.shape == (4,) and obs.dtype == 'float32'"),
        Block("integrations.torchrl", needs="torchrl"),
        Block("integrations.lightning", before="from lightning import Trainer", needs="lightning"),
        Block("integrations.transformers", before=TRANSFORMERS, needs="transformers"),
    ],
}  # fmt: skip

COMMAND_WORDS = ("python", "python3.11", "pip", "make", "cd", ".", "docker", "jupyter")
# Lines of commands, and first lines of blocks, that no test runs, and why.
NOT_RUN = {
    "python docs/vectors/check.py mine.safetensors",  # run with the page's Python
    # Has capitals for choices.
    "python -m rl_plasticity.supervised task=TASK data=DATA net=NET reg=REG reset=RESET optimizer=OPTIMIZER",
    # What commands printed.
    "group     seeds  final          IQM [95 %]            AUC [95 %]",
    "state     done                         updates  ends                   run                               last",
}
# Beginnings of such commands: they train for minutes, maybe on a library or data that is not here, and shorter in
# tests/examples, whose folder is on the tests' path; set up an environment; install from the network; a container.
NEVER = (
    "PYTHONPATH=. python -m pytest",
    "python examples/",
    "cd examples",
    "make",
    "pip",
    "python3.11",
    ". ",
    "docker",
)
RUN = {
    "train": lambda: command_line.train(train.command),
    "supervised": lambda: command_line.train(supervised.command),
    "status": lambda: command_line.main("status", str, status.command),
    "evaluate": lambda: command_line.look_at(Evaluate, evaluate),
}
# Commands that are run, and the settings that make them small.
REAL = {
    "python -m rl_plasticity.train env=gym:Pendulum-v1 reg=spectral+l2 reg.l2.coef=1e-5": TINY,
    "python -m rl_plasticity.supervised preset=demo seeds=5 reg=none": TINY_DIGITS,
    "python -m rl_plasticity.status results": {},
    "python -m rl_plasticity.evaluate results/a episodes=20": {"device": "cpu"},
}


def blocks(page):
    """The page's blocks of code: their language, or none, and their text."""
    text = page.read_text()
    fenced = [(found[1], found[2]) for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lists = re.compile(r"^(?:[-*]|\d+\.) .*\n(?:(?: {2,}.*)?\n)*", re.MULTILINE)  # whose lines are indented too
    indented = re.findall(r"(?:^ {4}.*\n)+", lists.sub("\n", rest), re.MULTILINE)
    return fenced + [("", re.sub(r"^ {4}", "", block, flags=re.MULTILINE)) for block in indented]


def python_blocks(page):
    return [text for language, text in blocks(page) if language == "python"]


def about(page, text):
    """What the table says of a block."""
    return next((block for block in PYTHON.get(page.name, []) if block.has in text), Block(""))


def command_lines(page):
    """Each command in a block that is no Python, as one line of its own, and the first line of what is no command."""
    for language, text in blocks(page):
        if language not in ("", "sh"):
            continue
        lines = text.replace("\\\n", " ").splitlines()
        is_session = lines[0].startswith("$ ")
        for i, line in enumerate(lines):
            if is_session and not line.startswith("$ "):
                continue
            first, *_ = line.removeprefix("$ ").split() or [""]
            if first in COMMAND_WORDS:
                yield clean(line.removeprefix("$ "))
            elif first.startswith("#") or not first:
                continue
            elif i == 0:
                yield line
                break
            else:
                raise AssertionError(f"{page.name}: neither a command nor in a block of its own: {line!r}")
    yield from map(clean, re.findall(r"`(python -m (?:rl_plasticity\.|papers )[^`]+)`", page.read_text()))


def clean(command):
    """A command without comments and needless quotes."""
    return shlex.join(shlex.split(command, comments=True))


def as_tested(page, text):
    """A block with what the table puts around it, and in place of its large numbers."""
    block = about(page, text)
    for shown, small in block.instead.items():
        assert shown in text, f"{page.name}: {shown!r} is no longer there"
        text = text.replace(shown, small)
    return "\n".join([block.before, text, block.after])


def write_modules(page):
    """A block that begins with ``# name.py`` is such a module."""
    for text in python_blocks(page):
        if module := re.match(r"# (\w+\.py)\n", text):
            Path(module[1]).write_text(as_tested(page, text))


def execute(page, text, namespace):
    exec(compile(as_tested(page, text), f"{page.name}: {text.splitlines()[0]}", "exec"), namespace)


def check(command):
    """Have a command look at its arguments as it does before it begins.

    Raises:
        SettingsError: as the command would.
    """
    name, *arguments = shlex.split(command)[2:]
    if name == "papers":
        if "--cost" in arguments:
            assert {*arguments} <= {"--cost", *studies.names()}
        else:
            papers.command([*arguments, *["dry_run=true"][: len(arguments)]])
        return
    name = name.removeprefix("rl_plasticity").removeprefix(".")
    if not name:
        return
    assert name in COMMANDS, command
    if name in ("train", "supervised"):
        own = [a for a in arguments if a not in {*written.FLAGS, "--help"}]
        kind = {"train": Train, "supervised": Supervised}[name]
        if any(a.startswith(("resume=", "from=")) for a in own):
            schema.load(kind, [a for a in own if not (written.FLAGS & {*arguments} and "," in a)])
            return
        own, of_launcher = launchers.apart(own)
        assert not of_launcher or written.FLAGS & {*arguments}, command
        launchers.load(of_launcher)
        runs = sweep.runs(kind, own)
        assert written.FLAGS & {*arguments} or len(runs) == 1, f"{command}: several runs need -m"
        for one in runs:
            for env in {one.settings.env.name, *one.settings.env.sequence} if kind is Train else ():
                check_name(env)
    elif name in ("evaluate", "watch"):
        schema.load(Evaluate if name == "evaluate" else Watch, arguments[1:])
    elif name == "diagnose":
        schema.load(Diagnose, arguments[3 if ":" in arguments[0] else 1 :])
    elif name == "compare":
        compare.parse(arguments)
    elif name == "status":
        command_line.places_and_options("status", arguments, ())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs with the names that the pages give to theirs."""
    place = tmp_path_factory.mktemp("trained")
    for name, reg in (("a", "none"), ("b", "spectral")):
        run([*PENDULUM, f"reg={reg}"], place / name)
    shutil.copytree(place / "a", place / "cheetah-run_none_seed0-4")
    return place


@pytest.fixture(scope="module", autouse=True)
def _with_deepmind_control():
    make_env("cheetah-run", 0).close()  # registers its tasks


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch, tmp_path):
    """Pages run in a folder of their own, and what their plugs add or import is gone after them."""
    monkeypatch.chdir(tmp_path)
    with without_what_plugs_add(monkeypatch, tmp_path):
        monkeypatch.syspath_prepend(tmp_path)
        yield


@pytest.mark.parametrize("page", [page for page in DOCS if python_blocks(page)], ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "results")
    write_modules(page)
    namespace = {"TINY": TINY, "TINY_DIGITS": TINY_DIGITS}
    for text in python_blocks(page):
        if not about(page, text).needs:
            execute(page, text, namespace)


NEEDY = [(page, text) for page in DOCS for text in python_blocks(page) if about(page, text).needs]


@pytest.mark.parametrize(("page", "text"), NEEDY, ids=[f"{page.name}: {about(page, text).has}" for page, text in NEEDY])
def test_a_block_for_a_library_runs_where_the_library_is(page, text):
    library = about(page, text).needs
    pytest.importorskip(library, reason=f"{library} is not installed")
    execute(page, text, {})


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_every_command_of_a_page_is_understood(page, capsys):
    write_modules(page)
    for command in command_lines(page):
        if re.match(r"python -m (rl_plasticity|papers\b(?!\.))", command) and command not in NOT_RUN:
            check(command)
        else:
            known = command in NOT_RUN or command.startswith(NEVER)
            assert known, f"{page.name}: run it, or say why not: {command!r}"


def test_some_commands_of_the_pages_are_run(trained, tmp_path, monkeypatch, capsys):
    everywhere = {command for page in DOCS for command in command_lines(page)}
    shutil.copytree(trained, tmp_path / "results")
    for command, small in REAL.items():
        assert clean(command) in everywhere, f"{command}: no page has it any more"
        name, *arguments = shlex.split(command)[2:]
        given = [f"{n}={value}" for n, value in written.from_python(small).items() if f"{n}=" not in command]
        monkeypatch.setattr("sys.argv", [name, *arguments, *given])
        RUN[name.removeprefix("rl_plasticity.")]()
    out = capsys.readouterr().out
    assert "return" in out
    assert "finished" in out


def test_what_the_tables_here_say_of_blocks_holds_for_one_block_each():
    for name, table in PYTHON.items():
        (page,) = [page for page in DOCS if page.name == name]
        for block in table:
            assert sum(block.has in text for text in python_blocks(page)) == 1, (name, block.has)
    everywhere = {command for page in DOCS for command in command_lines(page)}
    assert not NOT_RUN - everywhere


def test_every_block_has_a_language_that_is_looked_at():
    for page in DOCS:
        assert {language for language, _ in blocks(page)} <= {"", "sh", "python", "toml", "text"}, page.name
        for language, text in blocks(page):
            if language == "toml":
                tomllib.loads(text)
