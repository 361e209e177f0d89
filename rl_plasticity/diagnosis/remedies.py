"""What might bring trainability back, applied to a copy of a network: what `diagnose` tries."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.interventions import make_intervention
from rl_plasticity.structure import Example, layers, read

Remedy = Callable[[nn.Module, nn.Module, Example], nn.Module]
"""From a network, a fresh one like it and inputs to a changed copy.

It raises ValueError where the network does not allow it.
"""


def _intervention(name: str, with_example: bool = False, **settings: object) -> Remedy:
    def remedied(net: nn.Module, fresh: nn.Module, inputs: Example) -> nn.Module:
        changed = copy.deepcopy(net)
        example = {"example": inputs} if with_example else {}
        make_intervention(name, **settings).apply_(changed, (), make=lambda: copy.deepcopy(fresh), **example)  # type: ignore[arg-type]
        return changed

    return remedied


@torch.no_grad()
def fresh_norms(net: nn.Module, fresh: nn.Module, inputs: Example) -> nn.Module:
    """W <- W ||W_fresh||_F / ||W||_F in every layer; biases and norm layers stay."""
    changed = copy.deepcopy(net)
    for layer in layers(changed):
        mine, theirs = layer.matrix(changed), layer.matrix(fresh)
        if mine is None or theirs is None:
            continue
        axes = (-2, -1)
        norm = mine.norm(dim=axes, keepdim=True)
        mine.mul_(torch.where(norm > 0, theirs.norm(dim=axes, keepdim=True) / norm, torch.ones_like(norm)))
    return changed


def with_layer_norm(net: nn.Module, fresh: nn.Module, inputs: Example) -> nn.Module:
    """LayerNorm without gain and shift between each linear layer and the activation behind it.

    Raises:
        ValueError: there is no such place.
    """
    changed = copy.deepcopy(net)
    modules = dict(changed.named_modules())
    units = read(changed, inputs).activations()
    places = {u.incoming.name for u in units if not u.norms and isinstance(modules.get(u.incoming.name), nn.Linear)}
    if not places:
        raise ValueError("no linear layer has an activation and no norm layer behind it")
    for name in sorted(places):
        modules[name].register_forward_hook(_normalized)
    return changed


def _normalized(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    return F.layer_norm(output, output.shape[-1:])


REMEDIES: dict[str, Remedy] = {
    "LayerNorm": with_layer_norm,
    "fresh norms": fresh_norms,
    "fire": _intervention("fire"),
    "redo": _intervention("redo", with_example=True),
    "head": _intervention("head", with_example=True),
    "shrink_perturb": _intervention("shrink_perturb", coef=0.5, init="fresh"),
}
"""By name: those of `INTERVENTIONS` that can be tried at once, and two changes of the network itself."""
