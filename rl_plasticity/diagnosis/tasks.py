"""The tasks that a network and fresh ones learn side by side: drawn targets, or the user's own batches."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rl_plasticity.errors import SettingsError, counted, first_line
from rl_plasticity.structure import Arguments, Example, arguments_of, tensors_in, with_tensors
from rl_plasticity.structure.layer import wide
from rl_plasticity.structure.operations import VIEWS, plain

BATCH = 64
BANK = 256  # inputs that get drawn targets
LARGE_BANK = 1024  # most of a diagnosis
A_TARGET = 4  # parameters for each number to learn
# Maps of what a network computes to a range. They come last; views and factors may follow.
BOUNDING = {
    "tanh", "sigmoid", "softmax", "log_softmax", "hardtanh", "hardsigmoid", "relu6", "softsign", "logsigmoid",
    "softplus", "clamp",
}  # fmt: skip
AFFINE = {"mul", "add", "sub", "div"}

Loss = Callable[[nn.Module, int], Tensor]
"""The loss ``[*runs]`` of a network at update number t."""
Criterion = Callable[..., Tensor]
"""A user's loss: ``criterion(output, targets)``, or ``criterion(output)`` where a batch has no targets."""


@dataclass(frozen=True)
class TrialTask:
    """A task that every arm of a trial learns.

    Args:
        name: the kind of targets: ``noise``, ``teacher``, ``own`` or ``batches``.
        begin: takes a network that is about to learn the task and returns the loss.
        updates: number of updates.
        nothing: the loss of a network that learned nothing; None with the user's loss: the fresh network's first.
    """

    name: str
    begin: Callable[[nn.Module], Loss]
    updates: int
    nothing: float | None = None

    @property
    def with_users_loss(self) -> bool:
        """Whether the gradients have the size that the optimizer's state remembers."""
        return self.nothing is None


def called(net: nn.Module, inputs: Example) -> Any:
    """The network's output. Floating-point inputs are cast to the number format of its parameters."""
    kind = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
    args, kwargs = with_tensors([*arguments_of(inputs)], lambda x: x.to(kind) if x.is_floating_point() else x)
    return net(*args, **kwargs)


class _BeforeBounds(TorchFunctionMode):
    """Keeps with each tensor that comes from a bounding map what went into the map."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name, found = plain(getattr(func, "__name__", "")), None
        known = [a for a in args if _before(a) is not a]
        others = [a for a in args if isinstance(a, Tensor) and _before(a) is a]
        if name in BOUNDING and isinstance(args[0], Tensor):
            found = args[0]
        elif known and name in VIEWS and known[0] is args[0]:
            found = func(_before(args[0]), *args[1:], **(kwargs or {}))
        elif len(known) == 1 and name in AFFINE and not any(a.requires_grad for a in others):
            found = _before(known[0])
        if found is not None and isinstance(result, Tensor) and found.shape == result.shape:
            vars(result)["before"] = found
        return result


def _before(x: Any) -> Any:
    return vars(x).get("before", x) if isinstance(x, Tensor) else x


def before_bounds(net: nn.Module, inputs: Example) -> Any:
    """The network's output before a last map that bounds it, such as tanh: there any target can be reached."""
    with _BeforeBounds():
        return with_tensors(called(net, inputs), _before)


# --- tasks on a bank of inputs ----------------------------------------------------------------------------------------


class Bank:
    """A fixed set of inputs from which batches are drawn.

    Args:
        inputs: the arguments of a call of the network, each tensor ``[*runs, n, ...]``.
        runs: the leading axes.
        most: number of rows that are used, the first ones.

    Raises:
        SettingsError: inputs that are not tensors, or tensors with different numbers of rows.
    """

    def __init__(self, inputs: Example, runs: tuple[int, ...], most: int = LARGE_BANK) -> None:
        self.inputs, self.runs, self.axis = Arguments(*arguments_of(inputs)), runs, len(runs)
        self.given = self._rows_of(self.inputs)
        self.size = min(most, self.given)
        self.example: Arguments = self.narrowed(self.inputs)

    def narrowed(self, values: Any) -> Any:
        """The first `size` rows of each tensor.

        Raises:
            SettingsError: the number of rows differs from the inputs'.
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

    def rows(self, values: Any, where: Tensor) -> Any:
        """These rows of each tensor."""
        return with_tensors(values, lambda x: x.index_select(self.axis, where.to(x.device)))


def _orders(n: int, size: int, updates: int, generator: torch.Generator) -> list[Tensor]:
    """Which of n examples each update takes, `size` at most: passes over all of them in a new order each time."""
    size = min(size, n)
    passes = math.ceil(updates / (n // size))
    each = [torch.randperm(n, generator=generator)[: n // size * size] for _ in range(passes)]
    return list(torch.split(torch.cat(each), size))[:updates]


def _columns(x: Tensor, axis: int) -> Tensor:
    """All axes behind that of the examples as one."""
    return x.flatten(axis + 1) if x.ndim > axis + 1 else x.unsqueeze(-1)


def _laid_out(output: Any, runs: int, axis: int) -> Tensor:
    """A network's outputs as ``[*runs, n, outputs]``, in float32 or wider.

    Args:
        runs: number of runs axes.
        axis: where the axis of the examples is. Tensors that have another size there are left out.
    """
    found = [x for x in tensors_in(output) if x.is_floating_point() and x.ndim > axis]
    alike = [x for x in found if x.shape[axis] == found[0].shape[axis]]
    return torch.cat([_columns(wide(x).movedim(axis, runs), runs) for x in alike], -1)


def outputs_of(
    net: nn.Module, bank: Bank, call: Callable[[nn.Module, Example], Any] = called
) -> tuple[Callable[[Any], Tensor], Tensor]:
    """A function that lays out the network's outputs, and the outputs for the whole bank, ``[*runs, n, outputs]``.

    Raises:
        SettingsError: the network cannot be called with the inputs, it returns no axis of the examples, or there are
            too few inputs for the number of outputs.
    """
    k = bank.axis
    with torch.no_grad():
        try:
            output = call(net, bank.example)
        except Exception as error:  # whatever a network may raise
            raise SettingsError(f"the network cannot be called with the inputs: {first_line(error)}") from error
    shape = next(([*x.shape] for x in tensors_in(output) if x.is_floating_point()), [])
    if bank.size not in shape[k:]:
        raise SettingsError(
            f"the network's output must have an axis of the {counted(bank.size, 'example')}, got {shape or 'no tensor'}"
        )
    axis = shape.index(bank.size, k)
    layout = partial(_laid_out, runs=k, axis=axis)
    flat = layout(output)
    # Behind the examples: positions, of which each is one more row to learn, and the outputs.
    outputs = shape[-1] if len(shape) > k + 1 and axis == k else flat.shape[-1]
    rows = flat.shape[k] * flat.shape[-1] // outputs
    if rows < 4 * outputs:
        raise SettingsError(
            f"{rows} inputs are too few for {outputs} outputs: give at least {4 * outputs}, or batches= and loss="
        )
    return layout, flat


def drawn_tasks(nets: Sequence[nn.Module], bank: Bank, seed: int, updates: int) -> list[TrialTask]:
    """Tasks with targets drawn for these inputs.

    A last map that bounds the outputs (tanh, softmax) is left out, so that a network can reach its targets.

    ``noise``: y = f_0(x) + s e, independent standard normal e; ``teacher``: y = f_0(x) + s g(x), where g is a random
    network of one hidden layer, standardized. The loss of both is the mean of ((f(x) - y) / s)^2, which is 1 for a
    network that learns nothing. f_0 is what the arm itself computes before it learns, so nothing has to be unlearned.
    s is the largest standard deviation over the inputs that an output of one of the `nets` has, the same for all arms.

    Args:
        seed: seed of all draws.
    """
    generator = torch.Generator().manual_seed(seed)
    layout, flat = outputs_of(nets[0], bank, before_bounds)
    call = called if torch.equal(flat, outputs_of(nets[0], bank)[1]) else before_bounds
    spreads = [outputs_of(net, bank, call)[1].std(bank.axis, keepdim=True) for net in nets]
    scale = reduce(torch.maximum, spreads)
    scale = torch.where(scale > 0, scale, 1)
    order = _orders(bank.size, BATCH, updates, generator)
    n, outputs = flat.shape[-2:]
    noise = torch.randn(n, outputs, generator=generator)
    changes = {"noise": noise, "teacher": _teacher(bank, outputs, generator)}

    def begin(change: Tensor, net: nn.Module) -> Loss:
        targets = outputs_of(net, bank, call)[1] + scale * change

        def loss(net: nn.Module, t: int) -> Tensor:
            output = layout(call(net, bank.rows(bank.example, order[t])))
            wanted: Tensor = bank.rows(targets, order[t])
            return ((output - wanted) / scale).square().mean((-2, -1))

        return loss

    return [TrialTask(name, partial(begin, change.to(flat)), updates, 1.0) for name, change in changes.items()]


def _teacher(bank: Bank, outputs: int, generator: torch.Generator) -> Tensor:
    """A smooth function of the inputs, ``[*runs, n, outputs]`` with mean 0 and variance 1 over the examples."""
    k = bank.axis
    read = [_columns(x.float(), k) for x in tensors_in(bank.example)]
    x = torch.cat([part for part in read if part.shape[:k] == read[0].shape[:k]], -1).cpu()
    x = (x - x.mean(k, keepdim=True)) / (x.std(k, keepdim=True) + 1e-8)
    hidden = torch.randn(x.shape[-1], 64, generator=generator) / math.sqrt(x.shape[-1])
    y = (2 * x @ hidden).tanh() @ torch.randn(64, outputs, generator=generator)
    return (y - y.mean(k, keepdim=True)) / (y.std(k, keepdim=True) + 1e-8)


def own_task(bank: Bank, criterion: Criterion, targets: Any, seed: int, updates: int) -> TrialTask:
    """The user's loss with drawn targets. Whole numbers are drawn from those that occur, others are permuted.

    Args:
        targets: those of all inputs that were given, ``[*runs, n, ...]``.
    """
    generator = torch.Generator().manual_seed(seed)
    order = _orders(bank.size, BATCH, updates, generator)

    def drawn(y: Tensor) -> Tensor:
        if y.is_floating_point() or y.ndim > bank.axis + 1:
            return y.index_select(bank.axis, torch.randperm(bank.size, generator=generator).to(y.device))
        begins = generator.get_state()
        of_runs = []
        for labels in y.reshape(-1, bank.size):  # each run draws as it does alone
            generator.set_state(begins)
            values: Tensor = torch.unique(labels)
            of_runs.append(values[torch.randint(len(values), labels.shape, generator=generator).to(y.device)])
        return torch.stack(of_runs).reshape(y.shape)

    changed = with_tensors(bank.narrowed(targets), drawn)

    def loss(net: nn.Module, t: int) -> Tensor:
        return criterion(called(net, bank.rows(bank.example, order[t])), bank.rows(changed, order[t]))

    return TrialTask("own", lambda net: loss, updates)


# --- a task of the user's own batches ---------------------------------------------------------------------------------


def own_batches(batches: Sequence[Sequence[Any]], criterion: Criterion, seed: int, updates: int) -> TrialTask:
    """The user's next task: batches ``(inputs, *targets)`` in an order drawn from `seed`."""
    order = _orders(len(batches), 1, updates, torch.Generator().manual_seed(seed))

    def loss(net: nn.Module, t: int) -> Tensor:
        inputs, *targets = batches[int(order[t])]
        return criterion(called(net, inputs), *targets)

    return TrialTask("batches", lambda net: loss, updates)


# --- where the tasks come from ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskSource:
    """The inputs, targets and losses that tasks are made of.

    Args:
        bank: inputs for which targets are drawn; None with batches.
        own: the user's loss, which then is learned alone, and the targets of all inputs that were given, or batches.
    """

    bank: Bank | None
    own: tuple[Criterion, Any] | None = None

    @classmethod
    def of_inputs(
        cls, inputs: Example | None, runs: tuple[int, ...], loss: Criterion | None, targets: Any
    ) -> "TaskSource":
        """Inputs for which targets are drawn. Raises SettingsError for arguments that do not go together."""
        if inputs is None:
            raise SettingsError("give inputs to draw targets for, or batches= and loss=, your next task")
        if (loss is None) != (targets is None):
            raise SettingsError("loss= and targets= of the inputs go together; or give loss= and batches=")
        return cls(Bank(inputs, runs), None if loss is None else (loss, targets))

    @classmethod
    def of_batches(cls, batches: Sequence[Any], loss: Criterion | None) -> "TaskSource":
        """The user's next task. Raises SettingsError for what is no list of batches."""
        if loss is None:
            raise SettingsError("batches= needs loss=, a function of output and targets")
        one = isinstance(batches, tuple) and all(isinstance(x, Tensor) for x in batches)
        if not isinstance(batches, Sequence) or not batches or one:
            raise SettingsError("batches must be a list of (inputs, targets), such as list(loader)")
        return cls(None, (loss, [batch if isinstance(batch, tuple | list) else [batch] for batch in batches]))

    def whole(self, net: nn.Module) -> "TaskSource":
        """The same with as many inputs as `net` can learn targets for."""
        if self.bank is None:
            return self
        outputs = outputs_of(net, self.bank)[1].shape[-1]
        most = sum(p.numel() for p in net.parameters()) // math.prod(self.bank.runs) // (A_TARGET * outputs)
        return replace(self, bank=Bank(self.bank.inputs, self.bank.runs, min(LARGE_BANK, max(BANK, most))))

    @property
    def given(self) -> list[Sequence[Any]]:
        """Each batch, or all inputs as one: the inputs, and the targets where there are any."""
        given: Any = self.own and self.own[1]
        if self.bank is None:
            return list(given)
        return [[self.bank.example] if given is None else [self.bank.example, self.bank.narrowed(given)]]

    @property
    def example(self) -> Example:
        """Inputs for one call."""
        if self.bank is not None:
            return self.bank.example
        inputs = [batch[0] for batch in self.given[:BANK]]
        # On few examples units look dead.
        largest: Example = max(inputs, key=lambda one: sum(x.numel() for x in tensors_in(one)))
        return largest

    def tasks(self, nets: Sequence[nn.Module], seed: int, updates: int) -> list[TrialTask]:
        """The tasks of one repeat, for a fresh network and the one that is diagnosed."""
        if self.own is None:
            return drawn_tasks(nets, cast(Bank, self.bank), seed, updates)
        criterion, given = self.own
        if self.bank is None:
            return [own_batches(given, criterion, seed, updates)]
        return [own_task(self.bank, criterion, given, seed, updates)]
