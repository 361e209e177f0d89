"""The networks that every contract is checked on."""

import gc
import io
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor, nn

from rl_plasticity.agents import Batch
from rl_plasticity.compiling.compiled import keep_compiled
from rl_plasticity.errors import SettingsError
from rl_plasticity.learning.attached import _ALIVE
from rl_plasticity.networks import CNN, MLP


def pytest_configure(config):
    """What the package and others keep for a user goes beside pytest's own cache, where what is compiled stays."""
    os.environ["XDG_CACHE_HOME"] = str(config.rootpath / ".pytest_cache" / "home")
    # Where this is set, as in many containers, each process that a test starts would compile the package anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    keep_compiled()
    if not torch.accelerator.is_available():  # else each seed is kept with its stack for a device that never comes
        torch.cuda.manual_seed_all = torch.xpu.manual_seed_all = lambda seed: None
    # On a busy machine drawing takes long, which is no fault of a test. The same examples are drawn each time;
    # --hypothesis-profile=search draws others.
    for name, same in {"search": False, "same": True}.items():
        settings.register_profile(name, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=same)
    settings.load_profile(config.getoption("--hypothesis-profile", None) or "same")


@pytest.fixture(scope="session", autouse=True)
def _stable_baselines3_logs_to_a_temporary_folder(tmp_path_factory):
    os.environ["SB3_LOGDIR"] = str(tmp_path_factory.mktemp("stable_baselines3"))


def pytest_collection_finish():
    """What the imports made stays: no collection of garbage need look through it again, nor does one come often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_handle_outlives_its_test():
    """Each one that garbage collection has yet to find looks at the steps of all optimizers, of every trial too."""
    yield
    for handle in [*_ALIVE]:
        handle.remove()


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal():
    """A signal that is ignored when the suite starts, as by nohup or in a script's background, stays so in children."""
    wanted = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def traced(monkeypatch):
    """The sizes of the graphs that were traced; they then run as they are, so nothing waits for a C++ compiler."""
    sizes = []
    torch._dynamo.reset()  # of one function it makes no more than eight graphs in a process

    def run_as_is(module, inputs, **settings):
        sizes.append(len(module.graph.nodes))
        return module

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", run_as_is)  # by name: its import takes seconds
    return sizes


def make_brief(patch):
    """Trials at one learning rate, of few transitions, and without further repeats where a verdict is open."""
    for name, value in {
        "diagnosis.judging.MOST": 1,
        "diagnosis.trials.RATES": (1.0,),
        "training.acting.PROBE_SIZE": 64,
    }.items():
        patch.setattr(f"rl_plasticity.{name}", value)


@pytest.fixture
def brief_trials(monkeypatch):
    make_brief(monkeypatch)


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Linear(24, 7), nn.ReLU(), nn.Linear(7, 3))

    def forward(self, x):
        return self.classifier(self.features(x))


class Foreign(nn.Module):
    """What the package has never seen: attention, an embedding, a token, a position table, the head first."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.embedding = nn.Embedding(11, 8)
        self.position = nn.Parameter(torch.randn(1, 5, 8) * 0.1)
        self.token = nn.Parameter(torch.randn(1, 1, 8) * 0.1)
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.norm2(x))
        return self.head(x[:, 0])


class Case(NamedTuple):
    """A network's maker from the seeds of its runs, its input, and its runs axes."""

    of_seeds: Callable[[Sequence[int]], nn.Module]
    input: Callable[[], Tensor]
    runs: tuple[int, ...] = ()

    def make(self, seed: int) -> nn.Module:
        return self.of_seeds([seed + 100 * run for run in range(self.runs[0] if self.runs else 1)])


def _seeded(kind: Callable[[], nn.Module]) -> Callable[[Sequence[int]], nn.Module]:
    def make(seeds: Sequence[int]) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds[0])
            return kind()

    return make


def plain_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


class Functional(nn.Module):
    """`plain_mlp` whose activations are functions, and whose forward depends on data."""

    def __init__(self):
        super().__init__()
        self.body = nn.ModuleList(plain_mlp()[::2])

    def forward(self, x):
        x = x / 2 if len(x) > 1 and x.abs().amax() > 1e9 else x
        return self.body[2](self.body[1](self.body[0](x).relu()).relu())


class FabricModule(nn.Module):
    """What Lightning's Fabric sets up: it converts inputs before the network sees them."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self._forward_module = net

    def forward(self, *args: Tensor) -> Tensor:
        return self._forward_module(*(x.to(next(self.parameters()).dtype) for x in args))


CASES = {
    "plain": Case(_seeded(plain_mlp), lambda: torch.randn(6, 5)),
    "stacked1": Case(lambda seeds: MLP((5, 8, 8, 3), seeds), lambda: torch.randn(1, 6, 5), (1,)),
    "stacked3": Case(lambda seeds: MLP((5, 8, 8, 3), seeds), lambda: torch.randn(3, 6, 5), (3,)),
    "stacked3_small": Case(lambda seeds: MLP((5, 8, 3), seeds), lambda: torch.randn(3, 6, 5), (3,)),
    "stacked_cnn_bn": Case(
        lambda seeds: CNN((2, 4, 4), 3, seeds, batch_norm=True), lambda: torch.randn(3, 6, 2, 4, 4), (3,)
    ),
    "cnn_bn": Case(_seeded(SmallCNN), lambda: torch.randn(6, 3, 8, 8)),
    "foreign": Case(_seeded(Foreign), lambda: torch.randint(11, (6, 5))),
}


STACKED = ["stacked3", "stacked_cnn_bn"]


# With a runs axis and without, with what several others have; other tests take the MLPs.
@pytest.fixture(params=["stacked_cnn_bn", "cnn_bn", "foreign"])
def case(request) -> Case:
    return CASES[request.param]


def random_batch(runs: int, size: int = 32) -> Batch:
    """Transitions of 4 observations and 2 actions, of which a fifth terminated."""
    obs, next_obs = torch.randn(2, runs, size, 4)
    discount = torch.where(torch.rand(runs, size) < 0.2, 0.0, 0.99)
    return Batch(obs, torch.rand(runs, size, 2) * 2 - 1, torch.randn(runs, size), next_obs, discount)


def discrete_batch(runs: int, obs: int = 4, seed: int = 0) -> Batch:
    """The same with 3 actions by their index."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        batch = random_batch(runs)
        obs, next_obs = torch.randn(2, runs, 32, obs)
        return batch._replace(obs=obs, next_obs=next_obs, act=torch.randint(3, (runs, 32, 1)).float())


class BiasedBatchNorm(nn.BatchNorm1d):
    """flax's: the running variance is biased."""

    def forward(self, x):
        before = self.running_var.clone()
        y = super().forward(x)
        if self.training:
            self.running_var = torch.lerp(before, x.detach().var(0, correction=0), self.momentum)
        return y


def one_run(net, run):
    """The network of one run in torch's own modules, in float64, for networks in a row."""
    modules = []
    for m in net:
        state = {k: v[run].clone() for k, v in m.state_dict().items()}
        if isinstance(m, nn.Linear):
            modules.append(nn.Linear(m.in_features, m.out_features, bias=m.bias is not None))
        elif isinstance(m, nn.LayerNorm):
            modules.append(nn.LayerNorm(m.normalized_shape))
        elif isinstance(m, nn.BatchNorm2d):
            modules.append(BiasedBatchNorm(m.num_features, m.eps, m.momentum))
        else:
            modules.append(nn.ReLU())
        modules[-1].load_state_dict(state, strict=False)
    return nn.Sequential(*modules).double()


def disturbed(net, by=0.1):
    """Not as it was made: other weights, gains and shifts, and larger statistics; the same ones each time."""
    numbers = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(by * torch.randn(p.shape, generator=numbers))
        for b in net.buffers():
            if b.is_floating_point():
                b.add_(by * torch.rand(b.shape, generator=numbers))
    return net


def plainly(optimizers, loss):
    """A step of the optimizer, or of each of several, on a loss of one run or of several."""
    optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.sum().backward()
    for optimizer in optimizers:
        optimizer.step()


def loss_of(output: Tensor, runs: tuple[int, ...]) -> Tensor:
    """A loss ``[*runs]`` whose gradients are not all alike."""
    target = torch.linspace(-1, 1, output[..., :1, :].numel() // max(1, len(runs) and runs[0])).reshape(-1)
    return (output - target).square().reshape(*runs, -1).mean(-1)


@contextmanager
def nothing_drawn():
    """No global random state has moved in the end."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    yield
    drawn = random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    assert drawn == (random.random(), np.random.rand(), torch.rand(()).item())  # noqa: NPY002


class StopAfter:
    """A stop signal that comes after so many steps of a run."""

    def __init__(self, steps=None):
        self.left = steps

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @property
    def received(self):
        if self.left is None:
            return 0
        self.left -= 1
        return signal.SIGTERM if self.left < 0 else 0


def alive(process):
    """Whether the process of this number runs: one that has ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, process=None):
    """Wait as long as it takes, or until the `process` that would bring it about has ended."""
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def once(arguments):
    """The last of each setting: tests add to a list what they want otherwise."""
    return list({a.partition("=")[0]: a for a in arguments}.values())


def refused(call, *names, error=SettingsError, match=None):
    """Calls what is to be refused, in one line with these names and values in it; the line."""
    with pytest.raises(error, match=match) as caught:
        call()
    line = str(caught.value)
    assert "\n" not in line
    assert [name for name in names if name not in line] == [], line
    return line


def called(main, *arguments):
    """A command in this process as a shell calls it: its status, what it printed and what it complained of."""
    status, out, err = 0, io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["rl_plasticity", *map(str, arguments)])
        try:
            status = main() or 0
        except SystemExit as stopped:
            status = stopped.code
    return status, out.getvalue(), err.getvalue()


def files(folder):
    """What every file below a folder holds; a lock may be taken."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def set_apart_(*weights):
    """Give each matrix ``[..., out, in]`` a largest singular value far above the next: power iteration finds it soon.

    How soon it does depends on the numbers that were drawn, which are others on other processors.
    """
    with torch.no_grad():
        for weight in weights:
            out, fan_in = weight.shape[-2:]
            weight.mul_(0.5).add_(torch.outer(torch.linspace(-1, 1, out), torch.linspace(0.5, 1, fan_in)))


def flat(value, prefix=""):
    if isinstance(value, dict):
        return {k: v for n, item in value.items() for k, v in flat(item, f"{prefix}.{n}").items()}
    if isinstance(value, list):
        return flat(dict(enumerate(value)), prefix)
    return {prefix: value}


def snapshot(module):
    return {name: value.clone() for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}


def changed(module, before):
    """The names of the tensors that are others than in the snapshot."""
    return {k for k, v in module.state_dict().items() if k in before and not torch.equal(v, before[k])}


def difference(net, other):
    """The largest one of any parameter."""
    return max((p - q).abs().max().item() for p, q in zip(net.parameters(), other.parameters(), strict=True))


def assert_equal_states(a, b):
    a, b = flat(a), flat(b)
    assert a.keys() == b.keys()
    for name, value in a.items():
        same = torch.equal(value, b[name]) if isinstance(value, torch.Tensor) else value == b[name]
        assert same, name
