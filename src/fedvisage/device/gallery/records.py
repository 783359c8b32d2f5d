"""What a gallery says of what it holds."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedvisage.base.errors import UserError

COLLECTION = "default"
LONGEST = 200
"""Letters of a name."""

ID = "[pf]_[0-9a-f]{16}"
"""What the ids of people and faces look like."""


@dataclass(frozen=True)
class Collection:
    """People who are searched together."""

    name: str
    created: str
    people: int
    renewable: bool


@dataclass(frozen=True)
class Person:
    """Somebody who is enrolled."""

    id: str
    name: str
    created: str


@dataclass(frozen=True)
class Face:
    """A face of a person: of which model its template is, and how surely it was a living one."""

    id: str
    person: str
    model: str
    created: str
    pad_score: float | None


def checked_name(name: str, place: str) -> str:
    """Refuse a name that cannot stand on a line."""
    if not name.strip() or len(name) > LONGEST or not name.isprintable():
        raise UserError(place, f"must be a name on one line, of 1 to {LONGEST} letters")
    if re.fullmatch(ID, name):
        raise UserError(place, f"{name} looks like an id, which the gallery gives by itself; choose another name")
    return name
