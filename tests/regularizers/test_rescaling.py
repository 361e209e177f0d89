import math

import pytest
import torch
from conftest import SmallCNN, plain_mlp, refused
from foreign.expected import made_of
from torch import nn

from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import NormalizeProject, SoftWeightRescaling, WeightRescaling, make_regularizer


def grown(net):
    """The net after training of a kind: every parameter scaled by its own factor, biases and shifts set."""
    generator = torch.Generator().manual_seed(5)
    for p in net.parameters():
        p.data.mul_(1 + 2 * torch.rand((), generator=generator))
        p.data.add_(0.3 * torch.randn(p.shape, generator=generator))
    return net


NETS = {
    "mlp": (plain_mlp, lambda: torch.randn(16, 5)),
    "layer_norm": (
        lambda: nn.Sequential(
            nn.Linear(5, 8), nn.LayerNorm(8, eps=1e-12), nn.ReLU(), nn.Linear(8, 9), nn.LayerNorm(9, eps=1e-12),
            nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 3),
        ),
        lambda: torch.randn(16, 5),
    ),
    "batch_norm": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=1e-12), nn.ReLU(),
            nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5, eps=1e-12), nn.ReLU(),
            nn.Conv2d(5, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3),
        ),
        lambda: torch.randn(16, 3, 8, 8),
    ),
}  # fmt: skip


def after_swr(kind, **settings):
    """Output before and after one projection of a grown net, both float64, and which weights it changed."""
    make, inputs = NETS[kind]
    net = make().double()
    regularizer = SoftWeightRescaling(net, **settings)
    grown(net)
    x = inputs().double()
    before, weights = net(x).detach(), {n: p.detach().clone() for n, p in net.named_parameters()}
    regularizer.project_(net)
    return before, net(x).detach(), {n for n, p in net.named_parameters() if not torch.allclose(p, weights[n])}


@pytest.mark.parametrize("kind", NETS)
def test_the_printed_rule_is_proportional_only_where_there_are_no_norm_layers(kind):
    before, after, _ = after_swr(kind, coef=0.3, accumulate="paper")
    factor = (before * after).sum() / before.square().sum()  # the nearest that is proportional
    error = (after - factor * before).norm() / after.norm()
    assert error < 1e-5 if kind == "mlp" else error > 1e-2


@pytest.mark.parametrize("kind", NETS)
def test_scope_preserving_leaves_the_output_unchanged_and_not_the_weights(kind):
    before, after, changed = after_swr(kind, coef=0.3, scope="preserving")
    torch.testing.assert_close(before, after, rtol=1e-8, atol=1e-8)
    scaled = ("0", "2", "4") if kind == "mlp" else ("0", "1", "3")  # all, or what comes before the last norm layer
    assert changed == {f"{i}.{part}" for i in scaled for part in ("weight", "bias")} - {"4.bias"}


def patches():
    """A vision transformer in small: linear layers behind a convolution, in a stream."""

    def forward(net, x):
        x = net.patches(x).flatten(2).mT
        return net.head((x + net.inner(x))[:, 0])

    return made_of(forward, patches=nn.Conv2d(1, 3, 2, 2), inner=nn.Linear(3, 3), head=nn.Linear(3, 2))


@pytest.mark.parametrize(("make", "classifier"), [
    (plain_mlp, ["4.weight"]),
    (SmallCNN, ["classifier.0.weight", "classifier.2.weight"]),
    (patches, ["head.weight"]),  # alone, where a sum of branches comes before it
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:swr keeps")
def test_coef_classifier_is_for_the_last_layer_or_for_all_linear_layers_behind_convolutions(make, classifier):
    net = make()
    regularizer = SoftWeightRescaling(net, coef=0.0, coef_classifier=1.0)
    initial = {name: net.get_parameter(name).norm().item() for name in classifier}
    grown(net)
    before = {name: p.detach().clone() for name, p in net.named_parameters() if name.endswith("weight")}
    regularizer.project_(net)
    assert [name for name, p in before.items() if not torch.equal(p, net.get_parameter(name))] == classifier
    norms = {name: net.get_parameter(name).norm().item() for name in classifier}
    assert norms == pytest.approx(initial, rel=1e-5)


@pytest.mark.parametrize("rescale_head", [False, True])
def test_wrs_gives_every_hidden_unit_unit_norm_and_the_head_s_for_classification_and_leaves_a_zero_unit(rescale_head):
    net = grown(MLP((5, 8, 8, 3), [0, 1]))
    net[0].weight.data[0, 2] = 0
    head = net[6].weight.clone()
    WeightRescaling(net, every_updates=1, rescale_head=rescale_head).project_(net, 1e-2)
    expected = torch.ones(2, 8)
    torch.testing.assert_close(net[3].weight.norm(dim=-1), expected)
    expected[0, 2] = 0
    torch.testing.assert_close(net[0].weight.norm(dim=-1), expected)
    torch.testing.assert_close(net[6].weight, head / head.norm(dim=-1, keepdim=True) if rescale_head else head)


@pytest.mark.parametrize(
    ("of", "per", "same"), [("batch_norm", "unit", True), ("layer_norm", "layer", True), ("layer_norm", "unit", False)]
)
def test_wrs_per_unit_keeps_the_function_under_batch_norm_and_per_layer_under_layer_norm(of, per, same):
    make, inputs = NETS[of]
    net, x = grown(make().double())[:6], inputs().double()  # without the layers that no norm layer follows
    before = net(x)
    WeightRescaling(net, every_updates=1, norm_decay=0.0, per=per).project_(net, 1e-2)
    change = (net(x) - before).norm() / before.norm()
    assert change < 1e-9 if same else change > 1e-2


def test_wrs_per_layer_sets_the_frobenius_norm_to_the_root_of_the_width():
    net = grown(MLP((5, 8, 7, 3), [0, 1]))
    WeightRescaling(net, every_updates=1, per="layer").project_(net, 1e-2)
    torch.testing.assert_close(net[3].weight.flatten(1).norm(dim=1), torch.full((2,), math.sqrt(7)))


def branched():
    def forward(net, x):
        h = net.a(x).relu()
        return net.head(h + net.b(h).relu())

    return made_of(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 4), head=nn.Linear(4, 2))


def tied(norm):
    embedding, head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    head.weight = embedding.weight
    return made_of(
        lambda net, tokens: net.head(net.norm(net.body(net.embedding(tokens))).relu()),
        embedding=embedding, body=nn.Linear(4, 4), head=head, norm=norm,
    )  # fmt: skip


@pytest.mark.parametrize(("net", "says"), [
    (made_of(lambda net, x: net.head(torch.cat([net.a(x).relu(), x], 1)), a=nn.Linear(4, 4), head=nn.Linear(8, 2)),
        r"scope=preserving.*\bhead\b"),
    (branched(), r"scope=preserving.*\bhead\b"),
    (tied(nn.LayerNorm(4)), r"scope=preserving.*\bhead \(.*shares"),
    (tied(nn.Identity()), r"scope=preserving.*\bhead \(.*shares"),
])  # fmt: skip
def test_scope_preserving_refuses_a_network_whose_function_it_would_change(net, says):
    refused(lambda: SoftWeightRescaling(net, scope="preserving"), match=says, error=ValueError)


def test_scope_preserving_keeps_a_layer_that_started_at_zero_and_another_scope_one_that_is_zero():
    net = plain_mlp()
    nn.init.zeros_(net[2].weight)
    regularizer = SoftWeightRescaling(net, coef=1.0, scope="preserving")
    grown(net)
    x = torch.randn(16, 5)
    before = net(x)
    regularizer.project_(net)
    torch.testing.assert_close(net(x), before, rtol=1e-4, atol=1e-5)
    regularizer = SoftWeightRescaling(net, coef=0.5)
    net[2].weight.data.zero_()
    regularizer.project_(net)
    assert not net[2].weight.any()
    assert all(p.isfinite().all() for p in net.parameters())


@pytest.mark.filterwarnings("ignore:.*norm layer follows", "ignore:swr keeps")
@pytest.mark.parametrize(("name", "settings"), [("normalize_project", {}), ("swr", {"coef": 1.0})])
def test_what_starts_at_zero_is_not_held_there(name, settings):
    net = plain_mlp()
    nn.init.zeros_(net[2].weight)
    regularizer = make_regularizer(name, net, **settings)
    with torch.no_grad():
        net[2].weight.fill_(0.5), net[0].weight.mul_(2)
    before = net[0].weight.detach().norm()
    regularizer.project_(net)
    assert (net[2].weight == 0.5).all()
    torch.testing.assert_close(net[0].weight.norm(), before / 2)


def test_the_gain_of_a_norm_layer_over_several_axes_has_one_norm():
    net = nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.LayerNorm([3, 4, 5]), nn.Flatten(), nn.Linear(60, 2))
    gain = net[1].weight.data.copy_(torch.rand(3, 4, 5)).clone()
    net[1].bias.data.zero_()
    make_regularizer("hypersphere", net, norms="scale").project_(net)
    torch.testing.assert_close(net[1].weight.detach(), gain * math.sqrt(60) / gain.norm())


def test_normalize_project_waits_for_its_period_and_leaves_a_zero_weight_and_biases():
    net = MLP((5, 8, 8, 3), [0, 1])
    regularizer = NormalizeProject(net, every_updates=2)
    first = net[0].weight.norm(dim=(1, 2))
    with torch.no_grad():
        net[0].weight.mul_(3), net[3].weight.zero_(), net[0].bias.fill_(7.0)
    for factor in (3, 1):
        regularizer.project_(net)
        torch.testing.assert_close(net[0].weight.norm(dim=(1, 2)), factor * first)
    assert not net[3].weight.any()
    assert (net[0].bias == 7).all()


def test_gains_and_shifts_are_scaled_together_to_the_root_of_their_number_layer_by_layer_and_run_by_run():
    net = MLP((5, 8, 8, 3), [0, 1])
    regularizer = make_regularizer("hypersphere", net, norms="scale")
    net[1].weight.data.copy_(torch.tensor([[3.0], [0.5]]).expand(2, 8))
    net[1].bias.data.copy_(torch.tensor([[4.0], [0.0]]).expand(2, 8))
    net[4].weight.data.zero_()
    net[4].bias.data.zero_()
    regularizer.project_(net)
    # |(g, s)| = sqrt(8) * 5 in run 0 and sqrt(8) * 0.5 in run 1
    torch.testing.assert_close(net[1].weight, torch.tensor([[0.6], [1.0]]).expand(2, 8))
    torch.testing.assert_close(net[1].bias, torch.tensor([[0.8], [0.0]]).expand(2, 8))
    assert not net[4].weight.any()  # zeros stay
    assert not net[4].bias.any()


def test_a_gain_without_a_shift_is_scaled_alone():
    net = nn.Sequential(nn.Linear(4, 6), nn.RMSNorm(6), nn.ReLU(), nn.Linear(6, 2))
    net[1].weight.data.mul_(torch.arange(1.0, 7))
    make_regularizer("hypersphere", net, norms="scale").project_(net)
    assert net[1].weight.norm().item() == pytest.approx(6**0.5)
    assert net[1].weight[5].item() == pytest.approx(6 * net[1].weight[0].item())


@pytest.mark.parametrize("name", ["wrs", "hypersphere", "normalize_project"])
def test_what_changes_the_function_at_once_says_where_no_norm_layer_follows_and_each_name_once(name, recwarn):
    def changing(net, **settings):
        with pytest.warns(UserWarning, match=rf"^{name}\b") as said:
            make_regularizer(name, net, **settings)
        (warning,) = said
        return str(warning.message).rpartition(": ")[2]

    make_regularizer(name, nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)))
    assert not recwarn.list
    lstm = made_of(lambda net, x: net.head(net.lstm(x)[0]), lstm=nn.LSTM(5, 4, num_layers=2), head=nn.Linear(4, 2))
    assert changing(lstm, example=torch.ones(3, 2, 5)) == "lstm"
    deep = nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(4, 4), nn.ReLU())), nn.Linear(4, 2))
    assert changing(deep) == "0, 2, 4 and 2 more"


def test_wrs_input_channel_by_hand_on_a_convolution():
    conv = nn.Conv2d(2, 1, (1, 2), bias=False)
    net = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(3, 1))
    conv.weight.data = torch.tensor([[[[3.0, 6.0]], [[4.0, 8.0]]]])  # positions: (3, 4) and (6, 8)
    WeightRescaling(net, every_updates=1, variant="input_channel").project_(net, 1e-2)
    torch.testing.assert_close(conv.weight, torch.tensor([[[[0.6, 0.6]], [[0.8, 0.8]]]]))
