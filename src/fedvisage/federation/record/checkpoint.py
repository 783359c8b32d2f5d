"""The server's checkpoints: one safetensors file each, written whole or not at all; the last two are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedvisage.errors import UserError
from fedvisage.federation.record import sealed
from fedvisage.recipe import Recipe

KEPT = 2
FOLDER = "checkpoints"


@dataclass(frozen=True)
class Progress:
    """What a checkpoint holds besides tensors; file lengths let a resumed run cut back what came after."""

    round: int = 0
    generations: Mapping[str, int] = field(default_factory=dict)
    ledger: int = 0
    rounds: int = 0
    notes: Mapping[str, Any] = field(default_factory=dict)


class Checkpoints:
    """The directory of a run's checkpoints."""

    def __init__(self, directory: Path, recipe_digest: str) -> None:
        """Remember where, and for which recipe."""
        self.directory = directory
        self.recipe_digest = recipe_digest

    def write(self, tensors: Mapping[str, Tensor], progress: Progress) -> None:
        """Write the checkpoint of a round, then forget those before the last two."""
        self.directory.mkdir(parents=True, exist_ok=True)
        sealed.write(self._path(progress.round), tensors, {"recipe": self.recipe_digest, **asdict(progress)})
        for old in sorted(self.directory.glob("*.safetensors"))[:-KEPT]:
            old.unlink()

    def latest(self) -> tuple[dict[str, Tensor], Progress] | None:
        """Return the newest checkpoint, or None when there is none; a damaged one is refused, not skipped."""
        paths = sorted(self.directory.glob("*.safetensors"))
        return self._read(paths[-1]) if paths else None

    def _read(self, path: Path) -> tuple[dict[str, Tensor], Progress]:
        tensors, values = sealed.read(path, "delete it to resume from the checkpoint before")
        recipe = values.pop("recipe", None)
        if recipe != self.recipe_digest:
            raise UserError(str(path), "belongs to another recipe; resume with the recipe that started the run")
        return tensors, Progress(**values)

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:06d}.safetensors"


def out_of_reach(recipe: Recipe) -> int:
    """Return after how many rounds no checkpoint can lead back to one: what only it could ask for again may go."""
    return (KEPT + 1) * recipe.runtime.checkpoint_every


def generations_of(run: Path) -> dict[str, int]:
    """Return the generation of private state that each site of a finished run had reached."""
    paths = sorted((run / FOLDER).glob("*.safetensors"))
    if not paths:
        raise UserError(str(run), "has no checkpoint, which says what its sites had reached; train it anew")
    return dict(sealed.read(paths[-1], "train the run anew")[1]["generations"])


def recipe_digest(text: str) -> str:
    """Return a short name for a resolved recipe."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
