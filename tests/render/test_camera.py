"""The camera: exposure, resolution, noise and colour; an image does not depend on its batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedvisage.render.camera import Camera, CameraShots, decode, draw_shots, encode, expose

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
