"""A network that is diagnosed, and the copies of it that learn."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rl_plasticity.diagnosis.tasks import TrialTask
from rl_plasticity.errors import SettingsError, first_line
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.torch_state import TorchState
from rl_plasticity.structure.calling import Sharing
from rl_plasticity.structure.layer import runs_of, wide

RATE = 1e-3  # Adam's learning rate where no optimizer is known

Copy = tuple[nn.Module, Sequence[Optimizer]]
"""A network that can learn, and the optimizers that train it."""
Change = Callable[[nn.Module, Sequence[Optimizer]], object]
"""Changes a copy, or its optimizers."""


@dataclass
class Subject:
    """A network that is diagnosed, and copies of it that learn.

    Args:
        net: the network, without wrappers such as ``torch.compile``'s.
        optimizers: the torch optimizers that train it; none where they are unknown.
        fresh: makes a network like it with new weights.
        without_dropout: whether copies compute without dropout.
        another_rate: the learning rate for every task, where the optimizer's own is too low or too high for any.
        takes_adam: whether trials have a new Adam, because no network learns with the optimizers' other settings.
        changes: called one after the other with a copy that is about to learn, and its optimizers.
        made: called with the number of updates that a copy has made.
    """

    net: nn.Module
    optimizers: Sequence[Optimizer]
    fresh: Callable[[], nn.Module]
    without_dropout: bool
    another_rate: float | None = None
    takes_adam: bool = False
    changes: Sequence[Change] = ()
    made: Callable[[int], object] = lambda updates: None

    @property
    def runs(self) -> tuple[int, ...]:
        """The leading axes of the network."""
        return runs_of(self.net)

    def rate(self, task: TrialTask) -> float:
        """The learning rate for a task.

        It is the optimizer's, before a schedule brought it down, if the task has the user's loss or the optimizer is an
        Adam, whose steps do not depend on the size of the loss. Else it is 1e-3, Adam's default.
        """
        if self.another_rate or not self.optimizers or not self.knows(task):
            return self.another_rate or RATE
        rates = (max(float(group["lr"]), float(group.get("initial_lr", 0))) for group in groups_of(self.optimizers))
        return next(filter(None, rates), RATE)

    def knows(self, task: TrialTask) -> bool:
        """Whether the optimizer as it is can be tried on a task."""
        return task.with_users_loss or self.is_adam

    @property
    def is_adam(self) -> bool:
        """Whether steps do not depend on the size of the loss."""
        return all("Adam" in type(optimizer).__name__ for optimizer in self.optimizers)

    def as_it_is(self, task: TrialTask) -> Copy:
        """A copy in its own number format, with its optimizers at their learning rate.

        The optimizers keep their state only for the user's loss. Where no optimizer is known it is a new Adam.
        """
        net, optimizers = self._copied()
        trained = [p for p in net.parameters() if p.requires_grad]
        if optimizers and not task.with_users_loss:
            restart_(net, optimizers)
        elif not optimizers and trained:
            optimizers = [new_adam(trained, RATE)]
        return net, optimizers

    def with_fresh_optimizer(self, task: TrialTask, times: float = 1.0) -> Copy:
        """A copy to train in full, in float32 or wider, with new optimizers of the same kind, or a new Adam.

        Args:
            times: multiplies the learning rate `rate`, see `set_rate_`.
        """
        copied, rate = self.copied(), times * self.rate(task)
        net, optimizers = copied.net, copied.optimizers
        if not optimizers or self.takes_adam or not self.knows(task):
            optimizers = [new_adam([*net.parameters()], rate)]
        else:
            restart_(net, optimizers)
            held = {id(p) for group in groups_of(optimizers) for p in group["params"]}
            if others := [p for p in net.parameters() if id(p) not in held]:
                optimizers[0].add_param_group({"params": others})
            set_rate_(net, optimizers, rate)
        return net, optimizers

    def copied(self, weights: nn.Module | None = None) -> "Subject":
        """A copy, all of it trainable and in float32 or wider.

        Args:
            weights: a network like it, whose weights and buffers the copy takes.
        """
        net, optimizers = self._copied()
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.data = wide(tensor.data) if tensor.is_floating_point() else tensor.data
        net.requires_grad_(True)
        theirs = {} if weights is None else weights.state_dict()
        for name, tensor in net.state_dict().items():
            if name in theirs and isinstance(tensor, Tensor):
                tensor.copy_(theirs[name])
        return replace(self, net=net, optimizers=optimizers)

    def _copied(self) -> Copy:
        try:  # together, so that the copied optimizers hold the copied parameters
            with Sharing():
                net, optimizers = copy.deepcopy((self.net, self.optimizers))
        except Exception as error:  # whatever a module's own copying may raise
            raise SettingsError(f"the network cannot be copied: {first_line(error)}") from error
        net.train()
        for module in net.modules():
            if self.without_dropout and isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()
        return net, optimizers


def groups_of(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    """The parameter groups of all optimizers."""
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def restart_(net: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Drop what the optimizers remember."""
    TorchState(net, optimizers).restart_()


def set_rate_(net: nn.Module, optimizers: Sequence[Optimizer], rate: float) -> None:
    """Set the learning rate of the first group. Others keep their proportion to it, or take it where they have 0."""
    first = next((group["lr"] for group in groups_of(optimizers) if group["lr"]), 1.0)
    for group in groups_of(optimizers):
        group["lr"] = rate * (group["lr"] / first or 1.0)


def new_adam(parameters: Sequence[nn.Parameter], rate: float) -> torch.optim.Adam:
    """Adam, in one kernel where torch has that, so that an update of a small network takes four fifths of the time.

    On CPUs that kernel reads the memory of weight and gradient in order, whatever their strides are.
    """
    fused = all(p.is_floating_point() and p.is_contiguous() and p.device.type in ("cpu", "cuda") for p in parameters)
    return torch.optim.Adam(parameters, lr=rate, fused=fused)


def subject_of(learner: Learner, shown: Callable[[nn.Module], nn.Module] = lambda net: net) -> Subject:
    """A learner's network. New weights come from its own seeds.

    Args:
        shown: returns the part of a network that is diagnosed.
    """
    source = copy.deepcopy(learner)  # a learner counts its draws of weights
    return Subject(shown(learner.net), (), lambda: shown(source.fresh()), without_dropout=True)
