"""The contract of every regularizer, and several of them in a chain."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure import Example, Structure, read
from rl_plasticity.structure.layer import Layer, Widened, is_trained, lookup, runs_of, unwrapped

Share = Annotated[float | Tensor, Setting("strength", least=0, most=1)]
Strength = Annotated[float | Tensor, Setting("strength, in the paper's convention", least=0)]
Of = Annotated[
    Literal["all", "weights", "hidden_weights", "heads", "biases", "norms", "kernels_and_gains"],
    Setting("which parameters: all; weights: matrices, kernels, tables; kernels_and_gains: convolutions' and norms'"),
]


class Look(Protocol):
    """Who keeps a little of what modules of a network return, without gradient; see `Regularizer.looks`.

    Attributes:
        names: of the modules.
    """

    names: list[str]

    def keep(self, name: str, call: int, output: Tensor) -> object:
        """What is kept of what the module `name` returned in its call number `call`; None: nothing can be."""


COUNTED = "counted/"  # what the names of buffers that count begin with


class Regularizer(nn.Module):
    """Keeps a network plastic while it trains; a subclass overrides the hook it needs.

    Use, in any training loop::

        regularizer = make_regularizer("spectral", net, coef=1e-4)
        loss = task_loss + regularizer.penalty(net)
        ...; optimizer.step(); regularizer.project_(net)

    All state lives in buffers, so ``state_dict`` saves it and ``.to`` moves it. Creating one captures what it needs of
    the initial weights and leaves every global random state alone. `penalty` and `project_` have no data-dependent
    branch and no host sync, keep every buffer's address, and trace under ``torch.compile(fullgraph=True)``.

    Strengths, norms and factors are float32 or wider, whatever the network's type. Parameters that were frozen
    (``requires_grad`` false) when the regularizer was made are left alone for good, and it says so if they are unfrozen
    later; what is frozen later is left alone while it is. A loaded state brings its strengths along: where they are
    not those given, a warning says so.

    Args:
        net: the network; stacked networks have tensors ``[*runs, ...]``, ordinary ones have ``runs = ()``.
        coef: the strength, in the paper's convention: a number, or a tensor ``[*runs]``, one for each run.
        structure: what was read of `net`, where that takes an example (`rl_plasticity.structure.read`).

    Raises:
        SettingsError: a setting is out of range, or a strength not of shape ``()`` or ``[*runs]``.
        ValueError: the network has no layer the method can act on.
    """

    looks_at_data: bool = False  # whether it has a `data_penalty`
    coef: Tensor
    decayed: list[str]
    lr_share: Tensor
    initial_lr: Tensor

    @checked
    def __init__(self, net: nn.Module, coef: Strength = 0.0, structure: Structure | None = None) -> None:
        super().__init__()
        self.structure = read(net) if structure is None else structure
        self.layers = self.structure.layers
        self.runs = runs_of(net)
        self.shapes = {n: p.shape[len(self.runs) :] for n, p in unwrapped(net).named_parameters()}  # of a run
        self.frozen = [name for name, p in unwrapped(net).named_parameters() if not p.requires_grad]
        self.register_buffer("coef", self._strength("coef", coef, net))

    @property
    def counts(self) -> dict[str, Tensor]:
        """How often it did what it does now and then, ``[*runs]`` by name, since training began; empty for most.

        They are logged, saved and resumed. A run that starts afresh goes on counting.
        """
        return counted_by(self)

    def first_update(self, batch_size: int) -> Tensor:
        """Which update, from 1, is the first in which it can change a weight or a gradient, ``[*runs]``; 1 by default.

        Methods that act now and then override it, so that a run that is too short for them can say so.
        """
        return torch.ones(self.runs)

    def penalty(self, net: nn.Module) -> Tensor:
        """The term ``[*runs]`` to add to the loss; zero by default."""
        return torch.zeros(self.runs, dtype=self.coef.dtype, device=self.coef.device)

    def differentiated(self, net: nn.Module, parameters: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """`penalty` and its gradients, of the sum over runs, by the name of those `parameters` that have one.

        By autograd, unless a method has them in closed form. `attach` calls this.
        """
        penalty = term_of(self, "penalty", net)
        return penalty, gradients_of(penalty, parameters)

    def data_penalty(self, net: nn.Module, inputs: Example) -> Tensor:
        """A second term ``[*runs]`` to add to the loss, of what the network does on a batch; zero by default.

        Args:
            inputs: what the network was called with for the loss: a tensor, a tuple of arguments, or a mapping.
        """
        return torch.zeros(self.runs, dtype=self.coef.dtype, device=self.coef.device)

    def looks(self) -> Sequence[Look]:
        """Those who can look at a loop's own call instead of calling the network in `data_penalty`; none by default."""
        return ()

    def observe_(self, net: nn.Module, gradients: Mapping[str, Tensor]) -> None:
        """See the gradients of loss and penalty, by parameter name, before ``optimizer.step()``; only `ewc` looks."""

    def project_(self, net: nn.Module) -> Mapping[str, Tensor] | None:
        """Change the weights in place, right after ``optimizer.step()``; nothing by default.

        Returns:
            What started anew, if anything may have: by parameter name masks of its shape. The optimizer's moments of
            these entries become 0 (`Learner` and `attach` see to it).
        """
        return None

    def rebase_(self, net: nn.Module, runs: Tensor | None = None) -> None:
        """Take the current weights of `runs` (all by default) as the new reference; only SWR has one that moves."""

    def follow_(self, lr: float | Mapping[str, float], initial_lr: float | Mapping[str, float] | None = None) -> None:
        """The learning rate is `lr` now: strengths that are learning rate * decay are lr / initial_lr of those given.

        They are `weight_decay`'s and `orthogonal`'s coef and `wrs`'s norm_decay; the others do not depend on it.
        `attach` and a `Learner` call this by themselves. A reset leaves it as it is, as it leaves the learning rate.

        Args:
            lr: of all parameters, or by parameter name: those without a name here keep theirs.
            initial_lr: what the strengths were given for, alike; needed the first time. What was told first is kept
                and saved: strengths are given once.

        Raises:
            SettingsError: no `initial_lr` the first time, or one that is 0 while `lr` is another.
        """
        if not getattr(self, "decayed", None):
            return
        initial, shares = (t.reshape(-1, len(self.decayed))[0].tolist() for t in (self.initial_lr, self.lr_share))
        for i, name in enumerate(self.decayed):
            now, told = (x.get(name) if isinstance(x, Mapping) else x for x in (lr, initial_lr))
            if now is None:
                continue
            initial[i] = initial[i] or told
            if initial[i] is None or (initial[i] == 0 != now):
                raise SettingsError(f"initial_lr must be what the strengths were given for, above 0, got {initial[i]}")
            shares[i] = 1.0 if now == initial[i] else now / initial[i]
        for buffer, values in ((self.initial_lr, initial), (self.lr_share, shares)):
            buffer.copy_(torch.tensor(values, dtype=buffer.dtype))

    def recapture_(self, fresh: "Regularizer", runs: Tensor | None = None, only: set[str] | None = None) -> None:
        """Take over what `fresh`, a regularizer of the same kind made for newly initialized weights, has captured.

        Args:
            fresh: made by the same call for a network of the same shape.
            runs: indices of the runs concerned; all by default.
            only: parameter names; by default everything, the number of updates included. The learning rate's share and
                `counts` stay.
        """
        theirs_by_name = fresh.state_dict()  # the buffers that are saved, of a chain's parts too
        for name, mine in self.state_dict().items():
            if _goes_on(name):
                continue
            theirs = theirs_by_name[name]
            # "parts.0.initial/body/head/weight" belongs to the parameter body.head.weight
            if only is not None and name.rpartition(".")[2].partition("/")[2].replace("/", ".") not in only:
                continue
            chosen = ... if runs is None or not mine.ndim else runs
            mine[chosen] = theirs[chosen]

    # --- for subclasses -------------------------------------------------------------------------------------------

    def _strength(self, name: str, value: float | Tensor, net: nn.Module) -> Tensor:
        """`value` as a tensor: one number, or one for each run; float32 or wider."""
        like = next(net.parameters(), torch.zeros(()))
        dtype = torch.promote_types(like.dtype, torch.float32)
        strength = torch.as_tensor(value, dtype=dtype, device=like.device).detach().clone()
        if strength.shape not in ((), self.runs):
            expected = f"a number or a tensor {list(self.runs)}" if self.runs else "a number"
            raise SettingsError(f"{name} must be {expected}, got shape {list(strength.shape)}: {value}")
        return strength

    def _counts(self, name: str) -> None:
        """From now on `counts` has this name, which `_count_` adds to."""
        self.register_buffer(COUNTED + name, torch.zeros(self.runs, dtype=torch.int64, device=self.coef.device))

    def _count_(self, name: str, number: Tensor) -> None:
        """Add a `number` ``[*runs]`` to the count of this name."""
        self.get_buffer(COUNTED + name).add_(number)

    def _decays(self, names: Iterable[str]) -> None:
        """The parameters with a strength that is learning rate * decay; see `follow_`, `_decay_of`."""
        self.decayed = [*dict.fromkeys(names)]
        shape = (*self.runs, len(self.decayed))
        self.register_buffer("lr_share", torch.ones(shape, dtype=self.coef.dtype, device=self.coef.device))
        # 0: not told yet.
        self.register_buffer("initial_lr", torch.zeros(shape, dtype=torch.float64, device=self.coef.device))

    def _decay_of(self, strength: Tensor) -> dict[str, Tensor]:
        """The `strength` of each of those parameters, by name, at the learning rate of now: ``[*runs]``."""
        return dict(zip(self.decayed, (strength.unsqueeze(-1) * self.lr_share).unbind(-1), strict=True))

    def _remember_rounding(self, net: nn.Module, names: Iterable[str]) -> None:
        """Half-precision weights keep beside them, in float32, what their rounding leaves out.

        A factor of 0.9999 rounds to 1 there; with what is left out it counts as soon as it adds up to a digit.
        """
        self.rounded = [n for n in dict.fromkeys(names) if lookup(net, n).dtype in (torch.bfloat16, torch.float16)]
        for name in self.rounded:
            self._remember("rounding", name, torch.zeros_like(lookup(net, name), dtype=torch.float32))

    def _widened(self, net: nn.Module) -> nn.Module:
        """The network with its half-precision weights as they would be without rounding; see `_round_`."""
        if not self.rounded:
            return net
        return Widened(net, {n: lookup(net, n).float() + self._recall("rounding", n) for n in self.rounded})

    def _round_(self, widened: nn.Module) -> None:
        """Write the widened weights back."""
        if self.rounded and isinstance(widened, Widened):
            for name, value in widened.tensors.items():
                parameter = lookup(widened.net, name)
                parameter.copy_(value)
                self._recall("rounding", name).copy_(value - parameter.float())

    def _outside_autocast(self) -> AbstractContextManager[None]:
        """Within it, operations have the types of their arguments, whatever the loop around has switched on."""
        device = self.coef.device.type
        return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()

    def _require(self, parts: object, what: str) -> None:
        if not parts:
            self.structure.require_seen(type(self).__name__, self.structure.undecided)
            raise ValueError(f"{type(self).__name__} has nothing to act on: the network has no {what}")

    def _saw_no_batch(self, method: str) -> RuntimeError:
        """What `project_` raises where `data_penalty` should have come before it."""
        return RuntimeError(
            f"{method} has seen no batch: add regularizer.data_penalty(net, inputs) to the loss, or give "
            "Learner.minimize the inputs"
        )

    def _linear_maps(self, method: str, heads: bool) -> list[Layer]:
        """The linear and convolution layers, with the output layers or without: at least one."""
        if not heads:
            self.structure.require_heads(method)
        of_heads = self.structure.of_heads
        found = [y for y in self.layers if y.is_linear_map and (heads or not (y.head or y.weight_name in of_heads))]
        self._require(found, "hidden linear or convolution layer")
        return found

    def _trainable(self, net: nn.Module) -> list[str]:
        """The names of the parameters that require gradients: at least one."""
        self._require(self.structure.trained, "trainable parameter")
        return [*self.structure.trained]

    def _those(self, net: nn.Module, of: str) -> list[str]:
        """The names of the trainable parameters that `of` (`Of`) chooses, each once: at least one."""
        if of == "all":
            return self._trainable(net)
        if of in ("hidden_weights", "heads"):
            self.structure.require_heads(f"of={of}")
        names = [*dict.fromkeys(name for layer in self.layers for name in _names(layer, net, of) if name)]
        if of == "hidden_weights":
            names = [name for name in names if name not in self.structure.of_heads]
        self._require(names, f"trainable parameter that of={of} means")
        self._require_told(net, (), 1 if of in ("heads", "biases", "norms", "kernels_and_gains") else 2)
        return names

    def _now(self, net: nn.Module, names: Iterable[str]) -> list[str]:
        """Those of `names` that are not frozen now.

        Raises:
            RuntimeError: a parameter was frozen when the regularizer was made and is not now.
        """
        self._check_frozen(net)
        return [name for name in names if is_trained(net, name)]

    def _layers_now(self, net: nn.Module, layers: Iterable[Layer]) -> list[Layer]:
        """The layers, without tensors that are frozen now; as `_now`."""
        self._check_frozen(net)
        return [layer.trained(net) for layer in layers]

    def _check_frozen(self, net: nn.Module) -> None:
        for name in self.frozen:
            if is_trained(net, name):
                raise RuntimeError(f"{name} was frozen when the regularizer was made and is not now: make it again")

    def _require_told(self, net: nn.Module, layers: Iterable[Layer], least_axes: int = 2) -> None:
        """A warning that names the bare parameters that are left alone because nothing tells what they are.

        Raises:
            ValueError: the network was not read at all, and has some; `layers`, on which the method acts, are factors.
        """
        self.structure.require_whole(type(self).__name__, layers)
        if said := self.structure.left_alone(type(self).__name__, net, least_axes):
            warnings.warn(said, stacklevel=4)

    def _require_plain(self, layers: Iterable[Layer]) -> None:
        for layer in layers:
            if layer.is_computed:
                raise ValueError(
                    f"{type(self).__name__} changes weights in place, which the parametrization of {layer.name!r} "
                    "undoes: its weight is computed from other tensors. Pass only=[the parameters to act on] without "
                    "them, or take a method that acts on what is trained (l2, weight_decay, spectral)"
                )

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Continue from a saved state.

        Raises:
            RuntimeError: it is of another method or network; nothing has changed then.
        """
        # Earlier versions did not save the learning rate's share and the counts: what is here stays.
        state_dict = {name: value for name, value in self.state_dict().items() if _goes_on(name)} | {**state_dict}
        mine, theirs = self.state_dict().keys(), state_dict.keys()
        if mine != theirs:
            wrong = sorted(mine ^ theirs)[0]
            raise RuntimeError(
                f"the state is of another regularizer or network than this {type(self).__name__}: {wrong!r} is only in "
                f"{'the state' if wrong in theirs else 'the regularizer'}"
            )
        return super().load_state_dict(state_dict, *args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in filter(_goes_on, self._buffers):  # which earlier versions did not save
            state_dict.setdefault(f"{prefix}{name}", self._buffers[name])
        for name in ("coef", "coef_classifier", "norm_decay"):
            mine, saved = self._buffers.get(name), state_dict.get(f"{prefix}{name}")
            if mine is not None and isinstance(saved, Tensor) and not torch.equal(mine, saved.to(mine)):
                before, after = (", ".join(f"{x:g}" for x in t.flatten().tolist()) for t in (mine, saved))
                warnings.warn(f"{name} is {before}; the loaded state makes it {after}", stacklevel=4)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _remember(self, kind: str, parameter: str, value: Tensor, saved: bool = True) -> None:
        """A buffer of this `kind` that belongs to the parameter of that name; `saved` in checkpoints or not."""
        self.register_buffer(_key(kind, parameter), value.detach().clone(), persistent=saved)

    def _recall(self, kind: str, parameter: str) -> Tensor:
        value = self._buffers[_key(kind, parameter)]
        assert value is not None
        return value


def term_of(regularizer: Regularizer, hook: str, *arguments: Any) -> Tensor:
    """What its `hook`, ``penalty`` or ``data_penalty``, returns: ``[*runs]``.

    Raises:
        SettingsError: it is something else, which a plug may return.
    """
    term: object = getattr(regularizer, hook)(*arguments)
    runs = regularizer.runs
    if isinstance(term, Tensor) and term.numel() == math.prod(runs):
        return term.reshape(runs)
    got = f"shape {[*term.shape]}" if isinstance(term, Tensor) else f"a {type(term).__name__}"
    raise SettingsError(
        f"{type(regularizer).__name__}.{hook} must return one number for each run, of shape {[*runs]}, got {got}"
    )


def counted_by(module: nn.Module) -> dict[str, Tensor]:
    """The module's own buffers that count, by name."""
    counts = ((name, b) for name, b in module._buffers.items() if b is not None and name.startswith(COUNTED))
    return {name.removeprefix(COUNTED): buffer for name, buffer in counts}


def gradients_of(penalty: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of a penalty, summed over runs, by the name of those `parameters` that have one."""
    if not penalty.requires_grad or not parameters:  # projections have a constant as their penalty
        return {}
    found = torch.autograd.grad(penalty.sum(), list(parameters.values()), allow_unused=True)
    return {name: g for name, g in zip(parameters, found, strict=True) if g is not None}


def added_up(counts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The sums of several tensors, by name."""
    total: dict[str, Tensor] = {}
    for one in counts:
        total |= {name: total[name] + number if name in total else number for name, number in one.items()}
    return total


def forget_(moments: Callable[[str], list[Tensor]], anew: Mapping[str, Tensor]) -> None:
    """What `project_` says started anew: an optimizer's `moments` of these entries, by parameter name, become 0."""
    for name, where in anew.items():
        for moment in moments(name):
            moment.masked_fill_(where, 0)


def _names(layer: Layer, net: nn.Module, of: str) -> list[str | None]:
    """Which of a layer's parameters `of` (`Of`, but "all") means."""
    normalizes = layer.role in ("norm", "gain", "shift")
    if of == "weights":
        return [layer.weight_name] if layer.matrix(net) is not None else []
    if of == "hidden_weights":
        return [layer.weight_name] if layer.is_linear_map and not layer.head else []
    if of == "heads":
        return [layer.weight_name, layer.bias_name] if layer.head else []
    if of == "biases":
        return [] if normalizes else [layer.bias_name]
    if of == "norms":
        return [layer.weight_name, layer.bias_name] if normalizes else []
    return [layer.weight_name] if layer.role in ("conv", "norm") else []


def _goes_on(name: str) -> bool:
    """Whether a regularizer's buffer goes on where a run starts afresh: what `follow_` was told, and what it counts."""
    own = name.rpartition(".")[2]
    return own in ("lr_share", "initial_lr") or own.startswith(COUNTED)


def _key(kind: str, parameter: str) -> str:
    return f"{kind}/{parameter.replace('.', '/')}"


class Unregularized(Regularizer):
    """No regularizer: zero penalty, no projection."""

    def __init__(self, net: nn.Module, structure: Structure | None = None) -> None:
        super().__init__(net, structure=structure)


class Chain(Regularizer):
    """Several regularizers as one: penalties add up, projections run in the order given."""

    def __init__(self, net: nn.Module, *regularizers: Regularizer) -> None:
        super().__init__(net, structure=regularizers[0].structure if regularizers else None)
        self.parts = nn.ModuleList(regularizers)
        self.looks_at_data = any(part.looks_at_data for part in regularizers)

    @property
    def counts(self) -> dict[str, Tensor]:
        return added_up(part.counts for part in self.parts)  # type: ignore[misc]

    def first_update(self, batch_size: int) -> Tensor:
        return torch.stack([part.first_update(batch_size) for part in self.parts]).amin(0)  # type: ignore[operator]

    def penalty(self, net: nn.Module) -> Tensor:
        total = super().penalty(net)
        for part in self.parts:
            total = total + term_of(part, "penalty", net)  # type: ignore[arg-type]
        return total

    def differentiated(self, net: nn.Module, parameters: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        both = [part.differentiated(net, parameters) for part in self.parts]  # type: ignore[operator]
        penalty = super().penalty(net)
        for of_part, _ in both:
            penalty = penalty + of_part
        return penalty, added_up(gradients for _, gradients in both)

    def data_penalty(self, net: nn.Module, inputs: Example) -> Tensor:
        total = super().data_penalty(net, inputs)
        for part in self.parts:
            total = total + term_of(part, "data_penalty", net, inputs)  # type: ignore[arg-type]
        return total

    def looks(self) -> Sequence[Look]:
        return [look for part in self.parts for look in part.looks()]  # type: ignore[operator]

    def observe_(self, net: nn.Module, gradients: Mapping[str, Tensor]) -> None:
        for part in self.parts:
            part.observe_(net, gradients)  # type: ignore[operator]

    def project_(self, net: nn.Module) -> Mapping[str, Tensor] | None:
        anew: dict[str, Tensor] = {}
        for part in self.parts:
            for name, where in (part.project_(net) or {}).items():  # type: ignore[operator]
                anew[name] = anew[name] | where if name in anew else where
        return anew

    def rebase_(self, net: nn.Module, runs: Tensor | None = None) -> None:
        for part in self.parts:
            part.rebase_(net, runs)  # type: ignore[operator]

    def follow_(self, lr: float | Mapping[str, float], initial_lr: float | Mapping[str, float] | None = None) -> None:
        for part in self.parts:
            part.follow_(lr, initial_lr)  # type: ignore[operator]
