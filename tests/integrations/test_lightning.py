"""`Regularize` in a Lightning Trainer equals `attach` in a loop of torch's, and resumes exactly."""

import runpy
from pathlib import Path

import pytest
import torch
from conftest import difference
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning.pytorch")

import lightning.pytorch as lightning

from rl_plasticity import attach
from rl_plasticity.errors import SettingsError
from rl_plasticity.integrations.lightning import Regularize

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(does not have many workers|isinstance.treespec|number of training batches|Checkpoint directory)",
    "ignore:Be aware that when using `ckpt_path`",
)

# Strong enough that each changes the weights far beyond the tolerance within a few steps.
SETTINGS = {
    "l2_init": {"coef": 0.3},
    "ewc": {"coef": 3.0, "fisher_decay": 0.9, "anchor_decay": 0.9},
    "spectral": {"coef": 0.1},
    "wrs": {"every_updates": 3, "norm_decay": 0.01},
    "weight_decay": {"coef": 0.03},
}
BATCH = 8
X = torch.randn(80 * BATCH, 5, generator=torch.Generator().manual_seed(5))


def make_net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def loss_of(net, x):
    """Larger than one, so that clipping clips."""
    return 5 * (net(x) - torch.linspace(-1, 1, 3)).square().mean()


class Automatic(lightning.LightningModule):
    def __init__(self, seed=0):
        super().__init__()
        self.net = make_net(seed)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return loss_of(self, batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def batches(steps):
    return DataLoader(TensorDataset(X[: steps * BATCH]), batch_size=BATCH)


def trainer_of(*callbacks, steps=20, **settings):
    settings = {"logger": False, "enable_checkpointing": False, **settings}
    return lightning.Trainer(
        max_steps=steps, max_epochs=-1, callbacks=[*callbacks], accelerator="cpu", enable_progress_bar=False,
        enable_model_summary=False, **settings,
    )  # fmt: skip


def attached(net, name, steps=20, accumulation=1, clip=None):
    """The same updates; returns the last penalty."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    handle = attach(name, optimizer, net, **SETTINGS.get(name, {}))
    for step in X[: steps * accumulation * BATCH].split(accumulation * BATCH):
        optimizer.zero_grad()
        for x in step.split(BATCH):
            (loss_of(net, x) / accumulation).backward()
        if clip is not None:
            assert nn.utils.clip_grad_norm_(net.parameters(), clip) > 0
        optimizer.step()
    return handle.penalty.item()


@pytest.mark.parametrize(("name", "accumulation", "clip", "module"), [
    *((name, 4, 0.5, "net") for name in ("ewc", "wrs", "weight_decay")),
    ("spectral", 1, None, "net"),
    ("ewc", 4, None, ""),
])  # fmt: skip
def test_20_steps_with_the_callback_equal_those_of_a_loop_with_attach(name, accumulation, clip, module):
    model, other, plain = Automatic(), make_net(), make_net()
    callback = Regularize(name, module, **SETTINGS[name])
    trainer = trainer_of(callback, accumulate_grad_batches=accumulation, gradient_clip_val=clip)
    trainer.fit(model, batches(20 * accumulation))
    assert trainer.global_step == 20
    assert not callback.handles
    assert not trainer.optimizers[0]._optimizer_step_post_hooks
    penalty = attached(other, name, 20, accumulation, clip)
    attached(plain, "none", 20, accumulation, clip)
    assert difference(model, other) < 1e-6
    assert difference(model, plain) > 1e-3
    logged = trainer.callback_metrics[f"penalty/{module}".strip("/")]
    assert logged.item() == pytest.approx(penalty, rel=1e-4, abs=1e-7)


def test_the_penalties_of_several_callbacks_for_a_module_are_logged_as_their_sum():
    logged = []
    for coefs in ({"l2": 1e-2, "l2_init": 1e-8}, {"l2": 1e-2}):
        trainer = trainer_of(*(Regularize(name, "net", coef=coef) for name, coef in coefs.items()))
        trainer.fit(Automatic(), batches(20))
        logged.append(trainer.callback_metrics["penalty/net"].item())
    assert logged[0] == pytest.approx(logged[1], rel=1e-4)


def test_each_network_of_several_optimizers_has_its_own_regularizer_in_manual_optimization():
    class Two(Automatic):
        def __init__(self):
            super().__init__()
            self.second = make_net(1)
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            for optimizer, net in zip(self.optimizers(), (self.net, self.second), strict=True):
                optimizer.zero_grad()
                self.manual_backward(loss_of(net, batch[0]))
                optimizer.step()

        def configure_optimizers(self):
            return [torch.optim.Adam(net.parameters(), lr=1e-2) for net in (self.net, self.second)]

    model, first, second = Two(), make_net(), make_net(1)
    callbacks = [Regularize(name, net, **SETTINGS[name]) for name, net in (("spectral", "net"), ("l2_init", "second"))]
    trainer = trainer_of(*callbacks, steps=40)  # Lightning counts each optimizer's
    trainer.fit(model, batches(20))
    attached(first, "spectral")
    attached(second, "l2_init")
    assert difference(model.net, first) < 1e-6
    assert difference(model.second, second) < 1e-6
    assert {"penalty/net", "penalty/second"} <= trainer.callback_metrics.keys()


@pytest.mark.parametrize("name", ["ewc", "spectral", "wrs"])
def test_a_fit_resumed_from_a_checkpoint_equals_one_that_never_stopped(name, tmp_path):
    # The same batch again and again, for Lightning resumes at the end of an epoch with a batch of that one.
    same = DataLoader(TensorDataset(X[:BATCH].repeat(7, 1)), batch_size=BATCH)
    model, other = Automatic(), Automatic(seed=1)  # of other weights, so that what is captured anew shows
    saving = lightning.callbacks.ModelCheckpoint(tmp_path, every_n_epochs=1, save_top_k=-1)
    trainer_of(Regularize(name, **SETTINGS[name]), saving, steps=14, enable_checkpointing=True).fit(model, same)
    (middle,) = tmp_path.glob("*step=7.ckpt")
    resumed = trainer_of(Regularize(name, **SETTINGS[name]), steps=14)
    resumed.fit(other, same, ckpt_path=middle)
    assert resumed.global_step == 14
    assert difference(model, other) == 0


def test_a_checkpoint_without_the_state_is_refused(tmp_path):
    trainer = trainer_of(steps=2)
    trainer.fit(Automatic(), batches(2))
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    callback = Regularize("l2_init")
    with pytest.raises(SettingsError, match="L2Init"):
        trainer_of(callback, steps=4).fit(Automatic(), batches(4), ckpt_path=tmp_path / "plain.ckpt")


def test_a_second_fit_keeps_the_regularizer():
    model, callback = Automatic(), Regularize("l2_init", "net", coef=0.3)
    trainer_of(callback, steps=2).fit(model, batches(2))
    first = callback.regularizers["net"]
    trainer_of(callback, steps=2).fit(model, batches(2))
    assert callback.regularizers["net"] is first


def test_the_example_of_lightning_learns(capsys):
    main = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "lightning_classifier.py"))["main"]
    last = main(epochs=3)
    assert last["accuracy"] > 0.6
    assert last["penalty"] > 0
    assert "penalty" in capsys.readouterr().out
