"""The regularizers: methods that keep a network plastic while it trains, listed by name in `REGULARIZERS`."""

from rl_plasticity.regularizers.base import Chain, Regularizer, Unregularized
from rl_plasticity.regularizers.making import REGULARIZERS, make_regularizer
from rl_plasticity.regularizers.outputs import Churn, FeatureRank
from rl_plasticity.regularizers.penalties import EWC, L2, L2Init, Parseval, Spectral, Wasserstein
from rl_plasticity.regularizers.projections import HareAndTortoise, Orthogonal, WeightClipping, WeightDecay
from rl_plasticity.regularizers.rescaling import Hypersphere, NormalizeProject, SoftWeightRescaling, WeightRescaling
from rl_plasticity.regularizers.side_by_side import SideBySide
from rl_plasticity.regularizers.units import ContinualBackprop, SelfNormalizedResets
from rl_plasticity.structure import HiddenLayer, hidden_units, layers
from rl_plasticity.structure.layer import Layer, runs_of

REGULARIZERS.build_in(
    {
        "none": Unregularized,
        "l2": L2,
        "l2_init": L2Init,
        "wasserstein": Wasserstein,
        "ewc": EWC,
        "spectral": Spectral,
        "parseval": Parseval,
        "churn": Churn,
        "feature_rank": FeatureRank,
        "swr": SoftWeightRescaling,
        "wrs": WeightRescaling,
        "normalize_project": NormalizeProject,
        "hypersphere": Hypersphere,
        "orthogonal": Orthogonal,
        "weight_clipping": WeightClipping,
        "weight_decay": WeightDecay,
        "hare_tortoise": HareAndTortoise,
        "continual_backprop": ContinualBackprop,
        "self_normalized_resets": SelfNormalizedResets,
    }
)

__all__ = [
    "EWC",
    "L2",
    "REGULARIZERS",
    "Chain",
    "Churn",
    "ContinualBackprop",
    "FeatureRank",
    "HareAndTortoise",
    "HiddenLayer",
    "Hypersphere",
    "L2Init",
    "Layer",
    "NormalizeProject",
    "Orthogonal",
    "Parseval",
    "Regularizer",
    "SelfNormalizedResets",
    "SideBySide",
    "SoftWeightRescaling",
    "Spectral",
    "Unregularized",
    "Wasserstein",
    "WeightClipping",
    "WeightDecay",
    "WeightRescaling",
    "hidden_units",
    "layers",
    "make_regularizer",
    "runs_of",
]
