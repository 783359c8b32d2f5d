"""How far apart a model's figures of groups of people lie, as works on RFW tell it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def spread_of(accuracies: Sequence[float]) -> dict[str, float | None]:
    """Return mean and standard deviation of groups' accuracies, and the highest error over the lowest.

    The deviation is that of a sample, divided by the number of groups less one. Without any error in a group there is
    no ratio.
    """
    errors = [1 - one for one in accuracies]
    return {
        "mean": float(np.mean(accuracies)),
        "std": float(np.std(accuracies, ddof=1)),
        "skewed_error_ratio": max(errors) / min(errors) if min(errors) > 0 else None,
    }
