"""What modules deep inside a network return or read, in a call that a compiled update can trace."""

import copy
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_plasticity.errors import first_line
from rl_plasticity.structure import Arguments, Example, arguments_of
from rl_plasticity.structure.attributes import attributes_kept
from rl_plasticity.structure.layer import SomeRuns, kind_of, lookup, unwrapped

_HOOKS = [name for name in nn.Module().__dict__ if name.startswith("_forward")]


class Call(Arguments):
    """A call that a loop has made, and what those who looked into it kept of it: nothing has to be called again.

    Attributes:
        autocast: device, type and whether it was switched on.
        seen: by who looked and by the name of a module: what was kept of each of its returns, in order.
    """

    def __init__(self, *_: Any) -> None:
        self.autocast = ("cpu", torch.bfloat16, False)
        self.seen: dict[object, dict[str, list[Any]]] = {}

    def autocasting(self) -> AbstractContextManager[None]:
        """Within it, autocast is on or off as it was in the call."""
        device, dtype, enabled = self.autocast
        return torch.autocast(device, dtype, enabled=enabled)


class Inside:
    """A network's call with a look at some of its modules.

    The call is made on a copy of the network without tensors of its own, whose modules have hooks: hooks that come and
    go cannot be traced, and the network itself stays without. It reads the tensors of the network that is passed, and
    what else its modules hold (but in a traced update, which is for what they held at first). Hooks of the network
    are called too, for they may be part of what it computes. What it draws, as dropout does, is drawn anew. Activation
    checkpointing, which would call modules of the copy again in the backward pass, is refused where the call has a
    gradient.

    Args:
        net: the network.
        returning: names of modules; what they return is wanted.
        reading: names of modules; what they are called with first is wanted.

    Raises:
        ValueError: a network that cannot be copied, or whose weights are made by torch's pruning hooks.
    """

    def __init__(self, net: nn.Module, returning: Sequence[str] = (), reading: Sequence[str] = ()) -> None:
        inner = innermost(net)
        for name, module in inner.named_modules():
            if kind_of(module) is not None and isinstance(vars(module).get("weight"), Tensor):
                raise ValueError(
                    f"{name} computes its weight in a hook, which cannot be copied for a look inside: use "
                    "torch.nn.utils.parametrize, or prune.remove for what is pruned for good"
                )
        tensors: dict[int, Any] = {id(t): t.to("meta") for t in inner.buffers()}
        tensors |= {id(p): nn.Parameter(p.to("meta"), requires_grad=p.requires_grad) for p in inner.parameters()}
        try:
            self.copied = copy.deepcopy(inner, tensors)
        except Exception as error:  # anything a module's own copying may raise
            raise ValueError(f"a network that is looked into has to be copied: {first_line(error)}") from error
        self.seen: dict[str, list[Tensor]] = {}
        self.calling = self.with_gradient = False
        theirs = [{kind: {*module.__dict__[kind]} for kind in _HOOKS} for module in self.copied.modules()]
        for module in self.copied.modules():
            module.register_forward_pre_hook(self._enter)
        for name in returning:
            self.copied.get_submodule(name).register_forward_hook(partial(self._returned, name))
        for name in reading:
            hook = partial(self._read, name)
            self.copied.get_submodule(name).register_forward_pre_hook(hook, with_kwargs=True)
        self.names = [*returning, *reading]
        self.hooks = [
            {kind: [(i, hook) for i, hook in module.__dict__[kind].items() if i not in its[kind]] for kind in _HOOKS}
            for module, its in zip(self.copied.modules(), theirs, strict=True)
        ]

    def _enter(self, module: nn.Module, args: Any) -> None:
        without = self.with_gradient and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if not self.calling or (without and _in_checkpoint()):
            raise _checkpointed()

    def _returned(self, name: str, module: nn.Module, args: Any, output: Tensor) -> None:
        self.seen[name].append(output.clone())  # what follows may work in place

    def _read(self, name: str, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self.seen[name].append((args[0] if args else next(iter(kwargs.values()))).clone())

    def __call__(self, net: nn.Module, inputs: Example) -> dict[str, list[Tensor]]:
        """What was seen in each module, call by call, when `net` is called on `inputs`; its buffers stay.

        Raises:
            RuntimeError: the network is no longer made of the modules that it was made of, or does not call one.
        """
        inner = innermost(net)
        mine, theirs = [*self.copied.modules()], [*inner.modules()]
        if len(mine) != len(theirs):
            raise RuntimeError(
                f"{type(inner).__name__} has other modules than when the regularizer was made: make it again"
            )
        for module, its, hooks in zip(mine, theirs, self.hooks, strict=True):
            if module.training != its.training:
                module.training = its.training
            if not torch.compiler.is_compiling():
                plain = {name: value for name, value in its.__dict__.items() if _is_plain(name, value)}
                module.__dict__.update(plain)
                for kind, own in hooks.items():
                    module.__dict__[kind] = OrderedDict([*its.__dict__[kind].items(), *own])
        self.seen = {name: [] for name in self.names}
        self.calling, self.with_gradient = True, torch.is_grad_enabled()
        try:
            call(self.copied, net, inputs)
        finally:
            self.calling = False
        seen, self.seen = self.seen, {}
        for name, tensors in seen.items():
            if not tensors:
                raise RuntimeError(
                    f"{type(inner).__name__} did not call its module {name!r}, which has to be looked at"
                )
        return seen


def _checkpointed() -> RuntimeError:
    return RuntimeError(
        "a network that is looked into cannot use activation checkpointing (torch.utils.checkpoint): switch it off, or "
        "take a method that does not look at features"
    )


def _in_checkpoint() -> bool:
    """Whether this is called by torch's checkpointing, of which the reentrant kind calls without gradients."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != "torch.utils.checkpoint":
        frame = frame.f_back
    return frame is not None


def _is_plain(name: str, value: object) -> bool:
    """Whether it is a setting of a module, and not what torch or a network's own code keeps there."""
    return not name.startswith("_") and isinstance(value, bool | int | float | str | tuple | None)


def call(module: nn.Module, net: nn.Module, inputs: Example, values: Mapping[str, Tensor] | None = None) -> Any:
    """What `module` returns for `inputs` with the tensors of `net`, its parameters replaced by `values`.

    Args:
        module: `innermost` of `net`, or a copy of it.
        net: also some runs of a stacked network (`SomeRuns`), whose inputs are those runs'. Its buffers stay, and what
            the modules keep in attributes.
    """
    tensors = {name: lookup(net, name) for name, _ in module.named_parameters()} | dict(values or {})
    tensors |= {name: lookup(net, name).clone() for name, _ in module.named_buffers()}
    args, kwargs = arguments_of(inputs)
    with attributes_kept(module):
        return functional_call(module, tensors, args, kwargs)


def innermost(net: nn.Module) -> nn.Module:
    """The module that is called: without views of some runs and what torch wraps around a network."""
    while isinstance(net, SomeRuns):
        net = net._net[0]
    return unwrapped(net)
