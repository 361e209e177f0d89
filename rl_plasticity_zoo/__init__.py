"""The zoo: agents of later papers, large networks, rare optimizers and activations, augmentation.

It is a plug like any other, on what `docs/plugs.md` promises. A module of it is imported when a name asks for it.
"""

from pathlib import Path

from rl_plasticity.plugins import offer

offer(
    Path(__file__).parent / "preset",
    AGENTS={
        "later_sac": "rl_plasticity_zoo.later_sac:LaterSAC",
        "rainbow": "rl_plasticity_zoo.rainbow:Rainbow",
    },
    AGENT_NETWORKS={
        name: f"rl_plasticity_zoo.agent_networks:{name}"
        for name in ("dropout_mlp", "simba", "hypersphere", "bro", "xqc", "flash_sac")
    },
    NETWORKS={
        "vgg16": "rl_plasticity_zoo.vgg:vgg16",
        "vgg16_bn": "rl_plasticity_zoo.vgg:vgg16_bn",
        "resnet18": "rl_plasticity_zoo.resnet:resnet18",
        "wrn28_10": "rl_plasticity_zoo.resnet:wrn28_10",
        "vit_tiny": "rl_plasticity_zoo.vit:vit_tiny",
    },
    PARAMETRIZATIONS={
        "weight_standardization": "rl_plasticity_zoo.parametrizations:standardize_weights_",
        "bounded_weight_norm": "rl_plasticity_zoo.parametrizations:bound_weight_norms_",
    },
    ACTIVATIONS={
        "smooth_leaky": "rl_plasticity_zoo.activations:SmoothLeaky",
        "rational": "rl_plasticity_zoo.activations:Rational",
        "deep_fourier": "rl_plasticity_zoo.activations:DeepFourier",
    },
    OPTIMIZERS={
        "adamp": "rl_plasticity_zoo.optimizers:AdamP",
        "muon": "rl_plasticity_zoo.optimizers:Muon",
        "upgd": "rl_plasticity_zoo.optimizers:UPGD",
        "adaptive_upgd": "rl_plasticity_zoo.optimizers:AdaptiveUPGD",
        "trac": "rl_plasticity_zoo.optimizers:TRAC",
    },
    AUGMENTATIONS={"flip_jitter_crop": "rl_plasticity_zoo.augment:augment"},
)
