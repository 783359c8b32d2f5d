"""Options of the checks of datasets before training or evaluation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Checks:
    """The faults of datasets that are allowed, and the thoroughness of the checks."""

    allow_mixed_crops: bool = False
    """Accept sets whose faces were cropped in different ways."""

    allow_overlap: bool = False
    """Accept images that appear in two places, such as a site and the target."""

    verify: bool = False
    """Compare every byte with the set's digest instead of a sample."""


USUAL = Checks()
