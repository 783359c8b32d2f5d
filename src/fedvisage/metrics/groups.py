"""Error rates by group of people or images, and how far they differ between groups.

A group is a value of a column of a set, such as a skin tone or a camera, and all groups have the model's one threshold.
BPCER and APCER are shares of a group's bona fide items and attacks, FNMR and FMR of the pairs of its images. The text
of ISO/IEC 19795-10 is not public, so *worst*, *best*, *ratio* and *difference* are not its terms.

A rate needs `LEAST_PEOPLE` people, and groups without a rate are counted but not named: figures of fewer people would
describe single persons, and reports leave a site. Intervals describe other people: the group's people are drawn with
replacement. Draws do not vary where a rate is 0 or 1; Wilson's interval for the number of people replaces them there.
The interval of a difference combines those of both groups (Newcombe, Statistics in Medicine 17, 1998, method 10), as if
no person were in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.base.streams import numpy_rng
from fedvisage.metrics.intervals import clusters, draw_people
from fedvisage.metrics.operating_point import wilson
from fedvisage.metrics.presentations import Point, Presentations
from fedvisage.metrics.scores import FloatArray, Scores, TextArray
from fedvisage.metrics.similarity import Faces, blocks
from fedvisage.metrics.threshold import Estimate

PLACE = "--by"
LEAST_PEOPLE = 5
MOST_GROUPS = 20
RESAMPLES = 1000

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Groups:
    """The names of groups, and the number of each image's group; -1 for an image without a value."""

    column: str
    names: tuple[str, ...]
    number: Numbers

    def where(self, mask: Mask) -> Groups:
        """Return the groups of the images where `mask` is true."""
        return replace(self, number=self.number[mask])


@dataclass(frozen=True)
class GroupRates:
    """The number of people in a group, and its rates; None for a rate of too few people."""

    people: int
    rates: dict[str, Estimate | None]


def read_groups(by: str, columns: Mapping[str, TextArray], source: str) -> Groups:
    """Group images by ``COLUMN``, or by ``COLUMN=30,60``, which divides numbers at these values.

    `columns` has the texts of each column of the set, which errors call `source`. An empty text is no value.
    """
    column, equals, edges = by.partition("=")
    if column not in columns:
        none = "none: import it again, or delete a rendered set of an earlier version from the cache"
        raise UserError(PLACE, f"{source} has no column {column[:80]!r}; it has {', '.join(columns) or none}")
    if equals:
        names, number = _divide(column, columns[column], edges)
    else:
        values, number = np.unique(columns[column], return_inverse=True)
        names = values.tolist()
        if names[:1] == [""]:
            names, number = names[1:], number - 1
    present = np.unique(number[number >= 0])  # a range may have no images
    if len(present) < 2:
        raise UserError(PLACE, f"{source} has {len(present)} value in {column}; name a column with two or more")
    if len(present) > MOST_GROUPS:
        remedy = f"name another column, or divide numbers, such as {column}=30,60"
        raise UserError(PLACE, f"{column} has {len(present):,} values in {source}, more than {MOST_GROUPS}; {remedy}")
    numbers = np.where(number < 0, -1, np.searchsorted(present, number))
    return Groups(column, tuple(names[place] for place in present), numbers)


def _divide(column: str, values: TextArray, text: str) -> tuple[list[str], Numbers]:
    """Return the names of the ranges between edges, and the number of each value's range, which has its lower edge."""
    form = f"{column}={text[:80]}"
    try:
        edges = [float(edge) for edge in text.split(",")]
        numbers = np.array([float(value) if value else math.nan for value in values.tolist()])
    except ValueError:
        raise UserError(PLACE, f"{form} needs numbers as edges, and numbers in the column") from None
    if sorted({*edges}) != edges or not np.isfinite(edges).all():
        raise UserError(PLACE, f"{form} needs ascending edges, such as {column}=30,60")
    inner = [f"{low:g} to below {high:g}" for low, high in pairwise(edges)]
    names = [f"below {edges[0]:g}", *inner, f"{edges[-1]:g} and above"]
    return names, np.where(np.isnan(numbers), -1, np.searchsorted(edges, numbers, side="right"))


def estimate_share(errors: FloatArray, totals: FloatArray, rng: np.random.Generator) -> Estimate | None:
    """Return the highest share of errors among the rows, which have one column per person; None for too few people.

    A row, such as a species of attack, counts if `LEAST_PEOPLE` people have items in it.
    """
    enough = (totals > 0).sum(axis=1) >= LEAST_PEOPLE
    people = (totals[enough] > 0).any(axis=0)
    if not people.any():
        return None
    errors, totals = errors[enough][:, people], totals[enough][:, people]
    draws = draw_people(totals.shape[1], RESAMPLES, rng)
    hits, bases = draws @ errors.T, draws @ totals.T
    shares = np.divide(hits, bases, out=np.full_like(hits, -np.inf), where=bases > 0).max(axis=1)
    return _estimate(float((errors.sum(axis=1) / totals.sum(axis=1)).max()), shares, totals.shape[1])


def _estimate(rate: float, spread: FloatArray, units: float) -> Estimate:
    if rate in (0.0, 1.0):
        return Estimate(rate, *wilson(rate, units))
    low, high = np.quantile(spread[np.isfinite(spread)], [0.025, 0.975])
    return Estimate(rate, float(low), float(high))


def _share(person: Numbers, classes: Sequence[Mask], error: Mask, rng: np.random.Generator) -> Estimate | None:
    """Return the highest share of errors among classes of items, each item with the number of its person."""
    people = int(person.max(initial=-1)) + 1
    errors, totals = np.zeros((2, len(classes), people))
    for row, mask in enumerate(classes):
        errors[row] = np.bincount(person[mask & error], minlength=people)
        totals[row] = np.bincount(person[mask], minlength=people)
    return estimate_share(errors, totals, rng)


def attack_rates(scores: Scores, threshold: float, rng: np.random.Generator) -> GroupRates:
    """Return the rates of attack detection of one group."""
    person, attack, live = clusters(scores), scores.label == 0, scores.live >= threshold
    species = [attack & (scores.species == name) for name in np.unique(scores.species[attack])]
    rates = {
        "bpcer": _share(person, [~attack], ~live, rng),
        "apcer_worst": _share(person, species, live, rng),
        "apcer_pooled": _share(person, [attack], live, rng),
    }
    return GroupRates(len(np.unique(person)), rates)


def pair_rates(faces: Faces, threshold: float, rng: np.random.Generator) -> GroupRates:
    """Return the rates of recognition of one group, over all pairs of its images.

    A draw counts a pair of two people as often as both were drawn together, and no pair of a person drawn twice.
    """
    _, person, images = np.unique(faces.identity, return_inverse=True, return_counts=True)
    people = len(images)
    missed, matched = np.zeros(people), np.zeros((people, people), np.float32)
    for rows, columns, similarity in blocks(faces.features, faces.features):
        first, second = person[rows][:, None], person[columns][None, :]
        later = np.arange(columns.start, columns.stop)[None, :] > np.arange(rows.start, rows.stop)[:, None]
        row, _ = np.nonzero(later & (first == second) & (similarity < threshold))
        missed += np.bincount(person[rows][row], minlength=people)
        row, column = np.nonzero(later & (first != second) & (similarity >= threshold))
        np.add.at(matched, (person[rows][row], person[columns][column]), 1)
    rates = {"fnmr": estimate_share(missed[None], (images * (images - 1) / 2)[None], rng), "fmr": None}
    if people >= LEAST_PEOPLE:
        draws = np.concatenate([np.ones((1, people)), draw_people(people, RESAMPLES, rng)])
        hits = ((draws.astype(np.float32) @ matched) * draws).sum(axis=1)
        totals = ((draws @ images) ** 2 - draws**2 @ images**2) / 2
        shares = np.divide(hits, totals, out=np.full_like(hits, np.nan), where=totals > 0)
        rates["fmr"] = _estimate(float(shares[0]), shares[1:], people * (people - 1) / 2)
    return GroupRates(people, rates)


def presentation_rates(presentations: Presentations, at: Point, rng: np.random.Generator) -> GroupRates:
    """Return the rates of one group's presentations, as shares of those with an answer.

    FMR is over comparisons with all other enrolled people, and its interval is for the same enrolled people.
    """
    person, bona_fide = presentations.clusters[0], presentations.bona_fide
    answered, live = np.isfinite(presentations.live), presentations.live >= at.pad
    species = [answered & (presentations.species == name) for name in presentations.kinds]
    rates = {
        "bpcer": _share(person, [answered & bona_fide], ~live, rng),
        "apcer_worst": _share(person, species, live, rng),
    }
    if at.recognition is not None:
        compared = np.isfinite(presentations.similarity) & bona_fide[:, None]
        mated, matched = presentations.claimed, presentations.similarity >= at.recognition
        non_mated = ~mated & (presentations.subject != "")[:, None]
        of_each = np.repeat(person, len(presentations.enrolled))
        rates["fnmr"] = _share(of_each, [(compared & mated).ravel()], ~matched.ravel(), rng)
        rates["fmr"] = _share(of_each, [(compared & non_mated).ravel()], matched.ravel(), rng)
    return GroupRates(len(np.unique(person)), rates)


def compare_groups(groups: Groups, rates_of: Callable[[Mask, np.random.Generator], GroupRates]) -> dict[str, Any]:
    """Return the groups that have a rate, the number of others, and the variation of each rate.

    ``rates_of`` returns the rates of the images under a mask.
    """
    figures: dict[str, Any] = {}
    by_rate: dict[str, dict[str, Estimate]] = {}
    for number, name in enumerate(groups.names):
        group = rates_of(groups.number == number, numpy_rng(0, "groups", groups.column, name))
        estimates = {kind: rate for kind, rate in group.rates.items() if rate is not None}
        for kind, rate in estimates.items():
            by_rate.setdefault(kind, {})[name] = rate
        if estimates:
            rates = dict.fromkeys(group.rates) | {kind: rate.rate for kind, rate in estimates.items()}
            bounds = {kind: [rate.low, rate.high] for kind, rate in estimates.items()}
            figures[name] = {"people": group.people, **rates, "intervals": bounds}
    return {
        "column": groups.column,
        "least_people": LEAST_PEOPLE,
        "groups": figures,
        "too_few": len(groups.names) - len(figures),
        "without_value": int((groups.number < 0).sum()),
        "variation": {kind: variation(rates) for kind, rates in by_rate.items()},
    }


def variation(rates: Mapping[str, Estimate]) -> dict[str, Any]:
    """Return the worst and the best group of a rate, their ratio, and their difference with its 95 % interval."""
    if len(rates) < 2:
        return {}
    worst, best = (choose(rates, key=lambda name: rates[name].rate) for choose in (max, min))
    high, low = rates[worst], rates[best]
    difference = high.rate - low.rate
    if not difference:
        return {"worst": None, "best": None, "ratio": None, "difference": 0.0}
    ratio = high.rate / low.rate if low.rate else None
    below = math.hypot(high.rate - high.low, low.high - low.rate)
    above = math.hypot(high.high - high.rate, low.rate - low.low)
    interval = [max(-1.0, difference - below), min(1.0, difference + above)]
    return {"worst": worst, "best": best, "ratio": ratio, "difference": difference, "interval": interval}
