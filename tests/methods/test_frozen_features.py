"""FedFR passes an image through its frozen models once a turn, and only if its features are needed."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation.lent_site import site_of
from tests.toy import Sets
from torch import Tensor, nn

from fedvisage.federation.site import Batch, Site
from fedvisage.methods.models import face
from fedvisage.methods.recognition import fedfr
from fedvisage.methods.recognition.fedfr import FrozenNetwork
from fedvisage.nn.augment import augment, draw_mirrored_only
from fedvisage.nn.compute import resolve_compute
from fedvisage.recipe import Augment

COMPUTE = resolve_compute("cpu", "fp32")


class Counting(nn.Module):
    """A network that tells images apart, and counts how often it saw each."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[float, ...]] = Counter()

    def forward(self, images: Tensor) -> Tensor:
        corners = torch.stack([images[:, 0, 0, 0], images[:, 0, 0, -1]], dim=1)
        self.seen.update(tuple(row) for row in corners.tolist())
        return corners


def later(site: Site) -> Site:
    """Return a site as if it had trained before: its local model differs from the global one."""
    other = {f"{face.LOCAL}{name}": 1.1 * value for name, value in site.lent.items() if value.is_floating_point()}
    site.kept.update(other)
    return site


def batches(images: Tensor, flips: list[list[bool]]) -> list[Batch]:
    at, labels = np.arange(len(images)), torch.ones(len(images))
    actual = []
    for row in flips:
        mirrored = torch.tensor(row)
        shown = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
        actual.append(Batch(shown, labels, None, np.array(["bonafide"] * len(images)), None, at, mirrored))
    return actual


@pytest.mark.parametrize("known", [False, True])
def test_each_image_is_passed_once_plain_and_once_mirrored(known: bool) -> None:
    images = torch.arange(4 * 12.0).reshape(4, 3, 2, 2)
    net = Counting()
    frozen = FrozenNetwork(net, COMPUTE, 4, images[:, 0, 0, :] if known else None)
    flips = [[False] * 4, [True, False, True, False], [True, True, False, False]]
    for batch in batches(images, flips):
        expected = torch.stack([batch.images[:, 0, 0, 0], batch.images[:, 0, 0, -1]], dim=1)
        assert torch.equal(frozen.features(batch), expected)
    assert set(net.seen.values()) == {1}
    assert len(net.seen) == (3 if known else 7)  # the last image is never mirrored


def test_images_with_other_changes_are_passed_each_time() -> None:
    images, net = torch.rand(2, 3, 2, 2), Counting()
    batch = Batch(images, torch.ones(2), None, np.array(["bonafide"] * 2), None, np.arange(2), None)
    frozen = FrozenNetwork(net, COMPUTE, 2)
    for _ in range(3):
        frozen.features(batch)
    assert set(net.seen.values()) == {3}


@pytest.mark.parametrize("options", [{"flip": 0.5}, {}])
def test_mirror_flags_match_the_augmentation(options: dict[str, Any]) -> None:
    images = torch.rand(16, 3, 4, 4)
    actual, _ = augment(images, None, Augment(**options), torch.Generator().manual_seed(3))
    mirrored = draw_mirrored_only(16, Augment(**options), torch.Generator().manual_seed(3))
    assert mirrored is not None
    assert torch.equal((actual != images).flatten(1).any(dim=1), mirrored)
    assert mirrored.any() == bool(options)


@pytest.mark.parametrize("key", ["shift", "brightness", "contrast", "saturation", "hue"])
def test_other_changes_do_not_count_as_mirroring(key: str) -> None:
    assert draw_mirrored_only(4, Augment(flip=0.5, **{key: 0.1}), torch.Generator()) is None


def test_frozen_features_are_those_of_a_pass_over_the_batch(sets: Sets, tmp_path: Path) -> None:
    site = later(site_of(sets, tmp_path, method__hard_negatives=-0.999))
    view, _ = fedfr.what_to_train(site)
    fedfr.hold_frozen(site, view)
    plain = site.frozen(site.lent, "model")["model"]
    mirrored = 0
    for batch in site.batches_of(view, epochs=2):
        assert batch.mirrored is not None
        mirrored += int(batch.mirrored.sum())
        actual = site.held["global"].features(batch)
        assert not actual.requires_grad
        torch.testing.assert_close(actual, plain(batch.images), rtol=1e-4, atol=1e-5)
    assert mirrored


def test_contrast_of_the_first_turn_is_log_2_without_a_gradient(sets: Sets, tmp_path: Path) -> None:
    site = site_of(sets, tmp_path)
    view, _ = fedfr.what_to_train(site)
    fedfr.hold_frozen(site, view)
    assert not {"global", "previous"} & set(site.held)
    batch = next(iter(site.batches_of(view)))
    value = fedfr.contrast(site, batch, face.features_of(site, batch.images))
    assert value.item() == pytest.approx(float(np.log(2)))
    assert not value.requires_grad
