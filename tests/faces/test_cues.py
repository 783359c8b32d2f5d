"""Cues on pictures that were made with a known property."""

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from fedvisage.faces import cues as of
from fedvisage.faces.cues import NAMES, OF_A_CAMERA, cues

SIDE = 128
RNG = np.random.default_rng(0)
WHITE = RNG.normal(0, 20, (SIDE, SIDE)).astype(np.float32)
SMOOTH = np.add.outer(np.linspace(40, 200, SIDE), np.linspace(-20, 20, SIDE)).astype(np.float32)


def coloured(red: int, green: int, blue: int) -> npt.NDArray[np.uint8]:
    return np.full((SIDE, SIDE, 3), (red, green, blue), np.uint8)


@pytest.mark.parametrize("deviation", [1.0, 4.0, 9.0])
def test_noise_of_a_known_deviation_is_found_on_a_gradient_with_an_edge(deviation: float) -> None:
    picture = SMOOTH + deviation * WHITE / 20
    picture[:, SIDE // 2 :] += 60
    assert of.noise(picture) == pytest.approx(deviation, rel=0.08)


@pytest.mark.parametrize("width", [1.0, 1.5, 2.5])
def test_the_width_of_a_gaussian_blur_is_found(width: float) -> None:
    assert of.blur(cv2.GaussianBlur(WHITE, (0, 0), width)) == pytest.approx(width, rel=0.12)


def test_sharpness_is_the_variance_of_the_laplacian() -> None:
    kernel = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]])
    inner = sum(
        kernel[1 + down, 1 + right] * np.roll(WHITE, (-down, -right), (0, 1))
        for down in (-1, 0, 1)
        for right in (-1, 0, 1)
    )[1:-1, 1:-1]
    assert of.sharpness(WHITE) == pytest.approx(np.log(inner.var()), abs=0.05)


def test_levels_and_contrast_of_a_picture_of_two_greys() -> None:
    halves = np.where(np.arange(SIDE) < SIDE // 2, 30.0, 210.0)[None].repeat(SIDE, 0).astype(np.float32)
    assert (of.black_level(halves), of.white_level(halves)) == (30, 210)
    assert (of.contrast(halves), of.brightness(halves)) == (90, 120)


@pytest.mark.parametrize("offset", [0, 3, 7])
def test_blocks_of_jpeg_stand_out_wherever_the_crop_begins(offset: int) -> None:
    picture = np.clip(128 + cv2.GaussianBlur(WHITE, (0, 0), 2) * 4, 0, 255).astype(np.uint8)
    larger = cv2.copyMakeBorder(picture, 8, 8, 8, 8, cv2.BORDER_REFLECT)
    _, stored = cv2.imencode(".jpg", larger, [cv2.IMWRITE_JPEG_QUALITY, 15])
    blocky = cv2.imdecode(stored, cv2.IMREAD_GRAYSCALE)[offset : offset + SIDE, offset : offset + SIDE]
    assert of.jpeg_grid(blocky.astype(np.float32)) > of.jpeg_grid(picture.astype(np.float32)) + 0.3


def test_a_faint_grating_stands_out_of_the_spectrum_and_a_blur_does_not() -> None:
    grating = 4 * np.sin(2 * np.pi * 0.21 * np.arange(SIDE)).astype(np.float32)
    plain = of.spectrum_peak(128 + WHITE / 4)
    assert of.spectrum_peak(128 + WHITE / 4 + grating) > plain + 1.5
    assert abs(of.spectrum_peak(128 + cv2.GaussianBlur(WHITE, (0, 0), 1.0)) - plain) < 0.6


def test_saturation_and_balance_of_plain_colours() -> None:
    assert of.saturation(coloured(200, 100, 100)) == pytest.approx(0.5, abs=0.01)
    assert of.warmth(coloured(200, 100, 100)) == pytest.approx(np.log(201 / 101))
    assert of.tint(coloured(100, 200, 100)) == pytest.approx(np.log(201 / 101))
    grey = cues(coloured(90, 90, 90))
    assert (grey["saturation"], grey["warmth"], grey["tint"]) == (0, 0, 0)


def test_every_cue_is_finite_also_on_a_picture_without_anything_in_it() -> None:
    found = cues(coloured(0, 0, 0))
    assert tuple(found) == NAMES
    assert np.isfinite(list(found.values())).all()
    assert set(OF_A_CAMERA) == set(NAMES) - {"spectrum peak"}
