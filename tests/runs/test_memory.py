"""What a run would take and what there is: estimated before anything large is made, and said in one line."""

import math

import pytest
import torch
from conftest import once
from folders import PENDULUM

from rl_plasticity import supervised, train
from rl_plasticity.agents import AGENTS, SAC
from rl_plasticity.configs.commands import Group, Train
from rl_plasticity.configs.schema import load
from rl_plasticity.errors import SettingsError
from rl_plasticity.learning.learner import Learner
from rl_plasticity.networks import NETWORKS, make_network
from rl_plasticity.runs import memory
from rl_plasticity.sweeps import sweep

DIGITS = ["data.train_size=100", "net.widths=[8]", "epochs_per_task=1", "num_tasks=1", "device=cpu", "compile=false"]


@pytest.mark.parametrize(
    ("command", "arguments", "names"),
    [
        (train, ["batch_size=100000000000"], "batch_size=100000000000"),
        (train, ["agent.hidden=[100000,100000]"], "agent.hidden=[100000,100000]"),
        (train, ["replay_ratio=1e9"], "replay_ratio=1e+09"),
        (train, ["buffer_size=1000000000000000", "total_env_steps=9000000000000000"], "buffer_size=1000000000000000"),
        (train, ["total_env_steps=900000000000", "buffer_size=9000000000000"], "total_env_steps=900000000000"),
        (train, ["seeds=100000000"], "seeds=100000000"),
        (supervised, ["seeds=100000000"], "seeds=100000000"),
        (supervised, ["net.widths=[100000,100000]"], "net.widths=[100000,100000]"),
    ],
)
def test_what_is_larger_than_memory_is_refused_with_the_setting_what_it_takes_and_what_there_is(
    command, arguments, names, tmp_path, monkeypatch
):
    monkeypatch.setattr(memory, "free", lambda device: 64_000_000_000)  # there are machines that have all this
    base = PENDULUM if command is train else DIGITS
    with pytest.raises(
        SettingsError, match=r"^[\d.e+]+ [TPG]B of memory would be taken.*, [\d.]+ \w+ are free; "
    ) as error:
        command.command.prepare(once([*base, *arguments, f"out={tmp_path / 'run'}"]))
    assert names in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_of_more_runs_than_memory_holds_is_refused_without_listing_them(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 64_000_000_000)
    with pytest.raises(SettingsError, match="of memory would be taken for 100000000 runs"):
        sweep.runs(train.command.kind, ["env=gym:Pendulum-v1", "seeds=100000000"])


def test_the_refusal_is_by_what_is_free_and_names_the_largest_first(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 1_000_000)
    memory.require(10, {"a": 90_000, "b": 10_000})
    with pytest.raises(SettingsError) as error:
        memory.require(10, {"b": 10_000, "a": 90_001, "c": 1})
    assert str(error.value) == "1 MB of memory would be taken for 10 runs, 1 MB are free; a: 900 kB; b: 100 kB"
    monkeypatch.setattr(memory, "free", lambda device: None)
    memory.require(10, {"a": math.inf})  # nothing is known


def test_an_agent_without_memory_has_the_bytes_of_a_real_one_and_its_gradients():
    settings = {"hidden": (16, 24), "num_critics": 2}
    real = SAC(3, 1, [0], **settings)
    with torch.device("meta"):
        one = SAC(3, 1, [0], **settings, device="meta")
        obs, act = torch.zeros(1, 1, 3), torch.zeros(1, 1, 1)
        reads = [(one.critic.net, (obs, act)), (one.actor.net, (obs,))]
        state, activations = memory.of_network(one, reads)
    gradients = sum(p.nbytes for p in real.parameters() if p.requires_grad)
    assert state == sum(t.nbytes for t in real.state_dict().values()) + gradients
    # Linear, LayerNorm and ReLU of two hidden layers and the linear head; two critics, one actor; float32, twice.
    assert activations == 8 * (2 * (3 * (16 + 24) + 1) + 3 * (16 + 24) + 2)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"hidden": [16, 24, 400], "num_critics": 3},
        {"hidden": [8], "num_critics": 60},
        {"network": "simba", "actor_width": 64, "critic_width": 128, "actor_blocks": 2, "critic_blocks": 6},
        {"network": "hypersphere", "actor_width": 64, "critic_width": 128},
    ],
)
def test_what_is_surely_small_takes_less_than_a_tenth_of_what_is_free(settings, monkeypatch):
    runs, batch_size = 3, 256
    whole = load(Train, [f"agent.{k}={v}".replace(" ", "") for k, v in settings.items()]).agent
    agent = SAC(17, 6, [0], **settings)
    obs, act = torch.zeros(1, 1, 17), torch.zeros(1, 1, 6)
    state, left = memory.of_network(agent, [(agent.critic.net, (obs, act)), (agent.actor.net, (obs,))])
    taken = runs * (state + batch_size * left)
    for free, small in ((9 * taken, False), (10_000 * taken, True)):
        monkeypatch.setattr(memory, "free", lambda device, free=free: free)
        assert memory.surely_small(runs, whole, 23, batch_size) is small


def test_what_is_not_larger_by_its_numbers_is_not_surely_small():
    assert memory.surely_small(1, Group("mlp", {"widths": [8]}), 64, 10)
    for name in ("vgg16", "vit_tiny", "resnet18", "of_a_plug"):  # a smaller patch makes a larger network
        assert not memory.surely_small(1, Group(name, {"hidden_layers": 0, "patch": 1}), 64, 10)


@pytest.mark.parametrize("module", [train, supervised])
def test_small_networks_are_not_made_twice_to_see_how_large_they_are(module, monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "of_network", lambda *_: pytest.fail("made on the device meta"))
    base = PENDULUM if module is train else DIGITS
    session, built = module.command.prepare([*base, f"out={tmp_path / 'run'}"])
    if module is train:
        built.close()
    session.lock.release()


def test_a_plug_that_knows_real_tensors_alone_is_not_counted_and_not_refused(monkeypatch, tmp_path):
    class Odd(SAC):
        def __init__(self, *args, hidden=(16, 16), device="cpu", **kwargs):
            super().__init__(*args, hidden=hidden, device=device)
            float(next(self.parameters()).detach().sum())  # not of a tensor that has no numbers

    monkeypatch.setitem(AGENTS, "odd", Odd)
    monkeypatch.setattr(memory, "surely_small", lambda *_: False)
    arguments = [a for a in PENDULUM if not a.startswith("agent")]
    session, built = train.command.prepare([*arguments, "agent=odd", f"out={tmp_path / 'run'}"])
    built.close()
    session.lock.release()


def test_networks_of_every_kind_can_be_counted():
    for name in set(NETWORKS) - {"vgg16_bn", "wrn28_10"}:  # large relatives of others
        with torch.device("meta"):
            learner = Learner(lambda seeds, name=name: make_network(name, (3, 32, 32), 10, seeds), device="meta")
            image = torch.zeros(*learner.runs, 1, 3, 32, 32)
            state, activations = memory.of_network(learner, [(learner.net.eval(), (image,))])
        assert state > 100_000, name
        assert activations > 1_000, name


MEMINFO = "MemTotal: 100 kB\nMemAvailable: 50 kB\n"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 51_200),
        (  # version 2: of the group and of those above it the least counts, the page cache aside
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/memory.max": "40000\n",
                "sys/fs/cgroup/a/memory.current": "30000\n",
                "sys/fs/cgroup/a/memory.stat": "anon 9\ninactive_file 5000\n",
            },
            15_000,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/job\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "30000",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "10000",
                "sys/fs/cgroup/memory/job/memory.stat": "total_inactive_file 1",
            },
            20_001,
        ),
    ],
    ids=["kernel", "cgroup 2", "cgroup 1"],
)
def test_what_is_free_is_the_least_of_what_the_kernel_and_the_limits_say(files, free, tmp_path):
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory.free("cpu", tmp_path) == free


def test_where_nothing_is_said_all_the_memory_there_is_counts(tmp_path):
    assert memory.free("cpu", tmp_path) >= memory.free("cpu")
