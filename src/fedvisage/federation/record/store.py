"""A site's private state on the site's own disk, in generations.

The server's checkpoint names the generation that each site had reached. A server killed after a site had trained finds
that site one step ahead; it then sends the generation back, and the site continues from there. So a site always keeps
its last two generations. A site without private state writes nothing.

Between two turns state lies in memory too, as long as the sites of a process have room for it together: split learning
visits every site every few batches, and FedGPAD after each one. There is room for a few sites, however large, where the
machine has it; a site without room puts its state into a file, and a thousand sites need not fit. Only a commit has to
outlive the process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import (
    json_key,
    parse_json,
    read_tensors,
    settle,
    tensor_bytes,
    write_atomically,
    write_tensors,
)
from fedvisage.base.processes import free_memory
from fedvisage.federation.wire.message import digest_of, plain, size_of
from fedvisage.recipe import Recipe

# Tensors with some plain values beside them, in a file that tells when a single bit of it has changed.


def write(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write a file atomically, with the digest of all that it holds."""
    write_tensors(path, tensors, _told(tensors, values))


def sealed_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of such a file that holds no values."""
    return tensor_bytes(tensors, _told(tensors, {}))


def read(path: Path, advice: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file back; when it is damaged, refuse it with some advice."""
    try:
        tensors, text = read_tensors(path)
    except UserError as error:
        raise UserError(error.place, f"{error.message}; {advice}") from error
    try:
        content = parse_json(text)
        values, seal = dict(content["values"]), content["seal"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(str(path), f"was not written by this program, or is damaged; {advice}") from error
    if seal != _seal(tensors, values):
        raise UserError(str(path), f"is damaged: its digest is not the one that was written; {advice}")
    return tensors, values


def _told(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> str:
    return json_key({"values": values, "seal": _seal(tensors, values)})


def _seal(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> str:
    text = digest_of(dict(tensors)) + json_key(values)
    return hashlib.sha256(text.encode()).hexdigest()


# The server's checkpoints: one safetensors file each, written whole or not at all; the last two are kept.


KEPT_CHECKPOINTS = 2
CHECKPOINTS = "checkpoints"


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
        write(self._path(progress.round), tensors, {"recipe": self.recipe_digest, **asdict(progress)})
        for old in sorted(self.directory.glob("*.safetensors"))[:-KEPT_CHECKPOINTS]:
            old.unlink()

    def latest(self) -> tuple[dict[str, Tensor], Progress] | None:
        """Return the newest checkpoint, or None when there is none; a damaged one is refused, not skipped."""
        paths = sorted(self.directory.glob("*.safetensors"))
        return self._read(paths[-1]) if paths else None

    def _read(self, path: Path) -> tuple[dict[str, Tensor], Progress]:
        tensors, values = read(path, "delete it to resume from the checkpoint before")
        recipe = values.pop("recipe", None)
        if recipe != self.recipe_digest:
            raise UserError(str(path), "belongs to another recipe; resume with the recipe that started the run")
        return tensors, Progress(**values)

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:06d}.safetensors"


def out_of_reach(recipe: Recipe) -> int:
    """Return after how many rounds no checkpoint can lead back to one: what only it could ask for again may go."""
    return (KEPT_CHECKPOINTS + 1) * recipe.runtime.checkpoint_every


def generations_of(run: Path) -> dict[str, int]:
    """Return the generation of private state that each site of a finished run had reached."""
    paths = sorted((run / CHECKPOINTS).glob("*.safetensors"))
    if not paths:
        raise UserError(str(run), "has no checkpoint, which says what its sites had reached; train it anew")
    return dict(read(paths[-1], "train the run anew")[1]["generations"])


def recipe_digest(text: str) -> str:
    """Return a short name for a resolved recipe."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


KEPT_GENERATIONS = 2
ROOM = 1 << 27
"""Bytes of memory for the state of all sites of a process, between their turns, on any machine."""
SITES = 4
"""Sites for whose state there is room however large it is: as many as the papers' federations have."""
SHARE = 4
"""And that takes no more than one part in so many of the memory that is free."""


@dataclass
class Shelf:
    """Where the sites of a process share memory for their state; a site without a place on it uses its disk."""

    room: int | None = None
    """Bytes; unless given, what the machine has for a few sites."""
    free: Callable[[], int] = free_memory
    _states: dict[Path, dict[str, Tensor]] = field(default_factory=dict)

    def put(self, owner: Path, state: dict[str, Tensor]) -> bool:
        """Keep copies in the place of what the owner had here, if there is room."""
        self.clear(owner)
        if not self._fits(size_of(state.values())):
            return False
        self._states[owner] = {name: plain(value) for name, value in state.items()}
        return True

    def _fits(self, wanted: int) -> bool:
        together = wanted + sum(size_of(other.values()) for other in self._states.values())
        if self.room is not None:
            return together <= self.room
        return together <= ROOM or (together <= SITES * wanted and wanted <= self.free() // SHARE)

    def get(self, owner: Path) -> dict[str, Tensor] | None:
        """Return copies, which the owner may change: a visit that fails must find them as they were."""
        state = self._states.get(owner)
        return None if state is None else {name: plain(value) for name, value in state.items()}

    def clear(self, owner: Path) -> None:
        """Forget what the owner had here."""
        self._states.pop(owner, None)


class SiteStore:
    """Private tensors by name: in memory while the site is at work, on its shelf or on disk between its turns."""

    def __init__(self, directory: Path, shelf: Shelf | None = None) -> None:
        """Remember the site's own directory; nothing is created before there is something to keep."""
        self.directory = directory
        self.shelf = Shelf() if shelf is None else shelf
        self.generation = 0
        self._dirty = False

    @property
    def uncommitted(self) -> bool:
        """Whether there is state that no generation holds yet."""
        return self._dirty

    def load(self) -> dict[str, Tensor]:
        """Return the state as the site left it."""
        shelved = self.shelf.get(self.directory)
        if shelved is not None:
            return shelved
        if self._dirty:
            return read_tensors(self._working)[0]
        return self._read(self._path(self.generation)) if self.generation else {}

    def save(self, kept: dict[str, Tensor]) -> None:
        """Put the state away until the next turn.

        It need not outlive this process: before it is committed, a killed run goes back anyway. But a file has the
        bytes that a commit makes durable, so that what no memory has room for is written once.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.shelf.put(self.directory, kept):
            self._working.unlink(missing_ok=True)
        else:
            self._working.write_bytes(sealed_bytes(kept))
        self._dirty = True

    def commit(self, generation: int) -> int:
        """Make the present state durable under a generation's number, and return the number in force."""
        if self._dirty:
            if self._working.exists():
                settle(self._working, self._path(generation))
            else:
                write(self._path(generation), self.load(), {})
            self.generation, self._dirty = generation, False
            for old in sorted(self.directory.glob("generation-*.safetensors"))[:-KEPT_GENERATIONS]:
                old.unlink()
        return self.generation

    def restore(self, generation: int) -> None:
        """Go back to a generation that the server's checkpoint names, and forget what came later."""
        self._working.unlink(missing_ok=True)
        self.shelf.clear(self.directory)
        self.generation, self._dirty = generation, False
        if generation and not self._path(generation).exists():
            raise RunFailed(
                f"{self.directory}: generation {generation} of this site's private state is gone; start anew"
            )
        for path in self.directory.glob("generation-*.safetensors"):
            if path > self._path(generation):
                path.unlink()

    def take_over(self, directory: Path, generation: int) -> None:
        """Begin with what the site had reached in another run, in whose directory it lies; 0 is nothing."""
        if generation:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(generation), SiteStore(directory)._path(generation).read_bytes())
        self.restore(generation)

    def _read(self, path: Path) -> dict[str, Tensor]:
        return read(path, "this site's private state is lost: start anew")[0]

    @property
    def _working(self) -> Path:
        return self.directory / "working.safetensors"

    def _path(self, generation: int) -> Path:
        return self.directory / f"generation-{generation:06d}.safetensors"
