"""A study's table: mean and deviation over seeds, next to the figures of papers, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvisage.report.tables import Table
from fedvisage.studies.study import COSTS, Study, heading, printing_errors, quoted_figures, quoted_mean, scale

# CSV and LaTeX are made from the rows of the Markdown table, so that all forms agree.

_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")

NAMES = 3
"""Columns before the figures: method, sites, target."""


def rows_of(text: str) -> list[list[str]]:
    """Return the titles and rows of a Markdown table, without bold markup."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [
        [cell.strip().replace("**", "").replace(r"\|", "|") for cell in _BETWEEN_CELLS.split(line[1:-1])]
        for line in lines
    ]


def notes_of(text: str) -> list[str]:
    """Return the notes below a Markdown table."""
    _, _, below = text.rpartition("\n|")
    return [line.removeprefix("- ") for line in below.splitlines()[1:] if line.strip()]


def as_table(text: str) -> Table:
    """Return the Markdown table as a table for HTML pages, CSV and LaTeX."""
    head, *rows = rows_of(text)
    return Table("", tuple(head), tuple(map(tuple, rows)), NAMES)


MANY_SITES = 8
"""With more sites than this, a table shows their number instead of their names."""
Result = dict[str, Any]
Spread = dict[str, list[float]]


def summarise(study: Study, results: Sequence[Result]) -> dict[str, Any]:
    """Return mean and deviation over seeds for every row and target, and over targets for every row.

    If each site has its own model, the figures of the sites are under ``members``.
    """
    table: dict[str, Any] = {"title": study.title, "seeds": study.seeds, "figures": study.figures, "rows": {}}
    for name in study.rows:
        of_row = [result for result in results if result["row"] == name]
        average = _spread(study, [[r for r in of_row if r["seed"] == seed] for seed in study.seeds])
        targets = {target: _at_target(study, [r for r in of_row if r["target"] == target]) for target in study.targets}
        table["rows"][name] = {"targets": targets, "average": average}
    return table


def _at_target(study: Study, results: Sequence[Result]) -> dict[str, Any]:
    """Return a row's figures on one target, and its sites in the study's order."""
    members = {
        site: _spread(study, [[result["members"][site]] for result in results])
        for site in study.sets
        if site in results[0]["members"]
    }
    figures = {
        "sites": [site for site in study.sets if site in results[0]["sites"]],
        **_spread(study, [[result] for result in results]),
    }
    return figures | ({"members": members} if members else {})


def _spread(study: Study, groups: Sequence[Sequence[Result]]) -> Spread:
    """Average each group, then return mean and standard deviation over groups; rates in per cent."""
    spread: Spread = {}
    for figure in study.figures:
        measured = [[run[figure] for run in group if run[figure] is not None] for group in groups]
        means = [float(np.mean(values)) for values in measured if values]
        if not means:
            continue  # a target with one class has no such figure
        deviation = float(np.std(means, ddof=1)) if len(means) > 1 else 0.0
        by = scale(figure)
        spread[figure] = [round(by * float(np.mean(means)), 2), round(by * deviation, 2)]
    return spread


def markdown(study: Study, table: dict[str, Any]) -> str:
    """Return the table as Markdown, with the papers' figures where the study quotes them."""
    columns = ["method", "sites", "target", *map(heading, study.figures)]
    columns += [f"{heading(name)} (paper)" for name in _quoted_figures(study)]
    seeds = len(study.seeds)
    over = f"mean ± standard deviation over {seeds} seeds." if seeds > 1 else "one seed."
    costs = " (costs in their own units)" if COSTS.keys() & set(study.figures) else ""
    title = " ".join(study.title.split())  # of one line, as below it the caption and the table have fixed places
    lines = [f"# {title}", "", f"Percent{costs}, {over}", "", _row(columns), "|---" * len(columns) + "|"]
    for row, figures in table["rows"].items():
        for target in study.targets:
            lines += _lines(study, row, target, figures["targets"][target])
        if len(study.targets) > 1:
            mean = quoted_mean(study.paper, _printed_name(study, row), study.targets)
            lines.append(_table_row(study, [f"**{row}**", "", "**mean**"], figures["average"], mean))
    if study.paper:
        sources = "; ".join(printed.source for printed in study.paper)
        rows = [_printed_name(study, row) for row in study.rows]
        notes = [
            *printing_errors(study.paper, rows, study.targets),
            *(note for printed in study.paper for note in printed.notes),
        ]
        lines += ["", f"Paper: {sources}, measured on other (real) data: compare the order, not the numbers."]
        lines += [f"- {note}" for note in notes]
    return "\n".join(lines) + "\n"


def _lines(study: Study, row: str, target: str, figures: dict[str, Any]) -> list[str]:
    """Return a row's lines for a target: one for each site's own model, and one for the row."""
    printed = _printed_name(study, row)
    lines = [
        _table_row(study, [row, site, target], site_figures, quoted_figures(study.paper, printed, target, site))
        for site, site_figures in figures.get("members", {}).items()
    ]
    few = len(figures["sites"]) <= MANY_SITES
    trained = "&".join(figures["sites"]) if few else f"{len(figures['sites'])} sites"
    sites = f"mean of {len(lines)}" if lines else trained
    return [*lines, _table_row(study, [row, sites, target], figures, quoted_figures(study.paper, printed, target))]


def _table_row(study: Study, names: list[str], figures: dict[str, Any], beside: dict[str, float]) -> str:
    form = "{:.2f} ± {:.2f}" if len(study.seeds) > 1 else "{:.2f}"
    cells = [form.format(*figures[figure]) if figure in figures else "–" for figure in study.figures]
    cells += [f"{beside[name]:.2f}" if name in beside else "–" for name in _quoted_figures(study)]
    return _row([*names, *cells])


def _quoted_figures(study: Study) -> list[str]:
    """Return the quoted figures: only those that a paper printed by the same rule."""
    columns = {column for printed in study.paper for column in printed.columns}
    return [name for figure in study.figures if (name := study.beside.get(figure, figure)) in columns]


def _row(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _printed_name(study: Study, row: str) -> str:
    return study.rows[row].quotes or row
