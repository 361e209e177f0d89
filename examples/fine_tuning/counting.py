"""Crowd counting, weight rescaling against weight decay: ``python examples/fine_tuning/counting.py FOLDER``.

A small CSRNet counts dots among other shapes in drawn pictures; its backbone has learned to classify single gray
shapes. With ``--paper UCF-QNRF --weights VGG16_BN`` it is the paper's experiment: CSRNet with BatchNorm on UCF-QNRF,
Liu et al. (2021), section VI-C3. QNRF's files need Pillow too: ``pip install -e '.[fine-tuning]'``.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Task, as_tensor, finished, main, read_picture, require, shape_mask, stripes
from scipy.io import loadmat
from sklearn.metrics import mean_absolute_error, root_mean_squared_error
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.errors import SettingsError, reason

STRIDE = 8  # of the density map, from VGG's first three poolings

# --- the network --------------------------------------------------------------------------------------------------


class Vgg(nn.Module):
    """The first ten convolutions of VGG16 with BatchNorm; state keys are those of torchvision's `vgg16_bn`."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        modules: list[nn.Module] = []
        fan_in = 3
        for stage, depth in enumerate((2, 2, 3, 3)):
            modules += [nn.MaxPool2d(2)] if stage else []
            for _ in range(depth):
                modules += [nn.Conv2d(fan_in, width << stage, 3, padding=1), nn.BatchNorm2d(width << stage), nn.ReLU()]
                fan_in = width << stage
        self.features = nn.Sequential(*modules)

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


class CSRNet(nn.Module):
    """CSRNet, which returns the number of people on each 8 x 8 pixels: ``[batch, 1, h / 8, w / 8]``.

    Source: Li et al. (2018), "CSRNet: Dilated Convolutional Neural Networks for Understanding the Highly Congested
    Scenes", Table 3 B, with BatchNorm after all convolutions except the output's (Liu et al. 2021, VI-C3). The density
    is the output's absolute value, as in the code of the Bayesian loss.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.backbone = Vgg(width)
        widths = [8 * width, 8 * width, 8 * width, 8 * width, 4 * width, 2 * width, width]
        modules: list[nn.Module] = []
        for fan_in, out in pairwise(widths):
            conv = nn.Conv2d(fan_in, out, 3, padding=2, dilation=2, bias=False)
            modules += [conv, nn.BatchNorm2d(out), nn.ReLU()]
        self.context, self.output = nn.Sequential(*modules), nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.context(self.backbone(x))).abs()


def bayesian_loss(
    density: Tensor, points: Sequence[Tensor], sigma: float = 8.0, background: float = 0.15, stride: int = STRIDE
) -> Tensor:
    """Bayesian loss: |1 - E[c_n]| summed over people n, plus |0 - E[c_0]| for the ground, averaged over pictures.

    E[c_n] = sum over cells x of p(n | x) D(x). For a person, p(n | x) is proportional to N(x; z_n, sigma^2). For the
    ground it is proportional to exp(-(d - |x - z|)^2 / (2 sigma^2)), where z is the nearest person and d is the share
    `background` of the picture's shorter side.

    Source: Ma et al. (2019), "Bayesian Loss for Crowd Count Estimation with Point Supervision", equations 9 to 15.

    Args:
        density: ``[batch, 1, h, w]``, for cells of `stride` pixels.
        points: for each picture ``[n, 2]``, x and y in pixels.
    """
    height, width = density.shape[-2:]
    rows = (torch.arange(height, device=density.device) + 0.5) * stride
    columns = (torch.arange(width, device=density.device) + 0.5) * stride
    cells = torch.cartesian_prod(rows, columns).flip(-1).to(density.dtype)  # [h * w, 2]: x, y
    reach = background * stride * min(height, width)
    total = density.new_zeros(())
    for own, people in zip(density.flatten(1), points, strict=True):
        if not len(people):
            total = total + own.sum().abs()
            continue
        distance = torch.cdist(people, cells)  # [n, h * w]
        ground = reach - distance.amin(0, keepdim=True)
        share = (-torch.cat([distance, ground]).square() / (2 * sigma**2)).softmax(0)
        expected = share @ own
        total = total + (1 - expected[:-1]).abs().sum() + expected[-1].abs()
    return total / len(points)


# --- pictures -----------------------------------------------------------------------------------------------------


def draw_crowd(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw dots of all colors, denser in some places, among crosses and rings that do not count.

    Returns the picture and the places of the dots ``[n, 2]``.
    """
    reach = 4  # pixels from a dot's center that it may cover
    picture = np.pad(stripes(rng, size, 0.3), ((reach, reach), (reach, reach), (0, 0)))
    number = round(math.exp(rng.uniform(math.log(5), math.log(120))))
    middle, spread = rng.uniform(0.2, 0.8, 2) * size, rng.uniform(0.15, 0.6) * size
    points: list[np.ndarray] = []
    while len(points) < number:
        point = rng.normal(middle, spread)
        if (point >= 1).all() and (point < size - 1).all():
            points.append(point)
    others = rng.uniform(1, size - 1, (rng.integers(15), 2))
    kinds = ["disc"] * number + [str(rng.choice(["cross", "ring"])) for _ in others]
    for kind, (x, y) in zip(kinds, [*points, *others], strict=True):
        left, top = math.floor(x), math.floor(y)
        window = slice(top, top + 2 * reach + 1), slice(left, left + 2 * reach + 1)
        place = x - left + reach, y - top + reach
        mask = shape_mask(kind, 2 * reach + 1, *place, rng.uniform(1.5, 3.5), rng.uniform(0, 6.3))
        picture[window] = np.where(mask[..., None], rng.uniform(0, 1, 3), picture[window])
    return finished(rng, picture[reach:-reach, reach:-reach], 0.05), np.array(points, dtype=np.float32)


class Qnrf(Sequence):
    """UCF-QNRF's pictures with the places of people ``[n, 2]``, x and y in pixels: ``img_0001.jpg, img_0001_ann.mat``.

    A picture is scaled so that its shorter side is at least `least` and at most `most`, as by Ma et al. (2019).
    """

    def __init__(self, files: Sequence[Path], least: int = 512, most: int = 2048) -> None:
        self.files, self.least, self.most = files, least, most

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        file = self.files[index]
        notes = require(file.with_name(f"{file.stem}_ann.mat"))
        try:
            points = loadmat(notes)["annPoints"].astype(np.float32).reshape(-1, 2)
        except (KeyError, ValueError) as error:
            raise SettingsError(f"{notes} has no annPoints [n, 2]: {reason(error)}") from error
        picture = read_picture(file)
        shorter = min(picture.shape[:2])
        factor = min(max(shorter, self.least), self.most) / shorter
        if factor == 1:
            return picture, points
        size = [round(n * factor) for n in picture.shape[:2]]
        image = torch.tensor(picture).permute(2, 0, 1)[None].float()
        image = F.interpolate(image, size, mode="bilinear", antialias=True)[0].round().byte()
        return image.permute(1, 2, 0).numpy(), points * np.float32(factor)


# --- the task -----------------------------------------------------------------------------------------------------

# Not in the paper: the optimizer (Adam, as in the Bayesian loss's code), sigma, the ground's share, and the choice of
# pictures for validation (here every tenth of the training set).
PAPER = {
    "epochs": 300, "batch_size": 32, "eval_batch_size": 1, "optimizer": "adam", "lr": 1e-4, "schedule": "constant",
    "decay": 1e-4, "every_updates": 1, "width": 64, "sigma": 8.0, "workers": 8, "size": 512,
}  # fmt: skip
SMALL = {
    **PAPER, "epochs": 30, "batch_size": 16, "eval_batch_size": 25, "lr": 1e-3, "width": 8, "sigma": 4.0,
    "workers": 0, "size": 64, "pictures": 320, "held_out": 100, "pretraining_pictures": 1024, "pretraining_epochs": 12,
}  # fmt: skip


class Counting(Task):
    name = "counting"
    heads = ("output",)
    choose = "MAE"
    small, paper = SMALL, PAPER
    paper_pictures = 1_081

    def __init__(self, settings: Any, folder: Path | None = None) -> None:
        super().__init__(settings, folder)
        self.backbone_channels = 8 * self.width

    def network(self) -> CSRNet:
        return CSRNet(self.width)

    def data(self, seed: int) -> dict[str, Sequence[tuple[np.ndarray, Any]]]:
        if self.folder is None:
            splits = {"train": self.pictures, "validation": self.held_out, "test": self.held_out}
            return {
                split: [draw_crowd(np.random.default_rng((seed, i, j)), self.size * 3 // 2) for j in range(n)]
                for i, (split, n) in enumerate(splits.items(), 1)
            }
        files = {split: sorted(require(self.folder / split).glob("*.jpg")) for split in ("Train", "Test")}
        for split, own in files.items():
            if len(own) < 10:
                raise SettingsError(f"{self.folder / split} has {len(own)} *.jpg: 10 or more are needed")
        held_out = files["Train"][9::10]
        splits = {
            "train": [file for file in files["Train"] if file not in held_out],
            "validation": held_out,
            "test": files["Test"],
        }
        return {split: Qnrf(own) for split, own in splits.items()}

    def prepare(self, picture: np.ndarray, target: np.ndarray, train: bool) -> tuple[Tensor, Tensor]:
        """In training, crop to `size` x `size` and mirror half; else pad to sides that the stride divides."""
        image, points = as_tensor(picture), torch.from_numpy(target).clone()
        if not train:
            down, right = (-n % STRIDE for n in image.shape[-2:])
            return F.pad(image, (0, right, 0, down)), points
        top, left = (int(torch.randint(n - self.size + 1, ())) for n in image.shape[-2:])
        image = image[:, top : top + self.size, left : left + self.size]
        points = points - torch.tensor([left, top])
        points = points[((points >= 0) & (points < self.size)).all(1)]
        if torch.rand(()) < 0.5:
            image, points[:, 0] = image.flip(-1), self.size - points[:, 0]
        return image, points

    def loss(self, net: nn.Module, images: Tensor, targets: list[Tensor]) -> Tensor:
        return bayesian_loss(net(images), targets, self.sigma)

    def scores(self, net: nn.Module, batches: Iterator[tuple[Tensor, list[Tensor]]]) -> dict[str, float]:
        counted, there = [], []
        for images, targets in batches:
            counted += net(images).sum((1, 2, 3)).tolist()
            there += [len(target) for target in targets]
        return counting_scores(counted, there)


def counting_scores(counted: Sequence[float], there: Sequence[float]) -> dict[str, float]:
    """MAE, and what the counting literature calls MSE: the root of the mean squared error."""
    return {"MAE": mean_absolute_error(there, counted), "MSE": root_mean_squared_error(there, counted)}


if __name__ == "__main__":
    raise SystemExit(main(Counting))
