"""Train on a continual supervised problem: ``python -m rl_plasticity.supervised task=random_labels reg=swr``."""

if __name__ == "__main__":  # help and misspelt settings do not wait for torch
    from rl_plasticity import command_line

    command_line.at_once("supervised")

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_plasticity import command_line
from rl_plasticity.configs.commands import Supervised
from rl_plasticity.diagnosis.probe import PROBE_SIZE
from rl_plasticity.errors import SettingsError, counted, say
from rl_plasticity.interventions import LearningRateDecay
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import OPTIMIZERS, Optimizer
from rl_plasticity.networks import make_network
from rl_plasticity.runs.command import Built, Command
from rl_plasticity.runs.machine import set_products_
from rl_plasticity.runs.plan import Chosen, Plan, warn_of_what_never_comes
from rl_plasticity.runs.session import Session
from rl_plasticity.seeding import RunStreams, derived, random_states_kept
from rl_plasticity.structure.calling import shadow
from rl_plasticity.structure.layer import runs_of
from rl_plasticity.tasks import TASKS, Data, TaskSequence, load
from rl_plasticity.training.diagnosing import require_enough
from rl_plasticity.training.epochs import (
    EpochCounts,
    EpochUpdates,
    LearnerProbing,
    first_images,
    updates_per_epoch,
)
from rl_plasticity.training.updates import require_applicable

# Keys of the random streams derived from a run's seed.
NETWORK, TASK, ORDER = range(10, 13)


@dataclass
class Parts(Built):
    """The objects that the settings choose, for all runs."""

    data: Data
    sequence: TaskSequence
    learner: Learner
    interventions: list[Chosen]


def build(s: Supervised, plan: Plan) -> Parts:
    """Make data, tasks, learner and interventions.

    Raises:
        ValueError: they cannot be made; the message says why.
    """
    data = load(s.data.name, **s.data.settings).to(s.device)
    kind: Any = TASKS[s.task.name]
    sequence = kind(data, derived(plan.seeds, TASK), s.num_tasks, **s.task.settings)
    total = sequence.num_tasks * s.epochs_per_task
    if s.at is not None and s.at >= total:
        raise SettingsError(f"at={s.at} must be below {total}, the last epoch: nothing is left to branch")
    learner = make_learner(s, plan, data, sequence)
    first = sequence.task(0)
    _require_reproducible(s, learner, first_images(first, data, 2, learner.runs)[0])
    if s.diagnose_every_updates or plan.interventions:
        images, _ = first_images(first, data, PROBE_SIZE, learner.runs)
        if s.diagnose_every_updates:
            require_enough({"net": learner}, {"net": (images,)})
        require_applicable(learner, plan.interventions, {"net": (images,)})
    warn_of_what_never_comes(plan, expected_updates(s, sequence), sequence.num_tasks)
    interventions = list(plan.interventions)
    if never := [epoch for epoch in sequence.decay_at_epochs if epoch >= total]:
        say(f"the learning rate does not decay at {never} epochs: the run ends after {total}")
    if sequence.decay_at_epochs:
        at = [updates_after(s, sequence, epoch) for epoch in sequence.decay_at_epochs]
        interventions.append((LearningRateDecay(at, sequence.decay, sequence.rebase), None))
    return Parts(data, sequence, learner, interventions, is_stacked=bool(learner.runs))


def _require_reproducible(s: Supervised, learner: Learner, images: Tensor) -> None:
    """Raises SettingsError if the network cannot train the runs at once, or draws what no checkpoint saves."""
    if learner.seeds[1:] and not learner.runs:
        raise SettingsError(f"net={s.net.name} has no runs axis: train one run per process (seeds=1)")
    state = torch.cuda.get_rng_state if images.is_cuda else torch.get_rng_state
    with random_states_kept(learner.parameters()):
        before = state()
        shadow(learner.net).train()(images)
        if not torch.equal(before, state()):
            raise SettingsError(
                f"net={s.net.name} draws random numbers in training (dropout?), which a run neither seeds nor saves"
            )


def make_learner(s: Supervised, plan: Plan, data: Data, sequence: TaskSequence) -> Learner:
    """The learners of all runs, untrained, for these images and tasks."""

    def make(seeds: Sequence[int]) -> torch.nn.Module:
        made = make_network(s.net.name, data.shape, sequence.num_classes, seeds, **s.net.settings)
        if runs_of(made):
            return made
        return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def make_optimizer(network: torch.nn.Module) -> Optimizer:
        return OPTIMIZERS[s.optimizer.name](network, lr=s.lr, **s.optimizer.settings)

    made = Learner(make, derived(plan.seeds, NETWORK), plan.make_regularizer, make_optimizer, device=s.device)
    set_products_(made.net, s)
    return made


def make_trained(parts: Parts, s: Supervised, plan: Plan) -> Learner:
    """A learner like that of the parts, with other settings or runs."""
    return make_learner(s, plan, parts.data, parts.sequence)


def updates_after(s: Supervised, sequence: TaskSequence, epochs: int) -> int:
    """Number of updates of a run after this number of epochs; beyond the last task, as if that task went on."""
    updates, index = 0, 0
    while epochs:
        inside = epochs if index == sequence.num_tasks - 1 else min(epochs, s.epochs_per_task)
        updates += inside * updates_per_epoch(sequence.task(index), s.batch_size)
        epochs, index = epochs - inside, index + 1
    return updates


def expected_updates(s: Supervised, sequence: TaskSequence) -> float:
    """Number of updates of a run.

    In a long sequence, the mean of the first hundred tasks stands for all others.
    """
    looked_at = min(sequence.num_tasks, 100)
    of_each = (updates_per_epoch(sequence.task(index), s.batch_size) for index in range(looked_at))
    return sum(of_each) / looked_at * sequence.num_tasks * s.epochs_per_task


def length(s: Supervised, parts: Parts) -> tuple[float, str]:
    """Number of updates of a run, and its length in words."""
    words = f"{counted(parts.sequence.num_tasks, 'task')} of {counted(s.epochs_per_task, 'epoch')}"
    return expected_updates(s, parts.sequence), words


def train(session: Session[Supervised], parts: Parts) -> bool:
    """Train from the beginning or the session's checkpoint until the last epoch, or until the session ends.

    Returns:
        Whether the last epoch was reached.
    """
    s, sequence, learner = session.settings, parts.sequence, parts.learner
    at = EpochCounts.of(len(session.plan.seeds), s.device)
    total = sequence.num_tasks * s.epochs_per_task
    first = sequence.task(0)  # the network is looked at with its first images, whatever task it is at
    order = RunStreams(derived(session.plan.seeds, ORDER))  # of the images, and of the augmentation
    probing = LearnerProbing(session, learner, first_images(first, parts.data, PROBE_SIZE, learner.runs), at, total)

    def learner_of(runs: slice) -> Learner:
        return make_trained(parts, s, session.plan.without_interventions(runs))

    updates = EpochUpdates(session, learner, learner_of, parts.interventions, parts.data, order, at, probing)
    with session.begun(
        {"learner": learner, "order": order, "probe": probing.networks["net"]}, at, unit="epochs", total=total,
        save_every=s.checkpoint_every_epochs,
    ) as is_new:  # fmt: skip
        if is_new:
            probing.begin()
            session.save()  # a run killed at any moment can be resumed
        task = sequence.task(min(at.step, total - 1) // s.epochs_per_task)
        while session.goes_on():
            index, inside = divmod(at.step, s.epochs_per_task)
            if inside == 0:
                task = sequence.task(index)
                updates.begin_task(task, index)
            updates.make_epoch(task)
            at.step += 1
            is_last = inside + 1 == s.epochs_per_task
            if is_last or at.step % s.eval_every_epochs == 0:
                updates.evaluate(task, index, is_last)
            probing.after_step(is_last)
            session.after_step()
    return bool(at.step >= total)


command = Command(Supervised, build, train, length, make_trained)
run = command.run
"""Train from Python, see `Command.run`::

    run(task="label_flip", reg={"name": "swr", "coef": 1e-3}, out="results/mine")
"""

if __name__ == "__main__":
    command_line.train(command)
