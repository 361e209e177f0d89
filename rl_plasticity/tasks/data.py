"""Labelled images as tensors: from scikit-learn, the Hugging Face Hub, parquet files or a data set's own files."""

import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_plasticity.errors import choose, reason
from rl_plasticity.paths import expanded
from rl_plasticity.seeding import derive
from rl_plasticity.settings import Setting
from rl_plasticity.tasks import formats
from rl_plasticity.tasks.formats import Checksums, DataError, Part, Reader, library

Split = Literal["train", "validation", "test"]
Held = Literal["test", "train"]


@dataclass(frozen=True, eq=False)
class Data:
    """Images and labels on one device.

    Attributes:
        train_x, validation_x, test_x: images ``[n, c, h, w]``, uint8 from 0 to `scale`, or float from 0 to 1.
        train_y, validation_y, test_y: labels int64 ``[n]`` from 0 to `num_classes` - 1.
        scale: the largest pixel value of uint8 images (255; 16 for digits).
        mean, std: of each channel over the training images scaled to [0, 1], ``[c, 1, 1]``.
        augment: whether training augments its images; whoever trains reads it.
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
    augment: bool = False

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
        augment: bool = False,
        validation_from: Held = "test",
    ) -> "Data":
        """Data from training and test images with their labels.

        Args:
            name: what errors call it.
            train: images and labels; the first `train_size` of them are kept.
            test: images and labels.
            num_classes: how many classes there are.
            train_size: how many training images to keep; all by default.
            validation: how many images become the validation set: drawn at random, always the same, with the classes in
                their proportions.
            scale: the largest pixel value of uint8 images.
            augment: whether training augments its images.
            validation_from: whether they are test images, as in the papers, or of the training images kept, which are
                then as many fewer.

        Raises:
            DataError: a size outside what there is.
        """
        train_x, train_y = train
        size = len(train_y) if train_size is None else train_size
        if not 1 <= size <= len(train_y):
            raise DataError(f"data.train_size must be from 1 to the {len(train_y)} images of {name}, got {size}")
        parts = {"train": (train_x[:size], train_y[:size]), "test": test}
        x, y = parts[validation_from]
        if not 0 <= validation < len(y):
            which = f"{len(y)} {'training' if validation_from == 'train' else 'test'} images"
            raise DataError(f"data.validation must be from 0 to one less than the {which} of {name}, got {validation}")
        order = _evenly(y, shuffle=True)
        left, taken = order[validation:].sort().values, order[:validation].sort().values
        parts |= {validation_from: (x[left], y[left]), "validation": (x[taken], y[taken])}
        (train_x, train_y), (test_x, test_y) = parts["train"], parts["test"]
        mean, std = _channels(train_x, scale)
        return cls(
            name=name,
            train_x=train_x,
            train_y=train_y,
            validation_x=parts["validation"][0],
            validation_y=parts["validation"][1],
            test_x=test_x,
            test_y=test_y,
            num_classes=num_classes,
            scale=scale,
            mean=mean,
            std=std,
            augment=augment,
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        c, h, w = self.train_x.shape[1:]
        return c, h, w

    def images(self, split: Split) -> Tensor:
        """The images of a split, ``[n, c, h, w]``."""
        return {"train": self.train_x, "validation": self.validation_x, "test": self.test_x}[split]

    def labels(self, split: Split) -> Tensor:
        """The labels of a split, ``[n]``."""
        return {"train": self.train_y, "validation": self.validation_y, "test": self.test_y}[split]

    def to_unit(self, x: Tensor) -> Tensor:
        """Images ``[..., c, h, w]`` as float32 in [0, 1]: what augmentation works on."""
        return x if x.is_floating_point() else x.float() / self.scale

    def standardize(self, x: Tensor) -> Tensor:
        """Images in [0, 1], ``[..., c, h, w]``, less the training images' channel mean, over their channel std."""
        return (x - self.mean) / self.std

    def to_float(self, x: Tensor) -> Tensor:
        """Images as stored, ``[..., c, h, w]``, as what a network takes: ``standardize(to_unit(x))``."""
        return self.standardize(self.to_unit(x))

    def to(self, device: str | torch.device) -> "Data":
        """The same data on another device."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        tensors: dict[str, Any] = {k: v.to(device) for k, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **tensors)


class Source(NamedTuple):
    """Labelled images as a maker of `DATA` returns them, as numpy arrays or tensors.

    Attributes:
        train, test: images ``[n, c, h, w]``, uint8 from 0 to `scale` or float from 0 to 1, and their labels ``[n]``,
            integers from 0 to `num_classes` - 1.
        scale: the largest pixel value of uint8 images.
        by_class: the training images come class by class: then they are reordered, so that the first `train_size`
            hold the classes in their proportions.
        shape: what each image's shape must be; that of the training images by default.
    """

    train: tuple[np.ndarray | Tensor, np.ndarray | Tensor]
    test: tuple[np.ndarray | Tensor, np.ndarray | Tensor]
    num_classes: int
    scale: float = 255.0
    by_class: bool = False
    shape: tuple[int, ...] | None = None


def load(
    name: str,
    root: Annotated[
        str | None,
        Setting(
            "a folder with parquet files or the data set's own; null: digits are bundled, the rest downloaded",
            belongs_to="machine",
        ),
    ] = None,
    train_size: Annotated[int | None, Setting("how many images to keep, the first ones; null: all", least=1)] = None,
    validation: Annotated[int, Setting("how many images are kept for validation", least=0)] = 0,
    augment: Annotated[bool, Setting("flip, colour jitter, pad and crop (Liu et al. 2021)")] = False,
    validation_from: Annotated[
        Held, Setting("test (the papers) or train: which images are kept for validation")
    ] = "test",
    **settings: Any,
) -> Data:
    """The data set called `name`, as tensors on the CPU.

    Args:
        name: one of `DATA`.
        root: a folder (or one that holds a folder of the data set's name) with parquet files or the data set's original
            files, unpacked or in their original archive, which is read where it lies. Without it the data come
            from the Hub through the `datasets` library: from its cache where they are, else by download.
        train_size, validation, augment, validation_from: see `Data.of`.
        settings: further ones of this data set. Those read from files take `checksums`: the expected MD5 of each
            original file by its name, instead of the published ones. Files that are not in it, unpacked ones among
            them, are only checked for their form.

    Raises:
        SettingsError: an unknown name or setting.
        DataError: a missing library, no connection, files that are missing or damaged, or images and labels that do not
            fit each other.
    """
    if root is not None:
        settings["root"] = root
    source = choose(DATA, name, settings, "data set")()
    shape = tuple(source.train[0].shape[1:]) if source.shape is None else source.shape
    train = _checked(source.train, shape, source, f"{name}, training")
    test = _checked(source.test, shape, source, f"{name}, test")
    if source.by_class:
        order = _evenly(train[1], shuffle=False)
        train = train[0][order], train[1][order]
    return Data.of(
        name, train, test, source.num_classes, train_size, validation, source.scale, augment, validation_from
    )


def _evenly(labels: Tensor, shuffle: bool) -> Tensor:
    """An order of the images in which every beginning holds the classes in their proportions.

    Image r of the n of its class stands at (r + 1/2) / n; `shuffle` first shuffles, always in the same way.
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


def _digits(root: str | None = None) -> Source:
    """The 1797 8x8 digits of scikit-learn, 1437 for training and 360 for testing: always the same split."""
    if root is not None:
        raise DataError(f"digits come with scikit-learn and take no data.root, got {str(root)!r}")
    bunch = library("sklearn.datasets").load_digits()
    x, y = bunch.images.astype(np.uint8)[:, None], bunch.target.astype(np.int64)
    order = _evenly(torch.from_numpy(y), shuffle=True).numpy()
    test, train = order[:360], order[360:]
    return Source((x[train], y[train]), (x[test], y[test]), 10, scale=16.0)


def _published(name: str, root: str | None = None, checksums: Checksums | None = None) -> Source:
    """One of the papers' data sets, from a folder or from the Hub."""
    spec = _SPECS[name]
    checksums = spec.checksums if checksums is None else checksums
    read = _from_hub(name, spec, checksums) if root is None else _from_folder(name, spec, Path(root), checksums)
    return Source(*read, spec.num_classes, by_class=spec.by_class, shape=spec.shape)


def _imagenet32(
    root: str | None = None,
    split: Annotated[
        Literal["continual", "imagenet"],
        Setting("continual: 600 training and 100 test images of a class; imagenet: all, tested on validation images"),
    ] = "continual",
    checksums: Checksums | None = None,
) -> Source:
    """ImageNet's 1000 classes at 32 x 32 pixels (Chrabaszcz et al. 2017), by default as Continual ImageNet has them.

    There, as in the class files of Dohare et al. (2021), every class has 600 images for training and 100 for testing:
    here its first ones and the next ones of ImageNet's training images.
    """
    spec = _SPECS["imagenet32"]
    if root is None:
        raise DataError(
            "imagenet32 is never downloaded, because image-net.org gives it only to those who sign in: use "
            f"data.root=FOLDER with {spec.expected}"
        )
    spec = replace(spec, read=formats.imagenet32(spec.num_classes, _CONTINUAL if split == "continual" else None))
    read = _from_folder("imagenet32", spec, Path(root), spec.checksums if checksums is None else checksums)
    return Source(*read, spec.num_classes, by_class=spec.by_class, shape=spec.shape)


def _from_hub(name: str, spec: "_Spec", checksums: Checksums) -> tuple[Part, Part]:
    """From the Hub's cache where the data are, else by download; without a connection an error at once."""
    datasets, hub = library("datasets"), library("huggingface_hub")

    def fetch(cached: bool) -> Any:
        if spec.hub_parquet:
            config = [spec.config] if spec.config else []
            return datasets.load_dataset(spec.repository, *config, split=["train", spec.test_split])
        return hub.snapshot_download(
            spec.repository, repo_type="dataset", allow_patterns="*.gz", local_files_only=cached
        )

    switches, address = (datasets.config, hub.constants), hub.constants.ENDPOINT
    offline = any(module.HF_HUB_OFFLINE for module in switches)
    advice = f"use data.root=FOLDER with {spec.expected}, or data=digits, which needs nothing"
    try:
        with _offline(*switches):
            fetched = fetch(cached=True)
    except (OSError, ValueError):  # not cached
        if offline or not _reachable(address):
            why = "HF_HUB_OFFLINE is set" if offline else f"{address} cannot be reached"
            raise DataError(f"{name} is not in the Hugging Face cache and {why}: {advice}") from None
        try:
            fetched = fetch(cached=False)
        except Exception as error:  # the library's, the connection's and the disk's errors alike
            raise DataError(f"{name} cannot be downloaded ({reason(error)}): {advice}") from error
    if not spec.hub_parquet:
        return _from_folder(name, spec, Path(fetched), checksums)
    tables = [part.with_format("arrow")[:] for part in fetched]
    train, test = (formats.table_part(table, spec.columns, spec.shape, spec.repository) for table in tables)
    return train, test


@contextmanager
def _offline(*modules: Any) -> Iterator[None]:
    """Keep the Hub's libraries from the network: left alone they try again and again for half a minute."""
    before = [module.HF_HUB_OFFLINE for module in modules]
    for module in modules:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value


def _reachable(url: str, seconds: float = 1.5) -> bool:
    """Whether anybody answers at `url` (any answer counts); a slow name server cannot hold this up."""
    answered = threading.Event()

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=seconds).close()
        except urllib.error.HTTPError as error:
            error.close()
        except (OSError, ValueError) as error:
            if not isinstance(getattr(error, "reason", None), ssl.SSLError):  # they may trust other certificates
                return
        answered.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()


def _from_folder(name: str, spec: "_Spec", root: Path, checksums: Checksums) -> tuple[Part, Part]:
    """From original files, the original archive or parquet files, whichever is found first."""
    root = expanded(root)
    if not root.is_dir():
        raise DataError(f"data.root={root} is not a folder")

    def plain(text: str) -> str:
        return text.lower().replace("_", "").replace("-", "")

    named = [path for path in sorted(root.iterdir()) if path.is_dir() and plain(path.name) == plain(name)]
    folder = named[0] if named else root  # torchvision's FashionMNIST is fashion_mnist
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    firsts = [first for first in (spec.first, spec.or_first) if first and formats.homes(paths, first)]
    homes = formats.homes(paths, firsts[0]) if firsts else []
    if len(homes) > 1:  # mnist and fashion_mnist have files of the same names
        places = " and ".join(str(folder / home) for home in homes)
        raise DataError(f"{firsts[0]} lies in {places}: say which by data.root")
    if homes:
        home = {k.removeprefix(homes[0]): path.read_bytes for k, path in paths.items() if k.startswith(homes[0])}
        return spec.read(home, checksums)
    if spec.archive and (archive := formats.find(paths, spec.archive)):
        formats.verify(paths[archive], checksums)
        with formats.members(paths[archive]) as files:
            return spec.read(files, checksums)
    tables = [path for path in paths.values() if path.suffix == ".parquet" and spec.repository]
    if spec.config:
        tables = [path for path in tables if spec.config in path.as_posix()] or tables
    if tables:
        return _shards(tables, "train", spec, folder), _shards(tables, spec.test_split, spec, folder)
    if any(formats.find(paths, pickled) for pickled in spec.pickles):
        raise DataError(
            f"{folder} holds {name} as Python pickles, which can run code and are not read: "
            f"get the {'binary version, ' + spec.archive if spec.archive else spec.originals}"
        )
    raise DataError(f"no {name} in {folder}: expected {spec.expected}")


def _shards(tables: list[Path], split: str, spec: "_Spec", folder: Path) -> Part:
    shards = [path for path in tables if path.name.startswith(split)]
    if not shards:
        raise DataError(f"no parquet file in {folder} has a name that begins with {split!r}")
    return formats.parquet_part(shards, spec.columns, spec.shape)


def _checked(
    part: tuple[np.ndarray | Tensor, np.ndarray | Tensor], shape: tuple[int, ...], source: Source, where: str
) -> tuple[Tensor, Tensor]:
    """Images uint8 or float32 and labels int64."""
    x, y = (torch.as_tensor(values) for values in part)
    if x.ndim != 4 or x.shape[1:] != shape:
        expected = formats.times(shape) if len(shape) == 3 else "three numbers"
        raise DataError(
            f"{where}: images are {formats.times(x.shape[1:])} (channels, height, width), expected {expected}"
        )
    if y.ndim != 1 or len(x) != len(y) or not len(y):
        labels = len(y) if y.ndim == 1 else formats.times(y.shape)
        raise DataError(f"{where}: {len(x)} images and {labels} labels, expected as many of each and at least one")
    if y.is_floating_point() or y.min() < 0 or y.max() >= source.num_classes:
        raise DataError(
            f"{where}: labels from {y.min()} to {y.max()}, expected integers from 0 to {source.num_classes - 1}"
        )
    if x.dtype == torch.uint8:
        return x, y.long()
    if not x.is_floating_point() or not (x.min() >= 0 and x.max() <= 1):
        raise DataError(
            f"{where}: pixels are {x.dtype} from {x.min()} to {x.max()}, expected uint8, or float in [0, 1]"
        )
    return x.float(), y.long()


@dataclass(frozen=True)
class _Spec:
    """What a data set looks like, where it is, and how its original files are read."""

    shape: tuple[int, int, int]
    num_classes: int
    repository: str  # on the Hub; "" where it is not read from there, nor as parquet files
    read: Reader = field(kw_only=True)
    columns: tuple[str, str] = ("image", "label")  # in the Hub's parquet files
    config: str = ""  # the Hub's name of the variant
    test_split: str = "test"
    hub_parquet: bool = True  # False: the Hub has the original files
    first: str = ""  # the original file that shows that the others are there
    or_first: str = ""  # likewise, of another form in which the data are found
    originals: str = ""  # what the original files are called, for people
    archive: str = ""  # the original archive
    pickles: tuple[str, ...] = ()  # what the same data come in and is not read
    checksums: Checksums = field(default_factory=dict)  # published MD5 of original files
    by_class: bool = False  # the training images come class by class

    @property
    def expected(self) -> str:
        """What a folder must hold."""
        if not self.repository:
            return self.originals
        return f"{self.originals}, or parquet files whose names begin with train and {self.test_split}"


_CONTINUAL = (600, 100)  # images of each class of Continual ImageNet, for training and testing

_SPECS: dict[str, _Spec] = {
    "mnist": _Spec(
        (1, 28, 28), 10, "ylecun/mnist", ("image", "label"),
        read=formats.idx("train", "t10k"), first="train-images-idx3-ubyte",
        originals="train-images-idx3-ubyte(.gz) and its three companions",
        checksums={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion_mnist": _Spec(
        (1, 28, 28), 10, "zalando-datasets/fashion_mnist", ("image", "label"),
        read=formats.idx("train", "t10k"), first="train-images-idx3-ubyte",
        originals="train-images-idx3-ubyte(.gz) and its three companions",
        checksums={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "emnist": _Spec(  # the balanced split; the Hub has its original files, no parquet
        (1, 28, 28), 47, "Royc30ne/emnist-balanced", hub_parquet=False,
        read=formats.idx("emnist-balanced-train", "emnist-balanced-test", transposed=True),
        first="emnist-balanced-train-images-idx3-ubyte", archive="gzip.zip",
        originals="gzip.zip or emnist-balanced-train-images-idx3-ubyte(.gz) and its three companions",
        checksums={"gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"},
    ),
    "cifar10": _Spec(
        (3, 32, 32), 10, "uoft-cs/cifar10", ("img", "label"),
        read=formats.cifar(tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", 1),
        first="data_batch_1.bin", originals="cifar-10-binary.tar.gz or its files",
        archive="cifar-10-binary.tar.gz", pickles=("data_batch_1", "cifar-10-python.tar.gz"),
        checksums={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    ),
    "cifar100": _Spec(
        (3, 32, 32), 100, "uoft-cs/cifar100", ("img", "fine_label"),
        read=formats.cifar(("train.bin",), "test.bin", 2),
        first="train.bin", originals="cifar-100-binary.tar.gz or its files", archive="cifar-100-binary.tar.gz",
        pickles=("cifar-100-python/train", "cifar-100-python.tar.gz"),
        checksums={"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
    ),
    "svhn": _Spec(
        (3, 32, 32), 10, "ufldl-stanford/svhn", ("image", "label"), "cropped_digits",
        read=formats.svhn, first="train_32x32.mat", originals="train_32x32.mat and test_32x32.mat",
        checksums={
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
    ),
    "tiny_imagenet": _Spec(
        (3, 64, 64), 200, "zh-plus/tiny-imagenet", ("image", "label"), test_split="valid",
        read=formats.tiny_imagenet(200), first="val/val_annotations.txt",
        originals="tiny-imagenet-200.zip or its files", archive="tiny-imagenet-200.zip",
        checksums={"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"}, by_class=True,
    ),
    "imagenet32": _Spec(  # the npz files of image-net.org, or the class files of Dohare et al., which have no checksum
        (3, 32, 32), 1000, "", read=formats.imagenet32(1000, _CONTINUAL), by_class=True,
        first="train_data_batch_1.npz", or_first="0.npy", pickles=("train_data_batch_1", "val_data"),
        originals="npz files train_data_batch_1.npz to _10.npz and val_data.npz (of Imagenet32_train_npz.zip and "
        "Imagenet32_val_npz.zip, unpacked), or the class files 0.npy to 999.npy",
        checksums={
            "train_data_batch_1.npz": "464fde20de6eb44c28cc1a8c11544bb1",
            "train_data_batch_2.npz": "bdb56e71882c3fd91619d789d5dd7c79",
            "train_data_batch_3.npz": "83ff36d76ea26867491a281ea6e1d03b",
            "train_data_batch_4.npz": "98ff184fe109d5c2a0f6da63843880c7",
            "train_data_batch_5.npz": "62b8803e13c3e6de9498da7aaaae57c8",
            "train_data_batch_6.npz": "e0b06665f890b029f1d8d0a0db26e119",
            "train_data_batch_7.npz": "9731f469aac1622477813c132c5a847a",
            "train_data_batch_8.npz": "60aed934b9d26b7ee83a1a83bdcfbe0f",
            "train_data_batch_9.npz": "b96328e6affd718660c2561a6fe8c14c",
            "train_data_batch_10.npz": "1dc618d544c554220dd118f72975470c",
            "val_data.npz": "a8c04a389f2649841fb7a01720da9dd9",
        },
    ),
}  # fmt: skip

DATA: dict[str, Callable[..., Source]] = {"digits": _digits}
"""What ``data=`` chooses from, each called as ``make(**settings)``, `root` among them where data lie in files."""
DATA |= {name: partial(_published, name) for name in _SPECS if name != "imagenet32"} | {"imagenet32": _imagenet32}

# How many training images each has.
TRAIN_IMAGES = {
    "digits": 1437, "mnist": 60_000, "fashion_mnist": 60_000, "emnist": 112_800, "cifar10": 50_000,
    "cifar100": 50_000, "svhn": 73_257, "tiny_imagenet": 100_000, "imagenet32": 600_000,
}  # fmt: skip


def sizes(name: str) -> tuple[int, tuple[int, int, int], int]:
    """How many training images a published data set has, their shape, and the number of classes; nothing is read.

    Raises:
        KeyError: it is none of those.
    """
    if name == "digits":
        return TRAIN_IMAGES[name], (1, 8, 8), 10
    return TRAIN_IMAGES[name], _SPECS[name].shape, _SPECS[name].num_classes
