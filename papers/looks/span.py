"""Plugin that logs the shape of kernels in the span of their inputs: see `closer_look.SpanShapes`."""

from papers.closer_look import SpanShapes
from rl_plasticity import CALLBACKS

CALLBACKS["span_shapes"] = SpanShapes
