"""The numbers of a list of small runs, as SHA-256: ``python scripts/digests.py FOLDER > before``.

For changes that must leave every number as it is: run it before and after, on one machine, and compare what it prints
(``diff before after``). It trains RL and supervised runs with penalties, projections, chains, lists side by side and
resets, kills one and resumes it, and compares the results; printed are the digests of every metrics.csv and of the
comparisons' comparison.csv. Takes some three minutes on two cores.
"""

import hashlib
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMON = ["device=cpu", "compile=false", "threads=1"]
RL = [*COMMON, "env=gym:Pendulum-v1", "agent.hidden=[16,16]", "batch_size=16", "random_env_steps=20", "replay_ratio=2"]
RL += ["total_env_steps=120", "eval_every_env_steps=60", "eval_episodes=2", "checkpoint_every_env_steps=40"]
RL += ["log_every_updates=20", "measure_every_updates=50"]
SUPERVISED = [*COMMON, "data.train_size=300", "batch_size=64", "epochs_per_task=3", "eval_every_epochs=1"]
SUPERVISED += ["log_every_updates=3", "measure_every_updates=5", "checkpoint_every_epochs=2"]
KILLED = ["env=cheetah-run", "total_env_steps=1500", "checkpoint_every_env_steps=300", "reset=periodic"]
KILLED += ["reset.every_updates=700", "reg=spectral", "seeds=2"]

RUNS: dict[str, tuple[str, list[str]]] = {
    f"train_{reg}_{reset}": (
        "train",
        [*RL, f"reg={reg}", f"reset={reset}", *["reset.every_updates=70"] * (reset != "none"), "seeds=2"],
    )
    for reg in ("none", "spectral", "swr")
    for reset in ("none", "periodic")
}
RUNS |= {
    "train_chain": ("train", [*RL, "reg=spectral+l2", "reg.l2.coef=1e-3", "reset=redo", "reset.every_updates=60"]),
    "train_methods": ("train", [*RL, "reg=[none,wrs,spectral+swr]", "reset=shrink_perturb", "reset.every_updates=80"]),
    "train_strengths": ("train", [*RL, "reg=spectral", "reg.coef=[1e-4,1e-2]", "seeds=2"]),
    "train_periods": ("train", [*RL, "reset=head", "reset.every_updates=[50,90]"]),
    "train_critics": ("train", [*RL, "agent.num_critics=2", "agent.layer_norm=false", "reg=ewc"]),
    "train_killed": ("train", [*RL, *KILLED]),
}
TASKS = ("random_labels", "pixel_permutation", "class_incremental", "warm_start", "continual_full", "stationary")
RUNS |= {f"supervised_{t}": ("supervised", [*SUPERVISED, f"task={t}", "seeds=2"]) for t in TASKS[2:]}
RUNS |= {
    f"supervised_{t}": ("supervised", [*SUPERVISED, f"task={t}", "num_tasks=3", "seeds=2", "reset=head"])
    for t in TASKS[:2]
}
RUNS |= {
    f"supervised_{net}": ("supervised", [*SUPERVISED, f"net={net}", "num_tasks=2", "reg=l2_init"])
    for net in ("cnn", "cnn_bn", "mlp")
}
RUNS |= {
    "supervised_chain": ("supervised", [*SUPERVISED, "num_tasks=2", "reg=spectral+weight_decay", "optimizer=adamp"]),
    "supervised_methods": ("supervised", [*SUPERVISED, "num_tasks=2", "reg=[none,swr,wrs]", "reset=periodic"]),
    "supervised_parametrized": (
        "supervised",
        [*SUPERVISED, "num_tasks=2", "net=cnn_bn", "net.parametrization=weight_standardization", "optimizer=sgd"],
    ),
    "supervised_augmented": (
        "supervised",
        [*SUPERVISED, "task=stationary", "data.augment=true", "task.decay_at_epochs=[1]", "reg=swr"],
    ),
}


def module(name: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"rl_plasticity.{name}", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def make(folder: Path) -> None:
    """Make every run in `folder`, two at a time; `train_killed` is killed after its second checkpoint and resumed."""
    waiting = [(name, kind, arguments) for name, (kind, arguments) in RUNS.items()]
    running: dict[str, subprocess.Popen[bytes]] = {}
    while waiting or running:
        while waiting and len(running) < 2:
            name, kind, arguments = waiting.pop(0)
            last = {a.partition("=")[0]: a for a in arguments}
            running[name] = module(kind, *last.values(), f"out={folder / name}")
        time.sleep(0.1)
        if "train_killed" in running and (folder / "train_killed/checkpoints/step_000000600.pt").exists():
            running["train_killed"].send_signal(signal.SIGKILL)
            running.pop("train_killed").wait()
            running["resumed"] = module("train", f"resume={folder / 'train_killed'}")
        for name, process in list(running.items()):
            if process.poll() is not None:
                if process.returncode:
                    sys.exit(f"{name} failed: {process.communicate()[1].decode()}")
                del running[name]


def main() -> None:
    folder = Path(sys.argv[1])
    make(folder)
    for kind in ("train", "supervised"):
        comparable = [folder / n for n in RUNS if n in ("train_strengths", "supervised_methods") and n.startswith(kind)]
        out = folder / f"comparison_{kind}"
        done = module("compare", *map(str, comparable), f"out={out}")
        if done.wait():
            sys.exit(done.communicate()[1].decode())
    for path in sorted([*folder.glob("*/metrics.csv"), *folder.glob("*/comparison.csv")]):
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path.relative_to(folder))


if __name__ == "__main__":
    main()
