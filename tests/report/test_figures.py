"""Content of drawings and TensorBoard files, and redrawing."""

import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event
from tests.report.run_files import make_run, target_scores

from fedvisage.report import curves, recognition
from fedvisage.report.curves import canvas, figure_style, key
from fedvisage.report.figures import boundary, sample, tsne, tsne_figure
from fedvisage.report.run_files import Features, edge_of, read_run
from fedvisage.report.tracking.tensorboard import write_events

TEXT = re.compile(r"<text[^>]*>([^<]*)</text>")


def test_curves_keep_every_visible_step_and_drop_the_rest() -> None:
    scores = target_scores(np.random.default_rng(0), "U")
    curve = curves.curve_of_scores(scores, None)
    far, frr = curves.visible(curve.far, curve.frr)
    assert (far[0], frr[0]) == (1, 0)
    assert (far[-1], frr[-1]) == pytest.approx((0, 1))
    for threshold in np.linspace(-3, 3, 13):
        exact = ((scores.attack >= threshold).mean(), (scores.bona_fide < threshold).mean())
        assert min(np.hypot(far - exact[0], frr - exact[1])) < 0.002


def test_normal_deviates_are_finite_at_the_ends() -> None:
    deviates = curves.deviate(np.array([0.0, 0.5, 1.0]))
    assert np.isfinite(deviates).all()
    assert deviates[1] == 0
    assert deviates[2] == pytest.approx(NormalDist().inv_cdf(1 - 1e-5))


@pytest.mark.parametrize("words", ["a", "some words", "a name of twenty-five letters", "w" * 60])
def test_legends_fit_into_their_figures(words: str) -> None:
    with figure_style():
        figure, axes = canvas()
        lines = [axes.plot([0, 1], [0, 1])[0] for _ in range(5)]
        key(figure, lines, [words] * 5, 4)
        figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    assert (box.height > 45) == (len(words) > 20), "more than two rows where they do not fit side by side"


def test_many_sites_are_drawn_faintly_with_their_mean() -> None:
    series = {f"s{number}": [(1.0, float(number)), (2.0, float(number))] for number in range(30)}
    drawing = curves.over_rounds(series, "loss", "many")
    counts = np.ones((2, 4096), np.int64)
    lines = {f"s{number}": curves.curve_of_counts([counts]) for number in range(30)}
    for text in (drawing, curves.roc(lines | {"their mean": lines["s0"]}, mean=True)):
        assert {"30 sites", "their mean"} <= set(TEXT.findall(text))
        assert "s17" not in text


def test_every_class_is_named_in_the_histogram() -> None:
    drawing = curves.score_histograms(target_scores(np.random.default_rng(0), "U"), 0.5)
    assert {"bona fide", "cut", "print", "replay", "threshold"} <= set(TEXT.findall(drawing))


def test_scores_of_one_class_can_be_drawn() -> None:
    scores = target_scores(np.random.default_rng(0), "U")
    drawing = curves.score_histograms(scores.where(scores.label == 0), None)
    assert "bona fide" not in drawing


@pytest.mark.long
def test_feature_plot_keeps_groups_together_and_is_deterministic(finished_run: Path) -> None:
    features = read_run(finished_run).features
    assert features is not None
    place = tsne(features.values)
    assert np.array_equal(place, tsne(features.values))
    group = np.array([f"{site}{label}" for site, label in zip(features.site, features.label, strict=True)])
    distance = np.linalg.norm(place[:, None] - place[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    assert (group[distance.argmin(axis=1)] == group).mean() > 0.95


THREADS = """
import os, numpy as np
from fedvisage.report.figures import tsne
import sklearn.manifold
before = len(os.listdir("/proc/self/task"))
tsne(np.random.default_rng(0).standard_normal((600, 80), dtype=np.float32))
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted where Linux lists them")
def test_feature_plot_uses_one_thread() -> None:
    words = [sys.executable, "-c", THREADS]
    done = subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "4"}, capture_output=True, text=True, check=True)
    assert int(done.stdout) == 0


def test_line_separates_separable_classes() -> None:
    """Classes on either side of y = x + 3: both ends lie there, and the points lie along the line between them."""
    draws = np.random.default_rng(0)
    along, label = draws.uniform(-5, 5, 200), np.arange(200) % 2
    away = np.where(label == 1, 1, -1) * draws.uniform(0.3, 2, 200)
    place = np.stack([along - away, along + 3 + away], axis=1).astype(np.float32)
    ends = boundary(place, label)
    assert ends is not None
    np.testing.assert_allclose(ends[:, 1], ends[:, 0] + 3, atol=0.35)
    middle = (ends[0] + ends[1]) / 2
    assert np.linalg.norm(place - middle, axis=1).max() < np.linalg.norm(ends[1] - ends[0])


def test_inseparable_classes_have_no_line_far_away() -> None:
    place = np.random.default_rng(3).normal(size=(60, 2)).astype(np.float32)
    label = np.array([0] * 50 + [1] * 10)
    ends = boundary(place, label)
    reach = np.linalg.norm(place - place.mean(0), axis=1).max()
    assert ends is None or np.linalg.norm(ends.mean(0) - place.mean(0)) <= 1.5 * reach


def test_frame_of_the_feature_plot_fits_the_points() -> None:
    """No line separates the classes of these sites, and the dots still spread over the drawing."""
    rng = np.random.default_rng(1)
    site = np.repeat(np.array(["A", "B"]), 40)
    features = Features(rng.normal(size=(80, 8)).astype(np.float32), np.arange(80) // 6 % 2, site)
    drawing = tsne_figure(features)
    assert drawing is not None
    across = [float(x) for x in re.findall(r'<use xlink:href="#\w+" x="([\d.-]+)"', drawing)]
    assert np.ptp(across) > 150


def test_set_with_too_few_attacks_has_no_line() -> None:
    place = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    assert boundary(place, np.array([0] * 4 + [1] * 36)) is None


def test_too_few_features_are_not_drawn() -> None:
    few = Features(np.zeros((3, 4), np.float32), np.array([0, 1, 1]), np.array(["A", "A", "B"]))
    assert tsne_figure(few) is None


def test_large_sets_are_sampled_deterministically() -> None:
    assert np.array_equal(sample(5000), sample(5000))
    assert len(set(sample(5000).tolist())) == 1000


def events_of(directory: Path) -> dict[tuple[str, int], float]:
    """Read the scalars of the one event file in a directory, record by record."""
    (path,) = directory.glob("events.out.tfevents.*")
    data, position = path.read_bytes(), 0
    scalars: dict[tuple[str, int], float] = {}
    while position < len(data):
        length = int.from_bytes(data[position : position + 8], "little")
        event = Event.FromString(data[position + 12 : position + 12 + length])
        scalars |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        position += 12 + length + 4
    return scalars


def test_event_files_hold_each_round_and_are_not_doubled(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4, resamples=0)
    write_events(run)
    scalars = events_of(write_events(run))
    rows = read_run(run).rounds
    assert scalars["loss/O", 4] == pytest.approx(rows[3]["loss"]["O"])
    assert ("loss/C", 3) not in scalars  # the site was offline
    assert scalars["sites_failed", 3] == 1
    assert scalars["target/hter", 4] == pytest.approx(read_run(run).metrics["hter"])


def test_event_files_of_an_unfinished_run_hold_its_rounds(run: Path) -> None:
    (run / "metrics.json").unlink()
    assert ("heldout/auc", 12) in events_of(write_events(run))


def test_score_axis_fits_most_scores_and_counts_the_rest() -> None:
    """A weak model's scores, as close together as in -0.39 to -0.28, fill most of the axis; an outlier does not."""
    close = np.append(np.linspace(-0.39, -0.28, 200), 40.0)
    low, high = curves.span(close, -0.33)
    assert low < -0.38
    assert -0.29 < high < -0.2
    assert curves.beyond(close, (low, high)) == 1
    assert curves.span(close, 5.0) == curves.span(close, None), "a threshold far away does not stretch the axis"
    assert curves.span(close, -0.25)[1] > -0.25


def test_marks_show_equal_error_and_threshold() -> None:
    scores = target_scores(np.random.default_rng(0), "U")
    (far, frr, _), (accepted, rejected, _) = curves.curve_of_scores(scores, 0.3).points
    assert far == frr
    steps = [((scores.attack >= at).mean(), (scores.bona_fide < at).mean()) for at in np.linspace(-3, 3, 2001)]
    assert far == pytest.approx(min(max(step) for step in steps), abs=0.01)
    assert accepted == (scores.attack >= 0.3).mean()
    assert rejected == (scores.bona_fide < 0.3).mean()


def test_similarity_axis_holds_nearly_all_pairs_and_the_threshold() -> None:
    counts = np.zeros((2, 4096), np.int64)
    counts[0, 2000:2200], counts[1, 2500:2600] = 5, 7
    counts[0, 10] = 1
    first, last, width = recognition.ends(counts, 0.5)
    assert 1900 < first <= 2002
    assert (last - first) % width == 0
    assert last >= 3072
    assert last <= 4096
    _, (far, _, _) = curves.curve_of_counts([counts], edge_of(0.5), marked=True).points
    assert far == 0
