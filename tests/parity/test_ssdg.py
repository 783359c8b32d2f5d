"""The triplet loss against a loop over all triplets in NumPy, and the classes that a site compares."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.parity.gradients import Array, gradient_by_differences, unit, value_and_gradients
from tests.toy import shortest_recipe

from fedvisage.federation.site import Batch
from fedvisage.methods.models import resnet18
from fedvisage.methods.pad import ssdg
from fedvisage.nn.losses.triplet import triplet

FEATURES = np.random.default_rng(0).normal(size=(7, 5))
CLASSES = np.array([0, 0, 0, 1, 1, 2, 2])


def expected_loss(features: Array, classes: Array, margin: float) -> float:
    units, values = unit(features), []
    for a, anchor in enumerate(units):
        for p, n in np.ndindex(len(units), len(units)):
            if a != p and classes[a] == classes[p] and classes[a] != classes[n]:
                near, far = ((anchor - units[p]) ** 2).sum(), ((anchor - units[n]) ** 2).sum()
                values.append(near - far + margin)
    positive = [value for value in values if value > 0]
    return float(sum(positive)) / max(1, len(positive))


@pytest.mark.parametrize("margin", [0.0, 0.1, 1.5])
def test_triplet_loss_and_its_gradient(margin: float) -> None:
    features = torch.tensor(FEATURES, requires_grad=True)
    value, (gradient,) = value_and_gradients(triplet(features, torch.tensor(CLASSES), margin), features)
    assert value == pytest.approx(expected_loss(FEATURES, CLASSES, margin), rel=1e-9)
    expected = gradient_by_differences(partial(expected_loss, classes=CLASSES, margin=margin), FEATURES)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


def test_batch_of_one_class_has_no_loss_and_no_gradient() -> None:
    features = torch.tensor(FEATURES, requires_grad=True)
    value, (gradient,) = value_and_gradients(triplet(features, torch.zeros(7), 0.1), features)
    assert value == 0
    assert not gradient.any()


def test_attacks_of_each_kind_are_a_class_of_their_own() -> None:
    """The loss of a site is Eq. 1 plus λ times the triplet loss over bona fide images, prints and replays."""
    recipe = shortest_recipe("ssdg", triplet=2.0, margin=0.3, network={"width": 8})
    torch.manual_seed(0)
    net = resnet18.network(recipe).eval()
    images = torch.rand(6, 6, 32, 32)
    species = np.array(["replay", "bonafide", "print", "bonafide", "replay", "print"])
    batch = Batch(images, torch.from_numpy(species == "bonafide").float(), None, species)
    site = SimpleNamespace(recipe=recipe, net=net, autocast=torch.no_grad)
    with torch.no_grad():
        actual = float(ssdg.loss(site, batch))  # type: ignore[arg-type]
        features = resnet18.represent(net, images)
        logits = resnet18.head(net, features).squeeze(1).double().numpy()
    entropy = np.log1p(np.exp(-np.where(species == "bonafide", 1, -1) * logits)).mean()
    kinds = np.array([2, 0, 1, 0, 2, 1])
    assert actual == pytest.approx(entropy + 2 * expected_loss(features.double().numpy(), kinds, 0.3), rel=1e-4)
