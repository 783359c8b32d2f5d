"""Acceptance rates against scikit-learn's ROC over all pairs, and accuracy on folds against trying every threshold."""

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_curve
from sklearn.model_selection import KFold
from tests.metrics.faces import all_similarities, tied_faces
from tests.refusals import refused

from fedvisage.metrics.similarity import Faces, HighestValues, blocks, label_features
from fedvisage.metrics.verification import (
    accuracy_on_folds,
    best_threshold,
    genuine_pairs,
    needed_count,
    tar_at_far,
    verify_against,
    verify_pairs,
)

FARS = (1e-3, 1e-2, 0.05, 0.1, 0.5, 1.0)


def pairs_of(local: Faces, others: Faces) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the similarities of all pairs of the protocol, one after another, and which are genuine."""
    within = all_similarities(local, local)
    genuine = [
        within[i, j]
        for i in range(len(local))
        for j in range(i + 1, len(local))
        if local.identity[i] == local.identity[j]
    ]
    impostors = all_similarities(local, others).ravel()
    return np.concatenate([genuine, impostors]), np.arange(len(genuine) + len(impostors)) < len(genuine)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dimensions", [4, 16, 64])
def test_tar_is_the_best_on_the_roc_at_or_below_each_far(seed: int, dimensions: int) -> None:
    """Few dimensions: nearly all similarities are tied."""
    local = tied_faces(seed, [0, 1, 2, 3], 5, dimensions)
    others = tied_faces(seed + 50, list(range(10, 20)), 7, dimensions)
    actual = verify_against(local, others, FARS)
    similarity, same = pairs_of(local, others)
    fpr, tpr, _ = roc_curve(same, similarity, drop_intermediate=False)
    assert (actual.genuine, actual.impostors) == (40, 20 * 70)
    for far in FARS:
        assert actual.tar[far] == pytest.approx(tpr[fpr <= far + 1e-12].max(), abs=1e-12)
        accepted = similarity >= actual.threshold[far]
        assert accepted[same].mean() == actual.tar[far]
        assert accepted[~same].mean() <= far


def test_list_of_pairs_gives_the_rates_of_the_roc() -> None:
    rng = np.random.default_rng(1)
    same = rng.random(4000) < 0.3
    similarity = np.round(rng.normal(same * 1.5, 1), 1).astype(np.float32)
    actual = verify_pairs(similarity, same, FARS)
    fpr, tpr, _ = roc_curve(same, similarity, drop_intermediate=False)
    assert actual.tar == pytest.approx({far: tpr[fpr <= far].max() for far in FARS})


def test_a_genuine_pair_tied_with_the_impostor_that_must_be_rejected_is_rejected() -> None:
    similarity = np.array([0.9, 0.5, 0.7, 0.5, 0.1, 0.0], np.float32)
    same = np.array([True, True, False, False, False, False])
    actual = verify_pairs(similarity, same, (0.25, 0.5))
    assert actual.tar == {0.25: 0.5, 0.5: 1.0}
    assert 0.5 < actual.threshold[0.25] <= 0.7


def test_a_genuine_pair_at_the_threshold_is_accepted() -> None:
    """The threshold is the next number above the impostor that must be rejected."""
    line = np.nextafter(np.float32(0.5), np.float32(1))
    similarity = np.array([line, 0.7, 0.5], np.float32)
    actual = verify_pairs(similarity, np.array([True, False, False]), (0.5,))
    assert actual.threshold[0.5] == line
    assert actual.tar == {0.5: 1.0}


def test_an_identity_with_one_image_still_meets_impostors() -> None:
    local = label_features(np.eye(4)[[0, 0, 1]], [7, 7, 8])
    actual = verify_against(local, label_features(np.eye(4)[[2, 3]], [1, 2]), [0.5])
    assert (actual.genuine, actual.impostors) == (1, 6)
    assert len(genuine_pairs(local.take(np.array([2])))) == 0


def test_far_below_one_impostor_is_refused() -> None:
    local, others = tied_faces(0, [0, 1], 3), tied_faces(1, [2, 3], 3)
    with refused("evaluation.far", "36", "2.8e-02"):
        verify_against(local, others, [0.1, 1e-6])


def test_verification_without_pairs_is_refused() -> None:
    local = tied_faces(0, [0, 1], 3)
    with refused("verification", "impostor"):
        verify_against(local, local.take(np.zeros(0, np.int64)), [0.1])
    with refused("verification", "genuine"):
        verify_against(local.take(np.array([0, 3])), tied_faces(1, [2], 3), [0.5])
    with refused("verification", "1 identities", "both sides"):
        verify_against(local, tied_faces(1, [1, 9], 3), [0.5])


def test_rates_of_millions_of_impostors_are_exact_in_little_memory() -> None:
    """16 million similarities are 64 MB; 16,001 of them and a block are kept."""
    rng = np.random.default_rng(0)
    first, second = (label_features(rng.normal(size=(4000, 8)), np.arange(4000)) for _ in range(2))
    wanted = needed_count(16_000_000, [1e-3])
    tracemalloc.start()
    highest = HighestValues(wanted)
    for block in blocks(first.features, second.features):
        highest.add(block.similarity)
    actual = highest.values()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000
    above = sum(int((block.similarity >= actual[-1]).sum()) for block in blocks(first.features, second.features))
    assert above == wanted == 16_001
    assert tar_at_far(np.ones(1, np.float32), actual, 16_000_000, [1e-6, 1e-3]).tar == {1e-6: 1.0, 1e-3: 1.0}


@pytest.mark.parametrize("seed", range(4))
def test_each_fold_uses_the_best_threshold_of_the_others(seed: int) -> None:
    rng = np.random.default_rng(seed)
    same = rng.random(67) < 0.5
    similarity = np.round(rng.normal(same * 1.0, 1), 1).astype(np.float32)
    actual = accuracy_on_folds(similarity, same)
    for index, (rest, fold) in enumerate(KFold(10).split(same)):
        tries = np.concatenate([similarity[rest], [np.float32(99)]])
        highest = max(np.mean((similarity[rest] >= one) == same[rest]) for one in tries)
        threshold = actual.threshold[index]
        assert np.mean((similarity[rest] >= threshold) == same[rest]) == pytest.approx(highest)
        assert np.mean((similarity[fold] >= threshold) == same[fold]) == pytest.approx(actual.accuracy[index])
    assert actual.mean == pytest.approx(np.mean(actual.accuracy))
    assert actual.std == pytest.approx(np.sqrt(np.mean((np.array(actual.accuracy) - actual.mean) ** 2)))


def test_the_best_threshold_is_the_middle_of_the_gap_and_exact_between_neighbours() -> None:
    same = np.array([False, True])
    assert best_threshold(np.array([0.25, 0.75], np.float32), same) == 0.5
    low = np.float32(0.5)
    high = np.nextafter(low, np.float32(1))
    assert best_threshold(np.array([low, high]), same) == high
    assert best_threshold(np.array([1.0, 1.0, 0.0], np.float32), np.array([True, True, False])) == 0.5
    assert best_threshold(np.array([0.5, 0.5, 0.5], np.float32), np.array([True, True, False])) == 0.5
    assert best_threshold(np.array([0.5, 0.5, 0.5], np.float32), np.array([True, False, False])) > 0.5


def test_too_few_pairs_for_folds_are_refused() -> None:
    with refused("verification", "9 pairs", "10"):
        accuracy_on_folds(np.zeros(9, np.float32), np.ones(9, bool))
    with refused("verification", "threshold"):
        accuracy_on_folds(np.zeros(20, np.float32), np.ones(20, bool))
