"""A part of a prepared set on presentation attacks, named at the end of a data entry.

``data/M only: attacks=print bonafide=1/2`` are the printed attacks of M and the first half of its bona fide images;
``data/M only: attacks=replay bonafide=2/2`` has the other half, so that two sites with one kind of attack each share
no image. ``data/A only: subjects=0-90`` are nine tenths of the subjects and ``subjects=90-100`` the other tenth. Shares
are of subjects, in an order that is drawn once for all, and of each split by itself: what is held out stays held out.

Further columns of a set select by their values: ``only: session=1,2 official=train``. Videos that enrol a person
(``purpose`` is ``enroll``) are no examples for a detector of attacks: they are left out unless ``purpose=`` names them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedvisage.data.batches import View
from fedvisage.data.rows import ENROL, PURPOSE, are_further
from fedvisage.errors import UserError
from fedvisage.streams import numpy_rng

ONLY = " only:"
_SHARE, _RANGE = re.compile(r"(\d{1,3})/(\d{1,3})"), re.compile(r"(\d{1,3})-(\d{1,3})")


@dataclass(frozen=True)
class Selection:
    """Kinds of attacks (none: all), shares of bona fide and of all subjects, and values of further columns."""

    attacks: tuple[str, ...] = ()
    bonafide: tuple[int, int] = (1, 1)
    subjects: tuple[int, int] = (0, 100)
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


ALL = Selection()


def without_selection(entry: str) -> tuple[str, Selection]:
    """Split a data entry into the set that it names and what of it is meant."""
    source, only, text = entry.partition(ONLY)
    return (source.strip(), _parsed(text, entry)) if only else (entry, ALL)


def select(view: View, selection: Selection, place: str) -> View:
    """View what is meant of one split of a set."""
    if selection == ALL and PURPOSE not in view.columns:
        return view
    offered = np.unique(view.species[view.labels == 0]).tolist()
    missing = [name for name in selection.attacks if name not in offered]
    if missing:
        raise UserError(place, f"has no attacks {missing[0]!r}; it has {', '.join(offered) or 'none'}")
    names = np.unique(view.subjects)
    names = names[numpy_rng(0, "selection").permutation(len(names))]
    first, last = (len(names) * per_cent // 100 for per_cent in selection.subjects)
    number, of = selection.bonafide
    live = (view.labels == 1) & np.isin(view.subjects, names[number - 1 :: of])
    attacks = (view.labels == 0) & np.isin(view.species, selection.attacks or offered)
    chosen = (live | attacks) & np.isin(view.subjects, names[first:last]) & _by_columns(view, selection.columns, place)
    return view.subset(np.flatnonzero(chosen).astype(np.int64))


def _by_columns(view: View, columns: Mapping[str, tuple[str, ...]], place: str) -> NDArray[np.bool_]:
    """Tell which images have the values that are asked for in further columns."""
    chosen = np.ones(len(view), bool)
    for name, wanted in columns.items():
        if name not in view.columns:
            raise UserError(place, f"has no column {name!r} to select by; it has {', '.join(view.columns) or 'none'}")
        # Of the whole sets: one split of a small set may lack a value that another has.
        offered = sorted({value for part in view.slices for value in np.unique(part.set.rows.further[name]).tolist()})
        if missing := [value for value in wanted if value not in offered]:
            raise UserError(place, f"has no images with {name}={missing[0]}; it has {', '.join(map(repr, offered))}")
        chosen &= np.isin(view.column(name), wanted)
    if PURPOSE in view.columns and PURPOSE not in columns:
        chosen &= view.column(PURPOSE) != ENROL
    return chosen


def _parsed(text: str, entry: str) -> Selection:
    choices: dict[str, tuple[str, ...] | tuple[int, int]] = {}
    columns: dict[str, tuple[str, ...]] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name == "attacks" and value:
            choices[name] = tuple(value.split(","))
        elif name == "bonafide" and (share := _SHARE.fullmatch(value)) and 1 <= int(share[1]) <= int(share[2]):
            choices[name] = int(share[1]), int(share[2])
        elif name == "subjects" and (ends := _RANGE.fullmatch(value)) and int(ends[1]) < int(ends[2]) <= 100:
            choices[name] = int(ends[1]), int(ends[2])
        elif name not in ("attacks", "bonafide", "subjects") and value and are_further([name]):
            columns[name] = tuple(value.split(","))
        else:
            message = (
                "write attacks=print,replay, bonafide=1/2, subjects=0-90, or a column's values such as session=1,2"
            )
            raise UserError(entry, f"cannot read {word!r}; {message}")
    if not choices and not columns:
        raise UserError(entry, "says only: and nothing after it; write attacks=…, bonafide=1/2 or subjects=0-90")
    return Selection(**choices, columns=columns)  # type: ignore[arg-type]
