"""The papers' figures as SVG text: ROC, DET, histograms of scores by species, and curves over the rounds."""

from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
from matplotlib.artist import Artist
from matplotlib.ticker import MaxNLocator

from fedvisage.metrics.pad import attacks_by_species, error_curve
from fedvisage.metrics.scores import FloatArray, Scores
from fedvisage.report.drawing import INK, QUIET, canvas, colour, dash, key, styled, svg

DET_TICKS = (0.001, 0.01, 0.05, 0.2, 0.5, 0.8)
DET_ENDS = (0.0005, 0.9)
MANY_SITES = 8


def roc(groups: Mapping[str, Scores]) -> str:
    """Draw how many bona fide pass against how many attacks pass, one line per group of scores."""
    with styled():
        figure, axes = canvas()
        handles: list[Artist] = []
        for index, scores in enumerate(groups.values()):
            far, frr = rates(scores)
            handles += axes.plot(100 * far, 100 * (1 - frr), color=colour(index), linestyle=dash(index))
        axes.plot([0, 100], [0, 100], color=QUIET, linewidth=0.8)
        axes.set(xlim=(0, 100), ylim=(0, 101), xlabel="attacks accepted, pooled APCER (%)")
        axes.set_ylabel("bona fide accepted (%)")
        key(figure, handles, list(groups))
        return svg(figure, "roc")


def det(groups: Mapping[str, Scores]) -> str:
    """Draw BPCER against APCER on normal-deviate axes, where good systems can be told apart."""
    with styled():
        figure, axes = canvas()
        handles: list[Artist] = []
        for index, scores in enumerate(groups.values()):
            far, frr = rates(scores)
            style = {"color": colour(index), "linestyle": dash(index)}
            handles += axes.plot(deviate(far), deviate(frr), **style)  # type: ignore[arg-type]
        ticks, labels = deviate(np.asarray(DET_TICKS)), [f"{100 * tick:g}" for tick in DET_TICKS]
        axes.set_xticks(ticks, labels)
        axes.set_yticks(ticks, labels)
        low, high = deviate(np.asarray(DET_ENDS))
        axes.plot([low, high], [low, high], color=QUIET, linewidth=0.8)
        axes.set(xlim=(low, high), ylim=(low, high), xlabel="attacks accepted, pooled APCER (%)")
        axes.set_ylabel("bona fide rejected, BPCER (%)")
        key(figure, handles, list(groups))
        return svg(figure, "det")


def score_histograms(scores: Scores, threshold: float | None, name: str = "histogram") -> str:
    """Draw the logits of the bona fide (filled) and of each attack species, with the threshold."""
    groups = {"bona fide": scores.bona_fide} if len(scores.bona_fide) else {}
    groups |= {species or "attack": live for species, live in attacks_by_species(scores).items()}
    with styled():
        figure, axes = canvas()
        low, high = np.quantile(scores.live, [0.002, 0.998]) if len(scores) else (-1.0, 1.0)
        bins = int(np.clip(2.5 * len(scores) ** (1 / 3), 12, 60))  # as many as the scores can fill evenly
        edges = np.linspace(low - 0.3, high + 0.3, bins + 1)
        handles: list[Artist] = []
        for index, live in enumerate(groups.values()):
            share = 100 * np.histogram(np.clip(live, edges[0], edges[-1]), edges)[0] / len(live)
            if index == 0:
                axes.stairs(share, edges, fill=True, color=colour(index), alpha=0.25)
            handles.append(axes.stairs(share, edges, color=colour(index), linestyle=dash(index), linewidth=1.5))
        if threshold is not None:
            axes.axvline(threshold, color=INK, linewidth=1.0)
            place = axes.get_xaxis_transform()
            axes.text(threshold, 1.01, "threshold", transform=place, ha="center", va="bottom")
        axes.set(xlabel="score: logit of being live", ylabel="share of the class (%)", ylim=(0, None))
        key(figure, handles, list(groups))
        return svg(figure, name)


def over_rounds(series: Mapping[str, Sequence[tuple[float, float]]], label: str, name: str) -> str:
    """Draw one line per series of (round, value); more than a few are drawn quietly with their mean on top."""
    with styled():
        figure, axes = canvas((5.0, 3.0))
        handles: list[Artist] = []
        many = len(series) > MANY_SITES
        for index, points in enumerate(series.values()):
            style = {"color": QUIET, "linewidth": 0.6} if many else {"color": colour(index), "linestyle": dash(index)}
            marker = "o" if len(points) < 25 and not many else ""
            handles += axes.plot(*zip(*points, strict=True), marker=marker, markersize=3, **style)
        if many:
            handles = [handles[0], *axes.plot(*mean_by_round(series), color=colour(0), linewidth=2)]
        axes.set(xlabel="round", ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        key(figure, handles, [f"{len(series)} sites", "their mean"] if many else list(series), 6)
        return svg(figure, name)


def rates(scores: Scores) -> tuple[FloatArray, FloatArray]:
    """Return FAR and FRR without the points that a reader could not see (closer than 1/2000 to the last)."""
    curve = error_curve(scores.live, scores.label)
    cell = np.round(2000 * np.stack([curve.far, curve.frr]))
    seen = np.concatenate([[True], (cell[:, 1:] != cell[:, :-1]).any(axis=0)])
    return curve.far[seen], curve.frr[seen]


def deviate(rate: FloatArray) -> FloatArray:
    """Return the normal quantile of each rate; 0 and 1 are put outside of the axes instead of at infinity."""
    normal = NormalDist()
    return np.asarray([normal.inv_cdf(value) for value in np.clip(rate, 1e-5, 1 - 1e-5).tolist()])


def mean_by_round(series: Mapping[str, Sequence[tuple[float, float]]]) -> tuple[list[float], list[float]]:
    """Return the rounds and the mean of the series' values in each."""
    values: dict[float, list[float]] = {}
    for points in series.values():
        for number, value in points:
            values.setdefault(number, []).append(value)
    ordered = sorted(values)
    return ordered, [sum(values[number]) / len(values[number]) for number in ordered]
