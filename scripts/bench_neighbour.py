"""How fast updates are beside other people's work: ``python scripts/bench_neighbour.py [--neighbours 0,1,4]``.

A neighbour is a busy loop in a process of its own. The agent is the default one at cheetah-run's size, its updates are
compiled, and every case is a process that waits for its turn, so that all cases meet the same machine. Printed are
run-updates a second by the clock, medians over the rounds, and their ratio to one run of one thread at rest.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from bench_updates import BATCH, GROUP, SIZES, filled_buffer

from rl_plasticity.agents import SAC, Batch
from rl_plasticity.compiling.compiled import compiled, set_tracing
from rl_plasticity.compiling.shares import Shares, cuts, largest_product

SECONDS = 3.0
BUSY = [sys.executable, "-c", "while True: pass"]
SLEEPING = {"GOMP_SPINCOUNT": "0"}
# runs, threads, divided among them, environment
CASES: dict[str, tuple[int, int, bool, dict[str, str]]] = {
    "1 run, 1 thread (default)": (1, 1, False, {}),
    "1 run, 2 threads of torch": (1, 2, False, {}),
    "1 run, 2 threads that sleep at once": (1, 2, False, SLEEPING),
    "4 runs, 1 thread": (4, 1, True, {}),
    "4 runs, divided among 2 threads (default)": (4, 2, True, {}),
    "4 runs, 2 threads of torch": (4, 2, False, {}),
}


def work(runs: int, threads: int, is_divided: bool) -> None:
    """At each line of stdin, update for some seconds and print run-updates a second."""
    obs_dim, act_dim = SIZES["cheetah-run"]
    torch.set_num_threads(1 if is_divided else threads)
    whole = SAC(obs_dim, act_dim, range(runs))
    found = cuts([runs], threads, largest_product(whole, BATCH)) if is_divided else []
    shares = Shares(whole, lambda runs: SAC(obs_dim, act_dim, range(16)[runs]), found, threads, set_tracing)
    updates, buffer = shares.updates(SAC.update, compiled), filled_buffer(runs, obs_dim, act_dim)

    def group() -> None:
        batches = buffer.sample(whole.streams.integers(buffer.size, GROUP * BATCH))
        noises = [share.noise(GROUP, BATCH) for share in shares.modules]

        def updates_of(i: int) -> dict[str, Any]:
            for n in range(GROUP):
                batch = Batch(*(x[shares.slices[i], n * BATCH : (n + 1) * BATCH] for x in batches))
                metrics = updates[i](batch, noises[i][n])
            return dict(metrics)

        shares.each(updates_of)

    for _ in range(3):
        group()
    print("ready", flush=True)
    for _ in sys.stdin:
        number, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            group()
            number += runs * GROUP
        print(number / (time.perf_counter() - start), flush=True)
    shares.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neighbours", default="0,1,4")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    numbers = [int(n) for n in options.neighbours.split(",")]
    pipe = subprocess.PIPE
    workers = {}
    for name, (runs, threads, is_divided, environment) in CASES.items():
        program = [sys.executable, __file__, "worker", str(runs), str(threads), str(int(is_divided))]
        worker = subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, env=os.environ | environment)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n", name
        workers[name] = worker
    rates: dict[tuple[str, int], list[float]] = {(name, n): [] for name in CASES for n in numbers}
    for _ in range(options.rounds):
        for n in numbers:
            busy = [subprocess.Popen(BUSY) for _ in range(n)]
            try:
                for name, worker in workers.items():
                    print("go", file=worker.stdin, flush=True)
                    rates[name, n].append(float(worker.stdout.readline()))  # type: ignore[union-attr]
            finally:
                for process in busy:
                    process.kill()
                    process.wait()
    base = statistics.median(rates[next(iter(CASES)), 0]) if 0 in numbers else float("nan")
    print("| updates of | " + " | ".join(f"{n} busy processes" if n else "at rest" for n in numbers) + " |")
    print("|---" * (1 + len(numbers)) + "|")
    for name in CASES:
        medians = [statistics.median(rates[name, n]) for n in numbers]
        print(f"| {name} | " + " | ".join(f"{m:.1f} ({m / base:.2f} x)" for m in medians) + " |")
    for worker in workers.values():
        worker.stdin.close()  # type: ignore[union-attr]
        worker.wait()


if __name__ == "__main__":
    work(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1") if sys.argv[1:2] == ["worker"] else main()
