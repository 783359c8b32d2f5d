"""The papers' figures as SVG text: ROC, DET, histograms of scores by species, and curves over the rounds."""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from fedvisage.metrics.intervals import Band
from fedvisage.metrics.pad import attacks_by_species, curve_eer, error_curve, far_frr
from fedvisage.metrics.scores import FloatArray, Scores
from fedvisage.metrics.threshold import Histogram, average_rates

# The style of all figures, and their export as SVG text. The colours are Okabe and Ito's, which colour-blind people can
# distinguish and which are visible on light and dark paper; line styles repeat the distinction without colour. Text
# stays text (not outlines), so that a page can set its font and colour.

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
ON_DARK = ("#6cc4f5", "#ff9a57", "#3ccf9f", "#e7a6cb", "#f5c04a", "#a9d8f5")
"""Lighter versions of COLOURS, for pages on dark paper."""
DASHES = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
INK, QUIET = "#1f2328", "#8c959f"  # a page replaces both with its own colours
SIZE = (4.2, 3.2)  # inches: lettering of 8.5 pt is about 10 px on a phone, 14 px when shown 500 px wide
LABEL_LENGTH = 32
OPERATING, EQUAL = "o", "D"  # markers of points on curves

STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": QUIET,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "grid.alpha": 0.3,
    "grid.color": QUIET,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "lines.linewidth": 1.5,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # a site's name may be "$x$"
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
}

BAND: dict[str, Any] = {"color": COLOURS[0], "alpha": 0.18, "linewidth": 0}
"""The style of the first line's interval."""


def colour(index: int) -> str:
    """Return the colour of the series with this index."""
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> str | tuple[float, tuple[float, ...]]:
    """Return the line style of the series with this index; it changes with each cycle through the colours."""
    return DASHES[(index + index // len(COLOURS)) % len(DASHES)]


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the style to figures created inside; ignore warnings about glyphs that the font lacks."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def canvas(size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    """Return an empty figure with one pair of axes."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


def key(figure: Figure, handles: Sequence[Artist], labels: Sequence[str], columns: int = 3) -> None:
    """Put the legend below the axes, where it hides no data, in as many columns as fit."""
    names = [printable(label) for label in labels]
    for count in range(columns, 0, -1):
        legend = figure.legend(handles, names, loc="outside lower center", ncols=count)
        if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def mark(axes: Axes, x: float, y: float, marker: str, index: int) -> None:
    """Mark a point of the line with this index: the operating point filled, the point of equal errors hollow."""
    face = colour(index) if marker == OPERATING else "none"
    axes.plot([x], [y], marker=marker, markersize=6, markerfacecolor=face, markeredgecolor=colour(index), clip_on=False)


def mark_threshold(axes: Axes, threshold: float, ends: tuple[float, float]) -> None:
    """Draw the threshold into a histogram, or name the end beyond which it lies."""
    low, high = ends
    place = axes.get_xaxis_transform()
    if low <= threshold <= high:
        axes.axvline(threshold, color=INK, linewidth=1.0)
        axes.text(threshold, 1.01, "threshold", transform=place, ha="center", va="bottom")
    elif threshold < low:
        axes.text(low, 1.01, f"← threshold {threshold:.3g}", transform=place, ha="left", va="bottom")
    else:
        axes.text(high, 1.01, f"threshold {threshold:.3g} →", transform=place, ha="right", va="bottom")


def printable(text: object) -> str:
    """Return text that fits a figure: without control characters, cut to a maximum length."""
    plain = "".join(letter if letter.isprintable() else "·" for letter in str(text))
    return plain if len(plain) <= LABEL_LENGTH else plain[: LABEL_LENGTH - 1] + "…"


def svg(figure: Figure, name: str) -> str:
    """Return the figure as SVG text; `name` keeps its ids distinct from those of other figures on the page."""
    with mpl.rc_context({"svg.hashsalt": name}):
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


# Error curves and histograms, of scores of attack detection and of counts of pairs.

DET_TICKS = (0.0001, 0.001, 0.01, 0.05, 0.2, 0.5, 0.8)
LEAST_FAR = 1e-6
"""The lowest false acceptance rate on a logarithmic axis."""
MANY_SITES = 8
AIR = 0.04  # margin at either end, as a share of the axis
LEAST_SPAN = 1e-3  # gives equal scores an axis, too

Labels = tuple[str, str]
DET_OF_ATTACKS = ("attacks accepted, pooled APCER (%)", "bona fide rejected, BPCER (%)")
DET_OF_PAIRS = ("impostor pairs accepted, FAR (%)", "genuine pairs missed, FRR (%)")


@dataclass(frozen=True, eq=False)
class Curve:
    """FAR and FRR at ascending thresholds, and marked points: FAR, FRR and marker."""

    far: FloatArray
    frr: FloatArray
    points: tuple[tuple[float, float, str], ...] = ()


def curve_of_scores(scores: Scores, threshold: float | None) -> Curve:
    """Return the error rates of scores, with the point of equal errors and the one at the threshold."""
    curve = error_curve(scores.live, scores.label)
    operating = () if threshold is None else ((*far_frr(scores, threshold), OPERATING),)
    return Curve(curve.far, curve.frr, (_equal_errors(curve.far, curve.frr), *operating))


def curve_of_counts(histograms: Sequence[Histogram], edge: int | None = None, *, marked: bool = False) -> Curve:
    """Return the mean error rates of histograms at the edges of their bins; ``edge`` is the threshold's position."""
    mean = average_rates(histograms)
    assert mean.far is not None and mean.frr is not None  # noqa: PT018  # sites without a class are not drawn
    if not marked:
        return Curve(mean.far, mean.frr)
    operating = () if edge is None else ((float(mean.far[edge]), float(mean.frr[edge]), OPERATING),)
    return Curve(mean.far, mean.frr, (_equal_errors(mean.far, mean.frr), *operating))


def _equal_errors(far: FloatArray, frr: FloatArray) -> tuple[float, float, str]:
    equal = float(curve_eer(far, frr))
    return equal, equal, EQUAL


def note_undrawn(count: int, most: int, what: str) -> str:
    """Return a sentence for a figure's explanation if it draws only some of its curves."""
    return f" Drawn: the first {most} of {count} {what}." if count > most else ""


def roc(curves: Mapping[str, Curve], shade: Band | None = None, *, name: str = "roc", mean: bool = False) -> str:
    """Draw accepted genuine faces against accepted attacks; with ``mean``, the last curve is the mean of the others."""
    with figure_style():
        figure, axes = canvas()
        if shade is not None:
            axes.fill_between(100 * shade.far, 100 * (1 - shade.high), 100 * (1 - shade.low), **BAND)
        lines = {}
        for title, curve in curves.items():
            far, frr = visible(curve.far, curve.frr)
            lines[title] = 100 * far, 100 * (1 - frr)
        handles = _plot_lines(axes, lines, mean)
        axes.plot([0, 100], [0, 100], color=QUIET, linewidth=0.8)
        for index, (accepted, rejected, marker) in _points(curves):
            mark(axes, 100 * accepted, 100 * (1 - rejected), marker, index)
        axes.set(xlim=(-1, 100), ylim=(0, 101), xlabel="attacks accepted, pooled APCER (%)")
        axes.set_ylabel("bona fide accepted (%)")
        _key_of_curves(figure, handles, curves, mean)
        return svg(figure, name)


def roc_of_pairs(curves: Mapping[str, Curve], pairs: int, name: str = "roc") -> str:
    """Draw TAR against FAR on a logarithmic axis that ends below one of this number of impostor pairs."""
    with figure_style():
        figure, axes = canvas()
        lines = {}
        for title, curve in curves.items():
            shown = curve.far >= LEAST_FAR
            lines[title] = curve.far[shown], 100 * (1 - curve.frr[shown])
        handles = _plot_lines(axes, lines)
        for index, (far, frr, marker) in _points(curves):
            if far >= LEAST_FAR:
                mark(axes, far, 100 * (1 - frr), marker, index)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(_power_of_ten))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(max(LEAST_FAR, 0.5 / max(1, pairs)), 1)
        axes.set(ylim=(0, 101), xlabel="impostor pairs accepted, FAR", ylabel="genuine pairs accepted, TAR (%)")
        _key_of_curves(figure, handles, curves)
        return svg(figure, name)


def _power_of_ten(value: float, _: int) -> str:
    return "1" if value == 1 else f"1e{np.log10(value):.0f}"


def det(curves: Mapping[str, Curve], labels: Labels, least: float = 1e-3, shade: Band | None = None) -> str:
    """Draw misses against false acceptances on normal-deviate axes, which spread out small errors."""
    with figure_style():
        figure, axes = canvas()
        if shade is not None:
            axes.fill_between(deviate(shade.far), deviate(shade.low), deviate(shade.high), **BAND)
        lines = {}
        for title, curve in curves.items():
            far, frr = visible(curve.far, curve.frr)
            lines[title] = deviate(far), deviate(frr)
        handles = _plot_lines(axes, lines)
        shown = [tick for tick in DET_TICKS if tick >= least]
        ticks, names = deviate(np.asarray(shown)), [f"{100 * tick:g}" for tick in shown]
        axes.set_xticks(ticks, names)
        axes.set_yticks(ticks, names)
        low, high = (float(end) for end in deviate(np.asarray((least / 2, 0.95))))
        axes.plot([low, high], [low, high], color=QUIET, linewidth=0.8)
        for index, (accepted, rejected, marker) in _points(curves):
            across, up = (float(np.clip(value, low, high)) for value in deviate(np.asarray([accepted, rejected])))
            mark(axes, across, up, marker, index)
        axes.set(xlim=(low, high), ylim=(low, high), xlabel=labels[0], ylabel=labels[1])
        _key_of_curves(figure, handles, curves)
        return svg(figure, "det")


def _plot_lines(axes: Axes, lines: Mapping[str, tuple[FloatArray, FloatArray]], mean: bool = False) -> list[Artist]:
    """Draw a line per series; with ``mean``, the last one on top of the others, which are faint."""
    handles: list[Artist] = []
    for index, (x, y) in enumerate(lines.values()):
        handles += axes.plot(x, y, **line_style(index, faint=mean and index < len(lines) - 1))
    if mean:
        handles[-1].set(color=colour(0), linewidth=2, linestyle="solid")
    return handles


def line_style(index: int, *, faint: bool = False) -> dict[str, Any]:
    """Return the style of the line with this index."""
    return {"color": QUIET, "linewidth": 0.6} if faint else {"color": colour(index), "linestyle": dash(index)}


def _points(curves: Mapping[str, Curve]) -> list[tuple[int, tuple[float, float, str]]]:
    return [(index, point) for index, curve in enumerate(curves.values()) for point in curve.points]


def _key_of_curves(figure: Figure, handles: list[Artist], curves: Mapping[str, Curve], mean: bool = False) -> None:
    """Name the lines and the markers that occur."""
    names = list(curves)
    if mean:
        handles, names = [handles[0], handles[-1]], [f"{len(names) - 1} sites", names[-1]]
    markers = {marker for _, (_, _, marker) in _points(curves)}
    for marker, name in ((OPERATING, "at the threshold"), (EQUAL, "EER")):
        if marker in markers:
            face = INK if marker == OPERATING else "none"
            point = Line2D([], [], linestyle="", color=INK, markersize=5, marker=marker, markerfacecolor=face)
            handles, names = [*handles, point], [*names, name]
    key(figure, handles, names)


def histogram(
    shares: Mapping[str, FloatArray], edges: FloatArray, threshold: float | None, labels: Labels, name: str
) -> str:
    """Draw the share of each class per bin, the first class filled, with the threshold."""
    ends = (float(edges[0]), float(edges[-1]))
    with figure_style():
        figure, axes = canvas()
        handles: list[Artist] = []
        for index, share in enumerate(shares.values()):
            if index == 0:
                axes.stairs(share, edges, fill=True, color=colour(index), alpha=0.25)
            handles.append(axes.stairs(share, edges, **line_style(index), linewidth=1.5))
        if threshold is not None:
            mark_threshold(axes, threshold, ends)
        axes.set(xlabel=labels[0], ylabel=labels[1], ylim=(0, None), xlim=ends)
        key(figure, handles, list(shares))
        return svg(figure, name)


def score_histograms(scores: Scores, threshold: float | None, name: str = "histogram") -> str:
    """Draw the logits of the bona fide and of each attack species."""
    groups = {"bona fide": scores.bona_fide} if len(scores.bona_fide) else {}
    groups |= {species or "attack": live for species, live in attacks_by_species(scores).items()}
    low, high = span(scores.live, threshold)
    bins = int(np.clip(2.5 * len(scores) ** (1 / 3), 12, 60))  # more bins would leave some of them empty
    edges = np.linspace(low, high, bins + 1)
    shares = {
        title: 100 * np.histogram(np.clip(live, edges[0], edges[-1]), edges)[0] / len(live)
        for title, live in groups.items()
    }
    return histogram(shares, edges, threshold, ("score: logit of being live", "share of the class (%)"), name)


def span(values: FloatArray, threshold: float | None) -> tuple[float, float]:
    """Return the ends of an axis: 98 % of the values, a margin, and the threshold unless it is far from them."""
    low, high = (float(end) for end in np.quantile(values, [0.01, 0.99])) if len(values) else (-1.0, 1.0)
    reach = max(high - low, LEAST_SPAN * max(1.0, abs(low), abs(high)))
    if threshold is not None and low - reach < threshold < high + reach:
        low, high = min(low, threshold), max(high, threshold)
    air = AIR * max(high - low, reach)
    return low - air, high + air


def beyond(values: FloatArray, ends: tuple[float, float]) -> int:
    """Count the values outside an axis."""
    return int(((values < ends[0]) | (values > ends[1])).sum())


def over_rounds(series: Mapping[str, Sequence[tuple[float, float]]], label: str, name: str) -> str:
    """Draw one line per series of (round, value); many series are drawn in grey, with their mean on top."""
    with figure_style():
        figure, axes = canvas((4.2, 2.8))
        handles: list[Artist] = []
        many = len(series) > MANY_SITES
        for index, points in enumerate(series.values()):
            marker = "o" if len(points) < 25 and not many else ""
            handles += axes.plot(
                *zip(*points, strict=True), marker=marker, markersize=3, **line_style(index, faint=many)
            )
        if many:
            values: dict[float, list[float]] = {}
            for points in series.values():
                for number, value in points:
                    values.setdefault(number, []).append(value)
            mean = {number: sum(values[number]) / len(values[number]) for number in sorted(values)}
            handles = [handles[0], *axes.plot(list(mean), list(mean.values()), color=colour(0), linewidth=2)]
        axes.set(xlabel="round", ylabel=label)
        first, last = (end(number for line in series.values() for number, _ in line) for end in (min, max))
        if first == last:
            axes.set_xlim(first - 1, last + 1)  # avoids ticks at fractions of a single round
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        key(figure, handles, [f"{len(series)} sites", "their mean"] if many else list(series), 4)
        return svg(figure, name)


def error_rates(
    thresholds: Sequence[float], rates: Mapping[str, Sequence[float]], marked: Sequence[float], scale: str, form: str
) -> bytes:
    """Draw error rates over the threshold, as a file in the form ``svg`` or ``png``."""
    with figure_style():
        figure, axes = canvas()
        handles: list[Artist] = []
        for index, values in enumerate(rates.values()):
            handles += axes.plot(thresholds, values, **line_style(index))
        for threshold in marked:
            mark_threshold(axes, threshold, (thresholds[0], thresholds[-1]))
        axes.set(xlabel=f"threshold ({scale})", ylabel="error rate", ylim=(0, 1))
        key(figure, handles, list(rates))
        if form == "svg":
            return svg(figure, "error-rates").encode()
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=200, facecolor="white", metadata={"Software": None})
        return image.getvalue()


def over_values(series: Mapping[str, Sequence[tuple[float, float, float]]], labels: tuple[str, str], name: str) -> str:
    """Draw one line per series of (setting, mean, deviation), with a bar of one deviation at each point."""
    with figure_style():
        figure, axes = canvas((4.2, 2.8))
        handles: list[Artist] = []
        for index, points in enumerate(series.values()):
            at, mean, deviation = zip(*sorted(points), strict=True)
            bars = axes.errorbar(at, mean, yerr=deviation, marker="o", markersize=3, capsize=2, **line_style(index))
            handles.append(bars[0])
        axes.set(xlabel=labels[0], ylabel=labels[1])
        key(figure, handles, list(series))
        return svg(figure, name)


def by_row(rows: Mapping[str, Sequence[float]], means: Mapping[str, Sequence[float]], label: str, name: str) -> str:
    """Draw a bar per row: the mean with its value and one deviation, and a hollow point per target."""
    with figure_style():
        figure, axes = canvas((5.2, 1.2 + 0.24 * len(rows)))
        places = range(len(rows))
        targets: list[Artist] = []
        for at, values in zip(places, rows.values(), strict=True):
            targets += axes.plot(values, [at] * len(values), "o", color=INK, markerfacecolor="none", markersize=4)
        mean, deviation = zip(*(means[row] for row in rows), strict=True)
        errors = {"ecolor": INK, "capsize": 2, "zorder": 3}
        drawn = axes.barh(places, mean, 0.6, xerr=deviation, color=colour(0), alpha=0.4, zorder=0, error_kw=errors)
        for at, value in zip(places, mean, strict=True):
            axes.annotate(f"{value:.1f}", (0, at), (3, 0), textcoords="offset points", va="center", fontsize=7)
        axes.set_yticks(list(places), [printable(row) for row in rows])
        axes.set(xlabel=label, ylim=(len(rows) - 0.5, -0.5))
        several = max(map(len, rows.values())) > 1
        key(
            figure,
            [targets[0], drawn.patches[0]] if several else [drawn.patches[0]],
            ["a target", "mean"] if several else ["the target"],
        )
        return svg(figure, name)


def visible(far: FloatArray, frr: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Leave out points of a curve that are closer than 1/2000 to the previous one."""
    cell = np.round(2000 * np.stack([far, frr]))
    distinct = np.concatenate([[True], (cell[:, 1:] != cell[:, :-1]).any(axis=0)])
    return far[distinct], frr[distinct]


def deviate(rate: FloatArray) -> FloatArray:
    """Return the normal quantile of each rate; rates of 0 and 1 are placed outside the axes instead of at infinity."""
    normal = NormalDist()
    return np.asarray([normal.inv_cdf(value) for value in np.clip(rate, 1e-5, 1 - 1e-5).tolist()])
