"""Digests that authenticate the rows of a gallery: one sum per bucket of people, and one state over everything.

Every row has a keyed digest (HMAC-SHA256). The digests of a bucket are added up, so that a change costs one addition,
and the sums are encrypted: without seeing them, an attacker cannot compute other rows with the same sum (MSet-Add-Hash
of Clarke et al., "Incremental multiset hash functions and their application to memory integrity checking", ASIACRYPT
2003, §5). docs/decisions/0030-gallery-membership.md explains the choice.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from fedvisage.device.gallery.file import seal, unseal

BUCKETS = 1024
"""Number of buckets into which the keyed hashes of names divide the people of a collection."""

_WIDTH, _COUNT = 16, 8
_MODULUS = 1 << (8 * _WIDTH)
_SHIFT = 16 - (BUCKETS - 1).bit_length()
_DIGEST = 32

FIRST = bytes(_DIGEST)
"""Digest that the first state of a gallery names as its predecessor."""


class StoredFace(NamedTuple):
    """A row of the table ``faces``, with the digest of its model."""

    number: int
    id: str
    person: str
    model: str
    template: bytes
    created: str
    score: float | None


class StoredPerson(NamedTuple):
    """A row of the table ``persons``, with its faces."""

    id: str
    tag: bytes
    key: bytes
    name: bytes
    created: str
    faces: tuple[StoredFace, ...] = ()


def bucket_of(tag: bytes) -> int:
    """Return the bucket of a person from the keyed hash of the name."""
    return int.from_bytes(tag[:2].ljust(2, b"\0"), "big") >> _SHIFT


def bounds_of(buckets: range) -> tuple[bytes, bytes]:
    """Return the lowest keyed hash of some buckets, and the lowest one above them."""
    low, high = (edge << _SHIFT for edge in (buckets.start, buckets.stop))
    return low.to_bytes(2, "big"), high.to_bytes(2, "big") if high < 1 << 16 else b"\xff" * 33


def digest_of(key: bytes, *values: object) -> bytes:
    """Return the keyed digest of values, which are encoded unambiguously with SQLite's types."""
    parts = list[bytes]()
    for value in values:
        if isinstance(value, bytes):
            kind, body = b"b", value
        elif isinstance(value, str):
            kind, body = b"s", value.encode("utf-8", "surrogatepass")
        elif isinstance(value, float):
            kind, body = b"f", struct.pack(">d", value)
        else:
            kind, body = b"i", str(value).encode()  # an integer, or None
        parts += (kind, len(body).to_bytes(4, "big"), body)
    return hmac.digest(key, b"".join(parts), "sha256")


def row_digest(key: bytes, collection: int, row: StoredPerson | StoredFace) -> int:
    """Return the digest of a person's own row, or of a face's, in a collection, as a summand."""
    values = ("person", collection, *row[:5]) if isinstance(row, StoredPerson) else ("face", collection, *row)
    return int.from_bytes(digest_of(key, *values)[:_WIDTH], "big")


def whole_digest(key: bytes, collection: int, person: StoredPerson) -> int:
    """Return the sum of the digests of a person and of all their faces."""
    rows: list[StoredPerson | StoredFace] = [person, *person.faces]
    return sum(row_digest(key, collection, row) for row in rows)


class Members:
    """The members of a collection: the number of people, and a sum of digests per bucket."""

    def __init__(self, content: bytes = bytes(_COUNT + BUCKETS * _WIDTH)) -> None:
        """Read the content of a sealed record; the default has no members."""
        self._content = bytearray(content)

    @classmethod
    def unread(cls) -> Self:
        """Return sums that match no real bucket, except with probability 2⁻¹²⁸."""
        return cls(b"\xff" * (_COUNT + BUCKETS * _WIDTH))

    @property
    def count(self) -> int:
        """The number of people."""
        return int.from_bytes(self._content[:_COUNT], "big")

    @count.setter
    def count(self, count: int) -> None:
        self._content[:_COUNT] = count.to_bytes(_COUNT, "big")

    def content(self) -> bytes:
        """Return the bytes to seal."""
        return bytes(self._content)

    def agrees(self, bucket: int, digests: Iterable[int]) -> bool:
        """Check rows, by their digests, against the sum of their bucket."""
        return (sum(digests) % _MODULUS).to_bytes(_WIDTH, "big") == self._content[_place(bucket)]

    def add(self, bucket: int, digest: int) -> None:
        """Add the digest of a new row; a negative digest removes a row."""
        place = _place(bucket)
        total = (int.from_bytes(self._content[place], "big") + digest) % _MODULUS
        self._content[place] = total.to_bytes(_WIDTH, "big")

    def differing(self, other: Members, most: int) -> range:
        """Return the first consecutive buckets, at most ``most``, whose sums differ from the other ones."""
        if self._content == other._content:
            return range(0)
        differ = [self._content[place] != other._content[place] for place in map(_place, range(BUCKETS))]
        start = differ.index(True) if True in differ else BUCKETS
        stop = next((bucket for bucket in range(start, BUCKETS) if not differ[bucket]), BUCKETS)
        return range(start, min(stop, start + most))

    def take(self, other: Members, buckets: range) -> None:
        """Copy the sums of some buckets, and the number of people."""
        self._content[:_COUNT] = other._content[:_COUNT]
        for bucket in buckets:
            self._content[_place(bucket)] = other._content[_place(bucket)]


@dataclass
class StoredCollection:
    """A row of the table ``collections``, with its members."""

    id: int
    name: str
    created: str
    seed: bytes | None
    sealed: bytes
    members: Members
    changed: bool = False

    def seal(self, key: bytes) -> None:
        """Seal the members for the file."""
        self.sealed = seal(key, self.members.content(), "members", self.id)

    @classmethod
    def unseal(cls, key: bytes, row: tuple[Any, ...]) -> Self | None:
        """Return a row of the file with its members; None if another key sealed them."""
        content = unseal(key, row[4], "members", row[0])
        if content is None:
            return None
        number, name, created, seed, sealed = row
        return cls(number, name, created, seed, sealed, Members(content))


@dataclass(frozen=True)
class State:
    """The state of a gallery after ``number`` changes: the digest over its collections, and its predecessor."""

    number: int
    previous: bytes
    root: bytes
    sealed: bytes

    @property
    def digest(self) -> bytes:
        """The digest that identifies this state for the counter; it is unique because sealing is randomised."""
        return hashlib.sha256(self.sealed).digest()

    @classmethod
    def seal(cls, key: bytes, number: int, previous: bytes, root: bytes) -> Self:
        """Return a state with its bytes for the file."""
        return cls(number, previous, root, seal(key, number.to_bytes(8, "big") + previous + root, "state"))

    @classmethod
    def unseal(cls, key: bytes, sealed: object) -> Self | None:
        """Read a state; return None if another key sealed it."""
        content = unseal(key, sealed, "state")
        if content is None or not isinstance(sealed, bytes):
            return None
        number, previous, root = struct.unpack(f">Q{_DIGEST}s{_DIGEST}s", content)
        return cls(number, previous, root, sealed)


@dataclass
class GalleryContents:
    """Everything that a state authenticates: models (number and size by digest) and collections by name."""

    state: State
    models: dict[str, tuple[int, int]] = field(default_factory=dict)
    collections: dict[str, StoredCollection] = field(default_factory=dict)

    def root(self, key: bytes, secret: bytes) -> bytes:
        """Return the keyed digest over everything but the people, whose sums are in the collections."""
        # Sort by the row numbers, which SQLite always stores as integers.
        models = [
            value
            for digest, (number, size) in sorted(self.models.items(), key=lambda item: item[1][0])
            for value in (number, digest, size)
        ]
        collections = [
            value
            for row in sorted(self.collections.values(), key=lambda row: row.id)
            for value in (row.id, row.name, row.created, row.seed, row.sealed)
        ]
        return digest_of(key, "root", secret, len(self.models), *models, *collections)


def _place(bucket: int) -> slice:
    start = _COUNT + bucket * _WIDTH
    return slice(start, start + _WIDTH)
