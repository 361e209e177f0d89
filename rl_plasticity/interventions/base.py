"""The base class of interventions: rare, discrete, eager changes of networks, in place, for all or chosen runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError
from rl_plasticity.interventions.plain import PlainNet
from rl_plasticity.learning.learner import Learner, copy_runs_
from rl_plasticity.learning.torch_state import Optimizers
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure import Example
from rl_plasticity.structure.layer import lookup, wide


class Restartable(Protocol):
    """An agent, as interventions see it (`rl_plasticity.agents.base.Agent`)."""

    @property
    def learners(self) -> Mapping[str, Learner]:
        """The learners whose networks can lose plasticity, by name."""
        ...

    @property
    def followers(self) -> Mapping[str, nn.Module]:
        """The networks that track a learner's network (targets), by the learner's name."""
        ...

    def restart_(self, runs: Tensor | None = None) -> None:
        """Reset `runs` (all by default) to new weights and a new state, like a newly made agent."""
        ...


class Part(NamedTuple):
    """One network that an intervention changes, with what belongs to it."""

    name: str
    learner: Learner | PlainNet
    followers: Sequence[nn.Module]  # networks that track it (targets)
    example: Example | None  # a batch of its inputs, for methods that look at activations

    def fresh(self, runs: Tensor | None, names: set[str]) -> nn.Module:
        """A network like it with new weights, at least in these runs and for these parameters."""
        return self.learner.fresh(runs) if isinstance(self.learner, Learner) else self.learner.fresh(names)


class Target(NamedTuple):
    """Everything that an intervention changes: all networks of an agent, or one network, called "net"."""

    parts: Mapping[str, Part]
    restart_: Callable[[Tensor | None], None]


New = Tensor | Callable[[Tensor], Tensor]
"""What a tensor becomes: a value, or a function of the present one."""


class Change(NamedTuple):
    """What an intervention does to one network. It is written when those of all networks are known.

    Attributes:
        new: for each parameter that changes, by name, its new value, or a function of the present one.
        forget: the parameters whose optimizer moments become 0: a mask of the entries by name, or None for all.
        reference: a network whose weights become the regularizer's reference for these parameters.
        units: the number of single hidden units reinitialized, ``[*runs]``, on the CPU.
        runs: the runs that change, where they are fewer than those asked for.
        zeroed: tensors of other networks, and the entries of each that become 0.
    """

    new: Mapping[str, New]
    forget: Mapping[str, Tensor | None] = MappingProxyType({})
    reference: nn.Module | None = None
    units: Tensor | None = None
    runs: Tensor | None = None
    zeroed: Sequence[tuple[Tensor, Tensor]] = ()


EveryUpdates = Annotated[int | None, Setting("updates between interventions; null: never by updates", least=1)]
EveryTasks = Annotated[int | None, Setting("changes of task between interventions; null: never by tasks", least=1)]


class Intervention:
    """Base class of interventions, which change an agent's or a learner's networks periodically.

    The period is counted in updates or in changes of task. A subclass says in `change` what becomes of one network.

    Args:
        every_updates: the period in updates; None means that updates trigger nothing.
        every_tasks: the period in tasks; None means that tasks trigger nothing.
        at_updates: additional numbers of updates at which to intervene. Without any of the three it is never `due`, and
            acts where `apply_` is called.

    Attributes:
        targets: networks that track the changed one stay, change in the same way, or become copies of it.
        restarts_optimizer: whether the optimizer's whole state starts over.
        counted: whether it changes networks, so that its changes are counted.
        forgets: whether a network has to learn again afterwards.

    Raises:
        SettingsError: a setting is out of range.
    """

    targets: Literal["stay", "alike", "copy"] = "stay"
    restarts_optimizer: bool = False
    counted: bool = True
    forgets: bool = True

    @checked
    def __init__(
        self,
        every_updates: EveryUpdates = None,
        every_tasks: EveryTasks = None,
        at_updates: Annotated[Sequence[int], Setting("further numbers of updates after which to intervene")] = (),
    ) -> None:
        self.every_updates, self.every_tasks, self.at_updates = every_updates, every_tasks, set(at_updates)

    def due(self, updates: int) -> bool:
        """Whether to intervene after this many updates."""
        if updates in self.at_updates:
            return True
        return self.every_updates is not None and updates > 0 and updates % self.every_updates == 0

    def due_at_task(self, task: int) -> bool:
        """Whether to intervene before the task of this index; nothing is due before task 0, the first."""
        return self.every_tasks is not None and task > 0 and task % self.every_tasks == 0

    def change(self, part: Part, runs: Tensor | None) -> Change:
        """What becomes of one network; nothing is written here. Only `runs` (indices; None for all) will change.

        Raises:
            ValueError: it has nothing that the method can act on. Then no other network changes either.
        """
        raise TypeError(f"{type(self).__name__} is not an intervention: it changes nothing")

    def apply_(
        self,
        target: Restartable | Learner | nn.Module,
        optimizer: Optimizers | None = None,
        *,
        runs: Tensor | Sequence[int] | None = None,
        inputs: Mapping[str, Sequence[Tensor]] | None = None,
        example: Example | None = None,
        **of_net: Any,
    ) -> dict[str, Tensor]:
        """Intervene now: on an agent, on a `Learner`, or on any network with torch optimizers of its own::

            make_intervention("redo").apply_(net, optimizer, example=x)
            make_intervention("head").apply_(net, optimizer)
            make_intervention("shrink_perturb", init="fresh").apply_(net, make=make_net)
            make_intervention("periodic").apply_(net, optimizer, make=make_net, followers=target_net)

        A plain network and its optimizer's state change in place; the learning rate and the parameter groups stay. New
        weights come from `make`, or else from ``reset_parameters`` of the network's modules, which draws from torch's
        global random state. Pass `make` for a network whose weights are initialized in any other way. A regularizer
        that is not passed keeps its reference (l2_init's initial weights, SWR's norms, spectral's vectors), which is
        then that of the old weights.

        Args:
            target: the agent, learner or network to change.
            optimizer: for a plain network, its optimizer or optimizers; ``()`` if it has none. shrink_perturb needs
                none.
            runs: indices of the runs to change, or a mask of them ``[runs]`` (bool); all by default.
            inputs: for an agent or a learner and methods that look at activations, a batch of each learner's inputs by
                the learner's name ("net" for a single learner).
            example: the same for a plain network: a batch as a tensor, a tuple (``net(*example)``) or a dict
                (``net(**example)``). redo needs it; head needs it where the forward cannot be traced.
            make: for a plain network, a function without arguments that returns a network like it, with new weights
                each time. It is moved to the network's devices and dtypes.
            regularizer: for a plain network, its regularizer. Its reference is replaced for the weights that become
                new.
            make_regularizer: required with `regularizer`: a function from a network to a regularizer like that one, as
                a `Learner` has.
            readers: for a plain network and `redo` or `regrama`, other networks that read its units, such as an actor
                on the critic's trunk. Their weights that read a recycled unit become 0 too; their optimizers' moments
                stay.
            followers: for a plain network, the networks whose weights track it (targets); they change in the same way.

        Returns:
            Counts ``[*runs]`` by name: ``resets``, 1 where it acted; ``reset_weights``, the number of entries of the
            network's parameters whose value changed; ``reset_units``, the number of single hidden units reinitialized
            (`redo`, `regrama`). For an agent, the names are ``critic/resets`` and so on. A `Learner` adds the counts up
            and saves the sums, see `Learner.counts`.

        Raises:
            SettingsError: an argument is missing, or is given although the target has its own.
            ValueError: a run does not exist, or a network has nothing that the method can act on.
        """
        changed = _target(target, inputs, example, of_net if optimizer is None else {"optimizer": optimizer, **of_net})
        chosen = None if runs is None else torch.as_tensor(runs)
        for part in changed.parts.values():
            chosen = _indices(chosen, part.learner.runs)
        before = {
            name: [p.detach().clone() for p in part.learner.net.parameters()] for name, part in changed.parts.items()
        }
        changes = self._apply_(changed, chosen) or {}
        total: dict[str, Tensor] = {}
        for name, part in changed.parts.items() if self.counted else ():
            change = changes.get(name, Change({}, runs=chosen))
            done = _done(part.learner, before[name], change.runs, change.units)
            part.learner.count_(done)
            prefix = f"{name}/" if hasattr(target, "learners") else ""
            total |= {prefix + what: number for what, number in done.items()}
        return total

    @torch.no_grad()
    def _apply_(self, target: Target, runs: Tensor | None) -> Mapping[str, Change] | None:
        """Change every network, or none if one cannot be changed; returns the changes by the part's name."""
        changes = []
        for part in target.parts.values():
            change = self.change(part, runs)
            changes.append((part, change if change.runs is not None else change._replace(runs=runs)))
        written, seen = [], set[int]()
        for part, change in changes:
            chosen = ... if change.runs is None else change.runs
            followers = part.followers if self.targets == "alike" else ()
            written += [(tensor, chosen, new) for tensor, new in _written(part, change, followers, seen)]
        for part, change in changes:
            if change.reference is not None:
                part.learner.restart_regularizer_(change.reference, change.runs, {*change.new})
            if self.restarts_optimizer:
                part.learner.optimizer.restart_(change.runs)
        for tensor, chosen, new in written:
            value = new if isinstance(new, Tensor) else new(tensor)
            tensor[chosen] = value[chosen].to(tensor)
        if self.targets == "copy":
            for part, change in changes:
                for follower in part.followers if change.new else ():
                    copy_runs_(follower, part.learner.net, change.runs)
        return {part.name: change for part, change in changes}


def _written(
    part: Part, change: Change, followers: Sequence[nn.Module], seen: set[int]
) -> Iterator[tuple[Tensor, New]]:
    """The tensors that a change of a network and its followers writes to, and what each becomes.

    A weight that several of them share changes once: `seen` has the ids of those that do.
    """
    for name, new in change.new.items():
        for net in (part.learner.net, *followers):
            weight = lookup(net, name)
            if id(weight) not in seen:
                seen.add(id(weight))
                yield weight, new
        for copied in part.learner.copies(name) if isinstance(part.learner, PlainNet) else ():
            fresh = new.to(copied) if isinstance(new, Tensor) else new(copied)
            # Where the weight changes, or starts afresh with the value that it has.
            where = change.forget.get(name, fresh != lookup(part.learner.net, name))
            yield copied, fresh if where is None else torch.where(where, fresh, copied)
    forgotten = [(m, where) for name, where in change.forget.items() for m in part.learner.optimizer.moments(name)]
    for tensor, where in (*forgotten, *change.zeroed):
        yield tensor, torch.zeros_like if where is None else partial(torch.masked_fill, mask=where, value=0)


def gradient_of(learner: Learner | PlainNet, name: str, method: str) -> Tensor:
    """The gradient of the parameter called `name`, or a running mean of it, for a method that looks at it.

    Raises:
        SettingsError: none is kept.
    """
    gradient = learner.optimizer.gradient(name)
    if gradient is None:
        raise SettingsError(
            f"{method} needs the gradient of {name!r}: apply it before zero_grad, or to a Learner whose optimizer "
            "keeps its running mean (adam, centered rmsprop, sgd with momentum)"
        )
    return wide(gradient)


def _target(
    target: Any, inputs: Mapping[str, Example] | None, example: Example | None, plain: Mapping[str, Any]
) -> Target:
    """Everything to change in an agent, a `Learner`, or a network with what belongs to it (`plain`)."""
    if not (isinstance(target, Learner) or hasattr(target, "learners")):
        if not isinstance(target, nn.Module):
            kind = type(target).__name__
            raise SettingsError(f"an intervention changes a network, a Learner or an agent, got {kind}")
        if inputs is not None:
            raise SettingsError("inputs is for a Learner or an agent: pass those of a plain network as example=")
        net = PlainNet(target, **plain)
        return Target({"net": Part("net", net, net.followers, example)}, net.restart_)
    if superfluous := [*plain] + ["example"] * (example is not None):
        raise SettingsError(
            f"{superfluous[0]} is for a plain network: a Learner or an agent has its own, and takes runs= and inputs= "
            "by keyword"
        )
    learners = {"net": target} if isinstance(target, Learner) else target.learners
    followers, examples = getattr(target, "followers", {}), inputs or {}
    parts = {
        name: Part(name, own, [followers[name]] if name in followers else (), examples.get(name))
        for name, own in learners.items()
    }
    return Target(parts, target.restart_)


@torch.no_grad()
def _done(
    learner: Learner | PlainNet, before: Sequence[Tensor], runs: Tensor | None, units: Tensor | None
) -> dict[str, Tensor]:
    """Counts of what an intervention on `runs` changed in the parameters, whose earlier values are `before`."""
    axes, parameters = learner.runs, [*learner.net.parameters()]
    resets, weights, in_units = torch.zeros(3, *axes, dtype=torch.int64)
    chosen = ... if runs is None else runs.cpu()
    resets[chosen] = 1
    if units is not None:
        in_units[chosen] = units[chosen]
    for was, parameter in zip(before, parameters, strict=True):
        weights += (parameter != was).reshape(*axes, -1).sum(-1).cpu()
    done = {"resets": resets, "reset_weights": weights, "reset_units": in_units}
    return {name: number.to(next(iter(parameters), number).device) for name, number in done.items()}


def _indices(runs: Tensor | None, axes: tuple[int, ...]) -> Tensor | None:
    """The chosen runs as indices below the number of runs."""
    if runs is None:
        return None
    if len(axes) != 1:
        raise ValueError("runs were chosen, but the network has no runs axis")
    if runs.dtype == torch.bool and runs.shape == axes:
        runs = runs.nonzero().flatten()
    if runs.dtype == torch.bool or not {*runs.tolist()} <= {*range(axes[0])}:
        raise ValueError(
            f"runs must be indices from 0 to {axes[0] - 1} or a mask of length {axes[0]}, got {runs.tolist()}"
        )
    return runs.to(torch.int64)
