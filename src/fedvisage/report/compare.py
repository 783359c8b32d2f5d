"""Runs side by side: mean ± standard deviation over seeds, and differences paired over user and seed.

Runs belong together when their recipes differ in nothing but the seed, the title and whose data it was. Users differ
much more than methods do, so a method is compared with the first one pair by pair: judged on the same data, trained at
the same sites with the same seed. The test flips the signs of the differences: if the methods were alike, either sign
would be as likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fedvisage.errors import UserError
from fedvisage.report.compared import sheets_of
from fedvisage.report.labels import Label, labels_of
from fedvisage.report.members import Judged, Member, Settings, names_of, read_members
from fedvisage.streams import numpy_rng

EXACT_UP_TO = 12  # pairs: 4096 sign patterns
FEWEST_PAIRS = 2  # for an interval, or for a test
RESAMPLES = 10_000
CLOSE = 1e-12


@dataclass(frozen=True)
class Figure:
    """A mean over seeds (of each seed's mean over users) and its standard deviation, None with one seed."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Difference:
    """Mean paired difference to the first group, its 95 % bootstrap interval, and the sign-flip test's p.

    One pair has neither interval nor p.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    pairs: int


@dataclass(frozen=True)
class Comparison:
    """One group of runs."""

    label: str
    method: str
    runs: int
    users: tuple[str, ...]
    seeds: tuple[int, ...]
    figures: dict[str, Figure]
    differences: dict[str, Difference]  # empty for the first group, or without common pairs
    stands_for: str = ""
    """The settings that the label is short for."""
    notes: tuple[str, ...] = ()
    """What a reader should know: runs that were given twice, and data that others were not judged on."""


def compare(runs: Sequence[Path]) -> list[Comparison]:
    """Compare runs, in groups of equal settings; the first run's group is what the others are paired with."""
    members, twice = read_members(runs)
    names = _names_of_one_task(members)
    groups: dict[Settings, list[Member]] = {}
    for member in members:
        groups.setdefault(member.settings, []).append(member)
    labels, first = labels_of(list(groups)), next(iter(groups.values()), [])
    called = names_of(member.user for member in members)
    return [
        Comparison(
            label=labels[settings].text,
            method=group[0].method,
            runs=len(group),
            users=tuple(sorted({called[member.user] for member in group})),
            seeds=tuple(sorted({member.seed for member in group})),
            figures={name: figure for name in names if (figure := over_seeds(group, name))},
            differences={} if group is first else {name: gap for name in names if (gap := paired(first, group, name))},
            stands_for=labels[settings].stands_for,
            notes=tuple(twice) if group is first else _unpaired(first, group, called, labels),
        )
        for settings, group in groups.items()
    ]


def _names_of_one_task(members: Sequence[Member]) -> list[str]:
    """Return the figures that any of the runs has; runs of two tasks have none in common and are refused."""
    recognise = [any("." in name for name in member.figures) for member in members]
    if len(set(recognise)) > 1:
        other = members[recognise.index(not recognise[0])].path
        raise UserError(str(other), "has another task than the first run; compare runs of one task")
    known = {name for member in members for name in member.figures}
    return [name for _, columns in sheets_of(known) for name in columns]


def _unpaired(
    first: Sequence[Member], group: Sequence[Member], called: dict[Judged, str], labels: dict[Settings, Label]
) -> tuple[str, ...]:
    """Say which data of a group is not the first group's, so that nothing there could be paired."""
    notes = []
    for member in (*first, *group):
        unknown = {member.judged(figure).name for figure in member.figures if not member.judged(figure).digest}
        notes += [f"{member.path}: data.json has no digest of the data of {name}, so nothing judged there is paired"
                  for name in sorted(unknown)]  # fmt: skip
    known, own, base = {member.user for member in first}, labels[group[0].settings].text, labels[first[0].settings].text
    for other in sorted({member.user for member in group if member.user.digest} - known, key=lambda one: called[one]):
        theirs = ", ".join(sorted(called[one] for one in known))
        notes.append(
            f"{own} was judged on {called[other]}, {base} on {theirs}: other data, so these runs are not paired"
        )
    return tuple(notes)


def over_seeds(group: Sequence[Member], figure: str) -> Figure | None:
    """Average a figure over users within each seed, then give mean and standard deviation over seeds."""
    by_seed: dict[int, list[float]] = {}
    for member in group:
        if figure in member.figures:
            by_seed.setdefault(member.seed, []).append(member.figures[figure])
    means = [fmean(values) for values in by_seed.values()]
    return Figure(fmean(means), stdev(means) if len(means) > 1 else None) if means else None


def paired(first: Sequence[Member], other: Sequence[Member], figure: str) -> Difference | None:
    """Return the differences other − first over the pairs that both have."""
    base, compared = _by_pair(first, figure), _by_pair(other, figure)
    return difference([compared[pair] - base[pair] for pair in sorted(compared) if pair in base], figure)


def difference(of_pairs: Sequence[float], figure: str) -> Difference | None:
    """Return the mean of differences with its interval and test; from one pair follows nothing but itself."""
    values = np.array(of_pairs)
    if len(values) == 0:
        return None
    if len(values) < FEWEST_PAIRS:
        return Difference(float(values.mean()), None, None, None, len(values))
    rng = numpy_rng(0, "compare", figure)
    means = values[rng.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Difference(float(values.mean()), float(low), float(high), sign_flip(values, rng), len(values))


def _by_pair(group: Sequence[Member], figure: str) -> dict[tuple[tuple[str, ...], str, int], float]:
    """Return a figure by what it is paired by: the mean, where several runs of a group share that."""
    values: dict[tuple[tuple[str, ...], str, int], list[float]] = {}
    for member in group:
        if figure in member.figures and member.judged(figure).digest:
            values.setdefault(member.pair(figure), []).append(member.figures[figure])
    return {pair: fmean(found) for pair, found in values.items()}


def sign_flip(values: np.ndarray[Any, np.dtype[np.float64]], rng: np.random.Generator) -> float:
    """Return the share of sign patterns whose mean is at least as far from zero: exact for few pairs."""
    if len(values) <= EXACT_UP_TO:
        signs = np.array(list(product((1.0, -1.0), repeat=len(values))))
        return float(np.mean(np.abs(signs @ values) >= abs(values.sum()) - CLOSE))
    signs = rng.choice((1.0, -1.0), size=(RESAMPLES, len(values)))
    hits = int((np.abs(signs @ values) >= abs(values.sum()) - CLOSE).sum())
    return (hits + 1) / (RESAMPLES + 1)


def as_values(rows: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return a comparison as plain values, for programs."""
    return [asdict(row) for row in rows]
