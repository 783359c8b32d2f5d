"""What a paper printed: its figures by row and user, its own averages, and where the two do not agree."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import fmean

import numpy as np
from pydantic import model_validator

from fedvisage.recipe import Section
from fedvisage.studies.figures import Figure, heading

Values = list[float]
ROUNDING = 0.01
"""How far an average may be from the mean of its rows when both were rounded to two places."""


class Printed(Section):
    """One printed table, percent, its values in the order of ``columns``.

    ``rows`` gives a row's values by user; where the paper prints a row for each data centre, by user and site. Other
    tables of the same study may hold the rows that ``averages`` are of: papers repeat each other's rows. An average may
    be printed of the first columns only.
    """

    source: str
    columns: list[Figure] = ["hter", "eer", "auc"]
    rows: dict[str, dict[str, Values | dict[str, Values]]]
    averages: dict[str, Values] = {}
    notes: list[str] = []

    @model_validator(mode="after")
    def _values_fill_the_columns(self) -> Printed:
        lines = [
            values for users in self.rows.values() for entry in users.values() for values in _sites(entry).values()
        ]
        wrong = [values for values in lines if len(values) != len(self.columns)]
        wrong += [values for values in self.averages.values() if not 1 <= len(values) <= len(self.columns)]
        if wrong:
            raise ValueError(f"{wrong[0]} are not the {len(self.columns)} columns {', '.join(self.columns)}")
        return self


def quoted(tables: Sequence[Printed], row: str, user: str, site: str | None = None) -> dict[str, float]:
    """Return what was printed for a row at a user: for one data centre, or as the mean over all that have a line."""
    for table in tables:
        entry = table.rows.get(row, {}).get(user)
        if entry is not None:
            sites = _sites(entry)
            chosen = list(sites.values()) if site is None else [sites[site]] if site in sites else []
            return _named(table, chosen)
    return {}


def quoted_mean(tables: Sequence[Printed], row: str, users: Collection[str]) -> dict[str, float]:
    """Return the mean over users of what was printed, where all of them have a line; their order is no matter."""
    lines = [quoted(tables, row, user) for user in users]
    return {name: fmean(line[name] for line in lines) for name in lines[0]} if all(lines) else {}


def slips(tables: Sequence[Printed], rows: Sequence[str], users: Sequence[str]) -> list[str]:
    """Say which printed averages do not follow from the printed rows; only where all of a row's users are here."""
    said = []
    for table in tables:
        for row in [row for row in table.averages if row in rows]:
            means = quoted_mean(tables, row, _users(tables, row)) if _users(tables, row) == set(users) else {}
            for name, average in zip(table.columns, table.averages[row], strict=False):
                if name in means and abs(means[name] - average) > ROUNDING:
                    said.append(
                        f"{table.source}, prints {average:.2f} as the average {heading(name)} of {row}; "
                        f"its rows average {means[name]:.2f}, which stands above."
                    )
    return said


def _users(tables: Sequence[Printed], row: str) -> set[str]:
    return {user for table in tables for user in table.rows.get(row, {})}


def _sites(entry: Values | dict[str, Values]) -> dict[str, Values]:
    return entry if isinstance(entry, dict) else {"": entry}


def _named(table: Printed, lines: Sequence[Values]) -> dict[str, float]:
    return dict(zip(table.columns, np.mean(lines, axis=0).tolist(), strict=True)) if lines else {}
