import torch
from conftest import loss_of, nothing_drawn, plain_mlp

from rl_plasticity.learning.learner import Learner
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import make_regularizer


def make_mlp(seeds):
    return MLP((5, 8, 3), seeds)


def make_plain(seeds):
    return plain_mlp()


def test_the_gradient_norm_is_that_of_loss_and_penalty_over_all_parameters():
    learner = Learner(make_mlp, [0, 1], lambda net: make_regularizer("l2", net, coef=0.5))
    x = torch.randn(2, 16, 5)
    total = loss_of(learner.net(x), (2,)) + learner.regularizer.penalty(learner.net)
    gradients = torch.autograd.grad(total.sum(), list(learner.net.parameters()))
    expected = torch.stack([torch.cat([g[run].flatten() for g in gradients]).norm() for run in range(2)])
    torch.testing.assert_close(learner.minimize(loss_of(learner.net(x), (2,)))["gradient_norm"], expected)


def test_initial_is_what_the_current_weights_started_from():
    learner = Learner(make_mlp, [0, 1])
    start = learner.net[0].weight.detach().clone()
    learner.fresh()  # an unrelated draw
    assert torch.equal(learner.initial()[0].weight, start)
    learner.restart_(torch.tensor([1]))
    restarted = learner.net[0].weight.detach().clone()
    assert torch.equal(learner.initial()[0].weight, restarted)
    assert torch.equal(restarted[0], start[0])


def test_weights_are_drawn_by_one_thread_so_that_their_last_bits_are_the_same_on_any_machine():
    used = []
    torch.set_num_threads(2)
    learner = Learner(lambda seeds: (used.append(torch.get_num_threads()), make_mlp(seeds))[1], [0, 1])
    learner.restart_()
    assert (used, torch.get_num_threads()) == ([1, 1], 2)
    torch.set_num_threads(1)


def test_making_a_learner_leaves_the_global_random_state_alone():
    with nothing_drawn():
        Learner(make_plain, [0]).restart_()
