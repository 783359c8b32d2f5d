"""A site's private state on the site's own disk, in generations.

The server's checkpoint names the generation that each site had reached. A server killed after a site had trained finds
that site one step ahead; it then sends the generation back, and the site continues from there. So a site always keeps
its last two generations. A site without private state writes nothing.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from fedvisage.errors import RunFailed
from fedvisage.federation import sealed
from fedvisage.federation.message import encode
from fedvisage.files import read_tensors

KEPT = 2


class SiteStore:
    """Private tensors by name: in memory while the site is at work, on disk between its turns."""

    def __init__(self, directory: Path) -> None:
        """Remember the site's own directory; nothing is created before there is something to keep."""
        self.directory = directory
        self.generation = 0
        self._dirty = False

    def load(self) -> dict[str, Tensor]:
        """Return the state as the site left it."""
        if self._dirty:
            return read_tensors(self._working)[0]
        return self._read(self._path(self.generation)) if self.generation else {}

    def save(self, kept: dict[str, Tensor]) -> None:
        """Put the state away until the next turn.

        It is not sealed and need not outlive this process: before it is committed, a killed run goes back anyway.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._working.write_bytes(encode(kept))
        self._dirty = True

    def commit(self, generation: int) -> int:
        """Make the present state durable under a generation's number, and return the number in force."""
        if self._dirty:
            sealed.write(self._path(generation), self.load(), {})
            self._working.unlink()
            self.generation, self._dirty = generation, False
            for old in sorted(self.directory.glob("generation-*.safetensors"))[:-KEPT]:
                old.unlink()
        return self.generation

    def restore(self, generation: int) -> None:
        """Go back to a generation that the server's checkpoint names, and forget what came later."""
        self._working.unlink(missing_ok=True)
        self.generation, self._dirty = generation, False
        if generation and not self._path(generation).exists():
            raise RunFailed(
                f"{self.directory}: generation {generation} of this site's private state is gone; start anew"
            )
        for path in self.directory.glob("generation-*.safetensors"):
            if path > self._path(generation):
                path.unlink()

    def _read(self, path: Path) -> dict[str, Tensor]:
        return sealed.read(path, "this site's private state is lost: start anew")[0]

    @property
    def _working(self) -> Path:
        return self.directory / "working.safetensors"

    def _path(self, generation: int) -> Path:
        return self.directory / f"generation-{generation:06d}.safetensors"
