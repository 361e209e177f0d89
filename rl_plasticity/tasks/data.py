"""Labelled images as tensors: from scikit-learn, from the Hugging Face Hub, or from npz files."""

import importlib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_plasticity.errors import SettingsError, choose, counted, reason
from rl_plasticity.paths import expanded
from rl_plasticity.plugins import Choices
from rl_plasticity.seeding import derive
from rl_plasticity.settings import Setting

Part = tuple[np.ndarray, np.ndarray]  # images uint8 [n, c, h, w] and labels int64 [n]
Split = Literal["train", "validation", "test"]
Held = Literal["test", "train"]

WRITE = "numpy.savez writes train.npz and test.npz, with images and labels (docs/supervised.md)"


class DataError(SettingsError):
    """A data set that cannot be loaded: one line that says what is wrong and what to do."""


@dataclass(frozen=True, eq=False)
class Data:
    """Images and labels on one device.

    Attributes:
        train_x, validation_x, test_x: images ``[n, c, h, w]``, uint8 from 0 to `scale`, or float from 0 to 1.
        train_y, validation_y, test_y: labels int64 ``[n]`` from 0 to `num_classes` - 1.
        scale: the largest pixel value of uint8 images (255; 16 for digits).
        mean, std: of each channel over the training images scaled to [0, 1], ``[c, 1, 1]``.
        augment: changes training images ``[batch, c, h, w]`` in [0, 1], with random numbers of a generator.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    validation_x: Tensor
    validation_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int
    scale: float
    mean: Tensor
    std: Tensor
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None

    @classmethod
    def of(
        cls,
        name: str,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        num_classes: int,
        train_size: int | None = None,
        validation: int = 0,
        scale: float = 255.0,
        validation_from: Held = "test",
    ) -> "Data":
        """Data from training and test images with their labels.

        Args:
            name: the name in errors.
            train: images and labels. The first `train_size` of them are kept.
            test: images and labels.
            num_classes: number of classes.
            train_size: number of training images to keep; all by default.
            validation: number of images in the validation set. They are drawn at random, always the same ones, with the
                classes in their proportions.
            scale: the largest pixel value of uint8 images.
            validation_from: the images that become the validation set and are then missing there: test images, as in
                the papers, or the training images that were kept.

        Raises:
            DataError: more images are asked for than there are.
        """
        train_x, train_y = train
        size = len(train_y) if train_size is None else train_size
        if not 1 <= size <= len(train_y):
            raise DataError(
                f"data.train_size must be from 1 to the {counted(len(train_y), 'image')} of {name}, got {size}"
            )
        parts = {"train": (train_x[:size], train_y[:size]), "test": test}
        x, y = parts[validation_from]
        if not 0 <= validation < len(y):
            which = counted(len(y), f"{'training' if validation_from == 'train' else 'test'} image")
            raise DataError(f"data.validation must be from 0 to one less than the {which} of {name}, got {validation}")
        order = _evenly(y, shuffle=True)
        left, taken = order[validation:].sort().values, order[:validation].sort().values
        parts |= {validation_from: (x[left], y[left]), "validation": (x[taken], y[taken])}
        mean, std = _channels(parts["train"][0], scale)
        images_and_labels = (*parts["train"], *parts["validation"], *parts["test"])
        return cls(name, *images_and_labels, num_classes, scale, mean, std)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        c, h, w = self.train_x.shape[1:]
        return c, h, w

    def images(self, split: Split) -> Tensor:
        """The images of a split, ``[n, c, h, w]``."""
        images: Tensor = getattr(self, f"{split}_x")
        return images

    def labels(self, split: Split) -> Tensor:
        """The labels of a split, ``[n]``."""
        labels: Tensor = getattr(self, f"{split}_y")
        return labels

    def to_unit(self, x: Tensor) -> Tensor:
        """Images ``[..., c, h, w]`` as float32 in [0, 1]: what augmentation works on."""
        return x if x.is_floating_point() else x.float() / self.scale

    def standardize(self, x: Tensor) -> Tensor:
        """(x - mean) / std for images in [0, 1], ``[..., c, h, w]``, by channel."""
        return (x - self.mean) / self.std

    def to_float(self, x: Tensor) -> Tensor:
        """Stored images ``[..., c, h, w]`` as a network's inputs: ``standardize(to_unit(x))``."""
        return self.standardize(self.to_unit(x))

    def to(self, device: str | torch.device) -> "Data":
        """The same data on another device."""
        tensors: dict[str, Any] = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **tensors)


class Source(NamedTuple):
    """Labelled images as a maker of `DATA` returns them, as numpy arrays or tensors.

    Attributes:
        train, test: images ``[n, c, h, w]``, uint8 from 0 to `scale` or float from 0 to 1, and their labels ``[n]``,
            integers from 0 to `num_classes` - 1.
        scale: the largest pixel value of uint8 images.
        shape: the required shape of each image; by default that of the training images.
    """

    train: tuple[np.ndarray | Tensor, np.ndarray | Tensor]
    test: tuple[np.ndarray | Tensor, np.ndarray | Tensor]
    num_classes: int
    scale: float = 255.0
    shape: tuple[int, ...] | None = None


def load(
    name: str,
    root: Annotated[
        str | None,
        Setting(
            "folder with train.npz and test.npz; null: download (digits come with scikit-learn)",
            belongs_to="machine",
        ),
    ] = None,
    train_size: Annotated[
        int | None, Setting("number of training images to keep, the first ones; null: all", least=1)
    ] = None,
    validation: Annotated[int, Setting("number of images kept for validation", least=0)] = 0,
    augment: Annotated[bool, Setting("whether to flip, color-jitter, pad and crop images (Liu et al. 2021)")] = False,
    validation_from: Annotated[
        Held, Setting("images that validation is taken from: test (as in the papers) or train")
    ] = "test",
    **settings: Any,
) -> Data:
    """The data set called `name`, as tensors on the CPU.

    Training images that are sorted by class are reordered, so that the first k, for any k, have the classes in their
    proportions.

    Args:
        name: one of `DATA`.
        root: a folder, or one that holds a folder of the data set's name, with ``train.npz`` and ``test.npz``. Each
            has ``images``, uint8 ``[n, c, h, w]``, and ``labels``, integers ``[n]``. Without `root` the data come from
            the Hub through the `datasets` library: from its cache where they are, else by download.
        train_size, validation, validation_from: see `Data.of`.
        augment: whether training augments its images, by ``AUGMENTATIONS["flip_jitter_crop"]``.
        settings: further ones of this data set.

    Raises:
        SettingsError: an unknown name or setting.
        DataError: a missing library, no connection, files that are missing or damaged, or images and labels that do not
            fit each other.
    """
    if root is not None:
        settings["root"] = root
    source = choose(DATA, name, settings, "data set")()
    shape = tuple(source.train[0].shape[1:]) if source.shape is None else source.shape
    train = checked(source.train, shape, source.num_classes, f"{name}, training")
    test = checked(source.test, shape, source.num_classes, f"{name}, test")
    if (train[1].diff() != 0).sum() < len({*train[1].tolist()}):  # sorted by class
        order = _evenly(train[1], shuffle=False)
        train = train[0][order], train[1][order]
    made = Data.of(name, train, test, source.num_classes, train_size, validation, source.scale, validation_from)
    return replace(made, augment=AUGMENTATIONS["flip_jitter_crop"]) if augment else made


def _evenly(labels: Tensor, shuffle: bool) -> Tensor:
    """An order of the images in which the first k, for any k, have the classes in their proportions.

    Image r of the n images in its class has the place (r + 1/2) / n. `shuffle` first shuffles, always in the same way.
    """
    generator = torch.Generator().manual_seed(derive(0, len(labels)))
    order = torch.randperm(len(labels), generator=generator) if shuffle else torch.arange(len(labels))
    y = labels.cpu()[order]
    counts = torch.bincount(y)
    rank = torch.empty(len(y), dtype=torch.float64)
    rank[y.argsort(stable=True)] = torch.cat([torch.arange(n, dtype=torch.float64) for n in counts.tolist()])
    return order[((rank + 0.5) / counts[y]).argsort(stable=True)].to(labels.device)


def _channels(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel in [0, 1], ``[c, 1, 1]``; 1 for a channel that never changes."""
    total = torch.zeros(2, x.shape[1], dtype=torch.float64, device=x.device)
    for start in range(0, len(x), 4096):  # a double takes eight times a byte's memory
        some = x[start : start + 4096].double()
        unit = some if x.is_floating_point() else some / scale
        total += torch.stack([unit.sum((0, 2, 3)), unit.square().sum((0, 2, 3))])
    mean, square = total / (x.numel() / x.shape[1])
    std = (square - mean.square()).clamp(min=0).sqrt()
    std = torch.where(std < 1e-6, 1.0, std)
    return mean.float()[:, None, None], std.float()[:, None, None]


def _digits() -> Source:
    """The 1797 8x8 digits of scikit-learn, 1437 for training and 360 for testing: always the same split."""
    bunch = library("sklearn.datasets").load_digits()
    x, y = bunch.images.astype(np.uint8)[:, None], bunch.target.astype(np.int64)
    order = _evenly(torch.from_numpy(y), shuffle=True).numpy()
    test, train = order[:360], order[360:]
    return Source((x[train], y[train]), (x[test], y[test]), 10, scale=16.0)


def _published(name: str, root: str | None = None) -> Source:
    """One of the papers' data sets, from a folder or from the Hub."""
    known = PUBLISHED[name]
    train, test = _from_hub(name, known) if root is None else _from_folder(name, Path(root))
    return Source(train, test, known.num_classes, shape=known.shape)


def _from_folder(name: str, root: Path) -> tuple[Part, Part]:
    """From train.npz and test.npz."""
    root = expanded(root)
    if not root.is_dir():
        raise DataError(f"data.root={root} is not a folder")
    folder = root / name if (root / name / "train.npz").is_file() else root
    if not (folder / "train.npz").is_file():
        raise DataError(f"no train.npz and test.npz in {root}: {WRITE}")
    return _from_npz(folder / "train.npz"), _from_npz(folder / "test.npz")


def _from_npz(path: Path) -> Part:
    """Images and labels of one file; pickled objects, which can run code, are refused."""
    try:
        # opened here: numpy leaves a damaged archive that it opened itself to the garbage collector
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            images, labels = file["images"], file["labels"]
    except Exception as error:  # numpy raises what the damage happens to cause
        raise DataError(f"{path} cannot be read as images and labels ({reason(error)})") from error
    if images.dtype != np.uint8 or labels.dtype.kind not in "iu":
        raise DataError(f"{path}: images are {images.dtype} and labels {labels.dtype}, expected uint8 and integers")
    return images, labels.astype(np.int64)


def _from_hub(name: str, known: "Published") -> tuple[Part, Part]:
    """Read from the Hub's cache, else download. Without a connection it raises at once what is not cached."""
    advice = f"use data.root=FOLDER: {WRITE}"
    if not known.repository:
        raise DataError(f"{name} is not downloaded: {advice}")
    datasets, hub, splits = library("datasets"), library("huggingface_hub"), ["train", known.test_split]
    if not _answers(hub.constants.ENDPOINT):  # the Hub's library would retry for half a minute
        datasets.config.HF_HUB_OFFLINE = hub.constants.HF_HUB_OFFLINE = True
    try:
        train, test = datasets.load_dataset(known.repository, known.config or None, split=splits)
    except Exception as error:  # the library's, the connection's and the disk's errors alike
        advice += ", or data=digits, which needs nothing"
        raise DataError(f"{name} cannot be downloaded ({reason(error)}): {advice}") from error
    return _decoded(train, known), _decoded(test, known)


def _answers(address: str) -> bool:
    """Whether a server answers, with whatever status."""
    try:
        urllib.request.urlopen(address, timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _decoded(table: Any, known: "Published") -> Part:
    """Images and labels of a split from the Hub's library, whose images are Pillow's."""
    image, label = known.columns
    c, h, w = known.shape
    out = np.empty((len(table), h, w, c), dtype=np.uint8)
    try:
        for i, picture in enumerate(table[image]):
            out[i] = np.asarray(picture.convert("L" if c == 1 else "RGB")).reshape(h, w, c)
        labels = np.array(table[label][:], dtype=np.int64)
    except Exception as error:  # the library's and Pillow's, whatever is damaged or missing
        raise DataError(f"{known.repository} cannot be read ({reason(error)})") from error
    return np.ascontiguousarray(out.transpose(0, 3, 1, 2)), labels


def checked(
    part: tuple[np.ndarray | Tensor, np.ndarray | Tensor], shape: tuple[int, ...], num_classes: int, where: str
) -> tuple[Tensor, Tensor]:
    """Images uint8 or float32 and labels int64.

    Raises:
        DataError: they do not fit `shape`, `num_classes` or each other, or there are none.
    """
    x, y = (torch.as_tensor(values) for values in part)
    if x.ndim != 4 or x.shape[1:] != shape:
        expected = times(shape) if len(shape) == 3 else "three numbers"
        raise DataError(f"{where}: images are {times(x.shape[1:])} (channels, height, width), expected {expected}")
    if y.shape != x.shape[:1] or not len(y):
        raise DataError(
            f"{where}: {counted(len(x), 'image')} and {times(y.shape)} labels, expected equally many, and at least one"
        )
    if y.is_floating_point() or y.min() < 0 or y.max() >= num_classes:
        raise DataError(f"{where}: labels from {y.min()} to {y.max()}, expected integers from 0 to {num_classes - 1}")
    if x.dtype == torch.uint8:
        return x, y.long()
    if not x.is_floating_point() or not (x.min() >= 0 and x.max() <= 1):
        raise DataError(
            f"{where}: pixels are {x.dtype} from {x.min()} to {x.max()}, expected uint8, or float in [0, 1]"
        )
    return x.float(), y.long()


def library(name: str) -> Any:
    """Import an optional library, or say how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise DataError(
            f"this needs the library {package}, which is not installed: pip install 'rl_plasticity[images]'; "
            "data=digits and data.root=FOLDER need none"
        ) from error


def times(shape: Iterable[int]) -> str:
    """Sizes as they are read: 3x32x32."""
    return "x".join(map(str, shape))


class Published(NamedTuple):
    """The sizes of one of the papers' data sets, and its place on the Hub.

    Attributes:
        shape: channels, height and width of an image.
        repository: its name on the Hub; empty if it is not there.
        columns: names of the columns of images and labels on the Hub.
        config: the Hub's name of the variant.
        by_class: see `Source`.
    """

    shape: tuple[int, int, int]
    num_classes: int
    train_images: int
    repository: str = ""
    columns: tuple[str, str] = ("image", "label")
    config: str = ""
    test_split: str = "test"


PUBLISHED = {
    "mnist": Published((1, 28, 28), 10, 60_000, "ylecun/mnist"),
    "fashion_mnist": Published((1, 28, 28), 10, 60_000, "zalando-datasets/fashion_mnist"),
    "emnist": Published((1, 28, 28), 47, 112_800),  # the balanced split
    "cifar10": Published((3, 32, 32), 10, 50_000, "uoft-cs/cifar10", ("img", "label")),
    "cifar100": Published((3, 32, 32), 100, 50_000, "uoft-cs/cifar100", ("img", "fine_label")),
    "svhn": Published((3, 32, 32), 10, 73_257, "ufldl-stanford/svhn", config="cropped_digits"),
    # The labels of its test images are secret.
    "tiny_imagenet": Published((3, 64, 64), 200, 100_000, "zh-plus/tiny-imagenet", test_split="valid"),
    "imagenet32": Published((3, 32, 32), 1000, 600_000),  # as Continual ImageNet has it
}

DATA: Choices[Callable[..., Source]] = Choices(
    "DATA", {"digits": _digits} | {name: partial(_published, name) for name in PUBLISHED}
)
"""Choices of ``data=``, each called as ``make(**settings)``. `root` is a setting if the data are in files."""

AUGMENTATIONS: Choices[Callable[[Tensor, torch.Generator], Tensor]] = Choices("AUGMENTATIONS")
"""Changes of training images, see `Data`; ``data.augment=true`` is that of the zoo."""


def sizes(name: str) -> tuple[int, tuple[int, int, int], int]:
    """Number of training images, shape and number of classes of a data set of the papers. No file is read.

    Raises:
        KeyError: another data set.
    """
    if name == "digits":
        return 1437, (1, 8, 8), 10
    known = PUBLISHED[name]
    return known.train_images, known.shape, known.num_classes
