"""Measures of plasticity: pure functions on tensors with leading runs axes."""

from rl_plasticity.metrics.behaviour import (
    discounted_returns,
    q_overestimation,
    representation_change,
)
from rl_plasticity.metrics.features import (
    dead_units,
    dormant_fraction,
    feature_matrix,
    feature_norm,
    saturated_fraction,
)
from rl_plasticity.metrics.gradients import (
    effective_learning_rate,
    gradient_dormant_fraction,
    gradient_spectrum,
)
from rl_plasticity.metrics.measured import METRICS, Direction, OfFeatures, OfGradients, OfWeights
from rl_plasticity.metrics.spectra import condition_number, effective_rank, singular_values, srank, stable_rank
from rl_plasticity.metrics.weights import (
    distance,
    frobenius_norm,
    largest_sigma1,
    moved_fraction,
    sigma1,
    weight_norm,
)

__all__ = [
    "METRICS",
    "Direction",
    "OfFeatures",
    "OfGradients",
    "OfWeights",
    "condition_number",
    "dead_units",
    "discounted_returns",
    "distance",
    "dormant_fraction",
    "effective_learning_rate",
    "effective_rank",
    "feature_matrix",
    "feature_norm",
    "frobenius_norm",
    "gradient_dormant_fraction",
    "gradient_spectrum",
    "largest_sigma1",
    "moved_fraction",
    "q_overestimation",
    "representation_change",
    "saturated_fraction",
    "sigma1",
    "singular_values",
    "srank",
    "stable_rank",
    "weight_norm",
]


def __getattr__(name: str) -> None:
    if name in ("fit_fresh_targets", "plasticity_score", "policy_entropy"):
        raise ImportError(f"rl_plasticity.metrics.{name} is in rl_plasticity_zoo.metrics since 0.3")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
