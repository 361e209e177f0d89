"""The number format of the factors of large matrix products: float32, or bfloat16 if the machine has units for it.

The two factors of a large product are rounded to bfloat16's 8 bits of mantissa, summed in float32, and the sum is
rounded once. All else is float32: parameters, optimizers, losses, norm layers, targets and the discount (0.99 would be
0.988 in bfloat16), penalties, projections and small products, where rounding costs more than it saves. A measurement
decides which products are large.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError
from rl_plasticity.networks.mlp import StackedLinear

BATCH = 256
WIDTHS = (16, 32, 64, 128, 256, 512)
REPEATS = 15


def has_bfloat16(device: str) -> bool:
    """Whether the device has units for bfloat16 products: without them, such products take four times as long."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def decided(precision: str, device: str) -> str:
    """The precision that ``auto`` stands for on this device; any other as it is.

    Raises:
        SettingsError: the device cannot compute in this precision, or only slower than in float32.
    """
    if precision == "auto":
        return "bfloat16" if has_bfloat16(device) else "float32"
    if precision == "tf32" and device != "cuda":
        raise SettingsError("precision=tf32 is for GPUs; use precision=float32, bfloat16 or auto")
    if precision == "bfloat16" and not has_bfloat16(device):
        lacks = "this GPU has no units for it" if device == "cuda" else "this processor has neither AMX nor AVX512-BF16"
        raise SettingsError(f"precision=bfloat16: {lacks}, so it would be slower; use precision=float32 or auto")
    return precision


@cache
def pays_from(device: str, runs: int) -> int:
    """The smallest width for which a layer's three products are faster with rounded factors, including the rounding.

    It is measured when called, in a third of a second. A layer's width is the smaller one of its inputs and outputs. If
    bfloat16 never pays, the result is a width that no layer has.
    """
    least = 2**31
    for width in reversed(WIDTHS):
        if _seconds(width, torch.bfloat16, device, runs) > _seconds(width, torch.float32, device, runs):
            break
        least = width
    return least


def _seconds(width: int, operands: torch.dtype, device: str, runs: int) -> float:
    """The shortest of several repetitions of a layer's products: their time without disturbance."""
    x, weight = torch.ones(runs, BATCH, width, device=device), torch.ones(runs, width, width, device=device)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        a, w = x.to(operands), weight.to(operands)
        g = torch.bmm(a, w.mT).float().to(operands)
        torch.bmm(g, w).float()
        torch.bmm(g.mT, a).float()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[2:])


@contextmanager
def tf32(on: bool) -> Iterator[None]:
    """Round the factors of products and convolutions on GPUs to TF32's 10 bits of mantissa, if `on`."""
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "tf32" if on else switch.fp32_precision
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


def in_bfloat16(net: nn.Module, device: str) -> Callable[..., Tensor]:
    """A function that calls a network without a runs axis in bfloat16 (``torch.autocast``).

    Its products, convolutions and activations are bfloat16. Norm layers sum in float32, and the output is float32.
    """

    def call(*inputs: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            output: Tensor = net(*inputs)
        return output.float()

    return call


def read_bfloat16_(module: nn.Module, least_width: int) -> int:
    """Let the layers of `module` with at least `least_width` inputs and outputs read bfloat16.

    Returns:
        The number of these layers. For layers without a runs axis, ``torch.autocast`` does this instead.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, StackedLinear)]
    for layer in layers:
        wide = min(layer.in_features, layer.out_features) >= least_width
        layer.operands = torch.bfloat16 if wide else None
    return sum(layer.operands is not None for layer in layers)
