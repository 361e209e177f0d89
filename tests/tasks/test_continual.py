"""Task sequences: what each task holds, and that it depends on the seed and the index alone."""

import numpy as np
import pytest
import torch
from conftest import assert_equal_states, nothing_drawn, refused

from rl_plasticity.settings import settings_of
from rl_plasticity.tasks import TASKS, Data, DataError, batch, load

SEEDS = [3, 4, 9]


@pytest.fixture(scope="module")
def data():
    """12 classes of 7 to 9 training images, 4 or 5 for testing, 2 for validation; a pixel tells its image and place."""
    n, m = 96, 80
    generator = torch.Generator().manual_seed(0)
    y = torch.cat([torch.arange(12).repeat(7), torch.arange(12)])[torch.randperm(n, generator=generator)]
    y[(y == 5).nonzero()[0]] = 6  # uneven classes
    x = (torch.arange(n + m)[:, None, None, None] + torch.arange(2 * 3 * 4).view(2, 3, 4) * 1000).float()
    return Data.of("made", (x[:n], y), (x[n:], torch.arange(m) % 12), 12, validation=24)


def tasks_of(name, data, count):
    sequence = TASKS[name](data, SEEDS)
    return [sequence.task(i) for i in range(min(count, sequence.num_tasks))]


def tensors(task):
    parts = [t for split in ("train", "validation", "test") for t in task.part(split)]
    return parts + ([] if task.pixels is None else [task.pixels])


@pytest.mark.parametrize("name", TASKS)
def test_a_task_depends_on_the_seed_and_the_index_alone_and_changes_no_global_random_state(name, data):
    sequence = TASKS[name](data, SEEDS)
    last = sequence.num_tasks - 1
    alone = TASKS[name](data, [SEEDS[1]])
    for index in {last, last // 2, 0}:  # not in order, and none before it
        task = sequence.task(index)
        with nothing_drawn():
            again, single = TASKS[name](data, SEEDS).task(index), alone.task(index)
            batch(again, data, torch.zeros(3, 1, dtype=torch.int64))
        assert task.index == index
        assert_equal_states(tensors(task), tensors(again))
        assert_equal_states([many[1:2] for many in tensors(task)], tensors(single))


@pytest.mark.parametrize("name", TASKS)
def test_rows_are_distinct_images_and_labels_are_below_the_number_of_classes(name, data):
    num_classes = TASKS[name](data, SEEDS).num_classes
    for task in tasks_of(name, data, 4):
        for split in ("train", "validation", "test"):
            rows, labels = task.part(split)
            assert rows.shape == labels.shape
            assert rows.shape[0] == 3
            assert rows.dtype == labels.dtype == torch.int64
            for run in range(3):
                assert len(rows[run].unique()) == rows.shape[1]
            if rows.numel():
                assert 0 <= rows.min() <= rows.max() < len(data.labels(split))
                assert 0 <= labels.min() <= labels.max() < num_classes


@pytest.mark.parametrize("name", sorted(set(TASKS) - {"stationary", "pixel_permutation"}))
def test_other_seeds_give_other_tasks(name, data):
    task = TASKS[name](data, SEEDS).task(0)
    assert not torch.equal(task.rows[0], task.rows[1]) or not torch.equal(task.labels[0], task.labels[1])


@pytest.mark.parametrize("name", ["continual_full", "warm_start", "stationary", "label_flip", "class_incremental"])
def test_the_test_set_is_whole_and_never_a_training_image(name, data):
    task = TASKS[name](data, SEEDS).task(0)
    if name != "class_incremental":
        assert torch.equal(task.test_rows, torch.arange(56).expand(3, 56))
        assert torch.equal(task.validation_rows, torch.arange(24).expand(3, 24))
    x, _ = batch(task, data, torch.zeros(3, 1, dtype=torch.int64), "test")
    assert (x[:, 0, 0, 0, 0] >= 96).all()


def test_random_labels_are_drawn_anew_and_uniformly_for_every_task_and_seed(data):
    tasks = tasks_of("random_labels", data, 30)
    for task in tasks:
        assert torch.equal(task.rows, torch.arange(96).expand(3, 96))
        assert task.test_rows.shape == task.validation_rows.shape == (3, 0)
    labels = torch.stack([task.labels for task in tasks])  # [tasks, runs, n]
    agree = [(labels[i] == labels[i + 1]).double().mean().item() for i in range(29)]
    assert np.mean(agree) == pytest.approx(1 / 12, abs=0.02)
    assert (labels[:, 0] == labels[:, 1]).double().mean().item() == pytest.approx(1 / 12, abs=0.03)
    assert (labels[:, 2] == data.train_y).double().mean().item() == pytest.approx(1 / 12, abs=0.03)
    share = labels.flatten().bincount(minlength=12) / labels.numel()
    assert (share - 1 / 12).abs().max() < 0.015


def test_a_pixel_permutation_is_a_permutation_and_another_one_for_every_task_and_seed(data):
    tasks = tasks_of("pixel_permutation", data, 5)
    pixels = torch.stack([task.pixels for task in tasks]).flatten(0, 1)  # [tasks * runs, h * w]
    assert torch.equal(pixels.sort(-1).values, torch.arange(12).expand(15, 12))
    assert len(pixels.unique(dim=0)) == 15
    for task in tasks:
        assert torch.equal(task.labels, data.train_y.expand(3, 96))


def test_permuted_images_hold_the_same_pixels_in_the_run_s_order(data):
    task = TASKS["pixel_permutation"](data, SEEDS).task(2)
    index = torch.tensor([[0, 5], [7, 7], [95, 1]])
    x, y = batch(task, data, index)
    assert x.shape == (3, 2, 2, 3, 4)
    for run in range(3):
        assert torch.equal(x[run].flatten(-2), data.train_x[index[run]].flatten(-2)[..., task.pixels[run]])
    assert torch.equal(y, data.train_y[index])
    test_x, _ = batch(task, data, index % 50, "test")
    assert torch.equal(test_x[0, 1, 0].flatten(), data.test_x[5, 0].flatten()[task.pixels[0]])
    several_x, several_y = batch(task, data, torch.stack([index.flip(1), index]))  # two batches of each run
    assert torch.equal(several_x[1], x)
    assert torch.equal(several_x[0], x.flip(1))
    assert torch.equal(several_y, torch.stack([y.flip(1), y]))


def test_flipped_labels_rename_the_classes_one_to_one_and_alike_for_training_and_testing(data):
    tasks = tasks_of("label_flip", data, 5)
    names = []
    for task in tasks:
        for run in range(3):
            name = torch.full((12,), -1)
            name[data.train_y] = task.labels[run]
            assert torch.equal(name[data.train_y], task.labels[run])
            assert torch.equal(name.sort().values, torch.arange(12))
            assert torch.equal(name[data.test_y], task.test_labels[run])
            assert torch.equal(name[data.validation_y], task.validation_labels[run])
            names.append(name)
    assert len(torch.stack(names).unique(dim=0)) == 15


def test_classes_come_five_at_a_time_and_keep_their_names(data):
    sequence = TASKS["class_incremental"](data, SEEDS)
    tasks = [sequence.task(i) for i in range(sequence.num_tasks)]
    assert sequence.num_classes == 12
    fewest = int(data.train_y.bincount().min())
    for before, task, count in zip([None, *tasks], tasks, [5, 10, 12], strict=False):
        for run in range(3):
            true, named = data.train_y[task.rows[run]], task.labels[run]
            pairs = torch.stack([true, named]).unique(dim=1)
            assert pairs.shape[1] == count  # one name for each class
            assert torch.equal(named.bincount(), torch.full((count,), fewest))
            assert named[: 2 * count].bincount().tolist() == [2] * count  # the first images are of all classes
            assert set(data.test_y[task.test_rows[run]].tolist()) == set(true.tolist())
            if before is not None:
                old = dict(zip(data.train_y[before.rows[run]].tolist(), before.labels[run].tolist(), strict=True))
                new = dict(zip(true.tolist(), named.tolist(), strict=True))
                assert old.items() < new.items()


def test_pairs_have_exactly_two_classes_and_every_class_has_its_turn(data):
    sequence = TASKS["binary_pairs"](data, SEEDS, num_tasks=12)
    assert sequence.num_classes == 2
    for run in range(3):
        seen = []
        for i in range(12):
            task = sequence.task(i)
            true = data.train_y[task.rows[run]]
            zero, one = (true[task.labels[run] == k].unique() for k in (0, 1))
            assert len(zero) == len(one) == 1
            assert zero != one
            assert torch.equal(data.test_y[task.test_rows[run]].unique(), torch.cat([zero, one]).sort().values)
            seen.append((int(zero), int(one)))
        for turn in (seen[:6], seen[6:]):
            assert sorted(c for pair in turn for c in pair) == list(range(12))
        assert {frozenset(p) for p in seen[:6]} != {frozenset(p) for p in seen[6:]}


def test_a_warm_start_has_half_of_the_images_then_all(data):
    half, whole = tasks_of("warm_start", data, 2)
    assert half.rows.shape == (3, 48)
    assert torch.equal(whole.rows.sort(-1).values, torch.arange(96).expand(3, 96))
    assert torch.equal(half.labels, data.train_y[half.rows])
    assert not torch.equal(half.rows[0].sort().values, torch.arange(48))  # a random half


def test_accumulated_chunks_are_those_of_the_limited_sequence_and_those_partition_the_training_images(data):
    limited, full = tasks_of("continual_limited", data, 10), tasks_of("continual_full", data, 10)
    assert sorted({task.rows.shape[1] for task in limited}) == [9, 10]
    assert torch.equal(full[-1].rows.sort(-1).values, torch.arange(96).expand(3, 96))
    for i, task in enumerate(full):
        assert torch.equal(task.rows, torch.cat([chunk.rows for chunk in limited[: i + 1]], dim=1))
        for each in (task, limited[i]):
            assert torch.equal(each.labels, data.train_y[each.rows])


def test_only_the_stationary_task_has_settings_and_its_learning_rate_may_decay(data):
    settings = {name: settings_of(make).keys() - {"num_tasks"} for name, make in TASKS.items()}
    assert [name for name, declared in settings.items() if declared] == ["stationary"]
    assert not any(make(data, SEEDS).decay_at_epochs for make in TASKS.values())
    made = TASKS["stationary"](data, SEEDS, decay_at_epochs=[100, 150], decay=0.5, rebase=False)
    assert (made.decay_at_epochs, made.decay, made.rebase) == ((100, 150), 0.5, False)
    refused(lambda: TASKS["stationary"](data, SEEDS, decay=0), match=r"decay\b.*a number above 0.*\b0$")


def test_a_batch_holds_each_run_s_own_images_and_labels(data):
    task = TASKS["continual_limited"](data, SEEDS).task(1)
    index = torch.tensor([[0, 3, 3], [8, 2, 1], [5, 0, 7]])
    x, y = batch(task, data, index)
    assert x.shape == (3, 3, 2, 3, 4)
    rows = torch.stack([of_run[at] for of_run, at in zip(task.rows, index, strict=True)])
    assert torch.equal(x, data.train_x[rows])
    assert torch.equal(y, data.train_y[rows])
    x, y = batch(task, data, index, "validation")
    assert torch.equal(x[1], data.validation_x[index[1]])
    assert torch.equal(y[1], data.validation_y[index[1]])


@pytest.mark.parametrize(("name", "count", "named"), [
    ("stationary", 2, "num_tasks.*1.*stationary.*made.*2"),
    ("warm_start", 3, "num_tasks.*1 to 2.*warm_start.*made.*3"),
    ("class_incremental", 4, "num_tasks.*1 to 3"),
    ("random_labels", 0, "num_tasks.*1"),
    ("continual_full", 97, "num_tasks.*1 to 96"),
])  # fmt: skip
def test_a_number_of_tasks_that_cannot_be_is_one_line(name, count, named, data):
    refused(lambda: TASKS[name](data, SEEDS, num_tasks=count), match=named, error=ValueError)


def test_there_is_no_task_outside_the_sequence_and_no_sequence_without_a_seed(data):
    sequence = TASKS["random_labels"](data, SEEDS, num_tasks=2)
    for index in (-1, 2):
        with pytest.raises(IndexError, match=rf"{index}\b.*random_labels.*\b0 to 1"):
            sequence.task(index)
    refused(lambda: TASKS["random_labels"](data, []), match="seed", error=ValueError)


@pytest.mark.parametrize("name", ["class_incremental", "binary_pairs"])
def test_a_class_without_images_is_one_line(name):
    digits = load("digits", train_size=5)
    missing = int((digits.train_y.bincount(minlength=10) == 0).nonzero()[0])
    refused(lambda: TASKS[name](digits, [0]).task(0), match=rf"{name}\b.*digits.*\b{missing}\b", error=DataError)
