"""The command: every checkpoint and network of a run, its exit status, its files, and networks of others."""

import itertools
import json
import re
import shutil
import sys

import folders
import pytest
import torch
from torch import nn

import rl_plasticity
from rl_plasticity import command_line, diagnose, train
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Diagnose
from rl_plasticity.diagnose import OfAgents, _beside, act, look
from rl_plasticity.diagnosis import remedies
from rl_plasticity.diagnosis.remedies import REMEDIES
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.diagnosed import read
from rl_plasticity.runs.folder import RunFolder

BRIEF = ["repeats=2", "updates=20", "remedies=false"]


pytestmark = pytest.mark.usefixtures("no_further_repeats")


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    given = [*folders.PENDULUM, "reg=[none,spectral]", "agent.layer_norm=false", "checkpoint_every_env_steps=60"]
    return folders.run(given, tmp_path_factory.mktemp("pendulum") / "run")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    given = ["num_tasks=2", "epochs_per_task=2", "data.train_size=200", "seeds=2", "compile=false", "threads=1"]
    return folders.run_supervised(given, tmp_path_factory.mktemp("digits") / "run")


def found(folder, out, *arguments):
    status = look(RunFolder(folder), schema.load(Diagnose, [*BRIEF, *arguments, f"out={out}"]))
    return status, json.loads(out.read_text())


def test_every_checkpoint_network_and_run_is_looked_at_and_the_newest_on_its_replay_buffer_too(pendulum, tmp_path):
    _, rows = found(pendulum, tmp_path / "all.json")
    steps = [*RunFolder(pendulum).saved_steps]
    seen = {(row["step"], row["network"], row["data"], row["run"]) for row in rows}
    assert {step for step, *_ in seen} == {*steps}
    assert {network for _, network, *_ in seen} == {"critic", "actor"}
    assert {step for step, _, data, _ in seen if data == "buffer"} == {steps[-1]}
    assert len({run for *_, run in seen}) == 2


def test_one_network_of_one_run_at_one_checkpoint_can_be_chosen(pendulum, tmp_path):
    _, rows = found(pendulum, tmp_path / "one.json", "network=actor", "run=1", "checkpoint=0")
    assert [(row["step"], row["network"], row["data"]) for row in rows] == [(0, "actor", "random")]
    assert "spectral" in rows[0]["run"]


def test_every_checkpoint_is_looked_at_on_the_same_random_transitions_of_the_first_task(tmp_path, monkeypatch):
    changing = [*folders.PENDULUM, "env.changes=[reward_flip]", "env.switch_every_env_steps=50"]
    run = folders.run(changing, tmp_path / "run")
    looked_at = []

    def seen(agent, batch):
        looked_at.append(batch.reward)
        return _beside(agent, batch)

    monkeypatch.setattr(sys.modules["rl_plasticity.diagnose"], "_beside", seen)
    look(RunFolder(run), schema.load(Diagnose, [*BRIEF, "network=critic"]))
    *random, buffer = looked_at
    assert len(random) == len(RunFolder(run).saved_steps) > 1
    assert all(torch.equal(reward, random[0]) for reward in random)
    assert (random[0] <= 0).all()  # as Pendulum's are
    assert (buffer > 0).any()  # the second task's are flipped


def test_a_supervised_runs_network_learns_labels_that_are_drawn(digits, tmp_path):
    _, rows = found(digits, tmp_path / "digits.json", "seed=1")
    assert {(row["network"], *row["protocol"]["targets"]) for row in rows} == {("net", "noise", "teacher", "own")}
    assert all("1" in row["run"] for row in rows)


def test_dead_units_in_a_checkpoint_end_with_status_1_and_values_out_of_reach_are_named(pendulum, tmp_path, capsys):
    folder = shutil.copytree(pendulum, tmp_path / "run")
    step = max(RunFolder(folder).saved_steps)
    checkpoints = RunFolder(folder).checkpoints
    state = checkpoint.load(checkpoints, step, whole=False)
    for name, tensor in state["agent"].items():
        if name.startswith("critic.net") and name.endswith("bias"):
            tensor.fill_(-1e5)  # no unit of any layer is active, and the value is far from any reward
    checkpoint._write(checkpoint.checkpoint_path(checkpoints, step), state)
    given = ["repeats=4", "updates=100", "remedies=false", "network=critic", f"checkpoint={step}"]
    assert look(RunFolder(folder), schema.load(Diagnose, given)) == 1
    printed = capsys.readouterr().out
    assert "lost" in printed
    assert "values: the mean is -1e+05" in printed


def look_again(folder, *arguments):
    return look(RunFolder(folder), schema.load(Diagnose, [*BRIEF, "network=critic", *arguments]))


def tried(monkeypatch):
    """A list that gets each trial's item, as a (step, data)."""
    items, trial = [], OfAgents.trial
    reports = sys.modules["rl_plasticity.diagnose"].reports

    def noted(self, item):
        items.append((item.step, item.data))
        return trial(self, item)

    def counted(*arguments):
        items.append("tried")
        return reports(*arguments)

    monkeypatch.setattr(OfAgents, "trial", noted)
    monkeypatch.setattr(sys.modules["rl_plasticity.diagnose"], "reports", counted)
    return lambda: [before for before, one in itertools.pairwise([*items]) if one == "tried"]


def test_what_is_kept_is_not_tried_again_and_a_longer_run_adds_its_new_checkpoints(tmp_path, monkeypatch, capsys):
    run = folders.run(folders.PENDULUM, tmp_path / "run")
    trials = tried(monkeypatch)
    assert look_again(run) in (0, 1, 3)
    before = json.loads((run / "diagnosis.json").read_text())
    assert trials() == [(0, "random"), (40, "random"), (60, "random"), (60, "buffer")]
    assert before["settings"] == {"repeats": 2, "updates": 20, "version": rl_plasticity.__version__}
    first = capsys.readouterr()
    assert "4 to try: critic at 3 checkpoints, on random and buffer" in first.err
    assert str(run / "diagnosis.json") in first.err

    look_again(run)
    again = capsys.readouterr()
    assert again.out == first.out
    assert "nothing is left to try" in again.err
    assert len(trials()) == 4

    go_on = [f"resume={run}", "total_env_steps=80"]
    folders.go(train.command, go_on)
    look_again(run)
    assert trials()[4:] == [(80, "random"), (80, "buffer")]
    after = json.loads((run / "diagnosis.json").read_text())
    assert after["rows"][: len(before["rows"])] == before["rows"]  # that of 40 too, whose checkpoint is gone
    assert [*RunFolder(run).saved_steps] == [0, 60, 80]
    assert [(row["step"], row["data"]) for row in after["rows"][4:]] == [(80, "buffer"), (80, "random")]


def test_a_killed_diagnosis_goes_on_where_it_was(tmp_path, monkeypatch):
    run = folders.run(folders.PENDULUM, tmp_path / "run")
    whole = folders.run(folders.PENDULUM, tmp_path / "whole")
    look_again(whole)
    trials = tried(monkeypatch)
    beside, number = _beside, []

    def killed(agent, batch):
        number.append(0)
        if len(number) == 3:
            raise KeyboardInterrupt
        return beside(agent, batch)

    monkeypatch.setattr(sys.modules["rl_plasticity.diagnose"], "_beside", killed)
    with pytest.raises(KeyboardInterrupt):
        look_again(run)
    assert len(json.loads((run / "diagnosis.json").read_text())["rows"]) == 2
    look_again(run)
    assert trials() == [(0, "random"), (40, "random"), (60, "random"), (60, "buffer")]
    kept = [json.loads((folder / "diagnosis.json").read_text())["rows"] for folder in (run, whole)]
    assert kept[0] == kept[1]


def test_other_settings_or_checkpoints_begin_a_new_file_and_say_so(pendulum, tmp_path, capsys):
    run = shutil.copytree(pendulum, tmp_path / "run")
    more = ["repeats=3", "updates=20", "remedies=false", "network=critic", "checkpoint=0"]
    look_again(run, "checkpoint=0")
    assert "replaced" not in capsys.readouterr().err
    look(RunFolder(run), schema.load(Diagnose, more))
    line = next(line for line in capsys.readouterr().err.splitlines() if "replaced" in line)
    assert "diagnosis.json was made with repeats=2" in line
    assert json.loads((run / "diagnosis.json").read_text())["settings"]["repeats"] == 3
    state = checkpoint.load(run / "checkpoints", 0, whole=False)
    checkpoint._write(checkpoint.checkpoint_path(run / "checkpoints", 0), {**state, "more": 1})
    look(RunFolder(run), schema.load(Diagnose, more))
    assert "of another checkpoint of step 0: it is replaced" in capsys.readouterr().err


def test_remedies_are_tried_later_where_they_were_not(pendulum, tmp_path, monkeypatch):
    monkeypatch.setattr(remedies, "REMEDIES", {"LayerNorm": REMEDIES["LayerNorm"]})
    run = shutil.copytree(pendulum, tmp_path / "run")
    step = max(RunFolder(run).saved_steps)
    state = checkpoint.load(run / "checkpoints", step, whole=False)
    for name, tensor in state["agent"].items():
        if name.startswith("critic.net") and name.endswith("bias"):
            tensor.fill_(-1e5)
    checkpoint._write(checkpoint.checkpoint_path(run / "checkpoints", step), state)
    given = ["repeats=4", "updates=60", "network=critic", "run=0", f"checkpoint={step}"]
    look(RunFolder(run), schema.load(Diagnose, [*given, "remedies=false"]))
    without = json.loads((run / "diagnosis.json").read_text())["rows"]
    look(RunFolder(run), schema.load(Diagnose, given))
    rows = json.loads((run / "diagnosis.json").read_text())["rows"]
    assert [row["evidence"] for row in rows] == [row["evidence"] for row in without]
    assert not any(row["remedies"] for row in without)
    assert any(row["remedies"] for row in rows if row["verdict"] == "lost")
    assert next(kept.report for kept in read(RunFolder(run))).remedies[0].learned.mean > 0


def test_a_file_that_is_no_diagnosis_is_refused_and_stays(pendulum, tmp_path):
    run = shutil.copytree(pendulum, tmp_path / "run")
    for text in ("[]", "{", '{"settings": {}, "checkpoints": {}, "rows": [{"step": 1}]}'):
        (run / "diagnosis.json").write_text(text)
        with pytest.raises(SettingsError, match=r"diagnosis\.json is damaged"):
            look_again(run)
        assert (run / "diagnosis.json").read_text() == text


def test_a_folder_that_cannot_be_written_is_diagnosed_all_the_same(pendulum, tmp_path, monkeypatch, capsys):
    run = shutil.copytree(pendulum, tmp_path / "run")

    def full(path, text):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("rl_plasticity.runs.diagnosed.write_text", full)
    look_again(run)
    out, err = capsys.readouterr()
    assert out.count("random") >= 4
    assert err.count("No space left") == 1


def test_each_verdict_is_printed_as_soon_as_it_is_known(pendulum, tmp_path, monkeypatch, capsys):
    run = shutil.copytree(pendulum, tmp_path / "run")
    printed, beside = [], _beside

    def seen(agent, batch):
        printed.append(capsys.readouterr().out.count("\n"))
        return beside(agent, batch)

    monkeypatch.setattr(sys.modules["rl_plasticity.diagnose"], "_beside", seen)
    look_again(run)
    assert printed == [1, 2, 2]  # the header, then a line for each of the two runs


def test_what_exists_is_not_overwritten(pendulum, tmp_path):
    (tmp_path / "mine.json").write_text("mine")
    with pytest.raises(SettingsError, match=r"mine\.json"):
        found(pendulum, tmp_path / "mine.json")
    assert (tmp_path / "mine.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["results/none"], ["results/none"]),
        (["{run}", "repeats=1"], ["repeats", "1"]),
        (["{run}", "checkpoint=7"], ["7", "0"]),
        (["{run}", "network=critc"], ["critc", "critic"]),
        (["{run}", "seed=9"], ["seed=9"]),
        (["{run}", "remedy=true"], ["remedy", "remedies"]),
        (["{digits}", "seed=9"], ["seed=9"]),
        (["{digits}", "run=2"], ["run=2"]),
        (["{digits}", "checkpoint=7"], ["7", "0"]),
        (["{digits}", "network=critic"], ["critic", "net"]),
        (["nothing_there:make", "a.pt", "b.pt"], ["nothing_there"]),
    ],
)
def test_bad_input_is_one_line_that_names_it(pendulum, digits, arguments, names):
    with pytest.raises(SettingsError) as error:
        act([argument.format(run=pendulum, digits=digits) for argument in arguments])
    assert all(name in str(error.value) for name in names), str(error.value)


@pytest.mark.parametrize("kind", ["pendulum", "digits"])
def test_a_damaged_checkpoint_and_a_folder_without_any_are_one_line(kind, request, tmp_path):
    folder = shutil.copytree(request.getfixturevalue(kind), tmp_path / "run")
    checkpoints = RunFolder(folder).checkpoints
    step = max(RunFolder(folder).saved_steps)
    file = checkpoint.checkpoint_path(checkpoints, step)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(SettingsError, match=str(step)) as error:
        act([str(folder), f"checkpoint={step}", *BRIEF])
    assert "\n" not in str(error.value)
    shutil.rmtree(checkpoints)
    with pytest.raises(SettingsError, match="checkpoint"):
        act([str(folder), *BRIEF])


def test_any_network_goes_by_what_makes_it_its_weights_and_its_inputs(tmp_path, monkeypatch, capsys):
    source = "from torch import nn\ndef make(): return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))\n"
    (tmp_path / "my_nets_of_this_test.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    nn.init.constant_(net[0].bias, -100)
    torch.save(net.state_dict(), "weights.pt")
    torch.save(torch.randn(64, 4), "inputs.pt")
    given = ["my_nets_of_this_test:make", "weights.pt", "inputs.pt"]
    assert act([*given, "repeats=3", "updates=50", "remedies=false"]) == 1
    assert capsys.readouterr().out.startswith("verdict: lost")
    torch.save(nn.Linear(4, 2).state_dict(), "weights.pt")
    with pytest.raises(SettingsError, match=r"weights\.pt"):
        act(given)


def test_the_function_stays_callable_when_the_command_of_its_name_is_imported():
    assert diagnose(nn.Linear(4, 2), torch.randn(32, 4), repeats=2, updates=20).verdict
    assert rl_plasticity.diagnose(nn.Linear(4, 2), torch.randn(32, 4), repeats=2, updates=20).verdict


def test_help_lists_its_settings():
    text = command_line.help_of(Diagnose, [])
    assert all(name in text for name in ("repeats=5", "updates=null", "network=", "out="))


@pytest.mark.parametrize("branch", [False, True])
def test_a_folder_of_runs_is_refused_with_the_names_of_its_runs(branch, pendulum):
    with pytest.raises(SettingsError, match=rf"no run's folder, but holds some: {re.escape(str(pendulum))}"):
        look(RunFolder(pendulum.parent), Diagnose(branch=branch))
