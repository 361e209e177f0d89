"""How well copies of a network learn new tasks: the trials that `diagnose` compares.

An *arm* is one way to start: the network as it is, the same with a fresh optimizer, a fresh network, an earlier one.
All arms learn the same tasks from the same inputs in the same batches and order, for the same number of updates.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError, first_line
from rl_plasticity.learning.torch_state import TorchState
from rl_plasticity.seeding import random_states_kept
from rl_plasticity.structure import Arguments, Example, arguments_of, tensors_in, with_tensors
from rl_plasticity.structure.layer import runs_of, wide

UPDATES = 100  # of a trial on drawn targets
BATCH = 64
BANK = 256  # inputs that drawn targets are for
RATE = 1e-3  # Adam's where no optimizer is known
HALF = (torch.bfloat16, torch.float16)
END = 0.1  # the share of the updates whose mean loss is the loss at the end

Loss = Callable[[nn.Module, int], Tensor]
"""The loss ``[*runs]`` of a network at update number t."""
Criterion = Callable[..., Tensor]
"""A user's loss: ``criterion(output, targets)``, or ``criterion(output)`` where a batch has no targets."""


class Steps(Protocol):
    """What a trial needs of an optimizer."""

    def zero_grad(self) -> Any: ...

    def step(self) -> Any: ...


@dataclass(frozen=True)
class Task:
    """A task that every arm learns.

    Args:
        name: what its targets are: ``noise``, ``teacher``, ``own`` or ``batches``.
        begin: from a network that is about to learn it to its loss.
        updates: how many are made.
        nothing: the loss of a network that learned nothing; None: the fresh network's first.
        with_users_loss: whether the gradients are of the size that the optimizer's state remembers.
    """

    name: str
    begin: Callable[[nn.Module], Loss]
    updates: int
    nothing: float | None = None
    with_users_loss: bool = True


def learn(
    net: nn.Module,
    optimizer: Steps,
    loss: Loss,
    updates: int,
    seed: int,
    clip: float | None = None,
    look: Callable[[], object] = lambda: None,
) -> Tensor:
    """Train `net` and return the loss before each update, ``[updates, *runs]`` in float64 on the CPU.

    Where the loss is not finite it counts as infinite from there on. What the network draws depends on `seed` alone.

    Args:
        seed: of torch's global generator, whose state the caller keeps.
        clip: the largest norm of the gradient of all parameters, as ``torch.nn.utils.clip_grad_norm_`` takes it.
        look: called when the gradients of an update are there, before they are clipped.
    """
    torch.manual_seed(seed)
    losses: list[Tensor] = []
    with torch.enable_grad():
        for t in range(updates):
            optimizer.zero_grad()
            value = loss(net, t)
            losses.append(value.detach())
            if not value.requires_grad:  # everything is frozen
                continue
            value.sum().backward()  # type: ignore[no-untyped-call]
            look()
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
    curve = torch.stack(losses).double().cpu()
    bad = (~curve.isfinite()).cummax(0).values if len(curve) else ~curve.isfinite()
    return curve.masked_fill(bad, math.inf)


def at_end(curve: Tensor) -> Tensor:
    """The mean loss ``[*runs]`` of the last tenth of a curve ``[updates, *runs]``, of at least one update."""
    return curve[-max(1, round(END * len(curve))) :].mean(0)


def share(nothing: Tensor, end: Tensor, fresh: Tensor) -> Tensor:
    """(L_0 - L) / (L_0 - L_fresh): what an arm learned, as a share of what a fresh network learned; from -1 to 2.

    Args:
        nothing: L_0, the loss of a network that learned nothing.
        end: L, the arm's loss at the end.
        fresh: L_fresh, the fresh network's.
    """
    value = (nothing - end) / (nothing - fresh)
    return value.nan_to_num(nan=-1.0, posinf=2.0, neginf=-1.0).clamp(-1, 2)


# --- tasks on a bank of inputs ----------------------------------------------------------------------------------------


class Bank:
    """A fixed set of inputs, of which batches are drawn.

    Args:
        inputs: what the network reads, each tensor ``[*runs, n, ...]``.
        runs: the leading axes.

    Raises:
        SettingsError: inputs that are not tensors with as many rows each.
    """

    def __init__(self, inputs: Example, runs: tuple[int, ...]) -> None:
        args, kwargs = arguments_of(inputs)
        self.axis = len(runs)
        self.given = self._rows_of([*args, *kwargs.values()])
        self.size = min(BANK, self.given)
        self.args, self.kwargs = self.narrowed([tuple(args), dict(kwargs)])

    @property
    def example(self) -> Example:
        """All of it, as arguments of one call."""
        return Arguments(self.args, self.kwargs)

    def narrowed(self, values: Any) -> Any:
        """The first rows of each tensor, as many as are used.

        Raises:
            SettingsError: not as many rows as the inputs.
        """
        rows = self._rows_of(values)
        if rows != self.given:
            raise SettingsError(f"targets must have as many rows as the inputs, {self.given}, got {rows}")
        return with_tensors(values, lambda x: x.detach().narrow(self.axis, 0, self.size))

    def _rows_of(self, values: Any) -> int:
        shapes = [[*x.shape] for x in tensors_in(values)]
        sizes = {shape[self.axis] if len(shape) > self.axis else 0 for shape in shapes}
        if len(sizes) != 1 or 0 in sizes:
            raise SettingsError(f"inputs must be tensors of as many examples each, in axis {self.axis}, got {shapes}")
        return sizes.pop()

    def rows(self, where: Tensor | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call on these rows, all by default."""
        if where is None:
            return self.args, self.kwargs
        args, kwargs = with_tensors([self.args, self.kwargs], lambda x: x.index_select(self.axis, where.to(x.device)))
        return args, kwargs

    def orders(self, updates: int, generator: torch.Generator) -> list[Tensor]:
        """The rows of each update: passes over the bank in a new order each time."""
        size = min(BATCH, self.size)
        passes = math.ceil(updates / (self.size // size))
        each = [torch.randperm(self.size, generator=generator)[: self.size // size * size] for _ in range(passes)]
        return list(torch.split(torch.cat(each), size))[:updates]


@dataclass(frozen=True)
class Outputs:
    """How a network's outputs become ``[*runs, n, outputs]``, in float32 or wider.

    Args:
        runs: the leading axes.
        axis: that of the examples, behind the runs.
    """

    runs: tuple[int, ...]
    axis: int

    @classmethod
    def of(cls, output: Any, runs: tuple[int, ...], n: int) -> "Outputs":
        """As this output of `n` examples is laid out.

        Raises:
            SettingsError: an output without such an axis.
        """
        first = next((x for x in tensors_in(output) if x.is_floating_point()), None)
        shape = [] if first is None else [*first.shape]
        if n not in shape[len(runs) :]:
            raise SettingsError(
                f"the network's output must have an axis of the {n} examples, got {shape or 'no tensor'}"
            )
        return cls(runs, shape[len(runs) :].index(n))

    def __call__(self, output: Any) -> Tensor:
        k = len(self.runs)
        n = 0
        parts = []
        for x in tensors_in(output):
            if not x.is_floating_point() or x.ndim <= k + self.axis or n not in (0, x.shape[k + self.axis]):
                continue
            n = x.shape[k + self.axis]
            parts.append(wide(x).movedim(k + self.axis, k).flatten(k + 1) if x.ndim > k + 1 else wide(x).unsqueeze(-1))
        return torch.cat(parts, -1)


def outputs_of(net: nn.Module, bank: Bank) -> tuple[Outputs, Tensor]:
    """How the network's outputs are laid out, and those of the whole bank, ``[*runs, n, outputs]``.

    Raises:
        SettingsError: the network cannot be called with the inputs, or too few inputs for so many outputs.
    """
    runs = tuple(next(net.parameters()).shape[: bank.axis])
    args, kwargs = bank.rows()
    with torch.no_grad():
        try:
            output = called(net, args, kwargs)
        except Exception as error:  # whatever a network may raise
            raise SettingsError(f"the network cannot be called with the inputs: {first_line(error)}") from error
    layout = Outputs.of(output, runs, bank.size)
    flat = layout(output)
    last = next(x for x in tensors_in(output) if x.is_floating_point())
    outputs = last.shape[-1] if last.ndim > bank.axis + 1 and layout.axis == 0 else flat.shape[-1]
    rows = flat.shape[bank.axis] * flat.shape[-1] // outputs
    if rows < 4 * outputs:
        raise SettingsError(
            f"{rows} inputs are too few for {outputs} outputs: give at least {4 * outputs}, or batches= and loss="
        )
    return layout, flat


def drawn_tasks(fresh: nn.Module, bank: Bank, own: tuple[Criterion, Any] | None, seed: int, updates: int) -> list[Task]:
    """Tasks that are drawn for these inputs.

    ``noise``: y = f_0(x) + s e, independent standard normal e; ``teacher``: y = f_0(x) + s g(x), where g is a random
    network of one hidden layer, standardized; both with the mean of ((f(x) - y) / s)^2 as loss, of which a network that
    learns nothing has 1. f_0 is what the arm itself computes before it learns, so that nothing has to be unlearned; s
    is, for each output, the standard deviation of f_0 over the inputs, at least the fresh network's.

    ``own``: the user's loss with drawn targets: whole numbers are drawn from those that occur, others are permuted.

    Args:
        own: the user's loss and the targets ``[*runs, n, ...]`` that go with the inputs.
        seed: of all draws.
    """
    generator = torch.Generator().manual_seed(seed)
    layout, flat = outputs_of(fresh, bank)
    least = flat.std(bank.axis, keepdim=True)
    least = torch.where(least > 0, least, torch.ones_like(least))
    order = bank.orders(updates, generator)
    n, outputs = flat.shape[-2:]
    noise = torch.randn(n, outputs, generator=generator)
    drawn = {"noise": noise, "teacher": _teacher(bank, outputs, generator)}

    def task(name: str, change: Tensor) -> Task:
        change = change.to(flat)

        def begin(net: nn.Module) -> Loss:
            start = outputs_of(net, bank)[1]
            scale = torch.maximum(start.std(bank.axis, keepdim=True), least)
            targets = start + scale * change

            def loss(net: nn.Module, t: int) -> Tensor:
                args, kwargs = bank.rows(order[t])
                found = (
                    layout(called(net, args, kwargs)) - targets.index_select(bank.axis, order[t].to(start.device))
                ) / scale
                return found.square().mean((-2, -1))

            return loss

        return Task(name, begin, updates, 1.0, with_users_loss=False)

    tasks = [task(name, change) for name, change in drawn.items()]
    if own is not None:
        tasks.append(_own_task(bank, *own, order, generator))
    return tasks


def _teacher(bank: Bank, outputs: int, generator: torch.Generator) -> Tensor:
    """A smooth function of the inputs, ``[*runs, n, outputs]`` with mean 0 and variance 1 over the examples."""
    k = bank.axis
    read = [
        wide(x.float()).flatten(k + 1) if x.ndim > k + 1 else x.float().unsqueeze(-1) for x in tensors_in(bank.rows())
    ]
    x = torch.cat([part for part in read if part.shape[:k] == read[0].shape[:k]], -1).cpu()
    x = (x - x.mean(k, keepdim=True)) / (x.std(k, keepdim=True) + 1e-8)
    hidden = torch.randn(x.shape[-1], 64, generator=generator) / math.sqrt(x.shape[-1])
    y = (2 * x @ hidden).tanh() @ torch.randn(64, outputs, generator=generator)
    return (y - y.mean(k, keepdim=True)) / (y.std(k, keepdim=True) + 1e-8)


def _own_task(
    bank: Bank, criterion: Criterion, targets: Any, order: Sequence[Tensor], generator: torch.Generator
) -> Task:
    def drawn(y: Tensor) -> Tensor:
        if y.is_floating_point() or y.ndim > bank.axis + 1:
            return y.index_select(bank.axis, torch.randperm(bank.size, generator=generator).to(y.device))
        values: Tensor = torch.unique(y)
        return values[torch.randint(len(values), y.shape, generator=generator).to(y.device)]

    changed = with_tensors(targets, drawn)

    def loss(net: nn.Module, t: int) -> Tensor:
        args, kwargs = bank.rows(order[t])
        rows = with_tensors(changed, lambda y: y.index_select(bank.axis, order[t].to(y.device)))
        return criterion(called(net, args, kwargs), rows)

    return Task("own", lambda net: loss, len(order))


# --- a task of the user's own batches ---------------------------------------------------------------------------------


def own_batches(batches: Sequence[Any], criterion: Criterion, seed: int, updates: int) -> Task:
    """The user's next task: batches ``(inputs, targets)``, or inputs alone as a dict, in an order drawn from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    passes = math.ceil(updates / len(batches))
    order = torch.cat([torch.randperm(len(batches), generator=generator) for _ in range(passes)])[:updates].tolist()

    def loss(net: nn.Module, t: int) -> Tensor:
        return of_batch(net, batches[order[t]], criterion)

    return Task("batches", lambda net: loss, updates)


def of_batch(net: nn.Module, batch: Any, criterion: Criterion) -> Tensor:
    """The loss of one of the user's batches.

    Raises:
        SettingsError: a batch or a loss of another form.
    """
    if isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, targets = batch
        args, kwargs = arguments_of(inputs)
        value = criterion(called(net, args, kwargs), targets)
    elif isinstance(batch, Tensor) or hasattr(batch, "items"):
        args, kwargs = arguments_of(batch)
        value = criterion(called(net, args, kwargs))
    else:
        raise SettingsError(
            f"a batch must be (inputs, targets), or a dict or tensor of inputs, got {type(batch).__name__}"
        )
    if not isinstance(value, Tensor):
        raise SettingsError(f"loss must return a tensor, got {type(value).__name__}")
    return value


@dataclass(frozen=True)
class Data:
    """What tasks are made of.

    Args:
        bank: inputs that drawn targets are for; None with batches.
        own: the user's loss and targets of the bank.
        batches, criterion: the user's next task and its loss.
    """

    bank: Bank | None
    own: tuple[Criterion, Any] | None = None
    batches: Sequence[Any] = ()
    criterion: Criterion | None = None

    @classmethod
    def of(
        cls,
        net: nn.Module,
        inputs: Example | None,
        loss: Criterion | None,
        targets: Any,
        batches: Sequence[Any] | None,
    ) -> "Data":
        """Raises SettingsError where arguments do not go together."""
        if loss is not None and not callable(loss):
            raise SettingsError(f"loss must be a function, got {type(loss).__name__}")
        if batches is not None:
            if loss is None or inputs is not None or targets is not None:
                raise SettingsError("batches= takes loss=, and stands in place of inputs and targets=")
            if not isinstance(batches, Sequence) or not batches:
                raise SettingsError("batches must be a list of at least one batch: list(loader)")
            with random_states_kept(net), torch.no_grad():
                of_batch(net, batches[0], loss)
            return cls(None, batches=batches, criterion=loss)
        if inputs is None:
            raise SettingsError("give inputs to draw targets for, or batches= and loss=, your next task")
        if targets is not None and loss is None:
            raise SettingsError("targets= needs loss=, a function of output and targets")
        bank = Bank(inputs, runs_of(net))
        own = None
        if loss is not None:
            if targets is None:
                raise SettingsError("loss= needs targets= of the inputs, or batches=")
            own = (loss, bank.narrowed(targets))
        return cls(bank, own)

    @property
    def given_targets(self) -> Any:
        """The targets that the user gave."""
        if self.bank is not None:
            return None if self.own is None else self.own[1]
        return [batch[1] for batch in self.batches if isinstance(batch, tuple | list)]

    @property
    def example(self) -> Example:
        """Inputs for one call."""
        if self.bank is not None:
            return self.bank.example
        first: Any = self.batches[0]
        return cast(Example, first[0] if isinstance(first, tuple | list) else first)

    def tasks(self, fresh: nn.Module, seed: int, updates: int) -> list[Task]:
        """The tasks of one repeat."""
        if self.bank is not None:
            return drawn_tasks(fresh, self.bank, self.own, seed, updates)
        return [own_batches(self.batches, cast(Criterion, self.criterion), seed, updates)]


# --- arms -------------------------------------------------------------------------------------------------------------


class Subject:
    """A network that is diagnosed, and copies of it that learn.

    Args:
        net: the network, wrappers of ``torch.compile`` and the like taken off.
        optimizers: torch's, as it is trained with; none where that is unknown.
        fresh: makes a network like it with new weights.
        without_dropout: whether copies compute without dropout.

    Attributes:
        raised: whether every task is learned with Adam's usual rate, since the optimizer's own is too low for any.
    """

    raised = False

    def __init__(
        self,
        net: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        fresh: Callable[[], nn.Module],
        without_dropout: bool,
    ) -> None:
        self.net, self.optimizers, self.fresh, self.without_dropout = net, list(optimizers), fresh, without_dropout
        self.runs = runs_of(net)

    def rate(self, task: Task) -> float:
        """The learning rate that a task is learned with.

        The optimizer's, before a schedule brought it down, where the task has the user's loss or the optimizer is an
        Adam, whose steps do not depend on the size of the loss; else 1e-3, Adam's.
        """
        if self.raised or not self.optimizers or not self.knows(task):
            return RATE
        group = self.optimizers[0].param_groups[0]
        rate, first = float(group["lr"]), float(group.get("initial_lr", 0))
        return max(rate, first) or RATE

    def knows(self, task: Task) -> bool:
        """Whether the optimizer as it is can be tried on a task."""
        return task.with_users_loss or all("Adam" in type(optimizer).__name__ for optimizer in self.optimizers)

    def as_it_is(self, task: Task) -> tuple[nn.Module, Steps]:
        """With its learning rate and number format, and for the user's loss with what its optimizer remembers.

        Where no optimizer is known it is a new Adam.
        """
        net, optimizers = self._copied()
        trained = [p for p in net.parameters() if p.requires_grad]
        if optimizers and not task.with_users_loss:
            TorchState(net, optimizers).restart_()
        elif not optimizers and trained:
            optimizers = [torch.optim.Adam(trained, lr=RATE)]
        return net, _Several(optimizers)

    def with_fresh_optimizer(
        self, task: Task, times: float = 1.0, weights: nn.Module | None = None
    ) -> tuple[nn.Module, Steps]:
        """All of it trainable, in float32 or wider, with an optimizer of its kind, or Adam, that has seen nothing.

        Args:
            times: the learning rate is as many times `rate`, that of other groups in proportion.
            weights: a network like it to take the weights and buffers from.
        """
        net, optimizers = self.widened(weights)
        rate = times * self.rate(task)
        if not optimizers or not self.knows(task):
            return net, torch.optim.Adam(net.parameters(), lr=rate)
        TorchState(net, optimizers).restart_()
        held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
        others = [p for p in net.parameters() if id(p) not in held]
        if others:
            optimizers[0].add_param_group({"params": others})
        first = optimizers[0].param_groups[0]["lr"]
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * (group["lr"] / first if first else 1.0)
        return net, _Several(optimizers)

    def copied(self) -> "Subject":
        """A copy, all of it trainable and in float32 or wider, to be changed."""
        copied = Subject(*self.widened(), self.fresh, self.without_dropout)
        copied.raised = self.raised
        return copied

    def widened(self, weights: nn.Module | None = None) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
        """A copy, all of it trainable and in float32 or wider, with the weights and buffers of another if given."""
        net, optimizers = self._copied()
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.data = wide(tensor.data) if tensor.is_floating_point() else tensor.data
        net.requires_grad_(True)
        if weights is not None:
            with torch.no_grad():
                theirs = weights.state_dict()
                for name, tensor in net.state_dict().items():
                    if isinstance(tensor, Tensor):
                        tensor.copy_(theirs[name])
        return net, optimizers

    def _copied(self) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
        try:  # together, so that the copied optimizers hold the copied parameters
            net, optimizers = copy.deepcopy((self.net, self.optimizers))
        except Exception as error:  # whatever a module's own copying may raise
            raise SettingsError(f"the network cannot be copied: {first_line(error)}") from error
        net.train()
        if self.without_dropout:
            for module in net.modules():
                if isinstance(module, nn.modules.dropout._DropoutNd):
                    module.eval()
        return net, optimizers


class _Several:
    """Optimizers as one."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


def called(net: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``net(*args, **kwargs)``, the inputs in the number format of its parameters where theirs is another."""
    kind = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
    args, kwargs = with_tensors([tuple(args), dict(kwargs)], lambda x: x.to(kind) if x.is_floating_point() else x)
    return net(*args, **kwargs)
