"""FedFR's personalised benchmark ("Evaluation Metrics"): how well a site's own model knows the site's own people.

All features here come from one site's model. 1:1: genuine pairs are all pairs of test images of a local identity,
impostors all pairs of a local test image and one of somebody else. 1:N: the gallery is the mean training feature of
each local identity; probes are the local test images and those of everybody else. Figures are means over sites.

Who "everybody else" is, the caller says. In the paper they are the other sites' test images, which only a simulation
can pool; a federation takes public images.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedvisage.errors import UserError
from fedvisage.metrics.identification import Identification, Mode, identify
from fedvisage.metrics.similarity import Faces, disjoint, measurable, unit
from fedvisage.metrics.verification import Verification, genuine_pairs, verify_against

FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
FPIRS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


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
