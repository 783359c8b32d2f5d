"""Square crops of images and faces."""

import numpy as np
import pytest
from tests.datasets.importers.files import picture

from fedvisage.base.errors import BadFile
from fedvisage.faces.cropping import crop_face, make_cropper
from fedvisage.faces.detection import Face


def test_the_centre_is_cut_out_and_kept_at_its_size() -> None:
    image = picture(1, height=20, width=30)
    cropped = make_cropper("centre", 20)(image)
    np.testing.assert_array_equal(cropped.image, image[:, 5:25])
    assert not cropped.upscaled


def test_shrinking_averages_pixels() -> None:
    image = picture(1, 40, 40)
    expected = image.reshape(20, 2, 20, 2, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(make_cropper("centre", 20)(image).image, expected, atol=0.51)


def test_enlarged_crop_is_marked() -> None:
    cropped = make_cropper("centre", 48)(picture(1))
    assert cropped.upscaled
    assert cropped.image.shape == (48, 48, 3)


def test_uncropped_images_must_be_square() -> None:
    assert make_cropper("none", 12)(picture(1)).image.shape == (12, 12, 3)
    with pytest.raises(BadFile, match="30×20"):
        make_cropper("none", 12)(picture(1, 20, 30))


def face(x: float, y: float, side: float) -> Face:
    points = np.array([[x + side / 4, y], [x, y], [x, y], [x, y], [x + side, y + side]])
    return Face(np.array([x, y, side, side]), points)


def test_face_crop_has_a_margin_and_moves_the_points() -> None:
    image = picture(1, 200, 200)
    cropped = crop_face(image, [face(60, 80, 50)], 70)
    np.testing.assert_array_equal(cropped.image, image[70:140, 50:120])
    assert cropped.points is not None
    np.testing.assert_allclose(cropped.points[4], [60, 60])


def test_crop_of_a_face_at_the_edge_stays_inside_the_image() -> None:
    image = picture(1, 100, 100)
    np.testing.assert_array_equal(crop_face(image, [face(70, 0, 40)], 56).image, image[:56, 44:])


def test_largest_face_is_cropped() -> None:
    image = picture(1, 200, 200)
    cropped = crop_face(image, [face(0, 0, 20), face(60, 80, 50)], 70)
    np.testing.assert_array_equal(cropped.image, image[70:140, 50:120])


def test_image_without_a_face_is_refused() -> None:
    with pytest.raises(BadFile, match="face"):
        make_cropper("face", 64)(np.full((128, 128, 3), 90, np.uint8))
