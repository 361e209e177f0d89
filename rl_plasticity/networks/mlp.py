"""Multilayer perceptrons for many runs at once: one batched matrix product serves them all.

`StackedLinear` and `StackedLayerNorm` are ``nn.Linear`` and ``nn.LayerNorm`` whose tensors have a leading runs axis;
they subclass them so that whatever looks for layers by module type finds them.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError
from rl_plasticity.networks.activations import Activation, gain_of, make_activation
from rl_plasticity.networks.injection import Injectable
from rl_plasticity.seeding import derived
from rl_plasticity.settings import Setting, checked

LayerNormFlag = Annotated[bool, Setting("whether LayerNorm comes between each linear layer and its activation")]
"""The type of a network's setting ``layer_norm``."""
InjectedLayers = Annotated[
    int, Setting("number of last linear layers with room for plasticity_injection; 0: none", least=0)
]
Init = Annotated[
    Literal["orthogonal", "small_heads", "torch"],
    Setting(
        "initial weights: orthogonal with the activation's gain; small_heads: gain 0.01 for heads; torch: torch's own"
    ),
]
"""The type of a network's setting ``init``."""


def draw_(
    weights: Tensor, biases: Tensor | None, seeds: Sequence[int], gain: float | None, normal: bool = False
) -> None:
    """Initial weights ``[runs, out, ...]`` and biases ``[runs, out]``, each run's from its own seed.

    With a gain, weights are orthogonal as matrices out x fan_in; or, if `normal`, they are normal with variance
    gain^2 / fan_in, cut off at two standard deviations. Biases then do not change. Without a gain, both are uniform in
    +-1/sqrt(fan_in), as torch draws those of ``nn.Linear`` and ``nn.Conv2d``.
    """
    for run, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        if gain is not None and normal:
            std = gain / math.sqrt(math.prod(weights.shape[2:])) / 0.87962566103423978  # a cut standard normal's own
            nn.init.trunc_normal_(weights[run], std=std, a=-2 * std, b=2 * std, generator=generator)
            continue
        if gain is not None:
            nn.init.orthogonal_(weights[run], gain=gain, generator=generator)
            continue
        nn.init.kaiming_uniform_(weights[run], a=math.sqrt(5), generator=generator)
        if biases is not None:
            bound = 1 / math.sqrt(math.prod(weights.shape[2:]))
            nn.init.uniform_(biases[run], -bound, bound, generator=generator)


def initial_gain(init: Init, is_head: bool, activation: str = "relu") -> float | None:
    """The gain that an initialization gives a layer in a network with this activation; None for torch's own."""
    if init == "torch":
        return None
    return 0.01 if init == "small_heads" and is_head else gain_of(activation)


class StackedLinear(nn.Linear):
    """y = x W^T + b for each run: ``[runs, batch, in] -> [runs, batch, out]``.

    The weight ``[runs, out, in]`` is orthogonal, and each run draws it from its own seed. The bias ``[runs, out]`` is
    zero. (Gain sqrt(2) in every layer, the head too, as Nikishin et al. 2022 and D'Oro et al. 2023.) Without a gain
    both are uniform in +-1/sqrt(in), with the numbers of a ``torch.nn.Linear`` made after ``torch.manual_seed(seed)``.

    Attributes:
        operands: the type to which inputs and weights, and gradients in the backward pass, are rounded before the
            product; None: no rounding. The stored weights and the bias keep their type.
        onednn: whether oneDNN multiplies, see `compiling.products`.
    """

    operands: torch.dtype | None = None
    onednn: bool = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        seeds: Sequence[int],
        gain: float | None = math.sqrt(2),
        bias: bool = True,
        normal: bool = False,
    ) -> None:
        nn.Module.__init__(self)  # nn.Linear's own would draw from the global random state
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(len(seeds), out_features, in_features))
        self.bias: nn.Parameter | None = nn.Parameter(torch.zeros(len(seeds), out_features)) if bias else None  # type: ignore[assignment]
        draw_(self.weight, self.bias, seeds, gain, normal)

    def forward(self, input: Tensor) -> Tensor:
        if self.operands is not None:
            product = torch.bmm(input.to(self.operands), self.weight.to(self.operands).mT)  # autograd rounds likewise
            product = product.to(input.dtype)
        elif self.onednn and _is_plain(input):
            product = torch.ops.rl_plasticity.product(input, self.weight)
        elif self.bias is None:
            return torch.bmm(input, self.weight.mT)
        else:
            return torch.baddbmm(self.bias.unsqueeze(1), input, self.weight.mT)
        return product if self.bias is None else product + self.bias.unsqueeze(1)


def _is_plain(input: Tensor) -> bool:
    """Whether oneDNN can multiply this: float32, outside of autocast and of torch.func.grad, vmap and the like."""
    if input.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return False
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is None


class StackedLayerNorm(nn.LayerNorm):
    """LayerNorm over the last axis, gain and shift ``[runs, n]``: ``[runs, batch, n] -> [runs, batch, n]``."""

    def __init__(self, features: int, runs: int, eps: float = 1e-5) -> None:
        super().__init__(features, eps=eps, elementwise_affine=False)
        self.elementwise_affine = True
        self.weight = nn.Parameter(torch.ones(runs, features))
        self.bias = nn.Parameter(torch.zeros(runs, features))

    def forward(self, input: Tensor) -> Tensor:
        normal = nn.functional.layer_norm(input, self.normalized_shape, eps=self.eps)
        return torch.addcmul(self.bias.unsqueeze(1), normal, self.weight.unsqueeze(1))


class MLP(nn.Sequential):
    """Hidden layers of linear, LayerNorm and activation, a linear head: ``[runs, batch, in] -> [runs, batch, out]``.

    Inputs with more axes, as images ``[runs, batch, c, h, w]``, are flattened behind the batch axis.

    Args:
        widths: (in, hidden, ..., out).
        seeds: one for each run; layer number d draws from ``derive(seed, d)``.
        activation: by name (leaky_relu has slope 0.01); crelu and deep_fourier give the next layer twice the inputs.
        init: orthogonal with the activation's gain (sqrt(2) for ReLU) in every layer; small_heads, 0.01 in the last; or
            torch's own.
        injected_layers: number of linear layers at the end that are an `Injectable` head; the activations between them
            belong to it.

    Raises:
        SettingsError: an unknown activation or initialization, or fewer layers than `injected_layers`.
    """

    @checked
    def __init__(
        self,
        widths: Sequence[int],
        seeds: Sequence[int],
        layer_norm: LayerNormFlag = True,
        *,
        activation: Activation = "relu",
        init: Init = "orthogonal",
        injected_layers: InjectedLayers = 0,
    ) -> None:
        if injected_layers > len(widths) - 1:
            raise SettingsError(
                f"injected_layers must be at most {len(widths) - 1}, the number of linear layers, got {injected_layers}"
            )
        modules: list[nn.Module] = []
        factor = 1
        for depth, (fan_in, out) in enumerate(pairwise(widths)):
            is_head = depth == len(widths) - 2
            gain = initial_gain(init, is_head, activation)
            # Not seed + depth: with that, run 0's second layer would start as run 1's first layer.
            modules.append(StackedLinear(factor * fan_in, out, derived(seeds, depth), gain))
            if not is_head:
                non_linearity, factor = make_activation(activation, runs=len(seeds))
                if layer_norm:
                    modules.append(StackedLayerNorm(out, len(seeds)))
                modules.append(non_linearity)
        if injected_layers:
            first = [i for i, module in enumerate(modules) if isinstance(module, nn.Linear)][-injected_layers]
            modules[first:] = [Injectable(nn.Sequential(*modules[first:]))]
        super().__init__(*modules)

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = super().forward(input.flatten(2))  # type: ignore[no-untyped-call]
        return output
