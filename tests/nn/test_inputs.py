"""Network inputs: hue, saturation and value against kornia and the standard library."""

import colorsys
import math

import numpy as np
import pytest
import torch
from kornia.color import rgb_to_hsv
from kornia.enhance import adjust_hue
from torch import Generator, Tensor

from fedvisage.nn import inputs
from fedvisage.nn.inputs import as_float, prepare, shift_hue, with_hsv

ROUNDING = 3 * 2.0**-21
"""Relative error of a channel: hues reach 13 sextants and are rounded three times, by 2^-21."""

LAYOUTS = [torch.contiguous_format, torch.channels_last]


def colours(kind: str, count: int = 9, side: int = 31) -> Tensor:
    drawn = torch.rand(count, 3, side, side, generator=Generator().manual_seed(0))
    stored = (255 * drawn).round() / 255
    return {
        "any": drawn,
        "stored": stored,
        "few, often equal": (3 * drawn).round() / 3,
        "dark": drawn * 1e-3,
        "grey": drawn[:, :1].expand(-1, 3, -1, -1),
        "black": torch.zeros_like(drawn),
        "nearly red": torch.cat(
            [torch.ones_like(drawn[:, :1]), torch.zeros_like(drawn[:, :1]), drawn[:, :1] * 1e-8], 1
        ),
    }[kind]


KINDS = ["any", "stored", "few, often equal", "dark", "grey", "black", "nearly red"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["first", "last"])
@pytest.mark.parametrize("kind", KINDS)
def test_six_channels_are_kornias(kind: str, layout: torch.memory_format) -> None:
    images = colours(kind)
    expected = rgb_to_hsv(images)
    expected[:, 0] /= 2 * math.pi
    images_with_hsv = with_hsv(images.contiguous(memory_format=layout), layout)
    assert images_with_hsv.is_contiguous(memory_format=layout)
    assert torch.equal(images_with_hsv, torch.cat([images, expected], 1))


@pytest.mark.parametrize("kind", KINDS)
def test_turned_hues_are_kornias(kind: str) -> None:
    images, turns = colours(kind), torch.linspace(-0.5, 0.5, 9)
    expected = adjust_hue(images.double(), 2 * math.pi * turns.double())
    for layout in LAYOUTS:
        actual = shift_hue(images.contiguous(memory_format=layout), turns)
        torch.testing.assert_close(actual.double(), expected, rtol=0, atol=ROUNDING * max(0.1, float(images.max())))


def test_turns_of_zero_and_one_change_nothing() -> None:
    images = colours("any")
    for turns in (0.0, 1.0, -1.0):
        torch.testing.assert_close(shift_hue(images, torch.full((9,), turns)), images, rtol=0, atol=ROUNDING)


def test_batch_size_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    images, turns = colours("any"), torch.linspace(-0.5, 0.5, 9)
    actual = []
    for pixels in (1, 4 * 31 * 31, 1 << 30):
        monkeypatch.setattr(inputs, "PIXELS", pixels)
        actual.append((with_hsv(images, torch.channels_last), shift_hue(images, turns)))
    for six, hues in actual[1:]:
        assert torch.equal(six, actual[0][0])
        assert torch.equal(hues, actual[0][1])


def test_empty_batch_stays_empty() -> None:
    assert with_hsv(torch.empty(0, 3, 8, 8), torch.channels_last).shape == (0, 6, 8, 8)
    assert shift_hue(torch.empty(0, 3, 8, 8), torch.empty(0)).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("pixels", [1, 1 << 30])
def test_input_images_are_not_changed(pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "PIXELS", pixels)
    images, stored = colours("any"), torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
    with_hsv(images, torch.channels_last)
    shift_hue(images, torch.full((9,), 0.2))
    as_float(stored).zero_()
    assert torch.equal(images, colours("any"))
    assert stored.min() == 255


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
