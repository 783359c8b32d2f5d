"""Descriptions of a gallery's content: collections, people and faces."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from fedvisage.base.errors import UserError

COLLECTION = "default"
LONGEST = 200
"""Maximum characters of a name."""

ID = "[pf]_[0-9a-f]{16}"
"""Pattern of the ids of people and faces."""

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters without a shape of their own that Python counts as printable: Unicode's Default_Ignorable_Code_Point of
the categories Lo and Mn, and the blank Braille pattern."""


@dataclass(frozen=True)
class Collection:
    """A group of people who are searched together."""

    name: str
    created: str
    people: int
    renewable: bool


@dataclass(frozen=True)
class Person:
    """An enrolled person."""

    id: str
    name: str
    created: str


@dataclass(frozen=True)
class Face:
    """A face of a person: the model of its template, and its PAD score."""

    id: str
    person: str
    model: str
    created: str
    pad_score: float | None


def normalise_name(name: str) -> str:
    """Return a name in the normal form NFC, so that an accent typed as a character of its own makes no other name."""
    return unicodedata.normalize("NFC", name)


def checked_name(name: str, place: str) -> str:
    """Return a name in its normal form; refuse one that does not fit on a line."""
    name = normalise_name(name)
    if not name.strip() or len(name) > LONGEST:
        raise UserError(place, f"must be a name on one line, of 1 to {LONGEST} characters")
    if unprintable := next((character for character in name if not character.isprintable()), ""):
        raise UserError(place, f"contains U+{ord(unprintable):04X}; give a name on one line, of visible characters")
    if re.fullmatch(ID, name):
        raise UserError(place, f"{name} looks like an id, which only the gallery assigns; choose another name")
    return name


_LATIN = str.maketrans("аеорсухіјѕһкмнтвүԁԛԝαβεζηικμνορτυχı", "aeopcyxijshkmhtbydqwabezhikmnoptuxi")
_LATIN_CAPITALS = str.maketrans("Υ", "Y")
"""Capitals that look like another Latin letter than their small forms."""
_SCRIPTS = frozenset({"LATIN", "CYRILLIC", "GREEK"})
"""Scripts with letters that look alike."""


def appearance(name: str) -> str:
    """Return a name without differences that readers overlook: case, width, and letters that look like Latin ones."""
    name = unicodedata.normalize("NFKC", name).translate(_LATIN_CAPITALS)
    return unicodedata.normalize("NFKC", name.casefold()).translate(_LATIN)


def mixes_scripts(name: str) -> bool:
    """Return whether a word has letters of two scripts that look alike."""
    scripts = ({unicodedata.name(letter, "").partition(" ")[0] for letter in word} & _SCRIPTS for word in name.split())
    return any(len(of_word) > 1 for of_word in scripts)


def new_name(name: str, place: str) -> str:
    """Return a new name in its normal form; refuse one that looks like another. Earlier versions accepted these."""
    name = checked_name(name, place)
    if name != name.strip():
        raise UserError(place, "begins or ends with a space; remove it")
    if all(unicodedata.category(character).startswith(("M", "Z")) for character in name):
        raise UserError(place, "consists of combining marks alone; add the letters that they belong to")
    if invisible := _INVISIBLE.search(name):
        raise UserError(place, f"contains the invisible character U+{ord(invisible[0]):04X}; remove it")
    return name
