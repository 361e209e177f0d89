"""The metrics that a probe measures for every layer, by name. A metric added to `METRICS` is logged like the others.

`better` tells for everything that is logged whether higher or lower values are better.

Metrics are functions of tensors with leading runs axes, ``-> [*runs]``. They draw no random numbers. Singular values
are computed once for all metrics that read them.
"""

from collections import UserDict
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

from torch import Tensor

from rl_plasticity.metrics.features import dead_units, dormant_fraction, feature_norm
from rl_plasticity.metrics.spectra import condition_number, effective_rank, srank, stable_rank
from rl_plasticity.metrics.weights import frobenius_norm

Direction = Literal["higher", "lower"]
"""Which values of a metric are better."""


class Metric(NamedTuple):
    """A function of a layer's tensors, ``-> [*runs]``, and which values of it are better."""

    measure: Callable[..., Tensor]
    better: Direction | None = None


class OfWeights(Metric):
    """A metric of a weight matrix ``[*runs, out, fan_in]`` and its singular values ``[*runs, k]``."""


class OfFeatures(Metric):
    """A metric of hidden activations ``[*runs, examples, units]`` and their singular values ``[*runs, k]``."""


class OfGradients(Metric):
    """A metric of the singular values ``[*runs, n]`` of the gradients of n single examples (`gradient_spectrum`)."""


class Metrics(UserDict[str, Metric]):
    """Metrics by name. It refuses what no probe would measure."""

    def __setitem__(self, name: str, metric: Metric) -> None:
        if not isinstance(metric, OfWeights | OfFeatures | OfGradients):
            raise TypeError(f"METRICS[{name!r}] must be OfWeights, OfFeatures or OfGradients, got {metric!r}")
        self.data[name] = metric

    def __ior__(self, metrics: Any) -> Self:  # type: ignore[override,misc]
        self.update(metrics)
        return self


# A network's NAME is the mean over its layers; but `sigma1` is the largest of all layers, and `mean_sigma1` the mean.
METRICS = Metrics(
    {
        "frobenius_norm": OfWeights(lambda matrix, s: frobenius_norm(matrix)),
        "sigma1": OfWeights(lambda matrix, s: s[..., 0]),
        "condition_number": OfWeights(lambda matrix, s: condition_number(s), "lower"),
        "stable_rank": OfWeights(lambda matrix, s: stable_rank(s), "higher"),
        "effective_rank": OfWeights(lambda matrix, s: effective_rank(s), "higher"),
        "sigma_min": OfWeights(lambda matrix, s: s[..., -1], "higher"),
        "dormant": OfFeatures(lambda activations, s: dormant_fraction(activations, 0.025), "lower"),
        "dead": OfFeatures(lambda activations, s: dead_units(activations), "lower"),
        "feature_srank": OfFeatures(lambda activations, s: srank(s), "higher"),
        "feature_rank": OfFeatures(lambda activations, s: effective_rank(s), "higher"),
        "feature_norm": OfFeatures(lambda activations, s: feature_norm(activations)),
        "gradient_condition": OfGradients(condition_number, "lower"),
        "gradient_rank": OfGradients(effective_rank, "higher"),
    }
)
"""The metrics that a probe measures for every layer, in the order in which they are logged."""

_BESIDE: dict[str, Direction] = {  # other numbers that commands log
    **dict.fromkeys(("return", "first_return", "area"), "higher"),
    **dict.fromkeys(("online_accuracy", "train_accuracy", "validation_accuracy", "test_accuracy"), "higher"),
    "trainability": "higher",
    **dict.fromkeys(("train_loss", "validation_loss", "test_loss"), "lower"),
    **dict.fromkeys(("saturated", "gradient_dormant"), "lower"),
}


def better(quantity: str) -> Direction | None:
    """Which values of a logged quantity, ``dormant``, are better.

    None where neither are (norms, distances, entropies) and for names that are not known here.
    """
    return METRICS[quantity].better if quantity in METRICS else _BESIDE.get(quantity)
