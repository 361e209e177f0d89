"""Interventions: rare, discrete changes of the networks. Eager, in place, on all runs or on chosen ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Protocol, cast

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError, warn
from rl_plasticity.interventions.plain import PlainNet
from rl_plasticity.learning.attached import attached_to
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.torch_state import Optimizers
from rl_plasticity.regularizers import Regularizer
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure import Example


class Moments(Protocol):
    """What an intervention needs of an optimizer."""

    def moments(self, name: str) -> list[Tensor]:
        """The tensors stored for the parameter called `name`, zero at first."""
        ...

    def gradient(self, name: str) -> Tensor | None:
        """The last gradient of the parameter called `name`, or a running mean; None if there is none."""
        ...

    def restart_(self, runs: Tensor | None = None) -> None:
        """Its state becomes that of a new one, of `runs` or of all; the learning rate stays."""
        ...


class Renewable(Protocol):
    """What an intervention needs of a network and what belongs to it: a `Learner`, or a plain network's `PlainNet`."""

    @property
    def net(self) -> nn.Module:
        """The network."""
        ...

    @property
    def runs(self) -> tuple[int, ...]:
        """Its leading axes."""
        ...

    @property
    def optimizer(self) -> Moments:
        """Its optimizer's state."""
        ...

    def fresh(self, runs: Tensor | None = None, names: set[str] | None = None) -> nn.Module:
        """A network like this one with new initial weights for `runs`: at least the parameters `names`."""
        ...

    def initial(self) -> nn.Module:
        """The network as it was at first."""
        ...

    def recapture_(self, fresh: nn.Module, runs: Tensor | None = None, only: set[str] | None = None) -> None:
        """The regularizer's reference becomes what it is for `fresh`, for the parameters `only`."""
        ...


class Restartable(Protocol):
    """What an intervention needs of an agent (`rl_plasticity.agents.base.Agent`)."""

    @property
    def learners(self) -> Mapping[str, Learner]:
        """Those whose networks can lose plasticity, by name."""
        ...

    @property
    def followers(self) -> Mapping[str, nn.Module]:
        """The networks that track a learner's, by its name: targets."""
        ...

    def restart_(self, runs: Tensor | None = None) -> None:
        """`runs` (all by default) start afresh with new weights, as a newly made agent would."""
        ...


Inputs = Mapping[str, Example]
"""What each learner's network is called with, by the learner's name."""
Target = Restartable | Learner | PlainNet
EveryUpdates = Annotated[int | None, Setting("period in updates; null: not by updates", least=1)]
EveryTasks = Annotated[int | None, Setting("period in changes of task; null: not by tasks", least=1)]


class Intervention:
    """Changes an agent's networks, or one learner's, every so many updates or at every so many changes of task.

    Args:
        every_updates: the period in updates; None: not by updates.
        every_tasks: the period in tasks; None: not by tasks.
        at_updates: numbers of updates at which to intervene besides.

    Raises:
        SettingsError: a setting is out of range, or there is no period at all.
    """

    counted: bool = True  # a decay of the learning rate changes no network

    @checked
    def __init__(
        self,
        every_updates: EveryUpdates = None,
        every_tasks: EveryTasks = None,
        at_updates: Annotated[Sequence[int], Setting("numbers of updates at which to intervene besides")] = (),
    ) -> None:
        if every_updates is None and every_tasks is None and not at_updates:
            raise SettingsError("an intervention needs every_updates or every_tasks")
        self.every_updates, self.every_tasks, self.at_updates = every_updates, every_tasks, set(at_updates)

    def due(self, updates: int) -> bool:
        """Whether to intervene after this many updates."""
        if updates in self.at_updates:
            return True
        return self.every_updates is not None and updates > 0 and updates % self.every_updates == 0

    def due_at_task(self, task: int) -> bool:
        """Whether to intervene before the task of this index (0 is the first, where nothing is due)."""
        return self.every_tasks is not None and task > 0 and task % self.every_tasks == 0

    def apply_(
        self,
        target: Restartable | Learner | nn.Module,
        optimizer: Optimizers | None = None,
        *,
        runs: Tensor | Sequence[int] | None = None,
        inputs: Mapping[str, Sequence[Tensor]] | None = None,
        example: Example | None = None,
        make: Callable[[], nn.Module] | None = None,
        regularizer: Regularizer | None = None,
        regularize: Callable[[nn.Module], Regularizer] | None = None,
        followers: nn.Module | Sequence[nn.Module] = (),
    ) -> dict[str, Tensor]:
        """Intervene now: on an agent, on a `Learner`, or on any network with torch optimizers of its own::

            make_intervention("redo").apply_(net, optimizer, example=x)
            make_intervention("head").apply_(net, optimizer)
            make_intervention("shrink_perturb", init="fresh").apply_(net, make=make_net)
            make_intervention("periodic").apply_(net, optimizer, make=make_net, followers=target_net)

        A plain network changes in place, and so does its optimizer's state: the learning rate and groups stay. New
        weights come from `make`, or else from ``reset_parameters`` of its modules, with draws from torch's global
        random state; a network whose weights are initialized in another way than its modules' own takes `make`. A
        regularizer that is not passed keeps its reference (l2_init's initial weights, SWR's norms, spectral's
        vectors), which then is that of the old weights.

        Args:
            target: what to change.
            optimizer: of a plain network, one or several; ``()`` where it has none. shrink_perturb needs none.
            runs: indices of the runs to change, or a mask of them ``[runs]`` (bool); all by default.
            inputs: of an agent or a learner, for methods that look at activations: a batch of each learner's inputs,
                by the learner's name ("net" for a single learner).
            example: the same of a plain network: a batch as a tensor, a tuple (``net(*example)``) or a dict
                (``net(**example)``). redo needs it; head where the forward cannot be traced.
            make: a function without arguments to a new network like the plain one, with new weights each time. It is
                moved to the network's devices and dtypes.
            regularizer: of the plain network. What it holds of the weights that become new is captured anew.
            regularize: comes with it: a function from a network to a regularizer like that one, as a `Learner` has.
            followers: of a plain network: those whose weights track it (targets) and change alike.

        Returns:
            What it did, ``[*runs]`` by name: ``resets``, 1 where it acted; ``reset_weights``, how many entries of the
            network's parameters have another value now; ``reset_units``, how many single hidden units started anew
            (`redo`). Of an agent the names are ``critic/resets`` and so on. A `Learner` adds all up and saves the sums,
            see `Learner.counts`.

        Raises:
            SettingsError: something is missing, or given to a target that has its own.
            ValueError: runs that do not exist; a network with nothing that the method can act on.
        """
        given: dict[str, object] = {
            "optimizer": optimizer,
            "example": example,
            "make": make,
            "regularizer": regularizer,
            "regularize": regularize,
            "followers": followers or None,
        }
        changed: Target
        seen: Inputs | None = inputs
        if isinstance(target, Learner) or not isinstance(target, nn.Module) or hasattr(target, "learners"):
            if not hasattr(target, "restart_"):
                raise SettingsError(
                    f"an intervention changes a network, a Learner or an agent, got {type(target).__name__}"
                )
            superfluous = [name for name, value in given.items() if value is not None]
            if superfluous:
                raise SettingsError(
                    f"{superfluous[0]} is for a plain network: a Learner or an agent has its own, and takes runs= and "
                    "inputs= by keyword"
                )
            changed = cast(Target, target)
        else:
            if inputs is not None:
                raise SettingsError("inputs is for a Learner or an agent: pass a plain network's as example=")
            changed = PlainNet(target, optimizer, make, regularizer, regularize, followers)
            seen = None if example is None else {"net": example}
        chosen = None if runs is None else torch.as_tensor(runs)
        learners = {name: learner for name, (learner, _) in learners_of(changed).items()}
        for learner in learners.values():
            chosen = _indices(chosen, learner.runs)
        if not self.counted:
            self._apply_(changed, chosen, seen)
            return {}
        before = {name: [p.detach().clone() for p in learner.net.parameters()] for name, learner in learners.items()}
        units = self._apply_(changed, chosen, seen) or {}
        if isinstance(changed, PlainNet) and regularizer is None:
            _warn_of_attached(changed.net)
        total: dict[str, Tensor] = {}
        for name, learner in learners.items():
            done = _done(learner, before[name], chosen)
            if name in units:
                done["reset_units"] += units[name].to(done["reset_units"])
            if isinstance(learner, Learner):
                learner.count_(done)
            several = not isinstance(changed, Learner | PlainNet)
            total |= {f"{name}/{what}" if several else what: number for what, number in done.items()}
        return total

    def _apply_(self, target: Target, runs: Tensor | None, inputs: Inputs | None) -> Mapping[str, Tensor] | None:
        """Intervene on `runs`, indices of them or None for all.

        Returns:
            By learner's name ("net" for a single one) how many single hidden units started anew, ``[*runs]``; None or
            nothing of a learner: none.
        """
        raise TypeError(f"{type(self).__name__} is not an intervention: it changes nothing")


def learners_of(target: Target) -> dict[str, tuple[Renewable, list[nn.Module]]]:
    """Each learner, or the plain network, with the networks that follow it (a target network)."""
    if isinstance(target, PlainNet):
        return {"net": (target, target.followers)}
    if isinstance(target, Learner):
        return {"net": (target, [])}
    follow = target.followers
    return {name: (learner, [follow[name]] if name in follow else []) for name, learner in target.learners.items()}


def _warn_of_attached(net: nn.Module) -> None:
    """Warn where something that is attached to a plain network holds on to its old weights."""
    for regularizer in attached_to(net):
        if regularizer.holds_on:
            warn(
                f"{type(regularizer).__name__} is attached to this network and keeps what it captured of the old "
                "weights: pass regularizer=handle.regularizer and regularize=, a function that makes one like it "
                "(lambda net: make_regularizer('l2_init', net))"
            )


@torch.no_grad()
def _done(learner: Renewable, before: Sequence[Tensor], runs: Tensor | None) -> dict[str, Tensor]:
    """What an intervention that acted on `runs` has changed of the parameters, which were `before`."""
    axes, parameters = learner.runs, [*learner.net.parameters()]
    resets, weights, units = (torch.zeros(axes, dtype=torch.int64) for _ in range(3))
    resets[... if runs is None else runs.cpu()] = 1
    for was, parameter in zip(before, parameters, strict=True):
        weights += (parameter != was).reshape(*axes, -1).sum(-1).cpu()
    done = {"resets": resets, "reset_weights": weights, "reset_units": units}
    return {name: number.to(parameters[0].device) for name, number in done.items()} if parameters else done


def _indices(runs: Tensor | None, axes: tuple[int, ...]) -> Tensor | None:
    """`runs` as indices below the number of runs."""
    if runs is None:
        return None
    if len(axes) != 1:
        raise ValueError("runs were chosen, but the network has no runs axis")
    if runs.dtype == torch.bool and runs.shape == axes:
        runs = runs.nonzero().flatten()
    if runs.dtype.is_floating_point or runs.dtype == torch.bool or not ((runs >= 0) & (runs < axes[0])).all():
        raise ValueError(
            f"runs must be indices from 0 to {axes[0] - 1} or a mask of length {axes[0]}, got {runs.tolist()}"
        )
    return runs.to(torch.int64)
