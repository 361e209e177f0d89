"""Loaders on tiny generated files: what is read, and one clear line for each way in which they can be wrong."""

import gzip
import hashlib
import io
import random
import shutil
import tarfile
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from rl_plasticity.tasks import DataError, data, formats, load

RNG = np.random.default_rng(1)


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
    parts = {}
    for prefix, n in (("train", 12), ("t10k", 6)):
        x, y = images(n, 28, 28), (np.arange(n) % 10).astype(np.uint8)
        write_idx(tmp_path, (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"), x, y)
        parts[prefix] = x, y
    return tmp_path, parts


def test_mnist_is_read_from_its_own_files(mnist):
    root, parts = mnist
    got = load("mnist", root, checksums={})
    assert (got.train_x[:, 0].numpy() == parts["train"][0]).all()
    assert got.train_y.tolist() == parts["train"][1].tolist()
    assert (got.test_x[:, 0].numpy() == parts["t10k"][0]).all()
    assert got.num_classes == 10


def test_unpacked_files_and_a_folder_of_the_data_set_s_name_are_found(mnist):
    root, parts = mnist
    deep = root / "FashionMNIST" / "raw"  # torchvision's
    deep.mkdir(parents=True)
    for file in root.glob("*.gz"):
        (deep / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    got = load("fashion_mnist", root)  # unpacked files have no published checksum
    assert (got.train_x[:, 0].numpy() == parts["train"][0]).all()


def test_two_data_sets_with_files_of_the_same_names_are_not_mixed_up(mnist):
    root, _ = mnist
    for name in ("Fashion-MNIST", "old"):
        (root / name).mkdir()
        for file in root.glob("*.gz"):
            shutil.copy(file, root / name)
    for file in root.glob("*.gz"):
        file.unlink()
    write_idx(
        root / "old", ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), images(1, 28, 28), np.zeros(1, "u1")
    )
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte lies in .*/Fashion-MNIST and .*/old: say which"):
        load("mnist", root, checksums={})
    assert len(load("mnist", root / "old", checksums={}).train_y) == 1


def test_a_wrong_checksum_is_one_line_with_both_values(mnist):
    root, _ = mnist
    found = hashlib.md5((root / "train-images-idx3-ubyte.gz").read_bytes()).hexdigest()
    expected = data._SPECS["mnist"].checksums["train-images-idx3-ubyte.gz"]
    says = f"train-images-idx3-ubyte.gz: wrong checksum, MD5 {found} instead of {expected}"
    with pytest.raises(DataError, match=says) as caught:
        load("mnist", root)
    assert "\n" not in str(caught.value)


def test_the_right_checksums_pass_and_each_file_counts(mnist):
    root, _ = mnist
    right = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in root.iterdir()}
    assert len(right) == 4
    load("mnist", root, checksums=right)
    for name in right:
        with pytest.raises(DataError, match=f"{name}: wrong checksum"):
            load("mnist", root, checksums=right | {name: "0" * 32})


@pytest.mark.parametrize("keep", [10, 200, -1])
def test_a_truncated_gzip_is_one_line(mnist, keep):
    root, _ = mnist
    file = root / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz is truncated or damaged") as caught:
        load("mnist", root, checksums={})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lambda whole: whole[:-5], "is truncated: 9419 bytes, expected 9424"),
        (lambda whole: whole[:9], "is truncated: 9 bytes, expected a header of 16"),
        (lambda whole: whole + b"x", "is too long: 9425 bytes, expected 9424"),
        (lambda whole: b"PK" + whole[2:], "is not an IDX file"),
    ],
)
def test_a_damaged_idx_file_is_one_line(mnist, content, says):
    root, parts = mnist
    (root / "train-images-idx3-ubyte.gz").unlink()
    (root / "train-images-idx3-ubyte").write_bytes(content(idx(parts["train"][0])))
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte {says}"):
        load("mnist", root, checksums={})


def test_a_missing_companion_is_named(mnist):
    root, _ = mnist
    (root / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="the file t10k-labels-idx1-ubyte is missing"):
        load("mnist", root, checksums={})


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (images(3, 27, 28), np.zeros(3, np.uint8), "images are 1x27x28 .*, expected 1x28x28"),
        (images(3, 28, 28), np.zeros(4, np.uint8), "3 images and 4 labels"),
        (images(3, 28, 28), np.full(3, 10, np.uint8), "labels from 10 to 10, expected integers from 0 to 9"),
        (images(0, 28, 28), np.zeros(0, np.uint8), "0 images and 0 labels"),
    ],
)
def test_images_and_labels_that_do_not_fit_are_one_line(mnist, x, y, says):
    root, _ = mnist
    write_idx(root, ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), x, y)
    with pytest.raises(DataError, match=f"mnist, training: {says}"):
        load("mnist", root, checksums={})


def test_emnist_is_turned_upright_and_read_inside_its_archive(tmp_path):
    x, y = images(5, 28, 28), np.array([46, 0, 1, 2, 3], np.uint8)
    with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
        for part in ("train", "test"):
            archive.writestr(f"gzip/emnist-balanced-{part}-images-idx3-ubyte.gz", gzip.compress(idx(x)))
            archive.writestr(f"gzip/emnist-balanced-{part}-labels-idx1-ubyte.gz", gzip.compress(idx(y)))
    with pytest.raises(DataError, match=r"gzip.zip: wrong checksum"):
        load("emnist", tmp_path)
    got = load("emnist", tmp_path, checksums={})
    assert (got.train_x[:, 0].numpy() == x.transpose(0, 2, 1)).all()
    assert got.num_classes == 47
    assert [path.name for path in tmp_path.iterdir()] == ["gzip.zip"]  # nothing was unpacked


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


def test_cifar10_is_read_from_its_binary_batches_in_order(tmp_path):
    files, parts = cifar_files(1, CIFAR10)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    got = load("cifar10", tmp_path)
    assert (got.train_x.numpy() == np.concatenate([parts[name][0] for name in CIFAR10[:5]])).all()
    assert got.train_y.tolist() == [0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6, 4, 5, 6, 7]
    assert (got.test_x.numpy() == parts["test_batch.bin"][0]).all()
    (folder / "data_batch_4.bin").write_bytes(files["data_batch_4.bin"][:-1])
    with pytest.raises(DataError, match=r"data_batch_4.bin is truncated: 12291 bytes, expected a multiple of 3073"):
        load("cifar10", tmp_path)
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_4.bin is missing"):
        load("cifar10", tmp_path)


@pytest.fixture
def cifar100(tmp_path):
    files, parts = cifar_files(2, ["train.bin", "test.bin"])
    path = tmp_path / "cifar-100-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (files | {"../escaped.txt": b"out"}).items():
            info = tarfile.TarInfo(f"cifar-100-binary/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path, parts


def test_cifar100_s_fine_labels_are_read_inside_its_archive_and_nothing_is_written(cifar100):
    path, parts = cifar100
    got = load("cifar100", path.parent, checksums={path.name: hashlib.md5(path.read_bytes()).hexdigest()})
    assert (got.train_x.numpy() == parts["train.bin"][0]).all()
    assert got.train_y.tolist() == [0, 1, 2, 3]
    assert got.test_y.tolist() == [1, 2, 3, 4]
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with pytest.raises(DataError, match=r"cifar-100-binary.tar.gz: wrong checksum"):
        load("cifar100", path.parent)


@pytest.mark.parametrize("link", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_an_archive_cannot_reach_outside_itself_by_a_link(link, cifar100, tmp_path):
    path, _ = cifar100
    (tmp_path / "secret").write_bytes(b"0" * 3074)
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("cifar-100-binary/train.bin")
        info.type, info.linkname = link, str(tmp_path / "secret")
        archive.addfile(info)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=r"train.bin is truncated or damaged") as caught:
        load("cifar100", path.parent, checksums={})
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


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
    assert len(load("cifar100", path.parent, checksums={}).train_y) == 4
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("packed", ["tar", "zip", "gzip"])
def test_what_unpacks_to_more_than_a_data_set_has_is_refused_before_it_is_whole(packed, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "MOST", 1000)
    large, path = bytes(10_000_000), tmp_path / f"a.{packed}"
    if packed == "gzip":
        path.write_bytes(gzip.compress(large))
        with pytest.raises(DataError, match="more than 1000 bytes when unpacked"):
            formats.content_of({"a.gz": path.read_bytes}, "a", {})
        return
    if packed == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a", large)
    else:
        with tarfile.open(path, "w:gz") as archive:
            info = tarfile.TarInfo("a")
            info.size = len(large)
            archive.addfile(info, io.BytesIO(large))
    with formats.members(path) as files, pytest.raises(DataError, match="more than 1000 bytes when unpacked"):
        formats.content_of(files, "a", {})


def test_a_batch_that_unpacks_to_more_than_there_can_be_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "MOST", 1000)
    np.savez_compressed(tmp_path / "a.npz", data=np.zeros((1000, 3072), np.uint8), labels=np.ones(1000, int))
    with pytest.raises(DataError, match="more than 1000 bytes when unpacked"):
        formats._npz_part({"a.npz": (tmp_path / "a.npz").read_bytes}, "a.npz", 10, {})


def test_an_array_that_claims_terabytes_is_one_line(tmp_path):
    head = io.BytesIO()
    shape = {"descr": "|u1", "fortran_order": False, "shape": (10**12, 3072)}
    np.lib.format.write_array_header_1_0(head, shape)
    with pytest.raises(DataError, match=r"a\.npy is truncated or not a file of numbers"):
        formats._array(head.getvalue() + bytes(100), "a.npy")


def test_a_picture_of_another_size_is_refused_before_it_is_decoded():
    def header(width, height):  # of a PNG without a pixel: what decodes it says that it is truncated
        size = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"
        checksum = zlib.crc32(b"IHDR" + size).to_bytes(4, "big")
        return b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + b"IHDR" + size + checksum + b"\x00\x00\x10\x00IDAT"

    with pytest.raises(DataError, match="image 0 is 9000x9000 pixels, expected 4x4"):
        formats.pictures([header(9000, 9000)], 1, (3, 4, 4), "here")
    with pytest.raises(DataError, match="image 0 is truncated or not an image"):
        formats.pictures([header(4, 4)], 1, (3, 4, 4), "here")
    assert Image.MAX_IMAGE_PIXELS < 30_000**2
    with pytest.raises(DataError, match="image 0 is truncated or not an image"):
        formats.pictures([header(30_000, 30_000)], 1, (3, 4, 4), "here")


@pytest.mark.parametrize("keep", [0, 30, 20000])
def test_a_truncated_archive_is_one_line(cifar100, keep):
    path, _ = cifar100
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="is truncated") as caught:
        load("cifar100", path.parent, checksums={})
    assert "\n" not in str(caught.value)


def test_pickles_are_refused_and_the_binary_version_is_asked_for(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"\x80\x04.")
    with pytest.raises(DataError, match=r"pickles, which can run code .* get the binary version, cifar-10-binary"):
        load("cifar10", tmp_path)


def test_svhn_s_tens_are_zeros_and_a_variable_that_is_missing_is_named(tmp_path):
    x = images(32, 32, 3, 4)  # [h, w, c, n]
    for name in ("train", "test"):
        scipy.io.savemat(tmp_path / f"{name}_32x32.mat", {"X": x, "y": np.array([[1], [10], [9], [2]])})
    got = load("svhn", tmp_path, checksums={})
    assert got.train_y.tolist() == [1, 0, 9, 2]
    assert got.train_x[2, 1, 5, 7] == x[5, 7, 1, 2]
    with pytest.raises(DataError, match=r"train_32x32.mat: wrong checksum"):
        load("svhn", tmp_path)
    test = tmp_path / "test_32x32.mat"
    whole = test.read_bytes()
    test.write_bytes(whole[:3000])
    with pytest.raises(DataError, match=r"test_32x32.mat is truncated or not a MATLAB file"):
        load("svhn", tmp_path, checksums={})
    scipy.io.savemat(test, {"X": x})
    with pytest.raises(DataError, match=r"test_32x32.mat: no variable 'y'"):
        load("svhn", tmp_path, checksums={})


def jpeg(value, mode="RGB", size=64):
    out = io.BytesIO()
    Image.new(mode, (size, size), value if mode == "L" else (value, value, value)).save(out, "JPEG", quality=95)
    return out.getvalue()


@pytest.fixture
def tiny(tmp_path):
    """200 classes of two images each, told by their grey value; the folders are not made in the order of the names."""
    base = tmp_path / "tiny-imagenet-200"
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


def test_tiny_imagenet_s_classes_are_numbered_by_name_and_every_beginning_holds_all(tiny):
    got = load("tiny_imagenet", tiny.parent)
    assert got.train_x.shape == (400, 3, 64, 64)
    assert got.train_y.tolist() == list(range(200)) * 2  # one of each class before the second of any
    grey = got.train_x[:, 0, 30, 30].long()
    assert (grey - torch.cat([torch.arange(200), torch.arange(200) + 20])).abs().max() <= 2  # _2 comes before _10
    assert got.test_y.tolist() == [7, 7, 199, 0]
    (tiny / "val" / "images" / "val_2.JPEG").write_bytes(jpeg(3)[:300])
    with pytest.raises(DataError, match="tiny-imagenet-200/val: image 2 is truncated or not an image"):
        load("tiny_imagenet", tiny.parent)
    (tiny / "val" / "images" / "val_2.JPEG").write_bytes(jpeg(3, size=60))
    with pytest.raises(DataError, match="image 2 is 60x60 pixels, expected 64x64"):
        load("tiny_imagenet", tiny.parent)


def test_tiny_imagenet_is_read_inside_its_archive_too(tiny):
    folder = load("tiny_imagenet", tiny)
    with zipfile.ZipFile(tiny.parent / "tiny-imagenet-200.zip", "w") as archive:
        for path in tiny.rglob("*"):
            archive.write(path, path.relative_to(tiny.parent))
    shutil.rmtree(tiny)
    zipped = load("tiny_imagenet", tiny.parent, checksums={})
    assert torch.equal(zipped.train_x, folder.train_x)
    assert torch.equal(zipped.test_y, folder.test_y)


def test_a_missing_class_and_a_strange_annotation_are_one_line(tiny):
    notes = tiny / "val" / "val_annotations.txt"
    notes.write_text(notes.read_text() + "val_4.JPEG\tn99999999\n")
    with pytest.raises(DataError, match=r"val_annotations.txt: expected lines"):
        load("tiny_imagenet", tiny)
    shutil.rmtree(tiny / "train" / "n00000003")
    with pytest.raises(DataError, match="holds 199 class folders, expected 200"):
        load("tiny_imagenet", tiny)


@pytest.fixture
def imagenet32(tmp_path, monkeypatch):
    """Three classes instead of 1000, of each 4 images for training and 2 for testing; more of them in ten batches."""
    monkeypatch.setitem(data._SPECS, "imagenet32", replace(data._SPECS["imagenet32"], num_classes=3))
    monkeypatch.setattr(data, "_CONTINUAL", (4, 2))
    x, y = images(40, 3072), RNG.permutation(np.arange(40) % 3)
    for i in range(10):
        rows = slice(4 * i, 4 * i + 4)
        np.savez(tmp_path / f"train_data_batch_{i + 1}.npz", data=x[rows], labels=y[rows] + 1, mean=x.mean(0))
    np.savez(tmp_path / "val_data.npz", data=x[:5], labels=np.array([3, 1, 2, 3, 1]))
    return tmp_path, x.reshape(-1, 3, 32, 32), y


def test_imagenet32_gives_each_class_its_first_images_for_training_and_the_next_for_testing(imagenet32):
    root, x, y = imagenet32
    got = load("imagenet32", root, checksums={})
    assert got.num_classes == 3
    assert (got.train_y.view(4, 3).sort().values == torch.arange(3)).all()  # every beginning holds all classes
    for k in range(3):
        of_class = x[y == k]
        assert (got.train_x[got.train_y == k].numpy() == of_class[:4]).all()
        assert (got.test_x[got.test_y == k].numpy() == of_class[4:6]).all()
    assert len(got.test_y) == 6


def test_imagenet32_is_whole_and_tested_on_its_validation_images_where_that_is_wanted(imagenet32):
    root, x, y = imagenet32
    got = load("imagenet32", root, checksums={}, split="imagenet")
    assert sorted(got.train_y.tolist()) == sorted(y.tolist())
    assert (got.train_x[got.train_y == 2].numpy() == x[y == 2]).all()
    assert got.test_y.tolist() == [2, 0, 1, 2, 0]
    assert (got.test_x.numpy() == x[:5]).all()


def test_imagenet32_is_read_from_a_file_for_each_class_too(imagenet32, tmp_path):
    _, x, y = imagenet32
    folder = tmp_path / "of_classes" / "classes"
    folder.mkdir(parents=True)
    for k in range(3):
        np.save(folder / f"{k}.npy", x[y == k].astype([np.uint8, np.float32, np.int16][k]))
    got = load("imagenet32", folder.parent)
    same = load("imagenet32", tmp_path / ".", checksums={})
    for k in range(3):
        assert torch.equal(got.train_x[got.train_y == k], same.train_x[same.train_y == k])
        assert torch.equal(got.test_x[got.test_y == k], same.test_x[same.test_y == k])
    with pytest.raises(DataError, match=r"class files hold no validation images .* data.split=imagenet needs the npz"):
        load("imagenet32", folder, split="imagenet")
    np.save(folder / "1.npy", x[y == 1] / 255)
    with pytest.raises(DataError, match=r"1.npy: pixels are float64 from 0.* expected 0 to 255, whole"):
        load("imagenet32", folder)
    np.save(folder / "1.npy", x[y == 1][:5])
    with pytest.raises(DataError, match=r"1.npy holds 5x3x32x32 numbers, expected at least 6x3x32x32"):
        load("imagenet32", folder)
    (folder / "1.npy").unlink()
    with pytest.raises(DataError, match=r"the file 1.npy is missing"):
        load("imagenet32", folder)


@pytest.mark.parametrize(
    ("save", "says"),
    [
        ({"data": images(4, 3072)}, "is damaged or has no data and labels"),
        (
            {"data": images(4, 3071), "labels": np.ones(4, int)},
            "data are 4x3071 of uint8 with 4 labels, expected nx3072",
        ),
        ({"data": images(4, 3072), "labels": np.ones(3, int)}, "data are 4x3072 of uint8 with 3 labels"),
        ({"data": images(0, 3072), "labels": np.ones(0, int)}, "data are 0x3072 of uint8 with 0 labels"),
        ({"data": images(2, 3072), "labels": np.array([0, 1])}, "labels from 0 to 1, expected integers from 1 to 3"),
        ({"data": np.array([{}, None]), "labels": np.ones(2, int)}, "is damaged .*allow_pickle=False"),
        (None, "is truncated or not a file of numbers"),
    ],
)
def test_a_batch_of_imagenet32_that_is_not_one_is_one_line_and_no_pickle_is_read(imagenet32, save, says):
    root, _, _ = imagenet32
    file = root / "train_data_batch_3.npz"
    if save is None:
        file.write_bytes(b"\x80\x04.")
    else:
        np.savez(file, **save)
    with pytest.raises(DataError, match=f"train_data_batch_3.npz:? {says}") as caught:
        load("imagenet32", root, checksums={})
    assert "\n" not in str(caught.value)


def test_imagenet32_without_its_files_or_as_pickles_says_what_to_get(imagenet32, tmp_path):
    with pytest.raises(DataError, match=r"imagenet32 is never downloaded.*data.root=FOLDER with npz files") as caught:
        load("imagenet32")
    assert "parquet" not in str(caught.value)
    with pytest.raises(DataError, match=r"train_data_batch_1.npz: wrong checksum"):
        load("imagenet32", tmp_path)
    (tmp_path / "pickles").mkdir()
    (tmp_path / "pickles" / "train_data_batch_1").write_bytes(b"\x80\x04.")
    with pytest.raises(DataError, match=r"Python pickles, which can run code and are not read: get the npz files"):
        load("imagenet32", tmp_path / "pickles")
    (tmp_path / "train_data_batch_1.npz").unlink()
    np.savez(tmp_path / "train_data_batch_1.npz", data=images(1, 3072), labels=np.array([1]))
    for i in range(2, 11):
        np.savez(tmp_path / f"train_data_batch_{i}.npz", data=images(1, 3072), labels=np.array([2]))
    with pytest.raises(DataError, match="class 2 has 0 training images, expected at least 6"):
        load("imagenet32", tmp_path, checksums={})


def test_a_folder_without_the_data_says_what_it_should_hold(tmp_path):
    with pytest.raises(DataError, match=r"no cifar10 in .*: expected cifar-10-binary.tar.gz .* or parquet files"):
        load("cifar10", tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        load("cifar10", tmp_path / "nowhere")


def write_parquet(path, columns):
    pyarrow = pytest.importorskip("pyarrow", reason="parquet needs the extra rl_plasticity[images]")
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path)


def png(array):
    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()


def parquet_folder(root, label="fine_label", image="img"):
    x = images(9, 32, 32, 3)
    cells = [{"bytes": png(one), "path": f"{i}.png"} for i, one in enumerate(x)]
    data = root / "data"
    write_parquet(data / "train-00000-of-00002.parquet", {image: cells[:4], label: [0, 99, 2, 3], "coarse": [0] * 4})
    write_parquet(data / "train-00001-of-00002.parquet", {image: cells[4:6], label: [4, 5], "coarse": [0] * 2})
    write_parquet(data / "test-00000-of-00001.parquet", {image: cells[6:], label: [6, 7, 8], "coarse": [0] * 3})
    return x


def test_parquet_shards_are_read_in_order_by_the_hub_s_column_names(tmp_path):
    x = parquet_folder(tmp_path)
    got = load("cifar100", tmp_path)
    assert (got.train_x.numpy() == x[:6].transpose(0, 3, 1, 2)).all()
    assert got.train_y.tolist() == [0, 99, 2, 3, 4, 5]
    assert got.test_y.tolist() == [6, 7, 8]


def test_a_missing_column_is_one_line_with_the_columns_there_are(tmp_path):
    parquet_folder(tmp_path, label="label")
    with pytest.raises(DataError, match=r"train-00000.*: no column 'fine_label' \(it has img, label, coarse\)") as e:
        load("cifar100", tmp_path)
    assert "\n" not in str(e.value)


def test_a_truncated_parquet_file_and_a_missing_split_are_one_line(tmp_path):
    parquet_folder(tmp_path)
    test = tmp_path / "data" / "test-00000-of-00001.parquet"
    test.write_bytes(test.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"test-00000.* is truncated or not a parquet file") as caught:
        load("cifar100", tmp_path)
    assert "\n" not in str(caught.value)
    test.unlink()
    with pytest.raises(DataError, match="has a name that begins with 'test'"):
        load("cifar100", tmp_path)


def test_a_parquet_image_of_another_size_is_named_by_its_place(tmp_path):
    cells = [png(images(1, 28, 28)[0]), png(images(1, 30, 28)[0])]
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}.parquet", {"image": cells, "label": [0, 1]})
    with pytest.raises(DataError, match=r"train.parquet: image 1 is 28x30 pixels, expected 28x28"):
        load("mnist", tmp_path)


def test_svhn_s_other_variant_is_left_alone(tmp_path):
    cells = [png(one) for one in images(2, 32, 32, 3)]
    for split in ("train", "test"):
        write_parquet(tmp_path / "cropped_digits" / f"{split}.parquet", {"image": cells, "label": [0, 1]})
        write_parquet(tmp_path / "full_numbers" / f"{split}.parquet", {"image": cells, "digits": [0, 1]})
    assert load("svhn", tmp_path).train_y.tolist() == [0, 1]


def test_parquet_without_its_library_is_one_line(tmp_path, monkeypatch):
    import sys

    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    (tmp_path / "test.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"library pyarrow, .* pip install 'rl_plasticity\[images\]'"):
        load("mnist", tmp_path)


def test_reading_files_touches_no_global_random_state(mnist):
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    load("mnist", mnist[0], validation=2, checksums={})
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert random.getstate() == before[2]
