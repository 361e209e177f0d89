"""What arms learn beside fresh networks, each run for itself, and on which tasks."""

import math

import pytest
import torch
from conftest import plainly
from foreign.expected import made_of
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity import Learner
from rl_plasticity.diagnosis import verdict
from rl_plasticity.diagnosis.agents import NextTask
from rl_plasticity.diagnosis.judging import Judge
from rl_plasticity.diagnosis.report import FRESH, NOW, Report
from rl_plasticity.diagnosis.subject import Subject, subject_of
from rl_plasticity.diagnosis.tasks import Bank, TaskSource, TrialTask, before_bounds, own_task
from rl_plasticity.diagnosis.trials import LONGEST, STRIDE, UPDATES, Arm, Trials, trainability
from rl_plasticity.diagnosis.verdict import reports
from rl_plasticity.networks import MLP
from rl_plasticity.training.epochs import cross_entropy

X = torch.randn(2, 64, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.stack([torch.arange(64) % 4, torch.arange(64) % 2 + 5])  # of two runs with other classes


def learner() -> Learner:
    return Learner(lambda seeds: MLP((8, 32, 32, 4), seeds, layer_norm=False), (0, 1))


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def trials_of(repeats: int, updates: int | None) -> Trials:
    torch.manual_seed(2)
    return Trials(
        Subject(make(), [], make, without_dropout=True), TaskSource(Bank(X[0], ())), repeats, updates, None, 0
    )


def test_a_dead_run_learns_nothing_beside_a_fresh_one_that_learns_all() -> None:
    made = learner()
    with torch.no_grad():
        made.net[0].bias[0] = -100.0
    dead, fresh = trainability(subject_of(made), TaskSource(Bank(X, (2,))), repeats=2, updates=50)
    assert dead < 0.2
    assert fresh > 0.9


@pytest.mark.usefixtures("brief_trials")
@pytest.mark.parametrize(("factor", "of_agent"), [(1e20, False), (math.nan, False), (math.nan, True)])
def test_a_run_whose_loss_is_not_finite_leaves_the_verdicts_on_the_others_alone(factor: float, of_agent: bool) -> None:
    made, source = learner(), TaskSource(Bank(X, (2,)), (cross_entropy, LABELS % 4))
    if of_agent:
        wanted = X[..., :4].sin()
        source = NextTask(Bank(X, (2,)), wanted=wanted)

    def reported() -> list[Report]:
        return reports(subject_of(made), source, None, None, False, 2, 50, 0)

    before = reported()
    with torch.no_grad():
        for p in made.net.parameters():
            p[1] *= factor
    if of_agent:
        wanted[1] *= factor
    first, second = reported()
    assert (first.verdict, first.learned) == (before[0].verdict, before[0].learned)
    assert first.verdict != "something else"
    named = [said.partition(":")[0] for said in second.causes]
    assert (second.verdict, named) == (("something else", ["not finite"]) if math.isnan(factor) else ("lost", []))


@pytest.mark.usefixtures("brief_trials")
def test_a_run_whose_targets_alone_are_not_finite_is_told_so() -> None:
    wanted = X[..., :4].sin()
    wanted[1, 3, 2] = math.nan
    first, second = reports(subject_of(learner()), NextTask(Bank(X, (2,)), wanted=wanted), None, None, False, 2, 50, 0)
    assert "not finite" not in first.why
    assert (second.verdict, second.why) == ("not detectable", "a fresh network's loss does not stay finite")


@pytest.mark.usefixtures("brief_trials")
def test_it_is_the_number_that_diagnose_gives_and_nothing_changes() -> None:
    made, source = learner(), TaskSource(Bank(X, (2,)), (cross_entropy, LABELS % 4))
    before = {name: tensor.clone() for name, tensor in made.state_dict().items() if isinstance(tensor, Tensor)}
    state = torch.get_rng_state()
    learned = trainability(subject_of(made), source, repeats=2, updates=20)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, made.state_dict()[name]) for name, tensor in before.items())
    found = reports(subject_of(made), source, None, None, False, 2, 20, 0)
    assert learned.tolist() == [report.evidence[NOW].mean for report in found]


class Statistics(nn.Module):
    """Buffers: statistics that are set from outside, those that a call changes, and a batch norm's."""

    def __init__(self, *runs: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(*runs, 1, 8))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x - self.mean


def test_fresh_networks_get_the_statistics_that_no_call_changes_and_other_weights_and_no_learner_moves() -> None:
    def made() -> nn.Module:
        return nn.Sequential(Statistics(), nn.BatchNorm1d(8), make())

    def fresh_of(subject: Subject, x: Tensor) -> list[nn.Module]:
        return Trials(subject, TaskSource(Bank(x, x.shape[:-2])), 2, 10, None, 0).fresh

    net, runs = made(), Learner(lambda seeds: nn.Sequential(Statistics(2), *MLP((8, 16, 4), seeds)), (0, 1))
    net[0].mean += 3
    net[0].calls += 7
    net[1].running_mean += 5
    runs.net[0].mean += torch.tensor([3.0, 4.0]).reshape(2, 1, 1)
    draws = runs.draws.clone()
    alone = fresh_of(Subject(net.eval(), [], made, without_dropout=True), X[0])
    for fresh in alone:
        assert fresh[0].calls == 0
        assert not fresh[1].running_mean.any()
        assert not torch.equal(fresh[2][0].weight, net[2][0].weight)
    for fresh, old in (*((one, net) for one in alone), (fresh_of(subject_of(runs), X)[0], runs.net)):
        assert torch.equal(fresh[0].mean, old[0].mean)
    assert torch.equal(runs.draws, draws)


def masked() -> nn.Module:
    """A layer with a mask, which belongs to its weights."""
    return made_of(
        lambda net, x: F.linear(x, net.layer.weight * net.mask, net.layer.bias),
        layer=nn.Linear(8, 4), mask=torch.ones(4, 8),
    )  # fmt: skip


@pytest.mark.usefixtures("brief_trials")
def test_fresh_networks_keep_their_own_buffers_where_they_learn_less_with_the_networks() -> None:
    net, x = masked(), X[0]
    net.mask.zero_()
    batches = [(x, x.argmax(-1).clamp(max=3))]
    trials = Trials(Subject(net, [], masked, True), TaskSource(None, (F.cross_entropy, batches)), 2, 100, None, 0)
    assert not trials.fresh[0].mask.any()
    verdict._let_fresh_learn(trials)
    assert trials.fresh[0].mask.all()


def curves_of(trials: Trials, fresh: dict[float, list[float]], now: dict[float, list[float]]) -> None:
    """Give an arm of fresh networks and one of the network these losses, by rate."""
    for arm, of in ((FRESH, fresh), (NOW, now)):
        curves = [{rate: torch.tensor(losses).double().reshape(-1, 1) for rate, losses in of.items()}] * 2
        trials.arms[arm] = Arm([], [*of], 30, curves)
    trials.length, trials.went_on = 30, True


@pytest.mark.parametrize(("last", "goes_on"), [(1.0, False), (4.0, True), (1.02, False)])
def test_a_network_whose_loss_is_above_nothing_and_still_moves_is_not_judged(last: float, goes_on: bool) -> None:
    trials = trials_of(2, None)
    curves_of(trials, {1.0: [0.01] * 30}, {1.0: [1.0] * 10 + [last + 3 * (last > 2)] * 10 + [last] * 10})
    assert Judge(trials, 0).may_catch_up() == goes_on


def test_longer_trials_keep_rates_near_the_best_and_those_that_still_unlearn_but_of_fresh_networks_the_best() -> None:
    trials = trials_of(2, None)
    ends = {1.0: 0.5, 3.0: 0.3, 10.0: 0.31, 30.0: 0.4, 100.0: 7.0, 300.0: math.inf}
    curves = {rate: [end] * 30 for rate, end in ends.items()}
    curves_of(trials, curves, curves)
    assert trials._still_good(NOW) == [1.0, 3.0, 10.0, 100.0]
    assert trials._still_good(FRESH) == [1.0, 3.0]


def drawn(labels: Tensor, x: Tensor) -> Tensor:
    """The labels that a task with the user's loss draws for these runs, ``[*runs, n]``."""
    found = []

    def criterion(output: Tensor, targets: Tensor) -> Tensor:
        found.append(targets)
        return output.mean()

    own_task(Bank(x, labels.shape[:-1]), criterion, labels, 7, 1).begin(nn.Identity())(nn.Identity(), 0)
    return found[0]


def test_a_run_draws_the_same_labels_alone_and_among_others_and_only_its_own_classes() -> None:
    together = drawn(LABELS, X)
    for run, alone in enumerate(together):
        assert torch.equal(alone, drawn(LABELS[run : run + 1], X[run : run + 1])[0])
        assert torch.equal(alone, drawn(LABELS[run], X[run]))
        assert alone.unique().tolist() == LABELS[run].unique().tolist()
    assert not torch.equal(together[0], LABELS[0])


def test_a_diagnosis_has_as_many_inputs_as_the_network_can_learn_and_the_users_loss_alone() -> None:
    many = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0))
    large = nn.Sequential(nn.Linear(8, 512), nn.ReLU(), nn.Linear(512, 4))
    for own, kind in ((None, "drawn"), ((F.cross_entropy, many.argmax(1) % 4), "own")):
        source = TaskSource(Bank(many, ()), own)
        assert source.whole(make()).bank.size == 256
        whole = source.whole(large)
        assert whole.bank.size == sum(p.numel() for p in large.parameters()) // 16
        assert whole.task([make(), make()], 0, 40).name == kind


def test_every_row_is_learned_in_batches_of_nearly_equal_size() -> None:
    for size, sizes in ((5, [5]), (100, [100]), (128, [64, 64]), (200, [67, 67, 66])):
        rows = torch.arange(2 * size).reshape(2, size, 1)
        found = [inputs.args[0] for inputs, _ in Bank(rows, (2,)).batches(0, rows)]
        assert [batch.shape[1] for batch in found] == sizes
        assert torch.equal(torch.cat(found, 1).sort(1).values, rows)


def test_batches_are_learned_in_another_order_in_each_pass() -> None:
    def order(seed: int) -> list[int]:
        loss = TrialTask("batches", lambda net: [[k] for k in range(8)], lambda k: k, seed, 16, call=lambda net, k: k)
        return [*map(loss.begin(nn.Identity()), [nn.Identity()] * 16, range(16))]

    first, second = order(0)[:8], order(0)[8:]
    assert sorted(first) == sorted(second) == [*range(8)]
    assert len({(*range(8),), (*first,), (*second,), (*order(1)[:8],)}) == 4


@pytest.mark.parametrize(
    "last", [nn.Tanh(), nn.Sigmoid(), nn.Softmax(-1), nn.LogSoftmax(-1), nn.Hardtanh(), nn.Softplus()]
)
def test_targets_of_bounded_outputs_can_be_reached(last: nn.Module) -> None:
    def scaled(net: nn.Module, x: Tensor) -> Tensor:
        return 2 * net.last(net.net(x)).unsqueeze(1).flatten(1) - 1

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = made_of(scaled, net=make(), last=last)
    for given in (net, nn.Sequential(net.net, last)):
        assert torch.equal(before_bounds(given, X[0]), net.net(X[0]))
    task = TaskSource(Bank(X[0], ())).task([net, net], 0, 10)
    loss = task.begin(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(10):
        for t in range(10):
            plainly(optimizer, loss(net, t))
    with torch.no_grad():
        assert float(loss(net, 0)) < 0.6
    relu = nn.Sequential(make(), nn.ReLU())
    assert torch.equal(before_bounds(relu, X[0]), relu(X[0]))  # a dead output unit must not be overlooked


def test_repeats_are_added_and_the_first_ones_stay() -> None:
    with torch.random.fork_rng():
        few, many = trials_of(2, 10), trials_of(4, 10)
        for made in (few, many):
            made.run(FRESH)
            made.run(NOW, [made.subject])
            before = few.loss(FRESH).clone()
        few.draw(2)
    assert torch.equal(few.loss(FRESH)[:2], before)
    assert few.score(NOW).shape == (4, 1)
    assert len({float(loss) for loss in few.loss(FRESH)}) == 4
    assert torch.equal(few.loss(NOW)[:2], many.loss(NOW)[:2])


def test_trials_end_at_twice_the_updates_that_the_best_rate_of_a_fresh_network_needs() -> None:
    def length(*removed: list[float]) -> int:
        """That after rates that removed these parts of the loss, every `STRIDE` updates."""
        made = trials_of(1, None)
        for of_rate in removed:
            ends, losses = made._learned(made.tasks[0]), []
            for part in torch.tensor(of_rate).repeat_interleave(STRIDE)[: made.length]:
                losses.append(1 - part)
                if ends(losses):
                    break
        return made.length

    slow, quick = [0.1, 0.2, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96], [0.2, 0.91, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert length(slow) == 6 * STRIDE
    assert length(slow, quick) == length(quick, slow) == 4 * STRIDE
    assert length([0.95] * 8) == UPDATES
    assert length([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.89]) == LONGEST


def test_trials_go_on_as_if_they_had_been_longer_from_the_start() -> None:
    made, long = trials_of(2, None), trials_of(2, None)
    for one, length in ((made, 10), (long, 30)):
        with torch.random.fork_rng():

            def ends(losses: list[Tensor], one: Trials = one, length: int = length) -> bool:
                one.length = min(length, one.length)
                return len(losses) >= length

            one._learned = lambda task, ends=ends: ends  # type: ignore[method-assign]
            one.run(FRESH)
            one.run(NOW, [one.subject])
    assert made.is_first
    assert made.go_on()
    assert not made.is_first
    assert made.length == long.length == 30
    for arm in (FRESH, NOW):
        rate = max({*made.arms[arm].curves[0]} & {*long.arms[arm].curves[0]})
        assert torch.equal(made.arms[arm].curves[0][rate], long.arms[arm].curves[0][rate])
    assert trials_of(1, 10).go_on() is False


def test_symptoms_are_those_on_the_largest_batch_as_units_look_dead_on_few_examples():
    batches = [(torch.randn(n, 3), torch.zeros(n)) for n in (2, 64, 8)]
    assert len(TaskSource.of(None, lambda out, y: out.mean(), None, batches).example) == 64
