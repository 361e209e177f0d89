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
Batches = Sequence[Sequence[Any]]
"""Of each batch the inputs, and then the targets where there are any."""
Criterion = Callable[..., Tensor]
"""A user's loss: ``criterion(output, targets)``, or ``criterion(output)`` where a batch has no targets."""


def called(net: nn.Module, inputs: Example) -> Any:
    """The network's output. Floating-point inputs are cast to the number format of its parameters."""
    kind = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
    args, kwargs = with_tensors([*arguments_of(inputs)], lambda x: x.to(kind) if x.is_floating_point() else x)
    return net(*args, **kwargs)


@dataclass(frozen=True)
class TrialTask:
    """A task that every arm of a trial learns: batches, in passes over all of them in an order drawn from `seed`.

    Args:
        name: the kind of targets: ``drawn``, ``own``, ``batches`` or ``next``.
        of_arm: returns the batches for a network that is about to learn them.
        updates: number of updates.
        nothing: the loss of a network that learned nothing; None with the user's loss: the fresh network's first.
        call: calls the network with inputs.
    """

    name: str
    of_arm: Callable[[nn.Module], Batches]
    criterion: Criterion
    seed: int
    updates: int
    nothing: float | None = None
    call: Callable[[nn.Module, Example], Any] = called

    @property
    def with_users_loss(self) -> bool:
        """Whether the gradients have the size that the optimizer's state remembers."""
        return self.nothing is None

    def begin(self, net: nn.Module) -> Loss:
        """The loss, for a network that is about to learn the task."""
        batches, generator = self.of_arm(net), torch.Generator().manual_seed(self.seed)
        passes = math.ceil(self.updates / len(batches))
        drawn = [torch.randperm(len(batches), generator=generator, device="cpu") for _ in range(passes)]
        order = torch.cat(drawn).tolist()

        def loss(net: nn.Module, t: int) -> Tensor:
            inputs, *targets = batches[order[t]]
            return self.criterion(self.call(net, inputs), *targets)

        return loss


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
            raise SettingsError(f"inputs must be tensors of equally many examples, in axis {self.axis}, got {shapes}")
        return sizes.pop()

    def batches(self, seed: int, *values: Any) -> Batches:
        """All inputs and these values, in batches of `BATCH` or a few more rows that are drawn."""
        order = torch.randperm(self.size, generator=torch.Generator().manual_seed(seed), device="cpu")

        def rows(x: Tensor, where: Tensor) -> Tensor:
            return x.index_select(self.axis, where.to(x.device))

        return [
            [with_tensors(x, partial(rows, where=where)) for x in (self.example, *values)]
            for where in torch.tensor_split(order, max(1, self.size // BATCH))
        ]


def _columns(x: Tensor, axis: int) -> Tensor:
    """All axes behind that of the examples as one."""
    return x.reshape(*x.shape[: axis + 1], -1)


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


def drawn_task(nets: Sequence[nn.Module], bank: Bank, seed: int, updates: int) -> TrialTask:
    """A task with targets drawn for these inputs.

    A last map that bounds the outputs (tanh, softmax) is left out, so that a network can reach its targets.

    y = f_0(x) + s g(x), where g is a random network of one hidden layer, standardized. The loss is the mean of
    ((f(x) - y) / s)^2, which is 1 for a network that learns nothing. f_0 is what the arm itself computes before it
    learns, so nothing has to be unlearned. s is the largest standard deviation over the inputs that an output of one
    of the `nets` has, the same for all arms.

    Args:
        seed: seed of all draws.
    """
    layout, flat = outputs_of(nets[0], bank, before_bounds)
    call = called if torch.equal(flat, outputs_of(nets[0], bank)[1]) else before_bounds
    scale = reduce(torch.maximum, [outputs_of(net, bank, call)[1].std(bank.axis, keepdim=True) for net in nets])
    scale = torch.where(scale > 0, scale, 1)
    change = _teacher(bank, flat.shape[-1], torch.Generator().manual_seed(seed)).to(flat)

    def batches(net: nn.Module) -> Batches:
        return bank.batches(seed, outputs_of(net, bank, call)[1] + scale * change)

    def criterion(output: Any, wanted: Tensor) -> Tensor:
        return ((layout(output) - wanted) / scale).square().mean((-2, -1))

    return TrialTask("drawn", batches, criterion, seed, updates, 1.0, call)


def _teacher(bank: Bank, outputs: int, generator: torch.Generator) -> Tensor:
    """A smooth function of the inputs, ``[*runs, n, outputs]`` with mean 0 and variance 1 over the examples."""
    k = bank.axis
    x = torch.cat([_columns(x.float(), k) for x in tensors_in(bank.example)], -1).cpu()
    x = (x - x.mean(k, keepdim=True)) / (x.std(k, keepdim=True) + 1e-8)
    hidden = torch.randn(x.shape[-1], 64, generator=generator, device="cpu") / math.sqrt(x.shape[-1])
    y = (2 * x @ hidden).tanh() @ torch.randn(64, outputs, generator=generator, device="cpu")
    return (y - y.mean(k, keepdim=True)) / (y.std(k, keepdim=True) + 1e-8)


def own_task(bank: Bank, criterion: Criterion, targets: Any, seed: int, updates: int) -> TrialTask:
    """The user's loss with drawn targets. Whole numbers are drawn from those that occur, others are permuted.

    Args:
        targets: those of all inputs that were given, ``[*runs, n, ...]``.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(y: Tensor) -> Tensor:
        if y.is_floating_point() or y.ndim > bank.axis + 1:
            return y.index_select(bank.axis, torch.randperm(bank.size, generator=generator, device="cpu").to(y.device))
        # Each run draws as it does alone.
        shares = torch.rand(bank.size, generator=generator, device="cpu").to(y.device)
        occurring: list[Tensor] = [labels.unique() for labels in y.reshape(-1, bank.size)]
        return torch.stack([values[(shares * len(values)).long()] for values in occurring]).reshape(y.shape)

    batches = bank.batches(seed, with_tensors(bank.narrowed(targets), drawn))
    return TrialTask("own", lambda net: batches, criterion, seed, updates)


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
    def of(cls, inputs: Example | None, loss: Criterion | None, targets: Any, batches: Any) -> "TaskSource":
        """Inputs of a network without runs, for which targets are drawn, or the user's next task.

        Raises:
            SettingsError: arguments that do not go together, or what is no list of batches.
        """
        if batches is None:
            if inputs is None:
                raise SettingsError("give inputs to draw targets for, or your next task as batches= and loss=")
            if (loss is None) != (targets is None):
                raise SettingsError("loss= and targets= of the inputs go together; or give loss= and batches=")
            return cls(Bank(inputs, ()), None if loss is None else (loss, targets))
        if inputs is not None or targets is not None:
            raise SettingsError("batches= replaces inputs and targets=: leave these out")
        if loss is None:
            raise SettingsError("batches= needs loss=, a function of output and targets")
        one = isinstance(batches, tuple) and all(isinstance(x, Tensor) for x in batches)
        if not isinstance(batches, Sequence) or not batches or one:
            raise SettingsError("batches must be a list of (inputs, targets), such as list(loader)")
        return cls(None, (loss, [batch if isinstance(batch, tuple | list) else [batch] for batch in batches]))

    def whole(self, net: nn.Module) -> "TaskSource":
        """This source, with as many inputs as `net` can learn targets for."""
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
        """Inputs for one call: all of them, or those of the largest of the first batches."""
        if self.bank is not None:
            return self.bank.example
        inputs = [batch[0] for batch in self.given[:BANK]]
        # On few examples units look dead.
        largest: Example = max(inputs, key=lambda one: sum(x.numel() for x in tensors_in(one)))
        return largest

    def task(self, nets: Sequence[nn.Module], seed: int, updates: int) -> TrialTask:
        """The task of one repeat, for a fresh network and the one that is diagnosed."""
        if self.own is None:
            return drawn_task(nets, cast(Bank, self.bank), seed, updates)
        criterion, given = self.own
        if self.bank is None:
            return TrialTask("batches", lambda net: given, criterion, seed, updates)
        return own_task(self.bank, criterion, given, seed, updates)
