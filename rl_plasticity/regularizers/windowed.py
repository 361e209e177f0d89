"""A wrapper that switches any regularizer on for a window of updates."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError
from rl_plasticity.regularizers.base import Regularizer, Runs, term_of
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure import Example
from rl_plasticity.structure.layer import lookup, per_run


class Windowed(Regularizer):
    """A regularizer that acts only from update `from_update` until update `until_update`.

    A run's update number n, counted from 0, is inside the window if from_update <= n < until_update. Outside, the
    penalty is 0, and `project_` and `observe_` leave the weights and the regularizer's state as they were, bit for bit.
    Tracking continues outside the window: `spectral` keeps its singular vectors current, so they are right when the
    window begins. The penalty is computed in every update and must be finite. If it overflows outside the window, its
    gradient there is NaN rather than 0.

    A method captures its reference when it is made, whenever its window begins: `swr` pulls toward the norms of that
    time and `l2_init` toward those weights. Call `recapture_(net)` when the window begins to take the current ones
    instead. `ewc` starts to observe when its window begins, and `wrs` starts to count its updates.

    When a run is reset, its count of updates restarts from 0, as in a new run: with a periodic reset, every period has
    its own window. An intervention that changes only part of a network, such as a head reset, does not restart it.

    Source: Liu et al. (2021), Figures 1 and 6a: weight decay and WRS in epochs 0-200, 0-60 and 60-200.

    Args:
        net: the network that `regularizer` was made for.
        regularizer: any regularizer, including a `Chain` or `SideBySide`.
        from_update: number of updates before the window begins.
        until_update: number of updates after which the window ends; None means never.

    Raises:
        SettingsError: the window ends before it begins.
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        regularizer: Regularizer,
        from_update: Annotated[int, Setting("number of a run's updates before the method starts", least=0)] = 0,
        until_update: Annotated[
            int | None, Setting("number of a run's updates after which the method stops; null: never", least=1)
        ] = None,
    ) -> None:
        super().__init__(net, structure=regularizer.structure)
        require_window("update", from_update, until_update)
        self.inner, self.from_update, self.until_update = regularizer, from_update, until_update
        self.looks_at_data = regularizer.looks_at_data
        self._acts_every(1)

    def made_of(self) -> Sequence[tuple[Regularizer, Runs]]:
        return [(self.inner, ...)]

    def _inside(self) -> Tensor:
        """Whether the current update is inside the window, ``[*runs]``."""
        inside = self.updates >= self.from_update
        if self.until_update is not None:
            inside = inside & (self.updates < self.until_update)
        return inside if self.active is None else inside & self.active

    def first_update(self, batch_size: int) -> Tensor:
        first = self.from_update + super().first_update(batch_size)  # its state does not change before the window
        ends = math.inf if self.until_update is None else self.until_update
        return torch.where(first > ends, math.inf, first)

    def penalty(self, net: nn.Module, inputs: Example | None = None) -> Tensor:
        penalty = term_of(self.inner, net, inputs)
        return torch.where(self._inside(), penalty, torch.zeros_like(penalty))

    def project_(self, net: nn.Module) -> Mapping[str, Tensor] | None:
        anew = super().project_(net)
        self._count_()
        return anew

    @torch.no_grad()
    def _forward(self, hook: str, net: nn.Module, *given: Mapping[str, Tensor] | Tensor) -> dict[str, Tensor]:
        """Call the hook as usual, and undo in runs outside the window what the hook changes in spite of `active`."""
        inside = self._inside()
        _switch(self.inner, inside)
        changed = [both for method, view in self.inner.methods(net) for both in _changed(method, view, hook)]
        before = [(tensor, runs, tensor.clone()) for tensor, runs in changed]
        returned = super()._forward(hook, net, *given)
        for tensor, runs, value in before:
            tensor.copy_(torch.where(per_run(runs, tensor), tensor, value))
        _switch(self.inner, None)
        return {name: where & per_run(inside, where) for name, where in returned.items()}


def _switch(regularizer: Regularizer, inside: Tensor | None) -> None:
    """Tell a regularizer and its parts which runs are inside the window."""
    regularizer.active = inside
    for part, runs in regularizer.made_of():
        _switch(part, None if inside is None else inside[runs])


def _changed(method: Regularizer, net: nn.Module, hook: str) -> Iterator[tuple[Tensor, Tensor]]:
    """The tensors that a hook may change in runs that are not `active`, each with the mask of active runs.

    These are the method's state, and the weights only if it overrides `project_`: `project` itself respects the runs
    that are due.
    """
    own, inside = method._has(hook), method.active
    if inside is None or not (own or (hook == "project_" and method.projects)):
        return
    for name, buffer in method._buffers.items():
        if buffer is None or name in method._non_persistent_buffers_set or name.partition("/")[0] in method.steady:
            continue
        if buffer.ndim >= inside.ndim:  # skips a strength shared by all runs, which no hook changes
            yield buffer, inside
    if own and hook == "project_":
        yield from ((lookup(net, name), inside) for name in method.structure.trained)


def require_window(unit: str, start: int, end: int | None) -> None:
    """Raise SettingsError if a window ends before it begins; `unit` is the unit it is counted in."""
    if end is not None and end <= start:
        raise SettingsError(f"until_{unit} must be above from_{unit}={start}, got {end}")
