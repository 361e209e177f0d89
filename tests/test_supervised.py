import csv
import itertools
import math
from pathlib import Path

import pytest
import torch
from conftest import StopAfter, once
from torch import nn

from rl_plasticity import checkpoint, supervised
from rl_plasticity.command import FaultyRun
from rl_plasticity.configs import schema
from rl_plasticity.configs.schema import SettingsError, Supervised, Train
from rl_plasticity.interventions import INTERVENTIONS
from rl_plasticity.networks import NETWORKS, PARAMETRIZATIONS
from rl_plasticity.optimizers import OPTIMIZERS
from rl_plasticity.regularizers import REGULARIZERS
from rl_plasticity.supervised import accuracy, command, cross_entropy, train
from rl_plasticity.tasks import TASKS, Data
from rl_plasticity.train import command as rl_command

SMALL = ["data.train_size=300", "net.widths=[16]", "batch_size=100", "epochs_per_task=2", "num_tasks=2"]
SMALL += [
    "device=cpu",
    "compile=false",
    "threads=1",
    "eval_every_epochs=1",
    "log_every_updates=2",
    "measure_every_updates=1",
]


def run(arguments, out, stop=None):
    settings, folder, saved = command.prepare(once([*arguments, f"out={out}"]))
    train(settings, folder, saved, stop or StopAfter())
    return folder


def rows(folder, name=None):
    with (Path(folder) / "metrics.csv").open() as file:
        return [r for r in csv.DictReader(file) if name is None or r["name"] == name]


def assert_finite(folder):
    """A matrix of rank below its size has an infinite condition number; everything else is finite."""
    found = [r for r in rows(folder) if "condition" not in r["name"]]
    assert found
    assert all(math.isfinite(float(r["value"])) for r in found), found


def value(folder, name, run_="0"):
    return [float(r["value"]) for r in rows(folder, name) if r["run"] == run_]


def test_the_loss_and_the_accuracy_equal_torch_s_for_each_run():
    logits, labels = torch.randn(3, 7, 5), torch.randint(5, (3, 7))
    expected = torch.stack([nn.functional.cross_entropy(a, b) for a, b in zip(logits, labels, strict=True)])
    torch.testing.assert_close(cross_entropy(logits, labels), expected)
    torch.testing.assert_close(cross_entropy(logits[0], labels[0]), expected[0])
    assert accuracy(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)


@pytest.mark.parametrize("reg", REGULARIZERS)
def test_every_regularizer_runs_and_several_runs_at_once(reg, tmp_path):
    folder = run([*SMALL, f"reg={reg}", "seeds=3"], tmp_path / "run")
    assert_finite(folder)
    assert {r["run"] for r in rows(folder)} == {"0", "1", "2"}


@pytest.mark.parametrize(("reset", "optimizer"), itertools.product(INTERVENTIONS, OPTIMIZERS))
def test_every_intervention_runs_with_every_optimizer(reset, optimizer, tmp_path):
    folder = run([*SMALL, f"reset={reset}", f"optimizer={optimizer}"], tmp_path / "run")
    assert len(value(folder, "task/train_accuracy")) == 2


@pytest.mark.parametrize("task", TASKS)
def test_every_task_runs_on_the_digits(task, tmp_path):
    settings = [a for a in SMALL if not a.startswith("num_tasks")]
    number = {"random_labels": 2, "pixel_permutation": 2, "label_flip": 2, "binary_pairs": 2}.get(task, "null")
    folder = run([*settings, f"task={task}", f"num_tasks={number}", "epochs_per_task=1"], tmp_path / "run")
    assert len(value(folder, "task/train_accuracy")) >= 1
    assert bool(rows(folder, "task/test_accuracy")) == (task != "random_labels")  # nothing to generalize there


@pytest.mark.parametrize("net", NETWORKS)
def test_every_network_makes_a_few_updates_on_generated_data(net, tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    side = 32 if net.startswith("vgg") else 8

    def part(n):
        images = torch.randint(256, (n, 3, side, side), dtype=torch.uint8, generator=generator)
        return images, torch.arange(n) % 4

    data = Data.of("generated", part(8), part(4), 4)
    monkeypatch.setattr(supervised, "load", lambda *arguments, **settings: data)
    settings = [a for a in SMALL if not a.startswith(("net", "data"))]
    augment = ["data.augment=true"] if net == "resnet18" else []
    # The largest have tens of millions of weights: one update is enough; contracts are tested on small ones.
    reg = "none" if net.startswith(("vgg", "wrn")) else "spectral"
    extra = ["epochs_per_task=1", "num_tasks=1", "batch_size=8", f"reg={reg}", *augment]
    extra += ["measure_every_updates=0"] * net.startswith(("vgg", "wrn", "resnet"))
    folder = run([*settings, f"net={net}", *extra], tmp_path / "run")
    assert math.isfinite(value(folder, "task/train_loss")[0])


@pytest.mark.parametrize("name", PARAMETRIZATIONS)
@pytest.mark.parametrize("net", ["mlp", "cnn"])
def test_parametrized_networks_run_with_several_runs_and_a_regularizer(name, net, tmp_path):
    settings = [a for a in SMALL if not a.startswith("net")]
    folder = run([*settings, f"net={net}", f"net.parametrization={name}", "seeds=2", "reg=spectral"], tmp_path / "run")
    assert_finite(folder)


@pytest.mark.parametrize(
    ("task", "net"),
    [
        *itertools.product(TASKS, ["mlp", "cnn", "cnn_bn"]),
        *itertools.product(["pixel_permutation", "class_incremental"], ["resnet18", "vit_tiny"]),
    ],
)
def test_every_task_goes_with_every_kind_of_network_on_generated_colour_images(task, net, tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)

    def part(n):
        return torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8, generator=generator), torch.arange(n) % 10

    data = Data.of("generated", part(20), part(20), 10)
    monkeypatch.setattr(supervised, "load", lambda *arguments, **settings: data)
    number = {"warm_start": 2, "continual_full": 10, "continual_limited": 10, "stationary": 1}.get(task, 2)
    seeds = "seeds=1" if net in ("resnet18", "vit_tiny") else "seeds=2"
    folder = tmp_path / "run"
    settings = [f"task={task}", f"net={net}", seeds, f"num_tasks={number}", "epochs_per_task=1", "batch_size=20"]
    settings += ["compile=false", "threads=1", "log_every_updates=1", "eval_every_epochs=5", f"out={folder}"]
    measured = net != "resnet18" or task == "pixel_permutation"  # once is enough for so large a network
    settings += [f"measure_every_updates={int(measured)}"]
    arguments, folder, saved = command.prepare(settings)
    train(arguments, folder, saved, StopAfter(2))
    assert_finite(folder)
    assert rows(folder, "net/loss")


def test_a_network_that_learns_reaches_high_accuracy_and_generalizes(tmp_path):
    settings = [
        "task=stationary",
        "net.widths=[64]",
        "epochs_per_task=30",
        "batch_size=64",
        "compile=false",
        "threads=1",
    ]
    folder = run(settings, tmp_path / "run")
    assert value(folder, "task/train_accuracy")[0] > 0.98
    assert value(folder, "task/test_accuracy")[0] > 0.9


def test_online_accuracy_is_of_each_batch_before_it_is_learned(tmp_path):
    # One epoch over random labels, each batch seen once: chance, whatever is learned.
    folder = run([*SMALL, "epochs_per_task=1", "num_tasks=1", "data.train_size=1400", "lr=0.01"], tmp_path / "run")
    assert value(folder, "task/online_accuracy")[0] == pytest.approx(0.1, abs=0.04)


def test_a_learning_rate_that_decays_at_epochs_does_so(tmp_path):
    arguments = [*SMALL, "task=stationary", "num_tasks=1", "epochs_per_task=5", "task.decay_at_epochs=[2,4]", "lr=0.01"]
    folder = run(arguments, tmp_path / "run")
    assert checkpoint.load(folder / "checkpoints")["learner"]["optimizer.lr"].item() == pytest.approx(1e-4)


def test_a_reset_at_each_task_starts_from_chance(tmp_path):
    arguments = [*SMALL, "task=label_flip", "epochs_per_task=15", "lr=0.01", "reset=periodic"]
    folder = run(arguments, tmp_path / "run")
    state = checkpoint.load(folder / "checkpoints")
    assert state["learner"]["draws"].tolist() == [2]
    assert state["learner"]["optimizer.step"].tolist() == [45]  # 3 batches in each of 15 epochs since the reset


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run([*SMALL, *RESUMED], tmp_path_factory.mktemp("supervised") / "run")


RESUMED = ["seeds=2", "reg=spectral+swr", "reset=shrink_perturb", "epochs_per_task=4", "num_tasks=3"]
RESUMED += ["checkpoint_every_epochs=3", "net=cnn_bn", "net.activation=relu"]
RESUMED = [a for a in RESUMED if not a.startswith("net")] + ["task=pixel_permutation"]


@pytest.mark.parametrize("stops", [(0,), (2,), (4,), (5, 3)])
def test_a_stopped_and_resumed_run_equals_one_never_stopped_bit_for_bit(stops, uninterrupted, tmp_path):
    folder = run([*SMALL, *RESUMED], tmp_path / "run", StopAfter(stops[0]))
    for stop in (*stops[1:], None):
        train(*command.prepare([f"resume={folder}"]), StopAfter(stop))
    assert (folder / "metrics.csv").read_bytes() == (uninterrupted / "metrics.csv").read_bytes()
    ends = [checkpoint.load(f / "checkpoints") for f in (folder, uninterrupted)]
    for name, tensor in ends[0]["learner"].items():
        assert torch.equal(tensor, ends[1]["learner"][name]), name


def test_both_commands_make_the_same_kind_of_regularizer_with_the_same_state(monkeypatch, tmp_path):
    from rl_plasticity.grid import regularizer_for
    from rl_plasticity.networks import MLP

    for name in REGULARIZERS:
        made = [
            regularizer_for(schema.load(kind, [f"reg={name}"]))(MLP((4, 8, 2), [0])) for kind in (Train, Supervised)
        ]
        assert type(made[0]) is type(made[1]) is REGULARIZERS[name]
        assert made[0].state_dict().keys() == made[1].state_dict().keys()
    assert rl_command.kind is Train


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    with pytest.raises(FaultyRun, match="the loss of seed 0 is not finite after 2 updates; the last good checkpoint"):
        run([*SMALL, "lr=1e30"], tmp_path / "run")


def test_bad_input_makes_nothing(tmp_path):
    for arguments, said in (
        (["net=resnet18", "seeds=2"], "train one run per process"),
        (["data=mnist"], "data.root=FOLDER"),  # not bundled; no network in tests
        (["task=stationary", "num_tasks=5"], "stationary"),
        (["data.root=nowhere"], "digits"),
        (["net=vgg16"], "32"),
        (["net.parametrization=weight_standardisation"], "did you mean 'weight_standardization'"),
    ):
        with pytest.raises(SettingsError) as error:
            command.prepare([*arguments, f"out={tmp_path / 'run'}"])
        assert said in str(error.value)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "run").exists()


def compiles(*arguments):
    """What ``compile=auto`` becomes where there is a compiler."""
    return command.resolved(schema.load(Supervised, ["device=cpu", "threads=1", *arguments])).compile


def test_auto_compiles_where_enough_whole_batches_are_planned_for_a_network_with_a_runs_axis(monkeypatch):
    monkeypatch.setattr("rl_plasticity.command.shutil.which", lambda name: f"/usr/bin/{name}")
    enough = ["data.train_size=1000", "batch_size=100", "num_tasks=10"]  # 100 updates an epoch
    assert compiles(*enough, "epochs_per_task=100")
    assert compiles(*enough, "epochs_per_task=100", "net=cnn")
    assert not compiles(*enough, "epochs_per_task=99")
    assert not compiles(*enough[1:], "epochs_per_task=100", "data.train_size=999")  # the last batch is smaller
    assert not compiles(*enough, "epochs_per_task=100", "net=resnet18")


def test_only_whole_batches_go_to_the_compiled_update_because_it_is_of_one_shape(tmp_path, monkeypatch):
    shapes = []

    def compiled(update, device):
        def fast(x, y):
            shapes.append(y.shape)
            return update(x, y)

        return fast

    monkeypatch.setattr("rl_plasticity.supervised.compiled", compiled)
    settings = ["data.train_size=250", "task=continual_full", "num_tasks=5", "epochs_per_task=1", "compile=true"]
    run([*SMALL, *settings, "batch_size=40"], tmp_path / "run")  # chunks of 50 add up: the last batches all differ
    assert shapes == [(1, 40)] * (1 + 2 + 3 + 5 + 6)
