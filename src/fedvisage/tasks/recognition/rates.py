"""Rates as metrics.json names them, and their mean where some could not be measured."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def mean_of(values: list[float | None]) -> float | None:
    """Return the mean of what was measured; None if nothing was."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def rates_of(
    tar: Mapping[float, float | None], tpir: Mapping[float, float | None]
) -> dict[str, dict[str, float | None]]:
    """Return both kinds of rates under their names."""
    return {"tar_at_far": named(tar), "tpir_at_fpir": named(tpir)}


def named(values: Mapping[float, float | None]) -> dict[str, float | None]:
    """Name rates as metrics.json does: 1e-3."""
    return {np.format_float_scientific(rate, trim="-", exp_digits=1): value for rate, value in values.items()}
