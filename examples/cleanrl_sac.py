"""Soft actor-critic in one file, in CleanRL's style, with a regularizer: ``python cleanrl_sac.py --reg spectral``.

The only additions are one line with `attach` for the critics and one for the actor; the loop is unchanged.
"""

import argparse
import inspect

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from rl_plasticity import attach

LOG_STD_MIN, LOG_STD_MAX = -5, 2


class SoftQNetwork(nn.Module):
    def __init__(self, obs_dim: int, act_dim: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(obs_dim + act_dim, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, 1)

    def forward(self, obs: Tensor, act: Tensor) -> Tensor:
        x = F.relu(self.fc1(torch.cat([obs, act], 1)))
        return self.fc3(F.relu(self.fc2(x))).squeeze(1)


class Critics(nn.Module):
    """Both Q networks ``[2, batch]`` as one network, for one optimizer."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.qf1, self.qf2 = SoftQNetwork(*sizes), SoftQNetwork(*sizes)

    def forward(self, obs: Tensor, act: Tensor) -> Tensor:
        return torch.stack([self.qf1(obs, act), self.qf2(obs, act)])


class Actor(nn.Module):
    """A network that returns the mean and log_std of the Gaussian before the tanh."""

    def __init__(self, obs_dim: int, act_dim: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(obs_dim, width)
        self.fc2 = nn.Linear(width, width)
        self.fc_mean = nn.Linear(width, act_dim)
        self.fc_logstd = nn.Linear(width, act_dim)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.fc2(F.relu(self.fc1(obs))))
        log_std = torch.tanh(self.fc_logstd(x))
        return self.fc_mean(x), LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1)

    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Draw a random action in (-1, 1), and return its log-probability too."""
        mean, log_std = self(obs)
        normal = torch.distributions.Normal(mean, log_std.exp())
        u = normal.rsample()
        log_prob = normal.log_prob(u) - 2 * (np.log(2) - u - F.softplus(-2 * u))
        return u.tanh(), log_prob.sum(1)


class ReplayBuffer:
    def __init__(self, size: int, obs_dim: int, act_dim: int, seed: int) -> None:
        self.arrays = [np.zeros((size, n), np.float32) for n in (obs_dim, act_dim, obs_dim, 1, 1)]
        self.added, self.rng = 0, np.random.default_rng(seed)

    def add(self, *transition: object) -> None:
        for array, value in zip(self.arrays, transition, strict=True):
            array[self.added % len(array)] = value
        self.added += 1

    def sample(self, batch_size: int) -> list[Tensor]:
        rows = self.rng.integers(min(self.added, len(self.arrays[0])), size=batch_size)
        return [torch.from_numpy(array[rows]) for array in self.arrays]


def main(
    env_id: str = "Pendulum-v1", total_steps: int = 10_000, learning_starts: int = 1_000, reg: str = "spectral",
    coef: float = 1e-4, seed: int = 1, width: int = 256, batch_size: int = 256, gamma: float = 0.99, tau: float = 0.005,
    critic_lr: float = 1e-3, actor_lr: float = 3e-4, policy_frequency: int = 2,
) -> tuple[Actor, Critics, Critics]:  # fmt: skip
    """Train the agent; returns the actor, the critics and their targets."""
    torch.manual_seed(seed)
    env = gym.wrappers.RecordEpisodeStatistics(gym.wrappers.RescaleAction(gym.make(env_id), -1, 1))
    env.action_space.seed(seed)
    obs_dim, act_dim = env.observation_space.shape[0], env.action_space.shape[0]

    actor, critics = Actor(obs_dim, act_dim, width), Critics(obs_dim, act_dim, width)
    targets = Critics(obs_dim, act_dim, width).requires_grad_(False)
    targets.load_state_dict(critics.state_dict())
    log_alpha = torch.zeros((), requires_grad=True)
    critic_optimizer, actor_optimizer = Adam(critics.parameters(), critic_lr), Adam(actor.parameters(), actor_lr)
    alpha_optimizer = Adam([log_alpha], critic_lr)

    # The regularizer acts on neither the targets nor the temperature.
    critic_handle = attach(reg, critic_optimizer, critics, coef=coef)
    actor_handle = attach(reg, actor_optimizer, actor, coef=coef)

    buffer = ReplayBuffer(total_steps, obs_dim, act_dim, seed)
    obs, _ = env.reset(seed=seed)
    for step in range(total_steps):
        act = env.action_space.sample()
        if step >= learning_starts:
            with torch.no_grad():
                act = actor.act(torch.as_tensor(obs[None], dtype=torch.float32))[0][0].numpy()
        next_obs, reward, terminated, truncated, info = env.step(act)
        buffer.add(obs, act, next_obs, reward, terminated)
        obs = next_obs
        if terminated or truncated:
            penalties = [float(h.penalty) for h in (critic_handle, actor_handle) if h.penalty is not None]
            print(f"step {step + 1:6d}  return {info['episode']['r']:.1f}  penalties {penalties}")
            obs, _ = env.reset()
        if step < learning_starts:
            continue

        batch_obs, batch_act, batch_next_obs, batch_reward, batch_terminated = buffer.sample(batch_size)
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            next_act, next_log_prob = actor.act(batch_next_obs)
            next_q = targets(batch_next_obs, next_act).amin(0) - alpha * next_log_prob
            target = batch_reward[:, 0] + (1 - batch_terminated[:, 0]) * gamma * next_q
        critic_loss = (critics(batch_obs, batch_act) - target).square().mean(1).sum()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()

        if step % policy_frequency == 0:
            for _ in range(policy_frequency):  # in total as many updates as the critics get
                pi, log_prob = actor.act(batch_obs)
                actor_loss = (alpha * log_prob - critics(batch_obs, pi).amin(0)).mean()
                actor_optimizer.zero_grad()
                actor_loss.backward()
                actor_optimizer.step()

                alpha_loss = -(log_alpha.exp() * (log_prob.detach() - act_dim)).mean()
                alpha_optimizer.zero_grad()
                alpha_loss.backward()
                alpha_optimizer.step()
                alpha = log_alpha.detach().exp()

        with torch.no_grad():
            for follower, leader in zip(targets.parameters(), critics.parameters(), strict=True):
                follower.lerp_(leader, tau)
    env.close()
    return actor, critics, targets


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, argument in inspect.signature(main).parameters.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(argument.default), default=argument.default)
    main(**vars(parser.parse_args()))
