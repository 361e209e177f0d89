"""Runs in one process against processes of one run each: ``python scripts/bench_processes.py [ROUNDS]``.

Compiled updates of the default agent at cheetah-run's size, as in bench_updates.py. Every process is made once and
waits; the cases take turns, and the processes of a case update at the same time for some seconds. Printed are medians
over the rounds, and the range. A run-update is one update of one run. By the clock they depend on what else the machine
does; by the CPU time of the processes they depend on it less, but then waiting for a core does not count.
"""

import itertools
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

import torch
from bench_updates import GROUP, SIZES, filled_buffer, make_agent, updates

from rl_plasticity.compiling.compiled import compiled

SECONDS = 4.0


class Case(NamedTuple):
    processes: int
    runs: int  # of each process
    threads: int  # of each process


CASES = [Case(1, 1, 1), Case(1, 2, 1), Case(1, 4, 1), Case(2, 1, 1), Case(4, 1, 1), Case(1, 2, 2), Case(1, 4, 2)]


def work(runs: int, threads: int) -> None:
    """At each line of stdin, update for some seconds and print run-updates per second and per CPU second."""
    torch.set_num_threads(threads)
    size = SIZES["cheetah-run"]
    agent = make_agent(runs, *size, "none")
    group = updates(agent, compiled(agent.update), filled_buffer(runs, *size))
    for _ in range(3):
        group()
    print("ready", flush=True)
    for _ in sys.stdin:
        made, wall, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - wall < SECONDS:
            group()
            made += runs * GROUP
        print(made / (time.perf_counter() - wall), made / (time.process_time() - cpu), flush=True)


def start(case: Case) -> list[subprocess.Popen[str]]:
    program = [sys.executable, __file__, "worker", str(case.runs), str(case.threads)]
    pipe = subprocess.PIPE
    found = []
    for _ in range(case.processes):  # one after another: the second finds the first one's graph
        found.append(subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True))
        assert found[-1].stdout.readline() == "ready\n"  # type: ignore[union-attr]
    return found


def measure(workers: list[subprocess.Popen[str]]) -> tuple[float, float]:
    """Of all together: run-updates per second, and per CPU second."""
    for worker in workers:
        print("go", file=worker.stdin, flush=True)
    rates = [[float(x) for x in worker.stdout.readline().split()] for worker in workers]  # type: ignore[union-attr]
    wall = sum(rate[0] for rate in rates)
    return wall, wall / sum(rate[0] / rate[1] for rate in rates)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    workers = {case: start(case) for case in CASES}
    found: dict[Case, list[tuple[float, float]]] = {case: [] for case in CASES}
    for _ in range(rounds):
        for case, rates in found.items():
            rates.append(measure(workers[case]))
    print("| processes | runs in each | threads of each | run-updates/s | run-updates per CPU second |")
    print("|---|---|---|---|---|")
    for case, rates in found.items():
        columns = [f"{statistics.median(r):.0f} ({min(r):.0f} to {max(r):.0f})" for r in zip(*rates, strict=True)]
        print(f"| {' | '.join(map(str, (*case, *columns)))} |")
    for worker in itertools.chain(*workers.values()):
        worker.stdin.close()  # type: ignore[union-attr]
        worker.wait()


if __name__ == "__main__":
    work(*map(int, sys.argv[2:])) if sys.argv[1:2] == ["worker"] else main()
