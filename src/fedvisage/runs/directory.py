"""A run's directory: which files it has, whether it may be written into, and whether it is finished."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.errors import UserError
from fedvisage.federation.record.checkpoint import FOLDER
from fedvisage.federation.record.releases import CHARGES
from fedvisage.federation.wire.message import digest_of
from fedvisage.files import json_text, read_json, read_tensors, read_text, write_atomically
from fedvisage.methods import read_method
from fedvisage.recipe import Recipe

RECIPE, ENVIRONMENT, DATA, METRICS, REPORT, SITES = (
    *("recipe.yaml", "environment.json", "data.json", "metrics.json", "report.html", "sites"),
)
START = "start.json"
"""What the network took from the file that it started from."""
NAME = "federation.json"
"""The name that a run has in the federation that trains it."""

JUDGE_AGAIN = "delete it and continue with --resume, which judges the model again"


def finished(out: Path, recipe: Recipe, resume: bool) -> dict[str, Any] | None:
    """Return a finished run's figures; refuse a directory that is in use for something else."""
    if not out.exists() or (out.is_dir() and not _shown(out)):
        return None  # a run that was killed before it wrote its recipe leaves hidden files only
    if not out.is_dir():
        raise UserError(str(out), "is a file; --out names a directory")
    if not resume:
        raise UserError(str(out), "is not empty; give another --out, or --resume to continue the run in it")
    if not (out / RECIPE).exists():
        raise UserError(str(out), "holds no run that could be resumed")
    if not _says(out / RECIPE, recipe):
        raise UserError(str(out), "was started with another recipe; resume with that recipe, or give another --out")
    path = out / METRICS
    return read_json(path, JUDGE_AGAIN) if path.exists() else None


@contextmanager
def taken_back(out: Path) -> Iterator[None]:
    """Leave a directory as empty as it was, when a mistake of the user's ends its first run before the first round.

    With the mistake mended, the recipe is another one: what the failed start left would refuse it. What sites or the
    server have told under differential privacy stays told, and is never removed; a federation may still be at work on
    a run that has a name there.
    """
    fresh = not _shown(out)
    try:
        yield
    except UserError:
        begun = (out / NAME).exists() or any(out.glob(f"{FOLDER}/*")) or any(out.rglob(CHARGES))
        if fresh and not begun:
            for path in _shown(out):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        raise


def _shown(directory: Path) -> list[Path]:
    """Return what lies in a directory, but for hidden files."""
    return [path for path in directory.iterdir() if not path.name.startswith(".")]


def _says(path: Path, recipe: Recipe) -> bool:
    """Tell whether a file says what a recipe says; keys that came later than the file have their defaults."""
    if read_text(path) == recipes.text_of(recipe):
        return True
    try:
        return recipes.load(path, [], read_method) == recipe
    except UserError:
        return False


def write_once(path: Path, text: str) -> None:
    """Write a file that a resumed run leaves as it was."""
    if not path.exists():
        write_atomically(path, text.encode())


def write_or_compare(path: Path, digests: Mapping[str, str]) -> None:
    """Record what the data was, and refuse to go on with other data than a run began with."""
    write_once(path, json_text(digests))
    known = read_json(path)
    changed = sorted(name for name in known.keys() | digests.keys() if known.get(name) != digests.get(name))
    if changed:
        raise UserError(changed[0], f"is not the data that the run in {path.parent} began with; start anew elsewhere")


def start_digest(recipe: Recipe) -> dict[str, str]:
    """Return the digest of the weights that a recipe starts from, beside those of its data."""
    start = recipe.training.starts_from
    return {} if start is None else {"training.start": digest_of(read_tensors(Path(start.file))[0])}
