"""Measure the noise on a cluster's direction: PrivacyFace's Figure 4, at the first site of a run.

The figure shows cosines between the noise-free mean p of a cluster and its released direction p̂ over many draws: for
several margins ρ, for several ε, for each of three queries, and at ε = 1 for several numbers of public directions. For
the last, p is the mean in all dimensions, so the part outside the span of the directions counts as lost. The figure
compares Algorithm 1 with the private mechanism, whose p is the mean of the cap that it chose. The choice of the cap,
and whether the noisy number of members reaches T, are part of the noise.
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

from fedvisage.audit.finding import Audit, AuditedRun, Finding, Picture
from fedvisage.audit.released import clustering_of, obstacle, open_feature_model
from fedvisage.base.streams import torch_rng
from fedvisage.federation.privacy.clustering import (
    BudgetSplit,
    ClusteringSettings,
    densest_clusters,
    directions,
    occupancy,
    release,
    sanitise_clusters,
)
from fedvisage.federation.privacy.mechanisms import Budget, DerivedDraws, principal_directions
from fedvisage.methods.models.face import means_of
from fedvisage.methods.recognition.privacyface import Options
from fedvisage.report.curves import COLOURS, QUIET, figure_style

MARGINS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0, 32.0)
QUERIES = 3
RUNS, PRIVATE_RUNS = 1000, 200
"""Numbers of draws: the paper's, and a smaller one for the private mechanism, which is slower because it also chooses a
cap in each draw."""

SPANNED, SPANNED_EPSILON = (8, 16, 32, 64, 128), 1.0
"""Numbers of public directions to compare, and the ε of that comparison."""

DIMENSIONS = (64, 128, 256, 512)
CAPS = tuple(np.linspace(0.9, math.pi / 2, 60).tolist())
"""Dimensions and margins for the plot of the share of the sphere in a cap."""

DIRECTIONS = "public directions"
PRINTED, PRIVATE = "Algorithm 1", "private"
Cosines = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MechanismInputs:
    """The input of a mechanism: a site's class centres, public candidates and features, and a way to spend a budget."""

    own: Tensor
    candidates: Tensor
    how: BudgetSplit
    seed: int
    public: Tensor


class NoiselessDraws(DerivedDraws):
    """A source that consumes the same draws but returns zero noise, so the mechanism's choices stay the same."""

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Return zeros after taking the draws."""
        return torch.zeros_like(super().normal(shape))


@dataclass(frozen=True)
class PlotSetting:
    """One box of the figure: its panel, its label, the clustering, and the row of the release that it shows."""

    panel: str
    label: str
    clustering: ClusteringSettings
    row: int = 0
    project: int | None = None


def attack(subject: AuditedRun) -> Finding:
    """Draw many releases under each setting, and measure their cosines with the noise-free means."""
    model, (name, data) = open_feature_model(subject), min(subject.people.apart.items())
    features, public = (torch.from_numpy(model.faces(view).features) for view in (data.train, subject.public))
    local, candidates = means_of(features, data.train), means_of(public, subject.public)
    clustering, how = clustering_of(subject, len(local))
    centres = MechanismInputs(local, candidates, how, subject.recipe.runtime.seed, public)
    options = subject.recipe.method
    variants = list(settings(clustering, options.project if isinstance(options, Options) else None, min(public.shape)))
    boxes = {
        # Algorithm 1 does not use public directions.
        PRINTED: {setting: paper_cosines(centres, setting) for setting in variants if setting.panel != DIRECTIONS},
        PRIVATE: {setting: private_cosines(centres, setting) for setting in variants},
    }
    rows = [
        row(mechanism, setting, cosines)
        for mechanism, by_setting in boxes.items()
        for setting, cosines in by_setting.items()
    ]
    says = (
        f"Of the {len(local)} class centres of {name}: cosines between a cluster's mean and its release, and "
        "the share of draws with any release."
    )
    caption = f"Cosines of p and p̂ at {name} (after Figure 4 of PrivacyFace), whiskers at 5 % and 95 % of the draws"
    share = f"Share of the sphere in a cap (after Figure 3 of PrivacyFace); solid: {local.shape[1]} dimensions, as here"
    pictures = {"cosines": (caption, picture(boxes)), "occupancy": (share, caps(local.shape[1], clustering.margin))}
    return Finding(says, {}, rows, pictures)


def settings(clustering: ClusteringSettings, project: int | None, most: int) -> Iterator[PlotSetting]:
    """Yield the boxes; each panel varies one setting of the run. ``most`` is the number of available directions."""
    single, delta = replace(clustering, queries=1), clustering.budget.delta
    for margin in MARGINS:
        yield PlotSetting("ρ", f"{margin:g}", replace(single, margin=margin), project=project)
    for epsilon in EPSILONS:
        yield PlotSetting("ε", f"{epsilon:g}", replace(single, budget=Budget(epsilon, delta)), project=project)
    for number in range(QUERIES):
        yield PlotSetting("query", str(number + 1), replace(clustering, queries=QUERIES), number, project)
    for number in SPANNED:
        if number <= most:
            little = replace(single, budget=Budget(SPANNED_EPSILON, delta))
            yield PlotSetting(DIRECTIONS, str(number), little, project=number)


def paper_cosines(centres: MechanismInputs, setting: PlotSetting) -> Cosines:
    """Return the cosines under Algorithm 1; NaN if the site has too few clusters of the required size."""
    clusters = densest_clusters(centres.own, setting.clustering)
    if setting.row >= len(clusters):
        return np.full(RUNS, np.nan)
    cluster, source = clusters[setting.row], draws_for(centres, PRINTED, setting)
    mean = directions(cluster.mean[None])
    rows = [sanitise_clusters((cluster,), setting.clustering, len(cluster.mean), source) for _ in range(RUNS)]
    return np.asarray((torch.cat(rows) @ mean.T).squeeze(1).double())


def private_cosines(centres: MechanismInputs, setting: PlotSetting) -> Cosines:
    """Return the cosines under the private mechanism; NaN where the noisy number of members was below T."""
    cosines, basis = [], None
    if setting.project is not None:
        basis = principal_directions(centres.public, setting.project)
    mean_basis = None if setting.panel == DIRECTIONS else basis
    for number in range(PRIVATE_RUNS):
        # The same draws, once with noise and once without: both make the same choice of a cap.
        released, mean = (
            release(centres.own, centres.candidates, clustering, centres.how, source, within).centres[setting.row]
            for clustering, source, within in (
                (setting.clustering, draws_for(centres, PRIVATE, setting, number), basis),
                (
                    replace(setting.clustering, minimum=1),
                    NoiselessDraws(draws_for(centres, PRIVATE, setting, number).generator),
                    mean_basis,
                ),
            )
        )
        cosines.append(float(released @ mean) if bool(released.any()) else math.nan)
    return np.asarray(cosines)


def draws_for(centres: MechanismInputs, *purpose: str | int | PlotSetting) -> DerivedDraws:
    """Return the random stream of a box, or of one of its draws."""
    names = [f"{part.panel} {part.label}" if isinstance(part, PlotSetting) else str(part) for part in purpose]
    return DerivedDraws(torch_rng(centres.seed, "audit", "noise on clusters", *names))


def row(mechanism: str, setting: PlotSetting, cosines: Cosines) -> dict[str, str | float]:
    """Return one row of the table."""
    released = cosines[~np.isnan(cosines)]
    low, middle, high = np.quantile(released, (0.05, 0.5, 0.95)).tolist() if len(released) else ("–",) * 3
    return {
        "mechanism": mechanism,
        "where": f"{setting.panel} {setting.label}",
        "draws": len(cosines),
        "told": len(released) / len(cosines),
        "5 %": low,
        "median": middle,
        "95 %": high,
    }


def picture(boxes: Mapping[str, Mapping[PlotSetting, Cosines]]) -> Picture:
    """Draw one row of panels per mechanism."""
    with figure_style():
        figure = Figure(figsize=(11.0, 2.6 * len(boxes)), layout="constrained", facecolor="white", dpi=110)
        titles = list(dict.fromkeys(setting.panel for by_setting in boxes.values() for setting in by_setting))
        axes = figure.subplots(len(boxes), len(titles), squeeze=False, sharey=True)
        for row_axes, (mechanism, by_setting), colour in zip(axes, boxes.items(), COLOURS, strict=False):
            for panel, title in zip(row_axes, titles, strict=True):
                samples = {
                    setting.label: cosines[~np.isnan(cosines)]
                    for setting, cosines in by_setting.items()
                    if setting.panel == title
                }
                if not samples:  # Algorithm 1 has no public directions
                    panel.set_axis_off()
                    continue
                drawn = panel.boxplot(list(samples.values()), tick_labels=list(samples), whis=(5, 95), showfliers=False)
                for part in (*drawn["boxes"], *drawn["medians"], *drawn["whiskers"], *drawn["caps"]):
                    part.set_color(colour)
                panel.set(xlabel=title if title != DIRECTIONS else f"{title}, ε {SPANNED_EPSILON:g}", ylim=(-0.3, 1.05))
            row_axes[0].set_ylabel(f"cosine, {mechanism}")
        return _pixels(figure)


def caps(dimension: int, margin: float) -> Picture:
    """Plot the share of the sphere in a cap against its margin, in several dimensions, and mark the run's margin."""
    with figure_style():
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
