"""Cues of pictures with a known property."""

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from fedvisage.faces.cues import NAMES, OF_A_CAMERA, blur, cues, jpeg_grid, noise, spectrum_peak

SIDE = 128
RNG = np.random.default_rng(0)
WHITE = RNG.normal(0, 20, (SIDE, SIDE)).astype(np.float32)
SMOOTH = np.add.outer(np.linspace(40, 200, SIDE), np.linspace(-20, 20, SIDE)).astype(np.float32)


def fill(red: int, green: int, blue: int) -> npt.NDArray[np.uint8]:
    return np.full((SIDE, SIDE, 3), (red, green, blue), np.uint8)


@pytest.mark.parametrize("deviation", [1.0, 4.0, 9.0])
def test_noise_estimate_ignores_gradients_and_edges(deviation: float) -> None:
    picture = (SMOOTH + deviation * WHITE / 20).astype(np.float32)
    picture[:, SIDE // 2 :] += 60
    assert noise(picture) == pytest.approx(deviation, rel=0.08)


@pytest.mark.parametrize("width", [1.0, 1.5, 2.5])
def test_blur_estimates_the_width_of_a_gaussian(width: float) -> None:
    assert blur(cv2.GaussianBlur(WHITE, (0, 0), width)) == pytest.approx(width, rel=0.12)


def as_picture(plane: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    return np.asarray(np.clip(plane, 0, 255)[..., None].repeat(3, axis=2), np.uint8)


def test_sharpness_is_the_variance_of_the_laplacian() -> None:
    picture = as_picture(128 + WHITE)
    plane = picture[..., 0].astype(float)
    neighbours = sum(np.roll(plane, shift, axis) for shift in (-1, 1) for axis in (0, 1))
    laplacian = (neighbours - 4 * plane)[1:-1, 1:-1]
    assert cues(picture)["sharpness"] == pytest.approx(np.log(laplacian.var()), abs=0.05)


def test_levels_and_contrast_of_a_picture_of_two_greys() -> None:
    values = cues(as_picture(np.where(np.arange(SIDE) < SIDE // 2, 30.0, 210.0)[None].repeat(SIDE, 0)))
    assert (values["black level"], values["white level"]) == (30, 210)
    assert (values["contrast"], values["brightness"]) == (90, 120)


@pytest.mark.parametrize("offset", [0, 3, 7])
def test_jpeg_grid_is_detected_at_any_offset(offset: int) -> None:
    picture = np.clip(128 + cv2.GaussianBlur(WHITE, (0, 0), 2) * 4, 0, 255).astype(np.uint8)
    larger = cv2.copyMakeBorder(picture, 8, 8, 8, 8, cv2.BORDER_REFLECT)
    _, stored = cv2.imencode(".jpg", larger, [cv2.IMWRITE_JPEG_QUALITY, 15])
    decoded = np.asarray(cv2.imdecode(stored, cv2.IMREAD_GRAYSCALE))
    blocky = decoded[offset : offset + SIDE, offset : offset + SIDE]
    assert jpeg_grid(blocky.astype(np.float32)) > jpeg_grid(picture.astype(np.float32)) + 0.3


def test_spectrum_peak_detects_a_grating_but_no_blur() -> None:
    grating = (4 * np.sin(2 * np.pi * 0.21 * np.arange(SIDE))).astype(np.float32)
    blurred = np.asarray(cv2.GaussianBlur(WHITE, (0, 0), 1.0), np.float32)
    plain = spectrum_peak((128 + WHITE / 4).astype(np.float32))
    assert spectrum_peak((128 + WHITE / 4 + grating).astype(np.float32)) > plain + 1.5
    assert abs(spectrum_peak(128 + blurred) - plain) < 0.6


def test_saturation_and_balance_of_plain_colours() -> None:
    red, green, grey = (cues(fill(*colour)) for colour in ((200, 100, 100), (100, 200, 100), (90, 90, 90)))
    assert red["saturation"] == pytest.approx(0.5, abs=0.01)
    assert red["warmth"] == green["tint"] == pytest.approx(np.log(201 / 101))
    assert (grey["saturation"], grey["warmth"], grey["tint"]) == (0, 0, 0)


def test_every_cue_of_a_black_picture_is_finite() -> None:
    values = cues(fill(0, 0, 0))
    assert tuple(values) == NAMES
    assert np.isfinite(list(values.values())).all()
    assert set(OF_A_CAMERA) == set(NAMES) - {"spectrum peak"}
