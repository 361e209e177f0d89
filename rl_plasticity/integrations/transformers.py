"""A regularizer in a `transformers.Trainer`: the callback `Regularize`."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rl_plasticity.errors import SettingsError
from rl_plasticity.learning.attached import Attached, attach
from rl_plasticity.regularizers import Regularizer, make_regularizer
from rl_plasticity.structure import Example


class Regularize(TrainerCallback):  # where transformers is not installed, its types are not known
    """Regularize the model at each step of the optimizer of a `Trainer`; nothing else changes::

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Regularize("spectral", coef=1e-4)])

    equals the loop ``(loss + regularizer.penalty(model)).backward(); optimizer.step(); regularizer.project_(model)``:
    the penalty counts once a step whatever the accumulation, is added to what clipping leaves, and is computed outside
    mixed precision; see `rl_plasticity.attach`, which does it. (A penalty that ``compute_loss`` adds would count as
    often as gradients are accumulated.)

    The regularizer is made when training begins, of the weights that the model has then, and is kept for later calls of
    ``train()`` with the same model. Each checkpoint gets its state, in a file of its own; training resumed from there
    equals training that never stopped. The logged loss is the model's alone; ``penalty`` stands beside it in
    ``state.log_history`` and in the logs of the callbacks that come after this one. (Those that ``report_to`` names
    come before: give them in ``callbacks``, behind this one, instead.)

    Several regularizers: one callback for each kind, or one with a `Chain`.

    Args:
        regularizer: a name for `make_regularizer`, with the `settings`; or a regularizer made for the model.
        example: real inputs of the model, for methods that must know which layer feeds which (``swr``, ``wrs``):
            ``{"input_ids": ids}``.
        resume_from: the folder of the checkpoint that training resumes from. It is needed only if that is not
            ``checkpoint-N`` in the Trainer's ``output_dir``, because the Trainer does not tell callbacks.
        settings: of the regularizer, and ``heads`` and ``roles`` of `make_regularizer`.

    Attributes:
        regularizer: the regularizer; None before training begins where a name was given.
        handle: what `attach` gave; None while no training is under way.

    Raises:
        SettingsError: what `attach` raises, when training begins; a resumed checkpoint without the regularizer's state.
        ValueError: what `make_regularizer` raises.
    """

    def __init__(
        self,
        regularizer: Regularizer | str = "spectral",
        *,
        example: Example | None = None,
        resume_from: str | Path | None = None,
        **settings: Any,
    ) -> None:
        self.name = regularizer if isinstance(regularizer, str) else None
        self.regularizer = regularizer if isinstance(regularizer, Regularizer) else None
        if self.regularizer is not None and (settings or example is not None):
            raise SettingsError("settings and example are for a regularizer given by name; this one is made already")
        self.example, self.resume_from, self.settings = example, resume_from, settings
        self.handle: Attached | None = None
        self._net: nn.Module | None = None  # that the regularizer was made for

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        **_: Any,
    ) -> None:
        """Attach, and continue from the checkpoint's state where training is resumed."""
        self._detach()  # a training that ended with an error
        device = next(model.parameters()).device
        if self.name is not None and (self.regularizer is None or self._net is not model):
            example = send_to_device(self.example, device)
            self.regularizer, self._net = make_regularizer(self.name, model, example=example, **self.settings), model
        assert self.regularizer is not None
        # Accelerate's wrapper never steps itself: hooks belong on what it wraps.
        inner = getattr(optimizer, "optimizer", optimizer)
        self.handle = attach(self.regularizer.to(device), inner, model)
        if state.global_step:
            self.handle.load_state_dict(load_file(self._saved(args, state, model), device=str(device)))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Put the last step's penalty beside the training loss."""
        if self.handle is None or self.handle.penalty is None or logs is None or "loss" not in logs:
            return
        logs["penalty"] = self.handle.penalty.sum().item()
        if state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1]["penalty"] = logs["penalty"]

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, model: nn.Module, **_: Any
    ) -> None:
        """Write the regularizer's state into the checkpoint's folder."""
        folder = _folder(args, state)
        if self.handle is None or not args.should_save or not folder.is_dir():  # trials of a search are not resumed
            return
        tensors = {name: t.detach().cpu().contiguous() for name, t in self.handle.state_dict().items()}
        part = folder / f"{self._file}.part"
        save_file(tensors, part, metadata={"weights": _fingerprint(model)})
        part.replace(folder / self._file)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Leave the optimizer as it was."""
        self._detach()

    # --- the file -------------------------------------------------------------------------------------------------

    @property
    def _file(self) -> str:
        return f"regularizer_{type(self.regularizer).__name__}.safetensors"

    def _saved(self, args: TrainingArguments, state: TrainerState, model: nn.Module) -> Path:
        """The file to resume from: the one that was saved with the model's present weights."""
        places = [self.resume_from] if self.resume_from else [args.resume_from_checkpoint, _folder(args, state)]
        files = [Path(place) / self._file for place in places if isinstance(place, str | Path)]
        for file in files:
            if file.exists():
                with safe_open(file, framework="pt") as opened:
                    if opened.metadata()["weights"] == _fingerprint(model):
                        return file
        raise SettingsError(
            f"training resumes at step {state.global_step}, but there is no {files[-1]} that was saved with the "
            "weights loaded: pass resume_from=(the checkpoint's folder); a checkpoint of a training without this "
            "regularizer has none"
        )

    def _detach(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _fingerprint(model: nn.Module) -> str:
    """A hash of all parameters, exact to the bit."""
    hashes = [torch.hash_tensor(p.detach()) for p in model.parameters() if p.numel()]
    return hashlib.sha256(str([h.item() for h in hashes]).encode()).hexdigest()
