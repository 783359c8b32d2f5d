"""Prints and screens: the physics of paper and panels against closed forms, halftone screens, and moiré."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedvisage.render.camera import decode
from fedvisage.render.media import APERTURE, Holding, MediumView, Sampling, align, draw_view, locate
from fedvisage.render.prints import (
    Printer,
    cut_attack,
    disc_out_of_focus,
    fingers,
    ink_coverage,
    mask_outline,
    print_attack,
    print_reflectance,
    specular,
    with_black_point,
)
from fedvisage.render.screens import (
    P3,
    SRGB,
    Display,
    band_strength,
    between_primaries,
    on_panel,
    pixel_grid,
    replay_attack,
    shown_light,
    to_xyz,
)

SMALL, SIZE = 64, 128
STILL = Holding(zoom=(1, 1), shift=0, turn=0, tilt=0, shake=0)
HALF_AS_LARGE = Holding(zoom=(0.5, 0.5), shift=0, turn=0, tilt=0, shake=0)


def straight_view(size: int, holding: Holding = STILL) -> MediumView:
    """Return the camera's view of a medium."""
    return draw_view([holding], [1], [2], size)


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
    cover, skin = fingers(straight_view(SMALL), torch.tensor([0.0]), [5])
    assert cover[0, 0, :, SMALL // 3 : 2 * SMALL // 3].max() == 0
    assert cover[0, 0, :, 0].max() == 1
    assert cover[0, 0, :, -1].max() == 1
    _, dark = fingers(straight_view(SMALL), torch.tensor([1.0]), [5])
    assert (dark < skin).all()


def test_a_mask_is_cut_along_the_face() -> None:
    points = torch.tensor([[[22.0, 26], [42, 26], [32, 36], [25, 48], [39, 48]]])
    cover = mask_outline(straight_view(SMALL), points, SMALL, [1])[0, 0]
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
    room, grid = torch.full((1, 3, SMALL, SMALL), 0.15), Sampling(torch.tensor([64.0]), torch.tensor([0.5]))
    white, black = (
        float(
            replay_attack(torch.full((1, 3, SMALL, SMALL), level), [panel], room, grid, straight_view(SMALL), [1], [1])[
                0, 1, SMALL // 2, SMALL // 2
            ]
        )
        for level in (1.0, 0.0)
    )
    reflected = 0.04 * 0.15 / 0.6
    assert white / black == pytest.approx((1 + reflected) / (0.002 + reflected), rel=0.01)


NONE = (0.0, 0.0)
PLAIN = Printer(
    "test", (600, 600), (0, 0), grain=NONE, gloss=NONE, gradient=NONE, warmth=NONE, light=(1, 1), holding=STILL
)
GRID = Sampling(torch.tensor([float(SIZE)]), torch.tensor([0.2]))
DARK = torch.zeros(1, 3, SIZE, SIZE)


def flat(*colour: float) -> torch.Tensor:
    return torch.tensor(colour)[None, :, None, None].expand(1, 3, SIZE, SIZE)


def print_colours(reflectance: torch.Tensor) -> torch.Tensor:
    """Return the reflectance of continuous-tone prints of colours (both B×3)."""
    coverage = ink_coverage(reflectance[:, :, None, None])
    layers = [ink.expand(-1, 3, -1, -1) for ink in torch.split(coverage, 1, dim=1)]
    gain, purity = (torch.full((len(reflectance),), value) for value in (0.1, 0.6))
    return print_reflectance(layers, gain, purity)[:, :, 0, 0]


def test_printed_colours_stay_between_ink_and_paper_and_are_less_pure() -> None:
    colours = torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
    result = print_colours(colours)
    assert result.min() > 0.0
    assert result.max() <= 1.0
    assert print_colours(torch.zeros(1, 3)).max() < 0.1
    assert torch.equal(print_colours(torch.ones(1, 3)), torch.ones(1, 3))
    blue = print_colours(torch.tensor([[0.0, 0.0, 1.0]]))[0]
    assert blue[2] < 0.9


def test_lighter_picture_never_prints_darker() -> None:
    steps = torch.linspace(0, 1, 33)[:, None].expand(-1, 3)
    assert (print_colours(steps).diff(dim=0) >= -1e-6).all()


def test_black_screen_lies_at_45_degrees_with_the_printers_pitch() -> None:
    dots = 40.0
    printer = replace(PLAIN, dots=(dots, dots), dot_strength=(1, 1))
    seen = print_attack(flat(0.35, 0.35, 0.35), [printer], DARK, GRID, straight_view(SIZE), [1])[0, 1].numpy()
    spectrum = np.abs(np.fft.fft2(seen - seen.mean()))
    down, across = np.unravel_index(np.argmax(spectrum), spectrum.shape)
    cycles = np.abs(np.fft.fftfreq(SIZE, 1 / SIZE))[[down, across]]
    # The strongest peak is one of the screens': 40 cycles long, in one of their directions.
    assert np.hypot(*cycles) == pytest.approx(dots, abs=1.5)
    angle = np.degrees(np.arctan2(cycles[0], cycles[1]))
    assert min(abs(angle - wanted) for wanted in (15, 45, 75)) < 3


def test_continuous_tone_has_no_screen() -> None:
    printer = replace(PLAIN, dots=(40, 40))
    seen = print_attack(flat(0.4, 0.4, 0.4), [printer], DARK, GRID, straight_view(SIZE), [1])
    assert seen[0, 1].std() < 1e-4


def test_paper_surrounds_the_photograph_and_the_room_surrounds_the_paper() -> None:
    printer = replace(PLAIN, white=(0.9, 0.9, 0.9), margin=(0.5, 0.5), holding=HALF_AS_LARGE)
    seen = print_attack(flat(0, 0, 0), [printer], DARK, GRID, straight_view(SIZE, HALF_AS_LARGE), [1])
    row = seen[0, 1, SIZE // 2]
    assert row[SIZE // 2] < 0.05
    assert row[26].item() == pytest.approx(0.9 * 0.6, rel=0.02)
    assert row[2] == 0


def test_curl_shades_the_sheet_and_flat_sheets_have_no_slope() -> None:
    assert straight_view(SIZE).slope.abs().max() == 0
    assert straight_view(SIZE, replace(STILL, bend=(0.6, 0.6))).slope.abs().max() > 0.3


def test_holes_reveal_the_face_behind_at_the_eyes_only() -> None:
    eyes = torch.tensor([[[-0.3, -0.1], [0.3, -0.1]]])
    behind, view = flat(0.0, 5.0, 0.0), straight_view(SIZE)
    seen = cut_attack(flat(0.5, 0.5, 0.5), [PLAIN], DARK, GRID, view, [1], eyes=eyes, behind=behind)[0]
    x, y = (round(value) for value in locate(view, eyes)[0, 0].tolist())
    assert seen[1, y, x] > 2
    assert seen[0, y, x] < 0.05
    assert seen[1, SIZE - 20, SIZE // 2] < 1


def test_alignment_moves_the_eyes_to_the_requested_places() -> None:
    picture = torch.zeros(1, 1, SIZE, SIZE)
    picture[0, 0, 40, 30], picture[0, 0, 44, 90] = 1, 2
    eyes = torch.tensor([[[30.5, 40.5], [90.5, 44.5]]])
    wanted = torch.tensor([[[45.5, 60.5], [85.5, 60.5]]])
    moved = align(picture, eyes, wanted)[0, 0]
    assert moved[60, 45] == pytest.approx(1, abs=0.1)
    assert moved[60, 85] == pytest.approx(2, abs=0.2)


def test_a_print_does_not_depend_on_its_batch() -> None:
    photographs = torch.rand(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    printers = [Printer("a", (60, 90)), Printer("b", (100, 140))]
    grid = Sampling(torch.tensor([128.0, 120.0]), torch.tensor([0.2, 0.3]))
    holdings = [printer.holding for printer in printers]
    rooms = decode(photographs)
    together = print_attack(photographs, printers, rooms, grid, draw_view(holdings, [1, 2], [3, 4], SIZE), [1, 2])
    one = Sampling(grid.pixels[1:], grid.blur[1:])
    view = draw_view(holdings[1:], [2], [4], SIZE)
    alone = print_attack(photographs[1:], printers[1:], rooms[1:], one, view, [2])
    assert torch.allclose(together[1], alone[0], atol=1e-5)


def sensor(blur: float = 0.2) -> Sampling:
    return Sampling(torch.tensor([float(SIZE)]), torch.tensor([blur]))


def spectrum_of_rows(picture: torch.Tensor, channel: int = 1) -> np.ndarray:
    """Return the amplitude of each number of cycles down the picture."""
    column = picture[0, channel].mean(1).numpy()
    return np.abs(np.fft.rfft(column)) * 2 / len(column)


def photographed_rows(pixels: int, height: float, blur: float) -> np.ndarray:
    """Draw the display's lit rows finely, blur, integrate over each sensor pixel and sample: no Fourier series."""
    fine = 64
    place = (np.arange(SIZE * fine) + 0.5) / fine  # in sensor pixels
    phase = (place / SIZE - 0.5) * pixels
    edge = SIZE * fine / pixels
    lit = np.clip((height / 2 - np.abs(phase - np.round(phase))) * edge + 0.5, 0, 1) / height
    reach = np.arange(-4 * fine, 4 * fine + 1) / fine
    lens = np.exp(-(reach**2) / (2 * blur**2))
    aperture = np.clip((APERTURE / 2 - np.abs(np.arange(-fine, fine + 1) / fine)) * fine + 0.5, 0, 1)
    kernel = np.convolve(lens / lens.sum(), aperture / aperture.sum())
    centred = np.roll(np.pad(kernel, (0, lit.size - kernel.size)), -(kernel.size // 2))
    seen = np.fft.irfft(np.fft.rfft(lit) * np.fft.rfft(centred), lit.size)
    return np.asarray(seen[fine // 2 :: fine])


@pytest.mark.parametrize("pixels", [80, 100, 112, 190])
def test_moire_of_rows_equals_that_of_a_finely_sampled_display(pixels: int) -> None:
    height, blur = 0.8, 0.2
    display = Display("test", (pixels, pixels), opening=(1 / 3, height))
    seen = spectrum_of_rows(pixel_grid(straight_view(SIZE), [display], torch.tensor([float(pixels)]), sensor(blur)))
    expected = np.abs(np.fft.rfft(photographed_rows(pixels, height, blur))) * 2 / SIZE
    alias = abs(pixels - SIZE * round(pixels / SIZE))
    assert int(np.argmax(seen[1:])) + 1 == alias
    assert seen[alias] == pytest.approx(expected[alias], rel=0.1)


def test_moire_vanishes_if_the_lens_does_not_resolve_the_grid() -> None:
    display = Display("fine", (400, 400))
    seen = pixel_grid(straight_view(SIZE), [display], torch.tensor([400.0]), sensor(0.5))
    assert torch.equal(seen, torch.ones_like(seen))


def test_moire_is_coarser_in_red_and_blue_than_in_green() -> None:
    pixels = 70  # 0.55 cycles a sensor pixel: beyond what every second pixel can tell from 70 - 64 = 6 cycles
    seen = pixel_grid(straight_view(SIZE), [Display("test", (pixels, pixels))], torch.tensor([70.0]), sensor())
    assert int(np.argmax(spectrum_of_rows(seen, channel=0)[1:])) + 1 == 6
    assert int(np.argmax(spectrum_of_rows(seen, channel=1)[1:])) + 1 == 128 - 70


def test_replay_adds_a_peak_to_the_spectrum_of_the_photograph() -> None:
    photograph = torch.full((1, 3, SIZE, SIZE), 0.6)
    none = (0.0, 0.0)
    display = Display("test", (106, 106), uneven=none, glare=none, mirror=none, flicker=none, holding=STILL)
    radiance = replay_attack(
        photograph, [display], torch.zeros(1, 3, SIZE, SIZE), sensor(), straight_view(SIZE), [1], [2]
    )
    assert spectrum_of_rows(decode(photograph))[22] < 1e-6
    assert spectrum_of_rows(radiance)[22] / float(radiance[0, 1].mean()) > 0.02


def test_black_leaks_and_colours_shrink_towards_grey() -> None:
    picture = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]).T[None, :, None, :]
    numbers = [torch.tensor([value]) for value in (2.2, 0.3, 0.01)]
    black, red = shown_light(picture, *numbers)[0, :, 0].T
    assert torch.allclose(black, torch.full((3,), 0.01), atol=1e-3)
    assert red[0] < 1
    assert red[1] > 0.05


def test_small_display_shows_its_dark_frame_and_the_room() -> None:
    display = Display("small", (300, 300), margin=(0, 0), frame=0.4, bezel=0.0, glare=(0, 0), holding=HALF_AS_LARGE)
    room = torch.full((1, 3, SIZE, SIZE), 0.4)
    view = straight_view(SIZE, HALF_AS_LARGE)
    seen = replay_attack(torch.ones(1, 3, SIZE, SIZE), [display], room, sensor(), view, [1], [2])
    row = seen[0, :, SIZE // 2].mean(0)
    assert row[SIZE // 2] > 0.3
    assert row[28] < 0.01
    assert row[2].item() == pytest.approx(0.4, abs=1e-5)


def test_an_image_does_not_depend_on_its_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    photographs, rooms = (torch.rand(3, 3, SIZE, SIZE, generator=generator) for _ in range(2))
    displays = [Display(str(n), (100 + 20 * n, 200)) for n in range(3)]
    grid = Sampling(torch.tensor([128.0, 200.0, 110.0]), torch.tensor([0.2, 0.3, 0.4]))
    holdings = [display.holding for display in displays]
    view = draw_view(holdings, [1, 2, 3], [4, 5, 6], SIZE)
    together = replay_attack(photographs, displays, rooms, grid, view, [1, 2, 3], [4, 5, 6])
    one = Sampling(grid.pixels[1:2], grid.blur[1:2])
    view = draw_view(holdings[1:2], [2], [5], SIZE)
    alone = replay_attack(photographs[1:2], displays[1:2], rooms[1:2], one, view, [2], [5])
    assert torch.allclose(together[1], alone[0], atol=1e-5)
