"""Train on a continual supervised problem: ``python -m rl_plasticity.supervised task=random_labels reg=swr``."""

if __name__ == "__main__":
    from rl_plasticity import terminal

    terminal.prepare()
    from rl_plasticity import command_line

    command_line.at_once("supervised")

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from rl_plasticity import command_line
from rl_plasticity.compiling.compiled import compiled
from rl_plasticity.compiling.precision import in_bfloat16, read_bfloat16_
from rl_plasticity.configs.commands import Supervised
from rl_plasticity.configs.schema import arguments_of
from rl_plasticity.diagnosis.probe import PROBE_SIZE, Probe, size_of
from rl_plasticity.errors import choose
from rl_plasticity.interventions import Intervention, LearningRateDecay
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import OPTIMIZERS, Optimizer
from rl_plasticity.networks import make_network
from rl_plasticity.runs import memory
from rl_plasticity.runs.command import Command
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.plan import (
    Plan,
    say_what_is_never_logged,
    say_what_never_acts,
    say_what_never_begins,
    say_what_never_comes,
)
from rl_plasticity.runs.progress import Progress
from rl_plasticity.runs.session import Session
from rl_plasticity.seeding import RunStreams, derive
from rl_plasticity.structure.layer import eval_mode, runs_of
from rl_plasticity.tasks import TASKS, Data, Task, TaskSequence, augment, batch, load
from rl_plasticity.tasks.data import Split

# Keys of the random streams derived from a run's seed.
NETWORK, TASK, ORDER = range(10, 13)
EVALUATION_BATCH = 1000
GATHERED = 2**20  # numbers of each run's images that are gathered at once in training

Chosen = tuple[Intervention, list[int] | None]  # and the runs it is for


def run(
    *,
    on_step: Callable[[Session[Supervised]], object] | None = None,
    on_update: Callable[[Session[Supervised]], object] | None = None,
    on_evaluation: Callable[[Session[Supervised]], object] | None = None,
    **settings: Any,
) -> RunFolder:
    """Train from Python: ``run(task="label_flip", reg={"name": "swr", "coef": 1e-3}, out="results/mine")``.

    Args:
        on_step, on_update, on_evaluation: called with the session after each epoch, update and evaluation; it can be
            read (``session.parts["learner"]``, ``session.latest``) and ended (``session.end_early()``).
        settings: all that the command line takes.

    Raises:
        SettingsError: bad input; nothing was written.
        FaultyRun: the run could not go on.
    """
    return command.run(settings, {"on_step": on_step, "on_update": on_update, "on_evaluation": on_evaluation})


@dataclass
class Parts:
    """What the settings choose, for all runs.

    Args:
        some: makes the learner of some of the runs.
    """

    data: Data
    sequence: TaskSequence
    learner: Learner
    some: Callable[[slice], Learner]
    interventions: list[Chosen]
    callbacks: dict[str, object] = field(default_factory=dict)

    @property
    def is_stacked(self) -> bool:
        """Whether the network has a runs axis."""
        return bool(self.learner.runs)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Counts(Progress):
    """Where a run is. A step is an epoch.

    Args:
        measured: the updates made at the last measurement.
        online: the sum of each run's accuracy over the batches of this task, before they were learned, ``[runs]``.
        batches: how many those are.
    """

    measured: int = 0
    online: Tensor = field(default_factory=lambda: torch.zeros(0))
    batches: int = 0


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the batch of -log softmax(logits)[label]: ``[*runs, batch, classes], [*runs, batch] -> [*runs]``."""
    return -logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1).mean(-1)


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """The share of right answers: ``[*runs, batch, classes], [*runs, batch] -> [*runs]``."""
    return (logits.argmax(-1) == labels).float().mean(-1)


def build(s: Supervised, plan: Plan) -> Parts:
    """Make data, tasks, learner and interventions.

    Raises:
        ValueError: they cannot be made; the message says why.
    """
    data = load(**s.data).to(s.device)
    task, net, optimizer = map(arguments_of, (s.task, s.net, s.optimizer))
    kind = choose(TASKS, s.task["name"], task, "task")
    sequence = kind(data, [derive(n, TASK) for n in plan.seeds], s.num_tasks)

    def make(seeds: Sequence[int]) -> torch.nn.Module:
        made = make_network(s.net["name"], data.shape, sequence.num_classes, seeds, **net)
        if runs_of(made):
            return made
        return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def optimize(network: torch.nn.Module) -> Optimizer:
        return choose(OPTIMIZERS, s.optimizer["name"], optimizer, "optimizer")(network, lr=s.lr)

    memory.require(len(plan.seeds), of_each_run(s, data), s.device)
    say_what_never_begins(s, "epoch", sequence.num_tasks * s.epochs_per_task)
    after = cache(partial(updates_after, s, sequence))

    def learner_of(plan: Plan) -> Learner:
        regularize = partial(plan.regularize, updates_after=after)
        made = Learner(make, [derive(n, NETWORK) for n in plan.seeds], regularize, optimize, device=s.device)
        if s.precision == "bfloat16" and made.runs:
            read_bfloat16_(made.net, s.bfloat16_from or 1)
        return made

    learner = learner_of(plan)
    updates = expected_updates(s, sequence)
    say_what_never_acts({"net": learner.regularizer}, updates, s.batch_size)
    say_what_never_comes(plan.interventions, updates, sequence.num_tasks)
    say_what_is_never_logged(s, updates, sequence.num_tasks)
    interventions = list(plan.interventions)
    if sequence.decay_at_epochs:
        at = [after(epoch) for epoch in sequence.decay_at_epochs]
        interventions.append((LearningRateDecay(at, sequence.decay, sequence.rebase), None))
    return Parts(data, sequence, learner, lambda runs: learner_of(plan.some(runs)), interventions)


def of_each_run(s: Supervised, data: Data) -> dict[str, float]:
    """The least bytes of memory of one run, by what they are for, see `memory.require`."""
    batch_size, number = min(s.batch_size, len(data.train_y)), math.prod(data.shape)
    at_once = batch_size if data.augment else max(batch_size, GATHERED // number)
    batches = {f"batches, batch_size={batch_size}": 4.0 * at_once * (number + 2)}
    return batches | memory.of_layers("net", s.net, batch_size)


def updates_per_epoch(task: Task, batch_size: int) -> int:
    """Batches in an epoch; the last one may be smaller."""
    return math.ceil(task.rows.shape[-1] / batch_size)


def updates_after(s: Supervised, sequence: TaskSequence, epochs: int) -> int:
    """How many updates a run has made after so many epochs, of whatever tasks; behind the last as if it went on."""
    updates, index = 0, 0
    while epochs:
        inside = epochs if index == sequence.num_tasks - 1 else min(epochs, s.epochs_per_task)
        updates += inside * updates_per_epoch(sequence.task(index), s.batch_size)
        epochs, index = epochs - inside, index + 1
    return updates


def expected_updates(s: Supervised, sequence: TaskSequence, of: Callable[[float], int] = math.ceil) -> float:
    """How many updates a run makes.

    Of a long sequence the first hundred tasks are looked at, and the others taken to be as large on average.
    """
    looked_at = min(sequence.num_tasks, 100)
    images = (sequence.task(index).rows.shape[-1] for index in range(looked_at))
    return sum(of(n / s.batch_size) for n in images) / looked_at * sequence.num_tasks * s.epochs_per_task


def planned_updates(s: Supervised, parts: Parts) -> float:
    """How many updates with a whole batch a run makes: the others are of another shape and are never compiled.

    Networks without a runs axis count as none: compiling those for a CPU takes minutes, and no gain was measured.
    """
    return expected_updates(s, parts.sequence, of=math.floor) if parts.learner.runs else 0


def length(s: Supervised, parts: Parts) -> tuple[float, str]:
    """How many updates a run makes, and in what."""
    tasks = f"{parts.sequence.num_tasks} {'task' if parts.sequence.num_tasks == 1 else 'tasks'}"
    return expected_updates(s, parts.sequence), f"{tasks} of {s.epochs_per_task} epochs"


def train(session: Session[Supervised], parts: Parts) -> bool:
    """Train on every task until the last epoch, or until the session ends; from its checkpoint if it has one.

    Returns:
        Whether the last epoch was reached.
    """
    s, plan = session.settings, session.plan
    data, sequence, learner = parts.data, parts.sequence, parts.learner
    log_every, measure_every = int(s.log_every_updates), int(s.measure_every_updates)
    at = Counts(online=torch.zeros(len(plan.seeds), dtype=torch.float64, device=s.device))
    order = RunStreams([derive(n, ORDER) for n in plan.seeds])  # of the images, and of the augmentation
    total = sequence.num_tasks * s.epochs_per_task

    call = in_bfloat16(learner.net, s.device) if s.precision == "bfloat16" and not learner.runs else None

    def update(learner: Learner, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        logits = (call or learner.net)(x)
        loss = cross_entropy(logits, y)
        online = accuracy(logits.detach(), y)  # of this batch before it is learned
        return learner.minimize(loss, x) | {"loss": loss.detach(), "online_accuracy": online}

    first = sequence.task(0)  # whose first images and labels the network is looked at with, whatever task it is at
    images, labels = first_images(first, data, PROBE_SIZE, learner.runs)
    probe = Probe(learner, [images])
    shares = session.divided(learner, parts.some)
    plain = shares.updates(update)
    fast = shares.updates(update, partial(compiled, device=s.device)) if s.compile else plain

    def measure() -> None:
        at.measured = at.updates
        measures = probe.measure(cross_entropy, [labels])
        session.log({f"net/{name}": value.reshape(-1) for name, value in measures.items()})
        session.call("on_measurement")

    def learn(several: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """An update for each of these batches: the last one's metrics, and all online accuracies ``[runs, n]``."""
        # A compiled graph is for one shape; a task's last batch may be smaller, and for each task another.
        updates = fast if several[0][1].shape[-1] == s.batch_size else plain

        def updates_of(share: int) -> dict[str, Tensor]:
            runs = shares.runs[share] if learner.runs else ...
            done = [updates[share](x[runs], y[runs]) for x, y in several]
            return done[-1] | {"online": torch.stack([metrics["online_accuracy"] for metrics in done], -1)}

        return shares.each(updates_of)

    def is_watched(updates: int) -> bool:
        return session.is_watched(updates, parts.interventions, log_every)

    per_epoch = updates_per_epoch(first, s.batch_size)
    is_new = session.begin(
        {"learner": learner, "order": order, "probe": probe}, at,
        unit="epochs", total=total, updates_per_step=per_epoch,
    )  # fmt: skip
    task = sequence.task(min(at.step, total - 1) // s.epochs_per_task)
    try:
        if is_new:
            if measure_every or s.measure_every_epochs:
                measure()
            session.save()  # a run killed at any moment can be resumed
        while session.goes_on():
            index, inside = divmod(at.step, s.epochs_per_task)
            if inside == 0:
                task = sequence.task(index)
                at.online, at.batches = torch.zeros_like(at.online), 0
                apply_([i for i in parts.interventions if i[0].due_at_task(index)], learner, task, data)
                session.call("on_task")
            session.clock.start_updates()
            epoch = batches(task, data, order, s.batch_size, learner.runs)
            for several in stretches(epoch, lambda n: n == shares.at_once or is_watched(at.updates + n)):
                metrics = learn(several)
                at.updates, at.batches = at.updates + len(several), at.batches + len(several)
                for online in metrics.pop("online").unbind(-1):
                    at.online += online
                apply_([i for i in parts.interventions if i[0].due(at.updates)], learner, task, data)
                if at.updates % log_every == 0:
                    log_update(session, learner, metrics)
                session.call("on_update")
            at.step += 1
            session.clock.end_updates(updates_per_epoch(task, s.batch_size))

            ended = inside + 1 == s.epochs_per_task
            if ended or at.step % s.eval_every_epochs == 0:
                scores = evaluate(task, data, learner, call)
                summary = f"task {index}, train accuracy {scores['train_accuracy'].mean():.3f}"
                session.evaluated({f"eval/{name}": value for name, value in scores.items()}, summary)
                if ended:
                    at_end = {"online_accuracy": at.online / at.batches, "index": torch.full_like(at.online, index)}
                    session.log({f"task/{name}": value for name, value in (scores | at_end).items()})
            if s.measure_every_epochs:
                due = at.step % s.measure_every_epochs == 0
            else:
                due = ended and 0 < measure_every <= at.updates - at.measured
            if due or (at.step == total and (s.measure_every_epochs or measure_every)):
                measure()
            session.call("on_step")
            if at.step % s.checkpoint_every_epochs == 0:
                session.save()
            session.show()
        session.save()
    finally:
        session.close()
    return bool(at.step >= total)


def stretches(
    batches: Iterable[tuple[Tensor, Tensor]], is_end: Callable[[int], bool]
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Consecutive `batches` of one size, up to a number of them that is an end."""
    some: list[tuple[Tensor, Tensor]] = []
    for x, y in batches:
        if some and y.shape != some[0][1].shape:
            yield some
            some = []
        some.append((x, y))
        if is_end(len(some)):
            yield some
            some = []
    if some:
        yield some


def batches(
    task: Task, data: Data, order: RunStreams, batch_size: int, runs: tuple[int, ...]
) -> Iterator[tuple[Tensor, Tensor]]:
    """An epoch: every image once, in a new order for each run; images and labels as `inputs` gives them.

    Many batches are gathered at once: for small ones the dispatch of a gather costs as much as an update. How many does
    not depend on the machine or on the other runs, so neither does what a run draws.
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
    """The task's first images and their labels, at most so many, as `inputs` gives them."""
    rows = torch.arange(min(task.rows.shape[-1], most)).expand(task.rows.shape[0], -1)
    return inputs(task, data, rows, runs)


def inputs(
    task: Task, data: Data, rows: Tensor, runs: tuple[int, ...], order: RunStreams | None = None, split: Split = "train"
) -> tuple[Tensor, Tensor]:
    """What the network reads of `rows` ``[..., runs, batch]``; augmented with `order`.

    Returns:
        Images ``[..., *runs, batch, c, h, w]`` and labels ``[..., *runs, batch]``.
    """
    x, y = batch(task, data, rows.to(task.rows.device), split)
    axis = rows.ndim - 2  # of the runs
    if order is None:
        x = data.to_float(x)
    else:
        pad = 4 if data.shape[-1] >= 64 else 3
        of_each = zip(data.to_unit(x).unbind(axis), order.generators, strict=True)
        x = data.standardize(torch.stack([augment(one, g, pad) for one, g in of_each], axis))
    return (x, y) if runs else (x.squeeze(axis), y.squeeze(axis))


def apply_(due: list[Chosen], learner: Learner, task: Task, data: Data) -> None:
    """Intervene; methods that look at activations see the first images of the task."""
    if due:
        seen = {"net": (first_images(task, data, EVALUATION_BATCH, learner.runs)[0],)}
        for intervention, which in due:
            intervention.apply_(learner, runs=which, inputs=seen)


@torch.no_grad()
def evaluate(
    task: Task, data: Data, learner: Learner, call: Callable[[Tensor], Tensor] | None = None
) -> dict[str, Tensor]:
    """Loss and accuracy ``[runs]`` on all training, validation and test images of the task that there are.

    Args:
        call: how the learner's network is called in training, if not as it is.
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


@torch.no_grad()
def log_update(session: Session[Any], learner: Learner, metrics: Mapping[str, Tensor]) -> None:
    """Write the latest update's metrics and the state of the weights.

    Raises:
        FaultyRun: the loss is not finite.
    """
    session.require_finite_losses({"the loss": metrics["loss"]})
    values = {**metrics, **size_of(learner, metrics["gradient_norm"])}
    session.log({f"net/{name}": value.reshape(-1) for name, value in values.items()})
    session.results.flush()


command = Command(Supervised, build, train, planned_updates, length)

if __name__ == "__main__":
    command_line.train(command)
