"""What measuring plasticity costs, as a share of training: ``python scripts/bench_measuring.py [compile=true]``.

For the RL command's defaults (cheetah-run's size) and the supervised demo (5 runs): one measurement, one line of the
log and one update are timed in turn in one process; the share is what the commands' default periods make of them.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from rl_plasticity.agents import SAC, Batch
from rl_plasticity.compiling.compiled import compiled
from rl_plasticity.configs.commands import LONGEST, Supervised, Train, period
from rl_plasticity.configs.schema import load
from rl_plasticity.diagnosis.probe import PROBE_SIZE, Probe, size_of
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.names import RunName
from rl_plasticity.runs.plan import Plan
from rl_plasticity.runs.results import Results
from rl_plasticity.supervised import build, expected_updates
from rl_plasticity.train import planned_updates
from rl_plasticity.training.epochs import cross_entropy, inputs

ROUNDS = 7


def medians(pieces: dict[str, tuple[int, Callable[[], object]]]) -> dict[str, float]:
    """CPU seconds of each piece, called so many times in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in pieces}
    for _ in range(ROUNDS + 1):
        for name, (times, piece) in pieces.items():
            start = time.process_time()
            for _ in range(times):
                piece()
            seconds[name].append((time.process_time() - start) / times)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}  # the first round warms up


def show(title: str, seconds: dict[str, float], s: Train | Supervised, updates: float) -> None:
    update, longest = seconds["update"], LONGEST[type(s)]
    log_every, measure_every = (
        period(updates, most) if getattr(s, name) == "auto" else getattr(s, name) for name, most in longest.items()
    )
    print(f"{title}: " + ", ".join(f"{name} {value * 1e3:.2f} ms" for name, value in seconds.items()))
    log, measure = seconds["log"] / log_every / update, seconds["measure"] / measure_every / update
    print(f"  log every {log_every} updates {log:.2%}, measure every {measure_every} updates {measure:.2%} of training")


def of_training(folder: Path, preset: str, compile_: bool) -> None:
    s = load(Train, ["reg=spectral", f"preset={preset}"])
    agent = SAC(17, 6, [0], Plan.of(s).regularize)
    shape = (1, PROBE_SIZE)
    obs, next_obs, act = torch.randn(*shape, 17), torch.randn(*shape, 17), torch.rand(*shape, 6) * 2 - 1
    batch, noise = Batch(obs, act, torch.rand(shape), next_obs, torch.full(shape, 0.99)), agent.noise(1, PROBE_SIZE)[0]
    update = compiled(agent.update) if compile_ else agent.update
    metrics = update(batch, noise)
    probes = {name: Probe(learner, agent.inputs(batch)[name]) for name, learner in agent.learners.items()}
    results = Results(RunFolder(folder), [RunName((), 0)])

    def log() -> None:
        with torch.no_grad():
            for name, learner in agent.learners.items():
                size = size_of(learner, metrics[f"{name}/gradient_norm"])
                results.write(0, {f"{name}/{key}": value for key, value in size.items()})
            results.write(0, metrics)
            results.flush()

    def measure() -> None:
        for name, (loss, targets) in agent.example_losses(batch, noise).items():
            results.write(0, probes[name].measure(loss, targets))

    seconds = medians({"update": (50, lambda: update(batch, noise)), "log": (5, log), "measure": (2, measure)})
    show(f"train preset={preset} compile={compile_}", seconds, s, planned_updates(s))
    results.close()


def of_tasks(folder: Path) -> None:
    s = load(Supervised, ["preset=demo", "reg=spectral", "seeds=5", "device=cpu"])
    parts = build(s, Plan.of(s))
    data, learner, task = parts.data, parts.learner, parts.sequence.task(0)
    x, y = inputs(task, data, torch.arange(s.batch_size).expand(5, -1), learner.runs)
    images, labels = inputs(task, data, torch.arange(PROBE_SIZE).expand(5, -1), learner.runs)
    probe = Probe(learner, [images])
    results = Results(RunFolder(folder), [RunName((), seed) for seed in range(5)])

    def update() -> dict[str, torch.Tensor]:
        return learner.minimize(cross_entropy(learner.net(x), y), x)

    metrics = update()

    def log() -> None:
        with torch.no_grad():
            results.write(0, metrics | size_of(learner, metrics["gradient_norm"]))
            results.flush()

    seconds = medians(
        {
            "update": (100, update),
            "log": (5, log),
            "measure": (2, lambda: results.write(0, probe.measure(cross_entropy, [labels]))),
        }
    )
    show("supervised preset=demo seeds=5", seconds, s, expected_updates(s, parts.sequence))
    results.close()


def main() -> None:
    torch.set_num_threads(1)
    for preset in ("paper", "demo"):
        with tempfile.TemporaryDirectory() as folder:
            of_training(Path(folder), preset, "compile=true" in sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        of_tasks(Path(folder))


if __name__ == "__main__":
    main()
