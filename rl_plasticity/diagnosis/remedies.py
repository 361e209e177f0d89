"""Changes that might bring trainability back. `diagnose` tries them on copies of a network."""

import copy
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.diagnosis.report import NOW, Estimate, Remedy
from rl_plasticity.diagnosis.subject import Subject
from rl_plasticity.diagnosis.tasks import Bank, outputs_of
from rl_plasticity.diagnosis.trials import Trials
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


def try_on_copies(trials: Trials) -> dict[str, Tensor | None]:
    """Let copies learn after each remedy that fits the network, and return how far each changed the outputs.

    That is ||f'(x) - f(x)||_F / ||f(x) - mean f(x)||_F over the inputs, ``[*runs]``; None without a bank of inputs.
    """
    subject, source, rates = trials.subject, trials.source, [trials.best_rate()]
    tried: dict[str, Tensor | None] = {}
    for name, repair in REMEDIES.items():
        copies = []
        try:
            with random_states_kept(subject.net.parameters()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for r, fresh in enumerate(trials.fresh):
                    torch.manual_seed(derive(trials.seed, r, 3))
                    copies.append(subject.copied())
                    repair(copies[-1], fresh, source.example)
                trials.run(name, copies.__getitem__, rates)
        except Exception:  # whatever keeps it from being applied to such a network
            trials.arms.pop(name, None)
            continue
        bank = source.bank
        tried[name] = None if bank is None else _moved(subject.copied().net, copies[0].net, bank)
    return tried


@torch.no_grad()
def _moved(net: nn.Module, changed: nn.Module, bank: Bank) -> Tensor:
    before, after = (outputs_of(one, bank)[1] for one in (net, changed))
    spread = torch.linalg.matrix_norm(before - before.mean(bank.axis, keepdim=True))
    moved = torch.linalg.matrix_norm(after - before)
    return torch.where(moved > 0, moved / spread, 0)


def ranked(trials: Trials, tried: Mapping[str, Tensor | None], run: int) -> tuple[Remedy, ...]:
    """The remedies of a run, the best first."""
    lengths = {kind: trials.at(kind, next(iter(tried), NOW)) for kind in trials.kinds}
    now = float(trials.scores(NOW, lengths=lengths)[:, run].mean())
    found = []
    for name, moved in tried.items():
        learned = Estimate.of(trials.scores(name)[:, run].tolist())
        closes = (learned.mean - now) / (1 - now)
        found.append(Remedy(name, learned, closes, None if moved is None else float(moved.reshape(-1)[run])))
    return tuple(sorted(found, key=lambda r: -r.learned.mean))
