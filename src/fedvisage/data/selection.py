"""A part of a prepared set on presentation attacks, named at the end of a data entry.

``data/M only: attacks=print bonafide=1/2`` are the printed attacks of M and the first half of its bona fide images;
``data/M only: attacks=replay bonafide=2/2`` has the other half, so that two sites with one kind of attack each share
no image. ``data/A only: subjects=0-90`` are nine tenths of the subjects and ``subjects=90-100`` the other tenth. Shares
are of subjects, in an order that is drawn once for all, and of each split by itself: what is held out stays held out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from fedvisage.data.batches import View
from fedvisage.errors import UserError
from fedvisage.streams import numpy_rng

ONLY = " only:"
_SHARE, _RANGE = re.compile(r"(\d{1,3})/(\d{1,3})"), re.compile(r"(\d{1,3})-(\d{1,3})")


@dataclass(frozen=True)
class Selection:
    """Kinds of attacks (none: all), a part of the bona fide subjects, and per cent of all subjects, from and to."""

    attacks: tuple[str, ...] = ()
    bonafide: tuple[int, int] = (1, 1)
    subjects: tuple[int, int] = (0, 100)


ALL = Selection()


def without_selection(entry: str) -> tuple[str, Selection]:
    """Split a data entry into the set that it names and what of it is meant."""
    source, only, text = entry.partition(ONLY)
    return (source.strip(), _parsed(text, entry)) if only else (entry, ALL)


def select(view: View, selection: Selection, place: str) -> View:
    """View what is meant of one split of a set."""
    if selection == ALL:
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
    chosen = (live | attacks) & np.isin(view.subjects, names[first:last])
    return view.subset(np.flatnonzero(chosen).astype(np.int64))


def _parsed(text: str, entry: str) -> Selection:
    choices: dict[str, tuple[str, ...] | tuple[int, int]] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name == "attacks" and value:
            choices[name] = tuple(value.split(","))
        elif name == "bonafide" and (share := _SHARE.fullmatch(value)) and 1 <= int(share[1]) <= int(share[2]):
            choices[name] = int(share[1]), int(share[2])
        elif name == "subjects" and (ends := _RANGE.fullmatch(value)) and int(ends[1]) < int(ends[2]) <= 100:
            choices[name] = int(ends[1]), int(ends[2])
        else:
            raise UserError(entry, f"cannot read {word!r}; write attacks=print,replay, bonafide=1/2 or subjects=0-90")
    if not choices:
        raise UserError(entry, "says only: and nothing after it; write attacks=…, bonafide=1/2 or subjects=0-90")
    return Selection(**choices)  # type: ignore[arg-type]
