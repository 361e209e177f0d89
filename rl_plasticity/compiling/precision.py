"""The number format of the factors of large matrix products, and on a CPU the library that multiplies them.

The two factors of a large product are rounded to bfloat16's 8 bits of mantissa, summed in float32, and the sum is
rounded once. All else is float32: parameters, optimizers, losses, norm layers, targets and the discount (0.99 would be
0.988 in bfloat16), penalties, projections and small products, where rounding costs more than it saves. A measurement
decides which products are large, and whether in float32 oneDNN (`products`) makes them faster than torch's own library.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rl_plasticity.compiling.compiled import kept_beside
from rl_plasticity.compiling.products import onednn
from rl_plasticity.errors import SettingsError
from rl_plasticity.networks.mlp import StackedLinear
from rl_plasticity.seeding import one_thread

BATCH = 256
WIDTHS = (16, 32, 64, 128, 256, 512)
REPEATS = 15
NEVER = 2**31  # a width that no layer has
PAYS = {"bfloat16": 1.0, "onednn": 1.5}  # how many times as fast: a run's last digits must not hang on noise
Kernel = Literal["bfloat16", "onednn"]


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
def pays_from(device: str, runs: int, kernel: Kernel = "bfloat16") -> int:
    """The smallest width for which a kernel makes a layer's three products faster than torch's own for float32.

    It is measured when called, in a third of a second. Rounding to bfloat16 counts. A layer's width is the smaller one
    of its inputs and outputs. If the kernel never pays, the result is a width that no layer has.
    """
    least = NEVER
    for width in reversed(WIDTHS):
        if PAYS[kernel] * _seconds(width, kernel, device, runs) > _seconds(width, None, device, runs):
            break
        least = width
    return least


def _seconds(width: int, kernel: Kernel | None, device: str, runs: int) -> float:
    """The shortest of several repetitions of a layer's products: their time without disturbance."""
    multiply = onednn if kernel == "onednn" else lambda a, b: torch.bmm(a, b.mT)
    operands = torch.bfloat16 if kernel == "bfloat16" else torch.float32
    x, weight = torch.ones(runs, BATCH, width, device=device), torch.ones(runs, width, width, device=device)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        a, w = x.to(operands), weight.to(operands)
        g = multiply(a, w).float().to(operands)
        multiply(g, w.mT).float()
        multiply(g.mT, a.mT).float()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[2:])


def onednn_pays_from() -> int:
    """`pays_from` for oneDNN's products in float32 on one thread, measured once on a machine and kept in the cache."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return NEVER
    kept = kept_beside(f"onednn_from_{torch.__version__}")
    with suppress(OSError, ValueError):
        return int(kept.read_text())
    if not os.access(kept.parent, os.W_OK):
        return NEVER  # the next run would measure again, and might find another width
    with one_thread():
        least = pays_from("cpu", 1, "onednn")
    try:
        kept.write_text(str(least))
    except OSError:  # a full disk
        return NEVER
    return least


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
    return _set_in_wide_(module, least_width, "operands", torch.bfloat16, None)


def use_onednn_(module: nn.Module, least_width: int) -> int:
    """Let the layers of `module` with at least `least_width` inputs and outputs multiply by oneDNN, on a CPU.

    Returns:
        The number of these layers. Others than `StackedLinear` keep torch's products.
    """
    return _set_in_wide_(module, least_width, "onednn", True, False)


def _set_in_wide_(module: nn.Module, least_width: int, name: str, wide: object, other: object) -> int:
    layers = [layer for layer in module.modules() if isinstance(layer, StackedLinear)]
    are_wide = [min(layer.in_features, layer.out_features) >= least_width for layer in layers]
    for layer, is_wide in zip(layers, are_wide, strict=True):
        setattr(layer, name, wide if is_wide else other)
    return sum(are_wide)
