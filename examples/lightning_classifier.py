"""A regularizer in a Lightning Trainer, on scikit-learn's digits: ``python lightning_classifier.py``.

The only addition is the callback. The penalty's gradient is added when the optimizer steps, once and unclipped, and the
regularizer's state is in the checkpoints. For a comparison without it, pass ``coef=0``.
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from rl_plasticity.integrations.lightning import Regularize


class Classifier(LightningModule):
    """A multilayer perceptron that classifies digits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[batch, 10]`` of images ``[batch, 64]``."""
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of one batch, without the penalty."""
        x, labels = batch
        loss = F.cross_entropy(self(x), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the share of images that are classified correctly."""
        x, labels = batch
        self.log("accuracy", (self(x).argmax(-1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Create the optimizer, Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main(epochs: int = 10, coef: float = 1e-3) -> dict[str, float]:
    """Train for some epochs; returns the last loss, the penalty, and the accuracy on held-out images."""
    torch.manual_seed(0)
    digits = load_digits()
    x, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    trainer = Trainer(
        max_epochs=epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[Regularize("spectral", coef=coef)],
        logger=False,  # a logger of Lightning would receive the penalty too
        enable_checkpointing=False,  # checkpoints hold the regularizer's state: fit(..., ckpt_path=...) resumes exactly
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Classifier(),
        DataLoader(TensorDataset(x[:1500], labels[:1500]), batch_size=32, shuffle=True),
        DataLoader(TensorDataset(x[1500:], labels[1500:]), batch_size=297),
    )
    last = {name: value.item() for name, value in trainer.callback_metrics.items()}
    print("  ".join(f"{name} {value:.4f}" for name, value in sorted(last.items())))
    return last


if __name__ == "__main__":
    main()
