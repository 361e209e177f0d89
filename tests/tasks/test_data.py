"""Data sets: what tensors come out, where they come from, and what happens without a network."""

import gc
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import nothing_drawn, refused
from PIL import Image

from rl_plasticity.tasks import DATA, Data, DataError, Source, load


def small(n=40, m=20, **settings):
    x = torch.arange((n + m) * 2 * 3 * 3, dtype=torch.float32).remainder(251).to(torch.uint8).view(n + m, 2, 3, 3)
    y = torch.arange(n + m) % 4
    return Data.of("small", (x[:n], y[:n]), (x[n:], y[n:]), 4, **settings)


def striped(rows: int = 12, classes: int = 3) -> Source:
    """What somebody may add: images that come class by class, as arrays of any integer and float types."""
    y = np.sort(np.arange(rows) % classes).astype(np.int16)
    x = np.linspace(0, 1, rows * 2 * 4 * 4).reshape(rows, 2, 4, 4)
    return Source((x, y), (torch.from_numpy(x), torch.from_numpy(y)), classes)


def test_what_somebody_adds_is_split_standardized_and_set_like_the_others(monkeypatch):
    monkeypatch.setitem(DATA, "striped", striped)
    got = load("striped", train_size=6, validation=3, augment=True, classes=2)
    assert got.train_y.bincount().tolist() == [3, 3]
    assert (len(got.validation_y), len(got.test_y), got.num_classes, bool(got.augment)) == (3, 9, 2, True)
    assert got.train_x.dtype == torch.float32
    assert got.train_y.dtype == torch.int64
    assert got.to_float(got.train_x).mean().abs() < 1e-6
    moved = got.to("meta")
    assert {moved.train_x.device.type, moved.test_y.device.type, moved.mean.device.type} == {"meta"}
    for name, settings, named in (
        ("striped", {"row": 3}, "'row'.*'striped'.*'rows'"),
        ("striped", {"root": "/"}, "'root'.*'striped'"),
        ("cifra10", {}, "'cifra10'.*'cifar10'"),
    ):
        refused(lambda name=name, settings=settings: load(name, **settings), match=named)


@pytest.mark.parametrize(("x", "y", "named"), [
    (np.zeros((4, 8, 8), np.uint8), np.arange(4), r"8x8 \(channels, height, width\).*1x8x8"),
    (np.zeros((4, 1, 8, 9), np.uint8), np.arange(4), "1x8x9.*1x8x8"),
    (np.zeros((4, 1, 8, 8), np.uint8), np.arange(3), "4 images and 3 labels"),
    (np.zeros((4, 1, 8, 8), np.uint8), np.zeros((4, 1), int), "4 images and 4x1 labels"),
    (np.zeros((4, 1, 8, 8), np.uint8), np.arange(1, 5), "labels from 1 to 4.*0 to 3"),
    (np.zeros((4, 1, 8, 8), np.uint8), np.zeros(4), "labels from 0.0 to 0.0.*integers"),
    (np.full((4, 1, 8, 8), 200.0), np.arange(4), "torch.float64 from 200.0 to 200.0"),
    (np.full((4, 1, 8, 8), np.nan), np.arange(4), "torch.float64 from nan to nan"),
    (np.zeros((4, 1, 8, 8), int), np.arange(4), "torch.int64.*uint8, or float"),
])  # fmt: skip
def test_images_and_labels_of_what_somebody_adds_are_checked(x, y, named, monkeypatch):
    good = np.zeros((4, 1, 8, 8), np.uint8), np.arange(4)
    monkeypatch.setitem(DATA, "mine", lambda root=None: Source(good, (x, y), 4))
    refused(lambda: load("mine"), match=f"mine, test: .*{named}", error=DataError)
    if x.ndim == 3:  # in both parts: there is no other shape to expect
        monkeypatch.setitem(DATA, "mine", lambda root=None: Source((x, y), (x, y), 4))
        refused(lambda: load("mine"), match=r"mine, training.*8x8", error=DataError)


def keys_of(images):
    """Of each digit a number that no other has."""
    return images.flatten(1).long() @ torch.arange(1, 65) ** 3


def test_digits_are_whole_and_always_split_alike_and_loading_touches_no_global_random_state():
    from sklearn.datasets import load_digits

    with nothing_drawn():
        digits, again = load("digits"), load("digits")
        load("digits", train_size=100, validation=10)
    assert digits.train_x.shape == (1437, 1, 8, 8)
    assert digits.test_x.shape == (360, 1, 8, 8)
    assert (digits.train_x.dtype, digits.train_y.dtype) == (torch.uint8, torch.int64)
    assert torch.equal(digits.train_x, again.train_x)
    assert torch.equal(digits.test_y, again.test_y)
    bunch = load_digits()
    ours, theirs = keys_of(torch.cat([digits.train_x, digits.test_x])), keys_of(torch.from_numpy(bunch.data))
    assert torch.equal(ours.sort().values, theirs.sort().values)  # each image once
    labels = dict(zip(theirs.tolist(), bunch.target.tolist(), strict=True))
    assert [labels[key] for key in ours.tolist()] == torch.cat([digits.train_y, digits.test_y]).tolist()


def test_the_first_training_images_are_kept_and_the_validation_set_comes_from_the_test_set():
    whole, part = load("digits"), load("digits", train_size=1200, validation=100)
    assert torch.equal(part.train_x, whole.train_x[:1200])
    assert (len(part.validation_x), len(part.test_x)) == (100, 260)
    divided = keys_of(torch.cat([part.validation_x, part.test_x]))
    assert torch.equal(divided.sort().values, keys_of(whole.test_x).sort().values)
    share = part.validation_y.bincount() / whole.test_y.bincount()
    assert (share - 100 / 360).abs().max() < 1 / 30  # the classes in their proportions


def test_validation_images_can_be_taken_from_the_training_images_which_then_are_as_many_fewer():
    whole, got = small(), small(train_size=32, validation=12, validation_from="train")
    assert [len(got.labels(split)) for split in ("train", "validation", "test")] == [20, 12, 20]
    assert torch.equal(got.test_x, whole.test_x)
    assert got.validation_y.bincount().tolist() == [3, 3, 3, 3]
    rows = [(whole.train_x == image).flatten(1).all(1).nonzero().item() for image in [*got.train_x, *got.validation_x]]
    assert sorted(rows) == list(range(32))  # each is in one of them, and none is beyond train_size
    assert torch.equal(got.mean, small(train_size=32).mean) is False  # of the images that are trained on alone
    assert torch.equal(small(validation_from="train").train_x, whole.train_x)
    with pytest.raises(DataError, match=r"\bsmall\b.*\b32$"):
        small(train_size=32, validation=32, validation_from="train")


def test_images_are_scaled_to_one_then_standardized_by_the_training_images_kept():
    part = small(train_size=30)
    x = part.train_x.numpy() / 255
    mean, std = x.mean((0, 2, 3)), x.std((0, 2, 3))
    assert part.mean.flatten().tolist() == pytest.approx(mean.tolist(), rel=1e-6)
    assert part.std.flatten().tolist() == pytest.approx(std.tolist(), rel=1e-6)
    given = part.test_x[:6].view(2, 3, 2, 3, 3)  # [runs, batch, c, h, w]
    expected = (given.numpy() / 255 - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(part.to_float(given).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(part.to_float(given), part.standardize(part.to_unit(given)))


def test_float_images_are_taken_as_scaled_and_a_constant_channel_divides_by_one():
    x = torch.rand(8, 2, 3, 3)
    x[:, 1] = 0.25
    made = Data.of("made", (x, torch.arange(8) % 2), (x, torch.arange(8) % 2), 2)
    assert torch.equal(made.to_unit(x), x)
    assert made.std[1].item() == 1
    assert torch.equal(made.to_float(x)[:, 1], torch.zeros(8, 3, 3))


@pytest.mark.parametrize(("settings", "says"), [
    ({"train_size": 0}, r"train_size\b.*\b1437\b"),
    ({"train_size": 1438}, r"train_size\b.*\b1437\b"),
    ({"validation": 360}, r"validation\b.*\b360\b"),
    ({"validation": -1}, "validation"),
])  # fmt: skip
def test_a_setting_out_of_range_is_one_line(settings, says):
    refused(lambda: load("digits", **settings), match=says, error=DataError)
    refused(lambda: load("digits", "/"), "'root'", "'digits'")


@pytest.fixture
def mnist(tmp_path):
    """A folder as ``data.root=`` wants it, with what it holds."""
    rng = np.random.default_rng(1)
    parts = {}
    for split, n in (("train", 12), ("test", 6)):
        x, y = rng.integers(0, 256, (n, 1, 28, 28), dtype=np.uint8), np.arange(n) % 10
        np.savez(tmp_path / f"{split}.npz", images=x, labels=y)
        parts[split] = x, y
    return tmp_path, parts


def test_a_folder_s_arrays_are_read_from_it_or_from_its_folder_of_the_data_set_s_name(mnist):
    root, parts = mnist
    before = torch.get_rng_state()
    for _ in range(2):
        got = load("mnist", root)
        assert (got.train_x.numpy() == parts["train"][0]).all()
        assert got.train_y.tolist() == parts["train"][1].tolist()
        assert (got.test_x.numpy() == parts["test"][0]).all()
        assert (got.num_classes, got.train_x.dtype, got.train_y.dtype) == (10, torch.uint8, torch.int64)
        (root / "mnist").mkdir(exist_ok=True)
        for file in root.glob("*.npz"):
            file.rename(root / "mnist" / file.name)
    assert torch.equal(torch.get_rng_state(), before)


PICTURES = np.zeros((3, 1, 28, 28), "u1")


@pytest.mark.parametrize(("arrays", "named"), [
    ({"images": np.zeros((3, 1, 27, 28), "u1"), "labels": np.zeros(3, int)}, "1x27x28.*1x28x28"),
    ({"images": PICTURES[:0], "labels": np.zeros(0, int)}, "0 images and 0 labels"),
    ({"images": PICTURES.astype(float), "labels": np.zeros(3, int)}, r"train.npz: images are float64.*uint8"),
    ({"images": PICTURES, "labels": np.zeros(3)}, r"train.npz: .*labels float64"),
    ({"images": PICTURES}, r"train.npz .*labels"),
    ({"images": np.array([{}]), "labels": np.zeros(1, int)}, r"train.npz .*allow_pickle=False"),
    ({"images": np.array(0, "u1"), "labels": np.array(0)}, "1x28x28"),
])  # fmt: skip
def test_arrays_that_are_not_the_data_set_s_are_one_line_and_no_pickle_is_read(mnist, arrays, named):
    root, _ = mnist
    np.savez(root / "train.npz", **arrays)
    refused(lambda: load("mnist", root), match=named, error=DataError)


@pytest.mark.parametrize("content", [b"", b"\x80\x04.", b"PK\x03\x04 and no more", None])
def test_a_file_that_is_damaged_or_missing_is_named(mnist, content):
    root, _ = mnist
    (root / "test.npz").unlink() if content is None else (root / "test.npz").write_bytes(content)
    refused(lambda: load("mnist", root), match=r"test\.npz", error=DataError)
    gc.collect()  # a file left open is an error here, and not in whichever test runs when it is collected


@pytest.mark.parametrize(
    ("name", "original"),
    [("mnist", "train-images-idx3-ubyte.gz"), ("cifar10", "data_batch_1"), ("svhn", "train_32x32.mat"), ("emnist", "")],
)
def test_a_folder_of_original_files_is_one_line_that_says_what_is_missing(name, original, tmp_path):
    (tmp_path / (original or "empty")).write_bytes(b"\x80\x04.")
    refused(lambda: load(name, tmp_path), match=r"train\.npz", error=DataError)
    refused(lambda: load(name, tmp_path / "nowhere"), match="nowhere", error=DataError)


@pytest.mark.parametrize("name", ["emnist", "imagenet32"])
def test_what_the_hub_has_not_is_asked_of_a_folder_at_once(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # not even the library is asked for
    refused(lambda: load(name), match=r"data\.root=FOLDER.*train\.npz", error=DataError)


def hub(monkeypatch, parts=None, answers=True):
    """Stands for the libraries `datasets` and `huggingface_hub`; the calls of it."""
    calls = []

    def load_dataset(repository, config, split):
        calls.append((repository, config, split))
        assert answers != there.config.HF_HUB_OFFLINE == there.constants.HF_HUB_OFFLINE
        if parts is None:
            raise OSError("the hub is on fire\nand a second line")
        return parts

    offline = SimpleNamespace(HF_HUB_OFFLINE=False, ENDPOINT="http://hub.invalid")
    there = SimpleNamespace(load_dataset=load_dataset, config=SimpleNamespace(HF_HUB_OFFLINE=False), constants=offline)
    monkeypatch.setattr("rl_plasticity.tasks.data._answers", lambda address: answers)
    monkeypatch.setitem(sys.modules, "datasets", there)
    monkeypatch.setitem(sys.modules, "huggingface_hub", there)
    return calls


def part(labels, size, image="image", mode="RGB"):
    """A split as the real library has it, with one picture for each label."""
    datasets = pytest.importorskip("datasets", reason="needs the extra rl_plasticity[images]")
    pictures = [Image.new("RGB", (size, size), (n, 0, 100)) for n in labels]
    for picture in pictures:
        picture.putpixel((4, 9), (0, 200, 100))
    pictures = [picture.convert(mode) for picture in pictures]
    features = datasets.Features({image: datasets.Image(), "label": datasets.Value("int64")})
    return datasets.Dataset.from_dict({image: pictures, "label": labels}, features)


def test_pictures_become_images_with_their_channels_first(monkeypatch):
    calls = hub(monkeypatch, [part([3, 1, 2], 32), part([5, 4], 32)])
    got = load("svhn")
    assert calls == [("ufldl-stanford/svhn", "cropped_digits", ["train", "test"])]
    assert got.train_y.tolist() == [3, 1, 2]
    assert got.test_y.tolist() == [5, 4]
    assert got.train_x[:, 0, 0, 0].tolist() == [3, 1, 2]  # red
    assert got.train_x[:, 1, 9, 4].tolist() == [200] * 3  # green, in the tenth row
    assert got.train_x[:, 2].unique().tolist() == [100]  # blue


def test_the_test_images_are_those_that_have_labels(monkeypatch):
    calls = hub(monkeypatch, [part([0, 1], 64), part([1, 0], 64)])
    assert load("tiny_imagenet").train_y.tolist() == [0, 1]
    assert calls[0][1:] == (None, ["train", "valid"])


@pytest.mark.parametrize("answers", [True, False])
def test_a_download_that_fails_is_one_line_and_without_a_connection_none_is_tried(answers, monkeypatch):
    hub(monkeypatch, answers=answers)
    refused(lambda: load("mnist"), "the hub is on fire", "data.root", "data=digits", error=DataError)


def test_pictures_are_read_in_the_data_set_s_channels(monkeypatch):
    hub(monkeypatch, [part([3, 1], 28, mode="L"), part([5], 28, mode="RGB")])
    got = load("mnist")
    assert got.train_x.shape[1:] == got.test_x.shape[1:] == (1, 28, 28)
    assert got.test_x[0, 0, 0, 0] == Image.new("RGB", (1, 1), (5, 0, 100)).convert("L").getpixel((0, 0))


def test_a_missing_library_is_one_line_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(lambda: load("mnist"), match=r"datasets.*pip install 'rl_plasticity\[images\]'", error=DataError)
