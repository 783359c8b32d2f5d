"""One self-contained HTML page about a study: its table, its figures, differences with intervals, links to its runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvisage.base.files import read_json
from fedvisage.metrics.scores import Scores, by_video, read_scores
from fedvisage.metrics.threshold import Histogram
from fedvisage.report import curves
from fedvisage.report.compare import Difference, difference, lower_is_better
from fedvisage.report.compare_tables import counts_of, difference_cell, explained
from fedvisage.report.figures import PRIVILEGE, Figure
from fedvisage.report.page import NAME as REPORT
from fedvisage.report.page import colours, environment, themed
from fedvisage.report.recognition import WHOLE
from fedvisage.report.recognition import roc as roc_of_pairs
from fedvisage.report.run_files import read_similarities
from fedvisage.report.tables import Table, table
from fedvisage.runs.directory import METRICS
from fedvisage.studies.grid import Cell
from fedvisage.studies.study import BLIND, COSTS, Study, heading, scale, value_of
from fedvisage.studies.table import as_table, notes_of
from fedvisage.tasks.pad.task import SCORES
from fedvisage.tasks.recognition.evaluation import SIMILARITIES

# A study's figures: the ROC of all its methods in one panel a user, and curves over what rows set and over rounds.
#
# Rows whose names differ in one number, such as ``block 1`` to ``block 12``, or ``FedFR, 40`` to ``FedFR, 1``, are
# points
# of one curve. So the papers' figures that no table prints come out of the same rows. All others stand below each
# other,
# with a point for each user, so that a mean that comes of one user is seen to.


MOST_LINES = 8
"""Methods in one panel; of a larger study the first ones."""
FEWEST_POINTS = 3
FEWEST_ROWS = 2
SET_LAST = ", …"
"""How the names of rows end that are a method and a number."""
Points = Sequence[tuple[float, float]]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def figures(study: Study, cells: Sequence[Cell], table: Mapping[str, Any]) -> list[Figure]:
    """Return all figures that the study has."""
    compared = [*curves_over_rows(study, table), *rows_compared(study, table)]
    return [*compared, *courses(study, cells), *rocs(study, cells)]


def courses(study: Study, cells: Sequence[Cell]) -> list[Figure]:
    """Return a panel for each user and column, with the rows round by round, where rounds were kept and judged."""
    found = []
    for user in study.users:
        own = {cell.row: read_json(cell.out / METRICS, "run the cell again").get("by_round") or []
               for cell in cells if (cell.user, cell.seed) == (user, study.seeds[0])}  # fmt: skip
        for figure in study.figures:
            series = {row: points for row, rounds in own.items() if (points := course(rounds, figure))}
            for number, part in enumerate(parts_of(series)):
                title = f"{heading(figure)} at user {user}, round by round"
                drawing = curves.over_rounds(part, f"{heading(figure)} (%)", f"rounds-{figure}-{user}-{number}")
                found.append((title, f"Seed {study.seeds[0]}. {PRIVILEGE}", drawing))
    return found


def course(rounds: Sequence[Mapping[str, Any]], figure: str) -> list[tuple[float, float]]:
    """Return a figure of the rounds that were kept, in per cent."""
    found = [(float(one["round"]), value_of(one, figure)) for one in rounds]
    return [(number, scale(figure) * value) for number, value in found if value is not None]


def parts_of(series: Mapping[str, Points]) -> list[dict[str, Points]]:
    """Return the lines of a panel, of several where there are too many to tell apart."""
    rows = list(series.items())
    return [dict(rows[first : first + MOST_LINES]) for first in range(0, len(rows), MOST_LINES)]


def rocs(study: Study, cells: Sequence[Cell]) -> list[Figure]:
    """Return a panel for each user: the methods' ROC with the first seed; not of rows with a model for each site."""
    found = []
    for user in study.users:
        found += _roc_of_pairs(study, cells, user)
        groups: dict[str, Scores] = {}
        thresholds: dict[str, float] = {}
        for cell in cells:
            if (cell.user, cell.seed) != (user, study.seeds[0]):
                continue
            metrics = read_json(cell.out / METRICS, "run the cell again")
            if (scores := _scores(cell, metrics)) is not None:
                groups[cell.row], thresholds[cell.row] = scores, float(metrics["threshold"])
        shown = dict(list(groups.items())[:MOST_LINES])
        if len(shown) > 1:
            what = f"Seed {study.seeds[0]}; filled points: at the threshold, hollow ones: where both errors are equal."
            kept = {name: thresholds[name] for name in shown}
            found.append((f"ROC at user {user}", what, curves.roc(shown, kept)))
    return found


def _roc_of_pairs(study: Study, cells: Sequence[Cell], user: str) -> list[Figure]:
    """Return the panel of a user whose people are recognised, from each run's counts of pairs by similarity."""
    counts: dict[str, Histogram] = {}
    for cell in cells:
        if (cell.user, cell.seed) == (user, study.seeds[0]):
            whole = read_similarities(cell.out / SIMILARITIES).get(WHOLE)
            counts |= {} if whole is None else {cell.row: whole}
    shown = dict(list(counts.items())[:MOST_LINES])
    what = f"Seed {study.seeds[0]}; all pairs of the user's people, FAR on a logarithmic axis."
    return [(f"ROC at user {user}", what, roc_of_pairs(shown, None))] if len(shown) > 1 else []


def _scores(cell: Cell, metrics: Mapping[str, Any]) -> Scores | None:
    """Return the scores of a cell with one model, at the recipe's level, if it detects attacks and has both classes.

    What recognition keeps under the same name are pairs of faces.
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
    found = []
    for figure in study.figures if kinds else []:
        series = {kind: [(at, *table["rows"][row]["average"][figure]) for at, row in rows
                         if figure in table["rows"][row]["average"]] for kind, rows in kinds.items()}  # fmt: skip
        series = {kind: points for kind, points in series.items() if points}
        if any(len(points) >= FEWEST_POINTS for points in series.values()):
            title = f"{heading(figure)} over what rows set"
            spread = ", with one standard deviation over seeds" if len(study.seeds) > 1 else ""
            what = f"Mean over users{spread}."
            name = f"over-{figure.replace('.', '-')}"
            of_one = all(kind.endswith(SET_LAST) for kind in series)
            axis = "number in the row's name" if of_one and len(series) > 1 else " / ".join(series)
            lines = {kind.removesuffix(SET_LAST): points for kind, points in series.items()} if of_one else series
            found.append((title, what, curves.over_values(lines, (axis, heading(figure)), name)))
    return found


def kinds_of(study: Study) -> dict[str, list[tuple[float, str]]]:
    """Return the rows whose names differ in one number, enough for a curve, by what their names share.

    Beside curves of rows such as ``FedFR, 40`` a lone ``Pre-trained, 1`` is one more kind, of a point or two.
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
    """Return a figure for each column, with the rows below each other that are no points of a curve."""
    curved = {row for rows in kinds_of(study).values() for _, row in rows}
    rows = [row for row in study.rows if row not in curved]
    found = []
    for figure in study.figures:
        means = {row: table["rows"][row]["average"][figure] for row in rows if figure in table["rows"][row]["average"]}
        if len(means) < FEWEST_ROWS:
            continue
        users = {row: [own[figure][0] for own in table["rows"][row]["users"].values() if figure in own]
                 for row in means}  # fmt: skip
        spread = " and one standard deviation over seeds" if len(study.seeds) > 1 else ""
        what = f"Each user{', the mean' if len(study.users) > 1 else ''}{spread}."
        drawing = curves.by_row(users, means, heading(figure), f"rows-{figure.replace('.', '-')}")
        found.append((f"{heading(figure)} of each row", what, drawing))
    return found


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
