"""One self-contained HTML page about a study: its table, its figures, differences with intervals, links to its runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvisage.report.compare import Difference, difference
from fedvisage.report.compared import lower_is_better
from fedvisage.report.page import NAME as REPORT
from fedvisage.report.page import colours, environment, themed
from fedvisage.report.side_by_side import counts_of, difference_cell, explained
from fedvisage.report.tables import Table, table
from fedvisage.runs.directory import METRICS
from fedvisage.studies.drawings import figures
from fedvisage.studies.figures import BLIND, COSTS, heading, scale
from fedvisage.studies.file import Study
from fedvisage.studies.forms import as_table, notes_of
from fedvisage.studies.grid import Cell

SITES = "the sites"
HELD_OUT = "Held-out figures have no interval either: the same sites train for several targets."


def render(
    study: Study, text: str, summary: Mapping[str, Any], gaps: Table | None, cells: Sequence[Cell], out: Path,
) -> str:  # fmt: skip
    """Return the page's HTML from the table in Markdown and the differences; links to cells start at ``out``."""
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
            differences=gaps,
            figures=drawn,
            cells=[(f"{cell.row}, user {cell.user}, seed {cell.seed}", _link(cell, out)) for cell in cells],
        )
    )


def differences(study: Study, results: Sequence[Mapping[str, Any]]) -> Table | None:
    """Return the difference of each row to the first, over targets; None where there is one row."""
    first, *others = study.rows
    gaps = {row: _paired(study, results, first, row) for row in others}
    rows = [{"row": row, **counts_of(known.values()), **{name: difference_cell(gap, 1) for name, gap in known.items()}}
            for row, known in gaps.items() if known]  # fmt: skip
    titles = {"row": "method", "targets": "targets", "seeds": "seeds"} | {name: heading(name) for name in study.figures}
    notes = [explained([gap for known in gaps.values() for gap in known.values()], first)]
    notes += [HELD_OUT] * bool(set(BLIND) & set(study.figures))
    note = " ".join(notes)
    return table(f"Difference to {first}", rows, titles, note=note) if rows else None


def _paired(study: Study, results: Sequence[Mapping[str, Any]], first: str, row: str) -> dict[str, Difference]:
    found = {}
    for figure in study.figures:
        base, other = (
            {(one["user"], one["seed"]): scale(figure) * one[figure]
             for one in results if one["row"] == name and one.get(figure) is not None}
            for name in (first, row)
        )  # fmt: skip
        gaps = [(SITES if figure in BLIND else user, seed, other[user, seed] - base[user, seed])
                for user, seed in sorted(base.keys() & other.keys())]  # fmt: skip
        gap = difference(gaps, lower_is_better=figure in COSTS or lower_is_better(figure))
        if gap is not None:
            found[figure] = gap
    return found


def _link(cell: Cell, out: Path) -> str:
    """Return where a cell's report is, or its figures if nobody drew one."""
    page = cell.out / REPORT
    return Path(os.path.relpath(page if page.exists() else cell.out / METRICS, out)).as_posix()
