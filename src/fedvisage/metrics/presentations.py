"""Attack detection and recognition judged together, a presentation at a time, in the terms of ISO/IEC 30107-3.

A presentation is one appearance before the camera: a video, or a picture. Attack detection may say nothing of it (no
response). A system accepts it as a person if attack detection takes it as bona fide and it is similar enough to what
that person enrolled. With shares over presentations:

- APCER of a species: of its presentations that were answered, those taken as bona fide; APNRR: of all, those that
  were not answered. BPCER and BPNRR: of the bona fide, those taken as attacks, and those that were not answered;
- FNMR and FMR: of comparisons that could be made, those of a person with themself that do not match, and those of two
  people that do. Nothing is left out of FRR and FAR of the whole system: no response is a rejection there;
- IAPAR of a species: of its presentations against enrolled people, those that are accepted as the person who is
  attacked, by recognition alone or by the whole system;
- RIAPAR = FNMR + IAPAR for recognition alone, FRR + IAPAR for the system (ISO's 1 + IAPAR − (1 − FNMR)).

Intervals are for other people before the same system: whole subjects are drawn with replacement, a pair of two people
counts as often as both were drawn together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.metrics.pad import BPCER_TARGETS, error_curve
from fedvisage.metrics.scores import FloatArray, TextArray

Mask = NDArray[np.bool_]
Key = tuple[str, ...]
Figures = dict[Key, FloatArray]

WORST = ("apcer", "iapar", "riapar")
"""Rates of a species whose highest is a figure, too."""

_EQUAL = 1e-12


@dataclass(frozen=True, eq=False)
class Presentations:
    """What was said of each presentation, and how similar it is to every enrolled person (a column each)."""

    item: TextArray
    subject: TextArray  # who it is, or who is attacked; "" where nobody knows
    species: TextArray  # "" for bona fide
    live: FloatArray  # logits; NaN without a response
    similarity: FloatArray  # N×enrolled; rows of NaN where there was nothing to compare
    enrolled: TextArray

    def __post_init__(self) -> None:
        """Refuse what would make every figure silently wrong."""
        count, columns = len(self.item), len(self.enrolled)
        for field in fields(self):
            wanted = {"similarity": (count, columns), "enrolled": (columns,)}.get(field.name, (count,))
            shape = np.shape(getattr(self, field.name))
            if shape != wanted:
                raise ValueError(f"{field.name} must have the shape {wanted}, got {shape}")
        if len(np.unique(self.enrolled)) != columns:
            raise ValueError("a person is enrolled once")

    def __len__(self) -> int:
        """Return the number of presentations."""
        return len(self.item)

    @property
    def bona_fide(self) -> Mask:
        """Where no attack is."""
        return np.asarray(self.species == "")

    @property
    def kinds(self) -> list[str]:
        """The species of attacks, in alphabetical order."""
        return [str(name) for name in np.unique(self.species) if name]

    @property
    def claimed(self) -> Mask:
        """N×enrolled: which person each presentation is of, or against."""
        return np.asarray((self.subject[:, None] == self.enrolled[None, :]) & (self.subject != "")[:, None])

    @property
    def clusters(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of each presentation's subject, and of each enrolled person; unknown ones stand alone."""
        names = np.where(self.subject != "", np.char.add("s:", self.subject), np.char.add("i:", self.item))
        _, numbers = np.unique(np.concatenate([names, np.char.add("s:", self.enrolled)]), return_inverse=True)
        return numbers[: len(self)].astype(np.int64), numbers[len(self) :].astype(np.int64)


@dataclass(frozen=True)
class Point:
    """Where decisions change: the logit of attack detection, and the similarity; none where nothing is recognised."""

    pad: float
    recognition: float | None = None


def judge(found: Presentations, at: Point, resamples: int = 0, rng: np.random.Generator | None = None) -> Any:
    """Return every figure in nested dictionaries: value, 95 % interval where asked for, and counts beside them."""
    presented, enrolled = found.clusters
    count = int(max([-1, *presented.tolist(), *enrolled.tolist()])) + 1
    point = figures(found, at, np.ones((1, count)))
    tree: dict[str, Any] = {}
    spread: Figures = {}
    if resamples and rng is not None and count:
        draws = rng.multinomial(count, np.full(count, 1 / count), size=resamples).astype(np.float64)
        spread = figures(found, at, draws)
    for key, values in point.items():
        entry: dict[str, Any] = {"value": _plain(values[0])}
        if key in spread and entry["value"] is not None:
            defined = spread[key][np.isfinite(spread[key])]
            low, high = np.quantile(defined, [0.025, 0.975]) if len(defined) else (np.nan, np.nan)
            entry["interval"] = [_plain(low), _plain(high)]
        _put(tree, key, entry)
    for key, number in counts(found, at).items():
        _put(tree, key, number)
    return tree


def figures(found: Presentations, at: Point, draws: FloatArray) -> Figures:
    """Return each figure for each row of draws: how often every subject counts. A row of ones is the figure itself."""
    figured = {key: _share(found, draws, hit, base) for key, hit, base in _shares(found, at)}
    figured |= _at_apcer(found, draws)
    for part, missed in (("recognition", "fnmr"), ("system", "frr")):
        for name in found.kinds:
            if (accepted := figured.get((part, "species", name, "iapar"))) is not None:
                figured[part, "species", name, "riapar"] = accepted + figured[part, missed]
    for part in ("pad", "recognition", "system"):
        for rate in WORST:
            rows = [figured[key] for name in found.kinds if (key := (part, "species", name, rate)) in figured]
            if rows:
                figured[part, f"{rate}_max"] = _highest(rows)
    return figured


def counts(found: Presentations, at: Point) -> dict[Key, int]:
    """Return how many presentations, answers and comparisons the figures come from."""
    said = {
        (*key[:-1], {"apcer": "answered", "bpcer": "answered", "apnrr": "presented", "bpnrr": "presented"}[key[-1]]):
        int(base.sum()) for key, _, base in _shares(found, at) if key[0] == "pad"
    }  # fmt: skip
    names = {"fnmr": "mated", "fmr": "non_mated", "frr": "mated", "far": "non_mated", "iapar": "presented"}
    others = {(*key[:-1], names[key[-1]]): int(base.sum()) for key, _, base in _shares(found, at) if key[0] != "pad"}
    return said | others


def _shares(found: Presentations, at: Point) -> Iterator[tuple[Key, Mask, Mask]]:
    """Yield each share: what it is, what counts, and of what; N for presentations, N×enrolled for comparisons."""
    answered = np.isfinite(found.live)
    live = answered & (found.live >= at.pad)
    for where, is_there, wrong, silent in (
        (("pad", "bona_fide"), found.bona_fide, ("bpcer", ~live), "bpnrr"),
        *((("pad", "species", name), found.species == name, ("apcer", live), "apnrr") for name in found.kinds),
    ):
        yield (*where, wrong[0]), wrong[1] & answered & is_there, answered & is_there
        yield (*where, silent), ~answered & is_there, is_there
    if at.recognition is None:
        return
    claimed, compared = found.claimed, np.isfinite(found.similarity)
    matched = compared & (found.similarity >= at.recognition)
    real = found.bona_fide[:, None]
    named = real & (found.subject != "")[:, None] & ~claimed
    yield ("recognition", "fnmr"), ~matched & compared & claimed & real, compared & claimed & real
    yield ("recognition", "fmr"), matched & named, compared & named
    accepted = matched & live[:, None]
    yield ("system", "frr"), ~accepted & claimed & real, claimed & real
    yield ("system", "far"), accepted & named, named
    for name in found.kinds:
        there = (found.species == name)[:, None] & claimed
        yield ("recognition", "species", name, "iapar"), matched & there, there
        yield ("system", "species", name, "iapar"), accepted & there, there


def _share(found: Presentations, draws: FloatArray, hit: Mask, base: Mask) -> FloatArray:
    """Return a share by draw. A person with themself counts as often as drawn, a pair as often as both."""
    presented, enrolled = found.clusters
    size = draws.shape[1]

    def total(mask: Mask) -> FloatArray:
        if mask.ndim == 1:
            return np.asarray(draws @ np.bincount(presented, mask, size))
        row, column = np.nonzero(mask)
        first, second = presented[row], enrolled[column]
        own = first == second
        alone = draws @ np.bincount(first[own], minlength=size).astype(np.float64)
        pairs = np.zeros((size, size))
        np.add.at(pairs, (first[~own], second[~own]), 1.0)
        return np.asarray(alone + np.einsum("bs,bs->b", draws @ pairs, draws))

    with np.errstate(invalid="ignore", divide="ignore"):  # of nothing there is no share: NaN
        return np.asarray(total(hit) / total(base))


def _at_apcer(found: Presentations, draws: FloatArray) -> Figures:
    """Return the least BPCER at which no species' APCER is above a target."""
    presented, _ = found.clusters
    answered = np.isfinite(found.live)
    rows: dict[str, list[FloatArray]] = {name: [] for name in BPCER_TARGETS}
    for name in found.kinds:
        here = answered & (found.bona_fide | (found.species == name))
        label = found.bona_fide[here].astype(np.int64)
        if len(np.unique(label)) < 2:
            continue
        curve = error_curve(found.live[here], label, draws[:, presented[here]])
        for target, share in BPCER_TARGETS.items():
            first = (curve.far <= share + _EQUAL).argmax(axis=-1)
            rows[target].append(np.take_along_axis(curve.frr, first[:, None], -1)[:, 0])
    return {("pad", "bpcer_at_apcer", target): _highest(values) for target, values in rows.items() if values}


def _highest(rows: Sequence[FloatArray]) -> FloatArray:
    """Return the highest of some rates by draw, of those that are defined."""
    stacked = np.stack(rows)
    highest = np.where(np.isfinite(stacked), stacked, -np.inf).max(axis=0)
    return np.asarray(np.where(np.isfinite(highest), highest, np.nan))


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _put(tree: dict[str, Any], key: Key, value: Any) -> None:
    for part in key[:-1]:
        tree = tree.setdefault(part, {})
    tree[key[-1]] = value
