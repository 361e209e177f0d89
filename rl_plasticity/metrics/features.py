"""Measures of features: activations after the non-linearity on a fixed batch, ``[*runs, batch, units] -> [*runs]``.

Ranks of features are those of `rl_plasticity.metrics.spectra`, of ``singular_values(activations)``. Everything is in
the dtype of the input.
"""

import torch
from torch import Tensor


def feature_matrix(activations: Tensor, runs: tuple[int, ...] = ()) -> Tensor:
    """Examples as rows: maps ``[*runs, batch, channels, *positions] -> [*runs, batch * positions, channels]``.

    A channel is one unit, each position one more example (as Sokar et al. 2023 score convolutions). Activations
    ``[*runs, batch, units]`` stay as they are. Variant, for ranks: ``activations.flatten(len(runs) + 1)``, each
    position of a channel a feature of its own (Kumar et al. 2021 use the flattened last layer).
    """
    k = len(runs)
    if activations.ndim <= k + 2:
        return activations
    return activations.movedim(k + 1, -1).flatten(k, -2)


def dormant_fraction(activations: Tensor, threshold: float = 0.0) -> Tensor:
    """The fraction of units whose score <= threshold, with score_i = mean |h_i| / (mean over the layer of mean |h|).

    In a layer whose activations are all zero every unit is dormant. Source: Sokar et al. (2023), "The Dormant Neuron
    Phenomenon in Deep Reinforcement Learning", Definition 3.1; they use 0 to 0.1. Variants: < instead of <=, which
    finds nothing at threshold 0; scores before the non-linearity; a threshold on mean |h| itself.
    """
    size = activations.abs().mean(-2)
    layer = size.mean(-1, keepdim=True)
    score = torch.where(layer > 0, size / layer, 0)
    return (score <= threshold).to(activations.dtype).mean(-1)


def dead_units(activations: Tensor) -> Tensor:
    """The fraction of units that are never active: no example of the batch has h_i > 0.

    For ReLU the same as `dormant_fraction` at threshold 0. For leaky ReLU it counts units that only ever use the leaky
    side, which are never dormant. Without meaning for activations without a dead side (tanh). A larger batch finds
    fewer. Variant: active on less than 1 % of the examples.
    """
    return (activations <= 0).all(-2).to(activations.dtype).mean(-1)


def saturated_fraction(activations: Tensor, low: float, high: float) -> Tensor:
    """The share of outputs, over units and examples, that are within 0.5 % of the range of a bound: tanh's |h| > 0.99.

    The non-linearity has values from `low` to `high`. The slope of tanh there is below 0.02, so hardly any gradient
    passes. Source: Glorot and Bengio (2010), "Understanding the difficulty of training deep feedforward neural
    networks", section 3, who look at the outputs' distribution; the limit is ours. Variants: the share of units that
    are there on all examples; the weighted measure of Rakitianskaia and Engelbrecht (2015).
    """
    middle, half = (high + low) / 2, (high - low) / 2
    return ((activations - middle).abs() > 0.99 * half).to(activations.dtype).mean((-2, -1))


def feature_norm(activations: Tensor) -> Tensor:
    """Mean over examples of the Euclidean norm of the features, mean_b ||h_b||_2.

    Variants: the Frobenius norm of the batch, which grows with its size; the norm of the mean feature.
    """
    norms: Tensor = torch.linalg.vector_norm(activations, dim=-1)
    return norms.mean(-1)
