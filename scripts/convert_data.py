"""A data set's original files as what ``data.root=`` reads: ``python scripts/convert_data.py NAME FROM TO``.

FROM is a folder with the files, unpacked or in their original archive, or that archive itself; it may hold the Hub's
parquet files instead. TO, a new folder, gets ``train.npz`` and ``test.npz``, each with ``images``, uint8
``[n, c, h, w]``, and ``labels``, int64 ``[n]``. It is made in one step when all is read and right.

Original archives, and files that are published singly, are compared with the MD5 that their authors publish. Archives
are read where they lie and never unpacked to the disk. No pickle is read, because pickles can run code.
"""

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from rl_plasticity.errors import SettingsError, one_line, reason
from rl_plasticity.paths import expanded
from rl_plasticity.tasks.data import PUBLISHED, DataError, Part, Published, checked, library, times

Reader = Callable[["Files"], tuple[Part, Part]]  # training and test part

MOST = 1 << 30  # bytes that one file may have when it is unpacked; EMNIST's largest has 547 000 000
CONTINUAL = (600, 100)  # images of each class of Continual ImageNet, for training and testing
BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError)


class Original(NamedTuple):
    """A data set's original files: what reads them, what they are called, and their published MD5."""

    read: Reader
    expected: str
    archive: str = ""
    checksums: Mapping[str, str] = {}


class Files:
    """The files of a folder or an archive, verified as they are read.

    Args:
        readers: what reads each file, by its path in the folder or archive.
        original: what is expected of them.
        where: what errors call the folder or archive.
    """

    def __init__(self, readers: Mapping[str, Callable[[], bytes]], original: Original, where: str) -> None:
        self.readers, self.original, self.where = readers, original, where

    def find(self, wanted: str) -> str | None:
        """The one path that is `wanted` or ends with it after a slash; else likewise for the gzipped file."""
        if wanted in self.readers:  # at once: there may be a hundred thousand
            return wanted
        for end in (wanted, f"{wanted}.gz"):
            found = [name for name in self.readers if name == end or name.endswith(f"/{end}")]
            if len(found) > 1:  # mnist and fashion_mnist have files of the same names
                raise DataError(f"{self.where} holds {' and '.join(sorted(found))}: give the folder of one")
            if found:
                return found[0]
        return None

    def content(self, wanted: str) -> bytes:
        """What a file holds, where it is gzipped unpacked."""
        key = self.find(wanted)
        if key is None:
            raise DataError(f"there is no {wanted} in {self.where}: expected {self.original.expected}")
        try:
            content = self.readers[key]()
            verify(key.rpartition("/")[2], io.BytesIO(content), self.original.checksums)
            return _bounded(gzip.GzipFile(fileobj=io.BytesIO(content))) if key.endswith(".gz") else content
        except (*BROKEN, KeyError) as error:  # KeyError: a link
            raise DataError(f"{key} is truncated or damaged ({reason(error)})") from error


def verify(name: str, file: io.BufferedIOBase, checksums: Mapping[str, str]) -> None:
    """Raise DataError if a file's MD5 is not the expected one; a file without one passes."""
    if name not in checksums:
        return
    found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != checksums[name]:
        raise DataError(f"{name}: wrong checksum, MD5 {found} instead of {checksums[name]}: download it again")


def _bounded(file: IO[bytes] | gzip.GzipFile | None) -> bytes:
    """What is packed in an archive, which may be a thousand times as large as it looks."""
    if file is None:
        raise OSError("not a file")
    with file:
        content = file.read(MOST + 1)
    if len(content) > MOST:
        raise OSError(f"more than {MOST} bytes when unpacked, which no file of these data sets has")
    return content


@contextmanager
def opened(source: Path, original: Original) -> Iterator[Files]:
    """The files of a folder, or of the archive that it holds or that `source` is."""
    if source.is_dir():
        paths = {path.relative_to(source).as_posix(): path for path in sorted(source.rglob("*")) if path.is_file()}
        files = Files({name: path.read_bytes for name, path in paths.items()}, original, str(source))
        archive = files.find(original.archive) if original.archive else None
        if archive is None:
            yield files
            return
        source = paths[archive]
    if not source.is_file():
        raise DataError(f"{source} is neither a folder nor an archive")
    with source.open("rb") as file:
        verify(source.name, file, original.checksums)
    try:
        if source.suffix == ".zip":
            with zipfile.ZipFile(source) as packed:
                members = {name: partial(_unzipped, packed, name) for name in packed.namelist()}
                yield Files(members, original, source.name)
        else:
            with tarfile.open(source) as tape:
                members = {name: partial(_untarred, tape, name) for name in tape.getnames()}
                yield Files(members, original, source.name)
    except BROKEN as error:
        raise DataError(f"{source.name} is truncated or not an archive ({reason(error)})") from error


def _unzipped(archive: zipfile.ZipFile, name: str) -> bytes:
    return _bounded(archive.open(name))


def _untarred(archive: tarfile.TarFile, name: str) -> bytes:
    return _bounded(archive.extractfile(name))


def idx(train: str, test: str, transposed: bool = False) -> Reader:
    """A reader of IDX files: a magic number, big-endian sizes, then the bytes.

    Source: yann.lecun.com/exdb/mnist. EMNIST's images are `transposed`.
    """

    def array(files: Files, name: str, dimensions: int) -> np.ndarray:
        content = files.content(name)
        head = 4 + 4 * dimensions
        if len(content) < head:
            raise DataError(f"{name} is truncated: {len(content)} bytes, expected a header of {head}")
        if int.from_bytes(content[:4], "big") != 0x800 + dimensions:
            raise DataError(f"{name} is not an IDX file of {dimensions} dimensions of bytes")
        shape = tuple(int(n) for n in np.frombuffer(content[4:head], dtype=">u4"))
        expected = head + int(np.prod(shape))
        if len(content) != expected:
            what = "truncated" if len(content) < expected else "too long"
            raise DataError(f"{name} is {what}: {len(content)} bytes, expected {expected}")
        return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)

    def part(files: Files, prefix: str) -> Part:
        x = array(files, f"{prefix}-images-idx3-ubyte", 3)
        y = array(files, f"{prefix}-labels-idx1-ubyte", 1)
        x = x.transpose(0, 2, 1) if transposed else x
        return np.array(x[:, None], order="C"), y.astype(np.int64)

    return lambda files: (part(files, train), part(files, test))


def cifar(train: Sequence[str], test: str, label_bytes: int) -> Reader:
    """A reader of CIFAR's binary version: records of the labels (the fine one last), then 3 x 32 x 32 bytes."""
    size = label_bytes + 3 * 32 * 32

    def records(files: Files, name: str) -> np.ndarray:
        content = files.content(name)
        if len(content) % size or not content:
            raise DataError(f"{name} is truncated: {len(content)} bytes, expected a multiple of {size}")
        return np.frombuffer(content, dtype=np.uint8).reshape(-1, size)

    def part(files: Files, names: Sequence[str]) -> Part:
        rows = np.concatenate([records(files, name) for name in names])
        x = rows[:, label_bytes:].reshape(-1, 3, 32, 32)
        return np.ascontiguousarray(x), rows[:, label_bytes - 1].astype(np.int64)

    return lambda files: (part(files, train), part(files, [test]))


def svhn(files: Files) -> tuple[Part, Part]:
    """SVHN's cropped digits: MATLAB files with X ``[32, 32, 3, n]`` and y ``[n, 1]``, where 10 stands for 0."""

    def part(name: str) -> Part:
        content = files.content(name)
        try:
            variables = library("scipy.io").loadmat(io.BytesIO(content), variable_names=("X", "y"))
            x, y = variables["X"], variables["y"].reshape(-1).astype(np.int64)
        except Exception as error:  # scipy raises what the damage happens to cause
            raise DataError(f"{name} is truncated, or no MATLAB file with X and y ({reason(error)})") from error
        if x.ndim != 4 or x.dtype != np.uint8:
            raise DataError(f"{name}: X is {times(x.shape)} of {x.dtype}, expected 32x32x3xn of uint8")
        return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), np.where(y == 10, 0, y)

    return part("train_32x32.mat"), part("test_32x32.mat")


def tiny_imagenet(files: Files) -> tuple[Part, Part]:
    """tiny-imagenet-200: JPEGs in a folder for each class, numbered by sorted WordNet id.

    Its test images have no labels, so its val images are the test set.
    """
    known = PUBLISHED["tiny_imagenet"]

    def counted(path: str) -> tuple[str, int]:  # x_10 comes after x_9
        stem, _, number = path.removesuffix(".JPEG").rpartition("_")
        return stem, int(number) if number.isdecimal() else 0

    def part(keys: Sequence[str], words: Iterable[str], where: str) -> Part:
        x = pictures(map(files.content, keys), len(keys), known.shape, where)
        return x, np.array([number[word] for word in words], dtype=np.int64)

    notes = files.find("val/val_annotations.txt") or "val/val_annotations.txt"
    home = notes.removesuffix("val/val_annotations.txt")
    lines = files.content(notes).decode(errors="replace").splitlines()
    keys = [key for key in files.readers if re.fullmatch(re.escape(home) + r"train/[^/]+/images/[^/]+\.JPEG", key)]
    keys.sort(key=counted)
    words = [key.split("/")[-3] for key in keys]
    number = {word: i for i, word in enumerate(sorted(set(words)))}
    if len(number) != known.num_classes:
        raise DataError(f"{home}train holds {len(number)} class folders, expected {known.num_classes}")
    rows = sorted((row.split("\t")[:2] for row in lines if row.strip()), key=lambda row: counted(row[0]))
    if any(len(row) != 2 or row[1] not in number for row in rows):
        raise DataError(f"{notes}: expected lines of a file and a class that the training set has")
    test = part([f"{home}val/images/{row[0]}" for row in rows], [row[1] for row in rows], f"{home}val")
    return part(keys, words, f"{home}train"), test


def imagenet32(files: Files, split: str = "continual") -> tuple[Part, Part]:
    """ImageNet's 1000 classes at 32 x 32 pixels (Chrabaszcz et al. 2017), by default as Continual ImageNet has them.

    There, as in the class files of Dohare et al. (2021), every class has 600 images for training and 100 for testing:
    here its first ones and the next ones of ImageNet's training images. With `split` "imagenet" they are all training
    images, and the validation images for testing.

    They come as the npz files of image-net.org, or as a npy file for each class. An npz file has ``data``, uint8
    ``[n, 3072]``, channel by channel, and ``labels`` from 1. A class file, of Dohare et al. (2021), has the class's
    images ``[n, 3, 32, 32]``, as bytes or as whole numbers of another type.
    """
    if files.find("0.npy") and not files.find("train_data_batch_1.npz"):
        if split == "imagenet":
            raise DataError("class files hold no validation images of ImageNet: --split imagenet needs the npz files")
        return _of_classes(files)
    classes = PUBLISHED["imagenet32"].num_classes
    batches = (_batch(files, f"train_data_batch_{i}.npz", classes) for i in range(1, 11))
    if split == "imagenet":
        return _joined(batches), _batch(files, "val_data.npz", classes)
    seen = np.zeros(classes, dtype=np.int64)
    parts: tuple[list[Part], list[Part]] = ([], [])
    for x, y in batches:  # one after the other: whole they would take 4 GB
        place = seen[y] + _rank(y)  # of each image among those of its class
        seen += np.bincount(y, minlength=classes)
        for part, first, last in zip(parts, (0, CONTINUAL[0]), (CONTINUAL[0], sum(CONTINUAL)), strict=True):
            kept = (place >= first) & (place < last)
            part.append((x[kept], y[kept]))
    if seen.min() < sum(CONTINUAL):
        raise DataError(f"class {seen.argmin()} has {seen.min()} training images, expected at least {sum(CONTINUAL)}")
    return _joined(parts[0]), _joined(parts[1])


def _of_classes(files: Files) -> tuple[Part, Part]:
    classes, (n, m) = PUBLISHED["imagenet32"].num_classes, CONTINUAL
    images = np.empty((classes, n + m, 3, 32, 32), dtype=np.uint8)
    for k in range(classes):
        x = _loaded(files.content(f"{k}.npy"), f"{k}.npy")
        if x.ndim != 4 or x.shape[1:] != (3, 32, 32) or len(x) < n + m:
            raise DataError(f"{k}.npy holds {times(x.shape)} numbers, expected at least {n + m}x3x32x32")
        x = x[: n + m]
        if x.dtype != np.uint8 and not (x.min() >= 0 and x.max() <= 255 and (x == np.floor(x)).all()):
            raise DataError(f"{k}.npy: pixels are {x.dtype} from {x.min()} to {x.max()}, expected 0 to 255, whole")
        images[k] = x

    def part(x: np.ndarray) -> Part:
        return x.reshape(-1, 3, 32, 32), np.arange(classes).repeat(x.shape[1])

    return part(images[:, :n]), part(images[:, n:])


def _batch(files: Files, name: str, num_classes: int) -> Part:
    content = files.content(name)
    variables = _loaded(content, name)
    try:
        if max(member.file_size for member in variables.zip.infolist()) > MOST:
            raise OSError(f"more than {MOST} bytes when unpacked")
        x, y = variables["data"], np.asarray(variables["labels"])
    except Exception as error:  # numpy raises what the damage happens to cause
        raise DataError(f"{name} is damaged or has no data and labels ({reason(error)})") from error
    if x.ndim != 2 or x.shape[1] != 3072 or x.dtype != np.uint8 or y.shape != (len(x),) or not len(y):
        raise DataError(
            f"{name}: data are {times(x.shape)} of {x.dtype} with {times(y.shape)} labels, expected nx3072 of uint8"
        )
    if y.dtype.kind not in "iu" or y.min() < 1 or y.max() > num_classes:
        raise DataError(f"{name}: labels from {y.min()} to {y.max()}, expected integers from 1 to {num_classes}")
    return x.reshape(-1, 3, 32, 32), y.astype(np.int64) - 1


def _loaded(content: bytes, name: str) -> Any:
    """What a npy or npz file holds; pickled objects, which can run code, are refused."""
    try:
        return np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # numpy raises what the damage happens to cause
        raise DataError(f"{name} is truncated or not a file of numbers ({reason(error)})") from error


def _joined(parts: Iterable[Part]) -> Part:
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _rank(y: np.ndarray) -> np.ndarray:
    """How many before each are equal to it."""
    order = y.argsort(kind="stable")
    ordered = y[order]
    rank = np.empty(len(y), dtype=np.int64)
    rank[order] = np.arange(len(y)) - ordered.searchsorted(ordered)
    return rank


def parquet(files: Files, known: Published) -> tuple[Part, Part]:
    """The Hub's parquet files, whose names begin with the split; an image is a file's bytes, or a struct with them."""
    paths = [path for path in files.readers if path.endswith(".parquet")]
    paths = [path for path in paths if known.config in path] or paths
    pyarrow = library("pyarrow.parquet")

    def read(path: str) -> Part:
        try:
            table = pyarrow.read_table(io.BytesIO(files.content(path)))
        except (OSError, ValueError) as error:  # pyarrow.ArrowInvalid is a ValueError
            raise DataError(f"{path} is truncated or not a parquet file ({reason(error)})") from error
        for column in known.columns:
            if column not in table.column_names:
                raise DataError(f"{path}: no column {column!r} (it has {', '.join(table.column_names)})")
        cells, labels = (table.column(column).to_pylist() for column in known.columns)
        images = (cell["bytes"] if isinstance(cell, dict) else cell for cell in cells)
        return pictures(images, len(cells), known.shape, path), np.array(labels, dtype=np.int64)

    def part(split: str) -> Part:
        shards = [path for path in paths if path.rpartition("/")[2].startswith(split)]
        if not shards:
            raise DataError(f"no parquet file in {files.where} has a name that begins with {split!r}")
        return _joined(map(read, shards))

    return part("train"), part(known.test_split)


def pictures(contents: Iterable[bytes], count: int, shape: tuple[int, ...], where: str) -> np.ndarray:
    """Decode image files to ``[count, *shape]``, grey or RGB by the number of channels.

    Raises:
        DataError: a file that is no image, or one of another size.
    """
    image = library("PIL.Image")
    c, h, w = shape
    out = np.empty((count, h, w, c), dtype=np.uint8)
    for i, content in enumerate(contents):
        try:
            picture = image.open(io.BytesIO(content))  # its size is known before it is decoded, and may be huge
            if picture.size != (w, h):
                raise DataError(f"{where}: image {i} is {picture.width}x{picture.height} pixels, expected {w}x{h}")
            out[i] = np.asarray(picture.convert("L" if c == 1 else "RGB")).reshape(h, w, c)
        except (OSError, SyntaxError, TypeError, image.DecompressionBombError) as error:
            raise DataError(f"{where}: image {i} is truncated or not an image ({reason(error)})") from error
    return np.ascontiguousarray(out.transpose(0, 3, 1, 2))


IDX = "train-images-idx3-ubyte(.gz) and its three companions"
NO_PICKLES = "; its other version, Python pickles, can run code and is not read"
ORIGINALS = {
    "mnist": Original(
        idx("train", "t10k"),
        IDX,
        checksums={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion_mnist": Original(
        idx("train", "t10k"),
        IDX,
        checksums={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "emnist": Original(  # the balanced split
        idx("emnist-balanced-train", "emnist-balanced-test", transposed=True),
        "gzip.zip or emnist-balanced-train-images-idx3-ubyte(.gz) and its three companions",
        archive="gzip.zip",
        checksums={"gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"},
    ),
    "cifar10": Original(
        cifar([f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin", 1),
        f"cifar-10-binary.tar.gz or its files{NO_PICKLES}",
        archive="cifar-10-binary.tar.gz",
        checksums={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    ),
    "cifar100": Original(
        cifar(["train.bin"], "test.bin", 2),
        f"cifar-100-binary.tar.gz or its files{NO_PICKLES}",
        archive="cifar-100-binary.tar.gz",
        checksums={"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
    ),
    "svhn": Original(
        svhn,
        "train_32x32.mat and test_32x32.mat",
        checksums={
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
    ),
    "tiny_imagenet": Original(
        tiny_imagenet,
        "tiny-imagenet-200.zip or its files",
        archive="tiny-imagenet-200.zip",
        checksums={"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
    ),
    "imagenet32": Original(  # the class files have no published checksum
        imagenet32,
        "npz files train_data_batch_1.npz to _10.npz and val_data.npz (of Imagenet32_train_npz.zip and "
        f"Imagenet32_val_npz.zip, unpacked), or the class files 0.npy to 999.npy{NO_PICKLES}",
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
}


def convert(name: str, source: Path, to: Path, split: str | None = None) -> str:
    """Make the folder `to` of the files in `source`; a line that says what is in it.

    Raises:
        DataError: files that are missing, damaged or not those of the data set.
        FileExistsError: `to` is there and not an empty folder.
    """
    original, known = ORIGINALS[name], PUBLISHED[name]
    if split is not None and name != "imagenet32":
        raise DataError(f"--split is for imagenet32; {name} has one split")
    if to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise FileExistsError(f"{to} exists already")
    read = partial(imagenet32, split=split) if split else original.read
    with opened(source, original) as files:
        from_hub = known.repository and any(path.endswith(".parquet") for path in files.readers)
        parts = parquet(files, known) if from_hub else read(files)
    for part, what in zip(parts, ("training", "test"), strict=True):
        checked(part, known.shape, known.num_classes, f"{name}, {what}")
    made = to.absolute().with_name(f".{to.name}.{os.getpid()}")
    made.mkdir(parents=True)
    try:
        for (images, labels), file in zip(parts, ("train.npz", "test.npz"), strict=True):
            np.savez(made / file, images=images, labels=labels)
        made.rename(to)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    (train, _), (test, _) = parts
    return (
        f"{to}: {len(train)} training and {len(test)} test images of {times(known.shape)}; data={name} data.root={to}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The folder that data.root= reads, made of a data set's original files.",
        epilog="Original files: " + ". ".join(f"{name}: {original.expected}" for name, original in ORIGINALS.items()),
    )
    parser.add_argument("name", metavar="NAME", choices=list(ORIGINALS), help=", ".join(ORIGINALS))
    parser.add_argument("source", metavar="FROM", type=expanded, help="the folder with its files, or its archive")
    parser.add_argument("to", metavar="TO", type=expanded, help="the folder to make")
    parser.add_argument(
        "--split",
        choices=("continual", "imagenet"),
        help="of imagenet32: 600 training and 100 test images of each class (the default), or all training images, "
        "tested on the validation images",
    )
    given = parser.parse_args()
    try:
        print(convert(**vars(given)))
    except (SettingsError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {one_line(str(error))}\n")


if __name__ == "__main__":
    main()
