"""Low-rank adapters are refused by what acts on whole matrices; deep linear networks and bottlenecks are not."""

import copy

import pytest
import torch
from conftest import disturbed, refused
from foreign.adapters import lora
from foreign.expected import frozen, made_of, mlp, vectors
from test_structure import update
from torch import nn

from rl_plasticity.regularizers import REGULARIZERS, make_regularizer
from rl_plasticity.structure import read

WHOLE = ("spectral", "swr", "wrs", "hypersphere", "parseval", "orthogonal", "weight_clipping", "normalize_project")


def adapted(layer):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), layer, nn.ReLU(), nn.Linear(8, 3))


VECTORS = vectors(5, 6)


def peft():  # those of tests/foreign are refused, too
    return adapted(lora(nn.Linear(8, 8)))


def unseen(net):
    return made_of(lambda self, x: self.net(x if x.sum() > 0 else 1 * x), net=net)


@pytest.mark.filterwarnings("ignore:.*(leaves alone|only approximately|changes the function):UserWarning")
@pytest.mark.parametrize("name", WHOLE)
def test_what_acts_on_whole_matrices_refuses_the_factors_of_an_adapter_and_takes_only_the_others(name):
    net = peft()
    for seen in (None, VECTORS):
        with pytest.raises(ValueError, match=r"lora_A.*(only=|example=)"):
            make_regularizer(name, net, example=seen)
    others = [p for n, p in net.named_parameters() if "lora" not in n]
    before = copy.deepcopy(net.state_dict())
    regularizer = make_regularizer(name, net, example=VECTORS, only=others)
    regularizer.penalty(net)
    for _ in range(20):
        regularizer.project_(net, *regularizer.given_lr(1.0))
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items() if "lora" in n or "base_layer" in n)


@pytest.mark.parametrize("name", ["spectral", "hypersphere", "weight_clipping"])
def test_what_cannot_be_traced_but_by_its_shapes_may_be_an_adapter_asks_for_an_example(name):
    net, example = unseen(peft()), VECTORS
    refused(lambda: make_regularizer(name, net), "2.lora_A.default", "example=", error=ValueError)
    refused(lambda: make_regularizer(name, net, example=example), "2.lora_A.default", "only=", error=ValueError)


def beside(forward, **layers):
    """A frozen layer and two trained ones of other shapes or in another place."""
    parts = {"frozen": frozen(nn.Linear(6, 8)), "up": nn.Linear(2, 8), "head": nn.Linear(8, 3), **layers}
    return made_of(lambda net, x: net.head(forward(net, x)), **parts)


NONE = {
    "deep linear": lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(2, 6), nn.Linear(6, 3)),
    "frozen first": lambda: nn.Sequential(frozen(nn.Linear(6, 8)), nn.Linear(8, 2), nn.Linear(2, 8), nn.Linear(8, 3)),
    "adapter layer": lambda: beside(  # behind it, not beside
        lambda net, x: net.frozen(x) + net.up(net.down(net.frozen(x))), down=nn.Linear(8, 2)
    ),
    "non-linear": lambda: beside(lambda net, x: net.frozen(x) + net.up(net.low(x).relu()), low=nn.Linear(6, 2)),
}


@pytest.mark.parametrize("kind", NONE)
def test_deep_linear_networks_and_bottlenecks_are_layers_as_others(kind):
    net = NONE[kind]()
    for example in (None, VECTORS):
        assert not read(net, example).factors
        make_regularizer("spectral", net, example=example)


def deeper():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(),
        nn.Linear(6, 2),
    )  # fmt: skip


IN_ONE_STEP = {
    "wrs": {"every_updates": 1}, "weight_clipping": {"coef": 0.1}, "continual_backprop": {"coef": 0.9, "maturity": 0},
    "self_normalized_resets": {"least": 1, "most": 1, "every_updates": 1}, "hare_tortoise": {"every_updates": 1},
}  # fmt: skip


@pytest.mark.parametrize("example", [None, vectors(5, 4)])
@pytest.mark.parametrize("name", [name for name in REGULARIZERS if name not in ("none", "churn", "feature_rank")])
@pytest.mark.filterwarnings("ignore:swr keeps f' = C f only approximately", "ignore:.*leaves alone what is behind")
def test_parameters_of_torch_s_modules_that_are_to_be_ignored_are_left_alone_by_every_method(name, example):
    changed = {}
    for roles in (None, {"2.weight": "ignore", "2.bias": "ignore"}):
        net = deeper()
        regularizer = make_regularizer(name, net, example=example, roles=roles, **IN_ONE_STEP.get(name, {}))
        changed[roles is None] = set()
        for _ in range(3):
            disturbed(net, 0.5).zero_grad()
            with torch.no_grad():
                net[0].bias[0] = net[2].bias[0] = -99.0  # units that never fire
                net[3].weight[0] = net[3].bias[0] = 0.0
            before = {n: p.detach().clone() for n, p in net.named_parameters()}
            update(regularizer, net, torch.randn(5, 4))
            for n, p in net.named_parameters():
                if (p.grad is not None and p.grad.any()) or not torch.equal(p, before[n]):
                    changed[roles is None].add(n)
    assert {"2.weight"} <= changed[True]
    assert not changed[False] & {"2.weight", "2.bias"}
    assert changed[False]


def test_of_torch_s_modules_no_other_role_than_ignore_can_be_said():
    with pytest.raises(ValueError, match=r"'2\.weight'.*Linear.*'bias'"):
        make_regularizer("spectral", deeper(), roles={"2.weight": "bias"})


def test_only_takes_parameters_and_no_names():
    net = mlp(6, 8, 8, 3)
    for only, said in ((["4.weight"], r"^only\b.*net\.get_parameter\("), (copy.deepcopy(net).parameters(), r"^only\b")):
        refused(lambda only=only: make_regularizer("l2", net, only=only), match=said)
    penalty = make_regularizer("l2", net, coef=2.0, only=[net[4].weight]).penalty(net)
    torch.testing.assert_close(penalty, net[4].weight.square().sum())
