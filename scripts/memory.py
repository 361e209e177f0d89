"""Whether a run's memory grows: ``python scripts/memory.py [name=value ...]``, resident size over 200 000 updates.

A run with tiny networks and everything on (resets, evaluations, metrics, checkpoints). Status 1 if the resident size
after 200 000 updates is more than 2 % off that after 20 000.
"""

import resource
import sys
import tempfile
from pathlib import Path

from rl_plasticity.train import command

RATIO, RANDOM = 20, 1000
MARKS = {20_000, 50_000, 100_000, 150_000, 200_000}
ARGUMENTS = ["env=gym:Pendulum-v1", "reg=spectral+swr", "reset=periodic", "reset.every_updates=10000", "batch_size=32"]
ARGUMENTS += ["agent.hidden=[16,16]", f"replay_ratio={RATIO}", f"random_env_steps={RANDOM}", "buffer_size=1000"]
ARGUMENTS += [f"total_env_steps={RANDOM + max(MARKS) // RATIO + 1}", "eval_every_env_steps=500", "eval_episodes=1"]
ARGUMENTS += ["checkpoint_every_env_steps=500", "log_every_updates=500", "measure_every_updates=5000"]
ARGUMENTS += ["device=cpu", "compile=true", "threads=1"]


class Meter:
    """In the place of a stop signal: asked before every env step, it never came, and looks at the memory."""

    def __init__(self) -> None:
        self.steps, self.sizes = 0, dict[int, float]()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def received(self) -> int:
        updates = (self.steps - RANDOM) * RATIO
        if updates in MARKS:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.sizes[updates] = pages * resource.getpagesize() / 2**20
            print(f"\n{updates} updates: {self.sizes[updates]:.1f} MiB", file=sys.stderr, flush=True)
        self.steps += 1
        return 0

    def require_none(self) -> None:
        """Evaluations are no env steps."""


def main() -> None:
    given = {a.partition("=")[0]: a for a in [*ARGUMENTS, *sys.argv[1:]]}
    with tempfile.TemporaryDirectory() as place:
        session, built = command.prepare([*given.values(), f"out={place}/run"])
        session.stop = meter = Meter()
        command.execute(session, built)
    growth = meter.sizes[max(MARKS)] / meter.sizes[min(MARKS)] - 1
    print("| updates | resident MiB |\n|---|---|")
    print("".join(f"| {updates} | {size:.1f} |\n" for updates, size in meter.sizes.items()) + f"growth {growth:+.2%}")
    sys.exit(abs(growth) > 0.02)


if __name__ == "__main__":
    main()
