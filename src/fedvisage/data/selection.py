"""A part of a prepared set on presentation attacks, named at the end of a data entry.

``data/M only: attacks=print bonafide=1/2`` are the printed attacks of M and the first half of its bona fide images;
``data/M only: attacks=replay bonafide=2/2`` has the other half, so that two sites with one kind of attack each share
no image. ``data/A only: subjects=0-90`` are nine tenths of the subjects and ``subjects=90-100`` the other tenth. Shares
are of subjects, in an order that is drawn once for all, and of each split by itself: what is held out stays held out.
With ``by=videos`` the share of bona fide images is of videos, so that both parts have the same subjects.

Further columns of a set select by their values: ``only: session=1,2 official=train``. With ``attack.`` before its name
a column selects among attacks alone: ``attack.medium=3``. Videos that enrol a person (``purpose`` is ``enroll``) are no
examples for a detector of attacks: they are left out unless ``purpose=`` names them. ``frames=1`` takes the first so
many images of each video, ``without=1/HR_1,2/7`` leaves out videos, each named by the end of its path.

``heldout=dev`` has a site hold out the authors' split of that name, instead of the subjects that were drawn when the
set was made; ``heldout=none`` has it train on all that is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.base.streams import numpy_rng
from fedvisage.data.batches import View
from fedvisage.data.prepared import ENROL, OFFICIAL, PURPOSE, PreparedSet, Texts, are_further

# Splits by subject: nobody's face is in two splits, or the test would reward remembering it.


def split_subjects(
    subjects: Sequence[str], labels: Sequence[int], share: float, generator: np.random.Generator
) -> dict[str, str]:
    """Return the split, train or heldout, of each subject that the images name.

    About `share` of the subjects are held out, drawn separately among those who have bona fide images only, attacks
    only, and both: each of these kinds is in both splits if it has two subjects.
    """
    if not 0 <= share < 1:
        raise ValueError(f"share must be from 0 to below 1, got {share}")
    classes: dict[str, set[int]] = {}
    for subject, label in zip(subjects, labels, strict=True):
        classes.setdefault(subject, set()).add(int(label))
    groups: dict[tuple[int, ...], list[str]] = {}
    for subject in sorted(classes):
        groups.setdefault(tuple(sorted(classes[subject])), []).append(subject)
    heldout: set[str] = set()
    for kind in sorted(groups):
        members = groups[kind]
        count = _heldout_count(len(members), share)
        heldout.update(members[index] for index in generator.permutation(len(members))[:count])
    return {subject: "heldout" if subject in heldout else "train" for subject in sorted(classes)}


def _heldout_count(members: int, share: float) -> int:
    """Return how many to hold out: the rounded share, but one at least and one less than all at most."""
    if share == 0 or members < 2:
        return 0
    return min(max(round(share * members), 1), members - 1)


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
    """Kinds of attacks (none: all), shares of bona fide and of all subjects, and values of further columns.

    Then: whether shares of bona fide images are of videos; of each video how many images (0: all); videos that are
    left out; and the authors' splits that a site holds out (None: the subjects that were drawn; empty: nobody).
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


def without_selection(entry: str) -> tuple[str, Selection]:
    """Split a data entry into the set that it names and what of it is meant."""
    source, only, text = entry.partition(ONLY)
    return (source.strip(), _parsed(text, entry)) if only else (entry, ALL)


def splits_of(prepared: PreparedSet, selection: Selection, place: str) -> tuple[View, View]:
    """View what a site trains on and what it holds out, of that which is meant."""
    if selection.heldout is None:
        train, heldout = View.of(prepared, "train"), View.of(prepared, "heldout")
    else:
        whole = View.of(prepared)
        out = _named(whole, OFFICIAL, selection.heldout, place) if selection.heldout else np.zeros(len(whole), bool)
        train, heldout = whole.subset(_where(~out)), whole.subset(_where(out))
    return _chosen(train, selection, place), _chosen(heldout, selection, place)


def select(view: View, selection: Selection, place: str) -> View:
    """View what is meant of some images, of which nothing is held out."""
    if selection.heldout is not None:
        raise UserError(place, "heldout= is for a site, which trains on the rest; leave it out here")
    return _chosen(view, selection, place)


def _chosen(view: View, selection: Selection, place: str) -> View:
    if selection == ALL and PURPOSE not in view.columns:
        return view
    of_sets = {species for part in view.slices for species in np.unique(part.set.rows.species).tolist()}
    offered = sorted(of_sets - {"bonafide"})
    missing = [name for name in selection.attacks if name not in offered]
    if missing and len(view):
        raise UserError(place, f"has no attacks {missing[0]!r}; it has {', '.join(offered) or 'none'}")
    first, last = selection.subjects
    names = _drawn(view.subjects)
    shared = np.isin(view.subjects, names[len(names) * first // 100 : len(names) * last // 100])
    number, of = selection.bonafide
    owners = view.videos if selection.by_videos else view.subjects
    live = (view.labels == 1) & np.isin(owners, _drawn(owners)[number - 1 :: of])
    attacks = (view.labels == 0) & np.isin(view.species, selection.attacks or offered)
    chosen = (live | attacks) & shared & _by_columns(view, selection.columns, place)
    chosen &= ~_at_end(view.videos, selection.without)
    found = view.subset(_where(chosen))
    return found.subset(_where(_ranks(found) < selection.frames)) if selection.frames else found


def _where(chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.flatnonzero(chosen).astype(np.int64)


def _drawn(owners: Texts) -> Texts:
    """Return each owner once, in an order that is drawn once for all."""
    names: Texts = np.unique(owners)
    return names[numpy_rng(0, "selection").permutation(len(names))]


def _at_end(videos: Texts, ends: tuple[str, ...]) -> NDArray[np.bool_]:
    """Tell which videos' paths end in one of these, from a whole component on."""
    names, place = np.unique(videos, return_inverse=True)
    wanted = tuple(f"/{end}" for end in ends)
    return np.array([f"/{name}".endswith(wanted) for name in names.tolist()], bool)[place]


def _ranks(view: View) -> NDArray[np.int64]:
    """Return the place of each image among those of its video, by the numbers of their frames."""
    frames = np.concatenate([part.set.rows.frame[part.indices] for part in view.slices] or [np.empty(0, np.int32)])
    order = np.lexsort((frames, view.videos))
    _, starts, counts = np.unique(view.videos[order], return_index=True, return_counts=True)
    ranks = np.empty(len(view), np.int64)
    ranks[order] = np.arange(len(view)) - np.repeat(starts, counts)
    return ranks


def _by_columns(view: View, columns: Mapping[str, tuple[str, ...]], place: str) -> NDArray[np.bool_]:
    """Tell which images have the values that are asked for in further columns."""
    chosen = np.ones(len(view), bool)
    for name, wanted in columns.items():
        fits = _named(view, name.removeprefix(AMONG_ATTACKS), wanted, place)
        chosen &= fits | (view.labels == 1) if name.startswith(AMONG_ATTACKS) else fits
    if PURPOSE in view.columns and PURPOSE not in columns:
        chosen &= view.column(PURPOSE) != ENROL
    return chosen


def _named(view: View, name: str, wanted: tuple[str, ...], place: str) -> NDArray[np.bool_]:
    """Tell which images have one of these values in a further column."""
    if not len(view):
        return np.zeros(0, bool)
    if name not in view.columns:
        raise UserError(place, f"has no column {name!r} to select by; it has {', '.join(view.columns) or 'none'}")
    # Of the whole sets: one split of a small set may lack a value that another has.
    offered = sorted({value for part in view.slices for value in np.unique(part.set.rows.further[name]).tolist()})
    if missing := [value for value in wanted if value not in offered]:
        raise UserError(place, f"has no images with {name}={missing[0]}; it has {', '.join(map(repr, offered))}")
    return np.isin(view.column(name), wanted)


def _parsed(text: str, entry: str) -> Selection:
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
        raise UserError(entry, "says only: and nothing after it; write attacks=…, bonafide=1/2 or subjects=0-90")
    choices = {name: _choice(name, value) for name, value in words.items()}
    if bad := [f"{name}={words[name]}" for name, choice in choices.items() if choice is None]:
        raise UserError(entry, f"cannot read {bad[0]!r}; {_HOW}")
    by_videos = choices.pop("by", False)
    if by_videos and "bonafide" not in choices:
        raise UserError(entry, "by=videos says what shares of bona fide images are of; give bonafide=1/2 beside it")
    return Selection(**choices, by_videos=by_videos, columns=columns)  # type: ignore[arg-type]


def _choice(name: str, value: str) -> object:
    """Return what a word means, or None if it cannot be read."""
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
