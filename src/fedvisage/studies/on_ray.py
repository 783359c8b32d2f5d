"""The cells of a study as tasks of a Ray cluster, without a shared file system.

A task runs a cell, and after it the cells that use its model, in a directory of its node, and returns their files.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.table import Table

from fedvisage.base.errors import RunFailed
from fedvisage.base.files import CACHE, write_atomically, write_json
from fedvisage.base.progress import EVERY, Pace, Reporter, Say, discard, duration_in_words
from fedvisage.federation.record.store import CHECKPOINTS
from fedvisage.metrics.recorded import read_metrics
from fedvisage.runs.cluster import Cluster
from fedvisage.runs.directory import METRICS, SITES
from fedvisage.runs.ray_data import NeededSet, find_sets, needed_sets
from fedvisage.runs.ray_engine import RayEngine, Tasks
from fedvisage.runs.ray_worker import environment, node_name, open_scratch
from fedvisage.studies.cells import Result, run_group, without_workers
from fedvisage.studies.grid import Cell
from fedvisage.tasks.checks import Checks

NODE = "node.json"
"""The record of the node that ran a cell."""
REPEATS = 2
"""How often cells start anew after the loss of their node."""

Files = Mapping[str, bytes]
"""Files of cells, by their paths below the directory of all cells."""


def run_on_cluster(cells: Sequence[Cell], cluster: Cluster, cache: Path, checks: Checks, say: Say) -> Iterator[Result]:
    """Run the cells of a study on a cluster, and yield the results as they arrive."""
    chains: dict[Path, list[Cell]] = {}  # a cell, and the cells that use its model
    for cell in cells:
        chains.setdefault(cell.trained or cell.out, []).append(cell)
    waiting = [chain for chain in chains.values() if not all((cell.out / METRICS).exists() for cell in chain)]
    for chain in chains.values():
        if chain not in waiting:
            yield from run_group(chain, cache, checks, discard)  # reads and checks them
    if not waiting:
        return
    root = cells[0].out.parent
    study = root.parent.name
    with closing(RayEngine(cluster, study, say)) as engine:
        sets = needed_sets((entry for chain in waiting for cell in chain for entry in cell.recipe.data.entries), cache)
        engine.check_nodes(sets)
        expected, tasks = None if cluster.allow_different_machines else environment(), Tasks[int](engine)
        for number, chain in enumerate(waiting):
            runtime = chain[0].recipe.runtime
            files = read_files([cell.out for cell in chain if cell.out.exists()], True)
            arguments = (study, chain, files, sets, expected, checks)
            tasks.add(number, runtime.threads, runtime.device, run_chain, *arguments)

        def report(number: int, reason: str) -> None:
            say(f"starting anew: {' and '.join(cell.title for cell in waiting[number])} ({reason})")

        threads = waiting[0][0].recipe.runtime.threads
        with show_overview(Overview(len(waiting), engine.capacity(threads), len(engine.nodes())), say) as overview:
            for number, outcome in tasks.results(REPEATS, report):
                chain = waiting[number]
                if isinstance(outcome, Exception):
                    yield from ((cell, outcome) for cell in chain)
                else:
                    yield from _receive(chain, root, *outcome)
                overview.finish(engine.capacity(threads), len(engine.nodes()))


class Overview:
    """The progress of a study's tasks."""

    def __init__(self, tasks: int, places: int, nodes: int) -> None:
        """Start with the number of tasks, of those that the cluster can run at the same time, and of nodes."""
        self._tasks, self._places, self._nodes, self._done, self._began = tasks, places, nodes, 0, time.monotonic()
        self.changed: Callable[[], None] = lambda: None
        """Called after a task has finished."""

    def finish(self, places: int, nodes: int) -> None:
        """Count a task, and note the present size of the cluster."""
        self._done, self._places, self._nodes = self._done + 1, places, nodes
        self.changed()

    @property
    def is_finished(self) -> bool:
        """Return whether no task is left."""
        return self._done == self._tasks

    def columns(self) -> dict[str, str]:
        """Return the figures by title; speed and time left once a task has finished."""
        left, rate = self._tasks - self._done, self._done / max(time.monotonic() - self._began, 1e-9)
        running = min(left, self._places)
        return {
            "finished": str(self._done),
            "running": str(running),
            "waiting": str(left - running),
            "per hour": f"{3600 * rate:.0f}" if self._done else "",
            "left": duration_in_words(left / rate) if self._done else "",
            "nodes": str(self._nodes),
        }

    def table(self) -> Table:
        """Return the figures as a table."""
        table = Table(*self.columns())
        table.add_row(*self.columns().values())
        return table


@contextmanager
def show_overview(overview: Overview, say: Say) -> Iterator[Overview]:
    """Show one table that changes on a terminal; elsewhere print a line per minute, and one at the end."""
    if isinstance(say, Reporter) and say.moving:
        with Live(get_renderable=overview.table, console=say.console, refresh_per_second=1, transient=True):
            yield overview
        return
    pace = Pace(time.monotonic, 0.0, EVERY)

    def print_line() -> None:
        if pace.due() or overview.is_finished:
            figures = {title: value for title, value in overview.columns().items() if value}
            say("tasks: " + ", ".join(f"{value} {title}" for title, value in figures.items()))

    overview.changed = print_line
    yield overview


def run_chain(
    study: str,
    chain: Sequence[Cell],
    files: Files,
    sets: Sequence[NeededSet],
    expected: Mapping[str, Any] | None,
    checks: Checks,
) -> tuple[str, list[Exception | None], Files]:
    """Run cells in a task, from the files that the driver has of them.

    Return the node's name, the exceptions of the cells and their files. A node that joined late is refused without the
    sets, or if its environment is not the expected one.
    """
    if expected not in (None, environment()):
        raise RunFailed(f"node {node_name()} joined with another processor or other libraries; remove it")
    if missing := find_sets(sets):
        raise RunFailed(f"node {node_name()} joined without the set {missing[0].absolute}; copy it there")
    with open_scratch(study) as scratch:
        try:
            for name, content in files.items():
                _write(scratch / name, content)
            moved = [
                replace(cell, out=scratch / cell.out.name, trained=cell.trained and scratch / cell.trained.name)
                for cell in map(without_workers, chain)
            ]
            results = [result for _, result in run_group(moved, CACHE, checks, discard)]
            errors = [result if isinstance(result, Exception) else None for result in results]
            # Only the cells that use a model need the sites' private state.
            return node_name(), errors, read_files([cell.out for cell in moved], len(chain) > 1)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def read_files(directories: Sequence[Path], all_files: bool) -> Files:
    """Return the files of cells, without checkpoints and the private state of sites unless ``all_files``."""
    files = {}
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            inside = path.relative_to(directory)
            is_wanted = all_files or inside.parts[0] not in (SITES, CHECKPOINTS)
            if is_wanted and path.is_file() and not path.name.startswith("."):
                files[f"{directory.name}/{inside}"] = path.read_bytes()
    return files


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def _receive(
    chain: Sequence[Cell], root: Path, node: str, errors: Sequence[Exception | None], files: Files
) -> Iterator[Result]:
    """Write the files of cells, and yield the results."""
    for name in sorted(files, key=lambda name: name.endswith(METRICS)):  # last, as they mark finished runs
        _write(root / name, files[name])
    for cell, error in zip(chain, errors, strict=True):
        if error is None:
            write_json(cell.out / NODE, {"node": node})
        yield cell, error or read_metrics(cell.out / METRICS)
