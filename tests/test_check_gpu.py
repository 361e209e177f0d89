"""``scripts/check_gpu.py`` on the CPU, where it can do all but record CUDA graphs."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture
def script(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("check_gpu", SCRIPTS / "check_gpu.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_gpu"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "NAMES", ["none", "spectral", "swr", "l2+wrs"])
    monkeypatch.setattr(module, "compiled", lambda update, device="cpu": update)  # nothing waits for a C++ compiler
    yield module
    del sys.modules["check_gpu"]


SMALL = ["--device", "cpu", "--small", "--train-seconds", "0.5"]


def test_every_part_runs_on_a_cpu_and_its_numbers_are_in_both_reports(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "missing", lambda: ["dm_control"])  # so it trains on generated transitions
    products = script.products
    monkeypatch.setattr(script, "products", lambda *sizes: products(*sizes)[:1])  # in bfloat16 each takes seconds
    assert script.main(SMALL) == 0
    report = json.loads(Path("gpu.json").read_text())
    assert list(report["parts"]) == ["equal", "agents", "supervised", "waits", "cpu", "precision", "bench", "train"]
    found = {name: part["found"] for name, part in report["parts"].items()}
    assert list(found["equal"]) == ["captured", "compiled", "compiled and captured"]
    assert found["equal"]["captured"] == dict.fromkeys(["none", "spectral", "swr", "l2+wrs"], 0.0)  # as it is
    assert {row["runs"] for row in found["bench"]["rows"]} == {1, 2}
    assert all(row["run-updates/s"] > 0 < row["share of the floor"] for row in found["bench"]["rows"])
    assert {row["way"] for row in found["bench"]["rows"]} == {"captured", "compiled"}
    assert found["agents"] == {"left out, because of": ["dm_control"]}
    assert found["waits"] == {"env steps without waiting": 10}
    assert found["train"]["generated transitions, because of"] == ["dm_control"]
    assert found["train"]["updates of 10 runs"] > 0
    assert capsys.readouterr().err.endswith(": dm_control\n")
    page = Path("gpu.md").read_text()
    assert page.count("| cheetah-run |") == len(found["bench"]["rows"])
    assert report["machine"]["torch"] in page


def test_a_replay_that_does_not_update_is_found_and_named(script, monkeypatch, capsys):
    monkeypatch.setattr(script.AsRecorded, "record", lambda self, inputs: lambda: {})
    assert script.main([*SMALL, "--parts", "equal,supervised,precision"]) == 1
    report = json.loads(Path("gpu.json").read_text())
    assert report["parts"]["supervised"]["wrong"]
    assert "captured" in report["parts"]["equal"]["wrong"]
    assert "wrong" not in report["parts"]["precision"]  # the others are made all the same
    assert "equal: ArithmeticError" in capsys.readouterr().out


def test_captured_agents_of_papers_are_compared_and_a_replay_without_an_update_is_found(script, monkeypatch):
    assert script.main([*SMALL, "--parts", "agents"]) == 0
    found = json.loads(Path("gpu.json").read_text())["parts"]["agents"]["found"]
    assert list(found) == ["redq", "droq", "minatar"]
    assert all(agent["updates/s"] > 0 for agent in found.values())
    monkeypatch.setattr(script.AsRecorded, "record", lambda self, inputs: lambda: {})
    assert script.main([*SMALL, "--parts", "agents"]) == 1


def test_a_replay_that_reads_the_weights_of_before_a_resume_is_found(script, monkeypatch):
    def stale(self, inputs):
        agent = self.update.__self__
        kept = {name: value.clone() for name, value in agent.state_dict().items()}

        def replay():
            agent.load_state_dict(kept)  # as if what was recorded had weights of its own
            metrics = self.update(*inputs)
            kept.update({name: value.clone() for name, value in agent.state_dict().items()})
            return metrics

        return replay

    monkeypatch.setattr(script.AsRecorded, "record", stale)
    assert script.main([*SMALL, "--parts", "equal"]) == 1


def test_what_cannot_be_checked_is_refused_before_anything_is_written(script, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments in ([], [*SMALL, "--parts", "bench,benhc"]):
        with pytest.raises(SystemExit) as stopped:
            script.main(arguments)
        assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "--device cpu --small" in said
    assert "benhc" in said
    assert "equal, agents, supervised, waits, cpu, precision, bench, train" in said
    assert not [*Path().iterdir()]
