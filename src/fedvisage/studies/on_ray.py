"""The cells of a study as tasks of a Ray cluster, without a shared file system.

A task runs a cell, and after it the cells that use its model, in a directory of its node, and returns their files.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedvisage.base.errors import RunFailed
from fedvisage.base.files import CACHE, write_atomically, write_json
from fedvisage.base.progress import EVERY, Pace, Say, discard, duration_in_words, format_count
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


@dataclass(frozen=True)
class Chain:
    """A cell, and the cells that use its model."""

    cells: list[Cell]

    @staticmethod
    def of(cells: Sequence[Cell]) -> list[Chain]:
        """Return the chains of a study, in the order of their first cells."""
        chains: dict[Path, list[Cell]] = {}
        for cell in cells:
            chains.setdefault(cell.trained or cell.out, []).append(cell)
        return [Chain(group) for group in chains.values()]

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to run."""
        return all((cell.out / METRICS).exists() for cell in self.cells)

    @property
    def title(self) -> str:
        """The name of the chain in messages."""
        return " and ".join(cell.title for cell in self.cells)


@dataclass(frozen=True)
class Assignment:
    """Everything that a task needs."""

    study: str
    cells: list[Cell]
    files: Mapping[str, bytes]
    """The files of these cells' directories on the driver, by their paths below the directory of all cells."""
    sets: Sequence[NeededSet]
    environment: Mapping[str, Any] | None
    """The environment that a node must have; None if it may differ."""
    checks: Checks


def run_assignment(assignment: Assignment) -> tuple[str, list[Exception | None], dict[str, bytes]]:
    """Run cells in a task; return the node's name, the exceptions of the cells, and the files of their directories."""
    if assignment.environment not in (None, environment()):
        raise RunFailed(f"node {node_name()} joined with another processor or other libraries; remove it")
    if missing := find_sets(assignment.sets):
        raise RunFailed(f"node {node_name()} joined without the set {missing[0].absolute}; copy it there")
    with open_scratch(assignment.study) as scratch:
        try:
            for name, content in assignment.files.items():
                write_file(scratch / name, content)
            cells = [
                replace(cell, out=scratch / cell.out.name, trained=cell.trained and scratch / cell.trained.name)
                for cell in map(without_workers, assignment.cells)
            ]
            results = list(run_group(cells, CACHE, assignment.checks, discard))
            errors = [result if isinstance(result, Exception) else None for _, result in results]
            # A later task needs the sites' private state only to use the model of a cell.
            keep_all = len(cells) > 1
            return node_name(), errors, read_files([cell.out for cell in cells], keep_all)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def read_files(directories: Sequence[Path], keep_all: bool) -> dict[str, bytes]:
    """Return the files of cells by their paths, without the private state of sites unless ``keep_all``."""
    files = {}
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory.parent)
            if (
                path.is_file()
                and not path.name.startswith(".")
                and (keep_all or name.parts[1] not in (SITES, CHECKPOINTS))
            ):
                files[str(name)] = path.read_bytes()
    return files


def write_file(path: Path, content: bytes) -> None:
    """Write a file and its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def run_on_cluster(cells: Sequence[Cell], cluster: Cluster, cache: Path, checks: Checks, say: Say) -> Iterator[Result]:
    """Run the cells of a study on a cluster, and yield the results as they arrive."""
    chains = Chain.of(cells)
    for chain in chains:
        if chain.finished:
            yield from run_group(chain.cells, cache, checks, discard)  # reads and checks them
    waiting = [chain for chain in chains if not chain.finished]
    if not waiting:
        return
    root = cells[0].out.parent
    with closing(RayEngine(cluster, root.parent.name, say)) as engine:
        sets = needed_sets(
            [entry for chain in waiting for cell in chain.cells for entry in cell.recipe.data.entries], cache
        )
        engine.check_nodes(sets)
        tasks, board = Tasks[int](engine), Board(say, sum(len(chain.cells) for chain in waiting), engine)
        expected = None if cluster.allow_different_machines else environment()
        for number, chain in enumerate(waiting):
            first = chain.cells[0].recipe.runtime
            assignment = Assignment(
                root.parent.name,
                chain.cells,
                read_files([cell.out for cell in chain.cells if cell.out.exists()], True),
                sets,
                expected,
                checks,
            )
            tasks.add(number, first.threads, first.device, run_assignment, assignment)

        def report(number: int, reason: str) -> None:
            say(f"starting anew: {waiting[number].title} ({reason})")

        for number, outcome in tasks.results(REPEATS, report):
            chain = waiting[number]
            if isinstance(outcome, Exception):
                yield from ((cell, outcome) for cell in chain.cells)
            else:
                node, errors, files = outcome
                for name in sorted(files, key=lambda name: name.endswith(METRICS)):  # last, as it marks a finished run
                    write_file(root / name, files[name])
                for cell, error in zip(chain.cells, errors, strict=True):
                    if error is None:
                        write_json(cell.out / NODE, {"node": node})
                    yield _finished(cell) if error is None else (cell, error)
            board.count(len(chain.cells))


def _finished(cell: Cell) -> Result:
    return cell, read_metrics(cell.out / METRICS)


class Board:
    """The lines about the course of a study."""

    def __init__(self, say: Say, total: int, engine: RayEngine) -> None:
        """Start counting."""
        self._say, self._total, self._engine = say, total, engine
        self._done, self._began, self._pace = 0, time.monotonic(), Pace(time.monotonic, 0.0, EVERY)

    def count(self, cells: int) -> None:
        """Count ended cells, and report them at most once per minute."""
        self._done += cells
        if self._pace.due() or self._done == self._total:
            rate, left = self._done / (time.monotonic() - self._began), self._total - self._done
            running = min(left, self._engine.capacity(1))
            self._say(
                f"{self._done} finished, {running} running, {left - running} waiting; {3600 * rate:.0f} per hour, "
                f"{duration_in_words(left / rate)} left; {format_count(len(self._engine.nodes()), 'node')}"
            )
