"""Bootstrap intervals: the weighting against repeated scores, clustering, and speed."""

import time
from dataclasses import replace

import numpy as np
import pytest
from tests.metrics.examples import random_scores, scores_of

from fedvisage.metrics import pad
from fedvisage.metrics.intervals import FIGURES, band, clusters, intervals, resampled_figures
from fedvisage.metrics.scores import Scores, from_columns


@pytest.mark.parametrize("seed", range(5))
def test_a_weighted_figure_equals_the_figure_of_repeated_scores(seed: int) -> None:
    scores, threshold = random_scores(seed, count=120), 0.7
    weight = np.random.default_rng(seed).integers(0, 4, len(scores))
    weight[[0, -1]] = 1  # both classes are there
    repeated = scores.take(np.repeat(np.arange(len(scores)), weight))
    figures = resampled_figures(scores, threshold, weight[None].astype(np.float64))
    expected = pad.evaluate(repeated, threshold)
    assert figures["apcer_worst"][0] == pytest.approx(max(expected["apcer"].values()))
    for name in set(FIGURES) - {"apcer_worst"}:
        assert figures[name][0] == pytest.approx(expected[name]), name


def test_intervals_contain_the_figure_and_lie_in_the_unit_range() -> None:
    scores = random_scores(0)
    actual = intervals(scores, 0.7, 300, np.random.default_rng(0))
    figures = pad.evaluate(scores, 0.7)
    assert set(actual.bounds) == set(FIGURES)
    for name in ("hter", "eer", "auc", "bpcer"):
        low, high = actual.bounds[name]
        assert 0 <= low <= figures[name] <= high <= 1, name


def test_fewer_subjects_with_the_same_frames_give_wider_intervals() -> None:
    rng = np.random.default_rng(5)
    mood = rng.normal(0, 1.5, 6)  # each subject's own offset: its frames are not independent

    def width(subject_of: np.ndarray) -> float:
        subject = np.arange(240) % 6
        live = np.where(np.arange(240) < 120, 1.0, -1.0) + mood[subject]
        names = [str(i) for i in range(240)]
        label = (np.arange(240) < 120).astype(int)
        scores = from_columns(
            live,
            label.tolist(),
            item=names,
            video=names,
            subject=[f"s{i}" for i in subject_of],
            species=["" if value else "print" for value in label],
        )
        low, high = intervals(scores, 0.0, 400, np.random.default_rng(1)).bounds["hter"]
        return high - low

    assert width(np.arange(240) % 6) > 2 * width(np.arange(240))


def test_the_same_stream_gives_the_same_intervals() -> None:
    scores = random_scores(2)
    first, second = (intervals(scores, 0.0, 100, np.random.default_rng(9)) for _ in range(2))
    assert first == second


def test_resamples_with_one_class_are_skipped_and_counted() -> None:
    # Two subjects, one with the bona fide, one with the attacks: half of the draws lack a class.
    scores = from_columns(
        [1.0, 2.0, -1.0, -2.0],
        [1, 1, 0, 0],
        item=list("abcd"),
        video=list("abcd"),
        subject=["x", "x", "y", "y"],
        species=["", "", "print", "print"],
    )
    actual = intervals(scores, 0.0, 1000, np.random.default_rng(0))
    assert actual.used + actual.skipped == 1000
    assert actual.skipped == pytest.approx(500, abs=80)
    assert actual.bounds["auc"] == (1.0, 1.0)


def test_one_subject_alone_has_no_intervals() -> None:
    texts = {name: list("abcd") for name in ("item", "video")}
    scores = from_columns(
        [1.0, -2.0, 2.0, -1.0], [1, 1, 0, 0], subject=["x"] * 4, species=["", "", "print", "print"], **texts
    )
    assert intervals(scores, 0.0, 50, np.random.default_rng(0)).as_json() == {}
    assert band(scores, 50, np.random.default_rng(0)) is None


def test_one_class_alone_has_no_intervals() -> None:
    actual = intervals(scores_of([1.0, 2.0], {}), 0.0, 50, np.random.default_rng(0))
    assert (actual.bounds, actual.used, actual.skipped) == ({}, 0, 50)
    assert actual.as_json() == {}


def test_an_unknown_subject_is_replaced_by_its_video_and_then_by_the_item() -> None:
    scores = from_columns(
        [0.0] * 5,
        [1] * 5,
        item=["a", "b", "c", "d", "v"],
        video=["v", "v", "", "w", ""],
        subject=["", "", "", "s", ""],
        species=[""] * 5,
    )
    actual = clusters(scores)
    assert actual[0] == actual[1]
    assert len(set(actual.tolist())) == 4  # video v, item c, subject s, item v


def test_two_thousand_scores_take_at_most_two_seconds_of_processor_time() -> None:
    scores: Scores = random_scores(0, count=2000, subjects=50)
    start = time.process_time()
    intervals(scores, 0.5, 1000, np.random.default_rng(0))
    assert time.process_time() - start < 2


@pytest.mark.long
def test_a_band_is_where_the_curves_of_redrawn_subjects_lie() -> None:
    """Subjects are drawn and their scores repeated: of FRR read off such curves at a FAR, 95 in 100 lie inside."""
    scores = random_scores(0)
    actual = band(scores, 400, np.random.default_rng(0))
    assert actual is not None
    place, rng, hits = int(np.argmin(abs(actual.far - 0.2))), np.random.default_rng(7), []
    cluster = clusters(scores)
    for _ in range(200):
        drawn = rng.integers(0, cluster.max() + 1, cluster.max() + 1)
        again = scores.take(np.concatenate([np.flatnonzero(cluster == one) for one in drawn]))
        levels = np.sort(again.live)
        far = [(again.attack >= level).mean() for level in levels]
        frr = [(again.bona_fide < level).mean() for level in levels]
        at = np.interp(actual.far[place], far[::-1], frr[::-1])
        hits.append(actual.low[place] <= at <= actual.high[place])
    assert 0.88 <= np.mean(hits) <= 1
    assert (actual.low <= actual.high).all()


def test_one_class_alone_has_no_band() -> None:
    scores = random_scores(0)
    assert band(scores.where(scores.label == 1), 50, np.random.default_rng(0)) is None


@pytest.mark.parametrize("block", [1, 7, 100, 150])
def test_drawing_in_blocks_gives_the_bits_of_drawing_all_at_once(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = random_scores(3, count=90)
    of_one_class = np.array([f"{label} {number % 2}" for number, label in enumerate(scores.label)])
    scores = replace(scores, subject=of_one_class)
    draws = np.random.default_rng(4).multinomial(4, np.full(4, 1 / 4), size=100).astype(np.float64)
    draws = draws[(draws[:, :2].sum(axis=1) > 0) & (draws[:, 2:].sum(axis=1) > 0)]
    weights = [draws[start : start + block][:, clusters(scores)] for start in range(0, len(draws), block)]
    figures = [resampled_figures(scores, 0.7, weight) for weight in weights]
    monkeypatch.setattr("fedvisage.metrics.intervals.VALUES_AT_ONCE", 90 * block)
    actual = intervals(scores, 0.7, 100, np.random.default_rng(4))
    assert 0 < actual.skipped == 100 - len(draws)
    for name in FIGURES:
        expected = np.quantile(np.concatenate([part[name] for part in figures]), [0.025, 0.975])
        assert actual.bounds[name] == tuple(expected.tolist()), name
