"""Shared parts of the three comparisons in this folder: drawn shapes, the two methods, the loop, the results.

They compare weight rescaling with weight decay in fine-tuning, after Liu et al. (2021), "Weight Rescaling: Effective
and Robust Regularization for Deep Neural Networks with Batch Normalization", section VI-C. Each script defines a task
as a subclass of `Task`. The methods differ only in `optimizer_of` and in the line with `attach`.
"""

import argparse
import csv
import io
import json
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from rl_plasticity import attach
from rl_plasticity.errors import FaultyRun, SettingsError, nearest, one_line, reason
from rl_plasticity.metrics.statistics import student_interval
from rl_plasticity.runs.files import write_atomically, write_text

METHODS = {"wrs": "WRS", "wd": "WD"}
COLOURS = {"wrs": "tab:red", "wd": "tab:blue"}
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Row = dict[str, Any]  # one line of a seed's CSV: epoch, split, loss and the task's metrics

# --- drawn pictures: uint8 arrays [height, width, 3] --------------------------------------------------------------

SHAPES = ("disc", "triangle", "square", "cross", "ring", "star")


def shape_mask(kind: str, size: int, x: float, y: float, radius: float, angle: float) -> np.ndarray:
    """A boolean mask ``[size, size]`` of the shape; all of it is within `radius` of its center."""
    rows, columns = np.mgrid[:size, :size] + 0.5
    u, v = columns - x, rows - y
    u, v = u * math.cos(angle) + v * math.sin(angle), v * math.cos(angle) - u * math.sin(angle)
    distance, direction = np.hypot(u, v) / radius, np.arctan2(v, u)
    if kind == "disc":
        return distance <= 0.9
    if kind == "ring":
        return (distance <= 0.95) & (distance >= 0.5)
    if kind == "square":
        return np.maximum(abs(u), abs(v)) <= radius / math.sqrt(2)
    if kind == "cross":
        return (np.minimum(abs(u), abs(v)) <= 0.3 * radius) & (np.maximum(abs(u), abs(v)) <= 0.9 * radius)
    if kind == "triangle":
        return distance * np.cos((direction % (2 * math.pi / 3)) - math.pi / 3) <= 0.5
    return distance <= 0.7 + 0.3 * np.cos(5 * direction)


def stripes(rng: np.random.Generator, size: int, contrast: float) -> np.ndarray:
    """A picture ``[size, size, 3]`` of one random color in waves of random direction and length, around 0 to 1."""
    rows, columns = np.mgrid[:size, :size] / size
    angle, waves, phase = rng.uniform(0, math.pi), rng.uniform(2, 10), rng.uniform(0, 2 * math.pi)
    wave = np.sin(2 * math.pi * waves * (columns * math.cos(angle) + rows * math.sin(angle)) + phase)
    return rng.uniform(0, 1, 3) + contrast * wave[..., None] * rng.uniform(-1, 1, 3)


def finished(rng: np.random.Generator, picture: np.ndarray, noise: float) -> np.ndarray:
    """Add noise to a picture from 0 to 1 and convert it to bytes."""
    return (255 * np.clip(picture + noise * rng.standard_normal(picture.shape), 0, 1)).round().astype(np.uint8)


def single_shape(rng: np.random.Generator, size: int) -> tuple[np.ndarray, int]:
    """A picture of the pretraining task, one gray shape on a gray ground without waves, and its label."""
    label = int(rng.integers(len(SHAPES)))
    radius = rng.uniform(0.2, 0.4) * size
    x, y = rng.uniform(radius, size - radius, 2)
    mask = shape_mask(SHAPES[label], size, x, y, radius, rng.uniform(0, 2 * math.pi))
    ground, ink = rng.choice([0.1, 0.3, 0.5, 0.7, 0.9], 2, replace=False)
    return finished(rng, np.where(mask, ink, ground)[..., None].repeat(3, -1), 0.1), label


def as_tensor(picture: np.ndarray) -> Tensor:
    """A picture of bytes ``[h, w, 3]`` as network input: float ``[3, h, w]``, normalized as for ImageNet."""
    image = torch.tensor(picture).permute(2, 0, 1).float() / 255
    return (image - torch.tensor(IMAGENET_MEAN).view(3, 1, 1)) / torch.tensor(IMAGENET_STD).view(3, 1, 1)


def read_picture(path: Path) -> np.ndarray:
    """Read an image file as bytes ``[h, w, 3]``."""
    try:
        from PIL import Image
    except ImportError as error:
        raise SettingsError("image files need Pillow: pip install -e '.[fine-tuning]'") from error
    with Image.open(require(path)) as image:
        return np.asarray(image.convert("RGB"))


def require(path: Path) -> Path:
    if not path.exists():
        raise SettingsError(f"{path} is missing")
    return path


# --- networks and methods -----------------------------------------------------------------------------------------


class Pretraining(nn.Module):
    """A backbone with a linear classifier on the mean of its last map."""

    def __init__(self, backbone: nn.Module, channels: int) -> None:
        super().__init__()
        self.backbone, self.classifier = backbone, nn.Linear(channels, len(SHAPES))

    def forward(self, x: Tensor) -> Tensor:
        maps = self.backbone(x)
        return self.classifier((maps[-1] if isinstance(maps, list) else maps).mean((-2, -1)))


def pretrained(backbone: nn.Module, channels: int, seed: int, pictures: int, epochs: int, size: int) -> dict[str, Any]:
    """The backbone's state after it has learned to classify single shapes, and its accuracy on others."""
    drawn = [single_shape(np.random.default_rng((seed, 0, i)), size) for i in range(pictures * 5 // 4)]
    images = torch.stack([as_tensor(picture) for picture, _ in drawn])
    labels = torch.tensor([label for _, label in drawn])
    torch.manual_seed(seed)
    net = Pretraining(backbone, channels)
    steps = epochs * (pictures // 32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in tqdm(range(epochs), f"pretraining, seed {seed}", leave=False, disable=None):
        for batch in torch.randperm(pictures)[: pictures // 32 * 32].view(-1, 32):
            optimizer.zero_grad()
            F.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    net.eval()
    with torch.no_grad():
        right = (net(images[pictures:]).argmax(1) == labels[pictures:]).double().mean().item()
    return {"backbone": backbone.state_dict(), "accuracy": right}


def load_backbone_(backbone: nn.Module, file: Path) -> None:
    """Load the entries of a state dict that the backbone has; others, such as a classifier's, are left out."""
    try:
        state = torch.load(require(file), map_location="cpu", weights_only=True)
        state = state.get("state_dict", state)
        wanted = backbone.state_dict()
        missing = [name for name in wanted if name not in state and not name.endswith("num_batches_tracked")]
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(f"{file} is no state dict saved by torch.save: {reason(error)}") from error
    if missing:
        raise SettingsError(f"{file} has no {missing[0]!r}, nor {len(missing) - 1} more{nearest(missing[0], state)}")
    try:
        backbone.load_state_dict({name: state[name] for name in wanted if name in state}, strict=False)
    except RuntimeError as error:
        raise SettingsError(f"{file} is of another backbone: {one_line(str(error))}") from error


def optimizer_of(net: nn.Module, method: str, name: str, lr: float, decay: float) -> torch.optim.Optimizer:
    """The optimizer, which decays kernels and gains for WD (section VI-A) and nothing for WRS.

    The decay is torch's `weight_decay`: coupled in SGD and Adam, decoupled in AdamW. For WRS, `attach` decays the norm
    layers.
    """
    gains = {m.weight for m in net.modules() if isinstance(m, nn.BatchNorm2d)}
    decayed = [p for p in net.parameters() if p.ndim > 1 or p in gains]
    others = [p for p in net.parameters() if p.ndim == 1 and p not in gains]
    groups = [
        {"params": decayed, "weight_decay": decay if method == "wd" else 0.0},
        {"params": others, "weight_decay": 0.0},
    ]
    if name == "sgdm":
        return torch.optim.SGD(groups, lr, momentum=0.9)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name](groups, lr)


def schedule_of(name: str, steps: int) -> Callable[[int], float]:
    """The factor on the learning rate at each update, as a function of the step.

    It is constant, cosine to 0, or polynomial (power 0.9) to a hundredth.
    """
    return {
        "constant": lambda step: 1.0,
        "cosine": lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)),
        "polynomial": lambda step: 0.01 + 0.99 * (1 - step / steps) ** 0.9,
    }[name]


# --- a task, and one training of it -------------------------------------------------------------------------------


class Task(ABC):
    """Base class of the tasks. Settings are attributes: those of `small`, or of `paper` with ``--paper``.

    Attributes:
        name: the task's name and that of its folder.
        heads: names of the output layers, which are not rescaled.
        choose: the metric whose smallest value chooses the epoch to test; None means the last epoch.
    """

    name: str
    heads: Sequence[str]
    choose: str | None = None
    small: Mapping[str, Any]
    paper: Mapping[str, Any]
    needs: Sequence[str] = ()  # required modules that the package itself does not need
    paper_pictures: int  # number of training pictures

    def __init__(self, settings: Mapping[str, Any], folder: Path | None = None) -> None:
        self.settings, self.folder = settings, folder  # the folder of the paper's data; None means drawn pictures

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["settings"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of a training picture."""
        return self.size, self.size

    @abstractmethod
    def network(self) -> nn.Module:
        """Create the network, which has an attribute `backbone`."""

    @abstractmethod
    def data(self, seed: int) -> dict[str, Sequence[tuple[np.ndarray, Any]]]:
        """Pictures with their targets: `train`, `validation` and, if an epoch is chosen, `test`."""

    @abstractmethod
    def prepare(self, picture: np.ndarray, target: Any, train: bool) -> tuple[Tensor, Any]:
        """Convert a picture and its target to tensors; for training, augment them with torch's random numbers."""

    @abstractmethod
    def loss(self, net: nn.Module, images: Tensor, targets: list[Any]) -> Tensor: ...

    @abstractmethod
    def scores(self, net: nn.Module, batches: Iterator[tuple[Tensor, list[Any]]]) -> dict[str, float]:
        """The metrics of a network in evaluation mode, without gradients."""


class _Prepared(Dataset):
    def __init__(self, data: Sequence[Any], task: Task, train: bool) -> None:
        self.data, self.task, self.train = data, task, train

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        return self.task.prepare(*self.data[index], self.train)


def _collate(batch: list[tuple[Tensor, Any]]) -> tuple[Tensor, list[Any]]:
    images, targets = zip(*batch, strict=True)
    return torch.stack(images), list(targets)


def batches(task: Task, data: Sequence[Any], train: bool, device: str) -> Iterator[tuple[Tensor, list[Any]]]:
    size = task.batch_size if train else task.eval_batch_size
    loader = DataLoader(
        _Prepared(data, task, train),
        size,
        shuffle=train,
        drop_last=train,
        collate_fn=_collate,
        num_workers=task.workers,
    )
    for images, targets in loader:
        yield images.to(device), [target.to(device) for target in targets]


def fine_tune(
    task: Task, data: Mapping[str, Sequence[Any]], method: str, seed: int, backbone: Mapping[str, Tensor], device: str
) -> list[Row]:
    """Train with one method from a pretrained backbone; returns the rows of its CSV.

    Initial heads, the order of pictures and augmentation depend only on the seed, so they are equal for both methods.
    """
    torch.manual_seed(seed)
    net = task.network()
    net.backbone.load_state_dict(backbone)
    net.to(device)
    per_epoch = len(data["train"]) // task.batch_size
    if not per_epoch:
        raise SettingsError(f"a batch of {task.batch_size} is more than the {len(data['train'])} training pictures")
    optimizer = optimizer_of(net, method, task.optimizer, task.lr, task.decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule_of(task.schedule, task.epochs * per_epoch))
    if method == "wrs":
        attach("wrs", optimizer, net, heads=task.heads, every_updates=task.every_updates, norm_decay=task.decay)
    rows, best, chosen = [], math.inf, None
    progress = tqdm(total=task.epochs * per_epoch, desc=f"{task.name} {method} seed {seed}", disable=None, leave=False)
    with progress:
        for epoch in range(1, task.epochs + 1):
            net.train()
            total = torch.zeros((), device=device)
            for images, targets in batches(task, data["train"], True, device):
                optimizer.zero_grad()
                loss = task.loss(net, images, targets)
                loss.backward()
                optimizer.step()
                schedule.step()
                total += loss.detach()
                progress.update()
            if not math.isfinite(total):
                raise FaultyRun(f"{task.name} {method} seed {seed}: the loss of epoch {epoch} is not finite")
            row = {"epoch": epoch, "split": "validation", "loss": total.item() / per_epoch}
            rows.append(row | _evaluated(task, net, data["validation"], device))
            if task.choose is not None and rows[-1][task.choose] < best:
                best, chosen = rows[-1][task.choose], {k: v.clone() for k, v in net.state_dict().items()}
                chosen_epoch = epoch
    if task.choose is not None:
        if chosen is None:
            raise FaultyRun(f"{task.name} {method} seed {seed}: {task.choose} was never finite")
        net.load_state_dict(chosen)
        rows.append({"epoch": chosen_epoch, "split": "test", "loss": ""} | _evaluated(task, net, data["test"], device))
    return rows


@torch.no_grad()
def _evaluated(task: Task, net: nn.Module, data: Sequence[Any], device: str) -> dict[str, float]:
    net.eval()
    return task.scores(net, batches(task, data, False, device))


def cost(task: Task, methods: int, seeds: int) -> tuple[int, float]:
    """The number of updates of all fine-tunings, and the CPU seconds of one, measured now.

    It times two random pictures without the task's loss, and scales the time to a whole batch.
    """
    pictures = task.settings.get("pictures", task.paper_pictures)
    net = task.network()
    optimizer = optimizer_of(net, "wd", task.optimizer, task.lr, task.decay)
    images = torch.rand(2, 3, *task.shape)
    seconds: list[float] = []
    while sum(seconds) < 0.5:
        start = time.process_time()
        optimizer.zero_grad()
        maps = net(images)
        sum(m.square().mean() for m in (maps if isinstance(maps, list) else [maps])).backward()
        optimizer.step()
        seconds.append(time.process_time() - start)
    return methods * seeds * task.epochs * (pictures // task.batch_size), min(seconds) * task.batch_size / 2


# --- results: FOLDER/<task>/<method>-seed<n>.csv ------------------------------------------------------------------

PANELS = {  # panels of Figure 7 from the left: the metric, its axis label, and the paper's smoothing
    "detection": ("mAP", "mAP@0.5", 0.0),
    "segmentation": ("mIOU", "mIOU", 0.0),
    "counting": ("MSE", "validation MSE (root), smoothed", 0.9),
}
FINAL = {
    "detection": ("mAP", "F1", "precision", "recall"),
    "segmentation": ("mIOU",),
    "counting": ("MAE", "MSE"),
}
FIGURE_9 = ("F1", "precision", "recall")


def result_file(folder: Path, task: str, method: str, seed: int) -> Path:
    return folder / task / f"{method}-seed{seed}.csv"


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read_rows(path: Path) -> list[Row]:
    try:
        with path.open(newline="") as file:
            rows = [*csv.DictReader(file)]
        return [{k: v if k == "split" else float(v or "nan") for k, v in row.items()} for row in rows]
    except (ValueError, TypeError) as error:
        raise SettingsError(f"{path} is no file of results: {reason(error)}") from error


def results(folder: Path, task: str) -> dict[str, dict[int, list[Row]]]:
    """The rows of each method and seed that is finished."""
    found: dict[str, dict[int, list[Row]]] = {}
    for method in METHODS:
        files = (folder / task).glob(f"{method}-seed[0-9]*.csv")
        seeds = {int(file.stem.rpartition("seed")[2]): read_rows(file) for file in files}
        if seeds:
            found[method] = dict(sorted(seeds.items()))
    return found


def curve(rows: Sequence[Row], metric: str, smooth: float = 0.0) -> np.ndarray:
    """A metric on the validation pictures over epochs, as an exponential moving average with `smooth`."""
    values = np.array([row[metric] for row in rows if row["split"] == "validation"])
    for i in range(1, len(values)):
        values[i] = smooth * values[i - 1] + (1 - smooth) * values[i]
    return values


def table(folder: Path) -> str:
    """A Markdown table of the last values of both methods and their gap, for each task and metric.

    Intervals are Student's, over seeds.
    """
    lines = ["| task | metric | seeds | WRS | WD | WRS - WD, of the same seeds |", "|---|---|---|---|---|---|"]
    for task, metrics in FINAL.items():
        found = results(folder, task)
        for metric in metrics if found else ():
            ends = {m: {seed: rows[-1][metric] for seed, rows in found.get(m, {}).items()} for m in METHODS}
            both = sorted(ends["wrs"].keys() & ends["wd"].keys())
            cells = [_interval([*ends[m].values()]) for m in METHODS]
            cells.append(_interval([ends["wrs"][seed] - ends["wd"][seed] for seed in both]))
            counts = dict.fromkeys(len(ends[m]) for m in METHODS)
            lines.append(f"| {task} | {metric} | {' and '.join(map(str, counts))} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _interval(values: Sequence[float]) -> str:
    if not values:
        return ""
    shown = f"{np.mean(values):.3f}"
    if len(values) > 1:
        low, high = student_interval([np.array(values)])
        shown += f" [{low:.3f}, {high:.3f}]"
    return shown


def draw(file: Path, folder: Path, panels: Sequence[tuple[str, str, str, float]]) -> None:
    """Draw metrics over epochs, WRS against WD: means, with Student's 95 % intervals for two seeds or more."""
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4 * len(panels), 3.2), layout="constrained", squeeze=False, num=file.stem, clear=True
    )
    for ax, (task, metric, label, smooth) in zip(axes[0], panels, strict=True):
        for method, seeds in results(folder, task).items():
            epochs = min(len(curve(rows, metric)) for rows in seeds.values())
            curves = np.array([curve(rows, metric, smooth)[:epochs] for rows in seeds.values()])
            x = range(1, epochs + 1)
            ax.plot(x, curves.mean(0), color=COLOURS[method], label=f"{METHODS[method]} ({len(curves)} seeds)")
            if len(curves) > 1:
                low, high = np.transpose([student_interval([values]) for values in curves.T])
                ax.fill_between(x, low, high, color=COLOURS[method], alpha=0.2, linewidth=0)
        ax.set(xlabel="epoch", ylabel=label, title=task)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    write_atomically(file, lambda out: figure.savefig(out, dpi=100, format="png"))
    plt.close(figure)


def report(folder: Path) -> None:
    """Print the table of all tasks in `folder` and draw the figures again."""
    print(table(folder))
    figures = {"figure-7.png": [(task, *panel) for task, panel in PANELS.items() if results(folder, task)]}
    if results(folder, "detection"):
        figures["figure-9.png"] = [("detection", metric, metric, 0.0) for metric in FIGURE_9]
    for name, panels in figures.items():
        draw(folder / name, folder, panels)
        print(folder / name)


# --- the command --------------------------------------------------------------------------------------------------


def main(kind: type[Task], arguments: Sequence[str] | None = None) -> int:
    """Run a script; returns 0, 2 for bad input or 1 for a fault (each with one line), or 130 for Ctrl-C."""
    try:
        run(kind, sys.argv[1:] if arguments is None else arguments)
    except (SettingsError, FaultyRun, OSError) as error:
        print(f"{kind.name}: {one_line(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise SettingsError(message)


def run(kind: type[Task], arguments: Sequence[str]) -> None:
    """Pretrain, fine-tune with each method and seed that is not yet finished in the folder, and report."""
    parser = _Parser(prog=f"{kind.name}.py", description=sys.modules[kind.__module__].__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, help="where results are written and finished seeds are found")
    parser.add_argument("--seeds", type=int, default=5, help="trains seeds 0 to SEEDS - 1 (5)")
    parser.add_argument("--method", default=",".join(METHODS), help="which methods, separated by commas (wrs,wd)")
    parser.add_argument("--paper", type=Path, metavar="DATA", help="the paper's data and settings, from this folder")
    parser.add_argument("--weights", type=Path, help="with --paper: the pretrained backbone, a state dict")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, value in kind.small.items():
        if not isinstance(value, tuple):
            text = f"({value}; paper: {kind.paper[name]})" if name in kind.paper else f"({value}) of drawn pictures"
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), help=text)
    parser.add_argument("--cost", action="store_true", help="only count the updates and measure one in CPU seconds")
    given = vars(parser.parse_args(arguments))
    if given["seeds"] < 1:
        raise SettingsError(f"--seeds must be 1 or more, got {given['seeds']}")
    methods = [*dict.fromkeys(given["method"].split(","))]
    for method in methods:
        if method not in METHODS:
            raise SettingsError(f"unknown method {method!r}{nearest(method, METHODS)}")
    settings = dict(kind.small if given["paper"] is None else kind.paper)
    chosen = {name: given[name] for name in kind.small if given.get(name) is not None}
    for name in chosen.keys() - settings.keys():
        raise SettingsError(f"--{name.replace('_', '-')} is of drawn pictures: it does not go with --paper")
    settings |= chosen
    _check(settings)
    if given["cost"]:
        updates, seconds = cost(kind(settings), len(methods), given["seeds"])
        print(f"{updates} run-updates of {seconds:.3g} CPU seconds")
        return
    if (given["paper"] is None) != (given["weights"] is None):
        raise SettingsError("--paper DATA and --weights FILE go together: what is fine-tuned is pretrained on ImageNet")
    for module in kind.needs:
        try:
            __import__(module)
        except ImportError as error:
            raise SettingsError(f"{module} is needed: pip install -e '.[fine-tuning]'") from error
    if given["paper"] is not None and not given["paper"].is_dir():
        raise SettingsError(f"--paper {given['paper']} is no folder")
    task = kind(settings, given["paper"])
    data = None
    if task.folder is not None:  # errors in the data are raised before anything is written
        require(given["weights"])
        load_backbone_(task.network().backbone, given["weights"])
        data = task.data(0)

    home = given["folder"] / kind.name
    said = {k: v for k, v in settings.items() if k != "workers"}
    said["weights"] = None if given["weights"] is None else given["weights"].name
    remember(home, json.loads(json.dumps(said)))
    for seed in range(given["seeds"]):
        due = [m for m in methods if not result_file(given["folder"], kind.name, m, seed).exists()]
        backbone = _backbone(task, home, seed, given["weights"]) if due else {}
        if due and task.folder is None:
            data = task.data(seed)
        for method in due:
            rows = fine_tune(task, data, method, seed, backbone, given["device"])
            write_rows(result_file(given["folder"], kind.name, method, seed), rows)
            ends = ", ".join(f"{metric} {rows[-1][metric]:.3f}" for metric in FINAL[kind.name])
            print(f"{kind.name} {method} seed {seed}: {ends}", flush=True)
    report(given["folder"])


def _check(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        least = 0 if name in ("workers", "decay") else 1 if isinstance(value, int) else 1e-12
        if isinstance(value, int | float) and not (math.isfinite(value) and value >= least):
            raise SettingsError(
                f"--{name.replace('_', '-')} must be {'0 or more' if least == 0 else 'above 0'}, got {value}"
            )
    if settings.get("pictures", math.inf) < settings["batch_size"]:
        raise SettingsError(f"--batch-size {settings['batch_size']} is more than --pictures {settings['pictures']}")


def remember(home: Path, settings: dict[str, Any]) -> None:
    """Write the settings into a new folder, or raise SettingsError if the folder has other settings."""
    file = home / "settings.json"
    if file.exists():
        try:
            before = dict(json.loads(file.read_text()))
        except (ValueError, TypeError) as error:
            raise SettingsError(f"{file} is no file of settings: {reason(error)}") from error
        for name in settings:
            if before.get(name) != settings[name]:
                raise SettingsError(
                    f"{home} holds results with {name}={before.get(name)}, not {settings[name]}: choose another folder"
                )
        return
    home.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(settings, indent=1) + "\n")


def _backbone(task: Task, home: Path, seed: int, weights: Path | None) -> dict[str, Tensor]:
    """The pretrained backbone that both methods of a seed start from, made once or given as `weights`."""
    torch.manual_seed(seed)
    backbone = task.network().backbone
    file = home / f"backbone-seed{seed}.pt"
    if weights is None and not file.exists():
        made = pretrained(
            backbone, task.backbone_channels, seed, task.pretraining_pictures, task.pretraining_epochs, task.size
        )
        print(f"{task.name} backbone of seed {seed}: {made['accuracy']:.3f} of single shapes told right", flush=True)
        write_atomically(file, lambda out: torch.save(made["backbone"], out))
    load_backbone_(backbone, file if weights is None else weights)
    return backbone.state_dict()
