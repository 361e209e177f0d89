"""Semantic segmentation, weight rescaling against weight decay: ``python examples/fine_tuning/segmentation.py FOLDER``.

A small DeepLabv3 finds each pixel's shape in drawn pictures; its backbone has learned to classify single gray ones.
With ``--paper VOC2012 --weights RESNET101`` it is the paper's experiment: DeepLabv3 on PASCAL VOC 2012, Liu et al.
(2021), section VI-C2. VOC's files need Pillow too: ``pip install -e '.[fine-tuning]'``.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import SHAPES, Task, as_tensor, main, read_picture, require
from detection import draw_scene
from sklearn.metrics import confusion_matrix
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.errors import SettingsError, reason

VOID = 255

# --- the network --------------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """A bottleneck block relu(1x1(3x3(1x1 x)) + x), four times as wide outside (He et al. 2016).

    A norm layer follows each convolution.
    """

    def __init__(self, fan_in: int, width: int, stride: int, dilation: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(fan_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=dilation, dilation=dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.downsample = nn.Sequential()
        if stride > 1 or fan_in != out:
            self.downsample = nn.Sequential(nn.Conv2d(fan_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.relu1, self.relu2, self.relu3 = nn.ReLU(), nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.relu2(self.bn2(self.conv2(y)))
        return self.relu3(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet(nn.Module):
    """A ResNet that returns its last map; the defaults give ResNet-101 at an output stride of 16.

    State keys are those of torchvision's. Beyond the output stride, stages keep the resolution and have dilated kernels
    instead. The dilation of the last stage's blocks is multiplied by `grid` (Chen et al. 2017, sections 3.1 and 3.2).
    """

    def __init__(
        self,
        width: int = 64,
        depths: Sequence[int] = (3, 4, 23, 3),
        output_stride: int = 16,
        grid: Sequence[int] = (1, 2, 4),
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width)
        self.relu, self.maxpool = nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
        stride, dilation, fan_in = 4, 1, width
        for stage, depth in enumerate(depths):
            step = 1 if stage == 0 else 2
            if stride * step > output_stride:
                step, dilation = 1, dilation * step
            stride *= step
            last = stage == len(depths) - 1
            blocks = []
            for i in range(depth):
                blocks.append(
                    Bottleneck(
                        fan_in,
                        width << stage,
                        step if i == 0 else 1,
                        dilation * (grid[i % len(grid)] if last and dilation > 1 else 1),
                    )
                )
                fan_in = 4 * (width << stage)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.depth, self.channels = len(depths), fan_in

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(self.depth):
            x = getattr(self, f"layer{stage + 1}")(x)
        return x


def unit(fan_in: int, out: int, kernel: int = 1, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (kernel // 2)
    conv = nn.Conv2d(fan_in, out, kernel, padding=padding, dilation=dilation, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU())


class DeepLabv3(nn.Module):
    """DeepLabv3, which returns the logits of each pixel ``[batch, classes, h, w]``.

    Source: Chen et al. (2017), "Rethinking Atrous Convolution for Semantic Image Segmentation", section 3.3: a 1x1 and
    three dilated 3x3 convolutions, parallel to the mean of the whole map, joined by a 1x1 convolution; BatchNorm after
    all of them.
    """

    def __init__(
        self,
        num_classes: int,
        backbone: ResNet,
        channels: int = 256,
        rates: Sequence[int] = (6, 12, 18),
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.branches = nn.ModuleList([unit(backbone.channels, channels)])
        self.branches.extend(unit(backbone.channels, channels, 3, rate) for rate in rates)
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), *unit(backbone.channels, channels))
        self.join = unit((2 + len(rates)) * channels, channels)
        self.classifier = nn.Conv2d(channels, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.backbone(x)
        whole = F.interpolate(self.whole(y), y.shape[-2:])
        y = self.classifier(self.join(torch.cat([*(branch(y) for branch in self.branches), whole], 1)))
        return F.interpolate(y, x.shape[-2:], mode="bilinear")


def mean_iou(counts: np.ndarray) -> float:
    """The mean intersection over union of the classes that occur, from counts ``[true, predicted]``."""
    shared = np.diag(counts)
    union = counts.sum(0) + counts.sum(1) - shared
    return float((shared[union > 0] / union[union > 0]).mean())


# --- pictures -----------------------------------------------------------------------------------------------------


class Voc(Sequence):
    """PASCAL VOC's pictures with pixel classes ``[h, w]``, 255 for void.

    Files are ``FOLDER/JPEGImages/*.jpg``, ``FOLDER/ImageSets/Segmentation/<list>.txt`` and
    ``FOLDER/SegmentationClass/*.png``. For SBD's pictures, they are ``FOLDER/SegmentationClassAug/*.png`` or SBD's own
    ``FOLDER/cls/*.mat``.
    """

    def __init__(self, folder: Path, *lists: str) -> None:
        self.folder = folder
        places = [folder / "ImageSets" / "Segmentation" / f"{name}.txt" for name in lists]
        place = next((p for p in places if p.exists()), places[0])
        self.names = require(place).read_text().split()
        if self.names and "/" in self.names[0]:  # pairs of paths, as in the list of the augmented set
            self.names = [Path(name).stem for name in self.names if name.endswith(".jpg")]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        name = self.names[index]
        return read_picture(self.folder / "JPEGImages" / f"{name}.jpg"), self.classes(name)

    def classes(self, name: str) -> np.ndarray:
        from PIL import Image

        for folder in ("SegmentationClass", "SegmentationClassAug"):
            file = self.folder / folder / f"{name}.png"
            if file.exists():
                with Image.open(file) as image:
                    if image.mode not in ("P", "L"):
                        raise SettingsError(f"{file} holds colours ({image.mode}), not numbers of classes")
                    return np.asarray(image)
        from scipy.io import loadmat

        file = require(self.folder / "cls" / f"{name}.mat")
        try:
            return loadmat(file)["GTcls"]["Segmentation"][0, 0]
        except (KeyError, ValueError) as error:
            raise SettingsError(f"{file} has no GTcls.Segmentation: {reason(error)}") from error


# --- the task -----------------------------------------------------------------------------------------------------

# Not in the paper: the polynomial's power, 0.9, and the augmentation, which is that of Chen et al. (2017).
PAPER = {
    "epochs": 52, "batch_size": 10, "eval_batch_size": 10, "optimizer": "adamw", "lr": 1e-4,
    "schedule": "polynomial", "decay": 2e-4, "every_updates": 10, "width": 64, "depths": (3, 4, 23, 3),
    "output_stride": 16, "channels": 256, "rates": (6, 12, 18), "scales": (0.5, 2.0), "num_classes": 21,
    "workers": 8, "size": 513,
}  # fmt: skip
SMALL = {
    **PAPER, "epochs": 20, "eval_batch_size": 50, "lr": 3e-3, "width": 8, "depths": (1, 1, 1),
    "output_stride": 4, "channels": 32, "rates": (1, 2, 3), "scales": (0.75, 1.5), "num_classes": 1 + len(SHAPES),
    "workers": 0, "size": 64, "pictures": 1000, "held_out": 150, "pretraining_pictures": 1024, "pretraining_epochs": 12,
}  # fmt: skip


class Segmentation(Task):
    name = "segmentation"
    heads = ("classifier",)
    small, paper = SMALL, PAPER
    paper_pictures = 10_582

    def __init__(self, settings: Any, folder: Path | None = None) -> None:
        super().__init__(settings, folder)
        self.backbone_channels = 4 * self.width << len(self.depths) - 1

    def network(self) -> DeepLabv3:
        backbone = ResNet(self.width, self.depths, self.output_stride)
        return DeepLabv3(self.num_classes, backbone, self.channels, self.rates)

    def data(self, seed: int) -> dict[str, Sequence[tuple[np.ndarray, Any]]]:
        if self.folder is not None:
            return {"train": Voc(self.folder, "trainaug", "train_aug"), "validation": Voc(self.folder, "val")}
        splits = {"train": self.pictures, "validation": self.held_out}
        return {
            split: [draw_scene(np.random.default_rng((seed, i, j)), self.size)[::2] for j in range(n)]
            for i, (split, n) in enumerate(splits.items(), 1)
        }

    def prepare(self, picture: np.ndarray, target: np.ndarray, train: bool) -> tuple[Tensor, Tensor]:
        """In training, scale, mirror and crop; always bring to `size` x `size`, with void around."""
        image, classes = as_tensor(picture), torch.tensor(target).long()
        if train:
            low, high = self.scales
            factor = low + (high - low) * float(torch.rand(()))
            size = [max(1, round(n * factor)) for n in image.shape[-2:]]
            image = F.interpolate(image[None], size, mode="bilinear")[0]
            classes = F.interpolate(classes[None, None].float(), size, mode="nearest")[0, 0].long()
            if torch.rand(()) < 0.5:
                image, classes = image.flip(-1), classes.flip(-1)
        down, right = (max(0, self.size - n) for n in image.shape[-2:])
        image, classes = F.pad(image, (0, right, 0, down)), F.pad(classes, (0, right, 0, down), value=VOID)
        free = [n - self.size for n in image.shape[-2:]]
        top, left = (int(torch.randint(n + 1, ())) if train else 0 for n in free)
        window = slice(top, top + self.size), slice(left, left + self.size)
        return image[:, *window], classes[window]

    def loss(self, net: nn.Module, images: Tensor, targets: list[Tensor]) -> Tensor:
        return F.cross_entropy(net(images), torch.stack(targets), ignore_index=VOID)

    def scores(self, net: nn.Module, batches: Iterator[tuple[Tensor, list[Tensor]]]) -> dict[str, float]:
        counts = np.zeros((self.num_classes, self.num_classes))
        for images, targets in batches:
            truth, answer = torch.stack(targets), net(images).argmax(1)
            known = truth != VOID
            labels = range(self.num_classes)
            counts += confusion_matrix(truth[known].cpu(), answer[known].cpu(), labels=labels)
        return {"mIOU": mean_iou(counts)}


if __name__ == "__main__":
    raise SystemExit(main(Segmentation))
