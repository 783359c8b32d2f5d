"""Thresholds of a yes or no from counts, hard negatives, and all pairs of a set, each beside a slow and plain way."""

from itertools import combinations

import numpy as np
import pytest
from tests.metrics.faces import people

from fedvisage.metrics.generic import (
    SIMILARITIES,
    count_similarities,
    pair_counts,
    tar_by_impostors,
    threshold_at_fmr,
    within_counts,
)
from fedvisage.metrics.similarity import Faces, hard_negatives
from fedvisage.metrics.threshold import BINS, histogram
from fedvisage.metrics.verification import verify_pairs, verify_within


def pairs_of(faces: Faces) -> tuple[np.ndarray, np.ndarray]:
    """Return the similarity of every pair, and whether it is of one person."""
    pairs = list(combinations(range(len(faces)), 2))
    similarity = np.array([faces.features[a] @ faces.features[b] for a, b in pairs], np.float32)
    return similarity, np.array([faces.identity[a] == faces.identity[b] for a, b in pairs])


def test_similarity_bin_equals_that_of_a_twentyfold_score() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, 500).astype(np.float32)
    scores = values.astype(np.float64) * 20
    expected = histogram(scores, np.zeros(500, np.int64))[0]
    assert np.array_equal(count_similarities(values), expected)
    assert count_similarities(np.array([1.0000001, -1.0000001], np.float32)).nonzero()[0].tolist() == [0, BINS - 1]


def test_all_pairs_are_counted_once() -> None:
    faces = people(1, 30, 20)  # more than a block
    similarity, same = pairs_of(faces)
    actual = within_counts(faces)
    assert actual.sum(axis=1).tolist() == [int((~same).sum()), int(same.sum())]
    edge = round((0.25 + 1) * BINS / 2)
    assert abs(actual[0][edge:].sum() - (similarity[~same] >= 0.25).sum()) <= 2  # sums round otherwise
    local, strangers = people(2, 3, 4), people(3, 5, 2)
    both = pair_counts(local, strangers)
    assert both.sum(axis=1).tolist() == [12 * 10, 3 * 6]
    assert np.array_equal(both[0], count_similarities(local.features @ strangers.features.T))


def test_threshold_is_the_lowest_edge_within_the_impostor_rate() -> None:
    rng = np.random.default_rng(4)
    sites = [(rng.uniform(-1, 0.6, 700).astype(np.float32), rng.uniform(0, 1, 90).astype(np.float32)) for _ in range(3)]
    actual = threshold_at_fmr([np.stack([count_similarities(i), count_similarities(g)]) for i, g in sites], 0.01)
    impostor, genuine = (np.concatenate([site[row] for site in sites]) for row in (0, 1))
    fine = [edge for edge in SIMILARITIES if (impostor >= edge).mean() <= 0.01]
    assert actual is not None
    assert actual.value == fine[0]
    assert actual.far == (impostor >= fine[0]).mean()
    assert actual.frr == pytest.approx((genuine < fine[0]).mean())
    assert "0.01" in actual.rule


def test_impostors_within_and_across_groups_have_separate_rates() -> None:
    faces = people(5, 40, 6)
    group = faces.identity % 3
    similarity, same = pairs_of(faces)
    alike = np.array([group[a] == group[b] for a, b in combinations(range(len(faces)), 2)])
    inside = [within_counts(faces.take(group == one)) for one in range(3)]
    actual = tar_by_impostors(within_counts(faces), inside, [0.01, 1e-9])
    for kind, chosen in (("within", alike & ~same), ("across", ~alike)):
        edge = next(edge for edge in SIMILARITIES if (similarity[chosen] >= edge).mean() <= 0.01)
        assert list(actual[kind]) == [0.01]  # there are fewer pairs than the other rate needs
        assert actual[kind][0.01] == pytest.approx((similarity[same] >= edge).mean(), abs=0.01)


def test_without_enough_impostors_there_is_no_threshold() -> None:
    counts = np.zeros((2, BINS), np.int64)
    assert threshold_at_fmr([counts], 0.5) is None
    counts[0, 10] = 99
    assert threshold_at_fmr([counts], 0.01) is None
    counts[0, 11] = 1
    assert threshold_at_fmr([counts], 0.01) is not None


def test_verification_of_a_whole_set_is_that_of_its_list_of_pairs() -> None:
    faces, fars = people(5, 40, 15), (1e-3, 1e-2, 1e-1)
    similarity, same = pairs_of(faces)
    listed, whole = verify_pairs(similarity, same, fars), verify_within(faces, fars)
    assert (whole.genuine, whole.impostors) == (listed.genuine, listed.impostors)
    assert [whole.tar[far] for far in fars] == pytest.approx([listed.tar[far] for far in fars], abs=3e-4)


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 0.3, 0.6, 0.99])
def test_hard_negatives_are_those_near_any_local_face(threshold: float) -> None:
    public, local = people(6, 90, 7), people(7, 10, 4)
    near = [max(float(face @ other) for other in local.features) for face in public.features]
    sure = [number for number, value in enumerate(near) if value > threshold + 1e-6]
    possible = [number for number, value in enumerate(near) if value > threshold - 1e-6]
    actual = hard_negatives(public.features, local.features, threshold).tolist()
    assert set(sure) <= set(actual) <= set(possible)
