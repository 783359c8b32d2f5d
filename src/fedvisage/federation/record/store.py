"""Checkpoints of the server and private state of sites, in files with a digest.

A checkpoint of the server names the generation of private state that each site had reached. A server killed after a
site had trained finds that site one step ahead; it then sends the generation back, and the site continues from there.
So a site always keeps its last two generations. A site without private state writes no file.

Between visits state also stays in memory, as long as there is room for all sites of a process: split learning visits
every site every few batches, and FedGPAD after each batch. State on a GPU stays there, or moves to the CPU if the GPU
has little free memory. If the machine has enough memory, a few sites of any size fit; a site without room writes its
state to a file, so a thousand sites need not fit. Only a commit has to outlive the process.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import (
    json_key,
    parse_json,
    publish_file,
    read_tensors,
    tensor_bytes,
    write_atomically,
    write_tensors,
)
from fedvisage.base.processes import free_memory
from fedvisage.federation.wire.message import digest_of, plain
from fedvisage.recipe import Recipe

# Files of tensors and plain values with a digest that reveals the change of a single bit.


def write_sealed(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write a file atomically, with the digest of its content."""
    write_tensors(path, tensors, _metadata_text(digest_of(dict(tensors)), values))


def read_sealed(path: Path, advice: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the content of a file; the error for a damaged file ends with ``advice``."""
    try:
        tensors, text = read_tensors(path)
    except UserError as error:
        raise UserError(error.place, f"{error.message}; {advice}") from error
    try:
        content = parse_json(text)
        values, seal = dict(content["values"]), content["seal"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(str(path), f"was not written by this program, or is damaged; {advice}") from error
    if seal != _seal(digest_of(tensors), values):
        raise UserError(str(path), f"is damaged: its digest is not the one that was written; {advice}")
    return tensors, values


def _metadata_text(digest: str, values: Mapping[str, Any]) -> str:
    """Return the metadata of a file whose tensors have a digest."""
    return json_key({"values": values, "seal": _seal(digest, values)})


def _seal(digest: str, values: Mapping[str, Any]) -> str:
    return hashlib.sha256((digest + json_key(values)).encode()).hexdigest()


# The server's checkpoints: one safetensors file each, written atomically; the last two are kept.

KEPT_CHECKPOINTS = 2
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Progress:
    """The plain values of a checkpoint; with the files' lengths a resumed run removes later lines."""

    round: int = 0
    generations: Mapping[str, int] = field(default_factory=dict)
    ledger: int = 0
    rounds: int = 0
    notes: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the run's files by name; of ledger and rounds up to these lengths."""


class Checkpoints:
    """The directory of a run's checkpoints."""

    def __init__(self, directory: Path, recipe_digest: str) -> None:
        self.directory, self.recipe_digest = directory, recipe_digest

    def write(self, tensors: Mapping[str, Tensor], progress: Progress) -> None:
        """Write the checkpoint of a round, then delete all but the last two."""
        self.directory.mkdir(parents=True, exist_ok=True)
        write_sealed(self._path(progress.round), tensors, {"recipe": self.recipe_digest, **asdict(progress)})
        for path in sorted(self.directory.glob("*.safetensors"))[:-KEPT_CHECKPOINTS]:
            path.unlink()

    def clear(self) -> None:
        """Delete all checkpoints, the oldest last, so that the run begins again."""
        for path in sorted(self.directory.glob("*.safetensors"), reverse=True):
            path.unlink()

    def latest(self) -> tuple[dict[str, Tensor], Progress] | None:
        """Return the newest checkpoint, or None; a damaged one is an error and is not skipped."""
        paths = sorted(self.directory.glob("*.safetensors"))
        if not paths:
            return None
        path, advice = paths[-1], "delete it to resume from the checkpoint before"
        tensors, values = read_sealed(path, advice)
        recipe = values.pop("recipe", None)
        if recipe != self.recipe_digest:
            raise UserError(str(path), "belongs to another recipe; resume with the recipe that started the run")
        progress = Progress(**values)
        if path != self._path(progress.round):
            raise UserError(str(path), f"is the checkpoint of round {progress.round}; {advice}")
        if not progress.digests:
            raise UserError(str(path), f"belongs to another run: it has no digests of this run's files; {advice}")
        return tensors, progress

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:06d}.safetensors"


def out_of_reach(recipe: Recipe) -> int:
    """Return the age in rounds beyond which no checkpoint can lead back to a round, so its releases can be deleted."""
    return (KEPT_CHECKPOINTS + 1) * recipe.runtime.checkpoint_every


def generations_of(run: Path) -> dict[str, int]:
    """Return the generation of private state that each site of a finished run reached."""
    paths = sorted((run / CHECKPOINTS).glob("*.safetensors"))
    if not paths:
        raise UserError(str(run), "has no checkpoint, so the progress of its sites is unknown; start a new run")
    return dict(read_sealed(paths[-1], "start a new run")[1]["generations"])


def recipe_digest(text: str) -> str:
    """Return a short digest of a resolved recipe."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


START_ANEW = "start a new run"
LOST = f"this site's private state is lost: {START_ANEW}"


@dataclass(frozen=True)
class Owner:
    """The site, the run and the recipe's digest that private files name; empty ones are not named."""

    site: str = ""
    run: str = ""
    recipe: str = ""
    unnamed: bool = True
    """Whether files without names are accepted, as earlier versions wrote them."""

    def names(self, **others: str) -> dict[str, str]:
        """Return the names for a file, with others of that file."""
        names = {"site": self.site, "run": self.run, "recipe": self.recipe}
        return others | {key: name for key, name in names.items() if name}

    def check(self, path: Path, values: Mapping[str, Any], **others: str) -> None:
        """Refuse a file whose values have other names."""
        names = self.names(**others)
        if self.unnamed and not names.keys() & values.keys():
            return
        for key, name in names.items():
            if values.get(key) != name:
                actual = f"{key} {values[key]}" if key in values else f"a run of an earlier version, without a {key}"
                remedy = f"restore this site's own file, or {START_ANEW}"
                raise UserError(str(path), f"belongs to {actual}, not to {key} {name}; {remedy}")


KEPT_GENERATIONS = 2
ROOM = 1 << 27
"""Bytes of CPU memory for the state of all sites of a process between visits, on any machine."""
SITES = 4
"""Number of sites whose state may exceed ``ROOM``: as many as the papers' federations have."""
SHARE = 4
"""Such a state takes at most one part in ``SHARE`` of the free memory; on a GPU, the states of all sites together."""
CPU = torch.device("cpu")


def free_device_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, or 0 if its backend does not report them.

    This is a low estimate: memory that torch's allocator has reserved is not free, whether tensors use it or not.
    """
    try:
        return int(torch.get_device_module(device).mem_get_info(device)[0])
    except (AttributeError, RuntimeError):
        return 0


@dataclass
class StateCache:
    """Memory that the sites of a process share for their state; a site without room uses its disk."""

    room: int | None = None
    """Limit in bytes of CPU memory; unset, the limit depends on the machine's free memory."""
    free: Callable[[], int] = free_memory
    free_on_device: Callable[[torch.device], int] = free_device_memory
    _states: dict[Path, dict[str, Tensor]] = field(default_factory=dict)

    def put(self, owner: Path, state: Mapping[str, Tensor]) -> bool:
        """Replace the owner's state by copies of these tensors if there is room; return whether there was.

        The copies are on the tensors' own device if they fit there, else on the CPU.
        """
        self.clear(owner)
        used = _bytes_by_device(value for other in self._states.values() for value in other.values())
        wanted = _bytes_by_device(state.values())
        gpus = {
            device
            for device in wanted.keys() - {CPU}
            if used[device] + wanted[device] <= self.free_on_device(device) // SHARE
        }
        on_cpu = wanted.total() - sum(wanted[device] for device in gpus)
        total = used[CPU] + on_cpu
        if self.room is not None:
            fits_on_cpu = total <= self.room
        else:
            fits_on_cpu = total <= ROOM or (total <= SITES * wanted.total() and on_cpu <= self.free() // SHARE)
        if not fits_on_cpu:
            return False
        self._states[owner] = {
            name: _copy(value) if value.device in gpus else plain(value) for name, value in state.items()
        }
        return True

    def get(self, owner: Path, *, on_cpu: bool = False) -> dict[str, Tensor] | None:
        """Return copies, because the owner may change them, and a failed visit must find the old values.

        The copies are where the values are stored, or on the CPU.
        """
        state, copy = self._states.get(owner), plain if on_cpu else _copy
        return None if state is None else {name: copy(value) for name, value in state.items()}

    def clear(self, owner: Path) -> None:
        """Remove the owner's state, and release its memory."""
        self._states.pop(owner, None)


def _copy(value: Tensor) -> Tensor:
    """Return a contiguous copy on the value's device, or on the CPU if that device has no memory left."""
    try:
        return value.detach().clone(memory_format=torch.contiguous_format)
    except torch.OutOfMemoryError:
        return plain(value)


def _bytes_by_device(tensors: Iterable[Tensor]) -> Counter[torch.device]:
    """Return the number of bytes of tensors on each device."""
    sizes = Counter[torch.device]()
    for tensor in tensors:
        sizes[tensor.device] += tensor.nbytes
    return sizes


class SiteStore:
    """Private tensors by name: in the site's memory during a visit, in a ``StateCache`` or on disk between visits."""

    def __init__(
        self,
        directory: Path,
        state_cache: StateCache | None = None,
        owner: Owner | None = None,
        *,
        stored_elsewhere: bool = False,
    ) -> None:
        """Take the site's own directory, which is created only when there is state to keep, and its owner.

        With ``stored_elsewhere``, another process stores the content of each generation, so that state in memory needs
        no file here.
        """
        self.directory, self.owner, self._stored_elsewhere = directory, owner or Owner(), stored_elsewhere
        self.state_cache = StateCache() if state_cache is None else state_cache
        self.generation = 0
        self.uncommitted = False  # True if there is state outside any generation
        self._working_digest = ""

    def load(self) -> dict[str, Tensor]:
        """Return copies of the state at the end of the last visit, on the device where it is stored or on the CPU."""
        state = self.state_cache.get(self.directory)
        if state is not None:
            return state
        if self.uncommitted:
            return read_tensors(self._working)[0]
        return self._read(self.generation) if self.generation else {}

    def save(self, kept: Mapping[str, Tensor]) -> None:
        """Store copies of the state until the next visit.

        It need not outlive this process: a killed run returns to a committed generation anyway. But a file has the same
        bytes as a commit, so a state that does not fit in memory is written once.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.state_cache.put(self.directory, kept):
            self._working.unlink(missing_ok=True)
        else:
            state = {name: plain(value) for name, value in kept.items()}
            self._working_digest = digest_of(state)
            self._working.write_bytes(tensor_bytes(state, self._metadata(self._working_digest, 0)))
        self.uncommitted = True

    def commit(self, generation: int) -> int:
        """Make the current state durable under a generation's number, and return the current generation."""
        if self.uncommitted:
            if self._working.exists():
                # Write the generation's number into the file's header, whose length does not depend on it.
                before, after = (
                    json_key(self._metadata(self._working_digest, number)).encode() for number in (0, generation)
                )
                with self._working.open("rb+") as file:
                    header = file.read(int.from_bytes(file.read(8), "little"))
                    assert before in header
                    file.seek(8)
                    file.write(header.replace(before, after))
                publish_file(self._working, self._path(generation))
            elif not self._stored_elsewhere:
                write_atomically(self._path(generation), self._content_in_memory(generation))
            self._begin_generation(generation)
        return self.generation

    def committed_content(self) -> bytes:
        """Return the content of the current generation's file, for another process."""
        path = self._path(self.generation)
        return path.read_bytes() if path.exists() else self._content_in_memory(self.generation)

    def _content_in_memory(self, generation: int) -> bytes:
        state = self.state_cache.get(self.directory, on_cpu=True)
        assert state is not None, "state without a file is in memory"
        return tensor_bytes(state, self._metadata(digest_of(state), generation))

    def _metadata(self, digest: str, generation: int) -> str:
        return _metadata_text(digest, self.owner.names(generation=f"{generation:06d}"))

    def receive(self, generation: int, content: bytes) -> None:
        """Store the content of a generation's file, which another process committed, as the current generation."""
        self.directory.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(generation), content)
        self._working.unlink(missing_ok=True)
        self.state_cache.clear(self.directory)
        self._begin_generation(generation)

    def _begin_generation(self, generation: int) -> None:
        """Continue from a generation whose file exists, and delete all but the last ones."""
        self.generation, self.uncommitted = generation, False
        kept = 1 if self._stored_elsewhere else KEPT_GENERATIONS
        for path in sorted(self.directory.glob("generation-*.safetensors"))[:-kept]:
            path.unlink()

    def check(self, generation: int) -> None:
        """Refuse a generation whose file is missing or cannot be used; nothing changes."""
        if generation and not self._path(generation).exists():
            raise RunFailed(
                f"{self.directory}: generation {generation} of this site's private state is missing; {START_ANEW}"
            )
        if generation:
            self._read(generation)

    def restore(self, generation: int) -> None:
        """Return to a generation that the server's checkpoint names, and delete later ones."""
        self.check(generation)
        self._working.unlink(missing_ok=True)
        self.state_cache.clear(self.directory)
        self.generation, self.uncommitted = generation, False
        for path in self.directory.glob("generation-*.safetensors"):
            if path > self._path(generation):
                path.unlink()

    def take_over(self, directory: Path, owner: Owner, generation: int) -> None:
        """Start from the state that its owner had reached in another run's directory; generation 0 has no state."""
        other = SiteStore(directory, owner=owner)
        other.generation = generation
        if generation:
            self.save(other.load())
            self.commit(generation)
        self.restore(generation)

    def _read(self, generation: int) -> dict[str, Tensor]:
        path = self._path(generation)
        state, values = read_sealed(path, LOST)
        self.owner.check(path, values, generation=f"{generation:06d}")
        return state

    @property
    def _working(self) -> Path:
        return self.directory / "working.safetensors"

    def _path(self, generation: int) -> Path:
        return self.directory / f"generation-{generation:06d}.safetensors"
