"""AltNet: ``python -m rl_plasticity.train plugins=[altnet] agent=altnet reset=periodic reset.every_updates=200000``."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity import AGENTS, SAC, Batch, Learner
from rl_plasticity.seeding import RunStreams, derive


class AltNet(nn.Module):
    """Two soft actor-critic agents that take turns: one acts, both learn from the same batches, for many runs.

    A full reset (``reset=periodic``) restarts the agent that acts, and from then on the other one acts, which has
    learned from the replay buffer since its own restart. So no agent acts right after its restart.

    Source: Maheshwari et al. (2026), "AltNet: Addressing the Plasticity-Stability Dilemma in Reinforcement Learning",
    arXiv 2512.01034, as in their code (github.com/mansi99000/AltNet, stable_baselines3/sac/sac.py). They restart every
    200 000 updates, 400 000 for each agent, whatever the replay ratio.

    The settings are those of `SAC`. Metrics have the number of the agent behind the network's name: critic0/loss.
    """

    losses = ("critic0/loss", "actor0/loss", "critic1/loss", "actor1/loss")
    acting: Tensor

    @wraps(SAC.__init__)  # type: ignore[misc]
    def __init__(self, obs_dim: int, act_dim: int, seeds: Sequence[int], *rest: Any, **settings: Any) -> None:
        super().__init__()
        own = [[derive(seed, key) for seed in seeds] for key in range(3)]
        self.twins = nn.ModuleList(SAC(obs_dim, act_dim, of_twin, *rest, **settings) for of_twin in own[:2])
        device = settings.get("device", "cpu")
        self.discount = self.twins[0].discount
        self.register_buffer("acting", torch.zeros(len(seeds), dtype=torch.int64, device=device))  # which twin, [runs]
        self.streams = RunStreams(own[2], device)

    def noise(self, updates: int, batch_size: int) -> Tensor:
        """Standard normal noise ``[updates, 2, ...]``, that of each twin."""
        return torch.stack([twin.noise(updates, batch_size) for twin in self.twins], 1)

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        return torch.where(self.acting[:, None, None] == 0, *(twin.act(obs, noise) for twin in self.twins))

    def value(self, obs: Tensor, act: Tensor) -> Tensor:
        return torch.where(self.acting[:, None] == 0, *(twin.value(obs, act) for twin in self.twins))

    def update(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """One gradient update of both twins."""
        return self._joined(lambda twin, i: twin.update(batch, noise[i]))

    # --- what interventions and probes need -----------------------------------------------------------------------

    @property
    def learners(self) -> dict[str, Learner]:
        return self._joined(lambda twin, _: twin.learners)

    @property
    def followers(self) -> dict[str, nn.Module]:
        return self._joined(lambda twin, _: twin.followers)

    def inputs(self, batch: Batch) -> dict[str, tuple[Tensor, ...]]:
        return self._joined(lambda twin, _: twin.inputs(batch))

    def example_losses(self, batch: Batch, noise: Tensor) -> dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]]:
        return self._joined(lambda twin, i: twin.example_losses(batch, noise[i]))

    def restart_(self, runs: Tensor | None = None) -> None:
        """Restart the twin that acts in `runs` (all by default); the other one acts from now on."""
        chosen = torch.arange(len(self.acting)) if runs is None else runs
        acting = self.acting[chosen].cpu()
        for i, twin in enumerate(self.twins):
            if len(mine := chosen[acting == i]):
                twin.restart_(mine)
        self.acting[chosen] = 1 - self.acting[chosen]

    def _joined(self, of_twin: Callable[[Any, int], dict[str, Any]]) -> dict[str, Any]:
        """What both twins return by name, with the twin's number behind the first part of the name."""
        joined = {}
        for i, twin in enumerate(self.twins):
            for name, value in of_twin(twin, i).items():
                net, slash, rest = name.partition("/")
                joined[f"{net}{i}{slash}{rest}"] = value
        return joined


AGENTS["altnet"] = AltNet
