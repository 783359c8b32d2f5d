"""The figures of a recognition run's report, from its counts of pairs by similarity."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.artist import Artist
from matplotlib.ticker import FuncFormatter, NullFormatter

from fedvisage.metrics.pad import curve_eer
from fedvisage.metrics.scores import FloatArray
from fedvisage.metrics.threshold import BINS, Histogram
from fedvisage.report.curves import AIR, deviate, visible
from fedvisage.report.drawing import (
    EQUAL,
    OPERATING,
    QUIET,
    canvas,
    colour,
    dash,
    key,
    mark,
    mark_names,
    mark_threshold,
    marks,
    styled,
    svg,
)
from fedvisage.report.figures import Figure
from fedvisage.report.run_files import RunFiles

SHOWN_BINS = 50  # between the ends of the axis
LEAST_FAR = 1e-6
MANY = 8
DET_TICKS = (0.0001, 0.001, 0.01, 0.05, 0.2, 0.5, 0.8)
DET_ENDS = (0.00005, 0.98)
WHOLE = "all"


def figures(run: RunFiles) -> list[Figure]:
    """Return the drawings: title, explanation, SVG text."""
    counts, threshold = run.similarities, run.metrics.get("threshold")
    drawings: list[Figure] = []
    if counts:
        said = "Counts of pairs do not say whose they were, so there is no interval by person here."
        ways = "Every threshold at once; FAR on a logarithmic axis. Up is better."
        drawings.append(("ROC", f"{ways} {said}", roc(counts, threshold)))
        ways = "The same, on axes that spread small errors out; down is better."
        drawings.append(("DET", ways, det(counts, threshold)))
    if (whole := counts.get(WHOLE)) is not None:
        outside = beyond(whole, threshold)
        rest = f" {outside:,} of {int(whole.sum()):,} lie beyond the axis." if outside else ""
        ways = f"Pairs right of the threshold are called one person.{rest}"
        drawings.append(("Similarities", ways, similarities(whole, threshold)))
    sites = {name: pairs for name, pairs in run.heldout.items() if (pairs.sum(axis=1) > 0).all()}
    if sites:
        ways = "The finished model on each site's own people and those whom it must reject, from the site's histogram."
        drawings.append(("ROC by site", ways, roc(sites, None, "roc-sites")))
    return drawings


def roc(counts: Mapping[str, Histogram], threshold: float | None, name: str = "roc") -> str:
    """Draw TAR against FAR, one line for all pairs and one for each group's or site's; the first line is marked."""
    with styled():
        figure, axes = canvas()
        handles: list[Artist] = []
        for index, histogram in enumerate(list(counts.values())[:MANY]):
            far, frr = rates(histogram)
            seen = far >= LEAST_FAR
            handles += axes.plot(far[seen], 100 * (1 - frr[seen]), color=colour(index), linestyle=dash(index))
        known = WHOLE in counts
        for x, y, marker in points(counts[WHOLE], threshold) if known else ():
            if x >= LEAST_FAR:
                mark(axes, x, 100 * (1 - y), marker, 0)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: "1" if value == 1 else f"1e{np.log10(value):.0f}")
        )
        pairs = max(int(histogram[0].sum()) for histogram in counts.values())
        axes.set_xlim(max(LEAST_FAR, 0.5 / max(1, pairs)), 1)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(ylim=(0, 101), xlabel="impostor pairs accepted, FAR", ylabel="genuine pairs accepted, TAR (%)")
        operating = threshold is not None
        extra = (marks(operating), mark_names(operating)) if known else ([], [])
        key(figure, [*handles, *extra[0]], [*_names(counts), *extra[1]])
        return svg(figure, name)


def det(counts: Mapping[str, Histogram], threshold: float | None) -> str:
    """Draw genuine pairs missed against impostor pairs accepted, on normal-deviate axes."""
    with styled():
        figure, axes = canvas()
        handles: list[Artist] = []
        for index, histogram in enumerate(list(counts.values())[:MANY]):
            far, frr = visible(*rates(histogram))
            style = {"color": colour(index), "linestyle": dash(index)}
            handles += axes.plot(deviate(far), deviate(frr), **style)  # type: ignore[arg-type]
        ticks, labels = deviate(np.asarray(DET_TICKS)), [f"{100 * tick:g}" for tick in DET_TICKS]
        axes.set_xticks(ticks, labels)
        axes.set_yticks(ticks, labels)
        low, high = (float(end) for end in deviate(np.asarray(DET_ENDS)))
        axes.plot([low, high], [low, high], color=QUIET, linewidth=0.8)
        known = WHOLE in counts
        for x, y, marker in points(counts[WHOLE], threshold) if known else ():
            across, up = (float(np.clip(value, low, high)) for value in deviate(np.asarray([x, y])))
            mark(axes, across, up, marker, 0)
        axes.set(xlim=(low, high), ylim=(low, high))
        axes.set(xlabel="impostor pairs accepted, FAR (%)", ylabel="genuine pairs missed, FRR (%)")
        operating = threshold is not None
        extra = (marks(operating), mark_names(operating)) if known else ([], [])
        key(figure, [*handles, *extra[0]], [*_names(counts), *extra[1]])
        return svg(figure, "det")


def similarities(counts: Histogram, threshold: float | None) -> str:
    """Draw the similarities of genuine (filled) and of impostor pairs, with the threshold."""
    first, last, width = ends(counts, threshold)
    edges = np.linspace(-1, 1, BINS + 1)[first : last + 1 : width]
    with styled():
        figure, axes = canvas()
        handles: list[Artist] = []
        for index, (row, fill) in enumerate(((counts[1], True), (counts[0], False))):
            share = 100 * row[first:last].reshape(-1, width).sum(axis=1) / max(1, row.sum())
            if fill:
                axes.stairs(share, edges, fill=True, color=colour(index), alpha=0.25)
            handles.append(axes.stairs(share, edges, color=colour(index), linestyle=dash(index), linewidth=1.5))
        span = (float(edges[0]), float(edges[-1]))
        if threshold is not None:
            mark_threshold(axes, threshold, span)
        axes.set(xlim=span, xlabel="similarity (cosine)", ylabel="share of the pairs (%)", ylim=(0, None))
        key(figure, handles, ["one person", "two people"])
        return svg(figure, "similarities")


def rates(counts: Histogram) -> tuple[FloatArray, FloatArray]:
    """Return FAR and FRR at each lower edge of the bins, from accepting nobody on."""
    accepted = [np.concatenate([[0.0], np.cumsum(row[::-1]) / max(1, row.sum())]) for row in counts]
    return accepted[0], 1 - accepted[1]


def points(counts: Histogram, threshold: float | None) -> list[tuple[float, float, str]]:
    """Return what is marked: where the errors are equal, and the errors at the threshold."""
    far, frr = rates(counts)
    equal = float(curve_eer(far[::-1], frr[::-1]))
    found = [(equal, equal, EQUAL)]
    if threshold is not None:
        above = BINS - round((threshold + 1) * BINS / 2)
        found.append((float(far[above]), float(frr[above]), OPERATING))
    return found


def ends(counts: Histogram, threshold: float | None) -> tuple[int, int, int]:
    """Return the first bin of an axis, the one after its last, and how many of them are drawn as one.

    The axis has 98 in 100 pairs of either kind, some air, and the threshold.
    """
    shares = [np.cumsum(row) / row.sum() for row in counts if row.sum()]
    places = [int(np.searchsorted(share, part)) for share in shares for part in (0.01, 0.99)] or [0, BINS - 1]
    if threshold is not None:
        places.append(min(BINS - 1, round((threshold + 1) * BINS / 2)))
    low, high = min(places), max(places) + 1
    air = max(1, round(AIR * (high - low)))
    low, high = max(0, low - air), min(BINS, high + air)
    width = max(1, -(-(high - low) // SHOWN_BINS))
    whole = min(BINS // width, -(-(high - low) // width))
    low = min(low, BINS - whole * width)
    return low, low + whole * width, width


def beyond(counts: Histogram, threshold: float | None) -> int:
    """Count the pairs that the axis does not reach."""
    first, last, _ = ends(counts, threshold)
    return int(counts.sum() - counts[:, first:last].sum())


def _names(counts: Mapping[str, Histogram]) -> list[str]:
    names = ["all pairs" if name == WHOLE else name for name in counts]
    return names if len(names) <= MANY else [*names[: MANY - 1], f"{names[MANY - 1]} (of {len(names)})"]
