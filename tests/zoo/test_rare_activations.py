"""Smooth leaky ReLU, rational functions and deep Fourier features."""

import math

import torch
from torch import nn

from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import hidden_units, layers, make_regularizer
from rl_plasticity_zoo.activations import DeepFourier, Rational, SmoothLeaky


def test_smooth_leaky_is_its_equation_at_hand_computed_points():
    # 0.1 * 3 + 0.9 * 3 / (1 + exp(-5)), 0.1 * -3 + 0.9 * -3 / (1 + exp(5))
    expected = torch.tensor([0.0, 0.3 + 2.7 / (1 + math.exp(-5)), -0.3 - 2.7 / (1 + math.exp(5))])
    torch.testing.assert_close(SmoothLeaky()(torch.tensor([0.0, 3.0, -3.0])), expected)


def test_a_rational_is_its_quotient_of_polynomials_for_each_run_and_starts_near_leaky_relu():
    module = Rational(2).double()
    with torch.no_grad():
        module.numerator[1] *= 2
        module.denominator[1] *= -3
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    for run in range(2):
        a, b = module.numerator[run], module.denominator[run]
        above = sum(a[k] * x[run] ** k for k in range(6))
        below = 1 + sum((b[k] * x[run] ** (k + 1)).abs() for k in range(4))
        torch.testing.assert_close(module(x)[run], above / below)
    near = torch.linspace(-3, 3, 601).reshape(1, 601)
    assert (Rational()(near) - nn.functional.leaky_relu(near)).abs().max() < 0.04


def test_a_rational_s_coefficients_are_trained_but_are_no_gain_or_bias_to_a_regularizer(recwarn):
    net = MLP((5, 8, 3), [0, 1], activation="rational")
    assert {"2.numerator", "2.denominator"} <= {n for n, _ in net.named_parameters()}
    assert not any("numerator" in n for y in layers(net) for n in y.parameter_names)
    penalty = make_regularizer("spectral", net).penalty(net).sum()
    assert torch.autograd.grad(penalty, net[2].numerator, allow_unused=True) == (None,)
    assert torch.autograd.grad(make_regularizer("l2", net).penalty(net).sum(), net[2].numerator)[0].any()
    assert len(hidden_units(net)) == 1
    assert not recwarn.list


def test_deep_fourier_features_are_sine_and_cosine_on_the_axis_of_the_units():
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(DeepFourier(1)(x), torch.cat((torch.sin(x), torch.cos(x)), 1))
    net = MLP((5, 8, 3), [0], layer_norm=False, activation="deep_fourier")
    hidden = net[0](torch.ones(1, 1, 5))
    torch.testing.assert_close(net[1](hidden).square().sum(), torch.tensor(8.0))  # sin^2 + cos^2 of 8 units
