"""Reading the inputs or outputs of modules deep inside a network, in a call that a compiled update can trace."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from inspect import currentframe
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_plasticity.seeding import random_states_kept
from rl_plasticity.structure import Arguments, Example, arguments_of, shadow
from rl_plasticity.structure.layer import innermost, lookup

_HOOKS = [name for name in nn.Module().__dict__ if name.startswith("_forward")]


class Call(Arguments):
    """Arguments of a call that a loop has made, with what readers kept of it, so that no second call is needed.

    Attributes:
        autocast: device, type, and whether autocast was on.
        kept: for each reader and each module name, what was kept of each of the module's outputs, in order.
    """

    def __init__(self, *_: Any) -> None:
        self.autocast = ("cpu", torch.bfloat16, False)
        self.kept: dict[object, dict[str, list[Any]]] = {}

    def autocasting(self) -> AbstractContextManager[None]:
        """A context in which autocast is on or off as it was in the call."""
        device, dtype, enabled = self.autocast
        return torch.autocast(device, dtype, enabled=enabled)


class Inside:
    """A callable that runs a network and returns the inputs or outputs of some of its modules.

    It calls a copy of the network, because hooks that are added and removed cannot be traced. The copy has the hooks;
    the network itself gets none. The copy reads the tensors of the network that is
    passed, and the other attributes of its modules. A traced update keeps the attributes of its first call.

    The network's own hooks are called too, because they may be part of its computation. Activation checkpointing is
    refused where the call has a gradient, because it would call modules of the copy again in the backward pass.

    Args:
        net: the network.
        returning: names of the modules whose outputs are wanted.
        reading: names of the modules whose first argument is wanted.

    Raises:
        ValueError: the network cannot be copied: hooks compute its weights (use ``prune.remove``), for example.
    """

    def __init__(self, net: nn.Module, returning: Sequence[str] = (), reading: Sequence[str] = ()) -> None:
        self.copied = shadow(innermost(net))
        self.values: dict[str, list[Tensor]] = {}
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
            raise RuntimeError(
                "a network whose activations are read cannot use activation checkpointing (torch.utils.checkpoint): "
                "switch it off, or take a method that does not look at features"
            )

    def _returned(self, name: str, module: nn.Module, args: Any, output: Tensor) -> None:
        self.values[name].append(output.clone())  # later operations may work in place

    def _read(self, name: str, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self.values[name].append((args[0] if args else next(iter(kwargs.values()))).clone())

    def __call__(
        self, net: nn.Module, inputs: Example, values: Mapping[str, Tensor] | None = None
    ) -> dict[str, list[Tensor]]:
        """The values seen in each module, call by call, when `net` is called on `inputs` as by `call`.

        Raises:
            RuntimeError: the network's modules are not those it had at construction, or it does not call one of the
                modules to look at.
        """
        inner = innermost(net)
        mine, theirs = [*self.copied.modules()], [*inner.modules()]
        if len(mine) != len(theirs):
            raise RuntimeError(
                f"{type(inner).__name__} has other modules than when the regularizer was made: make a new regularizer"
            )
        for module, its, hooks in zip(mine, theirs, self.hooks, strict=True):
            if module.training != its.training:
                module.training = its.training
            if not torch.compiler.is_compiling():
                # A module's settings, but not what torch or the network's code keeps in it.
                plain = {
                    k: v for k, v in its.__dict__.items() if isinstance(v, bool | int | float | str | tuple | None)
                }
                module.__dict__.update({name: value for name, value in plain.items() if not name.startswith("_")})
                for kind, own in hooks.items():
                    module.__dict__[kind] = OrderedDict([*its.__dict__[kind].items(), *own])
        self.values = {name: [] for name in self.names}
        self.calling, self.with_gradient = True, torch.is_grad_enabled()
        try:
            call(self.copied, net, inputs, values)
        finally:
            self.calling = False
        found, self.values = self.values, {}
        for name, tensors in found.items():
            if not tensors:
                raise RuntimeError(
                    f"{type(inner).__name__} did not call its module {name!r}, whose activations are needed"
                )
        return found


def _in_checkpoint() -> bool:
    """Whether torch's checkpointing is the caller; its reentrant kind calls modules without gradients."""
    frames = walk_stack(currentframe())
    return any(frame.f_globals.get("__name__") == "torch.utils.checkpoint" for frame, _ in frames)


def call(module: nn.Module, net: nn.Module, inputs: Example, values: Mapping[str, Tensor] | None = None) -> Any:
    """Call `module` on `inputs` with the tensors of `net`, its parameters replaced by `values`.

    Random states are as before afterwards, so that two calls in a row draw the same masks of dropout. They are not in a
    compiled or captured update, where a generator cannot be set back.

    Args:
        module: `innermost` of `net`, or a copy of it.
        net: a network, or some runs of a stacked one (`SomeRuns`) with the inputs of those runs. Its buffers and the
            attributes of its modules are not changed.
    """
    tensors = {name: lookup(net, name) for name, _ in module.named_parameters()} | dict(values or {})
    tensors |= {name: lookup(net, name).clone() for name, _ in module.named_buffers()}
    args, kwargs = arguments_of(inputs)
    with nullcontext() if torch.compiler.is_compiling() else random_states_kept(tensors.values()):
        return functional_call(module, tensors, args, kwargs)
