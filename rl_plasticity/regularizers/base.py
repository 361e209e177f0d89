"""The base class of all regularizers, and a chain of several."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import EllipsisType
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError, warn
from rl_plasticity.regularizers.inside import Call
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure import Example, Structure, read
from rl_plasticity.structure.layer import (
    Layer,
    SomeRuns,
    Widened,
    is_parameter,
    is_trained,
    lookup,
    runs_of,
    unwrapped,
    wide,
)

Fraction = Annotated[float | Tensor, Setting("strength", least=0, most=1)]
Strength = Annotated[float | Tensor, Setting("strength", least=0)]
EveryUpdates = Annotated[int, Setting("period in updates", least=1)]
Of = Annotated[
    Literal["all", "weights", "hidden_weights", "heads", "biases", "norms", "kernels_and_gains"],
    Setting(
        "parameters to act on; weights: matrices, kernels, tables; kernels_and_gains: of convolutions and norm layers"
    ),
]
Rates = float | Tensor | Mapping[str, float]
"""A learning rate, or one for each parameter by name; a name without one is left alone."""
RunSlice = slice | EllipsisType  # the runs that a part of a composite regularizer acts on; ``...`` for all


COUNTED = "counted/"  # prefix of the names of buffers that count
NO_BATCH = "has seen no batch: add regularizer.penalty(net, inputs) to the loss, or give Learner.minimize the inputs"


class Regularizer(nn.Module):
    """Base class of all methods that keep a network plastic while it trains.

    Usage, in any training loop::

        regularizer = make_regularizer("spectral", net, coef=1e-4)
        loss = task_loss + regularizer.penalty(net)
        ...; optimizer.step(); regularizer.project_(net)

    To write a method, say in the constructor which layers or parameters it acts on (`_act_on`). Then override one hook:
    `term`, the penalty of one part (or `terms`, the penalty of all parts), or `project`, the change of one part. This
    class handles all the rest: strengths, periods, autocast, half precision and frozen parameters.

    All state lives in buffers, so ``state_dict`` saves it and ``.to`` moves it. The constructor captures what the
    method needs of the initial weights. It leaves every global random state alone. `penalty` and `project_` have no
    data-dependent branch and no host sync. They keep every buffer's address and trace under
    ``torch.compile(fullgraph=True)``.

    Strengths, norms and factors are float32 or wider, whatever the network's type. Parameters frozen
    (``requires_grad`` false) when the regularizer is made are never changed; unfreezing one later raises an error.
    Parameters frozen later are skipped while they are frozen. Loading a state restores its strengths, with a warning
    where they differ from those given.

    Args:
        net: the network; stacked networks have tensors ``[*runs, ...]``, ordinary ones have ``runs = ()``.
        coef: the strength, in the paper's convention: a number, or a tensor ``[*runs]`` with one number per run.
        structure: the structure of `net`, from `rl_plasticity.structure.read`. By default the one that
            `make_regularizer` was given; without that, it is read here.

    Attributes:
        looks_at_data: whether `penalty` needs the inputs.
        uses_lr: whether `project_` multiplies a strength by the learning rate.
        uses_loss: whether it needs `observe_loss_` in each update, which an optimizer's step cannot call.
        has_half: whether `penalty` is coef/2 times what `terms` returns, rather than coef times.
        missing_call: the error message of `project_` when a call that must precede it is missing; empty if none must.
            `prepared` records whether that call was made.
        keeps_rounding: whether projections keep track of what half precision rounds away.
        reads: names of the modules whose outputs `read` reads in the loop's own forward call, so that `penalty` needs
            no second one.
        captures: the kind by which `capture` remembers the values of each parameter that it acts on; empty for none.
        acts_on: the layers or the parameter names that the method acts on.
        names: the names of the parameters that the method acts on; by default those of all layers.

    Raises:
        SettingsError: a setting is out of range, or the shape of a strength is neither ``()`` nor ``[*runs]``.
        ValueError: the network has no layer that the method can act on.
    """

    looks_at_data: bool = False
    uses_lr: bool = False
    uses_loss: bool = False
    has_half: bool = False
    missing_call: str = ""
    keeps_rounding: bool = True
    reads: Sequence[str] = ()
    captures: str = ""
    every_updates: int = 1
    made_with: tuple[tuple[Any, ...], dict[str, Any]]  # what the constructor was given
    coef: Tensor
    updates: Tensor

    # A method's constructor takes its own settings, and passes ``net, coef`` on: ``Spectral(net, coef=1e-4, k=2)``. Two
    # things go past it. What it was given is kept here, for `grown` to call it again. And the structure that
    # ``make_regularizer("spectral", net, example=x)`` has read is set between this and `__init__`, by `made`.
    def __new__(cls, *arguments: Any, **settings: Any) -> "Regularizer":
        regularizer = super().__new__(cls)
        regularizer.made_with = arguments[1:], {k: v for k, v in settings.items() if k != "net"}
        return regularizer

    @checked
    def __init__(self, net: nn.Module, coef: Strength = 0.0, structure: Structure | None = None) -> None:
        super().__init__()
        if self._has("data_penalty", "rebase_", "recapture_", "follow_"):
            self._refuse_earlier_hook()
        self.structure = structure or getattr(self, "structure", None) or read(net)
        self.layers = self.structure.layers
        self.runs = runs_of(net)
        self.shapes = {n: p.shape[len(self.runs) :] for n, p in unwrapped(net).named_parameters()}  # of one run
        self.frozen = [name for name, p in unwrapped(net).named_parameters() if not p.requires_grad]
        self.acts_on: list[Any] = []
        self.names = [name for layer in self.layers for name in layer.parameter_names]
        self.rounded: list[str] = []
        self.prepared = False
        self.penalizes = self._has("term", "terms")
        self.projects = self._has("project", "project_all", "project_at_rate")
        self.register_buffer("coef", self._strength("coef", coef, net))

    # --- what a training loop calls -------------------------------------------------------------------------------

    def penalty(self, net: nn.Module, inputs: Example | None = None) -> Tensor:
        """The term ``[*runs]`` to add to the loss.

        Call it once for each update: some methods go on with their state here, as `spectral` with its power iteration.

        Args:
            inputs: what the network was called with for the loss; needed if the regularizer `looks_at_data`. A tensor,
                a tuple of arguments, or a mapping.
        """
        if not self.penalizes:
            return self._zeros()
        if self.looks_at_data:
            self._require_inputs(inputs)
        with nullcontext() if self.looks_at_data else self.outside_autocast():
            strength = self.coef / 2 if self.has_half else self.coef
            penalty = strength * self.terms(self._now(net), net, inputs)
        self.prepared = self.prepared or self.looks_at_data
        return penalty

    def given_lr(self, lr: Rates | None) -> tuple[Rates | None, ...]:
        """What `project_` takes besides the network: the learning rate if it `uses_lr`, else nothing."""
        return (lr,) if self.uses_lr else ()

    def observe_(self, net: nn.Module, gradients: Mapping[str, Tensor]) -> None:
        """Read the gradients of loss plus penalty, by parameter name, before ``optimizer.step()`` (for `ewc`)."""
        for part, runs in self.made_of():
            part.observe_(view_of(net, runs), {name: gradient[runs] for name, gradient in gradients.items()})

    def observe_loss_(self, net: nn.Module, loss: Tensor) -> None:
        """Read the loss without the penalty, ``[*runs]``, between `penalty` and `project_` (for `churn`)."""
        for part, runs in self.made_of():
            part.observe_loss_(view_of(net, runs), loss[runs])

    @torch.no_grad()
    def project_(self, net: nn.Module, lr: Rates | None = None) -> Mapping[str, Tensor] | None:
        """Change the weights in place, right after ``optimizer.step()``.

        Args:
            lr: the learning rate of that step, or rates by parameter name; needed by methods whose strength it
                multiplies (`uses_lr`).

        Returns:
            For methods that reinitialize entries: boolean masks of them by parameter name, of the parameter's shape;
            otherwise None or an empty mapping. `Learner` and `attach` zero the optimizer's moments of these entries.
        """
        if self.made_of():
            made = [(part.project_(view_of(net, runs), *part.given_lr(lr)), runs) for part, runs in self.made_of()]
            return added_up(self._whole(masks or {}, runs) for masks, runs in made)
        kind = type(self).__name__
        if self.uses_lr and lr is None:
            raise SettingsError(f"{kind} needs the learning rate: project_(net, lr)")
        if self.missing_call and not self.prepared and (self._now(net) or not self.acts_on):  # else all is frozen
            raise RuntimeError(f"{kind} {self.missing_call}")
        self.prepared = False
        if not self.projects:
            return None
        due, widened = self._count_(), self._widened(net)
        given = self._now(net), widened, due
        masks = self.project_all(*given) if lr is None or not self.uses_lr else self.project_at_rate(*given, lr)
        self._round_(widened)
        return masks

    @torch.no_grad()
    def capture_from_(self, net: nn.Module, runs: Tensor | None = None, only: set[str] | None = None) -> None:
        """Make the weights of `net` the new reference for everything that `capture` remembers.

        These are the norms of `swr` and `normalize_project`, the weights of `l2_init` and so on. Counts and running
        statistics stay.

        Args:
            runs: indices of the runs concerned; all by default.
            only: names of the parameters concerned; all by default.
        """
        for part, its in self.made_of():
            part.capture_from_(view_of(net, its), _among(runs, its), only)
        self._take_(self._captured(net), runs, only)

    @torch.no_grad()
    def restart_from_(self, fresh: "Regularizer", runs: Tensor | None = None, only: set[str] | None = None) -> None:
        """Take over the whole state of `fresh`, made by the same call for new weights, except `counts`.

        Args:
            runs, only: as in `capture_from_`. Without `only` the number of updates is replaced too.
        """
        for (part, its), (other, _) in zip(self.made_of(), fresh.made_of(), strict=True):
            part.restart_from_(other, _among(runs, its), only)
        self._take_(_own_state(fresh), runs, only)

    def grown(self, net: nn.Module, new: Iterable[str] = (), **reading: Any) -> "Regularizer":
        """A regularizer like this one for a network that has new or larger layers since this one was made::

            net.head = Larger(net.head)
            regularizer = regularizer.grown(net)

        Strengths, counts and all that this one remembers of what stayed are kept, and what is new begins with its
        present weights. In a parameter that has grown, the first entries along each axis are those that stayed.

        Args:
            net: the network as it is now.
            new: names of parameters of which nothing stayed, although one of this name was there.
            reading: ``example``, ``heads``, ``roles``, ``only`` as in `make_regularizer`; without them, `heads`,
                `roles` and the names of `only` are as they were.

        Raises:
            ValueError, SettingsError: as from `make_regularizer`.
        """
        regularizer = self._made_again(net, reading)
        regularizer._keep_(self, net, {*new})
        return regularizer

    def _made_again(self, net: nn.Module, reading: Mapping[str, Any]) -> "Regularizer":
        arguments, settings = self.made_with
        given = [part._made_again(net, reading) if isinstance(part, Regularizer) else part for part in arguments]
        structure = read(net, **{**self.structure.asked_by_name(net), **reading})
        return made(type(self), structure, net, *given, **settings)

    @torch.no_grad()
    def _keep_(self, old: "Regularizer", net: nn.Module, new: set[str]) -> None:
        """Take over the state of `old`, made for fewer or smaller layers, except for the parameters `new`."""
        for (part, runs), (before, _) in zip(self.made_of(), old.made_of(), strict=True):
            part._keep_(before, view_of(net, runs), new)
        mine, theirs, k = _own_state(self), _own_state(old), len(self.runs)
        for part in self.acts_on:
            name = part if isinstance(part, str) else part.weight_name
            was = old.shapes.get(name or "")
            if name is None or was is None or was == self.shapes[name] or name in new:
                continue
            weight = wide(lookup(net, name)).clone()
            corner = (*[slice(None)] * k, *map(slice, was))
            for kind in self.capture(part, net):
                key = _key(kind, name)
                if key in theirs and weight[corner].shape[k:] == was:
                    weight[corner] = self.weights_of(theirs.pop(key), weight[corner])
                    mine[key].copy_(self.capture(part, Widened(net, {name: weight}))[kind])
                theirs.pop(key, None)
        for key, value in theirs.items():
            at = mine.get(key)
            if at is not None and at.ndim == value.ndim and _parameter_of(key) not in new:
                corner = (*map(slice, value.shape),)
                if at[corner].shape == value.shape:
                    at[corner] = value

    def _take_(self, values: Mapping[str, Tensor], runs: Tensor | None, only: set[str] | None) -> None:
        """Set buffers of these names, in these runs, except counts."""
        mine = _own_state(self)
        for name, value in values.items():
            key = name.rpartition(".")[2]
            is_meant = only is None or _parameter_of(key) in only
            if is_meant and not key.startswith(COUNTED):
                chosen = ... if runs is None or not value.ndim else runs
                mine[name][chosen] = value[chosen]

    @property
    def counts(self) -> dict[str, Tensor]:
        """Counts of the method's occasional events since training began, ``[*runs]`` by name; empty for most methods.

        They are logged, saved and resumed. A reset of a run does not reset them.
        """
        return added_up([counted_by(self), *(self._whole(part.counts, runs) for part, runs in self.made_of())])

    @property
    def keeps_reference(self) -> bool:
        """Whether it captures values of earlier weights, which `restart_from_` can replace."""
        return bool(self.captures) or self._has("capture") or any(part.keeps_reference for part, _ in self.made_of())

    # --- what a method overrides ----------------------------------------------------------------------------------

    def term(self, part: Any, net: nn.Module) -> Tensor | None:
        """The penalty ``[*runs]`` of one element of `acts_on`, without the strength; None if it has none."""
        return None

    def terms(self, parts: Sequence[Any], net: nn.Module, inputs: Any) -> Tensor:
        """The penalty ``[*runs]`` of all parts, without the strength; by default the sum of `term`."""
        total = self._zeros()
        for part in parts:
            if (term := self.term(part, net)) is not None:
                if term.shape != self.runs:
                    raise SettingsError(
                        f"{type(self).__name__}.term must return one number for each run, of shape {[*self.runs]}, "
                        f"got shape {[*term.shape]}"
                    )
                total = total + term
        return total

    def project(self, part: Any, net: nn.Module, due: Tensor) -> None:
        """Change one element of `acts_on` in place, without gradient, in the runs that are `due` (``[*runs]``)."""

    def project_all(self, parts: Sequence[Any], net: nn.Module, due: Tensor) -> Mapping[str, Tensor] | None:
        """Change all parts, by default with `project` for each, and return what `project_` returns."""
        for part in parts:
            returned: object = self.project(part, net, due)  # type: ignore[func-returns-value]
            if returned is not None:
                kind = type(self).__name__
                raise SettingsError(f"{kind}.project must change the weights in place and return None, not a result")
        return None

    def project_at_rate(
        self, parts: Sequence[Any], net: nn.Module, due: Tensor, lr: Rates
    ) -> Mapping[str, Tensor] | None:
        """Do what `project_all` does, for a method that `uses_lr`."""

    def capture(self, part: Any, net: nn.Module) -> Mapping[str, Tensor]:
        """The reference values to remember for one element of `acts_on`, by kind; see `_recall`, `capture_from_`."""
        return {self.captures: wide(lookup(net, part))} if self.captures else {}

    def read(self, name: str, call: int, output: Tensor) -> object:
        """What to keep, without gradient, of `output`, which module `name` of `reads` returned in call number `call`.

        None if nothing can be kept; see `rl_plasticity.regularizers.inside.Call`.
        """

    def weights_of(self, reference: Tensor, now: Tensor) -> Tensor:
        """Weights, of the shape of `now`, whose `capture` is `reference`; by default it is the weights themselves."""
        return reference

    def made_of(self) -> Sequence[tuple["Regularizer", RunSlice]]:
        """The regularizers that this one consists of, each with the runs it acts on; none by default."""
        return ()

    def methods(self, net: nn.Module) -> Iterator[tuple["Regularizer", nn.Module]]:
        """This regularizer, or the innermost ones it consists of, each with its view of the network."""
        if not self.made_of():
            yield self, net
        for part, runs in self.made_of():
            yield from part.methods(view_of(net, runs))

    def require_acting(self) -> None:
        """Raises SettingsError if the class does nothing: a hook's name may be misspelt, or `_act_on` left out."""
        acts = self._has("terms", "project_all", "project_at_rate", "penalty", "project_", "observe_")
        if not acts and not (self._has("term", "project") and self.acts_on) and type(self) is not Unregularized:
            raise SettingsError(
                f"{type(self).__name__} does nothing: it overrides none of term, terms, project, project_all, or its "
                "constructor does not say what it acts on (self._act_on)"
            )

    # --- for constructors -----------------------------------------------------------------------------------------

    def _act_on(
        self, net: nn.Module, parts: Sequence[Layer] | Sequence[str], what: str = "such layer", least_axes: int = 2
    ) -> None:
        """Set the layers or the parameter names that the method acts on, and capture what it needs of them.

        Args:
            what: the kind of part, for the error.
            least_axes: bare parameters of unknown role with at least this many axes are named in a warning; see
                `Structure.check_bare`.

        Raises:
            ValueError: there is no such part, or a projection would change a weight that is computed from others.
        """
        self._require(parts, what)
        self.acts_on = [*parts]
        layers = [part for part in parts if isinstance(part, Layer)]
        if self.projects:
            self._require_plain(layers)
        if layers:
            self.structure.check_bare(type(self).__name__, net, layers, least_axes)
        names = ([part] if isinstance(part, str) else part.parameter_names for part in parts)
        self.names = [*dict.fromkeys(itertools.chain(*names))]
        for name, value in self._captured(net).items():
            self.register_buffer(name, value.detach().clone())
        if self.projects and self.keeps_rounding:
            self._remember_rounding(net, self.names)

    def _captured(self, net: nn.Module) -> dict[str, Tensor]:
        """What `capture` returns for all parts, by the names of the buffers that keep it."""
        of_parts = [(part, self.capture(part, net)) for part in self.acts_on]
        return {
            _key(kind, part if isinstance(part, str) else part.key): value
            for part, captured in of_parts
            for kind, value in captured.items()
        }

    def _acts_every(self, updates: int) -> None:
        """Count the updates in the buffer ``updates``; `project` is due in every `updates`-th one."""
        self.every_updates = updates
        self.register_buffer("updates", torch.zeros(self.runs, dtype=torch.int64, device=self.coef.device))

    def _strength(self, name: str, value: float | Tensor, net: nn.Module) -> Tensor:
        """A strength as a tensor, float32 or wider: one number, or one per run."""
        like = next(net.parameters(), torch.zeros(()))
        dtype = torch.promote_types(like.dtype, torch.float32)
        strength = torch.as_tensor(value, dtype=dtype, device=like.device).detach().clone()
        if strength.shape not in ((), self.runs):
            expected = f"a number or a tensor {list(self.runs)}" if self.runs else "a number"
            raise SettingsError(f"{name} must be {expected}, got shape {list(strength.shape)}: {value}")
        return strength

    def _counts(self, name: str) -> None:
        """Add a count of this name to `counts`, starting at 0; `_add_to_count_` increases it."""
        self.register_buffer(COUNTED + name, torch.zeros(self.runs, dtype=torch.int64, device=self.coef.device))

    def _remember(self, kind: str, parameter: str, value: Tensor, saved: bool = True) -> None:
        """Register a buffer of this `kind` for the named parameter; `saved` says whether checkpoints contain it."""
        self.register_buffer(_key(kind, parameter), value.detach().clone(), persistent=saved)

    def _recall(self, kind: str, parameter: str) -> Tensor:
        value = self._buffers[_key(kind, parameter)]
        assert value is not None
        return value

    def _remember_rounding(self, net: nn.Module, names: Iterable[str]) -> None:
        """Keep, in float32, what half-precision weights lose to rounding.

        In half precision a factor of 0.9999 rounds to 1. With the lost part kept, many such factors add up until they
        change a digit.
        """
        self.rounded = [n for n in dict.fromkeys(names) if lookup(net, n).dtype in (torch.bfloat16, torch.float16)]
        for name in self.rounded:
            self._remember("rounding", name, torch.zeros_like(lookup(net, name), dtype=torch.float32))

    def _linear_maps(self, heads: bool = True, biases: bool = True) -> list[Layer]:
        """The linear and convolution layers, with or without output layers, with or without their biases."""
        if not heads:
            self.structure.require_heads(type(self).__name__)
        of_heads = self.structure.of_heads
        found = [y for y in self.layers if y.is_linear_map and (heads or not (y.head or y.weight_name in of_heads))]
        return found if biases else [replace(y, bias_name=None) for y in found]

    def _trainable(self) -> list[str]:
        """The names of the parameters that require gradients; raises ValueError if there is none."""
        self._require(self.structure.trained, "trainable parameter")
        return [*self.structure.trained]

    def _not_acted_on(self, net: nn.Module) -> dict[str, Tensor]:
        """The parameters that are not trained or that ``roles`` or ``only`` leave out, as constants."""
        return {name: lookup(net, name).detach() for name in self.shapes if name not in self.structure.trained}

    def _selected(self, net: nn.Module, of: str) -> list[str]:
        """The trainable parameters that `of` (`Of`) selects, each name once; raises ValueError if there is none."""
        if of == "all":
            return self._trainable()
        if of in ("hidden_weights", "heads"):
            self.structure.require_heads(f"of={of}")
        names = [*dict.fromkeys(name for layer in self.layers for name in _names(layer, net, of) if name)]
        if of == "hidden_weights":
            names = [name for name in names if name not in self.structure.of_heads]
        self._require(names, f"trainable parameter that of={of} selects")
        least_axes = 1 if of in ("heads", "biases", "norms", "kernels_and_gains") else 2
        self.structure.check_bare(type(self).__name__, net, (), least_axes)
        return names

    def _require(self, parts: object, what: str) -> None:
        if not parts:
            self.structure.require_uses(type(self).__name__, self.structure.undecided)
            raise ValueError(
                f"{type(self).__name__} has nothing to act on: the network has no {what}{self.structure.beside}"
            )

    def _require_plain(self, layers: Iterable[Layer]) -> None:
        for layer in layers:
            if layer.is_computed:
                raise ValueError(
                    f"{type(self).__name__} changes weights in place, which the parametrization of {layer.name!r} "
                    "undoes: its weight is computed from other tensors. Pass only=[the parameters to act on] without "
                    "them, or take a method that acts on what is trained (l2, weight_decay, spectral)"
                )

    # --- at each update -------------------------------------------------------------------------------------------

    def _zeros(self) -> Tensor:
        return torch.zeros(self.runs, dtype=self.coef.dtype, device=self.coef.device)

    def _now(self, net: nn.Module) -> list[Any]:
        """`acts_on` without the parameters that are frozen now.

        Raises:
            RuntimeError: a parameter was frozen when the regularizer was made and is not frozen now, or the network has
                changed in another way.
        """
        if not torch.compiler.is_compiling():
            self._require_unchanged(net)
        for name in self.frozen:
            if is_trained(net, name):
                raise RuntimeError(
                    f"{name} was frozen when the regularizer was made and is not frozen now: make a new regularizer"
                )
        return [
            part.trained(net) if isinstance(part, Layer) else part
            for part in self.acts_on
            if isinstance(part, Layer) or is_trained(net, part)
        ]

    def _require_unchanged(self, net: nn.Module) -> None:
        for name in self.names:
            if changed := self.change_of(net, name):
                raise RuntimeError(
                    f"{type(self).__name__} was made for another network: {changed}. If it has grown, use "
                    "regularizer.grown(net) (attached: handle.grow()); otherwise make a new regularizer"
                )

    def change_of(self, net: nn.Module, name: str) -> str:
        """What has become of the parameter called `name` since the regularizer was made; empty if it is there still."""
        if not is_parameter(net, name):  # removed, or computed from others now
            return f"{name!r} is no longer a parameter"
        was, now = self.shapes.get(name), lookup(net, name).shape[len(self.runs) :]
        return "" if was in (now, None) else f"{name!r} is {[*now]}, was {[*was]}"

    def _count_(self) -> Tensor:
        """Count one update and return the runs ``[*runs]`` in which the projection is due."""
        if "updates" not in self._buffers:
            return torch.ones(self.runs, dtype=torch.bool, device=self.coef.device)
        self.updates += 1
        return self.updates % self.every_updates == 0

    def _add_to_count_(self, name: str, number: Tensor) -> None:
        """Add `number` ``[*runs]`` to the count of this name."""
        self.get_buffer(COUNTED + name).add_(number)

    def _widened(self, net: nn.Module) -> nn.Module:
        """The network with its half-precision weights as they would be without rounding; see `_round_`."""
        if not self.rounded:
            return net
        return Widened(net, {name: lookup(net, name).float() + self._recall("rounding", name) for name in self.rounded})

    def _round_(self, widened: nn.Module) -> None:
        """Write the widened weights back, and keep what rounding loses."""
        if self.rounded and isinstance(widened, Widened):
            for name, value in widened.tensors.items():
                parameter = lookup(widened.net, name)
                parameter.copy_(value)
                self._recall("rounding", name).copy_(value - parameter.float())

    def outside_autocast(self) -> AbstractContextManager[None]:
        """A context in which autocast is off, so operations keep the types of their arguments."""
        device = self.coef.device.type
        return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()

    def _require_inputs(self, inputs: Example | None) -> None:
        if inputs is None:
            raise SettingsError(
                f"{type(self).__name__} looks at data: penalty(net, inputs) and minimize(loss, inputs) need the "
                "inputs of the network's call for the loss"
            )

    # --- the rest -------------------------------------------------------------------------------------------------

    def _has(self, *hooks: str) -> bool:
        """Whether the subclass overrides one of these hooks."""
        return any(getattr(type(self), hook) is not getattr(Regularizer, hook) for hook in hooks)

    def _whole(self, of_runs: Mapping[str, Tensor], runs: RunSlice) -> dict[str, Tensor]:
        """Tensors of some runs, extended to all runs with zeros elsewhere."""
        if runs is ...:
            return dict(of_runs)
        whole = {name: value.new_zeros((*self.runs, *value.shape[1:])) for name, value in of_runs.items()}
        for name, value in of_runs.items():
            whole[name][runs] = value
        return whole

    def _consist_of(self, parts: Iterable["Regularizer"]) -> None:
        self.parts = nn.ModuleList(parts)
        for flag in ("looks_at_data", "uses_lr", "uses_loss"):
            setattr(self, flag, any(getattr(part, flag) for part in self.parts))

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Restore a saved state, to continue training from it.

        Raises:
            RuntimeError: the state belongs to another method or network; nothing has changed then.
        """
        own = self.state_dict()
        if wrong := sorted(own.keys() ^ state_dict.keys()):
            where = "the state" if wrong[0] in state_dict else "the regularizer"
            raise RuntimeError(
                f"the state does not fit this {type(self).__name__}: {wrong[0]!r} is only in {where}. The state is "
                "from another method or network, or was made with other settings (roles=, only=, heads=)"
            )
        for name, mine in own.items():
            if mine.shape != state_dict[name].shape:
                raise RuntimeError(
                    f"the state does not fit this {type(self).__name__}: {name!r} is {[*mine.shape]}, in the state "
                    f"{[*state_dict[name].shape]}"
                )
        return super().load_state_dict(state_dict, *args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in ("coef", "coef_classifier", "norm_decay"):
            mine, saved = self._buffers.get(name), state_dict.get(prefix + name)
            if mine is not None and saved is not None and not torch.equal(mine, saved.to(mine)):
                before, after = (", ".join(f"{x:g}" for x in t.flatten().tolist()) for t in (mine, saved))
                warn(f"{name} is {before}; the loaded state makes it {after}")
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.prepared = False

    # --- what went ------------------------------------------------------------------------------------------------

    def _refuse_earlier_hook(self, *_: object, **__: object) -> None:
        """Raise TypeError: the hooks of earlier versions are neither called nor overridden."""
        raise TypeError(
            f"{type(self).__name__}: recapture_ and rebase_ are capture_from_(net) now, follow_ is project_(net, lr), "
            "and data_penalty is penalty(net, inputs)"
        )

    recapture_ = rebase_ = follow_ = data_penalty = _refuse_earlier_hook


def penalty_of(regularizer: Regularizer, net: nn.Module, inputs: Example | None = None) -> Tensor:
    """The regularizer's `penalty`, ``[*runs]``, computed outside autocast unless it looks at data.

    If it looks at data, autocast is as it was when the loop called the network.

    Raises:
        SettingsError: inputs are needed and missing, or a plug returned something other than one number per run.
    """
    if regularizer.looks_at_data:
        regularizer._require_inputs(inputs)
        with inputs.autocasting() if isinstance(inputs, Call) else nullcontext():
            term: object = regularizer.penalty(net, inputs)
    else:
        with regularizer.outside_autocast():
            term = regularizer.penalty(net)
    runs = regularizer.runs
    if isinstance(term, Tensor) and term.numel() == math.prod(runs):
        return term.reshape(runs)
    got = f"shape {[*term.shape]}" if isinstance(term, Tensor) else f"a {type(term).__name__}"
    raise SettingsError(
        f"{type(regularizer).__name__}.penalty must return one number per run, of shape {[*runs]}, got {got}"
    )


def made(
    kind: type[Regularizer], structure: Structure | None, net: nn.Module, *given: Any, **settings: Any
) -> Regularizer:
    """``kind(net, *given, **settings)``, where the base class's constructor finds this structure: see `__new__`."""
    regularizer = kind.__new__(kind, net, *given, **settings)
    regularizer.structure = structure
    kind.__init__(regularizer, net, *given, **settings)
    if structure is not None:
        regularizer.structure = replace(structure, example=None)  # no longer needed
    return regularizer


def rate_of(lr: Rates, name: str) -> float | Tensor:
    """The learning rate of the parameter called `name`; 0 for one that has none, because no step changed it."""
    return lr.get(name, 0.0) if isinstance(lr, Mapping) else lr


def counted_by(module: nn.Module) -> dict[str, Tensor]:
    """The module's own counting buffers, by the name of the count."""
    counts = ((name, b) for name, b in module._buffers.items() if b is not None and name.startswith(COUNTED))
    return {name.removeprefix(COUNTED): buffer for name, buffer in counts}


def added_up(each: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Sums of tensors by name; for masks, their elementwise OR."""
    total: dict[str, Tensor] = {}
    for one in each:
        total |= {name: total[name] + value if name in total else value for name, value in one.items()}
    return total


def forget_(moments: Callable[[str], list[Tensor]], masks: Mapping[str, Tensor]) -> None:
    """Zero the optimizer's `moments` where `project_` reinitialized entries (masks by parameter name)."""
    for name, where in masks.items():
        for moment in moments(name):
            moment.masked_fill_(where, 0)


def _names(layer: Layer, net: nn.Module, of: str) -> list[str | None]:
    """The parameter names of a layer that `of` (`Of`, except "all") selects."""
    weight, bias = [layer.weight_name], [layer.bias_name]
    is_norm = layer.role in ("norm", "gain", "shift")
    is_chosen, names = {
        "weights": (layer.matrix(net) is not None, weight),
        "hidden_weights": (layer.is_linear_map and not layer.head, weight),
        "heads": (layer.head, weight + bias),
        "biases": (not is_norm, bias),
        "norms": (is_norm, weight + bias),
        "kernels_and_gains": (layer.role in ("conv", "norm"), weight),
    }[of]
    return names if is_chosen else []


def _own_state(regularizer: Regularizer) -> dict[str, Tensor]:
    """The saved buffers of this regularizer, without those of its parts."""
    made_of_others = bool(regularizer.made_of())
    return {name: b for name, b in regularizer.state_dict().items() if "." not in name or not made_of_others}


def _key(kind: str, parameter: str) -> str:
    """The name of a buffer: ``initial/body/head/weight`` for body.head.weight, with // for each / of a name."""
    return f"{kind}/{parameter.replace('/', '//').replace('.', '/')}"


def _parameter_of(key: str) -> str:
    return key.partition("/")[2].replace("//", "\0").replace("/", ".").replace("\0", "/")


def _among(runs: Tensor | None, part: RunSlice) -> Tensor | None:
    """Those of `runs` that a part acts on, as indices relative to its first run."""
    return runs if runs is None or part is ... else runs[(runs >= part.start) & (runs < part.stop)] - part.start


def view_of(net: nn.Module, runs: RunSlice) -> nn.Module:
    """The view of the network for a part that acts on these runs."""
    return SomeRuns(net, runs.start, runs.stop) if isinstance(runs, slice) else net


class Unregularized(Regularizer):
    """No regularizer: zero penalty, no projection."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)


class Chain(Regularizer):
    """Several regularizers as one: penalties add up, and projections run in the given order."""

    def __init__(self, net: nn.Module, *regularizers: Regularizer) -> None:
        super().__init__(net, structure=regularizers[0].structure if regularizers else None)
        self._consist_of(regularizers)
        # Terms of weights come before terms of data: the order of a sum decides its last digit.
        self.kinds = [[p for p in regularizers if p.looks_at_data == looks] for looks in (False, True)]

    def made_of(self) -> Sequence[tuple[Regularizer, RunSlice]]:
        return [(part, ...) for part in self.parts]  # type: ignore[misc]

    def penalty(self, net: nn.Module, inputs: Example | None = None) -> Tensor:
        total = self._zeros()
        for of_kind in self.kinds:
            if of_kind:
                total = total + functools.reduce(torch.add, [penalty_of(part, net, inputs) for part in of_kind])
        return total
