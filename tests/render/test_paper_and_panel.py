"""The physics of paper and of panels, against published figures and closed forms."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.render.views import STILL, straight_view

from fedvisage.render.media import Sampling
from fedvisage.render.prints import disc_out_of_focus, fingers, mask_outline, specular, with_black_point
from fedvisage.render.screens import (
    P3,
    SRGB,
    Display,
    band_strength,
    between_primaries,
    on_panel,
    replay_attack,
    to_xyz,
)

SIZE = 64


@pytest.mark.parametrize("density", [1.4, 2.2])
def test_darkest_print_has_its_density_and_paper_stays_white(density: float) -> None:
    seen = with_black_point(torch.tensor([0.0, 1.0]).view(1, 1, 1, 2), torch.tensor([density]))
    assert -math.log10(float(seen[..., 0])) == pytest.approx(density, rel=1e-5)
    assert float(seen[..., 1]) == 1


def test_mirrored_light_peaks_towards_the_lamp_and_rough_paper_spreads_it() -> None:
    slopes = torch.linspace(-3, 3, 1201).view(1, 1, 1, -1)
    smooth, rough = (specular(slopes, torch.tensor([0.4]), torch.tensor([width])) for width in (0.1, 0.3))
    assert float(slopes.flatten()[smooth.argmax()]) == pytest.approx(0.4, abs=0.01)
    assert float(smooth.max()) == pytest.approx(3 * float(rough.max()), rel=1e-3)
    assert float(smooth.sum()) == pytest.approx(float(rough.sum()), rel=1e-2)


def test_lens_at_its_hyperfocal_distance_blurs_infinity_by_the_defining_disc() -> None:
    focal_length, aperture, disc = 50.0, 8.0, 0.03
    hyperfocal = focal_length**2 / (aperture * disc) + focal_length
    assert disc_out_of_focus(1e12, hyperfocal, focal_length, aperture) == pytest.approx(disc)
    assert disc_out_of_focus(hyperfocal, hyperfocal, focal_length, aperture) == 0


def test_thumbs_cover_both_sides_but_not_the_middle() -> None:
    cover, skin = fingers(straight_view(SIZE), torch.tensor([0.0]), [5])
    assert cover[0, 0, :, SIZE // 3 : 2 * SIZE // 3].max() == 0
    assert cover[0, 0, :, 0].max() == 1
    assert cover[0, 0, :, -1].max() == 1
    _, dark = fingers(straight_view(SIZE), torch.tensor([1.0]), [5])
    assert (dark < skin).all()


def test_a_mask_is_cut_along_the_face() -> None:
    points = torch.tensor([[[22.0, 26], [42, 26], [32, 36], [25, 48], [39, 48]]])
    cover = mask_outline(straight_view(SIZE), points, SIZE, [1])[0, 0]
    assert all(cover[int(y), int(x)] == 1 for x, y in points[0].tolist())
    assert cover[0].max() == cover[:, 0].max() == cover[:, -1].max() == 0


def test_primaries_yield_the_published_matrices() -> None:
    # IEC 61966-2-1, and Display P3 to sRGB as CSS Color 4 prints it.
    srgb = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    np.testing.assert_allclose(to_xyz(SRGB), srgb, atol=3e-4)
    p3 = [[1.2249, -0.2249, 0.0], [-0.0420, 1.0420, 0.0], [-0.0196, -0.0786, 1.0983]]
    np.testing.assert_allclose(between_primaries(P3).numpy(), p3, atol=2e-3)


def test_panels_keep_white_and_wide_ones_show_more_colour_than_office_ones() -> None:
    light = torch.tensor([[1.0, 1, 1], [0.6, 0.3, 0.2]]).T.reshape(1, 3, 1, 2)
    office, plain, wide = (on_panel(light, torch.tensor([kind])) for kind in (0.0, 1.0, 2.0))
    torch.testing.assert_close(plain, light)
    for seen in (office, wide):
        torch.testing.assert_close(seen[..., 0], torch.ones(1, 3, 1), atol=1e-5, rtol=0)
    spans = [float(seen[0, 0, 0, 1] - seen[0, 2, 0, 1]) for seen in (office, plain, wide)]
    assert spans[0] < spans[1] < spans[2]


def test_exposure_of_whole_periods_shows_no_bands() -> None:
    depth = torch.tensor([0.5, 0.5, 0.5])
    seen = band_strength(depth, torch.tensor([100.0, 120.0, 120.0]), torch.tensor([1 / 50, 1 / 120, 1e-6]))
    assert seen[:2].max() < 1e-6
    assert float(seen[2]) == pytest.approx(0.5, rel=1e-3)


def test_room_light_reduces_the_contrast_of_a_panel_by_the_formula() -> None:
    """White over black is (1 + r) / (b + r) for a black of b and glass that returns r of white."""
    quiet = {"gamut": (0, 0), "blue": (0, 0), "uneven": (0, 0), "glare": (0, 0), "flicker": (0, 0)}
    panel = replace(
        Display("test", (5000, 5000), leak=(0.002, 0.002), mirror=(0.04, 0.04), brightness=(1, 1), holding=STILL),
        **quiet,  # type: ignore[arg-type]
    )
    room, grid = torch.full((1, 3, SIZE, SIZE), 0.15), Sampling(torch.tensor([64.0]), torch.tensor([0.5]))
    white, black = (
        float(
            replay_attack(torch.full((1, 3, SIZE, SIZE), level), [panel], room, grid, straight_view(SIZE), [1], [1])[
                0, 1, SIZE // 2, SIZE // 2
            ]
        )
        for level in (1.0, 0.0)
    )
    reflected = 0.04 * 0.15 / 0.6
    assert white / black == pytest.approx((1 + reflected) / (0.002 + reflected), rel=0.01)
