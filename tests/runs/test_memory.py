"""What a run would take and what there is: estimated before anything large is made, and said in one line."""

import math
import re

import pytest
import torch
from conftest import once, refused
from folders import PENDULUM

from rl_plasticity import supervised, train
from rl_plasticity.agents import SAC
from rl_plasticity.configs.commands import Train
from rl_plasticity.configs.schema import load
from rl_plasticity.errors import SettingsError
from rl_plasticity.networks import make_network
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
    line = refused(lambda: command.command.prepare(once([*base, *arguments, f"out={tmp_path / 'run'}"])), names)
    assert re.match(r"[\d.e+]+ [TPG]B .*, [\d.]+ \w+ are free; ", line)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_of_more_runs_than_memory_holds_is_refused_without_listing_them(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 64_000_000_000)
    with pytest.raises(SettingsError, match=r"memory.*\b100000000 runs"):
        sweep.runs(train.command.kind, ["env=gym:Pendulum-v1", "seeds=100000000"])


def test_the_refusal_is_by_what_is_free_and_names_the_largest_first(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 1_000_000)
    memory.require(10, {"a": 90_000, "b": 10_000})
    with pytest.raises(SettingsError) as error:
        memory.require(10, {"b": 10_000, "a": 90_001, "c": 1})
    assert str(error.value) == "1 MB of memory would be taken for 10 runs, 1 MB are free; a: 900 kB; b: 100 kB"
    monkeypatch.setattr(memory, "free", lambda device: None)
    memory.require(10, {"a": math.inf})  # nothing is known


def taken(module):
    """Bytes of its state, its gradients and Adam's moments."""
    learned = sum(p.nbytes for p in module.parameters() if p.requires_grad)
    return sum(t.nbytes for t in module.state_dict().values() if isinstance(t, torch.Tensor)) + 3 * learned


def test_layers_count_for_no_more_than_a_real_network_takes_and_not_for_much_less():
    group = load(Train, ["agent.hidden=[256,512,256]"]).agent.settings
    mlp = make_network("mlp", (1, 8, 8), 10, [0], widths=(200, 100))
    for real, of_layers in (
        (SAC(3, 1, [0], hidden=(256, 512, 256), num_critics=1), memory.of_layers("agent", group, 0)),
        (mlp, memory.of_layers("net", {"widths": [200, 100]}, 0)),
    ):
        counted = sum(of_layers.values())
        assert counted <= taken(real) <= 4 * counted


def test_layers_and_what_a_batch_leaves_in_them_are_counted_by_hand():
    of_layers = memory.of_layers(
        "net", {"name": "mlp", "widths": [100, 50], "patch": 4, "flags": [True], "lr": [0.5]}, 7
    )
    assert of_layers == {
        "layers, net.widths=[100,50]": 16 * (100 + 50 + 100 * 50),
        "a batch in them, batch_size=7 net.widths=[100,50]": 8 * 7 * (100 + 50),
    }


MEMINFO = "MemTotal: 100 kB\nMemAvailable: 50 kB\n"


CGROUP_2 = {  # of the group and of those above it the least counts, the page cache aside
    "proc/self/cgroup": "0::/a/b\n",
    "sys/fs/cgroup/a/b/memory.max": "max\n",
    "sys/fs/cgroup/a/memory.max": "40000\n",
    "sys/fs/cgroup/a/memory.current": "30000\n",
    "sys/fs/cgroup/a/memory.stat": "anon 9\ninactive_file 5000\n",
}
CGROUP_1 = {
    "proc/self/cgroup": "5:cpu:/x\n4:memory:/job\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "30000",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "10000",
    "sys/fs/cgroup/memory/job/memory.stat": "total_inactive_file 1",
}


@pytest.mark.parametrize(("files", "free"), [({}, 51_200), (CGROUP_2, 15_000), (CGROUP_1, 20_001)])
def test_what_is_free_is_the_least_of_what_the_kernel_and_the_limits_say(files, free, tmp_path):
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory.free("cpu", tmp_path) == free


def test_where_nothing_is_said_all_the_memory_there_is_counts(tmp_path):
    assert memory.free("cpu", tmp_path) >= memory.free("cpu")
