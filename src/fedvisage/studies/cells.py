"""The runs of a study's cells on this machine, in this process or in several."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import as_completed
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fedvisage.base.errors import RunFailed
from fedvisage.base.processes import block_signals, worker_processes
from fedvisage.base.progress import Reporter, Say, discard
from fedvisage.data.selection import split_entry
from fedvisage.datasets.sources import resolve, without_part
from fedvisage.metrics.recorded import Metrics
from fedvisage.runs.directory import RunDirectory, close_settings
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.runs.train import adoption
from fedvisage.studies.grid import Cell
from fedvisage.tasks.checks import Checks

Result = tuple[Cell, Metrics | Exception]
"""A cell with its metrics, or with the exception that ended it."""


def run_here(groups: list[list[Cell]], cache: Path, workers: int, checks: Checks, say: Say) -> Iterator[Result]:
    """Run groups of cells and yield the results as they are ready.

    Cells of a group run in order, because a row may evaluate the model of an earlier one.
    """
    if workers == 1:
        for group in groups:
            yield from run_group(group, cache, checks, say)
        return
    for entry in sorted({entry for group in groups for cell in group for entry in cell.recipe.data.entries}):
        resolve(split_entry(without_part(entry)[0])[0], cache, workers=workers, say=say)
    with worker_processes(workers) as pool:
        with block_signals():
            running = [pool.submit(_run_group_alone, group, cache, checks) for group in groups]
        for done in as_completed(running):
            yield from done.result()


def without_workers(cell: Cell) -> Cell:
    """Return a cell whose sites get no workers, because the cells already use all cores."""
    runtime = {key: value for key, value in cell.resolved["runtime"].items() if key != "workers"}
    return replace(cell, resolved={**cell.resolved, "runtime": runtime})


def _run_group_alone(group: list[Cell], cache: Path, checks: Checks) -> list[Result]:
    results = run_group([without_workers(cell) for cell in group], cache, checks, discard)
    return [(cell, result) for cell, (_, result) in zip(group, results, strict=True)]


def run_group(group: list[Cell], cache: Path, checks: Checks, say: Say) -> Iterator[Result]:
    """Run the cells of a group; a failing cell stops only those that use its model."""
    failed = dict[Path, str]()
    for cell in group:
        try:
            if cell.trained in failed:
                raise RunFailed(f"uses the model of a cell that failed: {failed[cell.trained]}")
            recipe, training = cell.recipe, None
            if cell.trained is not None:
                # The rule may choose otherwise on this machine, but adopting a model does not train it again.
                recipe, training = close_settings(recipe, RunDirectory(cell.trained).settings), adoption(cell.trained)
            reporter = say.part(cell.title) if isinstance(say, Reporter) else Reporter(Console(), quiet=True)
            request = Request(recipe, cell.out, cache, resume=True, training=training, checks=checks)
            result: Metrics | Exception = run(request, reporter)
        except Exception as error:  # of any kind: a study may run for days
            failed[cell.out], result = cell.title, error
        yield cell, result
