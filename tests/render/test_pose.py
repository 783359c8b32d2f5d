"""The pose of a head: rotations, projection, and the visible point behind each pixel."""

import pytest
import torch
from torch import Tensor

from fedvisage.render.people import Conditions, draw_conditions
from fedvisage.render.sheet import PIVOT, find_visible_points, halve, look_up, make_sheet, project, rotation

SIZE = 128


@pytest.fixture(scope="module")
def conditions() -> Conditions:
    return draw_conditions(range(6), yaw_max=0.5)


def dome() -> Tensor:
    """A smooth dome, which every pixel near its middle can see from all of the poses."""
    sheet = make_sheet(SIZE)
    return (-0.3 * (sheet.u[:, None] ** 2 + (sheet.v - 0.5)[:, :, None] ** 2)).expand(6, -1, -1).contiguous()


def test_rotations_keep_lengths_and_handedness(conditions: Conditions) -> None:
    turn = rotation(conditions)
    torch.testing.assert_close(turn @ turn.mT, torch.eye(3).expand(6, 3, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.linalg.det(turn), torch.ones(6))


def test_pivot_projects_onto_the_centre_of_the_conditions(conditions: Conditions) -> None:
    pixels = project(PIVOT.expand(6, 1, 3), conditions, SIZE)[:, 0]
    torch.testing.assert_close(pixels, conditions.centre * SIZE)


def test_pixels_show_the_points_that_project_onto_them(conditions: Conditions) -> None:
    height = dome()
    view = find_visible_points(height, halve(height), conditions, SIZE)
    middle = slice(SIZE // 2 - 12, SIZE // 2 + 12)
    u, v = view.u[:, middle, middle], view.v[:, middle, middle]
    lifted = look_up(height[:, None], u, v)[:, 0]
    pixels = project(torch.stack([u, v, lifted], -1).flatten(1, 2), conditions, SIZE).view(6, 24, 24, 2)
    centres = torch.arange(SIZE)[middle] + 0.5
    torch.testing.assert_close(pixels[..., 0], centres.expand(6, 24, 24), atol=0.1, rtol=0)
    torch.testing.assert_close(pixels[..., 1], centres[:, None].expand(6, 24, 24), atol=0.1, rtol=0)
