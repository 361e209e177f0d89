"""Complete updates of the agent in a second: ``python scripts/bench_updates.py [runs=1,4] [threads=1,2]``.

A complete update samples a batch and noise, and updates critic, target, actor and temperature, at cheetah-run's size
(obs 17, act 6, batch 256, 2 x 256, LayerNorm, one critic). Plain and compiled updates are timed in turn in one process;
medians over rounds. A run-update is one update of one run.
"""

import statistics
import sys
import time

import torch

from rl_plasticity.agents import SAC, Batch, ReplayBuffer
from rl_plasticity.train import compiled

ROUNDS, GROUP, BATCH = 15, 16, 256


def filled_buffer(runs: int) -> ReplayBuffer:
    buffer = ReplayBuffer(runs, 10_000, 17, 6)
    buffer.start(torch.randn(runs, 17))
    no = torch.zeros(runs, dtype=torch.bool)
    for _ in range(10_000):
        obs = torch.randn(runs, 17)
        buffer.add(torch.rand(runs, 6) * 2 - 1, torch.rand(runs), obs, no, no, obs)
    return buffer


def main() -> None:
    settings = {"runs": "1,4", "threads": "1,2"} | dict(a.split("=") for a in sys.argv[1:])
    print(f"{'runs':>4} {'threads':>7} {'plain':>9} {'compiled':>9} {'ratio':>6}   run-updates/s")
    for runs in map(int, settings["runs"].split(",")):
        buffer = filled_buffer(runs)
        for threads in map(int, settings["threads"].split(",")):
            torch.set_num_threads(threads)
            torch._dynamo.reset()
            agents = [SAC(17, 6, range(runs)) for _ in range(2)]
            updates = [agents[0].update, compiled(agents[1])]
            seconds: list[list[float]] = [[], []]
            for _ in range(ROUNDS + 2):
                for agent, update, times in zip(agents, updates, seconds, strict=True):
                    start = time.perf_counter()
                    batches = buffer.sample(agent.streams.integers(buffer.size, GROUP * BATCH))
                    noise = agent.noise(GROUP, BATCH)
                    for i in range(GROUP):
                        update(Batch(*(x[:, i * BATCH : (i + 1) * BATCH] for x in batches)), noise[i])
                    times.append(time.perf_counter() - start)
            plain, fast = (runs * GROUP / statistics.median(times[2:]) for times in seconds)
            print(f"{runs:>4} {threads:>7} {plain:>9.0f} {fast:>9.0f} {fast / plain:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
