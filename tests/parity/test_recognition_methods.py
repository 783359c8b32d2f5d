"""FedFace's two losses, distillation's divergence, mean features and FedFR's Eq. 7, from their equations in NumPy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.federation.lent_site import site_of
from tests.parity.gradients import gradient_by_differences, unit, value_and_gradients
from tests.refusals import refused
from tests.toy import Sets, recipe_of, tree
from torch import Tensor

from fedvisage.federation.site import Batch, Site
from fedvisage.methods.models import face
from fedvisage.methods.recognition import fedfr, fedfr_baselines
from fedvisage.nn.losses.spreadout import positive_hinge, spreadout


def spreadout_by_loops(centres: np.ndarray, owners: list[int], margin: float) -> float:
    total, rows = 0.0, unit(centres)
    for c, one in enumerate(rows):
        for d, other in enumerate(rows):
            if owners[c] != owners[d]:
                total += max(0.0, margin - (1 - one @ other)) ** 2
    return total


def test_spreadout_is_the_sum_over_pairs_of_different_owners() -> None:
    rng, owners = np.random.default_rng(0), [0, 0, 1, 2, 2]
    values = rng.normal(size=(5, 4))
    centres = torch.tensor(values, requires_grad=True)
    value, (gradient,) = value_and_gradients(spreadout(centres, torch.tensor(owners), margin=0.9), centres)
    assert value == pytest.approx(spreadout_by_loops(values, owners, 0.9))
    assert value > 0
    expected = gradient_by_differences(lambda v: spreadout_by_loops(v, owners, 0.9), values)
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


def test_positive_loss_uses_only_the_own_centre() -> None:
    rng, labels = np.random.default_rng(1), [1, 0, 1]
    values, centres = rng.normal(size=(3, 4)), rng.normal(size=(2, 4))

    def by_hand(features: np.ndarray) -> float:
        cosine = (unit(features) * unit(centres)[labels]).sum(axis=1)
        return float(np.mean(np.maximum(0, 0.9 - cosine) ** 2))

    features = torch.tensor(values, requires_grad=True)
    loss = positive_hinge(features, torch.tensor(centres), torch.tensor(labels), margin=0.9)
    value, (gradient,) = value_and_gradients(loss, features)
    assert value == pytest.approx(by_hand(values))
    np.testing.assert_allclose(gradient, gradient_by_differences(by_hand, values), atol=1e-7)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_divergence_is_from_teacher_to_student(temperature: float) -> None:
    rng = np.random.default_rng(2)
    student, teacher = rng.uniform(-1, 1, (2, 5, 7))

    def probabilities(cosine: np.ndarray) -> np.ndarray:
        powers = np.exp(30 * cosine / temperature)
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    p, q = probabilities(teacher), probabilities(student)
    expected = (p * np.log(p / q)).sum(axis=1).mean() * temperature**2
    actual = fedfr_baselines.divergence_of(torch.tensor(student), torch.tensor(teacher), 30.0, temperature)
    assert actual.item() == pytest.approx(expected)


def test_teacher_of_distillation_is_the_finished_model_with_the_centres_of_the_start(
    sets: Sets, tmp_path: Path
) -> None:
    """KL(teacher ‖ student) beside CosFace; model and centres of the student have moved since the stage began."""
    site = site_of(sets, tmp_path, name="distillation", method__distillation=0.7, method__temperature=2.0)
    fedfr.own_parameters(site)
    first = face.own_centres(site).detach().clone()
    site.held |= {"global": site.frozen(site.lent, *site.net), "centres": first}
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in [*site.net.parameters(), face.own_centres(site)]:
            value.add_(0.3 * value.std() * torch.randn(value.shape, generator=draws))
    batch = next(iter(site.batches_of(site.data)))
    public = [site.lent["centres.weight"], site.net["centres"].get_parameter("weight").detach()]
    with torch.no_grad():
        features = [site.held["global"]["model"](batch.images), site.net["model"](batch.images)]
        balanced = float(fedfr.balanced_cosface(site, batch, features[1]))
        actual = float(fedfr_baselines.distillation_loss(site, batch))
    logs = []
    for own, others, rows in zip((first, face.own_centres(site).detach()), public, features, strict=True):
        centres = unit(np.concatenate([own.numpy(), others.numpy()]).astype(np.float64))
        powers = np.exp(30 * unit(rows.numpy().astype(np.float64)) @ centres.T / 2.0)
        logs.append(np.log(powers / powers.sum(axis=1, keepdims=True)))
    divergence = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=1).mean() * 2.0**2
    assert divergence > 0.1
    assert actual == pytest.approx(balanced + 0.7 * divergence, rel=1e-3)


def test_class_centres_start_at_the_mean_direction_of_each_identity(sets: Sets, tmp_path: Path) -> None:
    site = site_of(sets, tmp_path)
    features = unit(site.embed(site.net["model"], site.data).numpy().astype(np.float64))
    means = [features[site.data.subjects == who].mean(axis=0) for who in site.data.identities]
    assert np.allclose(face.mean_features(site).numpy(), unit(np.stack(means)), atol=1e-5)


def test_eq_7_weighs_the_three_losses(sets: Sets, tmp_path: Path) -> None:
    site = site_of(
        sets,
        tmp_path,
        method__cosface=2.0,
        method__contrast={"weight": 3.0},
        method__customisation={"weight": 0.5},
    )
    fedfr.own_parameters(site)
    before = {f"{face.LOCAL}{name}": 1.1 * value for name, value in site.lent.items() if value.is_floating_point()}
    site.kept.update(before)
    view = fedfr.with_hard_negatives(site)
    fedfr.hold_frozen(site, view)
    with torch.no_grad():
        site.own("Pi", lambda: torch.empty(0)).add_(0.05)
    batch = next(iter(site.batches_of(view)))
    features = face.features_of(site, batch.images)
    parts = [part(site, batch, features) for part in (fedfr.balanced_cosface, fedfr.contrast, fedfr.customisation)]
    assert fedfr.loss(site, batch).item() == pytest.approx(
        2.0 * parts[0].item() + 3.0 * parts[1].item() + 0.5 * parts[2].item()
    )
    assert balanced_by_hand(site, batch, features) == pytest.approx(parts[0].item(), rel=1e-4)


def balanced_by_hand(site: Site, batch: Batch, features: Tensor) -> float:
    """Eq. 3 over the site's classes, then the public ones."""
    centres = [site.own("W", lambda: torch.empty(0)), site.net["centres"].get_parameter("weight")]
    rows = unit(np.concatenate([centre.detach().numpy() for centre in centres]).astype(np.float64))
    cosine = unit(features.detach().numpy().astype(np.float64)) @ rows.T
    total = 0.0
    assert batch.identities is not None
    for row, label in zip(cosine, batch.identities.tolist(), strict=True):
        own = np.exp(30 * (row[label] - 0.4))
        total -= np.log(own / (own + np.exp(30 * np.delete(row, label)).sum()))
    return total / len(cosine)


def test_hard_negatives_of_a_round_follow_the_threshold(sets: Sets, tmp_path: Path) -> None:
    counts = {}
    for threshold in (-1, -0.999, 0.0, 0.999, None):
        site = site_of(sets, tmp_path, method__hard_negatives=threshold)
        counts[threshold] = len(fedfr.with_hard_negatives(site)) - len(site.data)
    assert counts[None] == 0
    assert counts[-1] == counts[-0.999] == 20
    assert 0 <= counts[0.999] <= counts[0.0] <= 20


def test_random_public_images_are_as_many_as_the_hard_negatives(sets: Sets, tmp_path: Path) -> None:
    def choose(number: int, is_random: bool | None) -> list[int]:
        site = site_of(
            sets, tmp_path / "site", number, method__hard_negatives=threshold, method__random_negatives=is_random
        )
        view = fedfr.with_hard_negatives(site)
        assert sum(len(part.indices) for part in view.slices[:1]) == len(site.data)
        return [int(index) for part in view.slices[1:] for index in part.indices]

    site = site_of(sets, tmp_path / "site")
    assert site.public is not None
    public, local = (unit(site.embed(site.net["model"], view).numpy()) for view in (site.public, site.data))
    threshold = float(np.median((public @ local.T).max(axis=1)))  # half of them are above
    hard, first, second = choose(1, None), choose(1, True), choose(2, True)
    assert len(hard) == len(first) == len(second) == len(public) // 2
    assert len({*first}) == len(first)
    assert first == choose(1, True)
    assert len({*map(tuple, (hard, first, second))}) == 3


@pytest.mark.parametrize("threshold", [None, -1])
def test_random_public_images_need_a_threshold(threshold: float | None, sets: Sets) -> None:
    content = tree(sets, "fedfr", method__hard_negatives=threshold, method__random_negatives=True)
    with refused("recipe.method.random_negatives", "hard_negatives"):
        fedfr.check(recipe_of(content))
