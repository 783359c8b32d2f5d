"""What a machine of a federation opens: its own sets, through the same checks as a run in one process.

The travelling recipe says "elsewhere" for every set. A site puts its own directory in its place, the operator the
user's set, and each machine that needs the public set of a recognition run has a copy of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say, unheard
from fedvisage.data.prepared import file_digest
from fedvisage.federation.method import Method
from fedvisage.federation.wire.message import Message
from fedvisage.recipe import Recipe
from fedvisage.recipe.data import named_weights
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.opened import Opened
from fedvisage.tasks.task import Task


class NotReady(Exception):
    """A machine cannot take part; the reason quotes nothing of its data, so that it may be told to others."""


def data_at_site(setup: Setup, name: str, own: Mapping[str, str], cache: Path) -> Opened:
    """Open a site's data, as the recipe of a run with this site alone."""
    recipe = _with(setup.recipe, {name: own["data"]}, _public(setup.recipe, own))
    return setup.task.open(recipe, setup.method, cache, unheard)


def at_operator(task: Task, recipe: Recipe, method: Method, cache: Path, say: Say) -> Opened:
    """Open what the operator's recipe names beside the sites; what it counts of sites' people is not known here."""
    alone = recipe.model_copy(update={"data": recipe.data.model_copy(update={"sites": {}})})
    opened = task.open(alone, method, cache, say)
    return opened if opened.people is None else replace(opened, people=replace(opened.people, counted={}))


def first_at_server(setup: Setup, own: Mapping[str, str], cache: Path) -> Message:
    """Pre-train on the server's own copy of the public set, if the recipe wants it."""
    recipe, task = setup.recipe, setup.task
    if recipe.training.pretrain is None:
        return {}
    opened = task.open(_with(recipe, {}, _public(recipe, own)), setup.method, cache, unheard)
    if opened.people is None or opened.people.public is None:
        raise NotReady("has no public set to pre-train on")
    return task.first(recipe, opened, setup.compute, cache, unheard)


def _with(recipe: Recipe, sites: Mapping[str, str], public: str | None) -> Recipe:
    own = {"sites": dict(sites), "user": None, "public": public, "benchmarks": None}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=own)})


def _public(recipe: Recipe, own: Mapping[str, str]) -> str | None:
    if recipe.data.public is None:
        return None
    if "public" not in own:
        raise NotReady("has no copy of the public set; it is given with --public")
    return own["public"]


# Files of weights that a recipe names: they stay where they are, and their digests travel.
#
# The operator's recipe names a file of the operator's. In the travelling recipe stands what the file is, its
# SHA-256; the
# server starts from its own copy, or says which file it lacks. Sites need theirs where a method keeps frozen weights
# that
# are never sent.


DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def name_by_digest(tree: dict[str, Any]) -> None:
    """Put digests in the place of the files that a recipe of plain values names."""
    for place, value in named_weights(tree).items():
        section = tree
        for key in place[:-1]:
            section = section[key]
        section[place[-1]] = value if DIGEST.fullmatch(value) else _digest(Path(value), ".".join(("recipe", *place)))


def check_named_by_digest(tree: Mapping[str, Any]) -> None:
    """Refuse a job that names a path: it would be one of this machine, chosen by somebody else."""
    for place, value in named_weights(tree).items():
        if not DIGEST.fullmatch(value):
            raise UserError(".".join(("recipe", *place)), "names a file by its path; between machines it has a digest")


def at_server(recipe: Recipe, own: Mapping[str, str]) -> dict[str, Path]:
    """Return the server's own copies of the files that a travelling recipe names."""
    wanted = set(named_weights(recipes.tree_of(recipe)).values())
    if not wanted:
        return {}
    has = weights_at_site(own)
    for digest in sorted(wanted - has.keys()):
        raise NotReady(f"the server has no file of weights with {digest}; start it with --weights FILE")
    return has


def weights_at_site(own: Mapping[str, str]) -> dict[str, Path]:
    """Return the file of weights that a machine has, by its digest: sites need it for what never travels."""
    path = Path(own["weights"]) if "weights" in own else None
    return {} if path is None else {_digest(path, str(path)): path}


def _digest(path: Path, place: str) -> str:
    if not path.is_file():
        raise UserError(place, f"{path} does not exist")
    return f"sha256:{file_digest(path)}"
