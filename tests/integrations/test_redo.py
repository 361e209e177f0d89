"""ReDo on the policies of Stable-Baselines3, with their own optimizers."""

import pytest
import torch
from torch import nn

from rl_plasticity import make_intervention


def made(kind):
    """A network of Stable-Baselines3 that has seen some updates, its optimizer, an example, and its hidden layers."""
    sb3 = pytest.importorskip("stable_baselines3")
    small = {"policy_kwargs": {"net_arch": [8, 8]}, "seed": 0, "device": "cpu"}
    if kind == "SAC":
        model = sb3.SAC("MlpPolicy", "Pendulum-v1", learning_starts=8, batch_size=8, **small)
        net, optimizer, example = model.critic, model.critic.optimizer, (torch.randn(64, 3), torch.randn(64, 1))
        chains = [("qf0.0", "qf0.2"), ("qf0.2", "qf0.4"), ("qf1.0", "qf1.2"), ("qf1.2", "qf1.4")]
    else:
        small["policy_kwargs"]["activation_fn"] = nn.ReLU
        model = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=8, n_epochs=1, **small)
        net, optimizer, example = model.policy, model.policy.optimizer, (torch.randn(64, 4),)
        chains = [(f"mlp_extractor.{n}.0", f"mlp_extractor.{n}.2") for n in ("policy_net", "value_net")]
        chains += [("mlp_extractor.policy_net.2", "action_net"), ("mlp_extractor.value_net.2", "value_net")]
    model.learn(24)
    return net, optimizer, example, chains


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["SAC", "PPO"])
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
