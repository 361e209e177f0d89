"""Task sequences: continual problems made of one data set, the same for every method, for many runs at once."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rl_plasticity.errors import SettingsError
from rl_plasticity.plugins import Choices
from rl_plasticity.seeding import derive
from rl_plasticity.settings import Setting, checked
from rl_plasticity.tasks.data import Data, DataError, Split

Pair = tuple[Tensor, Tensor]  # rows or images, and their labels
_STREAM = 0x7A5C  # a run's tasks are unrelated to whatever else is drawn from its seed


@dataclass(frozen=True, eq=False)
class Task:
    """One stretch of a continual problem, as indices into the data: images are never copied.

    Attributes:
        index: the task's place in its sequence.
        rows, labels: the training images ``[runs, n]``: rows of ``data.train_x``, and their labels in this task.
        validation_rows, validation_labels, test_rows, test_labels: the same for the other splits. n is 0 where nothing
            can be generalized.
        pixels: the pixel that each position of an image shows, ``[runs, h * w]``, the same for every channel.
    """

    index: int
    rows: Tensor
    labels: Tensor
    validation_rows: Tensor
    validation_labels: Tensor
    test_rows: Tensor
    test_labels: Tensor
    pixels: Tensor | None = None

    def part(self, split: Split) -> Pair:
        """Rows and labels of a split."""
        if split == "train":
            return self.rows, self.labels
        if split == "validation":
            return self.validation_rows, self.validation_labels
        return self.test_rows, self.test_labels


def batch(task: Task, data: Data, index: Tensor, split: Split = "train") -> Pair:
    """Gather a batch of each run, on the data's device.

    Args:
        task: gives the rows, labels and pixels.
        data: the data set that the task was made of.
        index: numbers of the task's images, ``[..., runs, batch]``, from 0 to n - 1.
        split: the part of the data.

    Returns:
        Images as stored ``[..., runs, batch, c, h, w]`` (see `Data.to_float`), and labels ``[..., runs, batch]``.
    """
    rows, labels = (part.expand(*index.shape[:-1], -1) for part in task.part(split))
    x = data.images(split)[rows.gather(-1, index)]
    if task.pixels is not None:
        flat = x.flatten(-2)  # [..., runs, batch, c, h * w]
        x = flat.gather(-1, task.pixels[:, None, None].expand_as(flat)).view_as(x)
    return x, labels.gather(-1, index)


class TaskSequence(ABC):
    """Tasks by their index, in any order. Each depends only on the data, a run's seed and the index.

    A run's tasks are the same alone and among other runs. The task of every run has the same number of images.

    Args:
        data: the data set.
        seeds: one seed for each run.
        num_tasks: number of tasks; by default the usual number of the sequence.

    Attributes:
        decay_at_epochs, decay, rebase: when the learning rate decays, by which factor, and whether SWR then takes the
            norms as its reference. By default it never decays.

    Raises:
        SettingsError: no seed, or a number of tasks that the sequence cannot have.
    """

    decay_at_epochs: Sequence[int] = ()
    decay: float = 0.1
    rebase: bool = True

    def __init__(self, data: Data, seeds: Sequence[int], num_tasks: int | None = None) -> None:
        if not seeds:
            raise SettingsError("seeds must hold at least one seed")
        self.data, self.seeds = data, tuple(seeds)
        usual, most = self._counts
        self.num_tasks = usual if num_tasks is None else num_tasks
        if self.num_tasks < 1 or (most is not None and self.num_tasks > most):
            upto = "at least 1" if most is None else f"from 1 to {most}"
            raise SettingsError(f"num_tasks must be {upto} for {self.name} with {data.name}, got {num_tasks}")

    @property
    def num_classes(self) -> int:
        """The number of outputs that a network needs."""
        return self.data.num_classes

    @property
    def name(self) -> str:
        """The name of the sequence in messages: that of its class as in `TASKS`, ``random_labels``."""
        return re.sub(r"\B(?=[A-Z])", "_", type(self).__name__).lower()

    def task(self, index: int) -> Task:
        """The task at `index`, from 0 to `num_tasks` - 1.

        Raises:
            IndexError: there is no such task.
        """
        if not 0 <= index < self.num_tasks:
            raise IndexError(f"task {index} of {self.name}, which has the tasks 0 to {self.num_tasks - 1}")
        device = self.data.train_x.device

        def part(split: Split) -> Pair:
            y = self.data.labels(split).cpu()
            chosen = [self._part(seed, index, split, y) for seed in self.seeds]
            return torch.stack([r for r, _ in chosen]).to(device), torch.stack([y for _, y in chosen]).to(device)

        permutations = [self._pixels(seed, index) for seed in self.seeds]
        pixels = [p for p in permutations if p is not None]
        return Task(
            index,
            *part("train"),
            *part("validation"),
            *part("test"),
            pixels=torch.stack(pixels).to(device) if pixels else None,
        )

    @property
    def _counts(self) -> tuple[int, int | None]:
        """The usual number of tasks, and the largest (None: any number)."""
        return 50, None

    @abstractmethod
    def _part(self, seed: int, index: int, split: Split, y: Tensor) -> Pair:
        """Rows and labels of one run's task, ``[n]``, given the split's true labels `y`."""

    def _pixels(self, seed: int, index: int) -> Tensor | None:
        """The permutation of the pixels, ``[h * w]``."""
        return None


def _generator(seed: int, *keys: int) -> torch.Generator:
    return torch.Generator().manual_seed(derive(seed, _STREAM, *keys))


def _permutation(n: int, seed: int, *keys: int) -> Tensor:
    return torch.randperm(n, generator=_generator(seed, *keys))


def _all(y: Tensor) -> Tensor:
    return torch.arange(len(y))


class RandomLabels(TaskSequence):
    """Each task is to memorize new labels, drawn uniformly for each image. There is nothing to test."""

    def _part(self, seed: int, index: int, split: Split, y: Tensor) -> Pair:
        if split != "train":
            return _all(y[:0]), y[:0]
        return _all(y), torch.randint(self.num_classes, y.shape, generator=_generator(seed, index))


class PixelPermutation(TaskSequence):
    """Each task shows all images with their pixels in a new order (the first task too), the same in all channels."""

    def _part(self, seed: int, index: int, split: Split, y: Tensor) -> Pair:
        return _all(y), y

    def _pixels(self, seed: int, index: int) -> Tensor:
        _, h, w = self.data.shape
        return _permutation(h * w, seed, index)


class LabelFlip(TaskSequence):
    """Each task permutes the labels of the classes (the first task too)."""

    def _part(self, seed: int, index: int, split: Split, y: Tensor) -> Pair:
        return _all(y), _permutation(self.num_classes, seed, index)[y]


def _of_classes(sequence: TaskSequence, chosen: Tensor, split: Split, y: Tensor) -> Pair:
    """Rows and labels of the chosen classes in turn, which get the labels 0, 1, ... in their order.

    Each class gives as many images as the rarest class has, so that every run's task has the same number. The task's
    first images, which are measured, are of all classes.
    """
    if not len(y):
        return _all(y), y
    counts = torch.bincount(y, minlength=sequence.data.num_classes)
    count = int(counts.min())
    if count == 0:
        raise DataError(
            f"{sequence.name} needs every class in the {split} images of {sequence.data.name}, "
            f"and class {int(counts.argmin())} has none: use more images"
        )
    rows = [(y == c).nonzero()[:count, 0] for c in chosen.tolist()]
    return torch.stack(rows, 1).flatten(), torch.arange(len(chosen)).repeat(count)


class ClassIncremental(TaskSequence):
    """5 classes first, 5 more with each task, in each run's random order; a class's label is its place in that order.

    A network has one output for each class from the start, and all of them count in loss and accuracy. Lewandowski et
    al. (2024), section 5, describe a growing subset of the classes, and nothing that would hide an output. A class that
    has not come yet has no image in training or testing, so the network must learn to keep its output low.
    """

    step = 5

    @property
    def _counts(self) -> tuple[int, int]:
        tasks = -(-self.data.num_classes // self.step)
        return tasks, tasks

    def _part(self, seed: int, index: int, split: Split, y: Tensor) -> Pair:
        order = _permutation(self.num_classes, seed)
        return _of_classes(self, order[: self.step * (index + 1)], split, y)


class BinaryPairs(TaskSequence):
    """Each task is to tell two classes apart, which get the labels 0 and 1.

    The classes are paired at random. When each pair has been a task, they get new pairs. An odd class is left out.

    With ``data=imagenet32`` this is Continual ImageNet (Dohare et al. 2021): 600 training and 100 test images of each
    class. Kumar et al. (2023) train 500 tasks of 10 epochs with batches of 100, and Lewandowski et al. (2024), C.7,
    follow them. Dohare et al. train 2000 tasks of 250 epochs with batches of 100. Images are standardized by channel,
    as in all data sets here; their code takes the bytes as they are.
    """

    num_classes = 2

    def _part(self, seed: int, index: int, split: Split, y: Tensor) -> Pair:
        turn, place = divmod(index, self.data.num_classes // 2)
        order = _permutation(self.data.num_classes, seed, turn)
        return _of_classes(self, order[2 * place : 2 * place + 2], split, y)


class WarmStart(TaskSequence):
    """Half of the training images, drawn at random, then all of them (Ash and Adams 2020)."""

    _counts = 2, 2

    def _part(self, seed: int, index: int, split: Split, y: Tensor) -> Pair:
        half = split == "train" and index == 0
        rows = _permutation(len(y), seed)[: len(y) // 2] if half else _all(y)
        return rows, y[rows]


class ContinualFull(TaskSequence):
    """The training images arrive in random chunks, one with each task, and stay (Shen et al. 2024)."""

    stay = True

    @property
    def _counts(self) -> tuple[int, int]:
        return 10, len(self.data.train_y)

    def _part(self, seed: int, index: int, split: Split, y: Tensor) -> Pair:
        if split != "train":
            return _all(y), y
        chunks = torch.tensor_split(_permutation(len(y), seed), self.num_tasks)  # of sizes that differ by one at most
        rows = torch.cat(chunks[0 if self.stay else index : index + 1])
        return rows, y[rows]


class ContinualLimited(ContinualFull):
    """The chunks of `ContinualFull`, but each task has the newest one alone."""

    stay = False


class Stationary(TaskSequence):
    """One task: all images with their labels. The learning rate may decay.

    Oh et al. (2024), Appendix E, divide it by 10 at epochs 100 and 150.
    """

    _counts = 1, 1

    @checked
    def __init__(
        self,
        data: Data,
        seeds: Sequence[int],
        num_tasks: int | None = None,
        decay_at_epochs: Annotated[
            Sequence[int], Setting("epochs after which the learning rate decays, e.g. [100, 150]", least=1)
        ] = (),
        decay: Annotated[float, Setting("factor by which each decay multiplies the learning rate", above=0)] = 0.1,
        rebase: Annotated[bool, Setting("whether SWR takes the norms at each decay as its new reference")] = True,
    ) -> None:
        super().__init__(data, seeds, num_tasks)
        self.decay_at_epochs, self.decay, self.rebase = tuple(decay_at_epochs), decay, rebase

    def _part(self, seed: int, index: int, split: Split, y: Tensor) -> Pair:
        return _all(y), y


TASKS: Choices[Callable[..., TaskSequence]] = Choices(
    "TASKS",
    {
        "random_labels": RandomLabels,
        "pixel_permutation": PixelPermutation,
        "label_flip": LabelFlip,
        "class_incremental": ClassIncremental,
        "warm_start": WarmStart,
        "continual_full": ContinualFull,
        "continual_limited": ContinualLimited,
        "stationary": Stationary,
        "binary_pairs": BinaryPairs,
    },
)
"""What ``task=`` chooses from, each called as ``make(data, seeds, num_tasks, **settings)``."""
