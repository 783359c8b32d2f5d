"""A study: a grid of recipes over users, methods and seeds, run cell by cell into one table.

A study file names a recipe, the sets of which each in turn is the user while the others are the sites, rows (a label
and what it changes in the recipe) and seeds. A finished cell is never run again, an interrupted one continues.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from pydantic import Field, ValidationError, field_validator
from rich.console import Console

from fedvisage import recipe as recipes
from fedvisage.data.sources import resolve
from fedvisage.errors import UserError
from fedvisage.files import write_atomically
from fedvisage.methods import options
from fedvisage.progress import Reporter
from fedvisage.recipe import Recipe
from fedvisage.run import run
from fedvisage.settings import Section

Figure = Literal["hter", "eer", "auc", "tpr_at_fpr_1pct", "bpcer", "apcer_pooled", "acer"]


class Row(Section):
    """One row of the table: changes to the recipe, or the model of another row judged another way.

    ``sites`` names the sets that train in this row; without it all train but the user's.
    """

    set: list[str] = []
    sites: list[str] | None = None
    trained_by: str | None = None


class Paper(Section):
    """What the paper printed, on its own data: by row and user, percent, in the order of the study's figures."""

    source: str
    figures: dict[str, dict[str, list[float]]] = {}
    notes: list[str] = []


class Study(Section):
    """A study file."""

    title: str
    recipe: str | dict[str, Any]
    sets: dict[str, str] = Field(min_length=2)
    users: list[str] | None = None
    rows: dict[str, Row] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    figures: list[Figure] = ["hter", "eer", "auc"]
    paper: Paper | None = None

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, value: list[int]) -> list[int]:
        if len(set(value)) < len(value):
            raise ValueError("the same seed twice gives the same run twice")
        return value


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    row: str
    user: str
    seed: int
    recipe: Recipe
    out: Path
    trained: Path | None


def conduct(path: Path, out: Path, cache: Path, console: Console, *, workers: int = 1) -> dict[str, Any]:
    """Run what is missing of a study, and write and print its table; different users and seeds may run side by side."""
    study = read(path)
    cells = list(cells_of(study, path.parent, out))
    groups = [list(group) for _, group in groupby(cells, key=lambda cell: (cell.seed, cell.user))]
    results: list[dict[str, Any]] = []
    for cell, metrics in _finished_cells(groups, cache, workers):
        results.append({"row": cell.row, "user": cell.user, "seed": cell.seed, **metrics})
        shown = "  ".join(
            f"{name} {100 * metrics[name]:.1f}" for name in study.figures if metrics.get(name) is not None
        )
        place = f"{len(results)}/{len(cells)}  {cell.row:10} user {cell.user}  seed {cell.seed}"
        console.print(f"{place}  {shown}", markup=False, soft_wrap=True)
    results.sort(key=lambda result: (result["seed"], result["user"]))
    table = summarise(study, results)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "table.json", (json.dumps(table, indent=2, ensure_ascii=False) + "\n").encode())
    text = markdown(study, table)
    write_atomically(out / "table.md", text.encode())
    console.print(text, markup=False, soft_wrap=True)
    return table


def _finished_cells(groups: list[list[Cell]], cache: Path, workers: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Run groups of cells, each group's in order (a row may be judged from another), and yield them as they end."""
    if workers == 1:
        yield from ((cell, _run_cell(cell, cache)) for group in groups for cell in group)
        return
    for entry in sorted({entry for group in groups for cell in group for entry in _entries(cell)}):
        resolve(entry, cache, workers=workers)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_run_group, group, cache) for group in groups]):
            yield from done.result()


def _entries(cell: Cell) -> list[str]:
    data = cell.recipe.data
    return [*data.sites.values(), *([data.user] if data.user is not None else [])]


def _run_group(group: list[Cell], cache: Path) -> list[tuple[Cell, dict[str, Any]]]:
    return [(cell, _run_cell(cell, cache)) for cell in group]


def _run_cell(cell: Cell, cache: Path) -> dict[str, Any]:
    return run(cell.recipe, cell.out, cache, Reporter(Console(), quiet=True), resume=True, trained=cell.trained)


def read(path: Path) -> Study:
    """Read and validate a study file."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        study = Study.model_validate(tree)
    except OSError as error:
        raise UserError(str(path), f"cannot be read ({error.strerror})") from error
    except yaml.YAMLError as error:
        raise UserError(str(path), f"is not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        item = error.errors()[0]
        place = ".".join(str(part) for part in item["loc"])
        raise UserError(
            f"{path}: {place}", "unknown key" if item["type"] == "extra_forbidden" else item["msg"]
        ) from error
    for name, row in study.rows.items():
        if row.trained_by is not None and row.trained_by not in list(study.rows)[: list(study.rows).index(name)]:
            raise UserError(f"{path}: rows.{name}.trained_by", f"{row.trained_by!r} is no row above this one")
        _check_names(row.sites or [], study, f"{path}: rows.{name}.sites")
    _check_names(study.users or [], study, f"{path}: users")
    return study


def _check_names(names: list[str], study: Study, place: str) -> None:
    for name in names:
        if name not in study.sets:
            raise UserError(place, f"{name!r} is not among the study's sets")


def cells_of(study: Study, base: Path, out: Path) -> Iterator[Cell]:
    """List the grid's cells; all of them are validated before the first one runs."""
    tree = study.recipe if isinstance(study.recipe, dict) else recipes.read_tree(base / study.recipe)
    cells = []
    for seed in study.seeds:
        for user in study.users or list(study.sets):
            for name, row in study.rows.items():
                recipe = _cell_recipe(tree, study, row, user, seed)
                trained = _place(out, row.trained_by, user, seed) if row.trained_by else None
                cells.append(Cell(name, user, seed, recipe, _place(out, name, user, seed), trained))
    yield from cells


def _cell_recipe(tree: dict[str, Any], study: Study, row: Row, user: str, seed: int) -> Recipe:
    own = copy.deepcopy(tree)
    own["data"] = {
        "sites": {name: study.sets[name] for name in row.sites or study.sets if name != user},
        "user": study.sets[user],
        "user_name": user,
    }
    for override in [*row.set, f"runtime.seed={seed}"]:
        recipes.apply(own, override)
    return recipes.validate(own, options())


def _place(out: Path, row: str, user: str, seed: int) -> Path:
    label = "".join(letter if letter.isalnum() else "-" for letter in row).lower()
    return out / "cells" / f"{label}-{user}-seed{seed}"


def summarise(study: Study, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and std over seeds for every row and user, and over users for every row."""
    users = study.users or list(study.sets)
    table: dict[str, Any] = {"title": study.title, "seeds": study.seeds, "figures": study.figures, "rows": {}}
    for name in study.rows:
        own = [result for result in results if result["row"] == name]
        by_user = {user: _spread(study, [[r] for r in own if r["user"] == user]) for user in users}
        average = _spread(study, [[r for r in own if r["seed"] == seed] for seed in study.seeds])
        table["rows"][name] = {"users": by_user, "average": average}
    return table


def _spread(study: Study, groups: list[list[dict[str, Any]]]) -> dict[str, list[float]]:
    """Average each group, then give mean and standard deviation over groups, in percent."""
    spread: dict[str, list[float]] = {}
    for figure in study.figures:
        found = [[run[figure] for run in group if run[figure] is not None] for group in groups]
        means = [float(np.mean(values)) for values in found if values]
        if not means:
            continue  # a user with one class has no such figure
        deviation = float(np.std(means, ddof=1)) if len(means) > 1 else 0.0
        spread[figure] = [round(100 * float(np.mean(means)), 2), round(100 * deviation, 2)]
    return spread


def markdown(study: Study, table: dict[str, Any]) -> str:
    """Return the table as Markdown, beside the paper's figures where the study quotes them."""
    names = [figure.upper() for figure in study.figures]
    quoted = [f"{name} (paper)" for name in names] if study.paper else []
    users = study.users or list(study.sets)
    lines = [f"# {study.title}", "", _caption(study), ""]
    lines += [
        "| method | user | " + " | ".join([*names, *quoted]) + " |",
        "|---" * (2 + len(names) + len(quoted)) + "|",
    ]
    for row, found in table["rows"].items():
        for user in users:
            lines.append(_line(study, row, user, found["users"][user]))
        if len(users) > 1:
            lines.append(_line(study, f"**{row}**", "**mean**", found["average"], row))
    if study.paper:
        lines += [
            "",
            f"Paper: {study.paper.source}, measured on other (real) data: compare the order, not the numbers.",
        ]
        lines += [f"- {note}" for note in study.paper.notes]
    return "\n".join(lines) + "\n"


def _caption(study: Study) -> str:
    many = len(study.seeds) > 1
    return f"Percent, mean ± standard deviation over {len(study.seeds)} seeds." if many else "Percent, one seed."


def _line(study: Study, row: str, user: str, found: dict[str, list[float]], quoted_row: str | None = None) -> str:
    form = "{:.2f} ± {:.2f}" if len(study.seeds) > 1 else "{:.2f}"
    cells = [form.format(*found[figure]) if figure in found else "–" for figure in study.figures]
    if study.paper:
        quoted = study.paper.figures.get(quoted_row or row, {})
        if quoted_row is not None:
            columns = [list(column) for column in zip(*quoted.values(), strict=True)]
            cells += [f"{np.mean(column):.2f}" for column in columns] or ["–"] * len(study.figures)
        else:
            cells += [f"{value:.2f}" for value in quoted.get(user, [])] or ["–"] * len(study.figures)
    return f"| {row} | {user} | " + " | ".join(cells) + " |"
