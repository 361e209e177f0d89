import copy
import warnings
from functools import partial

import pytest
import torch
from conftest import plain_mlp, plainly, refused, set_apart_
from foreign.expected import bare, made_of
from torch import nn

from rl_plasticity import attach
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import EWC, Spectral, make_regularizer
from rl_plasticity.regularizers.penalties import _as_sum


@pytest.mark.parametrize("k", [1, 2, 3])
def test_spectral_value_and_gradient_equal_the_float64_svd_and_a_kernel_is_out_times_the_rest(k):
    net = plain_mlp().insert(0, nn.Conv1d(2, 3, 4))
    layers = [m for m in net if not isinstance(m, nn.ReLU)]
    weights, biases = [m.weight for m in layers], [m.bias for m in layers]
    set_apart_(*weights[1:])
    regularizer = Spectral(net, coef=0.7, k=k)
    for _ in range(50):
        value = regularizer.penalty(net)
    tensors = [t.detach().double().requires_grad_() for t in (*weights, *biases)]
    expected = sum(
        t.norm() ** (2 * k) if t.ndim == 1 else (torch.linalg.svdvals(t.flatten(1))[0] ** k - 1) ** 2 for t in tensors
    )
    torch.testing.assert_close(value.double(), 0.7 * expected, rtol=1e-5, atol=0)
    gradients = torch.autograd.grad(value, [*weights, *biases])
    for g, o in zip(gradients, torch.autograd.grad(0.7 * expected, tensors), strict=True):
        torch.testing.assert_close(g.double(), o, rtol=1e-3, atol=1e-4 * o.abs().max().item())


def test_one_power_iteration_for_each_penalty_tracks_a_slowly_changing_matrix():
    net = nn.Sequential(nn.Linear(20, 30, bias=False))
    regularizer = Spectral(net, coef=1.0, k=1)
    start, drift = net[0].weight.detach().clone(), torch.randn(30, 20) * 0.3
    errors = []
    for step in range(600):
        net[0].weight.data.copy_(start + drift * step / 600)
        sigma = regularizer.penalty(net).detach().sqrt()  # |sigma1 - 1|
        true = torch.linalg.svdvals(net[0].weight)[0] - 1
        errors.append((sigma / true.abs() - 1).abs())
    assert max(errors[100:]) < 4e-2  # where the two largest are close together, whatever was drawn
    stale = (torch.linalg.svdvals(start)[0] / torch.linalg.svdvals(net[0].weight)[0] - 1).abs()
    assert stale > 0.2  # vectors that do not follow would be far off


def test_spectral_starts_a_run_with_the_same_vectors_whatever_runs_train_beside_it():
    def stacked(seeds):
        return MLP((4, 6, 5, 2), seeds)  # each run's weights are its seed's

    together = Spectral(stacked([3, 4, 5]), warmup=2)
    for run, seed in enumerate([3, 4, 5]):
        alone = Spectral(stacked([seed]), warmup=2)
        vectors = {name: buffer for name, buffer in alone.named_buffers() if name.startswith(("u", "v"))}
        assert vectors
        for name, vector in vectors.items():
            torch.testing.assert_close(together.get_buffer(name)[run], vector[0], rtol=0, atol=1e-6)


def test_a_zero_matrix_does_not_hold_the_power_iteration_at_zero():
    net = nn.Sequential(nn.Linear(4, 6, bias=False))
    nn.init.zeros_(net[0].weight)
    regularizer = Spectral(net, coef=1.0, k=1)
    assert regularizer.penalty(net).item() == pytest.approx(1.0)
    nn.init.normal_(net[0].weight)
    for _ in range(100):
        value = regularizer.penalty(net)
    expected = (torch.linalg.svdvals(net[0].weight)[0] - 1) ** 2
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=0)


def test_a_zero_bias_has_a_zero_gradient_also_where_the_penalty_was_called_again_before_the_backward_pass():
    net = nn.Sequential(nn.Linear(4, 6))
    nn.init.zeros_(net[0].bias)
    regularizer = Spectral(net)
    first = regularizer.penalty(net)
    regularizer.penalty(net)
    first.backward()
    assert torch.equal(net[0].bias.grad, torch.zeros(6))
    assert net[0].weight.grad.any()


def test_ewc_leaves_alone_what_does_not_step_and_refuses_gradients_of_nothing_that_it_knows():
    net = nn.Linear(2, 1)
    regularizer = EWC(net, fisher_decay=0.5, anchor_decay=0.5)
    net.weight.data.add_(1.0)
    net.bias.data.add_(1.0)
    before = {name: value.clone() for name, value in regularizer.state_dict().items()}
    regularizer.observe_(net, {"weight": torch.tensor([[2.0, 0.0]])})
    after = regularizer.state_dict()
    torch.testing.assert_close(after["fisher/weight"], torch.tensor([[2.0, 0.0]]))
    torch.testing.assert_close(after["anchor/weight"], before["anchor/weight"] + 0.5)
    assert all(torch.equal(after[f"{kind}/bias"], before[f"{kind}/bias"]) for kind in ("fisher", "anchor"))
    of_others = {"module.weight": torch.zeros(1, 2)}
    refused(lambda: regularizer.observe_(net, of_others), "'weight'", "'module.weight'", error=RuntimeError)


def test_ewc_refuses_a_loop_that_never_shows_it_the_gradients():
    net = plain_mlp()
    regularizer = EWC(net)
    for _ in range(2):
        regularizer.penalty(net)
        refused(lambda: regularizer.project_(net), "regularizer.observe_(net", error=RuntimeError)
        regularizer.observe_(net, {name: torch.ones_like(p) for name, p in net.named_parameters()})
        regularizer.project_(net)


def mixed():
    """A convolution, two kinds of norm layer, linear layers, an embedding: every role that a choice divides."""

    def forward(net, x):
        y = net.bn(net.conv(x)).relu().mean(-1)
        y = net.ln(y + net.table(torch.zeros(len(x), dtype=torch.int64)))
        return net.head(net.hidden(y).relu())

    return made_of(
        forward, conv=nn.Conv1d(2, 4, 3, padding=1, bias=False), bn=nn.BatchNorm1d(4), table=nn.Embedding(3, 4),
        ln=nn.LayerNorm(4), hidden=nn.Linear(4, 6), head=nn.Linear(6, 3),
    )  # fmt: skip


CHOSEN = {
    "all": [name for name, _ in mixed().named_parameters()],
    "weights": ["conv.weight", "table.weight", "hidden.weight", "head.weight"],
    "hidden_weights": ["conv.weight", "hidden.weight"],
    "heads": ["head.weight", "head.bias"],
    "biases": ["hidden.bias", "head.bias"],
    "norms": ["bn.weight", "bn.bias", "ln.weight", "ln.bias"],
    "kernels_and_gains": ["conv.weight", "bn.weight", "ln.weight"],
}


def trained(net, optimizer, steps=5):
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        x = torch.randn(8, 2, 5, generator=generator, dtype=torch.float64)
        plainly(optimizer, net(x).square().mean())
        yield net


@pytest.mark.parametrize("of", CHOSEN)
@pytest.mark.parametrize(
    ("name", "plain", "theirs"),
    [
        ("l2", partial(torch.optim.SGD, lr=0.05, momentum=0.9), partial(torch.optim.SGD, lr=0.05, momentum=0.9)),
        ("weight_decay", partial(torch.optim.Adam, lr=0.01), partial(torch.optim.AdamW, lr=0.01)),
    ],
    ids=["l2 and SGD", "weight_decay and AdamW"],
)
def test_on_chosen_parameters_it_equals_torch_s_weight_decay_of_a_group_of_them_step_for_step(name, plain, theirs, of):
    net, decay = mixed().double(), 0.3
    other = copy.deepcopy(net)
    optimizer = plain(net.parameters())
    heads = {"heads": ["head"]} if of in ("hidden_weights", "heads") else {}  # its forward cannot be traced
    attach(name, optimizer, net, coef=decay, of=of, **heads)
    chosen = [p for n, p in other.named_parameters() if n in CHOSEN[of]]
    left = [p for n, p in other.named_parameters() if n not in CHOSEN[of]]
    groups = [{"params": chosen, "weight_decay": decay}, {"params": left, "weight_decay": 0.0}]
    for mine, its in zip(trained(net, optimizer), trained(other, theirs(groups)), strict=True):
        torch.testing.assert_close(*(dict(one.named_parameters()) for one in (mine, its)), rtol=1e-12, atol=1e-12)


def test_spectral_refuses_a_network_of_which_it_can_tell_nothing():
    net = made_of(lambda net, x: nn.functional.linear(x, net.weight.tanh()), weight=bare(3, 5))
    refused(lambda: make_regularizer("spectral", net, example=torch.randn(2, 5)), "Spectral", error=ValueError)


@pytest.mark.parametrize(("scale", "is_heavy"), [(1.0, True), (0.05, False)])
def test_spectral_names_a_table_whose_term_may_outweigh_the_loss_and_how_to_leave_it_alone(scale, is_heavy):
    net = nn.Sequential(nn.Embedding(400, 8), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
    net[0].weight.data *= scale
    sigma1 = torch.linalg.svdvals(net[0].weight)[0].item()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        make_regularizer("spectral", net, coef=1e-4)
        make_regularizer("spectral", net, coef=1e-4, roles={"0.weight": "ignore"})
    assert len(said) == is_heavy
    for one in said:
        term = 1e-4 * (sigma1**2 - 1) ** 2
        assert f"{term:.3g} for 0.weight (sigma1 {sigma1:.3g})" in str(one.message)
        assert "roles={'0.weight': 'ignore'}" in str(one.message)


@pytest.mark.parametrize("shapes", [((2, 5, 3), (2, 3, 1)), ((2, 1, 3), (2, 3, 4)), ((2, 1, 3), (2, 3, 1))])
def test_a_product_with_a_vector_is_the_same_as_a_sum(shapes):
    a, b = map(torch.randn, shapes)
    torch.testing.assert_close(_as_sum(a, b), a @ b)
