"""Train soft actor-critic on a control task: ``python -m rl_plasticity.train env=cheetah-run reg=spectral``."""

import hashlib
import math
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from rl_plasticity import checkpoint
from rl_plasticity.agents import SAC, Batch, ReplayBuffer
from rl_plasticity.configs import schema
from rl_plasticity.configs.schema import SettingsError, Train
from rl_plasticity.envs import Envs, make_env
from rl_plasticity.interventions import Intervention, make_intervention
from rl_plasticity.metrics import largest_sigma1, weight_norm
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import Chain, Regularizer, make_regularizer
from rl_plasticity.results import Results, write_provenance, write_text
from rl_plasticity.seeding import derive

# Keys of the random streams derived from a run's seed.
AGENT, ENV, EVALUATION = range(3)
COMPILE_FROM_UPDATES = 30_000  # compiling takes about half a minute and then saves some 4 ms an update


def main() -> None:
    """Run the command; status 0, 1 (a fault of the run), 2 (bad input), or 128 + the signal that stopped it."""
    arguments = sys.argv[1:]
    if any(a in ("-h", "--help") for a in arguments):
        print("python -m rl_plasticity.train [name=value ...]\n\n" + schema.describe())
        return
    try:
        settings, folder, saved = prepare(arguments)
    except SettingsError as error:
        sys.exit(_complain(error, 2))
    stop = StopSignal()
    try:
        finished = train(settings, folder, saved, stop)
    except FaultyRun as error:
        sys.exit(_complain(error, 1))
    if not finished:
        sys.exit(128 + stop.received)


class FaultyRun(RuntimeError):
    """The run cannot go on; the message is one line for the user."""


def prepare(arguments: list[str]) -> tuple[Train, Path, dict[str, Any] | None]:
    """Settings, folder and, on resuming, the checkpoint. Everything is checked before the folder is made.

    Raises:
        SettingsError: bad input.
    """
    settings = schema.load(arguments)
    if settings.resume is not None:
        folder = Path(settings.resume)
        others = [a for a in arguments if a.partition("=")[0] not in ("resume", "device", "threads")]
        if others:
            raise SettingsError(f"resume={folder} takes its settings from there; leave out {' '.join(others)}")
        given = {a.partition("=")[0]: getattr(settings, a.partition("=")[0]) for a in arguments}
        settings = replace(schema.load_saved(folder / "config.yaml"), **given)
        try:
            saved = checkpoint.load(folder / "checkpoints")
        except (FileNotFoundError, ValueError) as error:
            raise SettingsError(f"cannot resume: {error}") from error
    else:
        saved = None
        folder = Path("results") / name_of(settings, arguments) if settings.out == "auto" else Path(settings.out)
        try:
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise SettingsError(f"{folder} exists; continue that run with resume={folder} or choose another out=")
        except OSError as error:
            raise SettingsError(f"cannot read {folder}: {error.strerror}") from error
    settings = replace(resolved(settings), out=str(folder), resume=None)
    try:
        env = make_env(settings.env.name, 0, settings.env.action_repeat)
        env.reset()
        env.close()
        regularizer_for(settings)(MLP((2, 2, 2), [0] * settings.seeds))
        intervention_for(settings)
    except (ValueError, ImportError, gym.error.Error) as error:
        raise SettingsError(str(error)) from error
    if saved is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / "config.yaml", schema.dump(settings))
        except OSError as error:
            raise SettingsError(f"cannot write to {folder}: {error.strerror}") from error
    if settings.total_env_steps <= settings.random_env_steps:
        print("no update will be made: total_env_steps does not exceed random_env_steps", file=sys.stderr)
    return settings, folder, saved


def train(s: Train, folder: Path, saved: dict[str, Any] | None, stop: "StopSignal") -> bool:
    """Train until the last env step or a stop signal, writing into `folder`; from the checkpoint `saved` if given.

    Returns:
        Whether the last env step was reached.
    """
    if isinstance(s.threads, int):
        torch.set_num_threads(s.threads)
    seeds = range(s.seed, s.seed + s.seeds)
    envs = Envs(s.env.name, [derive(n, ENV) for n in seeds], s.env.action_repeat, s.env.workers)
    eval_envs = Envs(s.env.name, [derive(n, EVALUATION) for n in seeds], s.env.action_repeat)
    agent = SAC(
        envs.obs_dim,
        envs.act_dim,
        [derive(n, AGENT) for n in seeds],
        regularizer_for(s),
        hidden=s.agent.hidden,
        layer_norm=s.agent.layer_norm,
        num_critics=s.agent.num_critics,
        lr=s.agent.lr,
        tau=s.agent.tau,
        init_alpha=s.agent.init_alpha,
        target_entropy=s.agent.target_entropy,
        device=s.device,
    )
    capacity = min(s.buffer_size, s.total_env_steps)
    buffer = ReplayBuffer(s.seeds, capacity, envs.obs_dim, envs.act_dim, s.agent.discount, s.device)
    intervention = intervention_for(s)
    update = compiled(agent) if s.compile else agent.update

    write_provenance(folder / "provenance.json", s.device)
    if saved is None:
        step = updates = 0
        episode_return = np.zeros(s.seeds)
        obs = torch.from_numpy(envs.reset()).to(s.device)
        buffer.start(obs)
        results = Results(folder, seeds)
    else:
        step, updates = saved["step"], saved["updates"]
        episode_return = saved["episode_return"].numpy()
        agent.load_state_dict(saved["agent"])
        buffer.load_state_dict(saved["buffer"])
        try:
            obs = torch.from_numpy(envs.load_state_dict(saved["envs"])).to(s.device)
        except ValueError as error:
            raise FaultyRun(f"cannot resume: {error}") from error
        results = Results(folder, seeds, saved["sizes"], step)

    last_saved = step

    def save() -> None:
        nonlocal last_saved
        if not _finite(agent):
            raise FaultyRun(f"weights are no longer finite at env step {step}; {_last(folder)}")
        state = {
            "step": step,
            "updates": updates,
            "episode_return": episode_return,
            "agent": agent.state_dict(),
            "buffer": buffer.state_dict(),
            "envs": envs.state_dict(),
            "sizes": results.sync(),
        }
        checkpoint.save(folder / "checkpoints", step, state)
        last_saved = step

    if saved is None:
        save()  # a run killed at any moment can be resumed
    if saved is None:
        save()  # a run killed at any moment can be resumed
    bar = tqdm(total=s.total_env_steps, initial=step, unit="env steps", smoothing=0.1, mininterval=1)
    clock = Clock(s, step, bar)
    try:
        while step < s.total_env_steps and not stop.received:
            if step < s.random_env_steps:
                act = agent.streams.uniform(envs.act_dim) * 2 - 1
            else:
                act = agent.act(obs.unsqueeze(1), agent.streams.normal(1, envs.act_dim)).squeeze(1)
            act_on_host = act.cpu().numpy()
            if not np.isfinite(act_on_host).all():
                raise FaultyRun(f"an action is not finite at env step {step}; {_last(folder)}")
            out = envs.step(act_on_host)
            ended = out.terminated | out.truncated
            next_obs, reward, last_obs = (torch.from_numpy(a).to(s.device) for a in (out.obs, out.reward, out.last_obs))
            terminated, truncated = torch.from_numpy(out.terminated), torch.from_numpy(out.truncated)
            buffer.add(act, reward, next_obs, terminated, truncated, last_obs)
            obs = next_obs
            step += 1
            episode_return += out.reward
            if ended.any():
                results.log(step, {"train/return": episode_return}, where=ended)
                episode_return[ended] = 0

            due = updates_due(step - s.random_env_steps, s.replay_ratio)
            if due:
                clock.start_updates()
                batches = buffer.sample(agent.streams.integers(buffer.size, due * s.batch_size))
                noise = agent.noise(due, s.batch_size)
                for i in range(due):
                    batch = Batch(*(x[:, i * s.batch_size : (i + 1) * s.batch_size] for x in batches))
                    metrics = update(batch, noise[i])
                    updates += 1
                    if intervention is not None and intervention.due(updates):
                        intervention.apply_(agent, inputs=agent.inputs(batch))
                    if updates % s.log_every_updates == 0:
                        log_update(results, step, agent, metrics, folder)
                clock.end_updates(due)

            if step % s.eval_every_env_steps == 0:
                returns = evaluate(agent, eval_envs, s.eval_episodes, first_episode=step << 20)
                results.log(step, {"eval/return": returns})
                results.time(step, clock.rates(step))
                clock.last_return = float(returns.mean())
            if step % s.checkpoint_every_env_steps == 0:
                save()
            clock.show(step)
        if last_saved != step:
            save()
    finally:
        bar.close()
        results.close()
        envs.close()
        eval_envs.close()
    finished = step >= s.total_env_steps
    if finished:
        print(f"done; results in {folder}")
    else:
        print(f"stopped at env step {step}; continue with resume={folder}", file=sys.stderr)
    return finished


def updates_due(steps: int, replay_ratio: float) -> int:
    """Updates to make after env step number `steps` of learning, for `replay_ratio` updates per env step."""
    if steps < 1:
        return 0
    so_far, before = (math.floor(n * replay_ratio + 1e-6) for n in (steps, steps - 1))  # 1300 * 0.7 is 910
    return so_far - before


def evaluate(agent: SAC, envs: Envs, episodes: int, first_episode: int) -> np.ndarray:
    """Mean return ``[runs]`` of the deterministic policy over each run's next `episodes` episodes."""
    obs = envs.seek(first_episode)
    total = np.zeros(envs.runs)
    returns: list[list[float]] = [[] for _ in range(envs.runs)]
    device = next(agent.parameters()).device
    while min(len(r) for r in returns) < episodes:
        act = agent.act(torch.from_numpy(obs).to(device).unsqueeze(1)).squeeze(1)
        out = envs.step(act.cpu().numpy())
        total += out.reward
        for run in np.flatnonzero(out.terminated | out.truncated):
            returns[run].append(float(total[run]))
            total[run] = 0
        obs = out.obs
    return np.array([np.mean(r[:episodes]) for r in returns])


@torch.no_grad()
def log_update(results: Results, step: int, agent: SAC, metrics: dict[str, Tensor], folder: Path) -> None:
    """Write the latest update's metrics and the state of the weights.

    Raises:
        FaultyRun: a loss is not finite.
    """
    for name in ("critic/loss", "actor/loss"):
        bad = (~metrics[name].isfinite()).nonzero().flatten().tolist()
        if bad:
            runs = ", ".join(results.names[run] for run in bad)
            raise FaultyRun(f"{name} of seed {runs} is not finite at env step {step}; {_last(folder)}")
    if not _finite(agent):
        raise FaultyRun(f"weights are no longer finite at env step {step}; {_last(folder)}")
    for name, learner in agent.learners.items():
        matrices = [m for y in learner.regularizer.layers if (m := y.matrix(learner.net)) is not None]
        metrics[f"{name}/weight_norm"] = weight_norm(learner.net.parameters(), learner.runs)
        metrics[f"{name}/sigma1"] = largest_sigma1(matrices)
    results.log(step, {name: value.cpu() for name, value in metrics.items()})
    results.flush()


def _finite(agent: SAC) -> bool:
    return all(bool(p.isfinite().all()) for p in agent.parameters())


def regularizer_for(s: Train) -> Callable[[nn.Module], Regularizer]:
    """From a network to the regularizer that the settings choose."""
    if s.reg["name"] != "chain":
        return partial(_regularizer, **s.reg)
    parts = [part for name, part in s.reg.items() if name != "name"]
    return lambda net: Chain(net, *(_regularizer(net, **part) for part in parts))


def _regularizer(net: nn.Module, name: str, **settings: Any) -> Regularizer:
    return make_regularizer(name, net, **settings)


def intervention_for(s: Train) -> Intervention | None:
    """The intervention that the settings choose."""
    return None if s.reset["name"] == "none" else make_intervention(**s.reset)


def resolved(s: Train) -> Train:
    """`s` with every ``auto`` decided, so that the saved settings say what was done.

    Raises:
        SettingsError: a device that is not there.
    """
    cuda = torch.cuda.is_available()
    if s.device == "cuda" and not cuda:
        raise SettingsError("device=cuda, but torch finds no GPU here; use device=cpu or auto")
    device = s.device if s.device != "auto" else ("cuda" if cuda else "cpu")
    compile_ = s.compile
    if compile_ == "auto":
        planned = (s.total_env_steps - s.random_env_steps) * s.replay_ratio
        has_compiler = device == "cuda" or any(shutil.which(c) for c in ("c++", "g++", "clang++"))
        compile_ = planned >= COMPILE_FROM_UPDATES and has_compiler
    threads = torch.get_num_threads() if s.threads == "auto" else s.threads
    return replace(s, device=device, compile=compile_, threads=threads)


def compiled(agent: SAC) -> Callable[[Batch, Tensor], dict[str, Tensor]]:
    """`agent.update` as one compiled graph; the same equations, less passes over memory."""
    torch._dynamo.config.trace_autograd_ops = True
    return torch.compile(agent.update, fullgraph=True, dynamic=False)


def name_of(s: Train, arguments: list[str]) -> str:
    """A folder's name made of the choices."""
    regs = [n for n in s.reg if n != "name"] if s.reg["name"] == "chain" else [s.reg["name"]]
    parts = [s.env.name.replace(":", "-").replace("/", "-"), "+".join(regs)]
    parts += [s.reset["name"]] * (s.reset["name"] != "none") + [s.preset] * (s.preset != "paper")
    said = (
        "env",
        "env.name",
        "reg",
        "reset",
        "preset",
        "seed",
        "seeds",
        "out",
        "device",
        "threads",
        "compile",
    )
    parts += sorted(a.replace("/", "-") for a in arguments if a.partition("=")[0] not in said)
    name = "_".join(parts)
    if len(name) > 150:  # file systems take 255 bytes
        name = f"{name[:140]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{name}_seed{s.seed}" if s.seeds == 1 else f"{name}_seed{s.seed}-{s.seed + s.seeds - 1}"


class StopSignal:
    """Remembers the first SIGINT or SIGTERM, so that the run ends at the next env step; a second one kills as usual."""

    def __init__(self) -> None:
        self.received = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)


class Clock:
    """Rates for the progress bar and ``timing.csv``, and how long a slow run will take."""

    def __init__(self, s: Train, step: int, bar: "tqdm[Any]") -> None:
        self.s, self.bar = s, bar
        self.last_return = math.nan
        self.begin = self.mark = time.perf_counter()
        self.mark_step = step
        self.updates, self.in_updates, self.rate = 0, 0.0, 0.0
        self.warm = False  # the first updates may include compiling; they do not count
        self.started = self.learning_since = 0.0
        self.announced = False

    def start_updates(self) -> None:
        self.started = time.perf_counter()
        if not self.warm and self.s.compile:
            self.bar.write("compiling the update, which takes up to a minute", file=sys.stderr)

    def end_updates(self, number: int) -> None:
        if self.warm:
            self.in_updates += time.perf_counter() - self.started
            self.updates += number
            self.rate = self.updates / self.in_updates
        else:
            self.warm, self.learning_since = True, time.perf_counter()

    def rates(self, step: int) -> dict[str, float]:
        """Since the last call: env steps and updates (of all runs together: one) for each second; then start anew."""
        now = time.perf_counter()
        rates = {
            "env_steps_per_second": (step - self.mark_step) / (now - self.mark),
            "updates_per_second": self.rate,
        }
        self.mark, self.mark_step, self.updates, self.in_updates = now, step, 0, 0.0
        return rates

    def show(self, step: int) -> None:
        said = "no evaluation yet" if math.isnan(self.last_return) else f"last return {self.last_return:.1f}"
        self.bar.set_postfix_str(f"{self.rate:.0f} updates/s, {said}", refresh=False)
        self.bar.update(step - self.bar.n)
        if not self.announced and self.rate and time.perf_counter() - self.learning_since > 60:
            self.announced = True
            hours = (self.s.total_env_steps - step) * self.s.replay_ratio / self.rate / 3600
            if hours > 1:
                self.bar.write(
                    f"At {self.rate:.0f} updates/s on this {self.s.device} the rest takes about {hours:.0f} h. "
                    "preset=demo shows learning within minutes.",
                    file=sys.stderr,
                )


def _last(folder: Path) -> str:
    found = sorted((folder / "checkpoints").glob("step_*.pt"))
    return f"the last good checkpoint is {found[-1]}" if found else "there was no checkpoint yet"


def _complain(error: Exception, status: int) -> int:
    print(f"rl_plasticity.train: {' '.join(str(error).split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
