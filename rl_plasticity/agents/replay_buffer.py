"""The replay storage of many runs."""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_plasticity.errors import counted
from rl_plasticity.step import Step


class Batch(NamedTuple):
    """Transitions of every run. `discount` is 0 where the episode terminated, truncated ones are bootstrapped."""

    obs: Tensor  # [runs, batch, obs_dim]
    act: Tensor  # [runs, batch, act_dim]
    reward: Tensor  # [runs, batch]
    next_obs: Tensor  # [runs, batch, obs_dim]
    discount: Tensor  # [runs, batch]


class ReplayBuffer:
    """The last `capacity` transitions of each run, uniformly sampled; each run has its own indices.

    next_obs is the obs of the next row, so it is not stored. Only behind a truncated episode the next row has another
    episode's first obs. The last obs of such episodes is stored in a slot. `end` says how a row goes on:

    - 0: by the next row;
    - -1: it terminated (next_obs does not matter, because its discount is 0);
    - k > 0: it was truncated, and its last obs is in slot k - 1.

    Memory: 4 * (obs_dim + act_dim + 2) bytes a transition (cheetah-run: 100; 168 with obs and next_obs apart),
    and 4 * obs_dim for each truncated episode. Memory is taken when a row is first written. With `levels`, observations
    are whole numbers of one byte, so obs_dim counts once and not four times.

    Args:
        capacity: number of transitions of each run. A capacity of all env steps means unbounded.
        discount: discount of one env step.
        levels: see `rl_plasticity.step.Spaces`.

    Raises:
        ValueError: a capacity below 1.
    """

    def __init__(
        self,
        runs: int,
        capacity: int,
        obs_dim: int,
        act_dim: int,
        discount: float = 0.99,
        device: str | torch.device = "cpu",
        levels: int | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.runs, self.capacity, self.discount, self.levels = runs, capacity, discount, levels
        kind = torch.uint8 if levels else torch.float32
        rows = capacity + 1  # the newest row holds the obs that has no action yet
        self.obs = torch.empty(runs, rows, obs_dim, dtype=kind, device=device)
        self.act = torch.empty(runs, rows, act_dim, device=device)
        self.reward = torch.empty(runs, rows, device=device)
        self.end = torch.zeros(runs, rows, dtype=torch.int32, device=device)
        self.last_obs = torch.zeros(1, obs_dim, dtype=kind, device=device)  # in slots that all runs share
        self.head = 0  # the row of the newest obs
        self.size = 0
        self.added = 0  # how many there ever were
        self._first = rows * torch.arange(runs, device=device).unsqueeze(1)  # the row of each run's first
        self.clear()

    def start(self, obs: Tensor) -> None:
        """The first obs ``[runs, obs_dim]``."""
        self.obs[:, self.head] = stored(obs, self.levels)

    @property
    def newest_obs(self) -> Tensor:
        """A copy of the obs ``[runs, obs_dim]`` that the environments continue from; it has no action yet."""
        return self._shown(self.obs[:, self.head].clone())

    def add(self, act: Tensor, step: Step) -> None:
        """Add one transition of every run: `act` ``[runs, act_dim]`` at the newest obs gave `step`.

        An episode that terminated and was truncated in the same step counts as terminated.
        """
        row, rows = self.head, self.capacity + 1
        end = np.where(step.terminated, -1.0, 0.0)
        for run in np.flatnonzero(step.truncated & ~step.terminated).tolist():
            slot = self._take_slot()
            self.last_obs[slot] = stored(self._here(step.next_obs[run]), self.levels)
            end[run] = slot + 1
        here = self._here(np.column_stack([step.obs, step.reward, end]))  # one copy to the device instead of three
        self.head = (row + 1) % rows
        self.obs[:, self.head] = stored(here[:, :-2], self.levels)
        self.act[:, row], self.reward[:, row], self.end[:, row] = act, here[:, -2], here[:, -1]
        self.size = min(self.size + 1, self.capacity)
        self.added += 1

    def clear(self) -> None:
        """Forget every transition; the newest obs stays."""
        self.size = 0
        # The slots in use, by rising number of the truncated transition: (number, slot).
        self._slots: deque[tuple[int, int]] = deque()

    def _here(self, values: NDArray[Any]) -> Tensor:
        """The values as float32 on the buffer's device. A GPU fetches them by itself from pinned memory."""
        on_host = torch.from_numpy(values.astype(np.float32))
        on_host = on_host.pin_memory() if self.obs.is_cuda else on_host
        return on_host.to(self.obs.device, non_blocking=True)

    def _shown(self, obs: Tensor) -> Tensor:
        """Stored observations as the environment gave them, on a CPU bit for bit."""
        return obs / self.levels if self.levels else obs

    def _take_slot(self) -> int:
        """A slot for the transition that is being added: that of the oldest one if it has gone, else a new one."""
        used = self._slots
        is_free = bool(used) and used[0][0] < self.added - self.size
        slot = used.popleft()[1] if is_free else len(used)
        if slot == len(self.last_obs):
            self.last_obs = torch.cat([self.last_obs, torch.zeros_like(self.last_obs)])
        used.append((self.added, slot))
        return slot

    def sample(self, age: Tensor, num_steps: int = 1) -> Batch:
        """The transitions number `age` ``[*more, runs, n]``, counted from the oldest (0) to the newest (size - 1).

        Args:
            num_steps: env steps that a transition spans, fewer where the episode or the buffer ends before. Its reward
                is the sum of discount^k r_(t+k), its next_obs the one after the last of them, its discount
                discount^steps.
        """
        rows = self.capacity + 1
        row = (age + (self.head - self.size)) % rows
        here = row + self._first
        end, reward = _rows(self.end, here), _rows(self.reward, here)
        after, discount = (row + 1) % rows, torch.full_like(reward, self.discount)
        for _ in range(1, num_steps):
            goes_on = (end == 0) & (after != self.head)
            then = after + self._first
            reward = torch.where(goes_on, reward + discount * _rows(self.reward, then), reward)
            end = torch.where(goes_on, _rows(self.end, then), end)
            after = torch.where(goes_on, (after + 1) % rows, after)
            discount = torch.where(goes_on, discount * self.discount, discount)
        last_obs = _rows(self.last_obs.unsqueeze(0), (end - 1).clamp(min=0))
        next_obs = torch.where((end > 0).unsqueeze(-1), last_obs, _rows(self.obs, after + self._first))
        return Batch(
            obs=self._shown(_rows(self.obs, here)),
            act=_rows(self.act, here),
            reward=reward,
            next_obs=self._shown(next_obs),
            discount=discount.masked_fill(end < 0, 0),
        )

    def since(self, row: int) -> dict[str, Tensor]:
        """The transitions from number `row`, counted from the first ever added, to the newest, without dropped ones.

        Returns:
            obs, act, reward, end: ``[n, runs, ...]``; end is 0, -1 (terminated) or 1 (truncated).
            last_obs: ``[truncated, obs_dim]`` of the transitions with end 1, in order of env steps, then of runs.
        """
        n = min(self.size, self.added - row)
        rows = ((torch.arange(n) + (self.head - n)) % (self.capacity + 1)).to(self.obs.device)
        columns = {name: getattr(self, name)[:, rows].transpose(0, 1) for name in ("obs", "act", "reward", "end")}
        slots = columns["end"][columns["end"] > 0].long() - 1
        return columns | {"end": columns["end"].clamp(max=1), "last_obs": self.last_obs[slots]}

    def state_dict(self) -> dict[str, Any]:
        """All transitions, the oldest first, and the newest obs."""
        return {**self.position(), **self.since(0)}

    def position(self) -> dict[str, Any]:
        """The part of the state without the transitions."""
        return {"added": self.added, "size": self.size, "newest_obs": self.obs[:, self.head].clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, which may have older transitions too.

        Raises:
            ValueError: it has more than `capacity` transitions, other shapes, or too few rows.
        """
        size, newest = state["size"], state["newest_obs"]
        if size > self.capacity or newest.shape != self.obs[:, 0].shape:
            raise ValueError(
                f"a replay buffer of {counted(self.runs, 'run')}, capacity {self.capacity} and obs_dim "
                f"{self.obs.shape[2]} cannot take {counted(size, 'transition')} of obs {list(newest.shape)}"
            )
        self.added, self.head = state["added"], size
        self.obs[:, size], self.end[:, size] = newest.to(self.obs.device), 0
        self.clear()
        self.size = size
        if size:
            kept = {name: state[name][-size:] for name in ("obs", "act", "reward", "end")}
            if any(len(values) != size for values in kept.values()):
                raise ValueError(f"a replay buffer of {counted(size, 'transition')} has the rows of fewer")
            truncated = kept["end"] > 0
            rows = truncated.nonzero()[:, 0].tolist()
            kept["end"] = kept["end"].masked_scatter(truncated, torch.arange(1, len(rows) + 1, dtype=torch.int32))
            for name, values in kept.items():
                getattr(self, name)[:, :size] = values.transpose(0, 1)
            if rows:
                self.last_obs = state["last_obs"][-len(rows) :].to(self.obs.device, copy=True)
            self._slots.extend((self.added - size + row, slot) for slot, row in enumerate(rows))


def stored(obs: Tensor, levels: int | None) -> Tensor:
    """Observations as a buffer with these `levels` stores them."""
    return (obs * levels).round().to(torch.uint8) if levels else obs


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Rows `index` ``[*more, runs, n]`` of `values` ``[runs, rows, ...]``, numbered across runs."""
    return values.flatten(0, 1).index_select(0, index.flatten()).view(*index.shape, *values.shape[2:])
