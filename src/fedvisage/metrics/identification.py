"""Identification rates (1:N) of galleries, of FedFR's personalised benchmark and of IJB.

Two definitions of TPIR@FPIR are in use and give different numbers, so each figure names its definition:

- `published`, as computed by released code for IJB and FedFR: all similarities between probes and other people's
  gallery entries form one list. The threshold is its ⌈N·FPIR⌉-th highest, where N is the number of all probes. TPIR is
  the share of probes with a mate whose similarity to it exceeds the threshold, regardless of the other entries.
  Galleries are joined.
- `nist`: a search for a probe without a mate is a false positive if its highest similarity reaches the threshold. The
  threshold is the lowest with at most FPIR of them. A probe with a mate counts if the mate reaches the threshold and
  alone ranks first. Galleries are searched separately.

FedFR's personalised benchmark ("Evaluation Metrics") measures how well a site's own model recognises the site's own
people. All its features come from one site's model. 1:1: genuine pairs are all pairs of test images of a local
identity, and impostors all pairs of a local test image and another person's image. 1:N: the gallery holds the mean
training feature of each local identity; probes are the local test images and those of other people. Figures are means
over sites. The caller chooses the other people: in the paper they are the other sites' test images, which only a
simulation can pool; a federation uses public images.

The benchmarks IJB-B and IJB-C compare templates, which are groups of images of a person. Two readings give different
numbers, so each figure is stored under the name of its reading:

- `published`, as in the field's released evaluation: features keep the length from the network and are weighted by the
  detector's score. TAR is read where the ROC is nearest to the FAR, possibly above it. Both galleries are joined, and
  TPIR follows the definition `published`.
- `conservative`: features have unit length and equal weight. TAR is taken at the lowest threshold whose FAR does not
  exceed the requested one. Galleries are searched separately, TPIR follows the definition `nist`, and figures are means
  over the galleries.

In both, a template is the mean of its media, which are the means of their images. Rank k is the share of probes with a
mate for which fewer than k other gallery entries reach the mate's similarity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.metrics.pad import largest_count
from fedvisage.metrics.similarity import (
    Faces,
    Features,
    HighestValues,
    blocks,
    check_disjoint,
    join_faces,
    measurable_rates,
    normalise,
    require_measurable,
)
from fedvisage.metrics.verification import FARS, genuine_pairs, just_above, verify_against, verify_pairs

Mode = Literal["published", "nist"]
FPIRS = (1e-2, 1e-1)
PLACE = "evaluation.fpir"


@dataclass(frozen=True)
class Identification:
    """TPIR and threshold for each requested FPIR, and the numbers of searches."""

    tpir: dict[float, float]
    threshold: dict[float, float]  # similarities ≥ this threshold are hits
    mated: int
    unmated: int


@dataclass(frozen=True, eq=False)
class Searches:
    """Similarities from searching a gallery for each probe."""

    mate: Features  # similarity to the mate; −∞ without one
    rival: Features  # the highest similarity to another person
    highest: Features  # the highest of all such similarities over all probes, descending
    strangers: int  # number of similarities between probes and other people

    @property
    def mated(self) -> NDArray[np.bool_]:
        """Mask of the probes that have a mate."""
        return np.isfinite(self.mate)


def identify(galleries: Sequence[Faces], probes: Faces, fpirs: Sequence[float], mode: Mode) -> list[Identification]:
    """Return TPIR@FPIR: one result for all galleries joined (`published`), or one per gallery (`nist`)."""
    if not galleries:
        raise UserError("gallery", "no galleries; enrol at least one identity")
    if mode == "nist":
        return [_identify_as_nist(gallery, probes, fpirs) for gallery in galleries]
    return [_identify_as_published(join_faces(galleries), probes, fpirs)]


def search(gallery: Faces, probes: Faces, wanted: int = 1) -> Searches:
    """Search the gallery for every probe and keep the `wanted` highest similarities to other people."""
    _check(gallery, probes)
    order = np.argsort(gallery.identity, kind="stable")
    place = np.minimum(np.searchsorted(gallery.identity[order], probes.identity), len(order) - 1)
    # mate_at is the gallery position of each probe's mate, or −1.
    mate_at = np.where(gallery.identity[order][place] == probes.identity, order[place], -1)
    mate = np.full(len(probes), -np.inf, np.float32)
    rival, highest = mate.copy(), HighestValues(wanted)
    for rows, columns, similarity in blocks(probes.features, gallery.features):
        in_block = np.flatnonzero((mate_at[rows] >= columns.start) & (mate_at[rows] < columns.stop))
        mate_cells = in_block, mate_at[rows][in_block] - columns.start
        mate[rows.start + in_block] = similarity[mate_cells]
        similarity[mate_cells] = -np.inf
        np.maximum(rival[rows], similarity.max(axis=1), out=rival[rows])
        highest.add(similarity)
    strangers = len(probes) * len(gallery) - int((mate_at >= 0).sum())
    return Searches(mate, rival, highest.values(), strangers)


def _identify_as_published(gallery: Faces, probes: Faces, fpirs: Sequence[float]) -> Identification:
    _check(gallery, probes)
    require_measurable(fpirs, len(probes), PLACE, "probes")
    rank = {fpir: math.ceil(round(fpir * len(probes), 6)) for fpir in fpirs}
    searches = search(gallery, probes, max(rank.values()))
    mated = _mated_similarities(searches)
    if len(searches.highest) < max(rank.values()):
        message = f"has too few entries for FPIR {max(fpirs):g}: {searches.strangers} similarities to other identities"
        raise UserError("gallery", message)
    threshold = {fpir: just_above(searches.highest, at - 1, searches.strangers) for fpir, at in rank.items()}
    tpir = {fpir: float(np.mean(mated >= line)) for fpir, line in threshold.items()}
    return Identification(tpir, threshold, len(mated), len(probes) - len(mated))


def _identify_as_nist(gallery: Faces, probes: Faces, fpirs: Sequence[float]) -> Identification:
    searches = search(gallery, probes)
    mated, unmated = _mated_similarities(searches), np.sort(searches.rival[~searches.mated])[::-1]
    if not len(unmated):
        raise UserError("probes", "all searches have a mate in the gallery; false positives need searches without one")
    require_measurable(fpirs, len(unmated), PLACE, "searches without a mate")
    first = mated > searches.rival[searches.mated]
    threshold = {fpir: just_above(unmated, largest_count(fpir, len(unmated)), len(unmated)) for fpir in fpirs}
    tpir = {fpir: float(np.mean(first & (mated >= line))) for fpir, line in threshold.items()}
    return Identification(tpir, threshold, len(mated), len(unmated))


def _mated_similarities(searches: Searches) -> Features:
    """Return the similarities of mates; without mates TPIR is undefined."""
    if not searches.mated.any():
        raise UserError("probes", "no search has a mate in the gallery; give images of enrolled identities")
    return np.asarray(searches.mate[searches.mated])


def _check(gallery: Faces, probes: Faces) -> None:
    if not len(gallery):
        raise UserError("gallery", "is empty; enrol at least one identity")
    if not len(probes):
        raise UserError("probes", "no searches; give images to search for")
    names, entries = np.unique(gallery.identity, return_counts=True)
    if (entries > 1).any():
        twice = int(names[np.argmax(entries > 1)])
        raise UserError("gallery", f"identity {twice} is enrolled twice; merge its images into one entry")


# FedFR's personalised benchmark.


PERSONAL_FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
PERSONAL_FPIRS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class SiteFigures:
    """Figures of one site, None where there are too few pairs, and the numbers of pairs and probes.

    `counts` holds the numbers of genuine pairs, impostor pairs, probes with a mate and probes without.
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
) -> SiteFigures:
    """Return the figures of one site's model on the test images of its own people and of strangers."""
    impostors, probes = len(test) * len(strangers), len(test) + len(strangers)
    searches = probes if mode == "published" else len(strangers)
    genuine = len(genuine_pairs(test))
    tar: dict[float, float | None] = dict.fromkeys(fars)
    tpir: dict[float, float | None] = dict.fromkeys(fpirs)
    if genuine and (rates := measurable_rates(fars, impostors)):
        tar |= verify_against(test, strangers, rates).tar
    if len(test) and (rates := measurable_rates(fpirs, searches)):
        gallery = enrol_means(training, unit_length=unit_length)
        tpir |= identify_site(gallery, test, strangers, rates, mode).tpir
    return SiteFigures(tar, tpir, (genuine, impostors, len(test), len(strangers)))


def enrol_means(training: Faces, *, unit_length: bool = True) -> Faces:
    """Return a gallery with the mean feature of each identity, in order of identity.

    Means are compared by cosine. The paper's released code does not normalise the mean (`unit_length=False`), so
    identities with consistent images score higher.
    """
    if not len(training):
        raise UserError("gallery", "is empty; a site enrols its identities from their training images")
    order = np.argsort(training.identity, kind="stable")
    names, first, images = np.unique(training.identity[order], return_index=True, return_counts=True)
    sums = np.add.reduceat(training.features[order], first, axis=0)
    means = np.asarray(sums / images[:, None], np.float32)
    return Faces(normalise(means) if unit_length else means, names)


def identify_site(gallery: Faces, test: Faces, others: Faces, fpirs: Sequence[float], mode: Mode) -> Identification:
    """Return the 1:N figures of one site; a local probe whose identity is not enrolled is an error, not an impostor."""
    check_disjoint(gallery.identity.tolist(), others.identity.tolist(), "identification")
    unknown = np.setdiff1d(test.identity, gallery.identity)
    if len(unknown):
        message = f"{len(unknown)} identities have test images but no images to enrol, such as {unknown[0]}"
        raise UserError("gallery", message + "; give each images of both kinds, or leave it out")
    probes = join_faces([test, others]) if len(others) else test
    return identify([gallery], probes, fpirs, mode)[0]


# The benchmarks IJB-B and IJB-C.

RANKS = (1, 5, 10)
PUBLISHED, CONSERVATIVE = "published", "conservative"
READINGS = (PUBLISHED, CONSERVATIVE)

_MODES: Mapping[str, Mode] = {PUBLISHED: "published", CONSERVATIVE: "nist"}


def ijb_verification(
    similarity: Features, same: NDArray[np.bool_], reading: str, fars: Sequence[float] = ()
) -> dict[float, float]:
    """Return TAR at those of the FARs (by default the papers') that a list of pairs can measure."""
    rates = measurable_rates(fars or FARS, int((~same).sum()))
    if not rates or not same.any():
        return {}
    return nearest_tar(similarity, same, rates) if reading == PUBLISHED else verify_pairs(similarity, same, rates).tar


def nearest_tar(similarity: Features, same: NDArray[np.bool_], fars: Sequence[float]) -> dict[float, float]:
    """Return TAR where the ROC's FAR is nearest to each FAR, and at the higher of two equally near.

    As in released code, the ROC consists of its corners only: a run of impostors alone is read at one of its ends.
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
    return {rate: float(tar[np.argmin(np.abs(far - rate))]) for rate in fars}


def ijb_identification(
    galleries: Sequence[Faces], probes: Faces, reading: str, fpirs: Sequence[float] = ()
) -> tuple[dict[float, float], dict[int, float]]:
    """Return TPIR at measurable FPIRs, and rank rates, over the joined galleries or as means over galleries."""
    if reading == PUBLISHED:
        galleries = [join_faces(galleries)]
    has_mate = [np.isin(probes.identity, gallery.identity) for gallery in galleries]
    if not all(mask.any() for mask in has_mate):
        return {}, {}
    ranks = [ranks_of(gallery, probes.take(mask)) for gallery, mask in zip(galleries, has_mate, strict=True)]
    rank = {depth: float(np.mean([np.mean(gallery_ranks < depth) for gallery_ranks in ranks])) for depth in RANKS}
    searches = len(probes) if reading == PUBLISHED else min(int((~mask).sum()) for mask in has_mate)
    rates = measurable_rates(fpirs or FPIRS, searches)
    if not rates:
        return {}, rank
    tpirs = [result.tpir for result in identify(galleries, probes, rates, _MODES[reading])]
    return {rate: float(np.mean([tpir[rate] for tpir in tpirs])) for rate in rates}, rank


def ranks_of(gallery: Faces, probes: Faces) -> NDArray[np.int64]:
    """Return the number of other gallery entries at least as similar to each probe as its mate; all probes have one."""
    place = np.argsort(gallery.identity, kind="stable")
    mate_at = place[np.searchsorted(gallery.identity[place], probes.identity)]
    mate, above = np.empty(len(probes), np.float32), np.zeros(len(probes), np.int64)
    for rows, columns, similarity in blocks(probes.features, gallery.features):
        in_block = np.flatnonzero((mate_at[rows] >= columns.start) & (mate_at[rows] < columns.stop))
        mate[rows.start + in_block] = similarity[in_block, mate_at[rows][in_block] - columns.start]
    for rows, _, similarity in blocks(probes.features, gallery.features):
        above[rows] += (similarity >= mate[rows][:, None]).sum(axis=1)
    return above - 1
