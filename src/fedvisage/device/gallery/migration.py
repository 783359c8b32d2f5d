"""Migrate galleries of version 1, which did not authenticate the membership of collections.

Sealed names and templates stay as they are. The new file is written beside the old one and checked, the old one is
copied as a backup, then the new one replaces it: a process killed in between leaves a complete gallery.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import sqlite3
from pathlib import Path

from fedvisage.base.errors import UserError
from fedvisage.base.files import PART, publish_file, sync_directory
from fedvisage.device.gallery import file
from fedvisage.device.gallery.authenticated import CHANGED, open_secret
from fedvisage.device.gallery.counter import CountedState, Counter
from fedvisage.device.gallery.file import PATIENCE, NameTaken
from fedvisage.device.gallery.membership import Members, StoredCollection, StoredFace, StoredPerson
from fedvisage.device.gallery.store import GalleryRecords, first_state

OLD_TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE models (id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, size INTEGER NOT NULL)",
    "CREATE TABLE collections (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, created TEXT NOT NULL, seed BLOB)",
    "CREATE TABLE persons (id TEXT PRIMARY KEY, collection INTEGER NOT NULL REFERENCES collections ON DELETE CASCADE,"
    " tag BLOB NOT NULL, key BLOB NOT NULL, name BLOB NOT NULL, created TEXT NOT NULL, revision INTEGER NOT NULL,"
    " UNIQUE (collection, tag))",
    "CREATE TABLE faces (id TEXT PRIMARY KEY, person TEXT NOT NULL REFERENCES persons ON DELETE CASCADE,"
    " model INTEGER NOT NULL REFERENCES models, template BLOB NOT NULL, created TEXT NOT NULL, pad_score REAL)",
    "CREATE INDEX faces_of_persons ON faces (person)",
)

_OLD_PEOPLE = "SELECT id, tag, key, name, created FROM persons WHERE collection = ?"
_OLD_FACES = (
    "SELECT faces.rowid, faces.id, person, digest, template, created, pad_score FROM faces"
    " JOIN models ON model = models.id WHERE person = ? ORDER BY faces.rowid"
)


class MigratedGallery(GalleryRecords):
    """A gallery of the current version that imports the rows of an older one."""

    def take(self, old: sqlite3.Connection) -> None:
        """Copy and authenticate all rows of an older gallery, in one transaction."""
        with self._writing() as write:
            for number, digest, size in old.execute("SELECT id, digest, size FROM models"):
                write.execute("INSERT INTO models VALUES (?, ?, ?)", (number, digest, size))
                self._now.models[digest] = (number, size)
            for number, name, created, seed in old.execute("SELECT id, name, created, seed FROM collections"):
                write.execute("INSERT INTO collections VALUES (?, ?, ?, ?, x'')", (number, name, created, seed))
                collection = StoredCollection(number, name, created, seed, b"", Members(), changed=True)
                self._now.collections[collection.name] = collection
                for row in old.execute(_OLD_PEOPLE, (number,)):
                    person = StoredPerson(*row)
                    if not isinstance(person.tag, bytes):
                        raise UserError(str(self.path), f"person {person.id} {CHANGED}")
                    self._put_person(collection, person)
                    for face in old.execute(_OLD_FACES, (person.id,)):
                        self._put_face(collection, person, StoredFace(*face))


def migrate(path: Path, key: bytes, counters: Path) -> tuple[Path, int]:
    """Convert a gallery of version 1 to the current version; return the backup and the number of people."""
    backup, temporary = path.with_name(f"{path.name}.v1"), path.with_name(f".{path.name}{PART}")
    old = file.open_file(path, schema=1, tables=OLD_TABLES)
    try:
        with file.errors_in_one_line(path):
            old.execute("BEGIN EXCLUSIVE")  # no other process writes until the new file is in place
            secret = open_secret(old, path, key)
            counter = Counter(counters, path, secret.counting, PATIENCE)
            if (mark := counter.read()) is not None and mark.number > 0:
                raise UserError(
                    str(path),
                    f"is an older copy: its counter {counter.path} shows that this gallery was already migrated; "
                    "restore the newest copy",
                )
            if backup.exists() and not filecmp.cmp(path, backup, shallow=False):
                raise NameTaken(str(backup), "exists already, but the backup needs this name; move it elsewhere")
            temporary.unlink(missing_ok=True)
            state = first_state(secret.owned, secret.sealed)
            meta = dict(old.execute("SELECT name, value FROM meta"))
            file.create_file(temporary, {**meta, "state": state.sealed})
            with MigratedGallery(temporary, key) as new:
                new.take(old)
                people = new.check()
            counter.begin(CountedState(0, state.digest))
            part = backup.with_name(f".{backup.name}{PART}")
            try:
                shutil.copyfile(path, part)
                part.chmod(0o600)
                publish_file(part, backup)
            except OSError as error:
                raise UserError(str(backup), f"cannot be written ({error.strerror}); nothing was migrated") from None
            finally:
                part.unlink(missing_ok=True)
            os.replace(temporary, path)
            sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        old.close()
    return backup, people
