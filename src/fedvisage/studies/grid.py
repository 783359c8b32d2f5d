"""The cells of a study: one recipe and one run directory each."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedvisage import recipe as recipes
from fedvisage.base.files import json_key
from fedvisage.data.selection import split_entry
from fedvisage.datasets.protocols.catalogue import PROTOCOLS, sections
from fedvisage.datasets.protocols.protocol import Protocol
from fedvisage.datasets.sources import without_part
from fedvisage.methods import read_method
from fedvisage.recipe import Recipe
from fedvisage.runs.train import training_of
from fedvisage.studies.study import DATA, Study, StudyRow, Tree, slug

SizedSet = tuple[str, int]
"""A set as entries name it, and its image size in pixels."""


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    row: str
    target: str
    seed: int
    resolved: Tree
    """The recipe with all defaults, as plain values that can be sent to another process."""
    out: Path
    trained: Path | None

    @property
    def title(self) -> str:
        """The name of the cell in messages."""
        return f"{self.row} target {self.target} seed {self.seed}"

    @property
    def recipe(self) -> Recipe:
        """The cell's recipe."""
        return recipes.validate(self.resolved, read_method)


def cells_of(study: Study, runs: Path) -> list[Cell]:
    """List the grid's cells; all of them are validated before the first one runs.

    The target has no influence on training, so a row with the same sites for several targets trains only at the first.
    """
    cells, trainings, trained_at = [], dict[str, Path](), dict[Path, Path]()
    for seed in study.seeds:
        for target in study.targets:
            for name, row in study.rows.items():
                resolved = recipes.tree_of(recipes.validate(tree_of(study, name, target, seed), read_method))
                place = _place(runs, name, target, seed)
                if row.trained_by:
                    trained_at[place] = trained_at[_place(runs, row.trained_by, target, seed)]
                else:
                    trained_at[place] = trainings.setdefault(
                        json_key([name, training_of(resolved, exact=False)]), place
                    )
                trained = None if trained_at[place] == place else trained_at[place]
                cells.append(Cell(name, target, seed, resolved, place, trained))
    return cells


def groups_of(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return groups of cells that may run in parallel: one per target and seed, with the cells that use its models."""
    groups: dict[tuple[str, int], list[Cell]] = {}
    keys: dict[Path, tuple[str, int]] = {}
    for cell in cells:
        key = (keys[cell.trained] if cell.trained else None) or (cell.target, cell.seed)
        keys[cell.out] = key
        groups.setdefault(key, []).append(cell)
    return list(groups.values())


def tree_of(study: Study, name: str, target: str, seed: int) -> Tree:
    """Return a cell's recipe before validation."""
    row = _complete_row(study, name)
    tree = copy.deepcopy(study.recipes[row.recipe] if row.recipe else study.recipe)
    if study.protocol is not None:
        _divide(tree, PROTOCOLS[study.protocol], target, row.sites or study.sites)
    else:
        # No part of the target's set trains. With public identities, the targets are benchmarks, which never train.
        source, _ = split_entry(study.sets[target])
        left_out = {site for site, entry in study.sets.items() if split_entry(entry)[0] == source}
        left_out |= set(study.targets if study.public is not None else ())
        sites = [site for site in row.sites or study.sites if site not in left_out]
        tree["data"] = {
            "sites": {site: study.trains.get(site, study.sets[site]) for site in sites},
            "target": study.sets[target],
            "target_name": target,
        }
    if (public := row.public or study.public) is not None:
        tree["data"]["public"] = study.sets[public]
    if study.benchmarks:
        tree["data"]["benchmarks"] = study.benchmarks
    for change in [*study.set, *row.set, f"runtime.seed={seed}"]:
        recipes.apply_override(tree, change)
    return tree


def _divide(tree: Tree, protocol: Protocol, fold: str, sites: Sequence[str]) -> None:
    """Write a protocol's fold into a recipe: the data, the evaluation, and the image size."""
    fold_sections = sections(protocol, fold, Path(DATA))
    training = {site: entry for site, entry in fold_sections["data"]["sites"].items() if site in sites}
    tree["data"] = fold_sections["data"] | {"sites": training}
    evaluation = dict(fold_sections["evaluation"])
    if protocol.threshold == "source-train-eer":
        evaluation["every"] = 0  # scores of training images choose no round
    tree["evaluation"] = (tree.get("evaluation") or {}) | evaluation
    if protocol.size is not None:
        tree["input"] = (tree.get("input") or {}) | {"size": protocol.size}


def with_paths(cell: Cell, places: Mapping[SizedSet, Path]) -> Cell:
    """Return a cell whose data entries name the directories of the sets."""
    data, size = dict(cell.resolved["data"]), cell.recipe.input.size
    data["sites"] = {site: _entry_with_path(entry, size, places) for site, entry in data["sites"].items()}
    if data.get("benchmarks"):
        data["benchmarks"] = {name: _entry_with_path(entry, size, places) for name, entry in data["benchmarks"].items()}
    data |= {
        key: _entry_with_path(data[key], size, places) for key in ("target", "public") if data.get(key) is not None
    }
    return replace(cell, resolved={**cell.resolved, "data": data})


def source_of(entry: str) -> str:
    """Return the set that an entry names, without its selection and share."""
    return without_part(split_entry(entry)[0])[0]


def _entry_with_path(entry: str, size: int, places: Mapping[SizedSet, Path]) -> str:
    source = source_of(entry)
    place = places.get((source, size))
    return entry if place is None else f"{place}{entry.removeprefix(source)}"


def with_changes(study: Study, changes: Sequence[str]) -> Study:
    """Return the study with changes that every cell applies last."""
    rows = {name: row.model_copy(update={"set": [*row.set, *changes]}) for name, row in study.rows.items()}
    return study.model_copy(update={"rows": rows})


def _complete_row(study: Study, name: str) -> StudyRow:
    """Return a row with the values that it inherits from the row that trained its model."""
    row = study.rows[name]
    if row.trained_by is None:
        return row
    above = _complete_row(study, row.trained_by)
    return row.model_copy(
        update={
            "recipe": row.recipe or above.recipe,
            "set": [*above.set, *row.set],
            "sites": row.sites or above.sites,
            "public": row.public or above.public,
        }
    )


def _place(runs: Path, row: str, target: str, seed: int) -> Path:
    return runs / f"{slug(row)}-{target}-seed{seed}"
