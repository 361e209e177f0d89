"""The state that ``torch.optim`` optimizers keep for a network's parameters."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


def stepped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The torch optimizer inside the wrapper of a library (accelerate, Lightning, Fabric), or the optimizer itself."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def listed(optimizers: Optimizers) -> list[torch.optim.Optimizer]:
    """The torch optimizers inside one or several."""
    return [stepped(one) for one in (optimizers if isinstance(optimizers, Sequence) else [optimizers])]


class TorchState:
    """The state that ``torch.optim`` optimizers keep for a network's parameters, looked up by parameter.

    Raises:
        SettingsError: an optimizer is not a torch optimizer, is LBFGS, or holds no parameter of the network.
    """

    # For a parameter of shape () these have its shape too, but they are counts rather than moments.
    COUNTS = ("step", "mu_product", "eta", "mu")

    def __init__(self, net: nn.Module, optimizers: Optimizers) -> None:
        self.net, self.optimizers = net, listed(optimizers)
        mine = {id(p) for p in net.parameters()}
        for optimizer in self.optimizers:
            kind = type(optimizer).__name__
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise SettingsError(f"a plain network needs torch.optim optimizers, got {kind}")
            if isinstance(optimizer, torch.optim.LBFGS):
                raise SettingsError("LBFGS keeps one flat state for all parameters: a single one has no moments there")
            if not any(id(p) in mine for group in optimizer.param_groups for p in group["params"]):
                raise SettingsError(
                    f"{kind} holds none of the network's parameters: make it from this network's parameters()"
                )

    def moments(self, name: str) -> list[Tensor]:
        """The tensors stored for the parameter called `name`, each of its shape and zero at first.

        Raises:
            SettingsError: the state has another form, such as Adafactor's rows and columns.
        """
        parameter = self.net.get_parameter(name)
        return [moment for optimizer in self.optimizers for moment in self._moments(optimizer, parameter, name)]

    def gradient(self, name: str) -> Tensor | None:
        """The gradient from the last backward pass, if it is still there."""
        return self.net.get_parameter(name).grad

    def _moments(self, optimizer: torch.optim.Optimizer, parameter: Tensor, name: str) -> Iterator[Tensor]:
        for key, value in optimizer.state.get(parameter, {}).items():
            if key in self.COUNTS:
                continue
            if isinstance(value, Tensor):
                if value.shape == parameter.shape and _zero_at_first(optimizer, key):
                    yield value
                    continue
                known = value.ndim == 0 and parameter.ndim > 0  # one number for the whole parameter
            else:
                known = not isinstance(value, list | tuple | dict)
            if not known:
                raise SettingsError(
                    f"{type(optimizer).__name__} keeps {key!r} for {name!r}, which is no moment that is zero at first: "
                    "single units or layers cannot be reset with this optimizer"
                )

    def require_all(self, runs: Tensor | None) -> None:
        """Raise SettingsError if only some runs are to be reset: torch counts the steps of all runs together."""
        if runs is not None and self.optimizers:
            raise SettingsError(
                "torch.optim counts the steps of all runs at once: use a Learner to restart only some of them"
            )

    def restart_(self, runs: Tensor | None = None) -> None:
        """Empty the state of all parameters of the network; learning rates and groups stay."""
        self.require_all(runs)
        for optimizer in self.optimizers:
            for parameter in self.net.parameters():
                if isinstance(optimizer, torch.optim.Adagrad):  # some versions create its state only in the constructor
                    for key, value in optimizer.state.get(parameter, {}).items():
                        value.fill_(optimizer.defaults["initial_accumulator_value"] if key == "sum" else 0)
                else:
                    optimizer.state.pop(parameter, None)


def _zero_at_first(optimizer: torch.optim.Optimizer, key: str) -> bool:
    if isinstance(optimizer, torch.optim.Adagrad):
        return not optimizer.defaults["initial_accumulator_value"]
    return key not in ("step_size", "ax", "z")  # Rprop's step sizes, ASGD's and schedule-free averages of the weights
