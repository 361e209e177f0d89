"""Object detection, weight rescaling against weight decay: ``python examples/fine_tuning/detection.py FOLDER``.

A small YOLOv3 finds colored shapes in drawn pictures; its backbone has learned to classify single gray ones. With
``--paper COCO --weights DARKNET53`` it is the paper's experiment: YOLOv3 on COCO 2014, Liu et al. (2021), section
VI-C1. In addition to the package it needs pycocotools (and Pillow for COCO): ``pip install -e '.[fine-tuning]'``.
"""

import contextlib
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import SHAPES, Task, as_tensor, finished, main, read_picture, require, shape_mask, stripes
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.errors import SettingsError

# --- the network --------------------------------------------------------------------------------------------------


class Unit(nn.Sequential):
    """A convolution, BatchNorm and leaky ReLU."""

    def __init__(self, fan_in: int, out: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(fan_in, out, kernel, stride, padding=kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(out)
        self.act = nn.LeakyReLU(0.1)


class DarkBlock(nn.Module):
    """A residual block x + 3x3(1x1(x)), half as wide inside."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = Unit(channels, channels // 2, 1), Unit(channels // 2, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.conv1(x))


class DarkStage(nn.Module):
    def __init__(self, fan_in: int, out: int, depth: int) -> None:
        super().__init__()
        self.conv_down = Unit(fan_in, out, 3, stride=2)
        self.blocks = nn.Sequential(*(DarkBlock(out) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.conv_down(x))


class Darknet(nn.Module):
    """DarkNet, a convolutional network that returns the maps of all stages, at strides 2, 4, 8, ....

    The defaults give DarkNet53. State keys are those of timm's `darknet53`.

    Source: Redmon and Farhadi (2018), "YOLOv3: An Incremental Improvement", Table 1.
    """

    def __init__(self, width: int = 32, depths: Sequence[int] = (1, 2, 8, 8, 4)) -> None:
        super().__init__()
        self.stem = nn.Sequential()
        self.stem.conv1 = Unit(3, width, 3)
        self.stages = nn.Sequential(*(DarkStage(width << i, width << i + 1, depth) for i, depth in enumerate(depths)))
        self.channels = [width << i + 1 for i in range(len(depths))]

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps


class YOLOv3(nn.Module):
    """YOLOv3, which returns the raw boxes of each scale, coarse to fine: ``[batch, anchors * (5 + classes), h, w]``.

    Each scale applies five convolutions to the backbone's map joined with the features of the coarser scale, then one
    more and the output layer (section 2.3). Anchors ``[scales][per scale]`` are widths and heights in pixels.
    """

    def __init__(
        self,
        num_classes: int,
        anchors: Sequence[Sequence[tuple[float, float]]],
        width: int = 32,
        depths: Sequence[int] = (1, 2, 8, 8, 4),
    ) -> None:
        super().__init__()
        self.backbone = Darknet(width, depths)
        self.num_classes, self.anchors = num_classes, anchors
        self.strides = [2 ** (len(depths) - i) for i in range(len(anchors))]
        self.necks, self.heads, self.laterals, self.units = (nn.ModuleList() for _ in range(4))
        before = 0
        for channels, own in zip(self.backbone.channels[::-1], anchors, strict=False):
            half = channels // 2
            units = [Unit(channels + before, half, 1)]
            for _ in range(2):
                units += [Unit(half, channels, 3), Unit(channels, half, 1)]
            self.necks.append(nn.Sequential(*units))
            self.units.append(Unit(half, channels, 3))
            self.heads.append(nn.Conv2d(channels, len(own) * (5 + num_classes), 1))
            before = half // 2
            if len(self.heads) < len(anchors):
                self.laterals.append(Unit(half, before, 1))
        for head, own in zip(self.heads, anchors, strict=True):  # initially, few boxes are predicted to hold an object
            with torch.no_grad():
                head.bias.view(len(own), -1)[:, 4] = -4.0

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = self.backbone(x)
        outputs, coarser = [], None
        for i, (neck, unit, head) in enumerate(zip(self.necks, self.units, self.heads, strict=True)):
            y = maps[-1 - i]
            if coarser is not None:
                y = torch.cat([F.interpolate(self.laterals[i - 1](coarser), scale_factor=2), y], 1)
            coarser = neck(y)
            outputs.append(head(unit(coarser)))
        return outputs


class Boxes:
    """All boxes of a batch in one row: logits ``[batch, n, 5 + classes]``, and each box's cell, stride and anchor."""

    def __init__(self, net: YOLOv3, outputs: Sequence[Tensor]) -> None:
        logits, cells, strides, anchors = [], [], [], []
        self.starts, self.shapes = [], []  # the index of each scale's first box, and its [anchors, h, w]
        for output, stride, own in zip(outputs, net.strides, net.anchors, strict=True):
            batch, _, h, w = output.shape
            a = len(own)
            self.starts.append(sum(map(np.prod, self.shapes)))
            self.shapes.append((a, h, w))
            logits.append(output.view(batch, a, -1, h, w).permute(0, 1, 3, 4, 2).reshape(batch, a * h * w, -1))
            rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            cells.append(torch.stack([columns, rows], -1).view(1, -1, 2).repeat(a, 1, 1).view(-1, 2))
            strides.append(torch.full((a * h * w, 1), float(stride)))
            anchors.append(torch.tensor(own, dtype=torch.float32).repeat_interleave(h * w, 0))
        device = outputs[0].device
        self.logits = torch.cat(logits, 1)
        self.cells, self.strides, self.anchors = (torch.cat(x).to(device) for x in (cells, strides, anchors))

    def corners(self) -> Tensor:
        """Corners ``[batch, n, 4]``: left, top, right, bottom in pixels."""
        centers = (self.logits[..., :2].sigmoid() + self.cells) * self.strides
        half = self.anchors * self.logits[..., 2:4].clamp(max=4).exp() / 2
        return torch.cat([centers - half, centers + half], -1)


def overlaps(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes ``[..., n, 4]`` and ``[..., m, 4]``, given by corners: ``[..., n, m]``."""
    a, b = a[..., :, None, :], b[..., None, :, :]
    sides = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    shared = sides.prod(-1)
    areas = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1)
    return shared / (areas - shared).clamp(min=1e-9)


def yolo_loss(net: YOLOv3, outputs: Sequence[Tensor], targets: Sequence[Tensor], ignore: float = 0.5) -> Tensor:
    """The losses of place, size, objectness and class, each summed and divided by the number of objects.

    An object ``[left, top, right, bottom, class]`` is assigned to the box in the cell of its center whose anchor best
    fits its shape. Other boxes are to hold none, but those that overlap an object by more than `ignore` do not count
    (section 2.1). Sizes have the squared error of their logarithm; all else has binary cross-entropies. The places and
    sizes of small objects have more weight.
    """
    boxes = Boxes(net, outputs)
    corners = boxes.corners().detach()
    objectness = torch.zeros_like(boxes.logits[..., 4])
    counted = torch.ones_like(objectness)
    shapes = torch.tensor([shape for own in net.anchors for shape in own])
    shapes = torch.cat([-shapes, shapes], -1).to(corners.device) / 2
    scales = [(scale, a) for scale, own in enumerate(net.anchors) for a in range(len(own))]
    picture, box, place, size, label = [], [], [], [], []
    for i, target in enumerate(targets):
        if not len(target):
            continue
        counted[i] = (overlaps(corners[i], target[:, :4]).amax(1) <= ignore).float()
        centers, sides = (target[:, :2] + target[:, 2:4]) / 2, (target[:, 2:4] - target[:, :2]).clamp(min=1)
        fits = overlaps(torch.cat([-sides, sides], -1) / 2, shapes).argmax(1)
        for center, fit in zip(centers.tolist(), fits.tolist(), strict=True):
            scale, a = scales[fit]
            _, h, w = boxes.shapes[scale]
            x, y = (min(max(int(c // net.strides[scale]), 0), n - 1) for c, n in zip(center, (w, h), strict=True))
            picture.append(i)
            box.append(boxes.starts[scale] + (a * h + y) * w + x)
        place.append(centers)
        size.append(sides)
        label.append(target[:, 4].long())
    total = outputs[0].new_zeros(())
    if picture:
        at = (picture, box)
        logits, centers, sides = boxes.logits[at], torch.cat(place), torch.cat(size)
        offsets = (centers / boxes.strides[box] - boxes.cells[box]).clamp(0, 1)
        logs = (sides / boxes.anchors[box]).log()
        height, width = outputs[0].shape[-2] * net.strides[0], outputs[0].shape[-1] * net.strides[0]
        weight = (2 - sides.prod(-1, keepdim=True) / (height * width)).clamp(min=1)
        total = total + (weight * F.binary_cross_entropy_with_logits(logits[:, :2], offsets, reduction="none")).sum()
        total = total + (weight * (logits[:, 2:4] - logs).square() / 2).sum()
        classes = F.one_hot(torch.cat(label), net.num_classes).float()
        total = total + F.binary_cross_entropy_with_logits(logits[:, 5:], classes, reduction="sum")
        objectness[at], counted[at] = 1.0, 1.0
    held = F.binary_cross_entropy_with_logits(boxes.logits[..., 4], objectness, reduction="none")
    return (total + (held * counted).sum()) / max(1, len(picture))


def found(net: YOLOv3, outputs: Sequence[Tensor], most: int = 100, overlap: float = 0.5) -> list[np.ndarray]:
    """Each picture's boxes ``[left, top, right, bottom, score, class]``, the best first.

    The score is objectness times class probability. Boxes that overlap a better one of their class by more than
    `overlap` are left out (greedy suppression).
    """
    boxes = Boxes(net, outputs)
    chances = boxes.logits[..., 4:5].sigmoid() * boxes.logits[..., 5:].sigmoid()
    pictures = []
    for corners, chance in zip(boxes.corners(), chances, strict=True):
        scores, order = chance.flatten().topk(min(3 * most, chance.numel()))
        order = order[scores > 0.001]
        scores = scores[: len(order)]
        places, labels = corners[order // net.num_classes], order % net.num_classes
        over = (overlaps(places, places) > overlap) & (labels[:, None] == labels)
        over, kept = over.cpu().numpy(), []
        for i in range(len(order)):
            if not over[i, kept].any():
                kept.append(i)
        kept = kept[:most]
        rows = torch.cat([places[kept], scores[kept, None], labels[kept, None].float()], 1)
        pictures.append(rows.double().cpu().numpy())
    return pictures


def detection_scores(
    found: Sequence[np.ndarray], truth: Sequence[np.ndarray], num_classes: int, score: float = 0.1
) -> dict[str, float]:
    """mAP@0.5 by pycocotools, and precision, recall and F1 of boxes that score at least `score`, as means over classes.

    Args:
        found: for each picture ``[n, 6]``: corners, score, class.
        truth: for each picture ``[n, 5]``: corners, class.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    objects = [(i, *row) for i, rows in enumerate(truth) for row in rows.tolist()]
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = {
            "images": [{"id": i} for i in range(len(truth))],
            "categories": [{"id": c} for c in range(num_classes)],
            "annotations": [
                {
                    "id": n, "image_id": i, "category_id": int(c), "bbox": [x, y, r - x, b - y],
                    "area": (r - x) * (b - y), "iscrowd": 0,
                }
                for n, (i, x, y, r, b, c) in enumerate(objects, 1)
            ],
        }  # fmt: skip
        known.createIndex()
        rows = [(i, x, y, r - x, b - y, s, c) for i, own in enumerate(found) for x, y, r, b, s, c in own.tolist()]
        if not rows or not objects:
            return dict.fromkeys(("mAP", "F1", "precision", "recall"), 0.0)
        evaluation = COCOeval(known, known.loadRes(np.array(rows)), "bbox")
        evaluation.params.iouThrs = np.array([0.5])
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
        evaluation.params.maxDets = [100]
        evaluation.evaluate()
        evaluation.accumulate()
    precisions = evaluation.eval["precision"]  # -1 for a class without objects
    right, wrong, there = (np.zeros(num_classes) for _ in range(3))
    for own in filter(None, evaluation.evalImgs):
        counted = np.array(own["dtScores"]) >= score
        matched = own["dtMatches"][0] > 0
        c = own["category_id"]
        right[c] += (counted & matched).sum()
        wrong[c] += (counted & ~matched).sum()
        there[c] += len(own["gtIds"])
    known_classes = there > 0
    right, wrong, there = right[known_classes], wrong[known_classes], there[known_classes]
    precision, recall = right / np.maximum(right + wrong, 1), right / there
    f1 = 2 * right / (right + wrong + there)
    means = {"F1": f1, "precision": precision, "recall": recall}
    return {"mAP": float(precisions[precisions > -1].mean())} | {k: float(v.mean()) for k, v in means.items()}


# --- pictures -----------------------------------------------------------------------------------------------------


def draw_scene(rng: np.random.Generator, size: int, most: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw colored, striped shapes on a striped ground: the picture, boxes ``[n, 5]``, and pixel classes (0: ground).

    Shapes drawn later hide those below them; a box contains the whole shape.
    """
    picture, classes = stripes(rng, size, 0.1), np.zeros((size, size), dtype=np.uint8)
    boxes: list[tuple[float, ...]] = []
    for _ in range(rng.integers(1, most + 1)):
        radius = rng.uniform(0.09, 0.26) * size
        x, y = rng.uniform(radius, size - radius, 2)
        label = int(rng.integers(len(SHAPES)))
        mask = shape_mask(SHAPES[label], size, x, y, radius, rng.uniform(0, 6.3))
        paint = stripes(rng, size, 0.1)
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        box = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        others = torch.tensor([other[:4] for other in boxes]).view(-1, 4)
        if overlaps(torch.tensor([box], dtype=torch.float32), others.float()).gt(0.2).any():
            continue
        picture, classes = np.where(mask[..., None], paint, picture), np.where(mask, label + 1, classes)
        boxes.append((*box, label))
    return finished(rng, picture, 0.05), np.array(boxes, dtype=np.float32), classes.astype(np.uint8)


class Coco(Sequence):
    """COCO's pictures with boxes ``[n, 5]``, scaled to fit into `width` x `height`, with gray around them.

    Files are ``FOLDER/{train2014,val2014}/*.jpg`` and ``FOLDER/annotations/instances_{train,val}2014.json``. The aspect
    ratio stays. Boxes of crowds are left out. Classes are the categories in the order of their ids.

    Args:
        names: a function that selects pictures by the name of their file; all by default.
        empty: whether to include pictures without boxes.
    """

    def __init__(self, folder: Path, splits: Sequence[str], width: int, height: int, names=None, empty=True) -> None:
        self.width, self.height = width, height
        self.pictures: list[tuple[Path, list[list[float]]]] = []
        for split in splits:
            file = require(folder / "annotations" / f"instances_{split}.json")
            try:
                content = json.loads(file.read_text())
                self.categories = sorted(category["id"] for category in content["categories"])
                boxes: dict[int, list[list[float]]] = {image["id"]: [] for image in content["images"]}
                for a in content["annotations"]:
                    if not a.get("iscrowd"):
                        x, y, w, h = a["bbox"]
                        boxes[a["image_id"]].append([x, y, x + w, y + h, self.categories.index(a["category_id"])])
                listed = [(image["file_name"], boxes[image["id"]]) for image in content["images"]]
            except (ValueError, KeyError, TypeError) as error:
                raise SettingsError(f"{file} is no file of COCO's instances: {error!r}") from error
            self.pictures += [
                (folder / split / name, own)
                for name, own in listed
                if (names is None or names(name)) and (own or empty)
            ]

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        path, boxes = self.pictures[index]
        return letterboxed(read_picture(path), np.array(boxes, np.float32).reshape(-1, 5), self.width, self.height)


def letterboxed(picture: np.ndarray, boxes: np.ndarray, width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale a picture and its boxes by one factor into the middle of a gray `width` x `height`."""
    h, w = picture.shape[:2]
    factor = min(width / w, height / h)
    inner = max(1, round(h * factor)), max(1, round(w * factor))
    image = torch.tensor(picture).permute(2, 0, 1)[None].float()
    image = F.interpolate(image, inner, mode="bilinear", antialias=True)[0].round().byte().permute(1, 2, 0).numpy()
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    framed = np.full((height, width, 3), 127, dtype=np.uint8)
    framed[top : top + inner[0], left : left + inner[1]] = image
    boxes = boxes.copy()
    boxes[:, [0, 2]] = boxes[:, [0, 2]] * inner[1] / w + left
    boxes[:, [1, 3]] = boxes[:, [1, 3]] * inner[0] / h + top
    return framed, boxes


# --- the task -----------------------------------------------------------------------------------------------------

# Redmon and Farhadi (2018), section 2.3: anchors for COCO, for pictures of 416; coarse to fine.
COCO_ANCHORS = (
    ((116, 90), (156, 198), (373, 326)), ((30, 61), (62, 45), (59, 119)), ((10, 13), (16, 30), (33, 23)),
)  # fmt: skip
# Not in the paper: WRS's period, SGD's momentum (0.9). Boxes that score 0.1 or more count for precision and recall.
PAPER = {
    "epochs": 100, "batch_size": 8, "eval_batch_size": 8, "optimizer": "sgdm", "lr": 0.01, "schedule": "cosine",
    "decay": 5e-4, "every_updates": 10, "width": 32, "depths": (1, 2, 8, 8, 4), "anchors": COCO_ANCHORS,
    "num_classes": 80, "workers": 8, "size": 640,
}  # fmt: skip
SMALL = {
    **PAPER, "epochs": 16, "batch_size": 16, "eval_batch_size": 50, "lr": 0.02, "width": 8, "depths": (1, 1, 1, 1),
    "anchors": (((22, 22), (28, 28), (34, 34)), ((11, 11), (14, 14), (18, 18))), "num_classes": len(SHAPES),
    "workers": 0, "size": 64, "pictures": 1500, "held_out": 150, "pretraining_pictures": 1024, "pretraining_epochs": 12,
}  # fmt: skip


class Detection(Task):
    name = "detection"
    needs = ("pycocotools",)
    small, paper = SMALL, PAPER
    paper_pictures = 117_263

    def __init__(self, settings: Any, folder: Path | None = None) -> None:
        super().__init__(settings, folder)
        self.heads = [f"heads.{i}" for i in range(len(self.anchors))]
        self.backbone_channels = self.width << len(self.depths)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.size, self.size) if "pictures" in self.settings else (self.size // 2, self.size)

    def network(self) -> YOLOv3:
        return YOLOv3(self.num_classes, self.anchors, self.width, self.depths)

    def data(self, seed: int) -> dict[str, Sequence[tuple[np.ndarray, Any]]]:
        if self.folder is None:
            splits = {"train": self.pictures, "validation": self.held_out}
            return {
                split: [draw_scene(np.random.default_rng((seed, i, j)), self.size)[:2] for j in range(n)]
                for i, (split, n) in enumerate(splits.items(), 1)
            }
        size = self.shape[::-1]
        held_out = {Path(line).name for line in require(self.folder / "5k.txt").read_text().split()}
        both = ("train2014", "val2014")
        return {
            "train": Coco(self.folder, both, *size, lambda name: name not in held_out, empty=False),
            "validation": Coco(self.folder, ("val2014",), *size, lambda name: name in held_out),
        }

    def prepare(self, picture: np.ndarray, target: np.ndarray, train: bool) -> tuple[Tensor, Tensor]:
        """Convert to tensors; in training, mirror half of the pictures."""
        image, boxes = as_tensor(picture), torch.from_numpy(target).view(-1, 5).clone()
        if train and torch.rand(()) < 0.5:
            image = image.flip(-1)
            boxes[:, [0, 2]] = image.shape[-1] - boxes[:, [2, 0]]
        return image, boxes

    def loss(self, net: nn.Module, images: Tensor, targets: list[Tensor]) -> Tensor:
        return yolo_loss(net, net(images), targets)

    def scores(self, net: nn.Module, batches: Iterator[tuple[Tensor, list[Tensor]]]) -> dict[str, float]:
        boxes, truth = [], []
        for images, targets in batches:
            boxes += found(net, net(images))
            truth += [target.double().cpu().numpy() for target in targets]
        return detection_scores(boxes, truth, self.num_classes)


if __name__ == "__main__":
    raise SystemExit(main(Detection))
