import torch
from conftest import refused

from rl_plasticity.metrics import distance, largest_sigma1, moved_fraction, weight_norm


def test_the_weight_norm_is_over_all_parameters_of_each_run():
    a, b = torch.tensor([[[3.0, 0.0]], [[1.0, 2.0]]]), torch.tensor([[4.0], [2.0]])
    assert weight_norm([a, b], (2,)).tolist() == [5.0, 3.0]
    assert weight_norm([a[0], b[0]]).item() == 5.0


def test_the_largest_sigma1_is_over_layers_not_over_runs():
    # diag(2, 1) and diag(1, 5) in the first layer; 3 and 4 in the second: run 0 has 3, run 1 has 5
    first = torch.stack([torch.diag(torch.tensor([2.0, 1.0])), torch.diag(torch.tensor([1.0, 5.0]))])
    second = torch.tensor([[[3.0]], [[4.0]]])
    torch.testing.assert_close(largest_sigma1([first, second]), torch.tensor([3.0, 5.0]))


def test_the_distance_is_of_all_parameters_together():
    now = [torch.tensor([[1.0, 5.0]]), torch.tensor([6.0])]
    start = [torch.tensor([[1.0, 2.0]]), torch.tensor([2.0])]
    assert distance(now, start).item() == 5.0
    assert distance(iter(now), iter(start)).item() == 5.0
    refused(lambda: distance(now, start[:1]), "zip", error=ValueError)


def test_the_moved_weights_are_counted_over_all_parameters_of_each_run():
    before = [torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]), torch.tensor([[5.0], [5.0]])]
    after = [torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 3.0]]), torch.tensor([[6.0], [5.0]])]
    assert moved_fraction(after, before, (2,)).tolist() == [0.5, 0.0]
    assert moved_fraction(after, before).item() == 0.25
