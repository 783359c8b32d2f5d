"""Selections from a prepared set of presentation attacks, and the split of subjects into training and held-out.

A selection is written at the end of a data entry. ``data/M only: attacks=print bonafide=1/2`` selects the print attacks
of M and the first half of its bona fide images. ``data/M only: attacks=replay bonafide=2/2`` gets the other half, so
two sites with one type of attack each share no image. ``data/A only: subjects=0-90`` selects nine tenths of the
subjects and ``subjects=90-100`` the other tenth. Shares count subjects, in one fixed random order, and apply to each
split separately, so held-out subjects stay held out. With ``by=videos`` the share of bona fide images counts videos, so
both parts have the same subjects.

Further columns of a set select by value: ``only: session=1,2 official=train``. The prefix ``attack.`` restricts a
column to attacks: ``attack.medium=3``. Enrolment videos (``purpose`` is ``enroll``) are not examples for an attack
detector and are excluded unless ``purpose=`` includes them. ``frames=1`` takes that number of images from the start of
each video. ``without=1/HR_1,2/7`` excludes videos, each identified by the end of its path.

``heldout=dev`` makes a site hold out the authors' split of that name instead of the subjects that were drawn when the
set was created; ``heldout=none`` makes it train on the whole selection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.base.streams import numpy_rng
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import BONA_FIDE, ENROL, OFFICIAL, PURPOSE, are_further

Numbers = NDArray[np.int64]

ONLY = " only:"
AMONG_ATTACKS = "attack."
NOTHING = "none"
_SHARE, _RANGE = re.compile(r"(\d{1,3})/(\d{1,3})"), re.compile(r"(\d{1,3})-(\d{1,3})")
_FRAMES = re.compile(r"[1-9]\d{0,5}")
_WORDS = ("attacks", "bonafide", "subjects", "by", "frames", "without", "heldout")
_HOW = (
    "write attacks=print,replay, bonafide=1/2, subjects=0-90, by=videos, frames=1, without=VIDEO,VIDEO, heldout=dev, "
    "or a column's values such as session=1,2 or attack.medium=3"
)


@dataclass(frozen=True)
class Selection:
    """A part of a prepared set.

    Attributes:
        attacks: selected types of attacks; empty selects all.
        bonafide: share of the bona fide subjects as (number, of).
        subjects: range of all subjects in percent.
        columns: selected values of further columns.
        by_videos: True if `bonafide` counts videos instead of subjects.
        frames: number of images per video; 0 selects all.
        without: excluded videos.
        heldout: the authors' splits that a site holds out; None holds out the drawn subjects, an empty tuple none.
    """

    attacks: tuple[str, ...] = ()
    bonafide: tuple[int, int] = (1, 1)
    subjects: tuple[int, int] = (0, 100)
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    by_videos: bool = False
    frames: int = 0
    without: tuple[str, ...] = ()
    heldout: tuple[str, ...] | None = None


ALL = Selection()


def split_entry(entry: str) -> tuple[str, Selection]:
    """Split a data entry into the name of the set and the selection."""
    source, only, text = entry.partition(ONLY)
    return (source.strip(), _parse_selection(text, entry)) if only else (entry, ALL)


def splits_of(prepared: PreparedSet, selection: Selection, place: str) -> tuple[View, View]:
    """Return views of the selected images that a site trains on and of those that it holds out."""
    if selection.heldout is None:
        train, heldout = View.of(prepared, "train"), View.of(prepared, "heldout")
    else:
        everything = View.of(prepared)
        is_heldout = (
            _has_value(everything, OFFICIAL, selection.heldout, place)
            if selection.heldout
            else np.zeros(len(everything), bool)
        )
        train, heldout = everything.subset(np.flatnonzero(~is_heldout)), everything.subset(np.flatnonzero(is_heldout))
    return _select_images(train, selection, place), _select_images(heldout, selection, place)


def select(view: View, selection: Selection, place: str) -> View:
    """Return a view of the selected images for a place that holds nothing out."""
    if selection.heldout is not None:
        raise UserError(place, "heldout= only applies to a site, which trains on the rest; remove it here")
    return _select_images(view, selection, place)


def _select_images(view: View, selection: Selection, place: str) -> View:
    if selection == ALL and PURPOSE not in view.columns:
        return view
    kinds, species = view.coded("species")
    offered = [name for name in kinds.tolist() if name != BONA_FIDE]
    missing = [name for name in selection.attacks if name not in offered]
    if missing and len(view):
        raise UserError(place, f"has no attacks {missing[0]!r}; it has {', '.join(offered) or 'none'}")
    first, last = selection.subjects
    _, subjects = view.coded("subject")
    drawn = _draw_owners(subjects)
    # Ranges and shares refer to the fixed order of `_draw_owners`, so the parts of two sites do not overlap.
    shared = _is_among(subjects, drawn[len(drawn) * first // 100 : len(drawn) * last // 100])
    number, shares = selection.bonafide
    owners = view.coded("video")[1] if selection.by_videos else subjects
    live = (view.labels == 1) & _is_among(owners, _draw_owners(owners)[number - 1 :: shares])
    attacks = (view.labels == 0) & np.isin(kinds, selection.attacks or offered)[species]
    chosen = (live | attacks) & shared
    for name, values in selection.columns.items():
        matches = _has_value(view, name.removeprefix(AMONG_ATTACKS), values, place)
        chosen &= matches | (view.labels == 1) if name.startswith(AMONG_ATTACKS) else matches
    if PURPOSE in view.columns and PURPOSE not in selection.columns:
        chosen &= view.column(PURPOSE) != ENROL
    if selection.without:
        # Exclude the videos whose paths end in one of these sequences of path components.
        names, videos = view.coded("video")
        suffixes = tuple(f"/{end}" for end in selection.without)
        chosen &= ~np.array([f"/{name}".endswith(suffixes) for name in names.tolist()], bool)[videos]
    selected = view.subset(np.flatnonzero(chosen))
    if not selection.frames:
        return selected
    # Keep the images whose rank within their video, ordered by frame number, is low enough.
    parts = [part.set.rows.frame[part.indices] for part in selected.slices]
    order = np.lexsort((np.concatenate(parts or [np.empty(0, np.int32)]), selected.videos))
    _, starts, counts = np.unique(selected.videos[order], return_index=True, return_counts=True)
    ranks = np.empty(len(selected), np.int64)
    ranks[order] = np.arange(len(selected)) - np.repeat(starts, counts)
    return selected.subset(np.flatnonzero(ranks < selection.frames))


def _draw_owners(owners: Numbers) -> Numbers:
    """Return the unique owners in a fixed random order."""
    present = np.flatnonzero(np.bincount(owners))
    return present[numpy_rng(0, "selection").permutation(len(present))]


def _is_among(owners: Numbers, chosen: Numbers) -> NDArray[np.bool_]:
    """Return a mask of the images of the chosen owners."""
    is_chosen = np.zeros(owners.max(initial=0) + 1, bool)
    is_chosen[chosen] = True
    return is_chosen[owners]


def _has_value(view: View, name: str, wanted: tuple[str, ...], place: str) -> NDArray[np.bool_]:
    """Return a mask of the images that have one of these values in a further column."""
    if not len(view):
        return np.zeros(0, bool)
    if name not in view.columns:
        raise UserError(place, f"has no column {name!r} to select by; it has {', '.join(view.columns) or 'none'}")
    # Collect the values from whole sets, because one split of a small set may lack a value of another.
    offered, values = view.coded(name)
    if missing := [value for value in wanted if value not in offered.tolist()]:
        raise UserError(
            place, f"has no images with {name}={missing[0]}; it has {', '.join(map(repr, offered.tolist()))}"
        )
    return np.isin(offered, wanted)[values]


def _parse_selection(text: str, entry: str) -> Selection:
    columns: dict[str, tuple[str, ...]] = {}
    words: dict[str, str] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name not in _WORDS and value and are_further([name.removeprefix(AMONG_ATTACKS)]):
            columns[name] = tuple(value.split(","))
        elif name in _WORDS and value:
            words[name] = value
        else:
            raise UserError(entry, f"cannot read {word!r}; {_HOW}")
    if not words and not columns:
        raise UserError(entry, "has nothing after only:; write attacks=…, bonafide=1/2 or subjects=0-90")
    choices = {name: _parse_choice(name, value) for name, value in words.items()}
    if bad := [f"{name}={words[name]}" for name, choice in choices.items() if choice is None]:
        raise UserError(entry, f"cannot read {bad[0]!r}; {_HOW}")
    by_videos = choices.pop("by", False)
    if by_videos and "bonafide" not in choices:
        raise UserError(entry, "by=videos requires a share of bona fide images; add bonafide=1/2")
    return Selection(**choices, by_videos=by_videos, columns=columns)  # type: ignore[arg-type]


def _parse_choice(name: str, value: str) -> object:
    """Return the value of a selection word, or None if it is invalid."""
    share, ends = _SHARE.fullmatch(value), _RANGE.fullmatch(value)
    if name == "bonafide":
        return (int(share[1]), int(share[2])) if share and 1 <= int(share[1]) <= int(share[2]) else None
    if name == "subjects":
        return (int(ends[1]), int(ends[2])) if ends and int(ends[1]) < int(ends[2]) <= 100 else None
    if name == "frames":
        return int(value) if _FRAMES.fullmatch(value) else None
    if name == "by":
        return value == "videos" or (False if value == "subjects" else None)
    if name == "heldout" and value == NOTHING:
        return ()
    return tuple(value.split(","))
