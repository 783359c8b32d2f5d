"""The records of a gallery: collections, people and faces in one encrypted file.

Each person has a key, wrapped by the owner's key, that seals name and templates. Names are found by their keyed hashes.
Deleting a person's row deletes the key, and with it access to everything that it seals.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.device.gallery import file
from fedvisage.device.gallery.authenticated import AuthenticatedFile, now, step_of
from fedvisage.device.gallery.counter import CountedState, Counter
from fedvisage.device.gallery.file import NameTaken
from fedvisage.device.gallery.membership import (
    BUCKETS,
    FIRST,
    GalleryContents,
    Members,
    State,
    StoredCollection,
    StoredFace,
    StoredPerson,
    whole_digest,
)
from fedvisage.device.gallery.records import COLLECTION, ID, Collection, Face, Person, checked_name, new_name
from fedvisage.metrics.similarity import Features, normalise

SIZES = range(2, 4097)
"""Allowed lengths of an embedding."""


class GalleryRecords(AuthenticatedFile):
    """The open file of a gallery; threads may share it."""

    @classmethod
    def create(cls, path: Path, key: bytes, *, counters: Path | None = None) -> Self:
        """Create an empty gallery, with its counter in a folder, and open it."""
        salt, inner = secrets.token_bytes(16), file.new_key()
        owned = file.OwnerKeys.of(key, salt)
        secret = file.seal(owned.wrapping, inner, "secret")
        state = first_state(owned, secret)
        rows = {"salt": salt, "secret": secret, "state": state.sealed}
        if counters is None:
            file.create_file(path, rows)
            return cls(path, key)
        counter = Counter(counters, path, file.derive_key(inner, salt, "counter"), 0)
        if path.exists() or counter.path.exists():
            existing = path if path.exists() else counter.path
            raise NameTaken(str(existing), "exists already; a gallery or its counter is never overwritten")
        counter.begin(CountedState(0, state.digest))
        try:
            file.create_file(path, rows)
        except (UserError, RunFailed):
            counter.remove()
            raise
        return cls(path, key, counters=counters)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes of a block together, or none; no other thread or process makes one meanwhile."""
        with self._writing():
            yield

    def add_collection(self, name: str = COLLECTION, *, renewable: bool = False) -> Collection:
        """Add an empty collection; one with renewable templates gets its own seed."""
        name = new_name(name, "collection")
        seed = file.seal(self._owned.wrapping, file.new_key(), "seed", name) if renewable else None
        with self._writing() as write:
            if name in self._now.collections:
                raise NameTaken(name, "is already a collection; choose another name")
            query = "INSERT INTO collections (name, created, seed, members) VALUES (?, ?, ?, x'')"
            created = now()
            number = write.execute(query, (name, created, seed)).lastrowid or 0
            added = StoredCollection(number, name, created, seed, b"", Members(), changed=True)
            self._now.collections[name] = added
        return _describe_collection(added)

    def remove_collection(self, name: str) -> None:
        """Remove a collection with all its people."""
        with self._writing() as write:
            collection = self._collection(name)
            write.execute("DELETE FROM collections WHERE id = ?", (collection.id,))
            del self._now.collections[collection.name]

    def collections(self) -> list[Collection]:
        """Return all collections, sorted by name."""
        with self._reading():
            return [_describe_collection(collection) for _, collection in sorted(self._now.collections.items())]

    def collection(self, name: str) -> Collection:
        """Return one collection."""
        with self._reading():
            return _describe_collection(self._collection(name))

    def enrol(
        self, collection: str, name: str, embeddings: Features, model: str, pad_scores: Sequence[float | None] = ()
    ) -> tuple[Person, list[Face], int]:
        """Add faces (one per row) to a person, who is created if the name is new.

        Templates of another model that the person had are replaced; the last value returned is their number.
        """
        name = checked_name(name, "person")
        if embeddings.ndim != 2 or not len(embeddings) or embeddings.shape[1] not in SIZES:
            raise UserError("embedding", f"must have {SIZES[0]} to {SIZES[-1]} numbers, got {embeddings.shape}")
        if not (np.isfinite(embeddings).all() and embeddings.any(axis=1).all()):
            raise UserError("embedding", "is zero, or has a value that is not a number; check the model")
        scores = [None if score is None else float(score) for score in pad_scores] or [None] * len(embeddings)
        if any(score is not None and not math.isfinite(score) for score in scores):
            raise UserError("pad score", "is not a finite number; check the model")
        with self._writing():
            row = self._collection(collection)
            form = self._form(row, embeddings.shape[1])
            self._add_model(model, embeddings.shape[1])
            stored = self._find_person(row, name) or self._add_person(row, new_name(name, "person"))
            person, key = self._open_person(stored), self._unwrap(stored.key, "key", stored.id)
            # Templates of different models cannot be compared, so a person keeps those of one model only.
            old = [face for face in stored.faces if face.model != model]
            self._drop_faces(row, stored, old)
            faces = [Face(f"f_{secrets.token_hex(8)}", person.id, model, now(), score) for score in scores]
            for face, embedding in zip(faces, normalise(embeddings), strict=True):
                sealed = file.seal(key, form.make_template(embedding), "face", face.id, person.id, model)
                face_row = StoredFace(0, face.id, person.id, model, sealed, face.created, face.pad_score)
                self._put_face(row, stored, face_row)
        return person, faces, len(old)

    def people(self, collection: str) -> list[Person]:
        """Return all people of a collection, sorted by name."""
        return [person for person, _ in self.everybody(collection)]

    def everybody(self, collection: str) -> list[tuple[Person, list[Face]]]:
        """Return all people of a collection, sorted by name, with their faces in order of enrolment."""
        people, start = list[tuple[Person, list[Face]]](), 0
        while start < BUCKETS:  # one transaction per part, so that other processes can write in between
            with self._reading():
                row = self._collection(collection)
                buckets = range(start, min(start + step_of(row), BUCKETS))
                for members in self._people_of(row, buckets):
                    people += [(self._open_person(item), _faces(item)) for item in members]
            start = buckets.stop
        return sorted(people, key=lambda item: item[0].name)

    def has(self, collection: str, name: str) -> bool:
        """Return whether a person of this name is enrolled, by its keyed hash."""
        with self._reading():
            return not re.fullmatch(ID, name) and self._find_person(self._collection(collection), name) is not None

    def person(self, collection: str, wanted: str) -> Person:
        """Return a person by id or name."""
        with self._reading():
            return self._open_person(self._require_person(self._collection(collection), wanted))

    def faces(self, collection: str, wanted: str) -> list[Face]:
        """Return a person's faces in order of enrolment."""
        with self._reading():
            return _faces(self._require_person(self._collection(collection), wanted))

    def owner(self, collection: str, face: str) -> Person:
        """Return the person of a face."""
        with self._reading():
            return self._open_person(self._owner(self._collection(collection), face))

    def remove(self, collection: str, wanted: str) -> Person:
        """Delete a person: key, name and templates are overwritten with zeros in the file."""
        with self._writing() as write:
            row = self._collection(collection)
            stored = self._require_person(row, wanted)
            person = self._open_person(stored)
            write.execute("DELETE FROM persons WHERE id = ?", (stored.id,))
            self._count(row, stored.tag, -whole_digest(self._owned.rows, row.id, stored))
            row.members.count -= 1
        return person

    def remove_face(self, collection: str, face: str) -> Person:
        """Delete one face, and return its person."""
        with self._writing():
            row = self._collection(collection)
            stored = self._owner(row, face)
            self._drop_faces(row, stored, [candidate for candidate in stored.faces if candidate.id == face])
            return self._open_person(stored)

    def compact(self) -> None:
        """Rewrite the file without the space of deleted rows; the time grows with the size of the file."""
        with self._lock, file.errors_in_one_line(self.path):
            self._database.execute("VACUUM")

    def check(self) -> int:
        """Check all members of all collections, and decrypt all names and templates; return the number of people."""
        people = 0
        with self._reading():
            for collection in self._now.collections.values():
                for _, members in self._everybody_of(collection):
                    people += len(members)
                    for stored in members:
                        self._open_person(stored)
                        self._templates(stored)
        return people

    def accept_state(self, counters: Path) -> int:
        """Record the file's present state as the newest one, creating the counter if necessary; return its number.

        The owner calls this after restoring an older copy on purpose. States after that copy are refused from then on.
        """
        counter = self._counter_in(counters)
        try:
            counted = counter.read() is not None
        except UserError:
            counted = False  # restart a damaged counter
        if not counted:
            counter.begin(CountedState(0, FIRST))
        with counter.hold():
            mark = counter.read()
            with self._writing(mark.number + 1 if mark else 0):
                self.check()
            counter.count(self._now.state)
        return self._now.state.number

    def turn_key(self, new: bytes, counters: Path | None = None) -> int:
        """Wrap all people's keys with a new owner's key, all or none; templates stay. Return the number of people.

        A holder of the old key and an old copy of the file can still read that copy. The counter moves to the folder of
        the new key, if one is given.
        """
        before, moved = self._counter, None
        if counters is not None and before is not None and counters.absolute() != before.folder.absolute():
            moved = self._counter_in(counters)
            if (mark := before.read()) is not None:
                moved.begin(mark)
        owned, secret = self._owned, self._secret
        try:
            with self._writing():
                people = self._turn(file.OwnerKeys.of(new, self._salt))
            owned, secret = self._owned, self._secret
        finally:
            self._owned, self._secret = owned, secret  # restores the old ones if the change failed
        if moved is not None and before is not None:
            self._counter = moved
            self._catch_up()
            before.remove()
        return people

    def _turn(self, owned: file.OwnerKeys) -> int:
        """Seal and authenticate everything again, in the open transaction."""
        for collection in self._now.collections.values():
            members = Members()
            for bucket, people in self._everybody_of(collection):
                for stored in people:
                    key = file.seal(owned.wrapping, self._unwrap(stored.key, "key", stored.id), "key", stored.id)
                    self._database.execute("UPDATE persons SET key = ? WHERE id = ?", (key, stored.id))
                    members.add(bucket, whole_digest(owned.rows, collection.id, stored._replace(key=key)))
            members.count = collection.members.count
            if collection.seed is not None:
                record = ("seed", collection.name)
                collection.seed = file.seal(owned.wrapping, self._unwrap(collection.seed, *record), *record)
                change = "UPDATE collections SET seed = ? WHERE id = ?"
                self._database.execute(change, (collection.seed, collection.id))
            collection.members, collection.changed = members, True
        self._secret = file.seal(owned.wrapping, self._unwrap(self._secret, "secret"), "secret")
        self._database.execute("UPDATE meta SET value = ? WHERE name = 'secret'", (self._secret,))
        self._owned = owned
        return sum(collection.members.count for collection in self._now.collections.values())


def first_state(owned: file.OwnerKeys, secret: bytes) -> State:
    """Return the state of an empty gallery."""
    root = GalleryContents(State(0, FIRST, b"", b"")).root(owned.rows, secret)
    return State.seal(owned.sums, 0, FIRST, root)


def _describe_collection(collection: StoredCollection) -> Collection:
    return Collection(collection.name, collection.created, collection.members.count, collection.seed is not None)


def _faces(stored: StoredPerson) -> list[Face]:
    return [Face(face.id, face.person, face.model, face.created, face.score) for face in stored.faces]
