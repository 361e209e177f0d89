"""Random numbers of independent runs: every run has its own streams, all derived from its own seed.

`RunStreams` draws outside of a compiled update. Inside of one, all runs would share a generator, so `uniform_at`
computes a draw from its place and time.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_plasticity.seeds import derive as derive


def derived(seeds: Iterable[int], *keys: int) -> list[int]:
    """`derive` for each of several seeds."""
    return [derive(seed, *keys) for seed in seeds]


@contextmanager
def random_states_kept(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Restore the global random states of torch, numpy and Python at the end, also on the devices of `tensors`."""
    states = np.random.get_state(), random.getstate()  # noqa: NPY002
    devices = {p.device.index or 0 for p in tensors if p.device.type == "cuda"}
    if devices and torch.cuda.is_current_stream_capturing():
        devices = set()  # a generator cannot be set back in a recording
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        np.random.set_state(states[0])  # noqa: NPY002
        random.setstate(states[1])


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread inside: a decomposition's last bits depend on how many share its work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class RunStreams(nn.Module):
    """One random generator for each run; draws have a leading runs axis.

    A run draws the same numbers alone or among others. ``state_dict`` holds the states of the generators. For the
    device ``meta``, which has shapes and no numbers, the generators are on the CPU.
    """

    def __init__(self, seeds: Sequence[int], device: str | torch.device = "cpu") -> None:
        super().__init__()
        device = "cpu" if torch.device(device).type == "meta" else device
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def normal(self, *shape: int) -> Tensor:
        """Standard normal ``[runs, *shape]``."""
        return self._drawn(torch.randn, shape)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform in [0, 1), ``[runs, *shape]``."""
        return self._drawn(torch.rand, shape)

    def integers(self, below: int, *shape: int) -> Tensor:
        """Uniform integers from 0 to `below` - 1, ``[runs, *shape]``."""
        return self._drawn(torch.randint, below, shape)

    def _drawn(self, draw: Callable[..., Tensor], *arguments: Any) -> Tensor:
        return torch.stack([draw(*arguments, generator=g, device=g.device) for g in self.generators])

    def get_extra_state(self) -> Tensor:
        return torch.stack([g.get_state() for g in self.generators])

    def set_extra_state(self, state: Tensor) -> None:
        for generator, its_state in zip(self.generators, state.cpu(), strict=True):
            generator.set_state(its_state.clone())  # a view of the stack would crash it


# --- draws that a traced update can make ----------------------------------------------------------------------------

_WORD = 0xFFFFFFFF
Word = TypeVar("Word", Tensor, int)


def key_of(tensors: Iterable[Tensor], axes: int) -> Tensor:
    """A number below 2^32 for each run, made of the values of `tensors` ``[*runs, ...]``; it differs between seeds."""
    flat = (tensor.detach().float().reshape(*tensor.shape[:axes], -1) for tensor in tensors)
    words = [_mixed(numbers.view(torch.int32).to(torch.int64) & _WORD).sum(-1) for numbers in flat]
    return _mixed(torch.stack(words).sum(0) & _WORD)


def uniform_at(key: Tensor, n: int, *where: int | Tensor) -> Tensor:
    """`n` draws ``[*runs, n]``, uniform in (0, 1), for a `key` ``[*runs]`` and the place and time `where`.

    They are a function of these numbers (Mueller's integer hash of 32 bits) and of no state. So they are the same in
    eager and traced code, on every device, alone or among other runs.

    Args:
        where: whole numbers below 2^32, each one number for all runs or ``[*runs]``. Other numbers give unrelated
            draws.
    """
    for number in where:
        # Not as a tensor, which would have to be copied to a GPU.
        salt = _mixed(number.long() & _WORD) if isinstance(number, Tensor) else _mixed(number & _WORD)
        key = _mixed((key + salt * 3) & _WORD)
    words = _mixed((key.unsqueeze(-1) + torch.arange(n, device=key.device)) & _WORD)
    return ((words >> 9).float() + 0.5) * 2.0**-23


def _mixed(word: Word) -> Word:
    """A hash of 32 bits, in int64, whose products stay below 2^63."""
    for _ in range(2):
        word = ((word >> 16) ^ word) * 0x45D9F3B & _WORD
    return (word >> 16) ^ word
