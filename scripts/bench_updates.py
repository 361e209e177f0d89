"""How fast the agent's update is: ``python scripts/bench_updates.py [--runs 1,4] [--threads 1,2] [--peers] ...``.

A complete update samples a batch and noise, and updates critic, target, actor and temperature, with the regularizer's
penalty and projection. The agent is the default one: 2 x 256, LayerNorm, one critic, batch 256. Every number is a rate
of run-updates (one update of one run) a second, and beside it the share of the floor.

The floor is the matrix products that the equations of one update need, and nothing else, into memory of their own:
forward, actor(next_obs), target(next_obs, next_act), critic(obs, act), actor(obs) and critic(obs, new_act); backward,
of the critic's loss the gradients of its three weights and two hidden layers' inputs, of the actor's loss the
gradients of the critic's two hidden inputs and of its action input, then of the actor's three weights and two hidden
inputs.

Floor, plain and compiled updates take turns, 16 updates each, in one process. A ratio is of the same turn; printed are
medians over the turns, and the quartiles of the compiled share. Only ratios mean something on a noisy machine. With one
thread the process's CPU time is taken, which other processes on the machine disturb less; with more, the wall's.

``--networks 256,512,1024,simba,hypersphere`` takes other networks than the default one, 256: two hidden layers of 512
or 1024 in actor and critic, or residual blocks of their default size. The floor is that of their own products.

``--peers`` adds Stable-Baselines3 and SBX (``pip install .[bench]``), each through its own ``train`` function fed
from its own filled replay buffer: with one and two critics, SBX also with LayerNorm, which its critic alone has.
Use ``taskset -c 0`` with it: JAX takes its number of threads from the cores it may use.
``--step`` times the parts of one step of train.py's loop instead, ``--memory`` a real training's peak memory.
"""

import argparse
import itertools
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rl_plasticity.agents import SAC, Agent, Batch, ReplayBuffer, Step
from rl_plasticity.compiling.compiled import compiled
from rl_plasticity.compiling.precision import decided, pays_from, read_bfloat16_
from rl_plasticity.errors import SettingsError
from rl_plasticity.networks import StackedLinear
from rl_plasticity.regularizers import make_regularizer

SIZES = {"cheetah-run": (17, 6), "quadruped-run": (78, 12), "dog-run": (223, 38)}  # obs_dim, act_dim
GROUP, BATCH, HIDDEN, FILLED = 16, 256, 256, 10_000
Group = Callable[[], None]  # makes GROUP updates
NETWORKS: dict[str, dict[str, Any]] = {str(width): {"hidden": (width, width)} for width in (256, 512, 1024)}
NETWORKS |= {name: {"network": name} for name in ("simba", "hypersphere")}


def filled_buffer(runs: int, obs_dim: int, act_dim: int, filled: int = FILLED) -> ReplayBuffer:
    """Random transitions; an episode is truncated after every 1000."""
    buffer = ReplayBuffer(runs, filled, obs_dim, act_dim)
    buffer.start(torch.randn(runs, obs_dim))
    no, yes = torch.zeros(runs, dtype=torch.bool), torch.ones(runs, dtype=torch.bool)
    for i in range(filled):
        obs = torch.randn(runs, obs_dim)
        ends = yes if i % 1000 == 999 else no
        step = Step(*(x.numpy() for x in (obs, torch.rand(runs), no, ends, obs)))
        buffer.add(torch.rand(runs, act_dim) * 2 - 1, step)
    return buffer


def products(
    runs: int, obs_dim: int, act_dim: int, device: str = "cpu", network: str = "256"
) -> list[tuple[Tensor, Tensor]]:
    """The factors of the matrix products of an update."""
    agent = SAC(obs_dim, act_dim, [0], **NETWORKS[network])
    actor, critic = (
        [(m.in_features, m.out_features) for m in one.net.modules() if isinstance(m, StackedLinear)]
        for one in (agent.actor, agent.critic)
    )
    to_action = (act_dim, critic[0][1])
    forward = 2 * actor + 3 * critic
    to_weight = critic + actor
    to_input = [*critic[1:], *critic[1:], to_action, *actor[1:]]
    rand = partial(torch.randn, runs, device=device)
    pairs = [(rand(BATCH, i), rand(o, i).mT) for i, o in forward]  # x W^T
    pairs += [(rand(BATCH, o).mT, rand(BATCH, i)) for i, o in to_weight]  # g^T x
    return pairs + [(rand(BATCH, o), rand(o, i)) for i, o in to_input]  # g W


def floor(runs: int, obs_dim: int, act_dim: int, network: str = "256") -> Group:
    """The bare matrix products of an update."""
    each = [(a, b, torch.bmm(a, b)) for a, b in products(runs, obs_dim, act_dim, network=network)]

    def group() -> None:
        for _ in range(GROUP):
            for a, b, out in each:
                torch.bmm(a, b, out=out)

    return group


def updates(
    agent: Agent, update: Callable[[Batch, Tensor], Any], buffer: ReplayBuffer, size: int = BATCH, number: int = GROUP
) -> Group:
    """This number of updates as train.py makes them between two env steps, on batches of this size."""

    def group() -> None:
        batches = buffer.sample(agent.streams.integers(buffer.size, number * size))
        noise = agent.noise(number, size)
        for i in range(number):
            update(Batch(*(x[:, i * size : (i + 1) * size] for x in batches)), noise[i])

    return group


def interleaved(groups: dict[str, Group], rounds: int, threads: int) -> dict[str, list[float]]:
    """Seconds of each group in each round, after two rounds of warming up."""
    clock = time.process_time if threads == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in groups}
    for _ in range(rounds + 2):
        for name, group in groups.items():
            start = clock()
            group()
            seconds[name].append(clock() - start)
    return {name: times[2:] for name, times in seconds.items()}


def ratio(a: list[float], b: list[float]) -> float:
    """The median over rounds of a / b."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def make_agent(
    runs: int, obs_dim: int, act_dim: int, reg: str, precision: str = "float32", network: str = "256"
) -> SAC:
    agent = SAC(obs_dim, act_dim, range(runs), lambda net: make_regularizer(reg, net), **NETWORKS[network])
    if precision == "bfloat16":
        layers = read_bfloat16_(agent, pays_from("cpu", runs))
        print(f"bfloat16 from a width of {pays_from('cpu', runs)}: {layers} layers", flush=True)
    return agent


def table(options: argparse.Namespace) -> None:
    regs = options.reg.split(",")
    kinds = [(reg, decided(precise, "cpu")) for precise in options.precision.split(",") for reg in regs]
    head = f"{'size':<14}{'network':<13}{'reg':<19}{'precision':<10}{'runs':>4}{'threads':>8}"
    head += f"{'floor':>8}{'plain':>8}{'compiled':>9}"
    print(
        f"{head}{'plain/floor':>12}{'compiled/floor':>15}  quartiles   run-updates/s (first compiled update)",
        flush=True,
    )
    for size, network in itertools.product(options.sizes.split(","), options.networks.split(",")):
        obs_dim, act_dim = SIZES[size]
        for runs in map(int, options.runs.split(",")):
            buffer = filled_buffer(runs, obs_dim, act_dim)
            for threads in map(int, options.threads.split(",")):
                torch.set_num_threads(threads)
                torch._dynamo.reset()
                groups = {"floor": floor(runs, obs_dim, act_dim, network)}
                start = {}
                for kind in kinds:
                    agents = [make_agent(runs, obs_dim, act_dim, *kind, network) for _ in range(2)]
                    fast = updates(agents[1], compiled(agents[1].update), buffer)
                    began = time.perf_counter()
                    fast()
                    start[kind] = time.perf_counter() - began
                    groups[f"plain {kind}"] = updates(agents[0], agents[0].update, buffer)
                    groups[f"compiled {kind}"] = fast
                seconds = interleaved(groups, options.rounds, threads)
                rates = {name: runs * GROUP / statistics.median(times) for name, times in seconds.items()}
                for kind in kinds:
                    plain, fast_ = f"plain {kind}", f"compiled {kind}"
                    shares = [f / c for f, c in zip(seconds["floor"], seconds[fast_], strict=True)]
                    low, _, high = statistics.quantiles(shares, n=4)
                    print(
                        f"{size:<14}{network:<13}{kind[0]:<19}{kind[1]:<10}{runs:>4}{threads:>8}{rates['floor']:>8.0f}{rates[plain]:>8.0f}"
                        f"{rates[fast_]:>9.0f}{ratio(seconds['floor'], seconds[plain]):>12.2f}"
                        f"{statistics.median(shares):>15.2f}  {low:.2f}-{high:.2f}   ({start[kind]:.0f} s)",
                        flush=True,
                    )
                for kind in kinds[1:]:
                    more = ratio(seconds[f"compiled {kind}"], seconds[f"compiled {kinds[0]}"]) - 1
                    print(f"  compiled, {' '.join(kind)} costs {more:+.1%} over {' '.join(kinds[0])}", flush=True)


# --- the peers ------------------------------------------------------------------------------------------------------


def peer(library: str, obs_dim: int, act_dim: int, num_critics: int, layer_norm: bool) -> Group:
    if library == "sbx":
        from sbx import SAC as Theirs

        more = {"layer_norm": layer_norm}
    else:
        from stable_baselines3 import SAC as Theirs  # type: ignore[assignment]

        more = {}
    policy = {"net_arch": [HIDDEN, HIDDEN], "n_critics": num_critics} | more
    return partial(filled_peer(Theirs, obs_dim, act_dim, policy).train, GROUP, BATCH)


def filled_peer(theirs: Any, obs_dim: int, act_dim: int, policy: dict[str, Any], **settings: Any) -> Any:
    """A model of the class `theirs`, of SBX or Stable-Baselines3, with a filled replay buffer.

    Its ``train(updates, batch size)`` ends, in SBX, by reading the losses, so nothing is left running.
    """
    import gymnasium as gym
    import numpy as np
    from stable_baselines3.common.logger import Logger

    class Nothing(gym.Env):  # type: ignore[type-arg]
        observation_space = gym.spaces.Box(-np.inf, np.inf, (obs_dim,), np.float32)
        action_space = gym.spaces.Box(-1, 1, (act_dim,), np.float32)

    model = theirs("MlpPolicy", Nothing(), batch_size=BATCH, buffer_size=FILLED, policy_kwargs=policy, **settings)
    model.set_logger(Logger(None, []))
    random = np.random.default_rng(0)
    for _ in range(FILLED):
        obs, next_obs = random.standard_normal((2, 1, obs_dim), dtype=np.float32)
        act = random.uniform(-1, 1, (1, act_dim)).astype(np.float32)
        model.replay_buffer.add(obs, next_obs, act, random.random(1), np.zeros(1), [{}])
    return model


def peers(options: argparse.Namespace) -> None:
    threads = int(options.threads.split(",")[0])
    torch.set_num_threads(threads)
    print(
        f"{'size':<14}{'what':<40}{'updates/s':>10}{'of floor':>10}{'ours, as much':>15}   threads={threads}",
        flush=True,
    )
    for size in options.sizes.split(","):
        obs_dim, act_dim = SIZES[size]
        buffer = filled_buffer(1, obs_dim, act_dim)
        torch._dynamo.reset()
        groups = {"floor": floor(1, obs_dim, act_dim)}
        same: dict[str, str] = {}  # which of ours a peer is compared with
        for critics in (1, 2):
            for norm in (True, False):
                agent = SAC(obs_dim, act_dim, [0], num_critics=critics, layer_norm=norm)
                ours = f"ours compiled, {critics} critic, {'LayerNorm' if norm else 'none'}"
                groups[ours] = updates(agent, compiled(agent.update), buffer)
                for library in ("sbx", "sb3"):
                    if norm and library == "sb3":  # it has no LayerNorm
                        continue
                    name = ours.replace("ours compiled", library)
                    groups[name] = peer(library, obs_dim, act_dim, critics, norm)
                    same[name] = ours
        seconds = interleaved(groups, options.rounds, threads)
        for name, times in seconds.items():
            theirs = f"{ratio(times, seconds[same[name]]):>14.2f}x" if name in same else ""
            rate, share = GROUP / statistics.median(times), ratio(seconds["floor"], times)
            print(f"{size:<14}{name:<40}{rate:>10.0f}{share:>10.2f}{theirs}", flush=True)
        default = next(name for name in groups if name.startswith("ours"))
        for name in same:
            print(f"  {default} is {ratio(seconds[name], seconds[default]):.2f} x {name}", flush=True)


# --- one step of the loop, and memory -------------------------------------------------------------------------------


def step_parts(options: argparse.Namespace) -> None:
    """Milliseconds of each part of train.py's loop, replay ratio 16, a log entry every 1000 updates."""
    from rl_plasticity.configs.commands import Train
    from rl_plasticity.configs.schema import load
    from rl_plasticity.envs import Envs
    from rl_plasticity.runs.folder import RunFolder
    from rl_plasticity.runs.machine import resolved
    from rl_plasticity.runs.plan import Plan
    from rl_plasticity.runs.progress import Progress
    from rl_plasticity.runs.session import Session
    from rl_plasticity.training.updates import Updates

    size, threads = options.sizes.split(",")[0], int(options.threads.split(",")[0])
    torch.set_num_threads(threads)
    print(f"{size}, threads={threads}: ms of one env step of all runs (share)")
    for runs in map(int, options.runs.split(",")):
        envs = Envs(size, range(runs), 1, False)
        agent = make_agent(runs, envs.obs_dim, envs.act_dim, options.reg.split(",")[0])
        buffer = filled_buffer(runs, envs.obs_dim, envs.act_dim)
        obs, metrics = torch.from_numpy(envs.reset()), {}
        buffer.start(obs)
        update = compiled(agent.update)
        parts: dict[str, list[float]] = {
            n: [] for n in ("act", "env", "to the device, store", "sample", "update", "log")
        }
        with tempfile.TemporaryDirectory() as folder:
            s = resolved(load(Train, [f"seeds={runs}", "device=cpu", "threads=1", "compile=false"]))
            session = Session(s, RunFolder(folder), Plan.of(s))
            begun = session.begun({"agent": agent}, Progress(), unit="env steps", total=1, save_every=1)
            with begun:
                log = Updates(session, agent, agent.learners, agent.losses, (), lambda _, agent=agent: agent).log
                for _ in range(options.rounds * 20):
                    marks = [time.perf_counter()]
                    act = agent.act(obs.unsqueeze(1), agent.streams.normal(1, envs.act_dim)).squeeze(1)
                    marks.append(time.perf_counter())
                    step = envs.step(act.numpy())
                    marks.append(time.perf_counter())
                    buffer.add(act, step)
                    obs = buffer.newest_obs
                    marks.append(time.perf_counter())
                    batches = buffer.sample(agent.streams.integers(buffer.size, GROUP * BATCH))
                    noise = agent.noise(GROUP, BATCH)
                    marks.append(time.perf_counter())
                    for i in range(GROUP):
                        metrics = update(Batch(*(x[:, i * BATCH : (i + 1) * BATCH] for x in batches)), noise[i])
                    marks.append(time.perf_counter())
                    log(metrics)
                    marks.append(time.perf_counter())
                    for times, (a, b) in zip(parts.values(), pairwise(marks), strict=True):
                        times.append(b - a)
        envs.close()
        ms = {name: 1e3 * statistics.median(times[2:]) for name, times in parts.items()}
        ms["log"] *= GROUP / 1000
        total = sum(ms.values())
        print(f"runs={runs:<3}", "  ".join(f"{n} {t:.2f} ({t / total:.1%})" for n, t in ms.items()), flush=True)


def memory(options: argparse.Namespace) -> None:
    """Bytes per stored transition, and the peak resident memory of real trainings of 10 runs."""
    for size, (obs_dim, act_dim) in SIZES.items():
        buffer = ReplayBuffer(1, 100_000, obs_dim, act_dim)
        held = sum(x.nbytes for x in (buffer.obs, buffer.act, buffer.reward, buffer.end, buffer.last_obs))
        last_obs = 4 * obs_dim / 1000  # one for an episode of 1000
        ours, apart = held / (buffer.capacity + 1) + last_obs, 4 * (2 * obs_dim + act_dim + 2)
        print(f"{size:<14} {ours:>7.1f} bytes a transition, obs and next_obs apart {apart}: {ours / apart:.2f}")
    runs = [int(n) for n in options.runs.split(",")][-1]
    for compile_ in ("false", "true"):
        with tempfile.TemporaryDirectory() as folder:
            settings = ["env=cheetah-run", f"seeds={runs}", "random_env_steps=1000", "total_env_steps=1010"]
            settings += ["device=cpu", "threads=1", f"compile={compile_}", "eval_episodes=1", f"out={folder}/run"]
            before = time.perf_counter()
            command = [sys.executable, "-m", "rl_plasticity.train", *settings]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # the largest so far
        print(f"compile={compile_}: {runs} runs, 1 010 env steps: {peak:.0f} MB, {time.perf_counter() - before:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--runs", default="1,2,4,10")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--networks", default="256", help=f"of {','.join(NETWORKS)}")
    parser.add_argument("--reg", default="none", help="several, as none,spectral: what each costs over the first")
    parser.add_argument("--precision", default="float32", help="or float32,bfloat16: the floor is float32's for both")
    parser.add_argument("--rounds", type=int, default=15)
    for mode in ("peers", "step", "memory"):
        parser.add_argument(f"--{mode}", action="store_true")
    options = parser.parse_args()
    if unknown := {*options.networks.split(",")} - {*NETWORKS}:
        parser.error(f"unknown network {unknown.pop()!r}; there are {', '.join(NETWORKS)}")
    modes = {"peers": peers, "step": step_parts, "memory": memory}
    try:
        next((run for name, run in modes.items() if getattr(options, name)), table)(options)
    except SettingsError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
