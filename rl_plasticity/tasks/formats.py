"""How the files of image data sets are found, verified and read: never unpacked to the disk, never unpickled."""

import gzip
import hashlib
import importlib
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from rl_plasticity.errors import SettingsError, reason

Part = tuple[np.ndarray, np.ndarray]  # images uint8 [n, c, h, w] and labels int64 [n]
Files = Mapping[str, Callable[[], bytes]]  # how to read each file of a folder or an archive, by its path in it
Checksums = Mapping[str, str]  # expected MD5 of files by name
Reader = Callable[[Files, Checksums], tuple[Part, Part]]  # training and test part from original files


MOST = 1 << 30  # bytes that one file may have when it is unpacked; EMNIST's largest has 547 000 000


class DataError(SettingsError):
    """A data set that cannot be loaded: one line that says what is wrong and what to do."""


def library(name: str) -> Any:
    """Import an optional library, or say how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise DataError(
            f"this data set needs the library {package}, which is not installed: pip install 'rl_plasticity[images]', "
            f"or use data=digits, or data.root=FOLDER with the data set's original files"
        ) from error


def times(shape: Iterable[int]) -> str:
    """Sizes as they are read: 3x32x32."""
    return "x".join(map(str, shape))


def find(names: Iterable[str], wanted: str) -> str | None:
    """The path that is `wanted` or ends with it after a slash, as it is or gzipped."""
    if isinstance(names, Mapping) and wanted in names:  # at once: there may be a hundred thousand
        return wanted
    ends = (wanted, f"{wanted}.gz")
    return next((n for n in names if any(n == end or n.endswith(f"/{end}") for end in ends)), None)


def homes(names: Iterable[str], wanted: str) -> list[str]:
    """The folders, as ``a/b/`` or empty, in which `wanted` lies, as it is or gzipped."""
    unpacked = (n.removesuffix(".gz") for n in names)
    return sorted({n.removesuffix(wanted) for n in unpacked if n == wanted or n.endswith(f"/{wanted}")})


def verify(path: Path, checksums: Checksums) -> None:
    """Raise DataError if the file's MD5 is not the expected one."""
    with path.open("rb") as file:
        _compare(path.name, hashlib.file_digest(file, _md5).hexdigest(), checksums)


def _bounded(file: IO[bytes] | gzip.GzipFile) -> bytes:
    """What is packed in an archive, which may be a thousand times as large as it looks."""
    with file:
        content = file.read(MOST + 1)
    if len(content) > MOST:
        raise OSError(f"more than {MOST} bytes when unpacked, which no file of these data sets has")
    return content


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def _compare(name: str, checksum: str, checksums: Checksums) -> None:
    expected = checksums.get(name)
    if expected is not None and checksum != expected:
        raise DataError(f"{name}: wrong checksum, MD5 {checksum} instead of {expected}: download it again")


@contextmanager
def members(archive: Path) -> Iterator[Files]:
    """The files in a zip or tar archive."""
    broken = (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error)
    try:
        opened = zipfile.ZipFile(archive) if archive.suffix == ".zip" else tarfile.open(archive)  # noqa: SIM115
    except broken as error:
        raise DataError(f"{archive.name} is truncated or not an archive ({reason(error)})") from error
    with opened:
        try:
            names = opened.namelist() if isinstance(opened, zipfile.ZipFile) else opened.getnames()
        except broken as error:
            raise DataError(f"{archive.name} is truncated ({reason(error)})") from error

        def reader(name: str) -> Callable[[], bytes]:
            def read() -> bytes:
                file = opened.open(name) if isinstance(opened, zipfile.ZipFile) else opened.extractfile(name)
                if file is None:
                    raise OSError("not a file")
                return _bounded(file)

            return read

        yield {name: reader(name) for name in names}


def content_of(files: Files, name: str, checksums: Checksums) -> bytes:
    """The content of a file, verified and, where it is gzipped, unpacked."""
    key = find(files, name)
    if key is None:
        raise DataError(f"the file {name} is missing")
    try:
        content = files[key]()
        _compare(key.rpartition("/")[2], hashlib.md5(content, usedforsecurity=False).hexdigest(), checksums)
        return _bounded(gzip.GzipFile(fileobj=io.BytesIO(content))) if key.endswith(".gz") else content
    except (OSError, EOFError, KeyError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:  # KeyError: a link
        raise DataError(f"{key} is truncated or damaged ({reason(error)})") from error


def idx(train: str, test: str, transposed: bool = False) -> Reader:
    """A reader of IDX files: a magic number, big-endian sizes, then the bytes.

    Source: yann.lecun.com/exdb/mnist. EMNIST's images are `transposed`.
    """

    def array(files: Files, name: str, dimensions: int, checksums: Checksums) -> np.ndarray:
        content = content_of(files, name, checksums)
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

    def read(files: Files, checksums: Checksums) -> tuple[Part, Part]:
        def part(prefix: str) -> Part:
            x = array(files, f"{prefix}-images-idx3-ubyte", 3, checksums)
            y = array(files, f"{prefix}-labels-idx1-ubyte", 1, checksums)
            x = x.transpose(0, 2, 1) if transposed else x
            return np.array(x[:, None], order="C"), y.astype(np.int64)

        return part(train), part(test)

    return read


def cifar(train: tuple[str, ...], test: str, label_bytes: int) -> Reader:
    """A reader of CIFAR's binary version: records of the labels (the fine one last), then 3 x 32 x 32 bytes."""
    size = label_bytes + 3 * 32 * 32

    def records(files: Files, name: str, checksums: Checksums) -> np.ndarray:
        content = content_of(files, name, checksums)
        if len(content) % size or not content:
            raise DataError(f"{name} is truncated: {len(content)} bytes, expected a multiple of {size}")
        return np.frombuffer(content, dtype=np.uint8).reshape(-1, size)

    def read(files: Files, checksums: Checksums) -> tuple[Part, Part]:
        def part(names: tuple[str, ...]) -> Part:
            rows = np.concatenate([records(files, name, checksums) for name in names])
            x = rows[:, label_bytes:].reshape(-1, 3, 32, 32)
            return np.array(x, order="C"), rows[:, label_bytes - 1].astype(np.int64)

        return part(train), part((test,))

    return read


def svhn(files: Files, checksums: Checksums) -> tuple[Part, Part]:
    """SVHN's cropped digits: MATLAB files with X ``[32, 32, 3, n]`` and y ``[n, 1]``, where 10 stands for 0."""

    def part(name: str) -> Part:
        content = content_of(files, name, checksums)
        try:
            variables = library("scipy.io").loadmat(io.BytesIO(content), variable_names=("X", "y"))
        except Exception as error:  # scipy raises what the damage happens to cause
            raise DataError(f"{name} is truncated or not a MATLAB file ({reason(error)})") from error
        for variable in ("X", "y"):
            if variable not in variables:
                raise DataError(f"{name}: no variable {variable!r}")
        x, y = variables["X"], variables["y"].reshape(-1).astype(np.int64)
        if x.ndim != 4 or x.dtype != np.uint8:
            raise DataError(f"{name}: X is {times(x.shape)} of {x.dtype}, expected 32x32x3xn of uint8")
        return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), np.where(y == 10, 0, y)

    return part("train_32x32.mat"), part("test_32x32.mat")


def tiny_imagenet(num_classes: int) -> Reader:
    """A reader of tiny-imagenet-200: JPEGs in a folder for each class, numbered by sorted WordNet id.

    Its test images have no labels, so its val images are the test set.
    """

    def counted(path: str) -> tuple[str, int]:  # x_10 comes after x_9
        stem, _, number = path.removesuffix(".JPEG").rpartition("_")
        return stem, int(number) if number.isdecimal() else 0

    def read(files: Files, checksums: Checksums) -> tuple[Part, Part]:
        def part(keys: list[str], words: list[str], where: str) -> Part:
            x = pictures((content_of(files, key, checksums) for key in keys), len(keys), (3, 64, 64), where)
            return x, np.array([number[word] for word in words], dtype=np.int64)

        keys = [key for key in files if re.search(r"(^|/)train/[^/]+/images/[^/]+\.JPEG$", key)]
        keys.sort(key=counted)
        words = [key.split("/")[-3] for key in keys]
        number = {word: i for i, word in enumerate(sorted(set(words)))}
        if len(number) != num_classes:
            raise DataError(f"tiny-imagenet-200/train holds {len(number)} class folders, expected {num_classes}")
        notes = find(files, "val/val_annotations.txt") or "val/val_annotations.txt"
        lines = content_of(files, notes, checksums).decode(errors="replace").splitlines()
        rows = sorted((row.split("\t")[:2] for row in lines if row.strip()), key=lambda row: counted(row[0]))
        if any(len(row) != 2 or row[1] not in number for row in rows):
            raise DataError(f"{notes}: expected lines of a file and a class that the training set has")
        folder = notes.removesuffix("val_annotations.txt") + "images/"
        test = part([folder + row[0] for row in rows], [row[1] for row in rows], "tiny-imagenet-200/val")
        return part(keys, words, "tiny-imagenet-200/train"), test

    return read


def imagenet32(num_classes: int, take: tuple[int, int] | None) -> Reader:
    """A reader of ImageNet at 32 x 32 pixels: the npz files of image-net.org, or a npy file for each class.

    An npz file has ``data``, uint8 ``[n, 3072]``, channel by channel, and ``labels`` from 1. A class file, of Dohare et
    al. (2021), has the class's images ``[n, 3, 32, 32]``, as bytes or as whole numbers of another type.

    Args:
        num_classes: how many there are.
        take: how many images of each class are for training and for testing, the first ones and the next ones of the
            training files; None: all training images, and those of ``val_data.npz`` for testing.
    """

    def read(files: Files, checksums: Checksums) -> tuple[Part, Part]:
        if find(files, "train_data_batch_1.npz") is None:
            return of_classes(files, checksums)
        batches = (_npz_part(files, f"train_data_batch_{i}.npz", num_classes, checksums) for i in range(1, 11))
        if take is None:
            images, labels = zip(*batches, strict=True)
            return (np.concatenate(images), np.concatenate(labels)), _npz_part(
                files, "val_data.npz", num_classes, checksums
            )
        seen = np.zeros(num_classes, dtype=np.int64)
        parts: tuple[list[Part], list[Part]] = ([], [])
        for x, y in batches:  # one after the other: whole they would take 4 GB
            place = seen[y] + _rank(y)  # of each image among those of its class
            seen += np.bincount(y, minlength=num_classes)
            for part, first, last in zip(parts, (0, take[0]), (take[0], sum(take)), strict=True):
                kept = (place >= first) & (place < last)
                part.append((x[kept], y[kept]))
        if seen.min() < sum(take):
            raise DataError(f"class {seen.argmin()} has {seen.min()} training images, expected at least {sum(take)}")
        train, test = ((np.concatenate([x for x, _ in p]), np.concatenate([y for _, y in p])) for p in parts)
        return train, test

    def of_classes(files: Files, checksums: Checksums) -> tuple[Part, Part]:
        if take is None:
            raise DataError(
                "class files hold no validation images of ImageNet: data.split=imagenet needs the npz files"
            )
        train = np.empty((num_classes, take[0], 3, 32, 32), dtype=np.uint8)
        test = np.empty((num_classes, take[1], 3, 32, 32), dtype=np.uint8)
        for k in range(num_classes):
            x = _array(content_of(files, f"{k}.npy", checksums), f"{k}.npy")
            if x.ndim != 4 or x.shape[1:] != (3, 32, 32) or len(x) < sum(take):
                raise DataError(f"{k}.npy holds {times(x.shape)} numbers, expected at least {sum(take)}x3x32x32")
            x = x[: sum(take)]
            if x.dtype != np.uint8 and not (x.min() >= 0 and x.max() <= 255 and (x == np.floor(x)).all()):
                raise DataError(f"{k}.npy: pixels are {x.dtype} from {x.min()} to {x.max()}, expected 0 to 255, whole")
            train[k], test[k] = x[: take[0]], x[take[0] :]

        def part(x: np.ndarray) -> Part:
            return x.reshape(-1, 3, 32, 32), np.arange(num_classes).repeat(x.shape[1])

        return part(train), part(test)

    return read


def _npz_part(files: Files, name: str, num_classes: int, checksums: Checksums) -> Part:
    content = content_of(files, name, checksums)
    variables = _array(content, name)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if max(member.file_size for member in archive.infolist()) > MOST:
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


def _array(content: bytes, name: str) -> Any:
    """What a npy or npz file holds; pickled objects, which can run code, are refused."""
    try:
        return np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # numpy raises what the damage happens to cause
        raise DataError(f"{name} is truncated or not a file of numbers ({reason(error)})") from error


def _rank(y: np.ndarray) -> np.ndarray:
    """How many before each are equal to it."""
    order = y.argsort(kind="stable")
    ordered = y[order]
    rank = np.empty(len(y), dtype=np.int64)
    rank[order] = np.arange(len(y)) - ordered.searchsorted(ordered)
    return rank


def parquet_part(paths: Iterable[Path], columns: tuple[str, str], shape: tuple[int, ...]) -> Part:
    """Images and labels of parquet files, in their order; `columns` are the image's and the label's."""
    parquet = library("pyarrow.parquet")
    parts = []
    for path in paths:
        try:
            _has_columns(parquet.read_schema(path).names, columns, str(path))
            table = parquet.read_table(path, columns=list(columns))
        except DataError:
            raise
        except (OSError, ValueError) as error:  # pyarrow.ArrowInvalid is a ValueError
            raise DataError(f"{path} is truncated or not a parquet file ({reason(error)})") from error
        parts.append(table_part(table, columns, shape, str(path)))
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def table_part(table: Any, columns: tuple[str, str], shape: tuple[int, ...], where: str) -> Part:
    """Images and labels of a pyarrow table; an image is the bytes of a file, or a struct that holds them."""
    _has_columns(table.column_names, columns, where)
    cells = table.column(columns[0]).to_pylist()
    files = (cell["bytes"] if isinstance(cell, dict) else cell for cell in cells)
    labels = np.array(table.column(columns[1]).to_pylist(), dtype=np.int64)
    return pictures(files, len(cells), shape, where), labels


def _has_columns(have: Iterable[str], columns: tuple[str, str], where: str) -> None:
    for column in columns:
        if column not in have:
            raise DataError(f"{where}: no column {column!r} (it has {', '.join(have)})")


def pictures(files: Iterable[bytes], count: int, shape: tuple[int, ...], where: str) -> np.ndarray:
    """Decode image files to ``[count, *shape]``, grey or RGB by the number of channels.

    Raises:
        DataError: a file that is no image, or one of another size.
    """
    image = library("PIL.Image")
    c, h, w = shape
    out = np.empty((count, h, w, c), dtype=np.uint8)
    for i, content in enumerate(files):
        try:
            picture = image.open(io.BytesIO(content))  # its size is known before it is decoded, and may be huge
            if picture.size != (w, h):
                raise DataError(f"{where}: image {i} is {picture.width}x{picture.height} pixels, expected {w}x{h}")
            out[i] = np.asarray(picture.convert("L" if c == 1 else "RGB")).reshape(h, w, c)
        except (OSError, SyntaxError, TypeError, image.DecompressionBombError) as error:
            raise DataError(f"{where}: image {i} is truncated or not an image ({reason(error)})") from error
    return np.ascontiguousarray(out.transpose(0, 3, 1, 2))
