"""What keeps a network from learning although it has lost nothing is named: data, parameters, optimizer and rate."""

import math
import re

import pytest
import torch
from conftest import plainly, refused
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity import diagnose
from rl_plasticity.diagnosis import trials, verdict
from rl_plasticity.diagnosis.subject import set_rate_

CE, MSE = F.cross_entropy, F.mse_loss
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(128, 8, generator=GENERATOR)
Y = torch.randint(0, 4, (128,), generator=GENERATOR)
VALUES = torch.randn(128, 4, generator=GENERATOR)
EASY = (X[:, 0] > 0).long()


def make(activation=nn.ReLU) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), activation(), nn.Linear(32, 32), activation(), nn.Linear(32, 4))


def normalized() -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm1d(8), *make())


def split(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(32), y.split(32), strict=True))


def changed(values: Tensor, where, value: float) -> Tensor:
    values = values.clone()
    values[where] = value
    return values


def scaled(values: Tensor, column: int, times: float) -> Tensor:
    return torch.cat([values[:, :column], times * values[:, column : column + 1], values[:, column + 1 :]], 1)


BAD_DATA = {
    "not finite: batch 2: .*all targets are -100": {"batches": split(X, changed(Y, slice(64, 96), -100))},
    "not finite: batch 2: .*row 6, column 0 of the inputs is nan": {"batches": split(changed(X, 70, math.nan), Y)},
    "not finite: the inputs: .*row 70, column 3 of the inputs is inf": (
        {"inputs": changed(X, (70, 3), math.inf), "loss": None}
    ),
    "not finite: the inputs: .*row 5, column 2 of the targets is inf": (
        {"inputs": X, "targets": changed(VALUES, (5, 2), math.inf), "loss": MSE}
    ),
    "not finite: batch 0: .*is -inf$": {"batches": split(X, Y), "loss": lambda out, y: (0 * out.sum()).log()},
    "constant loss: it is 0": {"batches": split(X, Y), "loss": lambda out, y: (0 * out).sum()},
    "constant loss: it is 0.": {  # an error rate
        "batches": split(X, Y), "loss": lambda out, y: (out.argmax(-1) != y).float().mean()
    },
    "scales: batch 0: column . of the targets is about 2e": {"batches": split(X, 2e4 + VALUES), "loss": MSE},
    "scales: the inputs: column 2 of the targets": {
        "inputs": X, "targets": scaled(VALUES, 2, 2e4), "loss": F.l1_loss
    },
    "scales: batch 0: column 5 ": {"batches": split(scaled(X, 5, 1e4), Y)},
    "scales: the inputs: column 7 ": {"inputs": X * torch.logspace(-3, 4, 8), "loss": None},
}  # fmt: skip


@pytest.mark.parametrize("named", BAD_DATA)
def test_data_that_no_network_can_learn_are_something_else_and_the_batch_is_named(named) -> None:
    report = diagnose(make(), **{"loss": CE, "make": make} | BAD_DATA[named])
    assert report.verdict == "something else"
    assert re.match(named, report.causes[0]), report.causes
    assert not report.evidence


def seen(net: nn.Module, **given) -> list[str]:
    """What is found in the data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdict, "_let_arms_learn", None)
        try:
            return [*diagnose(net, **given).causes]
        except TypeError:  # so trials were to begin
            return []


@pytest.mark.parametrize("given", [
    {"inputs": X * torch.logspace(-1, 1, 8)},
    {"inputs": changed(X, (slice(None), slice(1, None)), 1.0)},  # one column that is not constant
    {"inputs": torch.cat([torch.ones(128, 4), 1e3 * X[:, :4]], 1)},
    {"batches": split(X, changed(Y, torch.arange(128) % 2 == 0, -100)), "loss": CE},
    {"batches": split(X, 200 + 10 * VALUES), "loss": MSE},
    {"batches": split(X, 2e4 + VALUES), "loss": lambda out, y: MSE(out, y - 2e4)},  # the loss unscales them
    {"batches": split(X, torch.arange(4).repeat_interleave(32)), "loss": CE},  # sorted by label
    {"batches": [X], "loss": lambda out: out.square().mean()},
    {"inputs": X.double(), "targets": changed(VALUES, slice(0, 8), 0.0), "loss": MSE},
])  # fmt: skip
def test_data_that_can_be_learned_are_not_refused(given) -> None:
    assert seen(make(), **given) == []


def test_sizes_that_a_network_copes_with_are_no_cause() -> None:
    net = normalized()
    assert seen(net, inputs=scaled(X, 5, 1e4), make=normalized) == []
    assert seen(make(), inputs=scaled(X, 5, 1e4), make=make) != []
    net = make()
    net[-1].bias.data.fill_(2e4)  # it has learned returns like these
    assert seen(net, batches=split(X, 2e4 + VALUES), loss=MSE) == []


def test_a_batch_that_cannot_be_learned_is_named() -> None:
    refused(lambda: diagnose(make(), batches=split(X, changed(Y, 100, 4)), loss=CE), match="batch 3 ")


BRIEF = {"repeats": 2, "updates": 10, "remedies": False}


class Encoded(nn.Module):
    """A head behind an encoder that may not learn from it."""

    def __init__(self, detaches: bool = False) -> None:
        super().__init__()
        self.encoder, self.head, self.detaches = nn.Linear(8, 32), nn.Linear(32, 4), detaches

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x).relu()
        return self.head(h.detach() if self.detaches else h)


def adam(*groups: tuple[nn.Module, float]) -> torch.optim.Adam:
    return torch.optim.Adam([{"params": [*net.parameters()], "lr": rate} for net, rate in groups])


def unused() -> nn.Module:
    net = Encoded()
    net.spare = nn.Linear(8, 4)
    return net


@torch.no_grad()
def dead_encoder() -> nn.Module:
    net = Encoded()
    net.encoder.bias.fill_(-100)
    return net


ENCODER = r"encoder.weight, encoder.bias \(69% of the weights\)"
STILL = {
    "detached": (lambda: Encoded(True), None, f"no gradient: .* {ENCODER}"),
    "unused": (unused, None, "no gradient: .* spare.weight, spare.bias "),
    "behind dead units": (dead_encoder, None, "zero gradient: .* encoder.weight, encoder.bias"),
    "frozen": (lambda: frozen(Encoded()), None, f"frozen: {ENCODER}"),
    "rate 0": (
        Encoded,
        lambda net: adam((net.head, 1e-3), (net.encoder, 0.0)),
        f"learning rate: it is 0 for {ENCODER}",
    ),
    "rate 0 first": (Encoded, lambda net: adam((net.encoder, 0.0), (net.head, 1e-3)), f"learning rate: .* {ENCODER}"),
    "not held": (Encoded, lambda net: adam((net.head, 1e-3)), f"not in the optimizer: {ENCODER}"),
    "a tiny rate": (Encoded, lambda net: adam((net.head, 1e-3), (net.encoder, 1e-6)), rf"learning rate: .* {ENCODER}"),
    "steps below float32": (Encoded, lambda net: adam((net, 1e-9)), "vanishing steps: .* encoder."),
}


def frozen(net: Encoded) -> Encoded:
    net.encoder.requires_grad_(False)
    return net


@pytest.mark.usefixtures("brief_trials")
@pytest.mark.parametrize("case", STILL)
def test_parameters_that_no_update_changes_are_listed_with_the_reason(case) -> None:
    of, optimizer_of, named = STILL[case]
    net = of()
    data = {"batches": split(X, Y), "loss": CE} if optimizer_of else {"inputs": X}
    report = diagnose(net, **data, **BRIEF, optimizer=optimizer_of and optimizer_of(net), make=of)
    assert [said for said in report.causes if re.match(named, said)], report.causes
    assert "as it is trained" in report.evidence


@pytest.mark.parametrize("settings", [{"weight_decay": 100.0}, {"maximize": True}])
def test_settings_of_the_optimizer_with_which_no_network_learns_are_named(settings) -> None:
    net = make()
    optimizer = torch.optim.AdamW(net.parameters(), **settings)
    given = {**BRIEF, "updates": 100}
    report = diagnose(net, batches=split(X, Y), loss=CE, make=make, optimizer=optimizer, **given)
    assert report.verdict == "something else"
    assert [said for said in report.causes if re.match("optimizer: .*AdamW of these settings", said)], report.causes


@pytest.mark.usefixtures("brief_trials")
@pytest.mark.parametrize("rate", [None, 0.0])
def test_a_network_of_which_no_update_changes_anything_is_something_else_however_little_others_learn(rate) -> None:
    net = make().requires_grad_(rate is not None)
    optimizer = rate is not None and adam((net, rate))
    report = diagnose(net, batches=split(X, Y), loss=CE, make=make, optimizer=optimizer or None, **BRIEF)
    assert report.verdict == "something else"
    assert "no update changes" in report.why


@pytest.mark.usefixtures("brief_trials")
@pytest.mark.parametrize(("trains", "rate"), [(False, 0.1), (True, 0.0)])
def test_that_also_holds_on_drawn_targets_where_the_optimizers_rate_tells_nothing(trains, rate) -> None:
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    report = diagnose(net.requires_grad_(trains), X, make=make, optimizer=optimizer, **BRIEF)
    assert (report.verdict, "no update changes" in report.why) == ("something else", True)


class Policy(nn.Module):
    """Mean and standard deviation of an action, the latter without a map to positive numbers."""

    def __init__(self, std: float = 1.0) -> None:
        super().__init__()
        self.mean, self.std = nn.Linear(8, 2), nn.Parameter(torch.full((2,), std))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean(obs)
        return mean, self.std.expand_as(mean)


@pytest.mark.parametrize(("checks_itself", "named"), [(True, "ValueError: Expected parameter scale"), (False, "nan")])
def test_a_negative_standard_deviation_is_named_where_a_fresh_policy_has_none(checks_itself, named) -> None:
    def likelihood(out: tuple[Tensor, Tensor], act: Tensor) -> Tensor:
        return -torch.distributions.Normal(*out, validate_args=checks_itself).log_prob(act).mean()

    given = {"batches": split(X, VALUES[:, :2]), "loss": likelihood, "make": Policy}
    assert seen(Policy(0.5), **given) == []
    report = diagnose(Policy(-0.1), **given)
    assert report.verdict == "something else"
    assert report.causes[0].startswith("outputs: batch 0: ")
    assert named in report.causes[0]


@pytest.mark.usefixtures("brief_trials")
def test_of_a_network_that_learns_as_a_whole_nothing_is_listed() -> None:
    net = Encoded()
    for given in ({}, {"optimizer": adam((net, 1e-3))}, {"optimizer": adam((net.encoder, 3e-3), (net.head, 1e-4))}):
        assert diagnose(net, X, **BRIEF, **given).causes == ()


@pytest.mark.usefixtures("brief_trials")
def test_fresh_networks_learn_what_has_a_rate_of_0() -> None:
    net = Encoded()
    given = {"batches": split(X, Y), "loss": CE, "make": Encoded, **BRIEF}
    of_whole = diagnose(net, **given, optimizer=adam((net, 1e-3)))
    for groups in ([(net.head, 1e-3), (net.encoder, 0.0)], [(net.encoder, 0.0), (net.head, 1e-3)]):
        report = diagnose(net, **given, optimizer=adam(*groups))
        assert report.losses["a fresh network"] == pytest.approx(of_whole.losses["a fresh network"])


def remembering(kind: type[torch.optim.Optimizer], key: str, times: float, **given):
    """An optimizer whose second moments are far larger than today's."""

    def of(net: nn.Module) -> torch.optim.Optimizer:
        optimizer = trained(net, kind(net.parameters(), **given))
        for state in optimizer.state.values():
            state[key].mul_(times)
        return optimizer

    return of


def trained(net: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for _ in range(20):
        plainly(optimizer, CE(net(X), Y.flip(0)))
    return optimizer


def at_its_floor(part: float, kind=torch.optim.Adam, rate: float = 3e-3, is_known: bool = True):
    """An optimizer whose schedule has come down to this part of its first rate, which it may not know."""

    def of(net: nn.Module) -> torch.optim.Optimizer:
        optimizer = trained(net, kind(net.parameters(), lr=rate))
        optimizer.param_groups[0].update({"initial_lr": rate} if is_known else {}, lr=part * rate)
        return optimizer

    return of


ADAM = torch.optim.Adam
OPTIMIZERS = {
    "Adam's second moments": (remembering(ADAM, "exp_avg_sq", 1e6), "optimizer: with the state of its Adam it"),
    "RMSprop's": (remembering(torch.optim.RMSprop, "square_avg", 1e8, lr=1e-3), "optimizer: .* RMSprop "),
    "a tenth": (at_its_floor(0.1), "learning rate: at 0.0003 .*, and at 0.003 with the same moments "),
    "a hundredth of SGD's": (at_its_floor(0.01, torch.optim.SGD, 0.3), "learning rate: at 0.003 .*, and at 0.3 "),
    "a thousandth, unknown": (at_its_floor(1e-3, is_known=False), "learning rate: at 3e-06 .*, and at 0.001 "),
    "1e-6 from the start": (lambda net: ADAM(net.parameters(), 1e-6), "learning rate: at 1e-06 .*, and at 0.001 "),
    "both": (
        remembering(ADAM, "exp_avg_sq", 1e20, lr=1e-6),
        "learning rate: at 1e-06 and with the state of its Adam .*, and at 0.001 without it ",
    ),
    "a rate of 0": (lambda net: ADAM(net.parameters(), 0.0), "learning rate: it is 0 "),
    "nothing to change": (lambda net: net.requires_grad_(False) and None, "frozen: "),
    "steps that are rounded away": (lambda net: ADAM(net.bfloat16().parameters(), 1e-6), "rounding: "),
    "a clipped gradient": (lambda net: torch.optim.SGD(net.parameters(), 0.1), "clipping: max_grad_norm=1e-06 "),
}


@pytest.mark.usefixtures("brief_trials")
@pytest.mark.parametrize("case", OPTIMIZERS)
def test_what_keeps_a_healthy_network_from_learning_is_something_else_and_named(case) -> None:
    optimizer_of, named = OPTIMIZERS[case]
    net, clip = make(), 1e-6 if "clipped" in case else None
    given = {"batches": split(3 * X, EASY), "loss": CE, "make": make, "updates": 40, "max_grad_norm": clip}
    report = diagnose(net, **given, optimizer=optimizer_of(net))
    assert report.verdict == "something else"
    assert [said for said in report.causes if re.match(named, said)], report.causes
    assert not report.remedies
    assert [*report.evidence] == ["your network", "as it is trained"]


@pytest.mark.usefixtures("brief_trials")
@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize(("kind", "rate"), [(ADAM, 3e-3), (torch.optim.SGD, 0.3)])
def test_an_optimizer_that_fits_is_no_cause(kind, rate, part) -> None:
    net = make()
    given = {"batches": split(X, EASY), "loss": CE, "make": make, "updates": 40, "remedies": False}
    report = diagnose(net, **given, optimizer=at_its_floor(part, kind, rate)(net))
    assert report.verdict != "something else"
    assert not report.causes or "slow start" in report.causes[0]


def test_rates_keep_their_proportion_and_those_of_0_become_the_first() -> None:
    net = make()
    optimizer = adam((net[0], 0.0), (net[2], 1e-3), (net[4], 5e-4))
    set_rate_(net, [optimizer], 0.01)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.01, 0.01, 0.005])


@pytest.mark.usefixtures("brief_trials")
def test_a_network_that_learns_only_at_a_higher_rate_than_its_own_is_not_plastic(monkeypatch) -> None:
    monkeypatch.setattr(trials, "RATES", (1.0, 10.0))
    net = make(nn.Tanh)
    with torch.no_grad():  # saturated
        for p in net.parameters():
            p.mul_(20)
    given = {"batches": split(X, EASY), "loss": CE, "make": lambda: make(nn.Tanh), "updates": 200}
    report = diagnose(net, **given, optimizer=ADAM(net.parameters(), 1e-3), remedies=False)
    assert report.verdict == "something else"
    assert report.causes == ("optimizer: with Adam at its learning rate of 0.001 it learns less than half",)
