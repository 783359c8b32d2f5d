"""The shortcut meter: how well single numbers tell a set's attacks from its bona fide images.

A number that a camera decides (sharpness, noise, colour balance and the like) should say next to nothing about the
class. Where one does, a network can score well by it without ever looking at the presentation, and fails before the
next camera. The linear model has all numbers at once and is judged on subjects that it did not learn from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import BONA_FIDE
from fedvisage.faces.cues import NAMES, OF_A_CAMERA, cues
from fedvisage.streams import numpy_rng

WARN = 0.75
"""From here on a single number, or the linear model, is a shortcut that a network will find."""
MOST = 600
"""Images of a species that are looked at, drawn once for all."""
LEAST = 20
"""Images of a class, below which an AUC says nothing."""
FOLDS = 5
ANY = "any attack"
Array = npt.NDArray[np.float64]
Texts = npt.NDArray[np.str_]


@dataclass(frozen=True)
class Shortcuts:
    """AUC of each cue for each species, and of the linear model: on all cues, and on those of a camera.

    An AUC is of the bona fide images, so one below 0.5 means that attacks have more of it.
    """

    cues: dict[str, dict[str, float]]
    linear: dict[str, tuple[float, float]]
    images: dict[str, int]

    def lines(self) -> list[str]:
        """Return a table, then warnings."""
        if not self.cues:
            return [
                f"shortcuts: too few images to say; {LEAST} of bona fide faces and of a species of attacks are needed"
            ]
        heads = [*self.cues]
        rows = [(name, *(_shown(self.cues[kind][name]) for kind in heads)) for name in NAMES]
        rows += [("linear, all", *(_plain(self.linear[kind][0]) for kind in heads))]
        rows += [("linear, camera", *(_plain(self.linear[kind][1]) for kind in heads))]
        table = [("cue", *heads), *rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(heads) + 1)]
        shown = ["  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(
            row[1:], widths[1:], strict=True))]) for row in table]  # fmt: skip
        counts = ", ".join(f"{count:,} {name}" for name, count in self.images.items())
        head = f"shortcuts: AUC of single numbers over {counts}; 0.50 says nothing, - attacks have more of it"
        return [head, *shown, *self.warnings()]

    def warnings(self) -> list[str]:
        """Say which numbers separate the classes so well that a network will learn them."""
        strong = [
            (max(auc, 1 - auc), name, kind)
            for kind, found in self.cues.items()
            for name, auc in found.items()
            if max(auc, 1 - auc) >= WARN and name in OF_A_CAMERA
        ]
        together = [(camera, kind) for kind, (_, camera) in self.linear.items() if camera >= WARN]
        if strong:
            auc, name, kind = max(strong)
            more = f" ({len({cue for _, cue, _ in strong})} cues reach {WARN})" if len(strong) > 1 else ""
            return [
                f"warning: {name} alone tells bona fide images from {kind} with an AUC of {auc:.2f}{more}: a model can"
                " learn the camera instead of the presentation; record both classes with the same cameras and light"
            ]
        if together:
            auc, kind = max(together)
            return [
                f"warning: what a camera decides, taken together, tells bona fide images from {kind} with an AUC of "
                f"{auc:.2f}, though no single number does; record both classes with the same cameras and light"
            ]
        return []


def shortcuts_of(found: PreparedSet) -> Shortcuts:
    """Measure a set: a table for each of its species, and for all together where there are several."""
    rows = found.rows
    chosen = {kind: _drawn(found, kind) for kind in (BONA_FIDE, *sorted({*rows.species.tolist()} - {BONA_FIDE}))}
    images = {kind: len(indices) for kind, indices in chosen.items()}
    attacks = [kind for kind in chosen if kind != BONA_FIDE and images[kind] >= LEAST]
    if images[BONA_FIDE] < LEAST or not attacks:
        return Shortcuts({}, {}, images)
    tables = {kind: _table(found, indices) for kind, indices in chosen.items()}
    groups: dict[str, Sequence[str]] = {kind: [kind] for kind in attacks}
    if len(attacks) > 1:
        groups[ANY] = attacks
    singles, linear = {}, {}
    for name, kinds in groups.items():
        values = np.concatenate([tables[BONA_FIDE], *(tables[kind] for kind in kinds)])
        label = np.arange(len(values)) < images[BONA_FIDE]
        subjects = rows.subject[np.concatenate([chosen[BONA_FIDE], *(chosen[kind] for kind in kinds)])]
        singles[name] = {cue: auc_of(values[:, column], label) for column, cue in enumerate(NAMES)}
        camera = values[:, [column for column, cue in enumerate(NAMES) if cue in OF_A_CAMERA]]
        linear[name] = linear_auc(values, label, subjects), linear_auc(camera, label, subjects)
    return Shortcuts(singles, linear, images)


def auc_of(values: Array, label: npt.NDArray[np.bool_]) -> float:
    """Return the chance that a bona fide image has more than an attack, ties counting half (Mann and Whitney)."""
    live, attacks = int(label.sum()), int((~label).sum())
    return float((rankdata(values)[label].sum() - live * (live + 1) / 2) / (live * attacks))


def linear_auc(values: Array, label: npt.NDArray[np.bool_], subjects: Texts) -> float:
    """Return the AUC of a logistic regression, each subject judged by one that did not see it; NaN with one subject."""
    people = len(np.unique(subjects))
    if people < 2:
        return float("nan")
    folds = GroupKFold(min(FOLDS, people), shuffle=True, random_state=0)
    if any(len(np.unique(label[train])) < 2 for train, _ in folds.split(values, label, subjects)):
        return float("nan")
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, class_weight="balanced"))
    judged = cross_val_predict(model, values, label, groups=subjects, cv=folds, method="decision_function")
    return auc_of(judged, label)


def _drawn(found: PreparedSet, species: str) -> npt.NDArray[np.int64]:
    indices = np.flatnonzero(found.rows.species == species)
    order = numpy_rng(0, "shortcuts", species).permutation(len(indices))[:MOST]
    return indices[np.sort(order)].astype(np.int64)


def _table(found: PreparedSet, indices: npt.NDArray[np.int64]) -> Array:
    measured: list[Mapping[str, float]] = [cues(np.ascontiguousarray(found.images[index])) for index in indices]
    return np.array([[one[name] for name in NAMES] for one in measured], np.float64)


def _shown(auc: float) -> str:
    return f"{max(auc, 1 - auc):.2f}{'-' if auc < 0.5 else ' '}"


def _plain(auc: float) -> str:
    return "  ? " if np.isnan(auc) else f"{auc:.2f} "
