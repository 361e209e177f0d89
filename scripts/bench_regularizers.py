"""What each regularizer adds to one update of the SAC critic: ``python scripts/bench_regularizers.py [runs=1]``.

One bare update is loss, gradient and Adam step of a LayerNorm critic of cheetah-run's size (obs 17, act 6, 2 x 256,
batch 256). The bare and the regularized updates are timed in turn in one process, so that a machine whose speed drifts
slows all alike; the median over rounds is printed, and the added time as a share of the bare update. ``threads=1`` is
the default.
"""

import statistics
import sys
import time

import torch

from rl_plasticity.agents.sac import Critic, critic_loss
from rl_plasticity.learner import Learner
from rl_plasticity.regularizers import REGULARIZERS, make_regularizer

ROUNDS, PER_ROUND = 40, 5


def main() -> None:
    settings = {"runs": 1, "threads": 1} | {k: int(v) for k, v in (a.split("=") for a in sys.argv[1:])}
    runs = settings["runs"]
    torch.set_num_threads(settings["threads"])
    obs, act, target = torch.randn(runs, 256, 17), torch.rand(runs, 256, 6) * 2 - 1, torch.randn(runs, 256)
    learners = {
        name: Learner(
            lambda seeds: Critic((23, 256, 256, 1), seeds, True, 1),
            range(runs),
            lambda net, name=name: make_regularizer(name, net),
        )
        for name in REGULARIZERS
    }
    seconds: dict[str, list[float]] = {name: [] for name in learners}
    for _ in range(ROUNDS + 3):
        for name, learner in learners.items():
            start = time.perf_counter()
            for _ in range(PER_ROUND):
                learner.minimize(critic_loss(learner.net(obs, act), target))
            seconds[name].append((time.perf_counter() - start) / PER_ROUND)
    medians = {name: statistics.median(times[3:]) for name, times in seconds.items()}  # the first rounds warm up
    print(f"runs={runs} threads={settings['threads']}  (eager)")
    print(f"{'regularizer':<16} {'ms/update':>10} {'added':>8}")
    for name, median in medians.items():
        print(f"{name:<16} {median * 1e3:>10.2f} {median / medians['none'] - 1:>8.1%}")


if __name__ == "__main__":
    main()
