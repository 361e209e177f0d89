"""Augmentation against cases made by hand, and against the standard library's colour model."""

import colorsys

import pytest
import torch
from conftest import nothing_drawn

from rl_plasticity_zoo.augment import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    augment,
    crop,
    flip,
)

RED, GREEN, BLUE = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]


def pixels(*colours):
    """One image of one row for each list of colours, ``[n, 3, 1, w]``."""
    return torch.tensor(colours).movedim(-1, -2)[:, :, None, :]


def test_only_the_chosen_images_are_mirrored_left_to_right():
    x = torch.arange(12.0).view(2, 1, 2, 3)
    out = flip(x, torch.tensor([False, True]))
    assert torch.equal(out[0], x[0])
    assert out[1].tolist() == [[[8.0, 7.0, 6.0], [11.0, 10.0, 9.0]]]


def test_brightness_is_a_factor_of_each_image_that_stops_at_one():
    out = adjust_brightness(torch.full((3, 3, 1, 1), 0.5), torch.tensor([0.5, 1.0, 3.0]))
    assert out[:, 0, 0, 0].tolist() == [0.25, 0.5, 1.0]


def test_contrast_is_about_the_mean_of_the_image_s_grey():
    x = torch.tensor([0.2, 0.6]).expand(2, 3, 1, 2)  # grey: .2 and .6, mean .4
    out = adjust_contrast(x, torch.tensor([0.5, 0.0]))
    torch.testing.assert_close(out[0, 1, 0], torch.tensor([0.3, 0.5]))
    torch.testing.assert_close(out[1], torch.full((3, 1, 2), 0.4))
    coloured = adjust_contrast(pixels([RED, [0.0] * 3]), torch.tensor([0.0]))
    torch.testing.assert_close(coloured, torch.full((1, 3, 1, 2), 0.299 / 2))


def test_saturation_goes_from_grey_to_the_colour():
    x = pixels([GREEN])
    torch.testing.assert_close(adjust_saturation(x, torch.tensor([0.0])), torch.full((1, 3, 1, 1), 0.587))
    torch.testing.assert_close(adjust_saturation(x, torch.tensor([1.0])), x)
    half = adjust_saturation(x, torch.tensor([0.5])).flatten()
    torch.testing.assert_close(half, torch.tensor([0.2935, 0.7935, 0.2935]))


def test_hue_agrees_with_the_standard_library():
    x = torch.rand(40, 3, 2, 2, dtype=torch.float64)
    x[0], x[1, :, 0, 0], x[2, 1] = 0.3, 0.0, x[2, 0]  # greys, black, and ties
    turn = torch.rand(40, dtype=torch.float64) - 0.5
    out = adjust_hue(x, turn)
    for i in range(40):
        for row in range(2):
            for column in range(2):
                h, s, v = colorsys.rgb_to_hsv(*x[i, :, row, column].tolist())
                expected = colorsys.hsv_to_rgb((h + turn[i].item()) % 1, s, v)
                assert out[i, :, row, column].tolist() == pytest.approx(expected, abs=1e-9)


def test_images_without_colours_have_no_hue_and_no_saturation():
    x = torch.rand(4, 1, 3, 3)
    assert torch.equal(adjust_hue(x, torch.full((4,), 0.3)), x)
    assert torch.equal(adjust_saturation(x, torch.zeros(4)), x)


def test_a_crop_is_a_window_of_the_padded_image():
    x = torch.arange(1.0, 7.0).view(1, 1, 2, 3).repeat(3, 2, 1, 1)
    out = crop(x, torch.tensor([1, 0, 2]), torch.tensor([1, 2, 0]), 1)
    assert torch.equal(out[0], x[0])
    assert out[1, 1].tolist() == [[0.0, 0.0, 0.0], [2.0, 3.0, 0.0]]
    assert out[2, 0].tolist() == [[0.0, 4.0, 5.0], [0.0, 0.0, 0.0]]


def test_without_jitter_and_padding_only_flips_are_left_about_half_of_the_time():
    x = torch.rand(2, 200, 3, 4, 4)
    out = augment(x, torch.Generator().manual_seed(0), pad=0, brightness=0, contrast=0, hue=0, saturation=0)
    same = (out - x).abs().amax((-3, -2, -1)) < 1e-5
    mirrored = (out - x.flip(-1)).abs().amax((-3, -2, -1)) < 1e-5
    assert (same ^ mirrored).all()
    assert abs(same.double().mean() - 0.5) < 5 * 0.5 / 400**0.5  # standard errors


def test_every_offset_occurs():
    x = torch.zeros(2000, 1, 5, 5)
    x[:, :, 2, 2] = 1
    out = augment(x, torch.Generator().manual_seed(0), pad=2, brightness=0, contrast=0)
    places = out.flatten(1).argmax(1).bincount(minlength=25)
    assert (out.sum((1, 2, 3)) == 1).all()
    assert (places - 80).abs().max() < 5 * (80 * 24 / 25) ** 0.5  # standard errors


def test_augmentation_depends_on_the_generator_alone_and_each_image_has_its_own_draw():
    x = torch.rand(1, 3, 8, 8).expand(6, 3, 8, 8)
    with nothing_drawn():
        one, again, other = (augment(x, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert len(one.flatten(1).unique(dim=0)) == 6
    assert one.shape == x.shape
    assert 0 <= one.min() <= one.max() <= 1


def test_a_leading_runs_axis_changes_nothing():
    x = torch.rand(6, 3, 8, 8)
    flat = augment(x, torch.Generator().manual_seed(1))
    runs = augment(x.view(2, 3, 3, 8, 8), torch.Generator().manual_seed(1))
    assert torch.equal(runs.view_as(flat), flat)


def test_bytes_are_refused():
    with pytest.raises(ValueError, match=r"float.*\[0, 1\].*torch.uint8"):
        augment(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.Generator())
