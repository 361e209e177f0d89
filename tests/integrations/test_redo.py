"""ReDo on the networks of other libraries, with their own optimizers."""

from functools import partial

import pytest
import torch
from torch import nn

from rl_plasticity import make_intervention

ALGORITHMS = ["SAC", "DQN", "PPO"]


def made(kind):
    """A network of Stable-Baselines3 that has seen some updates, its optimizer, an example, and its hidden layers."""
    sb3 = pytest.importorskip("stable_baselines3")
    small = {"policy_kwargs": {"net_arch": [8, 8]}, "seed": 0, "device": "cpu"}
    if kind == "SAC":
        model = sb3.SAC("MlpPolicy", "Pendulum-v1", learning_starts=8, batch_size=8, **small)
        net, optimizer, example = model.critic, model.critic.optimizer, (torch.randn(64, 3), torch.randn(64, 1))
        chains = [("qf0.0", "qf0.2"), ("qf0.2", "qf0.4"), ("qf1.0", "qf1.2"), ("qf1.2", "qf1.4")]
    elif kind == "DQN":
        model = sb3.DQN("MlpPolicy", "CartPole-v1", learning_starts=8, batch_size=8, **small)
        net, optimizer, example = model.q_net, model.policy.optimizer, (torch.randn(64, 4),)
        chains = [("q_net.0", "q_net.2"), ("q_net.2", "q_net.4")]
    else:
        small["policy_kwargs"]["activation_fn"] = nn.ReLU
        model = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=8, n_epochs=1, **small)
        net, optimizer, example = model.policy, model.policy.optimizer, (torch.randn(64, 4),)
        chains = [(f"mlp_extractor.{n}.0", f"mlp_extractor.{n}.2") for n in ("policy_net", "value_net")]
        chains += [("mlp_extractor.policy_net.2", "action_net"), ("mlp_extractor.value_net.2", "value_net")]
    model.learn(24)
    return net, optimizer, example, chains


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_a_dead_unit_of_a_policy_is_recycled_with_its_moments_and_nothing_else_is(kind):
    net, optimizer, example, chains = made(kind)
    modules = dict(net.named_modules())
    with torch.no_grad():
        for into, _ in chains:  # unit 3 of each hidden layer is dead, the others are not dormant
            modules[into].weight[3], modules[into].bias[3] = 0, -1
            modules[into].bias[[0, 1, 2, 4, 5, 6, 7]] += 2
    before = {name: p.clone() for name, p in net.named_parameters()}
    moments = {name: optimizer.state[p]["exp_avg_sq"].clone() for name, p in net.named_parameters()}
    steps = {name: optimizer.state[p]["step"].item() for name, p in net.named_parameters()}
    make_intervention("redo", threshold=0.0).apply_(net, optimizer, example=example)

    changed = {name: torch.zeros_like(p, dtype=torch.bool) for name, p in net.named_parameters()}
    for into, out in chains:
        changed[f"{into}.weight"][3] = changed[f"{into}.bias"][3] = True
        changed[f"{out}.weight"][:, 3] = True
    for name, p in net.named_parameters():
        assert torch.equal(p[~changed[name]], before[name][~changed[name]]), name
        assert torch.equal(optimizer.state[p]["exp_avg_sq"] == 0, changed[name] | (moments[name] == 0)), name
        assert optimizer.state[p]["step"].item() == steps[name]
    for into, out in chains:
        assert modules[into].bias[3] > -1
        assert not modules[out].weight[:, 3].any()


def test_a_language_model_s_written_out_gelu_is_refused_and_a_module_s_is_found():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 0}
    tokens = torch.randint(20, (4, 8))
    for activation, refused in (("gelu_new", True), ("relu", False)):
        config = transformers.GPT2Config(**sizes, eos_token_id=0, activation_function=activation)
        net = transformers.GPT2LMHeadModel(config)
        optimizer = torch.optim.AdamW(net.parameters())
        redo = make_intervention("redo", threshold=0.0)
        if refused:
            with pytest.raises(ValueError, match=r"ReDo|redo"):
                redo.apply_(net, optimizer, example={"input_ids": tokens})
            continue
        block = net.transformer.h[0].mlp
        with torch.no_grad():
            block.c_fc.weight[:, 5], block.c_fc.bias[5] = 0, -1  # its weights are [in, out]
            block.c_fc.bias[:5] += 1
            block.c_fc.bias[6:] += 1
        kept = block.c_fc.weight[:, :5].clone()
        redo.apply_(net, optimizer, example={"input_ids": tokens}, make=partial(transformers.GPT2LMHeadModel, config))
        assert block.c_fc.weight[:, 5].any()
        assert torch.equal(block.c_fc.weight[:, :5], kept)
        assert not block.c_proj.weight[5].any()
        assert block.c_proj.weight[4].any()
