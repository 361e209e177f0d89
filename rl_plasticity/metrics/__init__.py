"""Measures of plasticity: pure functions on tensors with leading runs axes."""

from rl_plasticity.metrics.behaviour import (
    discounted_returns,
    fit_fresh_targets,
    plasticity_score,
    policy_entropy,
    q_overestimation,
    representation_change,
    representation_distance,
)
from rl_plasticity.metrics.features import (
    dead_units,
    dormant_fraction,
    feature_matrix,
    feature_norm,
    saturated_fraction,
)
from rl_plasticity.metrics.gradients import effective_learning_rate, gradient_norm, gradient_spectrum
from rl_plasticity.metrics.measured import METRICS, OfFeatures, OfGradients, OfWeights
from rl_plasticity.metrics.spectra import condition_number, effective_rank, singular_values, srank, stable_rank
from rl_plasticity.metrics.weights import (
    balance,
    balancedness,
    distance,
    frobenius_norm,
    generalized_gaussian_shape,
    largest_sigma1,
    lpq_norm,
    project_to_input_span,
    project_to_span,
    rebalanced,
    sigma1,
    weight_norm,
)

__all__ = [
    "METRICS",
    "OfFeatures",
    "OfGradients",
    "OfWeights",
    "balance",
    "balancedness",
    "condition_number",
    "dead_units",
    "discounted_returns",
    "distance",
    "dormant_fraction",
    "effective_learning_rate",
    "effective_rank",
    "feature_matrix",
    "feature_norm",
    "fit_fresh_targets",
    "frobenius_norm",
    "generalized_gaussian_shape",
    "gradient_norm",
    "gradient_spectrum",
    "largest_sigma1",
    "lpq_norm",
    "plasticity_score",
    "policy_entropy",
    "project_to_input_span",
    "project_to_span",
    "q_overestimation",
    "rebalanced",
    "representation_change",
    "representation_distance",
    "saturated_fraction",
    "sigma1",
    "singular_values",
    "srank",
    "stable_rank",
    "weight_norm",
]
