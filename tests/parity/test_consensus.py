"""PrivacyFace's consensus-aware loss (Eq. 5) against NumPy, values and gradients, in float64."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from tests.parity.gradients import gradient_by_differences, unit, value_and_gradients
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedvisage.nn.losses.arcface import arcface_logits
from fedvisage.nn.losses.consensus import (
    cluster_logits,
    consensus_aware,
    exclude_enclosing,
    lower_clusters,
    separate_terms,
)
from fedvisage.nn.losses.cosface import cosface_logits
from fedvisage.nn.losses.cosines import cosines

SCALE, OWN_MARGIN, MARGIN = 8.0, 0.3, 1.3
RNG = np.random.default_rng(0)
FEATURES, CENTRES, CLUSTERS = (RNG.normal(size=(rows, 6)) for rows in (5, 4, 3))
CLUSTERS[0] = FEATURES[0] + 0.1 * CLUSTERS[0]  # a feature inside of a cluster
LABELS = np.array([0, 3, 1, 1, 2])
Logits = Callable[[Tensor, Tensor, float, float], Tensor]
FORMS: dict[str, Logits] = {"cosface": cosface_logits, "arcface": partial(arcface_logits, continued=False)}


def angles(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.asarray(np.arccos(unit(rows) @ unit(others).T))


def equation_5(form: str, features: np.ndarray, centres: np.ndarray) -> float:
    theta, around = angles(features, centres), angles(features, CLUSTERS)
    total = 0.0
    for i, label in enumerate(LABELS):
        mine = theta[i, label]
        u = SCALE * (np.cos(mine) - OWN_MARGIN if form == "cosface" else np.cos(mine + OWN_MARGIN))
        v = [SCALE * np.cos(theta[i, j]) for j in range(len(centres)) if j != label]
        mu = [SCALE * np.cos(max(angle - MARGIN, 0.0)) for angle in around[i]]
        total -= np.log(np.exp(u) / (np.exp(u) + np.exp(v).sum() + np.exp(mu).sum()))
    return total / len(LABELS)


def loss(logits: Logits, features: Tensor, centres: Tensor, clusters: np.ndarray) -> Tensor:
    labels = torch.from_numpy(LABELS)
    own = logits(cosines(features, centres), labels, SCALE, OWN_MARGIN)
    return consensus_aware(own, labels, cluster_logits(features, torch.from_numpy(clusters), MARGIN, SCALE))


@pytest.mark.parametrize("form", FORMS)
def test_value_and_gradients_are_those_of_equation_5(form: str) -> None:
    features, centres = (torch.tensor(values, requires_grad=True) for values in (FEATURES, CENTRES))
    value, gradients = value_and_gradients(loss(FORMS[form], features, centres, CLUSTERS), features, centres)
    assert value == pytest.approx(equation_5(form, FEATURES, CENTRES), rel=1e-12)
    by_features = gradient_by_differences(lambda values: equation_5(form, values, CENTRES), FEATURES)
    by_centres = gradient_by_differences(lambda values: equation_5(form, FEATURES, values), CENTRES)
    for gradient, expected in zip(gradients, (by_features, by_centres), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_without_clusters_it_is_the_margin_loss_to_the_bit(form: str) -> None:
    features, centres = torch.from_numpy(FEATURES), torch.from_numpy(CENTRES)
    labels = torch.from_numpy(LABELS)
    plain = cross_entropy(FORMS[form](cosines(features, centres), labels, SCALE, OWN_MARGIN), labels)
    assert torch.equal(loss(FORMS[form], features, centres, np.empty((0, 6))), plain)
    assert torch.equal(loss(FORMS[form], features, centres, np.zeros((2, 6))), plain)


def test_similarity_is_largest_and_constant_inside_a_cluster() -> None:
    feature = torch.tensor(FEATURES[:1], requires_grad=True)
    logits = cluster_logits(feature, torch.from_numpy(CLUSTERS[:1]), MARGIN, SCALE)
    value, (gradient,) = value_and_gradients(logits.sum(), feature)
    assert value == pytest.approx(SCALE)
    assert not gradient.any()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_at_the_centre_of_a_cluster_and_opposite_to_it(sign: int, dtype: torch.dtype) -> None:
    cluster = torch.tensor(CLUSTERS[:1], dtype=dtype)
    feature = (sign * cluster).clone().requires_grad_()
    empty = torch.zeros_like(cluster)
    logits = cluster_logits(feature, torch.cat([cluster, empty]), MARGIN, SCALE)
    _, (gradient,) = value_and_gradients(logits.exp().sum(), feature)
    assert np.isfinite(gradient).all()


def softmax_of(own: np.ndarray, label: int, others: np.ndarray) -> float:
    return float(-np.log(np.exp(own[label]) / (np.exp(own).sum() + np.exp(others).sum())))


def test_lowered_cluster_at_its_edge_equals_a_class_at_that_angle() -> None:
    towards = np.array([[math.cos(MARGIN), math.sin(MARGIN), 0.0]])
    cluster = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    logits = lower_clusters(cluster_logits(torch.from_numpy(towards), cluster, MARGIN, SCALE), MARGIN, SCALE)
    assert float(logits) == pytest.approx(SCALE * math.cos(MARGIN))


def test_two_term_form_adds_the_own_class_against_clusters() -> None:
    theta, around = angles(FEATURES, CENTRES), angles(FEATURES, CLUSTERS)
    expected = 0.0
    for i, label in enumerate(LABELS):
        own = SCALE * np.cos(theta[i])
        own[label] -= SCALE * OWN_MARGIN
        others = SCALE * np.cos(np.maximum(around[i] - MARGIN, 0.0))
        expected += softmax_of(own, label, np.empty(0)) + 0.3 * softmax_of(own[[label]], 0, others)
    features, centres, labels = torch.from_numpy(FEATURES), torch.from_numpy(CENTRES), torch.from_numpy(LABELS)
    logits = cosface_logits(cosines(features, centres), labels, SCALE, OWN_MARGIN)
    others_now = cluster_logits(features, torch.from_numpy(CLUSTERS), MARGIN, SCALE)
    assert float(separate_terms(logits, labels, others_now, 0.3)) == pytest.approx(expected / len(LABELS))


def test_cluster_is_left_out_for_images_with_their_centre_in_its_cap() -> None:
    centres, clusters, labels = torch.from_numpy(CENTRES), torch.from_numpy(CLUSTERS), torch.from_numpy(LABELS)
    around = cluster_logits(torch.from_numpy(FEATURES), clusters, MARGIN, SCALE)
    inside = angles(CENTRES, CLUSTERS)[LABELS] <= MARGIN
    assert inside.any()
    assert not inside.all()
    left = exclude_enclosing(around, labels, centres, clusters, MARGIN)
    np.testing.assert_array_equal(left.isinf().numpy(), inside)
    assert torch.equal(left[~left.isinf()], around[~left.isinf()])
