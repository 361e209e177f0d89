"""What has to be read of a network: written by hand, from its definition, never from what the package reads."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Expected(NamedTuple):
    """What has to be read of a network.

    Patterns of parameter names (``fnmatch``); a parameter that none matches is a matrix where it has more axes than
    one, a vector where it has one.
    """

    make: Callable[[], nn.Module]
    example: Callable[[], Any]
    heads: tuple[str, ...] = ("head",)  # names of the layers that are output layers
    norms: tuple[str, ...] = ()  # gains of norm layers
    gains: tuple[str, ...] = ()  # that normalize nothing
    transposed: tuple[str, ...] = ()  # kernels and matrices stored [in, out, ...]
    tables: tuple[str, ...] = ("*embed*", "position")  # matrices that are looked up or added
    undecided: tuple[str, ...] = ()
    traced: bool = True  # the forward can be read without an example
    units: int = 0  # chains of hidden units
    vectors: tuple[str, ...] = ()  # stored with more axes than one: a token [1, 1, d]
    followed: bool = True  # the order can be read from the example
    biases: Mapping[str, str] = {}  # of bare matrices: the bias and its weight
    factors: tuple[str, ...] = ()  # of low-rank adapters
    classifier: tuple[str, ...] | None = None  # what a head reset resets; None: the heads
    statistics: bool = False  # a norm layer without gains stands between units and what reads them


def ids(size: int = 20) -> Tensor:
    return torch.randint(1, size, (2, 6), generator=torch.Generator().manual_seed(1))


def vectors(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def row(*shape: int) -> Callable[[], Tensor]:
    """An example of one tensor."""
    return lambda: vectors(*shape)


def rows(*shapes: tuple[int, ...]) -> Callable[[], tuple[Tensor, ...]]:
    """An example of several."""
    return lambda: tuple(vectors(*shape) for shape in shapes)


def made_of(forward: Callable[..., Any], **parts: Any) -> nn.Module:
    """A network of these modules, parameters and buffers, whose forward this is."""
    net = type("Network", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
            net.register_buffer(name, part)
        else:
            setattr(net, name, part)
    return net


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between each two."""
    layers: list[nn.Module] = []
    for n, m in pairwise(widths):
        layers += [nn.Linear(n, m), activation()]
    return nn.Sequential(*layers[:-1])


def bare(*shape: int, size: float = 1.0) -> nn.Parameter:
    """A bare parameter."""
    return nn.Parameter(torch.randn(*shape) * size)


def ones(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(*shape))


def zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape))


def frozen(module: nn.Module, *names: str) -> nn.Module:
    """The module with these of its parameters frozen, or all."""
    for name, p in module.named_parameters():
        p.requires_grad_(name not in (names or [name]))
    return module
