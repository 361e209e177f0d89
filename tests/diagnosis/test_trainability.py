"""The tasks that every arm learns."""

import torch
from torch import Tensor, nn

from rl_plasticity.diagnosis.trainability import Bank, _own_task

X = torch.randn(2, 64, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.stack([torch.arange(64) % 4, torch.arange(64) % 2 + 5])  # of two runs with other classes


def drawn(labels: Tensor, x: Tensor) -> Tensor:
    """The labels that a task with the user's loss draws for these runs, ``[*runs, n]``."""
    seen = []

    def criterion(output: Tensor, targets: Tensor) -> Tensor:
        seen.append(targets)
        return output.mean()

    bank, generator = Bank(x, labels.shape[:-1]), torch.Generator().manual_seed(7)
    _own_task(bank, criterion, labels, [torch.arange(64)], generator).begin(nn.Identity())(nn.Identity(), 0)
    return seen[0]


def test_a_run_draws_the_same_labels_alone_and_among_others_and_only_its_own_classes() -> None:
    together = drawn(LABELS, X)
    for run, alone in enumerate(together):
        assert torch.equal(alone, drawn(LABELS[run : run + 1], X[run : run + 1])[0])
        assert torch.equal(alone, drawn(LABELS[run], X[run]))
        assert alone.unique().tolist() == LABELS[run].unique().tolist()
    assert not torch.equal(together[0], LABELS[0])
