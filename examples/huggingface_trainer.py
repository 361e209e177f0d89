"""A regularizer in a Hugging Face Trainer, with a small GPT-2: ``python huggingface_trainer.py``.

The only addition is the callback. The penalty counts once per step, whatever the accumulation, and the regularizer's
state is in the checkpoints. For a comparison without it, pass ``coef=0``.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from rl_plasticity.integrations.transformers import Regularize

VOCABULARY, LENGTH = 64, 16


class Counting(Dataset[dict[str, Tensor]]):
    """Sequences that count up from a random token by a random step, so that the next token can be learned."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        first, step = (torch.randint(1, n, (size, 1), generator=generator) for n in (VOCABULARY, 4))
        self.ids = (first + step * torch.arange(LENGTH)) % VOCABULARY

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def main(steps: int = 200, coef: float = 1e-3, out: Path | None = None) -> list[dict[str, float]]:
    """Train for some steps; returns the Trainer's log. Checkpoints go to `out` if it is given."""
    with TemporaryDirectory() as temporary:
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
        trainer = Trainer(
            GPT2LMHeadModel(config),
            TrainingArguments(
                str(out or temporary),
                max_steps=steps,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=4,
                learning_rate=3e-3,
                logging_steps=max(1, steps // 5),
                save_strategy="steps" if out else "no",
                save_steps=max(1, steps // 2),
                dataloader_pin_memory=torch.cuda.is_available(),
                disable_tqdm=True,
                report_to="none",
            ),
            train_dataset=Counting(1024),
            callbacks=[Regularize("spectral", coef=coef)],
        )
        # To continue from the last checkpoint exactly: train(resume_from_checkpoint=True).
        trainer.train()
        history: list[dict[str, float]] = trainer.state.log_history
        return history


if __name__ == "__main__":
    main()
