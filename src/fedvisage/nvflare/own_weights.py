"""Files of weights that a recipe names: they stay where they are, and their digests travel.

The operator's recipe names a file of the operator's. In the travelling recipe stands what the file is, its SHA-256; the
server starts from its own copy, or says which file it lacks. Sites need theirs where a method keeps frozen weights that
are never sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.data.manifest import file_digest
from fedvisage.errors import UserError
from fedvisage.nvflare.own_data import NotReady
from fedvisage.recipe import Recipe
from fedvisage.recipe.weights import named_weights

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
    has = at_site(own)
    for digest in sorted(wanted - has.keys()):
        raise NotReady(f"the server has no file of weights with {digest}; start it with --weights FILE")
    return has


def at_site(own: Mapping[str, str]) -> dict[str, Path]:
    """Return the file of weights that a machine has, by its digest: sites need it for what never travels."""
    path = Path(own["weights"]) if "weights" in own else None
    return {} if path is None else {_digest(path, str(path)): path}


def _digest(path: Path, place: str) -> str:
    if not path.is_file():
        raise UserError(place, f"{path} does not exist")
    return f"sha256:{file_digest(path)}"
