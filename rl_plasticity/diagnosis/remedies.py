"""Changes that might bring trainability back. `diagnose` tries them on copies of a network."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.interventions import make_intervention
from rl_plasticity.structure import Example, layers, read

Remedy = Callable[[nn.Module, nn.Module, Example], object]
"""Changes a network in place, given a fresh one like it and inputs. Raises ValueError if the network does not fit."""


def _intervention(name: str, with_example: bool = False, **settings: object) -> Remedy:
    def remedy(net: nn.Module, fresh: nn.Module, inputs: Example) -> None:
        example = {"example": inputs} if with_example else {}
        make_intervention(name, **settings).apply_(net, (), make=lambda: copy.deepcopy(fresh), **example)  # type: ignore[arg-type]

    return remedy


@torch.no_grad()
def fresh_norms(net: nn.Module, fresh: nn.Module, inputs: Example) -> None:
    """W <- W ||W_fresh||_F / ||W||_F in every layer; biases and norm layers stay."""
    for layer in layers(net):
        mine, theirs = layer.matrix(net), layer.matrix(fresh)
        if mine is None or theirs is None:
            continue
        axes = (-2, -1)
        norm = mine.norm(dim=axes, keepdim=True)
        mine.mul_(torch.where(norm > 0, theirs.norm(dim=axes, keepdim=True) / norm, torch.ones_like(norm)))


def with_layer_norm(net: nn.Module, fresh: nn.Module, inputs: Example) -> None:
    """Add LayerNorm without gain and shift between each linear layer or convolution and the activation behind it.

    Behind a convolution it is taken over channels and positions, as GroupNorm with one group.

    Raises:
        ValueError: no such layer has an activation and no norm layer behind it.
    """
    modules = dict(net.named_modules())
    units = read(net, inputs).activations()
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    places = {u.incoming.name for u in units if not u.norms and isinstance(modules.get(u.incoming.name), kinds)}
    if not places:
        raise ValueError("no linear layer or convolution has an activation and no norm layer behind it")
    for name in places:
        modules[name].register_forward_hook(_normalized)


def _normalized(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    return F.layer_norm(output, output.shape[-1:]) if isinstance(module, nn.Linear) else F.group_norm(output, 1)


REMEDIES: dict[str, Remedy] = {
    "LayerNorm": with_layer_norm,
    "fresh norms": fresh_norms,
    "fire": _intervention("fire"),
    "redo": _intervention("redo", with_example=True),
    "head": _intervention("head", with_example=True),
    "shrink_perturb": _intervention("shrink_perturb", coef=0.5, init="fresh"),
}
"""Remedies by name: the `INTERVENTIONS` that can be tried at once, and two changes of the network itself."""

ATTACHED: dict[str, tuple[str, float]] = {"spectral attached": ("spectral", 1e-3)}
"""Regularizers, with their coef, that act while a copy learns, by the name of the remedy."""
