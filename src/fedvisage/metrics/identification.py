"""Who of those in the gallery is this, if anyone? True and false positive identification rates.

Two readings are in use, and they give different numbers, so each figure names its own:

- `published`, as released code for IJB and for FedFR counts: all similarities of probes with somebody else's gallery
  entry go into one list; the threshold is its ⌈N·FPIR⌉-th highest, N the number of all probes; TPIR is the share of
  the probes with a mate whose similarity to it is above the threshold, no matter who else is. Galleries are joined.
- `nist`: a search of a probe without a mate is a false positive if its highest similarity reaches the threshold, which
  is the lowest with at most FPIR of them; a probe with a mate counts if the mate reaches the threshold and is alone
  first. Galleries are searched apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.metrics.pad import allowed
from fedvisage.metrics.similarity import (
    Faces,
    Features,
    Highest,
    blocks,
    disjoint,
    measurable,
    require_measurable,
    unit,
)
from fedvisage.metrics.verification import FARS, Verification, genuine_pairs, just_above, verify_against, verify_pairs

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


# FedFR's personalised benchmark ("Evaluation Metrics"): how well a site's own model knows the site's own people.
#
# All features here come from one site's model. 1:1: genuine pairs are all pairs of test images of a local identity,
# impostors all pairs of a local test image and one of somebody else. 1:N: the gallery is the mean training feature
# of
# each local identity; probes are the local test images and those of everybody else. Figures are means over sites.
#
# Who "everybody else" is, the caller says. In the paper they are the other sites' test images, which only a
# simulation
# can pool; a federation takes public images.


PERSONAL_FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
PERSONAL_FPIRS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class Personalised:
    """One site's figures, or their means over sites."""

    tar: dict[float, float]
    tpir: dict[float, float]


@dataclass(frozen=True)
class OfSite:
    """One site's figures, None where there are too few pairs, and how many pairs and probes there are.

    The counts are of genuine pairs, impostor pairs, probes with a mate and others.
    """

    tar: dict[float, float | None]
    tpir: dict[float, float | None]
    counts: tuple[int, int, int, int]


def figures_of_site(
    training: Faces,
    test: Faces,
    strangers: Faces,
    fars: Sequence[float],
    fpirs: Sequence[float],
    mode: Mode,
    *,
    unit_length: bool = True,
) -> OfSite:
    """Return what one site's model makes of its own people's test images and of strangers."""
    impostors, probes = len(test) * len(strangers), len(test) + len(strangers)
    searches = probes if mode == "published" else len(strangers)
    genuine = len(genuine_pairs(test)[0])
    tar: dict[float, float | None] = dict.fromkeys(fars)
    tpir: dict[float, float | None] = dict.fromkeys(fpirs)
    if genuine and (seen := measurable(fars, impostors)):
        tar |= verify_against(test, strangers, seen).tar
    if len(test) and (seen := measurable(fpirs, searches)):
        gallery = enrolled(training, unit_length=unit_length)
        tpir |= identify_site(gallery, test, strangers, seen, mode).tpir
    return OfSite(tar, tpir, (genuine, impostors, len(test), len(strangers)))


def enrolled(training: Faces, *, unit_length: bool = True) -> Faces:
    """Return a gallery: the mean of each identity's features, in order of identity.

    The mean is compared by its cosine. The paper's released code leaves it as long as it is (`unit_length=False`),
    so that identities whose images agree score higher.
    """
    if not len(training):
        raise UserError("gallery", "is empty; a site enrols its identities from their training images")
    order = np.argsort(training.identity, kind="stable")
    names, first, images = np.unique(training.identity[order], return_index=True, return_counts=True)
    sums = np.add.reduceat(training.features[order], first, axis=0)
    means = np.asarray(sums / images[:, None], np.float32)
    return Faces(unit(means) if unit_length else means, names)


def identify_site(gallery: Faces, test: Faces, others: Faces, fpirs: Sequence[float], mode: Mode) -> Identification:
    """Return one site's 1:N figures; a local probe whose identity is not enrolled is a mistake, not an impostor."""
    disjoint(gallery.identity.tolist(), others.identity.tolist(), "identification")
    unknown = sorted(set(test.identity.tolist()) - set(gallery.identity.tolist()))
    if unknown:
        message = f"{len(unknown)} identities have test images but none to enrol, such as {unknown[0]}"
        raise UserError("gallery", message + "; give each images of both kinds, or leave it out")
    both = [test, others] if len(others) else [test]
    probes = Faces(np.concatenate([one.features for one in both]), np.concatenate([one.identity for one in both]))
    return identify([gallery], probes, fpirs, mode)[0]


def mean_over_sites(verified: Sequence[Verification], identified: Sequence[Identification]) -> Personalised:
    """Return the mean figures, each site counting the same."""
    return Personalised(_mean([one.tar for one in verified]), _mean([one.tpir for one in identified]))


def _mean(tables: Sequence[dict[float, float]]) -> dict[float, float]:
    if len({tuple(table) for table in tables}) > 1:
        raise ValueError("sites were asked for different rates")
    return {rate: float(np.mean([table[rate] for table in tables])) for rate in (tables[0] if tables else ())}


# The benchmarks IJB-B and IJB-C: many images of a person are one template, and templates are compared.
#
# Two readings are in use, and they give different numbers, so each figure stands below the name of its own:
#
# - `published`, as the released evaluation of the field counts: features are as long as the network made them and
# count
# by the detector's score; TAR is read where the ROC is nearest to the FAR, which may lie above it; both galleries
# are
# joined, and TPIR is that of released code (`identification`).
# - `conservative`: features are of unit length and count alike; TAR at the lowest threshold whose FAR is at most the
# one
# asked for; galleries are searched apart, and TPIR is NIST's. Figures are means over the galleries.
#
# In both a template is the mean of its media, which are the means of their images; rank k is the share of probes
# with a
# mate fewer than k others of the gallery reach.


RANKS = (1, 5, 10)
PUBLISHED, CONSERVATIVE = "published", "conservative"
READINGS = (PUBLISHED, CONSERVATIVE)

_MODES: Mapping[str, Mode] = {PUBLISHED: "published", CONSERVATIVE: "nist"}


def verified(
    similarity: Features, same: NDArray[np.bool_], reading: str, fars: Sequence[float] = ()
) -> dict[float, float]:
    """Return TAR at those FARs, the papers' if none is given, that a list of pairs can show."""
    wanted = measurable(fars or FARS, int((~same).sum()))
    if not wanted or not same.any():
        return {}
    return nearest_tar(similarity, same, wanted) if reading == PUBLISHED else verify_pairs(similarity, same, wanted).tar


def nearest_tar(similarity: Features, same: NDArray[np.bool_], fars: Sequence[float]) -> dict[float, float]:
    """Return TAR where the ROC's FAR is nearest to each FAR; of two equally near, at the higher.

    The ROC has its corners only, as released code draws it: within a run of impostors alone it is read at an end.
    """
    order = np.argsort(-similarity, kind="stable")
    last = np.flatnonzero(np.append(np.diff(similarity[order]) != 0, True))
    genuine = np.cumsum(same[order])[last]
    impostors = last + 1 - genuine
    if len(last) > 2:
        bent = (np.diff(impostors, 2) != 0) | (np.diff(genuine, 2) != 0)
        corners = np.concatenate([[True], bent, [True]])
        genuine, impostors = genuine[corners], impostors[corners]
    genuine, impostors = np.append(0, genuine)[::-1], np.append(0, impostors)[::-1]
    far, tar = impostors / impostors[0], genuine / genuine[0]
    return {wanted: float(tar[np.argmin(np.abs(far - wanted))]) for wanted in fars}


def identified(
    galleries: Sequence[Faces], probes: Faces, reading: str, fpirs: Sequence[float] = ()
) -> tuple[dict[float, float], dict[int, float]]:
    """Return TPIR at those FPIRs that searches can show, and rank rates: over all galleries, or as means over them."""
    if reading == PUBLISHED:
        galleries = [joined(galleries)]
    known = [np.isin(probes.identity, gallery.identity) for gallery in galleries]
    if not all(one.any() for one in known):
        return {}, {}
    ranks = [ranks_of(gallery, probes.take(some)) for gallery, some in zip(galleries, known, strict=True)]
    rank = {most: float(np.mean([np.mean(one < most) for one in ranks])) for most in RANKS}
    searches = len(probes) if reading == PUBLISHED else min(int((~some).sum()) for some in known)
    wanted = measurable(fpirs or FPIRS, searches)
    if not wanted:
        return {}, rank
    found = [one.tpir for one in identify(galleries, probes, wanted, _MODES[reading])]
    return {rate: float(np.mean([one[rate] for one in found])) for rate in wanted}, rank


def joined(galleries: Sequence[Faces]) -> Faces:
    """Put galleries together."""
    features, identity = ([getattr(one, name) for one in galleries] for name in ("features", "identity"))
    return Faces(np.concatenate(features), np.concatenate(identity))


def ranks_of(gallery: Faces, probes: Faces) -> NDArray[np.int64]:
    """Return how many others of the gallery each probe is at least as similar to as to its mate; all have a mate."""
    place = np.argsort(gallery.identity, kind="stable")
    mate_at = place[np.searchsorted(gallery.identity[place], probes.identity)]
    mate, above = np.empty(len(probes), np.float32), np.zeros(len(probes), np.int64)
    for rows, columns, similarity in blocks(probes.features, gallery.features):
        here = np.flatnonzero((mate_at[rows] >= columns.start) & (mate_at[rows] < columns.stop))
        mate[rows.start + here] = similarity[here, mate_at[rows][here] - columns.start]
    for rows, _, similarity in blocks(probes.features, gallery.features):
        above[rows] += (similarity >= mate[rows][:, None]).sum(axis=1)
    return above - 1
