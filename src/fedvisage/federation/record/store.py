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

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from fedvisage.errors import RunFailed
from fedvisage.federation.record import sealed
from fedvisage.federation.wire.message import plain, size_of
from fedvisage.files import read_tensors, settle, write_atomically
from fedvisage.workers.machine import free_memory

KEPT = 2
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
            self._working.write_bytes(sealed.sealed_bytes(kept))
        self._dirty = True

    def commit(self, generation: int) -> int:
        """Make the present state durable under a generation's number, and return the number in force."""
        if self._dirty:
            if self._working.exists():
                settle(self._working, self._path(generation))
            else:
                sealed.write(self._path(generation), self.load(), {})
            self.generation, self._dirty = generation, False
            for old in sorted(self.directory.glob("generation-*.safetensors"))[:-KEPT]:
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
        return sealed.read(path, "this site's private state is lost: start anew")[0]

    @property
    def _working(self) -> Path:
        return self.directory / "working.safetensors"

    def _path(self, generation: int) -> Path:
        return self.directory / f"generation-{generation:06d}.safetensors"
