"""Random changes of training images: drawn from the given generator, within their ranges."""

import colorsys

import numpy as np
import pytest
import torch
from tests.nn.images import random_images
from torch import Generator, Tensor

from fedvisage.nn.augment import augment
from fedvisage.recipe import Augment

EVERYTHING = Augment(flip=0.5, shift=0.1, brightness=0.2, contrast=0.2, saturation=0.2, hue=0.1)
IMAGES = random_images(64, size=8, seed=1)


def augment_batch(images: Tensor, options: Augment, generator: Generator) -> Tensor:
    return augment(images, None, options, generator)[0]


def seeded_generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def test_disabled_augmentation_changes_and_draws_nothing() -> None:
    generator = seeded_generator()
    assert torch.equal(augment_batch(IMAGES, Augment(), generator), IMAGES)
    assert torch.equal(generator.get_state(), seeded_generator().get_state())


def test_augmentation_draws_only_from_its_generator() -> None:
    before = torch.get_rng_state()
    first, again, other = (augment_batch(IMAGES, EVERYTHING, seeded_generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_augmented_images_keep_shape_and_range() -> None:
    actual = augment_batch(
        IMAGES,
        Augment(brightness=1, contrast=1, saturation=1, hue=0.5, shift=0.3),
        seeded_generator(),
    )
    assert actual.shape == IMAGES.shape
    assert 0 <= actual.min() <= actual.max() <= 1


def test_mirrored_share_is_as_configured_and_other_images_are_unchanged() -> None:
    source = random_images(1000, size=8, seed=1)
    actual = augment_batch(source, Augment(flip=0.3), seeded_generator())
    mirrored = (actual == source.flip(-1)).all(dim=(1, 2, 3))
    kept = (actual == source).all(dim=(1, 2, 3))
    assert (mirrored ^ kept).all()
    assert 0.26 < mirrored.float().mean() < 0.34


def test_shifted_images_are_moved_by_whole_pixels() -> None:
    source = IMAGES
    actual = augment_batch(source, Augment(shift=0.25), seeded_generator())
    moves = set()
    for before, after in zip(source.numpy(), actual.numpy(), strict=True):
        padded = np.pad(before, ((0, 0), (2, 2), (2, 2)), mode="reflect")
        fits = [(y, x) for y in range(5) for x in range(5) if (padded[:, y : y + 8, x : x + 8] == after).all()]
        assert len(fits) == 1
        moves |= set(fits)
    assert len(moves) > 15


def test_brightness_scales_each_image_by_one_factor_in_its_range() -> None:
    source = IMAGES * 0.5
    ratio = (augment_batch(source, Augment(brightness=0.3), seeded_generator()) / source).flatten(1)
    assert (ratio.amax(1) - ratio.amin(1)).max() < 1e-4
    assert 0.7 <= ratio.min() < 0.75
    assert 1.25 < ratio.max() <= 1.3001


def grey(images: Tensor) -> Tensor:
    """Luma of ITU-R BT.601."""
    return 0.299 * images[:, :1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:]


@pytest.mark.parametrize("change", ["contrast", "saturation"])
def test_contrast_is_about_an_images_mean_grey_and_saturation_about_each_pixels_own(change: str) -> None:
    """The distance between a pixel and that grey is multiplied by one factor per image, in its range."""
    source = IMAGES * 0.2 + 0.4  # far enough from black and white that nothing is cut
    actual = augment_batch(source, Augment.model_validate({change: 0.3}), seeded_generator())
    middle = grey(source).mean(dim=(2, 3), keepdim=True) if change == "contrast" else grey(source)
    apart = source - middle
    factor = ((actual - middle) * apart).sum(dim=(1, 2, 3)) / apart.square().sum(dim=(1, 2, 3))
    torch.testing.assert_close(actual, middle + factor[:, None, None, None] * apart, rtol=0, atol=1e-6)
    assert 0.7 <= factor.min() < 0.75
    assert 1.25 < factor.max() <= 1.3001


def test_hue_changes_only_the_colour() -> None:
    source = IMAGES * 0.8 + 0.1
    actual = augment_batch(source, Augment(hue=0.5), seeded_generator())
    for before, after in zip(source[:, :, 0, 0].tolist(), actual[:, :, 0, 0].tolist(), strict=True):
        assert colorsys.rgb_to_hsv(*after)[1:] == pytest.approx(colorsys.rgb_to_hsv(*before)[1:], abs=1e-4)


def test_depth_is_mirrored_and_moved_with_its_image() -> None:
    """Images of 32 pixels whose first channel is the depth: wherever a pixel goes, its depth goes too."""
    depth = torch.rand(200, 32, 32, generator=Generator().manual_seed(2))
    pictures = depth[:, None].repeat(1, 3, 1, 1)
    moved, maps = augment(pictures, depth, Augment(flip=0.5, shift=0.2), seeded_generator())
    assert maps is not None
    assert torch.equal(moved[:, 0], maps)
    assert not torch.equal(maps, depth)


def test_depth_moves_by_its_own_pixels_where_the_image_is_larger() -> None:
    """Blocks of 4×4 pixels share a depth; after a move the maps agree with them to one pixel of a map."""
    depth = torch.rand(50, 32, 32, generator=Generator().manual_seed(3))
    pictures = depth.repeat_interleave(4, 1).repeat_interleave(4, 2)[:, None].repeat(1, 3, 1, 1)
    moved, maps = augment(pictures, depth, Augment(shift=8 / 128), seeded_generator())
    assert maps is not None
    near = [maps.roll((dy, dx), (1, 2))[:, 4:-4, 4:-4] for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    centres = moved[:, 0, 1::4, 1::4][:, 4:-4, 4:-4]
    apart = torch.stack([(centres - one).abs().amax((1, 2)) for one in near]).amin(0)
    assert (apart == 0).all()
