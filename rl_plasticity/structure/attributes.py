"""Restores what modules hold beside parameters, buffers and attributes, as it was before a call."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

# What a forward may change of what torch itself keeps in a module: buffers, which it may replace by others, and hooks,
# which it may register at the first call and note so in an attribute.
_CHANGING = {"_buffers", "training", *(name for name in nn.Module().__dict__ if name.startswith("_forward"))}
_TORCH = frozenset(nn.Module().__dict__) - _CHANGING


@contextmanager
def attributes_kept(net: nn.Module) -> Iterator[None]:
    """Restore the modules' attributes and buffers at the end, whatever a forward does to them inside.

    This covers numbers, tensors, arrays and random generators, also in lists, dicts, sets and tuples, changed in place
    or replaced. Objects of other classes are not searched. In a traced call nothing is restored.
    """
    if torch.compiler.is_compiling():
        yield
        return
    before = [(m, {k: (v, _copied(v)) for k, v in m.__dict__.items() if k not in _TORCH}) for m in net.modules()]
    try:
        yield
    finally:
        for module, attributes in before:
            for name in [n for n in module.__dict__ if n not in _TORCH and n not in attributes]:
                del module.__dict__[name]
            for name, (value, as_it_was) in attributes.items():
                module.__dict__[name] = _given_back(value, as_it_was)


def _copied(value: Any) -> Any:
    """A copy of everything that can change in place, as `_given_back` needs it."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return [(one, _copied(one)) for one in value]
    if isinstance(value, dict):
        return {key: (one, _copied(one)) for key, one in value.items()}
    if isinstance(value, set) or type(value).__module__ in (
        "numpy",
        "collections",
        "random",
        "numpy.random._generator",
    ):
        return copy.deepcopy(value)
    return value.get_state() if isinstance(value, torch.Generator) else None


@torch.no_grad()
def _given_back(value: Any, as_it_was: Any) -> Any:
    """`value` with its old content: the object itself if it has not changed or can be changed back."""
    if isinstance(value, Tensor):
        # If it is equal its version must not change: a graph may have saved it.
        if not value.is_meta and not torch.equal(value, as_it_was):
            value.data.copy_(as_it_was)
    elif type(value) in (list, tuple):
        held = [_given_back(one, was) for one, was in as_it_was]
        if type(value) is list:
            value[:] = held
    elif isinstance(value, dict):
        held_by_name = {key: _given_back(one, was) for key, (one, was) in as_it_was.items()}
        value.clear()
        value.update(held_by_name)
    elif isinstance(value, torch.Generator):
        value.set_state(as_it_was)
    elif as_it_was is not None:
        return as_it_was
    return value
