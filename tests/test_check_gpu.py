"""``scripts/check_gpu.py`` on the CPU, where it can do all but record CUDA graphs."""

import json
import subprocess
import sys
from pathlib import Path

import folders
import pytest


@pytest.fixture
def script(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "scripts")
    monkeypatch.chdir(tmp_path)
    module = folders.script("check_gpu")
    monkeypatch.setattr(module, "NAMES", ["none", "spectral", "swr", "l2+wrs"])
    monkeypatch.setattr(module, "RESUMED", 8)
    monkeypatch.setattr(module, "UPDATES", 11)
    monkeypatch.setattr(module, "compiled", lambda update, *_, **__: update)  # nothing waits for a C++ compiler
    return module


SMALL = ["--device", "cpu", "--small", "--train-seconds", "0.1"]


def test_every_part_runs_on_a_cpu_and_its_numbers_are_in_both_reports(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "missing", lambda: ["dm_control"])  # so it trains on generated transitions
    products = script.products
    monkeypatch.setattr(script, "products", lambda *sizes: products(*sizes)[:1])  # in bfloat16 each takes seconds
    assert script.main(SMALL) == 0
    report = json.loads(Path("gpu.json").read_text())
    assert [*report["parts"]] == [*script.PARTS]
    found = {name: part["found"] for name, part in report["parts"].items()}
    assert list(found["equal"]) == ["captured", "compiled", "compiled and captured"]
    assert found["equal"]["captured"] == dict.fromkeys(["none", "spectral", "swr", "l2+wrs"], 0.0)  # as it is
    rows = found["speed"]["rows"]
    assert [row["way"] for row in rows] == ["plain", "captured", "captured x16", "compiled"]
    assert all(row["run-updates/s"] > 0 < row["share of the floor"] for row in rows)
    assert found["exact"]["captured x16"]["16"] == found["exact"]["plain"]["16"]
    assert all(0 < error < 1e-3 for error in found["exact"]["plain"].values())
    assert found["kernels"]["whole update"]["us"] > 0 < found["loop"]["a measurement"]
    assert found["agents"] == {"left out, because of": ["dm_control"]}
    assert found["waits"] == {"env steps without waiting": 10}
    assert found["train"]["generated transitions, because of"] == ["dm_control"]
    assert found["train"]["updates of 10 runs"] > 0
    assert capsys.readouterr().err.endswith(": dm_control\n")
    page = Path("gpu.md").read_text()
    assert page.count("| captured") == 2
    assert report["machine"]["torch"] in page


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


def test_it_starts_with_torch_and_numpy_alone():
    program = f"""
import importlib.util, sys
known = importlib.util.find_spec
others = {{"gymnasium", "dm_control", "shimmy", "yaml", "filelock", "tqdm", "tensorboard", "scipy", "sklearn"}}
importlib.util.find_spec = lambda name, *a: None if name in others else known(name, *a)
sys.modules.update(dict.fromkeys(others))
sys.path.insert(0, {str(Path(__file__).parent.parent / "scripts")!r})
import check_gpu
print(check_gpu.missing())
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("['gymnasium', 'dm_control'")
