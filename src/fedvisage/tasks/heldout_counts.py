"""The file with histograms of the sites' held-out scores, from which a model's threshold was chosen.

A site sends a histogram (:mod:`fedvisage.metrics.threshold`). Most of its thousands of bins are empty, so the file only
stores the others: three rows per site with class, bin and count.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_arrays, write_arrays
from fedvisage.metrics.threshold import BINS, Histogram
from fedvisage.tasks.seal import COUNTS

CLASSES = 2


def write_counts(run: Path, histograms: Mapping[str, Histogram]) -> None:
    """Write the sites' histograms into a run directory."""
    places = {name: np.nonzero(counts) for name, counts in sorted(histograms.items())}
    rows = {name: np.stack([*place, histograms[name][place]]).astype(np.int64) for name, place in places.items()}
    write_arrays(run / COUNTS, rows)


def read_counts(run: Path) -> dict[str, Histogram]:
    """Read the histograms by site; return none if the run has no such file."""
    path = run / COUNTS
    if not path.exists():
        return {}
    histograms = {}
    for name, rows in sorted(read_arrays(path)[0].items()):
        valid = rows.dtype == np.int64 and rows.shape[:1] == (3,)
        if valid:
            kind, place, count = rows
            valid = bool((np.isin(kind, range(CLASSES)) & (place >= 0) & (place < BINS) & (count >= 0)).all())
        if not valid:
            raise UserError(str(path), f"does not contain classes, bins and counts of site {name}")
        histograms[name] = np.zeros((CLASSES, BINS), np.int64)
        histograms[name][rows[0], rows[1]] = rows[2]
    return histograms
