"""One self-contained HTML page about a study: its table, figures, differences with intervals, and links to its runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.metrics.scores import Scores, by_video, read_scores
from fedvisage.metrics.threshold import Histogram
from fedvisage.report import curves
from fedvisage.report.compare import Difference, difference, lower_is_better
from fedvisage.report.compare_tables import counts_of, difference_cell, explain_differences
from fedvisage.report.figures import PRIVILEGE, Figure
from fedvisage.report.page import NAME as REPORT
from fedvisage.report.page import fill_template, with_theme
from fedvisage.report.recognition import impostors_of
from fedvisage.report.run_files import WHOLE, read_similarities
from fedvisage.report.tables import Table, table
from fedvisage.runs.directory import METRICS
from fedvisage.studies.grid import Cell
from fedvisage.studies.study import BLIND, COSTS, Study, heading, scale, value_of
from fedvisage.studies.table import as_table, notes_of
from fedvisage.tasks.pad.task import SCORES
from fedvisage.tasks.seal import SIMILARITIES

# A study's figures: one ROC panel per target with all methods, curves over rounds, and curves over rows. Rows whose
# names differ in one number, such as ``block 1`` to ``block 12``, or ``FedFR, 40`` to ``FedFR, 1``, are points of one
# curve: this reproduces the figures of papers that no table prints. All other rows are drawn below each other, with a
# point per target, which shows a mean that depends on a single target.

RUN_AGAIN = "run the cell again"
MOST_LINES = 8
"""Most methods in one panel; larger studies show the first ones."""
FEWEST_POINTS = 3
FEWEST_ROWS = 2
SET_LAST = ", …"
"""Ending of the kinds of rows named by a method and a number."""
Points = Sequence[tuple[float, float]]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def figures(study: Study, cells: Sequence[Cell], table: Mapping[str, Any]) -> list[Figure]:
    """Return all figures of the study."""
    compared = [*curves_over_rows(study, table), *rows_compared(study, table)]
    return [*compared, *curves_over_rounds(study, cells), *rocs(study, cells)]


def curves_over_rounds(study: Study, cells: Sequence[Cell]) -> list[Figure]:
    """Return the rows round by round, one panel per target and column, for rows with evaluated rounds."""
    drawings = []
    for target in study.targets:
        rounds_by_row = {
            cell.row: read_metrics(cell.out / METRICS, RUN_AGAIN).get("by_round", [])
            for cell in cells
            if (cell.target, cell.seed) == (target, study.seeds[0])
        }
        for figure in study.figures:
            series: dict[str, Points] = {}
            for row, rounds in rounds_by_row.items():
                values = [(float(metrics["round"]), value_of(Metrics(metrics), figure)) for metrics in rounds]
                points = [(number, scale(figure) * value) for number, value in values if value is not None]
                series |= {row: points} if points else {}
            rows = list(series.items())  # more lines than a reader can distinguish go to several panels
            parts = [dict(rows[first : first + MOST_LINES]) for first in range(0, len(rows), MOST_LINES)]
            for number, part in enumerate(parts):
                title = f"{heading(figure)} at target {target}, round by round"
                drawing = curves.over_rounds(part, f"{heading(figure)} (%)", f"rounds-{figure}-{target}-{number}")
                drawings.append((title, f"Seed {study.seeds[0]}. {PRIVILEGE}", drawing))
    return drawings


def rocs(study: Study, cells: Sequence[Cell]) -> list[Figure]:
    """Return one panel per target: the ROC of each method with one model, for the first seed."""
    drawings = []
    for target in study.targets:
        at_target = [cell for cell in cells if (cell.target, cell.seed) == (target, study.seeds[0])]
        drawings += _roc_of_pairs(study, at_target, target)
        groups: dict[str, Scores] = {}
        thresholds: dict[str, float] = {}
        for cell in at_target:
            metrics = read_metrics(cell.out / METRICS, RUN_AGAIN)
            if (scores := _scores(cell, metrics)) is not None:
                groups[cell.row], thresholds[cell.row] = scores, float(metrics["threshold"])
        plotted = dict(list(groups.items())[:MOST_LINES])
        if len(plotted) > 1:
            explanation = f"Seed {study.seeds[0]}; filled points: at the threshold, hollow points: at the EER."
            explanation += curves.note_undrawn(len(groups), MOST_LINES, "rows")
            lines = {name: curves.curve_of_scores(scores, thresholds[name]) for name, scores in plotted.items()}
            drawings.append((f"ROC at target {target}", explanation, curves.roc(lines)))
    return drawings


def _roc_of_pairs(study: Study, cells: Sequence[Cell], target: str) -> list[Figure]:
    """Return the recognition panel of a target's cells, from each run's counts of pairs by similarity."""
    counts: dict[str, Histogram] = {}
    for cell in cells:
        all_pairs = read_similarities(cell.out / SIMILARITIES).get(WHOLE)
        if all_pairs is not None and all_pairs.sum(axis=1).all():
            counts[cell.row] = all_pairs
    plotted = dict(list(counts.items())[:MOST_LINES])
    if len(plotted) < 2:
        return []
    explanation = f"Seed {study.seeds[0]}; all pairs of the target's people, FAR on a logarithmic axis."
    explanation += curves.note_undrawn(len(counts), MOST_LINES, "rows")
    lines = {name: curves.curve_of_counts([pairs]) for name, pairs in plotted.items()}
    return [(f"ROC at target {target}", explanation, curves.roc_of_pairs(lines, impostors_of(plotted)))]


def _scores(cell: Cell, metrics: Metrics) -> Scores | None:
    """Return the scores of an attack-detection cell at the recipe's level; None with several models or a single class.

    Recognition keeps pairs of faces under the same file name.
    """
    if metrics["task"] != "pad" or not (cell.out / SCORES).exists():
        return None
    scores = read_scores(cell.out / SCORES)
    if len(set(scores.model.tolist())) > 1 or not (len(scores.bona_fide) and len(scores.attack)):
        return None
    return by_video(scores) if cell.recipe.evaluation.level == "video" else scores


def curves_over_rows(study: Study, table: Mapping[str, Any]) -> list[Figure]:
    """Return a figure for each column, with a line for each kind of rows that differ in one number."""
    kinds = kinds_of(study)
    drawings = []
    for figure in study.figures if kinds else []:
        series = {
            kind: [
                (at, *table["rows"][row]["average"][figure])
                for at, row in rows
                if figure in table["rows"][row]["average"]
            ]
            for kind, rows in kinds.items()
        }
        series = {kind: points for kind, points in series.items() if points}
        if any(len(points) >= FEWEST_POINTS for points in series.values()):
            title = f"{heading(figure)} by the value that each row sets"
            spread = ", with one standard deviation over seeds" if len(study.seeds) > 1 else ""
            explanation = f"Mean over targets{spread}."
            name = f"over-{figure.replace('.', '-')}"
            numbered = all(kind.endswith(SET_LAST) for kind in series)
            axis = "number in the row name" if numbered and len(series) > 1 else " / ".join(series)
            lines = {kind.removesuffix(SET_LAST): points for kind, points in series.items()} if numbered else series
            drawings.append((title, explanation, curves.over_values(lines, (axis, heading(figure)), name)))
    return drawings


def kinds_of(study: Study) -> dict[str, list[tuple[float, str]]]:
    """Return the rows whose names differ in one number, enough for a curve, by the common part of their names.

    In figures with curves of rows such as ``FedFR, 40``, a lone ``Pre-trained, 1`` is a further kind, of one or two
    points.
    """
    kinds: dict[str, list[tuple[float, str]]] = {}
    for row in study.rows:
        numbers = NUMBER.findall(row)
        if len(numbers) == 1:
            kinds.setdefault(NUMBER.sub("…", row), []).append((float(numbers[0].replace(",", "")), row))
    curved = {kind for kind, rows in kinds.items() if len(rows) >= FEWEST_POINTS}
    with_lone = any(kind.endswith(SET_LAST) for kind in curved)
    return {kind: rows for kind, rows in kinds.items() if kind in curved or (with_lone and kind.endswith(SET_LAST))}


def rows_compared(study: Study, table: Mapping[str, Any]) -> list[Figure]:
    """Return a figure for each column, with all rows outside curves drawn below each other."""
    curved = {row for rows in kinds_of(study).values() for _, row in rows}
    rows = [row for row in study.rows if row not in curved]
    drawings = []
    for figure in study.figures:
        means = {row: table["rows"][row]["average"][figure] for row in rows if figure in table["rows"][row]["average"]}
        if len(means) < FEWEST_ROWS:
            continue
        targets = {
            row: [at_target[figure][0] for at_target in table["rows"][row]["targets"].values() if figure in at_target]
            for row in means
        }
        spread = " and one standard deviation over seeds" if len(study.seeds) > 1 else ""
        explanation = f"Each target{', the mean' if len(study.targets) > 1 else ''}{spread}."
        drawing = curves.by_row(targets, means, heading(figure), f"rows-{figure.replace('.', '-')}")
        drawings.append((f"{heading(figure)} of each row", explanation, drawing))
    return drawings


SITES = "the sites"
HELD_OUT = "Held-out figures count as one target, because the same sites train for several targets."


def render(
    study: Study,
    text: str,
    summary: Mapping[str, Any],
    gaps: Table | None,
    cells: Sequence[Cell],
    out: Path,
) -> str:
    """Return the page's HTML from the table in Markdown and the differences; links to cells start at ``out``."""
    links = []
    for cell in cells:  # to its report, or to its metrics if it has none
        report = cell.out / REPORT
        link = Path(os.path.relpath(report if report.exists() else cell.out / METRICS, out)).as_posix()
        links.append((f"{cell.row}, target {cell.target}, seed {cell.seed}", link))
    return fill_template(
        "study.html.jinja",
        title=study.title,
        caption=text.split("\n")[2],
        table=as_table(text),
        notes=notes_of(text),
        differences=gaps,
        figures=with_theme(figures(study, cells, summary)),
        cells=links,
    )


def differences(study: Study, results: Sequence[Mapping[str, Any]]) -> Table | None:
    """Return the difference of each row to the first, over targets; None for a single row."""
    first, *others = study.rows
    gaps = {row: _paired_differences(study, results, first, row) for row in others}
    rows = [
        {
            "row": row,
            **counts_of(row_gaps.values()),
            **{name: difference_cell(gap, 1) for name, gap in row_gaps.items()},
        }
        for row, row_gaps in gaps.items()
        if row_gaps
    ]
    titles = {"row": "method", "targets": "targets", "seeds": "seeds"} | {name: heading(name) for name in study.figures}
    notes = [explain_differences([gap for row_gaps in gaps.values() for gap in row_gaps.values()], first)]
    notes += [HELD_OUT] * bool(set(BLIND) & set(study.figures))
    note = " ".join(notes)
    return table(f"Difference to {first}", rows, titles, note=note) if rows else None


def _paired_differences(
    study: Study, results: Sequence[Mapping[str, Any]], first: str, row: str
) -> dict[str, Difference]:
    by_figure = {}
    for figure in study.figures:
        base, compared = (
            {
                (result["target"], result["seed"]): scale(figure) * result[figure]
                for result in results
                if result["row"] == name and result.get(figure) is not None
            }
            for name in (first, row)
        )
        gaps = [
            (SITES if figure in BLIND else target, seed, compared[target, seed] - base[target, seed])
            for target, seed in sorted(base.keys() & compared.keys())
        ]
        gap = difference(gaps, lower_is_better=figure in COSTS or lower_is_better(figure))
        if gap is not None:
            by_figure[figure] = gap
    return by_figure
