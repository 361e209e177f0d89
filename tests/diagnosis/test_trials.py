"""What arms learn beside fresh networks, each run for itself, and on which tasks."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity import Learner
from rl_plasticity.diagnosis import verdict
from rl_plasticity.diagnosis.report import FRESH, NOW
from rl_plasticity.diagnosis.subject import Subject, subject_of
from rl_plasticity.diagnosis.tasks import Bank, TaskSource, _own_task
from rl_plasticity.diagnosis.trials import STRIDE, Arm, Trials, trainability
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
    dead, fresh = trainability(subject_of(made), TaskSource(Bank(X, (2,))), repeats=2)
    assert dead < 0.2
    assert fresh > 0.9


@pytest.mark.usefixtures("no_further_repeats")
def test_it_is_the_number_that_diagnose_gives_and_nothing_changes() -> None:
    made, source = learner(), TaskSource(Bank(X, (2,)), (cross_entropy, LABELS % 4))
    before = {name: tensor.clone() for name, tensor in made.state_dict().items() if isinstance(tensor, Tensor)}
    state = torch.get_rng_state()
    learned = trainability(subject_of(made), source, repeats=2, updates=20)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, made.state_dict()[name]) for name, tensor in before.items())
    found = reports(subject_of(made), source, None, None, False, 2, 20, 0)
    assert learned.tolist() == [report.evidence[NOW].mean for report in found]


def test_new_networks_of_a_learner_keep_statistics_of_the_inputs_and_have_other_weights() -> None:
    class Statistics(nn.Module):
        is_statistics = True

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(2, 1, 8))

        def forward(self, x: Tensor) -> Tensor:
            return x - self.mean

    made = Learner(lambda seeds: nn.Sequential(Statistics(), MLP((8, 16, 4), seeds, layer_norm=False)), (0, 1))
    made.net[0].mean += 3
    draws = made.draws.clone()
    fresh = subject_of(made).fresh()
    assert torch.equal(fresh[0].mean, made.net[0].mean)
    assert not torch.equal(fresh[1][0].weight, made.net[1][0].weight)
    assert torch.equal(made.draws, draws)  # nothing of the learner has moved


def drawn(labels: Tensor, x: Tensor) -> Tensor:
    """The labels that a task with the user's loss draws for these runs, ``[*runs, n]``."""
    found = []

    def criterion(output: Tensor, targets: Tensor) -> Tensor:
        found.append(targets)
        return output.mean()

    bank, generator = Bank(x, labels.shape[:-1]), torch.Generator().manual_seed(7)
    _own_task(bank, criterion, labels, [torch.arange(64)], generator).begin(nn.Identity())(nn.Identity(), 0)
    return found[0]


def test_a_run_draws_the_same_labels_alone_and_among_others_and_only_its_own_classes() -> None:
    together = drawn(LABELS, X)
    for run, alone in enumerate(together):
        assert torch.equal(alone, drawn(LABELS[run : run + 1], X[run : run + 1])[0])
        assert torch.equal(alone, drawn(LABELS[run], X[run]))
        assert alone.unique().tolist() == LABELS[run].unique().tolist()
    assert not torch.equal(together[0], LABELS[0])


def test_longer_trials_have_more_inputs_and_the_users_loss_alone() -> None:
    many = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0))
    for own, kinds in ((None, ["noise", "teacher"]), ((F.cross_entropy, many.argmax(1) % 4), ["own"])):
        source = TaskSource(Bank(many, ()), own)
        longer = source.longer()
        assert (source.bank.size, longer.bank.size) == (256, 1024)
        assert [task.name for task in longer.tasks(make(), 0, 40)] == kinds


def test_repeats_are_added_and_the_first_ones_stay() -> None:
    with torch.random.fork_rng():
        few, many = trials_of(2, 10), trials_of(4, 10)
        for made in (few, many):
            made.run(FRESH)
            made.run(NOW, lambda r, made=made: made.subject)
        before = few.loss("noise", FRESH, rate=0).clone()
        few.draw(2)
    assert torch.equal(few.loss("noise", FRESH, rate=0)[:2], before)
    assert few.scores(NOW).shape == (4, 1)
    assert len({float(loss) for loss in few.loss("noise", FRESH)}) == 4
    assert torch.equal(few.loss("noise", NOW)[:2], many.loss("noise", NOW)[:2])


def test_longer_trials_end_at_twice_the_updates_that_the_best_rate_of_a_fresh_network_needs() -> None:
    def limit(*removed: list[float]) -> int | None:
        """The limit after rates that removed these parts of the loss, every `STRIDE` updates."""
        made = trials_of(1, None)
        for of_rate in removed:
            ends, losses = made._limit(made.tasks[0][0]), []
            for part in torch.tensor(of_rate).repeat_interleave(STRIDE)[: made.limits.get("noise")]:
                losses.append(1 - part)
                if ends(losses):
                    break
        return made.limits.get("noise")

    slow, quick = [0.1, 0.2, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96], [0.2, 0.91, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert limit(slow) == 6 * STRIDE
    assert limit(slow, quick) == limit(quick, slow) == 4 * STRIDE
    assert limit([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.89]) is None


def test_targets_of_which_fresh_networks_learn_nothing_do_not_count() -> None:
    def arm(noise: float, teacher: float) -> Arm:
        losses = {"noise": noise, "teacher": teacher}
        return Arm(make, [1.0], {k: [torch.full((1, 3, 1), loss, dtype=torch.float64)] for k, loss in losses.items()})

    made = trials_of(1, 10)
    made.arms = {FRESH: arm(0.95, 0.2), NOW: arm(1.0, 0.28)}
    assert float(made.scores(NOW)) == pytest.approx(0.9)  # 0.45 with the noise
    made.arms[FRESH] = arm(0.95, 0.95)  # fresh networks learn neither, so both count
    assert float(made.scores(NOW)) == pytest.approx((0 + 2) / 2)
    assert math.isnan(float(made.scores(NOW).masked_fill(made.removed().amax(0) < verdict.LEARNS, math.nan)))
