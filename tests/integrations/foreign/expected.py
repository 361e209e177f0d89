"""What has to be read of a network: written by hand, from its definition, never from what the package reads."""

from collections.abc import Callable, Mapping
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
    heads: tuple[str, ...]  # names of the layers that are output layers
    norms: tuple[str, ...] = ()  # gains of norm layers
    gains: tuple[str, ...] = ()  # that normalize nothing
    stacks: tuple[str, ...] = ()  # [n, ., .]: n matrices
    transposed: tuple[str, ...] = ()  # kernels and matrices stored [in, out, ...]
    tables: tuple[str, ...] = ("*embed*", "position")  # matrices that are looked up or added
    undecided: tuple[str, ...] = ()
    traced: bool = False  # the forward can be read without an example
    units: int = 0  # chains of hidden units
    vectors: tuple[str, ...] = ()  # stored with more axes than one: a token [1, 1, d]
    stacks_of_rows: tuple[str, ...] = ()  # [n, out, in]: n matrices
    followed: bool = True  # the order can be read from the example
    looked_up: tuple[str, ...] = ()  # bare tables that are looked up, as nn.Embedding's
    biases: Mapping[str, str] = {}  # of bare matrices: the bias and its weight
    shifts: Mapping[str, str] = {}  # of bare norm layers: the gain and its shift
    factors: tuple[str, ...] = ()  # of low-rank adapters
    classifier: tuple[str, ...] | None = None  # what a head reset resets; None: the heads
    statistics: bool = False  # a norm layer without gains stands between units and what reads them


def ids(size: int = 20) -> Tensor:
    return torch.randint(1, size, (2, 6), generator=torch.Generator().manual_seed(1))


def vectors(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def made_of(forward: Callable[..., Any], **parts: Any) -> nn.Module:
    """A network of these modules, parameters and buffers, whose forward this is."""
    net = type("Network", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
            net.register_buffer(name, part)
        else:
            setattr(net, name, part)
    return net
