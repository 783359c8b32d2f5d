"""The catalogue of published networks: addresses, digests, licences, and what is known of their training data.

`published.json` has the entries. Each was hashed from its authors' bytes, or from the Git LFS pointer that states their
digest. The licence of the code and that of the weights are separate, because training data often have terms of their
own. The scales of the pair are standard deviations of log-odds on 15 development sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, TypeAdapter

from fedvisage.base.errors import UserError, choice_hint
from fedvisage.base.files import CACHE


class PublishedFile(BaseModel, frozen=True, extra="forbid"):
    """A file of the authors, at an address that is pinned to a commit."""

    address: str
    sha256: str
    bytes: int

    @property
    def name(self) -> str:
        """The file's name."""
        return self.address.rpartition("/")[2]


class PublishedModel(BaseModel, frozen=True, extra="forbid"):
    """A published network, or several of which one detector is made.

    Attributes:
        task: attack detection, recognition or face detection.
        restricted: the terms of the weights or of their training data are non-commercial or unclear.
        margins: for attack detection, the margin of each file's crops.
        scales: for several detectors, the divisors of their log-odds in the sum.
        network: for a file that becomes a start, with torch, the network's name for `fedvisage model convert`.
    """

    name: str
    title: str
    task: str
    files: tuple[PublishedFile, ...]
    code_licence: str
    weights_licence: str
    training_data: str
    limits: tuple[str, ...]
    restricted: bool
    margins: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    network: str = ""

    def directory(self, cache: Path = CACHE) -> Path:
        """Return the model's place in the cache."""
        return cache / "models" / self.name

    def terms(self) -> list[str]:
        """Return origin, licences, training data and limits, one per line."""
        return [
            *(f"from: {file.address} ({file.bytes:,} bytes, SHA-256 {file.sha256})" for file in self.files),
            f"licence of the code: {self.code_licence}",
            f"licence of the weights: {self.weights_licence}",
            f"training data: {self.training_data}",
            *(f"limit: {limit}" for limit in self.limits),
        ]


@cache
def read_catalogue() -> Mapping[str, PublishedModel]:
    """Return the entries by name."""
    content = files("fedvisage.starts").joinpath("published.json").read_bytes()
    return {model.name: model for model in TypeAdapter(list[PublishedModel]).validate_json(content)}


def detector_hint(name: str | Path) -> str:
    """Return a hint with the published detector nearest to this name, else the list of them."""
    return choice_hint(str(name), [model.name for model in read_catalogue().values() if model.margins])


def locate_detector(model: str | Path, cache: Path = CACHE) -> Path:
    """Return the path of a detector: an existing path, or the place of a published one in the cache.

    A text that is neither is returned as a path, so that its reader refuses it.
    """
    path, entry = Path(model), read_catalogue().get(str(model))
    if path.exists() or entry is None:
        return path
    if not entry.margins:
        raise UserError(entry.name, f"is a published model for {entry.task}, but attack detection is required")
    if not entry.directory(cache).is_dir():
        raise UserError(entry.name, f"is not in the cache; run `fedvisage model get {entry.name}` first")
    return entry.directory(cache)
