"""What optimizers keep of the weights, found by trial, and what resets and projections make of it."""

import copy
import inspect
from collections import defaultdict

import pytest
import torch
from conftest import plainly, refused
from torch import nn, optim

from rl_plasticity import attach, make_intervention
from rl_plasticity.errors import SettingsError
from rl_plasticity.learning.kept import kept

try:
    import pytorch_optimizer
except ImportError:
    pytorch_optimizer = None

# Slow in bfloat16 on some CPUs, or in need of more than parameters.
LEFT = ("SpectralSphere", "SCION", "SCIONLight", "NorMuon", "AdaMuon", "MuonClip", "Kron", "DistributedMuon")
X = torch.randn(32, 5, generator=torch.Generator().manual_seed(0))


class Lookahead(optim.Optimizer):
    """Slow weights in the wrapper's state (Zhang et al. 2019), as in several packages."""

    def __init__(self, optimizer, k=5, alpha=0.5):
        self.optimizer, self.k, self.alpha, self.steps = optimizer, k, alpha, 0
        self.param_groups, self.defaults, self.state = optimizer.param_groups, optimizer.defaults, defaultdict(dict)
        self.zero_grad = optimizer.zero_grad

    @torch.no_grad()
    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"]]
        for p in parameters:
            if "slow" not in self.state[p]:
                self.state[p]["slow"] = p.clone()
        self.optimizer.step()
        self.steps += 1
        for p in parameters if self.steps % self.k == 0 else ():
            self.state[p]["slow"].lerp_(p, self.alpha)
            p.copy_(self.state[p]["slow"])


class HiddenLookahead(Lookahead):
    """The same with slow weights in a list, where nobody finds the one of a parameter."""

    def __init__(self, optimizer, k=5, alpha=0.5):
        super().__init__(optimizer, k, alpha)
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        self.optimizer.step()
        self.steps += 1
        for p, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
            if self.steps % self.k == 0:
                p.copy_(slow.lerp_(p, self.alpha))


class DualAveraging(optim.Optimizer):
    """Weights are the first ones minus a sum of gradients, as MADGRAD's: p = x0 - s."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        (group,) = self.param_groups
        for p in group["params"]:
            state = self.state[p]
            if not state:
                state |= {"x0": p.clone(), "s": torch.zeros_like(p)}
            state["s"].add_(p.grad, alpha=group["lr"])
            p.copy_(state["x0"] - state["s"])


class ScheduleFree(optim.Optimizer):
    """Schedule-free SGD (Defazio et al. 2024): trains y = (1 - beta) z + beta x, evaluates x."""

    def __init__(self, params, lr=1e-2, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            beta = group["beta"]
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                x = p.lerp(z, 1 - 1 / beta)
                z.sub_(p.grad, alpha=group["lr"])
                p.copy_(x.lerp(z, 1 / self.steps).lerp(z, 1 - beta))


class Evaluated(optim.SGD):
    """SGD that shows an average of the weights where it is evaluated, as SPlus."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("mean", p.clone()).lerp_(p, 0.01)
        super().step()

    @torch.no_grad()
    def eval(self):
        for p in self.param_groups[0]["params"]:
            p.copy_(self.state[p]["mean"])


def net_of():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))


OWN = {
    "lookahead": lambda p: Lookahead(optim.Adam(p, lr=1e-3)),
    "hidden lookahead": lambda p: HiddenLookahead(optim.Adam(p, lr=1e-3)),
    "lookahead over 40 steps": lambda p: Lookahead(optim.SGD(p, lr=1e-3, momentum=0.9), k=40),
    "dual averaging": DualAveraging,
    "schedule-free": ScheduleFree,
    "evaluated": lambda p: Evaluated(p, lr=1e-2),
}


def kinds():
    """All optimizers of torch, and of pytorch_optimizer where it is installed (the group integrations)."""
    made = dict(OWN)
    for module in filter(None, (optim, pytorch_optimizer)):
        for name in sorted({*dir(module)} - {*LEFT}):
            kind = getattr(module, name)
            if inspect.isclass(kind) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer:
                made[name if module is optim else f"pytorch_optimizer.{name}"] = kind
    for name in ("Lookahead", "TRAC", "ScheduleFreeWrapper") if pytorch_optimizer else ():
        wrapper = getattr(pytorch_optimizer, name)
        made[f"pytorch_optimizer.{name}(SGD)"] = lambda p, kind=wrapper: kind(optim.SGD(p, lr=1e-3))
    return made


KINDS = kinds()


def step(net, optimizer, silent=False):
    plainly(optimizer, (net(X) * (0 if silent else 1)).square().mean())


def trained(kind, steps=7):
    """A network and its optimizer after some steps; skips what takes no ordinary step."""
    net = net_of()
    try:
        optimizer = KINDS[kind](net.parameters())
        train = getattr(optimizer, "train", None)
        train() if callable(train) else None
        for _ in range(steps):
            step(net, optimizer)
    except Exception as error:
        pytest.skip(f"takes no ordinary step: {error}")
    return net, optimizer


COPYING = ("lookahead", "dual averaging", "schedule-free")


@pytest.mark.parametrize(
    ("name", "kind"),
    [*(("head", kind) for kind in KINDS), *((name, kind) for name in ("periodic", "shrink") for kind in COPYING)],
)
def test_a_reset_stays_or_is_refused(name, kind):
    net, optimizer = trained(kind)
    made = net_of()
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(-10 * (1 + p.abs()))  # far from what was
    before = copy.deepcopy(net.state_dict())
    reset = make_intervention("shrink_perturb", init="fresh", coef=0.9) if name == "shrink" else make_intervention(name)
    try:
        reset.apply_(net, optimizer, make=lambda: copy.deepcopy(made))
    except SettingsError:
        assert name == "head"
        assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())
        return
    wanted = made[4].weight if name != "shrink" else 0.1 * before["4.weight"] + 0.9 * made[4].weight
    for _ in range(10):
        step(net, optimizer, silent=True)
    if callable(evaluate := getattr(optimizer, "eval", None)):
        evaluate()
    # Steps of 1e-3 to 1e-1 remain of some that divide by the size of the gradient; a way back is 0.5 and more.
    assert (net[4].weight - wanted).norm() < 0.05 * (before["4.weight"] - wanted).norm()


@pytest.mark.parametrize("kind", KINDS)
def test_evaluated_rows_have_norm_one_or_the_projection_is_refused(kind):
    trained(kind)
    net, optimizer = trained(kind, 0)
    try:
        attach("wrs", optimizer, net, every_updates=1)
    except SettingsError:
        return
    for _ in range(12):
        step(net, optimizer)
    if callable(evaluate := getattr(optimizer, "eval", None)):
        evaluate()
    torch.testing.assert_close(net[0].weight.norm(dim=1), torch.ones(8), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", [k for k in OWN if k not in ("evaluated", "hidden lookahead")])
def test_units_recycled_by_an_attached_method_stay_what_they_became(kind):
    net = net_of()
    optimizer = KINDS[kind](net.parameters())
    handle, masks = attach("continual_backprop", optimizer, net, coef=0.5, maturity=2), {}
    project = handle.regularizer.project_
    handle.regularizer.project_ = lambda *given: masks.update(project(*given)) or masks
    while not any(where.any() for where in masks.values()):
        step(net, optimizer)
    handle.remove()
    new = copy.deepcopy(net)
    for _ in range(45):
        step(net, optimizer, silent=True)
    for name, where in masks.items():
        moved = (net.get_parameter(name) - new.get_parameter(name))[where]
        assert moved.abs().max() < 1e-3 * new.get_parameter(name).abs().max(), name


@pytest.mark.parametrize("kind", ["hidden lookahead", "lookahead", "dual averaging", "schedule-free", "evaluated"])
def test_a_projection_is_refused_by_the_name_of_the_optimizer_that_undoes_it(kind):
    net, optimizer = trained(kind)
    refused(lambda: attach("swr", optimizer, net), match=type(optimizer).__name__)
    attach("l2", optimizer, net, coef=1e-3)  # a penalty only adds to the gradients


def test_trials_leave_random_states_parameters_and_state_alone():
    net, optimizer = trained("lookahead")
    before, random = copy.deepcopy((net.state_dict(), optimizer.state[net[0].weight])), torch.get_rng_state()
    known = kept(optimizer, net[0].weight)
    assert known.kinds == {"slow": "copy", "exp_avg": "moment", "exp_avg_sq": "moment"}
    assert known.undoes
    assert known.follows
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(before[0][n], t) for n, t in net.state_dict().items())
    assert torch.equal(before[1]["slow"], optimizer.state[net[0].weight]["slow"])


def test_the_average_of_asgd_takes_the_new_head():
    net, optimizer = trained("ASGD")
    make_intervention("head").apply_(net, optimizer)
    assert torch.equal(optimizer.state[net[4].weight]["ax"], net[4].weight)
