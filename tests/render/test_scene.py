"""Rendered people and their traits, the pose of a head, and the scene: geometry, depth, light and masks."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedvisage.render.masks import PLASTER, draw_masks
from fedvisage.render.people import PLAIN, TRAITS, Conditions, LightRange, add_movements, draw_conditions, draw_people
from fedvisage.render.scene import Scene, render
from fedvisage.render.sheet import PIVOT, find_visible_points, halve, look_up, make_sheet, project, rotation
from fedvisage.render.skin import skin_colour

SIZE = 64
LUMINANCE = torch.tensor([0.2126, 0.7152, 0.0722])[:, None, None]


def frontal(count: int, **changes: Tensor) -> Conditions:
    """Return neutral faces in front view and even light, with some fields changed."""
    calm = LightRange(azimuth=0.0, elevation=(0.2, 0.2), fill_strength=(0.0, 0.0))
    conditions = draw_conditions(
        range(count),
        yaw_max=0.0,
        pitch_max=0.0,
        roll_max=0.0,
        light=calm,
        backgrounds=[PLAIN],
        expression=0.0,
        glasses=0.0,
    )
    centre = torch.tensor([[0.5, 0.58]]).expand(count, 2)
    return replace(replace(conditions, scale=torch.full((count,), 0.55), centre=centre), **changes)  # type: ignore[arg-type]


def brightness(scene: Scene, rows: slice, columns: slice) -> Tensor:
    return (scene.radiance * LUMINANCE).sum(1)[:, rows, columns].mean((1, 2))


def test_the_same_seeds_give_the_same_pixels() -> None:
    first, second = (render(draw_people([1, 2]), draw_conditions([3, 4]), SIZE) for _ in range(2))
    for name in ("radiance", "depth", "face", "points"):
        assert torch.equal(getattr(first, name), getattr(second, name))


def test_a_picture_does_not_depend_on_its_batch() -> None:
    people, conditions = draw_people(range(5)), draw_conditions(range(10, 15))
    together, alone = render(people, conditions, SIZE), render(people.select([3]), conditions.select([3]), SIZE)
    for name in ("radiance", "depth", "face", "points"):
        torch.testing.assert_close(getattr(together, name)[3:4], getattr(alone, name), atol=1e-5, rtol=1e-5)
    assert (together.radiance[3] - alone.radiance[0]).abs().mean() < 1e-6


def test_radiance_is_finite_light() -> None:
    scene = render(draw_people(range(8)), draw_conditions(range(8)), SIZE)
    assert torch.isfinite(scene.radiance).all()
    assert scene.radiance.min() >= 0.0


def test_depth_is_largest_near_the_tip_of_the_nose() -> None:
    scene = render(draw_people(range(8)), frontal(8), SIZE)
    for depth, points in zip(scene.depth, scene.points, strict=True):
        row, column = divmod(int(depth.argmax()), SIZE)
        assert math.dist((column, row), points[2].tolist()) < 0.08 * SIZE
        assert depth.max() == pytest.approx(1.0, abs=0.02)


def test_depth_is_zero_outside_the_face() -> None:
    scene = render(draw_people(range(8)), draw_conditions(range(8)), SIZE)
    assert (scene.depth[scene.face == 0.0] == 0.0).all()
    assert (scene.depth[:, :, 0] == 0.0).all()


def test_face_fills_the_requested_share_of_the_frame() -> None:
    scene = render(draw_people(range(8)), frontal(8), SIZE)
    for depth, points in zip(scene.depth, scene.points, strict=True):
        widest = (depth[int(points[:2, 1].mean())] > 0.0).sum() / SIZE
        assert 0.42 < widest < 0.66


def test_turning_right_moves_the_nose_right_of_the_eyes() -> None:
    people = draw_people([1])
    offsets = []
    for yaw in (-0.4, 0.0, 0.4):
        points = render(people, frontal(1, yaw=torch.tensor([yaw])), SIZE).points[0]
        offsets.append(float(points[2, 0] - points[:2, 0].mean()))
    assert offsets[0] < -2.0 < offsets[1] < 2.0 < offsets[2]


def test_lifting_the_chin_moves_the_nose_up() -> None:
    points = [render(draw_people([1]), frontal(1, pitch=torch.tensor([p])), SIZE).points[0] for p in (-0.2, 0.2)]
    gaps = [float(p[2, 1] - p[:2, 1].mean()) for p in points]
    assert gaps[1] < gaps[0]


def test_tilting_clockwise_lowers_the_eye_on_the_right() -> None:
    points = render(draw_people([1]), frontal(1, roll=torch.tensor([0.2])), SIZE).points[0]
    slope = math.atan2(float(points[1, 1] - points[0, 1]), float(points[1, 0] - points[0, 0]))
    assert slope == pytest.approx(0.2, abs=0.06)


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_a_light_from_one_side_brightens_that_cheek(side: float) -> None:
    key = torch.tensor([[side * 0.8, -0.1, 0.59]])
    scene = render(draw_people([1, 4]), frontal(2, key=key.expand(2, 3), key_softness=torch.ones(2)), SIZE)
    rows = slice(SIZE * 58 // 100, SIZE * 66 // 100)
    left = brightness(scene, rows, slice(SIZE * 30 // 100, SIZE * 40 // 100))
    right = brightness(scene, rows, slice(SIZE * 60 // 100, SIZE * 70 // 100))
    assert ((right - left).sign() == side).all()


def test_twice_the_light_is_twice_the_radiance_on_the_face() -> None:
    people, conditions = draw_people([2]), frontal(1)
    stronger = replace(
        conditions, key_strength=2 * conditions.key_strength, ambient_strength=2 * conditions.ambient_strength
    )
    one, two = (render(people, c, SIZE) for c in (conditions, stronger))
    inside = one.depth[0] > 0.5
    ratio = two.radiance[0][:, inside] / one.radiance[0][:, inside]
    assert ratio.median() == pytest.approx(2.0, rel=1e-3)


def test_warm_light_reddens_the_face() -> None:
    people = draw_people([2])
    reds = []
    for kelvin in (3000.0, 6500.0):
        same = torch.tensor([kelvin])
        scene = render(people, frontal(1, key_kelvin=same, ambient_kelvin=same), SIZE)
        pixel = scene.radiance[0][:, scene.depth[0] > 0.5].mean(1)
        reds.append(float(pixel[0] / pixel[2]))
    assert reds[0] > 1.3 * reds[1]


def test_a_larger_picture_shows_the_same_scene() -> None:
    people, conditions = draw_people([3]), frontal(1)
    small, large = render(people, conditions, 64), render(people, conditions, 128)
    torch.testing.assert_close(2 * small.points, large.points, atol=1.5, rtol=0)
    shrunk = torch.nn.functional.avg_pool2d(large.radiance, 2)
    assert (shrunk - small.radiance).abs().mean() < 0.02


def test_a_mask_keeps_the_geometry_and_changes_the_reflectance() -> None:
    people, conditions = draw_people([1, 2]), frontal(2)
    bare, masked = render(people, conditions, SIZE), render(people, conditions, SIZE, draw_masks([1, 2], PLASTER))
    assert (bare.depth - masked.depth).abs().max() < 0.15
    inside = bare.depth > 0.6
    changes = (bare.radiance - masked.radiance).abs().mean(1)
    assert changes[inside].mean() > 0.02


def test_eyes_of_the_wearer_are_visible_through_the_mask() -> None:
    people, conditions = draw_people([1]), frontal(1)
    bare, masked = (render(people, conditions, 128, mask) for mask in (None, draw_masks([1], PLASTER)))
    ratio = []
    for x, y in bare.points[0, :2].round().int().tolist():
        eye = (slice(None), slice(y - 1, y + 2), slice(x - 1, x + 2))
        ratio.append(float(masked.radiance[0][eye].mean() / bare.radiance[0][eye].mean()))
    assert ratio == pytest.approx([1.0, 1.0], abs=0.2)


def test_glasses_change_the_rows_of_the_eyes() -> None:
    people = draw_people([1])
    without, worn = (render(people, frontal(1, glasses=torch.tensor([g])), SIZE) for g in (0.0, 1.0))
    different = (without.radiance - worn.radiance).abs().sum(1)[0] > 0.02
    rows = different.nonzero()[:, 0].float()
    assert different.sum() > 20
    assert abs(rows.mean() - float(without.points[0, :2, 1].mean())) < 0.08 * SIZE


def test_frames_of_a_video_move_a_little_in_the_same_light() -> None:
    video = draw_conditions([9]).select([0, 0, 0])
    frames = add_movements(video, [1, 2, 3])
    assert torch.equal(frames.key, video.key)
    assert 0 < (frames.yaw - video.yaw).abs().max() < 0.2
    assert not torch.equal(frames.yaw[0], frames.yaw[1])


def test_conditions_do_not_depend_on_the_batch() -> None:
    alone, together = draw_conditions([8]), draw_conditions([7, 8])
    assert torch.equal(alone.key, together.select([1]).key)
    assert torch.equal(alone.yaw, together.select([1]).yaw)


def test_a_person_does_not_depend_on_the_batch() -> None:
    together = draw_people([5, 6, 7])
    assert torch.equal(together.traits[1:2], draw_people([6]).traits)


def test_selecting_rows_equals_drawing_those_people() -> None:
    people = draw_people([5, 6, 7]).select([2, 0, 0])
    assert people.seeds == (7, 5, 5)
    assert torch.equal(people.traits, draw_people([7, 5, 5]).traits)


def test_traits_stay_within_their_limits() -> None:
    traits = draw_people(range(300)).traits.double().numpy()
    lows, highs = (np.array([getattr(trait, end) for trait in TRAITS.values()]) for end in ("low", "high"))
    assert (traits >= lows - 1e-6).all()
    assert (traits <= highs + 1e-6).all()


def test_people_differ_by_more_than_rounding() -> None:
    traits = draw_people(range(50)).traits
    scaled = (traits - traits.mean(0)) / traits.std(0).clamp(min=1e-6)
    distances = torch.pdist(scaled)
    assert distances.min() > 4.0


@pytest.mark.parametrize(("paler", "darker"), [(0, 1), (1, 2), (2, 3)])
def test_groups_differ_in_mean_skin_reflectance(paler: int, darker: int) -> None:
    means = [skin_colour(draw_people(range(200), group=group)).mean() for group in (paler, darker)]
    assert means[0] > means[1]


def test_each_person_can_have_a_group() -> None:
    mixed = draw_people([1, 2], group=[0, 3])
    assert torch.equal(mixed.traits[1:], draw_people([2], group=3).traits)


GRID = 128


@pytest.fixture(scope="module")
def conditions() -> Conditions:
    return draw_conditions(range(6), yaw_max=0.5)


def dome() -> Tensor:
    """A smooth dome, which every pixel near its middle can see from all of the poses."""
    sheet = make_sheet(GRID)
    return (-0.3 * (sheet.u[:, None] ** 2 + (sheet.v - 0.5)[:, :, None] ** 2)).expand(6, -1, -1).contiguous()


def test_rotations_keep_lengths_and_handedness(conditions: Conditions) -> None:
    turn = rotation(conditions)
    torch.testing.assert_close(turn @ turn.mT, torch.eye(3).expand(6, 3, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.linalg.det(turn), torch.ones(6))


def test_pivot_projects_onto_the_centre_of_the_conditions(conditions: Conditions) -> None:
    pixels = project(PIVOT.expand(6, 1, 3), conditions, GRID)[:, 0]
    torch.testing.assert_close(pixels, conditions.centre * GRID)


def test_pixels_show_the_points_that_project_onto_them(conditions: Conditions) -> None:
    height = dome()
    view = find_visible_points(height, halve(height), conditions, GRID)
    middle = slice(GRID // 2 - 12, GRID // 2 + 12)
    u, v = view.u[:, middle, middle], view.v[:, middle, middle]
    lifted = look_up(height[:, None], u, v)[:, 0]
    pixels = project(torch.stack([u, v, lifted], -1).flatten(1, 2), conditions, GRID).view(6, 24, 24, 2)
    centres = torch.arange(GRID)[middle] + 0.5
    torch.testing.assert_close(pixels[..., 0], centres.expand(6, 24, 24), atol=0.1, rtol=0)
    torch.testing.assert_close(pixels[..., 1], centres[:, None].expand(6, 24, 24), atol=0.1, rtol=0)
