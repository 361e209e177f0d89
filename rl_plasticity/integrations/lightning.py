"""A regularizer in a Lightning `Trainer`: the callback `Regularize`."""

from typing import Any

from torch import nn

try:
    from lightning.fabric.utilities import move_data_to_device
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:  # the same library, alone
    from lightning_fabric.utilities import move_data_to_device
    from pytorch_lightning import Callback, LightningModule, Trainer

from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.learning.attached import Attached, attach
from rl_plasticity.regularizers import Regularizer, make_regularizer
from rl_plasticity.structure import Example


class Regularize(Callback):  # where lightning is not installed, its types are not known
    """Regularize a module at each step of its optimizers; nothing else changes::

        trainer = Trainer(callbacks=[Regularize("spectral", coef=1e-4)])

    equals the loop ``(loss + regularizer.penalty(net)).backward(); optimizer.step(); regularizer.project_(net)``, in
    automatic and in manual optimization: the penalty counts once a step whatever the accumulation, is added to what
    clipping leaves, and is computed outside mixed precision; see `rl_plasticity.attach`, which does it.

    The regularizer is made when the fit starts, of the weights that the module has then, and is kept for later fits of
    the same module. Its state is in Lightning's checkpoints; a fit resumed from one equals a fit that never stopped.
    The last step's penalty is logged as ``penalty`` (``penalty/<module>``).

    Several: one callback for each pair of regularizer and module.

    Args:
        regularizer: a name for `make_regularizer`, with the `settings`; or a regularizer made for the module.
        module: the name of the submodule to regularize, ``"net"``; all of the LightningModule by default.
        example: real inputs of that module, for methods that must know which layer feeds which (``swr``, ``wrs``)
            where its forward cannot be traced.
        settings: of the regularizer, and ``heads`` and ``roles`` of `make_regularizer`.

    Attributes:
        regularizer: the regularizer; None before the fit starts where a name was given.
        handle: what `attach` gave; None while no fit is under way.

    Raises:
        SettingsError: when the fit starts: an unknown module, what `attach` raises; a resumed checkpoint without the
            regularizer's state.
        ValueError: what `make_regularizer` raises.
    """

    def __init__(
        self,
        regularizer: Regularizer | str = "spectral",
        module: str | None = None,
        *,
        example: Example | None = None,
        **settings: Any,
    ) -> None:
        self.name = regularizer if isinstance(regularizer, str) else None
        self.regularizer = regularizer if isinstance(regularizer, Regularizer) else None
        if self.regularizer is not None and (settings or example is not None):
            raise SettingsError("settings and example are for a regularizer given by name; this one is made already")
        self.module, self.example, self.settings = module, example, settings
        self.handle: Attached | None = None
        self._net: nn.Module | None = None  # that the regularizer was made for
        self._loaded: dict[str, Any] | None = None  # a checkpoint's state, until there is a regularizer
        self._logged: object = None

    @property
    def state_key(self) -> str:
        """The key of the state in a checkpoint. Several callbacks have different keys."""
        kind = self.name or type(self.regularizer).__name__
        return f"{type(self).__qualname__}{{'regularizer': {kind!r}, 'module': {self.module!r}}}"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach, and continue from the checkpoint's state where one was loaded."""
        self._detach()  # a fit that ended with an error
        net = self._part(pl_module)
        device = next(net.parameters()).device
        if self.name is not None and (self.regularizer is None or self._net is not net):
            example = move_data_to_device(self.example, device)
            self.regularizer, self._net = make_regularizer(self.name, net, example=example, **self.settings), net
        assert self.regularizer is not None
        own = {id(p) for p in net.parameters()}
        optimizers = [o for o in trainer.optimizers if any(id(p) in own for g in o.param_groups for p in g["params"])]
        if not optimizers:
            raise SettingsError(f"no optimizer of {type(pl_module).__name__} holds a parameter of {self.module!r}")
        self.handle = attach(self.regularizer.to(device), optimizers, net)
        if self._loaded is not None:
            self.handle.load_state_dict(self._loaded)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse to resume without the state."""
        if trainer.ckpt_path is not None and self._loaded is None:  # some strategies load only after on_fit_start
            raise SettingsError(
                f"the checkpoint {trainer.ckpt_path} has no state of {self.state_key}: it is of a fit without it; to "
                "start from its weights, load them into the module and fit without ckpt_path"
            )
        self._loaded = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the penalty of each optimizer step. Batches that only accumulate gradients have none."""
        penalty = None if self.handle is None else self.handle.penalty
        if penalty is not None and penalty is not self._logged:
            self._logged = penalty
            name = "penalty" if self.module is None else f"penalty/{self.module}"
            pl_module.log(name, penalty.sum(), on_step=True, on_epoch=False)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the optimizers as they were."""
        self._detach()

    def state_dict(self) -> dict[str, Any]:
        """The regularizer's state, for Lightning's checkpoints."""
        if self._loaded is not None:
            return self._loaded
        return {} if self.regularizer is None else self.regularizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state: at once if the fit has started, else when it starts."""
        self._loaded = state_dict
        if self.handle is not None:
            self.handle.load_state_dict(state_dict)

    def _part(self, pl_module: LightningModule) -> nn.Module:
        parts: dict[str | None, nn.Module] = dict(pl_module.named_modules())
        parts[None] = parts.pop("")
        if self.module not in parts:
            raise SettingsError(f"no module is called {self.module!r}{nearest(self.module, map(str, parts))}")
        return parts[self.module]

    def _detach(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None
