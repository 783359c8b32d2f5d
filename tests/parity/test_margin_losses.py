"""CosFace, ArcFace and FedFR's Eq. 6 against a few lines of NumPy, values and gradients, in float64."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss, CosFaceLoss  # type: ignore[import-untyped]
from tests.parity.gradients import Array, gradient_by_differences, value_and_gradients
from torch import Tensor

from fedvisage.nn.losses.arcface import arcface
from fedvisage.nn.losses.cosface import cosface
from fedvisage.nn.losses.cosines import cosines
from fedvisage.nn.losses.margin_binary import margin_binary, stretch_cosine
from fedvisage.nn.partial import sample_classes

RNG = np.random.default_rng(0)
FEATURES, CENTRES = 3 * RNG.normal(size=(6, 5)), RNG.normal(size=(4, 5))
LABELS = [0, 3, 1, 1, 2, 0]
FEATURES[0] = -2 * CENTRES[0] + 0.3 * FEATURES[0]  # far on the wrong side: beyond ArcFace's bend
BIAS = RNG.normal(size=4)


def cosine(feature: Array, centre: Array) -> float:
    return float(feature @ centre / math.sqrt((feature @ feature) * (centre @ centre)))


def softmax_loss(features: Array, centres: Array, own: Callable[[float, int], float], scale: float) -> float:
    """Return the mean of -log(e^{s·own} / (e^{s·own} + Σ_{j≠y} e^{s cos θ_j})); `own` gets cosine and row."""
    total = 0.0
    for row, (feature, label) in enumerate(zip(features, LABELS, strict=True)):
        mine = math.exp(scale * own(cosine(feature, centres[label]), row))
        others = sum(math.exp(scale * cosine(feature, centres[j])) for j in range(len(centres)) if j != label)
        total -= math.log(mine / (mine + others))
    return total / len(LABELS)


def expected_arcface(features: Array, centres: Array, continued: bool = True) -> float:
    def own(z: float, _: int) -> float:
        theta = math.acos(z)
        if continued and theta + 0.5 >= math.pi:
            return z - 0.5 * math.sin(0.5)
        return math.cos(theta + 0.5)

    return softmax_loss(features, centres, own, 16)


def expected_margin_binary(features: Array, centres: Array, bias: Array = BIAS, labels: list[int] = LABELS) -> float:
    def g(z: float) -> float:
        return 2 * ((z + 1) / 2) ** 3 - 1

    total = 0.0
    for feature, label in zip(features, labels, strict=True):
        for j, centre in enumerate(centres):
            z = g(cosine(feature, centre))
            if j == label:
                total += 0.7 / 30 * math.log(1 + math.exp(-30 * (z - 0.4) - bias[j]))
            else:
                total += 0.3 / 30 * math.log(1 + math.exp(30 * (z + 0.4) + bias[j]))
    return total / len(features)


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
LOSSES: dict[str, tuple[Loss, Callable[[Array, Array], float]]] = {
    "cosface": (cosface, lambda f, c: softmax_loss(f, c, lambda z, _: z - 0.4, 30)),
    "arcface": (lambda f, c, y: arcface(f, c, y, scale=16), expected_arcface),
    "arcface as printed": (
        lambda f, c, y: arcface(f, c, y, scale=16, continued=False),
        lambda f, c: expected_arcface(f, c, continued=False),
    ),
    "margin binary": (lambda f, c, y: margin_binary(f, c, torch.tensor(BIAS), y), expected_margin_binary),
}


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradients(name: str) -> None:
    loss, expected = LOSSES[name]
    features, centres = (torch.tensor(values, requires_grad=True) for values in (FEATURES, CENTRES))
    value, gradients = value_and_gradients(loss(features, centres, torch.tensor(LABELS)), features, centres)
    assert value == pytest.approx(expected(FEATURES, CENTRES), rel=1e-10)
    by_features = gradient_by_differences(lambda values: expected(values, CENTRES), FEATURES)
    by_centres = gradient_by_differences(lambda values: expected(FEATURES, values), CENTRES)
    np.testing.assert_allclose(gradients[0], by_features, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gradients[1], by_centres, rtol=1e-5, atol=1e-7)


def test_batch_lies_on_both_sides_of_the_bend_of_arcface() -> None:
    own = [math.acos(cosine(feature, CENTRES[label])) for feature, label in zip(FEATURES, LABELS, strict=True)]
    assert min(own) < math.pi - 0.5 < max(own)
    assert expected_arcface(FEATURES, CENTRES) != pytest.approx(expected_arcface(FEATURES, CENTRES, continued=False))


def test_biases_of_margin_binary_learn_by_equation_6() -> None:
    bias = torch.tensor(BIAS, requires_grad=True)
    loss = margin_binary(torch.tensor(FEATURES), torch.tensor(CENTRES), bias, torch.tensor(LABELS))
    _, (gradient,) = value_and_gradients(loss, bias)
    by_bias = gradient_by_differences(lambda values: expected_margin_binary(FEATURES, CENTRES, values), BIAS)
    np.testing.assert_allclose(gradient, by_bias, rtol=1e-5, atol=1e-9)


def test_public_images_are_negatives_for_every_branch_and_one_bias_can_be_shared() -> None:
    labels, shared = [0, -1, 1, -1, -1, 2], np.full(4, 0.3)
    features, centres = torch.tensor(FEATURES), torch.tensor(CENTRES)
    value = margin_binary(features, centres, torch.tensor(0.3), torch.tensor(labels))
    assert value.item() == pytest.approx(expected_margin_binary(FEATURES, CENTRES, shared, labels), rel=1e-7)


def test_stretched_interval_maps_onto_itself() -> None:
    cosines = torch.linspace(-1, 1, 101, dtype=torch.float64)
    actual = stretch_cosine(cosines, 3.0)
    assert actual[[0, -1]].tolist() == [-1, 1]
    assert (actual.diff() > 0).all()
    torch.testing.assert_close(stretch_cosine(cosines, 1.0), cosines)


@pytest.mark.parametrize("loss", [cosface, arcface])
def test_features_on_and_opposite_their_centre_have_finite_gradients(loss: Callable[..., Tensor]) -> None:
    centres = torch.eye(3, requires_grad=True)
    features = torch.stack([centres.detach()[0], -centres.detach()[1]]).requires_grad_()
    _, gradients = value_and_gradients(loss(features, centres, torch.tensor([0, 1])), features, centres)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_a_sample_of_all_classes_is_the_whole_softmax() -> None:
    features, centres, labels = torch.tensor(FEATURES), torch.tensor(CENTRES), torch.tensor(LABELS)
    sample = sample_classes(labels, 4, 4, np.random.default_rng(0))
    assert sample.classes.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(
        cosface(features, centres[sample.classes], sample.labels), cosface(features, centres, labels), rtol=0, atol=0
    )


def test_sample_has_the_classes_of_the_batch_and_others_drawn_uniformly() -> None:
    rng, labels = np.random.default_rng(0), torch.tensor([9, 2, 9, 5])
    counts = np.zeros(12)
    for _ in range(2000):
        sample = sample_classes(labels, 12, 6, rng)
        assert sample.classes[sample.labels].tolist() == labels.tolist()
        assert sample.classes.tolist() == sorted(set(sample.classes.tolist()))
        counts[sample.classes.numpy()] += 1
    assert counts[[2, 5, 9]].tolist() == [2000] * 3
    np.testing.assert_allclose(np.delete(counts, [2, 5, 9]) / 2000, 3 / 9, atol=0.04)
    assert sample_classes(labels, 12, 1, rng).classes.tolist() == [2, 5, 9]


def test_cosface_and_arcface_agree_with_pytorch_metric_learning() -> None:
    """Without the first feature, which lies beyond the bend where implementations of ArcFace part."""
    features, centres, labels = torch.tensor(FEATURES[1:]), torch.tensor(CENTRES), torch.tensor(LABELS[1:])
    for theirs, ours in (
        (CosFaceLoss(4, 5, margin=0.4, scale=30), cosface(features, centres, labels)),
        (ArcFaceLoss(4, 5, margin=math.degrees(0.5), scale=64), arcface(features, centres, labels)),
    ):
        theirs.W.data = centres.T.clone()
        torch.testing.assert_close(theirs(features, labels), ours, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_centre_has_cosine_zero_and_finite_gradients(dtype: torch.dtype) -> None:
    features = torch.tensor(FEATURES, dtype=dtype, requires_grad=True)
    centres = torch.tensor(np.vstack([CENTRES, np.zeros(5)]), dtype=dtype, requires_grad=True)
    actual = cosines(features, centres)
    assert actual[:, -1].tolist() == [0.0] * len(FEATURES)
    _, gradients = value_and_gradients(actual.sum(), features, centres)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
