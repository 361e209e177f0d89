"""TorchRL's soft actor-critic with a regularizer: ``python torchrl_sac.py``.

A TorchRL loss trains its own parameters, ``[2, ...]`` for two Q networks; `attach_to_loss` regularizes each of the two.
For the actor, the loss trains the same parameters as the network it was given, so plain `attach` would work too.
"""

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, RewardSum, StepCounter, TransformedEnv
from torchrl.envs.utils import step_mdp
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate

from rl_plasticity.integrations.torchrl import attach_to_loss


def make_loss(env: GymEnv, width: int, num_qvalue_nets: int = 2) -> tuple[ProbabilisticActor, SACLoss]:
    """Create the policy, and the loss with its Q networks."""
    obs_dim, act_dim = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    sizes = {"num_cells": [width, width], "activation_class": nn.ReLU}
    actor = ProbabilisticActor(
        TensorDictModule(
            nn.Sequential(MLP(in_features=obs_dim, out_features=2 * act_dim, **sizes), NormalParamExtractor()),
            in_keys=["observation"],
            out_keys=["loc", "scale"],
        ),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": env.action_spec.space.low, "high": env.action_spec.space.high},
        return_log_prob=True,
    )
    qvalue = ValueOperator(
        MLP(in_features=obs_dim + act_dim, out_features=1, **sizes), in_keys=["observation", "action"]
    )
    loss = SACLoss(actor, qvalue, num_qvalue_nets=num_qvalue_nets, action_spec=env.action_spec)
    loss.make_value_estimator(gamma=0.99)
    return actor, loss


def main(
    env_id: str = "Pendulum-v1", total_steps: int = 10_000, random_steps: int = 1_000, reg: str = "spectral",
    coef: float = 1e-4, seed: int = 0, width: int = 256, batch_size: int = 256, lr: float = 3e-4,
) -> SACLoss:  # fmt: skip
    """Train the agent; returns the loss, which holds all networks."""
    torch.manual_seed(seed)
    env = TransformedEnv(GymEnv(env_id), RewardSum()).append_transform(StepCounter())
    env.set_seed(seed)
    actor, loss = make_loss(env, width)
    update_targets = SoftUpdate(loss, tau=0.005)
    critic_optimizer = torch.optim.Adam(loss.qvalue_network_params.parameters(), lr)
    actor_optimizer = torch.optim.Adam(loss.actor_network_params.parameters(), lr)
    alpha_optimizer = torch.optim.Adam([loss.log_alpha], lr)

    data = env.reset()
    example = env.rand_action(data.clone()).select("observation", "action")
    critics = attach_to_loss(reg, critic_optimizer, loss, "qvalue_network", example=(example,), coef=coef)
    attach_to_loss(reg, actor_optimizer, loss, "actor_network", example=(example.select("observation"),), coef=coef)

    buffer = ReplayBuffer(storage=LazyTensorStorage(total_steps), batch_size=batch_size)
    for step in range(total_steps):
        with torch.no_grad():
            data = env.step(env.rand_action(data) if step < random_steps else actor(data))
        buffer.add(data.select("observation", "action", "next"))
        if data["next", "done"].any():
            penalty = None if critics.penalty is None else critics.penalty.tolist()  # one per Q network
            print(f"step {step + 1:6d}  return {data['next', 'episode_reward'].item():.1f}  penalties {penalty}")
            data = env.reset()
        else:
            data = step_mdp(data)
        if step >= random_steps:
            update(loss, buffer.sample(), [critic_optimizer, actor_optimizer, alpha_optimizer])
            update_targets.step()
    return loss


def update(loss: SACLoss, batch: TensorDict, optimizers: list[torch.optim.Optimizer]) -> None:
    """Take one gradient step on all losses; each one reaches only its own parameters."""
    losses = loss(batch)
    for optimizer in optimizers:
        optimizer.zero_grad()
    (losses["loss_qvalue"] + losses["loss_actor"] + losses["loss_alpha"]).backward()
    for optimizer in optimizers:
        optimizer.step()


if __name__ == "__main__":
    main()
