"""Evaluation of attack detection and recognition together, per presentation, in the terms of ISO/IEC 30107-3.

A presentation is one appearance before the camera: a video or a picture. Attack detection may give no answer for it
(non-response). A system accepts a presentation as a person if attack detection classifies it as bona fide and it is
similar enough to that person's enrolment. Rates are shares of presentations or comparisons:

- APCER of a species: share of its answered presentations classified as bona fide. APNRR: share of all its presentations
  without an answer. BPCER and BPNRR: shares of the bona fide presentations classified as attacks, and without an
  answer.
- FNMR and FMR: share of mated comparisons (one person) that do not match, and of non-mated comparisons (two people)
  that match, among the comparisons that could be made. FRR and FAR of the whole system exclude nothing: a non-response
  counts as a rejection.
- IAPAR of a species: share of its presentations against enrolled people that are accepted as the attacked person, by
  recognition alone or by the whole system.
- RIAPAR = FNMR + IAPAR for recognition alone, FRR + IAPAR for the system (ISO's 1 + IAPAR − (1 − FNMR)).

Confidence intervals describe other people using the same system: whole subjects are drawn with replacement, and a pair
of two people counts as often as both were drawn together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.metrics.intervals import draw_people
from fedvisage.metrics.pad import BPCER_TARGETS, error_curve
from fedvisage.metrics.scores import FloatArray, TextArray

BoolArray = NDArray[np.bool_]
Key = tuple[str, ...]
Figures = dict[Key, FloatArray]

WORST = ("apcer", "iapar", "riapar")
"""Per-species rates whose maximum is reported as well."""

COUNTED = {
    "apcer": "answered",
    "bpcer": "answered",
    "apnrr": "presented",
    "bpnrr": "presented",
    "iapar": "presented",
    "fnmr": "mated",
    "fmr": "non_mated",
    "frr": "mated",
    "far": "non_mated",
}
"""The name of the count behind each rate."""

_EQUAL = 1e-12


@dataclass(frozen=True, eq=False)
class Presentations:
    """The answer for each presentation, and its similarity to every enrolled person (one column per person)."""

    item: TextArray
    subject: TextArray  # the presented or attacked person; "" if unknown
    species: TextArray  # "" for bona fide
    live: FloatArray  # logits; NaN without a response
    similarity: FloatArray  # N×enrolled; NaN rows where nothing could be compared
    enrolled: TextArray

    def __post_init__(self) -> None:
        """Reject inputs that would silently make every figure wrong."""
        count, columns = len(self.item), len(self.enrolled)
        for field in fields(self):
            expected = {"similarity": (count, columns), "enrolled": (columns,)}.get(field.name, (count,))
            shape = np.shape(getattr(self, field.name))
            if shape != expected:
                raise ValueError(f"{field.name} must have the shape {expected}, got {shape}")
        if len(np.unique(self.enrolled)) != columns:
            raise ValueError("each person can only be enrolled once")

    def __len__(self) -> int:
        """Return the number of presentations."""
        return len(self.item)

    def where(self, mask: BoolArray) -> Presentations:
        """Return the presentations where `mask` is true."""
        names = ("item", "subject", "species", "live", "similarity")
        return replace(self, **{name: getattr(self, name)[mask] for name in names})

    @property
    def bona_fide(self) -> BoolArray:
        """Mask of the bona fide presentations."""
        return np.asarray(self.species == "")

    @property
    def kinds(self) -> list[str]:
        """The attack species in alphabetical order."""
        return [str(name) for name in np.unique(self.species) if name]

    @property
    def claimed(self) -> BoolArray:
        """N×enrolled mask: the person that each presentation shows or attacks."""
        return np.asarray((self.subject[:, None] == self.enrolled[None, :]) & (self.subject != "")[:, None])

    @property
    def clusters(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the subject numbers of presentations and of enrolled people; an unknown subject is its own cluster."""
        names = np.where(self.subject != "", np.char.add("s:", self.subject), np.char.add("i:", self.item))
        _, numbers = np.unique(np.concatenate([names, np.char.add("s:", self.enrolled)]), return_inverse=True)
        return numbers[: len(self)].astype(np.int64), numbers[len(self) :].astype(np.int64)


@dataclass(frozen=True)
class Point:
    """The decision thresholds: the logit of attack detection, and the similarity (None without recognition)."""

    pad: float
    recognition: float | None = None


def evaluate_presentations(
    presentations: Presentations, at: Point, resamples: int = 0, rng: np.random.Generator | None = None
) -> Any:
    """Return all figures as nested dictionaries: values, 95 % intervals if requested, and counts."""
    presented, enrolled = presentations.clusters
    count = int(max([-1, *presented.tolist(), *enrolled.tolist()])) + 1
    point = figures(presentations, at, np.ones((1, count)))
    tree: dict[str, Any] = {}
    spread: Figures = {}
    if resamples and rng is not None and count:
        spread = figures(presentations, at, draw_people(count, resamples, rng))
    for key, values in point.items():
        entry: dict[str, Any] = {"value": _plain(values[0])}
        if key in spread and entry["value"] is not None:
            defined = spread[key][np.isfinite(spread[key])]
            low, high = np.quantile(defined, [0.025, 0.975]) if len(defined) else (np.nan, np.nan)
            entry["interval"] = [_plain(low), _plain(high)]
        _set_nested(tree, key, entry)
    for key, number in counts(presentations, at).items():
        _set_nested(tree, key, number)
    return tree


def figures(presentations: Presentations, at: Point, draws: FloatArray) -> Figures:
    """Return each figure for each row of `draws`, the counts of the subjects; a row of ones gives the plain value."""
    results = {key: _share(presentations, draws, hit, base) for key, hit, base in _shares(presentations, at)}
    results |= _at_apcer(presentations, draws)
    for part, missed in (("recognition", "fnmr"), ("system", "frr")):
        for name in presentations.kinds:
            if (accepted := results.get((part, "species", name, "iapar"))) is not None:
                results[part, "species", name, "riapar"] = accepted + results[part, missed]
    for part in ("pad", "recognition", "system"):
        for rate in WORST:
            rows = [results[key] for name in presentations.kinds if (key := (part, "species", name, rate)) in results]
            if rows:
                results[part, f"{rate}_max"] = _highest(rows)
    return results


def counts(presentations: Presentations, at: Point) -> dict[Key, int]:
    """Return the numbers of presentations, answers and comparisons behind the figures."""
    return {(*key[:-1], COUNTED[key[-1]]): int(base.sum()) for key, _, base in _shares(presentations, at)}


def _shares(presentations: Presentations, at: Point) -> Iterator[tuple[Key, BoolArray, BoolArray]]:
    """Yield the key, numerator mask and denominator mask of each share.

    Masks have N entries for presentations and N×enrolled entries for comparisons.
    """
    answered = np.isfinite(presentations.live)
    live = answered & (presentations.live >= at.pad)
    # Attack detection: error and non-response rates of the bona fide, then of each species.
    for prefix, in_group, error, nonresponse in (
        (("pad", "bona_fide"), presentations.bona_fide, ("bpcer", ~live), "bpnrr"),
        *(
            (("pad", "species", name), presentations.species == name, ("apcer", live), "apnrr")
            for name in presentations.kinds
        ),
    ):
        yield (*prefix, error[0]), error[1] & answered & in_group, answered & in_group
        yield (*prefix, nonresponse), ~answered & in_group, in_group
    if at.recognition is None:
        return
    # Recognition alone ignores comparisons that could not be made; the system counts them as rejections.
    claimed, compared = presentations.claimed, np.isfinite(presentations.similarity)
    matched = compared & (presentations.similarity >= at.recognition)
    bona_fide = presentations.bona_fide[:, None]
    non_mated = bona_fide & (presentations.subject != "")[:, None] & ~claimed
    yield ("recognition", "fnmr"), ~matched & compared & claimed & bona_fide, compared & claimed & bona_fide
    yield ("recognition", "fmr"), matched & non_mated, compared & non_mated
    accepted = matched & live[:, None]
    yield ("system", "frr"), ~accepted & claimed & bona_fide, claimed & bona_fide
    yield ("system", "far"), accepted & non_mated, non_mated
    for name in presentations.kinds:
        attempts = (presentations.species == name)[:, None] & claimed
        yield ("recognition", "species", name, "iapar"), matched & attempts, attempts
        yield ("system", "species", name, "iapar"), accepted & attempts, attempts


def _share(presentations: Presentations, draws: FloatArray, hit: BoolArray, base: BoolArray) -> FloatArray:
    """Return a share per draw.

    A comparison within a person is weighted by the person's count, a pair of people by the product of both counts.
    """
    presented, enrolled = presentations.clusters
    size = draws.shape[1]

    def total(mask: BoolArray) -> FloatArray:
        if mask.ndim == 1:
            return np.asarray(draws @ np.bincount(presented, mask, size))
        row, column = np.nonzero(mask)
        first, second = presented[row], enrolled[column]
        same_person = first == second
        alone = draws @ np.bincount(first[same_person], minlength=size).astype(np.float64)
        pairs = np.zeros((size, size))
        np.add.at(pairs, (first[~same_person], second[~same_person]), 1.0)
        return np.asarray(alone + np.einsum("bs,bs->b", draws @ pairs, draws))

    with np.errstate(invalid="ignore", divide="ignore"):  # an empty denominator: NaN
        return np.asarray(total(hit) / total(base))


def _at_apcer(presentations: Presentations, draws: FloatArray) -> Figures:
    """Return the lowest BPCER at which every species' APCER is at most a target."""
    presented, _ = presentations.clusters
    answered = np.isfinite(presentations.live)
    rows: dict[str, list[FloatArray]] = {name: [] for name in BPCER_TARGETS}
    for name in presentations.kinds:
        selected = answered & (presentations.bona_fide | (presentations.species == name))
        label = presentations.bona_fide[selected].astype(np.int64)
        if len(np.unique(label)) < 2:
            continue
        curve = error_curve(presentations.live[selected], label, draws[:, presented[selected]])
        for target, share in BPCER_TARGETS.items():
            first = (curve.far <= share + _EQUAL).argmax(axis=-1)
            rows[target].append(np.take_along_axis(curve.frr, first[:, None], -1)[:, 0])
    return {("pad", "bpcer_at_apcer", target): _highest(values) for target, values in rows.items() if values}


def _highest(rows: Sequence[FloatArray]) -> FloatArray:
    """Return the maximum of the defined rates per draw."""
    stacked = np.stack(rows)
    highest = np.where(np.isfinite(stacked), stacked, -np.inf).max(axis=0)
    return np.asarray(np.where(np.isfinite(highest), highest, np.nan))


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _set_nested(tree: dict[str, Any], key: Key, value: Any) -> None:
    for part in key[:-1]:
        tree = tree.setdefault(part, {})
    tree[key[-1]] = value
