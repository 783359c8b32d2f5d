"""The capture of both classes: focus, motion, flare, colour balance and storage."""

import math

import numpy as np
import pytest
import torch

from fedvisage.render.camera import luminance
from fedvisage.render.capture import (
    CAMERAS,
    PORTRAIT,
    CaptureConditions,
    balance_colours,
    blur_in_motion,
    draw_camera,
    draw_capture,
    photograph,
    store_small,
    with_black_level,
    with_flare,
)

SIZE = 65
POINT = torch.zeros(1, 1, SIZE, SIZE)
POINT[..., SIZE // 2, SIZE // 2] = 1.0


def spread(image: torch.Tensor, across: float, down: float) -> float:
    """Return the variance of light along a direction, about its source."""
    step = torch.arange(SIZE) - SIZE // 2
    along = across * step[None, :] + down * step[:, None]
    return float((image[0, 0] * along**2).sum())


def number(value: float) -> torch.Tensor:
    return torch.tensor([value])


def test_defocused_point_is_a_disc() -> None:
    disc = blur_in_motion(POINT, number(8.0), number(0.0), number(0.0))
    assert float(disc.sum()) == pytest.approx(1, abs=1e-3)
    assert spread(disc, 1, 0) == pytest.approx(16, rel=0.05)
    assert spread(disc, 0, 1) == pytest.approx(16, rel=0.05)
    assert float(disc[0, 0, SIZE // 2, SIZE // 2]) == pytest.approx(1 / (math.pi * 64), rel=0.15)


@pytest.mark.parametrize("angle", [0.0, 0.7, math.pi / 2])
def test_motion_spreads_light_along_its_path_only(angle: float) -> None:
    line = blur_in_motion(POINT, number(0.0), number(10.0), number(angle))
    assert spread(line, math.cos(angle), math.sin(angle)) == pytest.approx(100 / 12, rel=0.05)
    assert abs(spread(line, -math.sin(angle), math.cos(angle))) < 0.3


def test_without_motion_and_defocus_the_light_is_unchanged() -> None:
    scene = torch.rand(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    none = torch.zeros(2)
    torch.testing.assert_close(blur_in_motion(scene, none, none, none), scene, atol=1e-5, rtol=0)


def test_flare_lifts_black_and_keeps_the_mean() -> None:
    scene = torch.zeros(1, 3, 8, 8)
    scene[..., :2] = 1.0
    seen = with_flare(scene, number(0.2))
    assert float(seen.min()) == pytest.approx(0.2 * 0.25)
    assert float(seen.mean()) == pytest.approx(float(scene.mean()))


def test_storage_at_a_smaller_size_removes_fine_detail() -> None:
    board = (np.indices((48, 48)).sum(0) % 2 * 255).astype(np.uint8)[..., None].repeat(3, 2)
    assert store_small(board, 1.0, 97).std() > 100
    assert store_small(board, 0.5, 97).std() < 20
    assert store_small(board, 0.5, 97).shape == board.shape


def test_every_camera_is_drawn_and_a_draw_depends_on_its_seed_only() -> None:
    drawn = [draw_camera(seed) for seed in range(200)]
    assert {camera.name for camera in drawn} == {camera.name for camera in CAMERAS}
    one = draw_capture([CAMERAS[0]], [7])
    both = draw_capture([CAMERAS[1], CAMERAS[0]], [8, 7])
    assert float(one.flare) == float(both.flare[1])
    assert float(one.shots.exposure) == float(both.shots.exposure[1])


def test_photographs_repeat_and_frames_differ_by_their_noise() -> None:
    scene = torch.full((1, 3, 32, 32), 0.2)
    capture = draw_capture([CAMERAS[0]], [3], CaptureConditions())
    first, again, other = (photograph(scene, capture, [frame]) for frame in (1, 1, 2))
    assert first.shape == (1, 32, 32, 3)
    assert (first == again).all()
    assert (first != other).any()


def test_defocus_adds_to_the_blur_of_the_sampling_grid() -> None:
    sharp = draw_capture([CAMERAS[0]], [1], CaptureConditions(motion=(0, 0), focus=(0, 0))).sampling(64)
    soft = draw_capture([CAMERAS[0]], [1], CaptureConditions(motion=(0, 0), focus=(0.02, 0.02))).sampling(64)
    expected = math.hypot(float(sharp.blur), 0.01 * float(sharp.pixels))
    assert float(soft.blur) == pytest.approx(expected, rel=1e-5)


def test_software_balances_colour_and_darkens_the_darkest_parts() -> None:
    scene = (
        0.1
        + torch.rand(1, 3, 20, 20, generator=torch.Generator().manual_seed(0))
        * torch.tensor([0.2, 0.5, 0.4])[None, :, None, None]
    )
    mean = balance_colours(scene, number(1.0)).mean((2, 3))[0]
    torch.testing.assert_close(mean / mean[1], torch.tensor(PORTRAIT))
    torch.testing.assert_close(balance_colours(scene, number(0.0)), scene)
    grey = scene.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    black = with_black_level(grey, number(1.0))
    assert float(torch.quantile(luminance(black).flatten(), 0.01)) == pytest.approx(0, abs=1e-3)
    assert float(luminance(black).mean()) == pytest.approx(float(luminance(grey).mean()), rel=0.02)
