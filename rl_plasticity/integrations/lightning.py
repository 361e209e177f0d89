"""A regularizer in a Lightning `Trainer`: the callback `Regularize`."""

from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:  # the same library, alone
    from pytorch_lightning import Callback, LightningModule, Trainer

from rl_plasticity.integrations.attaching import Attaching, Trained
from rl_plasticity.regularizers import Regularizer


class Regularize(Attaching, Callback):
    """Regularize a module at each step of its optimizers; nothing else changes::

        trainer = Trainer(callbacks=[Regularize("spectral", coef=1e-4)])

    equals the loop ``(loss + regularizer.penalty(net)).backward(); optimizer.step(); regularizer.project_(net)``, in
    automatic and in manual optimization: the penalty counts once a step whatever the accumulation, is added to what
    clipping leaves, and is computed outside mixed precision; see `rl_plasticity.attach`, which does it.

    The regularizer is made when the fit starts, of the weights that the module has then, and is kept for later fits of
    the same module. Its state is in Lightning's checkpoints, with the optimizer's; a fit resumed from one equals a fit
    that never stopped. The last step's penalty is logged as ``penalty`` (``penalty/<module>``).

    Several: one callback for each pair of regularizer and module.

    Args:
        regularizer: a name for `make_regularizer`, with the `settings`; or a regularizer made for the module.
        module: the name of the submodule to regularize, ``"net"``; all of the LightningModule by default.
        settings: of the regularizer, and ``heads``, ``roles`` and ``example`` of `make_regularizer`: real inputs of the
            module, for methods that must know which layer feeds which (``swr``, ``wrs``) where its forward cannot be
            traced.

    Attributes:
        regularizers: ``{module: its regularizer}``; empty before the fit starts.
        handles: ``{module: what attach gave}``; empty while no fit is under way.

    Raises:
        SettingsError: when the fit starts: what `attach` raises; a resumed checkpoint without the regularizer's state.
        AttributeError: when the fit starts: an unknown module.
        ValueError: what `make_regularizer` raises.
    """

    def __init__(self, regularizer: Regularizer | str = "spectral", module: str = "", **settings: Any) -> None:
        super().__init__(regularizer, settings)
        self.module = module

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach, and continue from the checkpoint's state where the fit is resumed."""
        net = pl_module.get_submodule(self.module)
        own = {*net.parameters()}
        optimizers = [o for o in trainer.optimizers if any(own & {*group["params"]} for group in o.param_groups)]
        self.begin({self.module: Trained(net, optimizers)}, is_resumed=trainer.ckpt_path is not None)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Log the penalty of the last optimizer step, with those of other callbacks for the same module."""
        alike = [c for c in trainer.callbacks if isinstance(c, Regularize) and c.module == self.module]
        given = [h.penalty.sum() for c in alike for h in c.handles.values() if h.penalty is not None]
        if given and alike[0] is self:
            pl_module.log(f"penalty/{self.module}".strip("/"), sum(given), on_step=True, on_epoch=False)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the optimizers as they were."""
        self.end()
