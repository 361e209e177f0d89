"""Networks whose plasticity is known by construction get their verdict, and nothing of them changes."""

import copy
import json
import math

import pytest
import torch
from conftest import plainly, refused
from foreign.expected import made_of
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity import diagnose
from rl_plasticity.diagnosis import remedies, subject, trials, verdict
from rl_plasticity.diagnosis.judging import Judge
from rl_plasticity.diagnosis.remedies import with_layer_norm
from rl_plasticity.diagnosis.report import Estimate, Report
from rl_plasticity.diagnosis.subject import Subject
from rl_plasticity.diagnosis.tasks import Bank, TaskSource, TrialTask
from rl_plasticity.diagnosis.trials import Trials

X = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (128,), generator=torch.Generator().manual_seed(1))
CE = F.cross_entropy
BRIEF = {"repeats": 3, "remedies": False, "updates": 60}
NOTHING_DECIDES = BRIEF | {"repeats": 2, "updates": 10}


@pytest.fixture
def best_rate(monkeypatch) -> None:
    """All arms learn at the rate that ends best, and at no other."""
    monkeypatch.setattr(trials, "RATES", (1.0,))
    monkeypatch.setattr(subject, "RATE", 3e-3)
    monkeypatch.setattr(verdict, "RATE", 3e-3)


def make(activation=nn.ReLU, width: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, 4))


def wide() -> nn.Sequential:
    return make(width=128)


def batches() -> list[tuple[Tensor, Tensor]]:
    labels = torch.randint(0, 4, (128,), generator=torch.Generator().manual_seed(3))
    return list(zip(X.split(32), labels.split(32), strict=True))


def trained(net: nn.Module, updates: int = 200) -> torch.optim.Adam:
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(updates):
        plainly(optimizer, CE(net(X), Y))
    return optimizer


@torch.no_grad()
def biased(net: nn.Sequential, layer: int = 0, part: float = 1.0, value: float = -100.0) -> nn.Sequential:
    """A part of a layer's units is dead, or saturated."""
    bias = net[layer].bias
    bias[: int(part * len(bias))] = value
    return net


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 16, 3), nn.ReLU(), nn.Conv1d(16, 16, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(64, 4),
    )  # fmt: skip


def critic() -> nn.Module:
    """Two functions, of which one is dead."""
    return made_of(
        lambda net, obs, act: tuple(q(torch.cat([obs, act], -1)) for q in net.q),
        q=nn.ModuleList([biased(make()), make()]),
    )  # fmt: skip


@torch.no_grad()
def large_outputs() -> nn.Sequential:
    net = make()
    net[-1].weight.mul_(100)
    return net


@torch.no_grad()
def units_all_alike() -> nn.Sequential:
    """Equal units have equal gradients, so each layer stays one unit."""
    net = make()
    for i in (0, 2, 4):
        along = 1 if i == 4 else 0
        net[i].weight.copy_(net[i].weight.narrow(along, 0, 1).expand_as(net[i].weight))
        net[i].bias.fill_(0.1)
    net[2].weight.fill_(0.05)
    return net


BAD = ["losing", "lost"]  # in few updates a fresh network has not learned much either
KNOWN = {
    "fresh": (make, ["plastic"]),
    "large outputs": (large_outputs, ["plastic"]),
    "half dead": (lambda: biased(wide(), part=0.5), ["plastic"]),
    "dead": (lambda: biased(make()), ["lost"]),
    "saturated": (lambda: biased(biased(make(nn.Tanh), 0, value=50.0), 2, value=50.0), ["lost"]),
    "dead channels": (lambda: biased(convolutions(), 3), ["lost"]),
    "all alike": (units_all_alike, BAD),
    "one dead Q": (critic, BAD),
}


@pytest.mark.usefixtures("best_rate")
@pytest.mark.parametrize("name", KNOWN)
def test_a_network_whose_state_is_known_gets_its_verdict(name) -> None:
    of, expected = KNOWN[name]
    net = of()
    report = diagnose(net, (X[:, :5], X[:, 5:]) if name == "one dead Q" else X, **BRIEF | {"updates": 40})
    assert report.verdict in expected
    score = report.evidence["your network"]
    assert score.low > 0.9 if report.verdict == "plastic" else score.high < 0.9
    assert name != "saturated" or report.symptoms["saturated"][0] == 1.0


def test_a_network_that_has_to_unlearn_is_not_called_lost_while_it_catches_up(monkeypatch) -> None:
    monkeypatch.setattr(trials, "RATES", (1.0, 3.0))
    net = make(width=64)
    optimizer = trained(net, 400)
    given = {"loss": CE, "targets": Y, "make": lambda: make(width=64), "remedies": False, "repeats": 2}
    short = diagnose(net, X, updates=50, **given)
    longer = diagnose(net, X, optimizer=optimizer, **given)
    assert (short.verdict, longer.verdict) == ("not detectable", "plastic")
    assert short.learned.mean < 0.9 < longer.learned.low
    assert longer.protocol["targets"] == "own"
    assert longer.protocol["updates"] > 50


@pytest.mark.usefixtures("best_rate")
def test_an_earlier_network_that_learned_more_makes_it_losing() -> None:
    def poor() -> nn.Sequential:  # so a fresh network is no measure of what it could do
        return biased(make(), part=0.95)

    report = diagnose(poor(), X, make=poor, earlier=make(), **BRIEF | {"updates": 100})
    assert report.evidence["the earlier one"].low > report.evidence["your network"].high + 0.1
    assert report.verdict == "losing"


@pytest.mark.usefixtures("brief_trials")
def test_parameters_that_no_optimizer_holds_are_named_and_moments_of_a_loss_that_is_not_given_are_not() -> None:
    net = make()
    report = diagnose(net, X, optimizer=torch.optim.SGD(net[-1].parameters(), lr=1e-9), **NOTHING_DECIDES)
    assert any(said.startswith("not in the optimizer") for said in report.causes)
    optimizer = trained(net, 20)
    for state in optimizer.state.values():
        state["exp_avg_sq"].mul_(1e10)
    report = diagnose(net, X, optimizer=optimizer, **NOTHING_DECIDES)
    assert not any(said.startswith("optimizer") for said in report.causes)


def test_values_that_are_not_finite_and_constant_targets_are_named_and_nothing_is_tried() -> None:
    net = make()
    report = diagnose(net, X, loss=CE, targets=torch.full((128,), 3))
    assert (report.verdict, report.causes[0]) == ("something else", "constant targets: all 128 are 3")
    wrong = [(X[:8, :3], torch.full((8,), 3)), (X[:8], torch.full((8,), 3))]
    refused(lambda: diagnose(net, batches=wrong, loss=CE), match="batch 0 cannot be learned")
    net[2].weight.data[3, 4] = math.nan
    report = diagnose(net, X)
    assert report.verdict == "something else"
    assert "2.weight" in report.causes[0]


@pytest.mark.usefixtures("best_rate")
def test_own_batches_decide_alone_and_name_a_layer_without_a_living_unit() -> None:
    given = {"batches": batches(), "loss": CE, **BRIEF}
    assert diagnose(make(), **given).verdict == "plastic"
    report = diagnose(biased(make()), **given)
    assert report.verdict == "lost"
    assert report.protocol["targets"] == "batches"
    assert any(said.startswith("dead layer: every unit of '1'") for said in report.causes)
    below = biased(nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)))
    for net in (biased(make(), part=0.9), below):
        report = diagnose(net, **given)
        assert report.verdict in BAD
        assert not any(said.startswith("dead layer: every unit of '1'") for said in report.causes)


def test_what_has_to_be_unlearned_first_is_a_slow_start_and_no_loss(monkeypatch) -> None:
    monkeypatch.setattr(trials, "RATES", (10.0,))
    net = wide()
    trained(net, 400)
    report = diagnose(net, batches=batches(), loss=CE, make=wide, **BRIEF | {"updates": 150})
    assert report.verdict == "plastic"
    assert any(said.startswith("slow start") for said in report.causes)


@pytest.mark.usefixtures("brief_trials")
def test_batches_may_be_dicts_whose_loss_the_network_returns() -> None:
    own, given = made_of(lambda net, x, y: CE(net.inner(x), y), inner=make()), [{"x": x, "y": y} for x, y in batches()]
    report = diagnose(own, batches=given, loss=lambda out: out, **NOTHING_DECIDES)
    assert report.losses == diagnose(own.inner, batches=batches(), loss=CE, **NOTHING_DECIDES).losses


def test_a_rate_that_is_too_high_for_fresh_networks_is_named_and_trials_take_a_tenth_of_it() -> None:
    net = make()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.3)
    report = diagnose(net, batches=batches(), loss=CE, optimizer=optimizer, **BRIEF)
    assert report.verdict == "something else"
    assert report.causes[0].startswith("learning rate: with 0.3 ")
    assert report.protocol["rates"] == "0.03, 0.09, 0.3"


@pytest.mark.parametrize(("rate", "said"), [
    (10.0, ["learning rate: with 10 a fresh network diverges, and with 1 it removes 100%"]),
    (1e-6, []),
])  # fmt: skip
def test_a_rate_is_named_only_where_another_one_does_better_in_as_many_updates(rate, said) -> None:
    def linear() -> nn.Module:
        return nn.Linear(8, 4)

    net, given = linear(), [(x, x[:, :4]) for x in X.split(32)]
    mine = Subject(net, [torch.optim.SGD(net.parameters(), lr=rate)], linear, without_dropout=True)
    assert verdict._let_fresh_learn(Trials(mine, TaskSource(None, (F.mse_loss, given)), 2, 60, None, 0)) == said


def test_a_given_number_of_updates_holds_for_remedies_and_other_rates_too() -> None:
    for given, updates in ((10, 10), (None, 5)):
        mine = Trials(Subject(make(), [], make, without_dropout=True), TaskSource(Bank(X, ())), 2, given, None, 0)
        mine.run("brief", rates=[1.0], most=5)
        assert [len(of[1.0]) for of in mine.arms["brief"].curves] == [updates, updates]


def test_an_open_verdict_has_three_times_the_repeats_unless_they_would_not_help(monkeypatch) -> None:
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    report = diagnose(net, batches=batches(), loss=CE, optimizer=optimizer, **NOTHING_DECIDES)
    assert (report.verdict, report.protocol["repeats"]) == ("not detectable", 2)
    assert "more updates" in report.why
    monkeypatch.setattr(Judge, "judged", lambda self: ("not detectable", "open", 0.3))
    assert diagnose(make(), X, **NOTHING_DECIDES).protocol["repeats"] == 6


@pytest.mark.usefixtures("best_rate")
def test_remedies_are_tried_on_copies_and_ranked_and_the_report_is_one_screen_and_json(monkeypatch) -> None:
    for name in ("fire", "redo", "shrink_perturb"):
        monkeypatch.delitem(remedies.REMEDIES, name)
    report = diagnose(biased(make()), X, repeats=2, updates=60)
    found = {remedy.name: remedy for remedy in report.remedies}
    assert report.verdict == "lost"
    assert found["LayerNorm"].closes > 0.8
    assert f"your network learns {found['head'].before}" in str(report)
    assert found["head"].closes < 0.2  # the first layer is the dead one
    learned = [remedy.learned.mean for remedy in report.remedies]
    assert learned == sorted(learned, reverse=True)
    assert len(str(report).splitlines()) <= 40
    assert Report.of(json.loads(report.to_json())).to_json() == report.to_json()


def test_a_remedy_that_adds_to_the_network_learns_with_the_users_kind_of_optimizer() -> None:
    net = make()
    mine = Subject(net, [torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)], make, without_dropout=True)
    changed = mine.copied()
    with_layer_norm(changed, make(), X)
    task = TrialTask("batches", lambda net: batches(), CE, seed=0, updates=10)
    learner, (optimizer,) = changed.with_fresh_optimizer(task, 3.0)
    assert isinstance(optimizer, torch.optim.SGD)
    assert (optimizer.defaults["momentum"], optimizer.param_groups[0]["lr"]) == (0.9, 1.5)
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in learner.parameters()}
    assert not torch.equal(learner(X), net(X))  # what was added is in the copy, and not in the network


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d, lambda n: nn.LayerNorm(n, elementwise_affine=False)])
def test_layer_norm_is_not_tried_where_a_norm_layer_is_already(norm) -> None:
    def subject_of(*norms: nn.Module) -> Subject:
        net = nn.Sequential(
            nn.Linear(8, 32), norm(32), nn.ReLU(), nn.Linear(32, 32), *norms, nn.ReLU(), nn.Linear(32, 4)
        )
        return Subject(net, (), make, without_dropout=True)

    some = subject_of()
    with_layer_norm(some, make(), X)
    assert [name for name, module in some.net.named_modules() if module._forward_hooks] == ["3"]
    refused(lambda: with_layer_norm(subject_of(norm(32)), make(), X), "norm layer", error=ValueError)


@pytest.mark.usefixtures("best_rate")
def test_layer_norm_is_tried_behind_convolutions_and_a_remedy_that_does_not_fit_is_left_out(monkeypatch) -> None:
    def unfit(*_: object) -> None:
        raise ValueError("no such layer")

    monkeypatch.setattr(remedies, "REMEDIES", {"LayerNorm": with_layer_norm, "unfit": unfit})
    monkeypatch.setattr(verdict, "REMEDIES", remedies.REMEDIES)
    report = diagnose(biased(convolutions(), 3), batches=batches(), loss=CE, **BRIEF | {"remedies": True})
    assert [remedy.name for remedy in report.remedies] == ["LayerNorm"]
    assert report.remedies[0].learned.mean > 0.9
    assert report.protocol["not_applicable"] == ["unfit"]
    assert [*report.symptoms][:2] == ["dead", "dead/4"]
    assert report.symptoms["dead/4"][0] == 1


@pytest.mark.usefixtures("brief_trials")
@pytest.mark.parametrize("on_batches", [False, True])
def test_nothing_changes_and_the_same_seed_gives_the_same_report(on_batches) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), *make()).eval()
    optimizer = trained(net, 5)
    before, state = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    gradients = [p.grad.clone() for p in net.parameters()]
    given = {"batches": batches()} if on_batches else {"inputs": X, "targets": Y}
    given |= {"loss": CE, "optimizer": optimizer, "earlier": before, **NOTHING_DECIDES, "remedies": True}
    random_state = torch.get_rng_state()
    first = diagnose(net, **given)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, net.parameters(), strict=True))
    assert str(state) == str(optimizer.state_dict())
    assert not net.training
    torch.manual_seed(99)
    assert diagnose(net, **given).to_json() == first.to_json()


def test_the_interval_is_students() -> None:
    half = 4.302653 / 3**0.5
    assert [*Estimate.of([1.0, 2.0, 3.0])] == pytest.approx([2.0, 2 - half, 2 + half])


ON_BATCHES = {"inputs": None, "loss": CE}


@pytest.mark.parametrize(("given", "names"), [
    ({"net": nn.ReLU()}, ["no parameters"]),
    ({"inputs": X[:12]}, ["12", "4", "16", "batches="]),
    ({"inputs": X[:, :5]}, ["inputs", "RuntimeError"]),
    ({"inputs": X, "batches": batches(), "loss": CE}, ["batches=", "inputs", "targets="]),
    ({"inputs": None, "batches": batches()}, ["batches=", "loss="]),
    (ON_BATCHES | {"batches": (X, Y)}, ["list of (inputs, targets)", "list(loader)"]),
    (ON_BATCHES | {"batches": [(X[:, :3], Y)]}, ["batch 0", "128x3"]),
    (ON_BATCHES | {"batches": batches(), "loss": lambda out, y: 1.0}, ["batch 0", "float"]),
    ({"make": lambda: make(width=16)}, ["make=", "0."]),
    ({"targets": Y}, ["loss=", "targets=", "batches="]),
    ({"targets": Y[:5], "loss": CE}, ["targets", "128", "5"]),
    ({"earlier": make(width=16)}, ["earlier", "0."]),
    ({"optimizer": torch.optim.SGD(make().parameters(), lr=1.0)}, ["SGD", "parameters"]),
    ({"repeats": 1}, ["repeats", "1"]),
])  # fmt: skip
def test_bad_input_is_named_in_one_line(given, names) -> None:
    given = {"net": make(), "inputs": X, **NOTHING_DECIDES} | given
    refused(lambda: diagnose(given.pop("net"), given.pop("inputs"), **given), *names)
