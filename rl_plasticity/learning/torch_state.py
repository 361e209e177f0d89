"""What ``torch.optim`` optimizers keep of a network's parameters."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


def stepped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The torch optimizer itself: what the wrapper of a library steps (accelerate's, Lightning's, Fabric's)."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


class TorchState:
    """The state that ``torch.optim`` optimizers keep of a network's parameters, found by parameter.

    Raises:
        SettingsError: something else than a torch optimizer, one that holds no parameter of the network, or LBFGS.
    """

    # Beside a parameter of shape () these have its shape, but they count and are no moments.
    COUNTS = ("step", "mu_product", "eta", "mu")

    def __init__(self, net: nn.Module, optimizers: Optimizers) -> None:
        single = isinstance(optimizers, torch.optim.Optimizer) or not isinstance(optimizers, Sequence)
        self.net = net
        self.optimizers: list[torch.optim.Optimizer] = [optimizers] if single else [*optimizers]  # type: ignore[list-item, misc]
        mine = {id(p) for p in net.parameters()}
        self.optimizers = [stepped(optimizer) for optimizer in self.optimizers]
        for optimizer in self.optimizers:
            kind = type(optimizer).__name__
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise SettingsError(f"a plain network goes with torch.optim optimizers, got {kind}")
            if isinstance(optimizer, torch.optim.LBFGS):
                raise SettingsError(
                    "LBFGS keeps one flat state of all parameters: there are no moments of a single one"
                )
            if not any(id(p) in mine for group in optimizer.param_groups for p in group["params"]):
                raise SettingsError(
                    f"{kind} holds none of the network's parameters: make the optimizer of this network's parameters()"
                )

    def moments(self, name: str) -> list[Tensor]:
        """The tensors stored for the parameter called `name`, each of its shape and zero at first.

        Raises:
            SettingsError: the state is of another kind, as Adafactor's rows and columns.
        """
        parameter = self.net.get_parameter(name)
        return [moment for optimizer in self.optimizers for moment in self._moments(optimizer, parameter, name)]

    def gradient(self, name: str) -> Tensor | None:
        """The gradient of the last backward pass, if it is still there."""
        return self.net.get_parameter(name).grad

    def _moments(self, optimizer: torch.optim.Optimizer, parameter: Tensor, name: str) -> Iterator[Tensor]:
        for key, value in optimizer.state.get(parameter, {}).items():
            if key in self.COUNTS:
                continue
            if isinstance(value, Tensor):
                if value.shape == parameter.shape and _zero_at_first(optimizer, key):
                    yield value
                    continue
                known = value.ndim == 0 and parameter.ndim > 0  # a number that belongs to the parameter as a whole
            else:
                known = not isinstance(value, list | tuple | dict)
            if not known:
                raise SettingsError(
                    f"{type(optimizer).__name__} keeps {key!r} of {name!r}, which is no moment that is zero at first: "
                    "single units or layers cannot start afresh with it"
                )

    def require_all(self, runs: Tensor | None) -> None:
        """Raises SettingsError if only some runs are to start afresh: torch counts the steps of all at once."""
        if runs is not None and self.optimizers:
            raise SettingsError(
                "torch.optim counts the steps of all runs at once: to restart some of them use a Learner"
            )

    def restart_(self, runs: Tensor | None = None) -> None:
        """Empty the state of all parameters of the network; learning rates and groups stay."""
        self.require_all(runs)
        for optimizer in self.optimizers:
            for parameter in self.net.parameters():
                if isinstance(optimizer, torch.optim.Adagrad):  # some versions make its state in the constructor only
                    for key, value in optimizer.state.get(parameter, {}).items():
                        value.fill_(optimizer.defaults["initial_accumulator_value"] if key == "sum" else 0)
                else:
                    optimizer.state.pop(parameter, None)


def _zero_at_first(optimizer: torch.optim.Optimizer, key: str) -> bool:
    if isinstance(optimizer, torch.optim.Adagrad):
        return not optimizer.defaults["initial_accumulator_value"]
    return key not in ("step_size", "ax", "z")  # Rprop's step sizes, ASGD's and schedule-free averages of the weights
