"""Plugin that logs the shapes of kernels, as they are and in the span of their inputs: see `closer_look.SpanShapes`."""

from papers.closer_look import SpanShapes
from papers.weights import generalized_gaussian_shape
from rl_plasticity import CALLBACKS
from rl_plasticity.metrics import METRICS, OfWeights

CALLBACKS["span_shapes"] = SpanShapes
METRICS["weight_shape"] = OfWeights(lambda matrix, s: generalized_gaussian_shape(matrix.flatten(-2)))
