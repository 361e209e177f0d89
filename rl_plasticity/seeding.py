"""Random numbers of independent runs: every run has its own streams, all derived from its own seed."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn


def derive(seed: int, *keys: int) -> int:
    """A seed below 2^63 that depends on `seed` and every key (numpy's SeedSequence): other keys, unrelated streams."""
    words = np.random.SeedSequence(seed, spawn_key=keys).generate_state(2)
    return int(words[0]) << 31 ^ int(words[1])


@contextmanager
def random_states_kept(net: nn.Module) -> Iterator[None]:
    """Whatever is drawn inside, as by a call of `net`, the global random states are as before afterwards."""
    states = np.random.get_state(), random.getstate()  # noqa: NPY002
    devices = {p.device.index or 0 for p in net.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        np.random.set_state(states[0])  # noqa: NPY002
        random.setstate(states[1])


class RunStreams(nn.Module):
    """One random generator for each run; draws have a leading runs axis.

    A run draws the same numbers alone or among others. The states are part of ``state_dict``. On the device ``meta``,
    which has shapes and no numbers, they draw on the CPU.
    """

    def __init__(self, seeds: Sequence[int], device: str | torch.device = "cpu") -> None:
        super().__init__()
        device = "cpu" if torch.device(device).type == "meta" else device
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def normal(self, *shape: int) -> Tensor:
        """Standard normal ``[runs, *shape]``."""
        return torch.stack([torch.randn(shape, generator=g, device=g.device) for g in self.generators])

    def uniform(self, *shape: int) -> Tensor:
        """Uniform in [0, 1), ``[runs, *shape]``."""
        return torch.stack([torch.rand(shape, generator=g, device=g.device) for g in self.generators])

    def integers(self, below: int, *shape: int) -> Tensor:
        """Uniform integers from 0 to `below` - 1, ``[runs, *shape]``."""
        return torch.stack([torch.randint(below, shape, generator=g, device=g.device) for g in self.generators])

    def get_extra_state(self) -> Tensor:
        return torch.stack([g.get_state() for g in self.generators])

    def set_extra_state(self, state: Tensor) -> None:
        for generator, its_state in zip(self.generators, state.cpu(), strict=True):
            generator.set_state(its_state.clone())  # a view of the stack would crash it
