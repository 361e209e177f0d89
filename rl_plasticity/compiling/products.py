"""Float32 matrix products by oneDNN, which on some AMD processors take half the time of torch's own (MKL).

``torch.ops.rl_plasticity.product(a, b)`` is a b^T for each run: ``[runs, m, k], [runs, n, k] -> [runs, m, n]``, for
tensors on a CPU. It has gradients, and `rewrites` lowers it in compiled updates.
"""

from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("rl_plasticity", "DEF")  # type: ignore[no-untyped-call]
_library.define("product(Tensor a, Tensor b) -> Tensor")  # type: ignore[no-untyped-call]


def onednn(a: Tensor, b: Tensor) -> Tensor:
    """a b^T for each run, without gradients."""
    linear = torch.ops.mkldnn._linear_pointwise
    products = [linear(x, w, None, "none", [], "") for x, w in zip(a.unbind(), b.unbind(), strict=True)]
    return products[0].unsqueeze(0) if len(products) == 1 else torch.stack(products)


def _shape(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(*a.shape[:2], b.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
    (a, b), (to_a, to_b) = ctx.saved_tensors, ctx.needs_input_grad
    product = torch.ops.rl_plasticity.product
    return product(gradient, b.mT) if to_a else None, product(gradient.mT, a.mT) if to_b else None


_library.impl("product", onednn, "CPU")  # type: ignore[no-untyped-call]
_library.impl("product", _shape, "Meta")  # type: ignore[no-untyped-call]
torch.library.register_autograd("rl_plasticity::product", _backward, setup_context=_keep, lib=_library)
