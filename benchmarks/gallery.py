"""Galleries: exact search against the bare product, and what renewable templates cost and hide.

People of the second part are drawn: directions in 32 of the 512 dimensions, because embeddings of faces do not fill
theirs, with noise around them so that two photographs of one person have a cosine of about 0.6.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.measurement import Measurement, processor_seconds
from fedvisage.device.gallery.search import Index
from fedvisage.device.gallery.templates import BITS, Renewable, directions
from fedvisage.metrics.similarity import Features, normalise
from fedvisage.metrics.verification import verify_pairs

PEOPLE, DIMENSION, MOST = 1_000_000, 512, 10
DRAWN, FILLED, ALIKE, FAR = 4_000, 32, 0.6, 1e-3
BINS = 50


def measure(cache: Path, number: int = PEOPLE) -> Measurement:
    """Time searches for one face and for 64 against the product of the same matrix, and compare who is found."""
    rng = np.random.default_rng(0)
    index, matrix = Index(DIMENSION), np.empty((number, DIMENSION), np.float32)
    for start in range(0, number, 10_000):
        some = normalise(rng.standard_normal((min(10_000, number - start), DIMENSION), np.float32))
        matrix[start : start + len(some)] = some
        for row, vector in enumerate(some, start):
            index.put(str(row), vector)
    said, ratios = [], []
    for asked, times in ((1, 5), (64, 1)):
        faces = normalise(rng.standard_normal((asked, DIMENSION), np.float32))
        transposed = np.ascontiguousarray(faces.T)
        bare = min(processor_seconds(partial(np.matmul, matrix, transposed)) for _ in range(times))
        ours = min(processor_seconds(partial(index.search, faces, MOST)) for _ in range(times))
        wanted = np.argsort(-(matrix @ transposed), axis=0)[:MOST].T
        found = index.search(faces, MOST)
        if [[int(name) for name, _ in hits] for hits in found] != wanted.tolist():
            raise AssertionError("the search missed somebody")
        ratios.append(ours / bare)
        said.append(f"{ours / bare:.2f} ({ours:.2f} / {bare:.2f} s, {asked} face{'s' * (asked > 1)})")
    return Measurement(
        f"exact search of {number:,} people for their {MOST} most similar against the bare product (processor time)",
        "≤ 1.5, recall 1",
        "; ".join(said),
        max(ratios) <= 1.5,
    )


def measure_renewable(cache: Path, people: int = DRAWN) -> Measurement:
    """Verify with embeddings, with their signs, and link signs under two keys, as one who has them or has not."""
    first, second = photographs(people, 0), photographs(people, 1)
    seeds = [bytes([seed]) * 32 for seed in (1, 2)]
    one, other = (directions(seed, DIMENSION) for seed in seeds)
    own, foreign = (Renewable(DIMENSION, seed) for seed in seeds)
    signs, again, elsewhere = (
        np.stack([form.make_query(vector) for vector in faces])
        for faces, form in ((first, own), (second, own), (second, foreign))
    )
    plain, kept = (tar(*pair) for pair in ((first, second), (signs, again)))
    hidden = link(signs, elsewhere)
    stolen = link(normalise(signs @ one.T), normalise(elsewhere @ other.T))
    return Measurement(
        f"renewable templates of {BITS} signs, drawn people: TAR at FAR {FAR:g} against embeddings; D_sys between two "
        "keys, unknown and stolen",
        "none: a figure to know",
        f"{kept:.4f} / {plain:.4f}; D_sys {hidden:.3f}, stolen {stolen:.3f}",
        None,
    )


def photographs(people: int, seed: int) -> Features:
    """Return a photograph's embedding of each person."""
    within, _ = np.linalg.qr(np.random.default_rng(98).standard_normal((DIMENSION, FILLED)))
    own, noise = (
        normalise(np.random.default_rng(one).standard_normal((people, FILLED)) @ within.T) for one in (99, seed)
    )
    return normalise(math.sqrt(ALIKE) * own + math.sqrt(1 - ALIKE) * noise)


def tar(first: Features, second: Features) -> float:
    """Return the share of people who are verified, where of all pairs of two people a thousandth is."""
    alike = first @ second.T
    same = np.eye(len(first), dtype=bool)
    return verify_pairs(alike.ravel(), same.ravel(), [FAR]).tar[FAR]


def linkability(mated: NDArray[np.floating], unmated: NDArray[np.floating]) -> float:
    """Return D_sys of protected templates: 0 if those under two keys share no information, 1 if they reveal the person.

    M. Gomez-Barrero, J. Galbally, C. Rathgeb, C. Busch, "General framework to evaluate unlinkability in biometric
    template protection systems", IEEE Transactions on Information Forensics and Security 13 (2018), §IV, with equal
    priors: LR(s) is the likelihood ratio of mated to non-mated similarities s, and D_sys the mean of
    D(s) = 2 LR / (1 + LR) − 1 where LR > 1, and 0 elsewhere, over mated similarities. Densities are histograms, so with
    few scores random differences look like links: pass many more scores than bins.
    """
    ends = min(mated.min(), unmated.min()), max(mated.max(), unmated.max())
    edges = np.linspace(float(ends[0]), float(ends[1]) + 1e-9, BINS + 1)
    first, second = (np.histogram(similarities, edges)[0] / len(similarities) for similarities in (mated, unmated))
    share = np.divide(first, first + second, out=np.zeros(BINS), where=first > 0)
    return float(first @ np.maximum(2 * share - 1, 0.0))


def link(first: Features, second: Features) -> float:
    """Return how far one person's templates of two systems can be told."""
    alike = first @ second.T
    same = np.eye(len(first), dtype=bool)
    return linkability(alike[same], alike[~same])
