"""The records of a gallery: collections, people and faces in one file, encrypted.

A person has a key of their own, wrapped by the owner's; name and templates are sealed by it. A name is found by its
keyed hash. Deleting the row of a person deletes the key with all that it opens.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from fedvisage.errors import UserError, choice
from fedvisage.gallery import file, keys
from fedvisage.gallery.records import COLLECTION, Collection, Face, Person, checked_name
from fedvisage.gallery.refusals import Exists, Unknown, WrongKey
from fedvisage.gallery.templates import Form, Plain, Renewable
from fedvisage.metrics.similarity import Features, unit

SIZES = range(2, 4097)
"""Numbers that an embedding may have."""

CHANGED = "was changed by others than this program; put back a whole copy of the file"


class Records:
    """A gallery's file, open; threads may share it."""

    def __init__(self, path: Path, key: bytes, *, patience: float = file.PATIENCE) -> None:
        """Open a file with its owner's key; ``patience`` is how many seconds another process may hold it."""
        self.path = path
        self._lock = threading.RLock()
        self._opened = file.open_file(path, patience)
        try:
            with self._reading() as read:
                meta = dict(read.execute("SELECT name, value FROM meta"))
            salt, secret = meta.get("salt"), meta.get("secret")
            if not isinstance(salt, bytes) or not isinstance(secret, bytes):
                raise UserError(str(path), CHANGED)
            self._salt, self._wrapping, self._secret = salt, keys.derived(key, salt, "wrapping"), secret
            opened = keys.unseal(self._wrapping, secret, "secret")
            if opened is None:
                raise WrongKey(str(path), "is not opened by this key; give the one that it was made with or turned to")
            self._tagging = keys.derived(opened, salt, "names")
        except BaseException:  # whatever it was, the file is closed
            self._opened.close()
            raise

    @classmethod
    def create(cls, path: Path, key: bytes) -> Self:
        """Make an empty gallery, and open it."""
        salt = secrets.token_bytes(16)
        secret = keys.seal(keys.derived(key, salt, "wrapping"), keys.new_key(), "secret")
        file.create_file(path, {"salt": salt, "secret": secret})
        return cls(path, key)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._opened.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close."""
        self.close()

    def add_collection(self, name: str = COLLECTION, *, renewable: bool = False) -> Collection:
        """Add an empty collection; one with renewable templates gets a seed of its own."""
        checked_name(name, "collection")
        seed = keys.seal(self._wrapping, keys.new_key(), "seed", name) if renewable else None
        with self._writing() as write:
            if write.execute("SELECT 1 FROM collections WHERE name = ?", (name,)).fetchone():
                raise Exists(name, "is a collection already; choose another name")
            write.execute("INSERT INTO collections (name, created, seed) VALUES (?, ?, ?)", (name, _now(), seed))
        return self.collection(name)

    def remove_collection(self, name: str) -> None:
        """Remove a collection with everybody in it."""
        with self._writing() as write:
            row, _ = self._collection_row(name)
            write.execute("DELETE FROM collections WHERE id = ?", (row,))
        self._left(row)

    def collections(self) -> list[Collection]:
        """Return all collections by their names."""
        with self._reading() as read:
            found = read.execute(
                "SELECT name, created, (SELECT count(*) FROM persons WHERE collection = collections.id),"
                " seed IS NOT NULL FROM collections ORDER BY name"
            )
            return [Collection(name, created, people, bool(renewable)) for name, created, people, renewable in found]

    def collection(self, name: str) -> Collection:
        """Return one collection."""
        with self._reading():
            self._collection_row(name)
            return next(one for one in self.collections() if one.name == name)

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
        scores = list(pad_scores) or [None] * len(embeddings)
        with self._writing() as write:
            row, seed = self._collection_row(collection)
            form, number = self._form(collection, seed, embeddings.shape[1]), self._model(model, embeddings.shape[1])
            person, key = self._person_for(row, name)
            old = write.execute("DELETE FROM faces WHERE person = ? AND model != ?", (person.id, number)).rowcount
            faces = [Face(f"f_{secrets.token_hex(8)}", person.id, model, _now(), score) for score in scores]
            for face, embedding in zip(faces, unit(embeddings), strict=True):
                sealed = keys.seal(key, form.kept(embedding), "face", face.id, person.id, model)
                values = (face.id, person.id, number, sealed, face.created, face.pad_score)
                write.execute("INSERT INTO faces VALUES (?, ?, ?, ?, ?, ?)", values)
        self._touched(row, person.id)
        return person, faces, old

    def people(self, collection: str) -> list[Person]:
        """Return everybody of a collection by name."""
        with self._reading() as read:
            row, _ = self._collection_row(collection)
            found = read.execute("SELECT id, key, name, created FROM persons WHERE collection = ?", (row,)).fetchall()
            return sorted((self._opened_person(*values) for values in found), key=lambda one: one.name)

    def has(self, collection: str, name: str) -> bool:
        """Tell whether somebody of a name is enrolled, by its keyed hash."""
        with self._reading():
            row, _ = self._collection_row(collection)
            found = self._find(row, name)
        return found is not None and found.name == name

    def person(self, collection: str, wanted: str) -> Person:
        """Return a person by id, or by name."""
        with self._reading():
            row, _ = self._collection_row(collection)
            found = self._find(row, wanted)
        if found is None:
            raise Unknown(wanted, f"nobody of this name or id is enrolled in {collection}")
        return found

    def faces(self, collection: str, wanted: str) -> list[Face]:
        """Return a person's faces in the order of their enrolment."""
        with self._reading() as read:
            found = read.execute(
                "SELECT faces.id, person, digest, created, pad_score FROM faces JOIN models ON model = models.id"
                " WHERE person = ? ORDER BY faces.rowid",
                (self.person(collection, wanted).id,),
            )
            return [Face(*values) for values in found]

    def owner(self, collection: str, face: str) -> Person:
        """Return whose a face is."""
        with self._reading() as read:
            row, _ = self._collection_row(collection)
            query = "SELECT person FROM faces JOIN persons ON person = persons.id WHERE faces.id = ? AND collection = ?"
            found = read.execute(query, (face, row)).fetchone()
            if found is None:
                raise Unknown(face, f"no face of this id is enrolled in {collection}")
            return self.person(collection, found[0])

    def remove(self, collection: str, wanted: str) -> Person:
        """Delete a person: key, name and templates are overwritten with zeros in the file."""
        with self._writing() as write:
            row, _ = self._collection_row(collection)
            person = self.person(collection, wanted)
            write.execute("DELETE FROM persons WHERE id = ?", (person.id,))
        self._touched(row, person.id)
        return person

    def remove_face(self, collection: str, face: str) -> Person:
        """Delete one face, and return whose it was."""
        with self._writing() as write:
            row, _ = self._collection_row(collection)
            person = self.owner(collection, face)
            write.execute("DELETE FROM faces WHERE id = ?", (face,))
            write.execute("UPDATE persons SET revision = ? WHERE id = ?", (_revision(), person.id))
        self._touched(row, person.id)
        return person

    def compact(self) -> None:
        """Write the file anew without the room of what was deleted; the larger the file, the longer it takes."""
        with self._reading() as write:
            write.execute("VACUUM")

    def turn_key(self, new: bytes) -> int:
        """Wrap everybody's key with a new owner's key, all or none; templates stay. Return how many people there are.

        Who has the old key and an old copy of the file can still read that copy.
        """
        wrapping = keys.derived(new, self._salt, "wrapping")

        def turned(sealed: object, *record: object) -> bytes:
            return keys.seal(wrapping, self._unwrapped(sealed, *record), *record)

        with self._writing() as write:
            (secret,) = write.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
            again = turned(secret, "secret")
            write.execute("UPDATE meta SET value = ? WHERE name = 'secret'", (again,))
            for name, seed in write.execute("SELECT name, seed FROM collections WHERE seed IS NOT NULL").fetchall():
                write.execute("UPDATE collections SET seed = ? WHERE name = ?", (turned(seed, "seed", name), name))
            people = write.execute("SELECT id, key FROM persons").fetchall()
            changes = ((turned(key, "key", person), person) for person, key in people)
            write.executemany("UPDATE persons SET key = ? WHERE id = ?", changes)
        self._wrapping, self._secret = wrapping, again
        return len(people)

    def _touched(self, collection: int, person: str) -> None:
        """Take notice that a person was changed by this object."""

    def _left(self, collection: int) -> None:
        """Take notice that a collection was removed by this object."""

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, file.said_plainly(self.path):
            yield self._opened

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Change the file as a whole or not at all."""
        with self._reading() as write:
            write.execute("BEGIN IMMEDIATE")
            try:
                self._check_key()
                yield write
                write.execute("COMMIT")
            except BaseException:  # whatever it was, the file is as before
                if write.in_transaction:
                    write.execute("ROLLBACK")
                raise

    def _collection_row(self, name: str) -> tuple[int, object]:
        found = self._opened.execute("SELECT id, seed FROM collections WHERE name = ?", (name,)).fetchone()
        if found is None:
            known = [one for (one,) in self._opened.execute("SELECT name FROM collections LIMIT 20")]
            raise Unknown(name, f"is no collection of this gallery{choice(name, known)}")
        return int(found[0]), found[1]

    def _form(self, collection: str, seed: object, size: int) -> Form:
        """Return how a collection keeps faces."""
        return Plain(size) if seed is None else Renewable(size, self._unwrapped(seed, "seed", collection))

    def _model(self, digest: str, size: int) -> int:
        self._opened.execute("INSERT OR IGNORE INTO models (digest, size) VALUES (?, ?)", (digest, size))
        number, known = self._opened.execute("SELECT id, size FROM models WHERE digest = ?", (digest,)).fetchone()
        if known != size:
            raise UserError("embedding", f"has {size} numbers, those of this model in the gallery have {known}")
        return int(number)

    def _find(self, row: int, wanted: str) -> Person | None:
        found = self._opened.execute(
            "SELECT id, key, name, created FROM persons WHERE collection = ? AND (tag = ? OR id = ?)",
            (row, keys.tag_of(self._tagging, row, wanted), wanted),
        ).fetchone()
        return None if found is None else self._opened_person(*found)

    def _person_for(self, row: int, name: str) -> tuple[Person, bytes]:
        """Return the person of a name and their key, new if nobody has it."""
        tag, write = keys.tag_of(self._tagging, row, name), self._opened
        found = write.execute(
            "SELECT id, key, name, created FROM persons WHERE collection = ? AND tag = ?", (row, tag)
        ).fetchone()
        if found is not None:
            write.execute("UPDATE persons SET revision = ? WHERE id = ?", (_revision(), found[0]))
            return self._opened_person(*found), self._unwrapped(found[1], "key", found[0])
        person, key = Person(f"p_{secrets.token_hex(8)}", name, _now()), keys.new_key()
        values = (
            *(person.id, row, tag, keys.seal(self._wrapping, key, "key", person.id)),
            *(keys.seal(key, name.encode(), "name", person.id), person.created, _revision()),
        )
        write.execute("INSERT INTO persons VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        return person, key

    def _opened_person(self, person: str, key: object, name: object, created: str) -> Person:
        return Person(
            person, self._unsealed(self._unwrapped(key, "key", person), name, "name", person).decode(), created
        )

    def _unwrapped(self, sealed: object, *record: object) -> bytes:
        return self._unsealed(self._wrapping, sealed, *record)

    def _unsealed(self, key: bytes, sealed: object, *record: object) -> bytes:
        """Decrypt a record; one that was changed, or put in another's place, is refused by its words."""
        opened = keys.unseal(key, sealed, *record)
        if opened is None:
            self._check_key()
            raise UserError(str(self.path), f"{' '.join(map(str, record[:2]))} {CHANGED}")
        return opened

    def _check_key(self) -> None:
        """Refuse to go on with a key from which another process turned the gallery."""
        found = self._opened.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
        if found != (self._secret,):
            raise WrongKey(str(self.path), "was turned to another key meanwhile; open it again with that one")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _revision() -> int:
    """Draw a mark by which another process notices that a person was changed."""
    return secrets.randbits(62)
