"""Several runs trained side by side in threads: each thread makes whole updates of some of the runs.

torch's own threads divide every single operation, and spin until the last of them is done. Beside another busy process
this takes a hundred times as long. Here a thread sleeps when its updates are done. docs/speed.md has the measurements.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MethodType
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from rl_plasticity.seeding import RunStreams

M = TypeVar("M", bound=nn.Module)
R = TypeVar("R")
AT_A_CALL = 2**24  # where the products of one call are larger, compiled updates are faster run by run than stacked
AT_ONCE = 16


class Cut(NamedTuple):
    """Consecutive runs that all have the same regularizer."""

    start: int
    stop: int
    part: int | None  # which of the regularizers side by side, if there are several
    first: int  # the first run of that regularizer


def cuts(numbers: Sequence[int], threads: int, product: int | None = None) -> list[Cut]:
    """Divide runs among threads. All shares of a regularizer have one size, so that one graph serves them.

    Args:
        numbers: number of runs of each of the regularizers side by side.
        product: a run's `largest_product`, if updates are compiled.
    """
    most = math.ceil(sum(numbers) / threads)
    if product is not None:
        most = min(most, max(1, AT_A_CALL // product))
    found, first = [], 0
    for part, number in enumerate(numbers):
        size = max(n for n in range(1, min(number, most) + 1) if number % n == 0)
        for start in range(first, first + number, size):
            found.append(Cut(start, start + size, part if len(numbers) > 1 else None, first))
        first += number
    return found


class Shares(Generic[M]):
    """A module of all runs, and modules of some of the runs each, the shares, which hold the same tensors.

    A share's parameters and buffers are views of the whole's, so a change of one is a change of the other. The shares
    make the updates; checkpoints, interventions and measurements use the whole. An update may also change tensors
    without a runs axis. They belong to the first share, and are copied to the others before they work.

    Args:
        whole: the module of all runs.
        make: called with the runs of a share; returns a module made like `whole`.
        found: the shares. With fewer than two of them, the whole makes the updates.
        threads: number of shares that work at the same time.
        prepare: called once in each thread.

    Raises:
        KeyError: a share has a tensor that the whole does not have.
    """

    def __init__(
        self,
        whole: M,
        make: Callable[[slice], M],
        found: Sequence[Cut],
        threads: int,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.cuts = [] if len(found) < 2 else list(found)
        self.slices = [slice(cut.start, cut.stop) for cut in self.cuts] or [slice(None)]
        self.modules: list[M] = [make(runs) for runs in self.slices] if self.cuts else [whole]
        self._common: list[tuple[Tensor, Tensor]] = []
        self._is_warm = False
        # The best number of updates in one call of `each`, if only the last one's metrics are wanted.
        self.at_once = AT_ONCE if self.cuts else 1
        self._pool = ThreadPoolExecutor(threads, initializer=prepare) if self.cuts and threads > 1 else None
        for i, cut in enumerate(self.cuts):
            self._join(whole, self.modules[i], cut, is_first=i == 0)

    def updates(
        self, update: Callable[..., R], compiled: Callable[[Callable[..., R]], Callable[..., R]] | None = None
    ) -> list[Callable[..., R]]:
        """`update`, whose first argument is a module, for each share; `compiled` makes a graph for each regularizer."""
        if compiled is None:
            return [MethodType(update, module) for module in self.modules]
        if not self.cuts:
            return [compiled(MethodType(update, *self.modules))]
        graphs = {part: compiled(update) for part in dict.fromkeys(cut.part for cut in self.cuts)}
        return [partial(graphs[cut.part], module) for cut, module in zip(self.cuts, self.modules, strict=True)]

    def each(self, work: Callable[[int], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Call `work` with the number of each share, and join the metrics ``[runs]`` that it returns."""
        for copied, original in self._common:
            copied.copy_(original)
        numbers = range(len(self.modules))
        # The first time one after another: equal shares then find the first one's compiled graph.
        parallel = self._pool is not None and self._is_warm
        done = [*(self._pool.map(work, numbers) if self._pool and parallel else map(work, numbers))]
        self._is_warm = True
        if len(done) == 1:
            return dict(done[0])
        return {name: torch.cat([metrics[name] for metrics in done]) for name in done[0]}

    def close(self) -> None:
        """End the threads."""
        if self._pool:
            self._pool.shutdown()

    def _join(self, whole: M, share: M, cut: Cut, is_first: bool) -> None:
        theirs: dict[str, Tensor] = {**dict(whole.named_parameters()), **dict(whole.named_buffers())}
        streams = {path: module for path, module in whole.named_modules() if isinstance(module, RunStreams)}
        joined: dict[int, nn.Parameter] = {}  # one parameter may stand in several places
        for path, module in share.named_modules():
            for stored in (module._parameters, module._buffers):
                for key, mine in stored.items():
                    if mine is None:
                        continue
                    name, start, first = f"{path}.{key}" if path else key, cut.start, is_first
                    head, inside, tail = f".{name}".partition(".regularizer.") if cut.part is not None else ("",) * 3
                    of_part = f"{head}.regularizer.parts.{cut.part}.{tail}".removeprefix(".")
                    if inside and of_part in theirs:  # a temperature has no regularizers side by side
                        name, start, first = of_part, cut.start - cut.first, cut.start == cut.first
                    view = theirs[name].data  # `detach` would share the count of changes that gradients check
                    if view.shape != mine.shape:  # a share has fewer runs, and that alone sets them apart
                        view = view[start : start + cut.stop - cut.start]
                    elif not first:
                        view = view.clone()
                        self._common.append((view, theirs[name]))
                    if isinstance(mine, nn.Parameter):
                        view = joined.setdefault(id(mine), nn.Parameter(view, requires_grad=mine.requires_grad))
                    stored[key] = view
            if isinstance(module, RunStreams):
                module.generators = streams[path].generators[cut.start : cut.stop]


def largest_product(net: nn.Module, batch_size: int) -> int:
    """The multiplications of the largest matrix of one run in a stacked network with a batch."""
    return batch_size * max(p[0].numel() for p in net.parameters())
