import copy

import pytest
import torch
from conftest import assert_equal_states, changed, loss_of, nothing_drawn, plainly, random_batch, refused, snapshot
from torch import nn

from rl_plasticity.agents import SAC
from rl_plasticity.interventions import PlasticityInjection, make_intervention
from rl_plasticity.learning.learner import Learner
from rl_plasticity.networks import MLP, Injectable
from rl_plasticity.regularizers import make_regularizer

RUNS = 3
X = torch.randn(RUNS, 16, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def make(injected_layers=2, **settings):
    return lambda seeds: MLP((5, 8, 8, 3), seeds, injected_layers=injected_layers, **settings).double()


def learner_of(regularizer="none", injected_layers=2, **settings):
    return Learner(make(injected_layers, **settings), range(RUNS), lambda net: make_regularizer(regularizer, net))


def train(learner, steps=3):
    for step in range(steps):
        learner.minimize(loss_of(learner.net(X) - step, (RUNS,)), X)
    return learner


def inject(learner, runs=None):
    return PlasticityInjection(every_updates=1).apply_(learner, runs=runs)


@pytest.mark.parametrize("activation", ["relu", "crelu"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_without_an_injection_training_is_bit_for_bit_that_of_the_network_without_room_for_one(layers, activation):
    with nothing_drawn():
        one, plain = (train(learner_of("l2", n, activation=activation)) for n in (layers, 0))
    assert_equal_states([*one.net.parameters()], [*plain.net.parameters()])
    moments = ([[*of.moments(name)] for name in of.names] for of in (one.optimizer, plain.optimizer))
    assert_equal_states(*moments)


def test_the_function_does_not_change_and_only_chosen_runs_get_a_new_head_frozen_copies_and_zero_moments():
    learner = train(learner_of("l2_init"))
    before, output = snapshot(learner), learner.net(X)
    addresses = [v.data_ptr() for v in learner.state_dict().values()]
    done = inject(learner, [1])
    assert [v.data_ptr() for v in learner.state_dict().values()] == addresses
    torch.testing.assert_close(learner.net(X), output, rtol=0, atol=1e-12)
    after, fresh = learner.state_dict(), learner._new([1] * RUNS).state_dict()
    for key, value in after.items():
        if value.ndim and value.shape[0] == RUNS and not key.startswith(("draws", "counted")):
            assert torch.equal(value[[0, 2]], before[key][[0, 2]]), key
    for name in (n for n in fresh if n.startswith("3.head.")):
        assert torch.equal(after[f"net.{name}"][1], fresh[name][1])
        assert torch.equal(after[f"net.{name.replace('head', 'offset', 1)}"][1], fresh[name][1])
        assert torch.equal(after[f"net.{name.replace('head', 'frozen', 1)}"][1], before[f"net.{name}"][1])
        assert not any(m[1].any() for m in learner.optimizer.moments(name))
        assert all(m[0].any() for m in learner.optimizer.moments(name))
    assert learner.net[3].injected.flatten().tolist() == [False, True, False]
    torch.testing.assert_close(after["regularizer.initial/3/head/0/weight"][1], fresh["3.head.0.weight"][1])
    assert done["resets"].tolist() == [0, 1, 0]
    names = [f"net.{name}" for name, _ in learner.net.named_parameters()]
    assert torch.equal(done["reset_weights"], sum((after[n] != before[n]).flatten(1).sum(1) for n in names))


@pytest.mark.parametrize("regularizer", ["none", "l2", "weight_decay", "hare_tortoise", "swr"])
@pytest.mark.filterwarnings("ignore:swr keeps")
def test_training_moves_the_new_head_and_the_features_and_neither_frozen_copy(regularizer):
    learner = train(learner_of(regularizer))
    inject(learner)
    before = snapshot(learner.net)
    assert changed(train(learner).net, before) == {name for name, _ in learner.net.named_parameters()}


def test_a_second_injection_leaves_the_run_alone_and_a_full_reset_removes_the_first():
    learner = train(learner_of())
    inject(learner, [0])
    train(learner)
    before = snapshot(learner)
    assert not any(number.any() for number in inject(learner, [0]).values())
    assert not changed(learner, before)
    learner.restart_(torch.tensor([0]))
    assert not any(b[0].any() for b in learner.net.buffers())
    inject(learner)
    assert learner.net[3].injected.all()


def test_a_saved_learner_goes_on_to_the_same_numbers():
    learner = train(learner_of("spectral"))
    inject(learner, [1])
    saved = copy.deepcopy(learner.state_dict())
    train(learner)
    other = learner_of("spectral")
    other.load_state_dict(saved)
    assert_equal_states(learner.state_dict(), train(other).state_dict())


def test_a_graph_traced_before_an_injection_is_right_after_it():
    learner, graphs = train(learner_of()), []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(learner.net, fullgraph=True, backend=counted)
    compiled(X)
    inject(learner, [1])
    train(learner)
    assert learner.net[3].injected.any()
    torch.testing.assert_close(compiled(X), learner.net(X))
    assert len(graphs) == 1


def test_the_target_of_an_agent_becomes_the_injected_network_and_follows_it_and_every_critic_is_injected():
    agent = SAC(4, 2, [0, 1], hidden=(8, 8), num_critics=2, injected_layers=2)
    batch = random_batch(2, 16)
    for noise in agent.noise(3, 16):
        agent.update(batch, noise)
    before, values = snapshot(agent), agent.value(batch.obs, batch.act)
    means = agent.act(batch.obs)
    done = make_intervention("plasticity_injection").apply_(agent, runs=[1])
    torch.testing.assert_close(agent.value(batch.obs, batch.act), values, rtol=0, atol=1e-5)
    torch.testing.assert_close(agent.act(batch.obs), means, rtol=0, atol=1e-5)
    assert done["critic/resets"].tolist() == done["actor/resets"].tolist() == [0, 1]
    heads = [m for m in agent.modules() if isinstance(m, Injectable)]
    assert len(heads) == 5
    assert all(head.injected.flatten().tolist() == [False, True] for head in heads)
    for key, value in agent.critic.net.state_dict().items():
        assert torch.equal(agent.critic_target.state_dict()[key][1], value[1])
        assert torch.equal(agent.critic_target.state_dict()[key][0], before[f"critic_target.{key}"][0])
    for noise in agent.noise(3, 16):
        agent.update(batch, noise)
    for key, buffer in agent.critic.net.named_buffers():
        assert torch.equal(agent.critic_target.get_buffer(key)[1], buffer[1])


def test_a_plain_network_takes_one_around_its_head_and_draws_from_its_modules():
    head = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), Injectable(head)).double()
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.1)
    for _ in range(3):
        plainly(optimizer, net(X[0]).square())
    output, old = net(X[0]), net[2].head[0].weight.detach().clone()
    make_intervention("plasticity_injection").apply_(net, optimizer)
    torch.testing.assert_close(now := net(X[0]), output, rtol=0, atol=1e-6)
    both = net[2].frozen(net[:2](X[0])) + net[2].head(net[:2](X[0]))  # what is subtracted has no gradient
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), [*net[0].parameters()]) for y in (now, both)))
    assert torch.equal(net[2].frozen[0].weight, old)
    assert not torch.equal(net[2].head[0].weight, old)
    assert not optimizer.state[net[2].head[0].weight]["exp_avg"].any()
    make_intervention("periodic").apply_(net, optimizer)
    assert not net[2].injected
    assert not net[2].frozen[0].weight.any()


def test_networks_without_room_heads_that_draw_and_more_layers_than_there_are_are_refused():
    learner = learner_of(injected_layers=0)
    refused(lambda: inject(learner), "plasticity_injection", "agent.injected_layers=2", "net.injected_layers=2")
    refused(lambda: Injectable(nn.Sequential(nn.Linear(3, 3), nn.Dropout())), "Dropout", error=ValueError)
    refused(lambda: make(4)([0]), "injected_layers", "3", "4")
