"""What a probe measures by name: a contract that whatever somebody adds is tested by too."""

import csv
import itertools
from pathlib import Path

import pytest
import torch

from rl_plasticity import metrics
from rl_plasticity.metrics import METRICS, OfFeatures, OfGradients, OfWeights, singular_values
from rl_plasticity.metrics.measured import better

LOGGED = {
    OfWeights: [*("frobenius_norm", "sigma1", "condition_number", "stable_rank", "effective_rank", "sigma_min")],
    OfFeatures: ["dormant", "dead", "feature_srank", "feature_rank", "feature_norm"],
    OfGradients: ["gradient_condition", "gradient_rank"],
}


def test_the_names_in_the_log_and_their_order_are_those_of_all_results_so_far():
    assert {kind: [n for n, m in METRICS.items() if type(m) is kind] for kind in LOGGED} == LOGGED


def arguments(metric, runs, scale=1.0):
    """Tensors as a probe gives them, each run on another scale; some units are dead."""
    matrix = torch.randn(*runs, 6, 9).relu() - (0 if isinstance(metric, OfFeatures) else 0.3)
    matrix = scale * matrix * torch.arange(1.0, 1 + matrix[..., 0, 0].numel()).view(*runs, 1, 1)
    matrix[..., :3] = matrix[..., :3].clamp(max=0)
    return (singular_values(matrix),) if isinstance(metric, OfGradients) else (matrix, singular_values(matrix))


@pytest.mark.parametrize("name", METRICS)
def test_runs_together_equal_runs_alone_and_measuring_changes_no_argument_and_draws_nothing(name):
    tensors = arguments(METRICS[name], (2, 3))
    before, state = [t.clone() for t in tensors], torch.get_rng_state()
    together = METRICS[name].measure(*tensors)
    assert together.shape == (2, 3)
    assert together.dtype == torch.float32
    for i, j in itertools.product(range(2), range(3)):
        torch.testing.assert_close(together[i, j], METRICS[name].measure(*(t[i, j] for t in tensors)))
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_functions_behind_the_names_that_say_less_are_these():
    (h, s) = arguments(METRICS["dormant"], (2,))
    ranks = {"feature_srank": metrics.srank(s, 0.01), "feature_rank": metrics.effective_rank(s)}
    for name, value in {"dormant": metrics.dormant_fraction(h, 0.025), "dead": metrics.dead_units(h), **ranks}.items():
        assert torch.equal(METRICS[name].measure(h, s), value)
    torch.testing.assert_close(METRICS["sigma1"].measure(h, s), torch.linalg.matrix_norm(h, ord=2))


def test_the_smallest_singular_value_is_the_last_of_as_many_as_the_matrix_has_rows_or_columns():
    matrix = torch.randn(2, 3, 3) @ torch.diag(torch.tensor([4.0, 2.0, 0.5])) @ torch.randn(2, 3, 7)
    expected = torch.linalg.svdvals(matrix)[..., 2]
    torch.testing.assert_close(METRICS["sigma_min"].measure(matrix, singular_values(matrix)), expected)


def test_the_table_of_metrics_says_of_each_which_values_are_better():
    with (Path(__file__).parents[2] / "docs/results/metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["name"] and row["better"] != "neither"]
    splits = ("train", "validation", "test")
    told = {r["name"].replace("SPLIT", of).partition("/")[2]: r["better"] for r in rows for of in splits}
    known = {name: better(name) for name in [*METRICS, *told] if better(name)}
    assert known == told
    assert better("test_accuracy") == "higher"
    assert better("weight_norm") is better("sigma1") is better("of_a_plug") is None


RANKS = ("feature_rank", "feature_srank", "stable_rank", "effective_rank", "sigma_min")


@pytest.mark.parametrize(("name", "healthy", "ill"), [
    *((name, torch.ones(8, 4), torch.ones(8, 4) * torch.tensor([1.0, 1, 0, 0])) for name in ("dormant", "dead")),
    *((name, torch.eye(4), torch.ones(4, 4)) for name in RANKS),
    ("condition_number", torch.eye(4), torch.diag(torch.tensor([4.0, 1, 1, 1]))),
])  # fmt: skip
def test_the_better_value_is_that_of_the_healthier_tensor(name, healthy, ill):
    a, b = (METRICS[name].measure(x, singular_values(x)).item() for x in (healthy, ill))
    assert (a > b) == (better(name) == "higher")
    assert a != b
