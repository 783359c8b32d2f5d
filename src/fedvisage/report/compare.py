"""Runs side by side: mean ± standard deviation over seeds, and differences paired over user and seed.

Runs belong together when their recipes differ in nothing but the seed, the title and whose data it was. Users differ
much more than methods do, so a method is compared with the first one pair by pair: the same user, the same sites and
the same seed. The test flips the signs of the differences: if the methods were alike, either sign would be as likely.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fedvisage.errors import UserError
from fedvisage.files import json_key
from fedvisage.report.compared import Columns, figures_of, sheets_of
from fedvisage.report.page import flat
from fedvisage.report.run_files import as_written, read_mapping
from fedvisage.report.tables import Table, markdown, table
from fedvisage.streams import numpy_rng

NOT_SETTINGS = ("title", "data", "runtime.seed", "runtime.threads", "runtime.device", "runtime.checkpoint_every")
EXACT_UP_TO = 12  # pairs: 4096 sign patterns
RESAMPLES = 10_000
CLOSE = 1e-12


@dataclass(frozen=True)
class Figure:
    """A mean over seeds (of each seed's mean over users) and its standard deviation, None with one seed."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Difference:
    """Mean paired difference to the first group, its 95 % bootstrap interval, and the sign-flip test's p."""

    mean: float
    low: float
    high: float
    p: float
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


@dataclass(frozen=True)
class Member:
    """What a comparison needs of a run: its settings, what it is paired by, and its figures."""

    method: str
    settings: tuple[tuple[str, str], ...]
    pair: tuple[str, str, int]  # sites, user, seed
    figures: dict[str, float]


def compare(runs: Sequence[Path]) -> list[Comparison]:
    """Compare runs, in groups of equal settings; the first run's group is what the others are paired with."""
    members = [read_member(path) for path in runs]
    names = _names_of_one_task(members, runs)
    groups: dict[tuple[tuple[str, str], ...], list[Member]] = {}
    for member in members:
        groups.setdefault(member.settings, []).append(member)
    labels, first = labels_of(list(groups)), next(iter(groups.values()), [])
    return [
        Comparison(
            label=labels[settings],
            method=group[0].method,
            runs=len(group),
            users=tuple(sorted({member.pair[1] for member in group})),
            seeds=tuple(sorted({member.pair[2] for member in group})),
            figures={name: figure for name in names if (figure := over_seeds(group, name))},
            differences={} if group is first else {name: gap for name in names if (gap := paired(first, group, name))},
        )
        for settings, group in groups.items()
    ]


def read_member(path: Path) -> Member:
    """Read a run's figures and settings; a run without figures of a user cannot be compared."""
    with as_written(path):
        metrics = read_mapping(path / "metrics.json")
        figures, method = figures_of(metrics), str(metrics.get("method"))
        if not figures:
            raise UserError(str(path), "has no metrics.json with figures at a user; give finished runs")
        settings = tuple((key, value) for key, value in flat(read_mapping(path / "recipe.yaml")) if _is_setting(key))
        pair = (json_key(metrics.get("sites")), str(metrics.get("user")), int(metrics.get("seed") or 0))
        return Member(method, settings or (("method.name", method),), pair, figures)


def _names_of_one_task(members: Sequence[Member], runs: Sequence[Path]) -> list[str]:
    """Return the figures that any of the runs has; runs of two tasks have none in common and are refused."""
    recognise = [any("." in name for name in member.figures) for member in members]
    if len(set(recognise)) > 1:
        other = runs[recognise.index(not recognise[0])]
        raise UserError(str(other), "has another task than the first run; compare runs of one task")
    known = {name for member in members for name in member.figures}
    return [name for _, columns in sheets_of(known) for name in columns]


def labels_of(groups: Sequence[tuple[tuple[str, str], ...]]) -> dict[tuple[tuple[str, str], ...], str]:
    """Call each group by its method and, where groups share that, by the settings of its own in which those differ."""
    labels = {}
    for settings in groups:
        name = dict(settings).get("method.name", "run")
        rivals = [dict(other) for other in groups if dict(other).get("method.name", "run") == name]
        keys = sorted({key for rival in rivals for key in rival})
        differing = [key for key in keys if len({rival.get(key) for rival in rivals}) > 1]
        shown = ", ".join(f"{key}={dict(settings)[key]}" for key in differing if key in dict(settings))
        labels[settings] = f"{name} ({shown})" if shown else name
    return labels


def over_seeds(group: Sequence[Member], figure: str) -> Figure | None:
    """Average a figure over users within each seed, then give mean and standard deviation over seeds."""
    by_seed: dict[int, list[float]] = {}
    for member in group:
        if figure in member.figures:
            by_seed.setdefault(member.pair[2], []).append(member.figures[figure])
    means = [fmean(values) for values in by_seed.values()]
    return Figure(fmean(means), stdev(means) if len(means) > 1 else None) if means else None


def paired(first: Sequence[Member], other: Sequence[Member], figure: str) -> Difference | None:
    """Return the differences other − first over the pairs that both have."""
    base = {member.pair: member.figures[figure] for member in first if figure in member.figures}
    compared = {member.pair: member.figures[figure] for member in other if figure in member.figures}
    values = np.array([compared[pair] - base[pair] for pair in sorted(compared) if pair in base])
    if len(values) == 0:
        return None
    rng = numpy_rng(0, "compare", figure)
    means = values[rng.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Difference(float(values.mean()), float(low), float(high), sign_flip(values, rng), len(values))


def sign_flip(values: np.ndarray[Any, np.dtype[np.float64]], rng: np.random.Generator) -> float:
    """Return the share of sign patterns whose mean is at least as far from zero: exact for few pairs."""
    if len(values) <= EXACT_UP_TO:
        signs = np.array(list(product((1.0, -1.0), repeat=len(values))))
        return float(np.mean(np.abs(signs @ values) >= abs(values.sum()) - CLOSE))
    signs = rng.choice((1.0, -1.0), size=(RESAMPLES, len(values)))
    hits = int((np.abs(signs @ values) >= abs(values.sum()) - CLOSE).sum())
    return (hits + 1) / (RESAMPLES + 1)


def tables(rows: Sequence[Comparison]) -> list[Table]:
    """Return the comparison as tables: the figures, and the paired differences where there are any."""
    sheets = sheets_of({name for row in rows for name in row.figures})
    return [one for about, columns in sheets for one in _sheet(rows, about, columns)]


def _sheet(rows: Sequence[Comparison], about: str, columns: Columns) -> list[Table]:
    """Return the tables of some figures."""
    titles = {"label": "method", "runs": "runs", "users": "users", "seeds": "seeds"}
    of = f"{about[0].upper()}{about[1:]}: " if about else ""
    figures = [
        {"label": row.label, "runs": row.runs, "users": ", ".join(row.users), "seeds": ", ".join(map(str, row.seeds))}
        | {name: _figure(figure) for name, figure in row.figures.items()}
        for row in rows
    ]
    sheet = [table(f"{of}{_lower('Mean ± standard deviation over seeds', of)}", figures, titles | columns)]
    differences = [
        {"label": row.label, "pairs": max(difference.pairs for difference in here.values())}
        | {name: _difference(difference) for name, difference in here.items()}
        for row in rows
        if (here := {name: gap for name, gap in row.differences.items() if name in columns})
    ]
    if differences:
        note = (
            "In brackets: 95 % bootstrap interval of the mean. p: sign-flip test; with n pairs it cannot be below 2/2ⁿ."
        )
        caption = f"{of}{_lower('Difference', of)} to {rows[0].label}, paired over user and seed, in per cent points"
        sheet.append(table(caption, differences, {"label": "method", "pairs": "pairs"} | columns, note=note))
    return sheet


def as_text(rows: Sequence[Comparison]) -> str:
    """Return a comparison as Markdown."""
    return "\n".join(markdown(one) for one in tables(rows))


def as_values(rows: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return a comparison as plain values, for programs."""
    return [asdict(row) for row in rows]


def _lower(text: str, after: str) -> str:
    """Begin a text with a small letter where it stands after another."""
    return text[0].lower() + text[1:] if after else text


def _figure(figure: Figure) -> str:
    spread = "" if figure.std is None else f" ± {100 * figure.std:.2f}"
    return f"{100 * figure.mean:.2f}{spread}"


def _difference(difference: Difference) -> str:
    p = f"p = {difference.p:.3f}" if difference.p >= 0.001 else "p ≤ 0.001"
    return f"{100 * difference.mean:+.2f} [{100 * difference.low:+.2f}, {100 * difference.high:+.2f}], {p}"


def _is_setting(key: str) -> bool:
    return not any(key == name or key.startswith(f"{name}.") for name in NOT_SETTINGS)
