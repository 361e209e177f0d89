"""How fast the package is, as ratios: ``python scripts/bench.py WHAT [--rounds 15] [--threads 1] ...``.

WHAT is one of these. All that is compared takes turns in one process, and a ratio is of the same turn:

- updates: plain and compiled updates of the default agent beside the *floor*, the bare matrix products of one update,
  each by the fastest kernel of the machine.
- peers: Stable-Baselines3's and SBX's soft actor-critic beside ours (``pip install .[bench]``; SBX knows no threads,
  so use ``taskset -c 0``).
- dqn: DQN's updates beside Stable-Baselines3's, plain torch's and the floor, for the sizes of MinAtar and CartPole.
- agents: the agents of papers' presets at their own sizes.
- regularizers: what each adds to a compiled update. ``attached``: what each adds to a step of a loop in plain torch.
- supervised: an epoch of the command beside one of a loop in plain torch.
- measuring: what measurements and lines of the log cost beside updates.
- processes: runs in one process beside processes of one run each, at rest and beside ``--neighbours`` busy processes.

Printed are rates of run-updates (one update of one run), and ratios with their quartiles. With one thread the clock is
the process's CPU time, which other processes disturb less; with more, the wall's.
"""

import argparse
import contextlib
import copy
import io
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.agents import DQN, SAC, Agent, Batch, ReplayBuffer, Step
from rl_plasticity.compiling.compiled import compiled, processor
from rl_plasticity.compiling.precision import decided, onednn_pays_from, pays_from, read_bfloat16_, use_onednn_
from rl_plasticity.compiling.products import onednn
from rl_plasticity.diagnosis.probe import PROBE_SIZE, Probe, size_of
from rl_plasticity.networks import StackedLinear
from rl_plasticity.regularizers import REGULARIZERS, make_regularizer

SIZES = {"cheetah-run": (17, 6), "quadruped-run": (78, 12), "dog-run": (223, 38)}  # obs_dim, act_dim
GROUP, BATCH, FILLED = 16, 256, 10_000
Options = argparse.Namespace


class Timed(NamedTuple):
    """A call, and how many run-updates it makes."""

    call: Callable[[], object]
    makes: int


def report(title: str, timed: dict[str, Timed], beside: Sequence[str], o: Options) -> None:
    """Time all in turn; print rates, and how many times the rates of those in `beside` they are."""
    clock = time.process_time if o.threads == 1 else time.perf_counter
    rates: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(o.rounds + 2):
        for name, (call, makes) in timed.items():
            start = clock()
            call()
            if turn >= 2:  # the first warm up
                rates[name].append(makes / (clock() - start))
    print(f"\n{title}, {o.threads} threads, {processor()}; oneDNN pays from width {onednn_pays_from()}")
    print(f"{'':<36}{'a second':>10}" + "".join(f"{'times ' + name:>30}" for name in beside))
    for name, own in rates.items():
        cells = (f"{ratio(own, rates[other]):>30}" for other in beside)
        print(f"{name:<36}{statistics.median(own):>10.1f}{''.join(cells)}", flush=True)


def ratio(a: Sequence[float], b: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles((x / y for x, y in zip(a, b, strict=True)), n=4)
    return f"{middle:.3f} ({low:.2f}-{high:.2f})"


# --- updates of agents ------------------------------------------------------------------------------------------------


def products(runs: int, obs_dim: int, act_dim: int, device: str = "cpu") -> list[tuple[Tensor, Tensor]]:
    """The factors of the matrix products that the equations of one update need.

    Forward: actor(next_obs), target(next_obs, next_act), critic(obs, act), actor(obs), critic(obs, new_act). Backward:
    of the critic's loss to its weights and hidden inputs; of the actor's loss through the critic to the action, and to
    the actor's weights and hidden inputs.
    """
    agent = SAC(obs_dim, act_dim, [0])
    actor, critic = (
        [(m.in_features, m.out_features) for m in one.net.modules() if isinstance(m, StackedLinear)]
        for one in (agent.actor, agent.critic)
    )
    to_input = [*critic[1:], *critic[1:], (act_dim, critic[0][1]), *actor[1:]]
    rand = partial(torch.randn, runs, device=device)
    pairs = [(rand(BATCH, i), rand(o, i).mT) for i, o in 2 * actor + 3 * critic]  # x W^T
    pairs += [(rand(BATCH, o).mT, rand(BATCH, i)) for i, o in critic + actor]  # g^T x
    return pairs + [(rand(BATCH, o), rand(o, i)) for i, o in to_input]  # g W


def multiplying(pairs: Sequence[tuple[Tensor, Tensor]], runs: int = 1) -> Timed:
    """The floor: the bare products of `GROUP` updates, into memory of their own."""
    each = [quicker(*(x if x.ndim == 3 else x.unsqueeze(0) for x in pair)) for pair in pairs]

    def call() -> None:
        for _ in range(GROUP):
            for product in each:
                product()

    return Timed(call, GROUP * runs)


def quicker(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    """The product by the faster of the kernels of this machine."""

    kernels = [partial(torch.bmm, a, b, out=a @ b), partial(onednn, a, b.mT)]
    kernels.append(partial(torch.bmm, b.mT, a.mT, out=b.mT @ a.mT))
    return min(kernels, key=lambda call: min(timeit.repeat(call, number=10, repeat=10)))


def on_this_machine(agent: Any) -> Any:
    """The agent with the products that a run would choose."""
    use_onednn_(agent, onednn_pays_from())
    return agent


def filled_buffer(runs: int, obs_dim: int, act_dim: int, actions: int = 0) -> ReplayBuffer:
    """Random transitions, of so many actions or of any; an episode is truncated after every 1000."""
    buffer = ReplayBuffer(runs, FILLED, obs_dim, act_dim)
    buffer.start(torch.randn(runs, obs_dim))
    no, yes = np.zeros(runs, np.bool_), np.ones(runs, np.bool_)
    for i in range(FILLED):
        obs, reward = torch.randn(runs, obs_dim).numpy(), torch.rand(runs).numpy()
        act = torch.randint(actions, (runs, 1)).float() if actions else torch.rand(runs, act_dim) * 2 - 1
        buffer.add(act, Step(obs, reward, no, yes if i % 1000 == 999 else no, obs))
    return buffer


def updates(
    agent: Agent, update: Callable[[Batch, Tensor], Any], buffer: ReplayBuffer, size: int = BATCH, number: int = GROUP
) -> Timed:
    """This number of updates as train.py makes them between two env steps, on batches of this size."""

    def call() -> None:
        batches = buffer.sample(agent.streams.integers(buffer.size, number * size))
        noise = agent.noise(number, size)
        for i in range(number):
            update(Batch(*(x[:, i * size : (i + 1) * size] for x in batches)), noise[i])

    return Timed(call, number * buffer.runs)


def of_updates(o: Options) -> None:
    kinds = list(itertools.product(o.reg, o.precision))
    for size, runs in itertools.product(o.sizes, o.runs):
        buffer = filled_buffer(runs, *SIZES[size])
        timed = {"floor": multiplying(products(runs, *SIZES[size]), runs)}
        for reg, precision in kinds:
            for way in ("plain", "compiled"):
                agent = on_this_machine(SAC(*SIZES[size], range(runs), partial(make_regularizer, reg)))
                if decided(precision, "cpu") == "bfloat16":
                    read_bfloat16_(agent, pays_from("cpu", runs))
                update = compiled(agent.update) if way == "compiled" else agent.update
                timed[f"{way} {reg} {precision}"] = updates(agent, update, buffer)
        report(f"{size}, {runs} runs", timed, ["floor", f"compiled {' '.join(kinds[0])}"], o)


def of_peers(o: Options) -> None:
    import gymnasium as gym

    def peer(library: str, policy: dict[str, Any]) -> Timed:
        model = filled_peer(__import__(library).SAC, *boxes, policy, batch_size=BATCH)
        return Timed(partial(model.train, GROUP, BATCH), GROUP)

    for size in o.sizes:
        boxes = [gym.spaces.Box(-most, most, (n,)) for most, n in zip((math.inf, 1.0), SIZES[size], strict=True)]
        buffer, timed = filled_buffer(1, *SIZES[size]), {"floor": multiplying(products(1, *SIZES[size]))}
        for critics, norm in itertools.product((1, 2), (True, False)):
            what = f"{critics} critics, {'LayerNorm' if norm else 'none'}"
            agent = on_this_machine(SAC(*SIZES[size], [0], num_critics=critics, layer_norm=norm))
            timed[f"ours, {what}"] = updates(agent, compiled(agent.update), buffer)
            policy = {"net_arch": [256, 256], "n_critics": critics}
            timed[f"SBX, {what}"] = peer("sbx", policy | {"layer_norm": norm})
            if not norm:  # which Stable-Baselines3 has not
                timed[f"SB3, {what}"] = peer("stable_baselines3", policy)
        report(size, timed, [name for name in timed if name.startswith("ours")], o)


def filled_peer(kind: Any, obs_space: Any, act_space: Any, policy: dict[str, Any], **settings: Any) -> Any:
    import gymnasium as gym
    from stable_baselines3.common.logger import Logger

    class Nothing(gym.Env[Any, Any]):
        observation_space, action_space = obs_space, act_space

    model = kind("MlpPolicy", Nothing(), buffer_size=FILLED, policy_kwargs=policy, **settings)
    model.set_logger(Logger(None, []))
    for _ in range(FILLED):
        obs, next_obs = obs_space.sample()[None], obs_space.sample()[None]
        model.replay_buffer.add(obs, next_obs, np.array([act_space.sample()]), np.random.rand(1), np.zeros(1), [{}])  # noqa: NPY002
    return model


def network_of(shape: tuple[int, ...], actions: int) -> nn.Sequential:
    """In plain torch."""
    if len(shape) == 1:
        return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, actions))
    first = (nn.Conv2d(shape[0], 16, 3), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*first, nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, actions))


def of_dqn(o: Options) -> None:
    cases: dict[str, tuple[tuple[int, ...], int, int, dict[str, Any]]] = {
        "breakout": ((4, 10, 10), 6, 32, {"network": "cnn"}),
        "cartpole": ((4,), 2, 128, {"hidden": (64, 64), "layer_norm": False}),
    }
    for name, (shape, actions, batch, settings) in cases.items():
        timed = {}
        for runs in o.runs:
            agent = on_this_machine(DQN(shape, actions, range(runs), **settings))
            buffer = filled_buffer(runs, math.prod(shape), 1, actions)
            timed[f"ours, {runs} runs"] = updates(agent, compiled(agent.update), buffer, batch)
        timed |= {"SB3": sb3_dqn(shape, actions, batch), "plain torch": plain_dqn(shape, actions, batch)}
        timed["floor"] = multiplying([*dqn_products(network_of(shape, actions), shape, batch)])
        report(name, timed, ["SB3", "plain torch", "floor"], o)


def plain_dqn(shape: tuple[int, ...], actions: int, batch: int) -> Timed:
    """One batch that is a tensor already, as in a script of one file."""
    net, target = network_of(shape, actions), network_of(shape, actions)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
    obs, next_obs = torch.randn(2, batch, *shape)
    act, reward = torch.randint(actions, (batch, 1)), torch.rand(batch)

    def call() -> None:
        for _ in range(GROUP):
            with torch.no_grad():
                best = net(next_obs).argmax(1, keepdim=True)
                goal = reward + 0.99 * target(next_obs).gather(1, best).squeeze(1)
            loss = F.smooth_l1_loss(net(obs).gather(1, act).squeeze(1), goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return Timed(call, GROUP)


def sb3_dqn(shape: tuple[int, ...], actions: int, batch: int) -> Timed:
    import gymnasium as gym
    from stable_baselines3 import DQN as Theirs
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Convolution(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, 128)
            self.layers = network_of(shape, actions)[:5]

        def forward(self, obs: Tensor) -> Any:
            return self.layers(obs)

    arch = {"features_extractor_class": Convolution, "net_arch": []} if shape[1:] else {"net_arch": [64, 64]}
    obs_space = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
    model = filled_peer(Theirs, obs_space, gym.spaces.Discrete(actions), arch, batch_size=batch, device="cpu")
    return Timed(partial(model.train, GROUP, batch), GROUP)


def dqn_products(net: nn.Sequential, shape: tuple[int, ...], batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Those of a convolution with the patches of its images."""
    layers = [layer for layer in net if isinstance(layer, nn.Conv2d | nn.Linear)]
    for depth, layer in enumerate(layers):
        out, *into = layer.weight.shape
        rows, fan_in = batch * math.prod(s - 2 for s in shape[1:] if isinstance(layer, nn.Conv2d)), math.prod(into)
        yield from ((torch.randn(rows, fan_in), torch.randn(out, fan_in).T) for _ in range(3))  # x W^T
        yield torch.randn(rows, out).T, torch.randn(rows, fan_in)  # g^T x
        if depth:
            yield torch.randn(rows, out), torch.randn(out, fan_in)  # g W


def agent_of(preset: str, obs_shape: tuple[int, ...], act_dim: int, *changes: str, device: str = "cpu") -> Any:
    """The agent of a preset, and its batch size."""
    from rl_plasticity.agents import AGENTS
    from rl_plasticity.configs.commands import Train
    from rl_plasticity.configs.schema import load

    s = load(Train, [f"preset={preset}", *changes])
    of_net = partial(make_regularizer, s.reg.name, **s.reg.settings)
    settings = dict(s.agent.settings)
    if settings.get("lr_end"):
        settings["lr_decay_updates"] = 1_000_000
    kind = AGENTS[s.agent.name]
    obs = obs_shape if getattr(kind, "takes_discrete_actions", False) else math.prod(obs_shape)
    agent = kind(obs, act_dim, [0], of_net, **settings, device=device)
    return on_this_machine(agent) if device == "cpu" else agent, s.batch_size


def of_agents(o: Options) -> None:
    number, timed, buffer = 60, {}, filled_buffer(1, *SIZES["cheetah-run"])  # a multiple of all `actor_every_updates`
    for name in o.presets:
        agent, size = agent_of(name, SIZES["cheetah-run"][:1], 6)
        every, whole = getattr(agent, "actor_every_updates", 1), compiled(agent.update)
        between = compiled(agent.update_critic) if every > 1 else whole
        in_turn = itertools.cycle([between] * (every - 1) + [whole])
        timed[name] = updates(agent, lambda *x, turn=in_turn: next(turn)(*x), buffer, size, number)
    report("cheetah-run", timed, o.presets[:1], o)


# --- regularizers -----------------------------------------------------------------------------------------------------


def of_regularizers(o: Options) -> None:
    torch._dynamo.config.recompile_limit = 64  # of one function, which is compiled for each
    for runs in o.runs:
        buffer, timed = filled_buffer(runs, *SIZES["cheetah-run"]), {}
        for name in dict.fromkeys(["none", *(o.reg if o.reg != ["none"] else REGULARIZERS)]):
            agent = on_this_machine(SAC(*SIZES["cheetah-run"], range(runs), partial(make_regularizer, name)))
            timed[name] = updates(agent, compiled(agent.update), buffer)
        report(f"cheetah-run, {runs} runs", timed, ["none"], o)


def of_attached(o: Options) -> None:
    from rl_plasticity import attach
    from rl_plasticity.networks import make_network

    of_gpt = partial(nn.TransformerEncoderLayer, 128, 4, 512, 0.0, batch_first=True, norm_first=True)
    layers = (of_gpt(activation=nn.ReLU()) for _ in range(4))
    gpt = nn.Sequential(nn.Embedding(65, 128), *layers, nn.LayerNorm(128), nn.Linear(128, 65))
    tokens, images, labels = torch.randint(65, (8, 64)), torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
    resnet = make_network("resnet18", (3, 32, 32), 10, [0])
    mlp = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    vectors, names = torch.randn(64, 64), torch.randint(10, (64,))
    kinds = ("MLP", mlp, vectors, names), ("GPT", gpt, tokens, tokens), ("ResNet-18", resnet, images, labels)
    for kind, first, x, y in kinds:
        timed = {}
        for name in dict.fromkeys(["none", *(o.reg if o.reg != ["none"] else REGULARIZERS)]):
            net = copy.deepcopy(first)
            optimizer = torch.optim.Adam(net.parameters())
            attach(name, optimizer, net, example=x, **{"coef": 0.1} if name == "churn" else {})

            def step(net: nn.Module = net, optimizer: Any = optimizer, x: Tensor = x, y: Tensor = y) -> None:
                optimizer.zero_grad()
                F.cross_entropy(net(x).flatten(0, -2), y.flatten()).backward()
                optimizer.step()

            timed[name] = Timed(step, 1)
        report(f"a step of a {kind}", timed, ["none"], o)


# --- commands ---------------------------------------------------------------------------------------------------------


def of_supervised(o: Options) -> None:
    """Between two epochs of the command a loop in plain torch makes one: the same network, Adam(fused=True)."""
    from rl_plasticity import supervised
    from rl_plasticity.tasks import load

    clock = time.process_time if o.threads == 1 else time.perf_counter
    print(f"epochs of preset=demo beside plain torch's, {o.threads} threads, {processor()}")
    for compile_, seeds in ((False, 1), (True, 1), (True, 5)):
        theirs, marks = plain_epochs(load("digits")), list[float]()

        def turn(session: Any, theirs: Iterator[None] = theirs, marks: list[float] = marks) -> None:
            marks.append(clock())
            next(theirs)
            marks.append(clock())

        often = {"eval_every_epochs": 10**6, "checkpoint_every_epochs": 10**6, "epochs_per_task": o.rounds + 4}
        settings = {"preset": "demo", "num_tasks": 1, "measure_every_updates": 0, "device": "cpu", **often}
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            more = {"compile": compile_, "seeds": seeds, "threads": o.threads}
            supervised.run(on_step=turn, out=f"{folder}/run", **settings, **more)
        spans = np.diff(marks)
        times = ratio(seeds * spans[4:-2:2], spans[3:-2:2])  # of an epoch, and of one of ours before it
        print(f"compile={compile_}, {seeds} runs: {times} times plain torch", flush=True)


def plain_epochs(data: Any) -> Iterator[None]:
    widths = itertools.pairwise((64, 100, 100, 10))
    net = nn.Sequential(*(m for i, j in widths for m in (nn.Linear(i, j), nn.ReLU())))[:-1]
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    x, y = data.to_float(data.train_x).flatten(1), torch.randint(10, (len(data.train_x),))
    while True:
        for rows in torch.randperm(len(x)).split(50):
            loss = F.cross_entropy(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield


def watching(agent: Agent, batch: Batch, noise: Tensor) -> dict[str, Callable[[], object]]:
    """A measurement and a row of the log, as train.py makes them between updates."""
    metrics, inputs = agent.update(batch, noise), agent.inputs(batch)
    probes = {name: Probe(learner, inputs[name]) for name, learner in agent.learners.items()}

    def measure() -> None:
        for name, (loss, targets) in agent.example_losses(batch, noise).items():
            probes[name].measure(loss, targets)

    def log() -> None:
        for name, learner in agent.learners.items():
            for value in size_of(learner, metrics[f"{name}/gradient_norm"]).values():
                value.cpu()

    return {"a measurement": measure, "a row of the log": log}


def of_measuring(o: Options) -> None:
    agent, buffer = on_this_machine(SAC(17, 6, [0], partial(make_regularizer, "spectral"))), filled_buffer(1, 17, 6)
    batch, noise = buffer.sample(torch.arange(PROBE_SIZE).unsqueeze(0)), agent.noise(1, PROBE_SIZE)[0]
    timed = {"update": updates(agent, compiled(agent.update), buffer)}
    timed |= {name: Timed(call, 1) for name, call in watching(agent, batch, noise).items()}
    report("cheetah-run", timed, ["update"], o)


# --- processes --------------------------------------------------------------------------------------------------------

SECONDS = 3.0
CASES = [(1, 1, 1), (1, 4, 1), (4, 1, 1), (1, 4, 2)]  # processes, runs in each, threads that these are divided among


def work(runs: int, threads: int) -> None:
    """At each line of stdin, update for some seconds and print run-updates a second."""
    from rl_plasticity.compiling.compiled import set_tracing
    from rl_plasticity.compiling.shares import Shares, cuts, largest_product

    size = SIZES["cheetah-run"]
    torch.set_num_threads(1)
    whole, buffer = SAC(*size, range(runs)), filled_buffer(runs, *size)
    divided = cuts([runs], threads, largest_product(whole, BATCH))
    shares = Shares(whole, lambda own: SAC(*size, range(runs)[own]), divided, threads, set_tracing)
    each = shares.updates(SAC.update, compiled)

    def group() -> None:
        batches = buffer.sample(whole.streams.integers(buffer.size, GROUP * BATCH))
        noises = [share.noise(GROUP, BATCH) for share in shares.modules]

        def updates_of(i: int) -> dict[str, Any]:
            for n in range(GROUP):
                batch = Batch(*(x[shares.slices[i], n * BATCH : (n + 1) * BATCH] for x in batches))
                metrics = each[i](batch, noises[i][n])
            return dict(metrics)

        shares.each(updates_of)

    for _ in range(3):
        group()
    print("ready", flush=True)
    for _ in sys.stdin:
        made, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            group()
            made += runs * GROUP
        print(made / (time.perf_counter() - start), flush=True)
    shares.close()


def of_processes(o: Options) -> None:
    """Each process is made once and waits for its turn, so that all cases meet the same machine."""

    def worker(runs: int, threads: int) -> subprocess.Popen[str]:
        program = [sys.executable, __file__, "worker", str(runs), str(threads)]
        one = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"  # one after another: the second finds the first one's graph
        return one

    workers = {case: [worker(*case[1:]) for _ in range(case[0])] for case in CASES}
    rates: dict[Any, list[float]] = {(case, n): [] for case in CASES for n in o.neighbours}
    for _ in range(o.rounds):
        for n in o.neighbours:
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
            for case, own in workers.items():
                for one in own:
                    print("go", file=one.stdin, flush=True)
                rates[case, n].append(sum(float(one.stdout.readline()) for one in own))  # type: ignore[union-attr]
            for process in busy:
                process.kill()
                process.wait()
    print(f"run-updates a second by the clock, {os.cpu_count()} cores, {processor()}")
    for (processes, runs, threads), n in rates:
        own = rates[(processes, runs, threads), n]
        what = f"{processes} processes, {runs} runs in each, {threads} threads, {n} busy neighbours"
        print(f"{what:<70}{statistics.median(own):>8.1f}  times the first {ratio(own, next(iter(rates.values())))}")
    for one in itertools.chain(*workers.values()):
        one.stdin.close()  # type: ignore[union-attr]
        one.wait()


WHAT = {
    "updates": of_updates, "peers": of_peers, "dqn": of_dqn, "agents": of_agents, "regularizers": of_regularizers,
    "attached": of_attached, "supervised": of_supervised, "measuring": of_measuring, "processes": of_processes,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    def listed(of: Callable[[str], Any] = str) -> Callable[[str], list[Any]]:
        return lambda text: [of(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--sizes", type=listed(), default=[*SIZES][:1], help=",".join(SIZES))
    parser.add_argument("--runs", type=listed(int), default=[1])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reg", type=listed(), default=["none"])
    parser.add_argument("--precision", type=listed(), default=["float32"], help="float32,bfloat16")
    parser.add_argument("--presets", type=listed(), default=["paper", "simba_v2", "xqc", "flash_sac", "bro", "redq"])
    parser.add_argument("--neighbours", type=listed(int), default=[0], help="numbers of busy processes, as 0,1,4")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # what a method leaves alone
    WHAT[options.what](options)


if __name__ == "__main__":
    work(*map(int, sys.argv[2:])) if sys.argv[1:2] == ["worker"] else main()
