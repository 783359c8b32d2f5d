"""Read, add and delete the rows of people and faces, and keep their digests up to date."""

from __future__ import annotations

import re
import secrets
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime

from fedvisage.base.errors import UserError
from fedvisage.device.gallery import file
from fedvisage.device.gallery.authenticated import CHANGED, AuthenticatedFile
from fedvisage.device.gallery.file import UnknownName
from fedvisage.device.gallery.membership import (
    StoredCollection,
    StoredFace,
    StoredPerson,
    bucket_of,
    face_digest,
    person_digest,
)
from fedvisage.device.gallery.records import ID, Person, normalise_name
from fedvisage.device.gallery.templates import Form, Plain, Renewable


class GalleryRows(AuthenticatedFile):
    """The file of a gallery, with operations on single rows in the open transaction."""

    def _form(self, collection: StoredCollection, size: int) -> Form:
        """Return the storage form of a collection's templates."""
        if collection.seed is None:
            return Plain(size)
        return Renewable(size, self._unwrap(collection.seed, "seed", collection.name))

    def _add_model(self, digest: str, size: int) -> None:
        """Add a model unless it exists; all its embeddings have one size."""
        _, expected = self._now.models.get(digest, (0, size))
        if expected != size:
            raise UserError("embedding", f"has {size} numbers, but those of this model in the gallery have {expected}")
        if digest not in self._now.models:
            query = "INSERT INTO models (digest, size) VALUES (?, ?)"
            self._now.models[digest] = (self._database.execute(query, (digest, size)).lastrowid or 0, size)

    def _find_person(self, collection: StoredCollection, wanted: str) -> StoredPerson | None:
        """Return a person by name or id, from the bucket that must contain them.

        People of earlier versions may have names that are not in normal form.
        """
        names = dict.fromkeys((normalise_name(wanted), wanted, unicodedata.normalize("NFD", wanted)))
        return next((person for name in names if (person := self._find_exactly(collection, name))), None)

    def _find_exactly(self, collection: StoredCollection, wanted: str) -> StoredPerson | None:
        tag = file.tag_of(self._tagging, collection.id, wanted)
        if re.fullmatch(ID, wanted):
            # This row is only a hint to the bucket: it is not authenticated yet.
            query = "SELECT tag FROM persons WHERE id = ? AND collection = ?"
            (tag,) = self._database.execute(query, (wanted, collection.id)).fetchone() or (tag,)
        if not isinstance(tag, bytes):
            raise UserError(str(self.path), f"{wanted} {CHANGED}")
        start = bucket_of(tag)
        (people,) = self._people_of(collection, range(start, start + 1))
        return next((candidate for candidate in people if candidate.tag == tag or candidate.id == wanted), None)

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
        self._count(collection, person.tag, person_digest(self._owned.rows, collection.id, person))
        collection.members.count += 1

    def _put_face(self, collection: StoredCollection, person: StoredPerson, face: StoredFace) -> None:
        """Add a face; one without a number gets the next one."""
        query = "INSERT INTO faces VALUES (?, ?, ?, (SELECT id FROM models WHERE digest = ?), ?, ?, ?)"
        number = self._database.execute(query, (face.number or None, *face[1:])).lastrowid or 0
        digest = face_digest(self._owned.rows, collection.id, face._replace(number=number))
        self._count(collection, person.tag, digest)

    def _drop_faces(self, collection: StoredCollection, person: StoredPerson, faces: Sequence[StoredFace]) -> None:
        for face in faces:
            self._database.execute("DELETE FROM faces WHERE number = ?", (face.number,))
            self._count(collection, person.tag, -face_digest(self._owned.rows, collection.id, face))

    def _count(self, collection: StoredCollection, tag: bytes, digest: int) -> None:
        collection.members.add(bucket_of(tag), digest)
        collection.changed = True

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


def now() -> str:
    """Return the current time for a row."""
    return datetime.now(UTC).isoformat(timespec="seconds")
