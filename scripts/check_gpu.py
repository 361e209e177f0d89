"""Whether the package's GPU path is right, and how fast it is: ``python scripts/check_gpu.py [--out gpu]``.

One command, in about eight minutes, for a checkout and a Python with torch and CUDA (torch 2.11 to 2.13) and numpy;
what else is missing is named in one line, and what needs it is left out. It writes ``gpu.json``, after each part what
is known so far, and at the end ``gpu.md``. The exit status is 1 if a number was wrong. ``--device cpu --small`` tries
every part on the CPU in minutes, where "captured" is plain: that is how the tests run it. The parts (``--parts``):
"""

import argparse
import importlib.util
import itertools
import json
import math
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from bench import SIZES, agent_of, products, watching
from torch import Tensor, nn

from rl_plasticity.agents import DQN, SAC, Batch, ReplayBuffer, Step
from rl_plasticity.agents.sac import critic_loss
from rl_plasticity.compiling.compiled import Captured, compiled, processor
from rl_plasticity.compiling.fastest import fastest, passes
from rl_plasticity.compiling.precision import has_bfloat16, pays_from, read_bfloat16_, tf32
from rl_plasticity.errors import first_line
from rl_plasticity.interventions import make_intervention
from rl_plasticity.learning.learner import Learner, follow_
from rl_plasticity.networks import make_network
from rl_plasticity.regularizers import REGULARIZERS, Chain, Regularizer, SideBySide, make_regularizer

NEEDED = ["gymnasium", "dm_control", "shimmy", "yaml", "filelock", "tqdm", "tensorboard"]
DUE = {7: ("periodic", [0, 2]), 11: ("redo", None), 13: ("head", [1]), 17: ("shrink_perturb", [3])}
RESUMED, UPDATES = 20, 30


@dataclass
class Bounds:
    """How much is done: little on a CPU in the tests."""

    device: str
    hidden: tuple[int, ...]
    batch: int
    seconds: float  # of each timing
    until: float  # by time.monotonic(), nothing long is begun later
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


def chain(names: str, net: nn.Module) -> Regularizer:
    return Chain(net, *(make_regularizer(name, net) for name in names.split("+")))


def methods(names: Sequence[str], net: nn.Module) -> Regularizer:
    """Every regularizer on a run of its own, and a chain of two."""
    return SideBySide(net, *((1, partial(chain, name)) for name in names))


def transitions(b: Bounds, runs: int, *seeds: int, sizes: tuple[int, int] = (17, 6)) -> tuple[Batch, Tensor]:
    """A batch and the noise of an update, the same numbers on every device; for several seeds with a leading axis."""
    each = []
    for seed in seeds:
        g = torch.Generator().manual_seed(seed)
        obs, next_obs = (torch.randn(runs, b.batch, sizes[0], generator=g) for _ in range(2))
        act = torch.rand(runs, b.batch, sizes[1], generator=g) * 2 - 1
        reward = torch.rand(runs, b.batch, generator=g)
        discount = torch.where(torch.rand(runs, b.batch, generator=g) < 0.1, 0.0, 0.99)
        each.append((obs, act, reward, next_obs, discount, torch.randn(2, runs, b.batch, sizes[1], generator=g)))
    *batch, noise = (torch.stack(x).squeeze(0).to(b.device) for x in zip(*each, strict=True))
    return Batch(*batch), noise


def differences(module: nn.Module, like: nn.Module, but: Sequence[str] = ()) -> dict[str, Tensor]:
    """|difference| / (1e-4 + 1e-3 |value|) of all that updates change: above 1 is not rounding."""
    found, others = {}, like.state_dict()
    for name, value in module.state_dict().items():
        if value.is_floating_point() and not any(word in name for word in ("_extra_state", *but)):
            mine, other = value.cpu().double(), others[name].cpu().double()
            found[name] = ((mine - other).abs() / (1e-4 + 1e-3 * other.abs())).nan_to_num(float("inf"))
    return found


def agreed(way: str, worst: dict[str, float]) -> dict[str, float]:
    """The worst `differences`, all of which are rounding."""
    if wrong := {name: value for name, value in worst.items() if not value <= 1}:
        raise ArithmeticError(f"{way} updates are not the plain ones: {wrong}")
    return worst


def make_updates(b: Bounds, agent: SAC, update: Callable[..., Any]) -> None:
    """With interventions, and in the middle as if the agent had been resumed."""
    (runs,) = agent.temperature.net.runs
    for number in range(1, UPDATES + 1):
        batch, noise = transitions(b, runs, number)
        update(batch, noise)
        if number in DUE:
            name, chosen = DUE[number]
            make_intervention(name, every_updates=number).apply_(agent, runs=chosen, inputs=agent.inputs(batch))
        if number == RESUMED:
            saved = {name: value.clone() for name, value in agent.state_dict().items()}
            update(batch, noise)  # is undone: what was recorded has to read the state that is loaded
            agent.load_state_dict(saved)


def equal(b: Bounds) -> dict[str, Any]:
    """Plain updates against captured ones (CUDA graphs), compiled ones and both, with resets of chosen runs between.

    Every regularizer is on a run of its own in one agent, and a chain. Few are compiled: a graph of all takes minutes.
    """
    some = [name for name in TO_COMPILE if name in NAMES]
    ways: dict[str, tuple[list[str], Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
        "captured": (NAMES, lambda update: capture(update, b)),
        "compiled": (some, lambda update: graph_of(update, b)),
        "compiled and captured": (some, lambda update: capture(graph_of(update, b), b)),
    }
    found = {}
    for way, (names, made) in ways.items():
        of_names = {"make_regularizer": partial(methods, names), "hidden": b.hidden, "device": b.device}
        plain, agent = (SAC(17, 6, range(len(names)), **of_names) for _ in range(2))
        make_updates(b, plain, plain.update)
        make_updates(b, agent, made(agent.update))
        worst = torch.zeros(len(names)).double()
        for difference in differences(agent, plain).values():
            if difference.ndim and len(difference) == len(names):
                worst = worst.maximum(difference.reshape(len(names), -1).amax(1))
        found[way] = agreed(way, dict(zip(names, worst.tolist(), strict=True)))
    return found


def agents(b: Bounds) -> dict[str, Any]:
    """Plain against captured updates of the agents of papers, each with its own networks, and their rate."""
    if absent := missing():
        return {"left out, because of": absent}
    worst, per_second = {}, {}
    for name in AGENTS if b.on_gpu else AGENTS[-3:]:
        shape, changes = (4, 10, 10) if name == "minatar" else (17,), [] if b.on_gpu else ["agent.hidden=[16,16]"]
        (plain, _), (agent, _) = (agent_of(name, shape, 6, *changes, device=b.device) for _ in range(2))
        sizes = math.prod(shape), 1 if isinstance(agent, DQN) else 6
        of_plain, of_agent = (
            [one.update, *([one.update_critic] if hasattr(one, "update_critic") else [])] for one in (plain, agent)
        )
        of_agent = [capture(update, b) for update in of_agent]
        for number in range(12):  # of each kind enough to be replayed
            batch, noise = inputs = transitions(b, 1, number, sizes=sizes)
            if isinstance(agent, DQN):
                inputs = batch._replace(act=(3 * batch.act + 3).floor().clamp(max=5)), noise
            of_plain[number % len(of_plain)](*inputs)
            of_agent[number % len(of_agent)](*inputs)
        worst[name] = max(float(difference.max()) for difference in differences(agent, plain).values())
        every = getattr(agent, "actor_every_updates", 1)
        in_turn = itertools.cycle([of_agent[-1]] * (every - 1) + [of_agent[0]])
        per_second[name] = rate(lambda in_turn=in_turn, inputs=inputs: next(in_turn)(*inputs), b)  # type: ignore[misc]
    return {"difference / (1e-4 + 1e-3 |value|) after 12 updates": agreed("captured", worst), "updates/s": per_second}


def supervised(b: Bounds) -> dict[str, Any]:
    """Plain updates of `cnn_bn`, whose norm layers keep running statistics, against captured ones, also compiled."""

    def learner() -> Learner:
        make = partial(make_network, "cnn_bn", (1, 8, 8), 10)
        return Learner(make, [0, 1], partial(make_regularizer, "spectral"), device=b.device)

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
    # A convolution's bias before batch norm moves by rounding alone, and the running mean with it.
    each = [differences(one, plain, ("running_mean", "net.0.bias", "net.4.bias")) for one in others]
    worst = [max(float(difference.max()) for difference in one.values()) for one in each]
    found = dict(zip(("captured", "compiled and captured"), worst, strict=True))
    return {"difference / (1e-4 + 1e-3 |value|) after 10 updates": agreed("these", found)}


def precision(b: Bounds) -> dict[str, Any]:
    """Errors of products in float32, TF32 and bfloat16 / the exact root mean square; the discount keeps its digits."""
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
    batch, noise = transitions(b, 1, 0)
    agent.update(batch, noise)
    assert all(value.dtype != torch.bfloat16 for value in agent.state_dict().values())
    assert batch.discount.max().item() == torch.tensor(0.99).item()
    return {"largest error / rms": found, "bfloat16 units": has_bfloat16(b.device)}


# --- how fast -------------------------------------------------------------------------------------------------------


def rate(call: Callable[[], object], b: Bounds, at_once: int = 10) -> float:
    """Calls a second, of which so many are waited for together."""
    for _ in range(5):
        call()
    settle(b)
    number, start = 0, time.perf_counter()
    while time.perf_counter() - start < b.seconds:
        for _ in range(at_once):
            call()
        settle(b)
        number += at_once
    return number / (time.perf_counter() - start)


def floor(b: Bounds, runs: int, obs_dim: int, act_dim: int, kind: str) -> float:
    """How often a second the bare products of an update are made, captured as one graph."""
    pairs = products(runs, obs_dim, act_dim, b.device)
    if kind == "bfloat16":
        pairs = [(x.bfloat16(), y.bfloat16()) for x, y in pairs]
    every = capture(lambda: {str(i): torch.bmm(x, y) for i, (x, y) in enumerate(pairs)}, b)
    return rate(every, b)


def kernels_of(call: Callable[[], object], b: Bounds) -> dict[str, float]:
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


def way_of(name: str, agent: SAC, b: Bounds) -> tuple[Callable[..., Any], int]:
    """Updates of an agent in a way, and how many of them a call makes: those of "x16" get 16 batches and noises."""
    kind, _, several = name.partition(" x")
    update = graph_of(agent.update, b) if kind == "compiled" else agent.update
    if several:

        def each(batches: Batch, noise: Tensor) -> dict[str, Tensor]:
            for i in range(int(several)):
                metrics = update(Batch(*(x[i] for x in batches)), noise[i])
            return metrics  # type: ignore[no-any-return]

        return capture(each, b), int(several)
    return (update if kind == "plain" else capture(update, b)), 1


def spectral_agent(b: Bounds, runs: int, sizes: tuple[int, int] = (17, 6), device: str | None = None) -> SAC:
    return SAC(*sizes, range(runs), partial(make_regularizer, "spectral"), hidden=b.hidden, device=device or b.device)


def speed(b: Bounds) -> dict[str, Any]:
    """Run-updates a second by each way, for 1 to 100 runs, in each precision, and 16 updates in one graph.

    The share of the floor is of the bare products of an update (bench.py), captured alike. Beside it: kernels, the gaps
    between them and peak memory. Rows are in the order of their interest, until the time is up.
    """
    rows: list[dict[str, Any]] = []

    def row(way: str, runs: int, kind: str = "float32", size: str = "cheetah-run") -> dict[str, Any]:
        if b.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        torch._dynamo.reset()
        with tf32(kind == "tf32"):
            agent = spectral_agent(b, runs, SIZES[size])
            if kind == "bfloat16":
                read_bfloat16_(agent, pays_from(b.device, runs))
            call, makes = way_of(way, agent, b)
            inputs = transitions(b, runs, *range(makes), sizes=SIZES[size])
            began = time.perf_counter()
            call(*inputs)
            settle(b)
            found: dict[str, Any] = {"first call s": time.perf_counter() - began}
            per_second = makes * rate(lambda: call(*inputs), b)
            found |= {"run-updates/s": runs * per_second, "us per update": 1e6 / per_second}
            found["share of the floor"] = per_second / floor(b, runs, *SIZES[size], kind)
            if b.on_gpu and way != "plain":
                found |= kernels_of(lambda: call(*inputs), b)
                found |= {"peak MiB": torch.cuda.max_memory_allocated() / 2**20}
        return found

    ten = 10 if b.on_gpu else 2
    wanted: list[tuple[Any, ...]] = [("plain", ten), ("captured", ten), ("captured x16", ten), ("compiled", ten)]
    wanted += [(way, ten, "tf32") for way in ("captured", "compiled", "compiled x16") if b.on_gpu]
    if b.on_gpu:
        wanted += [("compiled x16", ten), ("captured", ten, "bfloat16"), ("captured", 1), ("captured", 40)]
        wanted += [("compiled", 1), ("compiled", 40), ("captured", 4), ("captured", 100), ("compiled", ten, "bfloat16")]
        wanted += [(way, ten, "float32", size) for way in ("captured", "compiled") for size in [*SIZES][1:]]
    for one in wanted:
        what = dict(zip(("way", "runs", "precision", "size"), one, strict=False))
        late = time.monotonic() > b.until
        try:
            rows.append(what | (row(*one) if not late else {"left out": "no time"}))
        except Exception as error:  # of the compiler, or of a machine that has too little memory
            rows.append(what | {"left out": first_line(error)[:300]})
    return {"rows": rows}


def ways(b: Bounds) -> dict[str, Any]:
    """How a run of 1 and of 2 seeds makes its updates, by its own trial, and what was wrong with faster ways."""
    found = {}
    for runs in (1, 2):
        lines: list[str] = []
        agent = spectral_agent(b, runs)
        fastest(agent.update, b.device, b.on_gpu, lines.append)(*transitions(b, runs, 0))
        found[f"{runs} runs"] = lines
    return found


def exact(b: Bounds) -> dict[str, Any]:
    """|change - the exact one| / |the exact one| of all weights in 1, 10 and 16 updates, beside float32 on the CPU."""
    runs, at = 4, (1, 10, 16)
    first = spectral_agent(b, runs, device="cpu")
    start = {n: v for n, v in first.state_dict().items() if "_extra_state" not in n}

    def weights(agent: SAC) -> Tensor:
        return nn.utils.parameters_to_vector(agent.parameters()).detach().cpu().double()

    def updated_by(way: str, device: str, kind: torch.dtype) -> dict[int, Tensor]:
        agent = spectral_agent(b, runs, device=device).to(kind)
        call, makes = way_of(way, agent, b)
        seen = {}
        if makes > 1:
            for _ in range(Captured.WARM_UP + 1):  # recorded; then from the start by one replay
                call(*transitions(b, runs, *range(500, 500 + makes)))
        agent.load_state_dict({n: v.to(device) for n, v in start.items()}, strict=False)
        for number in range(0, 16, makes):
            batch, noise = transitions(b, runs, *range(100 + number, 100 + number + makes))
            call(Batch(*(x.to(device, kind) for x in batch)), noise.to(device, kind))
            seen[number + makes] = weights(agent)
        return seen

    before, truth = weights(first), updated_by("plain", "cpu", torch.float64)

    def errors(seen: dict[int, Tensor]) -> dict[int, float]:
        return {n: float((seen[n] - truth[n]).norm() / (truth[n] - before).norm()) for n in at if n in seen}

    own = errors(updated_by("plain", "cpu", torch.float32))
    found: dict[str, Any] = {"float32 on the CPU": own}
    for way in ("plain", "captured", "captured x16", "compiled"):
        found[way] = errors(updated_by(way, b.device, torch.float32))
        if not all(worst <= 10 * own[number] + 1e-5 for number, worst in found[way].items()):
            raise ArithmeticError(f"{way} updates are not exact: {found}")
    return found


# --- where the time goes ----------------------------------------------------------------------------------------------


def probe(b: Bounds) -> dict[str, Any]:
    """Microseconds of a small kernel in a graph, and of an update's bare products."""
    runs = 10 if b.on_gpu else 2
    x = torch.zeros(runs, device=b.device)

    def additions() -> dict[str, Tensor]:
        for _ in range(200):
            x.add_(1)
        return {"x": x}

    found = {"dependent small kernel": 1e6 / 200 / rate(capture(additions, b), b)}
    for kind in ["float32", *(["tf32", "bfloat16"] if b.on_gpu else [])]:
        with tf32(kind == "tf32"):
            found[f"bare products, {kind}"] = 1e6 / floor(b, runs, 17, 6, kind)
    return found


def kernels(b: Bounds) -> dict[str, Any]:
    """Microseconds and kernels of stages of an update, each captured alone."""
    runs = 10 if b.on_gpu else 2
    agent = spectral_agent(b, runs)
    batch, noise = transitions(b, runs, 1)
    agent.update(batch, noise)
    net, optimizer = agent.critic.net, agent.critic.optimizer
    parameters = list(net.parameters())
    gradients = [torch.randn_like(p) for p in parameters]

    def first(loss: Tensor) -> dict[str, Tensor]:
        return {"g": torch.autograd.grad(loss.sum(), parameters, allow_unused=True)[0]}

    def changed(_: object) -> dict[str, Tensor]:
        return {"s": optimizer.step}

    stages = {
        "whole update": lambda: agent.update(batch, noise),
        "target": lambda: {"t": agent.target(batch, noise[0])},
        "critic forward and backward": lambda: first(critic_loss(net(batch.obs, batch.act), batch.reward)),
        "critic's penalty and its gradient": lambda: first(agent.critic.regularizer.penalty(net)),
        "critic's Adam": lambda: changed(optimizer.update_(parameters, gradients)),
        "target network's step": lambda: changed(follow_(agent.critic_target, net, agent.tau)),
        "act": lambda: {"a": agent.act(batch.obs)},
    }
    found = {}
    for name, stage in stages.items():
        graph = capture(stage, b)
        found[name] = {"us": 1e6 / rate(graph, b)} | (kernels_of(graph, b) if b.on_gpu else {})
    return found


def loop(b: Bounds) -> dict[str, Any]:
    """Milliseconds of what an env step does beside its updates, waiting after each, and of what comes seldom."""
    runs = 10 if b.on_gpu else 2
    agent, size = spectral_agent(b, runs), b.batch
    buffer = ReplayBuffer(runs, 100_000 if b.on_gpu else 1000, 17, 6, device=b.device)
    buffer.start(torch.zeros(runs, 17, device=b.device))
    obs, none = np.ones((runs, 17), np.float32), np.zeros(runs, bool)
    act, step = torch.zeros(runs, 6, device=b.device), Step(obs, obs[:, 0], none, none, obs)
    for _ in range(500):
        buffer.add(act, step)
    batch, noise = transitions(b, runs, 1)

    def save() -> None:
        with tempfile.TemporaryFile() as file:
            torch.save(agent.state_dict(), file)

    parts: dict[str, Callable[[], object]] = {
        "an action": lambda: agent.act(buffer.newest_obs.unsqueeze(1), agent.streams.normal(1, 6)).cpu(),
        "store": lambda: buffer.add(act, step),
        "16 batches": lambda: buffer.sample(agent.streams.integers(buffer.size, 16, size).movedim(1, 0).contiguous()),
        "noise of 16 updates": lambda: agent.noise(16, size),
        **watching(agent, batch, noise),
        "a checkpoint of the agent": save,
    }
    return {name: 1e3 / rate(part, b, at_once=1) for name, part in parts.items()}


def env(b: Bounds) -> dict[str, Any]:
    """Microseconds of a step of 10 environments, by the number of worker processes."""
    if absent := missing():
        return {"left out, because of": absent}
    from rl_plasticity.envs import Envs

    found: dict[str, Any] = {"cores": os.cpu_count()}
    for workers in (False, 1, 2, 5, 10) if b.on_gpu else (False, 1):
        envs = Envs("cheetah-run", range(10), workers=workers)
        envs.reset()
        act = np.random.default_rng(0).uniform(-1, 1, (10, envs.act_dim)).astype(np.float32)
        found[f"us of a step, {workers or 'no'} workers"] = 1e6 / rate(partial(envs.step, act), b)
        envs.close()
    return found


def waits(b: Bounds) -> dict[str, Any]:
    """Between an action and the next nothing may wait for the device: torch raises an error where something does."""
    runs, updates, steps = 3, 2, 20
    agent = spectral_agent(b, runs)
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
    """The rate of a real training of 10 runs; without simulators, of updates on generated transitions for as long."""
    if absent := missing():
        agent = SAC(17, 6, range(10), hidden=b.hidden, device=b.device)
        update, number, start = fastest(agent.update, b.device, b.on_gpu), 0, time.perf_counter()
        while time.perf_counter() - start < b.train_seconds:
            metrics = update(*transitions(b, 10, number))
            number += 1
        assert all(bool(value.isfinite().all()) for value in metrics.values())
        return {"generated transitions, because of": absent, "updates of 10 runs": number}
    from rl_plasticity import train as command

    marks: list[tuple[float, int, int]] = []

    def turn(session: Any) -> None:
        at, now = session.progress, time.perf_counter()
        if at.updates >= 16 * 20 and not marks:  # compiled and captured by now
            marks.append((now, at.step, at.updates))
        if marks and now - marks[0][0] > b.train_seconds:
            marks.append((now, at.step, at.updates))
            session.end_early()

    runs = 10 if b.on_gpu else 2
    settings = {"env": "cheetah-run", "reg": "spectral", "seeds": runs, "device": b.device, "batch_size": b.batch}
    settings |= {"agent": {"name": "sac", "hidden": [*b.hidden]}, "random_env_steps": 500 if b.on_gpu else 20}
    settings |= {"total_env_steps": 10**6, "eval_every_env_steps": 10**6, "eval_episodes": 1, "compile": b.on_gpu}
    settings |= {"measure_every_updates": 0, "log_every_updates": 16_000}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command.run(on_step=turn, out=f"{folder}/run", **settings)
    (start, steps, updates), (end, last, made) = marks[0], marks[-1]
    found = {"run-updates/s": runs * (made - updates) / (end - start), "seconds until the 320th update": start - began}
    return found | {"ms of an env step": 1e3 * (end - start) / (last - steps)}


# ------------------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Bounds], dict[str, Any]]] = {
    "ways": ways, "waits": waits, "precision": precision, "equal": equal, "exact": exact, "train": train,
    "speed": speed, "probe": probe, "kernels": kernels, "loop": loop, "env": env, "supervised": supervised,
    "agents": agents,
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
            texts = ({n: f"{v:,.2f}" if isinstance(v, float) else str(v) for n, v in row.items()} for row in rows)
            table = [names, ["---"] * len(names), *([row.get(n, "") for n in names] for row in texts)]
            lines += [*(f"| {' | '.join(cells)} |" for cells in table), ""]
        if found:
            lines += ["```json", json.dumps(found, indent=1), "```", ""]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    of_parts = "".join(f"\n- {name}: {part.__doc__}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}{of_parts}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="small networks and little of everything")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of the parts above, with commas; default: all")
    parser.add_argument("--minutes", type=float, default=8, help="no part and no row is begun later; default: 8")
    parser.add_argument("--train-seconds", type=float, default=60, help="of the part train; default: 60")
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
            part["found"] = PARTS[name](b) if time.monotonic() < b.until else {"left out": "no time"}
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
