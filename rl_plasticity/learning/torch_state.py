"""The state that ``torch.optim`` optimizers keep for a network's parameters."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError
from rl_plasticity.learning.kept import kept, states_of, wrapped
from rl_plasticity.structure.layer import lookup

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


def whole(optimizers: Optimizers) -> list[torch.optim.Optimizer]:
    """One or several optimizers as a list, with what wraps them."""
    return [*optimizers] if isinstance(optimizers, Sequence) else [optimizers]


def listed(optimizers: Optimizers, net: nn.Module) -> list[torch.optim.Optimizer]:
    """The torch optimizers inside one or several, without the wrappers of a library (accelerate, Lightning, Fabric).

    Raises:
        SettingsError: one is no torch optimizer, or holds none of the parameters of `net`.
    """
    found = [wrapped(one)[-1] for one in whole(optimizers)]
    mine = {id(p) for p in net.parameters()}
    for optimizer in found:
        kind = type(optimizer).__name__
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise SettingsError(f"optimizer must be one or several torch.optim.Optimizer, got {kind}")
        if not any(id(p) in mine for group in optimizer.param_groups for p in group["params"]):
            raise SettingsError(
                f"the optimizer {kind} holds none of the network's parameters: was it made for another network, or for "
                "a copy of this one?"
            )
    return found


class TorchState:
    """The state that ``torch.optim`` optimizers keep for a network's parameters, looked up by parameter.

    Raises:
        SettingsError: as from `listed`, or an optimizer is LBFGS.
    """

    def __init__(self, net: nn.Module, optimizers: Optimizers) -> None:
        self.net, self.whole, self.optimizers = net, whole(optimizers), listed(optimizers, net)
        if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in self.optimizers):
            raise SettingsError("LBFGS keeps one flat state for all parameters: a single one has no moments there")

    def moments(self, name: str) -> list[Tensor]:
        """The tensors stored for the parameter called `name`, each of its shape and zero at first.

        Raises:
            SettingsError: the state has another form, such as Adafactor's rows and columns, or single entries of the
                parameter would not stay reset.
        """
        found = []
        for optimizer, key, value, kind in self._states(name):
            several = value.ndim if isinstance(value, Tensor) else isinstance(value, list | tuple | dict)
            if kind == "other" or (kind is None and several):
                raise _unknown(optimizer, name, f"keeps {key!r}, neither zero at first nor a copy of the weights,")
            if kind == "moment":
                found.append(value)
        return found

    def copies(self, name: str) -> list[Tensor]:
        """The copies of the parameter called `name` that its optimizers keep.

        Raises:
            SettingsError: an optimizer undoes changes of the parameter, and it is not known where its copy is.
        """
        return [value for _, _, value, kind in self._states(name) if kind == "copy"]

    def follow_(self, masks: Mapping[str, Tensor]) -> None:
        """Renew the copies of entries that were reinitialized (masks by parameter name)."""
        for name, where in masks.items():
            for copied in self.copies(name):
                copied[where] = self.net.get_parameter(name)[where].to(copied)

    def gradient(self, name: str) -> Tensor | None:
        """The gradient from the last backward pass, if it is still there."""
        return self.net.get_parameter(name).grad

    def _states(self, name: str) -> Iterator[tuple[object, str, Any, str | None]]:
        """The optimizer, the key, the value and the kind (`Kept`) of each state of a parameter."""
        parameter = lookup(self.net, name)  # or a buffer, of which nothing is kept
        for optimizer in self.whole:
            known = kept(optimizer, parameter)
            if known is not None and not known.follows:
                raise _unknown(optimizer, name, "moves weights that other code changes,")
            for key, value in states_of(optimizer, parameter).items():
                yield optimizer, key, value, known.kinds.get(key) if known else None

    def require_all(self, runs: Tensor | None) -> None:
        """Raise SettingsError if only some runs are to be reset: torch counts the steps of all runs together."""
        if runs is not None and self.optimizers:
            raise SettingsError(
                "torch.optim counts the steps of all runs at once: use a Learner to restart only some of them"
            )

    def restart_(self, runs: Tensor | None = None) -> None:
        """Empty the state of all parameters of the network; learning rates and groups stay.

        Copies of the weights that a wrapper keeps become the present weights.
        """
        self.require_all(runs)
        for name, parameter in self.net.named_parameters():
            if self.whole != self.optimizers:
                for copied in self.copies(name):
                    copied.copy_(parameter.detach())
            for optimizer in self.optimizers:
                if isinstance(optimizer, torch.optim.Adagrad):  # some versions create its state only in the constructor
                    for key, value in optimizer.state.get(parameter, {}).items():
                        value.fill_(optimizer.defaults["initial_accumulator_value"] if key == "sum" else 0)
                else:
                    optimizer.state.pop(parameter, None)


def _unknown(optimizer: object, name: str, why: str) -> SettingsError:
    return SettingsError(
        f"{type(optimizer).__name__} {why} for {name!r}: single units or layers cannot be reset with this optimizer"
    )
