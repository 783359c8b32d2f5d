"""The files of a small copy of a dataset: what its scanner shows of the layout."""

from __future__ import annotations

from dataclasses import dataclass

OTHERS = 100
"""Numbers of people from here on are those of further people: the examples themselves have lower ones."""


@dataclass(frozen=True)
class Clip:
    """A video, image or HDF5 file with a rendered face: where it lies, who is on it, as what, and how it stands.

    In an HDF5 file `layout` is the array of all frames, or with ``{}`` for its number the array of a frame. Clips with
    another `take` show the person at another time; `side` are the pixels of the face with its surroundings.
    """

    path: str
    person: int
    species: str = "bonafide"
    turned: bool = False
    layout: str = "Color_Data"
    take: str = ""
    side: int = 128


@dataclass(frozen=True)
class Text:
    """A list or another text file; lines end as they stand here."""

    path: str
    content: str


Example = Clip | Text
