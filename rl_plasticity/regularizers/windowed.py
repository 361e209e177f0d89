"""Any regularizer, switched on for a window of updates."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError
from rl_plasticity.regularizers.base import Look, Regularizer, term_of
from rl_plasticity.regularizers.side_by_side import SideBySide
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
    network had then and `l2_init` to those weights. `rebase_` at the beginning of the window gives `swr` the norms of
    then. `ewc` begins to watch when its window begins, and `wrs` to count its updates.

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

    updates: Tensor

    @checked
    def __init__(
        self,
        net: nn.Module,
        regularizer: Regularizer,
        from_update: Annotated[int, Setting("the method begins after so many updates of a run", least=0)] = 0,
        until_update: Annotated[int | None, Setting("and ends after so many; null: never", least=1)] = None,
    ) -> None:
        super().__init__(net, structure=regularizer.structure)
        require_window("update", from_update, until_update)
        self.inner, self.from_update, self.until_update = regularizer, from_update, until_update
        self.looks_at_data = regularizer.looks_at_data
        self.register_buffer("updates", torch.zeros(self.runs, dtype=torch.int64, device=regularizer.coef.device))

    def _inside(self) -> Tensor:
        """Whether the update under way is inside the window, ``[*runs]``."""
        inside = self.updates >= self.from_update
        return inside if self.until_update is None else inside & (self.updates < self.until_update)

    @property
    def counts(self) -> dict[str, Tensor]:
        return self.inner.counts

    def first_update(self, batch_size: int) -> Tensor:
        first = self.from_update + self.inner.first_update(batch_size)  # its state stands still until then
        ends = math.inf if self.until_update is None else self.until_update
        return torch.where(first > ends, math.inf, first)

    def penalty(self, net: nn.Module) -> Tensor:
        penalty = term_of(self.inner, "penalty", net)
        return torch.where(self._inside(), penalty, torch.zeros_like(penalty))

    def data_penalty(self, net: nn.Module, inputs: Example) -> Tensor:
        penalty = term_of(self.inner, "data_penalty", net, inputs)
        return torch.where(self._inside(), penalty, torch.zeros_like(penalty))

    def looks(self) -> Sequence[Look]:
        return self.inner.looks()

    def observe_(self, net: nn.Module, gradients: Mapping[str, Tensor]) -> None:
        self._do("observe_", lambda: self.inner.observe_(net, gradients), [])

    def project_(self, net: nn.Module) -> Mapping[str, Tensor] | None:
        weights = [lookup(net, name) for name in self.structure.trained]
        anew = self._do("project_", lambda: self.inner.project_(net), weights) or {}
        inside = self._inside()
        self.updates += 1
        return {name: where & per_run(inside, where) for name, where in anew.items()}

    @torch.no_grad()
    def _do(self, hook: str, act: Callable[[], Any], weights: Iterable[Tensor]) -> Any:
        """Act, and outside the window give weights and state back what they held."""
        if getattr(type(self.inner), hook) is getattr(Regularizer, hook):
            return None  # it has no such hook
        inside = self._inside()
        before = [(tensor, runs, tensor.clone()) for tensor, runs in _state(self.inner, inside)]
        before += [(weight, inside, weight.clone()) for weight in weights]
        result = act()
        for tensor, runs, value in before:
            tensor.copy_(torch.where(per_run(runs, tensor), tensor, value))
        return result

    def rebase_(self, net: nn.Module, runs: Tensor | None = None) -> None:
        self.inner.rebase_(net, runs)

    def follow_(self, lr: float | Mapping[str, float], initial_lr: float | Mapping[str, float] | None = None) -> None:
        self.inner.follow_(lr, initial_lr)

    def recapture_(self, fresh: Regularizer, runs: Tensor | None = None, only: set[str] | None = None) -> None:
        assert isinstance(fresh, Windowed)
        self.inner.recapture_(fresh.inner, runs, only)
        if only is None:
            self.updates[... if runs is None else runs] = 0


def require_window(unit: str, start: int, end: int | None) -> None:
    """Raises SettingsError if the window ends before it begins; `unit` is what it is counted in."""
    if end is not None and end <= start:
        raise SettingsError(f"until_{unit} must be above from_{unit}={start}, got {end}")


def _state(regularizer: Regularizer, inside: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Each buffer ``[*runs, ...]`` that is saved of a regularizer and its parts, and which of its runs are `inside`."""
    for name, buffer in regularizer._buffers.items():
        if buffer is None or name in regularizer._non_persistent_buffers_set:
            continue
        if buffer.ndim >= inside.ndim:  # a strength may be one for all runs; no hook changes it
            yield buffer, inside
    parts = getattr(regularizer, "parts", [regularizer.inner] if isinstance(regularizer, Windowed) else [])
    slices = regularizer.slices if isinstance(regularizer, SideBySide) else [(0, None)] * len(parts)
    for part, (start, stop) in zip(parts, slices, strict=True):
        yield from _state(part, inside[start:stop] if inside.ndim else inside)
