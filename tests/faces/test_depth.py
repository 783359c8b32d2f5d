"""The average face fitted to five points, against the renderer's exact depth and pose."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvisage.render.depth import canonical_depth, fit_pose, place_points
from fedvisage.render.people import Conditions, draw_conditions, draw_people
from fedvisage.render.scene import Scene, render, small_depth
from fedvisage.render.sheet import PIVOT, project

SIZE, COUNT = 64, 40
FRONTAL = np.array([[22, 26], [42, 26], [32, 38], [24, 48], [40, 48]], np.float32)


@pytest.fixture(scope="module")
def conditions() -> Conditions:
    return draw_conditions(range(COUNT))


@pytest.fixture(scope="module")
def scene(conditions: Conditions) -> Scene:
    return render(draw_people(range(100, 100 + COUNT)), conditions, SIZE)


def test_fitted_depth_is_close_to_the_exact_depth_of_rendered_faces(scene: Scene) -> None:
    exact = small_depth(scene.depth).astype(float)
    fitted = np.stack([canonical_depth(points, SIZE) for points in scene.points.numpy()]).astype(float)
    correlations = [np.corrcoef(one.ravel(), other.ravel())[0, 1] for one, other in zip(fitted, exact, strict=True)]
    assert np.abs(fitted - exact).mean() < 8
    assert np.mean(correlations) > 0.96
    assert np.min(correlations) > 0.86


def test_fitted_map_is_closer_than_the_mean_map(scene: Scene) -> None:
    exact = small_depth(scene.depth).astype(float)
    fitted = np.stack([canonical_depth(points, SIZE) for points in scene.points.numpy()]).astype(float)
    assert np.abs(fitted - exact).mean() < 0.7 * np.abs(exact.mean(axis=0) - exact).mean()


def test_pose_of_rendered_faces_is_estimated(scene: Scene, conditions: Conditions) -> None:
    poses = [fit_pose(points / SIZE) for points in scene.points.numpy()]
    for name, most in (("yaw", 0.04), ("pitch", 0.07), ("roll", 0.012)):
        missed = torch.cat([getattr(one, name) for one in poses]) - getattr(conditions, name)
        assert missed.square().mean().sqrt() < most


def test_fit_projects_points_like_the_renderer(conditions: Conditions) -> None:
    points = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (1, 5, 3)).astype(np.float32))
    for number in range(8):
        one = Conditions(**{name: value[number : number + 1] for name, value in vars(conditions).items()})
        pose = torch.cat([one.yaw, one.pitch, one.roll, one.scale, one.centre[0]]).double().numpy()
        expected = project(points, one, 1)[0].numpy()
        np.testing.assert_allclose(place_points((points[0] - PIVOT).numpy(), pose), expected, atol=1e-5)


def test_nearest_point_is_white_and_background_black() -> None:
    depth = canonical_depth(FRONTAL, 64)
    assert depth.shape == (32, 32)
    assert depth.dtype == np.uint8
    row, column = divmod(int(depth.argmax()), 32)
    assert depth.max() > 240
    assert abs(2 * column - 32) <= 2
    assert abs(2 * row - 38) <= 4
    assert not depth[:, :4].any()
    assert not depth[:, -4:].any()


def test_mirrored_face_has_a_mirrored_map(scene: Scene) -> None:
    points = scene.points[0].numpy()
    mirrored = points[[1, 0, 2, 4, 3]].copy()
    mirrored[:, 0] = SIZE - mirrored[:, 0]
    difference = np.abs(canonical_depth(points, SIZE)[:, ::-1].astype(int) - canonical_depth(mirrored, SIZE)).mean()
    assert difference < 1.5  # the hair line of the average head is not quite even


def test_depth_does_not_depend_on_the_size_in_pixels() -> None:
    np.testing.assert_array_equal(canonical_depth(FRONTAL, 64), canonical_depth(4 * FRONTAL, 256))


def test_upside_down_face_has_a_roll_of_half_a_turn() -> None:
    upright, turned = fit_pose(FRONTAL / 64), fit_pose(1 - FRONTAL / 64)
    assert abs(abs(float(turned.roll)) - np.pi) < 1e-3
    assert float(turned.pitch) == pytest.approx(float(upright.pitch), abs=1e-3)


@pytest.mark.parametrize("points", [np.full((5, 2), 7.0), np.full((5, 2), np.nan), FRONTAL + np.inf])
def test_invalid_points_are_refused(points: np.ndarray) -> None:
    with pytest.raises(ValueError, match="five points of a face"):
        canonical_depth(points.astype(np.float32), 64)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.floats(-200, 300, width=32), min_size=10, max_size=10))
@pytest.mark.long
def test_arbitrary_points_give_a_bounded_pose(values: list[float]) -> None:
    points = np.array(values, np.float32).reshape(5, 2)
    try:
        pose = fit_pose(points / 64)
    except ValueError:
        assert np.ptp(points) < 0.1
        return
    assert abs(float(pose.yaw)) <= 1.01
    assert abs(float(pose.pitch)) <= 0.61
    assert canonical_depth(points, 64).shape == (32, 32)


def test_poses_beyond_the_renderers_own_still_give_a_face() -> None:
    turned = replace(draw_conditions([0]), yaw=torch.tensor([0.8]))
    points = render(draw_people([1]), turned, SIZE).points[0].numpy()
    depth = canonical_depth(points, SIZE)
    assert depth.max() > 200
    assert 0.1 < (depth > 0).mean() < 0.7
