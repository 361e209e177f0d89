"""Kill runs at random and at the worst moments, resume them, and compare with runs that were never killed.

    python scripts/torture.py [--train 100] [--dqn 100] [--later 100] [--supervised 100] [--minutes 60] [--seed 0]

Runs of all cases go on at the same time, and those of each are killed (SIGKILL) this many times in all. A moment counts
only where the files left behind show that it was hit. Status 1 if a resume failed, metrics.csv or the last checkpoint
is not identical, or a file of the user's in checkpoints/ was touched.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rl_plasticity.runs import checkpoint


class Case(NamedTuple):
    """A command, its settings, and after which rows (of a step) an evaluation follows and a reset has just been."""

    command: str
    arguments: str
    evaluates: Callable[[int], bool]
    was_reset: Callable[[int], bool]


def of_agents(task: str) -> Case:
    """Agents that learn a task which changes, the options being of the task and the network.

    Update u is made at env step u + 150. A replay buffer that wraps around, two runs, two regularizers; every 130 env
    steps the task changes, which cuts its episodes off.
    """
    return Case(
        "train",
        f"{task} env.switch_every_env_steps=130 seeds=2 reg=spectral+swr reset=periodic reset.every_updates=200 "
        "reset.every_tasks=3 batch_size=16 replay_ratio=1 random_env_steps=150 total_env_steps=1650 buffer_size=700 "
        "eval_episodes=3 eval_every_env_steps=100 checkpoint_every_env_steps=60 log_every_updates=50 "
        "measure_every_updates=1000",
        lambda step: step % 100 == 0 or step % 130 == 0,
        lambda step: (step - 150) % 200 == 0,
    )


CASES = {
    "train": of_agents("env=gym:Pendulum-v1 env.changes=[observation_shift,action_flip] agent.hidden=[16,16]"),
    # Discrete actions and images: a game whose channels and actions change.
    "dqn": of_agents(
        "agent=dqn env=minatar:breakout env.changes=[channel_permutation,action_permutation] agent.network=cnn "
        "agent.channels=2 agent.hidden=[16] agent.num_steps=3 agent.target_every_updates=50 agent.epsilon_env_steps=800"
    ),
    # BatchNorm, running statistics of rewards, a falling learning rate, critics drawn for each target, an actor that
    # learns in every third update.
    "later": of_agents(
        "agent=xqc agent.num_critics=3 agent.target_critics=2 agent.critic_width=16 agent.critic_blocks=1 "
        "agent.actor_width=16 agent.actor_blocks=1 env=gym:Pendulum-v1 env.changes=[observation_shift,action_flip]"
    ),
    # Five updates an epoch, an evaluation after each.
    "supervised": Case(
        "supervised",
        "task=random_labels data.train_size=500 net.widths=[32,32] batch_size=100 seeds=2 reg=spectral+swr "
        "reset=shrink_perturb reset.every_updates=50 num_tasks=20 epochs_per_task=30 eval_every_epochs=1 "
        "checkpoint_every_epochs=2 log_every_updates=5 measure_every_updates=500",
        lambda step: True,
        lambda step: step % 50 == 0,
    ),
}
COMMON = "device=cpu compile=false threads=1"
MOMENTS = (
    "while starting", "at random", "in a checkpoint's write", "in an evaluation", "right after a reset",
    "at a change of task",
)  # fmt: skip


def start(case: Case, said: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The command as a process. What it says goes into a file: a pipe that nobody reads would fill and stop it."""
    command = [sys.executable, "-m", f"rl_plasticity.{case.command}", *arguments]
    with said.open("w") as file:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)


def last_row(folder: Path) -> tuple[int, str]:
    """Step and name of the last whole row of ``metrics.csv``; -1 if there is none."""
    try:
        with (folder / "metrics.csv").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 300))
            rows = file.read().decode().split("\n")[1:-1]
        _, step, name, _ = rows[-1].split(",")
        return int(step), name
    except (OSError, IndexError, ValueError):
        return -1, ""


def hit(moment: str, case: Case, folder: Path) -> bool:
    """Whether what is in the folder shows this moment."""
    if moment == "in a checkpoint's write":
        return any(folder.glob("checkpoints/.*.tmp"))
    step, name = last_row(folder)
    if moment == "at a change of task":
        return name.startswith("task/")
    if moment == "in an evaluation":
        return case.evaluates(step) and step > 0 and not name.startswith(("eval", "q_over", "task"))
    return case.was_reset(step) and step > 0 and not name.startswith(("eval", "q_over", "task"))


def kill(moment: str, case: Case, folder: Path, process: subprocess.Popen[bytes], rng: random.Random) -> bool:
    """Wait for the moment and kill; whether it was still running."""
    if moment == "while starting":
        time.sleep(rng.uniform(0.2, 8))
    else:
        before = last_row(folder)
        while last_row(folder) == before and process.poll() is None:  # it has started again
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 1.5))
        until = time.monotonic() + 20
        while moment != "at random" and not hit(moment, case, folder) and process.poll() is None:
            if time.monotonic() > until:
                break
    process.kill()
    return process.wait() == -9


def state(folder: Path) -> dict[str, Any]:
    """What the last checkpoint holds, without what is a matter of when it was written."""
    found = checkpoint.load(folder / "checkpoints")
    kept = {
        key: found[key]
        for key in ("agent", "learner", "probe", "probes", "envs", "order", "buffer", "progress")
        if key in found
    }
    if found["table"]:
        size = found["buffer"]["size"]
        kept["rows"] = {key: found["table"][key][-size:] for key in ("obs", "act", "reward", "end")}
    return kept


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


class Outcome(NamedTuple):
    """How often a command's runs were killed at which moment, and what went wrong: a line for each fault."""

    killed: Counter[str]
    rounds: int
    wrong: list[str]


def torture(case: Case, kills: int, until: float, place: Path, seed: int) -> Outcome:
    """Kill runs, of another seed each, so many times or until that time; finish the last one, and compare each."""
    rng = random.Random(seed)
    said, begun, number, rounds = place / "said.txt", time.monotonic(), 0, 0
    killed: Counter[str] = Counter()
    wrong: list[str] = []
    moments = [MOMENTS[i % len(MOMENTS)] for i in range(kills)]
    rng.shuffle(moments)
    while moments and time.monotonic() < until:
        rounds += 1
        whole, folder = place / f"whole{rounds}", place / f"killed{rounds}"
        theirs = folder / "checkpoints" / "step_best.pt"
        arguments = [*case.arguments.split(), *COMMON.split(), f"seed={seed + 2 * rounds}"]
        never_killed = start(case, place / "whole.txt", *arguments, f"out={whole}")
        done = put = False
        while not done:
            if theirs.parent.is_dir() and not put:
                put = bool(theirs.write_text("the user's"))
            process = start(
                case,
                said,
                *([f"resume={folder}"] if (folder / "config.yaml").exists() else [*arguments, f"out={folder}"]),
            )
            if not moments or time.monotonic() > until:
                process.wait()
            elif kill(moments[-1], case, folder, process, rng):
                moment, number = moments.pop(), number + 1
                shown = moment in MOMENTS[:2] or hit(moment, case, folder)
                killed[moment if shown else "at random"] += 1
                step, seconds = last_row(folder)[0], time.monotonic() - begun
                print(f"{place.name} {number}: {moment}, step {step}, {seconds:.0f} s", flush=True)
                continue
            if process.returncode:
                wrong.append(f"round {rounds}, after {number} kills, a resume failed: {said.read_text()[-500:]}")
                break
            done = True
        if never_killed.wait():
            raise RuntimeError((place / "whole.txt").read_text())
        if done and (whole / "metrics.csv").read_bytes() != (folder / "metrics.csv").read_bytes():
            wrong.append(f"round {rounds}: metrics.csv differs")
        if done and not same(state(whole), state(folder)):
            wrong.append(f"round {rounds}: the last state differs")
        if put and theirs.read_text() != "the user's":
            wrong.append(f"round {rounds}: {theirs} was touched")
        print(f"{place.name}: round {rounds} {wrong or 'is identical'}", flush=True)
    return Outcome(killed, rounds, wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in CASES:
        parser.add_argument(f"--{name}", type=int, default=100, help="how many kills")
    parser.add_argument("--minutes", type=float, default=60, help="no more kills after that")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    good = True
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor() as pool:
        for name in CASES:
            (Path(place) / name).mkdir()
        jobs = {
            name: pool.submit(torture, case, getattr(given, name), until, Path(place) / name, given.seed)
            for name, case in CASES.items()
        }
        for name, job in jobs.items():
            killed, rounds, wrong = job.result()
            good = good and not wrong
            print(f"\n| {name}: killed | times |\n|---|---|")
            print("".join(f"| {moment} | {killed[moment]} |\n" for moment in MOMENTS), end="")
            print(f"| all; runs | {sum(killed.values())}; {rounds} |")
            print(f"| wrong | {len(wrong)} |")
            for line in wrong:
                print(f"{name}: {line}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
