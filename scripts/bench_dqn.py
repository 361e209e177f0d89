"""How fast a DQN update is beside others: ``python scripts/bench_dqn.py [--runs 1,5] [--rounds 20]``, on one thread.

The sizes are those of MinAtar's Breakout and of CartPole: a batch of 32 or 128, replayed from a filled buffer.

- ours: `DQN.update`, compiled, of several runs at once
- sb3: Stable-Baselines3's ``DQN.train``, fed from its own buffer, with the same network
- plain: one network, torch's modules and Adam, on a batch that is already a tensor, as a script of one file has it
- floor: the bare matrix products of an update of one run, those of a convolution with the patches of its images

All take turns in one process, 16 updates each. Printed are run-updates (one update of one run) a second of CPU time,
medians over the rounds, and how many times those of the others ours are.
"""

import argparse
import math
import statistics
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from bench_updates import GROUP, Group, interleaved, ratio, updates
from torch import nn
from torch.nn import functional as F

from rl_plasticity.agents import DQN, ReplayBuffer
from rl_plasticity.compiling.compiled import compiled
from rl_plasticity.step import Spaces, Step

FILLED = 5000
SIZES: dict[str, tuple[Spaces, int, dict[str, Any]]] = {
    "breakout": (Spaces((4, 10, 10), 1, 6, 1), 32, {"network": "cnn"}),
    "cartpole": (Spaces((4,), 1, 2), 128, {"hidden": (64, 64), "layer_norm": False}),
}


def random_obs(spaces: Spaces, rng: np.random.Generator, n: int) -> np.ndarray[Any, Any]:
    shape = (n, *spaces.obs_shape)
    return (rng.random(shape) < 0.1 if spaces.levels else rng.standard_normal(shape)).astype(np.float32)


def ours(spaces: Spaces, batch: int, settings: dict[str, Any], runs: int) -> Group:
    rng = np.random.default_rng(0)
    agent = DQN(spaces.obs_shape, spaces.num_actions or 0, range(runs), **settings)
    buffer = ReplayBuffer(runs, FILLED, spaces.obs_dim, 1, agent.discount, levels=spaces.levels)
    buffer.start(torch.zeros(runs, spaces.obs_dim))
    no = np.zeros(runs, np.bool_)
    for _ in range(FILLED):
        obs = random_obs(spaces, rng, runs).reshape(runs, -1)
        act = torch.from_numpy(rng.integers(spaces.num_actions, size=(runs, 1))).float()
        buffer.add(act, Step(obs, rng.random(runs, np.float32), no, no, obs))
    return updates(agent, compiled(agent.update), buffer, batch)


def network_of(spaces: Spaces) -> nn.Sequential:
    actions = spaces.num_actions or 0
    if not spaces.levels:
        return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, actions))
    first = (nn.Conv2d(spaces.obs_shape[0], 16, 3), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*first, nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, actions))


def plain(spaces: Spaces, batch: int) -> Group:
    net, target = network_of(spaces), network_of(spaces)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
    rng = np.random.default_rng(0)
    obs, next_obs = (torch.from_numpy(random_obs(spaces, rng, batch)) for _ in range(2))
    act = torch.from_numpy(rng.integers(spaces.num_actions, size=(batch, 1)))
    reward = torch.rand(batch)

    def group() -> None:
        for _ in range(GROUP):
            with torch.no_grad():
                best = net(next_obs).argmax(1, keepdim=True)
                goal = reward + 0.99 * target(next_obs).gather(1, best).squeeze(1)
            loss = F.smooth_l1_loss(net(obs).gather(1, act).squeeze(1), goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return group


def floor(spaces: Spaces, batch: int) -> Group:
    layers = [layer for layer in network_of(spaces) if isinstance(layer, nn.Conv2d | nn.Linear)]
    pairs = []
    for depth, layer in enumerate(layers):
        out, *into = layer.weight.shape
        sides = [side - 2 for side in spaces.obs_shape[1:]] if isinstance(layer, nn.Conv2d) else []
        rows, fan_in = batch * math.prod(sides), math.prod(into)
        pairs += [(torch.randn(rows, fan_in), torch.randn(out, fan_in).T) for _ in range(3)]  # x W^T
        pairs += [(torch.randn(rows, out).T, torch.randn(rows, fan_in))]  # g^T x
        pairs += [(torch.randn(rows, out), torch.randn(out, fan_in))] if depth else []  # g W
    each = [(a, b, a @ b) for a, b in pairs]

    def group() -> None:
        for _ in range(GROUP):
            for a, b, product in each:
                torch.mm(a, b, out=product)

    return group


def sb3(spaces: Spaces, batch: int) -> Group:
    from stable_baselines3 import DQN as Theirs
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Convolution(BaseFeaturesExtractor):
        def __init__(self, space: gym.Space[Any]) -> None:
            super().__init__(space, 128)
            self.layers = network_of(spaces)[:5]

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            features: torch.Tensor = self.layers(obs)
            return features

    class Nothing(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-np.inf, np.inf, spaces.obs_shape, np.float32)
        action_space = gym.spaces.Discrete(spaces.num_actions or 0)

    arch = {"features_extractor_class": Convolution, "net_arch": []} if spaces.levels else {"net_arch": [64, 64]}
    model = Theirs("MlpPolicy", Nothing(), batch_size=batch, buffer_size=FILLED, policy_kwargs=arch, device="cpu")
    model.set_logger(Logger(None, []))
    rng = np.random.default_rng(0)
    for _ in range(FILLED):
        obs, next_obs = random_obs(spaces, rng, 2)[:, None]
        act = rng.integers(spaces.num_actions, size=(1, 1))
        model.replay_buffer.add(obs, next_obs, act, rng.random(1), np.zeros(1), [{}])
    return partial(model.train, GROUP, batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="1,5", help="how many of ours train at once")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for size, (spaces, batch, settings) in SIZES.items():
        numbers = [int(n) for n in options.runs.split(",")]
        groups = {f"ours, {n} at once": ours(spaces, batch, settings, n) for n in numbers}
        groups |= {"sb3": sb3(spaces, batch), "plain": plain(spaces, batch), "floor": floor(spaces, batch)}
        seconds = interleaved(groups, options.rounds, threads=1)
        of_runs = dict(zip(groups, [*numbers, 1, 1, 1], strict=True))
        for name, times in seconds.items():
            rate = of_runs[name] * GROUP / statistics.median(times)
            more = "".join(
                f"  {of_runs[name] * ratio(seconds[other], times):5.2f} x {other}"
                for other in ("sb3", "plain", "floor")
            )
            print(
                f"{size:<10}{name:<18}{rate:>8.0f} run-updates/s{more if name.startswith('ours') else ''}", flush=True
            )


if __name__ == "__main__":
    main()
