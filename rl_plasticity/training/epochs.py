"""Parts of the loop of ``rl_plasticity.supervised``: the batches and updates of an epoch, evaluations, measurements."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from rl_plasticity.agents.base import Inputs
from rl_plasticity.compiling.fastest import fastest
from rl_plasticity.compiling.precision import in_bfloat16
from rl_plasticity.configs.commands import Supervised
from rl_plasticity.learning.learner import Learner
from rl_plasticity.runs.plan import Chosen
from rl_plasticity.runs.progress import Progress
from rl_plasticity.runs.session import Session
from rl_plasticity.seeding import RunStreams
from rl_plasticity.structure.layer import eval_mode
from rl_plasticity.tasks import Data, Task, batch
from rl_plasticity.tasks.data import Split
from rl_plasticity.training.diagnosing import Probing
from rl_plasticity.training.updates import Updates

EVALUATION_BATCH = 1000
GATHERED = 2**20  # pixel values of each run that training gathers at once


@dataclass(kw_only=True)
class EpochCounts(Progress):
    """The counts of a run, whose steps are epochs.

    Args:
        measured: number of updates made at the last measurement.
        online: sum over the batches of this task of each run's accuracy before it learned the batch, ``[runs]``.
        batches: number of those batches.
    """

    measured: int = 0
    online: Tensor
    batches: int = 0

    @classmethod
    def of(cls, runs: int, device: str) -> Self:
        """The counts of this number of new runs."""
        return cls(online=torch.zeros(runs, dtype=torch.float64, device=device))


class EpochUpdates(Updates[Learner]):
    """A learner's updates, an epoch at a time, and its evaluations.

    Args:
        some: makes the learner of some of the runs.
        order: draws the order of the images, and the augmentation.
        probing: tries the network when it is due.
    """

    def __init__(
        self,
        session: Session[Supervised],
        learner: Learner,
        some: Callable[[slice], Learner],
        interventions: Sequence[Chosen],
        data: Data,
        order: RunStreams,
        at: EpochCounts,
        probing: Probing,
    ) -> None:
        self.s = s = session.settings
        super().__init__(session, learner, {"net": learner}, ("net/loss",), interventions, some, probing.diagnose_every)
        self.data, self.order, self.at, self.probing = data, order, at, probing
        self.forward = in_bfloat16(learner.net, s.device) if s.precision == "bfloat16" and not learner.runs else None
        self._plain = self.shares.updates(self._update)
        quickly = partial(fastest, device=s.device, compiles=bool(s.compile), say=session.say)
        self._fast = self.shares.updates(self._update, quickly)

    def begin_task(self, task: Task, index: int) -> None:
        """Reset the sums of the task, and apply the interventions that are due."""
        self.at.online, self.at.batches = torch.zeros_like(self.at.online), 0
        self.intervene(lambda intervention: intervention.due_at_task(index), partial(self._inputs, task))
        self.session.call("on_task")

    def make_epoch(self, task: Task) -> None:
        """Make an update for each batch of the task."""
        clock, at, runs = self.session.clock, self.at, self.trained.runs
        clock.start_updates()
        epoch = batches(task, self.data, self.order, self.s.batch_size, runs)
        for _, of_one_size in itertools.groupby(epoch, key=lambda pair: pair[1].shape):
            for several in self.stretches(of_one_size, self.shares.at_once):
                metrics = self.shares.each(partial(self._update_share, several))
                for online in metrics.pop("online").unbind(-1):
                    at.online += online
                at.batches += len(several)
                self.count(len(several), partial(self._inputs, task))
                self.log_if_due({f"net/{name}": value for name, value in metrics.items()})
                self.probing.after_update()
                self.session.call("on_update")
        clock.end_updates(updates_per_epoch(task, self.s.batch_size))

    def evaluate(self, task: Task, index: int, is_last: bool) -> None:
        """Log loss and accuracy of the current task, and the results of a task after its last epoch."""
        scores = evaluate(task, self.data, self.trained, self.forward)
        summary = f"task {index}, train accuracy {scores['train_accuracy'].mean():.3f}"
        self.session.evaluated({f"eval/{name}": value for name, value in scores.items()}, summary)
        if is_last:
            online = self.at.online
            of_task = {**scores, "online_accuracy": online / self.at.batches, "index": torch.full_like(online, index)}
            self.session.log({f"task/{name}": value for name, value in of_task.items()})

    def _update(self, learner: Learner, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        logits = (self.forward or learner.net)(x)
        loss = cross_entropy(logits, y)
        online = accuracy(logits.detach(), y)  # of this batch before it is learned
        return learner.minimize(loss, x) | {"loss": loss.detach(), "online_accuracy": online}

    def _update_share(self, several: list[tuple[Tensor, Tensor]], share: int) -> dict[str, Tensor]:
        """Make an update for each batch; return the last one's metrics and all online accuracies ``[runs, n]``."""
        # A compiled graph is for one shape. A task's last batch may be smaller, and its size differs between tasks.
        updates = self._fast if several[0][1].shape[-1] == self.s.batch_size else self._plain
        runs = self.shares.slices[share] if self.trained.runs else ...
        done = [updates[share](x[runs], y[runs]) for x, y in several]
        return done[-1] | {"online": torch.stack([metrics["online_accuracy"] for metrics in done], -1)}

    def _inputs(self, task: Task) -> Inputs:
        """The inputs of methods that need activations: the first images of the task."""
        return {"net": (first_images(task, self.data, EVALUATION_BATCH, self.trained.runs)[0],)}


class LearnerProbing(Probing):
    """Plasticity metrics of a learner on frozen images and their labels."""

    def __init__(
        self, session: Session[Supervised], learner: Learner, frozen: tuple[Tensor, Tensor], at: EpochCounts, total: int
    ) -> None:
        images, labels = frozen
        losses, own = {"net": (cross_entropy, (labels,))}, {"net": (cross_entropy, labels)}
        super().__init__(session, {"net": learner}, {"net": (images,)}, lambda: losses, own)
        self.at, self.total = at, total
        self.every_updates = int(session.settings.measure_every_updates)
        self.every_epochs = session.settings.measure_every_epochs

    def begin(self) -> None:
        """Measure and try the new network, each unless it is off."""
        if self.every_updates or self.every_epochs:
            self._measure()
        self.diagnose()

    def after_step(self, is_last: bool) -> None:
        """Measure if it is due: after the period in epochs, or at the end of a task after the period in updates."""
        if self.every_epochs:
            due = self.at.step % self.every_epochs == 0
        else:
            due = is_last and 0 < self.every_updates <= self.at.updates - self.at.measured
        if due or (self.at.step == self.total and (self.every_epochs or self.every_updates)):
            self._measure()

    def _measure(self) -> None:
        self.at.measured = self.at.updates
        self.measure()


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the batch of -log softmax(logits)[label]: ``[*runs, batch, classes], [*runs, batch] -> [*runs]``."""
    return -logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1).mean(-1)


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of correct answers: ``[*runs, batch, classes], [*runs, batch] -> [*runs]``."""
    return (logits.argmax(-1) == labels).float().mean(-1)


def updates_per_epoch(task: Task, batch_size: int) -> int:
    """Number of batches in an epoch; the last one may be smaller."""
    return math.ceil(task.rows.shape[-1] / batch_size)


def batches(
    task: Task, data: Data, order: RunStreams, batch_size: int, runs: tuple[int, ...]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of an epoch: every image once, in a new order for each run; images and labels as from `inputs`.

    Several batches are gathered at once, because for small ones the dispatch of a gather costs as much as an update.
    Their number depends neither on the machine nor on other runs, so that a run always draws the same.
    """
    rows = shuffled(task, order)
    whole = rows.shape[-1] // batch_size * batch_size
    at_once = 1 if data.augment else max(1, GATHERED // (batch_size * math.prod(data.shape)))
    several = rows[:, :whole].reshape(len(rows), -1, batch_size).movedim(1, 0)  # [batches, runs, batch]
    parts = torch.split(several, at_once)
    for part in (*parts, rows[None, :, whole:]) if whole < rows.shape[-1] else parts:
        x, y = inputs(task, data, part, runs, order if data.augment else None)
        yield from zip(x.unbind(), y.unbind(), strict=True)


def shuffled(task: Task, order: RunStreams) -> Tensor:
    """The task's images in a new order for each run, ``[runs, n]``."""
    return order.uniform(task.rows.shape[-1]).argsort(-1)


def first_images(task: Task, data: Data, most: int, runs: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The task's first images and their labels as from `inputs`, at most `most`."""
    rows = torch.arange(min(task.rows.shape[-1], most)).expand(task.rows.shape[0], -1)
    return inputs(task, data, rows, runs)


def inputs(
    task: Task, data: Data, rows: Tensor, runs: tuple[int, ...], order: RunStreams | None = None, split: Split = "train"
) -> tuple[Tensor, Tensor]:
    """The network's inputs and the labels of `rows` ``[..., runs, batch]``; augmented if `order` is given.

    Returns:
        Images ``[..., *runs, batch, c, h, w]`` and labels ``[..., *runs, batch]``.
    """
    x, y = batch(task, data, rows.to(task.rows.device), split)
    axis = rows.ndim - 2  # of the runs
    if order is None or data.augment is None:
        x = data.to_float(x)
    else:
        of_each = zip(data.to_unit(x).unbind(axis), order.generators, strict=True)
        x = data.standardize(torch.stack([data.augment(one, generator) for one, generator in of_each], axis))
    return (x, y) if runs else (x.squeeze(axis), y.squeeze(axis))


@torch.no_grad()
def evaluate(
    task: Task, data: Data, learner: Learner, call: Callable[[Tensor], Tensor] | None = None
) -> dict[str, Tensor]:
    """Loss and accuracy ``[runs]`` on all training, validation and test images of the task.

    Args:
        call: calls the network as in training; None: the learner's network itself.
    """
    scores, call = {}, call or learner.net
    splits: tuple[Split, ...] = ("train", "validation", "test")
    with eval_mode(learner.net):
        for split in splits:
            images = task.part(split)[0].shape[-1]
            if not images:
                continue
            loss = right = torch.zeros((), device=task.rows.device)
            for rows in torch.split(torch.arange(images), EVALUATION_BATCH):
                x, y = inputs(task, data, rows.expand(task.rows.shape[0], -1), learner.runs, split=split)
                logits = call(x)
                loss = loss + cross_entropy(logits, y) * len(rows) / images
                right = right + accuracy(logits, y) * len(rows) / images
            scores[f"{split}_loss"] = loss.reshape(-1).cpu()
            scores[f"{split}_accuracy"] = right.reshape(-1).cpu()
    return scores
