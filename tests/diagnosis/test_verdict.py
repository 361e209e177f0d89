"""Networks whose plasticity is known by construction get their verdict, and nothing of them changes."""

import copy
import json
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity import Learner, diagnose, measure
from rl_plasticity.diagnosis import verdict
from rl_plasticity.diagnosis.remedies import with_layer_norm
from rl_plasticity.diagnosis.report import FRESH, NOW, STUDENT, Estimate, Report
from rl_plasticity.diagnosis.trainability import Bank, Data, Subject, own_batches
from rl_plasticity.diagnosis.trials import RATES, STRIDE, Trials
from rl_plasticity.errors import SettingsError

X = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (128,), generator=torch.Generator().manual_seed(1))
BRIEF = {"repeats": 3, "remedies": False, "updates": 100}
FEW = BRIEF | {"updates": 30}  # where no number decides


def make(activation: type[nn.Module] = nn.ReLU, width: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, 4))


@pytest.fixture
def net() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return make()


def trained(net: nn.Module, updates: int = 200) -> torch.optim.Adam:
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(updates):
        optimizer.zero_grad()
        F.cross_entropy(net(X), Y).backward()
        optimizer.step()
    return optimizer


def with_dead_units(net: nn.Sequential, share: float = 1.0) -> nn.Sequential:
    first = net[0]
    with torch.no_grad():
        first.bias[: int(share * len(first.bias))] = -100.0  # type: ignore[index, operator, arg-type]
    return net


def saturated() -> nn.Sequential:
    net = make(nn.Tanh)
    with torch.no_grad():
        for layer in (net[0], net[2]):
            layer.bias.fill_(50.0)  # type: ignore[operator, union-attr]
    return net


def test_a_fresh_network_is_plastic(net: nn.Module) -> None:
    report = diagnose(net, X, **BRIEF)
    assert report.verdict == "plastic"
    assert report.evidence["your network"].low > 0.9


def test_a_network_that_learned_one_task_is_plastic_with_its_optimizer_and_loss(net: nn.Module) -> None:
    optimizer = trained(net)
    given = BRIEF | {"updates": 200}
    report = diagnose(net, X, loss=F.cross_entropy, targets=Y, optimizer=optimizer, **given)
    assert report.verdict == "plastic"
    assert report.protocol["targets"] == ["noise", "teacher", "own"]


def test_dead_units_are_a_lost_network_and_half_of_them_are_not() -> None:
    assert diagnose(with_dead_units(make()), X, **BRIEF).verdict == "lost"
    assert diagnose(with_dead_units(make(width=128), 0.5), X, **BRIEF).verdict == "plastic"


def test_units_that_are_saturated_for_every_input_are_a_lost_network() -> None:
    report = diagnose(saturated(), X, **BRIEF)
    assert report.verdict == "lost"
    assert report.symptoms["saturated"][0] == 1.0


def test_large_outputs_are_not_taken_for_lost_plasticity(net: nn.Sequential) -> None:
    with torch.no_grad():
        net[-1].weight.mul_(100)  # type: ignore[operator]
    assert diagnose(net, X, **BRIEF).verdict == "plastic"


@pytest.fixture(scope="module")
def of_dead_units() -> Report:
    """With remedies."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return diagnose(with_dead_units(make()), X, repeats=2, updates=100)


def test_remedies_are_tried_on_copies_and_ranked(of_dead_units: Report) -> None:
    report = of_dead_units
    found = {remedy.name: remedy for remedy in report.remedies}
    assert report.verdict == "lost"
    assert found["LayerNorm"].closes > 0.8
    assert found["head"].closes < 0.2  # the first layer is the dead one
    learned = [remedy.learned.mean for remedy in report.remedies]
    assert learned == sorted(learned, reverse=True)


def test_a_remedy_that_adds_to_the_network_learns_with_the_users_kind_of_optimizer(net: nn.Sequential) -> None:
    subject = Subject(net, [torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)], make, without_dropout=True)
    changed = subject.copied()
    with_layer_norm(changed.net, make(), X)
    task = own_batches(batches(), F.cross_entropy, seed=0, updates=10)
    learner, (optimizer,) = changed.with_fresh_optimizer(task, 3.0)
    assert isinstance(optimizer, torch.optim.SGD)
    assert (optimizer.defaults["momentum"], optimizer.param_groups[0]["lr"]) == (0.9, 1.5)
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in learner.parameters()}
    assert not torch.equal(learner(X), net(X))  # what was added is in the copy, and not in the network


# --- something else ---------------------------------------------------------------------------------------------------


def stale(net: nn.Module) -> torch.optim.Adam:
    optimizer = trained(net)
    for state in optimizer.state.values():
        state["exp_avg_sq"].mul_(1e10)
    return optimizer


def at_rate_0(net: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(net.parameters(), lr=0.0)


def decayed(net: nn.Module) -> torch.optim.Adam:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    optimizer.param_groups[0].update(initial_lr=1e-3, lr=1e-8)
    return optimizer


def frozen(net: nn.Module) -> None:
    net.requires_grad_(False)


def of_the_head_alone(net: nn.Sequential) -> torch.optim.SGD:
    return torch.optim.SGD(net[-1].parameters(), lr=1e-9)


def rounded(net: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(net.bfloat16().parameters(), lr=1e-6)


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        (stale, "stale moments"),
        (at_rate_0, "learning rate"),
        (decayed, "learning rate"),
        (frozen, "frozen"),
        (of_the_head_alone, "not in the optimizer"),
        (rounded, "rounding"),
    ],
)
def test_what_is_not_lost_plasticity_is_something_else_and_named(net: nn.Module, how: object, cause: str) -> None:
    optimizer = how(net)  # type: ignore[operator]
    if how is of_the_head_alone:
        report = diagnose(net, X, optimizer=optimizer, **FEW)
        assert any(said.startswith(cause) for said in report.causes)
        return
    brief = BRIEF if how is stale else FEW
    report = diagnose(net, X, loss=F.cross_entropy, targets=Y, optimizer=optimizer, **brief)
    assert report.verdict == "something else"
    assert any(said.startswith(cause) for said in report.causes)


@pytest.mark.usefixtures("no_further_repeats")
def test_the_size_of_drawn_targets_gradients_is_not_compared_with_the_moments(net: nn.Module) -> None:
    report = diagnose(net, X, optimizer=stale(net), **FEW)  # its moments belong to a loss that is not given
    assert not any(said.startswith("stale moments") for said in report.causes)


def test_clipping_that_leaves_nothing_is_named(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    report = diagnose(net, X, loss=F.cross_entropy, targets=Y, optimizer=optimizer, max_grad_norm=1e-6, **BRIEF)
    assert report.verdict == "something else"
    assert any("max_grad_norm=1e-06" in said for said in report.causes)


def test_values_that_are_not_finite_are_named_with_their_parameter(net: nn.Sequential) -> None:
    net[2].weight.data[3, 4] = math.nan  # type: ignore[operator, union-attr]
    report = diagnose(net, X)
    assert report.verdict == "something else"
    assert "2.weight" in report.causes[0]


def test_constant_targets_are_named(net: nn.Module) -> None:
    report = diagnose(net, X, loss=F.cross_entropy, targets=torch.full((128,), 3))
    assert (report.verdict, report.causes[0]) == ("something else", "constant targets: all 128 are 3")


# --- more repeats where those leave it open ---------------------------------------------------------------------------


def test_repeats_are_added_where_the_interval_leaves_the_verdict_open_and_the_first_ones_stay() -> None:
    def trials(repeats: int) -> Trials:
        subject = Subject(make(), [], make, without_dropout=True)
        made = Trials(subject, Data(Bank(X, ())), repeats, updates=10, clip=None, seed=0)
        made.run(FRESH, lambda r: subject.copied(made.fresh[r]), RATES)
        made.run(NOW, lambda r: subject, RATES)
        return made

    with torch.random.fork_rng():
        torch.manual_seed(2)
        few = trials(2)
        before = few.end("noise", FRESH, 0).clone()
        few.draw(2)
    assert torch.equal(few.end("noise", FRESH, 0)[:2], before)
    assert few.shares(NOW).shape == (4, 1)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        assert torch.equal(trials(4).shares(NOW), few.shares(NOW))


def test_a_verdict_that_stays_open_has_three_times_the_repeats(monkeypatch: pytest.MonkeyPatch, net: nn.Module) -> None:
    open_ = ("not detectable", "open", 0.3)
    monkeypatch.setattr(verdict, "_judged", lambda trials, run, longer: open_)
    assert diagnose(net, X, repeats=2, updates=10).protocol["repeats"] == 6
    monkeypatch.setattr(
        verdict, "_judged", lambda trials, run, longer: ("not detectable", "fresh learns nothing", None)
    )
    assert diagnose(net, X, repeats=2, updates=10).protocol["repeats"] == 2


def test_how_long_it_takes_is_said_first_if_that_is_long(
    monkeypatch: pytest.MonkeyPatch, net: nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verdict, "_seconds", lambda *_: 6.0)
    diagnose(net, X, repeats=2, updates=10)
    assert capsys.readouterr().err.splitlines()[0] == "diagnose: 16 trials take at most 8 min"
    monkeypatch.setattr(verdict, "_seconds", lambda *_: 0.02)
    diagnose(net, X, repeats=2, updates=10)
    assert capsys.readouterr().err == ""


# --- longer trials ----------------------------------------------------------------------------------------------------


def test_a_network_that_has_to_unlearn_is_not_called_lost_by_longer_trials() -> None:
    net = make(width=64)
    trained(net, 600)
    given = {"loss": F.cross_entropy, "targets": Y, "make": lambda: make(width=64), "remedies": False, "repeats": 2}
    short, longer = (diagnose(net, X, updates=updates, **given) for updates in (50, None))  # type: ignore[arg-type]
    assert short.verdict == "lost"
    assert longer.verdict == "plastic"
    assert longer.learned == longer.evidence["in a longer trial"] != longer.evidence["your network"]
    assert short.learned == short.evidence["your network"]


def test_longer_trials_end_at_twice_the_updates_that_the_best_rate_of_a_fresh_network_needs() -> None:
    def limit(*removed: list[float]) -> int | None:
        """The limit after rates that removed these shares of the loss, every `STRIDE` updates."""
        subject = Subject(make(), [], make, without_dropout=True)
        trials = Trials(subject, Data(Bank(X, ())), 1, 8 * STRIDE, None, 0, choose=True)
        for of_rate in removed:
            ends, losses = trials._limited(trials.tasks[0][0]), []
            for share in torch.tensor(of_rate).repeat_interleave(STRIDE)[: trials.limits.get("noise")]:
                losses.append(1 - share)
                if ends(losses):
                    break
        return trials.limits.get("noise")

    slow, quick = [0.1, 0.2, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96], [0.2, 0.91, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert limit(slow) == 6 * STRIDE
    assert limit(slow, quick) == limit(quick, slow) == 4 * STRIDE
    assert limit([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.89]) is None


def test_further_repeats_of_longer_trials_take_the_rate_that_was_best_in_the_first() -> None:
    subject = Subject(make(), [], make, without_dropout=True)
    trials = Trials(subject, Data(Bank(X, ())), 1, 60, None, 0, choose=True)
    trials.run(FRESH, lambda r: subject.copied(trials.fresh[r]), (1e-9, 3.0))
    trials.draw(2)
    for kind in trials.kinds:
        tiny, best = trials.curves[kind, FRESH]
        assert [bool(curve.isfinite().all()) for curve in tiny] == [True, False, False]
        assert all(curve.isfinite().all() for curve in best)
        assert torch.equal(trials.end(kind, FRESH), trials.end(kind, FRESH, 1))


def test_targets_of_which_fresh_networks_learn_nothing_do_not_count() -> None:
    subject = Subject(make(), [], make, without_dropout=True)
    trials = Trials(subject, Data(Bank(X, ())), 1, 10, None, 0)
    one = torch.ones(10, 1, dtype=torch.float64)
    trials.curves = {("noise", FRESH): [[0.95 * one]], ("noise", NOW): [[one]]}
    trials.curves |= {("teacher", FRESH): [[0.2 * one]], ("teacher", NOW): [[0.28 * one]]}
    assert float(trials.shares(NOW)) == pytest.approx(0.9)  # 0.45 with the noise
    trials.curves["teacher", FRESH] = [[0.95 * one]]  # fresh networks learn neither, so both count
    assert float(trials.shares(NOW)) == pytest.approx((0 + 2) / 2)


def test_longer_trials_have_more_inputs_and_the_users_loss_alone() -> None:
    many = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0))
    for own, kinds in ((None, ["noise", "teacher"]), ((F.cross_entropy, many.argmax(1) % 4), ["own"])):
        data = Data(Bank(many, ()), own)
        longer = data.longer()
        assert longer is not None
        assert data.bank is not None
        assert longer.bank is not None
        assert (data.bank.size, longer.bank.size) == (256, 1024)
        assert [task.name for task in longer.tasks(make(), 0, 40)] == kinds


# --- the user's own batches -------------------------------------------------------------------------------------------


def batches(seed: int = 3) -> list[tuple[Tensor, Tensor]]:
    labels = torch.randint(0, 4, (128,), generator=torch.Generator().manual_seed(seed))
    return list(zip(X.split(32), labels.split(32), strict=True))


def test_own_batches_decide_alone(net: nn.Module) -> None:
    given = {"batches": batches(), "loss": F.cross_entropy, **BRIEF} | {"updates": 300}
    assert diagnose(make(width=128), **given).verdict == "plastic"
    report = diagnose(with_dead_units(net), **given)
    assert report.verdict == "lost"
    assert report.protocol["targets"] == ["batches"]


def test_what_has_to_be_unlearned_first_is_a_slow_start_and_no_loss() -> None:
    net = make(width=128)
    trained(net, 400)
    report = diagnose(
        net, batches=batches(), loss=F.cross_entropy, make=lambda: make(width=128), **BRIEF | {"updates": 400}
    )
    assert report.verdict == "plastic"
    assert any(said.startswith("slow start") for said in report.causes)


def test_batches_may_be_dicts_whose_loss_the_network_returns() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make(width=128)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.inner(x), y)

    given = [{"x": x, "y": y} for x, y in batches()]
    assert diagnose(Own(), batches=given, loss=lambda out: out, **BRIEF | {"updates": 300}).verdict == "plastic"


def test_symptoms_are_of_several_batches_where_one_has_few_examples(net: nn.Module) -> None:
    few = [(X[:4], Y[:4]), *batches()]
    given = {"loss": F.cross_entropy, **BRIEF} | {"updates": 10}
    of_all = measure(net, X)["dead"].item()
    assert measure(net, X[:4])["dead"].item() > of_all
    assert diagnose(net, batches=few, **given).symptoms["dead"][0] == pytest.approx(of_all)


def test_a_rate_that_is_too_high_for_fresh_networks_is_named_and_trials_take_a_tenth_of_it() -> None:
    net = make(width=128)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.3)
    report = diagnose(net, batches=batches(), loss=F.cross_entropy, optimizer=optimizer, **BRIEF | {"updates": 200})
    assert report.verdict == "something else"
    assert report.causes[0].startswith("learning rate: with 0.3 ")
    assert report.protocol["rates"] == "0.03, 0.09"


def test_layer_norm_is_tried_behind_convolutions_and_spectral_regularization_while_a_copy_learns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verdict, "REMEDIES", {"LayerNorm": with_layer_norm})
    net = convolutions()
    with torch.no_grad():
        net[3].bias.fill_(-100.0)  # type: ignore[operator, union-attr]
    report = diagnose(net, batches=batches(), loss=F.cross_entropy, **BRIEF | {"remedies": True})
    learned = {remedy.name: remedy.learned.mean for remedy in report.remedies}
    assert learned["LayerNorm"] > 0.9
    assert "spectral attached" in learned
    assert [*report.symptoms][:2] == ["dead", "dead/4"]
    assert report.symptoms["dead/4"][0] == 1


def test_a_layer_without_a_living_unit_is_named(net: nn.Sequential) -> None:
    report = diagnose(with_dead_units(net), batches=batches(), loss=F.cross_entropy, **BRIEF)
    assert [said for said in report.causes if said.startswith("dead layer: every unit of '1'")]
    report = diagnose(with_dead_units(make(), 0.9), batches=batches(), loss=F.cross_entropy, **BRIEF)
    assert not any(said.startswith("dead layer") for said in report.causes)


def test_too_short_a_task_is_not_detectable(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    report = diagnose(net, batches=batches(), loss=F.cross_entropy, optimizer=optimizer, **BRIEF | {"updates": 10})
    assert report.verdict == "not detectable"
    assert "more updates" in report.why


def test_an_earlier_network_that_learned_more_makes_it_losing() -> None:
    def poor() -> nn.Sequential:  # so a fresh network is no measure of what it could do
        return with_dead_units(make(), 0.9)

    report = diagnose(poor(), X, make=poor, earlier=make(), **BRIEF)
    assert report.evidence["the earlier one"].low > report.evidence["your network"].high + 0.1
    assert report.verdict == "losing"


# --- other kinds of networks ------------------------------------------------------------------------------------------


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 16, 3), nn.ReLU(), nn.Conv1d(16, 16, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(64, 4),
    )  # fmt: skip


def test_dead_channels_of_a_convolutional_network_are_a_lost_one() -> None:
    net = convolutions()
    with torch.no_grad():
        net[3].bias.fill_(-100.0)  # type: ignore[operator, union-attr]
    assert diagnose(net, X, **BRIEF).verdict == "lost"


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(2, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.gru(x.unflatten(1, (4, 2)))[0][:, -1])
        return output


def test_a_recurrent_network_whose_update_gate_is_shut_is_not_plastic() -> None:
    net = Recurrent()
    with torch.no_grad():
        net.gru.bias_ih_l0[32:64] = 200.0  # z = 1: the state stays 0, whatever is read
    assert diagnose(net, X, **BRIEF).verdict in ("losing", "lost")  # few updates: a fresh one has not learned much


def test_a_critic_one_of_whose_two_functions_is_dead_is_not_plastic() -> None:
    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.ModuleList([make(), make()])

        def forward(self, obs: Tensor, act: Tensor) -> tuple[Tensor, ...]:
            return tuple(q(torch.cat([obs, act], -1)) for q in self.q)

    net = Critic()
    with_dead_units(net.q[0])  # type: ignore[arg-type]
    assert diagnose(net, (X[:, :5], X[:, 5:]), **BRIEF).verdict in ("losing", "lost")


def test_units_that_are_all_alike_are_a_lost_network(net: nn.Sequential) -> None:
    with torch.no_grad():  # equal units have equal gradients, so each layer stays one unit
        for i in (0, 2, 4):
            layer = net[i]
            along = 1 if i == 4 else 0
            layer.weight.copy_(layer.weight.narrow(along, 0, 1).expand_as(layer.weight))  # type: ignore[operator, union-attr]
            layer.bias.fill_(0.1)  # type: ignore[operator, union-attr]
        net[2].weight.fill_(0.05)  # type: ignore[operator, union-attr]
    assert diagnose(net, X, **BRIEF).verdict == "lost"


# --- nothing changes, everything repeats ------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_further_repeats")
def test_nothing_changes_and_the_same_seed_gives_the_same_report(net: nn.Sequential) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), *net).eval()
    optimizer = trained(net, 5)
    before, state = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    random_state = torch.get_rng_state()
    first = diagnose(
        net, X, loss=F.cross_entropy, targets=Y, optimizer=optimizer, earlier=before, repeats=2, updates=20
    )
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, net.parameters(), strict=True) if p.grad is not None)
    assert str(state) == str(optimizer.state_dict())
    assert not net.training
    torch.manual_seed(99)
    again = diagnose(
        net, X, loss=F.cross_entropy, targets=Y, optimizer=optimizer, earlier=before, repeats=2, updates=20
    )
    assert again.to_json() == first.to_json()


def test_own_batches_leave_running_statistics_as_they_are(net: nn.Sequential) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), *net)
    before = copy.deepcopy(net.state_dict())
    diagnose(net, batches=batches(), loss=F.cross_entropy, repeats=2, updates=10, remedies=False)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))


def test_the_report_is_one_screen_and_json(of_dead_units: Report) -> None:
    text = str(of_dead_units)
    assert text.startswith("verdict: lost")
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 120
    assert json.loads(of_dead_units.to_json())["evidence"]["your network"]["mean"] < 0.5


def test_a_learner_brings_its_own_new_weights() -> None:
    def made(seeds: object) -> nn.Module:
        net = make()
        for p in net.parameters():
            nn.init.constant_(p, 1e-3)  # by itself such a network learns nothing but a constant
        return net

    report = diagnose(Learner(made), X, **BRIEF)
    assert report.losses["a fresh network/noise"] > 0.9


def test_the_interval_is_students() -> None:
    from scipy.special import stdtrit

    expected = [float(stdtrit(n, 0.975)) for n in range(1, len(STUDENT) + 1)]
    assert expected == pytest.approx([*STUDENT], abs=6e-4)
    assert Estimate.of([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"net": nn.ReLU()}, ["no parameters"]),
        ({"net": "net"}, ["net", "str"]),
        ({"inputs": X[:12]}, ["12", "4", "16", "batches="]),
        ({"inputs": X[:, :5]}, ["inputs", "RuntimeError"]),
        ({"inputs": None}, ["inputs", "batches="]),
        ({"inputs": None, "batches": (X, Y), "loss": F.cross_entropy}, ["list of (inputs, targets)", "list(loader)"]),
        ({"inputs": None, "batches": [(X[:, :3], Y)], "loss": F.cross_entropy}, ["the first batch", "128x3"]),
        ({"inputs": None, "batches": batches()}, ["batches= needs loss="]),
        ({"make": lambda: make(width=16)}, ["make=", "0."]),
        ({"targets": Y}, ["loss="]),
        ({"targets": Y[:5], "loss": F.cross_entropy}, ["targets", "128", "5"]),
        ({"inputs": X.repeat(3, 1), "targets": Y.repeat(3)[:300], "loss": F.cross_entropy}, ["384", "300"]),
        ({"loss": F.cross_entropy}, ["targets="]),
        ({"inputs": None, "batches": [], "loss": F.cross_entropy}, ["batches"]),
        ({"inputs": None, "batches": [3], "loss": F.cross_entropy}, ["batch", "int"]),
        ({"inputs": None, "batches": batches()}, ["loss="]),
        ({"earlier": make(width=16)}, ["earlier", "0."]),
        ({"earlier": 3}, ["earlier", "int"]),
        ({"optimizer": torch.optim.SGD(make().parameters(), lr=1.0)}, ["SGD", "parameters"]),
        ({"repeats": 1}, ["repeats", "1"]),
        ({"updates": 3}, ["updates", "3"]),
    ],
)
def test_bad_input_is_named_in_one_line(given: dict[str, object], names: list[str]) -> None:
    given = {"net": make(), "inputs": X, **FEW} | given
    with pytest.raises(SettingsError) as error:
        diagnose(given.pop("net"), given.pop("inputs"), **given)  # type: ignore[arg-type]
    assert all(name in str(error.value) for name in names), str(error.value)
    assert "\n" not in str(error.value)
