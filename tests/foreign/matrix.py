"""Every method on every foreign network: one word for what came of it, found by oracles.

The oracles take parameters by the names in `Expected`, torch's linear algebra, hooks and calls of the network. What the
package has read of the network decides nothing here; it is read once for all methods only because that is cheaper.
"""

import copy
import math
import re
import traceback
import warnings
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn

from foreign.expected import Expected
from rl_plasticity.interventions import make_intervention, resets
from rl_plasticity.regularizers import Regularizer, make_regularizer
from rl_plasticity.structure import Structure, arguments_of, read, tensors_in, with_tensors

RIGHT, WARNED, REFUSED, WRONG, CRASH = "works", "warning", "refused", "wrong", "crash"
# What a refusal has to say: what to pass, what to change, or that there is nothing.
USEFUL = re.compile(r"\w=|[Pp]ass |[Uu]se |[Mm]ake |nothing|needs |holds none|take ")


class Case:
    """One network, in float64 where it can be, put back as it was before each cell."""

    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        torch.manual_seed(0)
        self.net, self.example = expected.make(), expected.example()
        noise = torch.Generator().manual_seed(7)
        for p in self.net.parameters():  # what starts at zero would hide what is left out
            if not p.any():
                p.data.copy_(torch.randn(p.shape, generator=noise) * 0.3)
        if all(p.dtype == torch.float32 for p in self.net.parameters()):
            try:
                self.net.double()
                values(self.net, widened(self.example))
            except (RuntimeError, TypeError):  # it makes tensors of float32 itself
                self.net.float()
            else:
                self.example = widened(self.example)
        self.is_half = any(p.dtype not in (torch.float32, torch.float64) for p in self.net.parameters())
        self.named = dict(self.net.named_parameters())
        self.tensors = [*self.named.values(), *self.net.buffers()]
        self.saved = [t.detach().clone() for t in self.tensors]
        self.first = dict(zip(self.named, self.saved, strict=False))
        self.parameters = {name: p for name, p in self.named.items() if p.requires_grad}
        self.matrices = matrices_of(self.net, expected)
        self._read: dict[bool, Structure | ValueError] = {}

    def fresh(self) -> nn.Module:
        """The network as it was made, in evaluation mode."""
        with torch.no_grad():
            torch._foreach_copy_(self.tensors, self.saved)
        for p in self.named.values():
            p.grad = None
        return self.net.eval()

    def structure(self, with_example: bool) -> Structure:
        """What the package reads, as ``make_regularizer(..., example=)`` does."""
        if with_example not in self._read:
            try:
                self._read[with_example] = read(self.fresh(), self.example if with_example else None)
            except ValueError as error:
                self._read[with_example] = error
        found = self._read[with_example]
        if isinstance(found, ValueError):
            raise found
        return found

    def reads_alike(self) -> bool:
        """Whether the same is read without an example: then a cell is the same, too."""
        try:
            return self.structure(True) == self.structure(False)
        except ValueError:
            return False


class Cell:
    """One method on one network."""

    def __init__(self, case: Case, with_example: bool, said: list[warnings.WarningMessage]) -> None:
        self.case, self.expected, self.with_example, self.said = case, case.expected, with_example, said
        self.net, self.first = case.fresh(), case.first

    def make(self, method: str, **settings: Any) -> Regularizer:
        """The regularizer, by whichever way this cell is for."""
        return make_regularizer(method, self.net, structure=self.case.structure(self.with_example), **settings)

    @torch.no_grad()
    def move_norms_(self) -> None:
        """Other gains and shifts of torch's norm layers, so that those of a new unit are seen to be new."""
        numbers = torch.Generator().manual_seed(4)
        for module in self.net.modules():
            if isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.RMSNorm | nn.modules.batchnorm._NormBase):
                for p in module.parameters():
                    p.add_(torch.rand(p.shape, generator=numbers))
        self.first = {name: p.detach().clone() for name, p in self.case.named.items()}

    def project_(self, method: str, *, grow: bool = False, **settings: Any) -> dict[str, Tensor]:
        """Make a regularizer, grow the parameters if wanted, and project them once; returns what they were before."""
        regularizer = self.make(method, **settings)
        regularizer.penalty(self.net)
        before = self.grow_() if grow else self.first
        regularizer.project_(self.net, *regularizer.given_lr(1.0))
        return before

    def intervene_(self, name: str, **settings: Any) -> None:
        """A reset of layers, which reads the network as it is at first: once for all of them."""
        example = self.case.example if self.with_example else None
        with mock.patch.object(resets, "read", lambda net, given=None: self.case.structure(given is not None)):
            make = self.expected.make if name == "head" else None
            make_intervention(name, **settings).apply_(self.net, (), example=example, make=make)

    @property
    def left(self) -> set[str]:
        """The parameters of which a warning says that they are left alone."""
        told = [str(w.message) for w in self.said if "roles=" in str(w.message)]  # what to say of them
        return {name for message in told for name in re.findall(r"[\w.]+", message)} & {*self.case.parameters}

    @torch.no_grad()
    def grow_(self) -> dict[str, Tensor]:
        """Each trained parameter times a number of its own; returns what all are then."""
        numbers = torch.Generator().manual_seed(2)
        for p in self.case.parameters.values():
            p.mul_(1 + torch.rand((), generator=numbers))
        return {name: p.detach().clone() for name, p in self.case.named.items()}

    def matrices(self, *, tables: bool = False, heads: bool = True) -> list["Matrix"]:
        """The trained matrices of linear and convolution layers, and where wanted the tables."""
        found = []
        for matrix in self.case.matrices:
            wanted = tables if matrix.kind != "layer" else heads or not matrix.head
            if wanted and matrix.parameter not in self.left:
                assert not is_in(matrix.parameter, self.expected.factors), f"acts on the factor {matrix.parameter}"
                found.append(matrix)
        return found

    def gains(self, *kinds: str) -> list[str]:
        """The names of the trained gains, of ``norms``, of ``gains`` or of both."""
        patterns = [p for kind in kinds or ("norms", "gains") for p in getattr(self.expected, kind)]
        return [name for name in self.case.parameters if is_in(name, patterns) and name not in self.left]

    def vectors(self) -> list[str]:
        """The names of the trained biases, shifts and tokens."""
        taken = {*self.gains(), *self.left} | {p for m in self.matrices(tables=True) for p in m.trained}
        return [
            name
            for name in self.case.parameters
            if name not in taken and not is_in(name, self.expected.undecided) and not of_activation(self.net, name)
        ]

    def bias_of(self, matrix: "Matrix") -> str | None:
        """The bias that goes with a matrix: torch's names, or as the definition says."""
        said = {weight: bias for bias, weight in self.expected.biases.items()}
        owner, _, last = matrix.parameter.rpartition(".")
        name = said.get(matrix.parameter, f"{owner}.{last.replace('weight', 'bias')}".lstrip("."))
        is_other = name == matrix.parameter or name not in self.vectors()
        return None if is_other or (name in self.expected.biases and matrix.parameter not in said) else name

    def assert_left_alone(self, changed: Iterable[str], before: dict[str, Tensor]) -> None:
        """That no parameter but these is another one now."""
        changed = {*changed}
        for name, p in self.case.named.items():
            assert name in changed or torch.equal(p, before[name]), f"{name} was changed"


class Matrix(NamedTuple):
    """A matrix of a network, wherever it is stored.

    Attributes:
        name: the layer's; of a bare parameter its own.
        trained: the parameters that it is, or is computed from.
        kind: layer, embedding (looked up) or table (added).
    """

    name: str
    parameter: str
    kind: str
    layout: str
    groups: int
    head: bool
    trained: tuple[str, ...]

    def of(self, tensor: Tensor) -> Tensor:
        """A tensor like the stored one, as ``[out, fan_in]``, a view where that can be."""
        if self.layout == "transposed":  # [in, out / groups, ...]
            return tensor.unflatten(0, (self.groups, -1)).transpose(1, 2).flatten(0, 1).flatten(1)
        return tensor.squeeze().flatten(1) if self.layout == "table" else tensor.flatten(1)

    def now(self, net: nn.Module) -> Tensor:
        """``[out, fan_in]``."""
        owner, _, last = self.parameter.rpartition(".")
        return self.of(getattr(net.get_submodule(owner), last))

    def by_group(self, matrix: Tensor) -> Tensor:
        """``[groups, out / groups, fan_in]``."""
        return matrix.unflatten(0, (self.groups, -1))


def matrices_of(net: nn.Module, expected: Expected) -> list[Matrix]:
    """Every trained matrix and table of a network."""
    modules, found = dict(net.named_modules()), []
    others = (*expected.undecided, *expected.norms, *expected.gains, *expected.vectors)
    for name, p in net.named_parameters():
        owner = name.rpartition(".")[0]
        if ".parametrizations." in f".{name}":
            layer, _, rest = f".{name}".partition(".parametrizations.")
            layer, tensor = layer.lstrip("."), rest.partition(".")[0]
            computed = f"{layer}.{tensor}".lstrip(".")
            if p.requires_grad and tensor == "weight" and not any(m.parameter == computed for m in found):
                trained = [n for n, q in net.named_parameters() if n.startswith(owner) and q.ndim]
                groups, head = getattr(modules[layer], "groups", 1), layer in expected.heads
                found.append(Matrix(layer, computed, "layer", "plain", groups, head, (*trained,)))
            continue
        table = is_in(name, expected.tables)
        if not p.requires_grad or p.ndim < 2 or is_in(name, others) or (table and sum(n != 1 for n in p.shape) < 2):
            continue
        module = modules[owner]
        kind = "embedding" if isinstance(module, nn.Embedding | nn.EmbeddingBag) else "table" if table else "layer"
        layout = "transposed" if is_in(name, expected.transposed) else "table" if kind == "table" else "plain"
        head = bool({owner, name} & {*expected.heads}) and not isinstance(module, nn.RNNBase)
        found.append(Matrix(name, name, kind, layout, getattr(module, "groups", 1), head, (name,)))
    return found


def is_in(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def of_activation(net: nn.Module, name: str) -> bool:
    """Whether a parameter is the shape of an activation, which is no gain and no bias."""
    return isinstance(net.get_submodule(name.rpartition(".")[0]), nn.PReLU)


def widened(example: Any) -> Any:
    return with_tensors(example, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def called(net: nn.Module, example: Any) -> list[Tensor]:
    """The numbers that a network returns."""
    args, kwargs = arguments_of(example)
    return [t for t in tensors_in(net(*args, **kwargs)) if t.is_floating_point() and t.ndim]


@torch.no_grad()
def values(net: nn.Module, example: Any) -> list[Tensor]:
    return [t.clone() for t in called(net, example)]


def assert_close(actual: Tensor, wanted: Tensor, what: str = "", rtol: float = 0.0) -> None:
    """That two tensors are equal, to the digits of the first one's type."""
    rtol = max(rtol, {torch.float64: 1e-6, torch.float32: 2e-4}.get(actual.dtype, 2e-2))
    size = wanted.detach().abs().max().item() if wanted.numel() else 0.0
    actual, wanted, atol = actual.double(), wanted.double(), rtol * 0.1 * size + 1e-12
    if actual.shape != wanted.shape or not torch.allclose(actual, wanted, rtol=rtol, atol=atol):
        torch.testing.assert_close(actual, wanted, rtol=rtol, atol=atol, msg=lambda m: f"{what}: {m}")


def penalized(cell: Cell, regularizer: Regularizer, wanted: Tensor, what: str) -> None:
    """The penalty and its gradient are those of a number that was computed by hand."""
    parameters = cell.case.parameters
    assert wanted.requires_grad, "acts on what it has nothing to do with"
    of_hand = torch.autograd.grad(wanted, [*parameters.values()], allow_unused=True)
    penalty = regularizer.penalty(cell.net)
    of_method = torch.autograd.grad(penalty, [*parameters.values()], allow_unused=True)
    assert_close(penalty, wanted, what)
    for name, mine, theirs in zip(parameters, of_hand, of_method, strict=True):
        zero = torch.zeros_like(parameters[name])
        assert_close(zero if theirs is None else theirs, zero if mine is None else mine, f"gradient of {name}")


def l2(cell: Cell) -> None:
    regularizer = cell.make("l2", coef=0.5)
    total = sum(p.double().square().sum() for p in cell.case.parameters.values())
    penalized(cell, regularizer, 0.25 * total, "l2")


def spectral(cell: Cell) -> None:
    weak = 2.0**-16  # of a strong one the penalty of a table would be said to outweigh the loss
    regularizer = cell.make("spectral", coef=weak)
    penalty, parameters = regularizer.penalty(cell.net) / weak, cell.case.parameters
    assert penalty.requires_grad, "acts on nothing"
    given = torch.autograd.grad(penalty, [*parameters.values()], allow_unused=True)
    gradients = {name: g for name, g in zip(parameters, given, strict=True) if g is not None and g.any()}
    total, touched = torch.zeros((), dtype=torch.float64), set()
    for matrix in cell.matrices(tables=True):
        sigma = torch.linalg.svdvals(matrix.now(cell.net).double())[0]
        total = total + (sigma**2 - 1) ** 2
        touched.update(matrix.trained)
        if (matrix.parameter,) == matrix.trained and matrix.parameter in gradients:
            size = matrix.of(gradients[matrix.parameter]).double().norm()
            wanted = 4 * sigma * (sigma**2 - 1).abs()
            assert (size - wanted).abs() <= 0.02 * wanted + 1e-3, f"gradient of {matrix.parameter}: {size}, {wanted}"
    for name in cell.gains():
        total = total + (parameters[name].double() - 1).square().sum()
        touched.add(name)
    for name in cell.vectors():
        total = total + parameters[name].double().square().sum() ** 2
        touched.add(name)
    assert_close(penalty, total, "spectral", 1e-3)
    assert {*gradients} <= touched, f"pulls at {sorted({*gradients} - touched)}"


def parseval(cell: Cell) -> None:
    regularizer = cell.make("parseval", coef=0.5)
    total = torch.zeros(())
    for matrix in cell.matrices(heads=False):
        w = matrix.by_group(matrix.now(cell.net))
        total = total + (w @ w.mT - 2 * torch.eye(w.shape[1], dtype=w.dtype)).square().sum()
    penalized(cell, regularizer, 0.5 * total, "parseval")


def churn(cell: Cell) -> None:
    regularizer = cell.make("churn", coef=0.5)
    before = values(cell.net, cell.case.example)
    cell.grow_()
    after = values(cell.net, cell.case.example)
    wanted = sum((a.double() - b).square().mean() for a, b in zip(after, before, strict=True))
    assert_close(regularizer.penalty(cell.net, cell.case.example), 0.5 * wanted, "churn")


def feature_rank(cell: Cell) -> None:
    regularizer = cell.make("feature_rank", coef=1.0)
    seen: dict[str, list[Tensor]] = {name: [] for name in cell.expected.heads}
    modules = dict(cell.net.named_modules())

    def hook(name: str) -> Callable[..., None]:
        return lambda module, given: seen[name].append(given[0].detach())

    assert {*seen} <= {*modules}, "acts on what is no module"
    trained = [n for n in seen if any(p.requires_grad for p in modules[n].parameters())]
    hooks = [modules[name].register_forward_pre_hook(hook(name)) for name in trained]
    values(cell.net, cell.case.example)
    for one in hooks:
        one.remove()
    wanted = torch.zeros((), dtype=torch.float64)
    for name in trained:
        conv = isinstance(modules[name], nn.modules.conv._ConvNd)
        features = [x.movedim(1, -1) if conv else x for x in seen[name]]
        matrix = torch.cat([x.reshape(-1, x.shape[-1]).double() for x in features])
        sigma = torch.linalg.svdvals(matrix)
        least = sigma[-1] ** 2 if matrix.shape[0] >= matrix.shape[1] else 0
        wanted = wanted + sigma[0] ** 2 - least
    with torch.no_grad():
        for _ in range(8):
            penalty = regularizer.penalty(cell.net, cell.case.example)
            regularizer.project_(cell.net)
    # Power iteration comes from below.
    assert 0.6 * wanted <= penalty <= wanted * (1 + 1e-4) + 1e-9, f"{penalty} for {wanted}"


def weight_clipping(cell: Cell) -> None:
    cell.project_("weight_clipping", coef=0.3)
    wanted = {name: p.clone() for name, p in cell.first.items()}
    for matrix in cell.matrices():
        bound = 0.3 / math.sqrt(matrix.of(wanted[matrix.parameter]).shape[1])
        wanted[matrix.parameter].clamp_(-bound, bound)
        if bias := cell.bias_of(matrix):
            wanted[bias].clamp_(-bound, bound)
    for name, p in cell.case.named.items():
        assert_close(p, wanted[name], name)


def of_matrices(
    method: str, wanted: Callable[[Tensor, Tensor], Tensor], heads: bool = False, **settings: Any
) -> Callable[[Cell], None]:
    """A projection of each matrix ``[groups, out, in]``: what becomes of it, given what it was at first."""

    def oracle(cell: Cell) -> None:
        grown = cell.project_(method, grow=True, **settings)
        changed = set()
        for matrix in cell.matrices(heads=heads):
            first, w = (matrix.by_group(matrix.of(t[matrix.parameter]).double()) for t in (cell.first, grown))
            assert_close(matrix.by_group(matrix.now(cell.net)), wanted(first, w), matrix.name)
            changed.add(matrix.parameter)
        if method == "wrs":
            for gain in cell.gains("norms"):
                shift = re.sub(r"weight(\w*)$", r"bias\1", gain)
                for name in {gain, shift} & {*cell.case.parameters}:
                    assert_close(cell.net.get_parameter(name), 0.75 * grown[name], name)
                    changed.add(name)
        cell.assert_left_alone(changed, grown)

    return oracle


def unit_rows(_: Tensor, w: Tensor) -> Tensor:
    norm = w.norm(dim=-1, keepdim=True)
    return torch.where(norm > 0, w / norm, w)


@torch.no_grad()
def exact_values(cell: Cell) -> list[Tensor]:
    """The outputs where norm layers know the size of their input no longer: batch statistics, no epsilon."""
    changed: list[tuple[nn.Module, str, Any]] = []
    net = copy.deepcopy(cell.net).double() if cell.case.is_half else cell.net
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            changed.append((module, "training", False))
            module.training = True
        for name in ("eps", "epsilon", "variance_epsilon"):
            if isinstance(getattr(module, name, None), float):
                changed.append((module, name, getattr(module, name)))
                setattr(module, name, 1e-30)
    buffers = [(b, b.clone()) for b in net.buffers()]
    try:
        return values(net, widened(cell.case.example) if cell.case.is_half else cell.case.example)
    finally:
        for module, name, value in changed:
            setattr(module, name, value)
        for buffer, value in buffers:
            buffer.copy_(value)


def swr(cell: Cell) -> None:
    regularizer = cell.make("swr", coef=0.5)
    grown, before = cell.grow_(), exact_values(cell)
    regularizer.project_(cell.net)

    def c(first: Tensor, now: Tensor) -> Tensor:
        norm = now.double().norm()
        return 0.5 * first.double().norm() / norm + 0.5 if norm > 0 else torch.ones(())

    changed = set()
    for matrix in cell.matrices(tables=True):
        if matrix.kind != "table":
            first, w = (matrix.of(tensors[matrix.parameter]) for tensors in (cell.first, grown))
            assert_close(matrix.now(cell.net), c(first, w) * w, matrix.name)
            changed.add(matrix.parameter)
    for name in cell.gains():
        wanted = c(cell.first[name], grown[name]) * grown[name]
        assert_close(cell.net.get_parameter(name), wanted, name)
        changed.add(name)
    for name in cell.vectors():  # by one factor; which one, what the network returns shows
        p, w = cell.net.get_parameter(name).double(), grown[name].double()
        assert_close(cell.net.get_parameter(name), w * ((p * w).sum() / w.square().sum()), name)
        changed.add(name)
    cell.assert_left_alone(changed, grown)
    if not any(re.search(r"^swr (?!.*roles=)", str(warning.message)) for warning in cell.said):
        for after, output in zip(exact_values(cell), before, strict=True):
            factor = (after * output).sum() / output.square().sum()
            assert_near(after, factor * output, cell, "f' = C f")


def swr_preserving(cell: Cell) -> None:
    regularizer = cell.make("swr", coef=0.5, scope="preserving")
    cell.grow_()
    before = exact_values(cell)
    regularizer.project_(cell.net)
    for after, output in zip(exact_values(cell), before, strict=True):
        assert_near(after, output, cell, "f' = f")


def assert_near(after: Tensor, wanted: Tensor, cell: Cell, what: str) -> None:
    """That they are equal but for what an epsilon, or half precision, leaves."""
    off = (after - wanted).nan_to_num(0).norm() / wanted.nan_to_num(0).norm().clamp(min=1e-12)
    assert off < (0.05 if cell.case.is_half else 1e-3), f"{what}: off by {off:.1%}"


class Recycled(NamedTuple):
    """What is new of units that were recycled: entries by the names of their parameters."""

    weights: dict[str, Tensor]
    norms: dict[str, Tensor]
    biases: dict[str, Tensor]


def recycled(cell: Cell) -> Recycled:
    """What makes units is new and not zero; what reads them is zero."""
    of_norms = {*cell.gains(), *(f"{name.rpartition('.')[0]}.bias" for name in cell.gains())}
    found = Recycled({}, {}, {})
    for name, p in cell.case.named.items():
        new = p != cell.first[name]
        kind = found.norms if name in of_norms else found.biases if p.ndim == 1 else found.weights
        if (new := new & (p != 0) if kind is found.weights else new).any():
            kind[name] = new
    return found


@torch.no_grad()
def moves(cell: Cell, entries: dict[str, Tensor]) -> bool:
    """Whether the outputs depend on these entries."""
    before, saved = values(cell.net, cell.case.example), {n: cell.net.get_parameter(n).clone() for n in entries}
    noise = torch.Generator().manual_seed(3)
    for name, where in entries.items():
        p = cell.net.get_parameter(name)
        p.copy_(torch.where(where, torch.randn(p.shape, generator=noise).to(p), p))
    after = values(cell.net, cell.case.example)
    for name, value in saved.items():
        cell.net.get_parameter(name).copy_(value)
    return any(not torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(after, before, strict=True))


def assert_unread(cell: Cell, new: Recycled) -> None:
    """That what the network returns does not depend on what makes the units that were recycled."""
    assert not moves(cell, new.norms), "the outputs depend on gains and shifts of recycled units"
    if moves(cell, new.weights | new.biases):
        # Behind a norm layer a unit moves the others through the layer's statistics: each such layer has a gain here.
        moving = [name for name, where in new.weights.items() if moves(cell, {name: where})]
        gains = [name for name in new.norms if name in cell.gains()]
        plain = cell.expected.statistics
        assert len(moving) <= len(gains) or plain, f"the outputs depend on recycled units' {moving}"


@torch.no_grad()
def silence_(cell: Cell, made: Recycled) -> dict[str, int]:
    """Make zero all that makes one unit of each layer in `made`: its number by the weight's name."""
    silent = {}
    for matrix in cell.matrices():
        if matrix.parameter in made.weights:
            row = int(matrix.of(made.weights[matrix.parameter]).any(1).nonzero()[0])
            p = cell.net.get_parameter(matrix.parameter)
            numbers = torch.arange(p.numel()).reshape(p.shape)
            p.masked_fill_(torch.isin(numbers, matrix.of(numbers)[row]), 0)
            silent[matrix.parameter] = row
    for name, where in {**made.norms, **made.biases}.items():
        cell.net.get_parameter(name).masked_fill_(where, 0)
    return silent


def of_units(method: str, at_least: bool, **settings: Any) -> Callable[[Cell], None]:
    """A projection that recycles units by a batch, at least one of them or maybe none."""

    def oracle(cell: Cell) -> None:
        regularizer = cell.make(method, **settings)
        cell.move_norms_()
        regularizer.penalty(cell.net, cell.case.example)
        regularizer.project_(cell.net)
        new = recycled(cell)
        assert new.weights or not at_least, "no unit was recycled"
        assert_unread(cell, new)

    return oracle


def redo(cell: Cell) -> None:
    example = cell.case.example if cell.with_example else None
    cell.move_norms_()
    make_intervention("redo", threshold=1.0).apply_(cell.net, (), example=example, make=cell.expected.make)
    new = recycled(cell)
    assert new.weights, "no unit was recycled"
    assert_unread(cell, new)
    cell.case.fresh()
    silent = silence_(cell, new)
    before = values(cell.net, cell.case.example)
    done = make_intervention("redo", threshold=0.0).apply_(cell.net, (), example=example, make=cell.expected.make)
    for matrix in cell.matrices():
        # Behind a norm layer without gains, zero is no longer zero.
        if matrix.parameter in silent and int(done["reset_units"]) and not cell.expected.statistics:
            row = matrix.now(cell.net)[silent[matrix.parameter]]
            assert row.any(), f"the silent unit of {matrix.name} was not recycled"
    if not new.norms and not cell.expected.statistics:
        for after, output in zip(values(cell.net, cell.case.example), before, strict=True):
            assert_close(after, output, "recycling silent units moves the outputs")


def head(cell: Cell) -> None:
    torch.default_generator.manual_seed(5)
    fresh = dict(cell.expected.make().named_parameters())
    torch.default_generator.manual_seed(5)
    cell.intervene_("head")
    layers = cell.expected.heads if cell.expected.classifier is None else cell.expected.classifier
    of_heads = {name for name in cell.case.parameters if any(name in (y, re.sub(r"\.\d+$", "", y)) for y in layers)}
    of_heads |= {name for name in cell.case.parameters if re.sub(r"\.parametrizations\..*|\.\w+$", "", name) in layers}
    of_heads |= {bias for bias, weight in cell.expected.biases.items() if weight in of_heads}
    for name in of_heads:
        assert_close(cell.net.get_parameter(name), fresh[name].to(cell.first[name].dtype), name)
    cell.assert_left_alone(of_heads, cell.first)


def fire(cell: Cell) -> None:
    cell.intervene_("fire", iterations=30)
    changed = set()
    for matrix in cell.matrices():
        changed.add(matrix.parameter)
        first, now = cell.first[matrix.parameter].double(), cell.net.get_parameter(matrix.parameter)
        bilinear = isinstance(cell.net.get_submodule(matrix.parameter.rpartition(".")[0]), nn.Bilinear)
        if first.ndim > 2 and not bilinear:  # a kernel: each position by itself
            split = first.unflatten(0, (matrix.groups, -1)).movedim((1, 2), (-2, -1))
            positions = first[0, 0].numel()
            out, fan_in = split.shape[-2:][:: -1 if matrix.layout == "transposed" else 1]
            wanted = (polar(split) * math.sqrt(out / fan_in) / positions).movedim((-2, -1), (1, 2)).flatten(0, 1)
            assert_close(now, wanted, matrix.name, 1e-4)
        else:
            w = matrix.of(first)
            wanted = polar(w) * math.sqrt(w.shape[0] / w.shape[1])
            assert_close(matrix.of(now), wanted, matrix.name, 1e-4)
    cell.assert_left_alone(changed, cell.first)


def polar(w: Tensor) -> Tensor:
    """The orthogonal matrix nearest to it; what is zero stays so."""
    u, sigma, vh = torch.linalg.svd(w, full_matrices=False)
    return (u * (sigma > 1e-7).to(u).unsqueeze(-2)) @ vh


ORACLES: dict[str, Callable[[Cell], None]] = {
    "l2": l2,
    "churn": churn,
    "spectral": spectral,
    "weight_clipping": weight_clipping,
    "hypersphere": of_matrices("hypersphere", unit_rows, heads=True),
    "fire": fire,
    "parseval": parseval,
    "orthogonal": of_matrices("orthogonal", lambda _, w: w - 0.04 * (w @ w.mT @ w - w), coef=0.01),
    "normalize_project": of_matrices("normalize_project", lambda first, w: w * (first.norm() / w.norm())),
    "wrs": of_matrices("wrs", unit_rows, every_updates=1, norm_decay=0.25),
    "head": head,
    "feature_rank": feature_rank,
    "swr": swr,
    "swr scope=preserving": swr_preserving,
    "redo": redo,
    "continual_backprop": of_units("continual_backprop", True, coef=1.0, maturity=0),
    "self_normalized_resets": of_units("self_normalized_resets", False, every_updates=1, least=1, most=1),
}


class Result(NamedTuple):
    word: str
    why: str


def result(case: Case, method: str, with_example: bool) -> Result:
    torch.default_generator.manual_seed(1)  # torch.manual_seed looks for other devices, which takes longer
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            ORACLES[method](Cell(case, with_example, said))
        except Exception as error:
            return failed(error)
    ours = [str(w.message) for w in said if "site-packages" not in w.filename]
    return Result(WARNED, ours[0]) if ours else Result(RIGHT, "")


def failed(error: Exception) -> Result:
    """Refused by the package in a useful line, wrong by an oracle, or a crash."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    lines = "; ".join(str(error).split("\n"))
    of_package = "rl_plasticity" in Path(last.filename).parts
    if isinstance(error, AssertionError) and not of_package:
        return Result(WRONG, lines)
    if isinstance(error, ValueError | RuntimeError) and of_package and "\n" not in str(error) and USEFUL.search(lines):
        return Result(REFUSED, lines)
    return Result(CRASH, f"{type(error).__name__}: {lines} ({Path(last.filename).name}:{last.lineno})")


# What an example changes of a method beyond what is read of the network.
BY_EXAMPLE = ("swr", "swr scope=preserving", "redo", "continual_backprop", "self_normalized_resets")


def results(case: Case) -> dict[tuple[str, bool], Result]:
    """Every method on one network, with an example and without."""
    found = {(method, True): result(case, method, True) for method in ORACLES}
    for method in ORACLES:
        same = method not in BY_EXAMPLE and case.reads_alike()
        found[method, False] = found[method, True] if same else result(case, method, False)
    return found
