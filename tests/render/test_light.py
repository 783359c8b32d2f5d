import math

import pytest
import torch

from fedvisage.render.light import Coat, Lamps, colour_of, shade
from fedvisage.render.sheet import halve, make_sheet

SHEET = make_sheet(64)
GRID = (1, SHEET.v.shape[1], SHEET.u.shape[1])


def lamps(angle, ambient=0.0):
    """One white key light of strength 1 at an angle to the right, and light from all around."""
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


def chalk(albedo):
    """A surface without gloss and without scattering."""
    finish = torch.zeros(1, 3, *GRID[1:])
    finish[:, 1] = 10.0
    return Coat(torch.full((1, 3, *GRID[1:]), albedo), finish)


def lit(height, coat, lights):
    return shade(height, halve(height), torch.zeros_like(height), coat, lights, SHEET)[0]


@pytest.mark.parametrize("angle", [0.0, 0.5, 1.0])
def test_a_flat_chalk_wall_follows_lamberts_law(angle):
    radiance = lit(torch.zeros(GRID), chalk(0.4), lamps(angle))
    torch.testing.assert_close(radiance, torch.full_like(radiance, 0.4 * math.cos(angle)), atol=1e-4, rtol=0)


def test_light_from_all_around_reaches_a_flat_wall_whole_but_for_the_half_sky():
    radiance = lit(torch.zeros(GRID), chalk(0.5), lamps(0.0, ambient=1.0))
    torch.testing.assert_close(radiance, torch.full_like(radiance, 0.5 * (1.0 + 0.8)), atol=1e-4, rtol=0)


def test_a_ridge_casts_a_shadow_away_from_the_light():
    ridge = torch.exp(-0.5 * (SHEET.u / 0.08) ** 2)[:, None].expand(GRID) * 0.5
    row = lit(ridge, chalk(0.5), lamps(1.0))[1].mean(0)
    left, right = (int((SHEET.u < place).sum()) for place in (-0.35, 0.35))
    assert row[left] < 0.5 * row[right]


def test_a_hollow_gets_less_light_from_all_around():
    pit = -0.3 * torch.exp(-0.5 * (SHEET.u[:, None] ** 2 + SHEET.v[:, :, None] ** 2) / 0.1**2)
    dark = lamps(0.0, ambient=1.0)
    dark = Lamps(**{**vars(dark), "key_colour": torch.zeros(1, 3)})
    green = lit(pit, chalk(0.5), dark)[1]
    assert green.min() < 0.8 * green[0, 0]


def test_living_skin_is_redder_where_light_fades():
    slope = -0.3 * SHEET.u[:, None].clamp(max=0.0).abs().expand(GRID)
    skin = chalk(0.5)
    skin.finish[:, 2] = 1.0
    column = lit(slope, skin, lamps(1.2))[:, GRID[1] // 2]
    lee, front = (int((SHEET.u < place).sum()) for place in (-0.3, 0.8))
    ratio = column[0] / column[2].clamp(min=1e-6)
    assert ratio[lee] > ratio[front] * 1.05


def test_low_colour_temperature_is_warm():
    colours = colour_of(torch.tensor([3000.0, 6500.0, 9000.0]))
    assert colours[0, 0] > colours[0, 2]
    assert colours[1].tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert colours[2, 0] < colours[2, 2]
