"""Shares of an identity set's people, so that one set serves many places."""

from __future__ import annotations

import numpy as np

from fedvisage.data.batches import View
from fedvisage.datasets.sources import Part


def share_of(view: View, part: Part | None) -> View:
    """Return the images of a share of a set's people; which people follows from the whole set, not from a split."""
    if part is None:
        return view
    everybody = np.unique(view.slices[0].set.rows.subject)
    share = np.arange(len(everybody)) % part.of + 1
    return view.of_people(everybody[(share >= part.number) & (share <= part.last)])
