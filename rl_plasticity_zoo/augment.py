"""Augmentation as batched tensor functions: flips, colour jitter, and crops of padded images.

Each function but `augment` takes its random numbers as an argument, one for each image, and draws nothing. Images are
``[..., c, h, w]`` float in [0, 1], and the numbers ``[...]``.
"""

import torch
from torch import Tensor

_GREY = (0.299, 0.587, 0.114)  # ITU-R BT.601


def augment(
    x: Tensor,
    generator: torch.Generator,
    pad: int | None = None,
    brightness: float = 0.2,
    contrast: float = 0.2,
    hue: float = 0.05,
    saturation: float = 0.2,
) -> Tensor:
    """Flip each image with probability 1/2, jitter its colours, and cut its own size out of it after padding.

    Source: Liu et al. (2021), section VI-A: horizontal flip; brightness, contrast, hue, saturation; a crop after zero
    padding, of 32x32 to 38x38 (`pad` 3) for CIFAR and of 64x64 to 72x72 (`pad` 4) for Tiny ImageNet. They do not give
    the strengths of the jitter: the defaults are ours.

    Args:
        x: images ``[..., c, h, w]``, float in [0, 1] (`Data.to_unit`; standardize afterwards).
        generator: where the random numbers come from; it may be on another device than `x`.
        pad: zeros on each side; by default 4 for images of 64 pixels and more, else 3.
        brightness, contrast, saturation: factors are uniform in [1 - this, 1 + this].
        hue: the turn is uniform in [-this, this], where 1 is the whole circle.

    Raises:
        ValueError: images that are not float.
    """
    if not x.is_floating_point():
        raise ValueError(f"images must be float in [0, 1], got {x.dtype}")
    pad = (4 if x.shape[-1] >= 64 else 3) if pad is None else pad
    draws = torch.rand(7, *x.shape[:-3], generator=generator, device=generator.device).to(x.device)
    around = 2 * draws - 1  # uniform in [-1, 1)
    x = flip(x, draws[0] < 0.5)
    x = adjust_brightness(x, 1 + brightness * around[1])
    x = adjust_contrast(x, 1 + contrast * around[2])
    x = adjust_hue(x, hue * around[3])
    x = adjust_saturation(x, 1 + saturation * around[4])
    offsets = (draws[5:] * (2 * pad + 1)).long().clamp(max=2 * pad)
    return crop(x, offsets[0], offsets[1], pad)


def flip(x: Tensor, chosen: Tensor) -> Tensor:
    """The chosen images (bool) mirrored left to right."""
    return torch.where(_spread(chosen), x.flip(-1), x)


def adjust_brightness(x: Tensor, factor: Tensor) -> Tensor:
    """``factor * x``, in [0, 1]."""
    return (_spread(factor) * x).clamp(0, 1)


def adjust_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """``m + factor * (x - m)`` in [0, 1], where m is the mean of the image's grey values."""
    mean = _grey(x).mean((-3, -2, -1), keepdim=True)
    return (mean + _spread(factor) * (x - mean)).clamp(0, 1)


def adjust_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """``g + factor * (x - g)`` in [0, 1], where g are the grey values; images without colours stay as they are."""
    if x.shape[-3] != 3:
        return x
    grey = _grey(x)
    return (grey + _spread(factor) * (x - grey)).clamp(0, 1)


def adjust_hue(x: Tensor, turn: Tensor) -> Tensor:
    """The hue of the HSV model turned, where 1 is the whole circle; images without colours stay as they are.

    With value v, saturation s and hue h in sixths of the circle, the channels are ``v - v s max(0, min(k, 4 - k, 1))``,
    k = (n + h) mod 6, for n = 5, 3, 1.
    """
    if x.shape[-3] != 3:
        return x
    red, green, blue = x.unbind(-3)  # [..., h, w]
    value = x.amax(-3)
    chroma = value - x.amin(-3)  # v s
    safe = torch.where(chroma > 0, chroma, 1.0)
    sixth = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixth = sixth + 6 * turn[..., None, None]
    k = torch.stack([(n + sixth) % 6 for n in (5, 3, 1)], dim=-3)
    return value.unsqueeze(-3) - chroma.unsqueeze(-3) * torch.minimum(k, 4 - k).clamp(0, 1)


def crop(x: Tensor, top: Tensor, left: Tensor, pad: int) -> Tensor:
    """Windows of the images' own size in the images with `pad` zeros on each side, from row `top` and column `left`.

    Offsets are from 0 to ``2 * pad``; `pad` itself gives the image back.
    """
    h, w = x.shape[-2:]
    padded = torch.nn.functional.pad(x, (pad, pad, pad, pad))
    rows = _spread(top) + torch.arange(h, device=x.device)[:, None]  # [..., 1, h, 1]
    columns = _spread(left) + torch.arange(w, device=x.device)  # [..., 1, 1, w]
    strip = padded.gather(-2, rows.expand(*x.shape[:-1], w + 2 * pad))
    return strip.gather(-1, columns.expand(x.shape))


def _spread(numbers: Tensor) -> Tensor:
    return numbers[..., None, None, None]


def _grey(x: Tensor) -> Tensor:
    """``[..., 1, h, w]``"""
    if x.shape[-3] != 3:
        return x.mean(-3, keepdim=True)
    weights = torch.tensor(_GREY, dtype=x.dtype, device=x.device)[:, None, None]
    return (weights * x).sum(-3, keepdim=True)
