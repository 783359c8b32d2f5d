"""Takes: living faces are lit by their shape, media as sheets, and both pass the same camera."""

import numpy as np
import pytest
import torch

from fedvisage.render.capture import CAMERAS, draw_capture
from fedvisage.render.domains import find_domain
from fedvisage.render.filming import (
    FRAME,
    HALF_CONTRAST,
    RELIEF,
    AttackerPhotographs,
    PresentationSetting,
    Rendition,
    camera_soft,
    defocused_room,
    head_light,
    media_of,
    photograph_attack,
    photograph_living,
    rendition,
)
from fedvisage.render.noise import between
from fedvisage.render.prints import Printer

SIZE = 48
POINTS = torch.tensor([[[16.0, 20], [32, 20], [24, 29], [18, 37], [30, 37]]])
FACE = (
    torch.rand(1, 3, 6, 6, generator=torch.Generator().manual_seed(0)).repeat_interleave(8, 2).repeat_interleave(8, 3)
)


def test_light_is_even_on_a_flat_head_and_follows_the_cosine_law_on_a_slope() -> None:
    ramp = torch.linspace(0, 255, 32).expand(1, 32, 32)
    assert torch.allclose(head_light(torch.zeros(1, 32, 32), SIZE, [4]), torch.tensor(1.0))
    seen = float(head_light(ramp, SIZE, [4])[0, 0, SIZE // 2, SIZE // 2])
    slope = RELIEF * (32 / 31) / FRAME
    lamp = float(between([4], "head/lamp x", (-0.9, 0.9)))
    strength = float(between([4], "head/lamp strength", (0.0, 0.6)))
    normal = np.array([-slope, 1.0]) / np.hypot(slope, 1)
    cosine = normal @ np.array([lamp, 1.0])
    assert seen == pytest.approx(1 + strength * (min(max(cosine, 0), 1.6) - 1), abs=0.02)


def test_neutral_rendition_keeps_the_picture_and_a_vivid_one_scales_its_colours() -> None:
    torch.testing.assert_close(rendition(FACE, Rendition((1, 1), (1, 1), (0, 0)), [1]), FACE)
    soft = 0.4 + 0.2 * FACE
    vivid = rendition(soft, Rendition((1.5, 1.5), (1, 1), (0, 0)), [1])
    torch.testing.assert_close(vivid - vivid.mean(1, keepdim=True), 1.5 * (soft - soft.mean(1, keepdim=True)))


def test_domains_offer_the_media_that_photographs_allow() -> None:
    assert {attack.species for attack in media_of(find_domain("O"))} == {"print", "replay"}
    masks = [attack for attack in media_of(find_domain("W")) if attack.species == "mask"]
    assert [type(mask.instrument) for mask in masks] == [Printer]
    assert media_of(find_domain("3")) == []


@pytest.mark.parametrize("species", ["print", "cut", "replay", "mask"])
def test_points_of_every_species_lie_in_the_picture(species: str) -> None:
    domain = find_domain("C" if species == "cut" else "W")
    attack = next(one for one in media_of(domain) if one.species == species)
    shown, room = AttackerPhotographs(FACE, POINTS, 0.9), FACE.flip(3) * 0.3
    face = (room, POINTS) if species in ("cut", "mask") else (None, None)
    images, points = photograph_attack(
        shown, [attack], PresentationSetting(room, *face), draw_capture([CAMERAS[2]], [1]), [1], [2]
    )
    assert images.shape == (1, SIZE, SIZE, 3)
    assert images.std() > 5
    assert (points > 0).all()
    assert (points < SIZE).all()


def test_living_face_keeps_its_place_and_frames_differ_slightly() -> None:
    shown = AttackerPhotographs(FACE.expand(2, -1, -1, -1), POINTS.expand(2, -1, -1), 0.9)
    capture = draw_capture([CAMERAS[4]] * 2, [1, 1])
    images, points = photograph_living(shown, torch.zeros(2, 32, 32), capture, [1, 1], [5, 6])
    assert (images[0] != images[1]).any()
    assert np.abs(points[0] - POINTS[0].numpy()).max() < 10
    assert np.abs(points[0] - points[1]).max() < 4


def test_room_is_out_of_focus_and_keeps_its_light() -> None:
    rooms = defocused_room(FACE.expand(20, -1, -1, -1), list(range(20)))
    left = rooms.std((1, 2, 3)) / FACE.std()
    assert float(left.min()) < 0.9
    assert float(left.max()) > 0.97  # small sensors have nearly everything in focus
    assert float(rooms.mean()) == pytest.approx(float(FACE.mean()), abs=0.05)


def test_edge_of_a_cut_is_as_wide_as_edges_in_photographs() -> None:
    """At the drawn frequency a step's derivative, the line spread, keeps about half of its contrast."""
    size, seeds = 128, list(range(40))
    step = (torch.arange(size) >= size // 2).float().expand(len(seeds), 1, size, size)
    seen = camera_soft(step, seeds)
    spread = seen[:, 0, size // 2].diff(dim=1).double().numpy()
    half = between(seeds, "half contrast", HALF_CONTRAST).double().numpy()
    places = np.arange(size - 1) - (size / 2 - 1)
    contrast = np.abs((spread * np.exp(-2j * np.pi * half[:, None] * places)).sum(1))
    np.testing.assert_allclose(contrast, 0.5, atol=0.08)
    np.testing.assert_allclose(spread.sum(1), 1.0, atol=0.02)
