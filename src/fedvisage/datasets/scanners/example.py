"""The files of a small copy of a dataset: what its scanner shows of the layout."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Clip:
    """A video or image with a rendered face: where it lies, who is on it, as what, and how it stands."""

    path: str
    person: int
    species: str = "bonafide"
    turned: bool = False


@dataclass(frozen=True)
class Text:
    """A list or another text file; lines end as they stand here."""

    path: str
    content: str


Example = Clip | Text
