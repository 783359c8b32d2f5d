"""The papers' t-SNE figure: what the features know of the site (colour) and of the label (marker).

Each set has a line where a linear support vector machine parts its bona fide images from its attacks in the plane
(N. Alkhunaizi et al., "FedSIS", 2023, Fig. 3): sets whose lines lie alike would be judged alike by one linear head.
"""

import numpy as np
from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from fedvisage.report.drawing import INK, canvas, colour, key, styled, svg
from fedvisage.report.run_files import Features
from fedvisage.streams import numpy_rng

MOST_POINTS = 1000  # more are slow to place and only cover each other
MOST_SITES = 6  # as many colours as can be told apart
FEWEST_POINTS = 24  # below, perplexity is a handful and the drawing says nothing
FEWEST_OF_A_CLASS = 5  # below, a line through a set says nothing
SEED = 0  # a drawing of given features, not a draw of the run


def tsne_figure(features: Features) -> str | None:
    """Draw the features in two dimensions, in a frame without scales; None when there are too few to place."""
    if len(features.label) < FEWEST_POINTS:
        return None
    chosen = sample(len(features.label))
    place, label, site = project(features.values[chosen]), features.label[chosen], features.site[chosen]
    names = np.unique(features.site).tolist()
    shown = {name: min(index, MOST_SITES - 1) for index, name in enumerate(names)}
    group = np.array([shown[name] for name in site.tolist()])
    with styled():
        figure, axes = canvas((4.2, 4.0))
        for index in range(min(len(names), MOST_SITES)):
            live, attack = (place[(group == index) & (label == value)] for value in (1, 0))
            for points, marker, width in ((live, "o", 0.0), (attack, "x", 0.9)):
                style = {"marker": marker, "color": colour(index), "linewidths": width}
                axes.scatter(points[:, 0], points[:, 1], s=14, alpha=0.75, **style)  # type: ignore[arg-type]
        middle, reach = (place.max(0) + place.min(0)) / 2, float(np.ptp(place, axis=0).max()) * 0.54 or 1.0
        axes.set(xlim=middle[0] + np.array([-reach, reach]), ylim=middle[1] + np.array([-reach, reach]))
        axes.set_aspect("equal")  # the frame is that of the points: lines may leave it
        for index in range(min(len(names), MOST_SITES)):
            ends = boundary(place[group == index], label[group == index])
            if ends is not None:
                axes.plot(ends[:, 0], ends[:, 1], color=colour(index), linewidth=1.2)
        axes.set(xticks=[], yticks=[])
        for side in axes.spines.values():
            side.set_visible(True)
        texts = names if len(names) <= MOST_SITES else [*names[: MOST_SITES - 1], "other sites"]
        dots: list[Artist] = [_dot("s", colour(index)) for index in range(len(texts))]
        key(figure, [*dots, _dot("o", INK), _dot("x", INK)], [*texts, "bona fide", "attack"], 3)
        return svg(figure, "tsne")


def boundary(place: NDArray[np.float32], label: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Return both ends of the line that parts a set's classes best: as far as its points lie along it, and a bit more.

    None where a class has too few points, or where all points lie on one side.
    """
    if min((label == value).sum() for value in (0, 1)) < FEWEST_OF_A_CLASS:
        return None
    machine = SVC(kernel="linear").fit(place, label)
    normal = machine.coef_[0]
    length = float(np.linalg.norm(normal))
    if length < 1e-9:
        return None
    middle = place.mean(0)
    foot = middle - normal * float(machine.decision_function(middle[None])[0]) / length**2
    if np.linalg.norm(foot - middle) > np.linalg.norm(place - middle, axis=1).max():
        return None  # classes that lie in one heap are parted by a line far away, which parts nothing
    along = np.array([-normal[1], normal[0]]) / length
    reach = (place - foot) @ along
    return np.asarray(foot + np.outer([reach.min(), reach.max()], along) * 1.1)


def sample(count: int) -> NDArray[np.int64]:
    """Choose which of `count` points to draw: all, or the same MOST_POINTS each time."""
    if count <= MOST_POINTS:
        return np.arange(count)
    return np.sort(numpy_rng(SEED, "tsne").choice(count, MOST_POINTS, replace=False))


def project(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Place the points in two dimensions: principal components first, then t-SNE from a fixed start.

    In one thread: several meet in every step of t-SNE, and where others compute beside them they wait for each other.
    """
    components = min(50, *values.shape)
    reduced = PCA(components, svd_solver="full").fit_transform(values.astype(np.float64))
    perplexity = min(30.0, (len(values) - 1) / 3)
    with threadpool_limits(limits=1):
        placed = TSNE(perplexity=perplexity, init="pca", random_state=SEED).fit_transform(reduced)
    return np.asarray(placed, dtype=np.float32)


def _dot(marker: str, tint: str) -> Line2D:
    return Line2D([], [], linestyle="", marker=marker, color=tint, markersize=5)
