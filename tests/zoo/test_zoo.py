"""The zoo as a plug: found by name everywhere, imported when a name asks for it."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from conftest import refused
from folders import PENDULUM, goes_on_as_if_never_stopped, rows, run_supervised

import rl_plasticity_zoo
from rl_plasticity import AGENTS, NETWORKS, make_intervention, plugins, supervised
from rl_plasticity.compare import compare
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.learning.learner import Learner
from rl_plasticity.networks import MLP
from rl_plasticity.runs.folder import RunFolder

AT_ONCE = """
import sys
from rl_plasticity import plugins
plugins.load()
assert "torch" not in sys.modules, "a plug's index is read without torch"
from rl_plasticity.networks import make_network
from rl_plasticity import OPTIMIZERS, SAC
make_network("mlp", (4,), 2, [0]), SAC(3, 1, [0])
print(sorted(name for name in sys.modules if name.startswith("rl_plasticity_zoo")))
make_network("resnet18", (3, 8, 8), 2, [0])
print("muon" in OPTIMIZERS, OPTIMIZERS["muon"].__name__)
print(sorted(name for name in sys.modules if name.startswith("rl_plasticity_zoo")))
"""


def test_nothing_of_it_is_imported_before_a_name_asks_and_then_no_call_is_needed():
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, check=True)
    before, optimizer, after = done.stdout.splitlines()
    assert (before, optimizer) == ("['rl_plasticity_zoo']", "True Muon")
    assert "rl_plasticity_zoo.resnet" in after
    assert "rl_plasticity_zoo.later_sac" not in after


def test_it_is_found_beside_the_package_where_nothing_is_installed(monkeypatch):
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    plugins.installed.cache_clear()
    assert plugins.installed() == ("rl_plasticity_zoo",)
    plugins.installed.cache_clear()


def test_each_module_that_its_index_names_has_what_the_index_names():
    index = Path(rl_plasticity_zoo.__file__).read_text()
    offered = [choice for of_one in plugins._offered.values() for choice in of_one.values()]
    ours = [choice for choice in offered if choice.startswith("rl_plasticity_zoo.")]
    assert len(ours) > 20
    assert all(NETWORKS[name] is not None for name in NETWORKS)
    assert {type(AGENTS[name]) for name in AGENTS} == {type}
    for choice in ours:
        module, _, name = choice.partition(":")
        assert hasattr(sys.modules.get(module) or __import__(module, fromlist=[name]), name), choice
        assert module.rpartition(".")[2] in index


@pytest.mark.parametrize(("kind", "arguments", "named"), [
    (Train, ["agent=xcq"], ["'xcq'", "'xqc'"]),
    (Train, ["preset=simba_v3"], ["'simba_v3'", "'simba_v2'"]),
    (Train, ["agent.bins=51"], ["bins", "agent=later_sac"]),
    (Train, ["agent=dqn", "agent.atoms=51"], ["atoms", "agent=rainbow"]),
    (Train, ["agent.dropout=0.1"], ["agent.dropout", "agent.network=dropout_mlp"]),
    (Train, ["agent=later_sac", "agent.network=smba"], ["agent.network", "'smba'", "'simba'"]),
    (Train, ["agent.activation=rationl"], ["agent.activation", "'rationl'", "'rational'"]),
    (Supervised, ["net=resnet81"], ["'resnet81'", "'resnet18'"]),
    (Supervised, ["optimizer=moun"], ["'moun'", "'muon'"]),
    (Supervised, ["optimizer=muon", "optimizer.scale=adm"], ["optimizer.scale", "'adm'", "'adam'"]),
    (Supervised, ["net.parametrization=weight_norm"], ["net.parametrization", "bounded_weight_norm"]),
])  # fmt: skip
def test_bad_input_names_the_nearest_name_of_the_zoo(kind, arguments, named):
    refused(lambda: schema.load(kind, arguments), *named)


def test_an_agent_of_a_paper_trains_resumes_without_naming_a_plug_and_is_compared(tmp_path):
    own = [a for a in PENDULUM if not a.startswith("agent.")]
    own += ["agent=xqc", "agent.actor_width=8", "agent.critic_width=8", "reg=[none,hypersphere]"]
    whole = goes_on_as_if_never_stopped(own, tmp_path, 45)
    assert RunFolder(whole).plugins == []
    assert len(compare(whole).table()) == 3  # with its head


def test_a_network_with_an_optimizer_and_augmentation_of_it_trains_and_resumes_to_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("rl_plasticity_zoo.vit.DEPTH", 2)
    monkeypatch.setattr("rl_plasticity_zoo.vit.WIDTH", 12)
    own = ["net=vit_tiny", "net.patch=4", "optimizer=muon", "data.augment=true", "data.train_size=20", "num_tasks=2"]
    own += ["epochs_per_task=1", "batch_size=20", "device=cpu", "threads=1", "measure_every_updates=0"]
    whole = goes_on_as_if_never_stopped(own, tmp_path, 1, command=supervised.command)
    plain = run_supervised([*own, "data.augment=false"], tmp_path / "plain")
    assert rows(plain, "net/loss") != rows(whole, "net/loss")


def test_an_injection_keeps_the_function_of_a_head_with_a_learned_activation():
    learner = Learner(lambda seeds: MLP((4, 8, 8, 3), seeds, activation="rational", injected_layers=2), [0, 1])
    x = torch.randn(2, 5, 4)
    before = learner.net(x)
    make_intervention("plasticity_injection").apply_(learner, inputs={"net": (x,)})
    torch.testing.assert_close(learner.net(x), before)
