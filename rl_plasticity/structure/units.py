"""Hidden units: what feeds them, what they feed, their activations, and which entries of parameters are theirs."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rl_plasticity.errors import counted
from rl_plasticity.structure.calling import Example
from rl_plasticity.structure.layer import Layer, lookup, unwrapped
from rl_plasticity.structure.walk import Walk
from rl_plasticity.structure.watch import watched_call


@dataclass(frozen=True)
class HiddenLayer:
    """The hidden units of one layer: what feeds them, the non-linearity they come out of, and what they feed.

    Attributes:
        norms: the norm layers between that layer and the non-linearity, the last one first.
        activation: the activation module's name, or ``relu()`` for a function.
        call: which call of that module or function it is.
        width: the number of units, where they can be recycled.
    """

    incoming: Layer
    norms: tuple[Layer, ...]
    activation: str
    call: int
    outgoing: tuple[Layer, ...]
    width: int = 0

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All that makes the units or reads them."""
        return (self.incoming, *self.norms, *self.outgoing)

    @property
    def name(self) -> str:
        """Its name in the log: the activation's, with the number of the call if that is not the first."""
        return self.activation + (f".{self.call}" if self.call else "")

    def by_unit(self, activation: Tensor) -> Tensor:
        """An activation as ``[*runs, units, examples and positions]``.

        Raises:
            ValueError: it is of another shape than a batch gives.
        """
        k, conv = len(self.incoming.runs), self.incoming.role == "conv"
        axis = k + 1 if conv else activation.ndim - 1  # channels behind the examples, else last
        if activation.ndim < k + 2 + conv or activation.shape[axis] != self.width:
            raise ValueError(
                f"{self.activation!r} gives {[*activation.shape]} for the {counted(self.width, 'unit')} of "
                f"{self.incoming.name!r}: inputs must be a batch, with the examples in their first axis"
            )
        return activation.movedim(axis, k).flatten(k + 1)


def recycled(
    net: nn.Module,
    chosen: Sequence[tuple[HiddenLayer, Tensor]],
    fresh: Callable[[HiddenLayer, str], Tensor],
) -> dict[str, tuple[Tensor, Tensor]]:
    """The parameters of `net` when units start afresh; nothing is written.

    Weights, biases, gains and shifts that make a unit become what `fresh` says, the weights that read it 0.

    Args:
        chosen: hidden units, and which of them start afresh: a mask ``[*runs, units]``.
        fresh: new values like the parameter of this name, which is one of the incoming layer or of a norm layer.

    Returns:
        By the parameter's name where it is new, a mask like it, and what it becomes.
    """
    changes = [
        (name, where, fresh(unit, name))
        for unit, units in chosen
        for layer in (unit.incoming, *unit.norms)
        for name, where in layer.rows_of(net, units)
    ]
    # Outgoing weights last: what leads from one new unit to another is zero.
    changes += [
        (*layer.columns_of(net, units), torch.zeros((), device=units.device))
        for unit, units in chosen
        for layer in unit.outgoing
    ]
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name, where, value in changes:
        tensor = lookup(net, name)
        where = where.to(tensor.device)
        before, values = found.get(name, (torch.zeros_like(where), tensor))
        found[name] = before | where, torch.where(where, value.to(tensor), values)
    return found


def shared_with(net: nn.Module) -> str:
    """The class of a module inside `net` that another module holds too, one with parameters of its own; "" if none is.

    That module may read units of `net`. Copies share no modules, and what holds the whole of `net` is not meant.
    """
    inside = [module for module in net.modules() if module is not net]
    mine = {id(one) for module in net.modules() for one in (module._modules, *module.parameters())}
    for holder in gc.get_referrers(*inside):
        if type(holder) is dict and id(holder) not in mine:
            held = [one for one in holder.values() if isinstance(one, nn.Module)]
            if len(held) == len(holder) and any(id(p) not in mine for one in held for p in one.parameters()):
                return next(type(one).__name__ for one in held if any(one is module for module in inside))
    return ""


def activations_of(net: nn.Module, units: Sequence[HiddenLayer], inputs: Example) -> list[Tensor]:
    """The output of each activation in `units`, modules and functions, when `net` is called on `inputs`."""
    net = unwrapped(net)
    outputs = watched_call(net, Walk(net, {}, None), inputs, gradients=False).outputs
    return [outputs[unit.activation, unit.call] for unit in units]
