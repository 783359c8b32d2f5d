"""The benchmarks IJB-B and IJB-C: many images of a person are one template, and templates are compared.

Two readings are in use, and they give different numbers, so each figure stands below the name of its own:

- `published`, as the released evaluation of the field counts: features are as long as the network made them and count
  by the detector's score; TAR is read where the ROC is nearest to the FAR, which may lie above it; both galleries are
  joined, and TPIR is that of released code (`identification`).
- `conservative`: features are of unit length and count alike; TAR at the lowest threshold whose FAR is at most the one
  asked for; galleries are searched apart, and TPIR is NIST's. Figures are means over the galleries.

In both a template is the mean of its media, which are the means of their images; rank k is the share of probes with a
mate fewer than k others of the gallery reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedvisage.metrics.identification import FPIRS, Mode, identify
from fedvisage.metrics.similarity import Faces, Features, blocks, measurable
from fedvisage.metrics.verification import FARS, verify_pairs

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
