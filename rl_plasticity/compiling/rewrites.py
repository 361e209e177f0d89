"""Changes of the compiled update's graph before inductor makes code of it.

- Autograd gives a weight's gradient as the transpose of x^T g, and Adam would read it in the slow order of memory. It
  becomes g^T x.
- baddbmm first copies its bias over the whole output. Instead the bias is added in the pass that reads the product.
- The factors of Adam's step, a few float64 powers for each run, would be computed again for every 16 weights. They are
  stored, and so are draws and masks of units.
- Equal operations are computed once, for example the activations that a regularizer also reads, and the rounding of
  weights that several products read in bfloat16.
- A copy of a weight that is kept has the values from before the step.
"""

import operator
from collections.abc import Callable
from graphlib import TopologicalSorter
from typing import Any

import torch
from torch import fx
from torch._inductor import ir
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.lowering import lowerings, register_lowering
from torch._inductor.mkldnn_ir import LinearUnary

from rl_plasticity.compiling import products

aten, prims = torch.ops.aten, torch.ops.prims
TRANSPOSE = [0, 2, 1]


@register_lowering(torch.ops.rl_plasticity.product.default, type_promotion_kind=None)
def _product(a: Any, b: Any) -> Any:
    """`products.onednn` in a compiled graph."""
    select, parts = lowerings[aten.select.int], []
    for run in range(int(a.get_size()[0])):
        x, w = (select(factor, 0, run) for factor in (a, b))
        made = LinearUnary.create(x, w, None, "none", [], "")  # type: ignore[no-untyped-call]
        parts.append(lowerings[aten.unsqueeze.default](ir.TensorBox.create(made), 0))
    return parts[0] if len(parts) == 1 else lowerings[aten.cat.default](parts, 0)


class Rewrites(CustomGraphPass):
    """Makes the changes of the graph that the top of this file lists."""

    def __call__(self, graph: fx.Graph) -> None:
        _merge_equal(graph)
        _copy_before_change(graph)
        for node in list(graph.nodes):
            if node.target is aten.baddbmm.default and not node.kwargs:
                _add_bias_later(graph, node)
            elif node.target is aten.bmm.default and all(_transposes(user) for user in node.users):
                _transpose_factors(graph, node)
            elif _is_dear(node):
                _store(graph, node)

    def uuid(self) -> bytes:
        """The key of this version of the pass in inductor's cache."""
        return get_hash_for_files((__file__, products.__file__))


def _add_bias_later(graph: fx.Graph, node: fx.Node) -> None:
    bias, a, b = node.args
    with graph.inserting_before(node):
        total = _call(graph, aten.add.Tensor, _call(graph, aten.bmm.default, a, b), bias)
    node.replace_all_uses_with(total)
    graph.erase_node(node)


def _transpose_factors(graph: fx.Graph, node: fx.Node) -> None:
    """(a b)^T -> b^T a^T."""
    a, b = node.args
    with graph.inserting_before(node):
        transposed = (_call(graph, aten.permute.default, factor, TRANSPOSE) for factor in (b, a))
        product = _call(graph, aten.bmm.default, *transposed)
    for user in list(node.users):
        user.replace_all_uses_with(product)
        graph.erase_node(user)
    graph.erase_node(node)


def _store(graph: fx.Graph, node: fx.Node) -> None:
    """Make inductor store a value, by a view through strides, which needs memory."""
    value = node.meta["val"]
    with graph.inserting_after(node):
        stored = _call(graph, aten.as_strided.default, node, list(value.shape), list(value.stride()))
    node.replace_all_uses_with(stored, delete_user_cb=lambda user: user is not stored)


def _copy_before_change(graph: fx.Graph) -> None:
    """Order the writes at the graph's end: an input is copied to another one before it changes itself.

    Torch writes in the order of the inputs. With ``previous.copy_(weight); weight.add_(1)`` and nothing computed in
    between, it would write the new weight to both.
    """
    copies = [node for node in graph.nodes if node.target is aten.copy_.default]
    readers: dict[Any, set[fx.Node]] = {}
    for node in copies:
        source = node.args[1]
        while isinstance(source, fx.Node) and source.op == "call_function" and _is_view(source.target):
            source = source.args[0]
        readers.setdefault(source, set()).add(node)
    before = {node: readers.get(node.args[0], set()) - {node} for node in copies}
    if any(before.values()):
        end = next(node for node in reversed(graph.nodes) if node.op == "output")
        for node in TopologicalSorter(before).static_order():  # two inputs that are exchanged are a CycleError
            end.prepend(node)


def _is_view(target: Any) -> bool:
    """Whether the result shares the memory of the first argument."""
    if target in (operator.getitem, aten._unsafe_view.default):
        return True
    returns = target._schema.returns if isinstance(target, torch._ops.OpOverload) else []
    return bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write


def _merge_equal(graph: fx.Graph) -> None:
    """Keep only the first of several operations with the same arguments: nothing changes before the graph's end."""
    first: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is operator.getitem or (node.op == "call_function" and not _is_impure(node.target)):
            known = first.setdefault((node.target, _hashable([node.args, node.kwargs])), node)
            returned = any(user.op == "output" for user in node.users)  # two results do not share their memory
            if known is not node and not returned:
                node.replace_all_uses_with(known)
                graph.erase_node(node)


def _is_impure(target: Any) -> bool:
    """Whether two calls with the same arguments may give different results."""
    if not isinstance(target, torch._ops.OpOverload):
        return True
    return target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, _hashable(one)) for name, one in value.items())
    if isinstance(value, list | tuple):
        return tuple(_hashable(one) for one in value)
    # With type and text, because 1, 1.0 and True are equal, and 0.0 and -0.0.
    return value if isinstance(value, fx.Node) else (type(value), repr(value))


def _is_dear(node: fx.Node) -> bool:
    """Whether it is converted from float64 (Adam's factors) or from whole numbers (draws), or is a mask of units."""
    if node.target is prims.convert_element_type.default:
        return node.args[0].meta["val"].dtype in (torch.float64, torch.int64)  # type: ignore[union-attr]
    return node.target is aten.bitwise_and.Tensor and node.meta["val"].dtype == torch.bool


def _transposes(node: fx.Node) -> bool:
    return node.target is aten.permute.default and node.args[1] == TRANSPOSE


def _call(graph: fx.Graph, target: Callable[..., Any], *args: Any) -> fx.Node:
    node = graph.call_function(target, args)
    node.meta["val"] = target(*(a.meta["val"] if isinstance(a, fx.Node) else a for a in args))
    return node
