"""`Regularize` in a Hugging Face Trainer equals `attach` in a loop of torch's, and resumes exactly."""

import runpy
from pathlib import Path

import pytest
import torch
from conftest import difference, refused
from torch import nn

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, default_data_collator

from rl_plasticity import attach
from rl_plasticity.errors import SettingsError
from rl_plasticity.integrations.transformers import Regularize
from rl_plasticity.regularizers import make_regularizer

# Accelerate's deprecated way of asking torch for its precision.
pytestmark = pytest.mark.filterwarnings("ignore:.*(allow_tf32|TF32|pin_memory).*:UserWarning")

# Strong enough that each changes the weights far beyond the tolerance within a few steps.
SETTINGS = {"l2_init": {"coef": 0.3}, "spectral": {"coef": 0.1}, "wrs": {"every_updates": 3, "norm_decay": 0.01}}
IDS = torch.randint(20, (64, 8), generator=torch.Generator().manual_seed(3))
EXAMPLE = {"input_ids": IDS[:2]}
DATA = [{"input_ids": ids, "labels": ids} for ids in IDS]
BATCH = 4


def gpt2(seed=0, dropout=0.0):
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = dropout
    return GPT2LMHeadModel(config)


def trained(net, out, *callbacks, steps=20, accumulation=1, kind=Trainer, resume=None, **arguments):
    """A Trainer that has trained, and the micro-batches it took."""
    seen = []

    def collate(items):
        seen.append(default_data_collator(items))
        return seen[-1]

    arguments = TrainingArguments(
        str(out), max_steps=steps, per_device_train_batch_size=BATCH, gradient_accumulation_steps=accumulation,
        learning_rate=1e-2, lr_scheduler_type="constant", max_grad_norm=0.5, use_cpu=True, report_to="none",
        logging_steps=1, disable_tqdm=True, dataloader_pin_memory=False, **{"save_strategy": "no", **arguments},
    )  # fmt: skip
    trainer = kind(net, arguments, train_dataset=DATA, data_collator=collate, callbacks=[*callbacks])
    trainer.train(resume_from_checkpoint=resume)
    return trainer, seen


def attached(net, name, batches, accumulation=1):
    """The same updates; returns the penalties."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.0, fused=True)
    handle = attach(name, optimizer, net, example=EXAMPLE, **SETTINGS.get(name, {}))
    penalties = []
    for i in range(0, len(batches), accumulation):
        micro_batches = batches[i : i + accumulation]
        count = sum(b["labels"].numel() for b in micro_batches)
        optimizer.zero_grad()
        for batch in micro_batches:
            net(**batch, num_items_in_batch=count).loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        penalties.append(handle.penalty.item())
    return penalties


@pytest.mark.parametrize(("name", "accumulation"), [("l2_init", 4), ("spectral", 4), ("wrs", 4), ("spectral", 1)])
def test_20_steps_with_the_callback_equal_those_of_a_loop_with_attach(name, accumulation, tmp_path):
    net, other, plain = gpt2(), gpt2(), gpt2()
    callback = Regularize(name, example=EXAMPLE, **SETTINGS[name])
    trainer, batches = trained(net, tmp_path, callback, accumulation=accumulation)
    assert trainer.state.global_step == 20
    batches = batches[: 20 * accumulation]  # some are fetched ahead
    penalties = attached(other, name, batches, accumulation)
    attached(plain, "none", batches, accumulation)
    assert difference(net, other) < 1e-6
    assert difference(net, plain) > 1e-2
    logged = [entry["penalty"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx(penalties, rel=1e-5, abs=1e-7)


def test_the_penalties_of_several_callbacks_are_logged_as_their_sum(tmp_path):
    logged = []
    for coefs in ({"l2": 1e-2, "l2_init": 1e-8}, {"l2": 1e-2}):
        trainer, _ = trained(gpt2(), tmp_path, *(Regularize(name, coef=coef) for name, coef in coefs.items()))
        logged.append([entry["penalty"] for entry in trainer.state.log_history if "loss" in entry])
    assert logged[0] == pytest.approx(logged[1], rel=1e-4)


@pytest.mark.parametrize("name", ["l2_init", "spectral", "wrs"])
def test_training_resumed_from_a_checkpoint_equals_training_that_never_stopped(name, tmp_path):
    one, two = (Regularize(name, example=EXAMPLE, **SETTINGS[name]) for _ in range(2))
    settings = {"accumulation": 2, "steps": 11}
    net, other = gpt2(dropout=0.1), gpt2(seed=1, dropout=0.1)  # of other weights, so that what is captured anew shows
    trained(net, tmp_path, one, **settings, save_strategy="steps", save_steps=5)
    trained(other, tmp_path, two, **settings, resume=str(tmp_path / "checkpoint-5"))
    assert difference(net, other) == 0


def test_a_checkpoint_of_a_training_without_the_regularizer_is_refused(tmp_path):
    saving = {"steps": 6, "save_strategy": "steps", "save_steps": 5}
    trained(gpt2(), tmp_path, **saving)
    with pytest.raises(SettingsError, match="L2Init"):
        trained(gpt2(), tmp_path, Regularize("l2_init"), steps=6, resume=str(tmp_path / "checkpoint-5"))


def test_the_hooks_are_gone_after_training_and_a_second_training_keeps_the_regularizer(tmp_path):
    net = gpt2()
    callback = Regularize("l2_init", coef=0.3)
    trainer, _ = trained(net, tmp_path, callback, steps=2)
    optimizer = trainer.optimizer.optimizer
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not callback.handles
    first = callback.regularizers["model"]
    trainer.train()
    assert callback.regularizers["model"] is first


def test_a_regularizer_that_is_made_already_is_taken_as_it_is(tmp_path):
    net, other = gpt2(), gpt2()
    regularizer = make_regularizer("spectral", net, coef=0.1)
    callback = Regularize(regularizer)
    _, batches = trained(net, tmp_path, callback, steps=5)
    attached(other, "spectral", batches[:5])
    assert callback.regularizers["model"] is regularizer
    assert difference(net, other) < 1e-6
    refused(lambda: Regularize(regularizer, coef=0.1), match=r"[Mm]ade")


def test_the_example_of_the_hugging_face_trainer_learns_and_resumes(capsys, tmp_path):
    main = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "huggingface_trainer.py"))["main"]
    history = main(steps=20, out=tmp_path)
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.1
    assert all(entry["penalty"] > 0 for entry in history if "loss" in entry)
