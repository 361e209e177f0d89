"""Plug with weight decay and WRS in a window of updates, for Figures 1 and 6 of Liu et al. (2021): ``reg=window``."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from rl_plasticity import REGULARIZERS, Regularizer, SettingsError, make_regularizer
from rl_plasticity.settings import Setting, checked

# As Liu et al. (2021) have them, and which setting their lambda is.
METHODS: dict[str, dict[str, Any]] = {"l2": {"of": "kernels_and_gains"}, "wrs": {"rescale_head": True}}
LAMBDA = {"l2": "coef", "wrs": "norm_decay"}


class Window(Regularizer):
    """`l2` or `wrs` from update `from_update` until update `until_update`, counted from 0; nothing outside.

    Outside the penalty is 0, and the projection leaves the weights as they were, bit for bit. `wrs` counts its periods
    from update 0 on.

    Source: Liu et al. (2021), Figures 1 and 6a: weight decay and WRS in epochs 0-200, 0-60 and 60-200.

    Args:
        coef: the paper's lambda, the strength of `l2` or the decay of the norm layers of `wrs`.

    Raises:
        SettingsError: the window ends before it begins.
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        method: Annotated[Literal["l2", "wrs"], Setting("the method in the window")] = "l2",
        coef: Annotated[float, Setting("lambda", least=0)] = 5e-4,
        from_update: Annotated[int, Setting("updates before the method starts", least=0)] = 0,
        until_update: Annotated[int | None, Setting("updates after which it stops; null: never", least=1)] = None,
    ) -> None:
        super().__init__(net)
        if until_update is not None and until_update <= from_update:
            raise SettingsError(f"until_update must be above from_update={from_update}, got {until_update}")
        settings = METHODS[method] | {LAMBDA[method]: coef}
        self.inner = make_regularizer(method, net, structure=self.structure, **settings)
        self.uses_lr, self.from_update, self.until_update = self.inner.uses_lr, from_update, until_update
        self._acts_every(1)

    def made_of(self) -> Sequence[tuple[Regularizer, Any]]:
        return [(self.inner, ...)]

    def _inside(self) -> Tensor:
        """Whether the next update is in the window, ``[*runs]``."""
        started = self.updates >= self.from_update
        return started if self.until_update is None else started & (self.updates < self.until_update)

    def penalty(self, net: nn.Module, inputs: object = None) -> Tensor:
        penalty = self.inner.penalty(net)
        return torch.where(self._inside(), penalty, torch.zeros_like(penalty))

    @torch.no_grad()
    def project_(self, net: nn.Module, lr: Any = None) -> Mapping[str, Tensor] | None:
        inside = self._inside()
        before = {name: p.detach().clone() for name, p in net.named_parameters()} if self.inner.projects else {}
        masks = super().project_(net, lr)
        for name, value in before.items():
            p = net.get_parameter(name)
            p.copy_(torch.where(inside.reshape(*inside.shape, *[1] * (p.ndim - inside.ndim)), p, value))
        self._count_()
        return masks


REGULARIZERS["window"] = Window
