"""Replay: moiré at the difference of two pitches, leaking black, and the dark frame."""

import numpy as np
import pytest
import torch
from tests.render.views import HALF_AS_LARGE, STILL, straight_view

from fedvisage.render.camera import decode
from fedvisage.render.media import APERTURE, Sampling, draw_view
from fedvisage.render.screens import Display, pixel_grid, replay_attack, shown_light

SIZE = 128


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
