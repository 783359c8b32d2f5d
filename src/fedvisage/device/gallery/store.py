"""The records of a gallery: collections, people and faces in one file, encrypted.

A person has a key of their own, wrapped by the owner's; name and templates are sealed by it. A name is found by its
keyed hash. Deleting the row of a person deletes the key with all that it opens.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.device.gallery import file
from fedvisage.device.gallery.authenticated import step_of
from fedvisage.device.gallery.counter import Counter, Mark
from fedvisage.device.gallery.file import Exists
from fedvisage.device.gallery.membership import (
    BUCKETS,
    FIRST,
    Contents,
    Members,
    State,
    StoredCollection,
    StoredFace,
    StoredPerson,
    whole_digest,
)
from fedvisage.device.gallery.records import COLLECTION, ID, Collection, Face, Person, checked_name
from fedvisage.device.gallery.rows import Rows, now
from fedvisage.metrics.similarity import Features, unit

SIZES = range(2, 4097)
"""Numbers that an embedding may have."""


class Records(Rows):
    """A gallery's file, open; threads may share it."""

    @classmethod
    def create(cls, path: Path, key: bytes, *, counters: Path | None = None) -> Self:
        """Make an empty gallery, with its counter in a folder, and open it."""
        salt, inner = secrets.token_bytes(16), file.new_key()
        owned = file.Owned.of(key, salt)
        secret = file.seal(owned.wrapping, inner, "secret")
        state = first_state(owned, secret)
        rows = {"salt": salt, "secret": secret, "state": state.sealed}
        if counters is None:
            file.create_file(path, rows)
            return cls(path, key)
        counter = Counter(counters, path, file.derived(inner, salt, "counter"), 0)
        if path.exists() or counter.path.exists():
            taken = path if path.exists() else counter.path
            raise Exists(str(taken), "exists already; a gallery, or its counter, is never written over")
        counter.begin(Mark(0, state.digest))
        try:
            file.create_file(path, rows)
        except (UserError, RunFailed):
            counter.remove()
            raise
        return cls(path, key, counters=counters)

    def add_collection(self, name: str = COLLECTION, *, renewable: bool = False) -> Collection:
        """Add an empty collection; one with renewable templates gets a seed of its own."""
        checked_name(name, "collection")
        seed = file.seal(self._owned.wrapping, file.new_key(), "seed", name) if renewable else None
        with self._writing() as write:
            if name in self._now.collections:
                raise Exists(name, "is a collection already; choose another name")
            query = "INSERT INTO collections (name, created, seed, members) VALUES (?, ?, ?, x'')"
            created = now()
            number = write.execute(query, (name, created, seed)).lastrowid or 0
            added = StoredCollection(number, name, created, seed, b"", Members(), changed=True)
            self._now.collections[name] = added
        return _shown(added)

    def remove_collection(self, name: str) -> None:
        """Remove a collection with everybody in it."""
        with self._writing() as write:
            number = self._collection(name).id
            write.execute("DELETE FROM collections WHERE id = ?", (number,))
            del self._now.collections[name]
        self._left(number)

    def collections(self) -> list[Collection]:
        """Return all collections by their names."""
        with self._reading():
            return [_shown(one) for _, one in sorted(self._now.collections.items())]

    def collection(self, name: str) -> Collection:
        """Return one collection."""
        with self._reading():
            return _shown(self._collection(name))

    def enrol(
        self, collection: str, name: str, embeddings: Features, model: str, pad_scores: Sequence[float | None] = ()
    ) -> tuple[Person, list[Face], int]:
        """Add faces (a row each) to a person, who is new if nobody has the name.

        Templates of another model that the person had are replaced; the last number says how many.
        """
        checked_name(name, "person")
        if embeddings.ndim != 2 or not len(embeddings) or embeddings.shape[1] not in SIZES:
            raise UserError("embedding", f"must have {SIZES[0]} to {SIZES[-1]} numbers, got {embeddings.shape}")
        if not (np.isfinite(embeddings).all() and embeddings.any(axis=1).all()):
            raise UserError("embedding", "is zero, or has a value that is no number; look at the model")
        scores = [None if one is None else float(one) for one in pad_scores] or [None] * len(embeddings)
        if any(score is not None and not math.isfinite(score) for score in scores):
            raise UserError("pad score", "is not a finite number; check the model")
        with self._writing():
            place = self._collection(collection)
            form = self._form(place, embeddings.shape[1])
            self._add_model(model, embeddings.shape[1])
            stored = self._stored(place, name) or self._add_person(place, name)
            person, key = self._opened_person(stored), self._unwrapped(stored.key, "key", stored.id)
            old = [face for face in stored.faces if face.model != model]
            self._drop_faces(place, stored, old)
            faces = [Face(f"f_{secrets.token_hex(8)}", person.id, model, now(), score) for score in scores]
            for face, embedding in zip(faces, unit(embeddings), strict=True):
                sealed = file.seal(key, form.kept(embedding), "face", face.id, person.id, model)
                row = StoredFace(0, face.id, person.id, model, sealed, face.created, face.pad_score)
                self._put_face(place, stored, row)
        return person, faces, len(old)

    def people(self, collection: str) -> list[Person]:
        """Return everybody of a collection by name."""
        return [person for person, _ in self.everybody(collection)]

    def everybody(self, collection: str) -> list[tuple[Person, list[Face]]]:
        """Return everybody of a collection by name, with their faces in the order of their enrolment."""
        people, start = list[tuple[Person, list[Face]]](), 0
        while start < BUCKETS:  # a transaction for each of several parts, so that other processes can write in between
            with self._reading():
                place = self._collection(collection)
                buckets = range(start, min(start + step_of(place), BUCKETS))
                for some in self._people_of(place, buckets):
                    people += [(self._opened_person(one), _faces(one)) for one in some]
            start = buckets.stop
        return sorted(people, key=lambda one: one[0].name)

    def has(self, collection: str, name: str) -> bool:
        """Check whether somebody of a name is enrolled, by its keyed hash."""
        with self._reading():
            return not re.fullmatch(ID, name) and self._stored(self._collection(collection), name) is not None

    def person(self, collection: str, wanted: str) -> Person:
        """Return a person by id, or by name."""
        with self._reading():
            return self._opened_person(self._wanted(self._collection(collection), wanted))

    def faces(self, collection: str, wanted: str) -> list[Face]:
        """Return a person's faces in the order of their enrolment."""
        with self._reading():
            return _faces(self._wanted(self._collection(collection), wanted))

    def owner(self, collection: str, face: str) -> Person:
        """Return whose a face is."""
        with self._reading():
            return self._opened_person(self._owner(self._collection(collection), face))

    def remove(self, collection: str, wanted: str) -> Person:
        """Delete a person: key, name and templates are overwritten with zeros in the file."""
        with self._writing() as write:
            place = self._collection(collection)
            stored = self._wanted(place, wanted)
            person = self._opened_person(stored)
            write.execute("DELETE FROM persons WHERE id = ?", (stored.id,))
            self._count(place, stored.tag, -whole_digest(self._owned.rows, place.id, stored))
            place.members.count -= 1
        return person

    def remove_face(self, collection: str, face: str) -> Person:
        """Delete one face, and return whose it was."""
        with self._writing():
            place = self._collection(collection)
            stored = self._owner(place, face)
            self._drop_faces(place, stored, [one for one in stored.faces if one.id == face])
            return self._opened_person(stored)

    def compact(self) -> None:
        """Write the file anew without the room of what was deleted; the larger the file, the longer it takes."""
        with self._lock, file.said_plainly(self.path):
            self._opened.execute("VACUUM")

    def check(self) -> int:
        """Check every record: who belongs to which collection, and that names and templates open. Return how many."""
        people = 0
        with self._reading():
            for collection in self._now.collections.values():
                for _, some in self._everybody_of(collection):
                    people += len(some)
                    for stored in some:
                        self._opened_person(stored)
                        self._templates(stored)
        return people

    def accept_state(self, counters: Path) -> int:
        """Make the file as it is the newest one for its counter, which is made if it is not there; return its number.

        The owner calls this after an older copy was put back on purpose. States after that copy are refused then.
        """
        counter = self._counter_in(counters)
        try:
            counted = counter.read() is not None
        except UserError:
            counted = False  # a damaged counter is begun again
        if not counted:
            counter.begin(Mark(0, FIRST))
        with counter.held():
            mark = counter.read()
            with self._writing(mark.number + 1 if mark else 0):
                self.check()
            counter.count(self._now.state)
        return self._now.state.number

    def turn_key(self, new: bytes, counters: Path | None = None) -> int:
        """Wrap everybody's key with a new owner's key, all or none; templates stay. Return how many people there are.

        Who has the old key and an old copy of the file can still read that copy. The counter moves to the folder of the
        new key, if one is named.
        """
        before, moved = self._counter, None
        if counters is not None and before is not None and counters.absolute() != before.folder.absolute():
            moved = self._counter_in(counters)
            if (mark := before.read()) is not None:
                moved.begin(mark)
        owned, secret = self._owned, self._secret
        try:
            with self._writing():
                people = self._turn(file.Owned.of(new, self._salt))
            owned, secret = self._owned, self._secret
        finally:
            self._owned, self._secret = owned, secret  # the old ones, if nothing was changed
        if moved is not None and before is not None:
            self._counter = moved
            self._catch_up()
            before.remove()
        return people

    def _left(self, collection: int) -> None:
        """Take notice that a collection was removed by this object."""

    def _turn(self, owned: file.Owned) -> int:
        """Seal and authenticate everything anew, in the transaction that is open."""
        for collection in self._now.collections.values():
            members = Members()
            for bucket, some in self._everybody_of(collection):
                for stored in some:
                    key = file.seal(owned.wrapping, self._unwrapped(stored.key, "key", stored.id), "key", stored.id)
                    self._opened.execute("UPDATE persons SET key = ? WHERE id = ?", (key, stored.id))
                    members.add(bucket, whole_digest(owned.rows, collection.id, stored._replace(key=key)))
            members.count = collection.members.count
            if collection.seed is not None:
                record = ("seed", collection.name)
                collection.seed = file.seal(owned.wrapping, self._unwrapped(collection.seed, *record), *record)
                change = "UPDATE collections SET seed = ? WHERE id = ?"
                self._opened.execute(change, (collection.seed, collection.id))
            collection.members, collection.changed = members, True
        self._secret = file.seal(owned.wrapping, self._unwrapped(self._secret, "secret"), "secret")
        self._opened.execute("UPDATE meta SET value = ? WHERE name = 'secret'", (self._secret,))
        self._owned = owned
        return sum(one.members.count for one in self._now.collections.values())


def first_state(owned: file.Owned, secret: bytes) -> State:
    """Return the state of a gallery in which there is nothing."""
    root = Contents(State(0, FIRST, b"", b"")).root(owned.rows, secret)
    return State.seal(owned.sums, 0, FIRST, root)


def _shown(collection: StoredCollection) -> Collection:
    return Collection(collection.name, collection.created, collection.members.count, collection.seed is not None)


def _faces(stored: StoredPerson) -> list[Face]:
    return [Face(one.id, one.person, one.model, one.created, one.score) for one in stored.faces]
