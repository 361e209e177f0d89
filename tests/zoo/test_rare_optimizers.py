"""AdamP, UPGD, Muon and TRAC against their papers' and authors' equations; tests/learning has the contract of all."""

import math

import pytest
import torch
from conftest import CASES, SmallCNN, plain_mlp, plainly, refused
from scipy import special
from torch import nn

from rl_plasticity.networks import MLP
from rl_plasticity_zoo.optimizers import TRAC, UPGD, AdamP, AdaptiveUPGD, Muon


def step(net, optimizer, x):
    parameters = list(net.parameters())
    optimizer.update_(parameters, torch.autograd.grad(net(x).square().mean(), parameters))


def adamp_reference(p, g, m, v, t, lr=1e-3, b1=0.9, b2=0.999, eps=1e-8, delta=0.1):
    """Heo et al. 2021, Algorithm 2, one tensor, as loops over units."""
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    d = (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)
    if p.ndim > 1:
        units = p.reshape(p.shape[0], -1)
        cosines = [
            abs((u @ h / (u.norm() * h.norm())).item()) for u, h in zip(units, g.reshape(p.shape[0], -1), strict=True)
        ]
        if max(cosines) < delta / math.sqrt(units.shape[1]):
            rows = d.reshape(p.shape[0], -1).clone()
            for i, u in enumerate(units):
                rows[i] -= u / u.norm() * (u / u.norm() @ rows[i])
            d = rows.reshape(p.shape)
        else:
            w, h = p.flatten(), g.flatten()
            if abs((w @ h / (w.norm() * h.norm())).item()) < delta / math.sqrt(w.numel()):
                d = (d.flatten() - w / w.norm() * (w / w.norm() @ d.flatten())).reshape(p.shape)
    return p - lr * d, m, v


@pytest.mark.parametrize(("scale", "theirs"), [("adam", "match_rms_adamw"), ("original", "original")])
def test_muon_equals_torch_s_on_hidden_weights_and_adam_on_all_else(scale, theirs, monkeypatch):
    # torch orthogonalizes in bfloat16: here in the type that it is given
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    net, reference = (
        nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3), nn.ReLU(), nn.Linear(3, 2)) for _ in "ab"
    )
    net, reference = net.double(), reference.double()
    reference.load_state_dict(net.state_dict())
    ours = Muon(net, lr=0.01, scale=scale)
    hidden = {"0.weight", "2.weight"}
    split = [[p for n, p in reference.named_parameters() if (n in hidden) == muon] for muon in (True, False)]
    pair = [
        torch.optim.Muon(split[0], lr=0.01, weight_decay=0, adjust_lr_fn=theirs),
        torch.optim.Adam(split[1], lr=0.01),
    ]
    for _ in range(20):
        x = torch.randn(16, 5, dtype=torch.float64)
        step(net, ours, x)
        plainly(pair, reference(x).square().mean())
    torch.testing.assert_close([*net.parameters()], [*reference.parameters()], rtol=1e-9, atol=1e-12)


def test_muon_takes_kernels_as_matrices_and_leaves_heads_embeddings_and_bare_parameters_to_adam():
    net = SmallCNN()
    assert [Muon(net).names[i] for i in Muon(net).hidden] == [
        "features.0.weight", "features.4.weight", "classifier.0.weight",
    ]  # fmt: skip
    before = net.features[4].weight.detach().clone()
    step(net, Muon(net, lr=0.1), torch.randn(4, 3, 8, 8))
    singular = torch.linalg.svdvals((before - net.features[4].weight.detach()).flatten(1))
    # 6 x 36: a step of orthogonal rows, lr * 0.2 * sqrt(36) long each
    assert ((singular > 0.6 * 0.12) & (singular < 1.3 * 0.12)).all()

    foreign = CASES["foreign"].make(1)
    assert {Muon(foreign).names[i] for i in Muon(foreign).hidden} == {
        "attention.in_proj_weight", "attention.out_proj.weight", "mlp.0.weight", "mlp.2.weight",
    }  # fmt: skip


def test_muon_leaves_computed_and_grouped_weights_to_adam():
    computed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    net = nn.Sequential(nn.Conv1d(4, 4, 2, groups=2), nn.ReLU(), nn.Flatten(), computed, nn.ReLU(), nn.Linear(8, 8),
                        nn.ReLU(), nn.Linear(8, 2))  # fmt: skip
    assert [Muon(net).names[i] for i in Muon(net).hidden] == ["5.weight"]


def test_muon_refuses_a_network_without_a_hidden_layer():
    refused(lambda: Muon(nn.Linear(4, 3)), match="muon", error=ValueError)


@pytest.mark.parametrize("orthogonal_to", ["units", "tensor", "nothing"])
def test_adamp_equals_its_paper_s_algorithm_in_every_branch(orthogonal_to):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Conv2d(2, 3, 3)).double()
    optimizer = AdamP(net)
    expected = {n: (p.detach().clone(), torch.zeros_like(p), torch.zeros_like(p)) for n, p in net.named_parameters()}
    for t in range(1, 6):
        gradients = []
        for parameter in net.parameters():
            g, w = torch.randn_like(parameter), parameter.detach()
            if w.ndim > 1 and orthogonal_to == "units":
                rows, units = g.reshape(3, -1), w.reshape(3, -1)
                g = (rows - units * ((rows * units).sum(1) / units.square().sum(1))[:, None]).reshape(w.shape)
            elif w.ndim > 1 and orthogonal_to == "tensor":
                g = g - w * ((g * w).sum() / w.square().sum())
            gradients.append(g)
        for (name, (p, m, v)), g in zip(expected.items(), gradients, strict=True):
            expected[name] = adamp_reference(p, g, m.detach(), v.detach(), t)
        optimizer.update_(list(net.parameters()), tuple(gradients))
        torch.testing.assert_close(dict(net.named_parameters()), {name: p for name, (p, _, _) in expected.items()})


@pytest.mark.parametrize("kind", [UPGD, AdaptiveUPGD])
def test_upgd_protects_what_is_of_use_as_its_equations_say(kind):
    w = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    net = nn.Linear(2, 1, bias=False).double()
    net.weight.data.copy_(w)
    adam = {} if kind is UPGD else {"betas": (0.8, 0.95), "eps": 1e-3}
    optimizer = kind(net, lr=0.1, decay=0.9, sigma=0.0, weight_decay=0.5, **adam)
    u, m, v = torch.zeros_like(w), torch.zeros_like(w), torch.zeros_like(w)
    for t, g in enumerate(torch.tensor([[[-1.0, -3.0]], [[0.5, 2.0]]], dtype=torch.float64), 1):
        u = 0.9 * u - 0.1 * g * w
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
        s = 1 / (1 + torch.exp(-u / (1 - 0.9**t) / u.max()))
        step = 2 * m / (1 - 0.8**t) / ((v / (1 - 0.95**t)).sqrt() + 1e-3) if adam else g
        w = (1 - 0.1 * 0.5) * w - 0.1 * step * (1 - s)
        optimizer.update_([net.weight], (g,))
        torch.testing.assert_close(net.weight.detach(), w)
    assert s[0, 0] != s[0, 1]


def test_trac_takes_the_steps_of_its_code_for_each_run():
    betas = torch.tensor([0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999], dtype=torch.float64)
    net = MLP((3, 4, 1), [0, 1]).double()
    optimizer = TRAC(net, lr=0.1)
    generator, lines = torch.Generator().manual_seed(0), []
    for run in range(2):
        theta = torch.cat([p[run].detach().flatten() for p in net.parameters()])
        lines.append({"theta": theta, "ref": theta, "s": 0.0, "var": 0 * betas, "sigma": 0 * betas + 1e-8})
        lines[-1] |= {"m": 0, "v": 0}
    for t in range(1, 61):
        gradients = tuple(torch.randn(p.shape, generator=generator).double() + 2 for p in net.parameters())
        optimizer.update_(list(net.parameters()), gradients)
        for run, s in enumerate(lines):
            g = torch.cat([x[run].flatten() for x in gradients])
            s["m"], s["v"] = 0.9 * s["m"] + 0.1 * g, 0.999 * s["v"] + 0.001 * g**2
            delta = (s["theta"] - s["ref"]) / (s["s"] + 1e-8)
            h = delta @ g
            delta = delta - 0.1 * s["m"] / (1 - 0.9**t) / ((s["v"] / (1 - 0.999**t)).sqrt() + 1e-8)
            s["var"], s["sigma"] = betas**2 * s["var"] + h**2, betas * s["sigma"] - h
            found = special.erfi((s["sigma"] / (2**0.5 * s["var"].sqrt() + 1e-8)).numpy())
            s["s"] = max(0.0, float(1e-8 / special.erfi(0.5**0.5) * found.sum()))
            s["theta"] = s["ref"] + delta * s["s"]
            ours = torch.cat([p[run].detach().flatten() for p in net.parameters()])
            torch.testing.assert_close(ours, s["theta"], rtol=1e-6, atol=1e-9)
    assert all(s["s"] > 1e-6 for s in lines)  # far above where it began: the gradients agree
    assert lines[0]["s"] != lines[1]["s"]


def test_trac_s_imaginary_error_function_is_exact_within_its_range():
    x = torch.tensor([0.0, 1e-9, -0.3, 0.7, 2.0, -4.0, 6.0], dtype=torch.float64)
    ours = TRAC(MLP((2, 2, 1), [0]))._erfi(x)
    torch.testing.assert_close(ours, torch.from_numpy(special.erfi(x.numpy())), rtol=1e-12, atol=0)


def test_trac_moves_weights_in_float32_from_the_first_steps_on():
    net = MLP((3, 64, 1), [0])
    optimizer, before = TRAC(net, lr=0.01), [p.detach().clone() for p in net.parameters()]
    for _ in range(300):
        optimizer.update_(list(net.parameters()), tuple(torch.ones_like(p) for p in net.parameters()))
    moved = torch.cat([(p - q).flatten() for p, q in zip(net.parameters(), before, strict=True)])
    assert (moved < 0).all()


def test_upgd_s_noise_is_normal_of_the_given_size_halved_where_nothing_is_known_and_other_at_each_step():
    net = nn.Linear(200, 100).double()
    optimizer = UPGD(net, lr=0.1, sigma=2.0)
    moves = []
    for _ in range(3):
        before = net.weight.detach().clone()
        optimizer.update_(list(net.parameters()), tuple(map(torch.zeros_like, net.parameters())))
        moves.append((net.weight.detach() - before).flatten() / (0.1 * 2.0 * 0.5))
    normal, q = torch.distributions.Normal(0, 1), torch.tensor([0.025, 0.16, 0.5, 0.84, 0.975]).double()
    expected = normal.icdf(q)
    # A quantile's standard error over the root of n: that of the share below it, over the density there.
    error = (q * (1 - q)).sqrt() / normal.log_prob(expected).exp() / math.sqrt(len(moves[0]))
    for move in moves:
        assert ((move.quantile(q) - expected).abs() < 5 * error).all()
    assert torch.corrcoef(torch.stack(moves)).fill_diagonal_(0).abs().max() < 5 / math.sqrt(len(moves[0]))


def test_upgd_s_noise_does_not_depend_on_where_training_has_led():
    moves = []
    for shift in (0.0, 1e-6):
        net = nn.Linear(5, 4)
        nn.init.ones_(net.weight), nn.init.ones_(net.bias)
        optimizer = UPGD(net, lr=0.1, sigma=2.0)
        before = net.weight.data.add_(shift).clone()
        optimizer.update_(list(net.parameters()), tuple(map(torch.zeros_like, net.parameters())))
        moves.append(net.weight.detach() - before)
    torch.testing.assert_close(*moves, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 1e-2), (torch.float32, 1e-33), (torch.float32, 0.0)])
def test_upgd_stays_finite_where_uses_are_the_smallest_numbers(dtype, size):
    net = plain_mlp().to(dtype)
    optimizer = UPGD(net, decay=0.5)
    for step in range(10 if size else 160):  # uses fade for as long
        gradients = tuple(torch.full_like(p, size if step < 5 else 0.0) for p in net.parameters())
        optimizer.update_(list(net.parameters()), gradients)
    assert all(p.isfinite().all() for p in net.parameters())
