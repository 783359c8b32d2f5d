"""Prints: gamut, halftone screens, the edge of the paper, and eye holes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.render.views import HALF_AS_LARGE, STILL, straight_view

from fedvisage.render.camera import decode
from fedvisage.render.media import Sampling, align, draw_view, locate
from fedvisage.render.prints import Printer, cut_attack, ink_coverage, print_attack, print_reflectance

SIZE = 128
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
