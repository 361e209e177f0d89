"""Regularizers in any training loop: `attach` makes the optimizer's step apply them."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import currentframe
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from rl_plasticity.errors import SettingsError, in_short, warn
from rl_plasticity.learning.kept import undoing
from rl_plasticity.learning.torch_state import Optimizers, TorchState, listed, whole
from rl_plasticity.regularizers import Regularizer, make_regularizer
from rl_plasticity.regularizers.base import forget_, penalty_of
from rl_plasticity.regularizers.inside import Call
from rl_plasticity.structure import shared_with, with_tensors
from rl_plasticity.structure.layer import unwrapped, without_forward
from rl_plasticity.structure.reading import require_supported


def attach(regularizer: Regularizer | str, optimizer: Optimizers, net: nn.Module, **settings: Any) -> "Attached":
    """Regularize `net` at each step of its optimizer; nothing else in the loop changes::

        handle = attach("spectral", optimizer, net, coef=1e-4)
        ...; loss.backward(); optimizer.step()

    equals ``(loss + regularizer.penalty(net)).backward(); optimizer.step(); regularizer.project_(net)``. Before the
    step, the penalty's gradient is added to ``.grad`` and `observe_` is called. After the step, `project_` is called.
    The consequences are:

    - *Accumulation*: the penalty counts once per step, whatever the number of backward passes.
    - *Clipping* before the step clips only the gradient of the loss; the penalty's gradient is added to the result.
    - *Mixed precision*: the penalty is computed in the parameters' own type, outside autocast. A step that
      ``torch.amp.GradScaler`` skips is skipped here too, and scaled gradients get a scaled penalty. (With a fused
      optimizer only the GPU knows whether the step is skipped, so the host waits for it once or twice per step.)
    - *Closures* (``optimizer.step(closure)``: LBFGS, Lightning): each call adds the penalty to the gradients and to the
      returned loss. `observe_` is called at the first call, and `project_` once after the step.
    - *Schedulers*: the coef of `weight_decay` and `orthogonal` and the norm_decay of `wrs` are multiplied by the rate
      of each parameter's group. (Where the rate is a tensor on a GPU, the host waits for it at each step.)
    - *Several optimizers* of one network: each adds the gradients of the parameters that it holds. The penalty is
      computed when the first of them steps. `project_` follows when all have stepped since the last time.
    - *Several networks* of one optimizer: attach each.
    - *Data*: a regularizer that looks at data (`churn`) uses the inputs of the last call of `net` that returned while
      gradients were on. The loop must therefore call `net` in the form given here. `continual_backprop` and
      `self_normalized_resets` read that call itself, through hooks on the modules whose activations they need. Where
      these hooks see nothing, as in a compiled network, the step calls a copy of the network.
    - *Compilation*: `net` may be compiled, and so may ``optimizer.step``. The hooks run between the graphs of the step,
      of which torch makes several anyway (it takes no step with ``fullgraph=True``).
    - *Data parallel*: every process computes the same penalty, so nothing is exchanged. Sharded parameters are refused.
      So are regularizers that look at data in several processes, because each process has its own data.
    - *Nested steps*: a step that is part of another one (a subclass's ``super().step()``) does nothing of its own. The
      penalty is added when the outermost begins, and `project_` is called when it ends.
    - *A new optimizer*, or a network with new, larger or replaced layers: ``handle.grow(optimizer=optimizer)`` or
      ``handle.grow()``. A step with a network that has changed raises an error that says so. If another optimizer
      trains the network in place of the old one, a warning says so.
    - *Wrappers*: for an optimizer that keeps another one of the same parameters (accelerate, Lightning, Lookahead,
      SAM), the hooks are on the one inside.
    - *Copies*: a handle that is copied or pickled together with its network and optimizer is attached to their copies.
      A copied or unpickled optimizer alone has lost its hooks, so attach again.

    Move the network to its device before attaching; if it is moved later, call ``handle.regularizer.to(device)`` too.

    Args:
        regularizer: a regularizer made for `net`, or a name, for which `make_regularizer` makes one with the
            `settings`.
        optimizer: the optimizer or optimizers that train `net`.
        net: the network, or the part of it that is trained. It may be wrapped by ``torch.compile``, ``DataParallel``,
            ``DistributedDataParallel``, ``AveragedModel`` or Lightning's Fabric.

    Returns:
        The handle: its ``penalty`` is that of the last step, and ``remove()`` detaches it.

    Raises:
        SettingsError: an argument is not supported:

            - an unknown name or setting, or settings for a regularizer that is made already;
            - an optimizer that holds nothing of `net`, two optimizers with one parameter, or a trainable parameter that
              is regularized but not optimized;
            - complex or sharded parameters;
            - the same regularizer attached twice, or to two networks;
            - an optimizer that steps in two parts itself (SAM without a base optimizer), that does not call the
              constructor of torch's, or, where the method needs it, without a learning rate;
            - a projection, with an optimizer that takes the weights from a copy of its own (Lookahead, Ranger,
              MADGRAD, schedule-free ones), as one like it shows that trains a small parameter.
        SettingsError: from the first ``optimizer.step()``, after the step: a regularizer that reinitializes units, with
            an optimizer whose state cannot be reset at single entries (LBFGS, Rprop, Adafactor).
        RuntimeError: from ``optimizer.step()``: a sparse gradient where the penalty has one; an optimizer that
            unscales gradients itself; a regularizer that looks at data, if the loop has not called `net`; a network
            that is no longer the one that was attached. Nothing has changed then.
    """
    if not isinstance(net, nn.Module):
        raise SettingsError(f"net must be a network, got {type(net).__name__}: attach(regularizer, optimizer, net)")
    called = _callable(net)
    net = unwrapped(net)
    if isinstance(regularizer, str):
        regularizer = make_regularizer(regularizer, net, **settings)
    elif not isinstance(regularizer, Regularizer):
        raise SettingsError(f"regularizer must be a Regularizer or the name of one, got {type(regularizer).__name__}")
    elif settings:
        raise SettingsError(
            f"settings are for a regularizer given by name; this one is made already: {in_short(settings)}"
        )
    return Attached(regularizer, whole(optimizer), net, called)


class Attached:
    """The handle that `attach` returns: a regularizer at work in the steps of optimizers, until `remove` is called.

    Attributes:
        regularizer: the regularizer.
        net: the network, unwrapped.
        optimizers: those whose steps it acts in, unwrapped.
        penalty: the penalty ``[*runs]`` in the last step, detached; None before the first.
    """

    regularizer: Regularizer
    net: nn.Module
    optimizers: list[Optimizer]

    def __init__(self, regularizer: Regularizer, whole: Sequence[Optimizer], net: nn.Module, called: nn.Module) -> None:
        self.penalty: Tensor | None = None
        self._hooks: list[Any] = []
        self._hooks_of_net: list[Any] = []
        self._attach(regularizer, whole, net, called)

    def _attach(self, regularizer: Regularizer, whole: Sequence[Optimizer], net: nn.Module, called: nn.Module) -> None:
        """Begin, or begin again, with optimizers that may be wrapped."""
        optimizers = listed(whole, net)
        _check_optimizers(optimizers, net)
        _check_fit(regularizer, optimizers, whole, net)
        for other in {*_ALIVE} - {self}:
            if other.regularizer is regularizer and other.net is not net:
                raise SettingsError(
                    "this regularizer is attached to another network already: make one for each network"
                )
            same = type(other.regularizer) is type(regularizer) and not list(regularizer.children())
            same = same or other.regularizer is regularizer  # a composite may contain one kind twice
            if same and other.net is net and {*other.optimizers} & {*optimizers}:
                raise SettingsError(
                    f"a regularizer of this kind ({type(regularizer).__name__}) is already attached to this optimizer "
                    "and network: call remove() of its handle first"
                )
        self.remove()
        self.regularizer, self.net, self.optimizers = regularizer, net, optimizers
        self._whole, self._called = whole, called
        self._additions: dict[Optimizer, dict[str, Tensor]] = {}  # gradients of the penalty that each has yet to add
        self._acts_on = {name for _, name in _acted_on(regularizer, net)}
        self._stepped: set[Optimizer] = set()  # since the last projection
        self._repeated = 0  # steps of those that had stepped already
        self._lrs: dict[str, float] = {}  # of what was stepped since then
        for optimizer in optimizers:
            self._hooks.append(optimizer.register_step_pre_hook(self._before))
            self._hooks.append(optimizer.register_step_post_hook(self._after))
        self._inputs: Call | None = None  # of the last call
        self._under_way: Call | None = None
        self._penalizing = False
        self._watch_net()
        self.steps = self._missed = 0
        self._others: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        if not _ALIVE.watched:
            _ALIVE.watched = register_optimizer_step_post_hook(_disable_dynamo(_notice))
        _ALIVE.add(self)

    def _watch_net(self) -> None:
        """Look at the calls of the network, and remember what it consists of now."""
        regularizer, net, called = self.regularizer, self.net, self._called
        _remove(self._hooks_of_net)
        if regularizer.looks_at_data:
            begins, ends = _Hook(self, Attached._begins), _Hook(self, Attached._ends)
            self._hooks_of_net.append(called.register_forward_pre_hook(begins, with_kwargs=True))
            self._hooks_of_net.append(called.register_forward_hook(ends))
        for reader, _ in regularizer.methods(net):
            for name in reader.reads:
                returns = _Hook(self, partial(Attached._returns, reader=reader, name=name))
                self._hooks_of_net.append(net.get_submodule(name).register_forward_hook(returns))
        self._parameters = dict(net.named_parameters())  # keeps them alive, so that no other one gets the id of one
        self._tables = [table for module in net.modules() for table in (module._parameters, module._modules)]
        self._there = self._now()

    def __reduce__(self) -> tuple[Any, ...]:
        return Attached, (self.regularizer, self._whole, self.net, self._called)

    def grow(
        self,
        net: nn.Module | None = None,
        optimizer: Optimizers | None = None,
        **reading: Any,
    ) -> None:
        """Continue with a network that has new, larger or replaced layers, or with a new optimizer::

            net.head = larger(net.head)
            optimizer = Adam(net.parameters())
            handle.grow(optimizer=optimizer)

        What the regularizer remembers of what stayed is kept, and what is new begins with its present weights. A
        parameter has stayed if it is the same one. A replaced one has stayed if its first entries along each axis have
        the values of the old one.

        Args:
            net: another network, if it is another one now.
            optimizer: the new optimizer or optimizers, if there are new ones.
            reading: ``example``, ``heads``, ``roles``, ``only`` as in `make_regularizer`.

        Raises:
            ValueError, SettingsError: as from `attach`. The old regularizer is then still attached.
        """
        called = self._called if net is None else _callable(net)
        net = self.net if net is None else unwrapped(net)
        optimizers = self._whole if optimizer is None else whole(optimizer)
        new = [name for name, p in net.named_parameters() if not _stayed(self._parameters.get(name), p)]
        self._attach(self.regularizer.grown(net, new, **reading), optimizers, net, called)

    @property
    def counts(self) -> dict[str, Tensor]:
        """Counts of the regularizer's occasional events, ``[*runs]`` by name, such as ``reset_units``."""
        return self.regularizer.counts

    def state_dict(self) -> dict[str, Any]:
        """The regularizer's state, to save with the network and the optimizer."""
        return self.regularizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, to continue training from it."""
        self.regularizer.load_state_dict(state)
        self._additions.clear()

    def remove(self) -> None:
        """Detach the regularizer and leave the loop as it was before; may be called twice."""
        _remove(self._hooks)
        _remove(self._hooks_of_net)
        self._additions, self._inputs, self._under_way = {}, None, None
        _ALIVE.discard(self)

    # --- what the loop's own call of the network calls ------------------------------------------------------------

    def _begins(self, net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a call's inputs, without their graph, and the state of autocast, until the call returns."""
        # Inside torch.func.grad, vmap or the like tensors are gone afterwards.
        is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
        if torch.is_grad_enabled() and not self._penalizing and not is_transformed:
            self._under_way = Call(*with_tensors((args, kwargs), lambda t: t.detach().requires_grad_(t.requires_grad)))
            device = next(self.net.parameters()).device.type
            self._under_way.autocast = device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)

    def _returns(self, module: nn.Module, args: Any, output: Any, reader: Regularizer, name: str) -> None:
        """Let `reader` read what a module of the network has returned.

        Compiled modules and replicas are not read: the step calls a copy then.
        """
        call = self._under_way  # None in a backward pass, where checkpointed modules return once more
        if call is None or torch.compiler.is_compiling() or getattr(module, "_is_replica", False):
            return
        kept = call.kept.setdefault(reader, {}).setdefault(name, [])
        with torch.no_grad():
            kept.append(reader.read(name, len(kept), output) if isinstance(output, Tensor) else None)

    def _ends(self, net: nn.Module, args: Any, output: Any) -> None:
        if torch.is_grad_enabled() and self._under_way is not None:
            self._inputs, self._under_way = self._under_way, None

    # --- what the optimizers call ---------------------------------------------------------------------------------

    @_disable_dynamo
    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Regularize before a step; returns the step's arguments, with its closure replaced if it has one."""
        if "grad_scaler" in kwargs:
            raise RuntimeError(
                f"{type(optimizer).__name__} unscales gradients itself, inside its step, where the penalty's gradient "
                "cannot be added: call regularizer.penalty and project_ in the loop instead of attach"
            )
        if _steps(optimizer) > 1:
            return None
        self.steps, self._missed = self.steps + 1, 0
        if _skips(optimizer):
            return None
        self._require_unchanged()
        _check_one_process(self.regularizer)  # processes may have begun since
        for method, _ in () if self._stepped else self.regularizer.methods(self.net):
            method.prepared = False  # a step that raised may have left it so
        self._repeated += optimizer in self._stepped
        if self._repeated == _WAITS and any(method.projects for method, _ in self.regularizer.methods(self.net)):
            idle = ", ".join(type(one).__name__ for one in self.optimizers if one not in self._stepped)
            warn(
                f"{type(self.regularizer).__name__} projects when all its optimizers have stepped, and {idle} has not "
                f"for {_WAITS} steps of others: give those that step, by handle.grow(optimizer=...)"
            )
        closure = kwargs["closure"] if "closure" in kwargs else next(iter(args[1:]), None)
        if not callable(closure):
            self._regularize(optimizer)
            return None
        closure = self._regularized(closure, optimizer)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": closure}
        return (args[0], closure, *args[2:]), kwargs

    @_disable_dynamo
    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _steps(optimizer) > 1 or _skips(optimizer):
            return
        self._stepped.add(optimizer)
        if len(self._stepped) == len(self.optimizers):
            self._stepped.clear()
            self._repeated, self._inputs = 0, None
            with torch.no_grad(), self.regularizer.outside_autocast():
                reset = self.regularizer.project_(self.net, *self.regularizer.given_lr(self._lrs))
                if reset:  # else the optimizer's state need not have moments
                    state = TorchState(self.net, self._whole)
                    forget_(state.moments, reset)
                    state.follow_(reset)
            self._lrs = {}

    def _rates(self, optimizer: Optimizer) -> dict[str, float]:
        """The rates of the optimizer's groups, by name, for parameters with a gradient: no step changes others."""
        names = {id(p): name for name, p in self.net.named_parameters() if p.grad is not None}
        groups = optimizer.param_groups
        return {names[id(p)]: float(group["lr"]) for group in groups for p in group["params"] if id(p) in names}

    # --- the network now, and the network that was attached ---------------------------------------------------------

    def _now(self) -> list[tuple[int, Any]]:
        """What would be different in a network that has changed."""
        return [(id(value), getattr(value, "shape", None)) for table in self._tables for value in table.values()]

    def _require_unchanged(self) -> None:
        """Raise RuntimeError if the network has changed in a way that matters; else go on with what it is now."""
        if self._now() == self._there:
            return
        if changes := self._changes():
            raise RuntimeError(
                f"the network has changed since {type(self.regularizer).__name__} was attached: {in_short(changes)}. "
                "Call handle.grow(), with a new optimizer handle.grow(optimizer=...), or remove() it and attach again"
            )
        _check_fit(self.regularizer, self.optimizers, self._whole, self.net)
        self._watch_net()  # torch calls the optimizer's hooks now, so these stay
        self._additions.clear()

    def _changes(self) -> list[str]:
        """What the regularizer acts on that is not as it was, and what is new and trained by the optimizers."""
        acted_on = _acted_on(self.regularizer, self.net)
        changes = dict.fromkeys(change for method, name in acted_on if (change := method.change_of(self.net, name)))
        held = {name for optimizer in self.optimizers for name in _held(optimizer, self.net)}
        replaced = [name for name, p in self.net.named_parameters() if self._parameters.get(name) is not p]
        for name in replaced:
            if name not in self._parameters and name in held:
                changes[f"{name!r} is new"] = None
            elif name in self._acts_on and name not in held and self.net.get_parameter(name).requires_grad:
                changes[f"{name!r} was replaced, and no attached optimizer holds it"] = None
        return [*changes]

    def _notice(self, optimizer: Optimizer) -> None:
        """Warn once if another optimizer than the handle's trains what is regularized.

        A loop that makes a new optimizer for each task would otherwise leave the regularizer behind without a word.
        """
        if optimizer in self.optimizers or any(map(_steps, self.optimizers)):
            return
        changed = self._now() != self._there
        if changed or optimizer not in self._others:
            self._others[optimizer] = bool(self._acts_on & _held(optimizer, self.net, frozen=True).keys())
        if self._others[optimizer]:
            self._missed += 1
            if self._missed == (1 if changed else _CHANGES):
                self._warn_left_behind()

    def _warn_left_behind(self) -> None:
        kind = type(self.regularizer)
        if any(o is not self and o.net is self.net and type(o.regularizer) is kind for o in _ALIVE):
            return
        kinds = ", ".join(type(optimizer).__name__ for optimizer in self.optimizers)
        changes = f" (the network has changed: {in_short(changes)})" if (changes := self._changes()) else ""
        warn(
            f"{kind.__name__} does nothing{' any more' * bool(self.steps)}: the weights change, but no step() of "
            f"{kinds} was called{changes}. Attach to the optimizer whose step() is called: "
            "handle.grow(optimizer=optimizer); or call penalty and project_ in the loop"
        )

    def _regularized(self, closure: Callable[..., Any], optimizer: Optimizer) -> Callable[..., Any]:
        """The closure, with the penalty added to its gradients and to its loss.

        The gradients are added after it runs, because its zero_grad would erase earlier ones.
        """
        calls = 0

        def regularized(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            loss = closure(*args, **kwargs)
            calls += 1
            self._regularize(optimizer, observe=calls == 1)  # further calls belong to a line search within one step
            assert self.penalty is not None
            if isinstance(loss, Tensor):
                return loss + (self.penalty if loss.shape == self.penalty.shape else self.penalty.sum())
            return loss + self.penalty.sum().item() if isinstance(loss, int | float) else loss

        return regularized

    def _regularize(self, optimizer: Optimizer, observe: bool = True) -> None:
        """Add the penalty's gradients for the parameters that `optimizer` holds.

        With `observe`, pass the sums of loss and penalty to `observe_`.
        """
        if optimizer not in self._additions:
            self._penalize()
        additions = self._additions.pop(optimizer)
        scale = getattr(optimizer, "grad_scale", None)  # set by GradScaler during the step of a fused optimizer
        held = _held(optimizer, self.net)
        with torch.no_grad():
            for name, addition in additions.items():
                _add_gradient_(name, held[name], addition if scale is None else addition * scale.to(addition.device))
            if self.regularizer.uses_lr:
                self._lrs |= self._rates(optimizer)
            if observe and held.keys() & self._acts_on:
                self.regularizer.observe_(self.net, {name: _unscaled(p, scale) for name, p in held.items()})

    def _penalize(self) -> None:
        """Compute the penalty and its gradients for all optimizers at once: one power iteration, one copy of weights.

        If an optimizer steps again before the others have stepped once, the gradients of all are computed again.
        """
        held = {optimizer: _held(optimizer, self.net) for optimizer in self.optimizers}
        parameters = {name: p for own in held.values() for name, p in own.items()}
        if self.regularizer.looks_at_data and self._inputs is None:
            raise RuntimeError(
                f"{type(self.regularizer).__name__} looks at data, and the attached network was not called before the "
                "step (calls inside torch.func's transforms do not count): attach the network in the form that the "
                "loop calls"
            )
        self._penalizing = True
        try:
            with torch.enable_grad(), self.regularizer.outside_autocast():
                penalty = penalty_of(self.regularizer, self.net, self._inputs)
                depends = penalty.requires_grad and parameters  # the penalty of a projection is a constant
                found = torch.autograd.grad(penalty.sum(), [*parameters.values()], allow_unused=True) if depends else ()
        finally:
            self._penalizing = False
        by_name = {name: g for name, g in zip(parameters, found, strict=bool(found)) if g is not None}
        self._additions = {o: {name: by_name[name] for name in own if name in by_name} for o, own in held.items()}
        self.penalty = penalty.detach()


def _remove(hooks: list[Any]) -> None:
    while hooks:
        hooks.pop().remove()


class _Hook:
    """A forward hook that tells a handle about a call; in a copied or loaded network, it does nothing.

    Args:
        handle: the handle; None for a hook that does nothing.
        tell: called with the handle and the hook's arguments.
    """

    def __init__(self, handle: Attached | None = None, tell: Callable[..., None] | None = None) -> None:
        self.handle, self.tell = (None if handle is None else weakref.ref(handle)), tell

    def __call__(self, *given: Any) -> None:
        handle = None if self.handle is None else self.handle()
        if handle is not None and self.tell is not None:
            self.tell(handle, *given)

    def __reduce__(self) -> tuple[type["_Hook"], tuple[()]]:
        return _Hook, ()


def _steps(optimizer: Optimizer) -> int:
    """The number of calls around this one, up to the optimizer's ``step``, that torch makes for it.

    It is 0 outside of a step, 1 in a hook of one, and more where a step is part of another one (``super().step()``).
    """
    of_torch = register_optimizer_step_post_hook.__code__.co_filename
    calls = (call for call, _ in walk_stack(currentframe()) if call.f_code.co_filename == of_torch)
    return sum(next(iter(call.f_locals.get("args", ())), None) is optimizer for call in calls)


def _stayed(was: Tensor | None, now: Tensor) -> bool:
    """Whether a parameter is the old one, or one that begins with its values along each axis."""
    if was is None or was is now:
        return was is now
    corner = now[(*map(slice, was.shape),)] if was.ndim == now.ndim else now
    return corner.shape == was.shape and torch.equal(corner.to(was), was)


_CHANGES = 4  # optimizers may take turns
_WAITS = 20  # one may step more often than another


class _Alive(weakref.WeakSet[Attached]):
    """The handles of this process, which their optimizers' hooks keep alive.

    Attributes:
        watched: torch's hook on the steps of all optimizers. There is one, for a handle that is forgotten leaves none.
    """

    watched: Any = None


_ALIVE = _Alive()


def _notice(optimizer: Optimizer, *_: Any) -> None:
    for handle in [*_ALIVE]:
        handle._notice(optimizer)


def attached_to(net: nn.Module) -> list[Regularizer]:
    """The regularizers that are attached to `net` or to a part of it."""
    mine = {id(p) for p in net.parameters()}
    return [handle.regularizer for handle in _ALIVE if any(id(p) in mine for p in handle.net.parameters())]


def _callable(net: nn.Module) -> nn.Module:
    """The module whose inputs are read: Fabric's wrapper converts them, so the one inside, that gets them converted."""
    return dict(net._modules.items()).get("_forward_module") or net


def _held(optimizer: Optimizer, net: nn.Module, frozen: bool = False) -> dict[str, nn.Parameter]:
    """The parameters of `net` that `optimizer` changes.

    It is called at each step, because groups may be added and layers unfrozen.
    """
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return {name: p for name, p in net.named_parameters() if id(p) in own and (frozen or p.requires_grad)}


def _acted_on(regularizer: Regularizer, net: nn.Module) -> list[tuple[Regularizer, str]]:
    """The names of the parameters that the regularizer acts on, each with the method that does."""
    return [(method, name) for method, _ in regularizer.methods(net) for name in method.names]


def _skips(optimizer: Optimizer) -> bool:
    """Whether this step changes nothing, because GradScaler found infinite gradients and the optimizer must skip it."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)


def _add_gradient_(name: str, parameter: nn.Parameter, addition: Tensor) -> None:
    """Add to ``.grad``, in place where that is safe, as torch's own clipping and unscaling do.

    A new tensor would separate ``.grad`` from others that read its memory: DistributedDataParallel's buckets, a flat
    buffer, a captured graph. The addition is not in place where several entries share memory (an expanded tensor), or
    where the gradient is itself part of a graph (``create_graph=True``).
    """
    gradient = parameter.grad
    if gradient is None:
        # A copy, because autograd may return one tensor for two parameters; in the parameter's memory order.
        parameter.grad = torch.empty_like(parameter).copy_(addition)
    elif gradient.layout != torch.strided:
        raise RuntimeError(
            f"the gradient of {name!r} is sparse and the penalty's is not: use sparse=False, leave it alone with "
            f"roles={{{name!r}: 'ignore'}}, or use a projection"
        )
    elif gradient.requires_grad or 0 in gradient.stride():
        parameter.grad = gradient + addition
    else:
        gradient.add_(addition)


def _unscaled(parameter: nn.Parameter, scale: Tensor | None) -> Tensor:
    """The parameter's gradient as `observe_` expects it: unscaled, and zeros where there is none."""
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    gradient = parameter.grad.detach()
    return gradient if scale is None else gradient / scale.to(gradient.device)


# --- what is refused ----------------------------------------------------------------------------------------------


def _check_optimizers(optimizers: Sequence[Optimizer], net: nn.Module) -> None:
    """Check that each of these is an optimizer of other parameters of the network, and the kind of the parameters."""
    names: set[str] = set()
    for one in optimizers:
        kind = type(one).__name__
        if hasattr(one, "first_step") and hasattr(one, "second_step"):  # sharpness-aware minimization
            raise SettingsError(
                f"{kind} moves the weights in two parts, first_step and second_step, which attach does not see: attach "
                "to the optimizer of its second_step"
            )
        if not getattr(type(one).step, "hooked", False):
            raise SettingsError(
                f"{kind} does not call the constructor of torch.optim.Optimizer, so its step calls no hooks: attach to "
                "an optimizer inside it, or call penalty and project_ in the loop"
            )
        own = _held(one, net, frozen=True).keys()
        if names & own:
            raise SettingsError(f"two of the optimizers hold the same parameter: {in_short(sorted(names & own))}")
        names |= own
    if not names:
        raise SettingsError("optimizer must be one or several torch.optim.Optimizer, got none")
    require_supported(net)


def _check_fit(
    regularizer: Regularizer, optimizers: Sequence[Optimizer], whole: Sequence[Optimizer], net: nn.Module
) -> None:
    """Check that the regularizer can act in the steps of these optimizers, `whole` with what wraps them."""
    regularizer.require_acting()
    _check_covered(regularizer, optimizers, net)
    kind = type(regularizer).__name__
    if regularizer.uses_lr and any(group.get("lr") is None for o in optimizers for group in o.param_groups):
        raise SettingsError(f"{kind} needs a learning rate, but an optimizer has none")
    methods = [method for method, _ in regularizer.methods(net)]
    if any(method.projects and not method.reads for method in methods) and (undoes := undoing(whole, net)):
        raise SettingsError(
            f"{kind} changes the weights, but {undoes} restores the weights that other code changes, from a copy: "
            "use another optimizer, or a penalty"
        )
    if regularizer.looks_at_data and (why := without_forward(net)):
        raise SettingsError(f"{kind} looks at data, and {why}")
    if regularizer.uses_loss:
        raise SettingsError(f"{kind} follows the loss, which an optimizer does not see: pass coef=, such as 0.1")
    _check_one_process(regularizer)
    if any(method.reads for method in methods) and (shared := shared_with(net)):
        warn(
            f"{kind} renews units of a {shared} that another module holds too: outputs of other networks that read "
            "these units change"
        )


def _check_one_process(regularizer: Regularizer) -> None:
    if not (regularizer.looks_at_data and torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    if torch.distributed.get_world_size() > 1:
        raise SettingsError(
            f"{type(regularizer).__name__} looks at data, and each process has its own: networks would drift apart. "
            "Call penalty(net, inputs) and project_(net) in the loop instead, with the same inputs in all "
            "processes (torch.distributed.broadcast)"
        )


def _check_covered(regularizer: Regularizer, optimizers: Sequence[Optimizer], net: nn.Module) -> None:
    """Check that the regularizer was made for this network and that its trainable parameters are optimized.

    All parameters that it acts on must be the network's, and some optimizer must hold each trainable one.
    """
    acted_on = _acted_on(regularizer, net)
    if changes := [change for method, name in acted_on if (change := method.change_of(net, name))]:
        raise SettingsError(f"the regularizer was made for another network: {in_short(changes)}")
    parameters = dict(net.named_parameters())
    held = {name for optimizer in optimizers for name in _held(optimizer, net)}
    left = [name for _, name in acted_on if parameters[name].requires_grad and name not in held]
    if left:
        raise SettingsError(
            f"the regularizer acts on trainable parameters that no given optimizer holds: {in_short(left)}; give "
            "them to an optimizer (add_param_group), pass the part of the network that is trained, or freeze the rest "
            "with requires_grad_(False)"
        )
