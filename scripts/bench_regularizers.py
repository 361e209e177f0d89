"""What each regularizer adds to one update: ``python scripts/bench_regularizers.py [runs=1] [--compiled [NAME ...]]``.

The critic is cheetah-run's (obs 17, act 6, 2 x 256, LayerNorm, batch 256). Its own bare step (loss, gradient, Adam),
the regularized ones and one bare update of the whole agent are timed in turn in one process, so that a machine whose
speed drifts slows all alike. Printed are medians over rounds, and the added time as a share of the critic's own step
and as a share of one update, which is what a user pays for. ``threads=1`` is the default.

``--compiled`` takes whole compiled updates of the agent instead, the regularizer on actor and critic, each four in a
process with bare ones in turn: a process has room for eight graphs of one function. Printed are medians over rounds of
the ratio to the bare update of the same round, and its quartiles; with one thread of the process's CPU time.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from rl_plasticity.agents import SAC, Batch
from rl_plasticity.agents.sac import Critic, critic_loss
from rl_plasticity.compiling.compiled import compiled
from rl_plasticity.learning.learner import Learner
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import REGULARIZERS, make_regularizer

ROUNDS, PER_ROUND = 40, 5


def clock_of(threads: int) -> Callable[[], float]:
    """CPU time, which other work on the machine does not lengthen; of several threads the clock, as they wait."""
    return time.process_time if threads == 1 else time.perf_counter


def of_compiled_updates(names: list[str], runs: int, threads: int) -> None:
    """Print what each of up to seven regularizers adds to a compiled update."""
    obs, act = torch.randn(runs, 256, 17), torch.rand(runs, 256, 6) * 2 - 1
    batch = Batch(obs, act, torch.rand(runs, 256), obs, torch.full((runs, 256), 0.99))
    clock = clock_of(threads)
    updates = {}
    for name in ["none", *names]:
        agent = SAC(17, 6, range(runs), partial(make_regularizer, name))
        updates[name] = partial(compiled(agent.update), batch, agent.noise(1, 256)[0])
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    for _ in range(2 * ROUNDS + 3):
        for name, update in updates.items():
            start = clock()
            for _ in range(PER_ROUND):
                update()
            seconds[name].append((clock() - start) / PER_ROUND)
    bare = seconds["none"][3:]
    for name in names:
        ratios = [with_it / without for with_it, without in zip(seconds[name][3:], bare, strict=True)]
        low, middle, high = (q - 1 for q in statistics.quantiles(ratios, n=4))
        print(
            f"{name:<24} {middle:>7.1%}  ({low:.1%} to {high:.1%}) of {statistics.median(bare) * 1e3:.2f} ms",
            flush=True,
        )


def main() -> None:
    given = [a for a in sys.argv[1:] if "=" in a]
    names = [a for a in sys.argv[1:] if "=" not in a]
    settings = {"runs": 1, "threads": 1} | {k: int(v) for k, v in (a.split("=") for a in given)}
    runs = settings["runs"]
    torch.set_num_threads(settings["threads"])
    if names[:1] == ["--compiled"]:
        chosen = names[1:] or [name for name in REGULARIZERS if name != "none"]
        if len(chosen) <= 4:
            of_compiled_updates(chosen, runs, settings["threads"])
        for i in range(0, len(chosen), 4) if len(chosen) > 4 else ():
            subprocess.run([sys.executable, __file__, *given, "--compiled", *chosen[i : i + 4]], check=True)
        return
    obs, act, target = torch.randn(runs, 256, 17), torch.rand(runs, 256, 6) * 2 - 1, torch.randn(runs, 256)
    learners = {
        name: Learner(
            lambda seeds: Critic(partial(MLP, (23, 256, 256, 1)), seeds),
            range(runs),
            lambda net, name=name: make_regularizer(name, net),
        )
        for name in REGULARIZERS
    }
    agent = SAC(17, 6, range(runs))
    batch, noise = Batch(obs, act, torch.rand(runs, 256), obs, torch.full((runs, 256), 0.99)), agent.noise(1, 256)[0]

    def step(learner: Learner) -> None:
        learner.minimize(critic_loss(learner.net(obs, act), target), (obs, act))

    steps = {name: partial(step, learner) for name, learner in learners.items()}
    steps["update"] = partial(agent.update, batch, noise)
    clock = clock_of(settings["threads"])
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS + 3):
        for name, make_step in steps.items():
            start = clock()
            for _ in range(PER_ROUND):
                make_step()
            seconds[name].append((clock() - start) / PER_ROUND)
    medians = {name: statistics.median(times[3:]) for name, times in seconds.items()}  # the first rounds warm up
    print(f"runs={runs} threads={settings['threads']}  (eager)")
    update = medians.pop("update")
    print(f"one bare update of the whole agent: {update * 1e3:.2f} ms")
    print(f"{'regularizer':<24} {'ms/step':>8} {'of the step':>12} {'of an update':>13}")
    for name, median in medians.items():
        added = median - medians["none"]
        print(f"{name:<24} {median * 1e3:>8.2f} {added / medians['none']:>12.1%} {added / update:>13.1%}")


if __name__ == "__main__":
    main()
