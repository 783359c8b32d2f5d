"""The open file of a gallery: authenticate every row, together with its membership in a bucket, before it is used.

A read begins with the state, which authenticates models, collections and their sums; people are then read by bucket and
checked against its sum. A write changes rows and sums, seals the next state, commits, and advances the counter.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
import threading
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from fedvisage.base.errors import RunFailed, UserError, choice_hint
from fedvisage.device.gallery import file
from fedvisage.device.gallery.counter import Counter
from fedvisage.device.gallery.file import PATIENCE, OwnerKeys, UnknownName, WrongKey
from fedvisage.device.gallery.membership import (
    BUCKETS,
    GalleryContents,
    State,
    StoredCollection,
    StoredFace,
    StoredPerson,
    bounds_of,
    bucket_of,
    row_digest,
    whole_digest,
)
from fedvisage.device.gallery.records import ID, Person, normalise_name
from fedvisage.device.gallery.templates import Form, Plain, Renewable

CHANGED = "was changed without its key; restore the file from a backup"

AT_ONCE = 4000
"""People read from the file per transaction."""

_PEOPLE = "SELECT id, tag, key, name, created FROM persons WHERE collection = ? AND tag >= ? AND tag < ?"
_FACES = (
    "SELECT number, faces.id, person, digest, template, faces.created, pad_score FROM persons"
    " JOIN faces ON person = persons.id JOIN models ON model = models.id"
    " WHERE collection = ? AND tag >= ? AND tag < ? ORDER BY number"
)


class GallerySecret(NamedTuple):
    """The secret of a gallery, as sealed in its file, and the keys derived from it and from the owner's key."""

    salt: bytes
    sealed: bytes
    owned: OwnerKeys
    tagging: bytes
    counting: bytes


def open_secret(database: sqlite3.Connection, path: Path, key: bytes) -> GallerySecret:
    """Unseal the secret of a gallery with its owner's key."""
    meta = dict(database.execute("SELECT name, value FROM meta"))
    salt, sealed = meta.get("salt"), meta.get("secret")
    if not isinstance(salt, bytes) or not isinstance(sealed, bytes):
        raise UserError(str(path), CHANGED)
    owned = OwnerKeys.of(key, salt)
    inner = file.unseal(owned.wrapping, sealed, "secret")
    if inner is None:
        raise WrongKey(str(path), "cannot be opened with this key; give the key that it was made with or rotated to")
    tagging, counting = (file.derive_key(inner, salt, purpose) for purpose in ("names", "counter"))
    return GallerySecret(salt, sealed, owned, tagging, counting)


class AuthenticatedFile:
    """The open file of a gallery, with operations on single rows in the open transaction; threads may share it."""

    def __init__(self, path: Path, key: bytes, *, counters: Path | None = None, patience: float = PATIENCE) -> None:
        """Open a file with its owner's key.

        ``counters`` is the folder of the counter that detects older copies of the file; without it they are not
        detected. ``patience`` is the number of seconds to wait while another process holds the file.
        """
        self.path, self._patience = path, patience
        self._lock, self._changing = threading.RLock(), False
        self._contents: GalleryContents | None = None
        self._database = file.open_file(path, patience)
        try:
            with file.errors_in_one_line(path):
                self._salt, self._secret, self._owned, self._tagging, self._counting = open_secret(
                    self._database, path, key
                )
            self._counter = None if counters is None else self._counter_in(counters)
            self._catch_up()
        except BaseException:  # close the file on any failure
            self._database.close()
            raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close."""
        self.close()

    # Transactions, and the state that they begin and end with.

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Read the file in one transaction, after a check of its state."""
        with self._lock, file.errors_in_one_line(self.path):
            if self._database.in_transaction:
                yield self._database
                return
            self._database.execute("BEGIN")
            try:
                self._check_state()
                yield self._database
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")

    @contextmanager
    def _writing(self, number: int = 0) -> Iterator[sqlite3.Connection]:
        """Change the file completely or not at all; the new state has at least this number.

        A change within another one is part of it.
        """
        with self._lock:
            if self._changing:
                yield self._database
                return
            self._changing = True
            try:
                hold = nullcontext() if self._counter is None else self._counter.hold()
                with hold, file.errors_in_one_line(self.path):
                    self._database.execute("BEGIN IMMEDIATE")
                    try:
                        self._check_state()
                        yield self._database
                        state = self._next_state(number)
                        self._database.execute("COMMIT")
                    except BaseException:  # undo the change on any failure
                        self._contents = None
                        if self._database.in_transaction:
                            self._database.execute("ROLLBACK")
                        raise
                    if self._counter is not None:
                        self._counter.count(state)
            finally:
                self._changing = False

    def _counter_in(self, folder: Path) -> Counter:
        return Counter(folder, self.path, self._counting, self._patience)

    def _catch_up(self) -> None:
        """Count a state that a process committed before it was killed, if the counter can be written."""
        with self._reading():
            state = self._now.state
        if self._counter is None or ((mark := self._counter.read()) and mark.number == state.number):
            return
        with suppress(UserError, RunFailed), self._counter.hold(), self._reading():
            self._counter.count(self._now.state)

    @property
    def _now(self) -> GalleryContents:
        """The content of the file, as of the open transaction."""
        if self._contents is None:
            raise UserError(str(self.path), CHANGED)
        return self._contents

    def _check_state(self) -> None:
        """Authenticate models and collections, unless they are unchanged since the last check."""
        meta = dict(self._database.execute("SELECT name, value FROM meta"))
        if meta.get("secret") != self._secret:
            raise WrongKey(str(self.path), "was rotated to another key meanwhile; open it again with that key")
        if self._contents is None or self._contents.state.sealed != meta.get("state"):
            state = State.unseal(self._owned.sums, meta.get("state"))
            if state is None:
                raise UserError(str(self.path), CHANGED)
            contents = GalleryContents(state)
            for number, digest, size in self._database.execute("SELECT id, digest, size FROM models"):
                contents.models[digest] = (number, size)
            for row in self._database.execute("SELECT id, name, created, seed, members FROM collections"):
                collection = StoredCollection.unseal(self._owned.sums, row)
                if collection is None:
                    raise UserError(str(self.path), f"collection {row[1]} {CHANGED}")
                contents.collections[collection.name] = collection
            if contents.root(self._owned.rows, self._secret) != state.root:
                raise UserError(str(self.path), f"a collection, or a model, {CHANGED}")
            self._contents = contents
        if self._counter is not None:
            self._counter.check(self._contents.state)

    def _next_state(self, number: int) -> State:
        """Seal the changes, and write the resulting state."""
        contents = self._now
        for collection in contents.collections.values():
            if collection.changed:
                collection.seal(self._owned.sums)
                change = "UPDATE collections SET members = ? WHERE id = ?"
                self._database.execute(change, (collection.sealed, collection.id))
                collection.changed = False
        number = max(number, contents.state.number + 1)
        root = contents.root(self._owned.rows, self._secret)
        contents.state = State.seal(self._owned.sums, number, contents.state.digest, root)
        self._database.execute("UPDATE meta SET value = ? WHERE name = 'state'", (contents.state.sealed,))
        return contents.state

    # Collections and their people, as rows.

    def _collection(self, name: str) -> StoredCollection:
        # Collections of earlier versions may have names that are not in normal form.
        collection = self._now.collections.get(normalise_name(name)) or self._now.collections.get(name)
        if collection is None:
            raise UnknownName(
                name, f"is not a collection of this gallery{choice_hint(name, list(self._now.collections)[:20])}"
            )
        return collection

    def _form(self, collection: StoredCollection, size: int) -> Form:
        """Return the storage form of a collection's templates."""
        if collection.seed is None:
            return Plain(size)
        return Renewable(size, self._unwrap(collection.seed, "seed", collection.name))

    def _people_of(self, collection: StoredCollection, buckets: range) -> list[list[StoredPerson]]:
        """Return the people of some buckets, after a check that the owner of the key put exactly these there."""
        bounds = (collection.id, *bounds_of(buckets))
        faces = defaultdict[str, list[StoredFace]](list)
        for row in self._database.execute(_FACES, bounds):
            faces[row[2]].append(StoredFace(*row))
        people: list[list[StoredPerson]] = [[] for _ in buckets]
        for row in self._database.execute(_PEOPLE, bounds):
            person = StoredPerson(*row)._replace(faces=tuple(faces.get(row[0], ())))
            index = bucket_of(person.tag) - buckets.start
            if not 0 <= index < len(people):
                raise UserError(str(self.path), f"collection {collection.name} {CHANGED}")
            people[index].append(person)
        for bucket, members in zip(buckets, people, strict=True):
            digests = (whole_digest(self._owned.rows, collection.id, person) for person in members)
            if not collection.members.agrees(bucket, digests):
                raise UserError(str(self.path), f"collection {collection.name} {CHANGED}")
        return people

    def _everybody_of(self, collection: StoredCollection) -> Iterator[tuple[int, list[StoredPerson]]]:
        """Yield all buckets with their people."""
        step = step_of(collection)
        for start in range(0, BUCKETS, step):
            buckets = range(start, min(start + step, BUCKETS))
            yield from zip(buckets, self._people_of(collection, buckets), strict=True)

    def _find_person(self, collection: StoredCollection, wanted: str) -> StoredPerson | None:
        """Return a person by name or id, from the bucket that must contain them."""
        # People of earlier versions may have names that are not in normal form.
        for name in dict.fromkeys((normalise_name(wanted), wanted, unicodedata.normalize("NFD", wanted))):
            tag = file.tag_of(self._tagging, collection.id, name)
            if re.fullmatch(ID, name):
                # This row is only a hint to the bucket: it is not authenticated yet.
                query = "SELECT tag FROM persons WHERE id = ? AND collection = ?"
                (tag,) = self._database.execute(query, (name, collection.id)).fetchone() or (tag,)
            if not isinstance(tag, bytes):
                raise UserError(str(self.path), f"{name} {CHANGED}")
            start = bucket_of(tag)
            (people,) = self._people_of(collection, range(start, start + 1))
            for candidate in people:
                if candidate.tag == tag or candidate.id == name:
                    return candidate
        return None

    def _require_person(self, collection: StoredCollection, wanted: str) -> StoredPerson:
        stored = self._find_person(collection, wanted)
        if stored is None:
            raise UnknownName(wanted, f"nobody with this name or id is enrolled in {collection.name}")
        return stored

    def _owner(self, collection: StoredCollection, face: str) -> StoredPerson:
        (person,) = self._database.execute("SELECT person FROM faces WHERE id = ?", (face,)).fetchone() or (None,)
        stored = self._find_person(collection, person) if isinstance(person, str) else None
        if stored is None or all(row.id != face for row in stored.faces):
            raise UnknownName(face, f"no face with this id is enrolled in {collection.name}")
        return stored

    # Changes of rows, with their digests.

    def _add_model(self, digest: str, size: int) -> None:
        """Add a model unless it exists; all its embeddings have one size."""
        _, expected = self._now.models.get(digest, (0, size))
        if expected != size:
            raise UserError("embedding", f"has {size} numbers, but those of this model in the gallery have {expected}")
        if digest not in self._now.models:
            query = "INSERT INTO models (digest, size) VALUES (?, ?)"
            self._now.models[digest] = (self._database.execute(query, (digest, size)).lastrowid or 0, size)

    def _add_person(self, collection: StoredCollection, name: str) -> StoredPerson:
        key, person = file.new_key(), f"p_{secrets.token_hex(8)}"
        stored = StoredPerson(
            person,
            file.tag_of(self._tagging, collection.id, name),
            file.seal(self._owned.wrapping, key, "key", person),
            file.seal(key, name.encode(), "name", person),
            now(),
        )
        self._put_person(collection, stored)
        return stored

    def _put_person(self, collection: StoredCollection, person: StoredPerson) -> None:
        query = "INSERT INTO persons (collection, id, tag, key, name, created) VALUES (?, ?, ?, ?, ?, ?)"
        self._database.execute(query, (collection.id, *person[:5]))
        self._count(collection, person.tag, row_digest(self._owned.rows, collection.id, person))
        collection.members.count += 1

    def _put_face(self, collection: StoredCollection, person: StoredPerson, face: StoredFace) -> None:
        """Add a face; one without a number gets the next one."""
        query = "INSERT INTO faces VALUES (?, ?, ?, (SELECT id FROM models WHERE digest = ?), ?, ?, ?)"
        number = self._database.execute(query, (face.number or None, *face[1:])).lastrowid or 0
        digest = row_digest(self._owned.rows, collection.id, face._replace(number=number))
        self._count(collection, person.tag, digest)

    def _drop_faces(self, collection: StoredCollection, person: StoredPerson, faces: Sequence[StoredFace]) -> None:
        for face in faces:
            self._database.execute("DELETE FROM faces WHERE number = ?", (face.number,))
            self._count(collection, person.tag, -row_digest(self._owned.rows, collection.id, face))

    def _count(self, collection: StoredCollection, tag: bytes, digest: int) -> None:
        collection.members.add(bucket_of(tag), digest)
        collection.changed = True

    # Sealed values.

    def _open_person(self, stored: StoredPerson) -> Person:
        key = self._unwrap(stored.key, "key", stored.id)
        return Person(stored.id, self._unseal(key, stored.name, "name", stored.id).decode(), stored.created)

    def _templates(self, stored: StoredPerson) -> list[bytes]:
        key = self._unwrap(stored.key, "key", stored.id)
        return [self._unseal(key, face.template, "face", face.id, stored.id, face.model) for face in stored.faces]

    def _unwrap(self, sealed: object, *record: object) -> bytes:
        return self._unseal(self._owned.wrapping, sealed, *record)

    def _unseal(self, key: bytes, sealed: object, *record: object) -> bytes:
        """Decrypt a record; refuse one that was changed or moved, and name it in the error."""
        content = file.unseal(key, sealed, *record)
        if content is None:
            raise UserError(str(self.path), f"{' '.join(map(str, record[:2]))} {CHANGED}")
        return content


def step_of(collection: StoredCollection) -> int:
    """Return how many buckets of a collection to read at once."""
    return max(1, min(BUCKETS, BUCKETS * AT_ONCE // max(1, collection.members.count)))


def now() -> str:
    """Return the current time for a row."""
    return datetime.now(UTC).isoformat(timespec="seconds")
