"""Print SHA-256 digests of the numbers of many small runs: ``python scripts/digests.py > before``.

Use it for a change that must leave every number as it is: run it before the change, and after it, on the same machine,
with ``--against before``. It takes five minutes of one core. Each line has a digest and the name of what it is of:

- ``train/...``, ``supervised/...``: the metrics.csv of a run. The script makes each run a second time, in which it is
  stopped, resumed, fails and is resumed again. The digests must be equal.
- ``attach/...``, ``intervene/...``: the weights of a small torch network at the end of an ordinary training loop.
- ``measure/...``: the plasticity metrics of such a network.
- ``compare/...``: comparison.csv.

Where a change adds or removes a metric, ``--without NAME`` leaves it out of every digest, before and after it.
Regularizers, interventions, optimizers and task sequences come from the public dicts: a new one gets its lines by
itself. The script uses the public API alone, so it runs unchanged before and after a change of everything behind it.
"""

import argparse
import contextlib
import fnmatch
import hashlib
import io
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity import (
    INTERVENTIONS,
    OPTIMIZERS,
    REGULARIZERS,
    TASKS,
    attach,
    make_intervention,
    measure,
    supervised,
    train,
)
from rl_plasticity.compare import compare

Settings = dict[str, Any]

# With their defaults these would do nothing in runs of a few updates.
ACTING: dict[str, Settings] = {
    "churn": {"coef": 0.1},  # attached, it cannot follow the loss
    "continual_backprop": {"coef": 0.05, "maturity": 3},
    "ewc": {"coef": 10.0, "fisher_decay": 0.9, "anchor_decay": 0.9},
    "hare_tortoise": {"every_updates": 4},
    "normalize_project": {"every_updates": 3},
    "redo": {"threshold": 0.5},
    "regrama": {"threshold": 0.5},
    "selective_reinit": {"choose": "share", "factor": 0.1},
    "self_normalized_resets": {"every_updates": 3, "least": 1, "most": 40, "quantile": 0.5},
    "shrink_perturb": {"init": "fresh"},
    "weight_clipping": {"coef": 0.5},
    "wrs": {"every_updates": 3, "norm_decay": 0.0},
}


def acting(names: str, **more: Any) -> Settings:
    """A regularizer, or a chain of several, with settings that let each act in a few updates."""
    parts = {name: ACTING.get(name, {}) for name in names.split("+")}
    if len(parts) == 1:
        return {"name": names, **parts[names], **more}
    return {"name": names, **{name: own | more.get(name, {}) for name, own in parts.items()}}


COMMON: Settings = {"device": "cpu", "compile": False, "threads": 1, "seeds": 2}

PENDULUM: Settings = {"name": "gym:Pendulum-v1", "action_repeat": 4}  # 50 env steps an episode
CARTPOLE: Settings = {"name": "cartpole-swingup", "action_repeat": 50}  # 20
CHANGING: Settings = {"changes": ["observation_shift", "reward_flip"], "switch_every_env_steps": 20}
POLE: Settings = {"env": "gym:CartPole-v1", "agent": {"name": "dqn", "hidden": [16, 16]}}
SAC: Settings = {"name": "sac", "hidden": [16, 16]}
SMALL: Settings = {"name": "later_sac", "actor_width": 8, "critic_width": 8}
RL: Settings = COMMON | {"env": PENDULUM, "agent": SAC, "batch_size": 16}
RL |= {"total_env_steps": 60, "random_env_steps": 10, "replay_ratio": 1, "checkpoint_every_env_steps": 20}
RL |= {"eval_every_env_steps": 30, "eval_episodes": 1, "log_every_updates": 10, "measure_every_updates": 0}
TRAIN: dict[str, Settings] = {
    "plain": {"measure_every_updates": 20, "eval_episodes": 2},
    "threads": {"threads": 2},
    "one_seed": {"seeds": 1, "reg": "spectral", "measure_every_updates": 20},
    "chain": {"reg": acting("spectral+l2+wrs", l2={"coef": 1e-3}), "reset": {"name": "redo", "every_updates": 20}},
    "methods": {
        "reg": {"name": ["none", "wrs", "spectral+swr"], "wrs": {"norm_decay": 0.0}},
        "reset": {"name": "shrink_perturb", "every_updates": 20},
        "seeds": 5,
    },
    "strengths": {"reg": {"name": "spectral", "coef": [1e-4, 1e-2]}},
    "resets": {"reset": {"name": ["none", "periodic", "head"], "periodic": {"every_updates": 25}}, "seeds": 3},
    "periods": {"reset": {"name": "head", "every_updates": [15, 30]}},
    "primed": {"prime_updates": 25, "prime_after_env_steps": 15, "reg": "swr", "measure_every_updates": 20},
    "primed_early": {"prime_updates": 20, "prime_after_env_steps": 5},
    "sequence": {
        "env": CARTPOLE | {"sequence": ["cartpole-swingup", "cartpole-balance"], "switch_every_env_steps": 20},
        "on_change": "clear",
        "reset": {"name": "periodic", "every_updates": None, "every_tasks": 1},
    },
    "dynamics": {"env": CARTPOLE | {"changes": ["dynamics"], "switch_every_env_steps": 25}, "buffer_size": 30},
    "changes": {
        "env": PENDULUM | CHANGING,
        "reg": ["none", "l2_init"],
        "reset": {"name": ["none", "periodic"], "periodic": {"every_updates": None, "every_tasks": 1}},
        "seeds": 3,
    },
    "changes_primed": {
        "env": PENDULUM | {"changes": ["action_flip", "observation_permutation"], "switch_every_env_steps": 25},
        "prime_updates": 20,
        "prime_after_env_steps": 15,
        "reset": {"name": "redo", "every_updates": 20, "every_tasks": 1, "threshold": 0.5},
        "on_change": "clear",
    },
    "overlap": {"overlap": True, "reg": acting("wrs")},
    "overlap_workers": {"overlap": True, "reg": acting("wrs"), "env": PENDULUM | {"workers": 1}},
    "simba": {"agent": SMALL | {"network": "simba"}, "reg": "spectral"},
    "simba_v2": {"preset": "simba_v2", "agent": SMALL, "env": PENDULUM, "measure_every_updates": 20},
    "xqc": {"preset": "xqc", "agent": SMALL},
    "bro": {"preset": "bro", "agent": SMALL, "reset": {"name": "periodic", "every_updates": 30}},
    "flash_sac": {"preset": "flash_sac", "agent": SMALL},
    "redq": {"preset": "redq", "agent": {"name": "later_sac", "hidden": [16, 16]}},
    "droq": {"preset": "droq", "agent": {"name": "later_sac", "hidden": [16, 16]}},
    "dqn": POLE | {"reg": "spectral"},
    "dqn_resets": POLE | {"reg": ["none", "l2_init"], "reset": {"name": "redo", "every_updates": 20}},
    "rainbow": POLE | {"agent": POLE["agent"] | {"name": "rainbow", "dueling": True, "atoms": 5, "num_steps": 3}},
    "two_critics": {"agent": SAC | {"num_critics": 2, "layer_norm": False, "log_std": "tanh"}},
    "normalized": {
        "agent": {"name": "later_sac", "hidden": [16], "normalize_obs": True, "init": "torch", "activation": "crelu"}
    },
    "bfloat16": {"precision": "bfloat16", "bfloat16_from": 1, "reg": "spectral"},
    "injection": {"agent": SAC | {"injected_layers": 2}, "reset": acting("plasticity_injection", every_updates=20)},
    "half_replay_ratio": {"replay_ratio": 0.5, "random_env_steps": 0},
}

MLP: Settings = {"name": "mlp", "widths": [16, 16]}
CONTINUAL: Settings = COMMON | {"data": {"name": "digits", "train_size": 100}, "batch_size": 32, "num_tasks": 2}
CONTINUAL |= {"net": MLP, "epochs_per_task": 3, "checkpoint_every_epochs": 2}
CONTINUAL |= {"eval_every_epochs": 2, "log_every_updates": 3, "measure_every_updates": 8}
SUPERVISED: dict[str, Settings] = {
    "plain": {},
    "threads": {"threads": 2},
    "chain": {"reg": acting("spectral+weight_decay", weight_decay={"coef": 1e-3}), "optimizer": "adamp"},
    "methods": {"reg": ["none", "swr", "wrs+l2"], "reset": {"name": "head", "every_tasks": 1}, "seeds": 5},
    "strengths": {"reg": {"name": "l2_init", "coef": [1e-4, 1e-2]}},
    "decay": {
        "task": {"name": "stationary", "decay_at_epochs": [1, 3]},
        "num_tasks": None,
        "epochs_per_task": 5,
        "reg": ["swr", "wrs", "weight_decay"],
    },
    "augmented": {"data": {"name": "digits", "train_size": 64, "augment": True, "validation": 20}},
    "layer_norm": {"net": MLP | {"layer_norm": True, "activation": "gelu"}, "reg": "swr"},
    "measured": {"net": {"name": "cnn", "channels": 4, "widths": [8]}},
    "parametrized": {
        "net": {"name": "cnn_bn", "channels": 4, "widths": [8], "parametrization": "weight_standardization"},
        "optimizer": "sgd",
        "measure_every_epochs": 2,
    },
    "unstacked": {
        "net": "vit_tiny",
        "seeds": 1,
        "data": {"name": "digits", "train_size": 8},
        "reg": "swr",
        "precision": "bfloat16",
    },
    "bfloat16": {"precision": "bfloat16", "bfloat16_from": 1},
    "injection": {"net": MLP | {"injected_layers": 2}, "reset": acting("plasticity_injection", every_updates=7)},
}

SAME = {"train/overlap_workers": "train/overlap"}  # the first must have the numbers of the second
INTERRUPTED = {train: (23, 47), supervised: (1, 5)}  # the steps after which a run is stopped, and fails
SWEEP = ["reg=none,spectral", "reg.spectral.coef=1e-4,1e-2", "seeds=5"]  # three runs
COMPARISONS: dict[str, tuple[list[str], Settings]] = {
    "train": (["train/methods", "train/plain"], {"target": -1650.0}),
    "changing_tasks": (["train/changes"], {}),
    "supervised": (["supervised/methods"], {"baseline": "none + head"}),
    "sweep": (["sweep"], {}),
}


def runs() -> dict[str, tuple[ModuleType, Settings]]:
    """The command and the settings of each run, by name."""
    methods = {f"reg/{name}": {"reg": acting(name)} for name in REGULARIZERS}
    resets = [name for name in INTERVENTIONS if name != "plasticity_injection"]  # `injection` has a network for it
    methods |= {f"reset/{name}": {"reset": acting(name, every_updates=7)} for name in resets}
    choices = {f"task/{name}": {"task": name} for name in TASKS if name != "stationary"}  # which has no second task
    choices |= {f"optimizer/{name}": {"optimizer": name} for name in OPTIMIZERS}
    found = {f"train/{name}": (train, RL | own) for name, own in (methods | TRAIN).items()}
    return found | {
        f"supervised/{n}": (supervised, CONTINUAL | own) for n, own in (methods | SUPERVISED | choices).items()
    }


WITHOUT: list[str] = []  # metrics that `--without` leaves out, and those of each layer after them


def kept(metric: str) -> bool:
    return not any(f"/{name}/" in f"/{metric}/" for name in WITHOUT)


def sha256(path: Path) -> str:
    """The digest of a CSV file's lines, without those of metrics that are left out."""
    lines = [line for line in path.read_text().splitlines() if all(map(kept, line.split(",")))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


# --- runs of the commands ---------------------------------------------------------------------------------------------


class Failure(BaseException):
    """An end that the package does not expect."""


def of_run(name: str, root: Path) -> str:
    """The digest of a run's metrics.csv.

    Raises:
        ArithmeticError: the run has other numbers when it is interrupted, or than its like in `SAME`.
    """
    command, settings = runs()[name]
    digest = sha256(made(name, root) / "metrics.csv")
    likes = {"when it fails and is resumed": partial(interrupted, command, settings, root / "interrupted" / name)}
    if name in SAME:
        likes[f"than {SAME[name]}"] = partial(made, SAME[name], root)
    for words, like in likes.items():
        if sha256(like() / "metrics.csv") != digest:
            raise ArithmeticError(f"it has other numbers {words}")
    return digest


def made(name: str, root: Path) -> Path:
    """The folder of a run, or of the sweep, which is made unless it is there."""
    folder = root / name
    if folder.exists():
        return folder
    if name != "sweep":
        command, settings = runs()[name]
        command.run(**settings, out=folder)
    else:
        words = [f"{name}={value}" for name, value in flat(CONTINUAL) if name != "seeds"]
        command = [sys.executable, "-m", "rl_plasticity.supervised", "-m", *words, *SWEEP, f"out={folder}"]
        subprocess.run(command, check=True, capture_output=True)
    return folder


def flat(settings: Settings) -> Iterator[tuple[str, str]]:
    """Names and values as on the command line."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from ((name if key == "name" else f"{name}.{key}", text) for key, text in flat(value))
        else:
            yield name, value if isinstance(value, str) else json.dumps(value)


def interrupted(command: ModuleType, settings: Settings, folder: Path) -> Path:
    """Make a run that is stopped, resumed, fails some steps after a checkpoint and is resumed again."""
    stops, fails = INTERRUPTED[command]

    def stop(session: Any) -> None:
        if session.progress.step == stops:
            session.end_early()

    def fail(session: Any) -> None:
        if session.progress.step == fails:
            raise Failure

    command.run(**settings, out=folder, on_step=stop)
    with contextlib.suppress(Failure):
        command.run(resume=folder, on_step=fail)
    command.run(resume=folder)
    return folder


# --- loops of plain torch ---------------------------------------------------------------------------------------------


def mlp() -> nn.Module:
    first = [nn.Linear(12, 16), nn.LayerNorm(16), nn.ReLU()]
    return nn.Sequential(*first, nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def cnn_bn() -> nn.Module:
    norm = nn.BatchNorm2d(4)
    nn.init.constant_(norm.bias[:1], -9)  # a dead channel, for the methods that start such units again
    first = [nn.Conv2d(3, 4, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4))


PLAIN = {"mlp": (mlp, (12,)), "cnn_bn": (cnn_bn, (3, 8, 8))}  # networks and the shapes of their inputs


def of_loop(kind: str, regularizer: str = "none", intervention: str = "", closure: bool = False) -> str:
    """The digest of a network's weights at the end of its loop.

    Raises:
        ArithmeticError: they are those without the method.
    """
    net, *_ = trained(kind, regularizer, intervention, closure)
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in net.state_dict().values())).hexdigest()
    if (regularizer != "none" or intervention) and digest == of_loop(kind):
        raise ArithmeticError("it changes no weight in this loop: settings with which it does belong in ACTING")
    return digest


def trained(
    kind: str, regularizer: str = "none", intervention: str = "", closure: bool = False
) -> tuple[nn.Module, Tensor, Tensor]:
    """A network after its loop, and the last batch."""
    torch.manual_seed(0)
    make, shape = PLAIN[kind]
    net = make()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3) if closure else torch.optim.Adam(net.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    attach(regularizer, optimizer, net, **ACTING.get(regularizer, {}))
    for step in range(12):
        x, y = torch.randn(16, *shape), torch.randint(4, (16,))

        def loss(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            value = nn.functional.cross_entropy(net(x), y)
            value.backward()
            return value

        if closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()
        scheduler.step()
        if intervention and step == 7:
            settings = ACTING.get(intervention, {})
            make_intervention(intervention, **settings).apply_(net, optimizer, example=(x,), make=make)
    return net, x, y


def of_measures(kind: str) -> str:
    net, x, y = trained(kind)
    measured = measure(net, x, nn.functional.cross_entropy, y)
    numbers = {name: value.tolist() for name, value in sorted(measured.items()) if kept(name)}
    return hashlib.sha256(repr(numbers).encode()).hexdigest()


# --- comparisons ------------------------------------------------------------------------------------------------------


def of_comparison(name: str, root: Path) -> str:
    """The digest of comparison.csv."""
    out = root / "compare" / name
    places, options = COMPARISONS[name]
    compare(*(made(place, root) for place in places), out=out, **options)
    return sha256(out / "comparison.csv")


# --- all of them ------------------------------------------------------------------------------------------------------


def digests(root: Path) -> dict[str, Callable[[], str]]:
    """What makes each digest, by the name of its line; the runs and comparisons go to folders in `root`."""
    found: dict[str, Callable[[], str]] = {name: partial(of_run, name, root) for name in runs()}
    for kind in PLAIN:
        found |= {f"attach/{name}/{kind}": partial(of_loop, kind, name) for name in REGULARIZERS}
        changing = [n for n in INTERVENTIONS if n != "plasticity_injection"]  # of a network made for it
        found |= {f"intervene/{n}/{kind}": partial(of_loop, kind, "none", n) for n in changing}
        found[f"measure/{kind}"] = partial(of_measures, kind)
    found["attach/spectral/closure"] = partial(of_loop, "mlp", "spectral", closure=True)
    return found | {f"compare/{name}/comparison.csv": partial(of_comparison, name, root) for name in COMPARISONS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the digests; 1 if one cannot be made or is not what `--against` says, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", default="*", help="which lines: 'train/reg/*'")
    parser.add_argument(
        "--against",
        metavar="FILE",
        type=Path,
        help="an earlier output: report on stderr what is not as it was, and exit with status 1",
    )
    parser.add_argument("--without", metavar="NAME", action="append", default=[], help="a metric to leave out: sigma1")
    given = parser.parse_args(arguments)
    WITHOUT[:] = given.without
    before: dict[str, str] = {}
    if given.against:
        try:
            lines = [line.split() for line in given.against.read_text().splitlines()]
            before = {name: digest for digest, name in lines if fnmatch.fnmatch(name, given.only)}
        except (OSError, ValueError) as error:
            parser.error(f"{given.against} is no output of this script: {error}")
    # In the main thread a run would take Ctrl-C as its own end, and the digest would be of a part.
    one_thread: Settings = {"max_workers": 1, "initializer": torch.set_num_threads, "initargs": (1,)}
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(**one_thread) as beside:
        root = Path(temporary)
        chosen = {name: make for name, make in digests(root).items() if fnmatch.fnmatch(name, given.only)}
        if not chosen:
            parser.error(f"--only {given.only}: no line has such a name; the lines are {', '.join(digests(root))}")
        wrong = False
        for name in chosen | before:
            fault = f"is only in {given.against}"
            if name in chosen:
                try:
                    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                        digest = beside.submit(chosen[name]).result()
                except Exception as error:
                    fault = f"{type(error).__name__}: {error}"
                else:
                    print(digest, name, flush=True)
                    same = not given.against or digest == before.get(name)
                    fault = "" if same else f"{'differs from' if name in before else 'is missing in'} {given.against}"
            if fault:
                wrong = True
                print(f"{name}: {fault}", file=sys.stderr, flush=True)
    return int(wrong)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
