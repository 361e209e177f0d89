"""How a foreign network is called: its arguments, tensors in nested values, and a copy that takes the call."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from rl_plasticity.errors import reason
from rl_plasticity.seeding import random_states_kept


class Arguments(NamedTuple):
    """Positional and named arguments of a call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


Example = Tensor | Arguments | Sequence[Any] | Mapping[str, Any]
"""One real call: a tensor, several arguments in order, or arguments by name."""


def arguments_of(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of a call: a tensor is one, a sequence several, a mapping the named ones."""
    if isinstance(example, Arguments):
        return example.args, dict(example.kwargs)
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), {str(name): value for name, value in example.items()}
    return tuple(example), {}


def flat(values: Any) -> list[Any]:
    """What is in nested lists, tuples, mappings and dataclasses, in order."""
    if hasattr(values, "items"):
        values = [*values.values()]
    elif hasattr(values, "__dataclass_fields__"):
        values = [*vars(values).values()]
    if isinstance(values, list | tuple | set):
        return [item for value in values for item in flat(value)]
    return [values]


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors in nested values."""
    return [value for value in flat(values) if isinstance(value, Tensor)]


def with_tensors(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Nested lists, tuples and dicts with each tensor in them changed; what else is in them stays."""
    return tree_map_only(Tensor, change, values)


class Sharing(TorchFunctionMode):
    """What was computed with gradients, which torch refuses to copy, is its own copy."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def aside(net: nn.Module) -> Iterator[nn.Module]:
    """A `shadow` of `net` in evaluation mode, to call: nothing of the call stays, not even in the random states."""
    with random_states_kept(net.parameters()):
        yield shadow(net).eval()


def shadow(net: nn.Module) -> nn.Module:
    """A copy that shares the parameters: what a call of it writes, counts or hooks up stays in the copy.

    Shared are also tensors that were computed with gradients, which modules may keep, and objects outside the network
    whose methods are its hooks.

    Raises:
        ValueError: the network cannot be copied.
    """
    modules = [*net.modules()]
    hooks = [hook for m in modules for hook in (*m._forward_pre_hooks.values(), *m._forward_hooks.values())]
    owners = [getattr(hook, "__self__", None) for hook in hooks]
    shared: list[Any] = [*net.parameters(), *(owner for owner in owners if owner not in modules)]
    try:
        with Sharing():
            return copy.deepcopy(net, {id(one): one for one in shared})
    except Exception as error:  # a module's own copying may raise anything
        raise ValueError(f"{type(net).__name__} must be copied for a call, but cannot be: {reason(error)}") from error
