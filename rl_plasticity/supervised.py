"""Train on a continual supervised problem: ``python -m rl_plasticity.supervised task=random_labels reg=swr``."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from rl_plasticity.compiled import compiled
from rl_plasticity.configs.schema import Supervised
from rl_plasticity.errors import choose
from rl_plasticity.interventions import Intervention, LearningRateDecay, eval_mode
from rl_plasticity.learner import Learner
from rl_plasticity.networks import make_network
from rl_plasticity.optimizers import OPTIMIZERS
from rl_plasticity.probe import PROBE_SIZE, Probe, size_of
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs import plan as grid
from rl_plasticity.runs.results import Results, write_provenance
from rl_plasticity.runs.session import (
    Clock,
    Command,
    Saved,
    StopSignal,
    close_all,
    require_finite_loss,
    require_finite_weights,
)
from rl_plasticity.seeding import RunStreams, derive
from rl_plasticity.tasks import TASKS, Data, Task, TaskSequence, augment, batch, load
from rl_plasticity.tasks.data import Split

# Keys of the random streams derived from a run's seed.
NETWORK, TASK, ORDER = range(10, 13)
EVALUATION_BATCH = 1000

Chosen = tuple[Intervention, list[int] | None]  # and the runs it is for


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the batch of -log softmax(logits)[label]: ``[*runs, batch, classes], [*runs, batch] -> [*runs]``."""
    return -logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1).mean(-1)


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """The share of right answers: ``[*runs, batch, classes], [*runs, batch] -> [*runs]``."""
    return (logits.argmax(-1) == labels).float().mean(-1)


def make(s: Supervised, device: str) -> tuple[Data, TaskSequence, Learner, list[Chosen]]:
    """Data, tasks, learner and interventions that the settings choose.

    Raises:
        ValueError: they cannot be made; the message says why.
    """
    seeds = grid.seeds(s)
    data = load(**asdict(s.data)).to(device)
    settings = {k: v for k, v in s.task.items() if k != "name"}
    make_sequence = choose(TASKS, s.task["name"], settings, "task")
    sequence = make_sequence(data, [derive(n, TASK) for n in seeds], s.num_tasks)

    def make_net(seeds: Sequence[int]) -> nn.Module:
        return make_network(shape=data.shape, num_classes=sequence.num_classes, seeds=seeds, **s.net)

    settings = {k: v for k, v in s.optimizer.items() if k != "name"}
    optimize = partial(OPTIMIZERS[s.optimizer["name"]], lr=s.lr, **settings)
    learner = Learner(make_net, [derive(n, NETWORK) for n in seeds], grid.regularizer_for(s), optimize, device=device)
    interventions = grid.interventions_for(s)
    if sequence.decay_at_epochs:
        per_epoch = updates_per_epoch(sequence.task(0), s.batch_size)
        at = [epoch * per_epoch for epoch in sequence.decay_at_epochs]
        interventions.append((LearningRateDecay(at, sequence.decay, sequence.rebase), None))
    return data, sequence, learner, interventions


def check(s: Supervised) -> None:
    """Make everything once, on the CPU.

    Raises:
        ValueError, ImportError: something cannot be made.
    """
    make(s, "cpu")


def updates_per_epoch(task: Task, batch_size: int) -> int:
    """Batches in an epoch; the last one may be smaller."""
    return math.ceil(task.rows.shape[-1] / batch_size)


def planned_updates(s: Supervised) -> float:
    """How many updates with a whole batch a run makes: the others are of another shape and are never compiled.

    Networks without a runs axis count as none: compiling those for a CPU takes minutes, and no gain was measured.
    """
    _, sequence, learner, _ = make(s, "cpu")
    if not learner.runs:
        return 0
    images = (sequence.task(index).rows.shape[-1] for index in range(sequence.num_tasks))
    return sum(n // s.batch_size for n in images) * s.epochs_per_task


command = Command(Supervised, check, planned_updates)


def train(s: Supervised, folder: Path, saved: Saved, stop: StopSignal) -> bool:
    """Train on every task until the last epoch or a stop signal, writing into `folder`; from `saved` if given.

    Returns:
        Whether the last epoch was reached.
    """
    if isinstance(s.threads, int):
        torch.set_num_threads(s.threads)
    seeds = grid.seeds(s)
    data, sequence, learner, interventions = make(s, s.device)
    order = RunStreams([derive(n, ORDER) for n in seeds])  # of the images, and of the augmentation
    total = sequence.num_tasks * s.epochs_per_task

    def update(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        logits = learner.net(x)
        loss = cross_entropy(logits, y)
        online = accuracy(logits.detach(), y)  # of this batch before it is learned
        return learner.minimize(loss) | {"loss": loss.detach(), "online_accuracy": online}

    first = sequence.task(0)  # whose first images and labels the network is looked at with, whatever task it is at
    kept = torch.arange(min(first.rows.shape[-1], PROBE_SIZE)).expand(len(seeds), -1)
    images, labels = inputs(first, data, kept, learner.runs)
    probe = Probe(learner, [images])
    fast = compiled(update, s.device) if s.compile else update
    write_provenance(folder / "provenance.json", s.device)
    if saved is None:
        epoch = updates = measured = 0
        online, batches = torch.zeros(len(seeds), dtype=torch.float64), 0
        results = Results(folder, grid.names(s), logger=s.logger)
    else:
        epoch, updates, online, batches = saved["epoch"], saved["updates"], saved["online"], saved["batches"]
        learner.load_state_dict(saved["learner"])
        order.load_state_dict(saved["order"])
        measured = saved["measured"]
        probe.load_state_dict(saved["probe"])
        results = Results(folder, grid.names(s), saved["sizes"], updates, s.logger)

    checkpoints = checkpoint.Checkpoints(folder / "checkpoints", saved)

    def measure() -> None:
        nonlocal measured
        measured = updates
        found = probe.measure(cross_entropy, [labels])
        results.log(updates, {f"net/{name}": value.reshape(-1).cpu() for name, value in found.items()})

    def save() -> None:
        require_finite_weights(learner.net, f"after {updates} updates", folder)
        state = {
            "epoch": epoch,
            "updates": updates,
            "online": online,
            "batches": batches,
            "learner": learner.state_dict(),
            "order": order.state_dict(),
            "measured": measured,
            "probe": probe.state_dict(),
            "sizes": results.sync(),
            "settings": asdict(s),
        }
        checkpoints.save(epoch, state)

    last_saved = epoch
    task = sequence.task(min(epoch, total - 1) // s.epochs_per_task)
    per_epoch = updates_per_epoch(task, s.batch_size)
    clock = Clock(s, "epochs", total, epoch, per_epoch)
    try:
        if saved is None:
            if s.measure_every_updates:
                measure()
            save()  # a run killed at any moment can be resumed
        while epoch < total and not stop.received:
            index, inside = divmod(epoch, s.epochs_per_task)
            if inside == 0:
                task = sequence.task(index)
                online, batches = torch.zeros_like(online), 0
                apply_([i for i in interventions if i[0].due_at_task(index)], learner, task, data)
            clock.start_updates()
            for rows in torch.split(shuffled(task, order), s.batch_size, dim=-1):
                x, y = inputs(task, data, rows, learner.runs, order if data.augment else None)
                # A compiled graph is for one shape; a task's last batch may be smaller, and for each task another.
                metrics = (fast if rows.shape[-1] == s.batch_size else update)(x, y)
                updates, batches = updates + 1, batches + 1
                online += metrics["online_accuracy"].reshape(-1).cpu()
                due = [i for i in interventions if i[0].due(updates)]
                apply_(due, learner, task, data)
                if updates % s.log_every_updates == 0:
                    log_update(results, updates, learner, metrics, folder)
            epoch += 1
            clock.end_updates(updates_per_epoch(task, s.batch_size))

            ended = inside + 1 == s.epochs_per_task
            if ended or epoch % s.eval_every_epochs == 0:
                found = evaluate(task, data, learner)
                results.log(updates, {f"eval/{name}": value for name, value in found.items()})
                clock.said = f"task {index}, train accuracy {found['train_accuracy'].mean():.3f}"
                results.time(updates, clock.rates(epoch))
                if ended:
                    at_end = found | {"online_accuracy": online / batches, "index": torch.full((len(seeds),), index)}
                    results.log(updates, {f"task/{name}": value for name, value in at_end.items()})
                    if s.measure_every_updates and (epoch == total or updates - measured >= s.measure_every_updates):
                        measure()
            if epoch % s.checkpoint_every_epochs == 0:
                save()
                last_saved = epoch
            clock.show(epoch)
        if last_saved != epoch:
            save()
    finally:
        close_all(clock.close, results.close)
    return epoch >= total


def shuffled(task: Task, order: RunStreams) -> Tensor:
    """The task's images in a new order for each run, ``[runs, n]``."""
    return order.uniform(task.rows.shape[-1]).argsort(-1)


def inputs(
    task: Task, data: Data, rows: Tensor, runs: tuple[int, ...], order: RunStreams | None = None, split: Split = "train"
) -> tuple[Tensor, Tensor]:
    """What the network reads ``[*runs, batch, c, h, w]`` and the labels ``[*runs, batch]``; augmented with `order`."""
    x, y = batch(task, data, rows.to(task.rows.device), split)
    if order is None:
        x = data.to_float(x)
    else:
        pad = 4 if data.shape[-1] >= 64 else 3
        x = torch.stack([augment(one, g, pad) for one, g in zip(data.to_unit(x), order.generators, strict=True)])
        x = data.standardize(x)
    return (x, y) if runs else (x[0], y[0])


def apply_(due: list[Chosen], learner: Learner, task: Task, data: Data) -> None:
    """Intervene; methods that look at activations see the first images of the task."""
    if due:
        first = torch.arange(min(task.rows.shape[-1], EVALUATION_BATCH)).expand(task.rows.shape[0], -1)
        seen = {"net": (inputs(task, data, first, learner.runs)[0],)}
        for intervention, which in due:
            intervention.apply_(learner, which, seen)


@torch.no_grad()
def evaluate(task: Task, data: Data, learner: Learner) -> dict[str, Tensor]:
    """Loss and accuracy ``[runs]`` on all training, validation and test images of the task that there are."""
    found = {}
    splits: tuple[Split, ...] = ("train", "validation", "test")
    with eval_mode(learner.net):
        for split in splits:
            images = task.part(split)[0].shape[-1]
            if not images:
                continue
            loss = right = torch.zeros((), device=task.rows.device)
            for rows in torch.split(torch.arange(images), EVALUATION_BATCH):
                x, y = inputs(task, data, rows.expand(task.rows.shape[0], -1), learner.runs, split=split)
                logits = learner.net(x)
                loss = loss + cross_entropy(logits, y) * len(rows) / images
                right = right + accuracy(logits, y) * len(rows) / images
            found[f"{split}_loss"] = loss.reshape(-1).cpu()
            found[f"{split}_accuracy"] = right.reshape(-1).cpu()
    return found


@torch.no_grad()
def log_update(results: Results, updates: int, learner: Learner, metrics: dict[str, Tensor], folder: Path) -> None:
    """Write the latest update's metrics and the state of the weights.

    Raises:
        FaultyRun: the loss is not finite.
    """
    require_finite_loss("the loss", metrics["loss"], results.names, f"after {updates} updates", folder)
    metrics |= size_of(learner, metrics["gradient_norm"])
    results.log(updates, {f"net/{name}": value.reshape(-1).cpu() for name, value in metrics.items()})
    results.flush()


if __name__ == "__main__":
    command.main(train)
