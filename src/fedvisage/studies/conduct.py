"""Running a study: a finished cell is never run again, an interrupted one continues, and a table comes out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fedvisage.data.selection import without_selection
from fedvisage.datasets.sources import resolve, without_part
from fedvisage.errors import UserError
from fedvisage.files import write_atomically, write_json
from fedvisage.progress import Reporter, Say, unheard
from fedvisage.report.tables import markdown as as_markdown
from fedvisage.runs.directory import METRICS
from fedvisage.runs.run import adopting, run
from fedvisage.studies import smoke as small
from fedvisage.studies.figures import BLIND, scale, value_of
from fedvisage.studies.file import Study, read
from fedvisage.studies.forms import as_csv, as_latex
from fedvisage.studies.grid import Cell, cells_of, changed, groups_of
from fedvisage.studies.page import differences, render
from fedvisage.studies.roots import Root, on_root
from fedvisage.studies.table import markdown, summarise
from fedvisage.tasks.checks import USUAL, Checks
from fedvisage.tasks.opened import check_entries
from fedvisage.workers.processes import starting, worker_processes

DIFFERENCES = "differences.md"
"""Each row's difference to the first, with interval and verdict."""


def conduct(
    path: Path,
    out: Path,
    cache: Path,
    say: Say,
    *,
    changes: Sequence[str] = (),
    smoke: bool = False,
    runs: Path | None = None,
    workers: int = 1,
    root: Path | None = None,
    sets: Path | None = None,
    blind: bool = False,
    checks: Checks = USUAL,
) -> dict[str, Any]:
    """Run what is missing of a study, and write its tables; different users and seeds may run side by side.

    ``changes`` are made in every cell's recipe, after its row's. ``runs`` is where the cells lie: studies with rows of
    one name and recipe can share them. Below ``root`` lie datasets, as they are distributed or prepared; what lacks is
    imported into ``sets``, which is beside ``out`` unless said (``studies.roots``). ``blind`` shows figures of the
    sites' held-out images alone, and writes them into ``blind.md``: choices are made by those, and the user's stay
    unread. ``checks`` say what of sets is not refused.
    """
    study = changed(read(path), changes)
    if blind:
        study = study.model_copy(update={"figures": list(BLIND), "paper": []})
    if smoke:
        study = small.smoke(study, rendered=root is None)
    cells = cells_of(study, runs or out / "cells")
    if root is not None:
        cells = on_root(study, cells, Root(root, sets or out.parent / "sets", workers, few=smoke), say)
    elif sets is not None:
        raise UserError("--sets", "is where datasets below a root are imported to; give --root, too")
    for cell in cells:
        if not (cell.out / METRICS).exists():
            _check_data(cell)
    groups = groups_of(cells)
    results: list[dict[str, Any]] = []
    for cell, metrics in _finished_cells(groups, cache, workers, checks, say):
        figures = {name: value_of(metrics, name) for name in study.figures}
        if blind:
            metrics = {name: value for name, value in metrics.items() if name != "members"}  # figures of the user's
        results.append({**metrics, **figures, "row": cell.row, "user": cell.user, "seed": cell.seed})
        say(_progress(study, results, len(cells)))
    results.sort(key=lambda result: (result["seed"], result["user"]))
    table = summarise(study, results)
    out.mkdir(parents=True, exist_ok=True)
    _write(study, table, results, cells, out, blind)
    return table


def _write(
    study: Study, table: dict[str, Any], results: Sequence[dict[str, Any]], cells: Sequence[Cell], out: Path,
    blind: bool,
) -> None:  # fmt: skip
    """Write the table in all forms, the differences and the page; of a blind study the table alone."""
    text, name = markdown(study, table), "blind" if blind else "table"
    write_json(out / f"{name}.json", table)
    write_atomically(out / f"{name}.md", text.encode())
    if blind:  # a page shows curves of the user
        return
    gaps = differences(study, results)
    forms = {
        "table.csv": as_csv(text), "table.tex": as_latex(text), DIFFERENCES: "" if gaps is None else as_markdown(gaps),
        "study.html": render(study, text, table, gaps, cells, out),
    }  # fmt: skip
    for file, form in forms.items():
        write_atomically(out / file, form.encode())


def _progress(study: Study, results: Sequence[dict[str, Any]], total: int) -> str:
    last = results[-1]
    shown = "  ".join(f"{name} {scale(name) * last[name]:.1f}" for name in study.figures if last.get(name) is not None)
    width = max(len(row) for row in study.rows)
    return f"{len(results)}/{total}  {last['row']:{width}} user {last['user']}  seed {last['seed']}  {shown}"


def _finished_cells(
    groups: list[list[Cell]], cache: Path, workers: int, checks: Checks, say: Say
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Run groups of cells, each group's in order (a row may be judged from another), and yield them as they end."""
    if workers == 1:
        yield from ((cell, _run_cell(cell, cache, checks, say)) for group in groups for cell in group)
        return
    for entry in sorted({entry for group in groups for cell in group for entry in cell.recipe.data.entries}):
        resolve(without_selection(without_part(entry)[0])[0], cache, workers=workers, say=say)
    with worker_processes(workers) as pool:
        with starting():
            running = [pool.submit(_run_group, group, cache, checks) for group in groups]
        for done in as_completed(running):
            yield from done.result()


def _check_data(cell: Cell) -> None:
    """Refuse a set that is not there or cannot be made before the first cell runs, not when its turn comes."""
    try:
        check_entries(cell.recipe)
    except UserError as error:
        raise UserError(f"{cell.row}, user {cell.user}: {error.place}", error.message) from error


def _run_group(group: list[Cell], cache: Path, checks: Checks) -> list[tuple[Cell, dict[str, Any]]]:
    """Run a group in a process beside others, which together use the cores already: its sites get none of their own."""
    return [(cell, _run_cell(_without_workers(cell), cache, checks)) for cell in group]


def _without_workers(cell: Cell) -> Cell:
    runtime = {key: value for key, value in cell.resolved["runtime"].items() if key != "workers"}
    return replace(cell, resolved={**cell.resolved, "runtime": runtime})


def _run_cell(cell: Cell, cache: Path, checks: Checks, say: Say = unheard) -> dict[str, Any]:
    training = None if cell.trained is None else adopting(cell.trained)
    name = f"{cell.row} user {cell.user} seed {cell.seed}"
    reporter = say.part(name) if isinstance(say, Reporter) else Reporter(Console(), quiet=True)
    return run(
        cell.recipe, cell.out, cache, reporter, resume=True, training=training,
        checks=checks,
    )  # fmt: skip
