"""The input of a network for a stored image."""

import colorsys

import numpy as np
import torch

from fedvisage.nn.inputs import as_float, prepare

CPU = torch.device("cpu")


def test_the_six_channels_are_rgb_and_the_hsv_of_the_standard_library() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1, 3, 8, 8), dtype=np.uint8)
    seen = prepare(torch.from_numpy(pixels), "rgb+hsv", CPU)
    assert seen.shape == (1, 6, 8, 8)
    for y in range(8):
        for x in range(8):
            red, green, blue = (float(value) / 255 for value in pixels[0, :, y, x])
            expected = [red, green, blue, *colorsys.rgb_to_hsv(red, green, blue)]
            np.testing.assert_allclose(seen[0, :, y, x].numpy(), expected, atol=1e-5)


def test_grey_black_and_white_have_no_hue_and_stay_finite() -> None:
    pixels = torch.tensor([0, 128, 255], dtype=torch.uint8).reshape(1, 1, 1, 3).expand(1, 3, 1, 3)
    seen = prepare(pixels, "rgb+hsv", CPU)
    assert seen[0, 3:5].abs().max() < 1e-6
    np.testing.assert_allclose(seen[0, 5, 0].numpy(), [0, 128 / 255, 1], atol=1e-6)


def test_rgb_alone_is_three_channels() -> None:
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(prepare(pixels, "rgb", CPU), pixels / 255)


def test_stored_pixels_are_not_changed() -> None:
    pixels = torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
    as_float(pixels).zero_()
    assert pixels.min() == 255
