"""Recognition's large computations against the bare matrix product and scikit-learn, and a thousand sites."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_curve

from benchmarks.measurement import Measurement, processor_seconds
from fedvisage.metrics.identification import identify
from fedvisage.metrics.similarity import COLUMNS, ROWS, Faces, Features, hard_negatives, normalise
from fedvisage.metrics.verification import genuine_pairs, verify_against

DIMENSION = 512
CHILD = "import sys; from benchmarks.recognition import peak_of; print(peak_of(sys.argv[1], *map(int, sys.argv[2:])))"
SITES = """
import sys, time
from pathlib import Path
from rich.console import Console
from fedvisage import recipe as recipes
from fedvisage.runs.directory import peak_rss_mb
from fedvisage.methods import read_method
from fedvisage.base.progress import Reporter
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
count, cache, out = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
tree = {
    "method": {"name": "fedfr", "network": {"name": "mobilefacenet", "width": 64, "embedding": 512}},
    "data": {
        "sites": {f"site[1-{count}]": f"synth: people identities={count} images=4 size=32 part=*/{count}"},
        "public": "synth: people identities=8 images=4 size=32 first=100000 test=0 heldout=0.25",
    },
    "input": {"size": 32, "colour": "rgb"},
    "training": {"rounds": 1, "local": {"batches": 1}, "batch": 4},
    "runtime": {"threads": 1, "precision": "fp32"},
}
began = time.process_time()
run(Request(recipes.validate(tree, read_method), out, cache), Reporter(Console(), quiet=True))
print(peak_rss_mb(), time.process_time() - began)
"""


def features(count: int, seed: int) -> Features:
    """Return unit vectors, in groups that lie near each other as images of a person do."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, count // 100), DIMENSION), dtype=np.float32)
    units = np.empty((count, DIMENSION), np.float32)
    for start in range(0, count, 4096):
        rows = np.arange(start, min(start + 4096, count))
        units[rows] = normalise(
            centres[rows % len(centres)] + rng.standard_normal((len(rows), DIMENSION), dtype=np.float32)
        )
    return units


def product(first: Features, second: Features) -> None:
    """Work out all similarities and forget them, in blocks that fit a core's cache."""
    room = np.empty((ROWS, COLUMNS), np.float32)
    for top in range(0, len(first), ROWS):
        some = first[top : top + ROWS]
        for left in range(0, len(second), COLUMNS):
            others = second[left : left + COLUMNS]
            np.matmul(some, others.T, out=room[: len(some), : len(others)])


def measure_mining(cache: Path, public: int = 600_000, local: int = 6_000) -> Measurement:
    """Find hard negatives among public features, beside the bare product; memory in a process of its own."""
    first, second = features(public, 0), features(local, 1)
    bare = processor_seconds(lambda: product(first, second))
    ours = processor_seconds(lambda: hard_negatives(first, second, 0.4))
    memory = _child("mining", public, local)
    return Measurement(
        f"hard negatives of {public:,} public × {local:,} local features against the bare product (time); peak memory",
        "≤ 1.5; < 2 GB",
        f"{ours / bare:.2f} ({ours:.1f} / {bare:.1f} s of processor); {memory / 1e9:.2f} GB",
        ours / bare <= 1.5 and memory < 2e9,
    )


def measure_verification(cache: Path, local: int = 4_000, others: int = 157_500) -> Measurement:
    """TAR@FAR over all pairs of a site's test images and everybody else's: 630 million at FedFR's size."""
    own, rest = _faces(local, 0, 0), _faces(others, 1, 10_000)
    bare = processor_seconds(lambda: product(own.features, rest.features))
    strict = processor_seconds(lambda: verify_against(own, rest, (1e-6, 1e-5, 1e-4, 1e-3)))
    loose = processor_seconds(lambda: verify_against(own, rest, (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)))
    memory = _child("verification", local, others)
    return Measurement(
        f"TAR@FAR over {local * others / 1e6:.0f} million impostor pairs against the bare product; peak memory",
        "≤ 2 to FAR 1e-3, ≤ 4 to 0.1; < 2 GB",
        f"{strict / bare:.2f} and {loose / bare:.2f} ({bare:.1f} s of processor); {memory / 1e9:.2f} GB",
        strict / bare <= 2 and loose / bare <= 4 and memory < 2e9,
    )


def measure_against_scikit_learn(cache: Path, local: int = 1_000, others: int = 5_000) -> Measurement:
    """TAR@FAR beside scikit-learn's roc_curve, where all similarities fit: the same figures from far less memory."""
    own, rest, fars = _faces(local, 0, 0), _faces(others, 1, 10_000), (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    tar, theirs = verify_against(own, rest, fars).tar, by_roc_curve(own, rest, fars)
    if tar != theirs:
        raise AssertionError(f"figures differ: {tar} and {theirs}")
    ours = processor_seconds(lambda: verify_against(own, rest, fars))
    direct = processor_seconds(lambda: by_roc_curve(own, rest, fars))
    small, large = (_child(kind, local, others) for kind in ("verification", "roc-curve"))
    return Measurement(
        f"TAR@FAR over {local * others / 1e6:.0f} million impostor pairs against scikit-learn's roc_curve (time, peak "
        "memory); the figures are equal",
        "≤ 1; ≤ 1",
        f"{ours / direct:.3f} ({ours:.2f} / {direct:.2f} s of processor); {small / large:.2f} ({small / 1e9:.2f} / "
        f"{large / 1e9:.2f} GB)",
        ours <= direct and small <= large,
    )


def by_roc_curve(own: Faces, rest: Faces, fars: tuple[float, ...]) -> dict[float, float]:
    """Return TAR@FAR as scikit-learn's roc_curve gives it, from all similarities at once."""
    genuine = genuine_pairs(own)
    impostor = (own.features @ rest.features.T).ravel()
    labels = np.concatenate([np.ones(len(genuine), bool), np.zeros(len(impostor), bool)])
    far, tar, _ = roc_curve(labels, np.concatenate([genuine, impostor]), drop_intermediate=False)
    return {rate: float(tar[np.flatnonzero(far <= rate)[-1]]) for rate in fars}


def measure_identification(cache: Path, probes: int = 160_000, gallery: int = 100) -> Measurement:
    """TPIR of many probes against a small gallery."""
    enrolled, probe = _search(gallery, probes)
    bare = processor_seconds(lambda: product(probe.features, enrolled.features))
    ours = processor_seconds(lambda: identify([enrolled], probe, (1e-5, 1e-4), "published"))
    memory = _child("identification", gallery, probes)
    return Measurement(
        f"TPIR of {probes:,} probes × {gallery} galleries against the bare product; peak memory",
        "≤ 2; < 2 GB",
        f"{ours / bare:.2f} ({ours:.2f} / {bare:.2f} s of processor); {memory / 1e9:.2f} GB",
        ours / bare <= 2 and memory < 2e9,
    )


def measure_sites(cache: Path, few: int = 10, many: int = 1_000) -> Measurement:
    """A round of FedFR at sites of one identity each: peak memory, and time per site.

    What a run takes besides its sites counts for nothing: a site's time is what one more of them adds. Short runs are
    repeated, as the difference of two of them is small.
    """
    sizes = ((few, 5), (2 * few, 5), (many, 1))
    (small, short), (_, double), (large, long) = (_round_at(count, cache, runs) for count, runs in sizes)
    each = ((long - double) / (many - 2 * few)) / ((double - short) / few)
    return Measurement(
        f"FedFR at {many:,} sites of one identity against {few}: peak memory; processor time that a site adds",
        "≤ 1.5; ≤ 1.2",
        f"{large / small:.2f} ({large:.0f} / {small:.0f} MiB); {each:.2f} ({long:.0f} s for {many:,} sites, "
        f"{double:.1f} for {2 * few}, {short:.1f} for {few})",
        large / small <= 1.5 and each <= 1.2,
    )


def peak_of(kind: str, first: int, second: int) -> int:
    """Return the peak memory in bytes of one of the computations in this process."""
    from fedvisage.runs.directory import peak_rss_mb

    if kind == "mining":
        hard_negatives(features(first, 0), features(second, 1), 0.4)
    elif kind == "identification":
        enrolled, probe = _search(first, second)
        identify([enrolled], probe, (1e-5, 1e-4), "published")
    else:
        own, rest = _faces(first, 0, 0), _faces(second, 1, 10_000)
        (verify_against if kind == "verification" else by_roc_curve)(own, rest, (1e-6, 1e-5, 1e-4, 1e-3))
    return round(peak_rss_mb() * 2**20)


def _search(gallery: int, probes: int) -> tuple[Faces, Faces]:
    return Faces(features(gallery, 2), np.arange(gallery)), Faces(features(probes, 3), np.arange(probes) % 4_000)


def _faces(count: int, seed: int, first: int) -> Faces:
    return Faces(features(count, seed), first + np.arange(count) % max(1, count // 40))


def _child(kind: str, first: int, second: int) -> int:
    return int(subprocess.check_output([sys.executable, "-c", CHILD, kind, str(first), str(second)], text=True))


def _round_at(count: int, cache: Path, runs: int) -> tuple[float, float]:
    """Return the least peak memory and processor time of some runs; other processes render, and are not counted."""
    measured = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-c", SITES, str(count), str(cache), out + "/run"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        measured.append([float(word) for word in done.stdout.split()[-2:]])
    peaks, seconds = zip(*measured, strict=True)
    return min(peaks), min(seconds)
