"""The command: every checkpoint and network of a run, its exit status, its files, and networks of others."""

import itertools
import json
import re
import shutil
import sys

import folders
import pytest
import torch
from conftest import make_brief, once, refused
from torch import nn

import rl_plasticity
from rl_plasticity import diagnose, train
from rl_plasticity.command_line import looked_at
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Diagnose
from rl_plasticity.diagnose import OfAgents, _findings, act, diagnose_run
from rl_plasticity.diagnosis import remedies, trials
from rl_plasticity.diagnosis.report import Report
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.diagnosed import read
from rl_plasticity.runs.folder import RunFolder

BRIEF = ["repeats=2", "updates=10", "remedies=false"]
COMMAND = sys.modules["rl_plasticity.diagnose"]

pytestmark = pytest.mark.usefixtures("brief_trials")


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    """Two runs."""
    given = [*folders.PENDULUM, "reg=[none,spectral]", "agent.layer_norm=false", "checkpoint_every_env_steps=60"]
    return folders.run(given, tmp_path_factory.mktemp("pendulum") / "run")


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    return folders.run(folders.PENDULUM, tmp_path_factory.mktemp("one") / "run")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    given = ["num_tasks=2", "epochs_per_task=2", "data.train_size=200", "seeds=2", "compile=false", "threads=1"]
    return folders.run_supervised(given, tmp_path_factory.mktemp("digits") / "run")


@pytest.fixture
def run(one_run, tmp_path):
    return shutil.copytree(one_run, tmp_path / "run")


@pytest.fixture(scope="module")
def diagnosed(one_run, tmp_path_factory):
    """A run whose critic is diagnosed."""
    folder = shutil.copytree(one_run, tmp_path_factory.mktemp("diagnosed") / "run")
    with pytest.MonkeyPatch.context() as patched:
        make_brief(patched)
        of_critic(folder)
    return folder


def go(folder, *arguments):
    return diagnose_run(RunFolder(folder), schema.load(Diagnose, once([*BRIEF, *arguments])))


def of_critic(folder, *arguments):
    """Diagnose the critic; returns the rows that are kept."""
    assert go(folder, "network=critic", *arguments) in (0, 1, 3)
    return json.loads((folder / "diagnosis.json").read_text())


def with_dead_critic(folder, place):
    """A copy of a run at whose newest step, returned too, no unit is active and the value is far from any reward."""
    folder = shutil.copytree(folder, place / "run")
    step, checkpoints = max(RunFolder(folder).saved_steps), RunFolder(folder).checkpoints
    state = checkpoint.load(checkpoints, step, whole=False)
    for name, tensor in state["agent"].items():
        if name.startswith("critic.net") and name.endswith("bias"):
            tensor.fill_(-1e5)
    checkpoint._write(checkpoint.checkpoint_path(checkpoints, step), state)
    return folder, step


def test_every_checkpoint_network_and_run_is_diagnosed_and_the_newest_on_its_replay_buffer_too(pendulum, tmp_path):
    go(pendulum, f"out={tmp_path / 'all.json'}")
    rows = json.loads((tmp_path / "all.json").read_text())["rows"]
    steps = [*RunFolder(pendulum).saved_steps]
    assert {row["step"] for row in rows} == {*steps}
    assert {row["network"] for row in rows} == {"critic", "actor"}
    assert {row["step"] for row in rows if row["data"] == "buffer"} == {steps[-1]}
    assert len({row["run"] for row in rows}) == 2
    assert not (pendulum / "diagnosis.json").exists()


def test_a_supervised_run_is_tried_with_the_threads_that_it_had(digits):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        COMMAND.OfTasks(RunFolder(digits), "auto", 0).close()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_one_network_of_one_run_at_one_checkpoint_can_be_chosen(pendulum, digits, tmp_path, capsys):
    go(pendulum, "network=actor", "run=1", "checkpoint=0", f"out={tmp_path / 'one.json'}")
    rows = json.loads((tmp_path / "one.json").read_text())["rows"]
    assert [(row["step"], row["network"], row["data"]) for row in rows] == [(0, "actor", "random")] * 2  # both runs
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("0 ")]
    assert "spectral" in line
    go(digits, "seed=1", f"out={tmp_path / 'digits.json'}")
    rows = json.loads((tmp_path / "digits.json").read_text())["rows"]
    assert {(row["network"], row["protocol"]["targets"]) for row in rows} == {("net", "own")}
    printed = [line for line in capsys.readouterr().out.splitlines() if " images " in line]
    assert printed
    assert all("seed 1" in line for line in printed)


def test_every_checkpoint_is_tried_on_the_same_random_transitions_of_the_first_task(tmp_path, monkeypatch):
    changing = [*folders.PENDULUM, "env.changes=[reward_flip]", "env.switch_every_env_steps=50"]
    run = folders.run(changing, tmp_path / "run")
    rewards = []

    def noted(agent, network, batch):
        rewards.append(batch.reward)
        return _findings(agent, network, batch)

    monkeypatch.setattr(COMMAND, "_findings", noted)
    monkeypatch.setattr(COMMAND, "reports", lambda *_: [Report("plastic", "")])
    of_critic(run)
    *random, buffer = rewards
    assert len(random) == len(RunFolder(run).saved_steps) > 1
    assert all(torch.equal(reward, random[0]) for reward in random)
    assert (random[0] <= 0).all()  # as Pendulum's are
    assert (buffer > 0).any()  # the second task's are flipped
    for name in ("diagnosis.json", "checkpoints/step_000000000.pt", "checkpoints/step_000000040.pt"):
        (run / name).unlink()
    rewards.clear()
    of_critic(run)  # the first checkpoint that is left is of the second task
    assert torch.equal(rewards[0], random[0])


def test_dead_units_end_with_status_1_and_remedies_may_come_later(pendulum, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trials, "RATES", (1.0, 10.0))
    monkeypatch.setattr(remedies, "REMEDIES", {"LayerNorm": remedies.REMEDIES["LayerNorm"]})
    run, step = with_dead_critic(pendulum, tmp_path)
    given = ["network=critic", "repeats=2", "updates=30", "run=0", f"checkpoint={step}"]
    assert go(run, *given) == 1
    printed = capsys.readouterr().out
    assert "lost" in printed
    assert "values: the mean is -1e+05" in printed
    without = json.loads((run / "diagnosis.json").read_text())["rows"]
    go(run, *given, "remedies=true")
    rows = json.loads((run / "diagnosis.json").read_text())["rows"]
    assert [row["evidence"] for row in rows] == [row["evidence"] for row in without]
    assert not any(row["remedies"] for row in without)
    assert any(row["remedies"] for row in rows if row["verdict"] == "lost")
    assert next(kept.report for kept in read(RunFolder(run))).remedies[0].learned.mean > 0


def test_what_the_agent_has_to_learn_next_decides_beside_drawn_targets(pendulum, tmp_path, monkeypatch, capsys):
    reports = {}

    def judged(subject, source, *others):
        found = Report("lost" if source.bank.size < 60 else "plastic", "")  # so many transitions has the buffer
        reports[type(source)] = found
        return [found] * 2

    monkeypatch.setattr(COMMAND, "reports", judged)
    monkeypatch.setattr(COMMAND, "recent_and_old", lambda share, size: (share * size).long()[:, :50])
    assert go(pendulum, "checkpoint=60", f"out={tmp_path / 'all.json'}") == 1
    printed = capsys.readouterr().out
    assert {kind.__name__ for kind in reports} == {"TaskSource", "NextTask"}
    assert printed.count("verdict: lost") == printed.count("plastic") == 4  # networks of two runs
    verdicts = {"TaskSource": "lost", "NextTask": "plastic"}
    monkeypatch.setattr(COMMAND, "reports", lambda _, source, *__: [Report(verdicts[type(source).__name__], "")] * 2)
    assert go(pendulum, "checkpoint=60", f"out={tmp_path / 'more.json'}") == 0
    assert "verdict: lost" not in capsys.readouterr().out


def test_it_says_how_far_trials_are_and_keeps_what_is_known_when_killed(pendulum, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(COMMAND, "TOLD", 0)
    reports, given = COMMAND.reports, []

    def killed(*arguments):
        given.append(capsys.readouterr().err)
        if len(given) == 2:
            raise KeyboardInterrupt
        return reports(*arguments)

    monkeypatch.setattr(COMMAND, "reports", killed)
    with pytest.raises(KeyboardInterrupt):
        go(pendulum, "network=critic", f"out={tmp_path / 'all.json'}")
    first, second = given
    assert "3 to diagnose" in first
    assert re.search(r"1 of 3, critic on random at step 0: takes \d+ s, or longer", first)  # before anything is tried
    assert re.search(r"1 of 3, critic on random at step 0: 20 updates in \d+ s", second)
    assert len(json.loads((tmp_path / "all.json").read_text())["rows"]) == 2  # runs


def test_any_network_goes_by_what_makes_it_its_weights_and_its_inputs(tmp_path, monkeypatch, capsys):
    source = "from torch import nn\ndef make(): return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))\n"
    (tmp_path / "my_nets_of_this_test.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    nn.init.constant_(net[0].bias, -100)
    torch.save(net.state_dict(), "weights.pt")
    torch.save(torch.randn(64, 4), "inputs.pt")
    monkeypatch.setattr(trials, "RATES", (1.0, 10.0))
    given = ["my_nets_of_this_test:make", "weights.pt", "inputs.pt"]
    assert act([*given, "repeats=3", "updates=50", "remedies=false", "out=mine.json"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("verdict: lost")
    assert re.search(r"weights.pt: takes \d+ s", printed.err)
    assert json.loads((tmp_path / "mine.json").read_text())["verdict"] == "lost"
    refused(lambda: act([*given, "out=mine.json"]), "mine.json")
    torch.save(nn.Linear(4, 2).state_dict(), "weights.pt")
    refused(lambda: act(given), "weights.pt")
    torch.save(net, "weights.pt")
    refused(lambda: act(given), "weights.pt", "state_dict")


WRAPPERS = {
    "compiled": lambda net: {f"_orig_mod.{n}": x for n, x in net.state_dict().items()},
    "a compiled part": lambda net: {n.replace("0.", "0._orig_mod.", 1): x for n, x in net.state_dict().items()},
    "data parallel": lambda net: nn.DataParallel(net).state_dict(),
    "both": lambda net: {f"module._orig_mod.{n}": x for n, x in net.state_dict().items()},
    "averaged": lambda net: torch.optim.swa_utils.AveragedModel(net).state_dict(),
    "Lightning": lambda net: {
        "epoch": 3,
        "state_dict": {f"net.{n}": x for n, x in net.state_dict().items()} | {"loss.weight": torch.ones(2)},
        "optimizer_states": [{"state": {}}],
    },
    "an entry": lambda net: {"model": net.state_dict(), "optimizer": {"state": {}, "param_groups": []}},
}


@pytest.mark.parametrize("wrapped", WRAPPERS)
def test_the_weights_are_found_behind_what_wraps_them(wrapped, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(COMMAND.importlib, "import_module", lambda name: COMMAND)
    monkeypatch.setattr(COMMAND, "make", lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), False)
    net = COMMAND.make()
    nn.init.constant_(net[0].bias, torch.nan)
    torch.save(WRAPPERS[wrapped](net), tmp_path / "weights.pt")
    torch.save(torch.randn(64, 4), tmp_path / "inputs.pt")
    assert act(["some:make", f"{tmp_path}/weights.pt", f"{tmp_path}/inputs.pt"]) == 1
    assert "not finite: 8 of 8 in '0.bias'" in capsys.readouterr().out
    torch.save({"model": net.state_dict(), "ema": net.state_dict()}, tmp_path / "weights.pt")
    refused(lambda: act(["some:make", f"{tmp_path}/weights.pt", f"{tmp_path}/inputs.pt"]), "weights.pt", "model", "ema")


def test_the_function_stays_callable_when_the_command_of_its_name_is_imported():
    for function in (diagnose, rl_plasticity.diagnose):
        assert function(nn.Linear(4, 2), torch.randn(32, 4), repeats=2, updates=10).verdict


@pytest.fixture
def tried(monkeypatch):
    """A list that gets what was tried, as (step, data)."""
    items, trial, reports = [], OfAgents.trial, COMMAND.reports

    def noted(self, item):
        items.append((item.step, item.data))
        return trial(self, item)

    def counted(*arguments):
        items.append("tried")
        return reports(*arguments)

    monkeypatch.setattr(OfAgents, "trial", noted)
    monkeypatch.setattr(COMMAND, "reports", counted)
    return lambda: [before for before, one in itertools.pairwise(items) if one == "tried"]


def test_what_is_kept_is_not_tried_again_but_added_to_or_replaced(diagnosed, tmp_path, tried, capsys):
    run = shutil.copytree(diagnosed, tmp_path / "run")
    before = json.loads((run / "diagnosis.json").read_text())
    assert before["settings"] == {"repeats": 2, "updates": 10, "version": rl_plasticity.__version__}
    assert of_critic(run) == before
    assert not tried()
    assert capsys.readouterr().out.count(" critic ") == 4

    folders.go(train.command, [f"resume={run}", "total_env_steps=80"])
    after = of_critic(run)
    assert capsys.readouterr().out.count(" critic ") == 6
    assert tried() == [(80, "random"), (80, "buffer")]
    assert [*RunFolder(run).saved_steps] == [0, 60, 80]
    assert after["rows"][: len(before["rows"])] == before["rows"]  # that of 40 too, whose checkpoint is gone
    assert [(row["step"], row["data"]) for row in after["rows"][4:]] == [(80, "buffer"), (80, "random")]
    assert of_critic(run, "checkpoint=0", "repeats=3")["settings"]["repeats"] == 3
    assert "diagnosis.json was made with repeats=2: it will be replaced" in capsys.readouterr().err


def test_a_killed_diagnosis_goes_on_and_prints_what_it_knows_at_once(run, diagnosed, tried, monkeypatch, capsys):
    printed = []

    def killed(agent, network, batch):
        printed.append(capsys.readouterr().out.count("\n"))
        if len(printed) == 3:
            raise KeyboardInterrupt
        return _findings(agent, network, batch)

    with monkeypatch.context() as patched:
        patched.setattr(COMMAND, "_findings", killed)
        capsys.readouterr()
        with pytest.raises(KeyboardInterrupt):
            of_critic(run)
    assert printed == [1, 1, 1]  # the header, then a line for each
    assert len(read(RunFolder(run))) == 2
    assert of_critic(run) == json.loads((diagnosed / "diagnosis.json").read_text())
    assert tried() == [(0, "random"), (40, "random"), (60, "random"), (60, "buffer")]


def of_another_version(text):
    """A ``diagnosis.json`` whose remedies have another number."""
    content = json.loads(text)
    for row in content["rows"]:
        row["remedies"] = [{"remedy": "redo", "closes": 0.5}]
    return json.dumps(content)


@pytest.mark.parametrize("change", [lambda text: text[:9], of_another_version])
def test_a_file_that_cannot_be_read_is_made_anew(change, run, diagnosed, capsys):
    before = (diagnosed / "diagnosis.json").read_text()
    (run / "diagnosis.json").write_text(change(before))
    assert of_critic(run) == json.loads(before)
    assert "diagnosis.json cannot be read: it will be replaced" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "names"), [
    (["results/none"], ["results/none"]),
    (["{pendulum.parent}"], ["{pendulum.parent}", "contains some: "]),
    (["{pendulum}", "repeats=1"], ["repeats", "1"]),
    (["{pendulum}", "checkpoint=7"], ["7", "0"]),
    (["{pendulum}", "network=critc"], ["critc", "critic"]),
    (["{pendulum}", "remedy=true"], ["remedy", "remedies"]),
    (["{pendulum}", "out={pendulum}/config.json"], ["config.json"]),
    (["{pendulum}", "branch_into=[redo]"], ["branch_into", "branch=true"]),
    (["{digits}", "run=2"], ["run=2"]),
    (["{digits}", "network=critic"], ["critic", "net"]),
    (["model.zip"], ["model.zip"]),
])  # fmt: skip
def test_bad_input_is_one_line_that_names_it(pendulum, digits, arguments, names):
    (pendulum / "config.json").touch()
    arguments, names = ([one.format(pendulum=pendulum, digits=digits) for one in of] for of in (arguments, names))
    refused(lambda: diagnose_run(*looked_at(Diagnose, arguments)), *names)
