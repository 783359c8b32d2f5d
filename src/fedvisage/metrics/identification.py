"""Who of those in the gallery is this, if anyone? True and false positive identification rates.

Two readings are in use, and they give different numbers, so each figure names its own:

- `published`, as released code for IJB and for FedFR counts: all similarities of probes with somebody else's gallery
  entry go into one list; the threshold is its ⌈N·FPIR⌉-th highest, N the number of all probes; TPIR is the share of
  the probes with a mate whose similarity to it is above the threshold, no matter who else is. Galleries are joined.
- `nist`: a search of a probe without a mate is a false positive if its highest similarity reaches the threshold, which
  is the lowest with at most FPIR of them; a probe with a mate counts if the mate reaches the threshold and is alone
  first. Galleries are searched apart.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedvisage.errors import UserError
from fedvisage.metrics.pad import allowed
from fedvisage.metrics.similarity import Faces, Features, Highest, blocks, require_measurable
from fedvisage.metrics.verification import just_above

Mode = Literal["published", "nist"]
FPIRS = (1e-2, 1e-1)
PLACE = "evaluation.fpir"


@dataclass(frozen=True)
class Identification:
    """TPIR and threshold for each FPIR asked for, and the searches that they come from."""

    tpir: dict[float, float]
    threshold: dict[float, float]  # a similarity from here on is a hit
    mated: int
    unmated: int


@dataclass(frozen=True, eq=False)
class Searches:
    """What searching a gallery for each probe shows."""

    mate: Features  # similarity to the mate; −∞ without one
    rival: Features  # the highest similarity to somebody else
    highest: Features  # the highest similarities to somebody else of all probes together, descending
    strangers: int  # how many of those similarities there are

    @property
    def mated(self) -> NDArray[np.bool_]:
        """Which probes have a mate."""
        return np.isfinite(self.mate)


def identify(galleries: Sequence[Faces], probes: Faces, fpirs: Sequence[float], mode: Mode) -> list[Identification]:
    """Return TPIR@FPIR: one result for all galleries joined (`published`), or one for each (`nist`)."""
    if not galleries:
        raise UserError("gallery", "there is none; enrol somebody")
    if mode == "nist":
        return [_nist(gallery, probes, fpirs) for gallery in galleries]
    features, identity = zip(*((gallery.features, gallery.identity) for gallery in galleries), strict=True)
    return [_published(Faces(np.concatenate(features), np.concatenate(identity)), probes, fpirs)]


def search(gallery: Faces, probes: Faces, wanted: int = 1) -> Searches:
    """Search the gallery for every probe, keeping the `wanted` highest similarities to somebody else."""
    _check(gallery, probes)
    order = np.argsort(gallery.identity, kind="stable")
    place = np.minimum(np.searchsorted(gallery.identity[order], probes.identity), len(order) - 1)
    mate_at = np.where(gallery.identity[order][place] == probes.identity, order[place], -1)
    mate = np.full(len(probes), -np.inf, np.float32)
    rival, highest = mate.copy(), Highest(wanted)
    for rows, columns, similarity in blocks(probes.features, gallery.features):
        here = np.flatnonzero((mate_at[rows] >= columns.start) & (mate_at[rows] < columns.stop))
        at = here, mate_at[rows][here] - columns.start
        mate[rows.start + here] = similarity[at]
        similarity[at] = -np.inf
        np.maximum(rival[rows], similarity.max(axis=1), out=rival[rows])
        highest.add(similarity)
    strangers = len(probes) * len(gallery) - int((mate_at >= 0).sum())
    return Searches(mate, rival, highest.values(), strangers)


def _published(gallery: Faces, probes: Faces, fpirs: Sequence[float]) -> Identification:
    _check(gallery, probes)
    require_measurable(fpirs, len(probes), PLACE, "probes")
    rank = {fpir: math.ceil(round(fpir * len(probes), 6)) for fpir in fpirs}
    searches = search(gallery, probes, max(rank.values()))
    mated = _mated(searches)
    if len(searches.highest) < max(rank.values()):
        message = f"has too few entries for FPIR {max(fpirs):g}: {searches.strangers} similarities to somebody else"
        raise UserError("gallery", message)
    threshold = {fpir: just_above(searches.highest, at - 1, searches.strangers) for fpir, at in rank.items()}
    tpir = {fpir: float(np.mean(mated >= line)) for fpir, line in threshold.items()}
    return Identification(tpir, threshold, len(mated), len(probes) - len(mated))


def _nist(gallery: Faces, probes: Faces, fpirs: Sequence[float]) -> Identification:
    searches = search(gallery, probes)
    mated, unmated = _mated(searches), np.sort(searches.rival[~searches.mated])[::-1]
    if not len(unmated):
        raise UserError("probes", "all have a mate in the gallery; false positives need some that have none")
    require_measurable(fpirs, len(unmated), PLACE, "searches without a mate")
    first = mated > searches.rival[searches.mated]
    threshold = {fpir: just_above(unmated, allowed(fpir, len(unmated)), len(unmated)) for fpir in fpirs}
    tpir = {fpir: float(np.mean(first & (mated >= line))) for fpir, line in threshold.items()}
    return Identification(tpir, threshold, len(mated), len(unmated))


def _mated(searches: Searches) -> Features:
    """Return the similarities of mates; without any there is no TPIR."""
    if not searches.mated.any():
        raise UserError("probes", "none has a mate in the gallery; give images of enrolled identities")
    return np.asarray(searches.mate[searches.mated])


def _check(gallery: Faces, probes: Faces) -> None:
    if not len(gallery):
        raise UserError("gallery", "is empty; enrol somebody")
    if not len(probes):
        raise UserError("probes", "there are none; give images to search for")
    names, entries = np.unique(gallery.identity, return_counts=True)
    if (entries > 1).any():
        twice = int(names[np.argmax(entries > 1)])
        raise UserError("gallery", f"identity {twice} is enrolled twice; join its images into one entry")
