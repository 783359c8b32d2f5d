"""The look that all figures share, and the way from a figure to SVG text.

Colours are Okabe and Ito's, told apart by the colour-blind and visible on light and dark paper; line styles repeat
the distinction without colour. Text stays text (not outlines), so a page can give it its own font and colour.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
ON_DARK = ("#6cc4f5", "#ff9a57", "#3ccf9f", "#e7a6cb", "#f5c04a", "#a9d8f5")
"""The same, lighter: what a page on dark paper shows in their place."""
DASHES = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
INK, QUIET = "#1f2328", "#8c959f"  # a page replaces these two by its own colours
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
    "text.parse_math": False,  # a site may be called "$x$"
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
}

BAND: dict[str, Any] = {"color": COLOURS[0], "alpha": 0.18, "linewidth": 0}
"""How an interval of the first line is drawn."""


def colour(index: int) -> str:
    """Return the colour of the series with this index."""
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> str | tuple[float, tuple[float, ...]]:
    """Return the line style of the series with this index: another one for each turn of colours."""
    return DASHES[(index + index // len(COLOURS)) % len(DASHES)]


@contextmanager
def styled() -> Iterator[None]:
    """Apply the look to figures that are made inside; names in any script may lack a glyph when measured."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def canvas(size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    """Return an empty figure with one pair of axes."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


def key(figure: Figure, handles: Sequence[Artist], labels: Sequence[str], columns: int = 3) -> None:
    """Put the legend under the axes, where it hides no data, in as many columns as there is room for."""
    names = [printable(label) for label in labels]
    for count in range(columns, 0, -1):
        legend = figure.legend(handles, names, loc="outside lower center", ncols=count)
        if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def mark(axes: Axes, x: float, y: float, marker: str, index: int) -> None:
    """Mark a point of the line with this index: the operating point filled, the one of equal errors hollow."""
    face = colour(index) if marker == OPERATING else "none"
    axes.plot([x], [y], marker=marker, markersize=6, markerfacecolor=face, markeredgecolor=colour(index), clip_on=False)


def marks(operating: bool) -> list[Artist]:
    """Return what stands in a legend for marked points."""
    style = {"linestyle": "", "color": INK, "markersize": 5}
    hollow = Line2D([], [], marker=EQUAL, markerfacecolor="none", **style)  # type: ignore[arg-type]
    return [*([Line2D([], [], marker=OPERATING, **style)] if operating else []), hollow]  # type: ignore[arg-type]


def mark_names(operating: bool) -> list[str]:
    """Return what marked points are called in a legend."""
    return [*(["at the threshold"] if operating else []), "EER"]


def mark_threshold(axes: Axes, threshold: float, ends: tuple[float, float]) -> None:
    """Draw the threshold into a histogram, or say at which end it lies outside."""
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
    """Return text that fits into a figure: no control characters, not endless."""
    plain = "".join(letter if letter.isprintable() else "·" for letter in str(text))
    return plain if len(plain) <= LABEL_LENGTH else plain[: LABEL_LENGTH - 1] + "…"


def svg(figure: Figure, name: str) -> str:
    """Return the figure as SVG text; `name` keeps its inner ids apart from another figure's on the same page."""
    with mpl.rc_context({"svg.hashsalt": name}):
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()
