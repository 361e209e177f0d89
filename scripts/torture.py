"""Kill runs again and again, resume them, and compare with runs that were never killed.

    python scripts/torture.py [--kills 12] [--only train,dqn,later,supervised] [--seed 0]

Runs of all cases go on at the same time, each of which is killed (SIGKILL) this many times: while starting, in a
checkpoint's write, in an evaluation or at a change of task, or at random. Status 1 if a resume failed, or if
metrics.csv or the last checkpoint is not identical.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from rl_plasticity.runs import checkpoint

# A replay buffer that wraps around, two runs, two regularizers, and a task that changes, which cuts episodes off.
AGENTS = (
    "train env.switch_every_env_steps=130 seeds=2 reg=spectral+swr reset=periodic reset.every_updates=200 "
    "reset.every_tasks=3 batch_size=16 replay_ratio=1 random_env_steps=150 total_env_steps=1650 buffer_size=700 "
    "eval_episodes=3 eval_every_env_steps=100 checkpoint_every_env_steps=60 log_every_updates=50 "
)
CASES = {
    "train": AGENTS + "env=gym:Pendulum-v1 env.changes=[observation_shift,action_flip] agent.hidden=[16,16]",
    "dqn": AGENTS + "agent=dqn env=minatar:breakout env.changes=[channel_permutation,action_permutation] "
    "agent.network=cnn agent.channels=2 agent.hidden=[16] agent.num_steps=3 agent.epsilon_env_steps=800",
    # BatchNorm, running statistics of rewards, a falling rate, critics drawn for each target, an actor that waits.
    "later": "train preset=xqc agent.num_critics=3 agent.target_critics=2 agent.critic_width=16 agent.actor_width=16 "
    "agent.critic_blocks=1 agent.actor_blocks=1 " + AGENTS.removeprefix("train ").replace("reg=spectral+swr ", "")
    + "env=gym:Pendulum-v1 env.changes=[observation_shift,action_flip]",
    "supervised": "supervised task=random_labels data.train_size=500 net.widths=[32,32] batch_size=100 seeds=2 "
    "reg=spectral+swr reset=shrink_perturb reset.every_updates=50 num_tasks=20 epochs_per_task=30 eval_every_epochs=1 "
    "checkpoint_every_epochs=2 log_every_updates=5 measure_every_updates=500",
}  # fmt: skip
COMMON = "device=cpu compile=false threads=1"


def start(arguments: list[str], said: Path) -> subprocess.Popen[bytes]:
    """A command as a process; what it says goes into a file, because a pipe that nobody reads would stop it."""
    command, *settings = arguments
    with said.open("w") as file:
        program = [sys.executable, "-m", f"rl_plasticity.{command}", *settings]
        return subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=file)


def size(folder: Path) -> int:
    file = folder / "metrics.csv"
    return file.stat().st_size if file.exists() else 0


def kill(folder: Path, process: subprocess.Popen[bytes], rng: random.Random) -> bool:
    """Wait for a moment and kill; whether it was still running."""
    moment = rng.choice(["starting", "write", "evaluation", "random"])
    if moment == "starting":
        time.sleep(rng.uniform(0.2, 8))
    else:
        before, until = size(folder), time.monotonic() + 60
        while size(folder) == before and process.poll() is None:  # it has started again
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 1.5))
        while time.monotonic() < until and process.poll() is None and moment != "random":
            if moment == "write" and any(folder.glob("checkpoints/.*.tmp")):
                break
            if moment == "evaluation" and b",eval/" in (folder / "metrics.csv").read_bytes()[-120:]:
                break
    process.kill()
    return process.wait() == -9


def same(a: Any, b: Any) -> bool:
    (mine, layout), (theirs, other) = tree_flatten(a), tree_flatten(b)
    pairs = zip(mine, theirs, strict=False)
    return layout == other and all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in pairs)


def state(folder: Path) -> dict[str, Any]:
    """What the last checkpoint holds, without what is a matter of when it was written."""
    found = checkpoint.load(folder / "checkpoints")
    names = ("agent", "learner", "probe", "probes", "envs", "order", "buffer", "progress")
    return {name: found[name] for name in names if name in found}


def torture(name: str, kills: int, place: Path, seed: int) -> str:
    """Kill a run so many times, finish it, and compare; what is wrong."""
    rng, arguments = random.Random(f"{name} {seed}"), [*CASES[name].split(), *COMMON.split(), f"seed={seed}"]
    whole, folder, done = place / f"{name}-whole", place / f"{name}-killed", 0
    never_killed = start([*arguments, f"out={whole}"], place / f"{name}-whole.txt")
    while True:
        begun = (folder / "config.yaml").exists()
        said = place / f"{name}.txt"
        process = start([arguments[0], f"resume={folder}"] if begun else [*arguments, f"out={folder}"], said)
        if done < kills and kill(folder, process, rng):
            done += 1
            print(f"{name}: killed {done} times", flush=True)
        elif process.wait():
            return f"after {done} kills a resume failed: {said.read_text()[-500:]}"
        else:
            break
    if never_killed.wait():
        return (place / f"{name}-whole.txt").read_text()
    wrong = [] if done == kills else [f"the run ended after {done} kills"]
    wrong += ["metrics.csv differs"] * ((whole / "metrics.csv").read_bytes() != (folder / "metrics.csv").read_bytes())
    return ", ".join(wrong + ["the last state differs"] * (not same(state(whole), state(folder))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor() as pool:
        jobs = {n: pool.submit(torture, n, given.kills, Path(place), given.seed) for n in given.only.split(",")}
        found = {name: job.result() for name, job in jobs.items()}
    for name, wrong in found.items():
        print(f"{name}: {wrong or 'identical'}")
    sys.exit(any(found.values()))


if __name__ == "__main__":
    main()
