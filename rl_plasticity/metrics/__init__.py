"""Measures of plasticity: pure functions on tensors with leading runs axes."""

from rl_plasticity.metrics.weights import largest_sigma1, weight_norm

__all__ = ["largest_sigma1", "weight_norm"]
