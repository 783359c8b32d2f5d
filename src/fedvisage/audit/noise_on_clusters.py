"""How much of a cluster's direction its noise leaves: PrivacyFace's Figure 4, at the first site of a run.

Cosines between the noise-free mean p of a cluster and what is told of it, p̂, over many draws: for several margins ρ,
for several ε, for each of three queries, and at ε = 1 for several numbers of public directions, where p is the mean in
all dimensions, so that what the directions do not span counts as lost. Algorithm 1 stands beside the private mechanism,
whose p is the mean of the cap that it chose. What it chooses, and whether the noisy number of members reaches T, is
part of the noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fedvisage.audit.finding import Audit, Finding, Picture, Subject
from fedvisage.audit.released import asked_of, first_site, obstacle, seen
from fedvisage.base.streams import torch_rng
from fedvisage.federation.privacy.clustering import (
    Clustering,
    Privately,
    densest,
    directions,
    occupancy,
    release,
    sanitised,
)
from fedvisage.federation.privacy.mechanisms import Budget, DerivedDraws, Draws, principal_directions
from fedvisage.methods.recognition.privacyface import Options
from fedvisage.report.curves import COLOURS, QUIET, styled

MARGINS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0, 32.0)
QUERIES = 3
RUNS, PRIVATE_RUNS = 1000, 200
"""The paper's number of draws; the private mechanism also chooses anew in each, which takes longer."""

SPANNED, SPANNED_EPSILON = (8, 16, 32, 64, 128), 1.0
"""How many public directions are tried, and at which ε."""

DIMENSIONS = (64, 128, 256, 512)
CAPS = tuple(np.linspace(0.9, math.pi / 2, 60).tolist())
"""Dimensions and margins in which the share of the sphere in a cap is drawn."""

DIRECTIONS = "public directions"
PRINTED, PRIVATE = "Algorithm 1", "private"
Cosines = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Centres:
    """What a mechanism works on: a site's class centres, public candidates and features, how a budget is spent."""

    own: Tensor
    candidates: Tensor
    how: Privately
    seed: int
    public: Tensor


class Silent:
    """A source that draws as another does and returns no noise: what the mechanism chooses stays the same."""

    def __init__(self, draws: Draws) -> None:
        """Draw from this source."""
        self.draws = draws

    def uniform(self, number: int) -> Tensor:
        """Return numbers between 0 and 1."""
        return self.draws.uniform(number)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Return zeros, at the cost of as many draws."""
        return torch.zeros_like(self.draws.normal(shape))


@dataclass(frozen=True)
class Setting:
    """A box of the figure: in which panel, under which label, what is asked for, and which of its rows is looked at."""

    panel: str
    label: str
    asked: Clustering
    row: int = 0
    project: int | None = None


def attack(subject: Subject) -> Finding:
    """Draw many times under many settings."""
    name, own, candidates, public = first_site(subject, seen(subject))
    asked, how = asked_of(subject, len(own))
    centres = Centres(own, candidates, how, subject.recipe.runtime.seed, public)
    options = subject.recipe.method
    every = list(settings(asked, options.project if isinstance(options, Options) else None, min(public.shape)))
    boxes = {
        PRINTED: {one: printed(centres, one) for one in every if one.panel != DIRECTIONS},
        PRIVATE: {one: private(centres, one) for one in every},
    }
    rows = [row(mechanism, one, cosines) for mechanism, of in boxes.items() for one, cosines in of.items()]
    says = (
        f"Of the {len(own)} class centres of {name}: cosines between a cluster's mean and what is told of it, and in "
        "what share of draws anything is told."
    )
    caption = f"Cosines of p and p̂ at {name} (after Figure 4 of PrivacyFace), whiskers at 5 % and 95 % of the draws"
    share = f"Share of the sphere in a cap (after Figure 3 of PrivacyFace); solid: {own.shape[1]} dimensions, as here"
    pictures = {"cosines": (caption, picture(boxes)), "occupancy": (share, caps(own.shape[1], asked.margin))}
    return Finding(says, {}, rows, pictures)


def settings(asked: Clustering, project: int | None, most: int) -> Iterator[Setting]:
    """Yield the boxes; all but what a panel is about is as in the run. ``most``: how many directions there are."""
    single, delta = replace(asked, queries=1), asked.budget.delta
    for margin in MARGINS:
        yield Setting("ρ", f"{margin:g}", replace(single, margin=margin), project=project)
    for epsilon in EPSILONS:
        yield Setting("ε", f"{epsilon:g}", replace(single, budget=Budget(epsilon, delta)), project=project)
    for number in range(QUERIES):
        yield Setting("query", str(number + 1), replace(asked, queries=QUERIES), number, project)
    for number in SPANNED:
        if number <= most:
            little = replace(single, budget=Budget(SPANNED_EPSILON, delta))
            yield Setting(DIRECTIONS, str(number), little, project=number)


def printed(centres: Centres, setting: Setting) -> Cosines:
    """Return the cosines under Algorithm 1; NaN, where there is no cluster of so many members."""
    clusters = densest(centres.own, setting.asked)
    if setting.row >= len(clusters):
        return np.full(RUNS, np.nan)
    cluster, source = clusters[setting.row], draws_for(centres, PRINTED, setting)
    mean = directions(cluster.mean[None])
    rows = [sanitised((cluster,), setting.asked, len(cluster.mean), source) for _ in range(RUNS)]
    return np.asarray((torch.cat(rows) @ mean.T).squeeze(1).double())


def private(centres: Centres, setting: Setting) -> Cosines:
    """Return the cosines under the private mechanism; NaN, where the noisy number of members was below T."""
    cosines, basis = [], None
    if setting.project is not None:
        basis = principal_directions(centres.public, setting.project)
    where = None if setting.panel == DIRECTIONS else basis
    for number in range(PRIVATE_RUNS):
        told, mean = (
            release(centres.own, centres.candidates, asked, centres.how, source, within).centres[setting.row]
            for asked, source, within in (
                (setting.asked, draws_for(centres, PRIVATE, setting, number), basis),
                (replace(setting.asked, minimum=1), Silent(draws_for(centres, PRIVATE, setting, number)), where),
            )
        )
        cosines.append(float(told @ mean) if bool(told.any()) else math.nan)
    return np.asarray(cosines)


def draws_for(centres: Centres, *purpose: str | int | Setting) -> Draws:
    """Return the stream of a box, or of one draw of it."""
    names = [f"{one.panel} {one.label}" if isinstance(one, Setting) else str(one) for one in purpose]
    return DerivedDraws(torch_rng(centres.seed, "audit", "noise on clusters", *names))


def row(mechanism: str, setting: Setting, found: Cosines) -> dict[str, str | float]:
    """Return a line of the table."""
    told = found[~np.isnan(found)]
    low, middle, high = np.quantile(told, (0.05, 0.5, 0.95)).tolist() if len(told) else ("–",) * 3
    return {
        "mechanism": mechanism, "where": f"{setting.panel} {setting.label}", "draws": len(found),
        "told": len(told) / len(found), "5 %": low, "median": middle, "95 %": high,
    }  # fmt: skip


def picture(boxes: Mapping[str, Mapping[Setting, Cosines]]) -> Picture:
    """Draw a row of panels for each mechanism."""
    with styled():
        figure = Figure(figsize=(11.0, 2.6 * len(boxes)), layout="constrained", facecolor="white", dpi=110)
        titles = list(dict.fromkeys(one.panel for of in boxes.values() for one in of))
        axes = figure.subplots(len(boxes), len(titles), squeeze=False, sharey=True)
        for line, (mechanism, of), colour in zip(axes, boxes.items(), COLOURS, strict=False):
            for place, title in zip(line, titles, strict=True):
                here = {one.label: cosines[~np.isnan(cosines)] for one, cosines in of.items() if one.panel == title}
                if not here:  # Algorithm 1 knows of no public directions
                    place.set_axis_off()
                    continue
                drawn = place.boxplot(list(here.values()), tick_labels=list(here), whis=(5, 95), showfliers=False)
                for part in (*drawn["boxes"], *drawn["medians"], *drawn["whiskers"], *drawn["caps"]):
                    part.set_color(colour)
                place.set(xlabel=title if title != DIRECTIONS else f"{title}, ε {SPANNED_EPSILON:g}", ylim=(-0.3, 1.05))
            line[0].set_ylabel(f"cosine, {mechanism}")
        return _pixels(figure)


def caps(dimension: int, margin: float) -> Picture:
    """Draw the share of the sphere that a cap takes over its margin, in several dimensions, with the run's margin."""
    with styled():
        figure = Figure(figsize=(6.0, 3.6), layout="constrained", facecolor="white", dpi=110)
        axes = figure.subplots()
        for number, colour in zip(sorted({*DIMENSIONS, dimension}), itertools.cycle(COLOURS), strict=False):
            shares = [occupancy(angle, number) for angle in CAPS]
            style = "solid" if number == dimension else "dashed"
            axes.plot(CAPS, shares, color=colour, linestyle=style, label=f"{number} dimensions")
        axes.axvline(margin, color=QUIET, linewidth=0.8)
        axes.set(xlabel="ρ", ylabel="share of the sphere", yscale="log", ylim=(1e-12, 1))
        axes.legend(ncols=2)
        return _pixels(figure)


def _pixels(figure: Figure) -> Picture:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])  # type: ignore[no-untyped-call]


AUDIT = Audit("noise-on-clusters", "What noise leaves of a cluster's direction", obstacle, attack)
