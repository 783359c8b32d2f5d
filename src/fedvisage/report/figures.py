"""Figures of one run's report: error curves, histograms, curves over rounds, and the papers' t-SNE of features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedvisage.base.streams import numpy_rng
from fedvisage.metrics.intervals import band
from fedvisage.metrics.recorded import Metrics
from fedvisage.metrics.scores import Scores, by_video
from fedvisage.report import curves
from fedvisage.report.content import threshold_of
from fedvisage.report.curves import INK, MANY_SITES, canvas, colour, figure_style, key, svg
from fedvisage.report.run_files import Features, RunFiles

# The papers' t-SNE figure: colours show the site, markers the label (N. Alkhunaizi et al., "FedSIS", 2023, Fig. 3). A
# linear support vector machine separates each set's bona fide images from its attacks in the plane. One linear head
# would suit all sets whose lines are alike.

MOST_POINTS = 1000  # more points are slow to place and cover each other
MOST_SITES = 6  # the number of distinguishable colours
FEWEST_POINTS = 24  # below, the perplexity is too small for a meaningful figure
FEWEST_OF_A_CLASS = 5  # below, a line through a set means nothing
PERPLEXITY = 30.0
SEED = 0  # fixed, because the figure of given features does not depend on the run's seed


def tsne_figure(features: Features) -> str | None:
    """Draw the features in two dimensions, in a frame without scales; None for too few points."""
    if len(features.label) < FEWEST_POINTS:
        return None
    chosen = sample(len(features.label))
    place, label, site = tsne(features.values[chosen]), features.label[chosen], features.site[chosen]
    names = np.unique(features.site).tolist()
    # Sites beyond the last distinguishable colour share it.
    palette = {name: min(index, MOST_SITES - 1) for index, name in enumerate(names)}
    group = np.array([palette[name] for name in site.tolist()])
    with figure_style():
        figure, axes = canvas((4.2, 4.0))
        for index in range(min(len(names), MOST_SITES)):
            live, attack = (place[(group == index) & (label == value)] for value in (1, 0))
            for points, marker, width in ((live, "o", 0.0), (attack, "x", 0.9)):
                x, y = points.T
                axes.scatter(x, y, s=14, alpha=0.75, marker=marker, color=colour(index), linewidths=width)
        middle, reach = (place.max(0) + place.min(0)) / 2, float(np.ptp(place, axis=0).max()) * 0.54 or 1.0
        axes.set(xlim=middle[0] + np.array([-reach, reach]), ylim=middle[1] + np.array([-reach, reach]))
        axes.set_aspect("equal")  # the points determine the frame; lines may leave it
        for index in range(min(len(names), MOST_SITES)):
            ends = boundary(place[group == index], label[group == index])
            if ends is not None:
                axes.plot(*ends.T, color=colour(index), linewidth=1.0, linestyle="--", zorder=0)  # below the points
        axes.set(xticks=[], yticks=[])
        for side in axes.spines.values():
            side.set_visible(True)
        texts = names if len(names) <= MOST_SITES else [*names[: MOST_SITES - 1], "other sites"]
        dots: list[Artist] = [_dot("s", colour(index)) for index in range(len(texts))]
        key(figure, [*dots, _dot("o", INK), _dot("x", INK)], [*texts, "bona fide", "attack"], 3)
        return svg(figure, "tsne")


def boundary(place: NDArray[np.float32], label: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Return both ends of the line that best separates a set's classes, slightly longer than the extent of its points.

    None if a class has too few points, or if all points lie on one side.
    """
    if min((label == value).sum() for value in (0, 1)) < FEWEST_OF_A_CLASS:
        return None
    # Imported here, because it loads for seconds, which a report without features need not.
    from sklearn.svm import LinearSVC

    middle = place.mean(0)
    classifier = LinearSVC(C=0.5, dual=False, intercept_scaling=10.0).fit(place - middle, label)
    normal, offset = classifier.coef_[0], float(classifier.intercept_[0])
    length = float(np.linalg.norm(normal))
    if length < 1e-9:
        return None
    foot = middle - normal * offset / length**2
    if np.linalg.norm(foot - middle) > np.linalg.norm(place - middle, axis=1).max():
        return None  # for overlapping classes the line is far away and separates nothing
    along = np.array([-normal[1], normal[0]]) / length
    reach = (place - foot) @ along
    return np.asarray(foot + np.outer([reach.min(), reach.max()], along) * 1.1)


def tsne(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Place points in the plane so that neighbours stay neighbours (L. van der Maaten, G. Hinton, JMLR 9, 2008).

    One thread only: sums over points depend on the number of threads.
    """
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(values) - 1) / 3)
    with threadpool_limits(limits=1):
        places: NDArray[np.float32] = TSNE(perplexity=perplexity, init="pca", random_state=SEED).fit_transform(values)
    return places


def sample(count: int) -> NDArray[np.int64]:
    """Choose which of `count` points to draw: all, or the same MOST_POINTS each time."""
    if count <= MOST_POINTS:
        return np.arange(count)
    return np.sort(numpy_rng(SEED, "tsne").choice(count, MOST_POINTS, replace=False))


def _dot(marker: str, tint: str) -> Line2D:
    return Line2D([], [], linestyle="", marker=marker, color=tint, markersize=5)


Figure = tuple[str, str, str]
"""A title, an explanation, and the drawing as SVG text: empty if the explanation says why there is none."""

MOST_MODELS = 6  # curves per figure, and histograms per page
RESAMPLES = 300  # of a band: a drawing needs fewer than printed intervals
PRIVILEGE = "Only in a simulation: a federation does not see its target. Nothing was chosen by these metrics."
SCALE = "Only neighbourhoods matter; distances have no unit, and distant groups may in fact be close to each other."


def figures(run: RunFiles) -> list[Figure]:
    """Return the figures common to both tasks, and those of attack detection."""
    drawings = [*_error_curves(run), *_histograms(run)]
    loss = {
        site: [(row["round"], row["loss"][site]) for row in run.rounds if _number((row.get("loss") or {}).get(site))]
        for site in sorted({site for row in run.rounds for site in row.get("loss") or {}})
    }
    drawings += _rounds("Training loss", "Mean training loss at each site.", loss, "loss")
    heldout = {
        name: [
            (row["round"], 100 * row["heldout"][key])
            for row in run.rounds
            if isinstance(row.get("heldout"), dict) and _number(row["heldout"].get(key))
        ]
        for key, name in (("auc", "AUC"), ("eer", "EER"))
    }
    drawings += _rounds("Held-out subjects of the sites", "Mean over the sites, by round.", heldout, "per cent")
    for kind, series in by_round(run.metrics).items():
        drawings += _rounds(f"The target, round by round: {kind}", PRIVILEGE, series, "per cent")
    return drawings + _features(run)


def by_round(metrics: Metrics) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return the target's figures of evaluated rounds, in per cent, by kind and name."""
    by_kind: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in map(Metrics, metrics.get("by_round", ())):
        generic = row.part("generic")
        tables = {kind: generic.rates(kind.lower()) for kind in ("TAR", "TPIR")}
        tables |= {"errors": {"EER": row.get("eer"), "AUC": row.get("auc")}}
        for kind, table in tables.items():
            for name, value in table.items():
                if value is not None and _number(value):
                    by_kind.setdefault(kind, {}).setdefault(name, []).append((row["round"], 100 * value))
    return by_kind


def curve_groups(scores: Scores, level: str = "frame") -> dict[str, Scores]:
    """Return the lines of a ROC: frames and videos of one model, the headline's level first; or the first models."""
    models = sorted(set(scores.model.tolist()))
    if len(models) > 1:
        return {f"model of {name}": scores.where(scores.model == name) for name in models[:MOST_MODELS]}
    videos = by_video(scores)
    groups = {"frames": scores} | ({"videos": videos} if len(videos) < len(scores) else {})
    return dict(sorted(groups.items(), key=lambda entry: entry[0] != f"{level}s"))


def _error_curves(run: RunFiles) -> list[Figure]:
    scores = run.target_scores
    drawings: list[Figure] = []
    if scores is not None and 0 < scores.label.sum() < len(scores):
        groups = curve_groups(scores, str(run.metrics.get("level", "frame")))
        name, headline = next(iter(groups.items()))
        shade = None
        if not run.metrics.part("members"):  # bands of several models would hide each other
            shade = band(headline, RESAMPLES, numpy_rng(int(run.metrics.get("seed") or 0), "bootstrap", "band", name))
        note = f" Shaded: 95 % band over subjects (bootstrap), of {name}." if shade else _note_undrawn(scores)
        explanation = "Every threshold at once; up and to the left is better."
        lines = {
            name: curves.curve_of_scores(rows, threshold_of(run.metrics, str(rows.model[0])))
            for name, rows in groups.items()
        }
        drawings.append(("ROC", explanation + note, curves.roc(lines, shade)))
        explanation = "The same, on axes that magnify small errors; down is better."
        drawings.append(("DET", explanation + note, curves.det(lines, curves.DET_OF_ATTACKS, shade=shade)))
    sites = {name: counts for name, counts in run.heldout.items() if (counts.sum(axis=1) > 0).all()}
    if sites and run.metrics.get("task") != "recognition":
        subjects = "training images" if run.metrics.part("sites_training") else "held-out subjects"
        explanation = f"The finished model on the sites' own {subjects}, from their histograms."
        lines = {name: curves.curve_of_counts([counts]) for name, counts in sites.items()}
        many = len(sites) > MANY_SITES
        if many:
            lines["their mean"] = curves.curve_of_counts(list(sites.values()))
        drawings.append(("ROC by site", explanation, curves.roc(lines, name="roc-sites", mean=many)))
    return drawings


def _histograms(run: RunFiles) -> list[Figure]:
    scores = run.target_scores
    if scores is None or len(scores) == 0:
        return []
    drawings, undrawn = [], _note_undrawn(scores)
    for index, name in enumerate(sorted(set(scores.model.tolist()))[:MOST_MODELS]):
        threshold, own_scores = threshold_of(run.metrics, name), scores.where(scores.model == name)
        drawing = curves.score_histograms(own_scores, threshold, f"histogram{index}")
        beyond = curves.beyond(own_scores.live, curves.span(own_scores.live, threshold))
        note = f" {beyond} of {len(own_scores)} lie beyond the axis and are counted at its ends." if beyond else ""
        title = f"Scores, model of {name}" if name else "Scores"
        drawings.append((title, f"Frames right of the threshold are accepted as live.{note}{undrawn}", drawing))
    return drawings


def _note_undrawn(scores: Scores) -> str:
    return curves.note_undrawn(len(set(scores.model.tolist())), MOST_MODELS, "models")


def _features(run: RunFiles) -> list[Figure]:
    if run.features is None:
        return []
    title, count = "Features (t-SNE)", len(run.features.label)
    drawing = tsne_figure(run.features)
    if drawing is None:
        reason = f"Not drawn: {count} images are too few, at least {FEWEST_POINTS} are needed"
        return [(title, f"{reason} (evaluation.features in the recipe, images of each set).", "")]
    model = f"site {run.features.model}'s model" if run.features.model else "the model"
    count_drawn = min(count, MOST_POINTS)
    explanation = (
        f"{count_drawn} images. Points that lie together look alike to {model}; a dashed line best separates a set's "
        f"classes, and a line through the points shows that they overlap. {SCALE}"
    )
    return [(title, explanation, drawing)]


def _rounds(title: str, meaning: str, series: Mapping[str, list[tuple[float, float]]], label: str) -> list[Figure]:
    drawn = {name: points for name, points in series.items() if points}
    return [(title, meaning, curves.over_rounds(drawn, label, title))] if drawn else []


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and value == value
