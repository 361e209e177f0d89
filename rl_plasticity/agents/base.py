"""The interface of agents: what the commands need of them, and what they and their environments exchange."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from rl_plasticity.agents.replay_buffer import Batch
from rl_plasticity.interventions import Restartable
from rl_plasticity.plugins import Choices
from rl_plasticity.seeding import RunStreams

Inputs = Mapping[str, tuple[Tensor, ...]]  # what each network reads
# For each network a function of its output, and the other arguments of that function.
Losses = Mapping[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]


class Agent(Restartable, Protocol):
    """The agents of all runs in one module, as `rl_plasticity.train`, `evaluate` and `watch` need them.

    Every tensor has a leading axis ``[runs, ...]``, and no run influences another. A class of agents is called as
    ``kind(obs_dim, act_dim, seeds, make_regularizer, device=..., **settings)`` and stands in `AGENTS` by its name; its
    other arguments are its settings. `make_regularizer` is called with each network; a seed makes a run's weights and
    draws. The state, random streams included, is in ``state_dict``. `learners`, `followers` and `restart_` are for
    interventions. ``examples/td3.py`` is one.

    A class may have these members too:

    - ``takes_discrete_actions = True``: it is called with ``obs_shape, num_actions`` in place of the sizes. Its actions
      are indices of actions as numbers, ``[..., 1]``.
    - ``num_steps``: the number of env steps that its transitions span (see `ReplayBuffer.sample`).
    - ``observe_(obs)``: called with the observations ``[runs, obs_dim]`` of each env step of training, before it acts
      on them; for counts of env steps and running statistics.
    - ``observe_reward_(reward, ended)``: called after each env step, each ``[runs]`` on the CPU; to scale rewards.
    - ``explore_again_()``: lets a faded exploration start over, for ``on_change=restart``.
    - ``serves = ("takes_training", "normalizes_obs")``: what it does for networks that say so, see `AGENT_NETWORKS`.
    - ``actor_every_updates`` and ``update_critic(batch, noise)``: the latter is called in place of `update` where the
      number of an update, from 1, is no multiple of the former; it may return fewer metrics.
    """

    discount: float
    """Of one env step; the replay buffer's."""
    streams: RunStreams
    """The random numbers of each run; the commands draw the first actions and the batches from them too."""

    @property
    def losses(self) -> Sequence[str]:
        """The names of the metrics of `update` that must be finite, or the run is stopped."""
        ...

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions in [-1, 1], ``[runs, n, act_dim]``, for ``[runs, n, obs_dim]``.

        Without noise the policy's best, as evaluated; with standard normal `noise` of the actions' shape, to explore.
        """
        ...

    def noise(self, updates: int, batch_size: int) -> Tensor:
        """All random numbers that this number of calls of `update` takes: ``[updates, ...]``.

        The draws of `streams` are ``[runs, updates, ...]``, and `update` gets one element of what this returns. So move
        the runs behind the updates: ``self.streams.normal(updates, batch_size, 3).movedim(0, 1)``.
        """
        ...

    def update(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """One gradient update of everything, without a host sync: it may be compiled as one graph.

        Returns:
            Detached metrics by name, each ``[runs]``, among them ``NAME/gradient_norm`` of each of the `learners`.
        """
        ...

    def value(self, obs: Tensor, act: Tensor) -> Tensor:
        """The critic's estimate of the discounted return, ``[runs, n]``."""
        ...

    def inputs(self, batch: Batch) -> Inputs:
        """The inputs of each of the `learners`' networks in a batch."""
        ...

    def example_losses(self, batch: Batch, noise: Tensor) -> Losses:
        """For measuring: each learner's loss ``[runs]`` as a function of its network's output, and its other arguments.

        Args:
            noise: of one update, see `noise`.
        """
        ...

    def parameters(self) -> Any:
        """All parameters of all networks."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run needs to continue."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Restore that state, to continue from it."""
        ...


AGENTS: Choices[Callable[..., Agent]] = Choices("AGENTS")
"""What ``agent=`` chooses from: ``kind(obs_dim, act_dim, seeds, make_regularizer, device=..., **settings)``.

A kind with ``takes_discrete_actions = True`` is called with obs_shape and num_actions in place of the first two.
"""
