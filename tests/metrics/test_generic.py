"""The generic benchmark: fixed pairs, two galleries, and what cannot be measured."""

import numpy as np
import pytest
from tests.metrics.faces import people

from fedvisage.metrics.generic import FOLDS, fixed_pairs, identification, on_fixed_pairs, verification
from fedvisage.metrics.identification import figures_of_site
from fedvisage.metrics.similarity import Faces, label_features


def test_fixed_pairs_are_shared_and_balanced_in_each_fold() -> None:
    identity = np.repeat(np.arange(40), 6)
    pairs = fixed_pairs(identity, 400)
    assert np.array_equal(pairs, fixed_pairs(identity, 400))
    assert len(pairs) == 400
    assert len({tuple(sorted(pair)) for pair in pairs.tolist()}) == 400
    seen: set[int] = set()
    for fold in np.array_split(pairs, FOLDS):
        same = identity[fold[:, 0]] == identity[fold[:, 1]]
        assert same.mean() == 0.5
        own = set(identity[fold].ravel().tolist())
        assert not own & seen, "nobody is in two folds"
        seen |= own


def test_with_too_few_people_there_are_no_folds() -> None:
    faces = people(0, 9, 4)
    assert len(fixed_pairs(faces.identity, 100)) == 0
    assert on_fixed_pairs(faces, 100).folds is None


def test_perfect_separation_scores_one_everywhere() -> None:
    faces = label_features(np.repeat(np.eye(30), 6, axis=0), np.repeat(np.arange(30), 6))
    probe = np.tile([False, False, False, True, True, True], 30)
    verified = verification(faces, ())
    assert verified is not None
    assert set(verified.tar.values()) == {1.0}
    assert min(verified.tar) == 1e-4, "15,660 impostor pairs show one in ten thousand and no less"
    assert set(identification(faces, probe, (), "published").values()) == {1.0}
    folds = on_fixed_pairs(faces, 200).folds
    assert folds is not None
    assert folds.mean == 1.0


@pytest.mark.parametrize("mode", ["published", "nist"])
def test_all_probes_search_both_galleries_and_figures_are_averaged(mode: str) -> None:
    faces = people(1, 60, 6)
    probe = np.tile([False, False, False, True, True, True], 60)
    actual = identification(faces, probe, (0.1,), mode)[0.1]  # type: ignore[arg-type]
    shares = []
    for half in (0, 1):
        enrolled = np.arange(60) % 2 == half
        sums = np.stack([faces.features[(faces.identity == who) & ~probe].mean(axis=0) for who in range(60)])
        gallery = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        scores = faces.features[probe] @ gallery[enrolled].T
        own = faces.identity[probe][:, None] == np.flatnonzero(enrolled)[None, :]
        mated = own.any(axis=1)
        others = np.where(own, -np.inf, scores)
        if mode == "published":
            line = np.sort(others[np.isfinite(others)])[::-1][round(0.1 * len(scores)) - 1]
            shares.append((scores[own] > line).mean())
        else:
            top = np.sort(others[~mated].max(axis=1))[::-1]
            line = top[round(0.1 * len(top))]
            shares.append(((scores[own] > line) & (scores[own] > others[mated].max(axis=1))).mean())
    assert actual == pytest.approx(np.mean(shares), abs=0.012)  # a tie of roundings moves one of 90 probes


def test_figures_are_missing_without_probes_or_genuine_pairs() -> None:
    alone = label_features(np.random.default_rng(0).normal(size=(20, 4)), np.arange(20))
    assert verification(alone, ()) is None
    assert identification(alone, np.zeros(20, bool), (), "published") == {}


def test_a_sites_figures_are_those_that_its_pairs_can_show() -> None:
    rng = np.random.default_rng(2)
    training, test = people(3, 5, 6), people(3, 5, 4)
    strangers = Faces(people(4, 10, 5).features, rng.integers(100, 110, 50))
    actual = figures_of_site(training, test, strangers, (1e-6, 1e-2, 1e-1), (1e-5, 1e-1), "published")
    assert actual.counts == (5 * 6, 20 * 50, 20, 50)
    assert actual.tar[1e-6] is None
    assert actual.tpir[1e-5] is None
    scores = test.features @ strangers.features.T
    line = np.sort(scores.ravel())[::-1][round(0.1 * scores.size)]
    pairs = [(a, b) for a in range(20) for b in range(a) if test.identity[a] == test.identity[b]]
    assert actual.tar[1e-1] == pytest.approx(np.mean([test.features[a] @ test.features[b] > line for a, b in pairs]))
    nobody = figures_of_site(training, test.take(np.zeros(20, bool)), strangers, (1e-1,), (1e-1,), "published")
    assert nobody.tar == {1e-1: None}
    assert nobody.tpir == {1e-1: None}
