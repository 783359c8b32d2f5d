"""Attacks on released vectors whose owners are known."""

import itertools

import numpy as np
import pytest
import torch
from tests.refusals import refused

from fedvisage.audit.membership import closeness, membership
from fedvisage.audit.nearest import by_chance, hit_rate, nearest
from fedvisage.audit.reversion import (
    TrainingSettings,
    identification_rates,
    rebuild_faces,
    reversion_network,
    train_reversion,
)
from fedvisage.metrics.similarity import Faces

RNG = np.random.default_rng(0)


def gallery(identities: int, photos: int, spread: float, dimension: int = 16) -> Faces:
    centres = RNG.normal(size=(identities, dimension))
    features = centres.repeat(photos, axis=0) + spread * RNG.normal(size=(identities * photos, dimension))
    return Faces(features.astype(np.float32), np.arange(identities).repeat(photos))


def test_mean_of_photos_identifies_its_person() -> None:
    faces = gallery(20, 4, 0.1)
    means = np.stack([faces.features[faces.identity == i].mean(axis=0) for i in range(20)])
    rate = hit_rate(nearest(means, faces, 5), [frozenset({i}) for i in range(20)], faces)
    assert rate.hits == {1: 1.0, 5: 1.0}
    assert rate.chance == pytest.approx({1: 1 / 20, 5: 5 / 20})


def test_identities_are_ranked_once_by_their_nearest_face() -> None:
    features = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.5, 0.5]], dtype=np.float32)
    faces = Faces(features, np.array([7, 7, 3, 5]))
    ranking = nearest(np.array([[2.0, 0.0]], dtype=np.float32), faces, 3)
    assert ranking.identities.tolist() == [[7, 5, 3]]
    assert ranking.faces.tolist() == [[0, 3, 2]]


def test_random_directions_hit_at_the_rate_of_chance() -> None:
    faces, right = gallery(10, 1, 0.0, dimension=3), frozenset({0, 1, 2})
    vectors = RNG.normal(size=(4000, 3)).astype(np.float32)
    permutations = [Faces(faces.features, RNG.permutation(10)) for _ in range(100)]  # the owners are drawn as well
    rates = [
        hit_rate(nearest(vectors[i::100], permuted, 5), [right] * 40, permuted).hits
        for i, permuted in enumerate(permutations)
    ]
    for top in (1, 5):
        assert np.mean([rate[top] for rate in rates]) == pytest.approx(by_chance(3, 10, top), abs=0.08)


@pytest.mark.parametrize(("right", "names", "top"), [(1, 6, 1), (2, 6, 3), (6, 6, 2), (0, 6, 2), (3, 6, 5)])
def test_chance_is_the_rate_of_random_guesses(right: int, names: int, top: int) -> None:
    draws = list(itertools.combinations(range(names), top))
    assert by_chance(right, names, top) == pytest.approx(np.mean([min(draw) < right for draw in draws]))


def test_closeness_is_the_mean_similarity_of_different_photos() -> None:
    faces = gallery(3, 4, 0.5)
    faces = Faces(faces.features[:-3], faces.identity[:-3])  # the last identity has one photo, and no pair
    unit = faces.features / np.linalg.norm(faces.features, axis=1, keepdims=True)
    expected = [
        np.mean([unit[4 * i + a] @ unit[4 * i + b] for a, b in itertools.permutations(range(4), 2)]) for i in (0, 1)
    ]
    np.testing.assert_allclose(closeness(faces), expected, rtol=1e-5)


def test_membership_is_inferred_only_if_members_score_higher() -> None:
    others = RNG.normal(size=400)
    result, guess = membership(others + 2, others), membership(RNG.normal(size=400), others)
    pairs = np.mean((others + 2)[:, None] > others[None])
    assert result.auc == pytest.approx(pairs)
    assert result.p_value < 1e-10
    assert result.tpr_at_fpr_1pct == pytest.approx(np.mean(others + 2 > np.quantile(others, 0.99)), abs=0.02)
    assert guess.auc == pytest.approx(0.5, abs=0.06)
    assert guess.p_value > 1e-3


def test_reversion_network_has_the_layers_of_table_5() -> None:
    net = reversion_network(512, 128)
    shapes, hooks = [], []
    for layer in net:
        if isinstance(layer, torch.nn.ConvTranspose2d):
            hooks.append(layer.register_forward_hook(lambda m, i, o: shapes.append(tuple(o.shape[1:]))))
            assert (layer.kernel_size, layer.stride) == ((4, 4), (2, 2))
    image = net(torch.randn(2, 512)).detach()
    assert net[0].weight.shape == (8192, 512)
    assert shapes == [(256, 8, 8), (128, 16, 16), (64, 32, 32), (32, 64, 64), (3, 128, 128)]
    assert 0 < float(image.min()) < float(image.max()) < 1


@pytest.mark.parametrize("size", [4, 100, 112])
def test_size_without_a_power_of_two_is_refused(size: int) -> None:
    with refused("size", "8, 16, 32"):
        reversion_network(8, size)


@pytest.mark.long
def test_trained_network_reconstructs_images_better_than_their_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(256, 4, generator=generator)
    images = torch.sigmoid(codes @ torch.randn(4, 3 * 8 * 8, generator=generator)).reshape(-1, 3, 8, 8)
    net = train_reversion(codes[:200], images[:200], TrainingSettings(epochs=20, batch=20, width=32))
    error = float((rebuild_faces(net, codes[200:]) - images[200:]).abs().mean())
    assert error < 0.6 * float((images[:200].mean(dim=0) - images[200:]).abs().mean())
    again = train_reversion(codes[:200], images[:200], TrainingSettings(epochs=20, batch=20, width=32))
    assert torch.equal(rebuild_faces(again, codes[:3]), rebuild_faces(net, codes[:3]))


def test_reconstructed_faces_are_identified_from_a_similarity_on() -> None:
    photos = Faces(np.eye(4, dtype=np.float32), np.array([0, 0, 1, 2]))
    reconstructed = np.array([[1, 1, 0, 0], [0, 0, 0, 1]], dtype=np.float32)
    own, others = identification_rates(reconstructed, photos, [frozenset({0}), frozenset({1})], 0.7)
    assert own == pytest.approx(2 / 3)
    assert others == pytest.approx(1 / 5)
