"""Classifiers in closed form, against the field's own, and what is made of several."""

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from fedvisage.nn.stacking import Heads, logistic, loss_of, normalise_features


def draw_features(images: int = 120, width: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(images, width, generator=draw, dtype=torch.float64)
    labels = (features[:, 0] + 0.7 * torch.randn(images, generator=draw) > 0.8).long()
    return features, labels


def test_classifier_equals_scikit_learn() -> None:
    features, labels = draw_features()
    penalty = 0.05
    plane = logistic(features, labels, penalty)
    joined = np.concatenate([features.numpy(), np.ones((len(features), 1))], axis=1)
    counts = labels.double().mean().item()
    weights = np.where(labels.numpy() == 1, 0.5 / counts, 0.5 / (1 - counts)) / len(features)
    theirs = LogisticRegression(C=1 / penalty, fit_intercept=False, tol=1e-10, max_iter=1000)
    theirs.fit(joined, labels.numpy(), sample_weight=weights)
    actual = np.append(plane.weight.numpy(), plane.bias.numpy())
    np.testing.assert_allclose(actual, theirs.coef_[0], rtol=1e-4, atol=1e-5)


def test_separable_classes_and_a_single_class_give_finite_classifiers() -> None:
    features, labels = draw_features()
    for given in ((features[:, 0] > 0).long(), torch.ones_like(labels), torch.zeros_like(labels)):
        plane = logistic(features, given, 1e-3)
        assert bool(torch.isfinite(plane.weight).all())
        assert float(loss_of(plane, features, given)) < float(torch.log(torch.tensor(2.0)))


def test_last_logit_is_from_the_mean_classifier() -> None:
    heads, draw = Heads(3, 5), torch.Generator().manual_seed(1)
    heads.weight.data.normal_(generator=draw)
    heads.bias.data.normal_(generator=draw)
    features = torch.randn(4, 5, generator=draw)
    with torch.no_grad():
        actual = heads(features)
        expected = normalise_features(features) @ heads.weight.mean(0) + heads.bias.mean()
    torch.testing.assert_close(actual[:, -1], expected)
    assert actual.shape == (4, 4)
