"""Colour texture against scikit-image, OpenCV and a few lines of NumPy."""

from types import SimpleNamespace

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import torch
from skimage.feature import local_binary_pattern
from tests.parity.gradients import value_and_gradients
from tests.toy import shortest_recipe

from fedvisage.data.rows import Texts
from fedvisage.federation.site import Batch
from fedvisage.methods.pad import colour_texture
from fedvisage.nn.inputs import prepare
from fedvisage.nn.texture import BINS, ColourTexture, TextureClassifier, channels, patterns, uniform_bins

NOISE = np.random.default_rng(0).integers(0, 256, (3, 24, 20), dtype=np.uint8)
SMOOTH = np.stack([cv2.GaussianBlur(image, (0, 0), 3) for image in NOISE])
FLAT = np.full((1, 9, 9), 77, np.uint8)


def expected_patterns(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    return np.stack([local_binary_pattern(image, 8, 1, "default")[1:-1, 1:-1] for image in images])


@pytest.mark.parametrize("images", [NOISE, SMOOTH, FLAT], ids=["noise", "smooth", "flat"])
def test_patterns_are_those_of_scikit_image(images: npt.NDArray[np.uint8]) -> None:
    np.testing.assert_array_equal(patterns(torch.from_numpy(images).float()).numpy(), expected_patterns(images))


def test_interpolated_neighbour_of_equal_brightness_counts() -> None:
    tie = torch.tensor([[[1.0, 2.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]])  # north-west: (2 + 0)/2 and 1
    assert patterns(tie).item() == 1 << 2 | 1 << 3


def test_bins_are_the_uniform_patterns_of_scikit_image_in_some_order() -> None:
    image = np.random.default_rng(1).integers(0, 256, (300, 300), dtype=np.uint8)
    raw = local_binary_pattern(image, 8, 1, "default").astype(int).ravel()
    theirs = local_binary_pattern(image, 8, 1, "nri_uniform").astype(int).ravel()
    assert set(raw) == set(range(256))
    ours = uniform_bins().argmax(dim=1).numpy()[raw]
    pairs = set(zip(ours.tolist(), theirs.tolist(), strict=True))
    assert len(pairs) == len({first for first, _ in pairs}) == len({second for _, second in pairs}) == BINS
    assert uniform_bins().sum(dim=1).tolist() == [1.0] * 256


def pictures(count: int = 2) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(2).integers(0, 256, (count, 18, 18, 3), dtype=np.uint8)


def as_input(images: npt.NDArray[np.uint8], colour: str = "rgb+hsv") -> torch.Tensor:
    return prepare(torch.from_numpy(images).permute(0, 3, 1, 2), colour, torch.device("cpu"))


def test_channels_are_the_two_colour_spaces_in_whole_levels() -> None:
    actual = channels(as_input(pictures(1)))[0].numpy()
    rgb = pictures(1)[0].astype(np.float32) / 255
    hue, saturation, value = np.moveaxis(cv2.cvtColor(rgb, cv2.COLOR_RGB2HSV), -1, 0)
    luma, red, blue = np.moveaxis(cv2.cvtColor(rgb, cv2.COLOR_RGB2YCrCb), -1, 0)
    expected = np.stack([hue / 360, saturation, value, luma, blue, red]) * 255
    assert np.abs(actual - expected).max() < 0.7
    np.testing.assert_array_equal(actual, actual.round())


def test_features_are_the_roots_of_the_normalised_histograms() -> None:
    images = as_input(pictures())
    actual = ColourTexture()(images).reshape(2, 6, BINS).numpy()
    for number, image in enumerate(channels(images).numpy().astype(np.uint8)):
        for one, channel in zip(actual[number], image, strict=True):
            codes = expected_patterns(channel[None]).astype(int).ravel()
            bins = uniform_bins().argmax(dim=1).numpy()[codes]
            np.testing.assert_allclose((one + 1) ** 2, BINS * np.bincount(bins, minlength=BINS) / len(bins), atol=1e-5)


def test_features_do_not_depend_on_the_colour_setting_the_batch_or_the_precision() -> None:
    features, images = ColourTexture(), pictures(3)
    whole = features(as_input(images))
    torch.testing.assert_close(features(as_input(images, "rgb")), whole)
    torch.testing.assert_close(features(as_input(images[1:2])), whole[1:2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(features(as_input(images)), whole)


def test_the_loss_is_hinge_and_penalty_and_so_is_its_gradient() -> None:
    model, images = TextureClassifier(), as_input(pictures(4))
    labels = np.array([1.0, 0.0, 0.0, 1.0])
    recipe = shortest_recipe("colour_texture", penalty=0.3)
    site = SimpleNamespace(net=torch.nn.ModuleDict({"model": model}), recipe=recipe)
    species: Texts = np.array([""] * 4)
    loss = colour_texture.loss(site, Batch(images, torch.from_numpy(labels).float(), None, species))  # type: ignore[arg-type]
    value, (gradient,) = value_and_gradients(loss, model.plane.weight)
    features = ColourTexture()(images).double().numpy()
    weight, bias = (part.detach().double().numpy() for part in (model.plane.weight[0], model.plane.bias))
    sides = 2 * labels - 1
    short = 1 - sides * (features @ weight + bias)
    assert value == pytest.approx(np.maximum(short, 0).mean() + 0.15 * (weight**2).sum(), rel=1e-6)
    slope = -(sides * (short > 0))[:, None] * features
    np.testing.assert_allclose(gradient[0], slope.mean(axis=0) + 0.3 * weight, atol=1e-6)
