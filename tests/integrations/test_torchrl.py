"""`attach_to_loss`: each Q network of a TorchRL loss is regularized as a network of its own."""

import copy
import runpy
from pathlib import Path

import pytest
import torch
from conftest import refused

from rl_plasticity import attach, make_intervention

pytest.importorskip("torchrl")
pytestmark = [
    pytest.mark.filterwarnings("ignore:No target network updater"),  # here the targets are to stay
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
]

from tensordict import TensorDict  # noqa: E402
from torchrl.envs import GymEnv  # noqa: E402
from torchrl.objectives import ClipPPOLoss  # noqa: E402

from rl_plasticity.integrations.torchrl import attach_to_loss  # noqa: E402

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "torchrl_sac.py"))
SETTINGS = {
    "spectral": {"coef": 0.1},
    "swr": {"coef": 0.1},
    "wrs": {"every_updates": 3},
    "l2_init": {"coef": 0.3},
    "ewc": {"coef": 300.0, "fisher_decay": 0.9, "anchor_decay": 0.9},
}
OBS, ACT = torch.tensor([[0.3, -0.5, 0.8]]), torch.tensor([[0.2]])


def make(num_qvalue_nets=2):
    """The loss, its critics' parameters and their optimizer; always with the same weights."""
    torch.manual_seed(1)
    loss = EXAMPLE["make_loss"](GymEnv("Pendulum-v1"), 8, num_qvalue_nets)[1]
    params = dict(loss.qvalue_network_params.named_parameters())
    return loss, params, torch.optim.Adam(params.values(), 1e-2)


def batches(steps):
    generator = torch.Generator().manual_seed(2)

    def normal(n):
        return torch.randn(16, n, generator=generator)

    for _ in range(steps):
        done = torch.zeros(16, 1, dtype=torch.bool)
        after = {"observation": normal(3), "reward": normal(1), "done": done, "terminated": done}
        yield TensorDict({"observation": normal(3), "action": normal(1).tanh(), "next": after}, [16])


def backward(loss, batch, optimizer, of="loss_qvalue"):
    torch.manual_seed(3)  # the loss draws actions
    optimizer.zero_grad()
    loss(batch)[of].backward()


def plainly(loss, optimizer, steps=20, of="loss_qvalue"):
    for batch in batches(steps):
        backward(loss, batch, optimizer, of)
        optimizer.step()


def separate(loss, params, i, name, state):
    """Network number `i` as a module of its own, its optimizer, and attached what starts from the same vectors."""
    net = copy.deepcopy(loss.qvalue_network).requires_grad_(True)
    net.load_state_dict({name: p[i] for name, p in params.items()})
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    handle = attach(name, optimizer, net, example=(OBS, ACT), **SETTINGS[name])
    own = handle.state_dict()
    handle.load_state_dict({key: state[key][i] if state[key].ndim > own[key].ndim else own[key] for key in own})
    return net, optimizer


def apart(loss, params, optimizer, parts):
    """The loop in which each network makes its own step."""
    for batch in batches(20):
        backward(loss, batch, optimizer)
        for i, (net, its) in enumerate(parts):
            for name, p in net.named_parameters():
                p.grad = params[name].grad[i].clone()
            its.step()
            for name, p in net.named_parameters():
                params[name].data[i] = p.detach()


def furthest(params, others):
    return max((params[name] - others[name]).abs().max().item() for name in params)


@pytest.mark.parametrize(("name", "num"), [*((name, 2) for name in SETTINGS), ("spectral", 1)])
def test_20_steps_equal_those_of_each_q_network_with_the_regularizer_attached_to_it_alone(name, num):
    (loss, params, optimizer), (other, its, hand), (plain, never, third) = make(num), make(num), make(num)
    handle = attach_to_loss(name, optimizer, loss, "qvalue_network", example=(OBS, ACT), **SETTINGS[name])
    parts = [separate(other, its, i, name, handle.state_dict()) for i in range(num)]
    plainly(loss, optimizer)
    apart(other, its, hand, parts)
    plainly(plain, third)
    assert handle.penalty.shape == (num,)
    assert furthest(params, its) < 1e-6
    assert furthest(params, never) > 1e-3


def test_targets_and_the_weights_that_nothing_trains_stay_as_they_are():
    loss, params, optimizer = make()
    untrained = [*loss.target_qvalue_network_params.values(True, True), *loss.qvalue_network.parameters()]
    before, start = [p.detach().clone() for p in untrained], {n: p.detach().clone() for n, p in params.items()}
    attach_to_loss("wrs", optimizer, loss, "qvalue_network", example=(OBS, ACT), every_updates=1)
    plainly(loss, optimizer, 3)
    assert len(untrained) == 12
    assert all(torch.equal(p, q) for p, q in zip(untrained, before, strict=True))
    assert furthest(params, start) > 1e-2


def test_the_actor_that_the_loss_was_made_of_is_what_is_trained_so_that_attach_does_the_same():
    (loss, _, _), (other, _, _) = make(), make()
    for one, by_loss in ((loss, True), (other, False)):
        parameters = dict(one.actor_network_params.named_parameters())
        optimizer = torch.optim.Adam(parameters.values(), 1e-2)
        if by_loss:
            attach_to_loss("spectral", optimizer, one, "actor_network", example=(OBS,), coef=0.1)
        else:
            attach("spectral", optimizer, one.actor_network, example=(OBS,), coef=0.1)
        plainly(one, optimizer, 5, "loss_actor")
    theirs = dict(other.actor_network_params.named_parameters())
    assert furthest(dict(loss.actor_network_params.named_parameters()), theirs) == 0


def test_what_cannot_be_right_is_refused_in_one_line():
    loss, _, optimizer = make()
    unused = torch.optim.Adam(loss.qvalue_network.parameters())  # the mistake that is easily made
    for arguments, names in (
        (("l2", optimizer, loss, "qvalue"), ("SACLoss", "'qvalue'")),
        (("l2", optimizer, loss, "target_qvalue_network"), ("'target_qvalue_network'",)),
        (("wrs", optimizer, loss, "qvalue_network"), ("example=",)),
        (("l2", optimizer, loss, "actor_network"), ("Adam",)),
        (("l2", unused, loss, "qvalue_network"), ("Adam",)),
    ):
        refused(lambda a=arguments: attach_to_loss(*a), *names, error=ValueError)
    for net in (loss, loss.qvalue_network_params):
        refused(lambda n=net: attach("spectral", optimizer, n), "rl_plasticity.integrations.torchrl", error=ValueError)
    redo = make_intervention("redo")
    refused(lambda: redo.apply_(loss.qvalue_network, optimizer, example=(OBS, ACT)), "Adam")
    ppo = ClipPPOLoss(loss.actor_network, copy.deepcopy(loss.qvalue_network), functional=False)
    refused(lambda: attach_to_loss("l2", optimizer, ppo, "critic_network"), "'critic_network'")
    assert not optimizer._optimizer_step_pre_hooks


def test_the_example_trains_and_prints_a_penalty_for_each_q_network(capsys):
    EXAMPLE["main"](total_steps=205, random_steps=195, width=8, batch_size=16, coef=0.1)
    EXAMPLE["main"](total_steps=205, random_steps=195, width=8, batch_size=16, coef=0.1, reg="swr")
    first, second = (line for line in capsys.readouterr().out.splitlines() if line.startswith("step"))
    one, other = first.partition("penalties [")[2].strip("]").split(", ")
    assert 0 < float(one) != float(other) > 0
    assert second.endswith("penalties [0.0, 0.0]")
