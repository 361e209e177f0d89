"""Deep Q-networks with two parts of Rainbow: dueling networks, and distributions of the return (C51)."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from rl_plasticity import Batch, Regularizer, Setting, SettingsError
from rl_plasticity.agents import DQN
from rl_plasticity.regularizers import Unregularized
from rl_plasticity.settings import checked
from rl_plasticity_zoo.distributions import cross_entropy, expected, projected


class Rainbow(DQN):
    """`DQN` with two more settings (Hessel et al. 2018, "Rainbow").

    - ``dueling``: the network has one output more, the value V(s), and the others are advantages: Q(s, a) = V(s) +
      A(s, a) - mean over a' A(s, a') (Wang et al. 2016, equation 9; there both have hidden layers of their own).
    - ``atoms=51``: for each action the network returns logits of the distribution of the return, C51 (Bellemare et al.
      2017).

    Args:
        of_dqn: settings of `DQN`.

    Raises:
        SettingsError: a setting out of range.
    """

    support: Tensor

    @checked
    def __init__(
        self,
        obs_shape: Sequence[int],
        num_actions: int,
        seeds: Sequence[int],
        make_regularizer: Callable[[nn.Module], Regularizer] = Unregularized,
        *,
        dueling: Annotated[
            bool, Setting("whether outputs are the value of the state and the advantages of actions")
        ] = False,
        atoms: Annotated[
            int, Setting("atoms of the return's distribution (51 for C51); 1: only its mean", least=1)
        ] = 1,
        least_return: Annotated[float, Setting("lowest atom")] = -10.0,
        greatest_return: Annotated[float, Setting("highest atom")] = 10.0,
        device: str | torch.device = "cpu",
        **of_dqn: Any,
    ) -> None:
        if not least_return < greatest_return:
            raise SettingsError(f"least_return={least_return:g} must be below greatest_return={greatest_return:g}")
        super().__init__(obs_shape, (num_actions + dueling) * atoms, seeds, make_regularizer, device=device, **of_dqn)
        self.num_actions, self.atoms, self.dueling = num_actions, atoms, dueling
        self.register_buffer("support", torch.linspace(least_return, greatest_return, atoms, device=device))

    def each(self, values: Tensor) -> Tensor:
        """The values, or logits, of each action: ``[runs, n, outputs] -> [runs, n, actions, atoms]``."""
        values = torch.unflatten(values, -1, (-1, self.atoms))
        if not self.dueling:
            return values
        value, advantage = values[..., :1, :], values[..., 1:, :]
        return value + advantage - advantage.mean(-2, keepdim=True)

    def of_act(self, values: Tensor, act: Tensor) -> Tensor:
        """The values, or logits, of the actions ``[runs, n, 1]``: ``[runs, n, outputs] -> [runs, n, atoms]``."""
        return self.each(values).take_along_dim(act.long().unsqueeze(-1), 2).squeeze(2)

    def expected(self, values: Tensor) -> Tensor:
        """The mean return, ``[..., atoms] -> [...]``."""
        return values.squeeze(-1) if self.atoms == 1 else expected(values, self.support)

    def best(self, values: Tensor) -> Tensor:
        return super().best(self.expected(self.each(values)))

    def chosen(self, values: Tensor, act: Tensor) -> Tensor:
        return self.expected(self.of_act(values, act))

    @torch.no_grad()
    def target(self, batch: Batch) -> Tensor:
        """What the values of the batch's actions are to become: ``[runs, batch]``, or ``[runs, batch, atoms]``."""
        if self.atoms == 1:
            return super().target(batch)
        following = self.critic_target(batch.next_obs)
        choosing = self.critic.net(batch.next_obs) if self.is_double else following
        return projected(batch, self.of_act(following, self.best(choosing)).softmax(-1), self.support)

    def critic_loss(self, values: Tensor, act: Tensor, target: Tensor) -> Tensor:
        if self.atoms == 1:
            return super().critic_loss(values, act, target)
        return cross_entropy(self.of_act(values, act), target).mean(-1)
