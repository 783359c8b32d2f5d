"""Simulated changes of the capture: each changes the drawn images as its name says, and no others."""

import cv2
import numpy as np
import pytest
import torch
from tests.nn.images import random_images
from torch import Generator, Tensor

from fedvisage.nn import augment as of
from fedvisage.nn.augment import degrade
from fedvisage.recipe import Augment

SIDE = 32
LIVE = torch.tensor([1.0, 1, 1, 0, 0, 0])


def degrade_batch(
    options: Augment, seed: int = 0, labels: Tensor = LIVE, depth: Tensor | None = None
) -> of.AugmentedBatch:
    return degrade(random_images(len(labels), seed=1), depth, labels, options.changes, Generator().manual_seed(seed))


NAMES = [
    *("margin", "turn", "resample", "blur", "sharpen", "gamma", "temperature", "gains", "noise", "jpeg", "cutout"),
    "cutmix",
]
EVERY = Augment.model_validate(dict.fromkeys(NAMES, 1))


def test_changes_are_off_by_default_and_at_probability_zero() -> None:
    assert Augment().changes == {}
    assert Augment(jpeg=0).changes == {}
    assert list(EVERY.changes) == NAMES


def test_changes_follow_the_generator_and_stay_in_range() -> None:
    first, again, other = (degrade_batch(EVERY, seed).images for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == random_images(6, seed=1).shape
    assert 0 <= first.min() <= first.max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_changed_share_is_as_configured_and_other_images_are_unchanged(name: str) -> None:
    labels = torch.tensor([1.0, 0.0] * 60)
    options = Augment.model_validate({name: {"probability": 0.4}})
    kept = (degrade_batch(options, labels=labels).images == random_images(120, seed=1)).flatten(1).all(1)
    share = float((~kept[labels == 1] if name == "cutmix" else ~kept).float().mean())
    assert 0.25 < share < 0.55


def test_low_jpeg_quality_equals_opencv() -> None:
    one = random_images(1, seed=1)
    source = (one[0].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)[:, :, ::-1]
    stored = cv2.imencode(".jpg", source, [cv2.IMWRITE_JPEG_QUALITY, 20])[1]
    expected = np.asarray(cv2.imdecode(stored, cv2.IMREAD_COLOR))[:, :, ::-1].astype(np.float32) / 255
    np.testing.assert_array_equal(of.jpeg(one, 20.0)[0].permute(1, 2, 0).numpy(), expected)


def test_a_blur_spreads_a_point_by_its_width() -> None:
    point = torch.zeros(1, 3, SIDE, SIDE)
    point[..., 16, 16] = 1
    step = torch.arange(SIDE) - 16.0
    assert float((of.blur(point, 1.5)[0, 0].sum(0) * step**2).sum()) == pytest.approx(1.5**2, rel=0.05)


def test_warm_light_is_red_cold_light_is_blue_and_daylight_changes_nothing() -> None:
    grey = torch.full((1, 3, 2, 2), 0.4)
    warm, cold = of.temperature(grey, 3500.0)[0, :, 0, 0], of.temperature(grey, 10000.0)[0, :, 0, 0]
    assert warm[0] > warm[1] > warm[2]
    assert cold[0] < cold[1] < cold[2]
    torch.testing.assert_close(of.temperature(grey, 6500.0), grey)


def test_noise_has_the_configured_deviation() -> None:
    flat = torch.full((4, 3, 64, 64), 0.5)
    options = Augment.model_validate({"noise": {"probability": 1, "least": 0.05, "most": 0.05}})
    noisy = degrade(flat, None, torch.ones(4), options.changes, Generator().manual_seed(0)).images
    assert float((noisy - flat).std()) == pytest.approx(0.05, rel=0.03)


def test_resampling_removes_fine_detail_and_keeps_the_mean() -> None:
    board = (torch.arange(SIDE)[:, None] + torch.arange(SIDE)).remainder(2).float().expand(1, 3, -1, -1)
    seen = of.resample(board, 0.5)
    assert float(seen.std()) < 0.1
    assert float(seen.mean()) == pytest.approx(0.5, abs=0.02)


def test_a_margin_is_cut_off_the_depth_map_too() -> None:
    depth = torch.zeros(1, SIDE, SIDE)
    depth[:, 8:24, 8:24] = 1
    options = Augment.model_validate({"margin": {"probability": 1, "least": 0.25, "most": 0.25}})
    mixed = degrade(random_images(1, seed=1), depth, torch.ones(1), options.changes, Generator())
    assert mixed.depth is not None
    assert torch.equal(mixed.depth, torch.ones(1, SIDE, SIDE))


def test_a_turn_rotates_picture_and_depth_map_anticlockwise() -> None:
    point = torch.zeros(1, 3, SIDE, SIDE)
    point[..., 6:10, 15:17] = 1  # above the centre
    options = Augment.model_validate({"turn": {"probability": 1, "least": 45, "most": 45}})
    turned = degrade(point, point[:, 0], torch.ones(1), options.changes, Generator())
    assert turned.depth is not None
    for plane in (turned.images[0, 0], turned.depth[0]):
        rows, columns = (plane > 0.5).nonzero(as_tuple=True)
        assert float(rows.float().mean()) == pytest.approx(15.5 - 8 * 0.5**0.5, abs=0.6)
        assert float(columns.float().mean()) == pytest.approx(15.5 - 8 * 0.5**0.5, abs=0.6)


def test_sharpening_restores_blurred_detail() -> None:
    one = 0.4 + 0.2 * random_images(1, seed=1)
    np.testing.assert_allclose(of.sharpen(one, 0.7), one + 0.7 * (one - of.blur(one, 1.0)), atol=1e-6)


def test_gains_scale_each_channel_of_each_picture_within_the_range() -> None:
    grey = torch.full((50, 3, 4, 4), 0.5)
    options = Augment.model_validate({"gains": {"probability": 1, "least": 0.2, "most": 0.2}})
    factors = degrade(grey, None, torch.ones(50), options.changes, Generator().manual_seed(0)).images[..., 0, 0] / 0.5
    assert float((factors - 1).abs().max()) <= 0.2 + 1e-6
    assert len(set(factors.flatten().tolist())) == 150


def test_strong_sets_a_group_of_changes_and_single_keys_replace_its_own() -> None:
    strong = Augment.model_validate({"strong": True, "blur": 0, "jpeg": 0.1})
    assert strong.flip == 0.5
    assert list(strong.changes) == ["margin", "turn", "resample", "sharpen", "gamma", "gains", "noise", "jpeg"]
    assert strong.changes["jpeg"].probability == 0.1
    assert Augment.model_validate(strong.model_dump()).model_dump() == strong.model_dump()
    assert Augment.model_validate({"strong": False}).changes == {}


def test_strong_changes_draw_the_same_for_both_classes() -> None:
    strong = Augment.model_validate({"strong": True})
    as_live, as_attack = (degrade_batch(strong, labels=torch.full((6,), label)).images for label in (1.0, 0.0))
    assert torch.equal(as_live, as_attack)


def test_cutmix_pastes_an_attack_and_flattens_the_depth_there() -> None:
    depth = torch.ones(6, 16, 16) * LIVE[:, None, None]
    mixed = degrade_batch(Augment(cutmix=1), depth=depth)
    assert (mixed.donors[LIVE == 1] >= 3).all()
    assert (mixed.donors[LIVE == 0] == -1).all()
    before = random_images(6, seed=1)
    for row, donor in enumerate(mixed.donors[:3].tolist()):
        put = (mixed.images[row] != before[row]).any(0)
        assert torch.equal(mixed.images[row][:, put], before[donor][:, put])
        assert 0.15 * SIDE - 1 <= put.sum() ** 0.5 <= 0.4 * SIDE + 1
        assert mixed.depth is not None
        assert 0 < (mixed.depth[row] == 0).float().mean() < 0.3
    assert torch.equal(mixed.images[3:], before[3:])


def test_cutmix_without_attacks_changes_nothing() -> None:
    assert torch.equal(degrade_batch(Augment(cutmix=1), labels=torch.ones(4)).images, random_images(4, seed=1))


@pytest.mark.parametrize(
    "wrong", [{"jpeg": {"least": 1, "most": 50}}, {"blur": {"least": 2, "most": 1}}, {"noise": 2}, {"gama": 0.5}]
)
def test_impossible_amounts_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"between|above|less than|Extra"):
        Augment.model_validate(wrong)
