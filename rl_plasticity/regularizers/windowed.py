"""Any regularizer, switched on for a window of updates."""

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
    """`regularizer` in the updates from `from_update` on until `until_update`; outside of them it changes nothing.

    A run's update number n, counted from 0, is inside if from_update <= n < until_update. Outside the penalty is 0, and
    weights and the regularizer's state are after `project_` and `observe_` what they were before, bit for bit. What it
    does without changing anything goes on: `spectral`'s vectors follow the weights, so they are right when it starts.
    The penalty is computed all the time and must be finite: if it overflows, its gradient outside is not 0 but NaN.

    What a method captures it captures when it is made, whenever its window begins: `swr` pulls to the norms that the
    network had then and `l2_init` to those weights. `recapture_(net)` at the beginning of the window takes
    those of then. `ewc` begins to watch when its window begins, and `wrs` to count its updates.

    A run that starts afresh counts its updates afresh, as a new run does: with a periodic reset every period has a
    window of its own. An intervention that changes only part of a network, as a reset of the head, counts on.

    Source: Liu et al. (2021), Figures 1 and 6a: weight decay and WRS in epochs 0-200, 0-60 and 60-200.

    Args:
        net: the network that `regularizer` was made for.
        regularizer: any, also several in a `Chain` or `SideBySide`.
        from_update: the updates before it.
        until_update: how many updates the run has made when it ends; None: it does not.

    Raises:
        SettingsError: the window ends before it begins.
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        regularizer: Regularizer,
        from_update: Annotated[int, Setting("updates of a run before the method begins", least=0)] = 0,
        until_update: Annotated[
            int | None, Setting("end of the method, counted like its beginning; null: never", least=1)
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
        """Whether the update under way is inside the window, ``[*runs]``."""
        inside = self.updates >= self.from_update
        if self.until_update is not None:
            inside = inside & (self.updates < self.until_update)
        return inside if self.active is None else inside & self.active

    def first_update(self, batch_size: int) -> Tensor:
        first = self.from_update + super().first_update(batch_size)  # its state stands still until then
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
    def _forward(self, hook: str, net: nn.Module, *by_name: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As for all; what the hook cannot leave alone outside of the window gets back the values it had."""
        inside = self._inside()
        _switch(self.inner, inside)
        changed = [both for method, view in self.inner.methods(net) for both in _changed(method, view, hook)]
        before = [(tensor, runs, tensor.clone()) for tensor, runs in changed]
        returned = super()._forward(hook, net, *by_name)
        for tensor, runs, value in before:
            tensor.copy_(torch.where(per_run(runs, tensor), tensor, value))
        _switch(self.inner, None)
        return {name: where & per_run(inside, where) for name, where in returned.items()}


def _switch(regularizer: Regularizer, inside: Tensor | None) -> None:
    """Tell it and what it is made of which runs are inside the window."""
    regularizer.active = inside
    for part, runs in regularizer.made_of():
        _switch(part, None if inside is None else inside[runs])


def _changed(method: Regularizer, net: nn.Module, hook: str) -> Iterator[tuple[Tensor, Tensor]]:
    """The tensors that a method's hook may change in runs that are not `active`, each with those that are.

    That is its state. The weights are among them only if the method has a `project_` of its own: `project` heeds what
    is due.
    """
    own, inside = method._has(hook), method.active
    if inside is None or not (own or (hook == "project_" and method.projects)):
        return
    for name, buffer in method._buffers.items():
        if buffer is None or name in method._non_persistent_buffers_set or name.partition("/")[0] in method.steady:
            continue
        if buffer.ndim >= inside.ndim:  # a strength may be one for all runs; no hook changes it
            yield buffer, inside
    if own and hook == "project_":
        yield from ((lookup(net, name), inside) for name in method.structure.trained)


def require_window(unit: str, start: int, end: int | None) -> None:
    """Raises SettingsError if the window ends before it begins; `unit` is what it is counted in."""
    if end is not None and end <= start:
        raise SettingsError(f"until_{unit} must be above from_{unit}={start}, got {end}")
