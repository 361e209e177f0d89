"""Networks that read the same units: an actor on the critic's trunk."""

import warnings

import pytest
import torch
from foreign.expected import made_of
from torch import nn

from rl_plasticity import attach, make_intervention

X = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))


def actor_and_critic(dead=3):
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU())
    with torch.no_grad():
        trunk[0].weight[:dead] *= 0.01  # hardly active, but not silent
        trunk[0].bias[:dead] = 0.001
        trunk[2].weight[:dead] *= 0.001
        trunk[2].bias[:dead] = 0.001
    policy, q = nn.Sequential(trunk, nn.Linear(12, 4)), nn.Sequential(trunk, nn.Linear(12, 1))
    with torch.no_grad():
        policy[1].weight *= 5
    return policy, q


def policy_of(net):
    return net(X).softmax(-1).detach()


@pytest.mark.parametrize("name", ["redo", "regrama"])
def test_readers_of_a_recycled_unit_read_it_no_more(name):
    actor, critic = actor_and_critic()
    before = policy_of(actor)
    critic(X).square().mean().backward()
    done = make_intervention(name, threshold=0.05).apply_(critic, (), example=X, readers=actor)
    assert done["reset_units"] >= (3 if name == "redo" else 1)
    assert torch.equal((actor[1].weight == 0).all(0), (critic[1].weight == 0).all(0))
    if name == "redo":  # regrama's units may matter to the actor
        assert (policy_of(actor) - before).abs().sum(-1).max() / 2 < 0.02


def test_without_readers_a_warning_names_them():
    actor, critic = actor_and_critic()
    before = policy_of(actor)
    with pytest.warns(UserWarning, match="readers="):
        make_intervention("redo", threshold=0.05).apply_(critic, (), example=X)
    assert (policy_of(actor) - before).abs().sum(-1).max() / 2 > 0.1
    with pytest.warns(UserWarning, match="another module holds"):
        attach("continual_backprop", torch.optim.Adam(critic.parameters()), critic)


def test_networks_that_share_nothing_get_no_warning():
    critic = actor_and_critic()[1]
    agent = nn.ModuleDict({"critic": critic, "actor": nn.Linear(5, 2)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_intervention("redo").apply_(agent["critic"], (), example=X)
        attach("continual_backprop", torch.optim.Adam(agent.parameters()), critic)


def test_a_reader_that_reads_in_an_unknown_way_is_refused():
    actor, critic = actor_and_critic()

    reader = made_of(lambda net, x: net.head(net.trunk(x).cumsum(-1)), trunk=actor[0], head=actor[1])
    before = critic[0][0].weight.clone()
    with pytest.raises(ValueError, match="readers="):
        make_intervention("redo", threshold=0.05).apply_(critic, (), example=X, readers=reader)
    assert torch.equal(before, critic[0][0].weight)
