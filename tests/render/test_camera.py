"""The camera: exposure, noise, colour, focus, motion, flare and storage; an image does not depend on its batch."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedvisage.render.camera import Camera, CameraShots, decode, draw_shots, encode, expose, luminance
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

SIZE = 64
CLEAN = Camera(
    "clean",
    (SIZE, SIZE),
    blur=(0.3, 0.3),
    exposure=(0, 0),
    warmth=(0, 0),
    tint=(0, 0),
    saturation=(1, 1),
    contrast=(0, 0),
    noise=(0, 0),
    vignette=(0, 0),
    sharpening=(0, 0),
    quality=(100, 100),
)


def shots(**changes: tuple[float, float]) -> CameraShots:
    return draw_shots([replace(CLEAN, **changes)], [0])  # type: ignore[arg-type]


def grey(level: float = 0.18) -> torch.Tensor:
    return torch.full((1, 3, SIZE, SIZE), level)


def test_transfer_curves_are_inverse_and_follow_the_srgb_standard() -> None:
    values = torch.linspace(0, 1, 101)
    assert torch.allclose(encode(decode(values)), values, atol=1e-5)
    assert encode(torch.tensor(0.2140)).item() == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("level", [0.01, 0.18, 3.0])
def test_metering_brings_any_scene_to_the_same_grey(level: float) -> None:
    image = expose(grey(level), shots(), [1])
    assert abs(float(image.mean()) - 255 * float(encode(torch.tensor(0.2)))) < 2


def test_one_stop_more_doubles_the_light() -> None:
    normal, more = (expose(grey(), shots(exposure=(stop, stop)), [1]) for stop in (-1.0, 0.0))
    light = [float(decode(torch.from_numpy(image).float() / 255).mean()) for image in (normal, more)]
    assert light[1] / light[0] == pytest.approx(2, rel=0.05)


def test_sensor_loses_detail_finer_than_two_pixels() -> None:
    stripes = grey() * (1 + 0.8 * torch.cos(torch.arange(SIZE) * 2 * torch.pi * 24 / SIZE))
    fine, coarse = (expose(stripes, shots(pixels=(n, n)), [1]).std() for n in (64, 24))
    assert coarse < 0.15 * fine


def test_noise_has_the_requested_deviation_and_grows_with_light() -> None:
    level = 0.02
    scene = torch.cat([grey()[..., : SIZE // 2], grey(0.36)[..., SIZE // 2 :]], dim=-1)
    image = expose(scene, shots(noise=(level, level)), [1])
    weights = np.array([0.2126, 0.7152, 0.0722])  # JPEG keeps luminance whole, but halves the resolution of colour
    light = (decode(torch.from_numpy(image).float() / 255)[0] * torch.from_numpy(weights)).sum(-1)
    dark, bright = light[:, 4:28], light[:, 36:60]
    of_one_colour = level * np.sqrt(0.25 + 0.75 * float(dark.mean()) / 0.18)
    assert float(dark.std()) == pytest.approx(of_one_colour * np.linalg.norm(weights), rel=0.15)
    assert bright.std() > 1.2 * dark.std()


def test_warmth_moves_grey_towards_red() -> None:
    red, _, blue = expose(grey(), shots(warmth=(0.1, 0.1)), [1])[0].mean((0, 1))
    assert red > blue + 10


def test_same_seeds_give_the_same_bytes_and_other_noise_seeds_do_not() -> None:
    settings = shots(noise=(0.01, 0.01))
    first, again, other = (expose(grey(), settings, [seed]) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_an_image_does_not_depend_on_its_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    scenes = torch.rand(3, 3, SIZE, SIZE, generator=generator)
    cameras = [replace(CLEAN, pixels=(30 + 10 * n, 200), noise=(0.0, 0.02), quality=(50, 90)) for n in range(3)]
    together = expose(scenes, draw_shots(cameras, [1, 2, 3]), [4, 5, 6])
    alone = expose(scenes[1:2], draw_shots(cameras[1:2], [2]), [5])
    assert np.array_equal(together[1], alone[0])


SIDE = 65
POINT = torch.zeros(1, 1, SIDE, SIDE)
POINT[..., SIDE // 2, SIDE // 2] = 1.0


def spread(image: torch.Tensor, across: float, down: float) -> float:
    """Return the variance of light along a direction, about its source."""
    step = torch.arange(SIDE) - SIDE // 2
    along = across * step[None, :] + down * step[:, None]
    return float((image[0, 0] * along**2).sum())


def number(value: float) -> torch.Tensor:
    return torch.tensor([value])


def test_defocused_point_is_a_disc() -> None:
    disc = blur_in_motion(POINT, number(8.0), number(0.0), number(0.0))
    assert float(disc.sum()) == pytest.approx(1, abs=1e-3)
    assert spread(disc, 1, 0) == pytest.approx(16, rel=0.05)
    assert spread(disc, 0, 1) == pytest.approx(16, rel=0.05)
    assert float(disc[0, 0, SIDE // 2, SIDE // 2]) == pytest.approx(1 / (math.pi * 64), rel=0.15)


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
