"""``scripts/convert_data.py`` on small original files: arrays are equal, and what is wrong with a file is one line."""

import gzip
import hashlib
import io
import pickle
import shutil
import sys
import tarfile
import zipfile
import zlib
from functools import partial

import numpy as np
import pytest
import scipy.io
from conftest import refused
from folders import script
from PIL import Image

from rl_plasticity.tasks import DataError, load

convert_data = script("convert_data")
CHECKSUMS = {name: dict(original.checksums) for name, original in convert_data.ORIGINALS.items()}
RNG = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def _files_of_the_tests_have_no_published_checksums(monkeypatch):
    for name, original in convert_data.ORIGINALS.items():
        monkeypatch.setitem(convert_data.ORIGINALS, name, original._replace(checksums={}))


def publish(monkeypatch, name, checksums):
    monkeypatch.setitem(convert_data.ORIGINALS, name, convert_data.ORIGINALS[name]._replace(checksums=checksums))


def converted(name, source, to=None, split=None):
    """The two parts that are read, as `load` finds them in the new folder."""
    to = source.parent / f"new_{len(list(source.parent.iterdir()))}" if to is None else to
    convert_data.convert(name, source, to, split)
    parts = []
    for file in ("train.npz", "test.npz"):
        with np.load(to / file, allow_pickle=False) as arrays:
            parts.append((arrays["images"], arrays["labels"]))
    assert len(load(name, to).train_y) == len(parts[0][1])
    return parts


def not_converted(name, source, *names, split=None):
    """It is refused in one line with these names in it, and nothing is written."""
    before = sorted(source.parent.rglob("*"))
    refused(lambda: converted(name, source, split=split), *names, error=DataError)
    assert sorted(source.parent.rglob("*")) == before


def images(n, *shape):
    return RNG.integers(0, 256, (n, *shape), dtype=np.uint8)


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.tobytes()


def write_idx(folder, names, x, y, zipped=True):
    for name, array in zip(names, (x, y), strict=True):
        content = idx(array)
        (folder / f"{name}{'.gz' if zipped else ''}").write_bytes(gzip.compress(content) if zipped else content)


@pytest.fixture
def mnist(tmp_path):
    root, parts = tmp_path / "mnist", []
    root.mkdir()
    for prefix, n in (("train", 12), ("t10k", 6)):
        x, y = images(n, 28, 28), (np.arange(n) % 10).astype(np.uint8)
        write_idx(root, (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"), x, y)
        parts.append((x, y))
    return root, parts


def same(got, expected):
    pairs = [(a, b) for part, wanted in zip(got, expected, strict=True) for a, b in zip(part, wanted, strict=True)]
    return all(a.shape == b.shape and (a == b).all() for a, b in pairs)


@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files_are_read_gzipped_or_unpacked_wherever_they_lie(mnist, zipped):
    root, parts = mnist
    deep = root / "MNIST" / "raw"
    deep.mkdir(parents=True)
    for file in root.glob("*.gz"):
        (deep / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
        if not zipped:
            file.unlink()
    got = converted("mnist", root / ("." if zipped else "MNIST"), root.parent / "new")
    assert same(got, [(x[:, None], y) for x, y in parts])


def test_two_data_sets_with_files_of_the_same_names_are_not_mixed_up(mnist):
    root, _ = mnist
    for name in ("Fashion-MNIST", "old"):
        shutil.copytree(root, root.parent / "both" / name)
    both = ["Fashion-MNIST/train-images-idx3-ubyte.gz", "old/train-images-idx3-ubyte.gz"]
    not_converted("mnist", root.parent / "both", *both)


def test_a_wrong_checksum_is_one_line_with_both_values(mnist, monkeypatch):
    root, _ = mnist
    publish(monkeypatch, "mnist", CHECKSUMS["mnist"])
    found = hashlib.md5((root / "train-images-idx3-ubyte.gz").read_bytes()).hexdigest()
    not_converted("mnist", root, "train-images-idx3-ubyte.gz", found, "f68b3c2dcbeaaa9fbdd348bbdeb94873")


def test_the_right_checksums_pass_and_each_file_counts(mnist, monkeypatch):
    root, _ = mnist
    right = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in root.iterdir()}
    assert right.keys() == CHECKSUMS["mnist"].keys()
    publish(monkeypatch, "mnist", right)
    converted("mnist", root)
    for name in right:
        publish(monkeypatch, "mnist", right | {name: "0" * 32})
        not_converted("mnist", root, f"{name}: wrong checksum")


DAMAGED = [  # a file of a data set, what is made of it, and what is said of it beside its name
    *(("mnist", "train-images-idx3-ubyte.gz", lambda whole, n=n: whole[:n], ["truncated"]) for n in (10, 200, -1)),
    ("mnist", "train-images-idx3-ubyte", lambda whole: whole[:-5], ["truncated", "9419", "9424"]),
    ("mnist", "train-images-idx3-ubyte", lambda whole: whole[:9], ["truncated", "9 bytes", "16"]),
    ("mnist", "train-images-idx3-ubyte", lambda whole: whole + b"x", ["too long", "9425", "9424"]),
    ("mnist", "train-images-idx3-ubyte", lambda whole: b"PK" + whole[2:], ["not an IDX file"]),
    *(("cifar100", "cifar-100-binary.tar.gz", lambda whole, n=n: whole[:n], ["truncated"]) for n in (0, 30, 20_000)),
    ("cifar10", "cifar-10-batches-bin/data_batch_4.bin", lambda whole: whole[:-1], ["truncated", "12291", "3073"]),
    ("svhn", "test_32x32.mat", lambda whole: whole[:3000], ["truncated"]),
    ("shards", "test-00000-of-00001.parquet", lambda whole: whole[:-20], ["truncated"]),
]


@pytest.mark.parametrize(("name", "file", "damage", "said"), DAMAGED)
def test_a_damaged_file_is_one_line(name, file, damage, said, request):
    root = request.getfixturevalue(name)[0]
    root = root.parent if root.is_file() else root
    if not (path := root / file).exists():  # it is read before the one that is packed
        path.write_bytes(gzip.decompress((root / f"{file}.gz").read_bytes()))
    path.write_bytes(damage(path.read_bytes()))
    not_converted("cifar100" if name == "shards" else name, root, path.name, *said)


def test_what_does_not_fit_or_is_missing_is_named_and_nothing_is_written(mnist):
    root, _ = mnist
    write_idx(root, ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), images(3, 28, 28), np.full(3, 10, "u1"))
    not_converted("mnist", root, "training", "labels from 10 to 10")
    (root / "t10k-labels-idx1-ubyte.gz").unlink()
    not_converted("mnist", root, "t10k-labels-idx1-ubyte", "train-images-idx3-ubyte")


def run(monkeypatch, capsys, *arguments):
    """The script's exit status, standard output and standard error."""
    monkeypatch.setattr(sys, "argv", ["convert_data.py", *map(str, arguments)])
    status = 0
    try:
        convert_data.main()
    except SystemExit as error:
        status = error.code
    return status, *capsys.readouterr()


def test_the_command_makes_a_folder_that_is_not_there_and_says_how_it_is_used(mnist, monkeypatch, capsys):
    root, _ = mnist
    new = root.parent / "new"
    new.mkdir()  # empty
    status, out, err = run(monkeypatch, capsys, "mnist", root, new)
    assert (status, err) == (0, "")
    assert "12 training and 6 test images of 1x28x28" in out
    assert f"data=mnist data.root={new}" in out
    assert sorted(path.name for path in root.parent.iterdir()) == ["mnist", "new"]
    before = {path: path.read_bytes() for path in new.iterdir()}
    for source, to, says in ((root, new, "new exists already"), (root / "nowhere", root / "to", "nowhere is neither")):
        status, out, err = run(monkeypatch, capsys, "mnist", source, to)
        assert (status, out, err.count("\n"), says in err) == (2, "", 1, True)
    assert {path: path.read_bytes() for path in new.iterdir()} == before
    status, _, err = run(monkeypatch, capsys, "mnist", root, root / "to", "--split=imagenet")
    assert (status, "--split" in err) == (2, True)


def test_a_disk_that_is_full_leaves_nothing(mnist, monkeypatch, capsys):
    root, _ = mnist
    save = np.savez

    def full(file, **arrays):
        save(file, **arrays)
        if file.name == "test.npz":
            raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full)
    status, _, err = run(monkeypatch, capsys, "mnist", root, root.parent / "new")
    assert (status, "No space left" in err) == (2, True)
    assert [path.name for path in root.parent.iterdir()] == ["mnist"]


def test_emnist_is_turned_upright_and_read_inside_its_archive(tmp_path, monkeypatch):
    x, y = images(5, 28, 28), np.array([46, 0, 1, 2, 3], np.uint8)
    root = tmp_path / "originals"
    root.mkdir()
    with zipfile.ZipFile(root / "gzip.zip", "w") as archive:
        for part in ("train", "test"):
            archive.writestr(f"gzip/emnist-balanced-{part}-images-idx3-ubyte.gz", gzip.compress(idx(x)))
            archive.writestr(f"gzip/emnist-balanced-{part}-labels-idx1-ubyte.gz", gzip.compress(idx(y)))
    assert same(converted("emnist", root), [(x.transpose(0, 2, 1)[:, None], y)] * 2)
    assert same(converted("emnist", root / "gzip.zip", tmp_path / "new"), [(x.transpose(0, 2, 1)[:, None], y)] * 2)
    assert [path.name for path in root.iterdir()] == ["gzip.zip"]  # nothing was unpacked
    publish(monkeypatch, "emnist", CHECKSUMS["emnist"])
    not_converted("emnist", root, "gzip.zip: wrong checksum")


def cifar_files(label_bytes, names, n=4):
    files, parts = {}, {}
    for i, name in enumerate(names):
        x = images(n, 3, 32, 32)
        y = (np.arange(n) + i).astype(np.uint8)
        head = np.stack([np.full(n, 19, np.uint8), y], axis=1)[:, 2 - label_bytes :]  # the coarse label comes first
        files[name] = np.concatenate([head, x.reshape(n, -1)], axis=1).tobytes()
        parts[name] = x, y
    return files, parts


CIFAR10 = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]


@pytest.fixture
def cifar10(tmp_path):
    files, parts = cifar_files(1, CIFAR10)
    folder = tmp_path / "originals" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder.parent, parts


def test_cifar10_is_read_from_its_binary_batches_in_order(cifar10):
    root, parts = cifar10
    train = tuple(np.concatenate(arrays) for arrays in zip(*(parts[name] for name in CIFAR10[:5]), strict=True))
    assert same(converted("cifar10", root), [train, parts["test_batch.bin"]])
    (root / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    not_converted("cifar10", root / "cifar-10-batches-bin", "data_batch_4.bin", "cifar-10-binary.tar.gz")


@pytest.fixture
def cifar100(tmp_path):
    files, parts = cifar_files(2, ["train.bin", "test.bin"])
    path = tmp_path / "originals" / "cifar-100-binary.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (files | {"../escaped.txt": b"out"}).items():
            info = tarfile.TarInfo(f"cifar-100-binary/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path, parts


def test_cifar100_s_fine_labels_are_read_inside_its_archive(cifar100, monkeypatch):
    path, parts = cifar100
    publish(monkeypatch, "cifar100", {path.name: hashlib.md5(path.read_bytes()).hexdigest()})
    assert same(converted("cifar100", path.parent), [parts["train.bin"], parts["test.bin"]])
    publish(monkeypatch, "cifar100", CHECKSUMS["cifar100"])
    not_converted("cifar100", path.parent, "cifar-100-binary.tar.gz: wrong checksum")


@pytest.mark.parametrize("link", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_an_archive_cannot_reach_outside_itself_by_a_link(link, cifar100, tmp_path):
    path, _ = cifar100
    (tmp_path / "secret").write_bytes(b"0" * 3074)
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("cifar-100-binary/train.bin")
        info.type, info.linkname = link, str(tmp_path / "secret")
        archive.addfile(info)
    not_converted("cifar100", path.parent, "train.bin")


def test_names_that_lead_out_of_an_archive_are_names_and_nothing_is_unpacked(cifar100, tmp_path):
    path, _ = cifar100
    content = path.read_bytes()
    with tarfile.open(path, "w:gz") as archive, tarfile.open(fileobj=io.BytesIO(content)) as good:
        for member in good.getmembers():
            archive.addfile(member, good.extractfile(member))
        for name in ("../evil", "/tmp/../evil", "a/../../evil", str(tmp_path / "evil")):
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"evil"))
    before = sorted(tmp_path.rglob("*"))
    assert len(converted("cifar100", path.parent, tmp_path / "new")[0][1]) == 4
    shutil.rmtree(tmp_path / "new")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("packed", ["tar", "zip", "gzip"])
def test_what_unpacks_to_more_than_a_data_set_has_is_refused_before_it_is_whole(packed, tmp_path, monkeypatch):
    monkeypatch.setattr(convert_data, "MOST", 1000)
    large = bytes(10_000_000)
    path = tmp_path / f"train.bin{'.gz' if packed == 'gzip' else f'.{packed}'}"
    if packed == "gzip":
        path.write_bytes(gzip.compress(large))
    elif packed == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("train.bin", large)
    else:
        with tarfile.open(path, "w:gz") as archive:
            info = tarfile.TarInfo("train.bin")
            info.size = len(large)
            archive.addfile(info, io.BytesIO(large))
    not_converted("cifar100", tmp_path if packed == "gzip" else path, "more than 1000 bytes")


def test_a_batch_that_unpacks_to_more_than_there_can_be_is_refused_before_it_is_read(imagenet32, monkeypatch):
    root, _, _ = imagenet32
    monkeypatch.setattr(convert_data, "MOST", 1000)
    not_converted("imagenet32", root, "train_data_batch_1.npz", "more than 1000 bytes")


def test_an_array_that_claims_terabytes_is_one_line(tmp_path):
    head = io.BytesIO()
    shape = {"descr": "|u1", "fortran_order": False, "shape": (10**12, 3072)}
    np.lib.format.write_array_header_1_0(head, shape)
    refused(lambda: convert_data._loaded(head.getvalue() + bytes(100), "a.npy"), "a.npy is truncated", error=DataError)


def test_a_picture_of_another_size_is_refused_before_it_is_decoded():
    def header(width, height):  # of a PNG without a pixel: what decodes it says that it is truncated
        size = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"
        checksum = zlib.crc32(b"IHDR" + size).to_bytes(4, "big")
        return b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + b"IHDR" + size + checksum + b"\x00\x00\x10\x00IDAT"

    assert Image.MAX_IMAGE_PIXELS < 30_000**2
    for side, *said in ((9000, "9000x9000", "4x4"), (4, "truncated"), (30_000, "truncated")):
        read = partial(convert_data.pictures, [header(side, side)], 1, (3, 4, 4), "here")
        refused(read, "image 0", *said, error=DataError)


def test_pickles_are_refused_and_the_binary_version_is_asked_for(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": [], b"labels": []}))
    not_converted("cifar10", folder, "cifar-10-binary.tar.gz", "can run code")


@pytest.fixture
def svhn(tmp_path):
    root = tmp_path / "originals"
    root.mkdir()
    x = images(32, 32, 3, 4)  # [h, w, c, n]
    for name in ("train", "test"):
        scipy.io.savemat(root / f"{name}_32x32.mat", {"X": x, "y": np.array([[1], [10], [9], [2]])})
    return root, x


def test_svhn_s_tens_are_zeros_and_a_variable_that_is_missing_is_named(svhn):
    root, x = svhn
    expected = np.stack([x[..., i].transpose(2, 0, 1) for i in range(4)])
    assert same(converted("svhn", root), [(expected, np.array([1, 0, 9, 2]))] * 2)
    scipy.io.savemat(root / "test_32x32.mat", {"X": x})
    not_converted("svhn", root, "test_32x32.mat", "'y'")


def jpeg(value, mode="RGB", size=64):
    out = io.BytesIO()
    Image.new(mode, (size, size), value if mode == "L" else (value, value, value)).save(out, "JPEG", quality=95)
    return out.getvalue()


@pytest.fixture
def tiny(tmp_path):
    """200 classes of two images each, told by their grey value; the folders are not made in the order of the names."""
    base = tmp_path / "originals" / "tiny-imagenet-200"
    for k in reversed(range(200)):
        folder = base / "train" / f"n{k:08d}" / "images"
        folder.mkdir(parents=True)
        for i in (2, 10):
            (folder / f"n{k:08d}_{i}.JPEG").write_bytes(jpeg(k + (i == 10) * 20, "L" if k % 2 else "RGB"))
    (base / "val" / "images").mkdir(parents=True)
    lines = []
    for i, k in enumerate((7, 7, 199, 0)):
        (base / "val" / "images" / f"val_{i}.JPEG").write_bytes(jpeg(k))
        lines.append(f"val_{i}.JPEG\tn{k:08d}\t0\t0\t63\t63\n")
    (base / "val" / "val_annotations.txt").write_text("".join(lines))
    return base


def test_tiny_imagenet_s_classes_are_numbered_by_name_and_load_gives_every_beginning_all_of_them(tiny, tmp_path):
    (x, y), (_, test_y) = converted("tiny_imagenet", tiny, tmp_path / "new")
    assert y.tolist() == [k for k in range(200) for _ in range(2)]
    assert test_y.tolist() == [7, 7, 199, 0]
    got = load("tiny_imagenet", tmp_path / "new")
    assert got.train_x.shape == x.shape == (400, 3, 64, 64)
    assert got.train_y.tolist() == list(range(200)) * 2  # one of each class before the second of any
    grey = got.train_x[:, 0, 30, 30].numpy().astype(int)
    assert abs(grey - np.concatenate([np.arange(200), np.arange(200) + 20])).max() <= 2  # _2 comes before _10
    for content, said in ((jpeg(3)[:300], "truncated"), (jpeg(3, size=60), "60x60 pixels, expected 64x64")):
        (tiny / "val" / "images" / "val_2.JPEG").write_bytes(content)
        not_converted("tiny_imagenet", tiny, "val: image 2", said)


def test_tiny_imagenet_is_read_inside_its_archive_too(tiny, tmp_path):
    folder = converted("tiny_imagenet", tiny, tmp_path / "a")
    archive = tmp_path / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in tiny.rglob("*"):
            packed.write(path, path.relative_to(tiny.parent))
    assert same(converted("tiny_imagenet", archive, tmp_path / "b"), folder)


def test_a_missing_class_and_a_strange_annotation_are_one_line(tiny):
    notes = tiny / "val" / "val_annotations.txt"
    notes.write_text(notes.read_text() + "val_4.JPEG\tn99999999\n")
    not_converted("tiny_imagenet", tiny, "val_annotations.txt")
    shutil.rmtree(tiny / "train" / "n00000003")
    not_converted("tiny_imagenet", tiny, "train holds 199", "200")


@pytest.fixture
def imagenet32(tmp_path, monkeypatch):
    """Three classes instead of 1000, of each 4 images for training and 2 for testing; more of them in ten batches."""
    published = convert_data.PUBLISHED
    monkeypatch.setitem(published, "imagenet32", published["imagenet32"]._replace(num_classes=3))
    monkeypatch.setattr(convert_data, "CONTINUAL", (4, 2))
    root = tmp_path / "originals"
    root.mkdir()
    x, y = images(40, 3072), RNG.permutation(np.arange(40) % 3)
    for i in range(10):
        rows = slice(4 * i, 4 * i + 4)
        np.savez(root / f"train_data_batch_{i + 1}.npz", data=x[rows], labels=y[rows] + 1, mean=x.mean(0))
    np.savez(root / "val_data.npz", data=x[:5], labels=np.array([3, 1, 2, 3, 1]))
    return root, x.reshape(-1, 3, 32, 32), y


def test_imagenet32_gives_each_class_its_first_images_for_training_and_the_next_for_testing(imagenet32, tmp_path):
    root, x, y = imagenet32
    (train_x, train_y), (test_x, test_y) = converted("imagenet32", root, tmp_path / "new")
    assert (len(train_y), len(test_y)) == (12, 6)
    for k in range(3):
        assert (train_x[train_y == k] == x[y == k][:4]).all()
        assert (test_x[test_y == k] == x[y == k][4:6]).all()
    ordered = load("imagenet32", tmp_path / "new").train_y.view(4, 3).sort().values
    assert ordered.tolist() == [[0, 1, 2]] * 4  # every beginning holds all classes


def test_imagenet32_is_whole_and_tested_on_its_validation_images_where_that_is_wanted(imagenet32):
    root, x, y = imagenet32
    assert same(converted("imagenet32", root, split="imagenet"), [(x, y), (x[:5], np.array([2, 0, 1, 2, 0]))])


def test_imagenet32_is_read_from_a_file_for_each_class_too(imagenet32, tmp_path):
    root, x, y = imagenet32
    folder = tmp_path / "of_classes" / "classes"
    folder.mkdir(parents=True)
    for k in range(3):
        np.save(folder / f"{k}.npy", x[y == k].astype([np.uint8, np.float32, np.int16][k]))
    got, batches = converted("imagenet32", folder.parent), converted("imagenet32", root, tmp_path / "new")
    for (x_got, y_got), (x_batches, y_batches) in zip(got, batches, strict=True):
        for k in range(3):
            assert (x_got[y_got == k] == x_batches[y_batches == k]).all()
    not_converted("imagenet32", folder, "no validation images", "--split imagenet", split="imagenet")
    np.save(folder / "1.npy", x[y == 1] / 255)
    not_converted("imagenet32", folder, "1.npy", "float64", "0 to 255")
    np.save(folder / "1.npy", x[y == 1][:5])
    not_converted("imagenet32", folder, "1.npy", "5x3x32x32", "6x3x32x32")
    (folder / "1.npy").unlink()
    not_converted("imagenet32", folder, "no 1.npy")


@pytest.mark.parametrize(
    ("data", "labels", "says"),
    [
        (images(4, 3072), None, ["data", "labels"]),
        (images(4, 3071), np.ones(4, int), ["4x3071", "4 labels", "nx3072"]),
        (images(4, 3072), np.ones(3, int), ["4x3072", "3 labels"]),
        (images(0, 3072), np.ones(0, int), ["0x3072", "0 labels"]),
        (images(2, 3072), np.array([0, 1]), ["labels from 0 to 1", "from 1 to 3"]),
        (np.array([{}, None]), np.ones(2, int), ["allow_pickle=False"]),
        (None, None, ["truncated"]),
    ],
)
def test_a_batch_of_imagenet32_that_is_not_one_is_one_line_and_no_pickle_is_read(imagenet32, data, labels, says):
    root, _, _ = imagenet32
    file = root / "train_data_batch_3.npz"
    if data is None:
        file.write_bytes(b"\x80\x04.")
    else:
        np.savez(file, data=data, **({} if labels is None else {"labels": labels}))
    not_converted("imagenet32", root, "train_data_batch_3.npz", *says)
    for i in range(1, 11):
        np.savez(root / f"train_data_batch_{i}.npz", data=images(1, 3072), labels=np.array([1 + (i > 1)]))
    not_converted("imagenet32", root, "class 2 has 0 training images", "6")


def write_parquet(path, columns):
    pyarrow = pytest.importorskip("pyarrow", reason="parquet needs the extra rl_plasticity[images]")
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path)


def png(array):
    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def shards(tmp_path):
    x = images(9, 32, 32, 3)
    cells = [{"bytes": png(one), "path": f"{i}.png"} for i, one in enumerate(x)]
    data = tmp_path / "originals" / "data"
    write_parquet(data / "train-00000-of-00002.parquet", {"img": cells[:4], "fine_label": [0, 99, 2, 3]})
    write_parquet(data / "train-00001-of-00002.parquet", {"img": cells[4:6], "fine_label": [4, 5]})
    write_parquet(data / "test-00000-of-00001.parquet", {"img": cells[6:], "fine_label": [6, 7, 8], "other": [0] * 3})
    return data, x.transpose(0, 3, 1, 2)


def test_parquet_shards_are_read_in_order_by_the_hub_s_column_names_and_what_is_missing_is_named(shards):
    root, x = shards
    expected = [(x[:6], np.array([0, 99, 2, 3, 4, 5])), (x[6:], np.array([6, 7, 8]))]
    assert same(converted("cifar100", root), expected)
    not_converted("cifar10", root, "train-00000", "'label'", "img, fine_label")
    (root / "test-00000-of-00001.parquet").unlink()
    not_converted("cifar100", root, "'test'")


def test_svhn_s_other_variant_is_left_alone(tmp_path):
    cells = [png(one) for one in images(2, 32, 32, 3)]
    root = tmp_path / "originals"
    for split in ("train", "test"):
        write_parquet(root / "cropped_digits" / f"{split}.parquet", {"image": cells, "label": [0, 1]})
        write_parquet(root / "full_numbers" / f"{split}.parquet", {"image": cells, "digits": [0, 1]})
    assert converted("svhn", root)[0][1].tolist() == [0, 1]
