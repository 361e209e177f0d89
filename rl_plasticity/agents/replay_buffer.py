"""The replay storage of many runs."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Transitions of every run. `discount` is 0 where the episode terminated, truncated ones are bootstrapped."""

    obs: Tensor  # [runs, batch, obs_dim]
    act: Tensor  # [runs, batch, act_dim]
    reward: Tensor  # [runs, batch]
    next_obs: Tensor  # [runs, batch, obs_dim]
    discount: Tensor  # [runs, batch]


class ReplayBuffer:
    """The last `capacity` transitions of each run, uniformly sampled; each run has its own indices.

    next_obs is not stored: it is the row after. Only where an episode was truncated does the row after hold another
    episode's first obs; the last obs of those episodes is kept aside, and `end` says where: 0 goes on, -1
    terminated (next_obs does not matter, its discount is 0), k > 0 truncated with the last obs in slot k - 1.

    Memory: 4 * (obs_dim + act_dim + 2) bytes a transition (cheetah-run: 100; 168 with obs and next_obs apart),
    and 4 * obs_dim for each truncated episode. Memory is taken as rows are first written.

    Args:
        capacity: transitions of each run; at least as many as env steps will be made means unbounded.
        discount: of one env step.

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
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.runs, self.capacity, self.discount = runs, capacity, discount
        rows = capacity + 1  # the newest row holds the obs that has no action yet
        self.obs = torch.empty(runs, rows, obs_dim, device=device)
        self.act = torch.empty(runs, rows, act_dim, device=device)
        self.reward = torch.empty(runs, rows, device=device)
        self.end = torch.zeros(runs, rows, dtype=torch.int32, device=device)
        self.last_obs = torch.zeros(runs, 1, obs_dim, device=device)
        self.head = 0  # the row of the newest obs
        self.size = 0
        self._slots: list[dict[int, int]] = [{} for _ in range(runs)]  # row -> slot, truncated only
        self._free = [[0] for _ in range(runs)]
        self._offset = torch.arange(runs, device=device).unsqueeze(1)

    def start(self, obs: Tensor) -> None:
        """The first obs ``[runs, obs_dim]``."""
        self.obs[:, self.head] = obs

    def add(
        self,
        act: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        last_obs: Tensor,
    ) -> None:
        """One transition of every run.

        Args:
            act, reward: ``[runs, act_dim]``, ``[runs]``: what was done at the newest obs, and what it gave.
            next_obs: ``[runs, obs_dim]``: where the env goes on from, a new episode's first obs after an end.
            terminated, truncated: ``[runs]`` bool, on the CPU. Both at once counts as terminated.
            last_obs: ``[runs, obs_dim]``: the obs the transition led to, read where truncated.
        """
        row, rows = self.head, self.capacity + 1
        self.act[:, row], self.reward[:, row], self.end[:, row] = act, reward, 0
        for run in terminated.nonzero().flatten().tolist():
            self.end[run, row] = -1
        for run in (truncated & ~terminated).nonzero().flatten().tolist():
            slot = self._take_slot(run)
            self._slots[run][row] = slot
            self.last_obs[run, slot] = last_obs[run]
            self.end[run, row] = slot + 1
        self.head = (row + 1) % rows
        self.obs[:, self.head] = next_obs
        for slots, free in zip(self._slots, self._free, strict=True):
            if self.head in slots:  # the oldest transition goes
                free.append(slots.pop(self.head))
        self.size = min(self.size + 1, self.capacity)

    def _take_slot(self, run: int) -> int:
        if not self._free[run]:
            more = self.last_obs.shape[1]
            self.last_obs = torch.cat([self.last_obs, torch.zeros_like(self.last_obs)], dim=1)
            for free in self._free:
                free.extend(range(2 * more - 1, more - 1, -1))
        return self._free[run].pop()

    def sample(self, age: Tensor) -> Batch:
        """The transitions number `age` ``[runs, n]``, counted from the oldest (0) to the newest (size - 1)."""
        rows = self.capacity + 1
        row = (age + (self.head - self.size)) % rows
        here, after = row + self._offset * rows, (row + 1) % rows + self._offset * rows
        end = _rows(self.end, here)
        slots = self.last_obs.shape[1]
        last_obs = _rows(self.last_obs, (end - 1).clamp(min=0) + self._offset * slots)
        return Batch(
            obs=_rows(self.obs, here),
            act=_rows(self.act, here),
            reward=_rows(self.reward, here),
            next_obs=torch.where((end > 0).unsqueeze(-1), last_obs, _rows(self.obs, after)),
            discount=torch.where(end < 0, 0.0, self.discount).to(self.reward.dtype),
        )

    def state_dict(self) -> dict[str, Any]:
        """What is filled, in order of age (the newest obs last)."""
        rows = self.capacity + 1
        order = (torch.arange(self.size + 1) + (self.head - self.size)) % rows
        kept = {n: getattr(self, n)[:, order.to(self.obs.device)] for n in ("obs", "act", "reward", "end")}
        return kept | {"last_obs": self.last_obs, "size": self.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            ValueError: it holds more than `capacity` transitions, or other shapes.
        """
        size = state["size"]
        if size > self.capacity or state["obs"].shape[::2] != self.obs.shape[::2]:
            raise ValueError(
                f"a replay buffer of {self.runs} runs, capacity {self.capacity} and obs_dim {self.obs.shape[2]} cannot "
                f"take {size} transitions of shape {list(state['obs'].shape)}"
            )
        for name in ("obs", "act", "reward", "end"):
            getattr(self, name)[:, : size + 1] = state[name]
        self.end[:, size] = 0
        self.last_obs = state["last_obs"].clone().to(self.obs.device)
        self.head = self.size = size
        used = self.end[:, :size].cpu()
        for run in range(self.runs):
            rows = (used[run] > 0).nonzero().flatten().tolist()
            self._slots[run] = {row: int(used[run, row]) - 1 for row in rows}
            taken = set(self._slots[run].values())
            self._free[run] = [s for s in reversed(range(self.last_obs.shape[1])) if s not in taken]


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Rows `index` ``[runs, n]`` of `values` ``[runs, rows, ...]``, numbered across runs."""
    return values.flatten(0, 1).index_select(0, index.flatten()).view(*index.shape, *values.shape[2:])
