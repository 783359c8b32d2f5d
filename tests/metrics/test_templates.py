"""Figures of templates against the released evaluation's steps, and against counting by hand."""

import numpy as np
import pytest
from sklearn.metrics import roc_curve
from tests.metrics.faces import all_similarities, join_faces, tied_faces

from fedvisage.metrics import similarity
from fedvisage.metrics.identification import (
    CONSERVATIVE,
    PUBLISHED,
    identify,
    ijb_identification,
    ijb_verification,
    nearest_tar,
)
from fedvisage.metrics.similarity import Faces


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("digits", [1, 6])
def test_the_published_tar_is_that_of_the_nearest_corner_of_the_curve(seed: int, digits: int) -> None:
    """The released steps: scikit-learn's curve, turned round, and the first of the nearest points. One digit: ties."""
    rng = np.random.default_rng(seed)
    same = rng.random(300) < 0.3
    scores = np.round(rng.normal(size=300) + same, digits).astype(np.float32)
    fpr, tpr, _ = roc_curve(same, scores)
    fpr, tpr = np.flipud(fpr), np.flipud(tpr)
    expected = {rate: tpr[min((abs(one - rate), place) for place, one in enumerate(fpr))[1]] for rate in (0.02, 0.1)}
    assert nearest_tar(scores, same, (0.02, 0.1)) == pytest.approx(expected)


def test_the_readings_differ_where_no_threshold_has_the_far() -> None:
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3], np.float32)
    same = np.array([1, 0, 1, 0, 1, 0, 1], bool)
    assert ijb_verification(scores, same, PUBLISHED, (0.6,)) == {0.6: 0.75}, "a FAR of 2/3 is nearer than one of 1/3"
    assert ijb_verification(scores, same, CONSERVATIVE, (0.6,)) == {0.6: 0.5}
    assert ijb_verification(scores, same, PUBLISHED) == {}, "three impostors show no rate of the papers"
    assert ijb_verification(scores, np.zeros(7, bool), CONSERVATIVE, (0.6,)) == {}


def scene(seed: int) -> tuple[list[Faces], Faces]:
    """Return two galleries of five and seven people, and four probes of each."""
    known = tied_faces(seed, list(range(12)), 5, noise=0.3)
    first = np.arange(60) % 5 == 0
    entries = known.take(first)
    return [entries.take(np.arange(5)), entries.take(np.arange(5, 12))], known.take(~first)


def by_hand(gallery: Faces, probes: Faces, most: int) -> float:
    hits = []
    for row, whose in zip(all_similarities(probes, gallery), probes.identity, strict=True):
        if whose in gallery.identity:
            mate = row[gallery.identity == whose][0]
            hits.append(sum(value >= mate for value in row) - 1 < most)
    return float(np.mean(hits))


@pytest.mark.parametrize("seed", range(3))
def test_ranks_are_counted_over_all_galleries_or_are_means_over_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(similarity, "ROWS", 7)
    monkeypatch.setattr(similarity, "COLUMNS", 3)
    galleries, probes = scene(seed)
    _, together = ijb_identification(galleries, probes, PUBLISHED)
    _, apart = ijb_identification(galleries, probes, CONSERVATIVE)
    both = join_faces(*galleries)
    assert together == {most: pytest.approx(by_hand(both, probes, most)) for most in (1, 5, 10)}
    expected = {most: np.mean([by_hand(one, probes, most) for one in galleries]) for most in (1, 5, 10)}
    assert apart == {most: pytest.approx(value) for most, value in expected.items()}
    assert apart[1] < apart[5] <= apart[10] == 1.0


def test_tpir_is_of_joined_galleries_or_the_mean_of_two_searches() -> None:
    galleries, probes = scene(1)
    together, _ = ijb_identification(galleries, probes, PUBLISHED, (0.1, 0.3))
    apart, _ = ijb_identification(galleries, probes, CONSERVATIVE, (0.1, 0.3))
    assert together == identify([join_faces(*galleries)], probes, (0.1, 0.3), "published")[0].tpir
    each = [identify([one], probes, (0.1, 0.3), "nist")[0].tpir for one in galleries]
    assert apart == {rate: pytest.approx((each[0][rate] + each[1][rate]) / 2) for rate in (0.1, 0.3)}


def test_rates_without_enough_searches_are_left_out_per_reading() -> None:
    """48 probes show a FPIR of 1/40; the 20 of the first gallery's people, rejected by the second, do not."""
    galleries, probes = scene(1)
    assert ijb_identification(galleries, probes, PUBLISHED, (0.025, 0.1))[0].keys() == {0.025, 0.1}
    assert ijb_identification(galleries, probes, CONSERVATIVE, (0.025, 0.1))[0].keys() == {0.1}


def test_gallery_without_a_mate_gives_no_figure() -> None:
    galleries, probes = scene(2)
    assert ijb_identification(galleries, probes.take(probes.identity < 5), CONSERVATIVE) == ({}, {})
    assert ijb_identification(galleries[:1], probes.take(probes.identity < 5), CONSERVATIVE)[0] == {}, (
        "nobody to reject"
    )
