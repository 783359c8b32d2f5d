"""The sets and files of weights of each machine, opened with the same checks as in a run in one process.

The travelling recipe has "elsewhere" for every set. A site replaces it by its own directory, the operator by the
target's set, and each machine that needs the public set of a recognition run has a copy of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError
from fedvisage.base.files import file_digest
from fedvisage.base.progress import Say, discard
from fedvisage.datasets.sources import without_part
from fedvisage.federation.wire.message import Message
from fedvisage.recipe import Recipe
from fedvisage.recipe.data import named_weights
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.opened import RunData


class NotReady(Exception):
    """A machine cannot take part; the reason quotes nothing of its data, so that it may be sent to others."""


def data_at_site(setup: Setup, name: str, own: Mapping[str, str], cache: Path) -> RunData:
    """Open a site's data, as for a run with this site alone."""
    recipe = _with_data(setup.recipe, {name: own["data"]}, _public(setup.recipe, own))
    return setup.task.open(recipe, setup.method, cache, discard)


def sets_at_site(recipe: Recipe, own: Mapping[str, str]) -> list[Path]:
    """Return the directories of a site's own set, and of its copy of the public set if the recipe has one."""
    entries = (own["data"], _public(recipe, own))
    return [Path(without_part(entry)[0].strip()) for entry in entries if entry is not None]


def open_at_operator(setup: Setup, cache: Path, say: Say) -> RunData:
    """Open the sets of the operator's recipe without the sites; the numbers of the sites' people are not known here."""
    data = setup.recipe.data.model_copy(update={"sites": {}})
    opened = setup.task.open(setup.recipe.model_copy(update={"data": data}), setup.method, cache, say)
    return opened if opened.people is None else replace(opened, people=replace(opened.people, counted={}))


def pretrain_at_server(setup: Setup, own: Mapping[str, str], cache: Path) -> Message:
    """Pre-train on the server's own copy of the public set, if the recipe requires it."""
    recipe, task = setup.recipe, setup.task
    if recipe.training.pretrain is None:
        return {}
    opened = task.open(_with_data(recipe, {}, _public(recipe, own)), setup.method, cache, discard)
    if opened.people is None or opened.people.public is None:
        raise NotReady("has no public set to pre-train on")
    return task.pretrain(recipe, opened, setup.compute, cache, discard)


def _with_data(recipe: Recipe, sites: Mapping[str, str], public: str | None) -> Recipe:
    """Return a recipe with these data entries alone."""
    entries = {"sites": dict(sites), "target": None, "public": public, "benchmarks": None}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=entries)})


def _public(recipe: Recipe, own: Mapping[str, str]) -> str | None:
    """Return this machine's copy of the public set, if the recipe has one."""
    if recipe.data.public is None:
        return None
    if "public" not in own:
        raise NotReady("has no copy of the public set; give one with --public")
    return own["public"]


# Files of weights in a recipe: they stay where they are, and their digests travel. The operator's recipe names a file
# of the operator's. The travelling recipe has its SHA-256 instead. The server starts from its own copy, or reports the
# file that it lacks. Sites need theirs if a method keeps frozen weights that are never sent.


DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def name_by_digest(tree: dict[str, Any]) -> None:
    """Replace the files in a recipe of plain values by their digests."""
    for place, value in named_weights(tree).items():
        section = tree
        for key in place[:-1]:
            section = section[key]
        section[place[-1]] = value if DIGEST.fullmatch(value) else _digest(Path(value), ".".join(("recipe", *place)))


def check_named_by_digest(tree: Mapping[str, Any]) -> None:
    """Refuse a job that names a path: it would be a path of this machine that another one chose."""
    for place, value in named_weights(tree).items():
        if not DIGEST.fullmatch(value):
            raise UserError(
                ".".join(("recipe", *place)), "names a file by its path; between machines, name it by its digest"
            )


def weights_at_server(recipe: Recipe, own: Mapping[str, str]) -> dict[str, Path]:
    """Return the server's own copies of the files in a travelling recipe."""
    digests = set(named_weights(recipes.tree_of(recipe)).values())
    if not digests:
        return {}
    copies = weights_at_site(own)
    for digest in sorted(digests - copies.keys()):
        raise NotReady(f"the server has no file of weights with {digest}; start it with --weights FILE")
    return copies


def weights_at_site(own: Mapping[str, str]) -> dict[str, Path]:
    """Return a machine's file of weights by its digest: sites need it for weights that are never sent."""
    path = Path(own["weights"]) if "weights" in own else None
    return {} if path is None else {_digest(path, str(path)): path}


def _digest(path: Path, place: str) -> str:
    """Return the digest of a file as recipes write it."""
    if not path.is_file():
        raise UserError(place, f"{path} does not exist")
    return f"sha256:{file_digest(path)}"
