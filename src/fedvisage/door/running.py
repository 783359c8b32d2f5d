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
from fedvisage.methods import find, read_method
from fedvisage.methods.origin import check_name
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

    ``method`` takes the place of the method that the recipe names. It is one that the list does not know, and its
    options validate the recipe's section ``method``. Options of the recipe's own method that it lacks are left out; any
    other unknown key is an error.
    """
    tree = _tree_of(recipe)
    if method is not None:
        check_name(method)
        tree["method"] = _shared(tree.get("method"), method)
    for key, value in (changes or {}).items():
        recipes.put(tree, key, value)
    if method is None:
        return recipes.validate(tree, read_method)
    section = tree["method"]
    own = dict(section) if isinstance(section, Mapping) else {}
    return recipes.validate({**tree, "method": {**own, "name": method.name}}, method.options.model_validate)


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

    ``method`` takes the place of the recipe's, with its options as far as the method has them; the run records where it
    came from. ``transport`` makes a transport of the sites' ends. ``data`` replaces entries of the recipe: sets by the
    name of a site, or under ``user`` and ``public``; a name that the recipe does not have is refused. ``out`` is a new
    directory, or with ``resume`` one to continue in. Sets that were cropped in different ways are refused, unless
    ``allow_mixed_crops``. Pictures that are at two places, such as a site and the user, are refused unless
    ``allow_overlap``; with ``verify`` every byte of the sets is read and compared with its digest.
    """
    chosen = load(recipe, changes, method=method)
    if data:
        chosen = load(chosen, _entries(data, chosen), method=method)
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


def _shared(section: Any, method: Method) -> dict[str, Any]:
    """Return a recipe's section ``method`` without the options that only the method has which the recipe names."""
    own = dict(section) if isinstance(section, Mapping) else {"name": section}
    model = own.get("model")
    named = {"name": own.get("name"), "model": model.get("name") if isinstance(model, Mapping) else model}
    try:
        theirs = {*find(named).options.model_fields, "model"}
    except UserError:  # the recipe was written for the method that is passed in
        theirs = set()
    return {key: value for key, value in own.items() if key in method.options.model_fields or key not in theirs}


def _entries(data: Mapping[str, Set], recipe: Recipe) -> dict[str, str]:
    """Return the changes of a recipe that replace its entries by these sets."""
    fixed = {name: f"data.{name}" for name in ("user", "public") if getattr(recipe.data, name) is not None}
    keys = {name: f"data.sites.{name}" for name in recipe.data.sites} | fixed
    if unknown := [name for name in data if name not in keys]:
        named = ", ".join(map(repr, unknown))
        raise UserError("data", f"the recipe has no {named}; it has {', '.join(keys)}. Replace one of these, or add an "
                        "entry with changes={'data.sites.NAME': ...}")  # fmt: skip
    entries = {}
    for name, one in data.items():
        if not isinstance(one, PreparedSet | str | Path):
            raise UserError(f"data.{name}", f"must be a prepared set or where one lies, got {type(one).__name__}")
        entries[keys[name]] = str(one.path.resolve() if isinstance(one, PreparedSet) else one)
    return entries
