"""Recipes from files, names or plain values, and runs of them; what is handed in takes the place of what they name."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from fedvisage import recipe as recipes
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.cache import CACHE
from fedvisage.door.runs import Run
from fedvisage.errors import UserError
from fedvisage.federation.local import LocalTransport
from fedvisage.federation.method import Method
from fedvisage.methods import read_method
from fedvisage.progress import Reporter
from fedvisage.recipe import Recipe
from fedvisage.runs.recount import recount as recount_run
from fedvisage.runs.run import Wire, run_and_report
from fedvisage.shipped import locate
from fedvisage.tasks.checks import Checks

Given = Recipe | str | Path | Mapping[str, Any]
"""A recipe: read already, a file or a shipped name, or its content as plain values."""

Set = PreparedSet | str | Path
"""A prepared set, opened or not, or a ``synth:`` line that makes one."""


def load(recipe: Given, changes: Mapping[str, Any] | None = None, *, method: Method | None = None) -> Recipe:
    """Return a recipe with changes such as ``{"training.rounds": 4}``, validated.

    ``method`` is one that the list does not know, by whose options the recipe's section ``method`` is read.
    """
    tree = _tree_of(recipe)
    for key, value in (changes or {}).items():
        recipes.put(tree, key, value)
    if method is None:
        return recipes.validate(tree, read_method)
    section = tree.get("method")
    own = section if isinstance(section, Mapping) else {}
    known = {key: value for key, value in own.items() if key in method.options.model_fields}
    return recipes.validate({**tree, "method": {**known, "name": method.name}}, method.options.model_validate)


def run(
    recipe: Given,
    *,
    out: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    method: Method | None = None,
    transport: Wire = LocalTransport,
    data: Mapping[str, Set] | None = None,
    cache: str | Path = CACHE,
    resume: bool = False,
    quiet: bool = False,
    allow_mixed_crops: bool = False,
    allow_overlap: bool = False,
    verify: bool = False,
) -> Run:
    """Run a recipe: train, judge at the user, write the run directory with its report.

    ``method`` takes the place of the recipe's, with its options as far as the method has them. ``transport`` makes a
    transport of the sites' ends. ``data`` holds sets by the site's name, or under ``user`` and ``public``, in the place
    of what the recipe says. ``out`` is a new directory, or with ``resume`` one to continue in. Sets that were
    cropped in different ways are refused, unless ``allow_mixed_crops``. Pictures that
    are at two places, such as a site and the user, are refused unless ``allow_overlap``; with ``verify`` every byte of
    the sets is read and compared with its digest.
    """
    chosen = load(recipe, {**(changes or {}), **_entries(data or {})}, method=method)
    stem = Path(recipe).stem if isinstance(recipe, str | Path) else chosen.method.name
    where = Path(out) if out is not None else Path("runs") / f"{stem}-seed{chosen.runtime.seed}"
    reporter = Reporter(Console(highlight=False), quiet=quiet)
    run_and_report(
        chosen, where, Path(cache), reporter, method=method, resume=resume, wire=transport,
        checks=Checks(allow_mixed_crops, allow_overlap, verify),
    )  # fmt: skip
    return Run(where, method)


def recount(run: Run | str | Path, out: str | Path, *, cache: str | Path = CACHE, quiet: bool = False) -> Run:
    """Judge a finished run again with exact BatchNorm statistics, as ``training.statistics: exact`` would have left it.

    Nothing is trained. The run's sites are asked for the statistics of their training images, layer by layer, and for
    new thresholds; ``out`` is a new directory, or the unfinished one of a recount that was interrupted.
    """
    trained = run.directory if isinstance(run, Run) else Path(run)
    recount_run(trained, Path(out), Path(cache), Reporter(Console(highlight=False), quiet=quiet))
    return Run(Path(out))


def _tree_of(recipe: Given) -> dict[str, Any]:
    if isinstance(recipe, Recipe):
        return recipes.tree_of(recipe)
    if isinstance(recipe, str | Path):
        return recipes.read_tree(locate(Path(recipe), verb="run"))
    if isinstance(recipe, Mapping):
        return copy.deepcopy(dict(recipe))
    raise UserError("recipe", f"must be a recipe, a path, a shipped name or a mapping, got {type(recipe).__name__}")


def _entries(data: Mapping[str, Set]) -> dict[str, str]:
    """Return what stands in a recipe for sets that are handed in."""
    entries = {}
    for name, one in data.items():
        if not isinstance(one, PreparedSet | str | Path):
            raise UserError(f"data.{name}", f"must be a prepared set or where one lies, got {type(one).__name__}")
        key = f"data.{name}" if name in ("user", "public") else f"data.sites.{name}"
        entries[key] = str(one.path.resolve() if isinstance(one, PreparedSet) else one)
    return entries
