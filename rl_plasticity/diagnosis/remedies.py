"""Changes that might bring trainability back. `diagnose` tries them on copies of a network."""

import copy
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.diagnosis.subject import Subject
from rl_plasticity.diagnosis.trials import BRIEF, Trials
from rl_plasticity.interventions import make_intervention
from rl_plasticity.learning.attached import attach
from rl_plasticity.seeding import derive, random_states_kept
from rl_plasticity.structure import Example, read

Repair = Callable[[Subject, nn.Module, Example], object]
"""Changes a copy, given a fresh network like it and inputs. Raises ValueError if the network does not fit."""


def _intervention(name: str, **settings: object) -> Repair:
    def repair(changed: Subject, fresh: nn.Module, inputs: Example) -> None:
        intervention = make_intervention(name, **settings)
        intervention.apply_(changed.net, (), make=lambda: copy.deepcopy(fresh), example=inputs)

    return repair


def with_spectral(changed: Subject, fresh: nn.Module, inputs: Example) -> None:
    """Let a regularizer act while the copy learns."""
    changed.changes = [lambda net, optimizers: attach("spectral", optimizers, net, coef=1e-3, example=inputs)]


def with_layer_norm(changed: Subject, fresh: nn.Module, inputs: Example) -> None:
    """Add LayerNorm without gain and shift between each linear layer or convolution and the activation behind it.

    Behind a convolution it is taken over channels and positions, as GroupNorm with one group.

    Raises:
        ValueError: no such layer has an activation and no norm layer behind it.
    """
    modules = dict(changed.net.named_modules())
    units = read(changed.net, inputs).activations()
    kinds = nn.Linear | nn.modules.conv._ConvNd
    places = {u.incoming.name for u in units if not u.norms and isinstance(modules.get(u.incoming.name), kinds)}
    if not places:
        raise ValueError("no linear layer or convolution has an activation and no norm layer behind it")
    for name in places:
        modules[name].register_forward_hook(_normalized)


def _normalized(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    return F.layer_norm(output, output.shape[-1:]) if isinstance(module, nn.Linear) else F.group_norm(output, 1)


REMEDIES: dict[str, Repair] = {
    "LayerNorm": with_layer_norm,
    "fire": _intervention("fire"),
    "redo": _intervention("redo"),
    "head": _intervention("head"),
    "shrink_perturb": _intervention("shrink_perturb", coef=0.5, init="fresh"),
    "spectral attached": with_spectral,
}
"""Remedies by name: `INTERVENTIONS` that can be tried at once, a change of the network itself, a regularizer."""


def try_on_copies(trials: Trials) -> None:
    """Let copies learn after each remedy that fits the network, as an arm of its name."""
    subject, rates = trials.subject, [trials.best_rate()]
    for name, repair in REMEDIES.items():
        copies = []
        try:
            with random_states_kept(subject.net.parameters()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for r, fresh in enumerate(trials.fresh):
                    torch.manual_seed(derive(trials.seed, r, 3))
                    copies.append(subject.copied())
                    repair(copies[-1], fresh, trials.source.example)
                trials.run(name, copies, rates, BRIEF)
        except Exception:  # whatever keeps it from being applied to such a network
            trials.arms.pop(name, None)
