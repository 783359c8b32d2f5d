"""Light on a surface: the cosine law, shadows, hollows, and scattering under the skin."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedvisage.render.light import Coat, Lamps, colour_of, shade
from fedvisage.render.sheet import halve, make_sheet

SHEET = make_sheet(64)
GRID = (1, SHEET.v.shape[1], SHEET.u.shape[1])


def make_lights(angle: float, ambient: float = 0.0) -> Lamps:
    """Return one white key light of strength 1 at an angle to the right, and ambient light."""
    none, white = torch.zeros(1, 3), torch.ones(1, 3)
    return Lamps(
        key=torch.tensor([[math.sin(angle), 0.0, math.cos(angle)]]),
        key_colour=white,
        fill=torch.tensor([[0.0, 0.0, 1.0]]),
        fill_colour=none,
        up=torch.tensor([[0.0, -1.0, 0.0]]),
        ambient_colour=ambient * white,
        viewer=torch.tensor([[0.0, 0.0, 1.0]]),
        softness=torch.zeros(1),
    )


def chalk(albedo: float) -> Coat:
    """Return a surface without gloss and without scattering."""
    finish = torch.zeros(1, 3, *GRID[1:])
    finish[:, 1] = 10.0
    return Coat(torch.full((1, 3, *GRID[1:]), albedo), finish)


def radiance_of(height: Tensor, coat: Coat, lights: Lamps) -> Tensor:
    return shade(height, halve(height), torch.zeros_like(height), coat, lights, SHEET)[0]


@pytest.mark.parametrize("angle", [0.0, 0.5, 1.0])
def test_a_flat_chalk_wall_follows_lamberts_law(angle: float) -> None:
    radiance = radiance_of(torch.zeros(GRID), chalk(0.4), make_lights(angle))
    torch.testing.assert_close(radiance, torch.full_like(radiance, 0.4 * math.cos(angle)), atol=1e-4, rtol=0)


def test_flat_wall_receives_ambient_light_from_half_the_sky() -> None:
    radiance = radiance_of(torch.zeros(GRID), chalk(0.5), make_lights(0.0, ambient=1.0))
    torch.testing.assert_close(radiance, torch.full_like(radiance, 0.5 * (1.0 + 0.8)), atol=1e-4, rtol=0)


def test_a_ridge_casts_a_shadow_away_from_the_light() -> None:
    ridge = torch.exp(-0.5 * (SHEET.u / 0.08) ** 2)[:, None].expand(GRID) * 0.5
    row = radiance_of(ridge, chalk(0.5), make_lights(1.0))[1].mean(0)
    left, right = (int((SHEET.u < place).sum()) for place in (-0.35, 0.35))
    assert row[left] < 0.5 * row[right]


def test_hollow_receives_less_ambient_light() -> None:
    pit = -0.3 * torch.exp(-0.5 * (SHEET.u[:, None] ** 2 + SHEET.v[:, :, None] ** 2) / 0.1**2)
    ambient = replace(make_lights(0.0, ambient=1.0), key_colour=torch.zeros(1, 3))
    green = radiance_of(pit, chalk(0.5), ambient)[1]
    assert green.min() < 0.8 * green[0, 0]


def test_skin_is_redder_where_light_fades() -> None:
    slope = -0.3 * SHEET.u[:, None].clamp(max=0.0).abs().expand(GRID)
    skin = chalk(0.5)
    skin.finish[:, 2] = 1.0
    column = radiance_of(slope, skin, make_lights(1.2))[:, GRID[1] // 2]
    lee, front = (int((SHEET.u < place).sum()) for place in (-0.3, 0.8))
    ratio = column[0] / column[2].clamp(min=1e-6)
    assert ratio[lee] > ratio[front] * 1.05


def test_low_colour_temperature_is_warm() -> None:
    colours = colour_of(torch.tensor([3000.0, 6500.0, 9000.0]))
    assert colours[0, 0] > colours[0, 2]
    assert colours[1].tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert colours[2, 0] < colours[2, 2]
