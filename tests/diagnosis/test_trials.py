"""What a stack of runs learns beside fresh ones: each run for itself, as `diagnose` finds it."""

import pytest
import torch
from torch import Tensor

from rl_plasticity import Learner
from rl_plasticity.diagnosis import verdict
from rl_plasticity.diagnosis.report import NOW
from rl_plasticity.diagnosis.trainability import Bank, Data, subject_of
from rl_plasticity.diagnosis.trials import trainability
from rl_plasticity.diagnosis.verdict import reports
from rl_plasticity.networks import MLP
from rl_plasticity.training.epochs import cross_entropy

X = torch.randn(2, 64, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.stack([torch.arange(64) % 4, torch.arange(64) % 2 + 5])  # of two runs with other classes


def learner(seeds: tuple[int, ...] = (0, 1)) -> Learner:
    return Learner(lambda seeds: MLP((8, 32, 32, 4), seeds, layer_norm=False), seeds)


def test_a_dead_run_learns_nothing_beside_a_fresh_one_that_learns_all() -> None:
    made = learner()
    with torch.no_grad():
        made.net[0].bias[0] = -100.0  # type: ignore[index, union-attr, operator]
    dead, fresh = trainability(subject_of(made), Data(Bank(X, (2,))), repeats=2)
    assert dead < 0.2
    assert fresh > 0.9


def test_it_is_the_number_that_diagnose_gives_and_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "MOST", 1)  # no repeats are added where the verdict is open
    made, data = learner(), Data(Bank(X, (2,)), (cross_entropy, LABELS % 4))
    before = {name: tensor.clone() for name, tensor in made.state_dict().items() if isinstance(tensor, Tensor)}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    learned = trainability(subject_of(made), data, repeats=2, updates=20)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, made.state_dict()[name]) for name, tensor in before.items())
    found = reports(subject_of(made), data, None, None, False, 2, 20, 0)
    assert learned.tolist() == [report.evidence[NOW].mean for report in found]


def test_it_is_nan_where_a_fresh_network_learns_nothing() -> None:
    learned = trainability(subject_of(learner()), Data(Bank(X, (2,))), repeats=2, updates=1)
    assert learned.isnan().tolist() == [True, True]
