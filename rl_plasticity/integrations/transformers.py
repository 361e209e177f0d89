"""A regularizer in a `transformers.Trainer`: the callback `Regularize`."""

from typing import Any

from torch import nn
from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerState

from rl_plasticity.integrations.attaching import Attaching, Trained
from rl_plasticity.regularizers import Regularizer


class Regularize(Attaching, TrainerCallback):
    """Regularize the model at each step of the optimizer of a `Trainer`; nothing else changes::

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Regularize("spectral", coef=1e-4)])

    equals the loop ``(loss + regularizer.penalty(model)).backward(); optimizer.step(); regularizer.project_(model)``:
    the penalty counts once a step whatever the accumulation, is added to what clipping leaves, and is computed outside
    mixed precision; see `rl_plasticity.attach`, which does it. (A penalty that ``compute_loss`` adds would count as
    often as gradients are accumulated.)

    The regularizer is made when training begins, of the weights that the model has then, and is kept for later calls of
    ``train()`` with the same model. Its state is in each checkpoint, in the optimizer's; training resumed from there
    equals training that never stopped. The logged loss is the model's alone; ``penalty`` stands beside it in
    ``state.log_history`` and in the logs of the callbacks that come after this one. (Those that ``report_to`` names
    come before: give them in ``callbacks``, behind this one, instead.)

    Several regularizers: one callback for each kind, or one with a `Chain`.

    Args:
        regularizer: a name for `make_regularizer`, with the `settings`; or a regularizer made for the model.
        settings: of the regularizer, and ``heads``, ``roles`` and ``example`` of `make_regularizer`: real inputs of the
            model, ``{"input_ids": ids}``, for methods that must know which layer feeds which (``swr``, ``wrs``).

    Attributes:
        regularizers: ``{"model": the regularizer}``; empty before training begins.
        handles: ``{"model": what attach gave}``; empty while no training is under way.

    Raises:
        SettingsError: what `attach` raises, when training begins; a resumed checkpoint without the regularizer's state.
        ValueError: what `make_regularizer` raises.
    """

    def __init__(self, regularizer: Regularizer | str = "spectral", **settings: Any) -> None:
        super().__init__(regularizer, settings)

    def on_train_begin(
        self, args: Any, state: TrainerState, *_: Any, model: nn.Module, optimizer: Optimizer, **__: Any
    ) -> None:
        """Attach, and continue from the checkpoint's state where training is resumed."""
        self.begin({"model": Trained(model, [optimizer])}, is_resumed=state.global_step > 0)

    def on_log(self, args: Any, state: TrainerState, *_: Any, logs: dict[str, float], **__: Any) -> None:
        """Put the last step's penalty beside the training loss, added to that of other callbacks."""
        for handle in self.handles.values():
            if handle.penalty is not None and "loss" in logs:
                logs["penalty"] = logs.get("penalty", 0.0) + handle.penalty.sum().item()
                state.log_history[-1]["penalty"] = logs["penalty"]

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Leave the optimizer as it was."""
        self.end()
