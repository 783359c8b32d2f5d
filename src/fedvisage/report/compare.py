"""Compare runs: mean ± standard deviation over seeds, and differences to the first group over targets.

Runs belong to one group when their recipes differ only in seed, title and data. Targets differ far more than methods,
so a difference is taken between runs of the same sites, target and seed. Seeds of one target share its images: their
differences are averaged, and the interval is Student's t over targets. The verdict follows from the interval alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedvisage.errors import UserError
from fedvisage.report.compared import lower_is_better, sheets_of
from fedvisage.report.labels import Label, labels_of
from fedvisage.report.members import Judged, Member, Pair, Settings, names_of, read_members

FEWEST_TARGETS = 2  # for an interval
CONFIDENCE = 0.95
CLOSE = 1e-12  # rounding of means; a bound this near zero excludes nothing
HOLDS, NOT_SHOWN, OTHER_WAY = "holds", "not shown", "holds the other way"


@dataclass(frozen=True)
class Figure:
    """A mean over seeds (of each seed's mean over users) and its standard deviation, None with one seed."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Difference:
    """Mean difference to the first group over targets, its 95 % t interval, and the verdict on "better than the first".

    With one target there is neither interval nor verdict. ``seeds`` is the smallest number of seeds of a target.
    """

    mean: float
    low: float | None
    high: float | None
    verdict: str | None
    targets: int
    seeds: int


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
    """Return the difference other − first over the targets that both have, from the seeds that both have there."""
    base, compared = _by_pair(first, figure), _by_pair(other, figure)
    gaps = [(pair.target, pair.seed, compared[pair] - base[pair]) for pair in sorted(compared.keys() & base.keys())]
    return difference(gaps, lower_is_better=lower_is_better(figure))


def difference(gaps: Iterable[tuple[str, int, float]], *, lower_is_better: bool = False) -> Difference | None:
    """Return the mean over targets of gaps by target and seed, with the t interval over targets and the verdict."""
    by_target: dict[str, dict[int, list[float]]] = {}
    for target, seed, gap in gaps:
        by_target.setdefault(target, {}).setdefault(seed, []).append(gap)
    means = [fmean(map(fmean, by_seed.values())) for by_seed in by_target.values()]
    if not means:
        return None
    mean, targets, seeds = fmean(means), len(means), min(map(len, by_target.values()))
    if targets < FEWEST_TARGETS:
        return Difference(mean, None, None, None, targets, seeds)
    from scipy.special import stdtrit  # here, because importing scipy takes long and most commands do not need it

    quantile = float(stdtrit(targets - 1, (1 + CONFIDENCE) / 2))
    half = quantile * stdev(means) / targets**0.5
    low, high = mean - half, mean + half
    return Difference(mean, low, high, _verdict(low, high, lower_is_better), targets, seeds)


def _verdict(low: float, high: float, lower_is_better: bool) -> str:
    """Return whether the interval shows that a row is better than the first one."""
    if low <= CLOSE and high >= -CLOSE:
        return NOT_SHOWN
    return HOLDS if (high < 0) == lower_is_better else OTHER_WAY


def _by_pair(group: Sequence[Member], figure: str) -> dict[Pair, float]:
    """Return a figure by what it is paired by: the mean, where several runs of a group share that."""
    values: dict[Pair, list[float]] = {}
    for member in group:
        if figure in member.figures and member.judged(figure).digest:
            values.setdefault(member.pair(figure), []).append(member.figures[figure])
    return {pair: fmean(figures) for pair, figures in values.items()}


def as_values(rows: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return a comparison as plain values, for programs."""
    return [asdict(row) for row in rows]
