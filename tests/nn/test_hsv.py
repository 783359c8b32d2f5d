"""Hue, saturation and value, worked on a few images at a time, against kornia and the standard library."""

from __future__ import annotations

import colorsys
import math

import pytest
import torch
from kornia.color import rgb_to_hsv
from kornia.enhance import adjust_hue
from torch import Generator, Tensor

from fedvisage.nn import inputs
from fedvisage.nn.inputs import shift_hue, with_hsv

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


def test_turned_hues_are_the_standard_librarys() -> None:
    images, turn = colours("any", 1, 5), 0.25
    actual = shift_hue(images, torch.tensor([turn]))[0].flatten(1).T.tolist()
    for before, after in zip(images[0].flatten(1).T.tolist(), actual, strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*before)
        assert after == pytest.approx(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value), abs=ROUNDING)


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
    images = colours("any")
    with_hsv(images, torch.channels_last)
    shift_hue(images, torch.full((9,), 0.2))
    assert torch.equal(images, colours("any"))
