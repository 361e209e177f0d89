"""examples/fine_tuning: what is drawn, the networks' losses and metrics against hand numbers, the papers' files."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refused
from torch import nn
from torch.nn import functional as F

FOLDER = Path(__file__).parents[2] / "examples" / "fine_tuning"
sys.path.insert(0, str(FOLDER))  # the scripts import each other as they do when one is run
import common  # noqa: E402
import counting  # noqa: E402
import detection  # noqa: E402
import segmentation  # noqa: E402

sys.path.remove(str(FOLDER))

KINDS = {k.name: k for k in (detection.Detection, segmentation.Segmentation, counting.Counting)}
TINY = {"pictures": 4, "held_out": 2, "every_updates": 1, "epochs": 1, "batch_size": 2, "width": 2}
TINY |= {"pretraining_pictures": 32, "pretraining_epochs": 1}


def tiny(name, **settings):
    return KINDS[name]({**KINDS[name].small, **TINY, **settings})


def test_map_precision_and_recall_are_those_counted_by_hand():
    pytest.importorskip("pycocotools")
    square = [0, 0, 10, 10]
    truth = [np.array([[*square, 0], [20, 20, 30, 30, 0]], float), np.array([[*square, 1]], float)]
    found = [
        np.array([
            [0, 0, 10, 9, 0.9, 0],  # overlaps by 0.9: right
            [40, 40, 50, 50, 0.8, 0],  # of nothing: wrong
            [20, 20, 30, 30, 0.7, 0],  # right
            [0, 0, 10, 9.5, 0.05, 0],  # a second one of an object that has one, and below the score
        ]),
        np.array([[0, 0, 10, 4.9, 0.6, 1], [0, 0, 10, 5.1, 0.5, 1]]),  # 0.49: wrong, 0.51: right
    ]  # fmt: skip
    scores = detection.detection_scores(found, truth, num_classes=3)  # class 2 has no objects: it does not count
    # Class 0: precision 1 up to recall 1/2 (51 of 101 points), 2/3 up to recall 1. Class 1: 1/2 throughout.
    assert scores["mAP"] == pytest.approx(((51 + 50 * 2 / 3) / 101 + 1 / 2) / 2)
    assert scores["precision"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert scores["recall"] == pytest.approx(1.0)
    assert scores["F1"] == pytest.approx((2 * 2 / (3 + 2) + 2 * 1 / (2 + 1)) / 2)
    assert detection.detection_scores([np.zeros((0, 6))] * 2, truth, 3)["mAP"] == 0.0


def test_mean_iou_leaves_out_classes_that_are_nowhere_and_void_pixels():
    assert segmentation.mean_iou(np.array([[3, 1, 0], [2, 4, 0], [0, 0, 0]])) == pytest.approx((3 / 6 + 4 / 7) / 2)

    class Answers(nn.Module):
        def forward(self, images):
            return F.one_hot(torch.tensor([[[0, 1], [1, 1]]]), 7).permute(0, 3, 1, 2).float()

    truth = [torch.tensor([[0, 1], [0, 255]])]
    scores = tiny("segmentation").scores(Answers(), iter([(torch.zeros(1, 3, 2, 2), truth)]))
    assert scores["mIOU"] == pytest.approx((1 / 2 + 1 / 2) / 2)


def test_the_countings_mse_is_a_root():
    assert counting.counting_scores([10.0, 24.0], [13, 20]) == pytest.approx({"MAE": 3.5, "MSE": math.sqrt(12.5)})


@pytest.mark.parametrize("name", KINDS)
def test_every_convolution_but_the_heads_has_a_norm_and_is_rescaled(name):
    task = tiny(name)
    net = task.network()
    convs = {n for n, m in net.named_modules() if isinstance(m, nn.Conv2d)}
    assert len(convs) - len(task.heads) == sum(isinstance(m, nn.BatchNorm2d) for m in net.modules())
    optimizer = common.optimizer_of(net, "wrs", "adamw", 1e-3, 1e-2)
    handle = common.attach("wrs", optimizer, net, every_updates=1, norm_decay=0.0, heads=task.heads)
    assert {layer.name for layer in handle.regularizer.acts_on if layer.role == "conv"} == convs - {*task.heads}
    assert set(task.heads) <= convs


def test_the_papers_networks_have_the_sizes_that_are_known():
    """The parameters and names of timm's DarkNet53, torchvision's ResNet-101 and VGG16, without their classifiers."""
    with torch.device("meta"):
        nets = {name: kind(kind.paper).network() for name, kind in KINDS.items()}
    counts = {name: sum(p.numel() for p in net.backbone.parameters()) for name, net in nets.items()}
    assert counts == {"detection": 40_584_928, "segmentation": 42_500_160, "counting": 7_635_264 + 2 * 2_688}
    assert nets["detection"].strides == [32, 16, 8]
    keys = nets["segmentation"].backbone.state_dict().keys()
    assert {"conv1.weight", "bn1.running_var", "layer3.22.conv3.weight", "layer1.0.downsample.1.bias"} <= keys
    assert {"features.0.weight", "features.31.running_mean"} <= nets["counting"].backbone.state_dict().keys()
    names = nets["detection"].backbone.state_dict().keys()
    assert {"stem.conv1.conv.weight", "stages.2.conv_down.bn.bias", "stages.4.blocks.3.conv2.conv.weight"} <= names


def answer(net, task, objects, size=64):
    """Raw outputs that say exactly these objects: everything else is sure to be none."""
    outputs = []
    for scale, (stride, own) in enumerate(zip(net.strides, net.anchors, strict=True)):
        side = size // stride
        raw = torch.zeros(1, len(own), 5 + net.num_classes, side, side)
        raw[:, :, 4:] = -12.0
        for at, a, left, top, right, bottom, label in objects:
            if at == scale:
                x, y = (left + right) / 2 / stride, (top + bottom) / 2 / stride
                cell = raw[0, a, :, int(y), int(x)]
                cell[:2] = torch.tensor([x % 1, y % 1]).logit()
                cell[2:4] = torch.tensor([(right - left) / own[a][0], (bottom - top) / own[a][1]]).log()
                cell[4], cell[5 + label] = 12.0, 12.0
        outputs.append(raw.flatten(1, 2))
    return outputs


def test_boxes_that_say_the_objects_are_found_where_they_are_and_cost_least():
    task = tiny("detection")
    net = task.network()
    objects = [(0, 1, 3.0, 9.0, 31.0, 36.0, 2), (1, 0, 40.0, 41.0, 50.0, 53.0, 5)]
    target = torch.tensor([[*row[2:]] for row in objects])
    (rows,) = detection.found(net, answer(net, task, objects))
    assert rows[:, :4] == pytest.approx(target[[0, 1], :4].numpy(), abs=1e-3)
    assert rows[:, 5].tolist() == [2, 5]
    least = detection.yolo_loss(net, answer(net, task, objects), [target])
    assert math.isfinite(least)
    for i, change in enumerate(((0, 1, 9.0, 9.0, 37.0, 36.0, 2), (0, 1, 3.0, 9.0, 31.0, 36.0, 3))):
        outputs = answer(net, task, [change, objects[1]])
        worse = detection.yolo_loss(net, outputs, [target])
        assert worse > least + 0.2, i
    nothing, too_much = (detection.yolo_loss(net, answer(net, task, said), [target[:0]]) for said in ([], objects))
    assert nothing < 1e-2 < too_much
    same = [(0, 0, 4.0, 4.0, 28.0, 28.0, 1), (0, 1, 5.0, 4.0, 29.0, 28.0, 1), (0, 2, 4.0, 5.0, 28.0, 29.0, 3)]
    (rows,) = detection.found(net, answer(net, task, same))
    assert sorted(rows[:, 5].tolist()) == [1, 3]  # the best of a class, and all classes


def test_the_bayesian_loss_is_that_of_its_equations_and_zero_where_each_counts_one():
    density = torch.rand(2, 1, 3, 4, dtype=torch.float64)
    people = torch.tensor([[5.0, 6.0], [20.0, 17.0]], dtype=torch.float64)
    sigma, d = 8.0, 0.15 * 8 * 3
    expected = np.zeros(3)
    for row in range(3):
        for column in range(4):
            x, y = 8 * column + 4, 8 * row + 4
            distance = [math.hypot(x - px, y - py) for px, py in people.tolist()]
            likely = np.exp(-np.square([*distance, d - min(distance)]) / (2 * sigma**2))
            expected += likely / likely.sum() * density[0, 0, row, column].item()
    by_hand = abs(1 - expected[:2]).sum() + expected[2] + density[1].sum().item()  # the second picture is empty
    got = counting.bayesian_loss(density, [people, people[:0]], sigma)
    assert got.item() == pytest.approx(by_hand / 2, rel=1e-5)
    far = torch.zeros(1, 1, 8, 64)
    far[0, 0, 4, [0, 63]] = 1.0
    two = torch.tensor([[4.0, 36.0], [508.0, 36.0]])
    assert counting.bayesian_loss(far, [two], sigma=2.0).item() == pytest.approx(0.0, abs=0.05)


def test_decay_is_of_kernels_and_gains_for_wd_and_of_nothing_for_wrs():
    net = tiny("segmentation").network()
    named = dict(net.named_parameters())
    for method, decay in (("wd", 0.1), ("wrs", 0.0)):
        groups = common.optimizer_of(net, method, "sgdm", 1e-2, 0.1).param_groups
        held = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
        assert held.keys() == {id(p) for p in named.values()}
        assert held[id(named["backbone.conv1.weight"])] == held[id(named["backbone.bn1.weight"])] == decay
        assert held[id(named["classifier.weight"])] == decay
        assert held[id(named["backbone.bn1.bias"])] == held[id(named["classifier.bias"])] == 0.0


def test_norm_layers_decay_with_the_learning_rate_of_each_update(monkeypatch):
    """Algorithm 1, line 7: a gain without gradient ends as the product of 1 - eta_t lambda."""
    task = tiny("counting", epochs=2, decay=0.5, lr=0.1, schedule="cosine", optimizer="sgdm")
    nets = []
    monkeypatch.setattr(counting, "bayesian_loss", lambda density, points, sigma: 0.0 * density.sum())
    better = lambda self, net, batches: nets.append(net) or {"MAE": -len(nets)}  # noqa: E731
    monkeypatch.setattr(counting.Counting, "scores", better)
    data = task.data(0)
    backbone = task.network().backbone.state_dict()
    common.fine_tune(task, data, "wrs", 0, backbone, "cpu")
    remaining = math.prod(1 - 0.1 * 0.5 * (1 + math.cos(math.pi * t / 4)) / 2 for t in range(4))
    gain = dict(nets[0].named_parameters())["backbone.features.1.weight"]
    torch.testing.assert_close(gain, torch.full_like(gain, remaining))
    kernel = dict(nets[0].named_parameters())["context.0.weight"]
    torch.testing.assert_close(kernel.flatten(1).norm(dim=1), torch.ones(len(kernel)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_both_methods_train_from_one_backbone_and_finished_seeds_stay(name, tmp_path, capsys, monkeypatch):
    task = KINDS[name]
    if name == "detection":
        monkeypatch.setattr(detection, "detection_scores", lambda *_: dict.fromkeys(common.FINAL[name], 0.25))
        monkeypatch.setattr(task, "needs", ())
    monkeypatch.setattr(task, "small", {**task.small, **TINY})
    monkeypatch.setattr(common, "draw", lambda *_: None)  # takes half a second
    starts = []
    monkeypatch.setattr(
        common, "fine_tune",
        lambda *a, fine_tune=common.fine_tune: starts.append({k: v.clone() for k, v in a[4].items()}) or fine_tune(*a),
    )  # fmt: skip
    assert common.main(task, [str(tmp_path), "--seeds", "1"]) == 0
    assert capsys.readouterr().out.count(f"| {name} |") == len(common.FINAL[name])
    assert all(torch.equal(starts[0][k], starts[1][k]) for k in starts[0])
    files = {method: tmp_path / name / f"{method}-seed0.csv" for method in ("wrs", "wd")}
    rows = {method: common.read_rows(file) for method, file in files.items()}
    assert [row["split"] for row in rows["wrs"]] == ["validation"] + ["test"] * (name == "counting")
    assert rows["wrs"][0]["loss"] != rows["wd"][0]["loss"]
    before = {file: file.stat().st_mtime_ns for file in files.values()}
    files["wd"].unlink()
    assert common.main(task, [str(tmp_path), "--seeds", "1"]) == 0
    assert len(starts) == 3
    assert files["wrs"].stat().st_mtime_ns == before[files["wrs"]]
    assert common.read_rows(files["wd"])[0] == rows["wd"][0]  # the same numbers again


def test_the_table_has_the_gap_of_the_same_seeds_with_students_interval(tmp_path):
    ends = {"wrs": {0: 0.5, 1: 0.7, 2: 0.9}, "wd": {0: 0.4, 1: 0.5}}
    (tmp_path / "segmentation").mkdir()
    for method, seeds in ends.items():
        for seed, end in seeds.items():
            rows = [{"epoch": e, "split": "validation", "loss": 1.0, "mIOU": v} for e, v in ((1, 0.1), (2, end))]
            common.write_rows(common.result_file(tmp_path, "segmentation", method, seed), rows)
    line = common.table(tmp_path).splitlines()[-1]
    half = 12.7062 * 0.05  # t of 1 degree of freedom, s / sqrt(2) of gaps 0.1 and 0.2
    assert "| 3 and 2 | 0.700 [" in line
    assert line.endswith(f"| 0.150 [{0.15 - half:.3f}, {0.15 + half:.3f}] |")


def test_bad_input_is_one_line_and_writes_nothing(tmp_path, capsys):
    for arguments, names in (
        (["--method", "wsr"], ["'wsr'", "'wrs'"]),
        (["--lr", "nan"], ["--lr", "above 0", "nan"]),
        (["--pictures", "4"], ["--batch-size 10", "--pictures 4"]),
        (["--paper", "."], ["--paper", "--weights"]),
        (["--paper", ".", "--weights", "nowhere.pt"], ["nowhere.pt"]),
    ):
        assert common.main(segmentation.Segmentation, [str(tmp_path / "out"), *arguments]) == 2
        message = capsys.readouterr().err
        assert [name for name in names if name not in message] == [], message
        assert message.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_weights_load_by_name_without_a_classifier_and_else_are_refused(tmp_path):
    torch.manual_seed(1)
    source, target = counting.Vgg(2), counting.Vgg(2)
    file = tmp_path / "weights.pt"
    torch.save({**source.state_dict(), "classifier.weight": torch.zeros(3)}, file)
    common.load_backbone_(target, file)
    assert torch.equal(target.features[30].weight, source.features[30].weight)
    lacking = {k: v for k, v in source.state_dict().items() if k != "features.0.weight"}
    for state, said in (
        (lacking, "'features.0.weight'"),
        (counting.Vgg(4).state_dict(), "of another backbone"),
        ("no weights", "no state dict"),
    ):
        torch.save(state, file)
        refused(lambda: common.load_backbone_(target, file), said, error=common.SettingsError)


def test_coco_is_read_with_its_classes_in_order_without_crowds_and_the_5k_held_out(tmp_path):
    grey = pytest.importorskip("PIL.Image").fromarray(np.full((40, 60, 3), 200, np.uint8))
    for split, numbers in (("train2014", (1, 2)), ("val2014", (3, 4))):
        names = {n: f"COCO_{split}_{n:012}.jpg" for n in numbers}
        (tmp_path / split).mkdir()
        for name in names.values():
            grey.save(tmp_path / split / name)
        notes = [
            {"image_id": n, "category_id": 90 if n % 2 else 7, "bbox": [6, 8, 12, 16], "iscrowd": 0}
            for n in numbers if n != 2
        ]  # fmt: skip
        notes.append({"image_id": numbers[0], "category_id": 7, "bbox": [0, 0, 60, 40], "iscrowd": 1})
        content = {
            "images": [{"id": n, "file_name": name} for n, name in names.items()],
            "annotations": notes,
            "categories": [{"id": 90, "name": "b"}, {"id": 7, "name": "a"}],
        }
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    (tmp_path / "5k.txt").write_text("/coco/images/val2014/COCO_val2014_000000000004.jpg\n")
    task = detection.Detection(detection.PAPER, tmp_path)
    data = task.data(0)
    assert [path.name[-5:] for path, _ in data["train"].pictures] == ["1.jpg", "3.jpg"]  # 2 has no box, 4 is held out
    assert [path.name[-5:] for path, _ in data["validation"].pictures] == ["4.jpg"]
    picture, boxes = data["train"][0]
    assert picture.shape == (320, 640, 3)  # 60 x 40 by 8, in the middle: 80 pixels of grey on both sides
    assert boxes.tolist() == [[80 + 48, 64, 80 + 144, 192, 1]]  # 90 is the second class
    assert (picture[:, 79] == 127).all()
    assert (picture[:, 80] > 190).all()
    image, mirrored = task.prepare(picture, boxes, train=False)
    assert image.shape == (3, 320, 640)
    assert mirrored.tolist() == boxes.tolist()
