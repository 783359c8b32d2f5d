"""Identification rates against counting search by search, in both readings."""

import math

import numpy as np
import pytest
from tests.metrics.faces import all_similarities, join_faces, tied_faces
from tests.refusals import refused

from fedvisage.metrics import similarity
from fedvisage.metrics.identification import Identification, identify, search
from fedvisage.metrics.similarity import Faces, label_features

FPIRS = (0.02, 0.1, 0.3)


def scene(seed: int) -> tuple[Faces, Faces, Faces]:
    """Return two galleries and probes: of both galleries' identities and of strangers."""
    known, strangers = tied_faces(seed, list(range(12)), 6), tied_faces(seed + 9, list(range(20, 40)), 3)
    entries = known.take(np.arange(72) % 6 == 0)
    probes = join_faces(known.take(np.arange(72) % 6 > 0), strangers)
    order = np.random.default_rng(seed).permutation(len(probes))
    return entries.take(np.arange(5)), entries.take(np.arange(5, 12)), probes.take(order)


def published(gallery: Faces, probes: Faces, fpir: float) -> float:
    matrix = all_similarities(probes, gallery)
    mates: list[float] = []
    others: list[float] = []
    for row, whose in zip(matrix, probes.identity, strict=True):
        for value, name in zip(row, gallery.identity, strict=True):
            (mates if name == whose else others).append(value)
    line = sorted(others, reverse=True)[math.ceil(len(probes) * fpir - 1e-9) - 1]
    return sum(value > line for value in mates) / len(mates)


def nist(gallery: Faces, probes: Faces, fpir: float) -> float:
    """Try every threshold; of those with few enough false positives, take the highest rate."""
    matrix = all_similarities(probes, gallery)
    enrolled = set(gallery.identity.tolist())
    rates = []
    for line in [*np.unique(matrix), 9.0]:
        false, hits, mated, unmated = 0, 0, 0, 0
        for row, whose in zip(matrix, probes.identity, strict=True):
            if whose in enrolled:
                mated += 1
                mate, rivals = row[gallery.identity == whose][0], row[gallery.identity != whose]
                hits += mate >= line and mate > rivals.max()
            else:
                unmated += 1
                false += row.max() >= line
        if false <= fpir * unmated + 1e-9:
            rates.append(hits / mated)
    return max(rates)


@pytest.mark.parametrize("seed", range(4))
def test_published_reading_counts_similarities_of_joined_galleries(seed: int) -> None:
    first, second, probes = scene(seed)
    actual = identify([first, second], probes, FPIRS, "published")
    gallery = join_faces(first, second)
    assert [one.tpir for one in actual] == [{fpir: published(gallery, probes, fpir) for fpir in FPIRS}]
    assert (actual[0].mated, actual[0].unmated) == (60, 60)


@pytest.mark.parametrize("seed", range(3))
def test_nist_reading_counts_searches_of_each_gallery(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "ROWS", 7)
    monkeypatch.setattr(similarity, "COLUMNS", 4)
    first, second, probes = scene(seed)
    actual = identify([first, second], probes, FPIRS, "nist")
    for gallery, one in zip((first, second), actual, strict=True):
        assert one.tpir == pytest.approx({fpir: nist(gallery, probes, fpir) for fpir in FPIRS})
        assert one.mated + one.unmated == len(probes)
        assert one.mated == 5 * len(gallery)


def test_the_readings_differ_where_a_stranger_beats_the_mate() -> None:
    gallery = label_features([[1.0, 0.0], [0.8, 0.6]], [0, 1])
    probes = label_features([[0.96, 0.28], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0], [-0.6, -0.8]], [0, 1, 8, 9, 9])
    published = identify([gallery], probes, [0.4], "published")[0]
    nist = identify([gallery], probes, [0.4], "nist")[0]
    assert published.tpir == {0.4: 0.5}  # similarities to others: 1.00, 0.94, … ; mates 0.96 and 0.80
    assert nist.tpir == {0.4: 0.5}
    assert identify([gallery], probes, [0.2], "published")[0].tpir == {0.2: 0.0}


def test_a_search_keeps_mate_and_best_rival_of_every_probe() -> None:
    first, second, probes = scene(0)
    gallery = join_faces(second, first)  # not in order of identity
    actual, matrix = search(gallery, probes, 5), all_similarities(probes, gallery)
    for row, whose, mate, rival in zip(matrix, probes.identity, actual.mate, actual.rival, strict=True):
        mine = gallery.identity == whose
        assert mate == (row[mine][0] if mine.any() else -np.inf)
        assert rival == row[~mine].max()
    others = matrix[probes.identity[:, None] != gallery.identity]
    assert actual.strangers == len(others)
    assert actual.highest.tolist() == sorted(others, reverse=True)[:5]


def test_unmeasurable_figures_are_refused() -> None:
    first, second, probes = scene(0)
    nobody = first.take(np.zeros(0, np.int64))
    for mode in ("published", "nist"):
        with refused("gallery", "no galleries"):
            identify([], probes, FPIRS, mode)
        with refused("gallery", "empty"):
            identify([nobody], probes, FPIRS, mode)
        with refused("probes", "no searches"):
            identify([first], nobody, FPIRS, mode)
        with refused("evaluation.fpir", "0.001", "below"):
            identify([first], probes, [0.001], mode)
        with refused("gallery", "identity 0", "twice"):
            identify([join_faces(first, first)], probes, FPIRS, mode)
        with refused("probes", "mate"):
            identify([second], probes.take(probes.identity >= 20), FPIRS, mode)
    with refused("probes", "all"):
        identify([first], probes.take(probes.identity < 5), FPIRS, "nist")
    with refused("gallery", "FPIR 1", "5 similarities"):
        identify([first.take(np.array([0]))], probes.take(probes.identity < 2), [1.0], "published")


def test_galleries_joined_for_the_published_reading_must_not_overlap() -> None:
    first, _, probes = scene(0)
    with refused("gallery", "identity 0", "twice"):
        identify([first, first], probes, FPIRS, "published")


def test_threshold_decides_hits() -> None:
    first, _, probes = scene(1)
    actual: Identification = identify([first], probes, [0.1], "published")[0]
    hits = search(first, probes).mate >= np.float32(actual.threshold[0.1])
    assert hits.sum() == round(actual.tpir[0.1] * actual.mated)
