"""Galleries that were edited without their key, through all code that reads them.

A case mixes rows of the newest file with rows of older ones and of another gallery with the same key, changes values,
flips bytes of sealed columns or of the file, or restores a whole older file. An accepted gallery must show exactly the
enrolled people, with the times, scores and similarities that this module recorded when it created the gallery.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from campaigns.hostile.case import Case, WronglyAccepted, pick

from fedvisage.device.gallery.search import Gallery
from fedvisage.metrics.similarity import Features, normalise

KEY, MODEL, NEWER = bytes(range(32)), "sha256:" + "a" * 64, "sha256:" + "b" * 64
FILE, COUNTERS = "door.gallery", "counters"
COLLECTIONS = ("staff", "visitors", "again")

COLUMNS = {
    "meta": ("value",),
    "models": ("digest", "size"),
    "collections": ("name", "created", "seed", "members"),
    "persons": ("id", "collection", "tag", "key", "name", "created"),
    "faces": ("number", "id", "person", "model", "template", "created", "pad_score"),
}
SEALED = (
    ("meta", "value"),
    ("collections", "seed"),
    ("collections", "members"),
    ("persons", "tag"),
    ("persons", "key"),
    ("persons", "name"),
    ("faces", "template"),
)
ODD = (None, 0, 1, -1, 2**62, 0.99, float("inf"), "", "staff", "visitors", "2020-01-01T00:00:00+00:00", b"", b"\0" * 32)

Truth = dict[str, tuple[list[Any], list[Any]]]


def face(seed: int) -> Features:
    """Return an embedding."""
    return normalise(np.random.default_rng(seed).standard_normal((1, 16)))


def show(gallery: Gallery) -> Truth:
    """Return the people, faces and search results of each collection."""
    return {
        collection.name: (
            [(person, faces) for person, faces in gallery.everybody(collection.name)],
            [
                [(hit.person, hit.name, round(hit.similarity, 4)) for hit in hits]
                for hits in gallery.search(collection.name, np.concatenate([face(1), face(2)]), MODEL, 50)
            ],
        )
        for collection in gallery.collections()
    }


class Galleries:
    """A gallery with copies of its earlier states, and another gallery with the same key."""

    def __init__(self, prepared: Path) -> None:
        """Create them."""
        self.now, self.counters = prepared / FILE, prepared / COUNTERS
        self.old = [prepared / f"old-{number}" for number in range(4)]
        with Gallery.create(self.now, KEY, counters=self.counters) as gallery:
            for collection in COLLECTIONS:
                gallery.add_collection(collection, renewable=collection == "again")
                for number in range(4):
                    gallery.enrol(collection, f"{collection} {number}", face(number), MODEL, [number / 4])
            shutil.copy(self.now, self.old[0])
            gallery.remove("staff", "staff 1")
            shutil.copy(self.now, self.old[1])
            gallery.enrol("visitors", "visitors 2", face(9), MODEL, [0.125])
            gallery.remove_face("again", gallery.faces("again", "again 3")[0].id)
            shutil.copy(self.now, self.old[2])
            gallery.enrol("again", "zoe", face(8), MODEL)
            shutil.copy(self.now, self.old[3])
            gallery.remove("visitors", "visitors 0")
            self.truth = show(gallery)
        self.other = prepared / "other"
        with Gallery.create(self.other, KEY, counters=self.counters) as gallery:
            for collection in COLLECTIONS:
                gallery.add_collection(collection)
                gallery.enrol(collection, "mallory", face(3), MODEL, [0.75])

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Edit a copy."""
        path = place / FILE
        shutil.copy(self.now, path)
        shutil.copytree(self.counters, place / COUNTERS)
        if draws.random() < 0.1:
            changes = [self._roll_back(path, draws)]
        elif draws.random() < 0.1:
            changes = [_flip_bytes(path, draws)]
        else:
            changes = self._edit_rows(path, draws)
        return Case(changes, partial(self._check, path, open_first=bool(draws.random() < 0.3), source=self.now))

    def _roll_back(self, path: Path, draws: np.random.Generator) -> str:
        number = int(draws.integers(len(self.old) + 1))
        shutil.copy((*self.old, self.other)[number], path)
        return f"whole file {number}"

    def _edit_rows(self, path: Path, draws: np.random.Generator) -> list[str]:
        plain = sqlite3.connect(path, isolation_level=None)
        plain.execute("PRAGMA foreign_keys = OFF")
        sources = (*self.old, self.other)
        try:
            plain.execute("ATTACH ? AS source", (str(pick(draws, sources)),))
            return [self._edit(plain, draws) for _ in range(int(draws.integers(1, 4)))]
        finally:
            plain.close()

    def _edit(self, plain: sqlite3.Connection, draws: np.random.Generator) -> str:
        edit = pick(draws, EDITS)
        try:
            edit(plain, draws)
        except sqlite3.Error as error:
            return f"{edit.__name__} ({type(error).__name__})"
        return edit.__name__

    def _check(self, path: Path, *, open_first: bool, source: Path) -> None:
        if open_first:
            # An edit while a process has the gallery open: first the valid file, then the edited one.
            edited = path.read_bytes()
            shutil.copyfile(source, path)
            with self._open(path) as gallery:
                show(gallery)
                path.write_bytes(edited)
                self._compare(gallery)
        with self._open(path) as gallery:
            self._compare(gallery)
            gallery.enrol("staff", "yan", face(5), MODEL)
            gallery.remove("staff", "yan")
            self._compare(gallery)
            gallery.turn_key(bytes(32), path.parent / "turned")
            self._compare(gallery)

    def _open(self, path: Path) -> Gallery:
        return Gallery(path, KEY, counters=path.parent / COUNTERS, patience=0)

    def _compare(self, gallery: Gallery) -> None:
        shown = show(gallery)
        for collection in {*shown, *self.truth}:
            if shown.get(collection) != self.truth.get(collection):
                raise WronglyAccepted(f"collection {collection} shows other people, faces or similarities")
            for person, faces in self.truth[collection][0]:
                if gallery.person(collection, person.name) != person or gallery.faces(collection, person.id) != faces:
                    raise WronglyAccepted(f"{person.name} of {collection} is shown otherwise")
        for collection, removed in (("staff", "staff 1"), ("visitors", "visitors 0"), ("staff", "mallory")):
            if gallery.has(collection, removed):
                raise WronglyAccepted(f"{removed} is there again")


def pick_row(plain: sqlite3.Connection, table: str, draws: np.random.Generator) -> int:
    """Draw the number of a row."""
    rows = [number for (number,) in plain.execute(f"SELECT rowid FROM {table} ORDER BY rowid")]
    return pick(draws, rows) if rows else 0


def move(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Move people to another collection, or a face to another person."""
    if draws.random() < 0.6:
        where = "" if draws.random() < 0.3 else f" WHERE rowid = {pick_row(plain, 'persons', draws)}"
        plain.execute(f"UPDATE persons SET collection = ?{where}", (int(draws.integers(1, 4)),))
    else:
        person = plain.execute("SELECT id FROM persons ORDER BY id LIMIT 1 OFFSET ?", (int(draws.integers(9)),))
        row = pick_row(plain, "faces", draws)
        plain.execute("UPDATE faces SET person = ? WHERE number = ?", (*(person.fetchone() or ("p",)), row))


def swap(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Exchange the values of a column between two rows."""
    table = pick(draws, tuple(COLUMNS))
    column = pick(draws, COLUMNS[table])
    rows = [pick_row(plain, table, draws) for _ in range(2)]
    query = f"SELECT {column} FROM {table} WHERE rowid = ?"
    values = [(plain.execute(query, (row,)).fetchone() or (None,))[0] for row in rows]
    plain.execute("BEGIN")
    try:
        plain.execute(
            f"UPDATE {table} SET {column} = {-(2**40) if column == 'number' else chr(39) + '?' + chr(39)}"
            " WHERE rowid = ?",
            (rows[1],),
        )
        plain.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (values[1], rows[0]))
        last = rows[1] if column != "number" else -(2**40)
        plain.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (values[0], last))
        plain.execute("COMMIT")
    except sqlite3.Error:
        plain.execute("ROLLBACK")
        raise


def put_back(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Copy rows of another file: the missing ones, or all."""
    tables = ("persons", "faces") if draws.random() < 0.6 else tuple(COLUMNS)
    for table in tables if draws.random() < 0.7 else (pick(draws, tables),):
        if draws.random() < 0.3:
            plain.execute(f"DELETE FROM {table}")
        how = pick(draws, ("IGNORE", "REPLACE"))
        plain.execute(f"INSERT OR {how} INTO {table} SELECT * FROM source.{table}")


def take_sums(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Copy rows of another file with the sums of their collections, and perhaps with the state."""
    for table in ("persons", "faces", "collections"):
        plain.execute(f"INSERT OR REPLACE INTO {table} SELECT * FROM source.{table}")
    if draws.random() < 0.5:
        plain.execute("INSERT OR REPLACE INTO meta SELECT * FROM source.meta WHERE name = 'state'")


def duplicate(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Add a copy of a row under another id."""
    odd = int(draws.integers(2**40))
    if draws.random() < 0.5:
        columns = "number + 1000, 'f_' || printf('%016x', ?), person, model, template, created, pad_score"
        plain.execute(
            f"INSERT INTO faces SELECT {columns} FROM faces WHERE number = ?", (odd, pick_row(plain, "faces", draws))
        )
    else:
        tag = pick(draws, ("tag", "x'00' || tag", "'text'"))
        collection = pick(draws, ("collection", "collection % 3 + 1"))
        columns = f"'p_' || printf('%016x', ?), {collection}, {tag}, key, name, created"
        plain.execute(
            f"INSERT INTO persons SELECT {columns} FROM persons WHERE rowid = ?",
            (odd, pick_row(plain, "persons", draws)),
        )


def delete(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Delete a row, or all of a table."""
    table = pick(draws, tuple(COLUMNS))
    where = "" if draws.random() < 0.3 else f" WHERE rowid = {pick_row(plain, table, draws)}"
    plain.execute(f"DELETE FROM {table}{where}")


def set_value(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Set a column to another value."""
    table = pick(draws, tuple(COLUMNS))
    row = pick_row(plain, table, draws)
    plain.execute(f"UPDATE {table} SET {pick(draws, COLUMNS[table])} = ? WHERE rowid = ?", (pick(draws, ODD), row))


def flip_bit(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Flip a bit of a sealed column, or truncate it."""
    table, column = pick(draws, SEALED)
    row = pick_row(plain, table, draws)
    (value,) = plain.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (row,)).fetchone() or (b"",)
    if not isinstance(value, bytes) or not value:
        return
    flipped = bytearray(value)
    flipped[int(draws.integers(len(flipped)))] ^= 1 << int(draws.integers(8))
    changed = bytes(flipped[: int(draws.integers(len(flipped)))] if draws.random() < 0.2 else flipped)
    plain.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (changed, row))


def rename(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Exchange the names of two collections."""
    first, second = draws.permutation(3)[:2] + 1
    names = dict(plain.execute("SELECT id, name FROM collections"))
    plain.execute("UPDATE collections SET name = 'x' WHERE id = ?", (int(first),))
    plain.execute("UPDATE collections SET name = ? WHERE id = ?", (names.get(int(first)), int(second)))
    plain.execute("UPDATE collections SET name = ? WHERE id = ?", (names.get(int(second)), int(first)))


def change_model(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Assign templates to another model."""
    plain.execute("INSERT INTO models (digest, size) VALUES (?, 16)", (NEWER,))
    where = "" if draws.random() < 0.5 else f" WHERE number = {pick_row(plain, 'faces', draws)}"
    plain.execute(f"UPDATE faces SET model = 2{where}")


def drop_index(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Make an index point to wrong rows by a definition for another column."""
    plain.execute("PRAGMA writable_schema = ON")
    text = pick(
        draws, ("CREATE INDEX faces_of_persons ON faces (id)", "CREATE INDEX faces_of_persons ON faces (model)")
    )
    plain.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'faces_of_persons'", (text,))
    if draws.random() < 0.5:
        plain.execute("PRAGMA writable_schema = RESET")
        plain.execute("REINDEX faces_of_persons")
        plain.execute("PRAGMA writable_schema = ON")
        whole = "CREATE INDEX faces_of_persons ON faces (person)"
        plain.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'faces_of_persons'", (whole,))


EDITS: tuple[Callable[[sqlite3.Connection, np.random.Generator], None], ...] = (
    move,
    move,
    swap,
    swap,
    put_back,
    put_back,
    take_sums,
    duplicate,
    delete,
    set_value,
    set_value,
    flip_bit,
    flip_bit,
    rename,
    change_model,
    drop_index,
)


def _flip_bytes(path: Path, draws: np.random.Generator) -> str:
    """Change bytes anywhere in the file."""
    raw = bytearray(path.read_bytes())
    for _ in range(int(draws.integers(1, 5))):
        at = int(draws.integers(len(raw)))
        raw[at] ^= int(draws.integers(1, 256))
    path.write_bytes(raw)
    return "bytes of the file"
