"""The last layers of a network with room for plasticity injection."""

import copy

import torch
from torch import Tensor, nn

from rl_plasticity.structure.layer import runs_of


class Injectable(nn.Module):
    """The head of a network, to which plasticity injection can add two frozen copies.

    f = h_theta(x) at first. Of an injected run, f = h_theta(x) + h_frozen(x) - stopgrad h_offset(x): `head` is new and
    is trained, `frozen` is what the head was, and `offset` is what it became. The copies are buffers, so no optimizer,
    regularizer or metric of weights sees them, and shapes are the same before and after. Until then they are 0 and
    their outputs are masked: function, gradients and random draws are those of `head` alone.

    Args:
        head: linear layers with activations between them. Dropout or BatchNorm would make the copies differ.
    """

    injected: Tensor

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        noisy = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
        if found := [type(module).__name__ for module in head.modules() if isinstance(module, noisy)]:
            raise ValueError(f"a head with {found[0]} cannot be injected: its copies would differ from it")
        self.head = head
        self.frozen, self.offset = (_frozen(head) for _ in range(2))
        runs = runs_of(head)
        shape = (*runs, 1, 1) if runs else ()  # outputs are [*runs, batch, out]
        self.register_buffer("injected", torch.zeros(shape, dtype=torch.bool))

    def reset_parameters(self) -> None:
        """Remove the injection; the head, whose modules have their own, is not changed."""
        for buffer in (*self.frozen.buffers(), *self.offset.buffers(), self.injected):
            buffer.zero_()

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.head(input)
        added = self.frozen(input) - self.offset(input).detach()
        return output + torch.where(self.injected, added, 0)


def _frozen(head: nn.Module) -> nn.Module:
    copied = copy.deepcopy(head)
    for module in copied.modules():
        for name, parameter in [*module.named_parameters(recurse=False)]:
            del module._parameters[name]
            module.register_buffer(name, torch.zeros_like(parameter, requires_grad=False))
    return copied
