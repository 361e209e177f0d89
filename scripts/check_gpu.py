"""Whether the package's GPU path is right, and how fast it is: ``python scripts/check_gpu.py [--out gpu]``.

One command, under eight minutes, for a checkout and a Python with torch and CUDA (torch 2.11 to 2.13) and numpy; what
else is missing is named in one line, and what needs it is left out. It writes ``gpu.json``, after each part what is
known so far, and at the end ``gpu.md``. The exit status is 1 if a number was wrong. The parts (``--parts``):

- equal: plain updates against captured ones (CUDA graphs), compiled ones and both, 30 updates with resets of chosen
  runs between the replays and a resume in the middle; every regularizer on a run of its own in one agent, and a chain.
  A few of them are compiled: a graph of all takes minutes.
- agents: the same for the agents of papers, each with its own networks, and the rate at which captured ones learn.
- supervised: the same for updates of ``cnn_bn``, whose norm layers keep running statistics.
- waits: between an action and the next nothing waits for the device.
- cpu: the same agent on the CPU and on the GPU from one state, 10 updates.
- precision: products in float32, TF32 and bfloat16 against float64, and whether the discount keeps its digits.
- bench: run-updates a second for 1 to 100 runs at three sizes, captured, and the share of the floor, which is the bare
  products of an update (bench.py) captured alike; compiled too where the time suffices (``--minutes``);
  of one replay the kernels and the time between them; peak memory.
- train: a real training of 10 runs, environments in worker processes (``--train-seconds``); with generated transitions
  where gymnasium or dm_control are missing.

``--device cpu --small`` runs every part but CUDA graphs in seconds on the CPU: that is how the tests run it.
"""

import argparse
import importlib.util
import itertools
import json
import math
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from bench import SIZES, agent_of, products
from torch import Tensor, nn

from rl_plasticity.agents import DQN, SAC, Batch, ReplayBuffer, Step
from rl_plasticity.compiling.compiled import Captured, compiled
from rl_plasticity.compiling.fastest import fastest, passes
from rl_plasticity.compiling.precision import has_bfloat16, pays_from, read_bfloat16_, tf32
from rl_plasticity.interventions import make_intervention
from rl_plasticity.learning.learner import Learner
from rl_plasticity.networks import make_network
from rl_plasticity.regularizers import REGULARIZERS, Chain, Regularizer, SideBySide, make_regularizer
from rl_plasticity.runs.provenance import processor

NEEDED = ["gymnasium", "dm_control", "shimmy", "yaml", "filelock", "tqdm", "tensorboard"]
DUE = {7: ("periodic", [0, 2]), 11: ("redo", None), 13: ("head", [1]), 17: ("shrink_perturb", [3])}
RESUMED, UPDATES = 20, 30


@dataclass
class Bounds:
    """How much is done: little on a CPU in the tests."""

    device: str
    hidden: tuple[int, ...]
    batch: int
    runs: tuple[int, ...]
    sizes: dict[str, tuple[int, int]]
    seconds: float  # of each timing
    until: float  # by time.monotonic(), no compilation is begun later
    train_seconds: float

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


class AsRecorded(Captured):
    """A `Captured` for a CPU, which has nothing to record with: the same bookkeeping, the call itself replayed."""

    def run_apart(self, inputs: tuple[Any, ...]) -> dict[str, Tensor]:
        return self.update(*inputs)

    def record(self, inputs: tuple[Any, ...]) -> Callable[[], dict[str, Tensor]]:
        return lambda: self.update(*inputs)


def capture(update: Callable[..., Any], b: Bounds) -> Captured:
    return (Captured if b.on_gpu else AsRecorded)(update)


def graph_of(update: Callable[..., Any], b: Bounds) -> Callable[..., Any]:
    """`update` compiled with the first options that a run tries."""
    return compiled(update, b.device, **passes()[0]) if b.on_gpu else compiled(update)


def settle(b: Bounds) -> None:
    """Wait until the device has done everything."""
    if b.on_gpu:
        torch.cuda.synchronize()


NAMES = [*REGULARIZERS, "spectral+swr"]
TO_COMPILE = ["none", "spectral", "swr", "wrs", "churn", "spectral+swr"]
AGENTS = ["simba_v2", "xqc", "flash_sac", "bro", "sr_sac", "redq", "droq", "minatar"]


def methods(names: Sequence[str], net: nn.Module) -> Regularizer:
    """Every regularizer on a run of its own, and a chain of two."""

    def maker(name: str) -> Callable[[nn.Module], Regularizer]:
        return lambda net: Chain(net, *(make_regularizer(part, net) for part in name.split("+")))

    return SideBySide(net, *((1, maker(name)) for name in names))


def transitions(b: Bounds, runs: int, obs_dim: int, act_dim: int, seed: int, device: str) -> tuple[Batch, Tensor]:
    """A batch and the noise of an update, the same numbers on every device."""
    g = torch.Generator().manual_seed(seed)
    obs, next_obs = (torch.randn(runs, b.batch, obs_dim, generator=g) for _ in range(2))
    act = torch.rand(runs, b.batch, act_dim, generator=g) * 2 - 1
    reward = torch.rand(runs, b.batch, generator=g)
    discount = torch.where(torch.rand(runs, b.batch, generator=g) < 0.1, 0.0, 0.99)
    batch = Batch(*(x.to(device) for x in (obs, act, reward, next_obs, discount)))
    return batch, torch.randn(2, runs, b.batch, act_dim, generator=g).to(device)


def states(agent: SAC | DQN) -> dict[str, Tensor]:
    """What updates change, random streams left out."""
    return {n: v for n, v in agent.state_dict().items() if "_extra_state" not in n and v.is_floating_point()}


def off(value: Tensor, other: Tensor) -> Tensor:
    """|difference| / (1e-4 + 1e-3 |value|) of every number: above 1 is not rounding."""
    value, other = value.cpu().double(), other.cpu().double()
    return ((value - other).abs() / (1e-4 + 1e-3 * other.abs())).nan_to_num(float("inf"))


def apart(names: Sequence[str], a: SAC, b: SAC) -> dict[str, float]:
    """By method the number of its run that is most `off`."""
    worst = torch.zeros(len(names))
    theirs = states(b)
    for name, value in states(a).items():
        of_runs = off(value, theirs[name])
        if value.ndim and len(value) == len(names):
            worst = torch.maximum(worst, of_runs.flatten(1).amax(1).float() if value.ndim > 1 else of_runs.float())
    return dict(zip(names, worst.tolist(), strict=True))


def side_by_side(b: Bounds, device: str, names: Sequence[str]) -> SAC:
    return SAC(17, 6, range(len(names)), partial(methods, names), hidden=b.hidden, device=device)


def updated(b: Bounds, agent: SAC, update: Callable[..., Any], updates: int) -> Iterator[SAC]:
    """The agent after each update, with interventions, and in between as if it had been resumed."""
    due = {n: (make_intervention(name, every_updates=n), runs) for n, (name, runs) in DUE.items()}
    first = agent.critic_target.critics[0][0].weight  # type: ignore[index, union-attr]
    runs_in_all, device = len(first), first.device.type  # type: ignore[arg-type, union-attr]
    for number in range(1, updates + 1):
        batch, noise = transitions(b, runs_in_all, 17, 6, number, device)
        update(batch, noise)
        if number in due:
            intervention, runs = due[number]
            chosen = None if runs is None else [run % runs_in_all for run in runs]
            intervention.apply_(agent, runs=chosen, inputs=agent.inputs(batch))
        if number == RESUMED:
            saved = {name: value.clone() for name, value in agent.state_dict().items()}
            update(batch, noise)  # is undone: what was recorded has to read the state that is loaded
            agent.load_state_dict(saved)
        yield agent


def equal(b: Bounds) -> dict[str, Any]:
    """Plain against captured with every method; compiled, and both, with some."""
    found = like_plain(b, NAMES, {"captured": lambda agent: capture(agent.update, b)})

    ways: dict[str, Callable[[SAC], Callable[..., Any]]] = {
        "compiled": lambda agent: graph_of(agent.update, b),
        "compiled and captured": lambda agent: capture(graph_of(agent.update, b), b),
    }
    return found | like_plain(b, [name for name in TO_COMPILE if name in NAMES], ways)


def like_plain(b: Bounds, names: Sequence[str], ways: dict[str, Callable[[SAC], Callable[..., Any]]]) -> dict[str, Any]:
    """How far updates made in these ways are from plain ones, by way and method."""
    plain, agent = side_by_side(b, b.device, names), side_by_side(b, b.device, names)
    start = {name: value.clone() for name, value in agent.state_dict().items()}
    *_, plain = updated(b, plain, plain.update, UPDATES)
    found = {}
    for name, way in ways.items():
        agent.load_state_dict(start)
        *_, agent = updated(b, agent, way(agent), UPDATES)
        found[name] = apart(names, agent, plain)
        wrong = {method: worst for method, worst in found[name].items() if not worst <= 1}
        if wrong:
            raise ArithmeticError(f"{name} updates are not the plain ones: {wrong}")
    return found


def agents(b: Bounds) -> dict[str, Any]:
    """Agents of papers, at their own sizes: captured updates are the plain ones, and so many a second are made."""
    if absent := missing():
        return {"left out, because of": absent}
    found = {}
    for name in AGENTS if b.on_gpu else AGENTS[-3:]:
        shape, changes = (4, 10, 10) if name == "minatar" else (17,), [] if b.on_gpu else ["agent.hidden=[16,16]"]
        (plain, _), (agent, _) = (agent_of(name, shape, 6, *changes, device=b.device) for _ in range(2))
        obs_dim, act_dim = math.prod(shape), 1 if isinstance(agent, DQN) else 6
        of_plain, of_agent = (
            [one.update, *([one.update_critic] if hasattr(one, "update_critic") else [])] for one in (plain, agent)
        )
        of_agent = [capture(update, b) for update in of_agent]
        for number in range(12):  # of each kind enough to be replayed
            batch, noise = inputs = transitions(b, 1, obs_dim, act_dim, number, b.device)
            if isinstance(agent, DQN):
                inputs = batch._replace(act=(3 * batch.act + 3).floor().clamp(max=5)), noise
            of_plain[number % len(of_plain)](*inputs)
            of_agent[number % len(of_agent)](*inputs)
        theirs = states(plain)
        worst = max(float(off(value, theirs[key]).max()) for key, value in states(agent).items())
        if not worst <= 1:
            raise ArithmeticError(f"captured updates of {name} are not the plain ones: {worst}")
        every = getattr(agent, "actor_every_updates", 1)
        in_turn = itertools.cycle([of_agent[-1]] * (every - 1) + [of_agent[0]])
        per_second = rate(lambda in_turn=in_turn, inputs=inputs: next(in_turn)(*inputs), b)  # type: ignore[misc]
        found[name] = {"difference / (1e-4 + 1e-3 |value|) after 12 updates": worst, "updates/s": per_second}
    return found


def supervised(b: Bounds) -> dict[str, Any]:
    """Plain against captured, and compiled and captured, for a network with batch norm on images."""

    def learner() -> Learner:
        def make(seeds: Sequence[int]) -> nn.Module:
            return make_network("cnn_bn", (1, 8, 8), 10, seeds)

        return Learner(make, [0, 1], lambda net: make_regularizer("spectral", net), device=b.device)

    def way(one: Learner) -> Callable[..., dict[str, Tensor]]:
        def update(x: Tensor, y: Tensor) -> dict[str, Tensor]:
            loss = -one.net(x).log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1).mean(-1)
            return one.minimize(loss, x) | {"loss": loss.detach()}

        return update

    plain, *others = [learner() for _ in range(3)]
    ways = [way(plain), capture(way(others[0]), b), capture(graph_of(way(others[1]), b), b)]
    for number in range(10):
        g = torch.Generator().manual_seed(number)
        x, y = torch.randn(2, b.batch, 1, 8, 8, generator=g), torch.randint(10, (2, b.batch), generator=g)
        for update in ways:
            update(x.to(b.device), y.to(b.device))
    found, before_norms = {}, ("net.0.bias", "net.4.bias")
    for name, one in zip(("captured", "compiled and captured"), others, strict=True):
        # A convolution's bias before batch norm moves by rounding alone, and the running mean with it.
        theirs = plain.state_dict()
        mine = {k: v for k, v in one.state_dict().items() if "running_mean" not in k and k not in before_norms}
        found[name] = max(float(off(value, theirs[key]).max()) for key, value in mine.items())
    if not max(found.values()) <= 1:
        raise ArithmeticError(f"updates are not the plain ones: {found}")
    return {"difference / (1e-4 + 1e-3 |value|) after 10 updates": found}


def cpu(b: Bounds) -> dict[str, Any]:
    """The CPU against the device, 10 updates from one state."""
    one, other = side_by_side(b, "cpu", NAMES), side_by_side(b, b.device, NAMES)
    pairs = zip(updated(b, one, one.update, 10), updated(b, other, other.update, 10), strict=True)
    found = {}
    for number, (one, other) in enumerate(pairs, 1):
        if number in (1, 10):
            found[f"after {number}"] = max(apart(NAMES, other, one).values())
    assert found["after 1"] <= 1, f"the first update differs from the CPU's: {found}"
    return found


def precision(b: Bounds) -> dict[str, Any]:
    """Errors of a product by precision, relative to the root mean square of the exact one; the discount's digits."""
    a, w = torch.randn(4, 256, 256, device=b.device), torch.randn(4, 256, 256, device=b.device)
    exact = torch.bmm(a.double(), w.double())

    def error(product: Tensor) -> float:
        return float((product.double() - exact).abs().max() / exact.square().mean().sqrt())

    found = {"float32": error(torch.bmm(a, w)), "bfloat16": error(torch.bmm(a.bfloat16(), w.bfloat16()))}
    if b.on_gpu:
        with tf32(True):
            found["tf32"] = error(torch.bmm(a, w))
        assert 1e-5 < found["tf32"] < 0.02, found
    assert found["float32"] < 1e-4, found
    assert found["bfloat16"] < 0.1, found
    agent = SAC(17, 6, [0], hidden=b.hidden, device=b.device)
    read_bfloat16_(agent, 1)
    batch, noise = transitions(b, 1, 17, 6, 0, b.device)
    agent.update(batch, noise)
    assert all(value.dtype != torch.bfloat16 for value in agent.state_dict().values())
    assert batch.discount.max().item() == torch.tensor(0.99).item()
    return {"largest error / rms": found, "bfloat16 units": has_bfloat16(b.device)}


# --- how fast -------------------------------------------------------------------------------------------------------


def rate(call: Callable[[], object], b: Bounds) -> float:
    """Calls a second."""
    for _ in range(5):
        call()
    settle(b)
    number, start = 0, time.perf_counter()
    while time.perf_counter() - start < b.seconds:
        for _ in range(10):
            call()
        settle(b)
        number += 10
    return number / (time.perf_counter() - start)


def floor(b: Bounds, runs: int, obs_dim: int, act_dim: int, kind: str) -> float:
    """How often a second the bare products of an update are made, captured as one graph."""
    pairs = products(runs, obs_dim, act_dim, b.device)
    if kind == "bfloat16":
        pairs = [(x.bfloat16(), y.bfloat16()) for x, y in pairs]
    every = capture(lambda: {str(i): torch.bmm(x, y) for i, (x, y) in enumerate(pairs)}, b)
    return rate(every, b)


def kernels(call: Callable[[], object], b: Bounds) -> dict[str, float]:
    """Of one replay: how many kernels run, the microseconds that they take, and those between them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        settle(b)
    spans = sorted(
        (e.time_range.start, e.time_range.end)
        for e in profiler.events() or []
        if e.device_type == torch.autograd.DeviceType.CUDA
    )
    if not spans:
        return {}
    busy = sum(end - start for start, end in spans)
    return {"kernels": len(spans), "busy us": busy, "between us": max(e for _, e in spans) - spans[0][0] - busy}


def bench(b: Bounds) -> dict[str, Any]:
    """Rows of the table; compiled ones in the order of their interest, until the time is up."""
    rows: list[dict[str, Any]] = []
    kinds = ["float32"] + ["tf32"] * b.on_gpu + ["bfloat16"] * (has_bfloat16(b.device) or not b.on_gpu)

    def row(size: str, runs: int, kind: str, way: str, reg: str = "none") -> None:
        obs_dim, act_dim = b.sizes[size]
        if b.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        with tf32(kind == "tf32"):
            agent = SAC(
                obs_dim, act_dim, range(runs), lambda net: make_regularizer(reg, net), hidden=b.hidden, device=b.device
            )
            if kind == "bfloat16":
                read_bfloat16_(agent, pays_from(b.device, runs))
            fast = capture(agent.update if way == "captured" else graph_of(agent.update, b), b)
            inputs = transitions(b, runs, obs_dim, act_dim, 0, b.device)
            began = time.perf_counter()
            fast(*inputs)
            settle(b)
            first_call = time.perf_counter() - began
            per_second = rate(lambda: fast(*inputs), b)
            share = per_second / floor(b, runs, obs_dim, act_dim, kind)
            what = {"size": size, "runs": runs, "precision": kind, "way": way, "reg": reg}
            rows.append(what | {"run-updates/s": runs * per_second, "share of the floor": share})
            rows[-1] |= {"first call s": round(first_call, 1)}
            if b.on_gpu:
                rows[-1] |= kernels(lambda: fast(*inputs), b)
                rows[-1] |= {"peak MiB": torch.cuda.max_memory_allocated() / 2**20}

    first = next(iter(b.sizes))
    several = max(r for r in b.runs if r <= 40)
    wanted = [(first, several, kind, "compiled", "none") for kind in kinds] + [
        (first, several, "float32", "compiled", "spectral")
    ]
    for size in b.sizes:
        for runs in b.runs:
            for kind in kinds:
                row(size, runs, kind, "captured")
    wanted += [(size, runs, kind, "compiled", "none") for kind in kinds for size in b.sizes for runs in b.runs]
    left = []
    for one in dict.fromkeys(wanted):
        if time.monotonic() < b.until:
            row(*one)
        else:
            left.append(" ".join(map(str, one)))
    return {"rows": rows, "no time for": left}


def waits(b: Bounds) -> dict[str, Any]:
    """Between an action and the next nothing may wait for the device: torch raises an error where something does."""
    runs, updates, steps = 3, 2, 20
    agent = SAC(17, 6, range(runs), partial(make_regularizer, "spectral"), hidden=b.hidden, device=b.device)
    buffer = ReplayBuffer(runs, 15, 17, 6, device=b.device)  # it wraps around
    buffer.start(torch.zeros(runs, 17, device=b.device))
    update = capture(agent.update, b)
    ends = np.arange(steps)[:, None] % 7 == np.arange(runs)  # no two at once

    def step(number: int) -> None:
        obs = np.full((runs, 17), number, np.float32)
        terminated, truncated = (ends[number] & (np.arange(runs) > 0)), ends[number] & (np.arange(runs) == 0)
        act = agent.act(buffer.newest_obs.unsqueeze(1), agent.streams.normal(1, 6)).squeeze(1)
        buffer.add(act, Step(obs, obs[:, 0], terminated, truncated, obs + 0.5))
        batches = buffer.sample(agent.streams.integers(buffer.size, updates * b.batch))
        noise = agent.noise(updates, b.batch)
        for i in range(updates):
            update(Batch(*(x[:, i * b.batch : (i + 1) * b.batch] for x in batches)), noise[i])

    try:
        for number in range(steps):
            if number == steps // 2 and b.on_gpu:  # by now everything has been allocated and recorded
                torch.cuda.set_sync_debug_mode("error")
            step(number)
    finally:
        if b.on_gpu:
            torch.cuda.set_sync_debug_mode("default")
    newest = buffer.sample(torch.full((runs, 1), buffer.size - 1, device=b.device))
    assert newest.reward.flatten().tolist() == [steps - 1.0] * runs, newest.reward
    return {"env steps without waiting": steps - steps // 2}


def train(b: Bounds) -> dict[str, Any]:
    """A real training, or, where the simulators are missing, updates on generated transitions for as long."""
    absent = missing()
    if absent:
        agent = SAC(17, 6, range(10), hidden=b.hidden, device=b.device)
        update, number, start = fastest(agent.update, b.device, b.on_gpu), 0, time.perf_counter()
        while time.perf_counter() - start < b.train_seconds:
            metrics = update(*transitions(b, 10, 17, 6, number, b.device))
            number += 1
        assert all(bool(value.isfinite().all()) for value in metrics.values())
        return {"generated transitions, because of": absent, "updates of 10 runs": number}
    import tempfile

    from rl_plasticity import train as command

    start, seen = time.perf_counter(), {}

    def turn(session: Any) -> None:
        seen.update(step=session.progress.step, updates=session.progress.updates)
        if time.perf_counter() - start > b.train_seconds:
            session.end_early()

    settings = {"env": "cheetah-run", "agent": {"name": "sac", "hidden": [*b.hidden]}, "seeds": 10 if b.on_gpu else 2}
    settings |= {"device": b.device, "random_env_steps": 1000 if b.on_gpu else 20, "batch_size": b.batch}
    settings |= {"total_env_steps": 10**6, "eval_every_env_steps": 2000, "eval_episodes": 1, "compile": b.on_gpu}
    with tempfile.TemporaryDirectory() as folder:
        curves = command.run(on_step=turn, out=f"{folder}/run", **settings).metrics()
    returns = {str(run): own["train/return"].values.tolist() for run, own in curves.items() if "train/return" in own}
    return {"env steps": seen["step"], "updates": seen["updates"], "returns": returns}


# ------------------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Bounds], dict[str, Any]]] = {
    "equal": equal, "agents": agents, "supervised": supervised, "waits": waits, "cpu": cpu, "precision": precision,
    "bench": bench, "train": train,
}  # fmt: skip


def missing() -> list[str]:
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def machine(device: str) -> dict[str, Any]:
    chip = torch.cuda.get_device_name() if device == "cuda" else processor()
    return {"chip": chip, "torch": torch.__version__, "CUDA": torch.version.cuda, "python": platform.python_version()}


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    lines = [f"# {report['machine']['chip']}", "", ", ".join(f"{k} {v}" for k, v in report["machine"].items()), ""]
    for name, part in report["parts"].items():
        lines += [f"## {name}", "", part.get("wrong") or f"right, {part['seconds']:.0f} s", ""]
        found = dict(part.get("found", {}))
        if rows := found.pop("rows", []):
            names = list(dict.fromkeys(n for row in rows for n in row))
            table = [names, ["---"] * len(names), *([_cell(row.get(n, "")) for n in names] for row in rows)]
            lines += [*(f"| {' | '.join(cells)} |" for cells in table), ""]
        if found:
            lines += ["```json", json.dumps(found, indent=1), "```", ""]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="small networks and little of everything")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--minutes", type=float, default=2.7, help="after so many no compilation of the bench is begun")
    parser.add_argument("--train-seconds", type=float, default=280)
    parser.add_argument("--out", default="gpu", help="the reports' name without .json and .md")
    options = parser.parse_args(arguments)
    if unknown := {*options.parts.split(",")} - {*PARTS}:
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --device cpu --small tries the script")
    if absent := missing():
        print(f"not installed, so left out where it is needed: {', '.join(absent)}", file=sys.stderr)
    small = options.small
    b = Bounds(
        device=options.device,
        hidden=(16, 16) if small else (256, 256),
        batch=16 if small else 256,
        runs=(1, 2) if small else (1, 4, 10, 40, 100),
        sizes={"cheetah-run": (17, 6)} if small else SIZES,
        seconds=0.01 if small else 0.4,
        until=time.monotonic() + 60 * options.minutes,
        train_seconds=options.train_seconds,
    )
    warnings.simplefilter("ignore")  # swr says of the actor's clamp that it is approximate there
    report: dict[str, Any] = {"machine": machine(b.device), "parts": {}}
    for name in options.parts.split(","):
        torch.manual_seed(0)
        torch._dynamo.reset()
        start = time.perf_counter()
        part: dict[str, Any] = {}
        try:
            part["found"] = PARTS[name](b)
        except Exception as error:  # whatever it is, the other parts are still to be seen
            part["wrong"] = f"{type(error).__name__}: {error}"
        part["seconds"] = time.perf_counter() - start
        report["parts"][name] = part
        Path(f"{options.out}.json").write_text(json.dumps(report, indent=1))
        print(f"{name}: {part.get('wrong') or 'right'} ({part['seconds']:.0f} s)", flush=True)
    Path(f"{options.out}.md").write_text(markdown(report))
    return int(any("wrong" in part for part in report["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
