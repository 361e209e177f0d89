import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import refused
from folders import goes_on_as_if_never_stopped, rows, run_supervised
from torch import nn

from rl_plasticity import supervised
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Supervised
from rl_plasticity.errors import FaultyRun
from rl_plasticity.interventions import INTERVENTIONS
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import OPTIMIZERS
from rl_plasticity.networks import NETWORKS, PARAMETRIZATIONS, make_network
from rl_plasticity.regularizers import REGULARIZERS
from rl_plasticity.seeding import RunStreams
from rl_plasticity.supervised import command, updates_after
from rl_plasticity.tasks import TASKS, Data, load
from rl_plasticity.tasks.data import AUGMENTATIONS
from rl_plasticity.training import epochs
from rl_plasticity.training.epochs import accuracy, cross_entropy, evaluate

SMALL = ["data.train_size=300", "net.widths=[16]", "batch_size=100", "epochs_per_task=2", "num_tasks=2"]
SMALL += ["device=cpu", "compile=false", "threads=1", "eval_every_epochs=1", "log_every_updates=2"]
SMALL += ["measure_every_updates=1"]

FLIP = AUGMENTATIONS["flip_jitter_crop"]


def value(folder, name, run_="0"):
    return [float(r["value"]) for r in rows(folder, name) if r["run"] == run_]


def test_the_loss_and_the_accuracy_equal_torch_s_for_each_run():
    logits, labels = torch.randn(3, 7, 5), torch.randint(5, (3, 7))
    expected = torch.stack([nn.functional.cross_entropy(a, b) for a, b in zip(logits, labels, strict=True)])
    torch.testing.assert_close(cross_entropy(logits, labels), expected)
    torch.testing.assert_close(cross_entropy(logits[0], labels[0]), expected[0])
    assert accuracy(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)


def test_the_outputs_of_classes_that_have_not_come_count_in_loss_and_accuracy():
    digits = load("digits", train_size=200)
    sequence = TASKS["class_incremental"](digits, [0, 1])
    learner = Learner(lambda seeds: make_network("mlp", digits.shape, sequence.num_classes, seeds, widths=[8]), [0, 1])
    head = learner.net[-1]
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
        head.bias[..., 9] = 5.0  # a class that comes with the second task
    scores = evaluate(sequence.task(0), digits, learner)
    assert scores["train_accuracy"].tolist() == scores["test_accuracy"].tolist() == [0.0, 0.0]
    assert scores["test_loss"].tolist() == pytest.approx([math.log(9 + math.exp(5))] * 2)
    second = sequence.task(1)
    assert evaluate(second, digits, learner)["test_accuracy"][0] == pytest.approx(1 / 10)


def generated(side, train, test, classes):
    """Colour images, each class as often."""
    generator = torch.Generator().manual_seed(0)

    def part(n):
        images = torch.randint(256, (n, 3, side, side), dtype=torch.uint8, generator=generator)
        return images, torch.arange(n) % classes

    return Data.of("generated", part(train), part(test), classes)


OTHERS = {
    "reg": [*REGULARIZERS],
    "reset": ["none", *INTERVENTIONS],
    "task": [*TASKS],
    "net.parametrization": ["none", *PARAMETRIZATIONS],
    "seeds": [1, 3],
    "data": ["digits", "digits", "digits", "colour", "colour"],
}
# cnn is cnn_bn without norm layers, kumar_cnn has a layer more; the contract has every regularizer and intervention.
CHOICES = [
    {"optimizer": optimizer, "net": net} | {name: of[(i + i // len(of)) % len(of)] for name, of in OTHERS.items()}
    for i, (optimizer, net) in enumerate([*itertools.product(OPTIMIZERS, ["mlp", "cnn_bn"]), ("adam", "cnn")])
]


CHANGES_WEIGHTS = {"swr", "wrs", "normalize_project", "hypersphere", "orthogonal", "weight_clipping"}
CHANGES_WEIGHTS |= {"continual_backprop", "self_normalized_resets", "fire", "dash", "redo", "regrama"}


@pytest.mark.parametrize("chosen", CHOICES, ids=lambda chosen: "-".join(map(str, chosen.values())))
def test_choices_run_together_and_each_with_each_kind_of_network_and_optimizer(chosen, tmp_path, monkeypatch):
    if chosen["data"] == "colour":
        data = generated(8, 20, 20, 10)
        monkeypatch.setattr(supervised, "load", lambda *arguments, **settings: data)
    task = chosen["task"]
    number = 2 if task in ("random_labels", "pixel_permutation", "label_flip", "binary_pairs") else "null"
    settings = [a for a in SMALL if not a.startswith(("net", "num_tasks"))]
    without_mean = ("rmsprop", "upgd")  # of gradients
    if chosen["reset"] in ("selective_reinit", "dash", "regrama") and chosen["optimizer"] in without_mean:
        chosen = chosen | {"optimizer": "adam"}
    # They refuse weights that are computed, or find none that are not.
    if {chosen["reg"], chosen["reset"]} & CHANGES_WEIGHTS or chosen["optimizer"] == "muon":
        chosen = chosen | {"net.parametrization": "none"}
    if chosen["reset"] == "plasticity_injection":  # of a network with room for it
        chosen = chosen | {"net": "mlp", "net.injected_layers": 2, "net.parametrization": "none"}
    if chosen["net.parametrization"] == "weight_standardization":  # for convolutions that a norm layer follows
        chosen = chosen | {"net": "cnn_bn"}
    settings += [f"{name}={value}" for name, value in chosen.items() if name != "data"]
    settings += ["epochs_per_task=1", f"num_tasks={number}", "log_every_updates=1", "measure_every_updates=3"]
    folder = run_supervised(settings, tmp_path / "run")
    # A matrix of rank below its size has an infinite condition number; everything else is finite.
    assert np.isfinite([float(r["value"]) for r in rows(folder) if "condition" not in r["name"]]).all()
    assert {r["run"] for r in rows(folder)} == ({"0"} if chosen["seeds"] == 1 else {"0", "1", "2"})
    assert rows(folder, "net/loss")
    expected = {"stationary": 1, "warm_start": 2}.get(task)
    ends = value(folder, "task/train_accuracy")
    assert len(ends) == expected if expected else len(ends) >= 2
    assert bool(rows(folder, "task/test_accuracy")) == (task != "random_labels")  # nothing to generalize there


def test_a_network_that_learns_reaches_high_accuracy_and_generalizes(tmp_path):
    settings = ["task=stationary", "net.widths=[64]", "epochs_per_task=30", "batch_size=64", "compile=false"]
    folder = run_supervised([*settings, "threads=1"], tmp_path / "run")
    assert value(folder, "task/train_accuracy")[0] > 0.98
    assert value(folder, "task/test_accuracy")[0] > 0.9


def test_online_accuracy_is_of_each_batch_before_it_is_learned(tmp_path):
    # One epoch over random labels, each batch seen once: chance, whatever is learned.
    given = ["epochs_per_task=1", "num_tasks=1", "data.train_size=1400", "lr=0.01"]
    folder = run_supervised([*SMALL, *given], tmp_path / "run")
    error = (0.1 * 0.9 / 1400) ** 0.5
    assert value(folder, "task/online_accuracy")[0] == pytest.approx(0.1, abs=5 * error)


@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("runs", [(3,), ()])
def test_an_epoch_has_every_image_once_in_an_order_of_each_run_however_many_are_gathered(augmented, runs, monkeypatch):
    data = replace(load("digits", train_size=95), augment=FLIP if augmented else None)
    task = TASKS["random_labels"](data, range(len(runs) * 2 + 1)).task(0)

    def epoch(gathered):
        monkeypatch.setattr(epochs, "GATHERED", gathered)
        order = RunStreams(range(len(task.rows)))
        return [*epochs.batches(task, data, order, 20, runs)]

    one_by_one = epoch(1)
    assert [y.shape for _, y in one_by_one] == [(*runs, 20)] * 4 + [(*runs, 15)]
    for (x, y), (other_x, other_y) in zip(one_by_one, epoch(2 * 20 * 64 + 1), strict=True):  # two at once
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)
        assert x.is_contiguous()  # a compiled update is of one layout, too
    if not augmented:
        images = torch.cat([x for x, _ in one_by_one], -4)
        labels = torch.cat([y for _, y in one_by_one], -1)
        rows = epochs.shuffled(task, RunStreams(range(len(task.rows))))
        expected = data.to_float(data.train_x[task.rows.gather(1, rows)])
        assert torch.equal(images, expected if runs else expected[0])
        assert torch.equal(labels, task.labels.gather(1, rows) if runs else task.labels[0, rows[0]])
        assert torch.equal(rows.sort(-1).values, torch.arange(95).expand(len(rows), -1))
        assert len(rows.unique(dim=0)) == len(rows)


def test_an_epoch_has_as_many_updates_as_its_own_task_has_batches():
    s = schema.load(Supervised, ["task=class_incremental", "batch_size=100", "epochs_per_task=2"])
    sequence = TASKS["class_incremental"](load("digits"), [0])
    sizes = [math.ceil(sequence.task(i).rows.shape[-1] / 100) for i in range(2)]
    assert sizes[0] < sizes[1]
    found = [updates_after(s, sequence, epochs) for epochs in (0, 1, 2, 3, 4, 10)]
    assert found == [0, sizes[0], 2 * sizes[0], 2 * sizes[0] + sizes[1], 2 * sum(sizes), 2 * sizes[0] + 8 * sizes[1]]


def test_a_full_reset_when_all_images_come_is_training_on_all_of_them_from_scratch(tmp_path, monkeypatch):
    class Scrambled(TASKS["warm_start"]):
        """A first half with wrong labels: what was learned from it cannot be the same."""

        def _part(self, seed, index, split, y):
            rows, labels = super()._part(seed, index, split, y)
            return rows, (9 - labels if (index, split) == (0, "train") else labels)

    warm = [*SMALL, "task=warm_start", "reg=swr+l2_init", "seeds=2", "epochs_per_task=1", "measure_every_updates=0"]
    scratch = [*warm, "reset=periodic", "reset.every_tasks=1"]
    first, carried_on = run_supervised(scratch, tmp_path / "first"), run_supervised(warm, tmp_path / "warm")
    monkeypatch.delitem(TASKS, "warm_start")  # a built-in name is free for another only then
    monkeypatch.setitem(TASKS, "warm_start", Scrambled)
    second = run_supervised(scratch, tmp_path / "second")

    def after(folder):  # two updates with the 150 images of the half
        return [r for r in rows(folder) if int(r["step"]) > 2]

    assert rows(first) != rows(second)
    assert after(first) == after(second)  # of the half nothing is left: weights, optimizer, norms, anchors
    assert after(first) != after(carried_on)


RESUMED = ["seeds=2", "reg=spectral+swr", "reset=shrink_perturb", "num_tasks=3", "measure_every_updates=5"]
RESUMED += ["checkpoint_every_epochs=3", "task=pixel_permutation"]


@pytest.mark.parametrize("stops", [(0,), (1,), (2, 1)])
def test_a_stopped_and_resumed_run_equals_one_never_stopped_bit_for_bit(stops, tmp_path):
    goes_on_as_if_never_stopped([*SMALL, *RESUMED], tmp_path, *stops, command=command)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    with pytest.raises(FaultyRun, match=r"net/loss of seed 0 .*\b2 updates.*step_000000000\.pt"):
        run_supervised([*SMALL, "lr=1e30"], tmp_path / "run")


def test_bad_input_makes_nothing(tmp_path):
    for arguments, said in (
        (["net=resnet18", "seeds=2"], "seeds=1"),
        (["data=mnist"], "data.root=FOLDER"),  # not bundled; no network in tests
        (["task=stationary", "num_tasks=5"], "stationary"),
        (["net=cnn", "net.parametrization=weight_standardization"], "norm layer"),
    ):
        refused(lambda given=arguments: command.prepare([*given, f"out={tmp_path / 'run'}"]), said)
        assert not (tmp_path / "run").exists()


def test_a_network_that_a_run_cannot_repeat_or_train_beside_others_is_refused(tmp_path, monkeypatch):
    def dropping(shape, num_classes, seeds):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes), nn.Dropout(0.2))

    monkeypatch.setitem(NETWORKS, "dropping", dropping)
    given = ["net=dropping", "data.train_size=300", "device=cpu", f"out={tmp_path / 'run'}"]
    refused(lambda: command.prepare([*given, "seeds=2"]), "net=dropping", "seeds=1")
    refused(lambda: command.prepare(given), "net=dropping", "random")
    assert not (tmp_path / "run").exists()


def test_decays_of_the_learning_rate_that_never_come_are_said(tmp_path, capsys):
    given = ["task=stationary", "num_tasks=1", "epochs_per_task=2", "task.decay_at_epochs=[1,2,5]"]
    run_supervised([*SMALL, *given], tmp_path / "run")
    assert "[2, 5]" in capsys.readouterr().err


def test_only_whole_batches_go_to_the_compiled_update_because_it_is_of_one_shape(tmp_path, monkeypatch):
    shapes = []

    def fastest(update, device, compiles, say):
        def fast(x, y):
            shapes.append(y.shape)
            return update(x, y)

        return fast

    monkeypatch.setattr("rl_plasticity.training.epochs.fastest", fastest)
    settings = ["data.train_size=250", "task=continual_full", "num_tasks=5", "epochs_per_task=1", "compile=true"]
    # Chunks of 50 add up: the last batches all differ.
    run_supervised([*SMALL, *settings, "batch_size=40"], tmp_path / "run")
    assert shapes == [(1, 40)] * (1 + 2 + 3 + 5 + 6)
