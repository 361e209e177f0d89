"""What a probe measures of every layer, by name: add to `METRICS` and it is logged like the others.

Metrics are functions of tensors with leading runs axes, ``-> [*runs]``, and draw no random numbers. Singular values are
computed once for all metrics that read them.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from rl_plasticity.metrics.features import dead_units, dormant_fraction, feature_norm
from rl_plasticity.metrics.spectra import condition_number, effective_rank, srank, stable_rank
from rl_plasticity.metrics.weights import frobenius_norm, generalized_gaussian_shape


class OfWeights(NamedTuple):
    """A metric of a weight matrix ``[*runs, out, fan_in]`` and its singular values ``[*runs, k]``."""

    measure: Callable[[Tensor, Tensor], Tensor]


class OfFeatures(NamedTuple):
    """A metric of hidden activations ``[*runs, examples, units]`` and their singular values ``[*runs, k]``."""

    measure: Callable[[Tensor, Tensor], Tensor]


class OfGradients(NamedTuple):
    """A metric of the singular values ``[*runs, n]`` of the gradients of n single examples (`gradient_spectrum`)."""

    measure: Callable[[Tensor], Tensor]


METRICS: dict[str, OfWeights | OfFeatures | OfGradients] = {
    "frobenius_norm": OfWeights(lambda matrix, s: frobenius_norm(matrix)),
    "sigma1": OfWeights(lambda matrix, s: s[..., 0]),
    "condition_number": OfWeights(lambda matrix, s: condition_number(s)),
    "stable_rank": OfWeights(lambda matrix, s: stable_rank(s)),
    "effective_rank": OfWeights(lambda matrix, s: effective_rank(s)),
    "weight_shape": OfWeights(lambda matrix, s: generalized_gaussian_shape(matrix.flatten(-2))),
    "sigma_min": OfWeights(lambda matrix, s: s[..., -1]),
    "dormant": OfFeatures(lambda activations, s: dormant_fraction(activations, 0.025)),
    "dead": OfFeatures(lambda activations, s: dead_units(activations)),
    "feature_srank": OfFeatures(lambda activations, s: srank(s)),
    "feature_rank": OfFeatures(lambda activations, s: effective_rank(s)),
    "feature_norm": OfFeatures(lambda activations, s: feature_norm(activations)),
    "gradient_condition": OfGradients(condition_number),
    "gradient_rank": OfGradients(effective_rank),
}
"""What a probe measures of every layer, in the order in which it is logged."""
