"""Walking along one real call of a network: hooks at its layers, and every operation between them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rl_plasticity.errors import reason
from rl_plasticity.structure.calling import Example, arguments_of, aside, flat, tensors_in
from rl_plasticity.structure.layer import role_of, without_forward
from rl_plasticity.structure.operations import VIEWS, operation_of, plain
from rl_plasticity.structure.walk import INPUT, Value, Walk, Weight, joined


def watch(net: nn.Module, walk: Walk, example: Example) -> str | None:
    """Walk along the call of `net` on `example`; returns what could not be followed.

    Raises:
        ValueError: the network cannot be called so.
    """
    try:
        watched_call(net, walk, example)
    except _Lost as error:
        return str(error)
    return None


def watched_call(net: nn.Module, walk: Walk, example: Example, *, gradients: bool = True) -> "Watch":
    """As `watch`, with the outputs of all activations. The network and random states do not change.

    Args:
        gradients: whether the call has gradients. Without them some modules of torch take a short cut past their own
            layers; with them the call takes the memory of its graph.
    """
    if why := without_forward(net):
        raise ValueError(why)
    mode = Watch(walk)
    args, kwargs = arguments_of(example)
    mode.give(tensors_in([args, kwargs]), Value(frozenset({INPUT})))
    with aside(net) as called:
        within = ""  # the layer whose own modules come next
        for name, module in called.named_modules():
            if within and name.startswith(f"{within}."):
                continue
            if role_of(module) is not None or operation_of(module):
                within = name
                module.register_forward_pre_hook(mode.enter)
                module.register_forward_hook(partial(mode.leave, name), with_kwargs=True)
        try:
            with torch.set_grad_enabled(gradients), mode:
                mode.ended(called(*args, **kwargs))
        except _Lost:
            raise
        except Exception as error:
            raise ValueError(
                f"example: {type(net).__name__} cannot be called on it ({reason(error)}): give "
                "several arguments as a tuple, named ones as a dict"
            ) from error
    return mode


class _Lost(Exception):
    """A tensor that depends on parameters came from where nothing was seen."""


class Watch(TorchFunctionMode):
    """Sees every operation of one call, outside of the modules that are layers.

    Attributes:
        outputs: of activations, by name and call.
    """

    def __init__(self, walk: Walk) -> None:
        super().__init__()
        self.walk = walk
        self.outputs: dict[tuple[str, int], Tensor] = {}
        self._values: dict[int, Value] = {}
        self._kept: list[Tensor] = []  # so that no address is used twice
        self._inside = 0  # how many layers are being called
        for parameter in walk.net.parameters():
            self._values[id(parameter)] = Value(weight=Weight(walk.name_of[id(parameter)]))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._inside:  # constants, before something is written into them
            self.give(
                [t for t in tensors_in([args, kwargs]) if id(t) not in self._values and not t.requires_grad], Value()
            )
        result = func(*args, **kwargs)
        if self._inside:
            return result
        name = getattr(func, "__name__", "")
        if name == "__get__":  # of a property: x.T, x.shape
            name = getattr(getattr(func, "__self__", None), "__name__", name)
        op, given = plain(name, not isinstance(args[0], Tensor)) if args else plain(name), flat([args, kwargs])
        inputs = [a for a in given if isinstance(a, Tensor)]
        made = tensors_in(args[0] if op == "setitem" else result)
        unchanged = op in VIEWS and len(inputs) == 1 and all(t is inputs[0] for t in made)
        if inputs and made and not unchanged and op not in ("requires_grad", "grad", "register_hook"):
            others = [a for a in given if not isinstance(a, Tensor)]
            self._note(made, lambda: self.walk.call(op, [self._value(t) for t in inputs], others))
        return result

    def enter(self, *_: Any) -> None:
        """Note that a layer's forward begins."""
        self._inside += 1

    def leave(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Note that a layer's forward has ended."""
        self._inside -= 1
        if not self._inside:
            values = [self._value(t) for t in tensors_in([args, kwargs])]
            op = operation_of(module)
            self._note(
                tensors_in(output),
                lambda: self.walk.module(name, joined(values)) if op is None else self.walk.call(op, values),
            )

    def give(self, tensors: Sequence[Tensor], value: Value) -> None:
        """Note where these tensors come from."""
        for tensor in tensors:
            self._values[id(tensor)] = value
        self._kept += tensors

    def ended(self, output: Any) -> None:
        """Note what the network returned."""
        self.walk.returned = [self._values.get(id(t), Value()) for t in tensors_in(output)]

    def _note(self, made: Sequence[Tensor], step: Callable[[], Value]) -> None:
        self._inside += 1  # what is done here, as computing a parametrized weight, is not the network's
        before = len(self.walk.nodes)
        self.give(made, step())
        if made and len(self.walk.nodes) > before and (node := self.walk.nodes[-1]).role == "activation":
            self.outputs[node.name, node.call] = made[0].detach().clone()
        self._inside -= 1

    def _value(self, tensor: Tensor) -> Value:
        value = self._values.get(id(tensor))
        if value is None and tensor.requires_grad:
            raise _Lost(f"an operation could not be followed ({type(tensor.grad_fn).__name__})")
        return value or Value()
