"""One self-contained HTML page about a study: its table, its figures, differences with intervals, links to its runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvisage.report.compare import Difference, difference
from fedvisage.report.page import NAME as REPORT
from fedvisage.report.page import colours, environment, themed
from fedvisage.report.tables import MISSING, Table, table
from fedvisage.runs.directory import METRICS
from fedvisage.studies.drawings import figures
from fedvisage.studies.figures import heading, scale
from fedvisage.studies.file import Study
from fedvisage.studies.forms import as_table, notes_of
from fedvisage.studies.grid import Cell

INTERVAL = "In brackets: 95 % bootstrap interval of the mean. p: sign-flip test; with n pairs it cannot be below 2/2ⁿ."


def render(
    study: Study, text: str, summary: Mapping[str, Any], results: Sequence[Mapping[str, Any]], cells: Sequence[Cell],
    out: Path,
) -> str:  # fmt: skip
    """Return the page's HTML; ``text`` is the table in Markdown, and cells are linked as they lie from ``out``."""
    drawn = [(title, what, themed(drawing, title)) for title, what, drawing in figures(study, cells, summary)]
    return (
        environment()
        .get_template("study.html.jinja")
        .render(
            title=study.title,
            caption=text.split("\n")[2],
            colours=colours(),
            table=as_table(text),
            notes=notes_of(text),
            differences=differences(study, results),
            figures=drawn,
            cells=[(f"{cell.row}, user {cell.user}, seed {cell.seed}", _link(cell, out)) for cell in cells],
        )
    )


def differences(study: Study, results: Sequence[Mapping[str, Any]]) -> Table | None:
    """Return how far each row lies from the first, paired over user and seed; None where there is one row."""
    first, *others = study.rows
    rows = [{"row": row, **_paired(study, results, first, row)} for row in others]
    titles = {"row": "method", **{figure: heading(figure) for figure in study.figures}}
    note = INTERVAL if len(study.users) * len(study.seeds) > 1 else ""  # one pair has no interval
    return table(f"Difference to {first}, paired over user and seed", rows, titles, note=note) if rows else None


def _paired(study: Study, results: Sequence[Mapping[str, Any]], first: str, row: str) -> dict[str, str]:
    found = {}
    for figure in study.figures:
        values = [
            {(one["user"], one["seed"]): scale(figure) * one[figure]
             for one in results if one["row"] == name and one.get(figure) is not None}
            for name in (first, row)
        ]  # fmt: skip
        gap = difference(
            [values[1][pair] - base for pair, base in sorted(values[0].items()) if pair in values[1]], figure
        )
        found[figure] = MISSING if gap is None else _said(gap)
    return found


def _said(gap: Difference) -> str:
    if gap.low is None or gap.high is None or gap.p is None:
        return f"{gap.mean:+.2f}"
    return f"{gap.mean:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}], p {gap.p:.2g}"


def _link(cell: Cell, out: Path) -> str:
    """Return where a cell's report is, or its figures if nobody drew one."""
    page = cell.out / REPORT
    return Path(os.path.relpath(page if page.exists() else cell.out / METRICS, out)).as_posix()
