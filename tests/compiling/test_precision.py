import re
from functools import partial

import pytest
import torch
from conftest import StopAfter, random_batch, refused
from folders import PENDULUM, resume, rows, run, run_supervised
from test_compiled import assert_close_states, spectral_and_swr
from torch import nn

from rl_plasticity.agents import SAC
from rl_plasticity.compiling import precision
from rl_plasticity.compiling.compiled import compiled
from rl_plasticity.compiling.precision import decided, pays_from, read_bfloat16_, tf32
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Train
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import SGD
from rl_plasticity.networks import MLP, NETWORKS, StackedLinear
from rl_plasticity.runs.machine import resolved


@pytest.fixture
def units(monkeypatch):
    """A machine that has units for bfloat16, and where it pays from a width of 16 on."""
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(precision, "pays_from", lambda device, runs=1: 16)
    monkeypatch.setattr(precision, "onednn_pays_from", lambda: precision.NEVER)


def rounded(x):
    return x.bfloat16().double()


def test_a_layer_multiplies_rounded_factors_and_so_do_its_gradients():
    layer = StackedLinear(40, 30, [0, 1])
    layer.bias.data.normal_()
    layer.operands = torch.bfloat16
    x, g = torch.randn(2, 20, 40, requires_grad=True), torch.randn(2, 20, 30)
    y = layer(x)
    y.backward(g)
    w = layer.weight.detach()
    exact = {
        "output": (y - layer.bias.unsqueeze(1), rounded(x.detach()) @ rounded(w).mT),
        "to the input": (x.grad, rounded(g) @ rounded(w)),
        "to the weight": (layer.weight.grad, rounded(g).mT @ rounded(x.detach())),
    }
    for name, (got, of_rounded) in exact.items():
        assert got.dtype == torch.float32
        # The sum is rounded once, by at most 2^-9 of it; summed up in bfloat16 it would be off by many times that.
        error = (got.double() - of_rounded).abs()
        assert (error <= 2**-8 * of_rounded.abs() + 1e-5).all(), name
        assert error.max() > 0, name
    torch.testing.assert_close(layer.bias.grad, g.sum(1))  # is no product


def test_layers_with_a_side_that_is_too_narrow_stay_float32():
    net = MLP((6, 64, 64, 3), [0])
    assert read_bfloat16_(net, 32) == 1
    assert [layer.operands for layer in net if isinstance(layer, StackedLinear)] == [None, torch.bfloat16, None]
    assert read_bfloat16_(net, 65) == 0
    torch.testing.assert_close(net(torch.ones(1, 2, 6)), MLP((6, 64, 64, 3), [0])(torch.ones(1, 2, 6)), rtol=0, atol=0)


def test_what_is_trained_and_what_is_logged_is_float32_and_the_discount_keeps_its_digits():
    agent, other = (SAC(4, 2, [0], spectral_and_swr, hidden=(32, 32)) for _ in range(2))
    before = agent.critic_target.critics[0][3].weight.clone()
    read_bfloat16_(agent, 1)
    batch, noise = random_batch(1), torch.randn(2, 1, 32, 2)
    batch = batch._replace(reward=torch.zeros(1, 32), discount=torch.full((1, 32), 0.99))
    metrics, expected = agent.update(batch, noise), other.update(batch, noise)
    kinds = {value.dtype for value in agent.state_dict().values()} - {torch.int64, torch.uint8, torch.float64}
    assert kinds == {torch.float32}
    assert {value.dtype for value in metrics.values()} == {torch.float32}
    torch.testing.assert_close(metrics, expected, rtol=0.05, atol=0.02)  # the same equations, rounded
    assert not torch.equal(metrics["critic/loss"], expected["critic/loss"])
    # The target follows by 0.005 of the step: a target in bfloat16 would not move at all.
    moved = agent.critic_target.critics[0][3].weight - before
    torch.testing.assert_close(moved, 0.005 * (agent.critic.net.critics[0][3].weight - before), rtol=0.01, atol=1e-7)


def test_compiled_updates_in_bfloat16_equal_the_plain_ones():
    make, sgd = lambda s: MLP((16, 16, 16), s, layer_norm=False), partial(SGD, lr=0.1)
    plain, quick = (Learner(make, [0, 1], make_optimizer=sgd) for _ in range(2))
    for learner in (plain, quick):
        assert read_bfloat16_(learner, 16) == 2

    def update(learner, x):
        return learner.minimize(learner.net(x).sub(1).square().mean((1, 2)))

    quickly = compiled(lambda x: update(quick, x))
    for x in torch.randn(10, 2, 32, 16):
        update(plain, x)
        quickly(x)
    assert_close_states(plain, quick)


def test_auto_is_bfloat16_only_where_there_are_units_for_it(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    assert decided("auto", "cpu") == decided("bfloat16", "cpu") == "bfloat16"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": False, "avx512_f": True})
    assert decided("auto", "cpu") == "float32"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert decided("tf32", "cuda") == "tf32"
    for asked, device, said in (("bfloat16", "cpu", "AVX512-BF16"), ("tf32", "cpu", "GPU"), ("bfloat16", "cuda", "G")):
        refused(lambda asked=asked, device=device: decided(asked, device), match=said)


def test_bfloat16_pays_from_the_narrowest_width_from_which_it_always_does(monkeypatch):
    seconds = {(w, None): w**2 for w in precision.WIDTHS}
    seconds |= {(w, "bfloat16"): w**1.5 + 1000 for w in precision.WIDTHS}  # 64^2 = 4096 > 1512, 32^2 = 1024 < 1181
    monkeypatch.setattr(precision, "_seconds", lambda width, kernel, device, runs: seconds[width, kernel])
    assert pays_from.__wrapped__("cpu", 1) == 64
    seconds |= {(512, "bfloat16"): 512**2 + 1}
    assert pays_from.__wrapped__("cpu", 1) > 10**6
    seconds |= {(w, "onednn"): w**2 / (2 if w > 100 else 1.4) for w in precision.WIDTHS}  # 1.4 may be noise
    assert pays_from.__wrapped__("cpu", 1, "onednn") == 128


def test_a_run_writes_down_what_was_decided_and_goes_on_with_it_bit_for_bit(units, tmp_path, monkeypatch):
    whole = run([*PENDULUM, "precision=auto"], tmp_path / "whole")
    saved = schema.load(Train, [*PENDULUM, "precision=auto"])
    assert (resolved(saved).precision, resolved(saved).bfloat16_from) == ("bfloat16", 16)
    config = (whole / "config.yaml").read_text()
    assert "precision: bfloat16" in config
    assert "bfloat16_from: 16" in config
    stopped = run([*PENDULUM, "precision=auto"], tmp_path / "stopped", StopAfter(45))
    saved = (stopped / "config.yaml").read_text()
    (stopped / "config.yaml").write_text(re.sub("onednn_from: .*\n", "", saved))  # as an older version wrote it
    with monkeypatch.context() as patch:
        for measured in ("pays_from", "onednn_pays_from"):
            patch.setattr(precision, measured, lambda *_: pytest.fail("measured again"))
        resume(stopped)
    assert rows(whole) == rows(stopped)
    plain = run(PENDULUM, tmp_path / "plain")
    assert "precision: float32" in (plain / "config.yaml").read_text()
    assert rows(plain) != rows(whole)


def convolutions(shape, num_classes, seeds):
    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, num_classes))


@pytest.mark.parametrize("net", ["mlp", "convolutions"])
def test_supervised_networks_of_both_kinds_learn_in_bfloat16(net, units, tmp_path, monkeypatch):
    monkeypatch.setitem(NETWORKS, "convolutions", convolutions)
    arguments = ["task=random_labels", "data=digits", "data.train_size=40", f"net={net}", "num_tasks=1"]
    arguments += ["epochs_per_task=2", "batch_size=20", "measure_every_updates=0", "device=cpu", "log_every_updates=1"]
    arguments += ["net.widths=[32,32]"] if net == "mlp" else []
    exact = run_supervised(arguments, tmp_path / "exact")
    folder = run_supervised([*arguments, "precision=bfloat16"], tmp_path / "run")

    def losses(folder):
        return [float(r["value"]) for r in rows(folder, "net/loss")]

    assert losses(folder) == pytest.approx(losses(exact), rel=0.05)
    assert losses(folder) != losses(exact)


def test_a_bare_call_in_bfloat16_gives_float32_and_leaves_the_weights():
    net = nn.Linear(8, 4)
    output = precision.in_bfloat16(net, "cpu")(torch.randn(3, 8))
    assert (output.dtype, net.weight.dtype) == (torch.float32, torch.float32)


def test_tf32_is_switched_on_for_the_run_alone():
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    with tf32(True):
        assert switch.fp32_precision == "tf32"
    assert switch.fp32_precision == before
    with tf32(False):
        assert switch.fp32_precision == before
