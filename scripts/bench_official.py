"""How fast the code of the papers' authors is: ``python scripts/bench_official.py FOLDER [--agents bro,redq] ...``.

FOLDER holds checkouts of these repositories, under these names:

    simba_v2    github.com/DAVIAN-Robotics/SimbaV2                  14fafb2  JAX
    bro         github.com/naumix/BiggerRegularizedOptimistic       5870a13  JAX
    flash_sac   github.com/Holiday-Robot/FlashSAC                   87edc90  PyTorch
    redq        github.com/watchernyu/REDQ                          7b5d1bf  PyTorch

Each is run as its own command runs it on cheetah-run: its sizes, its batch, its way of compiling, and its sampling from
a full replay buffer, on one thread. Rates are updates of the critics a second of CPU time, and each has the actor's
updates that its code makes beside them, as in `bench_agents.py`: run both on one core, one after the other. All take
turns in one process; printed are medians over the turns, with quartiles.

They need ``pip install torch jax flax optax tensorflow-probability gymnasium hydra-core absl-py tqdm``.
"""

import argparse
import math
import os
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import gymnasium
import numpy as np
import torch

OBS, ACT, ROWS = 17, 6, 100_000  # those of cheetah-run, and transitions in the buffer
GROUP = 20  # updates that are timed together, a multiple of every code's updates between two of the actor
AGENTS = ("simba_v2", "bro", "flash_sac", "redq")
Agent = tuple[Callable[[], object], int, int]
"""Makes updates; how many; the batch."""


def box(size: int, most: float = math.inf) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-most, most, (1, size), np.float32)


def transitions() -> dict[str, Any]:
    """Random ones, under the names of SimbaV2 and FlashSAC."""
    rng = np.random.default_rng(0)
    obs, following = rng.standard_normal((2, ROWS, OBS), np.float32)
    act = rng.uniform(-1, 1, (ROWS, ACT)).astype(np.float32)
    found = {"observation": obs, "next_observation": following, "action": act}
    found["reward"] = rng.standard_normal(ROWS, np.float32)
    return found | {"terminated": np.zeros(ROWS, np.float32), "truncated": np.zeros(ROWS, np.float32)}


def settings(folder: Path, name: str, *changes: str) -> Any:
    """The settings that a code's YAML makes for cheetah-run."""
    import hydra
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("eval", lambda text: eval(text, {"math": math}), replace=True)
    with hydra.initialize_config_dir(str((folder / "configs").resolve()), version_base=None):
        found = hydra.compose(config_name=name, overrides=["env=dmc", "env.env_name=cheetah-run", *changes])
    OmegaConf.resolve(found)
    return found


def newer_jax() -> None:
    """Put back what BRO, SimbaV2 and tensorflow-probability take from a JAX of 2024."""
    import jax
    import jax.interpreters.xla as xla
    from jax._src import core

    jax.tree_map = jax.tree_util.tree_map
    xla.pytype_aval_mappings = core.pytype_aval_mappings
    sys.modules["gym"] = types.ModuleType("gym")
    sys.modules["gym"].spaces = gymnasium.spaces  # type: ignore[attr-defined]


def simba_v2(folder: Path) -> Agent:
    newer_jax()
    from scale_rl.agents import create_agent
    from scale_rl.buffers import create_buffer

    found, data = settings(folder, "online_rl"), transitions()
    spaces = {"observation_space": box(OBS), "action_space": box(ACT, 1)}
    buffer = create_buffer(**spaces, **found.buffer)
    buffer.reset()
    buffer.add(data)
    agent = create_agent(**spaces, cfg=found.agent)
    for i in range(50):  # for its running statistics
        agent.sample_actions(i, {name: x[i : i + 1].copy() for name, x in data.items()}, training=True)
    return lambda: agent.update(0, buffer.sample()), 1, found.buffer.sample_batch_size


def bro(folder: Path) -> Agent:
    newer_jax()
    import jax
    from absl import flags  # noqa: F401  its default settings use it
    from configs.bro_default import get_config
    from jaxrl.bro.bro_learner import BRO
    from jaxrl.replay_buffer import ParallelReplayBuffer

    batch, updates, data = 128, 10, transitions()  # those of train_parallel.py
    ones = np.ones((1, OBS), np.float32), np.ones((1, ACT), np.float32)
    agent = BRO(0, *ones, num_seeds=1, updates_per_step=updates, distributional=True, **dict(get_config()))
    buffer = ParallelReplayBuffer(box(OBS), ACT, ROWS, num_seeds=1)
    buffer.observations[0], buffer.next_observations[0] = data["observation"], data["next_observation"]
    buffer.actions[0], buffer.rewards[0], buffer.masks[0] = data["action"], data["reward"], 1
    buffer.size = ROWS

    def update() -> None:
        agent.update(buffer.sample_parallel_multibatch(batch, updates), updates, 3)  # 3: at no reset
        jax.block_until_ready((agent.critic.params, agent.actor.params, agent.actor_o.params))

    return update, updates, batch


def flash_sac(folder: Path) -> Agent:
    from flash_rl.agents import create_agent

    # As in its run_dmc.sh, but for the device.
    on_cpu = ["agent.device_type=cpu", "agent.buffer_device_type=cpu", "agent.use_amp=false"]
    found = settings(folder, "flashSAC_base", "agent=flashSAC", "agent.sample_batch_size=512", *on_cpu)
    agent = create_agent(observation_space=box(OBS), action_space=box(ACT, 1), env_info={}, cfg=found.agent)
    data = transitions()
    for i in range(0, ROWS, 1000):
        agent.process_transition({name: x[i : i + 1000] for name, x in data.items()})
    return agent.update, 1, found.agent.sample_batch_size


def redq(folder: Path) -> Agent:
    from redq.algos.redq_sac import REDQSACAgent

    agent, data = REDQSACAgent("HalfCheetah-v2", OBS, ACT, 1.0, torch.device("cpu")), transitions()
    buffer = agent.replay_buffer
    buffer.obs1_buf[:ROWS], buffer.obs2_buf[:ROWS] = data["observation"], data["next_observation"]
    buffer.acts_buf[:ROWS], buffer.rews_buf[:ROWS] = data["action"], data["reward"]
    buffer.size = buffer.ptr = ROWS
    log = types.SimpleNamespace(store=lambda **values: None)
    return lambda: agent.train(log), agent.utd_ratio, agent.batch_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--agents", default=",".join(AGENTS))
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    names = options.agents.split(",")
    if unknown := {*names} - {*AGENTS}:
        parser.error(f"unknown agent {unknown.pop()!r}; there are {', '.join(AGENTS)}")
    if missing := [name for name in names if not (options.folder / name).is_dir()]:
        parser.error(f"{options.folder / missing[0]} is no folder: check the repository out there")
    torch.set_num_threads(1)
    made: dict[str, Agent] = {}
    for name in names:
        sys.path.insert(0, str(options.folder / name))
        began = time.perf_counter()
        made[name] = update, updates, _ = globals()[name](options.folder / name)
        for _ in range(GROUP // updates):
            update()
        print(f"{name}: first {GROUP} updates, with compiling: {time.perf_counter() - began:.0f} s", flush=True)
    rates: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(options.rounds):
        for name, (update, updates, _) in made.items():
            began = time.process_time()
            for _ in range(GROUP // updates):
                update()
            rates[name].append(GROUP / (time.process_time() - began))
    print(f"{'agent':<16}{'batch':>6}{'updates/s':>10}  quartiles")
    for name, found in rates.items():
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{name:<16}{made[name][2]:>6}{middle:>10.1f}  {low:.1f}-{high:.1f}")


if __name__ == "__main__":
    main()
