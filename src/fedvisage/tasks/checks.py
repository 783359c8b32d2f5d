"""How sets are looked at before anything is trained or judged on them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Checks:
    """What is refused of sets unless somebody allows it, and whether every byte is read."""

    allow_mixed_crops: bool = False
    """Faces may have been cut out in different ways."""

    allow_overlap: bool = False
    """Pictures may be at two places, such as a site and the user."""

    verify: bool = False
    """Every byte is compared with the set's digest, not only some."""


USUAL = Checks()
