"""How fast the agents of papers are: ``python scripts/bench_agents.py [--agents xqc,droq] [--peers] ...``.

A complete update of each preset at its own batch and network sizes, compiled, with the critics' updates between two of
the actor. Rates are updates of one run a second of CPU time, on one thread, and beside them how many updates of the
default agent take as long. All take turns in one process; printed are medians over the turns, with quartiles.

``--peers`` adds the same settings in SBX (``pip install .[bench]``) where it has them: soft actor-critic with two
critics (``sr_sac``), with dropout and LayerNorm (``droq``), and CrossQ, which is nearest to ``xqc``. Use
``taskset -c 0`` with it: JAX takes its number of threads from the cores it may use.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from bench_updates import BATCH, SIZES, filled_buffer, filled_peer, interleaved, updates
from torch import Tensor

from rl_plasticity.agents import SAC, Batch, ReplayBuffer
from rl_plasticity.compiling.compiled import compiled
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Train
from rl_plasticity.regularizers import make_regularizer

AGENTS = ("paper", "simba_v2", "xqc", "flash_sac", "bro", "sr_sac", "droq", "redq")
GROUP = 60  # updates, a multiple of every preset's `actor_every_updates`


def group_of(preset: str, obs_dim: int, act_dim: int, buffer: ReplayBuffer) -> Callable[[], None]:
    """A function that makes `GROUP` updates as train.py makes them."""
    s = schema.load(Train, [f"preset={preset}"])
    settings = {**s.agent.settings, "lr_decay_updates": 1_000_000}
    regularize = partial(make_regularizer, s.reg.name, **s.reg.settings)
    agent = SAC(obs_dim, act_dim, [0], regularize, **settings)
    whole, number = compiled(agent.update), itertools.count(1)
    between = compiled(agent.update_critic) if agent.actor_every_updates > 1 else whole

    def update(batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        return (between if next(number) % agent.actor_every_updates else whole)(batch, noise)  # type: ignore[no-any-return]

    return updates(agent, update, buffer, s.batch_size, GROUP)


def peer(name: str, obs_dim: int, act_dim: int) -> Callable[[], None]:
    """`GROUP` updates of SBX with the settings nearest to those of a preset."""
    import sbx

    kind, more = sbx.SAC, {}
    policy: dict[str, Any] = {"net_arch": [256, 256], "n_critics": 2}
    if name == "droq":
        policy |= {"dropout_rate": 0.01, "layer_norm": True}
        more = {"policy_delay": 20}
    elif name == "xqc":
        kind, more = sbx.CrossQ, {"policy_delay": 3}
        policy["net_arch"] = {"pi": [256] * 4, "qf": [512] * 4}
    return partial(filled_peer(kind, obs_dim, act_dim, policy, **more).train, GROUP, BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", default=",".join(AGENTS), help="presets; the first one is what others are beside")
    parser.add_argument("--size", default="cheetah-run", help=f"one of {', '.join(SIZES)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", action="store_true")
    options = parser.parse_args()
    names = options.agents.split(",")
    if unknown := {*names} - {*AGENTS}:
        parser.error(f"unknown agent {unknown.pop()!r}; there are {', '.join(AGENTS)}")
    torch.set_num_threads(1)
    sizes = SIZES[options.size]
    buffer, groups = filled_buffer(1, *sizes), {}
    for name in names:
        groups[name] = group_of(name, *sizes, buffer)
        began = time.perf_counter()
        groups[name]()
        print(f"{name}: first {GROUP} updates, with compiling: {time.perf_counter() - began:.0f} s", flush=True)
        if options.peers and name in ("sr_sac", "droq", "xqc"):
            groups[f"SBX, as {name}"] = peer(name, *sizes)
    seconds = interleaved(groups, options.rounds, 1)
    print(f"{'agent':<16}{'updates/s':>10}  quartiles      {names[0]} in the same time")
    for name, times in seconds.items():
        rates = [GROUP / t for t in times]
        low, _, high = statistics.quantiles(rates, n=4)
        beside = statistics.median(t / d for t, d in zip(times, seconds[names[0]], strict=True))
        print(f"{name:<16}{statistics.median(rates):>10.1f}  {low:.1f}-{high:.1f}      {beside:.1f}", flush=True)


if __name__ == "__main__":
    main()
