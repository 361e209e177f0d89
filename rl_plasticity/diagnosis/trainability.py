"""Tasks, and copies of a network that learn them: the parts of the trials that `diagnose` compares.

An *arm* is one way to start: the network as it is, the network with a fresh optimizer, a fresh network, an earlier one.
All arms learn the same tasks from the same inputs, with the same batches in the same order, for the same number of
updates.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError, first_line
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.torch_state import TorchState
from rl_plasticity.seeding import random_states_kept
from rl_plasticity.structure import Arguments, Example, arguments_of, tensors_in, with_tensors
from rl_plasticity.structure.layer import runs_of, wide

UPDATES = 100  # in a trial on drawn targets
BATCH = 64
BANK = 256  # inputs that get drawn targets
LARGE_BANK = 1024  # those of a longer trial
RATE = 1e-3  # Adam's learning rate where no optimizer is known
HALF = (torch.bfloat16, torch.float16)

Optimizers = Sequence[torch.optim.Optimizer]
Loss = Callable[[nn.Module, int], Tensor]
"""The loss ``[*runs]`` of a network at update number t."""
Criterion = Callable[..., Tensor]
"""A user's loss: ``criterion(output, targets)``, or ``criterion(output)`` where a batch has no targets."""


@dataclass(frozen=True)
class Task:
    """A task that every arm learns.

    Args:
        name: the kind of targets: ``noise``, ``teacher``, ``own`` or ``batches``.
        begin: takes a network that is about to learn the task and returns the loss.
        updates: number of updates.
        nothing: the loss of a network that learned nothing; None: the fresh network's first loss.
        with_users_loss: whether the gradients have the size that the optimizer's state remembers.
    """

    name: str
    begin: Callable[[nn.Module], Loss]
    updates: int
    nothing: float | None = None
    with_users_loss: bool = True


def never(losses: list[Tensor]) -> bool:
    """Let a training go on to its last update."""
    return False


def learn(
    net: nn.Module,
    optimizers: Optimizers,
    loss: Loss,
    updates: int,
    seed: int,
    clip: float | None = None,
    look: Callable[[], object] = lambda: None,
    ends: Callable[[list[Tensor]], bool] = never,
) -> Tensor:
    """Train `net` and return the loss before each update, ``[updates, *runs]`` in float64 on the CPU.

    From the first loss that is not finite, every loss counts as infinite. What the network draws depends on `seed`
    alone.

    Args:
        seed: seed of torch's global generator. The caller saves and restores its state.
        clip: largest norm of the gradient of all parameters, see ``torch.nn.utils.clip_grad_norm_``.
        look: called after each backward pass, before the gradients are clipped.
        ends: called with all losses so far after each update; whether the training ends here.
    """
    torch.manual_seed(seed)
    losses: list[Tensor] = []
    with torch.enable_grad():
        for t in range(updates):
            for optimizer in optimizers:
                optimizer.zero_grad()
            value = loss(net, t)
            losses.append(value.detach())
            if not value.requires_grad:  # everything is frozen
                continue
            value.sum().backward()  # type: ignore[no-untyped-call]
            look()
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            for optimizer in optimizers:
                optimizer.step()
            if ends(losses):
                break
    curve = torch.stack(losses).double().cpu()
    return curve.masked_fill((~curve.isfinite()).cummax(0).values, math.inf)


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

    def __init__(self, inputs: Example, runs: tuple[int, ...], most: int = BANK) -> None:
        taken: Example = inputs if isinstance(inputs, Tensor) else Arguments(*arguments_of(inputs))
        self.inputs, self.runs, self.axis = inputs, runs, len(runs)
        self.given = self._rows_of(taken)
        self.size = min(most, self.given)
        self.example: Example = self.narrowed(taken)

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

    def batch(self, where: Tensor) -> Example:
        """The inputs in these rows."""
        batch: Example = self.rows(self.example, where)
        return batch


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
    if isinstance(output, Tensor):
        return _columns(wide(output).movedim(axis, runs), runs)
    found = [x for x in tensors_in(output) if x.is_floating_point() and x.ndim > axis]
    alike = [x for x in found if x.shape[axis] == found[0].shape[axis]]
    return torch.cat([_columns(wide(x).movedim(axis, runs), runs) for x in alike], -1)


def outputs_of(net: nn.Module, bank: Bank) -> tuple[Callable[[Any], Tensor], Tensor]:
    """A function that lays out the network's outputs, and the outputs for the whole bank, ``[*runs, n, outputs]``.

    Raises:
        SettingsError: the network cannot be called with the inputs, it returns no axis of the examples, or there are
            too few inputs for the number of outputs.
    """
    k = bank.axis
    with torch.no_grad():
        try:
            output = called(net, bank.example)
        except Exception as error:  # whatever a network may raise
            raise SettingsError(f"the network cannot be called with the inputs: {first_line(error)}") from error
    shape = next(([*x.shape] for x in tensors_in(output) if x.is_floating_point()), [])
    if bank.size not in shape[k:]:
        raise SettingsError(
            f"the network's output must have an axis of the {bank.size} examples, got {shape or 'no tensor'}"
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


def drawn_tasks(fresh: nn.Module, bank: Bank, own: tuple[Criterion, Any] | None, seed: int, updates: int) -> list[Task]:
    """Tasks with targets drawn for these inputs.

    ``noise``: y = f_0(x) + s e, independent standard normal e; ``teacher``: y = f_0(x) + s g(x), where g is a random
    network of one hidden layer, standardized. The loss of both is the mean of ((f(x) - y) / s)^2, which is 1 for a
    network that learns nothing. f_0 is what the arm itself computes before it learns, so nothing has to be unlearned.
    s is the standard deviation of f_0 over the inputs, for each output, and at least the fresh network's.

    ``own``: the user's loss with drawn targets. Whole numbers are drawn from those that occur, others are permuted.

    Args:
        own: the user's loss and the targets ``[*runs, n, ...]`` of all inputs that were given.
        seed: seed of all draws.
    """
    generator = torch.Generator().manual_seed(seed)
    layout, flat = outputs_of(fresh, bank)
    least = flat.std(bank.axis, keepdim=True)
    least = torch.where(least > 0, least, torch.ones_like(least))
    order = _orders(bank.size, BATCH, updates, generator)
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
                output = layout(called(net, bank.batch(order[t])))
                wanted: Tensor = bank.rows(targets, order[t])
                return ((output - wanted) / scale).square().mean((-2, -1))

            return loss

        return Task(name, begin, updates, 1.0, with_users_loss=False)

    tasks = [task(name, change) for name, change in drawn.items()]
    if own is not None:
        criterion, targets = own
        tasks.append(_own_task(bank, criterion, bank.narrowed(targets), order, generator))
    return tasks


def _teacher(bank: Bank, outputs: int, generator: torch.Generator) -> Tensor:
    """A smooth function of the inputs, ``[*runs, n, outputs]`` with mean 0 and variance 1 over the examples."""
    k = bank.axis
    read = [_columns(x.float(), k) for x in tensors_in(bank.example)]
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
        begins = generator.get_state()
        of_runs = []
        for labels in y.reshape(-1, bank.size):  # each run draws as it does alone
            generator.set_state(begins)
            values: Tensor = torch.unique(labels)
            of_runs.append(values[torch.randint(len(values), labels.shape, generator=generator).to(y.device)])
        return torch.stack(of_runs).reshape(y.shape)

    changed = with_tensors(targets, drawn)

    def loss(net: nn.Module, t: int) -> Tensor:
        return criterion(called(net, bank.batch(order[t])), bank.rows(changed, order[t]))

    return Task("own", lambda net: loss, len(order))


# --- a task of the user's own batches ---------------------------------------------------------------------------------


def own_batches(batches: Sequence[Any], criterion: Criterion, seed: int, updates: int) -> Task:
    """The user's next task: batches ``(inputs, targets)`` or inputs alone, in an order drawn from `seed`."""
    order = _orders(len(batches), 1, updates, torch.Generator().manual_seed(seed))

    def loss(net: nn.Module, t: int) -> Tensor:
        return of_batch(net, batches[int(order[t])], criterion)

    return Task("batches", lambda net: loss, updates)


def of_batch(net: nn.Module, batch: Any, criterion: Criterion) -> Tensor:
    """The loss of one of the user's batches.

    Raises:
        SettingsError: the batch or what the loss returns has another form.
    """
    if isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, *targets = batch
    elif isinstance(batch, Tensor) or hasattr(batch, "items"):
        inputs, targets = batch, []
    else:
        raise SettingsError(
            f"a batch must be (inputs, targets), or a dict or tensor of inputs, got {type(batch).__name__}"
        )
    value: object = criterion(called(net, inputs), *targets)
    if not isinstance(value, Tensor):
        raise SettingsError(f"loss must return a tensor, got {type(value).__name__}")
    return value


@dataclass(frozen=True)
class Data:
    """The inputs, targets and losses that tasks are made of.

    Args:
        bank: inputs for which targets are drawn; None with batches.
        own: the user's loss, and the user's targets of all inputs that were given.
        batches, criterion: the user's next task and its loss.
        own_alone: whether the user's loss, where it is known, is the only one that is learned.
        joined: inputs of several batches, on which units are measured; None for the first batch's.
    """

    bank: Bank | None
    own: tuple[Criterion, Any] | None = None
    batches: Sequence[Any] = ()
    criterion: Criterion | None = None
    own_alone: bool = False
    joined: Tensor | None = None

    @classmethod
    def of(
        cls,
        net: nn.Module,
        inputs: Example | None,
        loss: Criterion | None,
        targets: Any,
        batches: Sequence[Any] | None,
    ) -> "Data":
        """The data that a user gave. Raises SettingsError for arguments that do not go together."""
        if loss is not None and not callable(loss):
            raise SettingsError(f"loss must be a function, got {type(loss).__name__}")
        if batches is not None:
            if loss is None:
                raise SettingsError("batches= needs loss=, a function of output and targets")
            if inputs is not None or targets is not None:
                raise SettingsError("batches= stands in place of inputs and targets=: leave them out")
            one = isinstance(batches, tuple) and all(isinstance(x, Tensor) for x in batches)
            if not isinstance(batches, Sequence) or not batches or one:
                raise SettingsError("batches must be a list of (inputs, targets), such as list(loader)")
            with random_states_kept(net), torch.no_grad():
                try:
                    of_batch(net, batches[0], loss)
                except SettingsError:
                    raise
                except Exception as error:  # whatever a network or a loss may raise
                    raise SettingsError(f"the first batch cannot be learned: {first_line(error)}") from error
                joined = _joined(net, [_inputs_of(batch) for batch in batches])
            return cls(None, batches=batches, criterion=loss, joined=joined)
        if inputs is None:
            raise SettingsError("give inputs to draw targets for, or batches= and loss=, your next task")
        if targets is not None and loss is None:
            raise SettingsError("targets= needs loss=, a function of output and targets")
        bank = Bank(inputs, runs_of(net))
        own = None
        if loss is not None:
            if targets is None:
                raise SettingsError("loss= needs targets= of the inputs, or batches=, a list of (inputs, targets)")
            bank.narrowed(targets)  # raises if they are not as many
            own = (loss, targets)
        return cls(bank, own)

    def longer(self) -> "Data | None":
        """Data for longer trials: more of the inputs, and the user's loss alone where it is known; None for batches."""
        if self.bank is None:
            return None
        return replace(self, bank=Bank(self.bank.inputs, self.bank.runs, LARGE_BANK), own_alone=True)

    @property
    def given_targets(self) -> Any:
        """The targets that the user gave."""
        if self.bank is not None:
            return None if self.own is None else self.bank.narrowed(self.own[1])
        return [batch[1] for batch in self.batches if isinstance(batch, tuple | list)]

    @property
    def example(self) -> Example:
        """Inputs for one call."""
        if self.bank is not None:
            return self.bank.example
        return _inputs_of(self.batches[0]) if self.joined is None else self.joined

    def tasks(self, fresh: nn.Module, seed: int, updates: int) -> list[Task]:
        """The tasks of one repeat."""
        if self.bank is not None:
            tasks = drawn_tasks(fresh, self.bank, self.own, seed, updates)
            return tasks[-1:] if self.own_alone and self.own is not None else tasks
        return [own_batches(self.batches, cast(Criterion, self.criterion), seed, updates)]


def _inputs_of(batch: Any) -> Example:
    return cast(Example, batch[0] if isinstance(batch, tuple | list) else batch)


def _example_shape(x: Tensor, axis: int) -> torch.Size:
    return x.shape[:axis] + x.shape[axis + 1 :]


def _joined(net: nn.Module, inputs: Sequence[Example]) -> Tensor | None:
    """Inputs of several batches as one, up to `BANK` examples, where the network takes it: on few, units look dead."""
    axis = len(runs_of(net))
    tensors = [x for x in inputs if isinstance(x, Tensor) and x.ndim > axis]
    alike = [x for x in tensors if _example_shape(x, axis) == _example_shape(tensors[0], axis)]
    if len(tensors) < len(inputs) or len(alike) < 2:
        return None
    joined = torch.cat(alike[: math.ceil(BANK / max(1, alike[0].shape[axis]))], axis)
    joined = joined.narrow(axis, 0, min(BANK, joined.shape[axis]))
    try:
        called(net, joined)
    except Exception:  # the first axis is not that of the examples
        return None
    return joined


# --- arms -------------------------------------------------------------------------------------------------------------


@dataclass
class Subject:
    """A network that is diagnosed, and copies of it that learn.

    Args:
        net: the network, without wrappers such as ``torch.compile``'s.
        optimizers: the torch optimizers that train it; none where they are unknown.
        fresh: makes a network like it with new weights.
        without_dropout: whether copies compute without dropout.
        raised: whether every task is learned with Adam's usual rate, since the optimizer's own is too low for any.
        lowered: multiplies the optimizer's rate, where that is too high for any task.
        attach: attaches a regularizer to new optimizers and their network.
    """

    net: nn.Module
    optimizers: Optimizers
    fresh: Callable[[], nn.Module]
    without_dropout: bool
    raised: bool = False
    lowered: float = 1.0
    attach: Callable[[Optimizers, nn.Module], object] | None = None

    @property
    def runs(self) -> tuple[int, ...]:
        """The leading axes of the network."""
        return runs_of(self.net)

    def rate(self, task: Task) -> float:
        """The learning rate for a task.

        It is the optimizer's, before a schedule brought it down, if the task has the user's loss or the optimizer is an
        Adam, whose steps do not depend on the size of the loss. Else it is 1e-3, Adam's default.
        """
        if self.raised or not self.optimizers or not self.knows(task):
            return RATE
        group = self.optimizers[0].param_groups[0]
        return self.lowered * max(float(group["lr"]), float(group.get("initial_lr", 0))) or RATE

    def knows(self, task: Task) -> bool:
        """Whether the optimizer as it is can be tried on a task."""
        return task.with_users_loss or all("Adam" in type(optimizer).__name__ for optimizer in self.optimizers)

    def as_it_is(self, task: Task) -> tuple[nn.Module, Optimizers]:
        """A copy in its own number format, with its optimizers at their learning rate.

        The optimizers keep their state only for the user's loss. Where no optimizer is known it is a new Adam.
        """
        copied = self._copied()
        net, optimizers = copied.net, copied.optimizers
        trained = [p for p in net.parameters() if p.requires_grad]
        if optimizers and not task.with_users_loss:
            TorchState(net, optimizers).restart_()
        elif not optimizers and trained:
            optimizers = [new_adam(trained, RATE)]
        return net, optimizers

    def with_fresh_optimizer(self, task: Task, times: float = 1.0) -> tuple[nn.Module, Optimizers]:
        """A copy to train in full, in float32 or wider, with new optimizers of the same kind, or a new Adam.

        Args:
            times: multiplies the learning rate `rate`. Other parameter groups keep their proportion to the first.
        """
        net, optimizers = self._with_new_optimizers(task, times * self.rate(task))
        if self.attach is not None:
            self.attach(optimizers, net)
        return net, optimizers

    def _with_new_optimizers(self, task: Task, rate: float) -> tuple[nn.Module, Optimizers]:
        copied = self.copied()
        net, optimizers = copied.net, copied.optimizers
        if not optimizers or not self.knows(task):
            return net, [new_adam([*net.parameters()], rate)]
        TorchState(net, optimizers).restart_()
        held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
        others = [p for p in net.parameters() if id(p) not in held]
        if others:
            optimizers[0].add_param_group({"params": others})
        first = optimizers[0].param_groups[0]["lr"]
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * (group["lr"] / first if first else 1.0)
        return net, optimizers

    def copied(self, weights: nn.Module | None = None) -> "Subject":
        """A copy, all of it trainable and in float32 or wider.

        Args:
            weights: a network like it, whose weights and buffers the copy takes.
        """
        copied = self._copied()
        for tensor in (*copied.net.parameters(), *copied.net.buffers()):
            tensor.data = wide(tensor.data) if tensor.is_floating_point() else tensor.data
        copied.net.requires_grad_(True)
        if weights is not None:
            theirs = weights.state_dict()
            for name, tensor in copied.net.state_dict().items():
                if isinstance(tensor, Tensor):
                    tensor.copy_(theirs[name])
        return copied

    def _copied(self) -> "Subject":
        try:  # together, so that the copied optimizers hold the copied parameters
            net, optimizers = copy.deepcopy((self.net, self.optimizers))
        except Exception as error:  # whatever a module's own copying may raise
            raise SettingsError(f"the network cannot be copied: {first_line(error)}") from error
        net.train()
        if self.without_dropout:
            for module in net.modules():
                if isinstance(module, nn.modules.dropout._DropoutNd):
                    module.eval()
        return replace(self, net=net, optimizers=optimizers)


def new_adam(parameters: Sequence[nn.Parameter], rate: float) -> torch.optim.Adam:
    """Adam, in one kernel where torch has that, so that an update of a small network takes four fifths of the time.

    On CPUs that kernel reads the memory of weight and gradient in order, whatever their strides are.
    """
    fused = all(p.is_floating_point() and p.is_contiguous() and p.device.type in ("cpu", "cuda") for p in parameters)
    return torch.optim.Adam(parameters, lr=rate, fused=fused)


def subject_of(learner: Learner, shown: Callable[[nn.Module], nn.Module] = lambda net: net) -> Subject:
    """A learner's network. New weights come from its own seeds.

    Args:
        shown: returns the part of a network that is diagnosed.
    """
    source = copy.deepcopy(learner)  # a learner counts its draws of weights

    return Subject(shown(learner.net), (), lambda: shown(source.fresh()), without_dropout=True)


def called(net: nn.Module, inputs: Example) -> Any:
    """The network's output. Floating-point inputs are cast to the number format of its parameters."""
    kind = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
    if isinstance(inputs, Tensor):  # what most networks take, in the least time
        return net(inputs.to(kind) if inputs.is_floating_point() else inputs)
    args, kwargs = with_tensors([*arguments_of(inputs)], lambda x: x.to(kind) if x.is_floating_point() else x)
    return net(*args, **kwargs)
